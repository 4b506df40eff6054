// Runs the cells of a session, one after the other, as if all were typed at one prompt: cells.cjs [--ready MODULE…].
//
// Orders come as frames on descriptor 3, results leave as frames on descriptor 4; what a cell prints leaves on descriptors 1
// and 2. Runs inside the layers, with the tool's own rights: it protects nothing.
'use strict';
const fs = require('node:fs');
const inspector = require('node:inspector');
const { inspect } = require('node:util');
const { isMainThread, parentPort, Worker, workerData } = require('node:worker_threads');

const [ORDERS, RESULTS] = [3, 4];
// The longest text form of a value, and the longest trace, characters.
const LONGEST = 100_000;
// The types of the tools that a cell may call.
const STUBS = '/tmp/call/tools.d.ts';
// How long a cell that awaits takes at most to hear of an interrupt, ms. One that computes hears nothing.
const HEARS = 200;

const cut = (text, longest = LONGEST) =>
  text.length <= longest ? text : `${text.slice(0, longest)}… (${text.length} characters)`;

// A thread of its own reads orders, also while a cell computes.
function receive(heard) {
  const session = new inspector.Session();
  session.connectToMainThread();
  let rest = Buffer.alloc(0);
  const take = (end) => {
    for (;;) {
      const size = end();
      if (size > 0 && size <= rest.length) {
        const taken = rest.subarray(0, size);
        rest = rest.subarray(size);
        return taken;
      }
      const piece = Buffer.alloc(65536);
      const length = fs.readSync(ORDERS, piece);
      if (length === 0) process.exit(0);
      rest = Buffer.concat([rest, piece.subarray(0, length)]);
    }
  };
  for (;;) {
    const { message, bytes } = JSON.parse(take(() => rest.indexOf(10) + 1));
    const payload = bytes === 0 ? '' : take(() => bytes).toString();
    Atomics.store(heard, 0, 0);
    parentPort.postMessage({ message, payload });
    if (message === 'interrupt' && Atomics.wait(heard, 0, 0, HEARS) === 'timed-out') {
      session.post('Runtime.terminateExecution');
    }
  }
}

function send(message, payload) {
  const text = Buffer.from(payload);
  const head = Buffer.from(`${JSON.stringify({ message, bytes: text.length })}\n`);
  const frame = Buffer.concat([head, text]);
  for (let sent = 0; sent < frame.length; ) sent += fs.writeSync(RESULTS, frame, sent);
}

// A value as {media type: text}, by Deno's and Jupyter's protocol for JavaScript.
function formsOf(value) {
  let forms = {};
  try {
    const own = value?.[Symbol.for('Jupyter.display')];
    if (typeof own === 'function') forms = { ...own.call(value) };
  } catch {
    // One that fails has no form.
  }
  forms['text/plain'] ??= cut(inspect(value));
  return forms;
}

class Session {
  constructor() {
    this.inspector = new inspector.Session();
    this.inspector.connect();
    this.count = 0;
    // The longest payload that the host takes.
    this.most = 0;
    // Ends the cell that runs with an error.
    this.interrupt = () => {};
    // The variables of the last cell, as they were before it.
    this.before = {};
  }

  ask(method, parameters) {
    return new Promise((resolve, reject) => {
      this.inspector.post(method, parameters, (error, answer) => (error ? reject(error) : resolve(answer)));
    });
  }

  show(value, isMainResult) {
    const forms = formsOf(value);
    let payload = JSON.stringify(forms);
    if (Buffer.byteLength(payload) > this.most) {
      payload = JSON.stringify({ 'text/plain': cut(forms['text/plain'], Math.floor(this.most / 8)) });
    }
    send({ result: { isMainResult } }, payload);
  }

