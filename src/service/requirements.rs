//! Requirements: what the files beside a script ask for, joined to what policy decided about it.
//!
//! For: the road, `list`, `check`, `audit`, `diff`. In: a decision, where the script lies, the registry. Out: the decision
//! with its packages, or with the reason why not. Never: lets a file speak for a script of others; reads for a tool without
//! a script.

use crate::manifest::{Handler, Language, Site};
use crate::packages::{self, Place, Wanted};
use crate::policy::{Decision, FileProblem, Machine, Policies};
use crate::registry::{Snapshot, Tool};
use std::path::Path;

/// What policy decides about a tool, with what its files ask for now.
pub fn decide(tool: &Tool, snapshot: &Snapshot, policies: &Policies, machine: &Machine) -> Decision {
    let mut decision = crate::policy::decide(&tool.manifest, &tool.site, policies, machine);
    if let Handler::Script { language, .. } = tool.manifest.handler {
        let guest = snapshot.is_guest(&tool.site.manifest);
        add(&mut decision, &tool.site, language, guest, snapshot, machine);
    }
    decision
}

/// What policy decides about a tool, as if the lock that toolhost writes were not there.
pub(super) fn anew(tool: &Tool, snapshot: &Snapshot, policies: &Policies, machine: &Machine) -> Decision {
    let mut decision = crate::policy::decide(&tool.manifest, &tool.site, policies, machine);
    if let Handler::Script { language, .. } = tool.manifest.handler
        && let Some(found) = beside(&tool.site, language, snapshot.is_guest(&tool.site.manifest), true, snapshot)
    {
        decision.wants(found, None, machine);
    }
    decision
}

/// Adds to a decision about a script what the files beside it ask for. `guest`: it lies in a folder of other tools than
/// those that name it.
pub(super) fn add(
    decision: &mut Decision,
    site: &Site,
    language: Language,
    guest: bool,
    snapshot: &Snapshot,
    machine: &Machine,
) {
    let Some(found) = beside(site, language, guest, false, snapshot) else { return };
    let by_hand = by_hand(decision, site, language);
    decision.wants(found, by_hand, machine);
}

/// What the files beside a script ask for. `anew`: without the lock that toolhost writes.
fn beside(
    site: &Site,
    language: Language,
    guest: bool,
    anew: bool,
    snapshot: &Snapshot,
) -> Option<Result<Option<Wanted>, FileProblem>> {
    let writer = |path: &Path| snapshot.written.over(path);
    let alone = guest || site.folder == site.base;
    Some(packages::find(&Place { script: site.script.as_deref()?, language, alone, anew, writer: &writer }))
}

/// Where somebody installed packages already: those of the interpreter that the policy names, or beside the script.
fn by_hand(decision: &Decision, site: &Site, language: Language) -> Option<&'static str> {
    let named = decision.runtime.as_ref().is_some_and(|runtime| runtime.found != "PATH");
    match language {
        Language::Python if named => Some("the interpreter that its policy names is taken to have them"),
        Language::Nodejs | Language::Bun if site.folder.join("node_modules").is_dir() => {
            Some("node_modules beside the script is used as it lies")
        }
        _ => None,
    }
}
