"""Calls over a broker beside the broker's own echo and beside the same call made directly, in turns within one run.

bench.py TOOLHOST [rabbitmq|pulsar …] [--rounds N] [--calls N] [--strict]
    Needs pika (RabbitMQ) and pulsar-client with TOOLHOST_TEST_PULSAR (Pulsar). --strict: a missed gate fails the run.

The echo is a consumer of the same queue shape in Python, with the library of the client. The gate is on calls for which nothing
starts (their argument is of another type than the tool's schema says: read, decided on, recorded, answered), over the echo. Beside
it stands what the broker adds to a WASI tool: the p50 of calls over it less the p50 of calls made directly.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import uuid

import bed

GATE = 1.3
OPEN = 32


def percentile(times, share):
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] * 1000


def once(client, ident, body, wanted=None):
    """One request and its reply, seconds. `wanted`: the type of its error."""
    began = time.perf_counter()
    client.send(ident, body)
    while True:
        for told, reply in client.take(bed.PATIENCE):
            if told == ident:
                taken = time.perf_counter() - began
                error = json.loads(reply)["error"]
                assert (error and error["message"].split(":")[0]) == wanted, reply
                return taken
        assert time.perf_counter() - began < bed.PATIENCE, "no reply"


def over(client, tool):
    ident = str(uuid.uuid4())
    return once(client, ident, bed.request(tool, {"nonce": ident}))


def refused(client):
    return once(client, str(uuid.uuid4()), bed.request("wasm", {"nonce": 1}), "ParameterValidationError")


def directly(connection, tool):
    began = time.perf_counter()
    status, said = connection.asked("POST", f"/v1/tools/bed:{tool}/calls", json.dumps({"nonce": str(uuid.uuid4())}))
    assert status == 200, said
    return time.perf_counter() - began


def a_second(client, tool, calls):
    """Calls a second with OPEN of them at once."""
    began, open_ones, sent = time.perf_counter(), set(), 0
    while open_ones or sent < calls:
        while len(open_ones) < OPEN and sent < calls:
            ident = str(uuid.uuid4())
            open_ones.add(ident)
            client.send(ident, bed.request(tool, {"nonce": ident}))
            sent += 1
        for ident, _ in client.take(1):
            open_ones.discard(ident)
        assert time.perf_counter() - began < 10 * bed.PATIENCE, "calls without a reply"
    return calls / (time.perf_counter() - began)


class Scene:
    """A broker, an echo, and a service for each number of hosts."""

    def __init__(self, kind, world):
        self.broker, self.kind = bed.BROKERS[kind](world.folder), kind
        words = [sys.executable, bed.__file__, "echo", kind, str(self.broker.port), "echo"]
        self.echoing = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.echoing.stdout.readline()
        self.hosts, self.world = [], world
        self.echo, self.client = self.broker.client("echo"), self.broker.client("bench")

    def widen(self, hosts):
        while len(self.hosts) < hosts:
            self.hosts.append(bed.Host(self.world, f"{self.kind}-{len(self.hosts)}", self.broker.url(), "bench"))
        # Each has its worker, and the broker knows all.
        a_second(self.client, "wasm", 50 * hosts)

    def latency(self, rounds):
        direct = bed.Direct(self.hosts[0].socket)
        times = {"echo": [], "refused": [], "direct": [], "broker": []}
        for _ in range(rounds):
            times["echo"].append(over(self.echo, "wasm"))
            times["refused"].append(refused(self.client))
            times["direct"].append(directly(direct, "wasm"))
            times["broker"].append(over(self.client, "wasm"))
        direct.close()
        return times

    def end(self):
        for one in (self.echo, self.client):
            one.end()
        for host in self.hosts:
            host.stop()
        self.echoing.kill()
        self.echoing.wait()
        self.broker.end()


def measured(kind, plan, world):
    scene = Scene(kind, world)
    held = True
    try:
        for hosts in (1, 2, 4):
            scene.widen(hosts)
            times = scene.latency(plan.rounds)
            middle = {what: statistics.median(of) * 1000 for what, of in times.items()}
            ratio = middle["refused"] / middle["echo"]
            held = held and ratio <= GATE
            print(f"{kind}, hosts: {hosts}")
            for what, of in times.items():
                print(f"  {what:7} p50 {middle[what]:7.2f} ms   p99 {percentile(of, 0.99):7.2f} ms")
            print(f"  a call / the echo, p50: {ratio:.2f}   (gate {GATE}: {'held' if ratio <= GATE else 'MISSED'})")
            print(f"  added to a WASI call: {middle['broker'] - middle['direct']:.2f} ms")
            wasm, python = a_second(scene.client, "wasm", plan.calls), a_second(scene.client, "python", plan.calls // 10)
            print(f"  calls a second, {OPEN} at once: {wasm:.0f} (WASI), {python:.1f} (Python)")
        print(f"  the echo itself: {a_second(scene.echo, 'wasm', plan.calls):.0f} a second", flush=True)
    finally:
        scene.end()
    return held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("toolhost", type=pathlib.Path)
    parser.add_argument("brokers", nargs="*", default=["rabbitmq"])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--strict", action="store_true")
    plan = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load {load:.0f}, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC")
    world = bed.World(plan.toolhost)
    try:
        held = [measured(kind, plan, world) for kind in plan.brokers]
    finally:
        world.end()
    sys.exit(0 if all(held) or not plan.strict else 1)


if __name__ == "__main__":
    main()
