//! Limits: the smallest of what the policy, the host's cap and the manifest say.
//!
//! For: `decide`. In: a manifest, two policies. Out: all ten limits, clamps named. Never: a limit left open.

use super::file::Policy;
use super::verdict::{LimitVerdict, wall};
use crate::manifest::Manifest;
use crate::quantity::Limit;

pub(super) fn limits(manifest: &Manifest, policy: &Policy, host: Option<&Policy>, cgroup: bool) -> Vec<LimitVerdict> {
    Limit::ALL.into_iter().map(|limit| one(limit, asked(manifest, limit), policy, host, cgroup)).collect()
}

/// `execution.timeoutMs` and `limits.timeoutMs` are one ask; where both are written the smaller counts.
fn asked(manifest: &Manifest, limit: Limit) -> Option<u64> {
    let written = manifest.limits.get(&limit).copied();
    match limit {
        Limit::TimeoutMs => [manifest.execution.timeout_ms, written].into_iter().flatten().min(),
        _ => written,
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
        effective: asked.unwrap_or(ceiling).min(ceiling),
        clamped: asked.is_some_and(|a| a > ceiling),
        from,
        enforced_by: enforced_by(limit, cgroup).to_string(),
    }
}

fn ceiling(limit: Limit, policy: &Policy) -> (u64, String) {
    match policy.limits.get(&limit) {
        Some(ceiling) => (ceiling.value, policy.place(ceiling.at)),
        None => (limit.house_default(), "house default".to_string()),
    }
}

pub(super) fn enforced_by(limit: Limit, cgroup: bool) -> &'static str {
    match limit {
        Limit::TimeoutMs => wall::TIMER,
        Limit::CpuMs | Limit::MemoryBytes if cgroup => wall::CGROUP,
        Limit::CpuMs | Limit::MemoryBytes => wall::SAMPLED,
        Limit::Processes if cgroup => wall::CGROUP,
        Limit::Processes | Limit::OpenFiles | Limit::FileBytes => wall::RLIMITS,
        Limit::ScratchBytes => wall::SCRATCH,
        Limit::InputBytes | Limit::OutputBytes | Limit::LogBytes => wall::PIPES,
    }
}
