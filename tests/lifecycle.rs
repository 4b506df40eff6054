//! Lifecycle: one server, fifty rounds of bad tools among good ones; afterwards nothing is left.

use crate::prelude::*;

/// (name, script, wanted type). `good` answers with what it was given.
pub const TOOLS: &[(&str, &str, &str)] = &[
    (
        "good",
        "import json, sys\nprint(json.dumps({'n': json.load(sys.stdin)['n']}))\n",
        "none",
    ),
    (
        "segfault",
        "import ctypes\nctypes.string_at(8)\n",
        "ScriptError",
    ),
    (
        "selfkill",
        "import os\nos.kill(os.getpid(), 9)\nos._exit(9)\n",
        "ScriptError",
    ),
    ("forker", FORKER, "none"),
    ("bomb", BOMB, "TimeoutError ResourceLimitError"),
    (
        "flood",
        "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n",
        "ResourceLimitError",
    ),
    (
        "logger",
        "import os\nfor _ in range(200):\n    os.write(2, b'x' * 65536)\nprint('{\"n\": 0}')\n",
        "none",
    ),
    ("sleeper", "import time\ntime.sleep(60)\n", "TimeoutError"),
    (
        "memory",
        "hold = [bytearray(b'x') * (1 << 20) for _ in range(400)]\n",
        "ResourceLimitError",
    ),
    ("leaver", LEAVER, "none"),
];
const FORKER: &str = "import os, time\nfor _ in range(10):\n    \
    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\nprint('{\"n\": 0}')\n";
const BOMB: &str =
    "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n";
/// The folders of the call, `/tmp/call/{input,output}`, are there from its start.
const LEAVER: &str = "import os, json\nbefore = os.listdir('/dev/shm')\nfor at, folders, files in \
    os.walk('/tmp'):\n    before += [n for n in folders + files if at + '/' + n not in \
    ('/tmp/call', '/tmp/call/input', '/tmp/call/output')]\nfor n in ('/tmp/left', \
    '/dev/shm/left'):\n    open(n, \
    'w').write('x')\nprint(json.dumps({'n': len(before)}))\n";

pub fn playground(who: Who) -> Playground {
    let playground = Playground::new(who, "/var/tmp");
    let rest = "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\n\
                [limits]\ntimeout_ms = 110_000\n";
    playground.policy("default", "*", rest);
    for (name, script, _) in TOOLS {
        let mut more = json!({});
        match *name {
            "sleeper" => more = json!({"execution": {"timeoutMs": 1500}}),
            "bomb" => more = json!({"execution": {"timeoutMs": 2000}, "limits": {"processes": 30}}),
            "memory" => more["limits"] = json!({"memoryBytes": 67_108_864}),
            "forker" => more["limits"] = json!({"processes": 30}),
            _ => {}
        }
        playground.tool(name, "python", script, more);
    }
    playground.tool(
        "waits",
        "python",
        "import time\ntime.sleep(0.5)\nprint('{\"n\": 0}')\n",
        json!({}),
    );
    playground.settle();
    playground
}

/// Names below a folder; what `toolhost` makes must not stay.
fn names(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| !n.contains("toolhost-test-"))
        .collect()
}

/// What this machine shows before a host runs.
pub struct Before {
    mounts: Vec<String>,
    temporary: BTreeSet<String>,
}

impl Before {
    pub fn of(playground: &Playground) -> Before {
        Before {
            mounts: playground.mounts(),
            temporary: names("/tmp"),
        }
    }

    /// Nothing is left of this host, which has ended.
    pub fn assert_unchanged(&self, playground: &Playground) {
        let who = playground.who;
        playground.assert_quiet("the server");
        assert_eq!(playground.mounts(), self.mounts, "{who:?}");
        // Other hosts on this machine keep compiled modules in /tmp; this one was given a folder of
        // its own for that.
        let ours =
            |name: &&String| name.contains("toolhost") && !name.starts_with("toolhost-wasm-");
        let mut new: Vec<String> = names("/tmp")
            .difference(&self.temporary)
            .filter(ours)
            .cloned()
            .collect();
        new.extend(names(&playground.path("state/tmp").display().to_string()));
        assert!(new.is_empty(), "{who:?}: temporary files: {new:?}");
    }
}

pub fn assert_no_script_runs(playground: &Playground) {
    let scripts = processes_of(&playground.path("user_scripts").display().to_string());
    let running: Vec<_> = scripts
        .iter()
        .filter(|(_, line)| line.contains("main.py"))
        .collect();
    assert!(running.is_empty(), "{:?}: {running:?}", playground.who);
}

