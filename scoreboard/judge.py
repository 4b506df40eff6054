"""Tries probes against one sandbox and judges them from outside: what came out, what changed, who was reached.

A probe (probes.json) runs in a scratch folder of its own, twice. First as it is, its control: if that has no effect, the
probe says nothing on this machine and is not judged. Then confined: an effect means that it escaped. All effects are looked for
after every run, whatever the probe was meant to do. A confined run counts only if the probe began, which it says by a file in the
folder that it may write. Probes that do not end their run share one first: where nothing has an effect, each was held.

A peer (peers/NAME.py) says how a script is run: `command(world)`, and what else it needs: `prepare(world)`, `version()`, `OFFERS`
(the limits that it has: time, memory, processes). Run as a program (`toolhost doctor --attacks`) this reads
{probes, script, peer, settings} from standard input and prints a line of JSON for each probe.
"""
import concurrent.futures
import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import types

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.shmat.restype = ctypes.c_void_p

MEMORY_BYTES = 256 << 20
PROCESSES = 64
SECONDS = 5
# How long after its end, or its time, nothing may be left of a run.
GRACE_SECONDS = 3
# A run that takes longer is ended by us.
LONGEST_RUN_SECONDS = 20
# No run begins after this.
LONGEST_SECONDS = 240
MOST_OUTPUT_BYTES = 1 << 20
AT_ONCE = 4
# Probes that share a run, where none escapes.
TOGETHER = 12
# How often a run may be late. A machine that is busy may begin or end it late; what can be late is late again.
ATTEMPTS = 3
STOPPED = threading.Event()


