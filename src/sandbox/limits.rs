//! Wall: limits. What the kernel counts for each process: files, file size, processes, core dumps.
//!
//! Memory, CPU and processes of the call as a whole are the cgroup's (or the sampler's); these stand behind it.

use super::plan::{Plan, Step};
use crate::policy::Limits;
use crate::quantity::{GIB, Limit, MIB};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

/// For the host and its launchers: as many open files, and files as large, as they may have. An ordinary user's tools send
/// under the same uid, and the kernel counts all descriptors of a uid that are on their way against the limit of whoever
/// sends next.
pub fn of_the_host() {
    for resource in [Resource::RLIMIT_NOFILE, Resource::RLIMIT_FSIZE] {
        if let Ok((_, hard)) = getrlimit(resource) {
            // Refused: calls then fail, with an error, where they need more.
            let _ = setrlimit(resource, hard, hard);
        }
    }
    // What this host makes, its owner must be able to open (umask(2) takes those rights too).
    let mask = umask(Mode::empty());
    umask(mask.difference(Mode::S_IRWXU));
}

/// What a host needs at least that runs calls, and what it may have.
pub fn open_files() -> (u64, u64) {
    (64, getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft))
}

/// For launchers, as long as they may raise it: a hard limit of 0, which the host may have been given, stops no handler
/// of core dumps behind a pipe, and only root can make it the 1 that does.
pub fn no_core() {
    // Refused: tools have the 0, and docs/SECURITY.md says what that leaves.
    let _ = setrlimit(Resource::RLIMIT_CORE, 1, 1);
}

/// Between the host and what runs below it, the machine's out-of-memory killer takes the latter (proc_pid_oom_score_adj(5)).
const OOM_SCORE: &[u8] = b"1000";
/// Whoever has something to do beside tools is not kept waiting by them (nice(1)).
const NICE: i32 = 10;

/// Before the call's own /proc, which is read-only, so that this stays as it is.
pub fn rank(plan: &mut Plan) {
    let path = c"/proc/self/oom_score_adj".to_owned();
    plan.add("limits", Step::WriteFile { what: "writing oom_score_adj", path, data: OOM_SCORE.to_vec() });
    plan.add("limits", Step::Nice(NICE));
}

pub fn raise(plan: &mut Plan, limits: &Limits, file_bytes: u64, counted: bool, lasting: bool) {
    let mut set = |resource: Resource, value: u64| {
        // Only root may pass a limit that this process itself has; a smaller one holds as well.
        let most = getrlimit(resource).map_or(value, |(_, hard)| hard);
        plan.add("limits", Step::Limit { resource: resource as u32, value: value.min(most) });
    };
    // 0 leaves a handler behind a pipe, 1 does not (core(5)).
    set(Resource::RLIMIT_CORE, 1);
    set(Resource::RLIMIT_NOFILE, limits.get(Limit::OpenFiles));
    set(Resource::RLIMIT_FSIZE, file_bytes);
    // Per call, because the user namespace of the call is counted on its own.
    // Where a group counts as well, the group must be the one to refuse: only it says so.
    // One more: the init is a process of the call's user as well.
    set(Resource::RLIMIT_NPROC, limits.get(Limit::Processes).saturating_mul(if counted { 2 } else { 1 }) + 1);
    set(Resource::RLIMIT_MEMLOCK, MIB);
    set(Resource::RLIMIT_MSGQUEUE, 0);
    set(Resource::RLIMIT_SIGPENDING, 1024);
    set(Resource::RLIMIT_RTPRIO, 0);
    set(Resource::RLIMIT_NICE, 0);
    set(Resource::RLIMIT_STACK, 64 * MIB);
    if !lasting {
        // Whole seconds, and only a backstop: the launcher ends the call at the exact limit.
        set(Resource::RLIMIT_CPU, limits.get(Limit::CpuMs).div_ceil(1000) + 1);
        if !counted {
            // Bounds what one process can reserve at all. Far above the limit: a tool that passes the limit is to
            // end with its name, by the sampler, and not with an error of its own.
            set(Resource::RLIMIT_DATA, limits.get(Limit::MemoryBytes).saturating_add(4 * GIB));
        }
    }
}
