//! What a call does through the kernel: memory that no process shows, waking other programs, taking their CPU.

use super::Attack;
use crate::prelude::*;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::sync::PoisonError;

/// What the tests below try.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "a process with the name of a line in its status", wall: "cgroup", promises: "P16" },
    Attack { name: "a hundred processes hold open texts of /proc", wall: "cgroup", promises: "P16" },
    Attack { name: "open texts of /proc hold a path of hundreds of KiB", wall: "cgroup", promises: "P16" },
    Attack { name: "descriptors become others, as many as before", wall: "cgroup", promises: "P16" },
    Attack { name: "full buffers of socket pairs", wall: "cgroup", promises: "P16" },
    Attack { name: "very many file locks", wall: "cgroup", promises: "P16" },
    Attack { name: "very many entries of an epoll", wall: "cgroup", promises: "P16" },
    Attack { name: "memory that came and went between two looks", wall: "cgroup", promises: "P16" },
    Attack { name: "waiters of a host program on a granted file are moved away", wall: "seccomp", promises: "P4" },
    Attack { name: "a hundred and ten spinners in sessions of their own", wall: "cgroup", promises: "P15" },
    Attack { name: "a handler behind a pipe gets the memory of a tool that crashed", wall: "limits", promises: "P1" },
    Attack { name: "who is uid 0 of the machine where /proc/sys is missing", wall: "identity", promises: "P10" },
];

/// A script that holds memory which no process shows.
struct Unseen {
    tool: &'static str,
    memory_mib: u64,
    /// What it prints where nothing holds it back.
    prints: &'static str,
    script: &'static str,
}

const UNSEEN: &[Unseen] = &[
    Unseen {
        tool: "name",
        memory_mib: 128,
        prints: "300",
        script: "import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)\nlibc.prctl(15, b'RssAnon:', 0, 0, 0)\n\
         def hold():\n    kept = []\n    for _ in range(300):\n        kept.append(bytearray(b'x') * (1 << 20))\n    \
         time.sleep(1)\n    os.write(1, b'300')\n    os._exit(0)\n\
         threading.Thread(target=hold).start()\ntime.sleep(0.05)\nlibc.syscall(60, 0)\n",
    },
    Unseen {
        tool: "texts",
        memory_mib: 256,
        prints: "100",
        script: "import os, sys, time\nr, w = os.pipe()\nfor _ in range(100):\n    if os.fork() == 0:\n        for _ in range(1000):\n            \
         os.read(os.open('/proc/self/maps', 0), 1)\n        os.write(w, b'x')\n        time.sleep(9)\n        os._exit(0)\n\
         n = 0\nwhile n < 100:\n    n += len(os.read(r, 100))\ntime.sleep(6)\nprint(n)\nsys.stdout.flush()\nos._exit(0)\n",
    },
    Unseen {
        tool: "records",
        memory_mib: 64,
        prints: "60",
        script: "import mmap, os, time\nos.chdir('/tmp')\nfor _ in range(900):\n    os.mkdir('\\n' * 250)\n    os.chdir('\\n' * 250)\n\
         f = os.open('f', os.O_RDWR | os.O_CREAT)\nos.ftruncate(f, 4096)\nm = mmap.mmap(f, 4096)\nkept = []\n\
         for _ in range(60):\n    kept.append(os.open('/proc/self/maps', 0))\n    while os.read(kept[-1], 1 << 22):\n        pass\n\
         time.sleep(1.5)\nprint(len(kept), flush=True)\nos._exit(0)\n",
    },
    Unseen {
        tool: "swapped",
        memory_mib: 64,
        prints: "480",
        script: "import os, socket, time\nfds = [os.open('/dev/null', 0) for _ in range(960)]\npairs = []\ntime.sleep(0.3)\n\
         for _ in range(480):\n    os.close(fds.pop())\n    os.close(fds.pop())\n    a, b = socket.socketpair()\n    \
         a.setblocking(False)\n    pairs.append((a, b))\n    try:\n        while True:\n            a.send(b'x' * 60000)\n    \
         except BlockingIOError:\n        pass\ntime.sleep(3)\nprint(len(pairs), flush=True)\nos._exit(0)\n",
    },
    Unseen {
        tool: "buffers",
        memory_mib: 64,
        prints: "400",
        script: "import socket, time\npairs = []\nfor _ in range(400):\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    \
         pairs.append((a, b))\n    try:\n        while True:\n            a.send(b'x' * 60000)\n    except BlockingIOError:\n        \
         pass\ntime.sleep(0.5)\nprint(len(pairs))\n",
    },
    Unseen {
        tool: "locks",
        // The kernel takes about 200 bytes for each.
        memory_mib: 32,
        prints: "180000",
        script: "import fcntl, os, struct, tempfile, time\nn, kept, folder = 0, [], tempfile.mkdtemp()\nfor i in range(100):\n    \
         f = os.open(folder + '/%d' % i, os.O_RDWR | os.O_CREAT)\n    kept.append(f)\n    for at in range(1800, 0, -1):\n        \
         fcntl.fcntl(f, 6, struct.pack('hhqqi4x', at % 2, 0, at * 2, 1, 0))\n        n += 1\ntime.sleep(1.5)\nprint(n)\n",
    },
    Unseen {
        tool: "watches",
        memory_mib: 32,
        prints: "200000",
        script: "import os, select, time\nn, kept = 0, []\nfds = [os.eventfd(0) if hasattr(os, 'eventfd') else os.dup(0) for _ in range(400)]\n\
         for _ in range(500):\n    e = select.epoll()\n    kept.append(e)\n    for f in fds:\n        e.register(f, 1)\n        n += 1\n\
         time.sleep(1.5)\nprint(n)\n",
    },
    Unseen {
        tool: "gone",
        memory_mib: 256,
        prints: "1",
        script: "import mmap\nhold = mmap.mmap(-1, 400 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)\nhold.close()\nprint(1)\n",
    },
];

