"""A package index of hostile and harmless packages on loopback, in the ways in which pip and npm ask for one.

Prints a line of JSON: its port, and the hashes of its files. Serves until stdin ends. Arguments: a folder, where log.txt
gets each request, and where packages try to leave marks; perhaps options in JSON: `stock` (names of packages that take long
to make), `address`, `port`, `certificate` (then it speaks TLS).

/simple/…: the index. /other/simple/…: another one, where `twin` is something else. /slow/simple/…: waits a second before
a file. /far/simple/…: sends everybody to a port that nobody granted. /hang/simple/…: never answers. /lies/simple/…: says
that files are longer than they are. /npm/…: the registry of npm.
"""
import base64
import gzip
import hashlib
import http.server
import io
import json
import ssl
import stat
import sys
import tarfile
import threading
import time
import zipfile
import zlib

FOLDER = sys.argv[1]
OPTIONS = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
LOG = open(f"{FOLDER}/log.txt", "a", buffering=1)
PLACE = f"{FOLDER}/marks"
FILES, PACKUMENTS = {}, {}
LATE = "late-1.0-py3-none-any.whl"

# What a package tries from wherever its code runs: a list of what it could do.
TRIES = f"""
import os, socket
def tries():
    could = []
    for name, work in [
        ("write", lambda: open({PLACE!r} + "/written-by-" + str(os.getpid()), "w").close()),
        ("read", lambda: open({FOLDER!r} + "/log.txt").read()),
        ("connect", lambda: socket.create_connection(("127.0.0.1", PORT), timeout=2).close()),
        ("home", lambda: os.listdir("/root") if os.path.exists("/root/.bashrc") else 1 / 0),
    ]:
        try:
            work()
            could.append(name)
        except Exception:
            pass
    return could
"""


def wheel(name, version, files, key="", links=(), tag="py3-none-any", zeros=0, requires=()):
    """`files`: path → text. `key`: `other` for another file of the same name on the other index. `zeros`: MiB of one more file."""
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
        for path, target in links:
            entry = zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        if zeros:
            bomb(archive, f"{name}/zeros.bin", zeros)
        record = "".join(f"{path},,\n" for path in [*files, *(path for path, _ in links), f"{info}/RECORD"])
        archive.writestr(f"{info}/RECORD", record)
    FILES[key + f"{name}-{version}-{tag}.whl"] = out.getvalue()


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return out.getvalue()


def bomb(archive, path, mebibytes):
    """A file of zeros, of which one MiB is compressed once."""
    piece, packer = bytes(1 << 20), zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(b"")
    packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    content = packed * mebibytes + packer.flush(zlib.Z_FINISH)
    entry = zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0))
    with archive.open(entry, "w", force_zip64=True) as file:
        file.write(content)
    # It was stored, and is said to be deflated.
    entry.compress_type, entry.file_size, entry.CRC = zipfile.ZIP_DEFLATED, mebibytes << 20, 0
    for _ in range(mebibytes):
        entry.CRC = zlib.crc32(piece, entry.CRC)
    end = archive.fp.tell()
    archive.fp.seek(entry.header_offset)
    archive.fp.write(entry.FileHeader(zip64=True))
    archive.fp.seek(end)


