//! How a decision is narrowed: by every other tool that names the script, and by what one call asks for.

use super::area::Area;
use super::capability::Capability;
use super::confinement::{Access, Confinement, PerCall};
use super::decision::Decision;
use super::file::Policy;
use super::files::{FileRules, Rule};
use super::grantable::Entry;
use super::limits;
use super::verdict::{Notes, RequestKind};
use crate::fault::{Fault, Kind};
use crate::manifest::{At, StderrRule};
use crate::quantity::{Limit, MIN_TIMEOUT_MS};

/// What a tool has, as a policy that bounds whoever runs its script.
pub(super) fn as_policy(owner: &Decision) -> Policy {
    fn entry<G: Clone>(grant: &G) -> Entry<G> {
        Entry { grant: grant.clone(), at: At::default() }
    }
    let (why, at) = (String::new(), At::default());
    let rules = |access| {
        let grants = owner.grants.iter().filter(|grant| grant.access == access);
        let areas = grants.map(|grant| Area::from_opening(&grant.opening));
        areas.map(|area| Rule { text: area.text(), relative: false, area, why: why.clone(), at }).collect()
    };
    let words = owner.verdicts.iter().filter(|verdict| verdict.allowed && verdict.what == RequestKind::Capability);
    let packages = owner.package_rules.iter().filter_map(|(of, allowed)| Some((*of, entry(allowed.as_ref().ok()?))));
    Policy {
        name: owner.tool.clone(),
        stderr: if owner.stderr_is_error { StderrRule::Error } else { StderrRule::Log },
        require_cgroup: owner.require_cgroup,
        observe: owner.observe,
        files: FileRules { read: rules(Access::Read), write: rules(Access::Write) },
        limits: limits::of_shape(&owner.limits).0.iter().map(|(limit, most)| (*limit, entry(most))).collect(),
        capabilities: words.map(|word| Capability { name: word.asked.clone(), why: why.clone(), at }).collect(),
        hosts: owner.hosts.iter().map(entry).collect(),
        secrets: owner.secrets.iter().map(entry).collect(),
        packages: packages.collect(),
        digest: owner.digest.clone(),
        ..Policy::built_in()
    }
}

/// Why no call may run the script of a tool that is refused itself.
pub(super) fn refused_with(owner: &Decision) -> Option<Fault> {
    let fault = owner.shape.as_ref().err().filter(|fault| fault.kind == Kind::SecurityError)?;
    let why = fault.person.as_deref().unwrap_or_default();
    let message = "this script belongs to a tool that this host refuses; ask the operator";
    let person = format!("{} names this script and is refused itself: {why}", owner.tool);
    Some(Fault::new(Kind::SecurityError, message).person(person))
}

/// The confinement of one call. Nothing in its arguments widens anything.
pub fn confine(decision: &Decision, asked_ms: Option<u64>, source: Option<String>) -> Result<Confinement, Fault> {
    let shape = decision.shape.clone()?;
    let timeout_ms = time_ms(decision, asked_ms)?;
    if shape.script.is_some() == source.is_some() {
        return Err(Fault::new(Kind::InternalError, "a call runs either a script or the source it brings"));
    }
    Ok(Confinement { shape, per_call: PerCall { timeout_ms, source, ..PerCall::default() } })
}

/// The time that a call has, milliseconds: what it asks for, at most what policy allows.
pub fn time_ms(decision: &Decision, asked_ms: Option<u64>) -> Result<u64, Fault> {
    if let Some(asked) = asked_ms.filter(|asked| *asked < MIN_TIMEOUT_MS) {
        let message = format!("timeoutMs must be at least {MIN_TIMEOUT_MS}; {asked} was given");
        return Err(Fault::new(Kind::ParameterValidationError, message));
    }
    let house = Limit::TimeoutMs.house_default();
    let (usual, most) =
        decision.limit(Limit::TimeoutMs).map_or((house, house), |limit| (limit.effective, limit.ceiling));
    Ok(asked_ms.unwrap_or(usual).min(most))
}

/// What to record and tell of one call: where it gets less than the tool or the call itself asked.
pub fn call_notes(decision: &Decision, asked_ms: Option<u64>) -> Notes {
    let mut notes = decision.notes.clone();
    if let Some(limit) = decision.limit(Limit::TimeoutMs)
        && let Some(asked) = asked_ms.filter(|asked| *asked > limit.ceiling)
    {
        notes.clamped(limit.limit, asked, limit.ceiling, &limit.from);
    }
    notes
}