#[test]
fn what_no_process_shows_ends_the_call_at_its_limit() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        for Unseen { tool: name, memory_mib, script, .. } in UNSEEN {
            for (name, mib) in [(name.to_string(), *memory_mib), (format!("{name}-wide"), 256 << 10)] {
                playground.tool(&name, "python", script, json!({"limits": {"memoryBytes": mib << 20}}));
            }
        }
        let wide = "[limits]\nmemory_bytes = 274_877_906_944\n[files]\nread = [{ path = \"./**\", why = \"t\" }]\n";
        playground.policy("wide", "esc:*", wide);
        playground.settle();
        for Unseen { tool: name, .. } in UNSEEN {
            let mut ended = playground.call(&format!("esc:{name}"), "{}");
            // Samples can be late on a busy machine: then it is judged once more.
            if ended.counted() == "sampled" && ended.kind() != "ResourceLimitError" {
                ended = playground.call(&format!("esc:{name}"), "{}");
            }
            let ((found, message), counted, out) = (ended.error(), ended.counted(), &ended.out["outputData"]);
            let at_limit = found == "ResourceLimitError" && message.contains("memoryBytes");
            assert!(at_limit, "{who:?} {name}, {counted}: {found} {message} {out}");
        }
        // The control, as one identity: within a limit that is wide enough, the same is done.
        if who == Who::ours() {
            std::thread::scope(|scope| {
                let playground = &playground;
                for Unseen { tool: name, prints, .. } in UNSEEN {
                    scope.spawn(move || {
                        let ended = playground.call(&format!("esc:{name}-wide"), "{}");
                        assert_eq!(ended.out["outputData"].to_string(), *prints, "{name}: {:?}", ended.error());
                    });
                }
            });
        }
    }
}