class World:
    """One scratch folder, who listens beside it, a process that others should leave alone, and what nobody may see."""

    def __init__(self):
        self.base = tempfile.mkdtemp(prefix="toolhost-attacks-", dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
        # Not the name of the folder, which everybody sees.
        self.mark = "toolhost-attacks-" + os.urandom(12).hex()
        self.secret = "secret-" + os.urandom(12).hex()
        self.goal = "goal-" + os.urandom(12).hex()
        self.own = self.path("user_scripts/files")
        self.script = self.path("user_scripts/files/main.py")
        self.out = self.path("user_scripts/files/out")
        self.granted = self.path("granted/ro")
        self.home = self.path("home")
        self.tmpfile = "/tmp/%s.txt" % self.mark
        self.memory, self.processes, self.seconds = MEMORY_BYTES, PROCESSES, SECONDS
        self.python = sys.executable

    def __enter__(self):
        return self

    def path(self, name):
        return os.path.join(self.base, name)

    def write(self, path, text):
        path = self.path(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # In a shared folder another user may have put a link there.
        with open(path, "w" if path.startswith(self.base + "/") else "x") as f:
            f.write(text)
            os.fchmod(f.fileno(), 0o644)

    def fill(self, script):
        """The files of the playground of the escape suite (tests/harness/playground.rs), and some of its own."""
        os.chmod(self.base, 0o755)
        for name in ("secret/secret.txt", "granted/ro-sibling/secret.txt", "home/.ssh/id"):
            self.write(name, self.secret)
        for name in (self.tmpfile, "/dev/shm/" + self.mark):
            if os.access(os.path.dirname(name), os.W_OK):
                self.write(name, self.secret)
        self.write("user_scripts/other/main.py", "# %s\n" % self.secret)
        self.write("state/readme.txt", "state of the host\n")
        self.write(self.script, script)
        for name in ("files.tool.json", "doomed.py", "swapped.py", "out/kept.txt", "out/replacer.txt"):
            self.write(os.path.join(self.own, name), "kept\n")
        for name in ("file.txt", "a", "b", "c", "d", "e", "f", "g", "h"):
            self.write(os.path.join(self.granted, name), "granted\n")
        os.symlink("../../secret/secret.txt", self.granted + "/link")
        os.symlink(self.path("secret/secret.txt"), self.granted + "/abs")
        os.symlink("../ro-sibling", self.granted + "/up")
        self.listen()
        self.share()
        # It ends with us, whose end of its input closes.
        self.canary = subprocess.Popen(["/bin/sh", "-c", "read line", self.secret], stdin=subprocess.PIPE, env={"SECRET": self.secret},
                                       start_new_session=True)
        self.leaked = os.open(self.path("secret/secret.txt"), os.O_RDONLY)

    def listen(self):
        def bound(family, kind, address):
            listener = socket.socket(family, kind)
            listener.bind(address)
            listener.setblocking(False)
            if kind == socket.SOCK_STREAM:
                listener.listen()
            return listener
        stream, dgram = self.granted + "/stream.sock", self.granted + "/dgram.sock"
        self.listeners = [
            bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            bound(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.mark),
            bound(socket.AF_UNIX, socket.SOCK_DGRAM, "\0" + self.mark + "-d"),
            bound(socket.AF_UNIX, socket.SOCK_STREAM, stream),
            bound(socket.AF_UNIX, socket.SOCK_DGRAM, dgram),
        ]
        os.mkfifo(self.granted + "/pipe")
        for name in ("stream.sock", "dgram.sock", "pipe"):
            os.chmod(os.path.join(self.granted, name), 0o777)
        self.pipe = os.open(self.granted + "/pipe", os.O_RDONLY | os.O_NONBLOCK)

    def share(self):
        """The secret as shared memory of System V, and as a key of a keyring that what this thread starts inherits."""
        self.segment = LIBC.shmget(0, 4096, 0o1666)
        place = LIBC.shmat(self.segment, None, 0)
        if self.segment >= 0 and place != ctypes.c_void_p(-1).value:
            ctypes.memmove(place, self.secret.encode(), len(self.secret))
            LIBC.shmdt(ctypes.c_void_p(place))
        LIBC.syscall(250, 1, None)  # keyctl(KEYCTL_JOIN_SESSION_KEYRING)
        secret = self.secret.encode()
        LIBC.syscall(248, b"user", self.mark.encode(), secret, len(secret), -3)  # add_key

    def argument(self, value):
        numbers = {"{tcp}": lambda: self.listeners[0].getsockname()[1], "{udp}": lambda: self.listeners[1].getsockname()[1],
                   "{canary}": lambda: self.canary.pid, "{segment}": lambda: self.segment, "{leaked}": lambda: self.leaked}
        if not isinstance(value, str):
            return value
        if value in numbers:
            return numbers[value]()
        words = {"{base}": self.base, "{own}": self.own, "{tmpfile}": self.tmpfile, "{abstract}": self.mark, "{secret}": self.secret,
                 "{pid}": self.mark, "{goal}": self.goal, "{canary}": str(self.canary.pid)}
        for word, text in words.items():
            value = value.replace(word, text)
        return value

    def beside(self):
        """What bears our mark in folders that all share."""
        shared = [folder for folder in ("/tmp", "/dev/shm") if os.access(folder, os.R_OK)]
        found = [os.path.join(folder, name) for folder in shared for name in os.listdir(folder) if self.mark in name]
        return [path for path in found if path != self.base]

    def state(self):
        """What must stay as it is: every file but those in `out`, and what the host keeps for itself."""
        found = {path: facts(path) for path in self.beside()}
        for top in ("user_scripts", "granted", "secret", "home/.ssh"):
            for folder, folders, files in os.walk(self.path(top)):
                folders[:] = [name for name in folders if os.path.join(folder, name) != self.out]
                for name in [""] + folders + files:
                    path = os.path.join(folder, name)
                    found[path] = facts(path)
        canary = self.canary.pid
        try:
            with open("/proc/%d/limits" % canary) as limits, open("/proc/%d/oom_score_adj" % canary) as rank:
                found["a process of the host"] = [self.canary.poll(), limits.read(), rank.read(), os.sched_getaffinity(canary),
                                                  os.getpriority(os.PRIO_PROCESS, canary)]
        except OSError:
            found["a process of the host"] = "ended"
        return found

    def strange(self):
        """What `out` holds besides plain files and folders of plain modes."""
        for folder, folders, files in os.walk(self.out):
            for name in folders + files:
                facts = os.lstat(os.path.join(folder, name))
                plain = stat.S_ISDIR(facts.st_mode) or (stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1)
                if not plain or facts.st_mode & 0o7000:
                    yield "left %s in the folder that it may write" % stat.filemode(facts.st_mode)

    def heard(self):
        for listener in self.listeners:
            try:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(64)
                yield "reached a listener of the host"
            except OSError:
                pass
        try:
            if os.read(self.pipe, 64):
                yield "wrote into a pipe of the host"
        except OSError:
            pass

    def left(self):
        """Processes that run the script."""
        found, script = [], self.script.encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as f, open("/proc/%s/stat" % pid) as state:
                    if script in f.read() and state.read().rsplit(")", 1)[1].split()[0] != "Z":
                        found.append(int(pid))
            except (OSError, ValueError):  # it ended just now
                pass
        return found

    def is_quiet(self, until):
        while self.left():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def __exit__(self, *_):
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if hasattr(self, "segment") and self.segment >= 0:
            LIBC.shmctl(self.segment, 0, None)
        if hasattr(self, "canary"):
            self.canary.kill()
            self.canary.wait()
        for number in [getattr(self, name) for name in ("leaked", "pipe") if hasattr(self, name)]:
            os.close(number)
        for listener in getattr(self, "listeners", []):
            listener.close()
        for path in filter(os.path.isfile, self.beside()):
            os.unlink(path)
        shutil.rmtree(self.base, ignore_errors=True)


def facts(path):
    """Of a file, without following links: times too, since a change that is undone leaves them."""
    try:
        it = os.lstat(path)
        digest = ""
        if stat.S_ISREG(it.st_mode):
            with open(path, "rb") as f:
                digest = hashlib.sha256(f.read(1 << 20)).hexdigest()
        return [it.st_mode, it.st_uid, it.st_gid, it.st_nlink, it.st_size, it.st_mtime_ns, it.st_ctime_ns, digest]
    except OSError as error:
        return str(error.errno)


class Run:
    """One run of probes: which of them began, what they had an effect on, what they said."""

    def __init__(self, world, probes, command):
        self.world, self.effects = world, []
        self.kills = probes[0].get("kills") and world.argument(probes[0]["kills"])
        self.is_timed = probes[0].get("needs") == "time"
        before = world.state()
        list(world.heard())
        began = self.marks = [world.out + "/began-%d" % number for number in range(len(probes))]
        words = {"shows": True, "probes": [
            {"name": probe["name"], "do": probe["does"], "args": [world.argument(value) for value in probe["with"]],
             "seconds": 2 * SECONDS + 5, "began": mark} for probe, mark in zip(probes, began)]}
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": world.home, "LANG": "C.UTF-8", "SECRET": world.secret}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                                        cwd=world.own, start_new_session=True, pass_fds=[world.leaked])
        killer = threading.Thread(target=self.kill)
        killer.start()
        output, errors = self.process.communicate(json.dumps(words).encode())
        killer.join()
        self.errors = errors or output
        self.said = (output[:MOST_OUTPUT_BYTES] + b"\n" + errors[:MOST_OUTPUT_BYTES]).decode(errors="replace")
        self.began = sum(map(os.path.exists, began))
        self.judge(before)

    def is_over_time(self):
        """Whether a probe that has limited time began so long ago that nothing of it may be left."""
        try:
            return self.is_timed and time.time() > os.stat(self.marks[0]).st_mtime + SECONDS + GRACE_SECONDS and bool(self.world.left())
        except OSError:
            return False

    def kill(self):
        """Ends what takes too long, or whose host is to be killed: the whole of a control, only its first process of a sandbox."""
        for _ in range(int(LONGEST_RUN_SECONDS / 0.02)):
            if self.process.poll() is not None:
                return
            if STOPPED.is_set():
                break
            if self.kills and os.path.exists(self.kills):
                self.process.kill()
                # What it started may hold our pipes.
                if not self.world.is_quiet(time.monotonic() + GRACE_SECONDS):
                    self.effects.append("still runs %d s after its host was killed" % GRACE_SECONDS)
                break
            if self.is_over_time():
                self.effects.append("still runs %d s after its time" % GRACE_SECONDS)
                break
            time.sleep(0.02)
        for pid in [self.process.pid] + self.world.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def judge(self, before):
        if not self.effects and not self.world.is_quiet(time.monotonic() + GRACE_SECONDS):
            self.effects.append("still runs %d s after its end" % GRACE_SECONDS)
        if self.world.secret in self.said:
            self.effects.append("the secret came out")
        if self.world.goal[::-1] in self.said:
            self.effects.append("it had more than its limit")
        after = self.world.state()
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        self.effects += ["changed %s" % path.replace(self.world.base + "/", "").replace(self.world.mark, "…") for path in changed[:3]]
        self.effects += sorted(set(self.world.strange()) | set(self.world.heard()))

    def was_late(self):
        """Whether it did not begin, or its only effect is that it still ran."""
        return all(effect.startswith("still runs") for effect in self.effects) if self.effects else not self.began

    def why(self):
        """What it said of itself: the beginning, which names a cause, and the end, where a traceback has it."""
        text = self.errors[:MOST_OUTPUT_BYTES].decode(errors="replace")
        text = "; ".join(line.strip() for line in text.splitlines() if line.strip())
        return text if len(text) <= 500 else text[:250] + " … " + text[-250:]


def bare(world):
    return [world.python, "-s", "-E", "-B", world.script]


def tried(probes, script, peer):
    """A run behind a peer, or, without one, a control."""
    if STOPPED.is_set():
        raise InterruptedError("stopped")
    with World() as world:
        world.fill(script)
        if peer:
            peer.prepare(world)
        return Run(world, probes, peer.command(world) if peer else bare(world))


def controlled(probe, script, peer, deadline):
    """The verdict on one probe as far as its control gives it; else None stands for it."""
    told = {"name": probe["name"], "layer": probe["layer"], "verdict": None, "effects": [], "control": [], "why": None}
    if probe.get("needs") and probe["needs"] not in peer.OFFERS:
        return dict(told, verdict="notOffered", why="no limit of " + probe["needs"])
    if time.monotonic() > deadline:
        return dict(told, verdict="notTried", why="out of time")
    control = tried([probe], script, None)
    if not control.effects:
        return dict(told, verdict="notJudged", why="its control had no effect here: " + control.why())
    return dict(told, control=control.effects)


def confined(probes, script, peer):
    for _ in range(ATTEMPTS):
        run = tried(probes, script, peer)
        if not run.was_late():
            break
    return run


def confined_alone(probe, told, script, peer):
    run = confined([probe], script, peer)
    if run.effects:
        return dict(told, verdict="escaped", effects=run.effects)
    if not run.began:
        return dict(told, verdict="notTried", why="it did not begin: " + run.why())
    return dict(told, verdict="held")


def judged(probes, script, peer, deadline):
    """The verdicts on some probes: held, escaped, notOffered, notJudged (the control has no effect), notTried.

    They run together first. Where all of them begin and nothing has an effect, each was held; where none begins, none will alone; else each runs alone."""
    try:
        return judged_or_lost(probes, script, peer, deadline)
    except Exception as error:  # a fault of this program must be seen as one
        why = "%s: %s" % (type(error).__name__, error)
        return [{"name": probe["name"], "layer": probe["layer"], "verdict": "notTried", "effects": [], "control": [], "why": why}
                for probe in probes]


def judged_or_lost(probes, script, peer, deadline):
    told = [controlled(probe, script, peer, deadline) for probe in probes]
    ready = [probe for probe, one in zip(probes, told) if not one["verdict"]]
    together = confined(ready, script, peer) if len(ready) > 1 else None
    if together and not together.effects and together.began in (0, len(ready)):
        verdict = "held" if together.began else "notTried"
        why = None if together.began else "it did not begin: " + together.why()
        return [one if one["verdict"] else dict(one, verdict=verdict, why=why) for one in told]
    return [one if one["verdict"] else confined_alone(probe, one, script, peer) for probe, one in zip(probes, told)]


def judge(probes, script, peer):
    """Verdicts as they come. Those that fill memory or the table of processes are tried when nothing else is."""
    deadline = time.monotonic() + LONGEST_SECONDS
    heavy = [probe for probe in probes if probe.get("needs") in ("memory", "processes")]
    alone = [probe for probe in probes if "needs" in probe or "kills" in probe]
    rest = [probe for probe in probes if probe not in alone]
    groups = [[probe] for probe in alone if probe not in heavy]
    groups += [rest[start:start + TOGETHER] for start in range(0, len(rest), TOGETHER)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for told in concurrent.futures.as_completed([pool.submit(judged, group, script, peer, deadline) for group in groups]):
            yield from told.result()
    for probe in heavy:
        yield from judged([probe], script, peer, deadline)


def all_probes(text):
    probes = json.loads(text)
    return probes["shared"] + probes["alone"]


def stop(number, _frame):
    """What runs is ended and removed, and nothing more is started."""
    STOPPED.set()
    raise SystemExit(128 + number)


def begin():
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


if __name__ == "__main__":
    LIBC.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
    begin()
    given = json.load(sys.stdin)
    one = types.ModuleType("peer")
    exec(compile(given["peer"], "peer", "exec"), one.__dict__)
    one.settings = given["settings"]
    for verdict in judge(all_probes(given["probes"]), given["script"], one):
        print(json.dumps(verdict), flush=True)
