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
