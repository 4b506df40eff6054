//! The trait of every kind of grant, and the one intersection by which all requests are narrowed.

use super::area::Area;
use super::capability::Capability;
use super::confinement::Access;
use super::decision::Decision;
use super::file::Policy;
use super::files::{FileRules, Rule};
use super::limits;
use super::verdict::{Narrower, RequestKind, Verdict};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::{At, StderrRule};
use std::path::Path;

/// One entry of a policy: the most that it grants, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry<G> {
    pub grant: G,
    pub at: At,
}

/// How verdicts name a policy.
#[derive(Clone, Copy)]
pub struct Origin<'p> {
    pub name: &'p str,
    pub file: &'p Path,
}

impl Origin<'_> {
    /// Where an entry of the policy is written: `file:line`, or the policy's name if it has no
    /// file.
    pub fn place(self, at: At) -> String {
        match text::path(self.file) {
            file if file.is_empty() => self.name.to_owned(),
            file if at.line == 0 => file,
            file => format!("{file}:{}", at.line),
        }
    }

    pub fn called(self) -> String {
        match text::path(self.file) {
            file if file.is_empty() => format!("`{}`", self.name),
            file => format!("`{}` ({file})", self.name),
        }
    }
}

/// One bound of a tool: its policy, the host's cap, or the grants of a tool that names the same
/// script. A tool is granted the intersection of its request with all its ceilings.
#[derive(Clone, Copy)]
pub struct Ceiling<'p> {
    pub policy: &'p Policy,
    pub narrower: Narrower,
}

impl Ceiling<'_> {
    pub fn lacks_entry(self, table: &str, what: &str) -> String {
        match self.narrower {
            // Callers read this text, too, so it names no file.
            Narrower::Owner => format!(
                "{} names this script and is not granted all of it",
                self.policy.name
            ),
            _ => format!(
                "no entry of {table} in policy {} covers {what}",
                self.policy.origin().called()
            ),
        }
    }
}

/// The grants of a tool, as a policy that bounds every other tool that runs its script.
pub(super) fn as_policy(owner: &Decision) -> Policy {
    fn entry<G: Clone>(grant: &G) -> PolicyEntry<G> {
        PolicyEntry {
            grant: grant.clone(),
            at: At::default(),
        }
    }
    let why = String::new();
    let at = At::default();
    let rules = |access| {
        let grants = owner.grants.iter().filter(|grant| grant.access == access);
        let areas = grants.map(|grant| Area::from_opening(&grant.opening));
        areas
            .map(|area| Rule {
                text: area.text(),
                relative: false,
                area,
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
        .package_rules
        .iter()
        .filter_map(|(of, allowed)| Some((*of, entry(allowed.as_ref().ok()?))));
    Policy {
        name: owner.tool.clone(),
        stderr: if owner.stderr_is_error {
            StderrRule::Error
        } else {
            StderrRule::Log
        },
        require_cgroup: owner.require_cgroup,
        observe: owner.observe,
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
        hosts: owner.hosts.iter().map(entry).collect(),
        secrets: owner
            .secrets
            .iter()
            .filter(|_| can_run)
            .map(entry)
            .collect(),
        packages: packages.collect(),
        digest: owner.digest.clone(),
        // The rest of the built-in policy grants nothing and requires nothing.
        ..Policy::built_in()
    }
}

/// The fault of every call that runs the script of this tool. `None`: the tool is not refused
/// itself.
pub(super) fn refused_with(owner: &Decision) -> Option<Fault> {
    let by_policy = owner.lacks.iter().any(|need| need.by_policy);
    let fault = owner
        .shape
        .as_ref()
        .err()
        .filter(|fault| by_policy || fault.kind == Kind::SecurityError)?;
    let why = fault.person.as_deref().unwrap_or_default();
    let message = "this script belongs to a tool that this host refuses; ask the operator";
    let person = format!(
        "{} names this script and is refused itself: {why}",
        owner.tool
    );
    Some(Fault::new(Kind::SecurityError, message).person(person))
}

/// For a request by name: the entry of the first ceiling, if every ceiling has one; else which ceiling
/// refuses, and why.
pub fn granted<'p, E: 'p>(
    ceilings: &[Ceiling<'p>],
    table: &str,
    what: &str,
    entry: impl Fn(&'p Policy) -> Option<&'p E>,
) -> Result<(&'p E, Origin<'p>), (Narrower, String)> {
    let entries: Vec<_> = ceilings
        .iter()
        .map(|ceiling: &Ceiling<'p>| {
            let entry = entry(ceiling.policy).map(|entry| (entry, ceiling.policy.origin()));
            entry.ok_or_else(|| (ceiling.narrower, ceiling.lacks_entry(table, what)))
        })
        .collect::<Result<_, _>>()?;
    entries
        .into_iter()
        .next()
        .ok_or((Narrower::Policy, String::new()))
}

/// For a request with parts: the largest parts that every ceiling grants. `both`: the overlap of a
/// part and an entry.
pub fn narrowed<'p, P, E: 'p, I: IntoIterator<Item = &'p E>>(
    whole: P,
    ceilings: &[Ceiling<'p>],
    entries: impl Fn(&'p Policy) -> I,
    both: impl Fn(&P, &'p E) -> Option<P>,
    covers: impl Fn(&P, &P) -> bool,
) -> Vec<P> {
    ceilings.iter().fold(vec![whole], |parts, ceiling| {
        // Covered parts are dropped after each ceiling, or the parts would multiply.
        largest(
            parts.iter().flat_map(|part| {
                entries(ceiling.policy)
                    .into_iter()
                    .filter_map(|entry| both(part, entry))
                    .collect::<Vec<_>>()
            }),
            &covers,
        )
    })
}

/// The parts, without those that another part covers.
fn largest<P>(parts: impl IntoIterator<Item = P>, covers: impl Fn(&P, &P) -> bool) -> Vec<P> {
    let mut kept: Vec<P> = Vec::new();
    for part in parts {
        if !kept.iter().any(|wide| covers(wide, &part)) {
            kept.retain(|narrow| !covers(&part, narrow));
            kept.push(part);
        }
    }
    kept
}

pub trait Grantable: Sized {
    fn kind(&self) -> &'static str;

    /// What the grant lets a tool do, in words for people, without its origin.
    fn text(&self) -> String;

    /// Whether this grant allows all that `other` allows.
    fn covers(&self, other: &Self) -> bool;

    /// Whether several grants together allow all that `narrow` allows.
    fn are_covering(wide: &[Self], narrow: &Self) -> bool {
        wide.iter().any(|wide| wide.covers(narrow))
    }

    /// Whether both grants are about the same thing, whatever each allows of it.
    fn is_near(&self, other: &Self) -> bool;
}

/// Grants without those that another grant covers.
pub fn least<G: Grantable>(grants: impl IntoIterator<Item = G>) -> Vec<G> {
    largest(grants, G::covers)
}
