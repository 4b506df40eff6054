#!/usr/bin/env python3
"""benches/binaries.py OLD NEW [ROUNDS]: what calls cost by two builds of toolhost, by turns in one run, so that a busy machine slows both.

A WASI tool and a Python tool over MCP on standard input and output (50 and 3 calls a turn), and a whole command line. Prints the p50
of each, their ratio, and the processor time of a WASI call (the host and its worker), which depends little on what else runs.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
TURNS = [("text__stats-wasi", {"text": "to be or not"}, 50), ("data__csv-summary", {"file": "sales.csv"}, 3)]


class Host:
    def __init__(self, binary, root, state):
        self.command = [binary, "--root", str(root), "--audit-log", str(state / "audit.jsonl")]
        self.child = subprocess.Popen(self.command + ["serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.id, self.times, self.used = 0, {}, 0
        self.ask("initialize", CLIENT)
        self.child.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def ask(self, method, params):
        self.id += 1
        request = {"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}
        self.child.stdin.write(json.dumps(request).encode() + b"\n")
        self.child.stdin.flush()
        while True:
            answer = json.loads(self.child.stdout.readline())
            if answer.get("id") == self.id:
                return answer

    def call(self, tool, arguments):
        began = time.perf_counter()
        answer = self.ask("tools/call", {"name": tool, "arguments": arguments})
        self.times.setdefault(tool, []).append(time.perf_counter() - began)
        assert not answer["result"].get("isError"), answer

    def once(self):
        began = time.perf_counter()
        words = self.command + ["call", "text:stats-wasi", "text=hello"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.times.setdefault("command line", []).append(time.perf_counter() - began)

    def processor_time(self):
        return sum(ticks(pid) for pid in [self.child.pid, *descendants(self.child.pid)]) / os.sysconf("SC_CLK_TCK")


def ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def descendants(pid):
    found = []
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def main():
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        folder = pathlib.Path(folder)
        hosts = []
        for name in sys.argv[1:3]:
            state = folder / str(len(hosts))
            state.mkdir(mode=0o700)
            hosts.append(Host(name, REPOSITORY, state))
        for host in hosts:
            for tool, arguments, _ in TURNS:
                host.call(tool, arguments)
            host.once()
            host.times.clear()
        for _ in range(rounds):
            for host in hosts:
                for tool, arguments, calls in TURNS:
                    before = host.processor_time()
                    for _ in range(calls):
                        host.call(tool, arguments)
                    if calls > 10:
                        host.used += host.processor_time() - before
                host.once()
        old, new = hosts
        for what in old.times:
            pair = [statistics.median(host.times[what]) * 1e3 for host in hosts]
            print(f"{what}: {pair[0]:.3f} ms, {pair[1]:.3f} ms, ratio {pair[1] / pair[0]:.3f}")
        pair = [host.used / (rounds * TURNS[0][2]) * 1e6 for host in hosts]
        print(f"processor time of a WASI call: {pair[0]:.0f} µs, {pair[1]:.0f} µs, ratio {pair[1] / pair[0]:.3f}")
        for host in hosts:
            host.child.stdin.close()
            host.child.wait()


if __name__ == "__main__":
    main()
