"""Calls one function of a script: entry.py SCRIPT ENTRY [--ready [MODULE…]].

Arguments: one JSON object on stdin, given as keyword arguments. Answer: the return value, one JSON document on the
real stdout; for a generator, one line for each value and one for the end. Everything printed goes to stderr.
Runs inside the layers, with the tool's own rights: it protects nothing, it only explains mistakes.
"""

import json
import os
import sys
import types

if __name__ == "__main__":
    # Nothing of the tool has run yet: from here on, descriptor 1 is the log, also for child processes.
    ANSWER = os.dup(1)
    os.dup2(2, 1)
HERE = __file__
DEEPEST = 128
LARGEST, SMALLEST = 2**64 - 1, -(2**63)


class Toolhost(type(sys)):
    """The module `toolhost` of the script: sends progress and log lines, and holds the answers of the client."""

    can, answers, state = (), {}, None

    def tell(self, said):
        line = "@toolhost " + json.dumps(said, ensure_ascii=False) + "\n"
        sys.stderr.flush()
        os.write(2, line.encode("utf-8", "backslashreplace"))

    def progress(self, progress, total=None, message=None):
        said = {"progress": progress, "total": total, "message": message}
        self.tell({name: value for name, value in said.items() if value is not None})

    def log(self, message, level="info"):
        self.tell({"log": level, "message": str(message)})

    def ask(self, state=None, **requests):
        return {"$ask": requests, "$state": state}

    def form(self, message, properties, required=None):
        schema = {"type": "object", "properties": properties, "required": list(properties) if required is None else required}
        return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


class Mend(Exception):
    """What is wrong and how to fix it, in one line."""


def one_line(text, most=400):
    text = " ".join(str(text).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def fail(reason, code=1):
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os.write(2, ("\ntoolhost: " + one_line(reason) + "\n").encode("utf-8", "backslashreplace"))
    sys.exit(code)


def load(path):
    """The script as a module, from its source: a stale .pyc beside it is never used."""
    import importlib.machinery

    folder, file = os.path.split(path)
    sys.argv = [path]
    sys.path[0] = folder
    name = os.path.splitext(file)[0]
    if name in sys.modules or name in getattr(sys, "stdlib_module_names", ()):
        name = "script_" + name  # a script called json.py must not become everybody's `json`
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = type(sys)(name)
    module.__file__ = path
    module.__loader__ = loader
    module.__package__ = ""
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader, origin=path)
    sys.modules[name] = module
    exec(compile(loader.get_data(path), path, "exec", dont_inherit=True), module.__dict__)
    return module


def load_early(path, names):
    """Loads the script before its input comes, and until then the modules that policy names."""
    import gc
    import importlib
    import select

    for name in names:
        if select.select([0], [], [], 0)[0]:
            break
        importlib.import_module(name)
    # They stay to the end: to look at each of their objects again then would take as long as loading them.
    gc.freeze()
    return load(path)


FUNCTION = type(one_line)


def made_here(kind, module):
    """Whether KIND is a class of the script itself, and its bases are too, or are builtins."""
    own = kind.__module__ == module.__name__
    return own and all(base.__module__ in (module.__name__, "builtins") for base in kind.__mro__)


def own(value, module, entry, depth=0):
    """Whether the script itself defines VALUE. What it imports does not count, whatever its name in the script."""
    if isinstance(value, FUNCTION) and value.__globals__ is vars(module):
        return depth == 0 or value.__qualname__ == entry
    if depth == 0:
        # A class, an object of one, a bound method, functools.partial.
        kind = value if isinstance(value, type) else type(value)
        inner = getattr(value, "__func__", None) or (kind.__name__ == "partial" and value.func)
        if made_here(kind, module) and type(kind) is type or inner and own(inner, module, entry):
            return True
    # The result of a decorator refers to the decorated function, which has the name.
    cells = getattr(value, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells] + list(getattr(value, "__dict__", {}).values())
    return depth < 4 and any(own(part, module, entry, depth + 1) for part in held if callable(part))


