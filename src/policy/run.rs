//! Run: scripts that a builtin tool runs (`core:execute-*`, `core:run-code`), and the last step before a call.
//!
//! For: service. In: a target, the builtin's manifest, every manifest that names the script.
//! Out: a `Decision`, a `Confinement`. Never: gives a script more than each of those manifests would.

use super::area::Area;
use super::decide::{self, Subject, judge, shape_limits};
use super::files::what;
use super::grantable::{Grantable, least};
use super::hosts;
use super::load::Policies;
use super::packages;
use super::verdict::{Decision, LimitVerdict, Narrower, Notes, Verdict, What};
use super::{Access, Confinement, Grant, HostGrant, Machine, Opening, PerCall, SecretGrant, Variable};
use crate::fault::{Fault, Kind};
use crate::manifest::{Language, Manifest, Site};
use crate::quantity::{Limit, MIN_TIMEOUT_MS};
use std::path::PathBuf;
use std::sync::Arc;

/// The script, or the source text, that a builtin tool is asked to run.
#[derive(Clone, Debug)]
pub struct RunTarget {
    /// Where the script lies; `script: None` for source text that comes with the call.
    pub site: Site,
    pub language: Language,
}

/// The builtin's asks relative to the script's folder ∩ its policy ∩ every policy and manifest that names the script.
/// `namers`: the tools whose script this is; the caller finds them.
pub fn decide_run(
    target: &RunTarget,
    tool: &Manifest,
    namers: &[(Arc<Manifest>, Site)],
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    if target.site.script.is_none() {
        return run_code(target, tool, policies, machine);
    }
    let runs = Some((target.language, None));
    // The builtin's own manifest has no file; the manifests that name the script are protected through `namers`.
    let site = Site { manifest: PathBuf::new(), ..target.site.clone() };
    let mut decision = judge(&Subject { manifest: tool, site: &site, runs, narrow: true, namers }, policies, machine);
    for (manifest, site) in namers {
        let other = decide::decide(manifest, site, policies, machine);
        meet(&mut decision, &other);
    }
    decision
}

/// Source text: scratch only. It exists only where a policy names the tool by its exact id.
fn run_code(target: &RunTarget, tool: &Manifest, policies: &Policies, machine: &Machine) -> Decision {
    let mut bare = tool.clone();
    bare.asks.read = Some(Vec::new());
    bare.asks.write = Vec::new();
    bare.asks.hosts = Vec::new();
    let site = Site { manifest: PathBuf::new(), folder: PathBuf::from("/tmp"), script: None, base: PathBuf::new() };
    let runs = Some((target.language, None));
    judge(&Subject { manifest: &bare, site: &site, runs, narrow: true, namers: &[] }, policies, machine)
}

/// Narrows `decision` by what `other` would give the same script.
fn meet(decision: &mut Decision, other: &Decision) {
    if let Err(fault) = &other.shape
        && fault.kind == Kind::SecurityError
    {
        let person = format!(
            "{} names this script and is refused itself: {}",
            other.tool,
            fault.person.as_deref().unwrap_or_default()
        );
        decision.shape = Err(Fault::new(
            Kind::SecurityError,
            "this script belongs to a tool that this host refuses; ask the operator",
        )
        .person(person));
    }
    let before = std::mem::take(&mut decision.grants);
    let after = overlap(&before, &other.grants, decision.script.as_ref().map(|s| Area::File(s.clone())));
    for grant in before.iter().filter(|g| !Grant::are_covering(&after, g)) {
        let left = after.iter().filter(|a| a.asked == grant.asked).map(|a| Area::of(&a.opening).text()).collect();
        less(decision, what(grant.access), &grant.asked, left, &other.tool);
    }
    decision.grants = after;
    meet_hosts(decision, other);
    meet_secrets(decision, other);
    packages::meet(&mut decision.package_rules, other);
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
    let network = decision.network();
    if let Ok(shape) = &mut decision.shape {
        let shape = Arc::make_mut(shape);
        shape.grants = decision.grants.clone();
        shape.network = network;
        shape.secrets = decision.secrets.clone();
        shape.limits = shape_limits(&decision.limits);
        shape.require_cgroup = decision.require_cgroup;
        shape.observe = decision.observe;
        shape.stderr_is_error = decision.stderr_is_error;
        shape.text_output = decision.text_output;
        let theirs = other.shape.as_ref().ok();
        shape.env.retain(|name, value| {
            let kept = !matches!(value, Variable::Host(_)) || theirs.is_some_and(|t| t.env.get(name) == Some(value));
            if !kept {
                let asked = format!("env:{name}");
                withheld(asked, &other.tool, &mut decision.verdicts, &mut decision.notes);
            }
            kept
        });
    }
}

