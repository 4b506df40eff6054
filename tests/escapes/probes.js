// Probes in Node: as probes.py, without children. In: {"probes": [...]} on stdin. Out: {name: word}.
const fs = require("fs");
const net = require("net");

const acts = {
  read: (path) => (fs.readFileSync(path), "ok"),
  write: (path) => (fs.writeFileSync(path, fs.readFileSync(path)), "ok"),
  symlink: (target, path) => (fs.symlinkSync(target, path), "ok"),
  chmod: (path, mode) => (fs.chmodSync(path, parseInt(mode, 8)), "ok"),
  variable: (name) => "ok:" + process.env[name],
  binding: (path) => {
    const module = { exports: {} };
    process.dlopen(module, path);
    return "ok";
  },
  connect: (host, port) =>
    new Promise((done) => {
      const socket = net.connect({ host, port }, () => socket.write("escaped", () => (socket.destroy(), done("ok"))));
      socket.on("error", (e) => done(e.code));
    }),
  connectUnix: (name) =>
    new Promise((done) => {
      const path = name.startsWith("@") ? "\0" + name.slice(1) : name;
      const socket = net.connect({ path }, () => socket.write("escaped", () => (socket.destroy(), done("ok"))));
      socket.on("error", (e) => done(e.code));
    }),
  resolve: (name) =>
    new Promise((done) => require("dns").lookup(name, (e) => done(e ? e.code : "ok"))),
  fetches: (url) => fetch(url).then(() => "ok", (e) => (e.cause && e.cause.code) || e.message),
  shell: (line) => require("child_process").execSync(line, { stdio: ["ignore", "pipe", "ignore"] }).toString().trim(),
  worker: (path) =>
    new Promise((done) => {
      const { Worker } = require("worker_threads");
      const code = "const p = require('worker_threads'); try { require('fs').readFileSync(p.workerData); p.parentPort.postMessage('ok') } catch (e) { p.parentPort.postMessage(e.code) }";
      new Worker(code, { eval: true, workerData: path }).on("message", done).on("error", (e) => done(e.message));
    }),
};

(async () => {
  const answers = {};
  for (const probe of JSON.parse(fs.readFileSync(0, "utf8")).probes) {
    try {
      answers[probe.name] = await acts[probe.do](...(probe.args || []));
    } catch (e) {
      answers[probe.name] = e.code || "broken: " + e.message;
    }
  }
  fs.writeSync(1, JSON.stringify(answers));
  process.exit(0);
})();
