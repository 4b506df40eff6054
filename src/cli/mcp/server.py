"""Starts the program of a package, so that neither uvx nor the network is needed. Written by `toolhost mcp import`."""

import sys

PACKAGE, PROGRAM, MODULE = SERVER_WORDS

# The folder of this file: what lies here is not part of the package.
del sys.path[0]
if MODULE:
    import runpy

    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
else:
    from importlib.metadata import distribution

    programs = {it.name: it for it in distribution(PACKAGE).entry_points if it.group == "console_scripts"}
    program = programs.get(PROGRAM or PACKAGE)
    if program is None and len(programs) == 1 and not PROGRAM:
        (program,) = programs.values()
    if program is None:
        sys.exit(f"the package {PACKAGE} has no program {PROGRAM or PACKAGE}")
    sys.argv[0] = program.name
    sys.exit(program.load()())
