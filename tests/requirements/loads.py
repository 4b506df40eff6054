"""Tries to load what lies in `lib`, in many ways: `loaded` or `refused` for each. `make` plants it first."""
import ctypes, importlib, importlib.util, json, mmap, multiprocessing, os, py_compile, runpy, shutil, site, subprocess, sys, zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIB = os.path.join(HERE, "lib")
PLANTED = "import builtins\nbuiltins.ran = True\nprint('ran')\n"
JS = "globalThis.ran = true; console.log('ran')\n"


def put(name, text):
    path = os.path.join(LIB, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    return path


def make():
    for name in ("package", "path", "namespace/module", "spec", "run", "child", "relative", "sitecustomize", "linked"):
        source = put(name + ".py", PLANTED)
    py_compile.compile(source, os.path.join(LIB, "sourceless.pyc"))
    py_compile.compile(source, os.path.join(LIB, "main.pyc"))
    # The bytecode of a module that itself lies elsewhere.
    put("../cached.py", "")
    cache = os.path.basename(importlib.util.cache_from_source("cached.py"))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(source, os.path.join(LIB, "cache", cache), invalidation_mode=mode)
    os.symlink("lib/cache", os.path.join(HERE, "__pycache__"))
    os.symlink("lib", os.path.join(HERE, "link"))
    with zipfile.ZipFile(os.path.join(LIB, "archive.zip"), "w") as archive:
        archive.writestr("zipped.py", PLANTED)
        archive.writestr("__main__.py", PLANTED)
    put("more/lines.pth", "import builtins; builtins.ran = True\n")
    native = importlib.import_module("_ctypes").__file__
    shutil.copy(native, LIB)
    shutil.copy(native, os.path.join(LIB, "library.so"))
    shutil.copy("/bin/true", os.path.join(LIB, "program"))
    for name in ("a.mjs", "b.cjs", "c.js", "d.ts", "model", "required", "worker.mjs", "child.cjs", "forked.mjs", "linked.cjs"):
        put(name, JS)
    put("worker.mjs", "import { parentPort } from 'node:worker_threads'; parentPort.postMessage('ran')\n")
    put("model.json", '{"n": 1}')
    for name in ("inner", "package"):
        put(name + "/package.json", '{"main": "../../other-%s.cjs"}' % name)
        put("../other-%s.cjs" % name, JS)
    os.mkdir(os.path.join(HERE, "node_modules"))
    os.symlink("../lib/package", os.path.join(HERE, "node_modules/package"))
    put("../fine.cjs", "module.exports = 'fine'\n")
    put("../fine.py", "said = 'fine'\n")


def child(*arguments, **more):
    return subprocess.run([sys.executable, "-B", *arguments], capture_output=True, text=True, **more).stdout == "ran\n"


def by_path(name, folder=LIB):
    sys.path.insert(0, folder)
    try:
        importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def by_spec():
    spec = importlib.util.spec_from_file_location("q", os.path.join(LIB, "spec.py"))
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def native():
    spec = importlib.util.find_spec("_ctypes")
    found = [name for name in os.listdir(LIB) if name.startswith("_ctypes")]
    loader = importlib.machinery.ExtensionFileLoader(spec.name, os.path.join(LIB, found[0]))
    loader.create_module(importlib.util.spec_from_file_location(spec.name, loader.path, loader=loader))
    return True


def mapped():
    with open(os.path.join(LIB, "library.so"), "rb") as file:
        mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    return True


def tries(form):
    import builtins

    builtins.ran = False
    try:
        ran = form()
    except (ImportError, OSError) as e:
        said = str(e)
        assert "was not loaded: tools write there" in said or isinstance(e, PermissionError), said
        ran = False
    return "loaded" if ran or builtins.ran else "refused"


FORMS = {
    "package": lambda: importlib.import_module("lib.package"),
    "link": lambda: importlib.import_module("link.linked"),
    "path": lambda: by_path("path"),
    "namespace": lambda: by_path("namespace.module"),
    "sourceless": lambda: by_path("sourceless"),
    "cached": lambda: importlib.import_module("cached") and None,
    "spec": by_spec,
    "archive": lambda: by_path("zipped", os.path.join(LIB, "archive.zip")),
    "run": lambda: runpy.run_path(os.path.join(LIB, "run.py")) and None,
    "run bytecode": lambda: runpy.run_path(os.path.join(LIB, "main.pyc")) and None,
    "run archive": lambda: runpy.run_path(os.path.join(LIB, "archive.zip")) and None,
    "pth": lambda: site.addsitedir(os.path.join(LIB, "more")) and None,
    "extension": native,
    "library": lambda: ctypes.CDLL(os.path.join(LIB, "library.so")),
    "mapped": mapped,
    "program": lambda: subprocess.run([os.path.join(LIB, "program")]).returncode == 0,
    "child": lambda: child(os.path.join(LIB, "child.py")),
    "relative": lambda: child("relative.py", cwd=LIB),
    "child bytecode": lambda: child(os.path.join(LIB, "main.pyc")),
    "child archive": lambda: child(os.path.join(LIB, "archive.zip")),
    "child module": lambda: child("-m", "child", cwd=LIB),
    "child inline": lambda: child("-c", "import child", cwd=LIB),
    "sitecustomize": lambda: child("-c", "", env={**os.environ, "PYTHONPATH": LIB}),
}


def square(x):
    return x * x


if __name__ == "__main__":
    if sys.argv[1:] == ["make"]:
        make()
    else:
        got = {name: tries(form) for name, form in FORMS.items() if name != "pth"}
        got["pth"] = tries(FORMS["pth"])
        import fine

        with multiprocessing.get_context("spawn").Pool(2) as pool:
            squares = pool.map(square, range(3))
        with open(os.path.join(LIB, "model.json")) as file:
            works = [fine.said, squares, json.load(file), sys.prefix, sys.flags.no_user_site]
        sys.stdout.write("\n" + json.dumps({"loads": got, "works": works}) + "\n")
