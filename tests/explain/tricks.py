import ctypes, errno, json, os, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.open.argtypes = [ctypes.c_void_p, ctypes.c_int]
home = os.getcwd()
own, out = home + "/main.py", {}
def plain(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
        return "done"
    except OSError as e:
        return errno.errorcode[e.errno]
def page(path):
    at = libc.mmap(None, 4096, 3, 0x22, -1, 0)
    ctypes.memmove(at, path.encode() + b"\0", len(path) + 1)
    libc.mprotect(at, 4096, 2)  # PROT_WRITE alone
    return "done" if libc.open(at, os.O_RDONLY) >= 0 else errno.errorcode[ctypes.get_errno()]
def inside(path):
    os.chdir("/proc/self/root")
    said = plain(path[1:])
    os.chdir(home)
    return said
def chain(path):
    n = len(os.listdir("/tmp/c"))
    # The kernel counts links twice where it looks anew (namei.c), and allows 40.
    for i in range(18):
        os.symlink(f"../c/l{n}-{i + 1}", f"/tmp/c/l{n}-{i}")
    os.symlink("../.." + path, f"/tmp/c/l{n}-18")
    return plain(f"/tmp/c/l{n}-0")
os.mkdir("/tmp/c")
root = os.open("/", os.O_PATH)
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
ways = {
    "plain": plain,
    "page": page,
    "long": lambda path: plain("/" + "./" * 1500 + path[1:]),
    "root": lambda path: plain("/proc/self/root" + path),
    "thread": lambda path: plain("/proc/thread-self/root" + path),
    "fd": lambda path: plain(f"/proc/self/fd/{root}{path}"),
    "cwd": inside,
    "chain": chain,
    "child": lambda path: plain(f"/proc/{child}/root{path}"),
}
for name, way in ways.items():
    out[name] = [way("/srv/none/" + name), way(own)]
paths, over, seen = [own.encode() + b"\0", b"/srv/none/flip\0"], [], set()
buffer = ctypes.create_string_buffer(4096)
def flip():
    while not over:
        for path in paths:
            ctypes.memmove(buffer, path, len(path))
threading.Thread(target=flip).start()
until = time.monotonic() + 1.5
while time.monotonic() < until or len(seen) < 2:
    got = libc.open(ctypes.addressof(buffer), os.O_RDONLY)
    seen.add(got >= 0)
    if got >= 0:
        os.close(got)
over.append(1)
out["flip"] = sorted(seen)
print(json.dumps(out))