/// Leaves the secrets that `other` may use in the same way.
fn meet_secrets(decision: &mut Decision, other: &Decision) {
    let same = |our: &SecretGrant, their: &SecretGrant| {
        (&our.name, &our.from, &our.header) == (&their.name, &their.from, &their.header)
    };
    let (kept, lost) = std::mem::take(&mut decision.secrets)
        .into_iter()
        .partition(|our| other.secrets.iter().any(|their| same(our, their)));
    decision.secrets = kept;
    for SecretGrant { name, .. } in lost {
        withheld(format!("secret:{name}"), &other.tool, &mut decision.verdicts, &mut decision.notes);
    }
}

/// Records that a variable of the host, or a secret, is withheld, because a tool that names the script is not granted it.
fn withheld(asked: String, tool: &str, verdicts: &mut [Verdict], notes: &mut Notes) {
    let reason = format!("{tool} names this script and is not granted it");
    notes.narrowed(format!("narrowed: {asked}: {reason}"));
    for verdict in verdicts.iter_mut().filter(|v| v.what == What::Capability && v.asked == asked) {
        (verdict.allowed, verdict.effective) = (false, None);
        verdict.narrower = Some(Narrower::Manifest);
        verdict.reason = Some(reason.clone());
    }
}

/// Narrows the hosts of `decision` by those of `other`.
fn meet_hosts(decision: &mut Decision, other: &Decision) {
    let parts = |our: &HostGrant| -> Vec<HostGrant> {
        other.hosts.iter().filter_map(|their| hosts::part(our, &their.pattern, Some(&their.ranges))).collect()
    };
    let before = std::mem::take(&mut decision.hosts);
    let after = least(before.iter().flat_map(parts));
    for grant in before.iter().filter(|grant| !HostGrant::are_covering(&after, grant)) {
        let left = after.iter().filter(|a| a.asked == grant.asked).map(HostGrant::text).collect();
        less(decision, What::Host, &grant.asked, left, &other.tool);
    }
    decision.hosts = after;
}

/// Records that less is granted of an ask, because a tool that names the script has less; `left`: what it still is.
fn less(decision: &mut Decision, what: What, asked: &str, left: Vec<String>, tool: &str) {
    let reason = format!("{tool} names this script and is granted less");
    let words = format!("narrowed: {} {asked}: {reason}", what.name());
    if !decision.notes.told.contains(&words) {
        decision.notes.narrowed(words);
    }
    let left = Some(left.join(", ")).filter(|left| !left.is_empty());
    for verdict in decision.verdicts.iter_mut().filter(|v| v.what == what && v.asked == asked) {
        verdict.allowed = false;
        verdict.narrower = Some(Narrower::Manifest);
        verdict.reason = Some(reason.clone());
        verdict.effective = left.clone();
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

/// Pairwise overlap of two lists of grants; a grant of the script itself always stays.
fn overlap(ours: &[Grant], theirs: &[Grant], script: Option<Area>) -> Vec<Grant> {
    let mut both = Vec::new();
    for our in ours {
        if Some(Area::of(&our.opening)) == script {
            both.push(our.clone());
        }
        for their in theirs {
            let Some(area) = Area::of(&our.opening).overlap(&Area::of(&their.opening)) else { continue };
            let access = our.access.min(their.access);
            // A staged grant stays staged: only two live grants give a live write.
            let live = [&our.opening, &their.opening].iter().all(|o| matches!(o, Opening::Live { .. }));
            let opening = match (access, live, &area) {
                (Access::Read, ..) => area.for_reading(),
                (Access::Write, false, Area::Tree(_)) => continue,
                (Access::Write, ..) => area.for_writing(),
            };
            both.push(Grant { access, opening, ..our.clone() });
        }
    }
    least(both)
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
