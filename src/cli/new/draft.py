import ast, json, re, sys

# Says what a manifest could say of a script, which is parsed and never run. A ValueError says why nothing can.
TYPES = {"str": "string", "Path": "string", "int": "integer", "float": "number", "bool": "boolean"}
TYPES |= {"INT": "integer", "IntRange": "integer", "FLOAT": "number"}
TYPES |= dict.fromkeys(["list", "List", "Sequence", "tuple", "set"], "array")
TYPES |= dict.fromkeys(["dict", "Dict", "Mapping"], "object")
SECTION = r"^ *(?:(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):? *$|:param |:returns?:)"
READERS = {"argparse", "click", "typer", "optparse"}
CONSTANTS = {"OPTIONAL": "?", "ZERO_OR_MORE": "*", "ONE_OR_MORE": "+", "REMAINDER": "*"}
CONSTANTS |= {"BooleanOptionalAction": "BooleanOptionalAction"}
SWITCHES = {"store_true", "store_false", "store_const", "append_const", "count", "BooleanOptionalAction"}
# Without these it is not known which words an option takes.
PARTS = {"nargs", "choices", "required", "action", "is_flag", "multiple", "count"}
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


def of_values(said, kind):
    if said.get("choices"):
        return {"enum": list(said["choices"])}
    return {"type": kind.replace("boolean", "string")}


def number_of(nargs, is_required):
    """How many values a list of an option has."""
    if isinstance(nargs, int) and nargs > 1:
        return {"minItems": nargs, "maxItems": nargs}
    return {"minItems": 1} if nargs == "+" or nargs == -1 and is_required else {}


def is_plain(told, said, words):
    """Whether all is known of which words an option takes."""
    kind = told.get("type")
    unknown = [name for name in PARTS & told.keys() if said[name] is None and getattr(told[name], "value", 0) is not None]
    known = said.get("action") in {None, "store", "append", "extend"} | SWITCHES
    is_picked = last(getattr(kind, "func", None)) != "Choice" or said["choices"]
    return words and known and is_picked and not unknown and None not in told and not isinstance(kind, ast.Tuple)


def about_of(said, has_default):
    value = said.get("default")
    about = plain((said.get("help") or "").replace("%(default)s", str(value)))
    if has_default and value not in (None, "") and str(value) not in about:
        about += f" (default: {value})"
    return about.strip()


def option(call, names, execution, parameters):
    """Adds an option of argparse or click."""
    told = {each.arg: each.value for each in call.keywords}
    said = {name: literal(value, names) for name, value in told.items()}
    words = [word for word in (literal(each, names) for each in call.args) if isinstance(word, str)]
    action, kind, value = said.get("action") or "", told.get("type"), said.get("default")
    if action in ("help", "version"):
        return
    flag = next((word for word in words if word.startswith("--")), words[0] if words else "")
    flag, _, other = flag.partition("/")
    name, nargs = flag.lstrip("-"), "*" if said.get("nargs") == "..." else said.get("nargs")
    is_flag, several = name != flag, nargs not in (None, "?", 1)
    # Where click asks for a value, nobody answers.
    is_required = bool(said.get("required") or said.get("prompt"))
    if (said.get("hidden") or last(told.get("help")) == "SUPPRESS") and is_flag and not is_required:
        return
    if last(getattr(kind, "func", None)) == "Choice":
        said["choices"] = literal((kind.args + [each.value for each in kind.keywords] + [None])[0], names)
    reason = "" if is_plain(told, said, words) else "has a part that is not written plainly"
    if is_flag and several and (action != "extend" or isinstance(nargs, int)):
        reason = reason or "takes several values after one flag"
    if reason:
        who = flag or f"the option of line {call.lineno}"
        # Without a word in front, those that follow would take its place.
        if is_required or last(call.func) == "argument" or words and not is_flag:
            raise ValueError(f"line {call.lineno}: {who} {reason}: use --script")
        return notes.append(f"{who}, which {reason}")
    if action in SWITCHES or other or said.get("is_flag") or said.get("count") or "flag_value" in told:
        if action == "count" or said.get("count"):
            notes.append(f"{flag} more than once")
        if value is True and (other or action == "BooleanOptionalAction"):
            name = "no-" + name
            flag = other or "--" + name
        schema = {"type": "boolean"}
    else:
        schema = of_values(said, TYPES.get(last(getattr(kind, "func", kind)), "string"))
        if several or action == "append" or said.get("multiple"):
            schema = {"type": "array", "items": schema, **number_of(nargs, is_required)}
        elif not is_flag:
            schema = typed(schema, value)
    if about := about_of(said, is_flag and schema.get("type") != "boolean"):
        schema["description"] = about
    if name in parameters["properties"]:
        raise ValueError(f"line {call.lineno} adds '{name}' once more: use --script, and write its options yourself")
    if not is_flag:
        execution["positional"].append(name)
    elif flag != "--" + name:
        execution["flags"][name] = flag
    parameters["properties"][name] = schema
    optional = nargs in ("?", "*", -1) or "default" in told or said.get("required") is False
    if is_required or not is_flag and not optional:
        parameters["required"].append(name)


