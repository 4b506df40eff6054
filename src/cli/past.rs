//! `audit --call ID`: a past call, as a person reads it.
//!
//! For: `audit`. In: its record and the confinement it ran under, as they were kept. Out: text.
//! Never: a field that `--json` does not have; outside text unescaped; relies on a field that older records may lack.

use crate::manifest::text::printable;
use crate::service::audit::Recalled;
use serde_json::Value;
use std::fmt::Write;

pub fn text(recalled: &Recalled) -> String {
    let mut out = String::new();
    record(&recalled.record, &mut out);
    match &recalled.confinement {
        Some(confinement) => touched(confinement, &mut out),
        None if recalled.record["digests"]["confinement"].is_null() => {
            out.push_str("\nnothing was started for it\n");
        }
        None => out.push_str("\nthe text of its confinement is no longer beside the audit log\n"),
    }
    out
}

fn line(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "  {name:<10}  {}", printable(text));
}

fn record(record: &Value, out: &mut String) {
    let word = |name: &str| words(&record[name]);
    let _ = writeln!(out, "call {}", printable(&word("call")));
    let version = record["version"].as_str().map_or_else(String::new, |version| format!("@{version}"));
    line(out, "tool", &format!("{}{version}", word("tool")));
    line(out, "when", &word("time"));
    line(out, "user", &word("user"));
    line(out, "decision", &format!("{} ({})", word("decision"), word("rule")));
    let message = record["message"].as_str().map_or_else(String::new, |message| format!(": {message}"));
    line(out, "outcome", &format!("{}{message}", word("outcome")));
    line(out, "arguments", &word("arguments"));
    line(out, "usage", &pairs(&record["usage"]));
    for (name, list) in [("note", &record["notes"]), ("violation", &record["violations"])] {
        list.as_array().into_iter().flatten().for_each(|entry| line(out, name, &words(entry)));
    }
    for (name, digest) in record["digests"].as_object().into_iter().flatten() {
        line(out, "digest", &format!("{name} {}", words(digest)));
    }
}

fn touched(shape: &Value, out: &mut String) {
    out.push_str("\nwhat it could touch\n");
    let runtime = &shape["runtime"];
    let program = runtime["program"]["path"].as_str().unwrap_or("this binary");
    line(
        out,
        "runtime",
        &format!(
            "{} {} {program} (found: {})",
            words(&runtime["language"]),
            words(&runtime["version"]),
            words(&runtime["found"])
        ),
    );
    runtime["roots"].as_array().into_iter().flatten().for_each(|root| line(out, "", &words(root)));
    line(out, "script", &words(&shape["script"]));
    for grant in shape["grants"].as_array().into_iter().flatten() {
        let opening = &grant["opening"];
        let path = match opening["path"].as_str() {
            Some(tree) => format!("{tree}/**"),
            None => format!("{}/{}", words(&opening["folder"]), words(&opening["names"])),
        };
        let kind = words(&opening["kind"]);
        line(out, &words(&grant["access"]), &format!("{path} ({kind}), asked as {}", words(&grant["asked"])));
        line(out, "", &format!("rule {}: {}", words(&grant["rule"]), words(&grant["why"])));
    }
    line(out, "network", &words(&shape["network"]));
    line(out, "limits", &pairs(&shape["limits"]));
    for (name, value) in shape["env"].as_object().into_iter().flatten() {
        line(out, "env", &format!("{name}={}", words(value)));
    }
    for (name, meaning) in
        [("requireCgroup", "a cgroup is required"), ("stderrIsError", "any text on stderr fails the call")]
    {
        if shape[name] == true {
            line(out, "strict", meaning);
        }
    }
}

/// A text as it is, null as `none`, anything else as JSON.
fn words(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `wallMs 38, cpuMs 29`
fn pairs(value: &Value) -> String {
    let all = value.as_object().into_iter().flatten();
    let shown: Vec<String> = all.map(|(name, value)| format!("{name} {}", words(value))).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}