def find(module, entry, file):
    """The function of the script called ENTRY; `Class.method` works too."""
    found, names = module, vars(module)
    for part in entry.split("."):
        if part not in names or part.startswith("__"):
            listed = [name for name, v in vars(module).items() if callable(v) and name[0] != "_" and own(v, module, name)]
            raise Mend(f"{file} has no function '{entry}'; {nearest(entry, listed)}")
        found = getattr(found, part)
        inside = isinstance(found, type) and made_here(found, module)
        names = {name: v for base in reversed(found.__mro__) for name, v in vars(base).items()} if inside else {}
    if not callable(found):
        # The `@tool` of many frameworks makes an object that holds the function.
        held = [v for v in getattr(found, "__dict__", {}).values() if isinstance(v, FUNCTION)]
        held = {id(v): v for v in held if v.__globals__ is vars(module) and v.__name__ == entry.split('.')[-1]}
        if len(held) != 1:
            raise Mend(f"'{entry}' in {file} is {a(found)}, not a function; write a function that calls it, and name that")
        return held.popitem()[1]
    if not own(found, module, entry):
        raise Mend(
            f"'{entry}' is not defined in {file}, which has it from another module; write a function there"
            " that calls it, and set handler.entryPoint to that"
        )
    return found


def nearest(name, names):
    import difflib

    if not names:
        return "it defines no function at all"
    close = difflib.get_close_matches(name, names, 1)
    listed = ", ".join(sorted(names)[:20])
    return (f"did you mean '{close[0]}'? " if close else "") + f"it defines: {listed}. Set handler.entryPoint to one of them"


def call(function, entry, arguments):
    """Calls it. A TypeError raised before its first line is about the arguments, and is explained."""
    try:
        result = function(**arguments)
    except TypeError as error:
        deeper = error.__traceback__.tb_next
        if deeper is None:
            raise Mend(arguments_reason(function, entry, arguments, error)) from None
        raise
    if hasattr(result, "__await__"):
        import asyncio

        async def wait():
            return await result

        result = asyncio.run(wait())
    return result


