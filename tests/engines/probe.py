"""The probe of tests/engines as a script: what probe.c does, and a component of sockets, with the same words.

In: {"do": what, "path": ..., "to": ..., "n": number, "exit": code}. Out: {"did": word}, "ok" or an error's name.
"""
import errno
import json
import os
import socket
import sys
import time

KEPT = []


def pour(fd, n):
    while n > 0:
        n -= os.write(fd, b"x" * min(n, 32768))


def fill(path, n):
    pour(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), n)


def spin(ms):
    end = time.monotonic() + ms / 1000
    while time.monotonic() < end:
        pass


def process():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def connect(name, port):
    with socket.create_connection((name, port), 8) as s:
        s.sendall(b"x")
        return "ok" if s.recv(1) else "closed"


def listen(port):
    with socket.socket() as s:
        s.bind(("0.0.0.0", port))
        s.listen()


def datagram(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", (address, port))


def attempt(what, path, to, n):
    if what == "read":
        with open(path, "rb") as f:
            f.read(64)
    elif what == "list":
        os.listdir(path)
    elif what == "write":
        with open(path, "w") as f:
            f.write("new\n")
    elif what == "fill":
        fill(path, n)
    elif what == "open":
        KEPT.extend(os.open(path, os.O_RDONLY) for _ in range(n))
    elif what in ("unlink", "mkdir"):
        getattr(os, what)(path)
    elif what in ("rename", "link"):
        getattr(os, what)(path, to)
    elif what == "symlink":
        os.symlink(to, path)
    elif what == "touch":
        os.utime(path, (1, 1))
    elif what == "connect":
        return connect(path, n)
    elif what == "listen":
        listen(n)
    elif what == "datagram":
        datagram(path, n)
    elif what == "process":
        process()
    elif what == "spin":
        spin(n)
    elif what == "sleep":
        time.sleep(n / 1000)
    elif what == "memory":
        KEPT.append(bytearray(b"x") * n)
        # A moment, for those who look at intervals.
        time.sleep(0.1)
    elif what == "crash":
        os.abort()
    elif what == "log":
        pour(2, n)
    elif what == "variable":
        return os.environ.get(path, "ENOENT")
    elif what != "nothing":
        return "ENOSYS"
    return "ok"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    what, path, to, n = asked["do"], asked.get("path", ""), asked.get("to", ""), asked.get("n", 0)
    if what == "print":
        sys.stdout.write(path)
    elif what == "flood":
        os.write(1, b'"')
        pour(1, n)
        os.write(1, b'"')
    else:
        try:
            did = attempt(what, path, to, n)
        except socket.gaierror:
            did = "no name"
        except OSError as e:
            did = errno.errorcode.get(e.errno, "another error")
        print(json.dumps({"did": did}))
        if did == "ENOSPC":  # a full scratch is no answer to be content with
            sys.exit(1)
    sys.exit(asked.get("exit", 0))
