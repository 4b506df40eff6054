//! Calls that must be refused before any process of the tool starts. The control is the same tool before
//! its folder or manifest was spoilt.

use super::playground::{Playground, Who, is_root, skipped};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

pub struct Refusal {
    pub name: &'static str,
    pub wall: &'static str,
    pub promises: &'static str,
    /// `securityContext` of the manifest; `{base}` is the playground.
    pub asks: &'static str,
    /// What makes the call one to refuse; `false` = this machine or user cannot.
    spoil: fn(&Playground, &Path) -> bool,
    /// Puts back what would stay behind.
    mend: fn(&Path),
    /// The same asks are granted before `spoil`.
    control: bool,
    error: &'static str,
    code: i32,
}

fn as_asked(_: &Playground, _: &Path) -> bool {
    true
}

fn nothing(_: &Path) {}

fn second_name(playground: &Playground, own: &Path) -> bool {
    fs::hard_link(playground.path("secret/secret.txt"), own.join("out/innocent.txt")).unwrap();
    true
}

fn second_name_deep(playground: &Playground, own: &Path) -> bool {
    fs::create_dir_all(own.join("out/a/b")).unwrap();
    fs::hard_link(playground.path("secret/secret.txt"), own.join("out/a/b/innocent.txt")).unwrap();
    true
}

fn mount_below(_: &Playground, own: &Path) -> bool {
    let inner = own.join("data/inner");
    fs::create_dir_all(&inner).unwrap();
    is_root() && Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner).status().is_ok_and(|s| s.success())
}

fn unmount(own: &Path) {
    let _ = Command::new("umount").arg(own.join("data/inner")).status();
}

fn folder_is_a_link(playground: &Playground, own: &Path) -> bool {
    fs::remove_dir_all(own.join("data")).unwrap();
    std::os::unix::fs::symlink(playground.path("secret"), own.join("data")).is_ok()
}

fn component_is_a_link(playground: &Playground, own: &Path) -> bool {
    fs::rename(own.join("deep"), own.join("deep-real")).unwrap();
    fs::create_dir_all(playground.path("secret/inner")).unwrap();
    std::os::unix::fs::symlink(playground.path("secret"), own.join("deep")).is_ok()
}

fn out_is_a_link(playground: &Playground, own: &Path) -> bool {
    fs::remove_dir_all(own.join("out")).unwrap();
    std::os::unix::fs::symlink(playground.path("secret"), own.join("out")).is_ok()
}

const READ_DATA: &str = r#"{"fileAccess":{"allowRead":["self","data/**"]}}"#;
const WRITE_OUT: &str = r#"{"fileAccess":{"allowRead":["self"],"allowWrite":["out/**"]}}"#;

macro_rules! refusal {
    ($name:literal, $wall:literal, $promises:literal, $asks:expr, $spoil:expr, $mend:expr, $control:literal, $error:literal, $code:literal) => {
        Refusal {
            name: $name,
            wall: $wall,
            promises: $promises,
            asks: $asks,
            spoil: $spoil,
            mend: $mend,
            control: $control,
            error: $error,
            code: $code,
        }
    };
}

