"""Holds memory which no process shows, in the way that is asked for, and prints how much of it was made."""
import json, os, sys, time


def name():
    """A thread, in a process with the name of a line in its status."""
    import ctypes, threading
    libc = ctypes.CDLL(None)
    libc.prctl(15, b"RssAnon:", 0, 0, 0)

    def hold():
        kept = []
        for _ in range(300):
            kept.append(bytearray(b"x") * (1 << 20))
        time.sleep(1)
        os.write(1, b"300")
        os._exit(0)

    threading.Thread(target=hold).start()
    time.sleep(0.05)
    libc.syscall(60, 0)


def texts():
    """A hundred processes with open texts of /proc, all of which one look sees within its second of CPU."""
    r, w = os.pipe()
    for _ in range(100):
        if os.fork() == 0:
            for _ in range(200):
                os.read(os.open("/proc/self/maps", 0), 1)
            os.write(w, b"x")
            time.sleep(9)
            os._exit(0)
    n = 0
    while n < 100:
        n += len(os.read(r, 100))
    time.sleep(6)
    ends(n)


def records(depth=900):
    """Open texts of /proc that hold a path of hundreds of KiB."""
    import mmap
    os.chdir("/tmp")
    for _ in range(depth):
        os.mkdir("\n" * 250)
        os.chdir("\n" * 250)
    f = os.open("f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(f, 4096)
    m = mmap.mmap(f, 4096)
    kept = []
    for _ in range(60):
        kept.append(os.open("/proc/self/maps", 0))
        while os.read(kept[-1], 1 << 22):
            pass
    time.sleep(1.5)
    ends(len(kept))


def deep():
    """The same, with a path of some MiB."""
    records(4000)


def full_pair():
    import socket
    a, b = socket.socketpair()
    a.setblocking(False)
    try:
        while True:
            a.send(b"x" * 60000)
    except BlockingIOError:
        return a, b


def swapped():
    """Descriptors become others, as many as before."""
    fds = [os.open("/dev/null", 0) for _ in range(960)]
    pairs = []
    time.sleep(0.3)
    for _ in range(480):
        os.close(fds.pop())
        os.close(fds.pop())
        pairs.append(full_pair())
    time.sleep(3)
    ends(len(pairs))


def buffers():
    pairs = [full_pair() for _ in range(400)]
    time.sleep(0.5)
    print(len(pairs))


def locks():
    """The kernel takes about 200 bytes for each."""
    import fcntl, struct, tempfile
    n, kept, folder = 0, [], tempfile.mkdtemp()
    for i in range(100):
        f = os.open(folder + "/%d" % i, os.O_RDWR | os.O_CREAT)
        kept.append(f)
        for at in range(1800, 0, -1):
            fcntl.fcntl(f, 6, struct.pack("hhqqi4x", at % 2, 0, at * 2, 1, 0))
            n += 1
    time.sleep(1.5)
    print(n)


def gone():
    """Memory that came and went between two looks."""
    import mmap
    hold = mmap.mmap(-1, 400 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)
    hold.close()
    print(1)


def ends(n):
    print(n, flush=True)
    os._exit(0)


globals()[json.load(sys.stdin)["do"]]()
