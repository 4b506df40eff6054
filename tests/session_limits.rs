//! What a session may use while no call of it runs, and what its answers cost the host. Each attack
//! has a control.

use crate::http::Web;
use crate::prelude::*;

const ALLOWED: &str = "sessions = { max = 8, idle_ms = 600_000, why = \"a test\" }\n";

fn playground(who: Who, policy: &str) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    playground.policy("core", "core:run-code", &format!("{ALLOWED}{policy}"));
    playground.settle();
    playground
}

/// Runs code in the session of this name.
fn asked(web: &Web, session: &str, code: &str) -> Value {
    let input = json!({"language": "python", "code": code, "session": session});
    web.call("core:run-code", &json!({ "arguments": input }), &[])
        .json()
}

/// What the last expression of the code shows.
#[track_caller]
fn shown(web: &Web, session: &str, code: &str) -> Value {
    let answer = asked(web, session, code);
    assert_eq!(answer["success"], true, "{answer}");
    answer["outputData"]["results"][0]["text"].clone()
}

fn sessions(web: &Web) -> Vec<Value> {
    let answer = web.get("/v1/calls", &[]).json();
    answer["sessions"].as_array().unwrap().clone()
}

/// Memory that a process has, MiB.
fn resident_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}

/// Arms as many timers as it may, which continue it every 4 ms, and takes memory.
const TIMERS: &str = r#"
import ctypes, signal, sys, time
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
class Times(ctypes.Structure):
    _fields_ = [("each", Time), ("first", Time)]
