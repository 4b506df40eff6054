//! What only the outside can judge: identities, the host's own memory, records, what reaches a
//! terminal, and what is left when the host dies.

use super::{called_by, unlayered};
use crate::prelude::*;

const SLEEPER: &str = "import os, sys, time, json, signal\n\
    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
    for _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(110)\n\
    time.sleep(110)\n";
/// The limit of calls that something else is to end.
const LONG: &str = "[limits]\ntimeout_ms = 120_000\n";

/// A call that is left running, once its script runs.
fn started(playground: &Playground, tool: &str) -> (Child, Vec<u32>) {
    let script = playground
        .path(&format!("user_scripts/{tool}/main.py"))
        .display()
        .to_string();
    let mut command = playground.host();
    command.args(["call", &format!("esc:{tool}"), "--json", "--input", "{}"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut found = Vec::new();
    wait_for(&format!("{tool} starts"), || {
        found = processes_of(&script)
            .into_iter()
            .map(|(pid, _)| pid)
            .collect();
        found.len() >= 4 || child.try_wait().unwrap().is_some()
    });
    assert!(
        found.len() >= 4,
        "{tool} did not start: {found:?}, {:?}",
        child.wait()
    );
    (child, found)
}

pub fn uids(pids: &[u32]) -> BTreeSet<u32> {
    let ids = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with("Uid:"))
            .unwrap_or_default()
            .to_owned();
        line.split_whitespace()
            .skip(1)
            .filter_map(|id| id.parse().ok())
            .collect::<Vec<u32>>()
    };
    pids.iter().flat_map(ids).collect()
}

#[test]
fn nobody_runs_as_uid_0_and_as_root_no_two_calls_share_a_uid() {
    for who in Who::all() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("first", "python", SLEEPER, json!({}));
        playground.tool("second", "python", SLEEPER, json!({}));
        playground.policy("sleepers", "esc:*", LONG);
        playground.settle();
        let (mut one, first) = started(&playground, "first");
        let (mut two, second) = started(&playground, "second");
        let (mine, theirs) = (uids(&first), uids(&second));
        assert!(
            mine.len() == 1 && theirs.len() == 1,
            "{who:?}: one uid a call: {mine:?} {theirs:?}"
        );
        assert!(
            !mine.contains(&0) && !theirs.contains(&0),
            "{who:?}: a tool runs as kernel uid 0"
        );
        assert_eq!(
            mine == theirs,
            who != Who::Root,
            "{who:?}: {mine:?} {theirs:?}"
        );
        for child in [&mut one, &mut two] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        playground.assert_quiet("both calls");
    }
}

#[test]
fn a_host_that_is_killed_leaves_nothing() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        playground.tool("sleeper", "python", SLEEPER, json!({}));
        playground.tool("next", "python", "print(1)\n", json!({}));
        playground.policy("sleeper", "esc:sleeper", LONG);
        playground.settle();
        let mounts = playground.mounts();
        for signal in ["TERM", "INT", "HUP", "KILL"] {
            let (mut child, pids) = started(&playground, "sleeper");
            let (host, groups) = (child.id(), groups_of(&pids));
            let sent = Command::new("/bin/kill")
                .args([&format!("-{signal}"), &host.to_string()])
                .status()
                .unwrap();
            assert!(sent.success());
            let died = Stopwatch::start();
            child.wait().unwrap();
            let took = died.elapsed();
            assert!(
                took < Duration::from_secs(10),
                "{who:?}: SIG{signal}: the host took {took:?}"
            );
            playground.assert_quiet(&format!("{who:?}: SIG{signal}"));
            assert_eq!(playground.mounts(), mounts, "{who:?}: SIG{signal}");
            wait_for("what only a kill can leave goes at the next start", || {
                playground.expect("esc:next", "{}", "ok 1");
                groups.iter().all(|group| !group.exists())
            });
        }
        let records = playground.records();
        let interrupted = records
            .iter()
            .filter(|r| r["outcome"] == "CancelledError")
            .count();
        assert_eq!(
            interrupted, 3,
            "{who:?}: a call that was interrupted is recorded; only SIGKILL takes the record"
        );
    }
}

