"""Probes: each tries one thing and says in one word how it went ("ok", an errno name, "signal:SIGSYS").

Runs twice: inside a call (the real question), and outside, where it must succeed (the control).
In: {"probes": [{"name", "do", "args"}]} on stdin. Out: {name: word}. Each probe runs in a child of its own.
`shows`: what a probe read stands behind its word. Of a probe, `began`: a file to make first; `seconds`: how long it may take.
"""
import ctypes
import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.shmat.restype = ctypes.c_void_p
# What the probe of this process read.
SHOWN = []


def word(error):
    return errno.errorcode.get(error.errno, str(error.errno))


def call(number, *args):
    """syscall(2); the result, or OSError."""
    ctypes.set_errno(0)
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    answer = LIBC.syscall(ctypes.c_long(number), *given)
    if answer == -1:
        raise OSError(ctypes.get_errno(), "")
    return answer


# Files.

def read(path):
    with open(path, "rb") as f:
        SHOWN.append(f.read(4096))


def listing(path):
    return "ok:" + ",".join(sorted(os.listdir(path)))


def enter(path):
    os.listdir(path)


def from_own_folder(relative):
    read(os.path.join(os.path.dirname(os.path.abspath(__file__)), relative))


def read_through_cwd(relative):
    read("/proc/self/cwd/" + relative)


def exists_errno(path):
    os.stat(path)


def write(path):
    """Writes the first byte again: a change to everybody who looks, and nothing is broken by it."""
    with open(path, "r+b", 0) as f:
        first = f.read(1) if os.path.isfile(path) else b"X"
        f.seek(0) if os.path.isfile(path) else None
        f.write(first or b"X")


def write_pipe(path):
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, b"escaped")


def open_for_writing(path):
    os.close(os.open(path, os.O_WRONLY))


def create(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def create_and_keep(path):
    with open(path, "x") as f:
        f.write("kept")


def truncate(path):
    os.truncate(path, 0)


def open_truncating(path):
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))


def reopen_for_writing(path):
    fd = os.open(path, os.O_RDONLY)
    os.close(os.open("/proc/self/fd/%d" % fd, os.O_RDWR))


def open_nonblocking(path):
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def unlink(path):
    os.unlink(path)


def rmdir(path):
    os.rmdir(path)


def rename(old, new):
    os.rename(old, new)


def exchange(old, new):
    call(316, -100, old.encode(), -100, new.encode(), 2)


def link(old, new):
    os.link(old, new)


def link_a_descriptor(old, new):
    fd = os.open(old, os.O_RDONLY)
    call(265, -100, b"/proc/self/fd/%d" % fd, -100, new.encode(), 0x400)


def link_an_unnamed_file(folder, new):
    fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    call(265, -100, b"/proc/self/fd/%d" % fd, -100, new.encode(), 0x400)


def symlink(target, path):
    os.symlink(target, path)


def fifo(path):
    os.mkfifo(path)


def node(path, kind, major, minor):
    os.mknod(path, {"c": 0o20000, "b": 0o60000, "s": 0o140000}[kind] | 0o600, os.makedev(major, minor))


def whiteout(path):
    """renameat2(2) with RENAME_WHITEOUT leaves a device node behind."""
    with open(path, "w") as file:
        file.write("x")
    call(316, -100, path.encode(), -100, path.encode() + b".moved", 4)


def rename_without_replacing(path):
    """RENAME_NOREPLACE: the same call, without a node."""
    with open(path, "w") as file:
        file.write("x")
    call(316, -100, path.encode(), -100, path.encode() + b".moved", 1)


def chmod(path, mode):
    os.chmod(path, int(mode, 8))


def fchmod(path, mode):
    fd = os.open(path, os.O_RDONLY)
    os.fchmod(fd, int(mode, 8))


def fchmodat2(path, mode):
    call(452, -100, path.encode(), int(mode, 8), 0)


def make_with_mode(path, mode):
    os.umask(0)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, int(mode, 8)))


def mkdir_with_mode(path, mode):
    call(83, path.encode(), int(mode, 8))


def openat2_creating(path, mode):
    how = (ctypes.c_uint64 * 3)(os.O_WRONLY | os.O_CREAT | os.O_EXCL, int(mode, 8), 0)
    call(437, -100, path.encode(), ctypes.byref(how), 24)


