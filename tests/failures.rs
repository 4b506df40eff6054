//! Failures in the words of `call`: each is said once, with a mend; who set a limit; how a missing file is granted.

use crate::harness::{Playground, Who};
use serde_json::{Value, json};
use std::process::Command;

struct Failure {
    script: &'static str,
    more: Value,
    /// Each stands on standard error, once.
    once: &'static [&'static str],
}

fn failure(script: &'static str, more: Value, once: &'static [&'static str]) -> Failure {
    Failure { script, more, once }
}

fn failures() -> Vec<Failure> {
    let limit = |name: &str, value: u64| json!({ "limits": { name: value } });
    vec![
        failure("pass", json!({}), &["empty", "must be a single JSON value"]),
        failure("print('hi'); print('{}')", json!({}), &["not JSON at line 1", "print diagnostics to stderr"]),
        failure("print('NaN')", json!({}), &["NaN is not JSON: use null or a string"]),
        failure("print(1); print(2)", json!({}), &["more than one", "line 2, column 1"]),
        failure("sys.exit(1)", json!({}), &["exited with code 1", "It wrote nothing to stderr"]),
        failure("import ctypes; ctypes.string_at(8)", json!({}), &["SIGSEGV", "native code"]),
        failure(
            "time.sleep(9)",
            json!({ "execution": { "timeoutMs": 300 } }),
            &["300 ms", "timeoutMs was set by the manifest (execution.timeoutMs); the most is 20000"],
        ),
        failure(
            "x = b'x' * 300_000_000",
            limit("memoryBytes", 100_000_000),
            &["memoryBytes (67108864 bytes)", "memoryBytes was set by the policy", "(the manifest asks for 100000000)"],
        ),
        failure(
            "print('1' * 5000)",
            limit("outputBytes", 1024),
            &["outputBytes (1024 bytes)", "set by the manifest (limits.outputBytes)", "house default"],
        ),
    ]
}

fn playground() -> Playground {
    Playground::new(Who::ours(), "/tmp")
}

/// (exit code, standard error) of a call that prints for a person.
fn told(playground: &Playground, tool: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command: Command = playground.host();
    let output = command.args(["call", tool, "--input", "{}"]).args(more).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn each_failure_says_its_thing_once_and_its_mend() {
    let playground = playground();
    for (at, case) in failures().into_iter().enumerate() {
        playground.tool(&format!("f{at}"), "python", &format!("import sys, time\n{}\n", case.script), case.more);
    }
    let own = "[files]\nread = [{ path = \"./**\", why = \"its own folder\" }]\n[limits]\n";
    playground.policy("slow", "esc:f6", &format!("{own}timeout_ms = 20_000\n"));
    playground.policy("large", "esc:f7", &format!("{own}memory_bytes = 67_108_864\n"));
    playground.settle();
    for (at, case) in failures().into_iter().enumerate() {
        let (code, words) = told(&playground, &format!("esc:f{at}"), &[]);
        assert_eq!(code, Some(1), "{}: {words}", case.script);
        for part in case.once {
            assert_eq!(words.matches(part).count(), 1, "{}: '{part}' in {words}", case.script);
        }
        let outcome = String::from_utf8_lossy(&playground.call(&format!("esc:f{at}"), "{}").stdout).into_owned();
        assert!(!outcome.contains("set by") && !outcome.contains(".tool.json"), "an agent reads: {outcome}");
    }
    let (_, words) = told(&playground, "esc:f6", &["--timeout-ms", "200"]);
    assert!(words.contains("200 ms") && words.contains("timeoutMs was set by this call"), "{words}");
}

#[test]
fn nothing_says_whether_a_file_that_was_not_granted_exists() {
    let playground = playground();
    let there = playground.path("home/real.txt");
    std::fs::write(&there, "x").unwrap();
    let gone = playground.path("home/none.txt");
    for (name, path) in [("real", &there), ("none", &gone)] {
        playground.tool(name, "python", &format!("open({:?})\n", path.display().to_string()), json!({}));
    }
    playground.settle();
    let heard = ["real", "none"].map(|name| {
        let (code, words) = told(&playground, &format!("esc:{name}"), &[]);
        assert_eq!(code, Some(1), "{words}");
        assert!(words.contains("--explain` what it was refused"), "{words}");
        let outcome = playground.call(&format!("esc:{name}"), "{}");
        assert!(!outcome.out["error"].to_string().contains("--explain"), "an agent reads: {outcome:?}");
        outcome.out["error"]["details"].to_string().replace(name, "NAME")
    });
    assert_eq!(heard[0], heard[1], "no hint whether the file exists");
}

#[test]
fn an_interrupted_call_is_an_outcome_too() {
    let playground = playground();
    playground.tool("long", "python", "import time\ntime.sleep(20)\n", json!({}));
    playground.settle();
    let mut command: Command = playground.host();
    command.args(["call", "esc:long", "--json", "--input", "{}"]);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    playground.runs("user_scripts/long/main.py", 1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!((output.status.code(), outcome["error"]["type"].as_str()), (Some(130), Some("CancelledError")));
    assert_eq!(outcome["error"]["retryable"], false, "it ran: {outcome}");
    let records: String = walkdir::WalkDir::new(playground.path("state"))
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .collect();
    assert!(records.contains(outcome["id"].as_str().unwrap()), "its record has the same id: {records}");
}
