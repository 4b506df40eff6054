// The installer's side of a build, behind the layers: npm resolves, and npm's own reader of packages (pacote) fetches and
// unpacks each place of the lock. An order in JSON on stdin, one JSON document on stdout; everything that npm prints goes
// to stderr. Trusted no more than what it installs: the host looks at what is left as at anything a tool wrote.
const fs = require("fs");
const path = require("path");
const { spawnSync } = require("child_process");
const { createRequire } = require("module");

const CERTIFICATES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
const PATIENCE = 60000;
const LONGEST_DOCUMENT = 256 * 1024 * 1024;
const order = JSON.parse(fs.readFileSync(0, "utf8"));
const cache = path.join(order.into, "cache");

function fail(message) {
  process.stderr.write(`toolhost: ${message}\n`);
  process.exit(1);
}

/// The file of those that vouch for the index: this machine's, or what the order brings.
function certificates() {
  if (!order.ca) return CERTIFICATES.find((file) => fs.existsSync(file));
  const own = path.join(order.into, "certificates.pem");
  fs.writeFileSync(own, order.ca);
  return own;
}

function npm(folder, ...words) {
  // Neither is there.
  const [userconfig, globalconfig] = ["user", "global"].map((name) => path.join(order.into, `${name}.npmrc`));
  const settings = {
    cache, userconfig, globalconfig, registry: order.index, audit: false, fund: false,
    "update-notifier": false, "bin-links": false, "logs-max": 0, color: false, progress: false, loglevel: "http",
    git: "/nonexistent/git", "allow-git": "none", "allow-file": "none", "allow-directory": "none",
    "fetch-retries": 2, "fetch-timeout": PATIENCE, "replace-registry-host": "always", "engine-strict": false,
  };
  const cafile = certificates();
  if (cafile) settings.cafile = cafile;
  const arguments_ = Object.entries(settings).map(([name, value]) => `--${name}=${value}`);
  const env = { PATH: process.env.PATH, HOME: "/tmp", TMPDIR: path.join(order.into, "temporary"), LANG: "C.UTF-8" };
  fs.mkdirSync(env.TMPDIR, { recursive: true });
  const started = [order.npm, ...words, ...arguments_];
  const ended = spawnSync(process.execPath, started, { cwd: folder, env, stdio: ["ignore", 2, 2] });
  if (ended.error) fail(`npm did not start: ${ended.error.message}`);
  if (ended.status !== 0) process.exit(ended.status || 1);
}

/// A JSON document of the index; `undefined` where it has none.
function document(url) {
  return new Promise((resolve, reject) => {
    const client = url.startsWith("http:") ? require("http") : require("https");
    const cafile = certificates();
    const asked = client.get(url, { ca: cafile && fs.readFileSync(cafile), timeout: PATIENCE }, (answer) => {
      const parts = [];
      let length = 0;
      answer.on("data", (part) => {
        length += part.length;
        if (length > LONGEST_DOCUMENT) asked.destroy(new Error(`${url}: the answer is too long`));
        else parts.push(part);
      });
      answer.on("error", reject);
      answer.on("end", () => {
        if (answer.statusCode !== 200) return resolve(undefined);
        try {
          resolve(JSON.parse(Buffer.concat(parts).toString("utf8")));
        } catch (error) {
          reject(error);
        }
      });
    });
    asked.on("timeout", () => asked.destroy(new Error(`${url}: no answer`)));
    asked.on("error", reject);
  });
}

/// When each archive was published, by digest: the index dates a version, and says which archive that is. A copy inside
/// another package has no digest, and goes by name and version.
async function published() {
  const times = {};
  for (const { name, version, hashes } of order.packages) {
    const known = await document(`${order.index.replace(/\/$/, "")}/${name.replace("/", "%2f")}`);
    const time = known && known.time && known.time[version];
    const { integrity = "" } = ((known && known.versions && known.versions[version]) || {}).dist || {};
    for (const key of hashes || [`${name} ${version}`]) {
      const isDated = typeof time === "string" && (!hashes || integrity.split(/\s+/).includes(key));
      if (isDated && time > (times[key] || "")) times[key] = time;
      else if (hashes) times[key] = times[key] || "";
    }
  }
  return times;
}

/// The places to fill, parents first. What is for other machines is left out, with all below it, where it may be.
function places() {
  const { checkPlatform } = createRequire(order.npm)("npm-install-checks");
  const skipped = [];
  return Object.entries(JSON.parse(order.inputs[0][1])).sort(([a], [b]) => (a < b ? -1 : 1)).filter(([place, entry]) => {
    if (entry.bundled || skipped.some((above) => place.startsWith(`${above}/`))) return false;
    try {
      checkPlatform(entry.only, false);
      return true;
    } catch (error) {
      if (!entry.optional) fail(`${place}: ${error.message}`);
      skipped.push(place);
      return false;
    }
  });
}

