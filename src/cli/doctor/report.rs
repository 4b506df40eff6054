//! The doctor's report: the data that a program gets, and the same as text.
//!
//! For: `doctor`. In: what was found out. Out: lines. Never: a fact that the JSON has not; outside text unescaped.

use super::facts::Facts;
use super::hints::Hint;
use crate::cli::probe;
use crate::cli::words::line;
use crate::manifest::Language;
use crate::policy::packages::Ecosystem;
use crate::sandbox;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// `A`: every wall stands. `None`: nothing is run here until a mend is made.
    pub tier: Option<char>,
    pub version: &'static str,
    pub walls: Vec<sandbox::Stood>,
    pub refused: Option<RefusedWall>,
    pub tried: Vec<sandbox::probe::Tried>,
    /// What would raise the tier, or make limits exact.
    pub mends: Vec<Hint>,
    pub facts: Facts,
    pub runtimes: Vec<Interpreter>,
    /// Interpreters that were passed over, and why.
    pub passed_over: Vec<String>,
    pub wasm: Wasm,
    pub settings: Vec<Setting>,
    /// What the indexes that policies name mean here.
    pub indexes: Vec<IndexTold>,
    pub audit_log: AuditLog,
    #[serde(serialize_with = "told")]
    pub policies: Result<String, String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RefusedWall {
    pub wall: String,
    pub what: String,
    pub errno: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Interpreter {
    pub language: Language,
    pub program: String,
    pub version: String,
    pub found: String,
    /// The version that it told from inside the walls, or why it did not start.
    #[serde(serialize_with = "told")]
    pub ran: Result<String, String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Wasm {
    /// Its version; `None` in a build without WASI.
    pub wasmtime: Option<&'static str>,
    /// Where compiled code is kept, or why it is not.
    #[serde(serialize_with = "told")]
    pub cache: Result<String, String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    pub name: &'static str,
    pub value: String,
    pub from: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct IndexTold {
    pub name: String,
    pub ecosystem: Ecosystem,
    #[serde(rename = "leadsTo")]
    pub leads_to: String,
    /// A policy names it, and the configuration does not.
    pub missing: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct AuditLog {
    pub path: Option<String>,
    #[serde(serialize_with = "told")]
    pub opens: Result<String, String>,
}

/// `{"ok": true, "is": …}` or `{"ok": false, "why": …}`.
fn told<S: serde::Serializer>(result: &Result<String, String>, to: S) -> Result<S::Ok, S::Error> {
    match result {
        Ok(is) => serde_json::json!({ "ok": true, "is": is }).serialize(to),
        Err(why) => serde_json::json!({ "ok": false, "why": why }).serialize(to),
    }
}

pub fn text(report: &Report) -> String {
    let mut out = format!("toolhost {}\n", report.version);
    tier(report, &mut out);
    facts(report, &mut out);
    runtimes(report, &mut out);
    rest(report, &mut out);
    out
}

fn tier(report: &Report, out: &mut String) {
    match report.tier {
        Some(_) => line(out, "isolation", "full: every wall stands"),
        None => line(out, "isolation", "none: nothing runs on this machine until this is mended"),
    }
    if let Some(refused) = &report.refused {
        line(out, "refused", &format!("the wall `{}`: {}: {}", refused.wall, refused.what, refused.errno));
    }
    for mend in &report.mends {
        line(out, "mend", &mend.why);
        line(out, "", &mend.command);
    }
    if !report.walls.is_empty() {
        out.push_str("\nwalls\n");
        probe::walls(&report.walls, out);
    }
    if !report.tried.is_empty() {
        out.push_str("\ntried behind them\n");
        probe::attempts(&report.tried, out);
    }
}

fn facts(report: &Report, out: &mut String) {
    let f = &report.facts;
    out.push_str("\nmachine\n");
    line(out, "kernel", &format!("Linux {} {}", f.kernel, f.architecture));
    let landlock = if f.landlock_abi < 1 { "none".to_owned() } else { format!("ABI {}", f.landlock_abi) };
    line(out, "landlock", &landlock);
    let filters = if f.seccomp_filters { "filters" } else { "no filters" };
    let already = if f.already_filtered { "; this process is filtered already" } else { "" };
    line(out, "seccomp", &format!("{filters}{already}"));
    line(out, "container", f.container.unwrap_or("none seen"));
    line(out, "identity", &f.identity);
    let how = if f.counted { "cgroup" } else { "sampled" };
    line(out, "limits", &format!("{how}: {}", f.counting));
}

fn runtimes(report: &Report, out: &mut String) {
    out.push_str("\nruntimes (each was run behind the walls)\n");
    for runtime in &report.runtimes {
        let name = format!("{:?}", runtime.language).to_lowercase();
        let place = format!("{} (found: {})", runtime.program, runtime.found);
        match &runtime.ran {
            Ok(version) => line(out, &name, &format!("{version} {place}")),
            Err(why) => line(out, &name, &format!("CANNOT RUN {place}: {why}")),
        }
    }
    if report.runtimes.is_empty() {
        line(out, "none", "no interpreter was found on PATH; WASI tools need none");
    }
    let version = report.wasm.wasmtime.map(|version| format!("wasmtime {version}, in this binary"));
    line(out, "wasm", version.as_deref().unwrap_or("not in this binary"));
    match &report.wasm.cache {
        Ok(folder) => line(out, "", &format!("compiled code is kept in {folder}")),
        Err(why) => line(out, "", why),
    }
    report.passed_over.iter().for_each(|note| line(out, "note", note));
}

fn rest(report: &Report, out: &mut String) {
    out.push_str("\nsettings\n");
    for setting in &report.settings {
        line(out, setting.name, &format!("{} ({})", setting.value, setting.from));
    }
    for index in &report.indexes {
        let missing = if index.missing { "MISSING, and a policy names it: " } else { "" };
        line(out, "index", &format!("{} {}: {missing}{}", index.ecosystem.name(), index.name, index.leads_to));
    }
    if let Err(why) = &report.policies {
        why.lines().for_each(|words| line(out, "policies", words));
    }
    match &report.audit_log.opens {
        Ok(is) => line(out, "audit-log", is),
        Err(why) => line(out, "audit-log", &format!("CANNOT BE OPENED, so every call is refused: {why}")),
    }
}