#[test]
fn floods_do_not_make_the_host_grow() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["self"], "allowWrite": ["out/*.csv"]}}});
    let own = playground.tool("floods", "python", include_str!("floods.py"), asks);
    fs::create_dir_all(own.join("out")).unwrap();
    let files = "[files]\nread = [{ path = \"./**\", why = \"w\" }]\nwrite = \
        [{ path = \"./out/**\", why = \"w\" }]\n";
    playground.policy("escapes", "esc:*", &format!("{LONG}{files}"));
    playground.settle();
    let mut quiet = None;
    for does in [
        "quiet", "flood", "logs", "large", "many", "numbers", "objects", "levels",
    ] {
        let input = json!({ "do": does }).to_string();
        let (peak, report) = peak_of(&playground, "esc:floods", &input);
        match does {
            "flood" => assert_eq!(report["error"]["type"], "ResourceLimitError", "{report}"),
            "numbers" | "objects" | "levels" => assert_eq!(report["success"], true, "{does}"),
            _ => assert_eq!(report["outputData"], 1, "{report}"),
        }
        // The built-in log limit is 64 KiB, the report adds escapes.
        let logs = report["logs"].to_string().len();
        assert!(logs < 256 * 1024, "{does}: {logs} bytes of logs");
        // The last look at a host may come before it takes most, and a loaded machine adds noise; but
        // neither takes away what grows.
        let again = || peak_of(&playground, "esc:floods", &input).0;
        let quiet = *quiet.get_or_insert_with(|| peak.max(again()).max(again()));
        let most = quiet + 4 * 1024 + 2 * 1024;
        let peak = if peak < most { peak } else { again() };
        assert!(
            peak < most,
            "{does}: output limit × 4, and some noise: {peak}, {quiet} KiB"
        );
    }
}

/// The most memory that the host of a call takes until it ends, KiB, and the report.
fn peak_of(playground: &Playground, tool: &str, input: &str) -> (u64, Value) {
    // Into a file: a pipe that is not read while we look would hold the host up.
    let path = playground.path("state/report.json");
    let mut command = playground.host();
    command
        .args(["call", tool, "--json", "--input", input])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command
        .stdout(fs::File::create(&path).unwrap())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let kib = |line: &str| {
            line.strip_prefix("VmHWM:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse::<u64>()
                .ok()
        };
        peak = peak.max(status.lines().find_map(kib).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    (
        peak,
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap(),
    )
}

#[test]
fn a_long_secret_argument_takes_no_more_memory_than_a_plain_one() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    for (tool, secret) in [("plain", false), ("hides", true)] {
        let text = json!({"type": "string", "description": "d", "x-secret": secret});
        let parameters = json!({"parameters": {"type": "object", "properties": {"text": text}}});
        playground.tool(
            tool,
            "python",
            "import sys\nprint(len(sys.stdin.read()))\n",
            parameters,
        );
    }
    playground.settle();
    let lines: Vec<String> = (0..100_000).map(|n| format!("{n:08}")).collect();
    for (what, text) in [
        ("one line", "k".repeat(900 * 1024)),
        ("lines", lines.join("\n")),
    ] {
        let input = playground.path("home/input.json");
        fs::write(&input, json!({ "text": text }).to_string()).unwrap();
        in_time_once(|| {
            let [plain, hides] = ["esc:plain", "esc:hides"].map(|tool| {
                let (peak, report) = peak_of(&playground, tool, &format!("@{}", input.display()));
                assert_eq!(
                    report["success"],
                    true,
                    "{what}: {tool}: {:.2000}",
                    report.to_string()
                );
                peak
            });
            let is_alike = hides < plain + 24 * 1024;
            is_alike
                .then_some(())
                .ok_or_else(|| format!("{what}: {hides} KiB and {plain} KiB"))
        });
    }
}

#[test]
fn a_script_cannot_forge_or_suppress_its_record() {
    for who in Who::both() {
        let playground = Playground::new(who, "/var/tmp");
        let forged = "import sys, json\n\
            line = json.dumps({'call': 'forged', 'tool': 'esc:other', 'decision': 'allowed'})\n\
            sys.stderr.write('\\n' + line + '\\n\\r\\n' + line + '\\x00\\n')\n\
            for path in sys.argv + ['/proc/self/fd/%d' % n for n in range(3, 20)]:\n\
            \x20   try:\n        open(path, 'a').write(line)\n    except OSError:\n        pass\n\
            print(json.dumps('\\n' + line + '\\n'))\n";
        playground.tool("forger", "python", forged, json!({}));
        playground.tool("killed", "python", "import os\nos.abort()\n", json!({}));
        playground.settle();
        let user = "alice\n{\"call\":\"forged\"}";
        playground.call_with(
            "esc:forger",
            r#"{"x": "\n{\"call\":\"forged\"}\n"}"#,
            &["--user", user],
        );
        playground.call("esc:killed", "{}");
        playground.call("esc:none\n{\"call\":\"forged\"}", "{}");
        let records = playground.records();
        assert_eq!(records.len(), 3, "{who:?}: one record a call: {records:?}");
        assert!(
            records.iter().all(|record| record["call"] != "forged"),
            "{who:?}: {records:?}"
        );
        let outcomes: Vec<&str> = records
            .iter()
            .filter_map(|r| r["outcome"].as_str())
            .collect();
        assert_eq!(
            outcomes,
            ["success", "ScriptError", "ToolNotFoundError"],
            "{who:?}: {records:?}"
        );
        assert_eq!(records[0]["label"], user, "{who:?}: escaped, not cut");
        let log = fs::metadata(playground.path("state/audit.jsonl")).unwrap();
        assert_eq!(log.mode() & 0o777, 0o600, "{who:?}");
    }
}

#[test]
fn nothing_raw_reaches_a_terminal_a_log_line_or_a_record() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let evil = "\u{1b}[31m\u{1b}]0;title\u{7}\u{202e}\u{e0041}\u{9b}31m\u{200b}\r";
    let script = "import json, sys\ntext = sys.stdin.read()\n\
        sys.stderr.write(json.loads(text)['text'] + '\\n')\nsys.exit(text)\n";
    playground.tool("loud", "python", script, json!({}));
    playground.settle();
    for words in [&["--verbose"][..], &[], &["--json"]] {
        let mut command = playground.host();
        command
            .args([
                "call",
                "esc:loud",
                "--input",
                &json!({"text": evil}).to_string(),
                "--user",
                evil,
            ])
            .args(words);
        let ended = finish(command, b"");
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let shown = format!("{}{}", String::from_utf8_lossy(&ended.stdout), ended.stderr);
        let raw = |c: char| {
            (c.is_control() && c != '\n' && c != '\t') || "\u{202e}\u{e0041}\u{200b}".contains(c)
        };
        assert!(
            !shown.contains(raw),
            "{words:?}: {:?}",
            shown.chars().filter(|c| raw(*c)).collect::<String>()
        );
        assert!(
            shown.contains("[31m"),
            "{words:?}: what was said is shown, escaped: {shown}"
        );
    }
    let log = fs::read(playground.path("state/audit.jsonl")).unwrap();
    assert!(
        log.iter()
            .all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\n'),
        "the log is plain ASCII lines"
    );
}

