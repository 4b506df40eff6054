# A text in the encodings that issue 21 names.
import base64, html, json
from urllib.parse import quote


def another(text):
    return "".join("q" if c.isalpha() else c for c in text)


def dressed(text):
    based = base64.encodebytes(b"x" * 50 + text.encode()).decode()
    short = base64.b64encode(b"user:" + text.encode()).decode()
    return {
        "plain": text,
        "percent": quote(text, safe=""),
        "percent beside a slash": quote(text, safe="/").lower(),
        "percent twice": quote(quote(text, safe=""), safe=""),
        "entities": "".join(f"&#{ord(c)};" for c in text),
        "entities with zeros": "".join(f"&#x000{ord(c):X};" if n % 2 else c for n, c in enumerate(text)),
        "html": html.escape(text),
        "json": text.replace("+", "\\u002b").replace("/", "\\/").replace("=", "\\u003D"),
        "units": "".join(f"\\u{ord(c):04x}" for c in text),
        "bytes": "".join(f"\\x{ord(c):02x}" for c in text),
        "mixed": "".join([c, f"%{ord(c):02x}", f"&#{ord(c)};", f"\\u{ord(c):04X}"][n % 4] for n, c in enumerate(text)),
        "base64": short,
        "base64 for URLs": short.replace("+", "-").replace("/", "_").rstrip("="),
        "base64 in lines": based,
        "base64 in lines of 7": "\r\n".join(short[n:n + 7] for n in range(0, len(short), 7)),
        "base64 in JSON": json.dumps(based).replace("/", "\\/").replace("+", "\\u002b"),
        "base64 in a URL": quote(based, safe=""),
    }