def source(name, version, backend):
    """A source archive that is its own build backend."""
    out = io.BytesIO()
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    project += f'[project]\nname = "{name}"\nversion = "{version}"\n'
    files = {"pyproject.toml": project, "backend.py": backend, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    FILES[f"{name}-{version}.tar.gz"] = out.getvalue()


def tarball(name, version, files, scripts=None, links=(), **more):
    """`links`: path → target, of symbolic links."""
    out = io.BytesIO()
    manifest = {"name": name, "version": version, "main": "index.js", **more, **({"scripts": scripts} if scripts else {})}
    files = {**files, "package.json": json.dumps(manifest)}
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
        for path, target in links:
            entry = tarfile.TarInfo(f"package/{path}")
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    content = out.getvalue()
    file = f"{name}-{version}.tgz"
    FILES[file] = content
    versions = PACKUMENTS.setdefault(name, {"name": name, "versions": {}, "time": {}, "dist-tags": {}})
    versions["versions"][version] = {**manifest, "dist": {"integrity": integrity(content), "tarball": f"ORIGIN/npm/-/{file}"},
                                     **({"hasInstallScript": True} if scripts else {})}
    versions["time"][version] = "2024-01-01T00:00:00.000Z"
    versions["dist-tags"]["latest"] = version


def integrity(content):
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


BACKEND = TRIES + """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "NAME-1.0.dist-info"
    with zipfile.ZipFile(folder + "/NAME-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("NAME/__init__.py", "could = " + repr(tries()))
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n")
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "/RECORD", "")
    return "NAME-1.0-py3-none-any.whl"
"""
# Builds like any other, and leaves more than it says.
LEAVES = BACKEND.replace("    info =", """    import os
    site = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    os.makedirs(site, exist_ok=True)
    WORK
    info =""").replace("tries()))", "[]))")
HOOK = """
const fs = require("fs"), net = require("net");
const could = [];
const tried = (name, work) => { try { work(); could.push(name); } catch {} };
tried("write", () => fs.writeFileSync(MARKS + "/written-by-hook-" + process.pid, ""));
tried("read", () => fs.readFileSync(MARKS + "/../log.txt"));
const socket = net.connect(PORT, "127.0.0.1");
const done = () => { fs.writeFileSync("could.json", JSON.stringify(could)); process.exit(0); };
socket.on("connect", () => { could.push("connect"); done(); });
socket.on("error", done);
"""


def packages(port):
    tries = TRIES.replace("PORT", str(port))
    for version in ("1.0", "2.0"):
        wheel("plain", version, {"plain/__init__.py": f"version = '{version}'\n"})
    wheel("twin", "1.0", {"twin/__init__.py": "whose = 'ours'\n"})
    wheel("twin", "1.0", {"twin/__init__.py": "whose = 'theirs'\n"}, key="other/")
    wheel("starts", "1.0", {
        "starts.pth": "import starts_early\n",
        "starts_early.py": tries + "os.environ['STARTED'] = ','.join(tries()) or 'nothing'\n",
        "sitecustomize.py": "import os\nos.environ['CUSTOMISED'] = 'yes'\n",
    })
    wheel("climbs", "1.0", {"climbs/__init__.py": "", "../../../climbed.txt": "out"})
    wheel("absolute", "1.0", {"absolute/__init__.py": "", f"{PLACE}/absolute.txt": "out"})
    wheel("links", "1.0", {"links/__init__.py": ""}, links=[("links/out", f"{FOLDER}/log.txt")])
    wheel("folds", "1.0", {"folds/__init__.py": "", "folds/one.py": "1", "folds/ONE.py": "2"})
    wheel("elsewhere", "1.0", {"elsewhere/__init__.py": ""}, tag="py3-none-win_amd64")
    wheel("many", "1.0", {"many/__init__.py": "version = '1.0'\n"})
    wheel("many", "1.0", {"many/__init__.py": "version = '1.0'\n"}, tag="py3-none-win_amd64")
    # Its newest file came much later than its oldest one, which is listed last.
    wheel("late", "1.0", {"late/__init__.py": "version = '1.0'\n"})
    wheel("late", "1.0", {"late/__init__.py": "version = '1.0'\n"}, tag="py3-none-win_amd64")
    for name, copied in [("copies", "many"), ("hides", "late")]:
        described = f"Metadata-Version: 2.1\nName: {copied}\nVersion: 1.0\n"
        wheel(name, "1.0", {f"{name}/__init__.py": "", f"{name}/_vendor/{copied}-1.0.dist-info/METADATA": described})
    if "bomb" in OPTIONS.get("stock", []):
        wheel("bomb", "1.0", {"bomb/__init__.py": ""}, zeros=2100)
    if "crowd" in OPTIONS.get("stock", []):
        wheel("crowd", "1.0", {"crowd/__init__.py": "", **{f"crowd/{n // 1000}/{n}.txt": "" for n in range(100_000)}})
    wheel("controls", "1.0", {"controls/__init__.py": "", "controls/a\x1b[2Jb.py": ""})
    source("builds", "1.0", BACKEND.replace("NAME", "builds").replace("PORT", str(port)))
    for name, work in {
        "pipes": "os.mkfifo(site + '/pipe')",
        "linked": "open(site + '/a', 'w').close(); os.link(site + '/a', site + '/b')",
        "symbolic": "os.symlink('/etc/passwd', site + '/passwd')",
        "setid": "open(site + '/a', 'w').close(); os.chmod(site + '/a', 0o4755)",
        "sleeps": "import time; time.sleep(100)",
        "dozes": "import time; time.sleep(100)",
        "deep": "[(os.mkdir('d'), os.chdir('d')) for _ in [os.chdir(site)] + [0] * 80]",
    }.items():
        source(name, "1.0", LEAVES.replace("NAME", name).replace("WORK", work).replace("PORT", str(port)))
    # Their metadata, or what lies in them, is more than a lock says.
    origin = f"http://127.0.0.1:{port}"
    source("runs", "1.0", f"import urllib.request\nurllib.request.urlopen('{origin}/ran')\n" + BACKEND.replace("NAME", "runs").replace("PORT", str(port)))
    wheel("points", "1.0", {"points/__init__.py": ""}, requires=[f"runs @ {origin}/files/runs-1.0.tar.gz"])
    wheel("names", "1.0", {"names/__init__.py": ""}, requires=[f"plain @ {origin}/files/plain-1.0-py3-none-any.whl"])
    described = "Metadata-Version: 2.1\nName: plain\nVersion: 6.6\n"
    wheel("doubles", "1.0", {"doubles/__init__.py": "", "doubles-1.0.data/purelib/plain-6.6.dist-info/METADATA": described})
    taken = described.replace("6.6", "1.0")
    wheel("poses", "1.0", {"poses/__init__.py": "", "plain/__init__.py": "version = '6.6'\n",
                           "poses-1.0.data/purelib/plain-1.0.dist-info/METADATA": taken})
    wheel("again", "1.0", {"again/__init__.py": "", "again-1.0.data/purelib/plain-1.0.0.dist-info/METADATA": taken.replace("1.0", "1.0.0")})
    wheel("vends", "1.0", {"vends/__init__.py": "", "vends/_vendor/plain-6.6.dist-info/METADATA": described})
    # Archives on the path of modules, which only the interpreter opens.
    code = {"plain/__init__.py": "version = '6.6'\n"}
    wheel("eggs", "1.0", {"eggs.pth": "plain-6.6.egg\n", "plain-6.6.egg": zipped({**code, "EGG-INFO/PKG-INFO": described})})
    wheel("zips", "1.0", {"zips.pth": "zips.zip\n", "zips.zip": zipped({**code, "plain-6.6.dist-info/METADATA": described})})
    later = "import sys, os; sys.path.append(os.path.join(sitedir, 'adds.zip'))\n"
    wheel("adds", "1.0", {"adds.pth": later, "adds.zip": zipped({**code, "plain-6.6.dist-info/METADATA": described})})
    described = "Metadata-Version: 2.1\nName: late\nVersion: 1.0\n"
    wheel("packs", "1.0", {"packs.pth": "packs.zip\n", "packs.zip": zipped({"late-1.0.dist-info/METADATA": described})})
    inner = json.dumps({"name": "flat", "version": "6.6.6"})
    tarball("carries", "1.0.0", {"index.js": "module.exports = require('flat');", "node_modules/flat/package.json": inner,
                                 "node_modules/flat/index.js": "module.exports = '6.6.6';"}, bundleDependencies=["flat"], dependencies={"flat": "*"})
    inner = json.dumps({"name": "flat", "version": "1.0.0"})
    tarball("poses", "1.0.0", {"index.js": "module.exports = require('flat');", "node_modules/flat/package.json": inner,
                               "node_modules/flat/index.js": "module.exports = '6.6.6';"}, bundleDependencies=["flat"], dependencies={"flat": "*"})
    tarball("empty", "1.0.0", {"index.js": "module.exports = require('flat');"}, dependencies={"flat": "*"})
    tarball("fixtures", "1.0.0", {"index.js": "module.exports = 1;", "test/node_modules/flat/package.json": inner})
    tarball("points", "1.0.0", {"index.js": ""}, dependencies={"flat": f"{origin}/npm/-/flat-1.0.0.tgz"})
    hook = HOOK.replace("MARKS", json.dumps(PLACE)).replace("PORT", str(port))
    for version in ("1.0.0", "2.0.0"):
        tarball("flat", version, {"index.js": f"module.exports = '{version}';"})
    tarball("hooks", "1.0.0", {"index.js": "module.exports = require('fs').readdirSync(__dirname);", "hook.js": hook},
            scripts={"postinstall": "node hook.js"})
    tarball("climber", "1.0.0", {"index.js": "", "../../../../climbed.js": "out", f"/{PLACE}/absolute.js": "out"},
            links=[("out", f"{FOLDER}/log.txt")])
    tarball("folded", "1.0.0", {"index.js": "", "one.js": "1", "ONE.js": "2"})


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def send(self, body, kind="application/octet-stream", longer=0):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + longer))
        self.end_headers()
        self.wfile.write(body)
        if longer:
            self.close_connection = True

    def do_GET(self):
        print(self.path, self.headers.get("Authorization", ""), file=LOG)
        scheme = "https" if "certificate" in OPTIONS else "http"
        origin = f"{scheme}://{self.headers['Host']}"
        way = self.path.strip("/").split("/")
        if way[0] == "hang":
            time.sleep(60)
            return
        if way[0] == "far":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:9/{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if way[0] == "npm":
            return self.npm(way[1:], origin)
        base = "" if way[0] in ("simple", "files") else way.pop(0)
        if way[0] == "simple" and len(way) == 2:
            return self.project(way[1], base)
        if way[0] == "files":
            if base == "slow":
                time.sleep(1)
            content = FILES.get(f"{base}/{way[1]}") or FILES.get(way[1])
            if content:
                return self.send(content, longer=1000 if base == "lies" else 0)
        self.send_error(404)

    def project(self, name, base):
        own = lambda file: file.startswith(f"{name}-") and not (base == "other" and f"other/{file}" in FILES)
        files = [(file, content) for file, content in FILES.items() if own(file)]
        files += [(file[6:], content) for file, content in FILES.items() if base == "other" and file.startswith(f"other/{name}-")]
        prefix = f"/{base}/files/" if base else "/files/"
        listed = [{"filename": file, "url": prefix + file, "hashes": {"sha256": sha256(content)},
                   "upload-time": time.strftime("%Y-%m-%dT%H:%M:%SZ") if file == LATE else "2024-01-01T00:00:00Z"} for file, content in files if not file.endswith(".tgz")]
        if not listed:
            return self.send_error(404)
        body = {"meta": {"api-version": "1.1"}, "name": name, "files": listed}
        self.send(json.dumps(body).encode(), "application/vnd.pypi.simple.v1+json")

    def npm(self, way, origin):
        if way[0] == "-":
            content = FILES.get(way[1])
            return self.send(content) if content else self.send_error(404)
        known = PACKUMENTS.get(way[0])
        if not known:
            return self.send_error(404)
        self.send(json.dumps(known).replace("ORIGIN", origin).encode(), "application/json")


server = http.server.ThreadingHTTPServer((OPTIONS.get("address", "127.0.0.1"), OPTIONS.get("port", 0)), Answers)
if "certificate" in OPTIONS:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(OPTIONS["certificate"])
    server.socket = tls.wrap_socket(server.socket, server_side=True)
server.daemon_threads = True
packages(server.server_port)
hashes = {name: integrity(content) if name.endswith(".tgz") else "sha256:" + sha256(content) for name, content in FILES.items()}
print(json.dumps({"port": server.server_port, "hashes": hashes}), flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
