//! Calls that end, or try not to end: limits, lifetime, streams. Each row of `calls.toml` is a tool
//! and a call of its own. What a WASI module does as well stands in `tests/engines`; here is what
//! only a process can.

use super::ends;
use super::probe::Wanted;
use crate::prelude::*;
use serde::Deserialize;
use std::sync::LazyLock;

/// As `calls.toml` tells it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub name: String,
    pub layer: String,
    pub promises: String,
    #[serde(default)]
    more: Value,
    #[serde(default)]
    input: usize,
    ends: Wanted,
    sampled: Option<Wanted>,
    control: Option<String>,
    script: String,
}

pub static CALLS: LazyLock<Vec<Call>> = LazyLock::new(|| {
    let table = toml::from_str::<BTreeMap<String, Vec<Call>>>(include_str!("calls.toml"));
    let mut table = table.unwrap_or_else(|e| panic!("calls.toml: {e}"));
    let calls = table.remove("calls").unwrap();
    assert!(table.is_empty(), "calls.toml: {:?}", table.into_keys());
    calls
});

const START: &str = "import json, os, signal, sys, time, mmap, socket, threading, ctypes\n\
    def say(v):\n    sys.stdout.write(json.dumps(v)); sys.stdout.flush()\n";

impl Call {
    fn tool(&self) -> String {
        self.name
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .collect()
    }

    fn script(&self) -> String {
        format!("{START}{}", self.script)
    }

    fn input(&self) -> String {
        json!({"padding": "x".repeat(self.input)}).to_string()
    }
}

/// What is wrong with how it ended, and whether that may come of a host that looked late: a
/// timeout, a late answer, a sample that was not taken.
fn judge(playground: &Playground, call: &Call) -> Option<(String, bool)> {
    let ended = playground.call(&format!("esc:{}", call.tool()), &call.input());
    let is_sampled = ended.counted() == "sampled";
    let wanted = call
        .sampled
        .as_ref()
        .filter(|_| is_sampled)
        .unwrap_or(&call.ends)
        .all();
    let misses: Vec<String> = wanted
        .iter()
        .filter_map(|wanted| ends(wanted, &ended).err())
        .collect();
    let limit = call.more["execution"]["timeoutMs"]
        .as_u64()
        .unwrap_or(8_000);
    let late = ended.took > Duration::from_millis(limit) + Duration::from_secs(3);
    if misses.len() < wanted.len() && !late {
        return None;
    }
    let (name, promises, counted, took) = (&call.name, &call.promises, ended.counted(), ended.took);
    let why = format!(
        "{name} ({promises}; counted by {counted}): took {took:?}, {:.900}",
        misses.join(" or ")
    );
    Some((why, late || is_sampled || ended.kind() == "TimeoutError"))
}

fn calls(who: Who, below: &str) {
    if !who.possible() {
        return skipped(CALLS.len(), "the suite as root needs root");
    }
    let mut playground = Playground::new(who, below);
    for call in CALLS.iter() {
        playground.tool(&call.tool(), "python", &call.script(), call.more.clone());
    }
    playground.settle();
    let before = playground.state(&[]);
    let mut wrong = Vec::new();
    for call in CALLS.iter() {
        let mut found = judge(&playground, call);
        // A machine that stood still: what hangs on the time of the host's looks is judged again, a
        // while later.
        for _ in 0..4 {
            if !matches!(found, Some((_, true))) {
                break;
            }
            std::thread::sleep(Duration::from_secs(5));
            found = judge(&playground, call);
        }
        wrong.extend(found.map(|(why, _)| why));
        playground.assert_quiet(&call.name);
    }
    if playground.state(&[]) != before {
        wrong.push("a call changed the playground".into());
    }
    if !playground.canary_lives() {
        wrong.push("a process of the host was killed".into());
    }
    assert!(
        wrong.is_empty(),
        "{} calls, as {}:\n{}",
        wrong.len(),
        who.name(),
        wrong.join("\n")
    );
}

#[test]
fn calls_as_root() {
    calls(Who::Root, "/var/tmp");
}

#[test]
fn calls_as_an_ordinary_user() {
    calls(Who::User, "/var/tmp");
}

/// Without layers the same scripts do what inside was refused.
#[test]
fn calls_outside_reach_their_goal() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let mut wrong = Vec::new();
    for (call, control) in CALLS
        .iter()
        .filter_map(|call| Some((call, call.control.as_ref()?)))
    {
        let script = playground.path("control.py");
        fs::write(&script, call.script()).unwrap();
        let mut command = playground.outside(PYTHON);
        command.args(["-s", "-E", "-B"]).arg(&script);
        let ended = finish(command, call.input().as_bytes());
        if ended.out != serde_json::from_str::<Value>(control).unwrap() {
            wrong.push(format!(
                "{}: wanted {control}, got {}: {}",
                call.name, ended.out, ended.stderr
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} controls:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
