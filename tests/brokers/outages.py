"""How long after a broker's absence tools are served over it, and services called, without any host being started anew.

outages.py TOOLHOST rabbitmq|pulsar SECONDS…
    For each: the broker is stopped while a call runs, is away for so long, and started again. One host serves, another one calls it
    over the broker. Exit code 1 where a call hangs, or none is answered within PATIENCE.
"""

import json
import pathlib
import subprocess
import sys
import threading
import time

import bed

PATIENCE = 120
SLOW = "import sys, time\nread = sys.stdin.read()\ntime.sleep(3)\nprint(read)\n"


class Caller(bed.Host):
    """A host whose only tools are those of the other."""

    def __init__(self, world, url, service):
        self.folder = world.folder / "caller"
        root = self.folder / "root"
        (root / "sandbox-policies").mkdir(parents=True)
        (root / "tool-defs").mkdir()
        (self.folder / "tmp").mkdir()
        request, response = f"request:tg:{service}", f"response:tg:{service}"
        described = {f"tool-service/{service}": {"id": service, "request-queue": request, "response-queue": response,
                                                 "config-params": ["tool"]}}
        for name in ("wasm", "slow"):
            described[f"tool/{name}"] = {"type": "tool-service", "name": name, "description": "d", "service": service,
                                         "tool": f"bed:{name}", "arguments": []}
        (root / "tool-defs/far.tool-service.json").write_text(json.dumps(described))
        (root / "sandbox-policies/far.policy.toml").write_text(
            f'name = "far"\nwhy = "a test"\ntools = ["{service}:*"]\n[services]\ncall = [{{ service = "{service}", '
            f'request = ["{request}"], response = "{response}", why = "a test" }}]\n')
        (root / "sandbox-policies/callers.policy.toml").write_text(
            '[[caller]]\nname = "*"\nwhy = "a test"\ntools = ["*"]\n[breaker]\nfailures = 1_000_000\nwhy = "a test"\n')
        subprocess.run(["chmod", "-R", "go-w", str(root)], check=True)
        self.world = type("Rooted", (), {"toolhost": world.toolhost, "root": root})
        self.socket, self.service = str(self.folder / "http.sock"), service
        (self.folder / "config.toml").write_text(f'[[tool_services]]\nservices = ["*"]\nurl = "{url}"\n')
        (self.folder / "config.toml").chmod(0o600)
        self.start()

    def call(self, name):
        """What it ends with, and after how long."""
        began = time.monotonic()
        body = json.dumps({"config": {"timeoutMs": 30000}, "arguments": {"nonce": "n"}})
        _, said = self.asked("POST", f"/v1/tools/{self.service}:{name}/calls", body)
        error, took = json.loads(said).get("error"), time.monotonic() - began
        return (f"{error['type']}: {error['message']} {error.get('details') or ''}".strip() if error else "answered"), took


def outage(broker, caller, serving, seconds):
    bed.wait_for("it is served", lambda: caller.call("wasm")[0] == "answered", PATIENCE)
    running = []
    call = threading.Thread(target=lambda: running.append(caller.call("slow")), daemon=True)
    call.start()
    time.sleep(1)
    broker.stop()
    stopped = time.monotonic()
    call.join(60)
    said = running[0] if running else ("it hangs", 60)
    meanwhile = set()
    while time.monotonic() - stopped < seconds:
        meanwhile.add(caller.call("wasm")[0])
        time.sleep(min(5, max(0.0, seconds - (time.monotonic() - stopped))))
    broker.start()
    up = time.monotonic()
    bed.wait_for("it is served again", lambda: caller.call("wasm")[0] == "answered", PATIENCE)
    both = time.monotonic() - up
    told = json.loads(serving.asked("GET", "/v1/status")[1])["brokers"][0]
    print(f"away {up - stopped:.0f} s: the call under way after {said[1]:.1f} s: {said[0]}\n  meanwhile: {sorted(meanwhile)}\n"
          f"  answered again {both:.1f} s after the broker was up; served: {told}", flush=True)
    return running


def main(toolhost, kind, *seconds):
    world = bed.World(toolhost)
    slow = world.root / "user_scripts/slow"
    slow.mkdir()
    (slow / "main.py").write_text(SLOW)
    (slow / "slow.tool.json").write_text(json.dumps({
        "toolId": "bed:slow", "displayName": "slow", "description": "Slow.", "version": "1.0.0",
        "parameters": {"type": "object", "properties": {"nonce": {"type": "string"}}},
        "handler": {"type": "external-script", "language": "python", "scriptPath": "slow/main.py"}}))
    broker = bed.BROKERS[kind](world.folder)
    serving = bed.Host(world, "serving", broker.url(), "outage", tools=[*bed.TOOLS, "slow"])
    caller = Caller(world, broker.url(), "outage")
    try:
        good = [outage(broker, caller, serving, int(each)) for each in seconds]
    finally:
        caller.kill()
        serving.kill()
        broker.end()
    world.end()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), *sys.argv[2:]))
