import ast, json, re, sys

# What the names that a script uses could do. A name that is made as it runs is not seen.
HINTS = {
    "runs text or data as code": r"builtins\.(eval|exec|compile)|code|pickle|marshal|shelve",
    "starts processes": r"subprocess|pty|multiprocessing|os\.(system|popen|fork\w*|(exec|spawn|posix_spawn)\w*)"
    r"|asyncio\.create_subprocess_\w+",
    "calls native code": r"_?ctypes|_?cffi",
    "reaches the network": r"_?socket|socketserver|ssl|http|urllib3?|ftplib|smtplib|poplib|imaplib|xmlrpc|requests"
    r"|httpx|aiohttp|websockets?|paramiko|asyncio\.(open_connection|start_server)",
    "loads modules by name": r"builtins\.__import__|importlib|runpy|imp|pkgutil|zipimport",
    "finds names as it runs": r"builtins$|builtins\.(globals|__builtins__)",
}
MOST_HINTS = 100


def uses(tree):
    imported, found = {}, []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            start = "." * getattr(node, "level", 0) + (getattr(node, "module", None) or "")
            for each in node.names:
                name = f"{start}.{each.name}" if start else each.name
                bound = each.asname or each.name.split(".")[0]
                imported[bound] = name if each.asname or start else bound
                found.append((node.lineno, name))
    for node in ast.walk(tree):
        line, parts = getattr(node, "lineno", 0), []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            start = imported.get(node.id, f"builtins.{node.id}")
            found.append((line, ".".join([start, *parts])))
    return found


def hints(tree):
    found = {}
    for line, name in uses(tree):
        for does, pattern in HINTS.items():
            if re.match(rf"({pattern})\b", name):
                found.setdefault((line, does), name.replace("builtins.", "", 1))
    rows = sorted((line, f"`{name}` {does}") for (line, does), name in found.items())
    about = "in this file, not in what it imports; to find nothing proves nothing: the confinement is what holds"
    rows = rows[:MOST_HINTS] + [(0, f"{len(rows)} found, {about}")]
    return [{"line": line, "message": message, "kind": "hint"} for line, message in rows]


def function(tree, name):
    # The last definition counts. A decorator may change what is called.
    found = [node for node in tree.body if getattr(node, "name", None) == name]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    if found and isinstance(found[-1], kinds) and not found[-1].decorator_list:
        return found[-1].args


def of_function(name, args, declared):
    if args.posonlyargs:
        return f"{name}() takes '{args.posonlyargs[0].arg}' by position; arguments come by name"
    taken = [arg.arg for arg in args.args + args.kwonlyargs]
    for parameter in declared:
        if parameter not in taken and not args.kwarg:
            return f"{name}() does not take '{parameter}', which the manifest declares"
    optional = args.args[len(args.args) - len(args.defaults):] if args.defaults else []
    optional += [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults) if default]
    optional = [arg.arg for arg in optional]
    for parameter in taken:
        if declared and parameter not in declared + optional:
            return f"{name}() needs '{parameter}', which the manifest does not declare"


def of_imports(tree, script):
    for node in tree.body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            if name.split(".")[0] in script["apart"] and "sys.path" not in script["text"]:
                fix = "put `sys.path.insert(0, …)` before the import, or the script into src/"
                message = f"`{name}` lies in src/, and the project itself is not installed: {fix}"
                return {"line": node.lineno, "message": message, "kind": "likely"}


def of_entry(tree, script):
    args = script["entry"] and function(tree, script["entry"])
    if args and script["parameters"] is not None:
        message = of_function(script["entry"], args, script["parameters"])
        return message and {"line": 0, "message": message}


def of_script(script):
    try:
        tree = ast.parse(script["text"])
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if script["awaits"] else 0
        compile(tree, "script", "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        return [{"line": error.lineno or 1, "message": f"SyntaxError: {error.msg}"}]
    except (ValueError, RecursionError, MemoryError) as error:
        return [{"line": 1, "message": f"{type(error).__name__}: {error}".rstrip(": ")}]
    fault = of_imports(tree, script) or of_entry(tree, script)
    return ([fault] if fault else []) + (hints(tree) if script["hints"] else [])


json.dump([of_script(script) for script in json.load(sys.stdin)], sys.stdout)
