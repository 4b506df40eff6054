//! The binary: settings, input, output, exit codes. What needs no script runs through `core:*` refusals.

use crate::harness::{host, within};
use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn exit_codes_say_who_must_act() {
    let host = host();
    let (code, out, err) = host.run(&["call", "no:such"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("ToolNotFoundError"), "{err}");
    let (code, _, err) = host.run(&["call", "core:execute-python-script", "scriptPath=../x.py"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("SecurityError"), "{err}");
    let (code, _, err) = host.run(&["call", "core:execute-python-script", "scriptPath=a.py", "timeoutMs=abc"]);
    assert_eq!(code, 2);
    assert!(err.contains("Input parameter 'timeoutMs' must be an integer."), "{err}");
    let log = host.path("state/toolhost/audit.jsonl");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let (code, _, err) = host.run(&["call", "no:such"]);
    assert_eq!(code, 4, "{err}");
    assert!(err.contains("--audit-log"), "{err}");
}

#[test]
fn usage_errors_are_the_callers() {
    let host = host();
    for arguments in [
        &["call"][..],
        &["nonsense"],
        &["call", "a:b", "--tools", "/does/not/exist"],
        &["call", "a:b", "--scripts", "/does/not/exist"],
        &["call", "a:b", "--policies", "/does/not/exist"],
        &["call", "a:b", "--config", "/does/not/exist"],
        &["call", "a:b", "--audit-log", "/does/not/exist/audit.jsonl"],
        &["list", "--root", "/etc/passwd"],
        &["list", "--tools", "/etc/passwd"],
        &["serve"],
        &["test"],
    ] {
        let (code, _, err) = host.run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(!err.is_empty());
    }
    let (code, out, _) = host.run(&["--help"]);
    assert!(code == 0 && out.contains("call") && out.contains("serve"));
    let (_, out, _) = host.run(&["serve", "--help"]);
    assert!(out.contains("`serve` needs it named"), "{out}");
}

#[test]
fn serve_will_not_take_the_current_folder_for_a_root() {
    let host = host();
    let mut command = Command::cargo_bin("toolhost").unwrap();
    command.env_remove("TOOLHOST_ROOT").env("XDG_CONFIG_HOME", host.folder.path()).current_dir(host.folder.path());
    let output = command.args(["serve", "--stdio"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--root"));
    let mut command = Command::cargo_bin("toolhost").unwrap();
    command.env("XDG_STATE_HOME", host.path("state")).env("XDG_CONFIG_HOME", host.folder.path());
    let output =
        command.env_remove("TOOLHOST_ROOT").current_dir(host.folder.path()).args(["call", "a:b"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("using the current folder as root"));
}

#[test]
fn input_comes_from_a_file_a_pipe_or_nowhere_and_a_silent_pipe_does_not_hang() {
    let host = host();
    let file = host.path("input.json");
    fs::write(&file, "{\"scriptPath\": \"/from-a-file.py\"}").unwrap();
    let (code, _, _) = host.run(&["call", "core:execute-python-script", "--input", &format!("@{}", file.display())]);
    assert_eq!(code, 3, "the absolute path was seen");
    for explicit in [true, false] {
        let mut command = host.command();
        command.args(["call", "core:execute-python-script"]);
        if explicit {
            command.args(["--input", "-"]);
        }
        let output = command.write_stdin("{\"scriptPath\": \"/from-a-pipe.py\"}").output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{explicit}");
    }
    // Nothing to read: an empty object, so the required parameter is missing.
    let (code, _, err) = host.run(&["call", "core:execute-python-script"]);
    assert!(code == 2 && err.contains("scriptPath"), "{err}");
    let started = Instant::now();
    let mut silent = host
        .process()
        .args(["call", "core:execute-python-script"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let open = silent.stdin.take();
    assert_eq!(silent.wait().unwrap().code(), Some(2));
    assert!(started.elapsed() < Duration::from_secs(20));
    drop(open);
}

#[test]
fn a_closed_pipe_is_not_a_panic() {
    let host = host();
    let mut child = host
        .process()
        .args(["call", "no:such", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_config_can_hold_manifests_to_a_stricter_schema() {
    let host = host();
    let put = |name: &str, text: &str| fs::write(host.path(name), text).unwrap();
    let manifest =
        r#"{"toolId": "a:b", "displayName": "b", "description": "d", "version": "1.0.0", "handler": {"type": "x-t"}}"#;
    put("tool-defs/b.tool.json", manifest);
    fs::create_dir_all(host.path("config/toolhost")).unwrap();
    put("config/toolhost/config.toml", "manifest_schema = \"house.json\"\n");
    put("config/toolhost/house.json", r#"{"required": ["metadata"]}"#);
    let (code, out, _) = host.run(&["check"]);
    assert_eq!(code, 2, "{out}");
    assert!(out.contains("'metadata' is missing (this host's own manifest rules)"), "{out}");
    let (_, out, _) = host.run(&["list"]);
    assert!(!out.contains("a:b"), "{out}");
    put("config/toolhost/house.json", r#"{"required": "metadata"}"#);
    let (code, _, err) = host.run(&["list"]);
    assert_eq!(code, 4, "rules that cannot be read refuse to start: {err}");
}

/// A disk that is full must not look like an answer.
#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let host = host();
    for arguments in [&["list"][..], &["list", "--json"], &["schema", "manifest"], &["doctor"]] {
        assert_eq!(host.run(arguments).0, 0, "the control: {arguments:?}");
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = host.process();
        command.args(arguments).stdin(Stdio::null());
        command.stdout(full);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {told}");
        assert!(told.contains("standard output cannot be written"), "{told}");
    }
}

#[test]
fn an_interrupt_while_input_is_awaited_is_an_outcome() {
    let host = host();
    let mut command = host.process();
    command.args(["call", "t:x", "--json", "--input", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // It awaits its input once it catches the signal; one before that would find the default action.
    let status = format!("/proc/{}/status", child.id());
    within(Duration::from_secs(20), "SIGTERM is caught", || {
        let caught = fs::read_to_string(&status).unwrap();
        let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        (u64::from_str_radix(caught, 16).unwrap() >> (nix::libc::SIGTERM - 1)) & 1 == 1
    });
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let started = Instant::now();
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert!(started.elapsed() < Duration::from_secs(5), "it does not wait for its input");
    assert_eq!(output.status.code(), Some(143));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["success"], &report["error"]["type"]), (&Value::Bool(false), &Value::from("CancelledError")));
}

/// A client that asks for more than is read at present, and then leaves: its end of input stands behind all that.
#[test]
fn a_server_ends_with_its_client_also_while_it_reads_nothing() {
    use std::io::{Read, Write};
    let host = host();
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    // More answers than a pipe holds, so that some cannot be written; the requests behind them still fit into theirs.
    let long = "x".repeat(4000);
    let asks: String =
        (1..35).map(|n| format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{n}{long}\",\"method\":\"ping\"}}\n")).collect();
    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    for (both_ends, greeted) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut command = host.process();
        command.args(["serve", "--stdio"]);
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut to = server.stdin.take().unwrap();
        let mut from = server.stdout.take().unwrap();
        writeln!(to, "{hello}").unwrap();
        from.read_exact(&mut [0; 10]).unwrap();
        if greeted {
            writeln!(to, "{ready}").unwrap();
        }
        let asks = asks.clone();
        let writer = std::thread::spawn(move || to.write_all(asks.as_bytes()).map(|()| to));
        within(Duration::from_secs(20), "all is sent", || writer.is_finished());
        let to = writer.join().unwrap().unwrap();
        assert!(server.try_wait().unwrap().is_none(), "the control: it waits for its client");
        drop(to);
        let kept = if both_ends { None } else { Some(from) };
        let what = format!("it ends; both ends closed: {both_ends}, greeted: {greeted}");
        within(Duration::from_secs(50), &what, || server.try_wait().unwrap().is_some());
        drop(kept);
    }
}
