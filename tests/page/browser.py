"""A browser that a test drives: chromium without a window, over the pipes of its DevTools protocol (no port, no package)."""

import base64
import json
import os
import select
import subprocess
import tempfile
import time

PATIENCE = 60


class Browser:
    """One chromium with a profile of its own, and one page."""

    def __init__(self, program="chromium"):
        self.profile = tempfile.TemporaryDirectory(prefix="toolhost-page-")
        to_browser, self.to = os.pipe()
        self.come, from_browser = os.pipe()
        words = [program, "--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-default-browser-check",
                 f"--user-data-dir={self.profile.name}"]
        # Its own sandbox cannot be had by root, nor everywhere where user namespaces are; what it opens here is ours.
        words.append("--no-sandbox")

        def descriptors():
            # The protocol is spoken on 3 and 4.
            to, come = os.dup(to_browser), os.dup(from_browser)
            high = [os.dup2(to, 33), os.dup2(come, 34)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(words, preexec_fn=descriptors, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.profile.name})
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.count, self.events = b"", 0, []
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"]:
            self.page(domain + ".enable")

    def message(self, until):
        while b"\0" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.come], [], [], left)[0]:
                raise TimeoutError("the browser did not answer")
            piece = os.read(self.come, 1 << 16)
            if not piece:
                raise EOFError("the browser has ended")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, params=None, session=None):
        self.count += 1
        request = {"id": self.count, "method": method, "params": params or {}}
        if session:
            request["sessionId"] = session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            message = self.message(until)
            if message.get("id") == self.count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def page(self, method, **params):
        return self.ask(method, params, self.session)

    def js(self, expression):
        """The value of an expression, which may wait."""
        answer = self.page("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, address):
        self.page("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait(self, expression, what=None):
        """Until an expression is true; what the page says is the message if it never is."""
        until = time.monotonic() + PATIENCE
        while not self.js(f"Boolean({expression})"):
            if time.monotonic() > until:
                raise AssertionError(f"not so: {what or expression}\n{self.text()}")
            time.sleep(0.05)

    def text(self):
        return self.js("document.body.innerText")

    def key(self, key, modifiers=0):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "Escape": 27}
        text = {"Enter": "\r", " ": " "}.get(key) if not modifiers else None
        for kind in ["keyDown", "keyUp"]:
            more = {"text": text} if text and kind == "keyDown" else {}
            self.page("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], modifiers=modifiers, **more)

    def type(self, text):
        self.page("Input.insertText", text=text)

    def size(self, width, height, phone=False):
        self.page("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def colours(self, scheme):
        self.page("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, file):
        """The whole page as a PNG."""
        data = self.page("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))

    def violations(self):
        """What the Content-Security-Policy and Trusted Types refused, and errors that no part of the page took care of."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"])[:500])
            entry = event["params"].get("entry", {}) if event["method"] == "Log.entryAdded" else {}
            if entry.get("source") == "security" or "Content Security Policy" in entry.get("text", ""):
                found.append(entry["text"])
        return found

    def close(self):
        try:
            self.ask("Browser.close")
        except (EOFError, OSError, TimeoutError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.come)
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
