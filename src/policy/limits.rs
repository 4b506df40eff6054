//! Limits: the smallest of what the manifest, the policy and the host's cap say. None is left open.

use super::confinement::Limits;
use super::grantable::Layer;
use super::verdict::{LimitVerdict, Notes, wall};
use crate::manifest::Manifest;
use crate::quantity::Limit;

/// All limits; `notes` says which are less than was requested. `usual_ms`: the most time that a call has which asks for
/// none.
pub(super) fn limits(
    manifest: &Manifest,
    layers: &[Layer<'_>],
    usual_ms: u64,
    cgroup: bool,
    notes: &mut Notes,
) -> Vec<LimitVerdict> {
    let verdict = |limit| {
        let asked = match limit {
            Limit::TimeoutMs => manifest.execution.timeout_ms,
            _ => manifest.limits.get(&limit).copied(),
        };
        let ceilings = layers.iter().map(|layer| ceiling(limit, layer));
        let house = (limit.house_default(), "house default".to_owned());
        let (ceiling, from) = ceilings.min_by_key(|(value, _)| *value).unwrap_or(house);
        let (clamped, enforced_by) =
            (asked.is_some_and(|asked| asked > ceiling), enforced_by(limit, cgroup).to_owned());
        let sampled = match limit {
            Limit::CpuMs | Limit::MemoryBytes => !cgroup,
            // The kernel has no disk quota for one call.
            Limit::WrittenBytes | Limit::WrittenFiles => true,
            _ => false,
        };
        let most = if limit == Limit::TimeoutMs { ceiling.min(usual_ms) } else { ceiling };
        // Who asks for no time gets the house default, not the ceiling.
        let usual = if limit == Limit::TimeoutMs { limit.house_default() } else { ceiling };
        let effective = asked.unwrap_or(usual).min(most);
        LimitVerdict { limit, asked, ceiling, effective, clamped, from, enforced_by, sampled }
    };
    let limits: Vec<LimitVerdict> = Limit::ALL.into_iter().map(verdict).collect();
    for limit in limits.iter().filter(|limit| limit.clamped) {
        notes.clamped(limit.limit, limit.asked.unwrap_or(limit.effective), limit.effective, &limit.from);
    }
    limits
}

/// What a shape enforces: of time the ceiling, since a call may ask for more than the manifest did, up to that.
pub(super) fn of_shape(limits: &[LimitVerdict]) -> Limits {
    let value = |l: &LimitVerdict| if l.limit == Limit::TimeoutMs { l.ceiling } else { l.effective };
    Limits(limits.iter().map(|l| (l.limit, value(l))).collect())
}

fn ceiling(limit: Limit, layer: &Layer<'_>) -> (u64, String) {
    match layer.policy.limits.get(&limit) {
        Some(ceiling) if ceiling.grant > limit.most() => (limit.most(), "the largest response".to_owned()),
        Some(ceiling) => (ceiling.grant, layer.policy.place(ceiling.at)),
        None => (limit.house_default(), "house default".to_owned()),
    }
}

fn enforced_by(limit: Limit, cgroup: bool) -> &'static str {
    match limit {
        Limit::CpuMs | Limit::MemoryBytes | Limit::Processes if cgroup => wall::CGROUP,
        Limit::ScratchBytes => wall::SCRATCH,
        Limit::Connections | Limit::SentBytes | Limit::ReceivedBytes => wall::NETWORK,
        _ => wall::LIMITS,
    }
}
