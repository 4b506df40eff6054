# The installer's side of a build, behind the layers: has pip resolve, fetch or install. An order in JSON on stdin, one
# JSON document on stdout; everything that pip prints goes to stderr. Trusted no more than what it installs: the host
# looks at what is left as at anything a tool wrote.
import email
import glob
import hashlib
import json
import os
import re
import runpy
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile

PATIENCE = 60
SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
JSON = "application/vnd.pypi.simple.v1+json"
SOURCES = (".tar.gz", ".zip")


def fail(message):
    print("toolhost: " + message, file=sys.stderr)
    sys.exit(1)


def find_pip():
    try:
        import pip  # noqa: F401

        return
    except ImportError:
        pass
    # An interpreter without pip may hold the wheel from which `ensurepip` would install it.
    import sysconfig

    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR") or "", "/usr/share/python-wheels"]
    try:
        import ensurepip

        folders.insert(0, os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"))
    except ImportError:
        pass
    wheels = [wheel for folder in folders for wheel in sorted(glob.glob(os.path.join(folder, "pip-*.whl")))]
    if not wheels:
        fail("this interpreter has no pip, and no wheel of it (on Debian and Ubuntu: apt install python3-pip)")
    sys.path.insert(0, wheels[-1])


def pip(*arguments):
    """Runs pip in this process; its exit status."""
    sys.argv = ["pip", "--isolated", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-color"]
    sys.argv += arguments
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code or 0
    return 0


def certificates(order):
    """The file of those that vouch for the index: this machine's, or what the order brings."""
    if not order["ca"]:
        return next((path for path in SYSTEM_CERTIFICATES if os.path.exists(path)), None)
    own = os.path.join(order["into"], "certificates.pem")
    with open(own, "w", encoding="utf-8") as file:
        file.write(order["ca"])
    # Of Python's own requests.
    os.environ.update({"SSL_CERT_FILE": own, "SSL_CERT_DIR": order["into"]})
    return own


def index(order):
    """Arguments that name the one index."""
    arguments = ["--index-url", order["index"], "--timeout", "30", "--retries", "2", "--progress-bar", "off"]
    if order["certificates"]:
        arguments += ["--cert", order["certificates"]]
    if order["index"].startswith("http:"):
        # The relay speaks TLS with the index, and adds its credential.
        arguments += ["--trusted-host", order["index"].split("/")[2]]
    return arguments


def requirements(order):
    """The files of the order in a folder of their own; the path of the requirements."""
    folder = os.path.join(order["into"], "order")
    os.makedirs(folder, exist_ok=True)
    for name, text in order["inputs"]:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return os.path.join(folder, "requirements.txt")


def lacking(log):
    """The requirement for which pip found no file that it may take, by its log; `None`: another thing failed."""
    from pip._vendor.packaging.requirements import Requirement

    with open(log, encoding="utf-8") as file:
        found = re.findall("No matching distribution found for (.+)", file.read())
    return Requirement(found[-1]) if found else None


def source_of(order, wanted):
    """The newest version of which the index has a source archive that meets the requirement, and that file."""
    from pip._vendor.packaging.specifiers import SpecifierSet
    from pip._vendor.packaging.version import InvalidVersion, Version

    found = {}
    try:
        base, files = files_of(order, wanted.name)
    except urllib.error.HTTPError:
        return None
    for file in files or []:
        name = file.get("filename", "")
        is_young = order.get("before") and file.get("upload-time", "") > order["before"]
        python = SpecifierSet(file.get("requires-python") or "")
        if name.endswith(SOURCES) and not file.get("yanked") and not is_young and python.contains(sys.version.split()[0], prereleases=True):
            try:
                version = Version(version_of(name, wanted.name))
            except InvalidVersion:
                continue
            if wanted.specifier.contains(version):
                found[version] = {**file, "url": urllib.parse.urljoin(base, file["url"])}
    return max(found.items()) if found else None


def explain(order, log):
    """Fails with the reason where pip lacks a package that could only be built."""
    wanted = lacking(log)
    if wanted and not order["builds"] and source_of(order, wanted):
        fail("`%s`: its index has only a source archive; allow `builds`: write builds = true into its entry of [packages]" % wanted)


def files_of(order, name):
    """What the index says of the files of one project (PEP 691)."""
    url = order["index"].rstrip("/") + "/" + re.sub(r"[-_.]+", "-", name).lower() + "/"
    request = urllib.request.Request(url, headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        if JSON not in answer.headers.get("Content-Type", ""):
            return url, None
        return answer.geturl(), json.load(answer).get("files", [])


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def download(url, path, digest):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        with open(path, "wb") as out:
            while piece := answer.read(1 << 20):
                out.write(piece)
    if sha256(path) != digest:
        fail(os.path.basename(path) + ": the hash of what the index sent is not the one that is known")


def fetch_source(order, package, into):
    """The source archive of one package: pip would run its build steps for its metadata, so it is fetched without pip."""
    base, files = files_of(order, package["name"])
    if files is None:
        fail(package["name"] + ": has no wheel for this machine, and its index does not list files as JSON (PEP 691)")
    wanted = {entry[len("sha256:") :] for entry in package["hashes"] if entry.startswith("sha256:")}
    for file in files:
        digest = file.get("hashes", {}).get("sha256")
        name = file.get("filename", "")
        if digest not in wanted or not name.endswith(SOURCES) or os.path.basename(name) != name:
            continue
        download(urllib.parse.urljoin(base, file["url"]), os.path.join(into, name), digest)
        return
    fail(package["name"] + " " + package["version"] + ": neither a wheel for this machine nor a source archive has a hash of the lock")


def fetch(order):
    into = os.path.join(order["into"], "files")
    os.makedirs(into, exist_ok=True)
    wheels = ["download", "--no-deps", "--only-binary", ":all:", "--dest", into, *index(order)]
    listed = requirements(order)
    log = os.path.join(order["into"], "log")
    status = pip(*wheels, "--log", log, "--require-hashes", "-r", listed)
    if status:
        explain(order, log)
    if status and order["builds"]:
        status = 0
        for package in order["packages"]:
            lines = [package["name"] + "==" + package["version"]] + ["--hash=" + each for each in package["hashes"]]
            with open(listed + ".one", "w", encoding="utf-8") as file:
                file.write(" \\\n  ".join(lines) + "\n")
            if pip(*wheels, "--require-hashes", "-r", listed + ".one"):
                fetch_source(order, package, into)
    if status:
        sys.exit(status)
    return {"published": published(order, into) if order["ages"] else {}}


def note(times, key, time):
    """The latest of several times; an empty one, of which nothing is known, stays only alone."""
    times[key] = max(times.get(key, ""), time or "")


def ages(order):
    """When the youngest file of each version was published, as far as the index knows: a copy has the digest of none."""
    times = {}
    for package in order["packages"]:
        try:
            _, files = files_of(order, package["name"])
        except urllib.error.HTTPError:
            continue
        for file in files or []:
            if version_of(file.get("filename", ""), package["name"]) == package["version"]:
                note(times, package["name"] + " " + package["version"], file.get("upload-time"))
    return {"published": {key: time for key, time in times.items() if time}}


def published(order, into):
    """When each fetched file was published, by digest; empty where the index does not say."""
    times = {"sha256:" + sha256(os.path.join(into, name)): "" for name in os.listdir(into)}
    for package in order["packages"]:
        _, files = files_of(order, package["name"])
        for file in files or []:
            digest = "sha256:" + file.get("hashes", {}).get("sha256", "")
            if digest in times and digest in package["hashes"]:
                note(times, digest, file.get("upload-time"))
    return times


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def install(order):
    site = os.path.join(order["into"], "site")
    listed = requirements(order)
    arguments = ["install", "--no-deps", "--no-index", "--find-links", os.path.join(order["from"], "files")]
    arguments += ["--require-hashes", "--no-compile", "--no-warn-script-location", "--target", site]
    if order["builds"]:
        # What a package is built with stands in the lock like everything else.
        os.environ["PYTHONPATH"] = site
        names = os.listdir(os.path.join(order["from"], "files"))
        wheels = {normal(name.split("-")[0]) for name in names if name.endswith(".whl")}
        with open(listed, encoding="utf-8") as file:
            lines = file.readlines()
        status = 0
        for how, wanted in [(["--only-binary", ":all:"], True), (["--no-build-isolation"], False)]:
            part = [line for line in lines if (normal(line.split("==")[0]) in wheels) == wanted]
            if part and not status:
                with open(listed + ".part", "w", encoding="utf-8") as file:
                    file.writelines(part)
                status = pip(*arguments, *how, "-r", listed + ".part")
    else:
        status = pip(*arguments, "--only-binary", ":all:", "-r", listed)
    if status:
        sys.exit(status)
    import compileall
    import py_compile

    os.makedirs(site, exist_ok=True)
    quiet, mode = 2, py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(site, quiet=quiet, stripdir=site, prependdir=order["shown"], invalidation_mode=mode, workers=1)
    return {}


NEEDS_CODE = []


def run_nothing(event, details):
    """Resolving reads metadata: nothing that pip asks for is run (an audit hook; pip passes over what is not vital)."""
    if event not in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"):
        return
    frame = sys._getframe(1)
    while frame:
        for each in (frame.f_locals.get("req"), frame.f_locals.get("self")):
            if type(each).__name__ == "InstallRequirement":
                NEEDS_CODE.append(str(each.req))
        frame = frame.f_back
    raise PermissionError("nothing is run while requirements are resolved")


def said_by(archive):
    """The files of a source archive that describe it, by name, each read in part."""
    if archive.endswith(".zip"):
        opened = zipfile.ZipFile(archive)
        members = ((name, opened.open(name)) for name in opened.namelist())
    else:
        opened = tarfile.open(archive)
        members = ((each.name, opened.extractfile(each)) for each in opened if each.isreg())
    texts = {}
    for path, file in members:
        name = os.path.basename(path)
        if path.count("/") == 1 and name in ("PKG-INFO", "pyproject.toml") or path.endswith(".egg-info/requires.txt"):
            texts[name] = file.read(1 << 20).decode("utf-8", "replace")
    return texts


def listed_in(text):
    """The requirements of a `requires.txt`, in which a section names an extra and a marker."""
    extra = marker = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
            continue
        terms = [f"({marker})"] * bool(marker) + [f'extra == "{extra}"'] * bool(extra)
        yield line + " ; " * bool(terms) + " and ".join(terms)


def describe_source(name, version, file, stubs):
    """Has pip know a source archive: a wheel that holds what the archive says of itself. Nothing of it is run. Returns
    what it is built with."""
    archive = os.path.join(stubs, os.path.basename(file["filename"]))
    download(file["url"], archive, file["hashes"]["sha256"])
    texts = said_by(archive)
    os.remove(archive)
    said = email.message_from_string(texts.get("PKG-INFO", ""))
    needs = said.get_all("Requires-Dist") or listed_in(texts.get("requires.txt", ""))
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {by_name(each)}" for each in needs]
    lines += [f"Requires-Python: {each}" for each in said.get_all("Requires-Python", [])]
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(os.path.join(stubs, stem + "-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(stem + ".dist-info/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(stem + ".dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(stem + ".dist-info/RECORD", "")
    system = toml().loads(texts.get("pyproject.toml", "")).get("build-system", {})
    return [by_name(each) for each in system.get("requires", ["setuptools", "wheel"])]


def by_name(need):
    """What a source archive requires, as one line of a `requirements.txt`: no option of pip's, and no address."""
    from pip._vendor.packaging.requirements import Requirement
    try:
        read = Requirement(str(need))
    except ValueError as e:
        fail(f"a source archive requires `{need}`, which is no requirement (PEP 508): {e}")
    if read.url and "extra" not in str(read.marker):
        fail(f"`{read.name}` is required by address ({read.url}), and packages come from the policy's index alone")
    return str(read)


def toml():
    try:
        import tomllib
    except ImportError:
        from pip._vendor import tomli as tomllib
    return tomllib


def resolve(order):
    import pip as installed

    sys.addaudithook(run_nothing)

    stubs = os.path.join(order["into"], "stubs")
    os.makedirs(stubs)
    log = os.path.join(order["into"], "log")
    listed = requirements(order)
    sources = set()
    report = os.path.join(order["into"], "report.json")
    # Older ones cannot leave out what is too young, and the host then refuses it.
    knows_ages = int(installed.__version__.split(".")[0]) >= 26
    before = ["--uploaded-prior-to", order["before"]] if order["before"] and knows_ages else []
    status = 1
    while status and not NEEDS_CODE:
        status = pip(
            "install", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", report, *before,
            "--find-links", stubs, "--log", log, *index(order), "-r", listed,
        )
        wanted = lacking(log) if status else None
        if not wanted or normal(wanted.name) in sources:
            break
        explain(order, log)
        source = source_of(order, wanted)
        if not source:
            break
        sources.add(normal(wanted.name))
        os.remove(log)
        with open(listed, "a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in describe_source(normal(wanted.name), *source, stubs))
    if NEEDS_CODE:
        fail("`" + NEEDS_CODE[0] + "` can be resolved only by running its code, or git: lock a version that has a wheel on the index")
    if status:
        sys.exit(status)
    with open(report, encoding="utf-8") as file:
        chosen = json.load(file)["install"]
    packages = []
    for package in chosen:
        if package.get("is_direct"):
            fail("`" + package["metadata"]["name"] + "` is required by address (" + package["download_info"]["url"] + "), and packages come from the policy's index alone")
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        got, files = package["download_info"], {}
        if normal(name) not in sources:
            digest = got["archive_info"]["hashes"]["sha256"]
            files[digest] = {"name": got["url"].split("/")[-1], "url": got["url"], "sha256": digest}
        # And the other files of that version, so that the lock holds on other machines too.
        base, offered = files_of(order, name)
        for file in offered or []:
            digest = file.get("hashes", {}).get("sha256")
            if digest and version_of(file.get("filename", ""), name) == version:
                url = urllib.parse.urljoin(base, file["url"])
                files[digest] = {"name": file["filename"], "url": url, "sha256": digest}
        files = sorted(files.values(), key=lambda file: file["name"])
        packages.append({"name": re.sub(r"[-_.]+", "-", name).lower(), "version": version, "files": files})
    return {"lock": pylock(packages)}


def pylock(packages):
    """A lock (PEP 751) of packages with all their files."""
    # JSON's texts are TOML's, too, as long as they hold plain characters.
    file = lambda file: "{ name = %s, url = %s, hashes = { sha256 = %s } }" % tuple(json.dumps(file[key]) for key in ("name", "url", "sha256"))
    lines = ['lock-version = "1.0"', 'created-by = "toolhost"']
    for package in sorted(packages, key=lambda package: package["name"]):
        lines += ["", "[[packages]]", "name = " + json.dumps(package["name"]), "version = " + json.dumps(package["version"])]
        wheels = [each for each in package["files"] if each["name"].endswith(".whl")]
        lines += ["sdist = " + file(each) for each in package["files"] if each not in wheels][:1]
        lines += ["wheels = [", *("    " + file(each) + "," for each in wheels), "]"]
    return "\n".join(lines) + "\n"


def translate(order):
    """The packages of a `uv.lock` that its project, or its script, leads to on this machine: the same versions and hashes."""
    from pip._vendor.packaging.markers import Marker
    from pip._vendor.packaging.specifiers import SpecifierSet

    given = dict(order["inputs"])
    lock, project = toml().loads(given["uv.lock"]), given.get("project")
    if lock.get("version") != 1:
        fail("uv.lock: version %s of this format is not read: version 1 is" % lock.get("version"))
    wanted = lock.get("requires-python", "")
    if not SpecifierSet(wanted).contains(sys.version.split()[0], prereleases=True):
        fail("uv.lock: requires-python `%s`, and the interpreter is Python %s" % (wanted, sys.version.split()[0]))
    root, by_name = None, {}
    for package in lock.get("package", []):
        source = package.get("source", {})
        if project and normal(package["name"]) == project and ("virtual" in source or "editable" in source):
            root = package
        elif "registry" not in source:
            fail("uv.lock: `%s` comes from `%s`, and packages come from the policy's index alone" % (package["name"], next(iter(source), "")))
        by_name.setdefault(package["name"], []).append(package)
    if project is not None and not root:
        fail("uv.lock does not lock this project: it has no package `%s`; run `uv lock`" % project)
    ahead = list(root.get("dependencies", []) if root else lock.get("manifest", {}).get("requirements", []))
    seen, found = set(), {}
    while ahead:
        edge = ahead.pop()
        if edge.get("marker") and not Marker(edge["marker"]).evaluate({"extra": ""}):
            continue
        fitting = [each for each in by_name.get(edge["name"], []) if edge.get("version") in (None, each.get("version"))]
        if len(fitting) != 1:
            fail("uv.lock does not hold `%s` exactly once: run `uv lock`" % edge["name"])
        package = fitting[0]
        if found.setdefault(package["name"], package) is not package:
            fail("uv.lock needs `%s` in two versions for one interpreter" % package["name"])
        for extra in [None, *edge.get("extra", edge.get("extras", []))]:
            if (package["name"], extra) not in seen:
                seen.add((package["name"], extra))
                optional = package.get("optional-dependencies", {})
                ahead += package.get("dependencies", []) if extra is None else optional.get(extra, [])
    packages = []
    for package in found.values():
        files = [*([package["sdist"]] if "sdist" in package else []), *package.get("wheels", [])]
        if not files or not all(file.get("hash", "").startswith("sha256:") for file in files):
            fail("uv.lock: `%s` has a file without a sha256 hash" % package["name"])
        files = [{"name": file["url"].split("/")[-1], "url": file["url"], "sha256": file["hash"][len("sha256:") :]} for file in files]
        packages.append({"name": package["name"], "version": package["version"], "files": files})
    return {"lock": pylock(packages)}


def version_of(file, name):
    """The version in the name of a wheel or source archive."""
    rest = file[len(name) :].lstrip("-_")
    if file.endswith(".whl"):
        return rest.split("-")[0]
    return next((rest[: -len(end)] for end in SOURCES if rest.endswith(end)), None)


def main():
    order = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)
    temporary = os.path.join(order["into"], "temporary")
    os.makedirs(temporary, exist_ok=True)
    os.environ.update({"TMPDIR": temporary, "PIP_CONFIG_FILE": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"})
    find_pip()
    order["certificates"] = certificates(order)
    done = {"fetch": fetch, "install": install, "resolve": resolve, "translate": translate, "ages": ages}[order["do"]](order)
    sys.stdout.flush()
    with os.fdopen(answer, "w") as out:
        json.dump(done, out)


main()
