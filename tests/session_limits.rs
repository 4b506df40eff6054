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
time.sleep(0.6)
kept = []
while len(kept) < 400:
    kept.append(b"x" * (4 << 20))
    time.sleep(0.001)
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
    let playground = playground(Who::ours(), "[limits]\noutput_bytes = 16_000_000\n");
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

/// Ends all sessions.
fn end_all(web: &Web) {
    for session in sessions(web) {
        let path = format!("/v1/calls/{}", session["id"].as_str().unwrap());
        assert_eq!(web.ask("DELETE", &path, &[], "").status, 202);
    }
    wait_for("none is left", || sessions(web).is_empty());
}
