//! A tool as a ceiling: what bounds every other tool that runs its script.

use super::decision::Decision;
use super::limits;
use super::verdict::{RequestKind, Verdict};
use crate::fault::{Fault, Kind};
use crate::manifest::{At, StderrRule};
use crate::policy::grammar::{Access, Capability, FileRules, Policy, PolicyEntry, Rule};

/// The grants of a tool, as a policy that bounds every other tool that runs its script.
pub fn as_policy(owner: &Decision) -> Policy {
    fn entry<G: Clone>(grant: &G) -> PolicyEntry<G> {
        PolicyEntry {
            grant: grant.clone(),
            at: At::default(),
        }
    }
    let why = String::new();
    let at = At::default();
    let rules = |access| {
        let grants = owner
            .grants
            .files
            .iter()
            .filter(|grant| grant.access == access);
        grants
            .map(|grant| Rule {
                text: grant.area.text(),
                relative: false,
                area: grant.area.clone(),
                why: why.clone(),
                at,
            })
            .collect()
    };
    // A tool that cannot run passes on no capability and no secret.
    let can_run = owner.shape.is_ok();
    let words = owner.verdicts.iter().filter(|verdict: &&Verdict| {
        can_run && verdict.allowed && verdict.what == RequestKind::Capability
    });
    let packages = owner
        .packages
        .allowed
        .iter()
        .filter_map(|(of, allowed)| Some((*of, entry(allowed.as_ref().ok()?))));
    Policy {
        name: owner.identity.tool.clone(),
        stderr: if owner.conditions.stderr_is_error {
            StderrRule::Error
        } else {
            StderrRule::Log
        },
        require_cgroup: owner.conditions.require_cgroup,
        observe: owner.conditions.observe,
        files: FileRules {
            read: rules(Access::Read),
            write: rules(Access::Write),
        },
        limits: limits::of_shape(&owner.limits)
            .0
            .iter()
            .map(|(limit, most)| (*limit, entry(most)))
            .collect(),
        capabilities: words
            .map(|word| Capability {
                name: word.asked.clone(),
                why: why.clone(),
                at,
            })
            .collect(),
        hosts: owner.grants.hosts.iter().map(entry).collect(),
        secrets: owner
            .grants
            .secrets
            .iter()
            .filter(|_| can_run)
            .map(entry)
            .collect(),
        calls: owner.grants.calls.iter().map(entry).collect(),
        packages: packages.collect(),
        digest: owner.governing.digest.clone(),
        // The rest of the built-in policy grants nothing and requires nothing.
        ..Policy::built_in()
    }
}

/// The fault of every call that runs the script of this tool. `None`: the tool is not refused
/// itself.
pub fn refused_with(owner: &Decision) -> Option<Fault> {
    let by_policy = owner.lacks.iter().any(|need| need.by_policy);
    let fault = owner.shape.as_ref().err()?;
    match fault.kind {
        // The operator disabled it.
        Kind::AuthorizationError => return Some(fault.clone()),
        Kind::SecurityError => {}
        _ if by_policy => {}
        _ => return None,
    }
    let why = fault.person.as_deref().unwrap_or_default();
    let message = "this script belongs to a tool that this host refuses; ask the operator";
    let person = format!(
        "{} names this script and is refused itself: {why}",
        owner.identity.tool
    );
    Some(Fault::new(Kind::SecurityError, message).person(person))
}
