// Keeps what tools wrote from being loaded as code: Node gets this file by `--require`, Bun by `--preload`. Files that
// are only read are not looked at. It protects a tool from its neighbours, not the host from the tool.
const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const threads = require('node:worker_threads');
const { fileURLToPath, pathToFileURL } = require('node:url');

const PLACES = fs.readFileSync('/.toolhost/written', 'utf8');
const WRITTEN = new RegExp(`^(?:${PLACES})$`, 'su');
// These endings are data for Bun, unless an import says otherwise.
const WRITTEN_CODE = new RegExp(`^(?:${PLACES})$(?<!\\.(?:json|jsonc|json5|toml|yaml|yml|xml|md|txt|csv))`, 'su');

function refuse(file) {
  const why = `${file} was not loaded: tools write there, and what they write is data, not code; ` +
    'move it to a folder that no tool writes';
  process.stderr.write(`toolhost: ${why}\n`);
  throw new Error(why);
}

function check(file) {
  const real = fs.existsSync(file) ? fs.realpathSync(file) : file;
  if (WRITTEN.test(real)) refuse(real);
}

// Checks the `package.json` of a folder that is required: it may lead to any file.
function checkFolder(request, folder) {
  const isModule = Object.keys(Module._extensions).some((ending) => fs.existsSync(folder + ending));
  const settings = path.join(folder, 'package.json');
  if (fs.existsSync(settings) && (!isModule || request.endsWith('/'))) check(settings);
}

function checkRequest(request, from) {
  if (/^\.{0,2}(?:\/|$)/u.test(request)) return checkFolder(request, path.resolve(from, request));
  if (Module.isBuiltin(request) || /^\w+:/u.test(request)) return;
  const name = request.split('/', request[0] === '@' ? 2 : 1).join('/');
  for (let at = from; at !== '/'; at = path.dirname(at)) {
    for (const folder of [name, request]) checkFolder('/', path.join(at, 'node_modules', folder));
  }
}

exports.resolve = (request, context, next) => {
  if (context.parentURL?.startsWith('file:')) checkRequest(request, path.dirname(fileURLToPath(context.parentURL)));
  return next(request, context);
};

exports.load = (url, context, next) => {
  if (url.startsWith('file:') && context.format !== 'json') check(fileURLToPath(url));
  return next(url, context);
};

// Calls `look` with the arguments first.
function before(owner, name, look) {
  const inner = owner[name];
  owner[name] = function (...given) {
    look(...given);
    return inner.apply(this, given);
  };
}

function installInNode() {
  if (Module.registerHooks) Module.registerHooks(exports);
  else Module.register(pathToFileURL(__filename).href);
  before(Module, '_resolveFilename', (request, parent) => checkRequest(request, path.dirname(parent?.filename ?? '/.')));
  before(Module.prototype, 'load', (file) => file.endsWith('.json') || check(file));
  before(Module.prototype, '_compile', (_, file) => check(file));
}

function installInBun() {
  const setup = (build) => {
    build.onLoad({ filter: WRITTEN_CODE }, (module) => refuse(module.path));
    // Otherwise text, like all that has no ending.
    build.onLoad({ filter: /^text\/javascript/u, namespace: 'data' }, (module) => {
      const [type, text] = module.path.split(/,(.*)/su);
      return { contents: type.endsWith(';base64') ? atob(text) : decodeURIComponent(text), loader: 'js' };
    });
  };
  Bun.plugin({ name: 'toolhost', setup });
  for (const owner of [globalThis, threads]) {
    const { Worker } = owner;
    owner.Worker = class extends Worker {
      constructor(file, options) {
        super(file, { ...options, preload: [__filename, ...[options?.preload ?? []].flat()] });
      }
    };
  }
}

before(process, 'dlopen', (_, file) => check(file));
if (process.versions.bun) installInBun();
// The thread of the hooks imports this file for them alone.
else if (module.parent?.id === 'internal/preload') installInNode();