/// An ordinary user whose machine gives no user namespaces: no layers, no call.
#[test]
fn a_missing_layer_refuses_by_name() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let own = playground.tool("weak", "python", "print(1)\n", json!({}));
    playground.settle();
    playground.expect("esc:weak", "{}", "ok 1");
    let mut command = playground.outside("/usr/bin/unshare");
    let line = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    command.args(["-Ur", "/bin/sh", "-c", line, "sh"]);
    let ended = called_by(&playground, command, "esc:weak", "{}");
    let report = &ended.out;
    assert!(
        report["outputData"].is_null(),
        "it ran without layers: {report}"
    );
    assert_eq!(
        (ended.code, ended.kind()),
        (Some(4), "CapabilityError"),
        "{report} {}",
        ended.stderr
    );
    assert!(
        format!("{report}{}", ended.stderr).contains("namespace"),
        "the missing thing is named: {ended:?}"
    );
    assert!(
        !report.to_string().contains(&own.display().to_string()),
        "{report}"
    );
}

#[test]
fn new_files_belong_to_the_owner_of_the_folder() {
    for who in Who::all() {
        let playground = Playground::new(who, "/var/tmp");
        let script = "import json\nfrom pathlib import Path\nhere = Path(__file__).parent\n\
            (here / 'out' / 'made.txt').write_text('made')\n(here / 'out' / 'mine').mkdir()\n\
            print(json.dumps((here / 'private.txt').read_text()))\n";
        let asks = json!({"securityContext": {"fileAccess": {"allowRead": ["./**"], "allowWrite": ["out/**"]}}});
        let own = playground.tool("maker", "python", script, asks);
        fs::create_dir_all(own.join("out")).unwrap();
        fs::write(own.join("private.txt"), "private").unwrap();
        playground.allow("escapes", "esc:*", &["./**"], &["./out/**"]);
        playground.settle();
        fs::set_permissions(own.join("private.txt"), fs::Permissions::from_mode(0o600)).unwrap();
        playground.expect("esc:maker", "{}", "ok \"private\"");
        let owner = fs::metadata(&own).unwrap();
        for name in ["out/made.txt", "out/mine"] {
            let made = fs::metadata(own.join(name)).unwrap();
            assert_eq!(
                (made.uid(), made.gid()),
                (owner.uid(), owner.gid()),
                "{who:?}: {name}"
            );
        }
    }
}

