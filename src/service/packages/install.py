# The installer's side of a build, behind the walls: has pip resolve, fetch or install. An order in JSON on stdin, one
# JSON document on stdout; everything that pip prints goes to stderr. Trusted no more than what it installs: the host
# looks at what is left as at anything a tool wrote.
import glob
import hashlib
import json
import os
import re
import runpy
import sys
import urllib.parse
import urllib.request

PATIENCE = 60
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
JSON = "application/vnd.pypi.simple.v1+json"


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


def index(order):
    """Arguments that name the one index."""
    arguments = ["--index-url", order["index"], "--timeout", "30", "--retries", "2", "--progress-bar", "off"]
    certificates = next((path for path in CERTIFICATES if os.path.exists(path)), None)
    if certificates:
        arguments += ["--cert", certificates]
    if order["index"].startswith("http:"):
        # The relay speaks TLS with the index, and adds its credential.
        arguments += ["--trusted-host", order["index"].split("/")[2]]
    return arguments


def only_wheels(order):
    return [] if order["builds"] else ["--only-binary", ":all:"]


def requirements(order):
    """The files of the order in a folder of their own; the path of the requirements."""
    folder = os.path.join(order["into"], "order")
    os.makedirs(folder, exist_ok=True)
    for name, text in order["inputs"]:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return os.path.join(folder, "requirements.txt")


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


def fetch_source(order, package, into):
    """The source archive of one package: pip would run its build steps for its metadata, so it is fetched without pip."""
    base, files = files_of(order, package["name"])
    if files is None:
        fail(package["name"] + ": has no wheel for this machine, and its index does not list files as JSON (PEP 691)")
    wanted = {entry[len("sha256:") :] for entry in package["hashes"] if entry.startswith("sha256:")}
    for file in files:
        digest = file.get("hashes", {}).get("sha256")
        name = file.get("filename", "")
        if digest not in wanted or not name.endswith((".tar.gz", ".zip")) or os.path.basename(name) != name:
            continue
        path = os.path.join(into, name)
        with urllib.request.urlopen(urllib.parse.urljoin(base, file["url"]), timeout=PATIENCE) as answer:
            with open(path, "wb") as out:
                while piece := answer.read(1 << 20):
                    out.write(piece)
        if sha256(path) != digest:
            fail(name + ": the hash of what the index sent does not match the lock")
        return
    fail(package["name"] + " " + package["version"] + ": neither a wheel for this machine nor a source archive has a hash of the lock")


def fetch(order):
    into = os.path.join(order["into"], "files")
    os.makedirs(into, exist_ok=True)
    wheels = ["download", "--no-deps", "--only-binary", ":all:", "--dest", into, *index(order)]
    listed = requirements(order)
    status = pip(*wheels, "--require-hashes", "-r", listed)
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


def published(order, into):
    """When each fetched file was published, as far as the index says."""
    fetched = {sha256(os.path.join(into, name)): name for name in os.listdir(into)}
    times = {}
    for package in order["packages"]:
        _, files = files_of(order, package["name"])
        for file in files or []:
            if file.get("hashes", {}).get("sha256") in fetched and file.get("upload-time"):
                times[package["name"] + " " + package["version"]] = file["upload-time"]
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


def resolve(order):
    import pip as installed

    report = os.path.join(order["into"], "report.json")
    # Older ones cannot leave out what is too young, and the host then refuses it.
    knows_ages = int(installed.__version__.split(".")[0]) >= 26
    before = ["--uploaded-prior-to", order["before"]] if order["before"] and knows_ages else []
    status = pip(
        "install", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", report, *before,
        *index(order), "-r", requirements(order),
    )
    if status:
        sys.exit(status)
    with open(report, encoding="utf-8") as file:
        chosen = json.load(file)["install"]
    packages = []
    for package in chosen:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        got = package["download_info"]
        digest = got["archive_info"]["hashes"]["sha256"]
        files = {digest: {"name": got["url"].split("/")[-1], "url": got["url"], "sha256": digest}}
        # And the other files of that version, so that the lock holds on other machines too.
        base, offered = files_of(order, name)
        for file in offered or []:
            digest = file.get("hashes", {}).get("sha256")
            if digest and version_of(file.get("filename", ""), name) == version:
                url = urllib.parse.urljoin(base, file["url"])
                files[digest] = {"name": file["filename"], "url": url, "sha256": digest}
        files = sorted(files.values(), key=lambda file: file["name"])
        packages.append({"name": re.sub(r"[-_.]+", "-", name).lower(), "version": version, "files": files})
    return {"packages": sorted(packages, key=lambda package: package["name"])}


def version_of(file, name):
    """The version in the name of a wheel or source archive."""
    rest = file[len(name) :].lstrip("-_")
    if file.endswith(".whl"):
        return rest.split("-")[0]
    return next((rest[: -len(end)] for end in (".tar.gz", ".zip") if rest.endswith(end)), None)


def main():
    order = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)
    temporary = os.path.join(order["into"], "temporary")
    os.makedirs(temporary, exist_ok=True)
    os.environ.update({"TMPDIR": temporary, "PIP_CONFIG_FILE": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"})
    find_pip()
    done = {"fetch": fetch, "install": install, "resolve": resolve}[order["do"]](order)
    sys.stdout.flush()
    with os.fdopen(answer, "w") as out:
        json.dump(done, out)


main()
