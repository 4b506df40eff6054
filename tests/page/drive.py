"""Drives the page in a browser: `drive.py MODE FACTS`, FACTS being JSON with `url`, tokens by name and what MODE needs. The
last line says `fine`, or a traceback says what is not. With TOOLHOST_TEST_PICTURES=FOLDER it leaves pictures of what it saw."""

import json
import os
import sys
import threading
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser  # noqa: E402

PARTS = ["tools", "waiting", "calls", "approvals", "sessions", "console"]
CONTROL_KEY = 2
PLOT = """
import struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
rows = b''.join(b'\\0' + bytes(3 * [x % 256 for x in range(120)]) for y in range(80))
head = struct.pack('>IIBBBBB', 120, 80, 8, 2, 0, 0, 0)
with open('output/plot.png', 'wb') as out:
    out.write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
print('drawn')
"""
DRAWN = """
class Drawn:
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
    def __repr__(self): return 'a drawing'
Drawn()
"""


class Page(Browser):
    """The page, and those who call the same server beside it."""

    def __init__(self, facts):
        super().__init__()
        self.facts = facts
        self.size(1200, 900)

    def call(self, tool, arguments, name):
        """A call as somebody else, in a thread: its outcome is in the list once it ended."""
        ended = []

        def run():
            headers = {"Authorization": "Bearer " + self.facts[name], "Content-Type": "application/json"}
            body = json.dumps({"arguments": arguments, "user": self.facts.get("label", "")}).encode()
            request = urllib.request.Request(f"{self.facts['url']}/v1/tools/{tool}/calls", body, headers)
            try:
                ended.append(json.load(urllib.request.urlopen(request)))
            except urllib.error.HTTPError as error:
                ended.append(json.load(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, ended

    def called(self, tool, arguments, name):
        thread, ended = self.call(tool, arguments, name)
        thread.join(60)
        return ended[0]

    def sign_in(self, token):
        self.wait("document.activeElement?.id === 'token'")
        self.js("document.getElementById('token').value = ''")
        self.type(token)
        self.key("Enter")

    def go(self, part):
        self.js(f"location.hash = {json.dumps('#' + part)}")
        self.wait("document.querySelector('h1') && !document.querySelector('[aria-busy=true]')", part)

    def has(self, text):
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", f"{text!r} is shown")

    def click(self, words, inside="document"):
        pick = f"[...{inside}.querySelectorAll('button, a, summary')].find((it) => it.textContent.trim() === {json.dumps(words)})"
        self.wait(pick, f"there is {words!r}")
        self.js(pick + ".click()")

    def run(self, source):
        self.go("console")
        before = self.js("document.querySelectorAll('[role=log] article').length")
        self.js("document.querySelector('textarea').value = ''; document.querySelector('textarea').focus()")
        self.type(source)
        self.key("Enter", CONTROL_KEY)
        self.wait(f"document.querySelectorAll('[role=log] article').length > {before}", "the code ran")

    def left(self, name):
        folder = os.environ.get("TOOLHOST_TEST_PICTURES")
        if folder:
            self.picture(os.path.join(folder, name + ".png"))


def ordinary(page):
    page.open(page.facts["url"] + "/")
    page.sign_in(page.facts["ops"])
    page.has("esc:good@1.0.0")
    assert page.js("[...document.cookie].length + location.href.length") == len(page.facts["url"] + "/"), "neither a cookie nor the address has the token"
    page.left("tools")
    # The audit of one tool: each request with what became of it.
    page.click("esc:wants@1.0.0")
    page.has("/srv/none/x")
    lanes = page.js("[...document.querySelectorAll('.lanes tbody tr')].map((row) => [...row.cells].map((cell) => cell.className).join(' '))")
    assert "asked bad none" in lanes and "asked good good" in lanes, lanes
    page.has(page.facts["program"] + " allow esc:wants")
    page.left("tool")
    # A denial of an earlier call has the line that would grant it.
    page.called("esc:tries", {}, "alice")
    page.go("tools/esc:tries@1.0.0")
    page.has(page.facts["program"] + " allow esc:tries --read /srv/none/tried")

    page.go("tools/esc:good@1.0.0")
    page.has("Tries esc:good.")
    page.click("Disable this tool")
    page.js("document.querySelectorAll('form input')[1].focus()")
    page.type("it misbehaves")
    page.key("Enter")
    page.has("esc:good is disabled: 1 loaded tools.")
    page.has("it misbehaves")
    assert page.called("esc:good", {}, "alice")["error"]["type"] == "AuthorizationError"
    page.click("Enable esc:good")
    page.has("esc:good is enabled.")
    assert page.called("esc:good", {}, "alice")["success"]

    # Who agrees lets the call run, and who refuses does not.
    page.go("waiting")
    page.has("No call waits")
    for words, runs in [("Agree", True), ("Refuse", False)]:
        # An answer to a list that has just changed is not taken: here no time passes until the test says so.
        page.js(f"""performance.now = () => 0; new MutationObserver((_, self) => {{
            const answer = [...document.querySelectorAll('button')].find((it) => it.textContent === '{words}');
            if (answer) {{ self.disconnect(); answer.click(); }}
        }}).observe(document.querySelector('main'), {{ childList: true, subtree: true }})""")
        thread, ended = page.call("esc:pay", {"to": f"bob-{words}"}, "alice")
        page.has(f"bob-{words}")
        page.has("it spends money")
        page.left("waiting")
        page.has("The list has just changed")
        page.js("performance.now = () => 1000")
        page.click(words)
        thread.join(60)
        assert ended[0].get("success") is runs or not runs and ended[0]["error"]["type"] == "AuthorizationError", ended
        page.wait("!document.querySelector('article')", "the question is gone")

    # An error is no success.
    last = "document.querySelector('[role=log] article')"
    page.run("1/0")
    page.has("It failed: see the result.")
    assert page.js(f"{last}.querySelector('.notice').textContent") == "ZeroDivisionError: division by zero"
    page.run(PLOT)
    page.wait("document.querySelector('figure img')?.naturalWidth === 120", "the picture is there")
    page.has("drawn")
    # A text that stands for a picture is not shown beside it.
    page.run(DRAWN)
    page.wait(f"{last}.querySelector('figure img')?.naturalWidth === 120", "the drawing is there")
    assert page.js(f"{last}.querySelectorAll('pre').length") == 1, page.js(f"{last}.innerText")
    page.left("console")
    page.go("sessions")
    page.has("console")
    page.click("End", "document.querySelector('main')")
    page.has("No session is open.")
    page.go("calls")
    page.has("esc:pay")
    page.js("[...document.querySelectorAll('tbody tr')].find((row) => row.textContent.includes('core:run-code')).querySelector('a').click()")
    page.wait("document.querySelector('figure img')?.naturalWidth === 120", "the picture of a past call is there")
    page.go("approvals")
    page.has(page.facts["program"] + " approve esc:new --why TEXT")

    # With the keyboard alone: everything can be reached, seen and is named.
    page.go("tools")
    reached = []
    for _ in range(12):
        page.key("Tab")
        reached.append(page.js("document.activeElement.textContent.trim() || document.activeElement.getAttribute('aria-label')"))
        assert page.js("document.activeElement.matches(':focus-visible') && getComputedStyle(document.activeElement).outlineStyle !== 'none'"), reached
    for part in ["Calls", "Sessions", "Console"]:
        page.js(f"[...document.querySelectorAll('nav a')].find((it) => it.textContent === {json.dumps(part)}).focus()")
        page.key("Enter")
        page.wait(f"document.querySelector('nav [aria-current]').textContent === {json.dumps(part)}")
        for node in page.page("Accessibility.getFullAXTree")["nodes"]:
            role = node.get("role", {}).get("value")
            if role in {"textbox", "searchbox", "combobox", "button", "checkbox", "link"}:
                assert node.get("name", {}).get("value"), f"{part}: a {role} has no name"
    # Light and dark, and on a phone nothing is wider than the screen.
    page.size(390, 844, phone=True)
    for scheme in ["light", "dark"]:
        page.colours(scheme)
        for part in PARTS + ["tools/esc:wants@1.0.0"]:
            page.go(part)
            assert page.js("document.documentElement.scrollWidth <= innerWidth"), f"{part} is wider than a phone"
    page.left("phone")
    assert not page.violations(), page.violations()
    page.click("Sign out")
    page.has("You are signed out.")
    assert page.js("sessionStorage.length") == 0


def hostile(page):
    """Everything that tools and callers say is text; the same is a script in a page that does not take care."""
    url, payload = page.facts["url"], page.facts["payload"]
    begin = payload.split("\u202e")[0]
    for tool, ends in [("esc:evil", "ScriptError"), ("esc:tries", None)]:
        assert page.called(tool, {}, "alice").get("error", {}).get("type") == ends, tool
    page.call("esc:pay", {"to": payload}, "alice")
    page.open(url + "/")
    page.sign_in(page.facts["ops"])
    page.has("esc:evil@1.0.0")
    page.has(begin)
    page.has("\\u{202e}")
    unseen = page.js("Array.from({length: 0x110000}, (_, n) => n).filter((n) => (n & 0x1ff800) !== 0xd800 && shown(String.fromCodePoint(n)).length > 2)")
    assert unseen == page.facts["unseen"], set(unseen) ^ set(page.facts["unseen"])
    for part in ["tools/esc:evil@1.0.0", "tools/esc:tries@1.0.0", "waiting"]:
        page.go(part)
        page.wait(f"document.querySelector('main').textContent.includes({json.dumps(begin[:20])})", f"{part} shows it")
    page.left("hostile-waiting")
    for part in ["calls", "approvals", "sessions", "tools/" + payload, "calls/" + payload, "calls/..%2F..%2Fhealthz", payload]:
        page.go(part.replace("#", "%23"))
        page.wait("document.querySelector('h1')")
    page.go("calls")
    for row in range(page.js("document.querySelectorAll('a[href^=\"#calls/\"]').length")):
        page.go("calls")
        page.js(f"document.querySelectorAll('a[href^=\"#calls/\"]')[{row}].click()")
        page.wait("document.querySelector('h1').textContent.startsWith('Call ') && !document.querySelector('[aria-busy=true]')")
        page.js("document.querySelectorAll('summary').forEach((it) => it.click())")
    # Files: an SVG by its own name, one that says it is a PNG, HTML, and a name that is a tag. Then what is printed, raised, displayed.
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"fetch('{page.facts['listener']}/svg')\"><script>fetch('{page.facts['listener']}/script')</script></svg>"
    page.run(f"""
svg, payload = {svg!r}, {payload!r}
for name, text in [('a.svg', svg), ('b.png', svg), ('c.html', payload), ('<img src=x onerror=hit=1>.png', svg)]:
    open('output/' + name, 'w').write(text)
class Shown:
    def _repr_html_(self): return payload
    def _repr_svg_(self): return svg
    def _repr_javascript_(self): return 'hit = 1'
print(payload)
display(Shown())
raise ValueError(payload)
""")
    page.has(begin)
    page.left("hostile-console")
    page.js("document.querySelector('input[pattern]').value = ''")
    data = "{'type': 'image', 'mimeType': 'image/svg+xml', 'data': base64.b64encode(svg.encode()).decode()}"
    page.run(f"import base64, json\nsvg = {svg!r}\nprint(json.dumps({{'$content': [{data}, {{'type': 'text', 'text': {payload!r}}}]}}))")
    assert page.js("[...document.images].every((it) => !it.src.startsWith('data:') && it.naturalWidth === 0)"), "no picture was made of any of it"
    assert page.js("document.querySelectorAll('main script, main iframe, main object, main embed, main svg script, [onerror], [onload]').length") == 0
    assert page.js("[...document.querySelectorAll('[href], [src]')].every((it) => /^(#|\\/page\\.|data:,|blob:)/.test(it.getAttribute('href') ?? it.getAttribute('src')))")
    # Two more looks later nothing has happened.
    page.js("new Promise((later) => setTimeout(later, 3500))")
    assert page.js("typeof hit") == "undefined", "a script ran"
    assert not page.violations(), page.violations()
    assert not [event for event in page.events if event["method"] == "Page.javascriptDialogOpening"]
    # Even where it was a tag, the page's own rules would refuse it.
    tag = "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')"
    assert page.js(f"(() => {{ try {{ {tag}; return 'made'; }} catch (error) {{ return error.name; }} }})()") == "TypeError"
    assert page.violations(), "a violation is seen"
    print("before the control", flush=True)
    page.open(page.facts["listener"] + "/bare")
    page.wait("window.hit === 1", "the same text is a script in a bare page")


def strangers(page):
    url = page.facts["url"] + "/"
    page.open(url)
    page.has("An operator’s token")
    page.sign_in("th_wrong")
    page.has("The server does not accept this token.")
    page.sign_in(page.facts["alice"])
    page.has("You are not an operator of this host")
    assert "esc:good" not in page.text() and page.js("document.getElementById('nav').hidden")
    assert page.js("sessionStorage.length") == 0
    page.left("stranger")
    # A server for one user needs no token: the page works at once.
    page.open(page.facts["own"] + "/")
    page.has("esc:good@1.0.0")
    assert page.js("document.getElementById('leave').hidden")
    # Another user may serve the other address of this name.
    page.open(page.facts["own"].replace("127.0.0.1", "localhost") + "/")
    page.has("The Host header names another server.")


if __name__ == "__main__":
    with Page(json.loads(sys.argv[2])) as page:
        {"ordinary": ordinary, "hostile": hostile, "strangers": strangers}[sys.argv[1]](page)
    print("fine")
