//! Requirements: what the files beside a script ask for, joined to what policy decided about it.
//!
//! For: the road, `list`, `check`, `audit`, `diff`. In: a decision, where the script lies, the registry. Out: the decision
//! with its packages, or with the reason why not. Never: lets a file speak for a script of others; reads for a tool without
//! a script.

use crate::manifest::{Handler, Language, Site};
use crate::packages::{self, Place};
use crate::policy::{Decision, Machine, Policies};
use crate::registry::{Snapshot, Tool};
use std::path::Path;

/// What policy decides about a tool, with what its files ask for now.
pub fn decide(tool: &Tool, snapshot: &Snapshot, policies: &Policies, machine: &Machine) -> Decision {
    let mut decision = crate::policy::decide(&tool.manifest, &tool.site, policies, machine);
    of_tool(&mut decision, tool, snapshot, machine);
    decision
}

/// Adds to a decision about a tool what its files ask for.
pub fn of_tool(decision: &mut Decision, tool: &Tool, snapshot: &Snapshot, machine: &Machine) {
    if let Handler::Script { language, .. } = tool.manifest.handler {
        let guest = snapshot.is_guest(&tool.site.manifest);
        add(decision, &tool.site, language, guest, snapshot, machine);
    }
}

/// What policy decides about a tool, as if the lock that toolhost writes were not there.
pub(super) fn anew(tool: &Tool, snapshot: &Snapshot, policies: &Policies, machine: &Machine) -> Decision {
    let mut decision = crate::policy::decide(&tool.manifest, &tool.site, policies, machine);
    let Handler::Script { language, .. } = tool.manifest.handler else { return decision };
    let Some(script) = tool.site.script.as_deref() else { return decision };
    let writer = |path: &Path| snapshot.written.over(path);
    let alone = snapshot.is_guest(&tool.site.manifest) || tool.site.folder == tool.site.base;
    let place = Place { script, language, alone, anew: true, writer: &writer };
    decision.wants(packages::find(&place), None, machine);
    decision
}

/// The same, for a script that a call names. `guest`: it lies in a folder of other tools than those that name it.
pub(super) fn add(
    decision: &mut Decision,
    site: &Site,
    language: Language,
    guest: bool,
    snapshot: &Snapshot,
    machine: &Machine,
) {
    let Some(script) = site.script.as_deref() else { return };
    let writer = |path: &Path| snapshot.written.over(path);
    let place = Place { script, language, alone: guest || site.folder == site.base, anew: false, writer: &writer };
    let by_hand = by_hand(decision, site, language);
    decision.wants(packages::find(&place), by_hand, machine);
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
