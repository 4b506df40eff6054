"""Waits for source text, and runs it as the main program: source.py --ready [MODULE…].

Standard input: a line with the number of bytes of the text and of variables (JSON), and these. What follows is the
program's own input.
Modules are loaded until that comes. Runs inside the layers, with the tool's own rights: it protects nothing.
"""

import gc
import importlib
import os
import select
import sys

PATH = os.path.abspath("main.py")
# ast.PyCF_ALLOW_TOP_LEVEL_AWAIT and inspect.CO_COROUTINE.
TOP_LEVEL_AWAIT, COROUTINE = 0x2000, 0x80


def has_come():
    return bool(select.select([0], [], [], 0)[0])


def load(names):
    for name in names:
        if has_come():
            return
        try:
            importlib.import_module(name)
        except BaseException as error:
            # A program that does not use the module runs all the same.
            if not has_come():
                sys.exit(f"toolhost: {name} cannot be loaded: {error}")
    # They stay to the end: to look at each of their objects again then would take as long as loading them.
    gc.freeze()


def read(count):
    """Reads no byte of the program's input."""
    parts = []
    while count:
        part = os.read(0, count) or os._exit(1)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_source():
    head = b""
    while not head.endswith(b"\n"):
        head += read(1)
    source, variables = map(int, head.split())
    source, variables = read(source), read(variables)
    if variables:
        import json

        os.environ.update(json.loads(variables))
    return source


def run(source):
    with open(PATH, "wb") as file:
        file.write(source)
    main = type(sys)("__main__")
    main.__file__ = PATH
    main.__builtins__ = __builtins__
    sys.argv = [PATH]
    sys.path[0] = os.path.dirname(PATH)
    sys.modules["__main__"] = main
    try:
        code = compile(source, PATH, "exec", TOP_LEVEL_AWAIT, dont_inherit=True)
        result = eval(code, main.__dict__)
        if code.co_flags & COROUTINE:
            import asyncio

            asyncio.run(result)
    except Exception as error:
        # The traceback begins with the program's own first line.
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != PATH:
            trace = trace.tb_next
        own = error.with_traceback(trace)
        sys.excepthook(type(own), own, own.__traceback__)
        sys.exit(1)


SHIM = sys.modules["__main__"]
load(sys.argv[2:])
run(read_source())
