"""Waits on the first word of a file until it is woken, as programs do that share a lock in a file; wakes one of those
that wait; or moves them to a word of its own."""
import ctypes, json, mmap, os, sys

does = os.environ.get("DOES", "moves")
path = os.environ.get("WORDS") or json.load(sys.stdin)["path"]
libc = ctypes.CDLL(None, use_errno=True)
if does == "moves":
    libc.mmap.restype = ctypes.c_void_p
    f = os.open(path, os.O_RDONLY)
    word = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, f, ctypes.c_long(0))
    own = (ctypes.c_uint32 * 4)()
    answer = libc.syscall(202, ctypes.c_void_p(word), 3, 0, ctypes.c_long(100), ctypes.byref(own), 0)
    print(json.dumps(answer if answer >= 0 else -ctypes.get_errno()))
else:
    f = open(path, "r+b")
    page = mmap.mmap(f.fileno(), 4096)
    word = ctypes.c_uint32.from_buffer(page)
    if does == "wakes":
        print(libc.syscall(202, ctypes.byref(word), 1, 1, 0, 0, 0))
    else:
        print("waits", flush=True)
        timeout = (ctypes.c_long * 2)(int(sys.argv[1]), 0)
        answer = libc.syscall(202, ctypes.byref(word), 0, word.value, timeout, 0, 0)
        print("woken" if answer == 0 else "left", flush=True)