  begin({ mostBytes, variables, tools, stubs }, calls) {
    this.most = mostBytes;
    for (const [name, value] of Object.entries(this.before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    if (tools.length > 0) {
      variables.TOOL_STUBS = STUBS;
      fs.writeFileSync(STUBS, stubs);
    }
    this.before = Object.fromEntries(Object.keys(variables).map((name) => [name, process.env[name]]));
    Object.assign(process.env, variables);
    calls.begin(tools);
  }

  // Runs one cell. Returns its error, if it had one.
  async run(source) {
    this.count += 1;
    const name = `cell-${this.count}`;
    const expression = `${source}\n//# sourceURL=${name}`;
    const evaluating = this.ask('Runtime.evaluate', { expression, replMode: true, awaitPromise: true });
    const interrupted = new Promise((_, reject) => {
      this.interrupt = () => reject(new Error('Execution was terminated'));
    });
    try {
      const { result, exceptionDetails } = await Promise.race([evaluating, interrupted]);
      if (exceptionDetails) return this.error(await this.value(exceptionDetails.exception), name, exceptionDetails);
      const value = await this.value(result);
      if (value !== undefined) this.show(value, true);
      return null;
    } catch (error) {
      if (!`${error.message}`.includes('Execution was terminated')) return this.error(error, name);
      return { name: 'InterruptError', value: 'the code was interrupted', traceback: '' };
    } finally {
      evaluating.catch(() => {});
      this.interrupt = () => {};
    }
  }

  // The value behind what the inspector answers.
  async value({ objectId, type, value, unserializableValue }) {
    if (objectId === undefined) {
      if (type === 'bigint') return BigInt(unserializableValue.slice(0, -1));
      return unserializableValue === undefined ? value : Number(unserializableValue);
    }
    let taken;
    globalThis[Symbol.for('toolhost.take')] = (it) => (taken = it);
    const functionDeclaration = 'function () { globalThis[Symbol.for("toolhost.take")](this); }';
    await this.ask('Runtime.callFunctionOn', { objectId, functionDeclaration });
    await this.ask('Runtime.releaseObject', { objectId });
    delete globalThis[Symbol.for('toolhost.take')];
    return type === 'symbol' ? taken.valueOf() : taken;
  }

  // The name, the value and the trace of an error, without our own frames.
  error(error, name, { lineNumber, columnNumber } = {}) {
    if (!(error instanceof Error)) {
      return { name: 'Error', value: cut(inspect(error)), traceback: `Uncaught ${cut(inspect(error))}` };
    }
    const stack = `${error.stack}`.split('\n');
    const first = stack.findIndex((line) => line.startsWith('    at '));
    const frames = first < 0 ? [] : stack.slice(first);
    const last = frames.findLastIndex((line) => /\bcell-[0-9]+:/u.test(line));
    const place = last < 0 && lineNumber !== undefined ? [`    at ${name}:${lineNumber + 1}:${columnNumber + 1}`] : [];
    const own = frames.slice(0, last + 1).filter((line) => !line.includes('/.toolhost/'));
    const head = first < 0 ? stack : stack.slice(0, first);
    return {
      name: `${error.name}`,
      value: cut(`${error.message}`),
      traceback: cut([...head, ...own, ...place].join('\n')),
    };
  }
}

async function serve() {
  const calls = require(`${__dirname}/calls.cjs`).forCells((call, payload) => send({ call }, payload));
  const session = new Session();
  const { createRequire } = require('node:module');
  globalThis.require = createRequire(`${process.cwd()}/`);
  globalThis.display = (...values) => values.forEach((value) => session.show(value, false));
  for (const name of process.argv.slice(3)) globalThis.require(name);
  // What fails after its cell is said, and the session goes on.
  process.on('uncaughtException', (error) => console.error(session.error(error).traceback));
  const heard = new Int32Array(new SharedArrayBuffer(4));
  const orders = new Worker(__filename, { workerData: heard });
  orders.on('message', async ({ message, payload }) => {
    if (message === 'interrupt') {
      Atomics.store(heard, 0, 1);
      Atomics.notify(heard, 0);
      session.interrupt();
    } else if (message.cell) {
      session.begin(message.cell, calls);
      const error = await session.run(payload);
      calls.close('The call whose code made this call has ended.');
      send({ ended: { id: message.cell.id } }, JSON.stringify(error));
    } else {
      calls.answered(message, payload);
    }
  });
}

if (isMainThread) serve();
else receive(workerData);
