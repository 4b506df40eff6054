//! Limits: the smallest of what the manifest and every ceiling say. Each has a value. A call may ask
//! for less time, or for more up to the ceiling.

use super::ceiling::Ceiling;
use super::shape::Limits;
use super::verdict::{LimitVerdict, Notes};
use crate::base::layer::Layer;
use crate::manifest::Manifest;
use crate::quantity::Limit;

/// All limits; `notes` gets those that are smaller than requested. `usual_ms`: the most time of a
/// call that requests none.
pub fn limits(
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
        let enforced_by = enforced_by(limit, cgroup);
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
pub fn of_shape(limits: &[LimitVerdict]) -> Limits {
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

fn enforced_by(limit: Limit, cgroup: bool) -> Layer {
    match limit {
        Limit::CpuMs | Limit::MemoryBytes | Limit::Processes if cgroup => Layer::Cgroup,
        Limit::ScratchBytes => Layer::Scratch,
        Limit::Connections | Limit::SentBytes | Limit::ReceivedBytes => Layer::Network,
        _ => Layer::Limits,
    }
}