/// `bun.lock` as a lock of npm: the same places, versions and hashes, as far as the requirements lead to them.
function translate(text) {
  // Its commas may stand before a closing bracket.
  const plain = text.replace(/("(?:\\.|[^"\\])*")|,(?=\s*[}\]])/g, (_, string) => string || "");
  const lock = JSON.parse(plain);
  const names = (said, field) => Object.keys(said[field] || {});
  if (![0, 1, 2].includes(lock.lockfileVersion)) fail("bun.lock: lockfileVersion must be 0, 1 or 2");
  const changes = ["overrides", "patchedDependencies", "catalog", "catalogs", "trustedDependencies"];
  const change = changes.find((field) => names(lock, field).length);
  if (change) fail(`bun.lock: \`${change}\` is not read: take it out of package.json and lock again`);
  const entries = new Map();
  for (const [key, [resolution, , about = {}, integrity]] of Object.entries(lock.packages || {})) {
    const parts = key.match(/@[^/]*\/[^/]*|[^/]+/g) || [];
    const at = resolution.lastIndexOf("@");
    const entry = { version: resolution.slice(at + 1), name: resolution.slice(0, at), integrity };
    if (entry.name === parts.at(-1)) delete entry.name;
    if (about.bundled) fail(`bun.lock: \`${key}\` is bundled in another package: \`npm install --package-lock-only\` writes a lock that says it exactly`);
    if (!integrity) fail(`bun.lock: \`${key}\` has no hash: lock again with an index that tells it (no git reference, file or URL)`);
    for (const field of ["dependencies", "optionalDependencies", "peerDependencies"]) if (about[field]) entry[field] = about[field];
    for (const field of ["os", "cpu", "libc"]) if (about[field]) entry[field] = [].concat(about[field]);
    entries.set(parts.map((part) => `node_modules/${part}`).join("/"), entry);
  }
  // Where Node finds a package that is required from a place.
  const find = (from, name) => {
    for (let above = from; ; above = above.slice(0, Math.max(0, above.lastIndexOf("/node_modules/")))) {
      const place = `${above}${above && "/"}node_modules/${name}`;
      if (entries.has(place)) return place;
      if (!above) return undefined;
    }
  };
  const root = (lock.workspaces || {})[""] || {};
  const [found, ahead] = [new Map(), [["", root, false]]];
  while (ahead.length) {
    const [place, said, optional] = ahead.pop();
    // Once more only where it was taken for optional and is not.
    if (place && found.has(place) && (!found.get(place) || optional)) continue;
    if (place) found.set(place, optional);
    const soft = names(said, "optionalDependencies");
    for (const name of new Set([...names(said, "dependencies"), ...soft, ...names(said, "peerDependencies")])) {
      const to = find(place, name);
      if (to) ahead.push([to, entries.get(to), optional || soft.includes(name)]);
      else if (!optional && !soft.includes(name) && names(said, "dependencies").includes(name)) fail(`bun.lock does not hold \`${name}\`: run \`bun install\``);
    }
  }
  const packages = { "": { dependencies: root.dependencies, optionalDependencies: root.optionalDependencies } };
  for (const place of [...found.keys()].sort()) packages[place] = { ...entries.get(place), ...(found.get(place) ? { optional: true } : {}) };
  return { lock: JSON.stringify({ name: "packages", lockfileVersion: 3, requires: true, packages }, null, 2) + "\n" };
}

const archive = (folder, { hashes }) => path.join(folder, "files", Buffer.from(hashes[0]).toString("hex").slice(0, 80) + ".tgz");

async function main() {
  if (order.do === "ages") return { published: await published() };
  if (order.do === "translate") return translate(order.inputs[1][1]);
  const folder = path.join(order.into, "project");
  fs.mkdirSync(folder, { recursive: true });
  if (order.do === "resolve") {
    for (const [name, text] of order.inputs) fs.writeFileSync(path.join(folder, name), text);
    npm(folder, "install", "--package-lock-only", "--ignore-scripts", ...(order.before ? [`--before=${order.before}`] : []));
    return { lock: fs.readFileSync(path.join(folder, "package-lock.json"), "utf8") };
  }
  const pacote = createRequire(order.npm)("pacote");
  const cafile = certificates();
  const options = {
    cache, registry: order.index, replaceRegistryHost: "always", timeout: PATIENCE, fetchRetries: 2, preferOnline: true,
    ...(cafile ? { ca: fs.readFileSync(cafile, "utf8") } : {}), allowGit: "none", ignoreScripts: true,
  };
  if (order.do === "fetch") {
    fs.mkdirSync(path.join(order.into, "files"), { recursive: true });
    const wanted = [...new Map(places().map(([, entry]) => [archive(order.into, entry), entry])).entries()];
    const next = async () => {
      for (let one = wanted.shift(); one; one = wanted.shift()) {
        const [file, { name, version, hashes }] = one;
        process.stderr.write(`fetching ${name} ${version}\n`);
        await pacote.tarball.file(`${name}@${version}`, file, { ...options, integrity: hashes.join(" ") });
      }
    };
    await Promise.all(Array.from({ length: 8 }, next));
    return { published: order.ages ? await published() : {} };
  }
  fs.mkdirSync(path.join(folder, "node_modules"), { recursive: true });
  for (const [place, entry] of places()) {
    const from = `file:${archive(order.from, entry)}`;
    await pacote.extract(from, path.join(folder, place), { ...options, offline: true, integrity: entry.hashes.join(" ") });
  }
  if (order.builds) npm(folder, "rebuild", "--offline", "--foreground-scripts");
  return {};
}

main().then((done) => process.stdout.write(JSON.stringify(done)), (error) => fail(error.message));
