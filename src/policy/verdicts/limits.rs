//! Limits: the smallest of what the manifest and every ceiling say. Each has a value. A call may ask
//! for less time, or for more up to the ceiling.

use super::ceiling::Ceilings;
use super::shape::Limits;
use super::verdict::{LimitVerdict, Notes};
use crate::base::layer::Layer;
use crate::manifest::Manifest;
use crate::policy::grammar::Policy;
use crate::quantity::Limit;

/// All limits; `notes` gets those that are smaller than requested. `usual_ms`: the most time of a
/// call that requests none.
pub fn limits_of(
    manifest: &Manifest,
    ceilings: &Ceilings<'_>,
    usual_ms: u64,
    cgroup: bool,
    notes: &mut Notes,
) -> Vec<LimitVerdict> {
    let mut found = Vec::new();
    for limit in Limit::ALL {
        let bounds = ceilings.policies().map(|policy| limit_of(limit, policy));
        let (ceiling, from) = bounds
            .min_by_key(|(value, _)| *value)
            .unwrap_or_else(|| limit_of(limit, ceilings.policy));
        let (asked, most) = match limit {
            Limit::TimeoutMs => (manifest.execution.timeout_ms, ceiling.min(usual_ms)),
            _ => (manifest.limits.get(&limit).copied(), ceiling),
        };
        let verdict = LimitVerdict {
            limit,
            asked,
            ceiling,
            effective: asked.unwrap_or(most).min(most),
            clamped: asked.is_some_and(|asked| asked > ceiling),
            from,
            enforced_by: enforced_by(limit, cgroup),
            sampled: match limit {
                Limit::CpuMs | Limit::MemoryBytes => !cgroup,
                // The kernel has no disk quota for one call.
                Limit::WrittenBytes | Limit::WrittenFiles => true,
                _ => false,
            },
        };
        if let Some(asked) = asked.filter(|_| verdict.clamped) {
            notes.clamped(&verdict, asked, verdict.effective);
        }
        found.push(verdict);
    }
    found
}

/// The limits of a shape. The time is the ceiling, because a call may request more than the
/// manifest, up to that.
pub fn of_shape(limits: &[LimitVerdict]) -> Limits {
    Limits(limits.iter().map(|it| (it.limit, it.most())).collect())
}

fn limit_of(limit: Limit, policy: &Policy) -> (u64, String) {
    match policy.limits.get(&limit) {
        Some(entry) if entry.grant > limit.most() => {
            (limit.most(), "the largest response".to_owned())
        }
        Some(entry) => (entry.grant, policy.place(entry.at)),
        None => (limit.built_in_default(), LimitVerdict::BUILT_IN.to_owned()),
    }
}

fn enforced_by(limit: Limit, cgroup: bool) -> Layer {
    match limit {
        Limit::CpuMs | Limit::MemoryBytes | Limit::Processes if cgroup => Layer::Cgroup,
        Limit::ScratchBytes | Limit::ArtifactFiles | Limit::ArtifactBytes => Layer::Scratch,
        Limit::Connections | Limit::SentBytes | Limit::ReceivedBytes => Layer::Network,
        _ => Layer::Limits,
    }
}