def arguments_reason(function, entry, arguments, error):
    import inspect

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return f"{entry}() does not take these arguments: {error}"
    kinds = inspect.Parameter
    named = [n for n, p in parameters.items() if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    takes = f"it takes: {', '.join(named) or 'nothing'}"
    only = [n for n, p in parameters.items() if p.kind is kinds.POSITIONAL_ONLY]
    if only:
        return f"{entry}() takes '{only[0]}' by position only, and arguments are given by name; remove the '/'"
    any_name = any(p.kind is kinds.VAR_KEYWORD for p in parameters.values())
    unknown = [n for n in arguments if n not in parameters]
    if unknown and not any_name:
        return (
            f"{entry}() has no parameter '{unknown[0]}'; {takes}. Name the manifest's parameters like the "
            "function's, or add **kwargs"
        )
    if named[:1] == ["self"] and "." in entry and "self" not in arguments:
        return f"{entry}() is a method of an object, and there is none; put @staticmethod or @classmethod above it"
    empty = inspect.Parameter.empty
    missing = [n for n in named if n not in arguments and parameters[n].default is empty]
    if missing:
        return (
            f"{entry}() needs '{missing[0]}', which was not given. List it under `required` in the manifest's "
            "parameters, or give it a default"
        )
    return f"{entry}() does not take these arguments: {error}"


def a(value):
    name = type(value).__name__
    return ("an " if name[:1].lower() in "aeiou" else "a ") + name


HINTS = {
    "set": "return sorted(it) or list(it)",
    "frozenset": "return sorted(it) or list(it)",
    "bytes": "decode it, or send base64 text",
    "bytearray": "decode it, or send base64 text",
    "datetime": "return it.isoformat()",
    "date": "return it.isoformat()",
    "time": "return it.isoformat()",
    "timedelta": "return it.total_seconds()",
    "Decimal": "return str(it) or float(it)",
    "Fraction": "return str(it) or float(it)",
    "UUID": "return str(it)",
    "PosixPath": "return str(it)",
    "ndarray": "return it.tolist()",
    "DataFrame": "return it.to_dict('records')",
    "Series": "return it.to_dict() or it.tolist()",
    "generator": "return list(it)",
    "complex": "return [it.real, it.imag]",
    "function": "call it",
    "coroutine": "await it",
}


def hint(value):
    name = type(value).__name__
    if name in HINTS:
        return HINTS[name]
    if hasattr(value, "model_dump"):
        return "return it.model_dump(mode='json')"
    if hasattr(value, "__dataclass_fields__"):
        return "return dataclasses.asdict(it)"
    if type(value).__module__ == "numpy":
        return "return it.item()"
    return "turn it into a dict, list, str, int, float, bool or None"


def check(value, place, depth):
    """Raises a Mend at the first part of the answer that JSON cannot carry."""
    if value is None or value is True or value is False:
        return
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Mend(f"{place} holds half a surrogate pair, which is not text; replace or drop it")
    elif isinstance(value, int):
        if not SMALLEST <= value <= LARGEST:
            raise Mend(f"{place} is an integer of more than 64 bits; return str(it)")
    elif isinstance(value, float):
        if value - value != 0:
            raise Mend(f"{place} is {value}, which is not JSON; return None or a string instead")
    elif depth >= DEEPEST:
        raise Mend(f"{place[:80]}… contains itself, or nests deeper than {DEEPEST}; return a flatter value")
    elif isinstance(value, dict):
        seen = set()
        for key, part in value.items():
            if not isinstance(key, str):
                raise Mend(f"{place} has the key {key!r}, {a(key)}; JSON keys are text: use str(key)")
            if key in seen:
                raise Mend(f"{place} has the key {key!r} twice")
            seen.add(key)
            check(key, f"a key of {place}", depth + 1)
            check(part, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            check(part, f"{place}[{index}]", depth + 1)
    else:
        raise Mend(f"{place} is {a(value)}, which JSON cannot carry; {hint(value)}")


def send(line):
    """Writes a line of the answer, and waits for the reader."""
    rest = memoryview((line + "\n").encode("utf-8"))
    while rest:
        rest = rest[os.write(ANSWER, rest) :]


def text(value):
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def answer(value):
    check(value, "the return value", 0)
    send(text(value))


def chunk(value, number):
    check(value, f"chunk {number}", 1)
    send('@toolhost {"chunk":' + text(value) + "}")


def stream(parts):
    """Sends what a generator yields as it comes. What it returns, if anything, is the whole answer."""
    number = 0
    while True:
        try:
            value = next(parts)
        except StopIteration as stop:
            return stop.value
        number += 1
        chunk(value, number)


async def stream_async(parts):
    number = 0
    async for value in parts:
        number += 1
        chunk(value, number)


def answer_all(result):
    if isinstance(result, types.GeneratorType):
        whole = stream(result)
    elif isinstance(result, types.AsyncGeneratorType):
        import asyncio

        whole = asyncio.run(stream_async(result))
    else:
        return answer(result)
    if whole is None:
        send('@toolhost {"end":true}')
    else:
        answer(whole)


def show(error):
    """The traceback, from the tool's first line on."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == HERE:
        trace = trace.tb_next
    report = traceback.TracebackException(type(error), error, trace)
    report.stack[:] = [frame for frame in report.stack if not frame.filename.startswith("/.toolhost/")]
    sys.stderr.write("".join(report.format()))
    return trace


def describe(error, trace, script):
    where = ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == script:
            where = f" ({os.path.basename(script)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        where = ""
    if isinstance(error, ModuleNotFoundError):
        where += (
            "; a module must lie beside the script, or be installed in the environment that the policy names"
            " under [runtimes]"
        )
    return text + where


def main():
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    script, entry, *ready = sys.argv[1:]
    try:
        ours = Toolhost("toolhost")
        # What a script that calls tools has there already.
        vars(ours).update(vars(sys.modules.get("toolhost", ours)))
        sys.modules["toolhost"] = ours
        module = ready and load_early(script, ready[1:])
        if ready:
            # The variables of the call come before its input.
            variables = sys.stdin.buffer.read(int(sys.stdin.buffer.readline().split()[1]))
            os.environ.update(json.loads(variables or "{}"))
        arguments = json.loads(sys.stdin.buffer.read())
        if not isinstance(arguments, dict):
            raise Mend(f"the input of an entryPoint is one JSON object, not {a(arguments)}")
        client = arguments.pop("$client", None)
        if client is not None:
            ours.can, ours.answers, ours.state = client["can"], client["answers"], client["state"]
        function = find(module or load(script), entry, os.path.basename(script))
        answer_all(call(function, entry, arguments))
    except Mend as mend:
        fail(mend)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
        said = f" ({stop.code})" if isinstance(stop.code, str) else ""
        fail(f"the script called sys.exit(){said} before {entry}() returned; return the answer instead", code or 1)
    except BaseException as error:
        fail(describe(error, show(error), script))


class Renamed:
    """Finds in a process that multiprocessing spawned what `load` renamed: `script_json` is json.py on the path."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        from importlib import machinery, util

        found = name.startswith("script_") and machinery.PathFinder.find_spec(name[7:])
        return util.spec_from_file_location(name, found.origin) if found else None


if __name__ == "__main__":
    main()
else:
    sys.meta_path.append(Renamed)
