// Calls one function of a script: entry.mjs SCRIPT ENTRY [--ready [MODULE…]] (Node and Bun, ESM and CommonJS).
//
// Arguments: one JSON object on stdin, given as the only argument. Answer: the return value, one JSON document on the
// real stdout; for a generator, one line for each value and one for the end. Everything printed goes to stderr.
// Runs inside the layers, with the tool's own rights: it protects nothing, it only explains mistakes.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire, isBuiltin } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [script, entry, ready, ...early] = process.argv.slice(2);
const require = createRequire(import.meta.url);
const file = path.basename(script);
const DEEPEST = 128;
let finished = false;

class Mend extends Error {}

// Nothing of the tool has run yet: from here on, descriptor 1 is the log, also for child processes.
// JavaScript has no dup2; a freed descriptor is the next one that open() hands out.
function keepAnswer() {
  const { O_WRONLY, O_APPEND } = fs.constants;
  let kept;
  try {
    kept = fs.openSync('/proc/self/fd/1', O_WRONLY);
    const log = fs.openSync('/proc/self/fd/2', O_WRONLY | O_APPEND);
    fs.closeSync(log);
  } catch {
    // No rights to reopen them: then at least what this language prints goes to the log.
    if (kept !== undefined) fs.closeSync(kept);
    process.stdout.write = process.stderr.write.bind(process.stderr);
    for (const name of ['log', 'info', 'debug', 'table', 'dir']) console[name] = console.error;
    return 1;
  }
  fs.closeSync(1);
  fs.openSync('/proc/self/fd/2', O_WRONLY | O_APPEND);
  return kept;
}
const ANSWER = keepAnswer();

