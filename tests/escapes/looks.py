"""Makes what is long to look at, in the way that is asked for, and uses memory or writes meanwhile."""
import json, mmap, os, select, sys, time

asked = json.load(sys.stdin)
os.chdir("out")
MIB = 1 << 20


def write():
    """Writes 2 GiB, or what fits until it is ended."""
    block = b"x" * MIB
    with open("big", "wb", buffering=0) as f:
        for _ in range(2048):
            f.write(block)


def epolls():
    """Many epoll descriptors with hundreds of entries each, in many processes."""
    files = [os.eventfd(0) if hasattr(os, "eventfd") else os.dup(0) for _ in range(400)]
    for _ in range(asked["n"]):
        epoll = select.epoll()
        kept.append(epoll)
        for file in files:
            epoll.register(file, 1)
    for _ in range(asked["forks"]):
        if os.fork() == 0:
            time.sleep(asked["s"])
            os._exit(0)


def maps():
    """Processes with as many mappings as there may be, whose list is being read."""
    for at in range(30000):
        kept.append(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE, prot=1 + 2 * (at % 2)))
    for _ in range(40):
        if os.fork() == 0:
            until = time.time() + asked["s"]
            while time.time() < until:
                open("/proc/self/smaps").read()
            os._exit(0)


kept = []
globals()[asked["make"]]()
if asked["then"] == "write":
    write()
elif asked["then"] == "touch":
    done = os.open("touched", os.O_WRONLY | os.O_CREAT)
    for n in range(128):
        kept.append(b"x" * (16 * MIB))
        os.pwrite(done, str(n + 1).encode(), 0)
else:
    time.sleep(asked["s"])
print(1, flush=True)
os._exit(0)
