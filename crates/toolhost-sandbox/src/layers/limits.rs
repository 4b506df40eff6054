//! Layer: limits. What the kernel limits for each process or user: files, file size, processes, core
//! dumps.
//!
//! The cgroup (or the sampler) limits memory, CPU and processes of the call as a whole; these
//! limits are the backstop.
//!
//! `openFiles`, `fileBytes`, locked memory and stack are limited for each process: together
//! `processes` times as much.
//!
//! Some counts of the kernel are per user. All calls, sessions and ready processes of a host
//! together have at most half of its user's epoll entries (`fs.epoll.max_user_watches`) and pending
//! signals, each an equal part; a call with more entries ends as over `openFiles`. `openFiles` is
//! at most half of the host's hard limit, so descriptors on their way through unix sockets (up to
//! that and 253) leave the host its own; programs of the user with a lower limit cannot send any
//! then. Full-size pipes (later ones get 8 KiB) and, up to the call's limit, processes are shared
//! with the user's programs. What a user or the machine has few of is refused to all: inotify,
//! asynchronous disk I/O (`io_setup`), huge pages.
//!
//! An ordinary user's host with a hard limit of 0 on core dumps (`ulimit -Hc`) cannot set the 1
//! that keeps a handler behind a pipe from the memory of a tool that crashed (core(5)).

use crate::plan::{Plan, Step};
use crate::spec::Serves;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use toolhost_base::fault::{Fault, Kind};
use toolhost_base::quantity::{GIB, Limit, Limits, MIB};
use toolhost_base::text::printable;

/// Raises the host's and its launchers' limits on open files and file size to the hard ones. The
/// kernel counts all descriptors that a uid has in flight through unix sockets against the
/// open-file limit of the next sender, and an ordinary user's tools send under the host's uid.
pub fn raise_host_limits() {
    for resource in [Resource::RLIMIT_NOFILE, Resource::RLIMIT_FSIZE] {
        if let Ok((_, hard)) = getrlimit(resource) {
            // If refused, calls that need more fail with an error.
            let _ = setrlimit(resource, hard, hard);
        }
    }
    // A host that crashes holds secrets: its memory goes to no file, and to no handler behind a
    // pipe (core(5)).
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
        let _ = setrlimit(Resource::RLIMIT_CORE, hard.min(1), hard);
    }
    // The owner must be able to open what this host makes; umask(2) can take those rights too.
    let mask = umask(Mode::empty());
    umask(mask.difference(Mode::S_IRWXU));
}

/// The limit of address space with which this host was started, and which its tools inherit, in
/// words.
pub fn address_space() -> Option<String> {
    let (soft, _) = getrlimit(Resource::RLIMIT_AS)
        .ok()
        .filter(|(soft, _)| *soft != nix::libc::RLIM_INFINITY)?;
    Some(format!(
        "toolhost was started with at most {} MiB of address space (`ulimit -v`)",
        soft / MIB
    ))
}

/// Open files: the least that a host needs to run calls, and what this host may have.
pub fn open_files() -> (u64, u64) {
    (
        64,
        getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft),
    )
}

/// The fault of a call for which this host had no descriptors left. `what`: where they were
/// missing.
pub fn too_few_files(what: &str, errno: Errno) -> Fault {
    let (least, now) = open_files();
    let person = format!(
        "{}: {}: this host may have {now} open files (ulimit -n), and one call needs at least \
        {least}",
        printable(what),
        errno.desc()
    );
    let message = "this host has too few descriptors for the call, so nothing was run";
    Fault::new(Kind::InternalError, message)
        .person(person)
        .retryable()
}

/// The fault of a call for which no process could be made (EAGAIN of clone(2)). `what`: which one.
pub fn no_process(what: &str) -> Fault {
    let why = super::cgroup::full_group().unwrap_or_else(|| {
        let most = getrlimit(Resource::RLIMIT_NPROC).map_or(0, |(soft, _)| soft);
        format!(
            "its user may have {most} processes and threads (RLIMIT_NPROC): raise `ulimit -u`; or \
             the machine has no more (kernel.threads-max, kernel.pid_max)"
        )
    });
    let message = "this host may start no more processes, so nothing was run";
    Fault::new(Kind::InternalError, message)
        .person(format!("{}: {why}", printable(what)))
        .retryable()
}