/// Descriptors that the server holds for each launcher that it keeps. Concurrent calls make it keep
/// more launchers.
fn each_launcher(server: &mut Server) -> usize {
    for at_once in 2..6 {
        let (before, few) = server.holds_at_rest();
        let ids: Vec<u64> = (0..at_once).map(|n| server.call_n("waits", n)).collect();
        assert_eq!(server.answers(&ids).len(), ids.len());
        let (mut after, mut more) = server.holds_at_rest();
        // What ended may be reaped late.
        wait_for("all launchers hold alike", || {
            (after, more) = server.holds_at_rest();
            more <= few || (after - before).is_multiple_of(more - few)
        });
        if more > few {
            return (after - before) / (more - few);
        }
    }
    panic!("calls at once leave no launcher");
}

fn rounds_leave_nothing(who: Who, rounds: usize) {
    let playground = playground(who);
    let before = Before::of(&playground);
    fs::create_dir(playground.path("state/tmp")).unwrap();
    playground.without_breaker();
    playground.settle();
    let mut server = Server::start(&playground);
    // Whatever the server opens once is open after one round of each.
    let warm: Vec<u64> = TOOLS
        .iter()
        .map(|(name, ..)| server.call_n(name, 0))
        .collect();
    assert_eq!(server.answers(&warm).len(), warm.len());
    let (descriptors, launchers) = server.holds_at_rest();
    let each = each_launcher(&mut server);
    for round in 0..rounds as u64 {
        // Each bad one in its turn, among good ones.
        let tools = [
            TOOLS[0],
            TOOLS[1 + round as usize % (TOOLS.len() - 1)],
            TOOLS[0],
        ];
        let ids = tools.map(|(name, ..)| server.call_n(name, round));
        let answers = server.answers(&ids);
        for (id, (name, _, wanted)) in ids.iter().zip(tools) {
            let answer = &answers[id];
            let got = kind(answer);
            assert!(
                wanted.split(' ').any(|w| w == got),
                "{who:?}: round {round}: {name}: wanted {wanted}: {answer}"
            );
            let n = &answer["result"]["structuredContent"]["n"];
            match name {
                "good" => assert_eq!(n, round, "{who:?}: round {round}: {answer}"),
                "leaver" => assert_eq!(
                    n, 0,
                    "{who:?}: round {round}: something was left for this call: {answer}"
                ),
                _ => {}
            }
        }
    }
    // How many launchers are kept depends on how many calls met; beyond theirs not one descriptor
    // may stay.
    wait_for("no descriptor is left", || {
        let (now, kept) = server.holds_at_rest();
        now + launchers * each == descriptors + kept * each
    });
    assert_no_script_runs(&playground);
    drop(server.to.take());
    let gone = format!("{who:?}: the server goes with its client");
    within(Duration::from_secs(30), &gone, || {
        server.child.try_wait().unwrap().is_some()
    });
    before.assert_unchanged(&playground);
    let records = playground
        .records()
        .iter()
        .filter(|record| record["tool"] != "esc:waits")
        .count();
    assert_eq!(
        records,
        rounds * 3 + TOOLS.len(),
        "{who:?}: one record a call"
    );
}

#[test]
fn after_fifty_rounds_nothing_is_left() {
    rounds_leave_nothing(Who::ours(), 50);
    // Without root there are other groups, mounts and ids: one round of each bad tool.
    match is_root() {
        true => rounds_leave_nothing(Who::User, TOOLS.len() - 1),
        false => skipped(1, "an ordinary user beside root, which only root can play"),
    }
}

/// A host that is killed in the middle takes everything with it.
#[test]
fn a_server_that_is_killed_leaves_nothing() {
    for who in Who::both() {
        let playground = playground(who);
        let mounts = playground.mounts();
        for round in 0..5 {
            let mut server = Server::start(&playground);
            for tool in ["bomb", "flood", "forker", "good", "sleeper", "memory"] {
                server.call_n(tool, round);
            }
            std::thread::sleep(Duration::from_millis(100 * (round + 1)));
            let host = server.child.id();
            // A keeper that somebody stopped ends as well.
            let all = processes_of("toolhost-launcher").into_iter();
            let all = all.map(|(pid, _)| pid);
            let keepers: Vec<u32> = all.filter(|pid| parent_of(*pid) == Some(host)).collect();
            signal_all(&keepers, Signal::SIGSTOP);
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            playground.assert_quiet(&format!("{who:?}: killed in round {round}"));
            assert_eq!(playground.mounts(), mounts, "{who:?}");
            let mut next = Server::start(&playground);
            let answer = next.called("esc:good", json!({"n": 7}));
            assert_eq!(
                answer["result"]["structuredContent"]["n"], 7,
                "{who:?}: {answer}"
            );
        }
    }
}