for n in range(int(sys.argv[2])):
    timer, event = ctypes.c_void_p(), Event(0, signal.SIGCONT, 0, b"")
    if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)):
        break
    ns = 400_000_000 + 4_000_000 * n
    libc.timer_settime(timer, 0, ctypes.byref(Times(Time(0, 0), Time(ns // 10**9, ns % 10**9))), None)
print("armed", flush=True)
time.sleep(2)
kept = []
while len(kept) < 400:
    kept.append(b"x" * (4 << 20))
    time.sleep(0.005)
"#;

/// A pause changes the clock only: what timers wake meets its limits, and ends.
#[test]
fn a_paused_session_keeps_its_limits() {
    let playground = playground(Who::User, "[limits]\nmemory_bytes = 200_000_000\n");
    let web = Web::start(&playground, &[]);
    let marker = format!("woken-{}", std::process::id());
    let starts = |timers: u32| {
        format!(
            "import subprocess, sys\nx = subprocess.Popen([sys.executable, '-c', {}, '{marker}', '{timers}'], \
             stdout=subprocess.PIPE)\nx.stdout.readline()",
            json!(TIMERS)
        )
    };
    let peak = || {
        let all = processes_of(&marker);
        all.iter().map(|(pid, _)| resident_mib(*pid)).max()
    };
    // The control: without timers it sleeps through the pause.
    shown(&web, "a", &starts(0));
    std::thread::sleep(Duration::from_secs(3));
    assert!(peak().unwrap() < 100, "{:?}", peak());
    assert_eq!(shown(&web, "a", "1"), "1");
    end_all(&web);
    shown(&web, "b", &starts(4000));
    let mut most = 0;
    wait_for("it is ended", || {
        most = most.max(peak().unwrap_or(0));
        sessions(&web).is_empty()
    });
    assert!(most < 700, "{most} MiB");
    let answer = asked(&web, "b", "1");
    let session = &answer["outputData"]["session"];
    assert_eq!(session["new"], true, "{answer}");
}

/// Sends results of three forms each, 8 MiB together.
const RESULTS: &str = r#"
import gc, json, os
channel = [it for it in gc.get_objects() if type(it).__name__ == "Channel"][0]
def results(form, forms=3, frames=85):
    payload = b"{%s}" % b",".join(b'"k%d":%s' % (n, form) for n in range(forms))
    head = json.dumps({"message": {"result": {"isMainResult": False}}, "bytes": len(payload)}) + "\n"
    for _ in range(frames):
        data = memoryview(head.encode() + payload)
        while data:
            data = data[os.write(channel.results, data):]
"#;

/// What a session shows is no tree in the host, which would take forty times as much.
#[test]
fn shown_values_cost_the_host_their_text() {
    let limits = "[limits]\noutput_bytes = 16_000_000\ntimeout_ms = 110_000\n";
    let playground = playground(Who::ours(), limits);
    let web = Web::start(&playground, &[]);
    let peak_mib = || {
        let status = fs::read_to_string(format!("/proc/{}/status", web.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap() >> 10
    };
    let cost = |form: &str| {
        let before = peak_mib();
        let answer = asked(&web, "a", &format!("{RESULTS}\nresults({form})"));
        let results = answer["outputData"]["results"].as_array().unwrap();
        assert_eq!(results.len(), 85);
        assert_eq!(results[84]["extra"].as_object().unwrap().len(), 3);
        peak_mib() - before
    };
    let text = cost("b'\"' + b'x' * 32_000 + b'\"'");
    let tree = cost("b'[' + b'0, ' * 10_000 + b'0]'");
    // The same text as a tree takes some 300 MiB more.
    assert!(tree < 100 + text, "{tree} and {text} MiB");
    let many = format!("{RESULTS}\nresults(b'0', 100_000, 1)");
    let answer = asked(&web, "a", &many);
    assert_eq!(answer["error"]["type"], "ScriptError", "{answer}");
    assert_eq!(shown(&web, "a", "1"), "1", "the control");
}

/// What the files of a session take counts as its memory, and those of a call are gone with it.
#[test]
fn the_files_of_a_session_are_its_memory() {
    as_everyone("files of sessions", |who| {
        let playground = playground(who, "");
        let web = Web::start(&playground, &[]);
        let mib = |name: &str| {
            let all = sessions(&web);
            let session = all.iter().find(|it| it["session"] == name).unwrap();
            session["memoryBytes"].as_u64().unwrap() >> 20
        };
        let brings = |name: &str, code: &str| {
            let file = format!("data:text/plain;name=a.txt,{}", "a".repeat(3 << 20));
            let input = json!({"language": "python", "session": name, "code": code,
                "files": [file, file.replace("a.txt", "b.txt")]});
            let answer = web.call("core:run-code", &json!({ "arguments": input }), &[]);
            assert_eq!(answer.json()["success"], true, "{answer:?}");
        };
        shown(&web, "bare", "1");
        let bare = mib("bare");
        shown(
            &web,
            "scratch",
            "open('/tmp/x', 'wb').write(b'x' * (40 << 20))",
        );
        assert!(
            (bare + 38..bare + 80).contains(&mib("scratch")),
            "{bare} {}",
            mib("scratch")
        );
        brings("brings", "import os\nx = os.listdir('input')");
        assert_eq!(
            shown(&web, "brings", "len(x), os.listdir('input')"),
            "(2, [])"
        );
        brings("holds", "x = [open(f'input/{name}.txt') for name in 'ab']");
        assert!(
            mib("holds") >= mib("brings") + 5,
            "{} {}",
            mib("holds"),
            mib("brings")
        );
        assert_eq!(
            shown(&web, "holds", "len(x[0].read())"),
            (3 << 20).to_string()
        );
    });
}

/// Each call of a session may bring as many files as a call may; what code holds open takes of that.
#[test]
fn each_call_of_a_session_has_room_for_its_files() {
    let playground = playground(Who::ours(), "[limits]\nartifact_bytes = 4_000_000\n");
    let web = Web::start(&playground, &[]);
    let brings = |session: &str, code: &str| {
        let file = format!("data:text/plain;name=a.txt,{}", "a".repeat(3_000_000));
        let input =
            json!({"language": "python", "session": session, "code": code, "files": [file]});
        web.call("core:run-code", &json!({ "arguments": input }), &[])
            .json()
    };
    for _ in 0..3 {
        let answer = brings("a", "x = len(open('input/a.txt').read())\nx");
        let text = &answer["outputData"]["results"][0]["text"];
        assert_eq!(*text, "3000000", "{answer}");
    }
    assert_eq!(brings("b", "x = open('input/a.txt')")["success"], true);
    let answer = brings("b", "1");
    assert_eq!(answer["error"]["type"], "ResourceLimitError", "{answer}");
    assert!(answer.to_string().contains("artifactBytes"), "{answer}");
    assert_eq!(shown(&web, "a", "x"), "3000000", "the control");
}

/// Sessions that wait have a part of what their user has few of, as calls do.
#[test]
fn sessions_leave_their_user_half_of_its_signals() {
    let who = Who::Apart;
    let playground = playground(who, "");
    let config = playground.path("state/config.toml");
    fs::write(&config, "running_calls = 2\n").unwrap();
    let mut prlimit = playground.outside("/usr/bin/prlimit");
    prlimit.arg("--sigpending=400:400");
    let mut host = playground.host_by(prlimit);
    host.arg("--config").arg(&config);
    host.args(["serve", "--http", "127.0.0.1:0"]);
    let web = Web::run(host, who.uid()).expect("it serves");
    let arms = "import ctypes\nlibc = ctypes.CDLL(None)\nx = 0\n\
        while libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0: x += 1\nx";
    let held = (0..6).map(|n| shown(&web, &format!("s{n}"), arms));
    let held: Vec<u32> = held
        .map(|it| it.as_str().unwrap().parse().unwrap())
        .collect();
    assert!(held.iter().all(|it| *it > 0), "the control: {held:?}");
    assert!(held.iter().sum::<u32>() <= 200, "{held:?}");
}

/// Ends all sessions.
fn end_all(web: &Web) {
    for session in sessions(web) {
        let path = format!("/v1/calls/{}", session["id"].as_str().unwrap());
        assert_eq!(web.ask("DELETE", &path, &[], "").status, 202);
    }
    wait_for("none is left", || sessions(web).is_empty());
}
