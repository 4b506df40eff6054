// Runs a script that calls tools: calls.cjs [--no-tools] SCRIPT [ARGUMENT…], as Node itself would run SCRIPT.
//
// The cells of a session load this for their calls. Calls go to descriptor 4, answers come from descriptor 3: a line of JSON, then so many bytes of JSON as it says. Runs
// inside the layers, with the tool's own rights: it protects nothing.
'use strict';
const fs = require('node:fs');
const Module = require('node:module');

const [ANSWERS, CALLS] = [3, 4];
// What to do with the answer of each call that has none yet, by its number.
const waiting = new Map();
let number = 0;
let pipes;
let closed;
const NO_TOOLS = 'Code may call no tool here. A call of core:run-code names those that its code may call in `tools`.';

class ToolError extends Error {
  constructor({ type, message, details, retryable = false }, { stack }) {
    super(message);
    Object.assign(this, { type, details, retryable });
    Object.defineProperty(this, 'name', { value: 'ToolError' });
    const own = stack.split('\n').slice(1).filter((line) => !line.includes(__filename));
    Object.defineProperty(this, 'stack', { value: [`ToolError: ${type}: ${message}`, ...own].join('\n') });
  }
}

function close(message) {
  closed = { type: 'CancelledError', message };
  for (const done of waiting.values()) done(closed);
  waiting.clear();
}

// The answer to a call, unless that is over.
function answered({ id, error }, payload) {
  waiting.get(id)?.(error, payload);
  waiting.delete(id);
}

// The process lives while a call has no answer, and no longer.
function open() {
  const { Socket } = require('node:net');
  const from = new Socket({ fd: ANSWERS, readable: true, writable: false });
  const to = new Socket({ fd: CALLS, readable: false, writable: true });
  to.unref();
  let rest = Buffer.alloc(0);
  from.on('data', (piece) => {
    rest = Buffer.concat([rest, piece]);
    for (;;) {
      const end = rest.indexOf(10) + 1;
      if (end === 0) return;
      const { message, bytes } = JSON.parse(rest.subarray(0, end));
      if (rest.length < end + bytes) return;
      const payload = rest.subarray(end, end + bytes).toString();
      rest = rest.subarray(end + bytes);
      answered(message, payload);
      if (waiting.size === 0) from.unref();
    }
  });
  const end = () => {
    close('The host answers no more calls.');
    from.unref();
  };
  for (const pipe of [from, to]) pipe.on('error', end).on('close', end);
  return [from, to];
}

// Sends a frame.
let post = (message, payload) => {
  pipes ??= open();
  pipes[0].ref();
  pipes[1].write(Buffer.concat([Buffer.from(`${JSON.stringify({ message, bytes: payload.length })}\n`), payload]));
};

/** Calls a tool. `above`: the function below which the stack of a failure begins. */
function begin(tool, given, above) {
  const payload = Buffer.from(JSON.stringify(given));
  const place = {};
  Error.captureStackTrace(place, above);
  if (closed) return Promise.reject(new ToolError(closed, place));
  number += 1;
  const answer = new Promise((resolve, reject) => {
    const done = (error, value) => (error ? reject(new ToolError(error, place)) : resolve(JSON.parse(value)));
    waiting.set(number, done);
  });
  post({ id: number, tool }, payload);
  return answer;
}

async function call(tool, given = {}) {
  return begin(tool, given, call);
}

// The names of a tool's function: by its id, and by the name that models know.
const namesOf = (tool) =>
  [tool, tool.replace(':', '__')].map((form) => form.replace(/[^A-Za-z0-9]/gu, '_').replace(/^(?=[0-9])/u, '_'));

// Makes the tools functions of every module. A name that two tools would share is nobody's.
function offer(tools) {
  const all = tools.flatMap(namesOf);
  for (const tool of tools) {
    const called = async (given = {}) => begin(tool, given, called);
    for (const name of namesOf(tool)) {
      if (all.indexOf(name) === all.lastIndexOf(name)) globalThis[name] = called;
    }
  }
}

function provide() {
  globalThis.tools = { call };
  globalThis.toolhost = { ...globalThis.toolhost, call, ToolError };
  const load = Module._load;
  Module._load = (name, ...more) => (name === 'toolhost' ? globalThis.toolhost : load(name, ...more));
}

// A CommonJS script that awaits at its top is the body of an async function. Its lines keep their numbers.
function allowAwait(script) {
  const compile = Module.prototype._compile;
  const names = ['exports', 'require', 'module', '__filename', '__dirname'];
  Module.prototype._compile = function (text, file, ...more) {
    let body = text;
    if (file === script) {
      Module.prototype._compile = compile;
      const { compileFunction } = require('node:vm');
      const asynchronous = `(async () => {${text}\n})()`;
      try {
        compileFunction(text, names);
      } catch {
        try {
          compileFunction(asynchronous, names);
          body = asynchronous;
        } catch {
          // The script's own mistake, which Node explains.
        }
      }
    }
    return compile.call(this, body, file, ...more);
  };
}

function firstFrame() {
  const byte = Buffer.alloc(1);
  let line = '';
  while (!line.endsWith('\n')) {
    if (fs.readSync(ANSWERS, byte) === 0) throw new Error('the host offers no tools');
    line += byte.toString('latin1');
  }
  return JSON.parse(line).message;
}

// For the cells of a session, which sends their calls and hears the answers.
function forCells(send) {
  post = send;
  provide();
  const begin = (tools) => {
    closed = tools.length > 0 ? undefined : { type: 'SecurityError', message: NO_TOOLS };
    offer(tools);
  };
  return { answered, begin, close };
}

function main() {
  process.argv.splice(1, 1);
  provide();
  if (process.argv[1] === '--no-tools') {
    process.argv.splice(1, 1);
    closed = { type: 'SecurityError', message: NO_TOOLS };
  } else {
    offer(firstFrame().tools);
  }
  allowAwait(process.argv[1]);
  Module.runMain();
}

if (require.main === module) main();
else module.exports = { forCells };
