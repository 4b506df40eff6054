//! Memory of a call as a whole, wherever it is held.

use super::Ending::{AnyOf, Fails, Says};
use super::{CALL, Call};

/// Ends at its memory limit, of 64 MiB unless the row says otherwise.
const LIMITED: Call = Call {
    wall: "cgroup",
    promises: "P16",
    more: r#"{"limits":{"memoryBytes":67108864}}"#,
    ends: Fails("ResourceLimitError", "memoryBytes"),
    ..CALL
};

pub const MEMORY: &[Call] = &[
    Call {
        name: "children together",
        control: Some(r#"{"children":5}"#),
        script: "ps = []\nfor _ in range(5):\n    p = os.fork()\n    if p == 0:\n        hold = bytearray(b'x') * (32 << 20)\n        time.sleep(1)\n        os._exit(0)\n    ps.append(p)\n[os.waitpid(p, 0) for p in ps]\nsay({'children': 5})\n",
        ..LIMITED
    },
    Call {
        name: "shared mapping",
        sampled: Some(Fails("ScriptError", "code 1")),
        control: Some(r#"{"mib":200}"#),
        script: "m = mmap.mmap(-1, 200 << 20)\nfor at in range(0, 200 << 20, 4096):\n    m[at] = 1\ntime.sleep(0.1)\nsay({'mib': 200})\n",
        ..LIMITED
    },
    Call {
        name: "shared pages dropped from every mapping",
        sampled: Some(Says(r#"{"errno":1}"#)),
        control: Some(r#"{"mib":200}"#),
        script: "try:\n    ms = [mmap.mmap(-1, 1 << 20) for _ in range(200)]\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nfor m in ms:\n    m[:] = b'x' * len(m)\n    m.madvise(mmap.MADV_DONTNEED)\ntime.sleep(0.1)\nsay({'mib': 200})\n",
        ..LIMITED
    },
    Call {
        name: "the same pages from /dev/zero",
        sampled: Some(Says(r#"{"errno":2}"#)),
        control: Some(r#"{"mib":200}"#),
        script: "try:\n    fd = os.open('/dev/zero', os.O_RDWR)\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nms = []\nfor _ in range(200):\n    m = mmap.mmap(fd, 1 << 20)\n    m[:] = b'x' * len(m)\n    m.madvise(mmap.MADV_DONTNEED)\n    ms.append(m)\ntime.sleep(0.1)\nsay({'mib': 200})\n",
        ..LIMITED
    },
    Call {
        name: "page tables",
        control: Some(r#"{"tables":51200}"#),
        script: "m = mmap.mmap(-1, 51200 << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)\nm.madvise(15)\nfor at in range(0, len(m), 2 << 20):\n    m[at]\ntime.sleep(0.1)\nsay({'tables': 51200})\n",
        ..LIMITED
    },
    Call {
        name: "huge pages held by a pipe",
        more: r#"{"limits":{"memoryBytes":67108864}}"#,
        ends: Says(r#"{"errno":38}"#),
        sampled: Some(Says(r#"{"errno":38}"#)),
        control: Some(r#"{"held":60}"#),
        script: "libc = ctypes.CDLL(None, use_errno=True)\nheld = []\nfor n in range(60):\n    if n % 15 == 0:\n        held.append(os.pipe())\n    m = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n    m.madvise(14)\n    at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n    at += -at % (2 << 20)\n    ctypes.memset(at, 1, 2 << 20)\n    one = (ctypes.c_size_t * 2)(at, 1)\n    if libc.vmsplice(held[-1][1], one, 1, 0) < 0:\n        say({'errno': ctypes.get_errno()})\n        sys.exit()\n    m.madvise(mmap.MADV_DONTNEED)\n    held.append((0, held[-1][1], m))\nsay({'held': 60})\n",
        ..LIMITED
    },
    Call {
        name: "memory file that nobody maps",
        sampled: Some(Says(r#"{"errno":38}"#)),
        control: Some(r#"{"mib":200}"#),
        script: "try:\n    fd = os.memfd_create('x')\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nfor _ in range(200):\n    os.write(fd, b'x' * (1 << 20))\ntime.sleep(0.1)\nsay({'mib': 200})\n",
        ..LIMITED
    },
    Call {
        name: "scratch and heap together",
        more: r#"{"limits":{"memoryBytes":100663296,"scratchBytes":67108864}}"#,
        control: Some(r#"{"mib":120}"#),
        script: "with open('/tmp/fill-%d' % os.getpid(), 'wb') as f:\n    os.unlink(f.name)\n    for _ in range(40):\n        f.write(b'x' * (1 << 20))\n    f.flush()\n    hold = bytearray(b'x') * (80 << 20)\n    time.sleep(0.1)\nsay({'mib': 120})\n",
        ..LIMITED
    },
    Call {
        name: "socket buffers",
        sampled: Some(AnyOf(&[Says(r#"{"pairs":400}"#), Fails("ResourceLimitError", "memoryBytes")])),
        control: Some(r#"{"pairs":400}"#),
        script: "pairs = []\nfor _ in range(400):\n    a, b = socket.socketpair()\n    for s in (a, b):\n        s.setblocking(False)\n        try:\n            while True:\n                s.send(b'x' * 32768)\n        except BlockingIOError:\n            pass\n    pairs.append((a, b))\ntime.sleep(0.3)\nsay({'pairs': len(pairs)})\n",
        ..LIMITED
    },
    Call {
        name: "first thread gone, memory held by another",
        more: r#"{"limits":{"memoryBytes":67108864},"execution":{"timeoutMs":4000}}"#,
        control: Some(r#"{"mib":256}"#),
        script: "def work():\n    time.sleep(0.1)\n    hold = [bytearray(b'x') * (1 << 20) for _ in range(256)]\n    time.sleep(0.5)\n    say({'mib': len(hold)})\n    os._exit(0)\nthreading.Thread(target=work).start()\nctypes.CDLL(None).syscall(60, 0)\n",
        ..LIMITED
    },
    Call {
        name: "mappings",
        control: Some(r#"{"children":12}"#),
        script: "libc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\nlibc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\nlibc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]\nat = libc.mmap(None, 4096 * 60000, 0, 0x22, -1, 0)\nfor page in range(0, 60000, 2):\n    libc.mprotect(at + 4096 * page, 4096, 1)\nfor _ in range(12):\n    if os.fork() == 0:\n        time.sleep(2)\n        os._exit(0)\ntime.sleep(1)\nsay({'children': 12})\n",
        ..LIMITED
    },
    // Each process has a link to every process above it, for each mapping that holds a page.
    Call {
        name: "mappings of a line of forks",
        more: r#"{"limits":{"memoryBytes":134217728}}"#,
        control: Some(r#"{"deep":20}"#),
        script: "libc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\nlibc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\nlibc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]\nn = 16000\nat = libc.mmap(None, 4096 * n, 3, 0x22, -1, 0)\nfor page in range(0, n, 2):\n    ctypes.memset(at + 4096 * page, 1, 1)\n    libc.mprotect(at + 4096 * page, 4096, 1)\nr, w = os.pipe()\nfor deep in range(20):\n    if os.fork():\n        os.close(w)\n        os.read(r, 1)\n        if deep == 0:\n            say({'deep': 20})\n        os._exit(0)\ntime.sleep(1)\nos._exit(0)\n",
        ..LIMITED
    },
    // Held still while its pages are counted, and let go again: all but what the tool had stopped itself.
    Call {
        name: "shared pages within the limit",
        more: r#"{"limits":{"memoryBytes":134217728}}"#,
        ends: Says(r#"{"sum":240,"stopped":true}"#),
        control: Some(r#"{"sum":240,"stopped":true}"#),
        script: "hold = bytearray(b'x') * (60 << 20)\nasleep = os.fork()\nif asleep == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\n    os._exit(0)\nos.waitpid(asleep, os.WUNTRACED)\nr, w = os.pipe()\nps = []\nfor _ in range(4):\n    ps.append(os.fork())\n    if ps[-1] == 0:\n        n = sum(hold[at] == 120 for at in range(0, len(hold), 1 << 20))\n        time.sleep(0.3)\n        os.write(w, bytes([n]))\n        os._exit(0)\n[os.waitpid(p, 0) for p in ps]\nstate = open('/proc/%d/stat' % asleep).read().rsplit(')', 1)[1].split()[0]\nok = os.waitpid(asleep, os.WNOHANG | os.WCONTINUED) == (0, 0)\nsay({'sum': sum(os.read(r, 9)), 'stopped': ok and state == 'T'})\nos.kill(asleep, signal.SIGKILL)\n",
        ..LIMITED
    },
];
