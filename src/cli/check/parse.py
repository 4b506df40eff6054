import ast, json, sys


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
                return {"line": node.lineno, "message": message, "is_likely": True}


def of_script(script):
    try:
        tree = ast.parse(script["text"])
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if script["awaits"] else 0
        compile(tree, "script", "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        return {"line": error.lineno or 1, "message": f"SyntaxError: {error.msg}"}
    except (ValueError, RecursionError, MemoryError) as error:
        return {"line": 1, "message": f"{type(error).__name__}: {error}".rstrip(": ")}
    if apart := of_imports(tree, script):
        return apart
    args = script["entry"] and function(tree, script["entry"])
    if args and script["parameters"] is not None:
        message = of_function(script["entry"], args, script["parameters"])
        return message and {"line": 0, "message": message}


json.dump([of_script(script) for script in json.load(sys.stdin)], sys.stdout)
