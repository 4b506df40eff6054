"""srt (Anthropic's sandbox-runtime, from npm): reads denied below the folders of people and of /var/tmp, but for what is granted."""
import json
import os
import shlex
import shutil
import subprocess

# Its README has no limits of time, memory or processes.
OFFERS = set()


def version():
    return subprocess.run(["srt", "--version"], capture_output=True, text=True).stdout.strip() if shutil.which("srt") else None


def prepare(world):
    python = os.path.dirname(os.path.dirname(os.path.realpath(world.python)))
    settings = {
        "network": {"allowedDomains": [], "deniedDomains": []},
        # Reads are open unless denied, so all that could hold a secret is.
        "filesystem": {"denyRead": ["/home", "/root", "/tmp", "/dev/shm", world.base],
                       "allowRead": [world.script, world.out, world.granted, python], "allowWrite": [world.out], "denyWrite": []},
        "credentials": {"envVars": [{"name": "SECRET", "mode": "deny"}]},
    }
    world.write("state/srt.json", json.dumps(settings))


def command(world):
    script = [os.path.realpath(world.python), "-s", "-E", "-B", world.script]
    return ["srt", "--settings", world.path("state/srt.json"), "-c", " ".join(map(shlex.quote, script))]
