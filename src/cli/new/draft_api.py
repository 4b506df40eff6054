import json, re, sys
from urllib.parse import unquote

METHODS = "get put post delete options head patch".split()
KEPT = "type enum const description minimum maximum minLength maxLength minItems maxItems writeOnly".split()
PLACES = ["path", "query", "header", "body"]
SERVER = r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(/[\w.~/@:+-]*)?"
MOST_LISTED, MOST_DEEP, MOST_PARTS = 200, 6, 1000
place, notes, parts = "the document", [], []


def at(value):
    """A value, or what the reference in it leads to. The schemas true and false become {} and not {}."""
    for _ in range(MOST_DEEP):
        if isinstance(value, bool):
            return {} if value else {"not": {}}
        if "$ref" not in value:
            return value
        reference, value = value["$ref"], spec
        if reference[:2] != "#/":
            raise ValueError(f"the reference {reference!r} leads out of the document: write what it leads to into it")
        for name in unquote(reference[2:]).split("/"):
            name = name.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name) if isinstance(value, list) else name]
            except (LookupError, TypeError, ValueError):
                raise ValueError(f"{reference!r} is not in the document: write it there") from None
    raise ValueError("its references lead in a circle")


def schema(value, depth=0):
    """The part of a schema that a manifest has; what is nested deeper than is read may be any value."""
    parts.append(depth)
    if len(parts) > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS} parts: shorten it in a copy of the document")
    if depth > MOST_DEEP:
        return {}
    value = at(value)
    kept = {name: value[name] for name in KEPT if name in value}
    if value.get("not") == {}:
        kept["not"] = {}
    sent = {name: each for name, each in value.get("properties", {}).items() if not at(each).get("readOnly")}
    if sent:
        kept["properties"] = {name: schema(each, depth + 1) for name, each in sent.items()}
        kept["required"] = [name for name in value.get("required", []) if name in sent]
    kept |= {name: value[name] is not False and schema(value[name], depth + 1) for name in ("items", "additionalProperties") if name in value}
    for name in {"allOf", "anyOf", "oneOf"} & value.keys():
        kept[name] = [schema(each, depth + 1) for each in value[name]]
    return {"anyOf": [kept, {"type": "null"}]} if value.get("nullable") else kept


def header(name):
    """The header that has the key of a security scheme. None: another place has it."""
    scheme = at({"$ref": "#/components/securitySchemes/" + name})
    if scheme["type"] == "apiKey":
        return scheme["in"] == "header" and {"name": scheme["name"], "value": "{}"}
    word = scheme.get("scheme", "bearer").title()
    return word in ("Basic", "Bearer") and {"name": "Authorization", "value": word + " {}"}


def keys(found):
    """The headers with the keys of the first way to be let in that has only such."""
    ways = found.get("security", spec.get("security")) or [{}]
    for names in ways:
        headers = {"KEY_" + re.sub("[^A-Z0-9]+", "_", name.upper()): header(name) for name in names}
        if all(headers.values()):
            return headers
    notes.append(f"the key {' and '.join(ways[0])}, which no header has")
    return {}


def chosen(wanted):
    items = {path: item for path, item in spec.get("paths", {}).items() if path[:1] == "/"}
    outside = [path for path, item in items.items() if item.get("$ref", "#")[:1] != "#"]
    every = [
        (f"{method.upper()} {path}", item[method].get("operationId", ""), item)
        for path, item in ((path, at(items[path])) for path in items if path not in outside)
        for method in item
        if method in METHODS
    ]
    found = [(name, item) for name, own, item in every if wanted in (name, own)]
    if len(found) == 1:
        return found[0]
    lines = [f"  {name}  {own}"[:150] for name, own, _ in every[:MOST_LISTED]]
    lines += [f"  {path} leads out of the document: write what it leads to into it"[:150] for path in outside[:MOST_LISTED]]
    raise ValueError("\n".join([f"name one of its {len(every)} operations with --operation ID, or 'GET /PATH'", *lines]))


