//! Calls that end, or try not to end: limits, lifetime, streams. Each is a tool and a call of its own.

use super::playground::{PYTHON, Playground, Who, finish, is_root, skipped};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

pub struct Call {
    pub name: &'static str,
    pub wall: &'static str,
    pub promises: &'static str,
    /// `limits` and `execution` of the manifest.
    pub more: &'static str,
    pub script: &'static str,
    /// Bytes of padding in the input.
    pub input: usize,
    /// `ok <json>`, or `Type: part of the message`; `|` between endings that are both right.
    pub ending: &'static str,
    /// The same where memory and CPU are sampled, if it differs: a refused fork(2) is seen by the script alone,
    /// memory that belongs to no process (socket buffers) is not seen at all, nor is the CPU of children that live
    /// and vanish between two looks.
    pub sampled: &'static str,
    /// What the script prints outside, where nothing stops it; empty = it would do harm, or not end.
    pub control: &'static str,
}

const START: &str = "import json, os, signal, sys, time, mmap, socket, threading, ctypes\n\
    def say(v):\n    sys.stdout.write(json.dumps(v)); sys.stdout.flush()\n";

macro_rules! call {
    ($name:literal, $wall:literal, $promises:literal, $more:literal, $input:literal, $ending:literal, $sampled:literal, $control:literal, $script:literal) => {
        Call {
            name: $name,
            wall: $wall,
            promises: $promises,
            more: $more,
            script: $script,
            input: $input,
            ending: $ending,
            sampled: $sampled,
            control: $control,
        }
    };
}

