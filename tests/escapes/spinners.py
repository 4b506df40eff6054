"""Keeps the CPUs busy from as many sessions as it is told, with the longest slices it can get. All begin at once, when
the last is there: else those that spin would keep the others from being made."""
import ctypes, json, os, sys, time

given = json.load(sys.stdin)
n, seconds = given["n"], given.get("s", 12)
libc = ctypes.CDLL(None)
r, w = os.pipe()
for _ in range(n):
    if os.fork() == 0:
        os.close(w)
        os.setsid()
        libc.syscall(314, 0, (ctypes.c_uint64 * 6)(48, 0, 0, 100000000, 0, 0), 0)
        os.read(r, 1)
        end = time.time() + seconds
        while time.time() < end:
            pass
        os._exit(0)
os.close(w)
print("ready", file=sys.stderr, flush=True)
time.sleep(seconds)
print(1)