/// Waits on the first word of a file until it is woken, as programs do that share a lock in a file.
const WAITER: &str = "import ctypes, mmap, sys\n\
    f = open(sys.argv[1], 'r+b')\npage = mmap.mmap(f.fileno(), 4096)\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    word = ctypes.c_uint32.from_buffer(page)\nprint('waits', flush=True)\n\
    timeout = (ctypes.c_long * 2)(int(sys.argv[2]), 0)\nanswer = libc.syscall(202, ctypes.byref(word), 0, word.value, timeout, 0, 0)\n\
    print('woken' if answer == 0 else 'left', flush=True)\n";
/// Wakes one of them.
const WAKER: &str = "import ctypes, mmap, sys\n\
    f = open(sys.argv[1], 'r+b')\npage = mmap.mmap(f.fileno(), 4096)\nword = ctypes.c_uint32.from_buffer(page)\n\
    print(ctypes.CDLL(None).syscall(202, ctypes.byref(word), 1, 1, 0, 0, 0))\n";
/// Moves the waiting ones to a word of its own.
const MOVER: &str = "import ctypes, json, os, sys\n\
    path = os.environ.get('WORDS') or json.load(sys.stdin)['path']\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    libc.mmap.restype = ctypes.c_void_p\nf = os.open(path, os.O_RDONLY)\n\
    word = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, f, ctypes.c_long(0))\nown = (ctypes.c_uint32 * 4)()\n\
    answer = libc.syscall(202, ctypes.c_void_p(word), 3, 0, ctypes.c_long(100), ctypes.byref(own), 0)\n\
    print(json.dumps(answer if answer >= 0 else -ctypes.get_errno()))\n";

