//! The faults with which every call of a tool is refused, as callers and the operator read them.

use super::capability;
use super::decision::Decision;
use super::verdict::{Need, RequestKind, Verdict};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::Manifest;
use std::path::Path;

pub fn in_process() -> Fault {
    Fault::new(
        Kind::InternalError,
        "this tool runs inside the host and has no confinement of its own",
    )
}

/// The fault of a tool whose policy cannot be read in full.
pub fn faulty_policy(fault: &str, tool: &str) -> Fault {
    let message = "the policy for this tool has a fault, so it was not started; ask the operator";
    let tool = text::printable(tool);
    Fault::new(Kind::SecurityError, message)
        .person(format!("the policy that names {tool} has a fault: {fault}"))
}

/// The fault of a tool that requests more than it may have. The operator must act.
pub fn refusal(decision: &Decision) -> Option<Fault> {
    let governing = &decision.governing;
    let tool = text::printable(&decision.identity.tool);
    let id = tool.rsplit_once('@').map_or(tool.as_str(), |(id, _)| id);
    let refused: Vec<&Verdict> = decision
        .verdicts
        .iter()
        .filter(|v: &&Verdict| v.refuses() && (!governing.narrow || v.what == RequestKind::Service))
        .collect();
    if refused.is_empty() && !governing.unnamed {
        return None;
    }
    let source = format!("run source text: only where a policy names it: tools = [\"{id}\"]");
    let requests = refused.iter().map(|verdict| {
        let reason = verdict.reason.as_deref().unwrap_or("not allowed");
        let asked = text::printable(&verdict.asked);
        format!(
            "{} {asked}: {}",
            verdict.what.name(),
            text::printable(reason)
        )
    });
    let passed_over = governing.passed_over.iter();
    let lines: String = governing
        .unnamed
        .then_some(source)
        .into_iter()
        .chain(requests)
        .chain(passed_over.map(|policy| policy.words.clone()))
        .map(|line| format!("\n  {line}"))
        .collect();
    let suggest = format!(
        "`toolhost allow {id}` writes (`toolhost audit {id} --suggest-policy` prints) what would grant"
    );
    let grantable = governing.unnamed || refused.iter().any(|verdict| !verdict.never());
    let fix = match (refused.iter().any(|verdict| verdict.never()), grantable) {
        (true, false) => {
            "no policy can grant this: change what the manifest requests (securityContext)."
                .to_owned()
        }
        (true, true) => format!("{suggest} what a policy can; for the rest change the manifest."),
        (false, _) => format!("{suggest} it."),
    };
    let message =
        "this tool asks for more than this host allows, so it was not started; ask the operator";
    let person =
        format!("{tool} asks for more than is allowed:{lines}\nSee `toolhost audit {id}`; {fix}");
    Some(Fault::new(Kind::SecurityError, message).person(person))
}

/// The fault of a tool that needs a feature that is not built, or something that this machine
/// lacks.
pub fn unavailable(decision: &Decision, manifest: &Manifest) -> Option<Fault> {
    let mut needs: Vec<Need> = capability::needs_of(manifest);
    needs.extend(decision.lacks.iter().cloned());
    if needs.is_empty() {
        return None;
    }
    let tool = text::printable(&decision.identity.tool);
    let id = text::printable(&manifest.id);
    let needs = needs.join("; ");
    let person = format!(
        "{tool} is unavailable: it needs {needs}\nSee `toolhost audit {id}` and `toolhost doctor`."
    );
    Some(lacking(&needs).person(person))
}

pub fn lacking(words: &str) -> Fault {
    Fault::new(
        Kind::CapabilityError,
        format!("this tool cannot run here: it needs {words}"),
    )
}

pub fn not_utf8(folder: &Path) -> Fault {
    let fault = Fault::new(
        Kind::CapabilityError,
        "this tool cannot run here: a path is not UTF-8 text",
    );
    let folder = text::path(folder);
    fault.person(format!(
        "a path of this tool or its interpreter is not UTF-8 text (its folder: {folder}); \
        rename it"
    ))
}
