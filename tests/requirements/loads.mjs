// Tries to load what lies in `lib`, in many ways: `loaded` or `refused` for each.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import Module, { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

const here = path.dirname(fileURLToPath(import.meta.url));
const lib = (name) => path.join(here, 'lib', name);
const require = createRequire(import.meta.url);
const { bun } = process.versions;

const child = (name) => spawnSync(process.execPath, [lib(name)], { encoding: 'utf8' }).stdout === 'ran\n';
const worker = (file, options) => new Promise((done) => {
  const started = new Worker(file, options);
  for (const event of ['message', 'error', 'exit']) started.on(event, (said) => done(said === 'ran'));
});

const forms = {
  module: () => import('./lib/a.mjs'),
  required: () => void require('./lib/b.cjs'),
  'no ending': () => void require('./lib/c'),
  model: () => import('./lib/model'),
  'required model': () => void require('./lib/required'),
  link: () => void require('./link/linked.cjs'),
  worker: () => worker(lib('worker.mjs')),
  child: () => child('child.cjs'),
  'child module': () => child('forked.mjs'),
  addon: () => void process.dlopen({ exports: {} }, lib('library.so')),
  ...(bun ? { typescript: () => import('./lib/d.ts') } : {
    compiled: () => new Module('x')._compile('globalThis.ran = true', lib('c.js')),
    'leads elsewhere': () => void require('./lib/inner'),
    'package leads elsewhere': () => import('package'),
  }),
};

async function tries(form) {
  globalThis.ran = false;
  let ran = false;
  try {
    ran = await form() === true;
  } catch (error) {
    // A library that is not an addon was mapped.
    ran = /not self-register|napi_register|Module did not|symbol/iu.test(error.message);
    if (!ran && !/was not loaded: tools write there/u.test(error.message)) return error.message;
  }
  return ran || globalThis.ran ? 'loaded' : 'refused';
}

const loads = {};
for (const [name, form] of Object.entries(forms)) {
  console.log = () => {};
  loads[name] = await tries(form);
}
const works = [
  require('./fine.cjs'),
  (await import('./lib/model.json', { with: { type: 'json' } })).default.n,
  require('./lib/model.json').n,
  JSON.parse(fs.readFileSync(lib('model.json'))).n,
  (await import('data:text/javascript,export default 5')).default,
];
process.stdout.write(`${JSON.stringify({ loads, works })}\n`);