def own(path):
    os.chown(path, os.getuid(), os.getgid())


def touch(path):
    os.utime(path, (1, 1))


def touch_now(path):
    os.utime(path)


def label(path):
    os.setxattr(path, "user.toolhost", b"x")


def unlabel(path):
    os.removexattr(path, "user.toolhost")


def file_capability(path):
    os.setxattr(path, "security.capability", bytes.fromhex("0100000200000020000000000000000000000000"))


def lease(path):
    fd = os.open(path, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def watch_folder(path):
    fd = os.open(path, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_ACCESS)


def advisory_lock(path):
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def run_copy(program, path):
    with open(program, "rb") as source, open(path, "wb") as copy:
        copy.write(source.read())
    os.chmod(path, 0o755)
    os.execv(path, [path])


def map_executable(path):
    with open(path, "wb") as f:
        f.write(b"\xc3" * 4096)
    fd = os.open(path, os.O_RDONLY)
    mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)


def overwrite_interpreter():
    os.close(os.open("/proc/self/exe", os.O_WRONLY))


def runs_set_id():
    """Set-id programs in view: do they raise us?"""
    before = os.geteuid()
    for program in ("/usr/bin/su", "/bin/su", "/usr/bin/mount", "/bin/mount"):
        if os.path.exists(program):
            pid = os.fork()
            if pid == 0:
                null = os.open("/dev/null", os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                os.execv(program, [program, "-V"])
            time.sleep(0.05)
            os.waitpid(pid, 0)
    return "ok:raised" if os.geteuid() != before else "ok:same"


# System calls by number, with numbers and byte strings as arguments.

def syscall(number, *args):
    call(number, *[a.encode() if isinstance(a, str) else a for a in args])


def clone_with(flags):
    if call(56, flags | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def clone3_plain():
    args = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD)
    if call(435, ctypes.byref(args), 88) == 0:
        os._exit(0)


def machine_code(code):
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code))
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()


def int80_getpid():
    answer = machine_code("b814000000cd80c3")
    if answer < 0:
        raise OSError(-answer, "")


def x32_getpid():
    call(0x40000000 + 39)


def io_uring():
    params = ctypes.create_string_buffer(120)
    call(425, 4, params)


def userfault():
    call(323, 1)


def perf():
    attr = ctypes.create_string_buffer(b"\x01\0\0\0\x80\0\0\0" + b"\0" * 120)  # software, cpu clock
    ctypes.memmove(ctypes.addressof(attr) + 40, (0x60).to_bytes(8, "little"), 8)  # no kernel, no hypervisor
    call(298, attr, 0, -1, -1, 0)


def handle_of(path):
    handle = ctypes.create_string_buffer(136)
    ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
    mount = ctypes.c_int()
    call(303, -100, path.encode(), handle, ctypes.byref(mount), 0)


def open_by_handle():
    handle = ctypes.create_string_buffer((8).to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(8, "little"))
    call(304, os.open("/usr", os.O_RDONLY), handle, os.O_RDONLY)