def draft(text, entry):
    global spec, place
    spec = json.loads(text)
    if not isinstance(spec, dict) or str(spec.get("openapi"))[:3] not in ("3.0", "3.1"):
        raise ValueError("it is not a document of OpenAPI 3.0 or 3.1: convert it to one (of Swagger 2.0, too)")
    place, item = chosen(entry)
    method, path = place.split(" ", 1)
    found = item[method.lower()]
    server = (found.get("servers") or item.get("servers") or spec.get("servers") or [{"url": "/"}])[0]["url"]
    address = re.fullmatch(SERVER, server, re.A)
    if not address:
        raise ValueError(f"servers[0].url {server!r} is not a whole plain address: write https://HOST/PATH, without variables, user and query")
    scheme, host, port, base = address.groups("")
    path = base.rstrip("/") + path
    headers = keys(found)
    ignored = ["accept", "content-type", "authorization"] + [each["name"].lower() for each in headers.values()]
    body = at(found.get("requestBody", {}))
    taken = {"body": {**body, "in": "body"}} if body else {}
    for name, each in body.get("content", {}).items():
        if re.fullmatch(r"application/([\w.-]+\+)?json *(;[ -~]*)?", name, re.A):
            taken["body"] |= {**each, "name": name}
    for each in item.get("parameters", []) + found.get("parameters", []):
        each = at(each)
        taken[each["in"], each["name"]] = each
    properties, required, places = {}, [], {}
    for each in taken.values():
        where, name = each["in"], each.get("name", "body")
        if where == "header" and name.lower() in ignored:
            continue
        shape, is_listed = each.get("schema"), where != "query" or each.get("explode", True)
        is_known = "schema" in each and where in PLACES and is_listed and each.get("style", "form") in ("form", "simple")
        is_required = where == "path" or each.get("required") is True
        if not is_known or where != "body" and "object" in at(shape).get("type", ""):
            if is_required:
                raise ValueError(f"'{name}' is required, and sent in a way that is not known here: write the script yourself")
            notes.append(name)
            continue
        key = re.sub(r"[^\w.-]", "_", "body" if where == "body" else name, flags=re.A)[:50]
        while key in properties:
            key += "_"
        about = {"description": each["description"]} if "description" in each else {}
        properties[key], places[key] = {**schema(shape), **about}, [where, name]
        required += [key] * is_required
    names = {where: [name for place, name in places.values() if place == where] for where in PLACES}
    if not re.fullmatch("/[!-~]*", path) or sorted(re.findall("{(.*?)}", path)) != sorted(names["path"]):
        raise ValueError("it is not the path of a URL, or has other parts in braces than its parameters")
    limits = {"methods": [method], "paths": [re.sub("[^/]*{.*", "**", path)], "query": names["query"], "request_headers": names["header"]}
    secrets = []
    for secret, each in headers.items():
        rule = {"host": host + port * (scheme == "https"), **each, **limits}
        rule = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in rule.items())
        secrets.append(f"[secrets] grant, so that the script never has the key: {{ name = '{secret}', from = 'file:{secret}.key', why = {json.dumps(place)}, header = {{ {rule} }} }}")
    if headers:
        scheme, port = "http", ""
    hosts = [host + (port or (":443" if scheme == "https" else ":80"))]
    about = [found[name] for name in ("summary", "description") if found.get(name)]
    return {
        "description": "\n\n".join(about) or place,
        "parameters": {"type": "object", "properties": properties, "required": required},
        "entryPoint": "run",
        "securityContext": {
            "networkAccess": {"allowHosts": hosts},
            "requiredCapabilities": ["secret:" + secret for secret in headers],
        },
        "operation": {"method": method, "url": f"{scheme}://{host}{port}{path}", "places": places},
        "grants": hosts + secrets,
        "notes": notes,
    }


try:
    print(json.dumps(draft(**json.load(sys.stdin)), allow_nan=False))
except ValueError as why:
    print(json.dumps({"refused": f"{place}: {why}"}))
except (LookupError, TypeError, AttributeError, RecursionError, MemoryError) as why:
    print(json.dumps({"refused": f"{place}: it has not the form that OpenAPI gives it ({why!r})"}))