/// A launcher that is kept between calls must not show its grants as they were.
#[test]
fn grants_are_looked_at_anew_for_each_call() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json\nfrom pathlib import Path\nhere = Path(__file__).parent\n\
        print(json.dumps({'n': (here / 'data' / 'n.txt').read_text()}))\n";
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self", "data/**"], "allowWrite": ["out/**"]}}});
    let own = playground.tool("looker", "python", script, asks);
    for (folder, text) in [("data", "old"), ("fresh", "new"), ("out", "")] {
        fs::create_dir_all(own.join(folder)).unwrap();
        fs::write(own.join(folder).join("n.txt"), text).unwrap();
    }
    playground.allow("escapes", "esc:*", &["./**"], &["./out/**"]);
    playground.settle();
    let mut server = Server::start(&playground);
    let mut call = |wanted: &str| {
        let answer = server.called("esc:looker", json!({"n": 0}));
        let told = answer["result"]["structuredContent"]["n"]
            .as_str()
            .map_or(kind(&answer), str::to_owned);
        assert!(
            told == wanted || wanted.ends_with("Error") && told.contains(wanted),
            "wanted {wanted}: {answer}"
        );
    };
    call("old");
    fs::create_dir(own.join("out/node_modules")).unwrap();
    call("SecurityError");
    fs::remove_dir(own.join("out/node_modules")).unwrap();
    call("old");
    // The granted folder becomes a link.
    fs::rename(own.join("data"), own.join("stale")).unwrap();
    symlink(playground.path("secret"), own.join("data")).unwrap();
    call("SecurityError");
    fs::remove_file(own.join("data")).unwrap();
    fs::rename(own.join("fresh"), own.join("data")).unwrap();
    call("new");
}

/// What was stopped while it was idle begins no call, so another takes its place: the call does not
/// wait for its limit.
#[cfg(feature = "wasi")]
#[test]
fn a_stopped_idle_launcher_or_worker_is_replaced() {
    let playground = playground(Who::ours());
    playground.tool("module", "wasm", crate::modules::GOOD, json!({}));
    playground.settle();
    assert_eq!(
        playground.call("esc:module", "{}").out["outputData"],
        1,
        "it is compiled"
    );
    let mut server = Server::start(&playground);
    for marker in ["toolhost-launcher", "toolhost-wasm-worker"] {
        assert_eq!(words(&server.called("esc:module", json!({}))), "1");
        let good = server.called("esc:good", json!({"n": 7}));
        assert_eq!(good["result"]["structuredContent"]["n"], 7, "{good}");
        let host = server.child.id();
        let is_below = |pid: u32| {
            std::iter::successors(Some(pid), |pid| parent_of(*pid)).any(|pid| pid == host)
        };
        let stopped: Vec<u32> = processes_of(marker)
            .into_iter()
            .map(|(pid, _)| pid)
            .filter(|pid| is_below(*pid))
            .collect();
        assert!(!stopped.is_empty(), "{marker}");
        signal_all(&stopped, Signal::SIGSTOP);
        let is_stopped = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        wait_for("those that are left are stopped", || {
            let is_gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
            stopped.iter().all(|pid| is_stopped(pid) || is_gone(pid))
                && stopped.iter().any(is_stopped)
        });
        let mut called = |tool: &str, arguments: Value| {
            let began = Stopwatch::start();
            let answer = server.called(tool, arguments);
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(20), "{tool}: {waited:?}");
            answer
        };
        assert_eq!(words(&called("esc:module", json!({}))), "1", "{marker}");
        let good = called("esc:good", json!({"n": 8}));
        assert_eq!(
            good["result"]["structuredContent"]["n"], 8,
            "{marker}: {good}"
        );
    }
}

/// Killing the launchers of idle tools costs the next call a start, but causes no error.
#[cfg(feature = "wasi")]
#[test]
fn a_killed_idle_launcher_is_replaced() {
    let playground = playground(Who::ours());
    // The launcher of a worker is one, too.
    playground.tool("module", "wasm", crate::modules::GOOD, json!({}));
    playground.settle();
    assert_eq!(
        playground.call("esc:module", "{}").out["outputData"],
        1,
        "it is compiled"
    );
    let mut server = Server::start(&playground);
    for round in 0..10 {
        let asked = ["good", "good"].map(|name| server.call_n(name, round));
        let answers = server.answers(&asked);
        for id in asked {
            assert_eq!(
                answers[&id]["result"]["structuredContent"]["n"], round,
                "{answers:?}"
            );
        }
        let module = server.call_n("module", round);
        let answers = server.answers(&[module]);
        assert_eq!(words(&answers[&module]), "1", "{answers:?}");
        // Keepers, and the launchers below them, of this server.
        let below = |above: &[u32]| -> Vec<u32> {
            let all = processes_of("toolhost-launcher")
                .into_iter()
                .map(|(pid, _)| pid);
            all.filter(|pid| parent_of(*pid).is_some_and(|parent| above.contains(&parent)))
                .collect()
        };
        let keepers = below(&[server.child.id()]);
        let launchers = below(&keepers);
        assert!(!keepers.is_empty() && !launchers.is_empty(), "none is kept");
        // Odd rounds: only the inner process, so that the keeper still holds the socket when the
        // next call comes.
        let killed = if round % 2 == 1 {
            launchers.clone()
        } else {
            [keepers, launchers.clone()].concat()
        };
        for pid in killed {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        // Waits until they are dead: a dying launcher could still receive the next call's message.
        let lives =
            |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        while launchers.iter().any(lives) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
