//! Limits: the smallest of what the policy, the host's cap and the manifest say.
//!
//! For: `decide`. In: a manifest, two policies. Out: all limits, clamps named. Never: leaves a limit open.

use super::Limits;
use super::file::Policy;
use super::verdict::{LimitVerdict, Notes, wall};
use crate::manifest::Manifest;
use crate::quantity::Limit;

/// All limits; `notes` says which are less than was asked for.
pub(super) fn limits(
    manifest: &Manifest,
    policy: &Policy,
    host: Option<&Policy>,
    cgroup: bool,
    notes: &mut Notes,
) -> Vec<LimitVerdict> {
    let one = |limit| one(limit, asked(manifest, limit), policy, host, cgroup);
    let limits: Vec<LimitVerdict> = Limit::ALL.into_iter().map(one).collect();
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

fn asked(manifest: &Manifest, limit: Limit) -> Option<u64> {
    match limit {
        Limit::TimeoutMs => manifest.execution.timeout_ms,
        _ => manifest.limits.get(&limit).copied(),
    }
}

fn one(limit: Limit, asked: Option<u64>, policy: &Policy, host: Option<&Policy>, cgroup: bool) -> LimitVerdict {
    let (mut ceiling, mut from) = ceiling(limit, policy);
    if let Some((cap, by)) = host.map(|host| self::ceiling(limit, host)).filter(|(cap, _)| *cap < ceiling) {
        (ceiling, from) = (cap, by);
    }
    LimitVerdict {
        limit,
        asked,
        ceiling,
        effective: asked.unwrap_or_else(|| unasked(limit, ceiling)).min(ceiling),
        clamped: asked.is_some_and(|a| a > ceiling),
        from,
        enforced_by: enforced_by(limit, cgroup).to_string(),
        sampled: match limit {
            Limit::CpuMs | Limit::MemoryBytes => !cgroup,
            // The kernel has no disk quota for one call.
            Limit::WrittenBytes | Limit::WrittenFiles => true,
            _ => false,
        },
    }
}

/// What a call gets when nobody asks: the ceiling, but of time the house default.
fn unasked(limit: Limit, ceiling: u64) -> u64 {
    if limit == Limit::TimeoutMs { limit.house_default() } else { ceiling }
}

fn ceiling(limit: Limit, policy: &Policy) -> (u64, String) {
    match policy.limits.get(&limit) {
        Some(ceiling) if ceiling.value > limit.most() => (limit.most(), "the largest response".to_string()),
        Some(ceiling) => (ceiling.value, policy.place(ceiling.at)),
        None => (limit.house_default(), "house default".to_string()),
    }
}

pub(super) fn enforced_by(limit: Limit, cgroup: bool) -> &'static str {
    match limit {
        Limit::CpuMs | Limit::MemoryBytes | Limit::Processes if cgroup => wall::CGROUP,
        Limit::ScratchBytes => wall::SCRATCH,
        Limit::Connections | Limit::SentBytes | Limit::ReceivedBytes => wall::NETWORK,
        _ => wall::LIMITS,
    }
}
