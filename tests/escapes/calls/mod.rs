//! Calls that end, or try not to end: limits, lifetime, streams. Each is a tool and a call of its own. What a WASI
//! module does as well stands in `tests/engines`; here is what only a process can.

use crate::prelude::*;
mod lifetime;
mod memory;
mod processes;
mod scratch;
mod streams;
mod time;

pub struct Call {
    pub name: &'static str,
    pub wall: &'static str,
    pub promises: &'static str,
    /// `limits` and `execution` of the manifest.
    pub more: &'static str,
    pub script: &'static str,
    /// Bytes of padding in the input.
    pub input: usize,
    pub ends: Ending,
    /// The same where memory and CPU are sampled, if it differs: a refused fork(2) is seen by the script alone,
    /// memory that belongs to no process (socket buffers) is not seen at all, nor is the CPU of children that live
    /// and vanish between two looks.
    pub sampled: Option<Ending>,
    /// The JSON that the script prints outside, where nothing stops it; none = it would do harm, or not end.
    pub control: Option<&'static str>,
}

const CALL: Call = Call {
    name: "",
    wall: "",
    promises: "",
    more: "{}",
    script: "",
    input: 0,
    ends: Ending::Says(""),
    sampled: None,
    control: None,
};

#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// It ended well, with this JSON; empty = whatever it is.
    Says(&'static str),
    /// Its error's type, and a part of the message.
    Fails(&'static str, &'static str),
    /// All of these are right.
    AnyOf(&'static [Ending]),
}

impl Ending {
    fn fits(self, ended: &Ended) -> bool {
        match self {
            Ending::Says(value) => {
                let same = || serde_json::from_str::<Value>(value).unwrap() == ended.out["outputData"];
                ended.out["success"] == true && (value.is_empty() || same())
            }
            Ending::Fails(kind, part) => kind == ended.kind() && ended.error().1.contains(part),
            Ending::AnyOf(endings) => endings.iter().any(|ending| ending.fits(ended)),
        }
    }
}

const START: &str = "import json, os, signal, sys, time, mmap, socket, threading, ctypes\n\
    def say(v):\n    sys.stdout.write(json.dumps(v)); sys.stdout.flush()\n";

pub fn all() -> impl Iterator<Item = &'static Call> {
    let groups =
        [processes::PROCESSES, memory::MEMORY, time::TIME, scratch::SCRATCH, streams::STREAMS, lifetime::LIFETIME];
    groups.into_iter().flatten()
}

fn tool_name(call: &Call) -> String {
    call.name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

/// What is wrong with how it ended, and whether that may come of a host that looked late: a timeout, a late answer, a
/// sample that was not taken.
fn judge(playground: &Playground, call: &Call) -> Option<(String, bool)> {
    let input = json!({"padding": "x".repeat(call.input)}).to_string();
    let ended = playground.call(&format!("esc:{}", tool_name(call)), if call.input == 0 { "{}" } else { &input });
    let is_sampled = ended.counted() == "sampled";
    let ending = call.sampled.filter(|_| is_sampled).unwrap_or(call.ends);
    let (kind, message) = ended.error();
    let limit = serde_json::from_str::<Value>(call.more).unwrap()["execution"]["timeoutMs"].as_u64().unwrap_or(8_000);
    let late = ended.took > Duration::from_millis(limit) + Duration::from_secs(3);
    if ending.fits(&ended) && !late {
        return None;
    }
    let about = format!(
        "{kind}: {message}; took {:?}; output {}; logs {}; {}",
        ended.took, ended.out["outputData"], ended.out["logs"], ended.stderr
    );
    let about: String = about.chars().take(600).collect();
    let why =
        format!("{} ({}; counted by {}): wanted {ending:?}, got {about}", call.name, call.promises, ended.counted());
    Some((why, late || is_sampled || kind == "TimeoutError"))
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
        let mut found = judge(&playground, call);
        // A machine that stood still: what hangs on the time of the host's looks is judged once more.
        if matches!(found, Some((_, true))) {
            found = judge(&playground, call);
        }
        wrong.extend(found.map(|(why, _)| why));
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

/// Without walls the same scripts do what inside was refused.
#[test]
fn calls_outside_reach_their_goal() {
    let playground = Playground::new(Who::User, "/var/tmp");
    let mut wrong = Vec::new();
    for (call, control) in all().filter_map(|call| Some((call, call.control?))) {
        let script = playground.path("control.py");
        fs::write(&script, format!("{START}{}", call.script)).unwrap();
        let mut command = playground.outside(PYTHON);
        command.args(["-s", "-E", "-B"]).arg(&script);
        let ended = finish(command, json!({"padding": "x".repeat(call.input)}).to_string().as_bytes());
        if ended.out != serde_json::from_str::<Value>(control).unwrap() {
            wrong.push(format!("{}: wanted {control}, got {}: {}", call.name, ended.out, ended.stderr));
        }
    }
    assert!(wrong.is_empty(), "{} controls:\n{}", wrong.len(), wrong.join("\n"));
}
