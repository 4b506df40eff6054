"""300 MiB, shared with twenty children, which read all of it or, told so, write it."""
import json, mmap, os, sys, time

write = json.load(sys.stdin)["n"]
hold = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
hold.madvise(15)
block = b"x" * (1 << 20)
for at in range(0, len(hold), 1 << 20):
    hold[at:at + (1 << 20)] = block
r, w = os.pipe()
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os.close(w)
        os.read(r, 1)
        for at in range(0, len(hold), 1 << 20):
            if write:
                hold[at:at + (1 << 20)] = block
            else:
                hold[at:at + 4096]
        time.sleep(write)
        os._exit(0)
    children.append(pid)
os.close(w)
for pid in children:
    os.waitpid(pid, 0)
print(json.dumps(len(children)))
