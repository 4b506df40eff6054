//! How a decision is narrowed: by every other tool that names the script, and by what one call asks for.

use super::area::Area;
use super::confinement::{Confinement, Grant, HostGrant, PerCall, Variable};
use super::decision::Decision;
use super::grantable::{Grantable, least, narrowed};
use super::verdict::{LimitVerdict, Narrower, Notes, RequestKind};
use super::{files, packages};
use crate::fault::{Fault, Kind};
use crate::quantity::{Limit, MIN_TIMEOUT_MS};
use std::collections::BTreeMap;

/// Narrows a decision, before its shape is made, by what another tool that names the script gets. Returns why no call
/// may run it, if the other tool is refused.
pub(super) fn narrow_by_owner(decision: &mut Decision, other: &Decision) -> Option<Fault> {
    let script = decision.script.clone().map(Area::File);
    let own = decision.grants.iter().filter(|grant| Some(Area::from_opening(&grant.opening)) == script).cloned();
    let grants = least(own.chain(narrowed(&decision.grants, &other.grants)));
    let hosts = least(narrowed(&decision.hosts, &other.hosts));
    let secrets = narrowed(&decision.secrets, &other.secrets);
    let shape = other.shape.as_ref().ok();
    let (env, lost_env): (BTreeMap<_, _>, BTreeMap<_, _>) =
        std::mem::take(&mut decision.env).into_iter().partition(|(name, value)| {
            matches!(value, Variable::Literal(_)) || shape.is_some_and(|shape| shape.env.get(name) == Some(value))
        });
    let lost_files = decision.grants.iter().filter(|grant| !Grant::are_covering(&grants, grant)).map(|grant| {
        let left =
            grants.iter().filter(|left| left.asked == grant.asked).map(|left| Area::from_opening(&left.opening).text());
        (files::kind(grant.access), grant.asked.clone(), left.collect())
    });
    let lost_hosts = decision.hosts.iter().filter(|grant| !HostGrant::are_covering(&hosts, grant)).map(|grant| {
        let left = hosts.iter().filter(|left| left.asked == grant.asked).map(HostGrant::text);
        (RequestKind::Host, grant.asked.clone(), left.collect())
    });
    let lost_secrets = decision.secrets.iter().filter(|grant| !secrets.contains(grant));
    let lost_words = lost_secrets.map(|grant| format!("secret:{}", grant.name));
    let lost_words = lost_words.chain(lost_env.keys().map(|name| format!("env:{name}")));
    let lost_words = lost_words.map(|word| (RequestKind::Capability, word, Vec::new()));
    let lost: Vec<(RequestKind, String, Vec<String>)> = lost_files.chain(lost_hosts).chain(lost_words).collect();
    lost.into_iter().for_each(|(what, asked, left)| less(decision, what, &asked, &left, &other.tool));
    (decision.grants, decision.hosts, decision.secrets, decision.env) = (grants, hosts, secrets, env);
    packages::narrow(&mut decision.package_rules, &other.tool, &other.package_rules);
    for limit in &mut decision.limits {
        if let Some(theirs) = other.limit(limit.limit) {
            narrow_limit(limit, theirs, &other.tool, &mut decision.notes);
        }
    }
    decision.digest = crate::base::sha256_hex(format!("{}{}", decision.digest, other.digest).as_bytes());
    decision.require_cgroup |= other.require_cgroup;
    decision.observe |= other.observe;
    let more: Vec<_> = other.confirm.iter().filter(|why| !decision.confirm.contains(why)).cloned().collect();
    decision.confirm.extend(more);
    decision.stderr_is_error |= other.stderr_is_error;
    decision.text_output |= other.text_output;
    let fault = other.shape.as_ref().err().filter(|fault| fault.kind == Kind::SecurityError)?;
    let why = fault.person.as_deref().unwrap_or_default();
    let message = "this script belongs to a tool that this host refuses; ask the operator";
    let person = format!("{} names this script and is refused itself: {why}", other.tool);
    Some(Fault::new(Kind::SecurityError, message).person(person))
}

/// Records that less is granted of a request, because a tool that names the script has less; `left`: what it still is.
fn less(decision: &mut Decision, what: RequestKind, asked: &str, left: &[String], tool: &str) {
    let has = if left.is_empty() { "is not granted it" } else { "is granted less" };
    let reason = format!("{tool} names this script and {has}");
    // The word of a capability says its kind.
    let kind = if what == RequestKind::Capability { String::new() } else { format!("{} ", what.name()) };
    let words = format!("narrowed: {kind}{asked}: {reason}");
    if !decision.notes.told.contains(&words) {
        decision.notes.narrowed(words);
    }
    for verdict in decision.verdicts.iter_mut().filter(|v| v.what == what && v.asked == asked) {
        verdict.allowed = false;
        verdict.narrower = Some(Narrower::Manifest);
        verdict.reason = Some(reason.clone());
        verdict.effective = Some(left.join(", ")).filter(|left| !left.is_empty());
    }
}

fn narrow_limit(limit: &mut LimitVerdict, theirs: &LimitVerdict, tool: &str, notes: &mut Notes) {
    // The script gets at most what the tool that names it gets; of time that is the ceiling, since a call may ask
    // that tool for more time too.
    let most = if limit.limit == Limit::TimeoutMs { theirs.ceiling } else { theirs.effective };
    if most < limit.ceiling {
        limit.ceiling = most;
        limit.from = tool.to_string();
        let asked = limit.asked.filter(|asked| *asked > most);
        limit.clamped = asked.is_some();
        if let Some(asked) = asked {
            notes.clamped(limit.limit, asked, most, tool);
        }
    }
    limit.effective = limit.effective.min(theirs.effective);
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
