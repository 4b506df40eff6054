import ast, json, re, sys

# Says what a manifest could say of a script, which is parsed and never run. A ValueError says why nothing can.
TYPES = {"str": "string", "Path": "string", "int": "integer", "float": "number", "bool": "boolean"}
TYPES |= {"INT": "integer", "IntRange": "integer", "FLOAT": "number"}
TYPES |= dict.fromkeys(["list", "List", "Sequence", "tuple", "set"], "array")
TYPES |= dict.fromkeys(["dict", "Dict", "Mapping"], "object")
SECTION = r"^ *(?:(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):? *$|:param |:returns?:)"
notes = []


def last(node):
    return getattr(node, "attr", None) or getattr(node, "id", None) or ""


def literal(node, names):
    try:
        value = ast.literal_eval(names.get(last(node), node))
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError):
        return None


def typed(schema, value):
    """The schema with a default, if that fits."""
    name = TYPES.get(type(value).__name__)
    fits = schema.get("type", name) in (name, name and name.replace("integer", "number"))
    return {**schema, "default": value} if name and fits else schema


def of_type(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    name, inner = last(node), []
    if isinstance(node, ast.Subscript):
        name, inner = last(node.value), getattr(node.slice, "elts", [node.slice])
    if isinstance(node, ast.BinOp):
        name, inner = "Union", [node.left, node.right]
    if name == "Literal":
        return {"enum": [literal(each, {}) for each in inner]}
    if name in ("Optional", "Union", "Annotated"):
        kept = [each for each in inner if getattr(each, "value", each) is not None]
        return of_type(kept[0]) if len(kept) == 1 or name == "Annotated" else {}
    kinds = [of_type(each) for each in inner if getattr(each, "value", each) is not ...]
    items = {"items": kinds[0]} if TYPES.get(name) == "array" and kinds[:1] * len(kinds) == kinds != [] else {}
    return {"type": TYPES[name], **items} if name in TYPES else {}


def of_default(value):
    """What a default says where no type is written: a text may stand for anything, and a whole number for others."""
    name = TYPES.get(type(value).__name__, "string").replace("integer", "number")
    return {} if name == "string" else {"type": name}


def plain(text):
    """What argparse and click write otherwise than they show it."""
    return (text or "").replace("%(prog)s", "this script").replace("%%", "%").replace("\b\n", "").strip()


def described(schema, text, name):
    """What the docstring says of a parameter, in Google's, Sphinx's or NumPy's form."""
    found = re.search(rf"^( *)(?::param (?:\w+ )?)?\*{{0,2}}{name}\b[^:\n]*:(.*(?:\n\1 +\S.*)*)", text, re.M)
    return {**schema, "description": " ".join(found[2].split())} if found else schema


def of_function(node, names):
    text, args = ast.get_docstring(node) or "", node.args
    if args.posonlyargs:
        raise ValueError(f"{node.name}() takes arguments by position, and they come by name")
    defaults = [None] * (len(args.args) - len(args.defaults)) + args.defaults + args.kw_defaults
    properties, required = {}, []
    for arg, default in zip(args.args + args.kwonlyargs, defaults):
        value = literal(default, names)
        schema = typed(of_type(arg.annotation) if arg.annotation else of_default(value), value)
        properties[arg.arg] = described(schema, text, arg.arg)
        required += [] if default else [arg.arg]
    parameters = {"type": "object", "properties": properties, "required": required}
    nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
    return {
        "description": re.split(SECTION, text, flags=re.M)[0].strip(),
        "entryPoint": node.name,
        "parameters": {**parameters, "additionalProperties": bool(args.kwarg)},
        "output": {"type": "null"} if nothing else of_type(node.returns),
    }


def option(call, names, execution, parameters):
    """Adds an option of argparse or click."""
    told = {each.arg: each.value for each in call.keywords}
    said = {name: literal(value, names) for name, value in told.items()}
    words = [word for word in (literal(each, names) for each in call.args) if isinstance(word, str)]
    action = said.get("action") or last(told.get("action"))
    if action in ("help", "version") or last(told.get("help")) == "SUPPRESS":
        return
    if not words or isinstance(told.get("type"), ast.Tuple):
        return notes.append(f"the option of line {call.lineno}, whose name or type is not a plain one")
    flag, _, other = next((word for word in words if word.startswith("--")), words[0]).partition("/")
    name, nargs, kind, value = flag.lstrip("-"), said.get("nargs"), told.get("type"), said.get("default")
    nargs = "*" if last(told.get("nargs")) == "REMAINDER" else nargs
    is_flag, several = name != flag, nargs not in (None, "?", 1)
    if is_flag and several and (action != "extend" or isinstance(nargs, int)):
        if said.get("required"):
            raise ValueError(f"{flag} takes several values after one flag: use --script")
        return notes.append(f"{flag}, which takes several values after one flag")
    picked, callee = said.get("choices"), getattr(kind, "func", kind)
    if last(callee) == "Choice":
        picked = literal(kind.args[0], names)
    is_switch = other or said.get("is_flag") or said.get("count") or "flag_value" in told
    if is_switch or action[:6] in ("store_", "count", "Boolea"):
        if action == "count" or said.get("count"):
            notes.append(f"{flag} more than once")
        if value is True and (other or action[:6] == "Boolea"):
            name = "no-" + name
            flag = other or "--" + name
        schema = {"type": "boolean"}
    else:
        kind = TYPES.get(last(callee), "string").replace("boolean", "string")
        schema = {"enum": list(picked)} if picked else {"type": kind}
        if several or action == "append" or said.get("multiple"):
            schema = {"type": "array", "items": schema}
            if nargs == "+" or isinstance(nargs, int) and nargs > 1:
                schema["minItems"] = 1 if nargs == "+" else nargs
        elif not is_flag:
            schema = typed(schema, value)
    about = plain((said.get("help") or "").replace("%(default)s", str(value)))
    if is_flag and value not in (None, "") and schema.get("type") != "boolean" and str(value) not in about:
        about += f" (default: {value})"
    if about:
        schema["description"] = about.strip()
    if not is_flag:
        execution["positional"].append(name)
    elif flag != "--" + name:
        execution["flags"][name] = flag
    parameters["properties"][name] = schema
    optional = nargs in ("?", "*", -1) or "default" in told or said.get("required") is False
    if said.get("required") or not is_flag and not optional:
        parameters["required"].append(name)


def of_commands(tree, names):
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    used = {last(node) for node in ast.walk(tree)}
    kinds = ["add_argument"] * ("ArgumentParser" in used) + ["option", "argument"] * ("command" in used)
    if "add_subparsers" in used or {"option", "group"} <= used:
        raise ValueError("it has subcommands: write one script for each, or name a function of it with --entry")
    if any("prefix_chars" in (each.arg or "") for call in calls for each in call.keywords):
        raise ValueError("its options begin with other characters than -, or name files of words: write the manifest yourself")
    about = [node for node in tree.body if "option" in used and getattr(node, "decorator_list", None)]
    about = ast.get_docstring(about[-1]) if about else None
    execution = {"input": "argv", "flags": {}, "positional": []}
    parameters = {"type": "object", "properties": {}, "required": []}
    for call in calls:
        if last(call.func) in kinds:
            option(call, names, execution, parameters)
        said = {each.arg: each.value for each in call.keywords}
        if last(call.func) == "ArgumentParser" and "description" in said:
            about = literal(said["description"], names)
    if kinds and used & {"stdin", "fileinput", "FileType"}:
        execution["stdin"] = name = "stdin" if "text" in parameters["properties"] else "text"
        parameters["properties"][name] = {"type": "string", "description": "What it reads from its standard input."}
    return {"description": plain(about), "execution": execution, "parameters": parameters}


def draft(text, entry):
    tree = ast.parse(text)
    names = {last(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    names.pop("", None)
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    found = None if entry else of_commands(tree, names)
    if not found or not found["parameters"]["properties"]:
        public = [name for name in functions if name == entry or not entry and name[0] != "_"]
        if len(public) != 1:
            used = {last(node) for node in ast.walk(tree)}
            more = ' (`"input": "argv"` in its manifest gives it words)' if "argv" in used else ""
            if "ArgumentParser" in used:
                more = " (an option is read where `.add_argument(` is called)"
            raise ValueError(f"name one function with --entry, or use --script{more}; it has: {', '.join(functions) or 'none'}")
        found = of_function(functions[public[0]], names)
    return {**found, "description": found["description"] or ast.get_docstring(tree), "notes": notes}


try:
    print(json.dumps(draft(**json.load(sys.stdin))))
except (ValueError, SyntaxError, RecursionError, MemoryError) as why:
    print(json.dumps({"refused": str(why) or "it is nested too deeply, or too large"}))