#[test]
fn waiters_on_a_granted_file_stay_where_they_are() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let words = playground.path("granted/ro/words");
        fs::write(&words, [1u8; 4096]).unwrap();
        let base = playground.base.display();
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**", format!("{base}/granted/ro/**")]}}});
        playground.tool("mover", "python", MOVER, asks);
        playground.policy(
            "words",
            "esc:*",
            &format!("[files]\nread = [{{ path = \"./**\", why = \"t\" }}, {{ path = \"{base}/granted/ro/**\", why = \"t\" }}]\n"),
        );
        for (name, script) in [("waiter", WAITER), ("waker", WAKER), ("mover", MOVER)] {
            fs::write(playground.path(&format!("home/{name}.py")), script).unwrap();
        }
        playground.settle();
        let run = |name: &str| {
            let mut command = playground.outside(PYTHON);
            command.arg(playground.path(&format!("home/{name}.py"))).arg(&words).env("WORDS", &words);
            command
        };
        for (inside, woken) in [(false, "left"), (true, "woken")] {
            // Only the control is not woken, and waits to the end.
            let patience = if inside { "60" } else { "5" };
            let mut waiter = run("waiter").arg(patience).stdout(Stdio::piped()).spawn().unwrap();
            let mut out = waiter.stdout.take().unwrap();
            out.read_exact(&mut [0; 6]).unwrap();
            // proc_pid_syscall(5): it is in futex(2).
            let call = format!("/proc/{}/syscall", waiter.id());
            wait_for("it waits", || fs::read_to_string(&call).is_ok_and(|call| call.starts_with("202 ")));
            let moved = if inside {
                let ended = playground.call("esc:mover", &json!({"path": words}).to_string());
                ended.out["outputData"].as_i64().unwrap_or_else(|| panic!("{who:?}: {}", ended.out))
            } else {
                // The control: without walls the waiting programs are moved, and a wake on their own word reaches none.
                String::from_utf8(finish(run("mover"), b"").stdout).unwrap().trim().parse().unwrap()
            };
            assert_eq!(moved, if inside { -i64::from(nix::libc::ENOSYS) } else { 1 }, "{who:?}");
            finish(run("waker"), b"");
            let mut said = String::new();
            out.read_to_string(&mut said).unwrap();
            waiter.wait().unwrap();
            assert_eq!(said.trim(), woken, "{who:?}, inside {inside}");
        }
    }
}

/// Keeps the CPUs busy from as many sessions as it is told, with the longest slices it can get. All begin at once, when
/// the last is there: else those that spin would keep the others from being made.
const SPINNERS: &str = "import ctypes, json, os, sys, time\n\
    given = json.load(sys.stdin)\nn, seconds = given['n'], given.get('s', 12)\nlibc = ctypes.CDLL(None)\nr, w = os.pipe()\n\
    for _ in range(n):\n    if os.fork() == 0:\n        os.close(w)\n        os.setsid()\n        \
    libc.syscall(314, 0, (ctypes.c_uint64 * 6)(48, 0, 0, 100000000, 0, 0), 0)\n        \
    os.read(r, 1)\n        end = time.time() + seconds\n        while time.time() < end:\n            pass\n        os._exit(0)\n\
    os.close(w)\nprint('ready', file=sys.stderr, flush=True)\ntime.sleep(seconds)\nprint(1)\n";

/// Held by the two tests below: the spinners of the control lie in no group, and would keep the other test waiting.
static SPINNING: Mutex<()> = Mutex::new(());

/// P15: calls end about as soon beside a tool that takes all the CPU it gets as they do without it.
#[test]
fn other_calls_are_in_time_beside_spinners() {
    let _alone = SPINNING.lock().unwrap_or_else(PoisonError::into_inner);
    for who in [Who::Root, Who::User] {
        if !who.possible() {
            skipped(1, "spinners as root need root");
            continue;
        }
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("spin", "python", SPINNERS, json!({"limits": {"cpuMs": 60_000}}));
        let hangs = json!({"execution": {"timeoutMs": 1500}});
        playground.tool("hangs", "python", "import time\ntime.sleep(60)\n", hangs);
        playground.without_breaker();
        playground.settle();
        let mut server = Server::start(&playground);
        // How long the longest of eight calls at once takes, all of which end at their time limit.
        let mut longest = |spinners: u64| {
            if spinners > 0 {
                server.call_n("spin", spinners);
                // They and the one that made them are there, or were ended for their sessions.
                let (script, before) = (playground.path("user_scripts/spin/main.py"), playground.records().len());
                let spinning = || processes_of(&script.display().to_string()).len() as u64 > spinners;
                wait_for("the spinners spin", || spinning() || playground.records().len() > before);
            }
            let before = playground.records().len();
            (0..8).for_each(|n| _ = server.call_n("hangs", n));
            let ended = || -> Vec<Value> {
                let records = playground.records().split_off(before);
                records.into_iter().filter(|record| record["tool"] == "esc:hangs").collect()
            };
            // Spinners that still run end with the server.
            wait_for("the calls end", || ended().len() == 8);
            let ended = ended();
            assert!(ended.iter().all(|record| record["outcome"] == "TimeoutError"), "{who:?}: {ended:?}");
            ended.iter().filter_map(|record| record["usage"]["wallMs"].as_u64()).max().unwrap()
        };
        let (alone, beside) = (longest(0), longest(110));
        assert!(beside * 10 <= alone * 25, "{who:?}: {beside} ms beside spinners, {alone} ms without");
    }
}

/// The control: what a fifth of the spinners do to a program beside them, outside of any group.
#[test]
fn spinners_outside_keep_everybody_waiting() {
    let _alone = SPINNING.lock().unwrap_or_else(PoisonError::into_inner);
    let playground = Playground::new(Who::User, "/var/tmp");
    for (name, script) in [
        ("spin", SPINNERS),
        (
            "work",
            "import time\nbegan, spent = time.time(), time.process_time()\n\
             while time.process_time() < spent + 0.2:\n    pass\nprint(time.time() - began)\n",
        ),
    ] {
        fs::write(playground.path(&format!("home/{name}.py")), script).unwrap();
    }
    let run = |name: &str| {
        let mut command = playground.outside(PYTHON);
        command.arg(playground.path(&format!("home/{name}.py")));
        command
    };
    let mut spin = run("spin").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    spin.stdin.take().unwrap().write_all(br#"{"n": 22, "s": 60}"#).unwrap();
    spin.stderr.take().unwrap().read_exact(&mut [0; 6]).unwrap();
    let marker = playground.path("home/spin.py").display().to_string();
    let took: f64 = String::from_utf8(finish(run("work"), b"").stdout).unwrap().trim().parse().unwrap();
    for (pid, _) in processes_of(&marker) {
        let _ = kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL);
    }
    spin.wait().unwrap();
    assert!(took > 0.5, "a fifth of a second of work took {took} s");
}

/// What the kernel does with a process that crashes, put back in the end.
struct CorePattern(String);

impl CorePattern {
    const FILE: &str = "/proc/sys/kernel/core_pattern";

    fn set(pattern: &str) -> CorePattern {
        let before = CorePattern(fs::read_to_string(Self::FILE).unwrap());
        fs::write(Self::FILE, pattern).unwrap();
        before
    }
}

impl Drop for CorePattern {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.0);
    }
}

#[test]
fn a_handler_of_core_dumps_gets_nothing() {
    if !is_root() {
        return skipped(1, "only root names a handler of core dumps");
    }
    for who in [Who::Root, Who::User] {
        let playground = Playground::new(who, "/var/tmp");
        // Other tests crash as well: told apart by the name of the process.
        let name = format!("core-{}", std::process::id());
        let crash = format!(
            "import ctypes, os, resource\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n\
             resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nif os.fork() == 0:\n    os.abort()\nos.wait()\nos.abort()\n"
        );
        playground.tool("crash", "python", &crash, json!({}));
        fs::write(playground.path("home/crash.py"), &crash).unwrap();
        playground.settle();
        let (handler, got) = (playground.path("state/handler"), playground.path("state/got"));
        fs::write(&handler, format!("#!/bin/sh\necho $1 >> {}\ncat > /dev/null\n", got.display())).unwrap();
        fs::set_permissions(&handler, fs::Permissions::from_mode(0o755)).unwrap();
        let count = || {
            std::thread::sleep(Duration::from_millis(500));
            fs::read_to_string(&got).unwrap_or_default().lines().filter(|line| *line == name).count()
        };
        let before = CorePattern::set(&format!("|{} %e", handler.display()));
        let ended = playground.call("esc:crash", "{}");
        let inside = count();
        let mut command = playground.outside(PYTHON);
        command.arg(playground.path("home/crash.py"));
        finish(command, b"");
        let outside = count();
        drop(before);
        assert_eq!(ended.error().0, "ScriptError", "{who:?}: {:?}", ended.error());
        assert_eq!((inside, outside), (0, 2), "{who:?}: a limit of 0 stops no handler behind a pipe, 1 does");
    }
}

#[test]
fn nothing_runs_where_nobody_tells_who_is_root() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("one", "python", "print(1)\n", json!({}));
        playground.settle();
        let call = |line: &str| {
            let mut command = playground.outside("/usr/bin/unshare");
            command.args(["-Urmpf", "/bin/sh", "-c", &format!("{line} && exec \"$@\""), "sh"]);
            let mut command = playground.host_by(command);
            command.args(["call", "esc:one", "--json", "--input", "{}"]);
            let ended = finish(command, b"");
            (ended.out, ended.stderr)
        };
        let (report, told) = call("mount -t proc proc /proc");
        if who == Who::User {
            assert_eq!(report["outputData"], 1, "control: {report} {told}");
        } else {
            assert!(told.contains("maps our id to uid 0 of the machine"), "{report} {told}");
        }
        // Without the overflow id every file is everybody's, for both: first the policies, then the audit log.
        let policies = playground.path("sandbox-policies");
        for (kind, mark) in [("SecurityError", "sandbox-policies: "), ("InternalError", " ")] {
            let (report, told) = call("mount -t proc -o subset=pid proc /proc");
            assert_eq!(report["error"]["type"], kind, "{who:?}: {report} {told}");
            let why =
                "belongs to another user (uid 0, which stands for everybody without an id in this user namespace)";
            assert!(told.contains(&format!("{mark}{why}")), "{who:?}: {told}");
            let _ = fs::remove_dir_all(&policies);
        }
    }
}
