"""Keeps what tools wrote from being loaded as code. A `.pth` file of a generated virtual environment imports this before
anything of the script. Files that are only read are not looked at.

It protects a tool from its neighbours, not the host from the tool.
"""

import _frozen_importlib_external as loaders
import io
import os
import re
import site
import sys
import zipimport

# The script of a child, extension modules, and libraries that `ctypes` opens by their path: what these events name, as
# their first or second argument, the interpreter itself loads.
LOADS = {"cpython.run_file": 0, "import": 1, "ctypes.dlopen": 0}


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check(path):
    real = os.path.realpath(os.fsdecode(path))
    if not WRITTEN.fullmatch(real):
        return
    why = (
        f"{real} was not loaded: tools write there, and what they write is data, not code; move it to a folder that"
        " no tool writes"
    )
    os.write(2, f"toolhost: {why}\n".encode("utf-8", "backslashreplace"))
    raise ImportError(why)


def check_source(loader, name):
    path = loader.get_filename(name)
    check(path)
    cached = loaders.cache_from_source(path)
    if os.path.exists(cached):
        check(cached)


def check_event(event, given):
    path = event in LOADS and given[LOADS[event]]
    if path and (event != "ctypes.dlopen" or os.sep in os.fsdecode(path)):
        check(path)


def before(owner, name, look):
    """Calls `look` with the arguments first."""
    inner = getattr(owner, name)

    def looked(*given, **named):
        look(*given)
        return inner(*given, **named)

    setattr(owner, name, looked)


def install():
    before(loaders.SourceLoader, "get_code", check_source)
    before(loaders.SourcelessFileLoader, "get_code", lambda loader, name: check(loader.get_filename(name)))
    before(zipimport, "_get_module_code", lambda importer, name: check(importer.archive))
    # `.pth` files, and `runpy`.
    before(io, "open_code", check)
    sys.addaudithook(check_event)
    # The interpreter finds its packages as it does without this environment.
    sys.prefix = sys.exec_prefix = text("/.toolhost/python/prefix") or sys.base_prefix
    site.PREFIXES.insert(0, sys.prefix)


try:
    WRITTEN = re.compile(text("/.toolhost/written"), re.DOTALL)
    install()
except BaseException:
    import traceback

    traceback.print_exc()
    os._exit(70)
