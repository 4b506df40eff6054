// The installer's side of a build, behind the walls: has npm resolve, fetch or install. An order in JSON on stdin, one
// JSON document on stdout; everything that npm prints goes to stderr. Trusted no more than what it installs: the host
// looks at what is left as at anything a tool wrote.
const fs = require("fs");
const path = require("path");
const { spawnSync } = require("child_process");

const CERTIFICATES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
const PATIENCE = 60000;
const LONGEST_DOCUMENT = 256 * 1024 * 1024;
const order = JSON.parse(fs.readFileSync(0, "utf8"));
const cache = path.join(order.into, "cache");

function fail(message) {
  process.stderr.write(`toolhost: ${message}\n`);
  process.exit(1);
}

function certificates() {
  return CERTIFICATES.find((file) => fs.existsSync(file));
}

/// A folder with the files of the order: the project that npm works on.
function project() {
  const folder = path.join(order.into, "project");
  fs.mkdirSync(folder, { recursive: true });
  for (const [name, text] of order.inputs) fs.writeFileSync(path.join(folder, name), text);
  return folder;
}

function npm(folder, ...words) {
  // Neither is there.
  const [userconfig, globalconfig] = ["user", "global"].map((name) => path.join(order.into, `${name}.npmrc`));
  const settings = {
    cache, userconfig, globalconfig, registry: order.index, audit: false, fund: false,
    "update-notifier": false, "bin-links": false, "logs-max": 0, color: false, progress: false, loglevel: "http",
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

/// When each version was published, as far as the index says.
async function published() {
  const times = {};
  for (const { name, version } of order.packages) {
    const known = await document(`${order.index.replace(/\/$/, "")}/${name.replace("/", "%2f")}`);
    const time = known && known.time && known.time[version];
    if (typeof time === "string") times[`${name} ${version}`] = time;
  }
  return times;
}

async function main() {
  const folder = project();
  if (order.do === "resolve") {
    npm(folder, "install", "--package-lock-only", "--ignore-scripts", ...(order.before ? [`--before=${order.before}`] : []));
    return { lock: fs.readFileSync(path.join(folder, "package-lock.json"), "utf8") };
  }
  if (order.do === "fetch") {
    npm(folder, "ci", "--ignore-scripts");
    return { published: order.ages ? await published() : {} };
  }
  fs.cpSync(path.join(order.from, "cache"), cache, { recursive: true });
  npm(folder, "ci", "--offline", ...(order.builds ? [] : ["--ignore-scripts"]));
  fs.mkdirSync(path.join(folder, "node_modules"), { recursive: true });
  return {};
}

main().then((done) => process.stdout.write(JSON.stringify(done)), (error) => fail(error.message));
