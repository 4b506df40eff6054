"""Makes one request of an HTTP API. OPERATION says which, and where each argument goes.

toolhost calls run() with the arguments. Its return value is the result.
"""

import json
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

OPERATION = {}


def run(**arguments):
    url, query, body = OPERATION["url"], [], None
    headers = {"Accept": "application/json, */*;q=0.5"}
    for argument, value in arguments.items():
        place, name = OPERATION["places"][argument]
        values = value if isinstance(value, list) else [value]
        texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
        if place == "path":
            part = ",".join(quote(text, safe="") for text in texts)
            if part in ("", ".", ".."):
                raise ValueError(f"{argument} is not a part of a path")
            url = url.replace("{" + name + "}", part)
        elif place == "query":
            query += [(name, text) for text in texts]
        elif place == "header":
            headers[name] = ",".join(texts)
        else:
            body, headers["Content-Type"] = json.dumps(value).encode(), name
    if query:
        url += "?" + urlencode(query)
    try:
        with urlopen(Request(url, body, headers, method=OPERATION["method"])) as answer:
            text = answer.read().decode(errors="replace")
    except HTTPError as error:
        raise RuntimeError(f"HTTP {error.code}: {error.read(1000).decode(errors='replace')}") from None
    try:
        return json.loads(text)
    except ValueError:
        return text
