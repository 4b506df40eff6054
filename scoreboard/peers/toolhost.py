"""toolhost: a tool in a root of its own, with a policy that allows what the probes may have."""
import json
import os
import shutil
import subprocess

OFFERS = {"time", "memory", "processes"}
settings = {}


def program():
    return settings.get("program") or os.environ.get("TOOLHOST") or shutil.which("toolhost")


def version():
    return subprocess.run([program(), "--version"], capture_output=True, text=True).stdout.strip() if program() else None


def prepare(world):
    grants = {"fileAccess": {"allowRead": ["./**", world.granted + "/**"], "allowWrite": ["out/**"]}}
    world.write("user_scripts/files/files.tool.json", json.dumps({
        "toolId": "attacks:files", "version": "1.0.0", "displayName": "Probes", "description": "Tries to escape.",
        "handler": {"type": "external-script", "language": "python", "scriptPath": "files/main.py"},
        "securityContext": grants, "execution": {"timeoutMs": world.seconds * 1000},
        "limits": {"memoryBytes": world.memory, "processes": world.processes},
    }))
    why = "the probes may have this, and try the rest"
    grant = '{ path = "%%s", why = "%s" }' % why
    world.write("sandbox-policies/attacks.policy.toml", "\n".join([
        'name = "attacks"', 'why = "%s"' % why, 'tools = ["attacks:files"]', "[files]",
        "read = [%s, %s]" % (grant % "./**", grant % (world.granted + "/**")), "write = [%s]" % (grant % "./out/**"),
        "[runtimes]", "python = " + grant % world.python,
    ]) + "\n")
    os.makedirs(world.path("tool-defs"), exist_ok=True)


def command(world):
    return [program(), "--root", world.base, "--audit-log", world.path("state/audit.jsonl"),
            "call", "attacks:files", "--json", "--input", "-"]
