"""Two hosts in containers, as docs/scale/compose.yaml starts them, share the requests of a RabbitMQ on loopback.

containers.py TOOLHOST BASE: as root, with podman and runc. BASE is an image of Debian 12, from which docs/scale/Dockerfile makes the
one that is run. The second run is as a pod of docs/scale/kubernetes.yaml has its files: a volume open to all with a folder of the
host's own in it, and a config file that is a link.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import uuid

import bed

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PODMAN = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
IMAGE = "localhost/toolhost-under-test"
# Podman's own limits are more than an ordinary root may raise them to.
ORDINARY = ["--user", "1000:1000", "--cap-drop", "ALL", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
CALLS = 30


def built(folder, toolhost, base):
    context = folder / "context"
    for name in ("tool-defs", "user_scripts", "sandbox-policies"):
        shutil.copytree(REPOSITORY / name, context / name)
    (context / "target/release").mkdir(parents=True)
    shutil.copy(toolhost, context / "target/release/toolhost")
    words = ["build", "--quiet", "--network", "host", "--build-arg", f"BASE={base}", "-f",
             str(REPOSITORY / "docs/scale/Dockerfile"), "-t", IMAGE, str(context)]
    subprocess.run(PODMAN + words, check=True)


def started(name, config, volumes, seccomp=True):
    """The flags of compose.yaml, but for the network: the broker is on loopback."""
    profile = ["--security-opt", f"seccomp={REPOSITORY}/docs/setup/docker-seccomp.json"] if seccomp else []
    words = ["run", "--detach", "--name", name, "--network", "host", *ORDINARY, "--security-opt", "no-new-privileges",
             *profile, "--security-opt", "unmask=ALL", "--read-only", "--tmpfs", "/tmp",
             "-e", "BROKER_PASSWORD=guest", "-v", f"{config}:/etc/toolhost:ro", *volumes, IMAGE]
    subprocess.run(PODMAN + words, check=True, stdout=subprocess.DEVNULL)
    return name


def inside(name, *words):
    done = subprocess.run([*PODMAN, "exec", name, *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def probe(name, path):
    """As compose.yaml and kubernetes.yaml ask."""
    return inside(name, "curl", "-fsS", "--unix-socket", "/var/lib/toolhost/http.sock", f"http://localhost/{path}")


def is_ready(name):
    return probe(name, "readyz")[0] == 0


def asked(client, calls):
    """Replies of so many calls to a Node tool, a WASI tool and a Python tool."""
    tools = [("text:stats-node", {"text": "to be"}), ("text:stats-wasi", {"text": "to be"}),
             ("data:csv-summary", {"file": "sales.csv"})]
    open_ones, said, number = set(), [], 0
    end = time.monotonic() + bed.PATIENCE
    while (open_ones or number < calls) and time.monotonic() < end:
        # As many as a busy machine ends within the tools' own time.
        while len(open_ones) < 4 and number < calls:
            tool, arguments = tools[number % len(tools)]
            ident = str(uuid.uuid4())
            open_ones.add(ident)
            client.send(ident, json.dumps({"config": json.dumps({"tool": tool}), "arguments": json.dumps(arguments)}))
            number += 1
        for ident, body in client.take(1):
            open_ones.discard(ident)
            said.append(json.loads(body))
    assert not open_ones, f"{len(open_ones)} calls without a reply"
    return said


def shared(client, names):
    """All are answered, by both."""
    for name in names:
        bed.wait_for(f"{name} is ready", lambda: is_ready(name))
    wrong = [reply for reply in asked(client, CALLS) if reply["error"]]
    assert not wrong, wrong[:3]
    for name in names:
        code, said = inside(name, "toolhost", "status", "--json")
        assert code == 0, said
        answered = json.loads(said)["brokers"][0]["answered"]
        assert answered > 0, said
        print(f"ok   {name} has answered {answered} calls, with every layer", flush=True)


def stopped(name):
    began = time.monotonic()
    subprocess.run([*PODMAN, "stop", "--time", "40", name], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def trial(folder, broker, client, started_names):
    config = folder / "config"
    config.mkdir()
    text = (REPOSITORY / "docs/scale/config.toml").read_text()
    text = text.replace("rabbitmq:5672", f"127.0.0.1:{broker.port}").replace('"toolhost"', '"guest"')
    (config / "config.toml").write_text(text)

    def start(name, *more, **options):
        started_names.append(name)
        return started(name, *more, **options)

    pair = [start(f"scale-{number}", config, ["-v", "/var/lib/toolhost"]) for number in (1, 2)]
    shared(client, pair)
    broker.stop()
    bed.wait_for("it is not ready without its broker", lambda: not is_ready(pair[0]))
    assert probe(pair[0], "healthz")[0] == 0
    broker.start()
    client.again()
    shared(client, pair)
    print("ok   not ready, and alive, while the broker is away; both serve again")
    for name in pair:
        print(f"ok   {name} stopped in {stopped(name):.1f} s")

    # As the volumes of a pod are.
    data = config / "..data"
    data.mkdir()
    (config / "config.toml").rename(data / "config.toml")
    (config / "config.toml").symlink_to("..data/config.toml")
    volume = folder / "volume"
    volume.mkdir()
    os.chown(volume, 0, 1000)
    volume.chmod(0o2777)
    make = ["run", "--rm", *ORDINARY, "--network", "none", "-v", f"{volume}:/state", "--entrypoint", "install", IMAGE]
    subprocess.run([*PODMAN, *make, "-d", "-m", "0700", "/state/host"], check=True)
    shared(client, [start("scale-pod", config, ["-v", f"{volume}/host:/var/lib/toolhost"])])

    stopped("scale-pod")
    control = start("scale-control", config, ["-v", "/var/lib/toolhost"], seccomp=False)
    bed.wait_for("the control is ready", lambda: is_ready(control))
    refused = [reply["error"]["message"] for reply in asked(client, 3) if reply["error"]]
    assert len(refused) == 3 and "CapabilityError" in refused[0], refused
    print("ok   control: without the profile nothing runs, and it is said")


def main():
    world = bed.World(sys.argv[1])
    built(world.folder, sys.argv[1], sys.argv[2])
    broker = bed.Rabbit(world.folder)
    names = []
    try:
        trial(world.folder, broker, broker.client("text"), names)
    except BaseException:
        for name in names:
            subprocess.run([*PODMAN, "logs", "--tail", "2", name])
        raise
    finally:
        for name in names:
            subprocess.run([*PODMAN, "rm", "--force", "--volumes", name], stdout=subprocess.DEVNULL)
        broker.end()
        world.end()


if __name__ == "__main__":
    main()
