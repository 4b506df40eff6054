"""Runs a script that calls tools: calls.py [--no-tools] SCRIPT [ARGUMENT…], as the interpreter itself would run SCRIPT.

The cells of a session import this for their calls. Calls go to descriptor 4, answers come from descriptor 3: a line of JSON, then so many bytes of JSON as it says. Runs
inside the layers, with the tool's own rights: it protects nothing.
"""

import builtins
import io
import json
import os
import sys
import threading

ANSWERS, CALLS = 3, 4
# ast.PyCF_ALLOW_TOP_LEVEL_AWAIT and inspect.CO_COROUTINE: importing these modules takes longer than a call.
TOP_LEVEL_AWAIT, COROUTINE = 0x2000, 0x80
OURS = os.path.dirname(__file__) + "/"
LOCK = threading.Lock()
# What to do with the answer of each call that has none yet, by its number.
WAITING = {}
CLOSED = []
NO_TOOLS = "Code may call no tool here. A call of core:run-code names those that its code may call in `tools`."


class ToolError(Exception):
    """Why a call of a tool gave no value."""

    def __init__(self, error):
        super().__init__(f"{error['type']}: {error['message']}")
        self.type, self.message = error["type"], error["message"]
        self.details, self.retryable = error.get("details"), error.get("retryable", False)


def frames():
    rest = bytearray()

    def take(end):
        nonlocal rest
        while True:
            size = end(rest)
            if 0 <= size <= len(rest):
                taken, rest = bytes(rest[:size]), rest[size:]
                return taken
            piece = os.read(ANSWERS, 65536)
            if not piece:
                raise EOFError
            rest += piece

    while True:
        head = json.loads(take(lambda read: read.find(b"\n") + 1 or -1))
        yield head["message"], take(lambda read: head["bytes"])


FRAMES = frames()


def receive():
    try:
        for message, payload in FRAMES:
            WAITING.pop(message["id"])(message.get("error"), payload)
    except (EOFError, OSError):
        close("The host answers no more calls.")


def close(message, kind="CancelledError"):
    error = {"type": kind, "message": message}
    CLOSED.append(error)
    while WAITING:
        WAITING.popitem()[1](error, None)


def listen():
    threading.Thread(target=receive, daemon=True).start()


def post(message, payload):
    """Sends a frame."""
    head = json.dumps({"message": message, "bytes": len(payload)})
    rest = memoryview(head.encode() + b"\n" + payload)
    while rest:
        rest = rest[os.write(CALLS, rest) :]


def send(tool, arguments, done):
    """Calls a tool. DONE gets the error or the payload, on another thread."""
    payload = json.dumps(arguments, allow_nan=False).encode("utf-8", "surrogatepass")
    with LOCK:
        number = send.number = send.number + 1
        if CLOSED:
            return done(CLOSED[0], None)
        if number == 1:
            listen()
        WAITING[number] = done
        post({"id": number, "tool": tool}, payload)


send.number = 0


def value(error, payload):
    if error:
        raise ToolError(error)
    return json.loads(payload)


def settle(future, answer):
    if not future.done():
        future.set_result(answer)


async def call(tool, arguments=None, **named):
    """Calls a tool, and returns its value."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    send(tool, {**(arguments or {}), **named}, lambda *answer: loop.call_soon_threadsafe(settle, future, answer))
    return value(*await future)


def call_and_wait(tool, arguments=None, **named):
    """Calls a tool, and returns its value, for code without asyncio."""
    answers, done = [], threading.Event()
    send(tool, {**(arguments or {}), **named}, lambda *answer: (answers.append(answer), done.set()))
    done.wait()
    return value(*answers[0])


def function(tool, name):
    async def called(**arguments):
        return await call(tool, arguments)

    called.__name__ = called.__qualname__ = name
    called.__doc__ = f"Calls {tool}."
    return called


def names(tool):
    """The names of its function: by its id, and by the name that models know."""
    for form in (tool, tool.replace(":", "__", 1)):
        name = "".join(c if c.isalnum() else "_" for c in form)
        yield name if name.isidentifier() else "_" + name


def offer(tools):
    """Makes the tools functions of every module. A name that two tools would share is nobody's."""
    module = sys.modules["toolhost"] = type(sys)("toolhost")
    module.call, module.ToolError = call_and_wait, ToolError
    ToolError.__module__ = "toolhost"
    builtins.tools = type(sys)("tools")
    builtins.tools.call = call
    named = [(name, tool) for tool in tools for name in names(tool)]
    all_names = [name for name, _ in named]
    for name, tool in named:
        if all_names.count(name) < 2:
            setattr(builtins, name, function(tool, name))


def trace(error, is_own):
    """The traceback, from the first line of the code on, without ours."""
    import traceback

    report = traceback.TracebackException(type(error), error, error.__traceback__)
    each = [report]
    for part in each:
        own = [at for at, frame in enumerate(part.stack) if is_own(frame.filename)]
        part.stack[:] = [frame for frame in part.stack[own[0] if own else 0 :] if not frame.filename.startswith(OURS)]
        each.extend(chained for chained in (part.__cause__, part.__context__) if chained)
    return "".join(report.format())


def run():
    script = sys.argv[0]
    sys.path[0] = os.path.dirname(script)
    module = sys.modules["__main__"] = type(sys)("__main__")
    module.__file__, module.__builtins__ = script, builtins
    try:
        with io.open_code(script) as file:
            code = compile(file.read(), script, "exec", TOP_LEVEL_AWAIT, dont_inherit=True)
        result = eval(code, vars(module))
        if code.co_flags & COROUTINE:
            import asyncio

            asyncio.run(result)
    except Exception as error:
        if sys.excepthook is sys.__excepthook__:
            sys.stderr.write(trace(error, lambda name: name == script))
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def only_here():
    """Processes that this one starts call no tools."""
    os.register_at_fork(after_in_child=lambda: close("Only the process of the script itself may call tools."))


def main():
    global OWN_MAIN
    del sys.argv[0]
    OWN_MAIN = sys.modules["__main__"]
    if sys.argv[0] == "--no-tools":
        del sys.argv[0]
        close(NO_TOOLS, "SecurityError")
        offer([])
    else:
        for descriptor in (ANSWERS, CALLS):
            os.set_inheritable(descriptor, False)
        only_here()
        offer(next(FRAMES)[0]["tools"])
    run()


if __name__ == "__main__":
    main()
