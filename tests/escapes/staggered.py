"""Holds a secret in its scratch, and a child, until it is told whom to attack; attacks itself as well."""
import errno, json, os, signal, sys, time

n = json.load(sys.stdin)["n"]
# Each call has these folders, empty.
own = {"/tmp/call", "/tmp/call/input", "/tmp/call/output"}
below = {os.path.join(at, name) for at, folders, files in os.walk("/tmp") for name in folders + files}
found = sorted(below - own) + os.listdir("/dev/shm")
for folder in ("/tmp", "/dev/shm"):
    with open("%s/secret-%d" % (folder, n), "w") as f:
        f.write(str(n))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)

def read(path):
    with open(path, "rb") as f:
        f.read(1)

def word(act, *args):
    try:
        act(*args)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]

def attack(n, pid):
    return {
        "scratch": word(read, "/tmp/secret-%d" % n),
        "shared memory": word(read, "/dev/shm/secret-%d" % n),
        "scratch through /proc": word(read, "/proc/%d/root/tmp/secret-%d" % (pid, n)),
        "variables": word(read, "/proc/%d/environ" % pid),
        "signal": word(os.kill, pid, 0),
        "priority": word(os.setpriority, os.PRIO_PROCESS, pid, 10),
    }

order = os.path.join(os.path.dirname(os.path.abspath(__file__)), "orders", "%d.json" % n)
while not os.path.exists(order):
    time.sleep(0.01)
with open(order) as f:
    other = json.load(f)
report = {"found": found, "self": attack(n, child), "other": attack(other["n"], other["pid"])}
report["seen"] = sum(pid.isdigit() for pid in os.listdir("/proc"))
report["child"] = os.waitpid(child, os.WNOHANG) == (0, 0)
os.kill(-1, signal.SIGKILL)  # everybody in reach but oneself
report["killed"] = os.WIFSIGNALED(os.waitpid(child, 0)[1])
with open("/tmp/secret-%d" % n) as f:
    report["kept"] = f.read() == str(n)
print(json.dumps(report))
