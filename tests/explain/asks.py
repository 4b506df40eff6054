import ctypes, errno, json, os, socket, subprocess, sys, threading
beside = json.load(sys.stdin)["beside"]
out = {}
def tried(name, what):
    try:
        what()
        out[name] = "done"
    except OSError as e:
        out[name] = errno.errorcode[e.errno]
tried("own", lambda: open("main.py").close())
tried("scratch", lambda: open("/tmp/mine", "w").close())
tried("there", lambda: open(beside + "/secret.txt").close())
tried("not there", lambda: open(beside + "/none.txt").close())
tried("above", lambda: open("../../secret/secret.txt").close())
tried("list", lambda: os.listdir(beside))
tried("write own", lambda: open("main.py", "a").close())
tried("make", lambda: os.mkdir(beside + "/made"))
tried("move", lambda: os.rename("/tmp/mine", beside + "/moved"))
tried("run", lambda: subprocess.run([beside + "/program"]))
os.chmod("/tmp/mine", 0o755)
tried("run own", lambda: subprocess.run(["/tmp/mine"]))
tried("socket", lambda: socket.socket())
folder = os.open("/", os.O_PATH)
tried("below", lambda: os.open("srv/none", os.O_RDONLY, dir_fd=folder))
thread = threading.Thread(target=lambda: tried("thread", lambda: open(beside + "/thread.txt").close()))
thread.start()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
out["ptrace"] = errno.errorcode[ctypes.get_errno()] if libc.ptrace(0, 0, 0, 0) < 0 else "done"
print(json.dumps(out))
