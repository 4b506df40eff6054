"""Runs the cells of a session, one after the other, in one namespace: cells.py [--ready MODULE…].

Orders come as frames on descriptor 3, results leave as frames on descriptor 4; what a cell prints leaves on descriptors 1
and 2. Runs inside the layers, with the tool's own rights: it protects nothing.
"""

import ast
import base64
import builtins
import importlib
import json
import linecache
import os
import queue
import signal
import sys
import threading
import types

import calls

# Code may have a module of that name.
del sys.modules["calls"]
#: The types of the tools that a cell may call.
STUBS = "/tmp/call/tools.pyi"
#: The longest text form of a value, and the longest traceback, characters.
LONGEST = 100_000
#: The forms of a value (Jupyter's display protocol) in the order in which they are tried: method, media type.
FORMS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
    "_repr_pdf_": "application/pdf",
}


class Channel:
    """Frames: a line of JSON with the length of a payload, and that payload."""

    def __init__(self, orders, results):
        self.orders = os.fdopen(orders, "rb", closefd=False)
        self.results = results
        # The longest payload that the host takes.
        self.most = 0
        self.lock = threading.Lock()

    def read(self):
        """The next order and its payload; `None` at the end."""
        line = self.orders.readline()
        if not line:
            return None
        head = json.loads(line)
        return head["message"], self.orders.read(head["bytes"])

    def send(self, message, forms=None):
        """Sends a message, and forms of values or an error; only their text where they are too long."""
        payload = encoded(forms)
        if len(payload) > self.most:
            payload = encoded({"text/plain": cut(forms["text/plain"], self.most // 8)})
        self.post(message, payload)

    def post(self, message, payload):
        """Sends a frame, whole even where the cell is interrupted."""
        rest = memoryview(encoded({"message": message, "bytes": len(payload)}) + b"\n" + payload)
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with self.lock:
                while rest:
                    rest = rest[os.write(self.results, rest) :]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def encoded(forms):
    return json.dumps(forms, ensure_ascii=False).encode("utf-8", "backslashreplace")


def forms_of(value):
    """A value as {media type: text}; what is binary is base64."""
    forms = {}
    bundle = call(value, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(bundle, tuple):
        bundle = bundle[0]
    if isinstance(bundle, dict):
        forms.update(bundle)
    for method, media in FORMS.items():
        if media not in forms:
            form = call(value, method)
            if isinstance(form, tuple):
                form = form[0]
            if form is not None:
                forms[media] = form
    if "text/plain" not in forms:
        forms["text/plain"] = shown(value)
    return {str(media): plain(form) for media, form in forms.items() if form is not None}


def call(value, method, **named):
    """What a display method of the value answers. One that fails has no form, as in Jupyter."""
    if isinstance(value, type):
        return None
    try:
        found = getattr(value, method, None)
        return found(**named) if callable(found) else None
    except Exception:
        return None


def shown(value):
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: its repr raised {type(error).__name__}: {error}>"
    return cut(text)


def cut(text, longest=LONGEST):
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def plain(form):
    if isinstance(form, (bytes, bytearray)):
        return base64.b64encode(form).decode("ascii")
    if isinstance(form, str):
        return form
    return json.loads(json.dumps(form, default=str))


class Figures:
    """Finds the backend of matplotlib that draws as Agg does, and shows figures as results of their cell."""

    name = "toolhost_figures"

    def __init__(self, show):
        self.show = show

    def find_spec(self, name, path=None, target=None):
        from importlib import machinery

        return machinery.ModuleSpec(name, self) if name == self.name else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backends import backend_agg

        module.FigureCanvas = backend_agg.FigureCanvas
        module.FigureManager = backend_agg.FigureManagerBase
        module.show = self.show


class Session:
    """The namespace of all cells, and what displays values."""

    def __init__(self, channel):
        self.channel = channel
        self.main = types.ModuleType("__main__")
        self.names = self.main.__dict__
        sys.modules["__main__"] = self.main
        self.names.update(__builtins__=builtins, display=self.display)
        self.count = 0
        self.is_running = False
        # The cell that was received last, and the one that was interrupted before it began.
        self.received = self.early = None
        self.loop = None
        # The variables of the last cell, as they were before it.
        self.before = {}
        sys.meta_path.append(Figures(self.figures))

    def interrupt(self, *_):
        if self.is_running:
            raise KeyboardInterrupt
        self.early = self.received

    def show(self, value, is_main):
        self.channel.send({"result": {"isMainResult": is_main}}, forms_of(value))

    def display(self, *values):
        for value in values:
            self.figures()
            self.show(value, False)

    def figures(self, *_, **__):
        """Shows the open figures of matplotlib in order, and closes them."""
        pylab = sys.modules.get("matplotlib._pylab_helpers")
        if pylab is None:
            return
        import io

        for manager in pylab.Gcf.get_all_fig_managers():
            figure = manager.canvas.figure
            picture = io.BytesIO()
            try:
                figure.savefig(picture, format="png", bbox_inches="tight")
                forms = {"image/png": plain(picture.getvalue()), "text/plain": shown(figure)}
                self.channel.send({"result": {"isMainResult": False}}, forms)
            finally:
                pylab.Gcf.destroy(manager)

    def run(self, source):
        """Runs one cell. Returns its error, if it had one."""
        self.count += 1
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        error = None
        try:
            value = self.evaluate(source, name)
            self.figures()
            if value is not None:
                self.names["_"] = value
                self.show(value, True)
        except SystemExit as stop:
            error = stop if stop.code not in (None, 0) else None
        except BaseException as raised:
            error = raised
        # A second look: figures of a cell that failed are shown, too.
        try:
            self.figures()
        except BaseException as raised:
            error = error or raised
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        return error and describe(error)

    def evaluate(self, source, name):
        """The value of the last statement, if it is an expression."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.execute(compile(tree, name, "exec", flags, dont_inherit=True))
        # As in Jupyter, a semicolon hides the value.
        if last is None or source.rstrip().endswith(";"):
            return None if last is None else self.execute(expression(last, name, flags)) and None
        return self.execute(expression(last, name, flags))

    def begin(self, variables, tools, stubs):
        """Takes what tells of this call alone, and the tools that it may call."""
        for name, value in self.before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        if tools:
            variables = {**variables, "TOOL_STUBS": STUBS}
            with open(STUBS, "w", encoding="utf-8") as file:
                file.write(stubs)
        self.before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        calls.CLOSED.clear()
        if not tools:
            calls.close(calls.NO_TOOLS, "SecurityError")
        calls.offer(tools)

    def execute(self, code):
        result = eval(code, self.names)
        if not code.co_flags & 0x80:  # CO_COROUTINE
            return result
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(result)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            # Interrupted: the task must not go on in the next cell.
            if not task.done():
                task.cancel()
                try:
                    self.loop.run_until_complete(task)
                except BaseException:
                    pass
            raise


def expression(last, name, flags):
    return compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True)


def describe(error):
    """The name, the value and the traceback of an error, without our own frames."""
    trace = calls.trace(error, lambda name: name.startswith("<cell "))
    try:
        value = str(error)
    except Exception:
        value = ""
    return {"name": type(error).__name__, "value": cut(value), "traceback": cut(trace)}


def serve(channel):
    session = Session(channel)
    waiting = queue.SimpleQueue()
    signal.signal(signal.SIGINT, session.interrupt)

    def receive():
        main = threading.main_thread().ident
        while (order := channel.read()) is not None:
            message, payload = order
            if message == "interrupt":
                signal.pthread_kill(main, signal.SIGINT)
            elif "cell" in message:
                session.received = message["cell"]["id"]
                waiting.put((message["cell"], payload))
            else:
                # The answer to a call. That of an earlier cell has no place any more.
                done = calls.WAITING.pop(message["id"], None)
                if done:
                    done(message.get("error"), payload)
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        cell, source = waiting.get()
        channel.most = cell["mostBytes"]
        session.begin(cell["variables"], cell["tools"], cell["stubs"])
        try:
            session.is_running = True
            if session.early == cell["id"]:
                raise KeyboardInterrupt
            error = session.run(source.decode("utf-8"))
            session.is_running = False
        except KeyboardInterrupt as interrupted:
            # It came just before or after the cell.
            session.is_running = False
            error = describe(interrupted)
        calls.close("The call whose code made this call has ended.")
        channel.send({"ended": {"id": cell["id"]}}, error)


def main():
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    orders, results = (os.dup(number) for number in (3, 4))
    os.close(3), os.close(4)
    os.environ.setdefault("MPLBACKEND", f"module://{Figures.name}")
    channel = Channel(orders, results)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    sys.argv = [""]
    calls.post, calls.listen = lambda call, payload: channel.post({"call": call}, payload), lambda: None
    calls.only_here()
    # Modules lie in the working folder, as at a prompt.
    sys.path[0] = ""
    serve(channel)


if __name__ == "__main__":
    main()