#[test]
fn arguments_widen_nothing() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    let script = "import json, sys\ngiven = json.load(sys.stdin)\ntry:\n    \
        open(given['path'])\n    print('\"seen\"')\nexcept FileNotFoundError:\n    \
        print('\"absent\"')\n";
    playground.tool("asker", "python", script, json!({}));
    playground.settle();
    let path = playground.path("secret/secret.txt");
    let wide = json!({"path": path, "allowRead": ["/**"], "securityContext": {"fileAccess": {"allowRead": ["/**"]}}, "env": {"HOME": "/"}});
    let ended = playground.call_with(
        "esc:asker",
        &wide.to_string(),
        &["--timeout-ms", "99999999"],
    );
    assert_eq!(fits("ok \"absent\"", &ended), Ok(()));
    assert_eq!(
        unlayered(&playground, "asker", &wide.to_string()).out,
        "seen",
        "the control: without layers it sees it"
    );
}

/// The kernel counts descriptors that are being sent for each uid, and an ordinary user's calls
/// share one.
#[test]
fn descriptors_on_their_way_stop_no_other_call() {
    let playground = Playground::new(Who::Apart, "/var/tmp");
    let send = "import array, json, socket, sys, time\nkept, sent, most = [], 0, \
        json.load(sys.stdin)['most']\ndef send():\n    global sent\n    while sent < most:\n        \
        pair = socket.socketpair()\n        pair[0].sendmsg([b'x'], [(1, 1, array.array('i', [0] * \
        250))])\n        kept.append(pair)\n        sent += 250\n    return sent\ndef \
        tried():\n    try:\n        return send()\n    except OSError as e:\n        return \
        e.errno\n";
    // It goes on, since a control that sends at the same time takes some of what it could send.
    playground.tool(
        "sender",
        "python",
        &format!("{send}for _ in range(1100):\n    tried()\n    time.sleep(0.1)\n"),
        json!({}),
    );
    playground.policy("sender", "esc:sender", LONG);
    playground.tool("next", "python", "print(1)\n", json!({}));
    playground.settle();
    fs::write(
        playground.path("home/send.py"),
        format!("{send}print(tried())\n"),
    )
    .unwrap();
    let few = |most: u64| {
        let mut command = playground.outside("/bin/sh");
        command.args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"]);
        command
    };
    let mut sender = playground.host_by(few(1024));
    sender.args([
        "call",
        "esc:sender",
        "--json",
        "--input",
        r#"{"most": 100000}"#,
    ]);
    let mut sender = sender
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The control: a program of that user with a lower limit can send none, once the sender has
    // sent all it can.
    let mut other = String::new();
    while other != "109" {
        assert!(
            sender.try_wait().unwrap().is_none(),
            "the sender ended, and others could still send: {other}"
        );
        let mut command = few(512);
        command.arg(PYTHON).arg(playground.path("home/send.py"));
        other = finish(command, br#"{"most": 250}"#).text().trim().into();
    }
    let ended = called_by(&playground, few(1024), "esc:next", "{}");
    assert!(
        sender.try_wait().unwrap().is_none(),
        "the sender still runs"
    );
    assert_eq!(fits("ok 1", &ended), Ok(()));
    sender.kill().unwrap();
    sender.wait().unwrap();
}

#[test]
fn variables_of_a_call_are_gone_with_it() {
    let playground = Playground::new(Who::ours(), "/var/tmp");
    // How long its own TOKEN is, and which variables there are besides.
    let script = "import json, os\ntoken = os.environ.pop('TOKEN', 'none')\n\
        print(json.dumps({'length': len(token), 'names': sorted(os.environ)}))\n";
    playground.tool(
        "vars",
        "python",
        script,
        json!({"execution": {"env": {"TOKEN": "none"}}}),
    );
    let text = json!({"type": "string", "description": "d"});
    let method = json!({"type": "service-method", "serviceName": "ExternalScriptExecutionService",
        "methodName": "executeScript"});
    let more = json!({
        "parameters": {"type": "object", "properties": {"scriptPath": text, "language": text,
            "env": {"type": "object", "description": "d", "additionalProperties": {"type": "string"}}}},
        "securityContext": {"fileAccess": {"allowRead": ["self"]}},
    });
    fs::write(
        playground.path("tool-defs/runs.tool.json"),
        manifest("esc:runs", method, more).to_string(),
    )
    .unwrap();
    playground.settle();
    let mut server = Server::start(&playground);
    let mut names = BTreeSet::new();
    // The longest fits neither a message nor a pipe.
    for length in [4, 1000, 4, 32_000, 4] {
        let mut arguments = json!({"scriptPath": "vars/main.py", "language": "python"});
        if length != 4 {
            arguments["env"] = json!({"TOKEN": "\u{1}".repeat(length)});
        }
        let answer = server.called("esc:runs", arguments);
        let told = &answer["result"]["structuredContent"]["outputData"];
        assert_eq!(told["length"], length, "{answer}");
        names.insert(told["names"].to_string());
        assert_eq!(server.holds_at_rest().1, 1, "one launcher serves them all");
    }
    assert_eq!(names.len(), 1, "{names:?}");
}
