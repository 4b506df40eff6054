"""Many calls over a broker that two hosts share, while one host is killed and the broker is started anew.

soak.py TOOLHOST rabbitmq|pulsar [--calls N]
    As root on cgroup v1 groups are looked for as well. Needs what bench.py needs. Exit code 1 where a call was answered with
    another's answer, was lost without a word, was run twice though its tool writes, or where something was left behind.

Each call brings a nonce, which its answer must hold. Every fiftieth writes a file of its nonce's name, and would fail if it ran
twice; as many start Python; the rest are WebAssembly. The broker is stopped while both hosts run; one host is killed with -9 and comes back,
the other lives through all of it.
"""

import argparse
import collections
import ctypes
import json
import os
import pathlib
import sys
import time
import uuid

import bed

OPEN = 24
# Once nothing more is sent, and nothing came for so long, what is open is lost.
QUIET = 60
PR_SET_CHILD_SUBREAPER = 36


class Calls:
    """What was asked, and what became of it."""

    def __init__(self, client):
        self.client = client
        self.open, self.closed = {}, {}
        self.wrong, self.stray = [], 0
        self.sent, self.last = 0, time.monotonic()
        # Those that were open when something was killed or stopped.
        self.at_risk = set()

    def one(self):
        nonce = str(uuid.uuid4())
        self.sent += 1
        tool = "write" if self.sent % 50 == 0 else "python" if self.sent % 50 == 25 else "wasm"
        self.open[nonce] = (tool, time.monotonic())
        self.client.send(nonce, bed.request(tool, {"nonce": nonce}))

    def read(self):
        for nonce, body in self.client.take(0.2):
            self.last = time.monotonic()
            reply = json.loads(body)
            if nonce not in self.open:
                # The same answer again is promised to be harmless.
                self.stray += 1
                self.judge(nonce, reply)
                continue
            self.closed[nonce] = (self.open.pop(nonce)[0], self.judge(nonce, reply))

    def judge(self, nonce, reply):
        if reply["error"]:
            return reply["error"]["message"]
        if json.loads(reply["response"]) != {"nonce": nonce}:
            self.wrong.append((nonce, reply))
        return "answered"

    def until(self, sent):
        while self.sent < sent:
            # Places that lost calls took come back after a while.
            late = sum(time.monotonic() - began > QUIET for _, began in self.open.values())
            while self.sent < sent and len(self.open) - late < OPEN:
                self.one()
            self.read()

    def rest(self):
        self.last = time.monotonic()
        while self.open and time.monotonic() - self.last < QUIET:
            self.read()


def own_groups():
    """Puts this process into groups of its own (version 1), so that what hosts leave there is theirs."""
    made = []
    if os.geteuid() != 0:
        return made
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, names, below = line.split(":", 2)
        if set(names.split(",")) & {"memory", "pids", "cpu", "cpuacct"}:
            folder = pathlib.Path("/sys/fs/cgroup", names, below.lstrip("/"), f"soak-{os.getpid()}")
            folder.mkdir()
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            made.append(folder)
    return made


def processes():
    """Whatever hosts started and left comes to us."""
    listed = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid): pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in listed}


def left(world, hosts, groups, before):
    found = []
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    found += [f"process {pid} {name}" for pid, name in processes().items() if pid not in before]
    for host in hosts:
        for place in ("tmp", "begun"):
            found += [f"{file}" for file in (host.folder / place).glob("*")]
    found += [f"group {group}" for of in groups for group in (of / "toolhost").glob("*/")]
    return found


def accounted(calls, hosts):
    """Of the calls without an answer: which a host recorded, and which never reached one."""
    records, logs = collections.defaultdict(list), "".join(host.log() for host in hosts)
    for host in hosts:
        for record in host.records():
            records[record.get("transaction")].append(record)
    told = collections.Counter()
    for nonce in calls.open:
        if f"request {nonce} is left unanswered" in logs:
            told["lost: a host says so in its log"] += 1
        elif nonce in records:
            told[f"lost: a host has its record ({records[nonce][-1]['outcome']})"] += 1
        else:
            told["lost: it never reached a host"] += 1
    twice = [nonce for nonce, of in records.items()
             if len(of) > 1 and of[0]["tool"] == "bed:write" and sum(one["outcome"] == "success" for one in of) > 1]
    return told, twice