pub const REFUSALS: &[Refusal] = &[
    refusal!("hard link in a write grant", "view", "P2", WRITE_OUT, second_name, nothing, true, "SecurityError", 3),
    refusal!(
        "hard link deep in a write grant",
        "view",
        "P2",
        WRITE_OUT,
        second_name_deep,
        nothing,
        true,
        "SecurityError",
        3
    ),
    refusal!("mount point in a read grant", "view", "P2", READ_DATA, mount_below, unmount, true, "SecurityError", 3),
    refusal!("read grant is a link", "view", "P2", READ_DATA, folder_is_a_link, nothing, true, "SecurityError", 3),
    refusal!("write grant is a link", "view", "P2 P3", WRITE_OUT, out_is_a_link, nothing, true, "SecurityError", 3),
    refusal!(
        "component of a grant is a link",
        "view",
        "P2",
        r#"{"fileAccess":{"allowRead":["self","deep/inner/**"]}}"#,
        component_is_a_link,
        nothing,
        true,
        "SecurityError",
        3
    ),
    refusal!(
        "more than policy allows",
        "view",
        "P5",
        r#"{"fileAccess":{"allowRead":["self","{base}/secret/**"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "the whole machine",
        "view",
        "P5",
        r#"{"fileAccess":{"allowRead":["/**"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "/proc asked for",
        "view",
        "P5 P9",
        r#"{"fileAccess":{"allowRead":["/proc/**"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "own folder to write",
        "view",
        "P3 P5",
        r#"{"fileAccess":{"allowWrite":["./**"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "own script to write",
        "view",
        "P3 P5",
        r#"{"fileAccess":{"allowWrite":["main.py"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "the policies to write",
        "view",
        "P3 P5",
        r#"{"fileAccess":{"allowWrite":["{base}/sandbox-policies/**"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "modules to write",
        "view",
        "P3",
        r#"{"fileAccess":{"allowWrite":["node_modules/**"]}}"#,
        as_asked,
        nothing,
        false,
        "SecurityError",
        3
    ),
    refusal!(
        "a misspelt grant",
        "view",
        "P5",
        r#"{"fileAccess":{"allowRaed":["./**"]}}"#,
        as_asked,
        nothing,
        false,
        "ToolNotFoundError",
        2
    ),
    refusal!(
        "a grant that is null",
        "view",
        "P5",
        r#"{"fileAccess":{"allowRead":null}}"#,
        as_asked,
        nothing,
        false,
        "ToolNotFoundError",
        2
    ),
    refusal!(
        "a grant that is text",
        "view",
        "P5",
        r#"{"fileAccess":{"allowRead":"./**"}}"#,
        as_asked,
        nothing,
        false,
        "ToolNotFoundError",
        2
    ),
    refusal!(
        "a named host",
        "network",
        "P6 P7 P8",
        r#"{"networkAccess":{"allowHosts":["example.org"]}}"#,
        as_asked,
        nothing,
        false,
        "CapabilityError",
        4
    ),
];

const SCRIPT: &str = "import json\nprint(json.dumps({'ran': True}))\n";

fn refusals(who: Who, below: &str) {
    if !who.possible() {
        return skipped(REFUSALS.len(), "the suite as root needs root");
    }
    let mut wrong = Vec::new();
    let playground = Playground::new(who, below);
    let base = playground.base.display().to_string();
    let mut folders = Vec::new();
    for (at, refusal) in REFUSALS.iter().enumerate() {
        let asks: Value = serde_json::from_str(&refusal.asks.replace("{base}", &base)).unwrap();
        let own = playground.tool(&format!("refuse{at}"), "python", SCRIPT, json!({"securityContext": asks}));
        for folder in ["out", "data", "deep/inner"] {
            fs::create_dir_all(own.join(folder)).unwrap();
        }
        folders.push(own);
    }
    playground.policy(
        "escapes", "esc:*",
        "[files]\nread = [{ path = \"./**\", why = \"a test\" }]\nwrite = [{ path = \"./out/**\", why = \"a test\" }]\n",
    );
    playground.settle();
    for (at, (refusal, own)) in REFUSALS.iter().zip(&folders).enumerate() {
        let tool = format!("esc:refuse{at}");
        if refusal.control {
            let ended = playground.call(&tool, "{}", &[]);
            if ended.out["outputData"]["ran"] != true {
                wrong.push(format!("control of {}: {:?} {}", refusal.name, ended.error(), ended.stderr));
            }
        }
        if (refusal.spoil)(&playground, own) {
            let ended = playground.call(&tool, "{}", &[]);
            let (kind, message) = ended.error();
            if (kind, ended.code) != (refusal.error, Some(refusal.code)) || !ended.out["outputData"].is_null() {
                wrong.push(format!(
                    "{}: wanted {} and exit code {}, got {kind}: {message} and {:?}; {}; {}",
                    refusal.name, refusal.error, refusal.code, ended.code, ended.out["outputData"], ended.stderr
                ));
            }
            let record = playground.records().pop().unwrap_or_default();
            if record["decision"] != "refused" {
                wrong.push(format!("{}: recorded as {}", refusal.name, record["decision"]));
            }
            if message.contains(&base) {
                wrong.push(format!("{}: the message names a host path: {message}", refusal.name));
            }
        } else {
            skipped(1, refusal.name);
        }
        (refusal.mend)(own);
    }
    assert!(wrong.is_empty(), "{} refusals, as {}:\n{}", wrong.len(), who.name(), wrong.join("\n"));
}

#[test]
fn refusals_as_root() {
    refusals(Who::Root, "/tmp");
}

#[test]
fn refusals_as_an_ordinary_user() {
    refusals(Who::User, "/var/tmp");
}
