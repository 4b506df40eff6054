//! The binary: settings, input, output, exit codes. What needs no script runs through `core:*`
//! refusals.

use crate::prelude::*;

const PYTHON: &str = "core:execute-python-script";
const PARAMETERS: &str = "ParameterValidationError";

/// Whatever goes wrong, `call --json` prints one outcome with its type, and the exit code says who
/// must act.
fn outcome(host: &Host, tool: &str, more: &[&str], (kind, code): (&str, i32), words: &str) {
    let (exit, out, err) = host.run(&[&["call", tool, "--json"], more].concat());
    let report: Value =
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{more:?}: {e}: {out:?} {err}"));
    assert_eq!(
        (report["error"]["type"].as_str(), exit),
        (Some(kind), code),
        "{more:?}: {report}"
    );
    assert_eq!(
        (&report["success"], out.lines().count()),
        (&Value::Bool(false), 1),
        "{more:?}"
    );
    for field in [
        "id",
        "tool",
        "version",
        "logs",
        "usage",
        "layers",
        "denials",
        "artifacts",
        "digests",
    ] {
        assert!(report.get(field).is_some(), "{field} is missing: {report}");
    }
    assert!(
        !out.contains(host.folder.path().to_str().unwrap()) || more.concat().contains('@'),
        "{out}"
    );
    assert!(
        !err.is_empty() && err.contains(words),
        "the person is told too: {words}: {err}"
    );
}

#[test]
fn every_failure_before_a_run_is_one_outcome_and_its_exit_code_says_who_must_act() {
    let host = host();
    let binary = format!("@{}", host.put("binary.json", b"\xff\xfe\x00"));
    let absolute = format!(
        "@{}",
        host.put("input.json", "{\"scriptPath\": \"/from-a-file.py\"}")
    );
    for (more, ends, words) in [
        (&["scriptPath=../x.py"][..], ("SecurityError", 3), ""),
        (
            &["scriptPath=a.py", "timeoutMs=abc"],
            (PARAMETERS, 2),
            "'timeoutMs' must be an integer.",
        ),
        (&["--input", &absolute], ("SecurityError", 3), ""),
        (&[], (PARAMETERS, 2), "scriptPath"),
        (&["x=1", "x=2"], (PARAMETERS, 2), ""),
        (&["no-equals"], (PARAMETERS, 2), ""),
        (&["x=1", "--input", "{}"], (PARAMETERS, 2), ""),
        (&["--input", " "], (PARAMETERS, 2), ""),
        (&["--input", "@/does/not/exist"], (PARAMETERS, 2), ""),
        (&["--input", &binary], (PARAMETERS, 2), ""),
        (&["--input", "{\"scriptPath\":"], (PARAMETERS, 2), ""),
        (&["--tools", "/does/not/exist"], (PARAMETERS, 2), ""),
    ] {
        outcome(&host, PYTHON, more, ends, words);
    }
    outcome(&host, "no:such", &[], ("ToolNotFoundError", 2), "no:such");
    host.put("config/toolhost/config.toml", "surprise = 1\n");
    outcome(&host, PYTHON, &[], ("InternalError", 4), "");
    host.put("config/toolhost/config.toml", "");
    host.policy("surprise = 1\n");
    outcome(&host, PYTHON, &[], ("SecurityError", 3), "");
    fs::remove_dir_all(host.path("sandbox-policies")).unwrap();
    let log = host.path("state/toolhost/audit.jsonl");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let (code, _, err) = host.run(&["call", "no:such"]);
    assert!(code == 4 && err.contains("--audit-log"), "{err}");
}

#[test]
fn usage_errors_are_the_callers_and_serve_will_not_take_the_current_folder_for_a_root() {
    let host = host();
    let commands = "call;nonsense;call a:b --scripts /no;call a:b --policies /no;call a:b --config \
                    /no;call a:b --audit-log /no/audit.jsonl;list --root /etc/passwd;list --tools \
                    /etc/passwd;serve;test";
    for command in commands.split(';') {
        let (code, _, err) = host.run(&command.split(' ').collect::<Vec<_>>());
        assert!(code == 2 && !err.is_empty(), "{command}: {err}");
    }
    let (code, out, _) = host.run(&["--help"]);
    assert!(code == 0 && out.contains("call") && out.contains("serve"));
    for (verb, words) in [
        (["serve", "--stdio"], "--root"),
        (["call", "a:b"], "no manifest in or below"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolhost"));
        command
            .env_remove("TOOLHOST_ROOT")
            .current_dir(host.folder.path());
        command
            .env("XDG_STATE_HOME", host.path("state"))
            .env("XDG_CONFIG_HOME", host.folder.path());
        let output = command.args(verb).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && said.contains(words),
            "{verb:?}: {said}"
        );
    }
}

