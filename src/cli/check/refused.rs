//! What a call of a tool would be refused for, before anybody calls it (Q19).
//!
//! For: `check`. In: the tools that are loaded, what policy decides about each. Out: problems in the reports of their files.
//! Never: a second opinion: the decision is the one that a call is held to.

use crate::fault::Kind;
use crate::manifest::json::escape_segment;
use crate::manifest::{Code, Manifest, Problem, Severity};
use crate::service::beforehand::{self, Obstacle};
use crate::{policy, registry, sandbox};
use policy::{Verdict, What};
use serde_json::Value;

const READ: &str = "/securityContext/fileAccess/allowRead";
const WRITE: &str = "/securityContext/fileAccess/allowWrite";

/// Adds to the report of each file what its tool would meet.
pub fn tell(
    snapshot: &registry::Snapshot,
    policies: &policy::Policies,
    machine: &policy::Machine,
    reports: &mut [super::File],
) {
    let policies = snapshot.protect(policies);
    for tool in snapshot.list(&registry::Filter::default()) {
        let decision = policy::decide(&tool.manifest, &tool.site, &policies, machine);
        let Some(report) = reports.iter_mut().find(|report| report.path == tool.site.manifest) else { continue };
        report.problems.extend(of(&tool, &decision));
        report.problems.extend(lacks(&tool, &decision));
        report.problems.extend(files(&tool, &decision));
        report.problems.extend(no_folder(&tool));
    }
}

/// What keeps every call of it from being begun, beside policy.
fn lacks(tool: &registry::Tool, decision: &policy::Decision) -> Vec<Problem> {
    let mut found = beforehand::obstacles(tool, decision, beforehand::shipped(&tool.manifest.handler));
    found.retain(|obstacle| obstacle.kind != Kind::SecurityError);
    if found.is_empty() {
        return Vec::new();
    }
    let places = registry::Places::of(&tool.site.manifest);
    let pointers: Vec<&str> = found.iter().map(|obstacle| obstacle.need.pointer.as_str()).collect();
    let problem = |(obstacle, (line, column)): (&Obstacle, (usize, usize))| {
        // What another machine or a later version could run is no fault of the file.
        let severity = if obstacle.need.mistake { Severity::Warning } else { Severity::Note };
        let message = format!("unavailable here: {}", obstacle.said());
        Problem { severity, code: Code::Dependency, pointer: obstacle.need.pointer.clone(), line, column, message }
    };
    found.iter().zip(places.find(&pointers)).map(problem).collect()
}

/// A script directly in a base folder (DESIGN §4).
fn no_folder(tool: &registry::Tool) -> Option<Problem> {
    let site = &tool.site;
    let shared = site.script.is_some() && site.folder == site.base;
    shared.then(|| {
        let pointer = "/handler/scriptPath";
        let (line, column) = registry::Places::of(&site.manifest).one(pointer);
        let message = format!(
            "the script lies directly in the base folder {}, where other tools' files lie too, so it has no folder of \
             its own and reads only itself where nothing more is granted: give it one",
            site.base.display()
        );
        Problem { severity: Severity::Note, code: Code::Security, pointer: pointer.to_owned(), line, column, message }
    })
}

/// What the granted files are now, if a call is refused for that.
fn files(tool: &registry::Tool, decision: &policy::Decision) -> Option<Problem> {
    let (fault, grant) = sandbox::grants::foresee(decision.shape.as_deref().ok()?).err()?;
    let list = if grant.access == policy::Access::Write { WRITE } else { READ };
    let pointer = item(&tool.manifest, list, &grant.asked);
    let (line, column) = registry::Places::of(&tool.site.manifest).one(&pointer);
    let why = fault.person.as_deref().unwrap_or_default();
    let message = format!("every call is refused as the files lie now: {}: {why}", fault.message);
    Some(Problem { severity: Severity::Warning, code: Code::Security, pointer, line, column, message })
}

fn of(tool: &registry::Tool, decision: &policy::Decision) -> Vec<Problem> {
    let refused = registry::refused(decision);
    // In a policy of mode "narrow" the rest of the tool runs; what can never be granted is still a mistake.
    let told = |verdict: &&Verdict| verdict.refuses() && (refused || verdict.never());
    let verdicts: Vec<&Verdict> = decision.verdicts.iter().filter(told).collect();
    let pointers: Vec<String> = verdicts.iter().map(|verdict| pointer(verdict, &tool.manifest)).collect();
    let places = match pointers.as_slice() {
        [] => Vec::new(),
        _ => {
            let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
            registry::Places::of(&tool.site.manifest).find(&pointers)
        }
    };
    let mut problems: Vec<Problem> = Vec::new();
    for ((verdict, pointer), (line, column)) in verdicts.into_iter().zip(pointers).zip(places) {
        let (severity, message) = verdict_in_words(verdict, decision, refused);
        problems.push(Problem { severity, code: Code::Security, pointer, line, column, message });
    }
    if let Err(fault) = &decision.shape
        && refused
        && problems.is_empty()
    {
        let why = fault.person.as_deref().unwrap_or(&fault.message).replace('\n', " ");
        let message = format!("every call is refused by policy '{}': {why}", decision.policy);
        problems.push(super::remark(Severity::Warning, Code::Security, message));
    }
    problems
}

fn verdict_in_words(verdict: &Verdict, decision: &policy::Decision, refused: bool) -> (Severity, String) {
    let reason = verdict.reason.as_deref().unwrap_or("not allowed");
    let asked = format!("{} {}: {reason}", verdict.what.name(), verdict.asked);
    if !verdict.never() {
        let id = decision.tool.rsplit_once('@').map_or(decision.tool.as_str(), |(id, _)| id);
        let mend = format!("`toolhost audit {id} --suggest-policy` prints what would grant it");
        let message = format!("every call is refused by policy '{}': {asked}; {mend}", decision.policy);
        return (Severity::Warning, message);
    }
    match refused {
        true => (Severity::Error, format!("every call is refused, and no policy can change that: {asked}")),
        false => (Severity::Warning, format!("never granted, whatever a policy says: {asked}")),
    }
}

/// Where the manifest asks for it.
fn pointer(verdict: &Verdict, manifest: &Manifest) -> String {
    let list = match verdict.what {
        What::Read => READ,
        What::Write => WRITE,
        What::Host => "/securityContext/networkAccess/allowHosts",
        What::Capability => "/securityContext/requiredCapabilities",
        What::Env => return format!("/execution/env/{}", escape_segment(&verdict.asked)),
        What::Runtime => return "/handler/language".to_owned(),
    };
    item(manifest, list, &verdict.asked)
}

/// Where in a list of the manifest a text stands.
fn item(manifest: &Manifest, list: &str, text: &str) -> String {
    let items = manifest.raw.pointer(list).and_then(Value::as_array);
    let index = items.and_then(|items| items.iter().position(|item| item.as_str() == Some(text)));
    index.map_or_else(String::new, |index| format!("{list}/{index}"))
}
