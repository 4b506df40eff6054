//! `audit --call ID`: a past call, by the record and the confinement that were kept of it.
//!
//! For: `audit`. In: its id. Out: text or JSON. Never: a field that `--json` does not have; outside text unescaped;
//! relies on a field that older records may lack.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::base::text::printable;
use serde_json::json;
use std::process::ExitCode;

pub fn run(settings: &Settings, call: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let recalled =
        host::audit_log(settings)?.recall(call).map_err(|why| Refusal::new(Exit::Caller, printable(&why)))?;
    let (record, confinement) = (recalled.record, recalled.confinement);
    if as_json {
        words::show_json(&json!({ "record": record, "confinement": confinement }));
        return Ok(Exit::Ok.into());
    }
    let version = record["version"].as_str().map_or_else(String::new, |version| format!("@{version}"));
    let tool = format!("{}{version}", record["tool"].as_str().unwrap_or_default());
    let mut out = format!("call {} of {}\n", printable(call), printable(&tool));
    words::fields(&record, &mut out);
    match &confinement {
        Some(confinement) => {
            out.push_str("\nwhat it could touch\n");
            words::fields(confinement, &mut out);
        }
        None if record["service"].is_string() => {
            out.push_str("\na service elsewhere did the work, which nothing here confines\n")
        }
        None if record["digests"]["confinement"].is_null() => out.push_str("\nnothing was started for it\n"),
        None => out.push_str("\nthe text of its confinement is no longer beside the audit log\n"),
    }
    words::show(out.as_bytes());
    Ok(Exit::Ok.into())
}
