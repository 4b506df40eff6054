//! Failures of `call`: a missing file reveals nothing, and an interrupted call is an outcome.

use crate::harness::{Playground, Who};
use serde_json::{Value, json};
use std::process::Command;

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
fn a_missed_file_is_told_as_an_if_and_the_same_whether_it_is_there_or_not() {
    let playground = playground();
    let there = playground.path("home/real.txt");
    std::fs::write(&there, "x").unwrap();
    let gone = playground.path("home/none.txt");
    let asks = json!({ "securityContext": {
        "fileAccess": { "allowRead": ["self"] } } });
    let mut heard = Vec::new();
    for (name, path) in [("real", &there), ("none", &gone)] {
        playground.tool(name, "python", &format!("open({:?})\n", path.display().to_string()), asks.clone());
    }
    playground.tool("other", "python", "1 / 0\n", asks);
    playground.settle();
    for name in ["real", "none"] {
        let (code, words) = told(&playground, &format!("esc:{name}"), &[]);
        assert_eq!(code, Some(1), "{words}");
        assert!(words.contains("if it needs a file or folder that it was not granted"), "{words}");
        assert!(words.contains(&format!("{name}.tool.json:")), "the place to ask at: {words}");
        let mend = words.split("if it needs").nth(1).unwrap().split("call 0").next().unwrap();
        heard.push(mend.replace(name, "NAME"));
        let outcome = String::from_utf8_lossy(&playground.call(&format!("esc:{name}"), "{}").stdout).into_owned();
        assert!(!outcome.contains("if it needs") && !outcome.contains(".tool.json"), "an agent reads: {outcome}");
    }
    assert_eq!(heard[0], heard[1], "no hint whether the file exists");
    assert!(!told(&playground, "esc:other", &[]).1.contains("if it needs"));
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
