//! Memory of a call as a whole, wherever it is held.

use super::Call;

pub const MEMORY: &[Call] = &[
    call!(
        "children together",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        "",
        r#"{"children":5}"#,
        "ps = []\nfor _ in range(5):\n    p = os.fork()\n    if p == 0:\n        hold = bytearray(b'x') * (32 << 20)\n        time.sleep(1)\n        os._exit(0)\n    ps.append(p)\n[os.waitpid(p, 0) for p in ps]\nsay({'children': 5})\n"
    ),
    call!(
        "shared mapping",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        "ScriptError: code 1",
        r#"{"mib":200}"#,
        "m = mmap.mmap(-1, 200 << 20)\nfor at in range(0, 200 << 20, 4096):\n    m[at] = 1\ntime.sleep(0.1)\nsay({'mib': 200})\n"
    ),
    call!(
        "shared pages dropped from every mapping",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        r#"ok {"errno":1}"#,
        r#"{"mib":200}"#,
        "try:\n    ms = [mmap.mmap(-1, 1 << 20) for _ in range(200)]\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nfor m in ms:\n    m[:] = b'x' * len(m)\n    m.madvise(mmap.MADV_DONTNEED)\ntime.sleep(0.1)\nsay({'mib': 200})\n"
    ),
    call!(
        "the same pages from /dev/zero",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        r#"ok {"errno":2}"#,
        r#"{"mib":200}"#,
        "try:\n    fd = os.open('/dev/zero', os.O_RDWR)\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nms = []\nfor _ in range(200):\n    m = mmap.mmap(fd, 1 << 20)\n    m[:] = b'x' * len(m)\n    m.madvise(mmap.MADV_DONTNEED)\n    ms.append(m)\ntime.sleep(0.1)\nsay({'mib': 200})\n"
    ),
    call!(
        "page tables",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        "",
        r#"{"tables":51200}"#,
        "m = mmap.mmap(-1, 51200 << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)\nm.madvise(15)\nfor at in range(0, len(m), 2 << 20):\n    m[at]\ntime.sleep(0.1)\nsay({'tables': 51200})\n"
    ),
    call!(
        "huge pages held by a pipe",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        // Near the limit of a group the kernel gives small pages instead.
        r#"ok {"held":150}|ResourceLimitError: memoryBytes"#,
        r#"ok {"errno":38}"#,
        r#"{"held":150}"#,
        "libc = ctypes.CDLL(None, use_errno=True)\nheld = []\nfor n in range(150):\n    if n % 15 == 0:\n        held.append(os.pipe())\n    m = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n    m.madvise(14)\n    at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n    at += -at % (2 << 20)\n    ctypes.memset(at, 1, 2 << 20)\n    one = (ctypes.c_size_t * 2)(at, 1)\n    if libc.vmsplice(held[-1][1], one, 1, 0) < 0:\n        say({'errno': ctypes.get_errno()})\n        sys.exit()\n    m.madvise(mmap.MADV_DONTNEED)\n    held.append((0, held[-1][1], m))\nsay({'held': 150})\n"
    ),
    call!(
        "memory file that nobody maps",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        r#"ok {"errno":38}"#,
        r#"{"mib":200}"#,
        "try:\n    fd = os.memfd_create('x')\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nfor _ in range(200):\n    os.write(fd, b'x' * (1 << 20))\ntime.sleep(0.1)\nsay({'mib': 200})\n"
    ),
    call!(
        "scratch and heap together",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":100663296,"scratchBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        "",
        r#"{"mib":120}"#,
        "with open('/tmp/fill-%d' % os.getpid(), 'wb') as f:\n    os.unlink(f.name)\n    for _ in range(40):\n        f.write(b'x' * (1 << 20))\n    f.flush()\n    hold = bytearray(b'x') * (80 << 20)\n    time.sleep(0.1)\nsay({'mib': 120})\n"
    ),
    call!(
        "socket buffers",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        r#"ok {"pairs":400}|ResourceLimitError: memoryBytes"#,
        r#"{"pairs":400}"#,
        "pairs = []\nfor _ in range(400):\n    a, b = socket.socketpair()\n    for s in (a, b):\n        s.setblocking(False)\n        try:\n            while True:\n                s.send(b'x' * 32768)\n        except BlockingIOError:\n            pass\n    pairs.append((a, b))\ntime.sleep(0.3)\nsay({'pairs': len(pairs)})\n"
    ),
    call!(
        "first thread gone, memory held by another",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864},"execution":{"timeoutMs":4000}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        "",
        r#"{"mib":256}"#,
        "def work():\n    time.sleep(0.1)\n    hold = [bytearray(b'x') * (1 << 20) for _ in range(256)]\n    time.sleep(0.5)\n    say({'mib': len(hold)})\n    os._exit(0)\nthreading.Thread(target=work).start()\nctypes.CDLL(None).syscall(60, 0)\n"
    ),
];