def read_memory_of(pid):
    target = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(target), 8)
    remote = (ctypes.c_uint64 * 2)(ctypes.addressof(target), 8)
    call(310, pid or os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


def trace_me():
    call(101, 0, 0, 0, 0)


def seccomp_off():
    """A second filter may only narrow: allow-all on top changes nothing."""
    filter_of_its_own()
    call(272, 0x20000)  # unshare(CLONE_NEWNS)


def landlock_off():
    """A further ruleset may only narrow."""
    attr = (ctypes.c_uint64 * 1)(1 << 12)
    fd = call(444, ctypes.byref(attr), 8, 0)
    call(446, fd, 0)


class Insn(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class Prog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


ALLOW_ALL = (Insn * 1)(Insn(6, 0, 0, 0x7FFF0000))


def filter_of_its_own():
    call(157, 38, 1, 0, 0, 0)
    call(317, 1, 0, ctypes.byref(Prog(1, ctypes.addressof(ALLOW_ALL))))


def filter_by_prctl():
    call(157, 38, 1, 0, 0, 0)
    call(157, 22, 2, ctypes.byref(Prog(1, ctypes.addressof(ALLOW_ALL))), 0, 0)


def filter_on_a_pair(option):
    """SO_ATTACH_FILTER on a socket that it may have."""
    ours, _ = socket.socketpair()
    program = Prog(1, ctypes.addressof(ALLOW_ALL))
    call(54, ours.fileno(), 1, option, ctypes.byref(program), ctypes.sizeof(program))


def file_request(path, number):
    """ioctl(2) on a file that may be read."""
    call(16, os.open(path, os.O_RDONLY), number, ctypes.create_string_buffer(256))


def file_command(path, number, value=None):
    """fcntl(2) on a file that may be read."""
    given = value if value is not None else ctypes.create_string_buffer((2).to_bytes(8, "little"))
    call(72, os.open(path, os.O_RDONLY), number, given)


def lock_of_the_open_file(path):
    lock = ctypes.create_string_buffer(bytes(32))  # F_RDLCK, the whole file
    call(72, os.open(path, os.O_RDONLY), 37, lock)


def sync_file_system(path):
    call(306, os.open(path, os.O_RDONLY))


def words_of(path):
    """A page of a file that others may have mapped, as it may be had here."""
    with open(path, "rb") as f:
        LIBC.mmap.restype = ctypes.c_void_p
        return LIBC.mmap(None, ctypes.c_size_t(4096), 1, 1, f.fileno(), ctypes.c_long(0))


def futex_on(path, operation):
    word, own = words_of(path), (ctypes.c_uint32 * 1024)()
    value = ctypes.cast(word, ctypes.POINTER(ctypes.c_uint32))[0] if operation == 4 else 1
    call(202, ctypes.c_void_p(word), operation, 1, 1, ctypes.byref(own), value)


def futex_of_its_own(operation):
    words = (ctypes.c_uint32 * 1024)()
    call(202, ctypes.byref(words), operation, 1, 1, ctypes.byref(words, 64), 0)


def schedule(number, runtime):
    attr = (ctypes.c_uint64 * 6)(48, 0, 0, runtime, 0, 0)
    call(number, 0, ctypes.byref(attr), 0)


def scheduler(policy):
    os.sched_setscheduler(0, policy, os.sched_param(0))


def splice_file(path):
    _, end = os.pipe()
    call(275, os.open(path, os.O_RDONLY), 0, end, 0, 1, 0)


def map_with(flags):
    mmap.mmap(-1, 2 << 20, flags | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def advise(number):
    mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(number)


def no_core():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return "ok:%d" % resource.getrlimit(resource.RLIMIT_CORE)[1]


def own_text(name):
    with open("/proc/self/" + name) as f:
        return "ok:" + f.read().strip()


def set_own_text(name, text):
    with open("/proc/self/" + name, "w") as f:
        f.write(text)


def niceness():
    return "ok:%d" % os.getpriority(os.PRIO_PROCESS, 0)


def nicer():
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)


# Sockets.

def sock(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()


def set_link():
    # RTM_NEWLINK of lo, which changes nothing of it.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(struct.pack("=IHHIIBxHiII", 32, 16, 5, 1, 0, 0, 0, 1, 0, 0))
        answer = struct.unpack("=i", s.recv(4096)[16:20])[0]
    if answer < 0:
        raise OSError(-answer, "")


def connect(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(3)
        s.connect((host, port))
        s.sendall(b"escaped")


def datagram(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"escaped", (host, port))


def connect_unix(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.connect("\0" + name[1:] if name.startswith("@") else name)
        s.sendall(b"escaped")


def pair_sends_to(name):
    """A socketpair end is a socket too: does it send to a named one?"""
    a, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.sendto(b"escaped", "\0" + name[1:] if name.startswith("@") else name)


def pair_connects_to(name):
    a, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.connect("\0" + name[1:] if name.startswith("@") else name)
    a.send(b"escaped")


def pair_binds(name):
    a, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.bind("\0" + name[1:] if name.startswith("@") else name)


def pair():
    a, b = socket.socketpair()
    a.sendall(b"x")
    assert b.recv(1) == b"x"


def listen(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind(("0.0.0.0", port))
        s.listen()


def resolve(name):
    try:
        socket.getaddrinfo(name, 80)
    except socket.gaierror as e:
        return {-2: "EAI_NONAME", -3: "EAI_AGAIN", -4: "EAI_FAIL", -11: "EAI_SYSTEM"}.get(e.errno, str(e.errno))


def urlopen(url):
    import urllib.error
    import urllib.request
    try:
        urllib.request.urlopen(url, timeout=3).read()
    except urllib.error.HTTPError:
        return "ok"
    except urllib.error.URLError as e:
        raise e.reason if isinstance(e.reason, OSError) and e.reason.errno else e


# Processes.

def kill(pid, number):
    os.kill(pid, number)


def kill_everybody():
    """Every process in sight is signalled. This harness is deaf to that; a child made for it is not."""
    victim = os.fork()
    if victim == 0:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        time.sleep(30)
        os._exit(0)
    time.sleep(0.2)
    os.kill(-1, signal.SIGUSR2)
    _, status = os.waitpid(victim, 0)
    return "ok:killed" if os.WIFSIGNALED(status) else "ok:alive"


def pidfd(pid):
    call(434, pid, 0)


def limit_of(pid):
    old = (ctypes.c_uint64 * 2)()
    call(302, pid, 7, 0, ctypes.byref(old))


def priority(pid):
    os.setpriority(os.PRIO_PROCESS, pid, 10)


def affinity(pid):
    os.sched_setaffinity(pid, os.sched_getaffinity(0))


def processes():
    """Every process in sight runs this script, but the init."""
    strange = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                line = f.read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            continue
        if __file__.encode() not in line and int(pid) != 1:
            strange.append(pid)
    return "ok:own" if not strange else "ok:strange"


def memory_of(pid):
    os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR))


def arguments_in_sight():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                SHOWN.append(f.read(4096))
        except OSError:  # it ended just now, or is hidden
            pass


def lower_limit_of(pid):
    """RLIMIT_NOFILE of a process, both its limits one lower."""
    old = (ctypes.c_uint64 * 2)()
    call(302, pid, 7, 0, ctypes.byref(old))
    new = (ctypes.c_uint64 * 2)(old[0] - 1, old[1] - 1)
    call(302, pid, 7, ctypes.byref(new), 0)


def one_cpu(pid):
    os.sched_setaffinity(pid, [min(os.sched_getaffinity(pid))])


def stays(started):
    """A process of a session of its own, whose parent ends, and that holds nothing open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(64):
                try:
                    os.close(number)
                except OSError:
                    pass
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.close(os.open(started, os.O_WRONLY | os.O_CREAT, 0o644))
            time.sleep(60)
        os._exit(0)
    for _ in range(100):
        if os.path.exists(started):
            return
        time.sleep(0.02)
    return "unseen"


def stays_and_waits(started):
    stays(started)
    time.sleep(30)


def sleeps(seconds):
    time.sleep(seconds)


# More than a limit lets it have, all at once. Who has it says its word backwards: it did not come in so.

def reached(goal):
    time.sleep(1)
    return "ok:" + goal[::-1]


def fill_memory(processes, mib, goal):
    held, filled = os.pipe(), []
    for _ in range(processes - 1):
        filled.append(os.fork())
        if filled[-1] == 0:
            own = b"x" * (mib << 20)
            os.write(held[1], b"x")
            time.sleep(20)
            os._exit(0 if own else 1)
    own = b"x" * (mib << 20)
    for _ in filled:
        os.read(held[0], 1)
    answer = reached(goal) if own else None
    for pid in filled:
        os.kill(pid, signal.SIGKILL)
    return answer


def fill_file(path, mib, goal):
    with open(path, "wb", 0) as f:
        os.unlink(path)
        for _ in range(mib):
            f.write(b"x" * (1 << 20))
        return reached(goal)


def many_processes(number, goal):
    pids = []
    try:
        for _ in range(number):
            pids.append(os.fork())
            if pids[-1] == 0:
                time.sleep(20)
                os._exit(0)
        return reached(goal)
    finally:
        if 0 not in pids:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def many_threads(number, goal):
    import threading
    threading.stack_size(1 << 16)
    try:
        for _ in range(number):
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
    except RuntimeError:  # it says no errno
        return "EAGAIN"
    return reached(goal)


# What this process is.

def status(field):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return "ok:" + line.split(":", 1)[1].strip()


def environment_holds(secret):
    """As the kernel copied it when this program was executed."""
    with open("/proc/self/environ", "rb") as f:
        return "ok:seen" if secret.encode() in f.read() else "ok:clean"


def init():
    """Inside, this harness is the init's first child. Outside it stands for what its like can do to one another."""
    return 1 if os.getppid() == 2 else os.getppid()


def of_init(name, flags):
    os.close(os.open("/proc/%d/%s" % (init(), name), flags))


def link_of_init(name):
    os.readlink("/proc/%d/%s" % (init(), name))


def descriptors_of_init():
    os.listdir("/proc/%d/fd" % init())


def zombies():
    """An orphan of a parent that waits for nobody stays as a zombie; one of the init's is waited for."""
    subreaper = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
    LIBC.prctl(subreaper, 1, 0, 0, 0)
    mine = orphan()
    seen = ends_as(mine, "Z")
    os.waitpid(mine, 0)
    if not seen:
        return "ok:unseen"
    LIBC.prctl(subreaper, 0, 0, 0, 0)
    return "ok:none" if ends_as(orphan(), None) else "ok:some"


def orphan():
    """The pid of a process whose parent has ended, and that ends soon after."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        grandchild = os.fork()
        if grandchild == 0:
            os.close(write)
            time.sleep(0.05)
        else:
            os.write(write, b"%d" % grandchild)
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        return int(told.read())


def ends_as(pid, state):
    """Whether the process comes to this state within two seconds; `None`: it is there no more."""
    for _ in range(100):
        try:
            with open("/proc/%d/stat" % pid) as stat:
                now = stat.read().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            now = None
        if now == state:
            return True
        time.sleep(0.02)
    return False


def environment_names():
    names = [n for n in os.environ if not n.endswith("_NUM_THREADS") and n not in ("LC_CTYPE", "VECLIB_MAXIMUM_THREADS")]
    return "ok:" + ",".join(sorted(names))


def variable(name):
    return "ok:" + str(os.environ.get(name))


def auxv_holds(secret):
    """The stack above argv holds environment and arguments as the kernel copied them."""
    with open("/proc/self/maps") as maps:
        low, high = next(l for l in maps if "[stack]" in l).split()[0].split("-")
    with open("/proc/self/mem", "rb") as memory:
        memory.seek(int(low, 16))
        stack = memory.read(int(high, 16) - int(low, 16))
    # Built from halves, so that this process's own copy of the word is not what is found.
    return "ok:seen" if stack[-65536:].find(secret.encode()) >= 0 else "ok:clean"


def descriptors():
    """Open descriptors of this harness, without the pipes it made."""
    place = "/proc/%d/fd" % os.getppid()
    opened = {}
    for n in os.listdir(place):
        try:
            opened[int(n)] = os.readlink("%s/%s" % (place, n))
        except FileNotFoundError:
            # The harness closed its end of a probe's pipe meanwhile; what leaks stays open.
            pass
    return "ok:" + ",".join(str(n) for n in sorted(opened) if n <= 2 or opened[n] not in PIPES)


def descriptor(number):
    os.fstat(number)


def kind_of_stdio():
    kinds = [os.readlink("/proc/%d/fd/%d" % (os.getppid(), n)).split(":")[0] for n in (0, 1, 2)]
    return "ok:" + ",".join(kinds)


def terminal():
    os.close(os.open("/dev/tty", os.O_RDWR))


def push_character(fd):
    fcntl.ioctl(fd, 0x5412, b"x")


def linux_terminal(fd):
    fcntl.ioctl(fd, 0x541C, b"\x0c")


def session():
    tool = os.getppid()
    return "ok:leader" if os.getsid(tool) == os.getpgid(tool) == tool == 2 else "ok:other"


def host_name_is(name):
    return "ok:seen" if os.uname().nodename == name else "ok:hidden"


def cgroup_path():
    with open("/proc/self/cgroup") as f:
        return "ok:root" if all(line.rstrip().endswith(":/") for line in f) else "ok:deeper"


def mount_count_below(prefix):
    with open("/proc/self/mountinfo") as f:
        points = [line.split()[4] for line in f]
    return "ok:%d" % sum(p.startswith(prefix) for p in points)


def namespace_differs(kind, outside):
    return "ok:own" if os.readlink("/proc/self/ns/" + kind) != outside else "ok:shared"


def set_host_name():
    call(170, b"taken", 5)


def become(uid):
    os.setuid(uid)


def groups():
    return "ok:%d" % len(os.getgroups())


def map_uid():
    with open("/proc/self/uid_map", "w") as f:
        f.write("0 0 1")


def read_segment(number):
    """Shared memory that somebody else made."""
    ctypes.set_errno(0)
    place = LIBC.shmat(number, None, 0o10000)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "")
    SHOWN.append(ctypes.string_at(place, 64))


def read_key(name):
    text = ctypes.create_string_buffer(64)
    number = call(249, b"user", name.encode(), 0, 0)
    call(250, 11, number, text, 64)
    SHOWN.append(text.raw)


def read_descriptor(number):
    SHOWN.append(os.pread(number, 64, 0))


def shared_memory():
    call(29, 0x7001, 4096, 0o1600)


def message_queue():
    call(68, 0x7002, 0o1600)


def semaphores():
    call(64, 0x7003, 1, 0o1600)


def posix_queue():
    call(240, b"toolhost-probe", os.O_CREAT | os.O_RDWR, 0o600, 0)
    call(241, b"toolhost-probe")


def memory_file():
    os.close(os.memfd_create("probe"))


def huge_pages():
    syscall(157, 41, 0, 0, 0, 0)  # prctl(PR_SET_THP_DISABLE)


def rule_set():
    attr = (ctypes.c_uint64 * 1)(1)
    os.close(call(444, ctypes.byref(attr), 8, 0))  # landlock_create_ruleset


def raise_limit(which):
    import resource
    number = getattr(resource, which)
    soft, hard = resource.getrlimit(number)
    if hard == resource.RLIM_INFINITY:
        return "ok:unlimited"
    resource.setrlimit(number, (soft, hard + 1))


def limit(which):
    import resource
    return "ok:%d" % resource.getrlimit(getattr(resource, which))[1]


def lower_then_raise(which):
    import resource
    number = getattr(resource, which)
    resource.setrlimit(number, (8, 16))
    resource.setrlimit(number, (8, 17))


# The harness.

PIPES = set()
SHOWS = False


def attempt(probe, out):
    try:
        answer = globals()[probe["do"]](*probe.get("args", [])) or "ok"
    except OSError as e:
        answer = word(e)
    except ValueError as e:  # setrlimit(2) refused, as Python says it
        answer = "EPERM" if "limit" in str(e) else "broken: %s" % e
    except Exception as e:  # a broken probe must be seen as one
        answer = "broken: %s: %s" % (type(e).__name__, e)
    # A pipe holds as much whether somebody reads or not.
    os.write(out, answer.encode()[:2000] + b"".join(SHOWN)[:60000] * SHOWS)
    os._exit(0)


def run(probe):
    if "began" in probe:
        os.close(os.open(probe["began"], os.O_WRONLY | os.O_CREAT, 0o644))
    ours, theirs = os.pipe()
    PIPES.update((os.readlink("/proc/self/fd/%d" % ours),))
    pid = os.fork()
    if pid == 0:
        attempt(probe, theirs)
    os.close(theirs)
    answer = b""
    ready, _, _ = select.select([ours], [], [], probe.get("seconds", 6))
    if ready:
        answer = os.read(ours, 1 << 16)
    else:
        os.kill(pid, signal.SIGKILL)
        answer = b"hangs"
    os.close(ours)
    _, how = os.waitpid(pid, 0)
    if not answer:
        answer = (signal.Signals(os.WTERMSIG(how)).name if os.WIFSIGNALED(how) else "exit:%d" % os.WEXITSTATUS(how)).encode()
    return answer.decode(errors="replace")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    asked = json.load(sys.stdin)
    SHOWS = asked.get("shows", False)
    print(json.dumps({probe["name"]: run(probe) for probe in asked["probes"]}))
