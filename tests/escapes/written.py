"""Makes as much as `n` says, in the way that `what` says, below the working folder's `out`."""
import errno, json, os, sys, time
asked = json.load(sys.stdin)
os.chdir("out")
what, n = asked["what"], asked["n"]
block = os.urandom(1 << 20)
said = 0
if what == "bytes":
    with open("big", "wb") as f:
        for _ in range(n): f.write(block)
elif what == "many files":
    for i in range(n): open("f%d" % i, "w").close()
elif what == "folders":
    for i in range(n): os.mkdir("d%d" % i)
elif what == "deep":
    for i in range(n):
        os.mkdir("d" * 200); os.chdir("d" * 200)
    with open("big", "wb") as f: f.write(block)
    time.sleep(1)
elif what == "nameless":
    held = []
    for _ in range(n):
        f = open("big", "wb"); os.unlink("big"); f.write(block); f.flush(); held.append(f)
    time.sleep(2)
elif what == "second thread":
    import ctypes, threading
    def hold():
        time.sleep(0.2)
        held = []
        for _ in range(n):
            f = open("big", "wb"); os.unlink("big"); f.write(block); f.flush(); held.append(f)
        time.sleep(2); os.write(1, b"0"); os._exit(0)
    threading.Thread(target=hold).start(); ctypes.CDLL(None).syscall(60, 0)
elif what == "mapped":
    # Python's own mmap keeps a descriptor.
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    for _ in range(n):
        with open("big", "w+b") as f:
            os.unlink("big"); f.write(block); f.flush()
            if libc.mmap(None, ctypes.c_size_t(4096), 1, 1, f.fileno(), ctypes.c_long(0)) == ctypes.c_void_p(-1).value:
                said = os.strerror(ctypes.get_errno())
    time.sleep(2)
elif what == "sent":
    import array, socket
    ends = [socket.socketpair() for _ in range(1 + n // 100)]
    for i in range(n):
        with open("big", "wb") as f:
            os.unlink("big"); f.write(block * 8); f.flush()
            ends[i // 100][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [f.fileno()]))])
    time.sleep(2)
elif what == "wait":
    open("waits", "w").close()
    while os.path.exists("waits"): time.sleep(0.01)
elif what == "moving":
    os.makedirs("P0/Q0/R0")
    at = [os.open(p, os.O_RDONLY | os.O_DIRECTORY) for p in (".", "P0", "P0/Q0", "P0/Q0/R0")]
    for i in range(3600): os.mkdir("d%d" % i, dir_fd=at[i % 3])
    movers = []
    for folder, name in zip(at, "PQR"):
        pid = os.fork()
        if pid == 0:
            k = 0
            while True:
                os.rename(name + str(k), name + str(k + 1), src_dir_fd=folder, dst_dir_fd=folder); k += 1
        movers.append(pid)
    for i in range(n // 8):
        f = os.open("f%d" % i, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at[3])
        for _ in range(8): os.write(f, block)
        os.close(f)
    for pid in movers: os.kill(pid, 9)
elif what == "again and again":
    for _ in range(n):
        with open("same", "wb") as f: f.write(block)
elif what == "append":
    with open("old", "ab") as f: f.write(block * n)
elif what == "reserve":
    fd = os.open("held", os.O_RDWR | os.O_CREAT)
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(n << 20)): said = errno.errorcode[ctypes.get_errno()]
    os.posix_fallocate(fd, 0, 1 << 20)
print(json.dumps(said))
