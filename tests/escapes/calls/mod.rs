//! Calls that end, or try not to end: limits, lifetime, streams. Each is a tool and a call of its own. What a WASI
//! module does as well stands in `tests/engines`; here is what only a process can.

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

mod lifetime;
mod memory;
mod processes;
mod scratch;
mod streams;
mod time;

use crate::escapes::playground::{PYTHON, Playground, Who, finish, is_root, skipped};
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

pub fn all() -> impl Iterator<Item = &'static Call> {
    let groups =
        [processes::PROCESSES, memory::MEMORY, time::TIME, scratch::SCRATCH, streams::STREAMS, lifetime::LIFETIME];
    groups.into_iter().flatten()
}

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
        return skipped(all().count(), "the suite as root needs root");
    }
    let mut playground = Playground::new(who, below);
    for call in all() {
        let more: Value = serde_json::from_str(call.more).unwrap_or_else(|e| panic!("{}: {e}", call.name));
        playground.tool(&tool_name(call), "python", &format!("{START}{}", call.script), more);
    }
    playground.settle();
    let before = playground.state(&[]);
    let mut wrong = Vec::new();
    for call in all() {
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
        return skipped(all().count(), "the suite as mapped root needs root to become an ordinary user first");
    }
    calls(Who::MappedRoot, "/tmp");
}

/// Without walls the same scripts do what inside was refused.
#[test]
fn calls_outside_reach_their_goal() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let mut wrong = Vec::new();
    for call in all().filter(|call| !call.control.is_empty()) {
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