#[test]
fn input_comes_from_a_pipe_and_a_silent_pipe_does_not_hang() {
    let host = host();
    for more in [&["--input", "-"][..], &[]] {
        let (from, mut to) = std::io::pipe().unwrap();
        write!(to, "{{\"scriptPath\": \"/from-a-pipe.py\"}}").unwrap();
        drop(to);
        let mut command = host.process();
        command.args(["call", PYTHON]).args(more);
        let output = command.stdin(from).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(3),
            "the absolute path was seen: {more:?}"
        );
    }
    // Nothing to read: an empty object, so the required parameter is missing.
    let mut silent = host.process();
    silent
        .args(["call", PYTHON])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut silent = silent.spawn().unwrap();
    let _open = silent.stdin.take();
    within(
        Duration::from_secs(20),
        "it does not wait for its input",
        || silent.try_wait().unwrap().is_some(),
    );
    assert_eq!(silent.wait().unwrap().code(), Some(2));
}

#[test]
fn a_config_can_hold_manifests_to_a_stricter_schema() {
    let host = host();
    host.tool("a:b", json!({}));
    host.put(
        "config/toolhost/config.toml",
        "manifest_schema = \"own.json\"\n",
    );
    host.put("config/toolhost/own.json", r#"{"required": ["metadata"]}"#);
    let (code, out, _) = host.run(&["check"]);
    assert!(
        code == 2 && out.contains("'metadata' is missing (this host's own manifest rules)"),
        "{out}"
    );
    let (_, out, _) = host.run(&["list"]);
    assert!(!out.contains("a:b"), "{out}");
    host.put("config/toolhost/own.json", r#"{"required": "metadata"}"#);
    assert_eq!(
        host.run(&["list"]).0,
        4,
        "rules that cannot be read refuse to start"
    );
}

/// A disk that is full must not look like an answer; who closes the pipe has what was wanted.
#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let host = host();
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["schema", "manifest"],
        &["doctor"],
    ] {
        assert_eq!(host.run(arguments).0, 0, "the control: {arguments:?}");
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut command = host.process();
        let output = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(full)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {said}");
        assert!(said.contains("standard output cannot be written"), "{said}");
    }
    let mut command = host.process();
    command
        .args(["call", "no:such", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(2),
        "not a panic: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn an_interrupt_while_input_is_awaited_is_an_outcome() {
    let host = host();
    let mut command = host.process();
    command.args(["call", "t:x", "--json", "--input", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It awaits its input once it catches the signal; one before that would find the default
    // action.
    let status = format!("/proc/{}/status", child.id());
    within(Duration::from_secs(20), "SIGTERM is caught", || {
        let caught = fs::read_to_string(&status).unwrap();
        let caught = caught
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .unwrap()
            .trim();
        (u64::from_str_radix(caught, 16).unwrap() >> (nix::libc::SIGTERM - 1)) & 1 == 1
    });
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let (started, _open) = (Stopwatch::start(), child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "it does not wait for its input"
    );
    assert_eq!(output.status.code(), Some(143));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["success"], &report["error"]["type"]),
        (&Value::Bool(false), &Value::from("CancelledError"))
    );
}

/// A client that asks for more than is read at present, and then leaves: its end of input stands
/// behind all that.
fn abandoned(host: &Host, both_ends: bool, greeted: bool) {
    let what = format!("both ends closed: {both_ends}, greeted: {greeted}");
    let mut command = host.process();
    command.args(["serve", "--stdio"]);
    let mut server = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut to = server.stdin.take().unwrap();
    let mut from = server.stdout.take().unwrap();
    let client = json!({"name": "t", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    writeln!(
        to,
        "{}",
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
    )
    .unwrap();
    from.read_exact(&mut [0; 10]).unwrap();
    if greeted {
        writeln!(
            to,
            r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#
        )
        .unwrap();
    }
    // More answers than a pipe holds, so that some cannot be written; the requests behind them
    // still fit into theirs.
    let long = "x".repeat(4000);
    let ping =
        |n: u8| format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{n}{long}\",\"method\":\"ping\"}}\n");
    let asks: String = (1..35).map(ping).collect();
    let writer = std::thread::spawn(move || to.write_all(asks.as_bytes()).map(|()| to));
    within(
        Duration::from_secs(20),
        &format!("all is sent; {what}"),
        || writer.is_finished(),
    );
    let to = writer.join().unwrap().unwrap();
    assert!(
        server.try_wait().unwrap().is_none(),
        "the control: it waits for its client; {what}"
    );
    drop(to);
    let _kept = (!both_ends).then_some(from);
    within(Duration::from_secs(50), &format!("it ends; {what}"), || {
        server.try_wait().unwrap().is_some()
    });
}

#[test]
fn a_server_ends_with_its_client_also_while_it_reads_nothing() {
    let host = host();
    std::thread::scope(|scope| {
        for (both_ends, greeted) in [(false, true), (true, true), (false, false), (true, false)] {
            let host = &host;
            scope.spawn(move || abandoned(host, both_ends, greeted));
        }
    });
}