def soak(kind, plan, world):
    groups = own_groups()
    broker = bed.BROKERS[kind](world.folder)
    hosts = [bed.Host(world, f"host{number}", broker.url(), "soak") for number in range(2)]
    killed, other = hosts
    before, calls = set(processes()), Calls(broker.client("soak"))
    steps = plan.calls // 10
    calls.until(steps)
    calls.rest()
    print(f"{kind}: two hosts, one of them is killed", flush=True)

    def happens(what, at, does):
        calls.until(at)
        began, open_ones = time.monotonic(), len(calls.open)
        calls.at_risk |= set(calls.open)
        does()
        for host in hosts:
            if host.process.poll() is None:
                # Requests to a queue that no host has declared yet reach nobody.
                bed.wait_for("the hosts are back", lambda: broker.process.poll() is not None or host.is_ready())
        print(f"  after {at} calls {what}, {open_ones} open: {time.monotonic() - began:.1f} s", flush=True)

    happens("a host was killed", 3 * steps, killed.kill)
    happens("it was started again", 4 * steps, killed.start)
    calls.rest()
    descriptors = other.descriptors()
    happens("the broker was stopped", 6 * steps, broker.stop)
    happens("it was started again", 6 * steps, broker.start)
    happens("the host was killed again", 8 * steps, killed.kill)
    happens("it was started again", 8 * steps + OPEN, killed.start)
    calls.until(plan.calls)
    calls.rest()
    after = other.descriptors()
    calls.client.end()
    ended = [host.stop() for host in hosts]
    mine = set(before) - {host.process.pid for host in hosts}
    told, twice = accounted(calls, hosts)
    leftovers = left(world, hosts, groups, mine | {broker.process.pid})
    broker.end()
    return report(calls, told, twice, leftovers, (descriptors, after), ended, world)


def report(calls, told, twice, leftovers, descriptors, ended, world):
    outcomes = collections.Counter(how[:90] for _, how in calls.closed.values())
    for what, count in (outcomes + told).most_common():
        print(f"  {count:6} {what}")
    print(f"  {calls.sent:6} asked; {calls.stray} answers came twice; descriptors {descriptors[0]} → {descriptors[1]}; "
          f"hosts ended with {ended}")
    # A writer that was answered wrote its file, and one that never reached a host did not.
    answered = {nonce for nonce, (tool, how) in calls.closed.items() if tool == "write" and how == "answered"}
    faults = [f"answered with another's answer: {calls.wrong}"] if calls.wrong else []
    faults += [f"ran twice: {nonce}" for nonce in twice]
    faults += [f"answered and not written: {nonce}" for nonce in answered - world.written()]
    faults += [f"ran twice: {nonce}: {how}" for nonce, (_, how) in calls.closed.items() if "FileExistsError" in how]
    faults += [f"left behind: {what}" for what in leftovers]
    faults += [f"descriptors grew: {descriptors}"] if descriptors[1] > descriptors[0] + 16 else []
    faults += [f"lost at another time: {nonce}" for nonce in set(calls.open) - calls.at_risk]
    # As a shell says of SIGTERM.
    faults += [f"hosts ended with {ended}"] if set(ended) != {143} else []
    for fault in faults:
        print(f"  FAULT {fault}")
    print("  held" if not faults else "  NOT held")
    return not faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("toolhost", type=pathlib.Path)
    parser.add_argument("broker", choices=sorted(bed.BROKERS))
    parser.add_argument("--calls", type=int, default=10_000)
    plan = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(f"load {os.getloadavg()[0]:.0f}, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC", flush=True)
    world = bed.World(plan.toolhost)
    began = time.monotonic()
    held = soak(plan.broker, plan, world)
    print(f"  {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.0f}")
    if held:
        world.end()
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
