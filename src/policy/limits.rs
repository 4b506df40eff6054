//! Limits: the smallest of what the manifest and every ceiling say. Each has a value. A call may ask
//! for less time, or for more up to the ceiling.

use super::confinement::{Confinement, Limits, PerCall};
use super::decision::Decision;
use super::grantable::Ceiling;
use super::verdict::{LimitVerdict, Notes, layer};
use crate::fault::{Fault, Kind};
use crate::manifest::Manifest;
use crate::quantity::{Limit, MIN_TIMEOUT_MS};

/// All limits; `notes` gets those that are smaller than requested. `usual_ms`: the most time of a
/// call that requests none.
pub(super) fn limits(
    manifest: &Manifest,
    ceilings: &[Ceiling<'_>],
    usual_ms: u64,
    cgroup: bool,
    notes: &mut Notes,
) -> Vec<LimitVerdict> {
    let verdict = |limit| {
        let asked = match limit {
            Limit::TimeoutMs => manifest.execution.timeout_ms,
            _ => manifest.limits.get(&limit).copied(),
        };
        let ceilings = ceilings.iter().map(|ceiling| limit_of(limit, ceiling));
        let built_in = (limit.built_in_default(), LimitVerdict::BUILT_IN.to_owned());
        let (ceiling, from) = ceilings.min_by_key(|(value, _)| *value).unwrap_or(built_in);
        let clamped = asked.is_some_and(|asked| asked > ceiling);
        let enforced_by = enforced_by(limit, cgroup).to_owned();
        let sampled = match limit {
            Limit::CpuMs | Limit::MemoryBytes => !cgroup,
            // The kernel has no disk quota for one call.
            Limit::WrittenBytes | Limit::WrittenFiles => true,
            _ => false,
        };
        let most = if limit == Limit::TimeoutMs {
            ceiling.min(usual_ms)
        } else {
            ceiling
        };
        // A tool that requests no time gets the built-in default, not the ceiling.
        let usual = if limit == Limit::TimeoutMs {
            limit.built_in_default()
        } else {
            ceiling
        };
        let effective = asked.unwrap_or(usual).min(most);
        LimitVerdict {
            limit,
            asked,
            ceiling,
            effective,
            clamped,
            from,
            enforced_by,
            sampled,
        }
    };
    let limits: Vec<LimitVerdict> = Limit::ALL.into_iter().map(verdict).collect();
    for limit in limits.iter().filter(|limit| limit.clamped) {
        notes.clamped(
            limit,
            limit.asked.unwrap_or(limit.effective),
            limit.effective,
        );
    }
    limits
}

/// The limits of a shape. The time is the ceiling, because a call may request more than the
/// manifest, up to that.
pub(super) fn of_shape(limits: &[LimitVerdict]) -> Limits {
    Limits(
        limits
            .iter()
            .map(|l| {
                (
                    l.limit,
                    if l.limit == Limit::TimeoutMs {
                        l.ceiling
                    } else {
                        l.effective
                    },
                )
            })
            .collect(),
    )
}

fn limit_of(limit: Limit, ceiling: &Ceiling<'_>) -> (u64, String) {
    match ceiling.policy.limits.get(&limit) {
        Some(entry) if entry.grant > limit.most() => {
            (limit.most(), "the largest response".to_owned())
        }
        Some(entry) => (entry.grant, ceiling.policy.place(entry.at)),
        None => (limit.built_in_default(), LimitVerdict::BUILT_IN.to_owned()),
    }
}

fn enforced_by(limit: Limit, cgroup: bool) -> &'static str {
    match limit {
        Limit::CpuMs | Limit::MemoryBytes | Limit::Processes if cgroup => layer::CGROUP,
        Limit::ScratchBytes => layer::SCRATCH,
        Limit::Connections | Limit::SentBytes | Limit::ReceivedBytes => layer::NETWORK,
        _ => layer::LIMITS,
    }
}

/// The confinement of one call. Nothing in its arguments widens anything.
pub fn confine(
    decision: &Decision,
    asked_ms: Option<u64>,
    source: Option<String>,
) -> Result<Confinement, Fault> {
    let shape = decision.shape.clone()?;
    let timeout_ms = time_ms(decision, asked_ms)?;
    if shape.script.is_some() == source.is_some() {
        return Err(Fault::new(
            Kind::InternalError,
            "a call runs either a script or the source it brings",
        ));
    }
    Ok(Confinement {
        shape,
        per_call: PerCall {
            timeout_ms,
            source,
            ..PerCall::default()
        },
    })
}

/// The time that a call has, milliseconds: what it asks for, at most what policy allows.
pub fn time_ms(decision: &Decision, asked_ms: Option<u64>) -> Result<u64, Fault> {
    if let Some(asked) = asked_ms.filter(|asked| *asked < MIN_TIMEOUT_MS) {
        let message = format!("timeoutMs must be at least {MIN_TIMEOUT_MS}; {asked} was given");
        return Err(Fault::new(Kind::ParameterValidationError, message));
    }
    let built_in = Limit::TimeoutMs.built_in_default();
    let (usual, most) = decision
        .limit(Limit::TimeoutMs)
        .map_or((built_in, built_in), |limit| {
            (limit.effective, limit.ceiling)
        });
    Ok(asked_ms.unwrap_or(usual).min(most))
}

/// The notes of one call: where it gets less than its tool or the call itself requested.
pub fn call_notes(decision: &Decision, asked_ms: Option<u64>) -> Notes {
    let mut notes = decision.notes.clone();
    if let Some(limit) = decision.limit(Limit::TimeoutMs)
        && let Some(asked) = asked_ms.filter(|asked| *asked > limit.ceiling)
    {
        notes.clamped(limit, asked, limit.ceiling);
    }
    notes
}