/// For launchers: sets RLIMIT_CORE to 1, which stops a core-dump handler behind a pipe, while 0
/// does not (core(5)). Only root can raise a hard limit of 0, which the host may have been given.
pub fn no_core() {
    // If refused, tools keep the 0; docs/SECURITY.md says what that leaves open.
    let _ = setrlimit(Resource::RLIMIT_CORE, 1, 1);
}

/// The machine's out-of-memory killer kills tools before the host (proc_pid_oom_score_adj(5)).
const OOM_SCORE: &[u8] = b"1000";
/// Tools give way to other processes, the host's own too (nice(1)).
const NICE_INCREMENT: i32 = 10;

/// Before the call's own /proc is mounted, which is read-only, so that the tool cannot change the
/// score.
pub fn rank(plan: &mut Plan) {
    let path = c"/proc/self/oom_score_adj".to_owned();
    plan.add(
        "limits",
        Step::WriteFile {
            path,
            data: OOM_SCORE.to_vec(),
        },
    );
    plan.add("limits", Step::Nicer(NICE_INCREMENT));
}

/// The part that a call may have of what the kernel counts for all programs of its user. All calls
/// of a host, of which there are at most `calls`, those that wait included, have at most half of it.
pub fn share(of: u64, calls: u64) -> u64 {
    of / (2 * calls.max(1))
}

/// What the process limits leave to others.
#[derive(Clone, Copy)]
pub struct Usage {
    /// A control group counts what the call uses.
    pub counted: bool,
    pub serves: Serves,
}

pub fn raise(plan: &mut Plan, limits: &Limits, file_bytes: u64, usage: Usage, calls: u64) {
    fn hard(resource: Resource) -> u64 {
        getrlimit(resource).map_or(u64::MAX, |(_, hard)| hard)
    }
    let mut set = |resource: Resource, value: u64| {
        // Only root may set more than this process's own hard limit; the smaller value is set.
        let most = hard(resource);
        plan.add(
            "limits",
            Step::Limit {
                resource: resource as u32,
                value: value.min(most),
            },
        );
    };
    // With 0 a handler behind a pipe still gets the dump, with 1 it does not (core(5)).
    set(Resource::RLIMIT_CORE, 1);
    // Descriptors on their way through sockets count for the user: of these too, half of what it
    // may have stay free.
    set(
        Resource::RLIMIT_NOFILE,
        limits
            .get(Limit::OpenFiles)
            .min(hard(Resource::RLIMIT_NOFILE) / 2),
    );
    set(Resource::RLIMIT_FSIZE, file_bytes);
    // Per call, because the kernel counts each user namespace on its own. Where a group counts too,
    // it must refuse first, because only the group reports a refusal. One more for the init.
    set(
        Resource::RLIMIT_NPROC,
        limits
            .get(Limit::Processes)
            .saturating_mul(if usage.counted { 2 } else { 1 })
            + 1,
    );
    set(Resource::RLIMIT_MEMLOCK, MIB);
    set(Resource::RLIMIT_MSGQUEUE, 0);
    set(
        Resource::RLIMIT_SIGPENDING,
        share(hard(Resource::RLIMIT_SIGPENDING), calls).min(1024),
    );
    set(Resource::RLIMIT_RTPRIO, 0);
    set(Resource::RLIMIT_NICE, 0);
    // Also what a thread reserves, of which RLIMIT_DATA must hold one for each of `processes`.
    set(Resource::RLIMIT_STACK, 8 * MIB);
    if usage.serves == Serves::Call {
        // Only a backstop: the launcher ends the call at the exact limit, and names it. What the kernel
        // compares with this is a count of ticks, which on a busy machine may be more than was used.
        let seconds = limits.get(Limit::CpuMs).div_ceil(1000);
        set(Resource::RLIMIT_CPU, seconds.saturating_mul(2) + 1);
    }
    if usage.serves != Serves::Calls && !usage.counted {
        // Bounds what one process can reserve at all. Far above the memory limit, so that the
        // sampler ends a tool that exceeds it and names the limit, before the tool fails with an
        // error of its own.
        set(
            Resource::RLIMIT_DATA,
            limits.get(Limit::MemoryBytes).saturating_add(4 * GIB),
        );
    }
}
