// Bun gets this file by `--preload`: what a script prints waits for its reader, so nothing is lost where the script ends
// itself. Bun makes `process.stdout` and `process.stderr`, when a script first asks for them, from these two files.
const { file } = Bun;

Bun.file = (target, options) => {
  const opened = file(target, options);
  if (target === 1 || target === 2) opened.writer = () => ({ write, flush: () => 0, end: () => 0, _getFd: () => target });
  return opened;
};

function write(data) {
  const { writeSync } = process.getBuiltinModule('node:fs');
  const bytes = Buffer.from(data);
  for (let at = 0; at < bytes.length; ) at += writeSync(this._getFd(), bytes, at);
  return bytes.length;
}