def with_own_names(tree):
    """Gives what is imported `as` another name its own again, and returns the modules."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    own = {each.asname: each.name for node in imports for each in node.names if isinstance(node, ast.ImportFrom)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = own.get(node.id, node.id)
    modules = [getattr(node, "module", None) or each.name for node in imports for each in node.names]
    return {module.partition(".")[0] for module in modules}


def note_others(tree, calls):
    """Names what demands or adds options in another way than one by one."""
    decorators = [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", [])]
    for each in decorators:
        name = last(getattr(each, "func", each))
        if name.endswith("_option") and name not in ("version_option", "help_option"):
            notes.append(f"{name} of line {each.lineno}")
    for call in calls:
        told = {each.arg: literal(each.value, {}) for each in call.keywords}
        if last(call.func) == "add_mutually_exclusive_group" and told.get("required", False) is not False:
            notes.append(f"that one option of the group of line {call.lineno} must be given")


def of_commands(tree, names, modules):
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
    if kinds:
        note_others(tree, calls)
    if READERS & modules and not parameters["properties"]:
        more = f" (not taken over: {'; '.join(notes)})" if notes else ""
        raise ValueError(
            f"it imports {' and '.join(sorted(READERS & modules))}, and no option of it can be read{more}: "
            "name a function with --entry, or use --script and write its options yourself"
        )
    # A value has its place by those in front of it.
    order, required = execution["positional"], parameters["required"]
    last_required = max((at for at, name in enumerate(order) if name in required), default=0)
    required += [name for name in order[:last_required] if name not in required]
    if kinds and used & {"stdin", "fileinput", "FileType"}:
        execution["stdin"] = name = "stdin" if "text" in parameters["properties"] else "text"
        parameters["properties"][name] = {"type": "string", "description": "What it reads from its standard input."}
    return {"description": plain(about), "execution": execution, "parameters": parameters}


def draft(text, entry):
    tree = ast.parse(text)
    modules = with_own_names(tree)
    names = {name: ast.Constant(value) for name, value in CONSTANTS.items()}
    names |= {last(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    names.pop("", None)
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    found = None if entry else of_commands(tree, names, modules)
    if not found or not found["parameters"]["properties"]:
        public = [name for name in functions if name == entry or not entry and name[0] != "_"]
        if len(public) != 1:
            used = {last(node) for node in ast.walk(tree)}
            more = ' (`"input": "argv"` in its manifest gives it words)' if "argv" in used else ""
            raise ValueError(f"name one function with --entry, or use --script{more}; it has: {', '.join(functions) or 'none'}")
        found = of_function(functions[public[0]], names)
    return {**found, "description": found["description"] or ast.get_docstring(tree), "notes": notes}


try:
    print(json.dumps(draft(**json.load(sys.stdin))))
except (ValueError, SyntaxError, RecursionError, MemoryError) as why:
    print(json.dumps({"refused": str(why) or "it is nested too deeply, or too large"}))