function write(fd, text) {
  let rest = Buffer.from(text, 'utf8');
  while (rest.length > 0) {
    try {
      rest = rest.subarray(fs.writeSync(fd, rest));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

function oneLine(text, most = 400) {
  const line = String(text).split(/\s+/u).join(' ').trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

function fail(reason, code = 1) {
  if (finished) return;
  finished = true;
  try {
    write(2, `\ntoolhost: ${oneLine(reason)}\n`);
  } finally {
    process.exit(code);
  }
}

// The stack from the tool's own frames, without ours and the runtime's.
function fromTool(stack) {
  const own = import.meta.url.replace('file://', '');
  return String(stack)
    .split('\n')
    .filter((line) => !line.includes(own) && !/\(?node:internal|\(native(:|\))|^\s+at native/u.test(line))
    .join('\n');
}

// The place of a syntax error. Bun lists several; Node tells it only with `--check`.
function unparsed(error) {
  const parts = error instanceof AggregateError ? error.errors : [error];
  const first = parts.find((part) => part?.position);
  if (first !== undefined) {
    for (const { message, position } of parts) console.error(`${position?.file}:${position?.line}: ${message}`);
    return `SyntaxError: ${first.message} (${path.basename(first.position.file)}, line ${first.position.line})`;
  }
  if (!(error instanceof SyntaxError) || process.versions.bun) return undefined;
  const checked = spawnSync(process.execPath, ['--check', script], { encoding: 'utf8', timeout: 5000 });
  const line = /^[^\n]*:(\d+)\n/u.exec(checked.stderr ?? '')?.[1];
  if (line === undefined) return undefined;
  console.error(checked.stderr);
  return `SyntaxError: ${error.message} (${file}, line ${line})`;
}

function crash(error) {
  if (error instanceof Mend) return fail(error.message);
  const place = unparsed(error);
  if (place !== undefined) return fail(place);
  if (error === null || typeof error !== 'object') return fail(`the script threw ${oneLine(String(error), 200)}`);
  // Bun gives a syntax error without message text of its own; its stack has the place.
  process.stderr.write(`${fromTool(error.stack ?? error)}\n`);
  const where = new RegExp(`${file.replace(/[^\w]/gu, '\\$&')}:(\\d+)`, 'u').exec(error.stack ?? '');
  let text = `${error.name ?? 'Error'}: ${error.message ?? error}${where ? ` (${file}, line ${where[1]})` : ''}`;
  if (error.code === 'ERR_MODULE_NOT_FOUND' || error.code === 'MODULE_NOT_FOUND') {
    text += '; a module must lie in the tool\'s own folder (node_modules beside the script) and be readable by it';
  } else if (/outside a module|Unexpected token 'export'/u.test(error.message ?? '')) {
    text += '; name the file .mjs, or put {"type":"module"} in a package.json beside it';
  }
  return fail(text);
}

// Whether the script itself defines a function, and does not import it, under whatever name. Node keeps the text of a
// function as it is in the file. Bun rewrites it, but lists the files that it loaded: what they export, or a module of
// the runtime that the script names, is not the script's.
let given;
function own(value) {
  if (typeof value !== 'function') return false;
  const [text, source] = [Function.prototype.toString.call(value), fs.readFileSync(script, 'utf8')];
  if (source.includes(text)) return true;
  if (!process.versions.bun || /\{\s*\[native code\]\s*\}$/u.test(text)) return false;
  if (given === undefined) {
    given = new Set();
    const named = [...source.matchAll(/['"`]([\w:/]+)['"`]/gu)].map(([, name]) => name).filter(isBuiltin);
    const files = Object.keys(require.cache).filter((path) => path !== script && path !== import.meta.filename);
    [...named.map(require), ...files.map((path) => require.cache[path]?.exports)].forEach((part) => gather(part, 0));
  }
  return !given.has(value);
}

function gather(value, depth) {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function') || given.has(value)) return;
  given.add(value);
  if (depth > 3 || given.size > 20_000) return;
  for (const { value: part } of Object.values(Object.getOwnPropertyDescriptors(value))) gather(part, depth + 1);
}

function find(module, name) {
  const usual = module.default;
  const found = [name !== 'default' ? module[name] : undefined, usual?.[name]].find((value) => typeof value === 'function')
    ?? (typeof usual === 'function' && (name === 'default' || usual.name === name) ? usual : undefined);
  if (own(found)) return found;
  if (found !== undefined) {
    throw new Mend(`'${name}' is not defined in ${file}, which has it from another module; write a function ` +
      'there that calls it, and set handler.entryPoint to that');
  }
  const value = module[name] ?? usual?.[name];
  if (value !== undefined) throw new Mend(`'${name}' in ${file} is a ${typeof value}, not a function`);
  const names = new Set();
  for (const holder of [module, usual]) {
    if (holder === null || (typeof holder !== 'object' && typeof holder !== 'function')) continue;
    for (const key of Object.keys(holder)) if (own(holder[key])) names.add(key);
  }
  const listed = [...names].slice(0, 20).join(', ');
  throw new Mend(
    `${file} exports no function '${name}'; ` +
      (listed ? `it exports: ${listed}. Set handler.entryPoint to one of them` : `write: export function ${name}(input) { … }`),
  );
}

function hint(value) {
  if (value instanceof Map) return 'return Object.fromEntries(it)';
  if (value instanceof Set) return 'return [...it]';
  if (value instanceof Error) return 'throw it, or return its message';
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return 'return Array.from(it), or base64 text';
  if (typeof value?.then === 'function') return 'await it';
  if (value instanceof RegExp) return 'return String(it)';
  if (typeof value?.text === 'function') return 'return await it.text()';
  if (typeof value?.[Symbol.asyncIterator] === 'function') return 'collect it with for await, or write async function*';
  if (typeof value?.[Symbol.iterator] === 'function') return 'return [...it]';
  if (typeof value === 'object') return 'return a plain object of what is meant';
  return 'call it, or leave it out';
}

// Whether a value keeps its content elsewhere than in fields (a generator, a Response), and so would become {}.
function empty(value) {
  const above = Object.getPrototypeOf(value);
  const plain = above === null || Object.getPrototypeOf(above) === null;
  return !plain && !Array.isArray(value) && typeof value.toJSON !== 'function' && Object.keys(value).length === 0;
}

// Throws a Mend at the first part of the answer that JSON cannot carry, or would carry as something else.
function check(value, place, depth) {
  if (value instanceof Number || value instanceof String || value instanceof Boolean) value = value.valueOf();
  const kind = typeof value;
  if (value === null || kind === 'boolean' || kind === 'undefined') return;
  if (kind === 'string') {
    if (value.isWellFormed?.() === false) throw new Mend(`${place} holds half a surrogate pair, which is not text; use it.toWellFormed()`);
  } else if (kind === 'number') {
    if (!Number.isFinite(value)) throw new Mend(`${place} is ${value}, which is not JSON; return null or a string instead`);
    if (Number.isInteger(value) && (value >= 2 ** 64 || value < -(2 ** 63)) && Math.abs(value) < 1e21) {
      throw new Mend(`${place} is an integer of more than 64 bits; return String(it)`);
    }
  } else if (kind === 'bigint') {
    throw new Mend(`${place} is a BigInt, which JSON cannot carry; return Number(it) or String(it)`);
  } else if (kind !== 'object' || value instanceof Map || value instanceof Set || value instanceof Error
      || ArrayBuffer.isView(value) || value instanceof ArrayBuffer || typeof value.then === 'function' || empty(value)) {
    const tag = Object.prototype.toString.call(value).slice(8, -1);
    const name = kind !== 'object' ? kind : tag !== 'Object' ? tag : value.constructor?.name ?? 'object';
    throw new Mend(`${place} is a ${name}, which JSON cannot carry; ${hint(value)}`);
  } else if (depth >= DEEPEST) {
    throw new Mend(`${place.slice(0, 80)}… contains itself, or nests deeper than ${DEEPEST}; return a flatter value`);
  } else if (value instanceof Date && Number.isNaN(value.getTime())) {
    throw new Mend(`${place} is an invalid Date`);
  } else if (typeof value.toJSON === 'function') {
    check(value.toJSON(), place, depth + 1);
  } else if (Array.isArray(value)) {
    value.forEach((part, index) => check(part, `${place}[${index}]`, depth + 1));
  } else {
    for (const [key, part] of Object.entries(value)) {
      check(key, `a key of ${place}`, depth + 1);
      check(part, `${place}.${key}`, depth + 1);
    }
  }
}

// The global `toolhost` of the script: sends progress and log lines, and holds the answers of the client.
function ours(client) {
  const tell = (said) => write(2, `@toolhost ${JSON.stringify(said)}\n`);
  return {
    can: [],
    answers: {},
    state: null,
    ...client,
    progress: (progress, total, message) => tell({ progress, total, message }),
    log: (message, level = 'info') => tell({ log: level, message: String(message) }),
    ask: (requests, state = null) => ({ $ask: requests, $state: state }),
    form: (message, properties, required = Object.keys(properties)) => ({
      method: 'elicitation/create',
      params: { message, requestedSchema: { type: 'object', properties, required } },
    }),
  };
}

// Sends what a generator yields as it comes. What it returns, if anything, is the whole answer.
async function stream(parts) {
  for (let number = 1; ; number += 1) {
    const { value, done } = await parts.next();
    if (done) return value;
    check(value, `chunk ${number}`, 1);
    write(ANSWER, `@toolhost {"chunk":${JSON.stringify(value) ?? null}}\n`);
  }
}

function answer(value) {
  check(value, 'the return value', 0);
  write(ANSWER, `${JSON.stringify(value ?? null)}\n`);
}

process.on('uncaughtException', crash);
process.on('unhandledRejection', crash);
// Nothing is left to wait for, and still no answer.
process.on('beforeExit', () => fail(`${entry}() returned a promise that never settled; resolve it`));
process.on('exit', (code) => {
  if (finished) return;
  finished = true;
  write(2, `\ntoolhost: the script called process.exit(${code}) before ${entry}() returned; return the answer instead\n`);
  process.exitCode = code || 1;
});

// A module is loaded once, however often it is asked for.
function load() {
  return import(pathToFileURL(script).href);
}

// The input. Before it come the variables of the call, where this was started before that.
function read() {
  const whole = fs.readFileSync(0);
  if (ready === undefined) return whole.toString();
  const start = whole.indexOf('\n') + 1;
  const end = start + Number(whole.toString('latin1', 0, start).split(' ')[1]);
  Object.assign(process.env, JSON.parse(whole.toString('utf8', start, end) || '{}'));
  return whole.toString('utf8', end);
}

// Not awaited at the top level: Bun would spin for ever on a promise that never settles.
async function main() {
  process.argv.splice(1, process.argv.length - 1, script);
  globalThis.toolhost = { ...globalThis.toolhost, ...ours() };
  if (ready !== undefined) {
    // All this before the input comes.
    for (const name of early) await import(name);
    await load();
  }
  const input = JSON.parse(read());
  if (input === null || typeof input !== 'object' || Array.isArray(input)) {
    throw new Mend(`the input of an entryPoint is one JSON object, not ${Array.isArray(input) ? 'an array' : typeof input}`);
  }
  const { $client, ...given } = input;
  globalThis.toolhost = { ...globalThis.toolhost, ...ours($client) };
  const result = await find(await load(), entry)($client === undefined ? input : given);
  if (/^\[object (Async)?Generator\]$/u.test(Object.prototype.toString.call(result))) {
    const whole = await stream(result);
    if (whole === undefined) write(ANSWER, '@toolhost {"end":true}\n');
    else answer(whole);
  } else answer(result);
  finished = true;
  // The answer is given: timers and connections that are still open do not hold the call.
  process.exit(0);
}
main().catch(crash);