pub const CALLS: &[Call] = &[
    // Processes.
    call!(
        "forty children of twenty",
        "limits",
        "P16",
        r#"{"limits":{"processes":20}}"#,
        0,
        "ResourceLimitError: processes",
        "ResourceLimitError: processes|ScriptError: code 1",
        r#"{"children":40}"#,
        "n = 0\nfor _ in range(40):\n    if os.fork() == 0:\n        time.sleep(1.5)\n        os._exit(0)\n    n += 1\nsay({'children': n})\n"
    ),
    call!(
        "sixty threads of twenty",
        "cgroup",
        "P16",
        r#"{"limits":{"processes":20}}"#,
        0,
        "ResourceLimitError: processes",
        "ResourceLimitError: processes|ScriptError: code 1",
        r#"{"threads":60}"#,
        "ts = [threading.Thread(target=time.sleep, args=(0.5,), daemon=True) for _ in range(60)]\n[t.start() for t in ts]\nsay({'threads': len(ts)})\n"
    ),
    call!(
        "fork bomb",
        "cgroup",
        "P14 P15 P16",
        r#"{"limits":{"processes":64},"execution":{"timeoutMs":1500}}"#,
        0,
        "TimeoutError: |ResourceLimitError: ",
        "",
        "",
        "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    ),
    call!(
        "zombies",
        "namespaces",
        "P16",
        r#"{}"#,
        0,
        r#"ok {"children":60}"#,
        "",
        r#"{"children":60}"#,
        "for _ in range(60):\n    if os.fork() == 0:\n        os._exit(0)\ntime.sleep(0.1)\nsay({'children': 60})\n"
    ),
    // Memory.
    call!(
        "one process",
        "cgroup",
        "P16",
        r#"{"limits":{"memoryBytes":67108864}}"#,
        0,
        "ResourceLimitError: memoryBytes",
        "",
        r#"{"mib":256}"#,
        "hold = [bytearray(b'x') * (1 << 20) for _ in range(256)]\nsay({'mib': len(hold)})\n"
    ),
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
    // CPU and time.
    call!(
        "busy for two seconds",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        "",
        r#"{"cpu":"spent"}"#,
        "while time.process_time() < 2:\n    pass\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "busy children",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        "",
        r#"{"cpu":"spent"}"#,
        "for _ in range(2):\n    if os.fork() == 0:\n        while time.process_time() < 1.5:\n            pass\n        os._exit(0)\n[os.wait() for _ in range(2)]\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "many short children",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        "",
        r#"{"cpu":"spent"}"#,
        "for _ in range(60):\n    p = os.fork()\n    if p == 0:\n        while time.process_time() < 0.04:\n            pass\n        os._exit(0)\n    os.waitpid(p, 0)\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "short children that nobody waits for",
        "cgroup",
        "P16",
        r#"{"limits":{"cpuMs":300}}"#,
        0,
        "ResourceLimitError: cpuMs",
        r#"ok {"cpu":"spent"}|ResourceLimitError: cpuMs"#,
        r#"{"cpu":"spent"}"#,
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(300):\n    p = os.fork()\n    if p == 0:\n        while time.process_time() < 0.008:\n            pass\n        os._exit(0)\n    try:\n        os.waitpid(p, 0)\n    except ChildProcessError:\n        pass\nsay({'cpu': 'spent'})\n"
    ),
    call!(
        "busy loop",
        "namespaces",
        "P14 P15",
        r#"{"execution":{"timeoutMs":400}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "while True:\n    pass\n"
    ),
    call!(
        "sleep",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":400}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "time.sleep(60)\n"
    ),
    call!(
        "output that never ends is no sign of life",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":500}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "while True:\n    sys.stdout.write(' ')\n    sys.stdout.flush()\n    time.sleep(0.01)\n"
    ),
    call!(
        "every signal ignored",
        "namespaces",
        "P14 P15",
        r#"{"execution":{"timeoutMs":400}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    ),
    // Scratch, files, descriptors.
    call!(
        "scratch is full",
        "scratch",
        "P16",
        r#"{"limits":{"scratchBytes":4194304}}"#,
        0,
        "ResourceLimitError: scratchBytes",
        "",
        r#"{"mib":8}"#,
        "with open('/tmp/fill-%d' % os.getpid(), 'wb') as f:\n    for _ in range(8):\n        f.write(b'x' * (1 << 20))\nos.unlink(f.name)\nsay({'mib': 8})\n"
    ),
    call!(
        "scratch and /dev/shm are one",
        "scratch",
        "P16",
        r#"{"limits":{"scratchBytes":4194304}}"#,
        0,
        "ResourceLimitError: scratchBytes",
        "",
        r#"{"mib":6}"#,
        "for folder in ('/tmp', '/dev/shm'):\n    f = open('%s/fill-%d' % (folder, os.getpid()), 'wb', 0)\n    globals()[folder] = f\n    for _ in range(3):\n        f.write(b'x' * (1 << 20))\nfor folder in ('/tmp', '/dev/shm'):\n    os.unlink(globals()[folder].name)\nsay({'mib': 6})\n"
    ),
    call!(
        "empty files for ever",
        "scratch",
        "P16",
        r#"{"limits":{"scratchBytes":1048576}}"#,
        0,
        "ResourceLimitError: scratchBytes",
        "",
        r#"{"files":20000}"#,
        "import shutil, tempfile\nd = tempfile.mkdtemp()\nfor n in range(20000):\n    os.close(os.open('%s/%d' % (d, n), os.O_CREAT | os.O_WRONLY))\nshutil.rmtree(d)\nsay({'files': 20000})\n"
    ),
    call!(
        "descriptors",
        "limits",
        "P16",
        r#"{"limits":{"openFiles":32}}"#,
        0,
        r#"ok {"errno":24}"#,
        "",
        r#"{"errno":0}"#,
        "fds = []\ntry:\n    while len(fds) < 100:\n        fds.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError as e:\n    assert len(fds) < 32, len(fds)\n    say({'errno': e.errno})\n    sys.exit()\nsay({'errno': 0})\n"
    ),
    call!(
        "one large file",
        "limits",
        "P16",
        r#"{"limits":{"fileBytes":65536}}"#,
        0,
        r#"ok {"errno":27}"#,
        "",
        r#"{"errno":0}"#,
        "f = open('/tmp/large-%d' % os.getpid(), 'wb', 0)\nos.unlink(f.name)\ntry:\n    for _ in range(32):\n        f.write(b'x' * 65536)\nexcept OSError as e:\n    say({'errno': e.errno})\n    sys.exit()\nsay({'errno': 0})\n"
    ),
    // Streams.
    call!(
        "output flood",
        "limits",
        "P15 P16 P17",
        r#"{"limits":{"outputBytes":65536}}"#,
        0,
        "ResourceLimitError: outputBytes",
        "",
        "",
        "while True:\n    os.write(1, b'x' * 65536)\n"
    ),
    call!(
        "output just over",
        "limits",
        "P16",
        r#"{"limits":{"outputBytes":1024}}"#,
        0,
        "ResourceLimitError: outputBytes",
        "",
        "",
        "say('x' * 1023)\n"
    ),
    call!(
        "output just fits",
        "limits",
        "P16",
        r#"{"limits":{"outputBytes":1024}}"#,
        0,
        "ok",
        "",
        "",
        "say('x' * 1022)\n"
    ),
    call!(
        "input over the limit",
        "limits",
        "P16",
        r#"{"limits":{"inputBytes":1024}}"#,
        4096,
        "ResourceLimitError: inputBytes",
        "",
        "",
        "say(1)\n"
    ),
    call!(
        "input never read",
        "limits",
        "P15",
        "{}",
        300_000,
        r#"ok {"done":1}"#,
        "",
        r#"{"done":1}"#,
        "time.sleep(0.2)\nsay({'done': 1})\n"
    ),
    call!(
        "input closed at once",
        "limits",
        "P15",
        "{}",
        900_000,
        r#"ok {"done":1}"#,
        "",
        r#"{"done":1}"#,
        "os.close(0)\ntime.sleep(0.2)\nsay({'done': 1})\n"
    ),
    call!(
        "large input and large output",
        "limits",
        "P15",
        "{}",
        900_000,
        r#"ok {"length":900000}"#,
        "",
        r#"{"length":900000}"#,
        "os.write(2, b'x' * 200000)\nn = len(json.load(sys.stdin)['padding'])\nsay({'length': n})\n"
    ),
    call!(
        "stdout closed early",
        "limits",
        "P15",
        "{}",
        0,
        r#"ok {"done":1}"#,
        "",
        r#"{"done":1}"#,
        "say({'done': 1})\nos.close(1)\nos.close(2)\ntime.sleep(0.3)\nos._exit(0)\n"
    ),
    call!(
        "stdout closed, never ends",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":500}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "say({'done': 1})\nos.close(1)\nos.close(2)\ntime.sleep(60)\n"
    ),
    // Lifetime.
    call!(
        "grandchild holds stdout",
        "namespaces",
        "P14 P15",
        "{}",
        0,
        r#"ok {"done":1}"#,
        "",
        "",
        "if os.fork() == 0:\n    time.sleep(60)\nsay({'done': 1})\n"
    ),
    call!(
        "daemon",
        "namespaces",
        "P14",
        "{}",
        0,
        r#"ok {"done":1}"#,
        "",
        "",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in (0, 1, 2):\n            os.close(fd)\n        time.sleep(60)\n    os._exit(0)\nos.wait()\nsay({'done': 1})\n"
    ),
    call!(
        "parent is stopped",
        "namespaces",
        "P15",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        r#"ok {"done":1}|TimeoutError: timed out"#,
        "",
        "",
        "if os.fork() == 0:\n    os.kill(os.getppid(), signal.SIGSTOP)\n    os._exit(0)\ntime.sleep(0.2)\nsay({'done': 1})\n"
    ),
    call!(
        "kills itself",
        "namespaces",
        "P14 P23",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        "ScriptError: ",
        "",
        "",
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    ),
    call!(
        "kills its group",
        "namespaces",
        "P9",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        r#"ok {"done":1}|ScriptError: "#,
        "",
        "",
        "os.kill(0, signal.SIGKILL)\nsay({'done': 1})\n"
    ),
    call!("segfault", "namespaces", "P23", "{}", 0, "ScriptError: SIGSEGV", "", "", "ctypes.string_at(8)\n"),
    call!("abort", "namespaces", "P23", "{}", 0, "ScriptError: signal", "", "", "os.abort()\n"),
    call!(
        "many children at the deadline",
        "namespaces",
        "P14 P15",
        r#"{"execution":{"timeoutMs":900}}"#,
        0,
        "TimeoutError: timed out",
        "",
        "",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor _ in range(50):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\ntime.sleep(60)\n"
    ),
];

fn fits(ending: &str, out: &Value) -> bool {
    let (kind, message) =
        (out["error"]["type"].as_str().unwrap_or("ok"), out["error"]["message"].as_str().unwrap_or_default());
    ending.split('|').any(|wanted| match wanted.split_once(": ") {
        Some((wanted, part)) if !wanted.starts_with("ok") => wanted == kind && message.contains(part),
        _ => {
            let value = wanted.strip_prefix("ok").unwrap_or(wanted).trim();
            out["success"] == true
                && (value.is_empty() || serde_json::from_str::<Value>(value).unwrap() == out["outputData"])
        }
    })
}

fn tool_name(call: &Call) -> String {
    call.name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

fn calls(who: Who, below: &str) {
    if !who.possible() {
        return skipped(CALLS.len(), "the suite as root needs root");
    }
    let mut playground = Playground::new(who, below);
    for call in CALLS {
        let more: Value = serde_json::from_str(call.more).unwrap_or_else(|e| panic!("{}: {e}", call.name));
        playground.tool(&tool_name(call), "python", &format!("{START}{}", call.script), more);
    }
    playground.settle();
    let before = playground.state(&[]);
    let mut wrong = Vec::new();
    for call in CALLS {
        let input = json!({"padding": "x".repeat(call.input)}).to_string();
        let ended =
            playground.call(&format!("esc:{}", tool_name(call)), if call.input == 0 { "{}" } else { &input }, &[]);
        let sampled = ended.counted() == "sampled" && !call.sampled.is_empty();
        let ending = if sampled { call.sampled } else { call.ending };
        if !fits(ending, &ended.out) {
            let (kind, message) = ended.error();
            let about = format!(
                "{kind}: {message}; output {}; logs {}; {}",
                ended.out["outputData"], ended.out["logs"], ended.stderr
            );
            let about: String = about.chars().take(600).collect();
            wrong.push(format!(
                "{} ({}; counted by {}): wanted {ending}, got {about}",
                call.name,
                call.promises,
                ended.counted()
            ));
        }
        let limit =
            serde_json::from_str::<Value>(call.more).unwrap()["execution"]["timeoutMs"].as_u64().unwrap_or(8_000);
        let allowed = Duration::from_millis(limit) + Duration::from_secs(3);
        if ended.took > allowed {
            wrong.push(format!("{}: took {:?}", call.name, ended.took));
        }
        playground.assert_quiet(call.name);
    }
    if playground.state(&[]) != before {
        wrong.push("a call changed the playground".into());
    }
    if !playground.canary_lives() {
        wrong.push("a process of the host was killed".into());
    }
    assert!(wrong.is_empty(), "{} calls, as {}:\n{}", wrong.len(), who.name(), wrong.join("\n"));
}

#[test]
fn calls_as_root() {
    calls(Who::Root, "/var/tmp");
}

#[test]
fn calls_as_an_ordinary_user() {
    calls(Who::User, "/var/tmp");
}

#[test]
fn calls_as_root_of_a_user_namespace() {
    if !is_root() {
        return skipped(CALLS.len(), "the suite as mapped root needs root to become an ordinary user first");
    }
    calls(Who::MappedRoot, "/tmp");
}

/// Without walls the same scripts do what inside was refused.
#[test]
fn calls_outside_reach_their_goal() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let mut wrong = Vec::new();
    for call in CALLS.iter().filter(|call| !call.control.is_empty()) {
        let script = playground.path("control.py");
        fs::write(&script, format!("{START}{}", call.script)).unwrap();
        let mut command = playground.outside(PYTHON);
        command.args(["-s", "-E", "-B"]).arg(&script);
        let ended = finish(command, json!({"padding": "x".repeat(call.input)}).to_string().as_bytes());
        let got: Value = serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null);
        if got != serde_json::from_str::<Value>(call.control).unwrap() {
            wrong.push(format!("{}: wanted {}, got {got}: {}", call.name, call.control, ended.stderr));
        }
    }
    assert!(wrong.is_empty(), "{} controls:\n{}", wrong.len(), wrong.join("\n"));
}
