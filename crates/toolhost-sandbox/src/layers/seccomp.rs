//! Layer: seccomp. Only the system calls that programs need get through, and of calls with many
//! operations (prctl, fcntl, ioctl, futex …) only the operations that programs need.
//!
//! An allow list, so a call of a newer kernel is refused until somebody has read what it does. The
//! lists were made from what Python, Node, Bun, their most used packages, a shell with coreutils,
//! static Go and musl programs and our own worker asked for; docs/reference/SYSCALLS.md names what
//! was asked for and is refused, with the errors. A call of another architecture kills the process.
//! The program is a binary search tree, which the kernel loads three times faster than a linear
//! list.

mod bpf;
mod local;
mod networked;
pub mod recorded;

use crate::plan::{Plan, Step};
use Rule::{Allow, Case, Errno};
use Test::{AnyOf, Between, In};
use bpf::{DenyAction, EPERM, HIGH, Insn, Rule, Test};
use networked::{NO_OPTION, SOCKET_OPTIONS};
use nix::libc;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use syscalls::Sysno;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the seccomp list is written for x86_64 only; see docs/SECURITY.md");

const ENOSYS: u32 = libc::ENOSYS as u32;
const EINVAL: u32 = libc::EINVAL as u32;
const SET_ID_BITS: u32 = 0o6000;

/// The numbers of system calls.
macro_rules! calls {
    ($($name:ident)*) => { &[$(Sysno::$name as i64),*] };
}

/// Calls that are allowed with any arguments. The other layers decide what these calls reach.
const ALLOWED: &[i64] = calls![
    // Files and folders.
    read write close stat fstat lstat lseek pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 access
    faccessat faccessat2 newfstatat statx statfs fstatfs getdents getdents64 getcwd chdir fchdir rename renameat
    rmdir unlink unlinkat symlink symlinkat readlink readlinkat chown fchown lchown fchownat umask utime utimes
    futimesat utimensat truncate ftruncate fallocate fadvise64 fsync fdatasync flock copy_file_range sendfile
    getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    // Descriptors and waiting on them.
    dup dup2 dup3 pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
    // Connected pairs of sockets. Other sockets exist only in the variant `networked`.
    sendto recvfrom sendmsg recvmsg accept4 shutdown getsockname getpeername
    // Memory.
    mprotect munmap brk mremap msync mincore mlock mlock2 munlock mlockall munlockall pkey_alloc pkey_free
    pkey_mprotect mseal
    // Processes and threads.
    fork vfork execve execveat exit exit_group wait4 waitid set_tid_address set_robust_list rseq membarrier gettid
    getpid getppid getpgid getpgrp setpgid getsid setsid pidfd_open pidfd_send_signal
    // Ids: the process has one, and no capability to take another.
    getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid setresuid setresgid
    setfsuid setfsgid setgroups capget capset
    // Signals.
    kill tkill tgkill rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
    rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack restart_syscall pause
    // Time.
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times alarm getitimer setitimer
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    // Scheduling is read, and only ever made worse.
    sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_getattr sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval getpriority setpriority ioprio_get
    // The machine and the process, as they are.
    uname sysinfo getcpu getrandom getrusage getrlimit
];

/// Calls from this number on came in 2018 or later: a C library that uses them falls back when they
/// answer ENOSYS. No program expects older calls to be missing, so these answer EPERM, as in other
/// sandboxes.
const FIRST_NEW_NUMBER: u32 = 333;

/// Newer calls that still answer EPERM, so that a refusal is not taken for an old kernel.
const FORBIDDEN: &[i64] = calls![
    io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
    mount_setattr statmount listmount pidfd_getfd process_madvise quotactl_fd memfd_secret
];

/// Old calls that answer ENOSYS: asynchronous I/O, which the machine limits for all users together,
/// and calls that x86-64 kernels do not have, or not any more.
const MISSING: &[i64] = calls![
    set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie
];

/// EPERM when the argument has any of these bits.
macro_rules! without {
    ($argument:expr, $bits:expr) => {
        Case($argument, &[(&[AnyOf($bits)], Errno(EPERM))], &Allow)
    };
}

/// `without` on the mode, but only when open(2) flags say that a file is made: O_CREAT, or the bit
/// by which O_TMPFILE differs from O_DIRECTORY.
macro_rules! making {
    ($flags:expr, $mode:expr) => {
        Case(
            $flags,
            &[(
                &[AnyOf((libc::O_CREAT | 0o20000000) as u32)],
                without!($mode, SET_ID_BITS),
            )],
            &Allow,
        )
    };
}

const NULL: &[Test] = &[In(&[0])];
/// RLIMIT_CORE stays 1, which stops a piped handler too, while 0 does not (core(5)). Setting it
/// changes nothing and answers success, or EPERM where the old value is asked for in the same call.
const CORE: &[Test] = &[In(&[libc::RLIMIT_CORE])];
const DONE: Rule = Case(
    3,
    &[(NULL, Case(3 | HIGH, &[(NULL, Errno(0))], &Errno(EPERM)))],
    &Errno(EPERM),
);
const FILE_OPTIONS: u32 =
    libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL | libc::MFD_EXEC;
/// Threads, fork(2), vfork(2), posix_spawn(3), descriptors of processes; the low byte is the signal
/// of their end.
const CLONES: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_PIDFD
    | libc::CLONE_VFORK
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_DETACHED
    | libc::CLONE_UNTRACED
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_IO) as u32
    | 0x7F; // the highest bit of that byte is CLONE_NEWTIME
/// A thread must share the descriptors of its process, so that they can be counted there.
const THREAD: Rule = Case(
    0,
    &[(&[AnyOf(libc::CLONE_FILES as u32)], Allow)],
    &Errno(EPERM),
);
/// PR_SET_PDEATHSIG … PR_GET_DUMPABLE, names, PR_GET_SECCOMP, PR_CAPBSET_READ, timer slack,
/// PR_SET_CHILD_SUBREAPER … PR_GET_TID_ADDRESS, PR_GET_THP_DISABLE, PR_CAP_AMBIENT. Not in the
/// list: seccomp filters, futex hashes, names of mappings and core scheduling, which all take
/// memory of the kernel.
const PROCESS: &[Test] = &[
    Between(1, 3),
    Between(15, 16),
    Between(29, 30),
    Between(36, 40),
    In(&[21, 23, 42, 47]),
];
/// Making a process undumpable answers success and changes nothing: nothing is dumped or traced
/// here anyway, and what an undumpable process holds could not be counted.
const DUMPABLE: (&[Test], Rule) = (&[In(&[libc::PR_SET_DUMPABLE as u32])], Errno(0));
const THP: &[Test] = &[In(&[libc::PR_SET_THP_DISABLE as u32])];
/// Not in the list: owners and signals of descriptors, locks that belong to an open file (they
/// cannot be counted), hints on how long data lives, delegations.
const FILE: &[Test] = &[
    Between(libc::F_DUPFD as u32, libc::F_SETLKW as u32),
    In(&[libc::F_DUPFD_CLOEXEC as u32]),
    Between(libc::F_GETPIPE_SZ as u32, libc::F_GET_SEALS as u32),
];
const PIPE_SIZE: &[Test] = &[In(&[libc::F_SETPIPE_SZ as u32])];
/// Leases and directory watches on a read grant would hold up the host's own programs.
const LEASES: &[Test] = &[In(&[libc::F_SETLEASE as u32, libc::F_NOTIFY as u32])];
/// Terminal requests, whose failure shows programs that they have no terminal; bytes that wait;
/// flags of a descriptor; copies that share blocks. Not in the list: operations of file systems and
/// devices (encryption keys, flags, quotas).
const DEVICE: &[Test] = &[
    Between(libc::TCGETS as u32, libc::TCSETSF as u32),
    Between(libc::TIOCGPGRP as u32, libc::TIOCOUTQ as u32),
    Between(libc::FIONCLEX as u32, libc::FIOCLEX as u32),
    In(&[
        libc::TIOCGWINSZ as u32,
        libc::FIONREAD as u32,
        0x802C_542A, // TCGETS2
        0x4004_9409, // FICLONE
        0x4020_940D, // FICLONERANGE
    ]),
];
/// Output stays blocking: what a program printed before it ended itself reaches its reader. A
/// program that asks for another mode of stdout or stderr is answered success.
const MODE: (&[Test], Rule) = (
    &[In(&[libc::FIONBIO as u32])],
    Case(0, &[(&[In(&[1, 2])], Errno(0))], &Allow),
);
/// Characters pushed into somebody's input: TIOCSTI, TIOCLINUX, TIOCSETD.
const TERMINALS: &[Test] = &[In(&[libc::TIOCSTI as u32, 0x541C, 0x5423])];
/// Asks of C programs for the settings of an interface (SIOCGIFNAME … SIOCETHTOOL …).
const INTERFACE: (&[Test], Rule) = (&[Between(0x8910, 0x8970)], NO_INTERFACE);
const NO_INTERFACE: Rule = Errno(libc::ENODEV as u32);
/// The plain datagram socket by which C programs ask for an interface.
const ASKING: (&[Test], Rule) = (
    &[In(&[libc::AF_INET as u32])],
    Case(
        1,
        &[(&[In(&[libc::SOCK_DGRAM as u32])], NO_INTERFACE)],
        &Errno(EPERM),
    ),
);
/// The size of a netlink address. No socket of another family that a tool can have is bound to one
/// of this size, but a connected pair, to a name that nothing can connect to.
const NETLINK_ADDRESS: &[Test] = &[In(&[size_of::<libc::sockaddr_nl>() as u32])];
/// Not in the list: filters (SO_ATTACH_FILTER and its like), which are memory of the kernel that is
/// not counted.
const SOCKET: Rule = Case(2, &[(SOCKET_OPTIONS, Allow)], &NO_OPTION);
/// `SOCKET` without SO_SNDBUF.
const USUAL_SOCKET: Rule = Case(
    2,
    &[(
        &[
            Between(2, 4),
            Between(8, 9),
            In(&[13, 16, 17, 20, 21, 30, 38, 39]),
        ],
        Allow,
    )],
    &NO_OPTION,
);
const SOCKET_LEVEL: Rule = Case(
    1,
    &[(&[In(&[libc::SOL_SOCKET as u32])], SOCKET)],
    &NO_OPTION,
);
/// FUTEX_WAIT and FUTEX_WAKE, with and without bits and clock, on words that others may share:
/// pthread_join(3) and semaphores need them. (Moving others' waiters to another word,
/// FUTEX_REQUEUE, would hang them for good.) And all operations up to FUTEX_LOCK_PI2 with
/// FUTEX_PRIVATE_FLAG, which reach only the process's own words.
const WORDS: &[Test] = &[
    In(&[0, 1, 9, 10, 0x100, 0x109]),
    Between(0x80, 0x8D),
    Between(0x180, 0x18D),
];

/// MADV_NORMAL … MADV_DONTNEED; MADV_FREE … MADV_DOFORK; MADV_HUGEPAGE … MADV_KEEPONFORK. Not in
/// the list: merging with equal pages of others, pushing out to swap, poisoning.
const ADVICE: &[Test] = &[Between(0, 4), Between(8, 11), Between(14, 19)];
/// Registers of a thread, and permission to use wide ones.
const REGISTERS: &[Test] = &[Between(0x1001, 0x1004), Between(0x1021, 0x1023)];
/// The machine has a fixed number of huge pages for everybody together.
const HUGE_PAGES: (&[Test], Rule) = (
    &[AnyOf(libc::MAP_HUGETLB as u32)],
    Errno(libc::ENOMEM as u32),
);
/// Extended attributes and access lists take kernel memory that no limit of a file system counts,
/// and label files of a write grant. Answers like a file system without them.
const NO_ATTRIBUTES: Rule = Errno(libc::EOPNOTSUPP as u32);
/// inotify is limited for all programs of a user together. It fails as if that were reached.
const NO_WATCHES: Rule = Errno(libc::EMFILE as u32);

/// Calls whose arguments decide, and calls with an error of their own.
const RULES: &[(i64, Rule)] = &[
    (libc::SYS_open, making!(1, 2)),
    (libc::SYS_openat, making!(2, 3)),
    // flags and mode lie in memory, where they cannot be checked
    (libc::SYS_openat2, Errno(ENOSYS)),
    (libc::SYS_clone3, Errno(ENOSYS)),
    // CLOSE_RANGE_UNSHARE would give a thread descriptors of its own, see `THREAD`.
    (
        libc::SYS_close_range,
        Case(
            2,
            &[(&[In(&[0, libc::CLOSE_RANGE_CLOEXEC])], Allow)],
            &Errno(EINVAL),
        ),
    ),
    (
        libc::SYS_clone,
        Case(
            0,
            &[
                (&[AnyOf(!CLONES)], Errno(EPERM)),
                (&[AnyOf(libc::CLONE_THREAD as u32)], THREAD),
            ],
            &Allow,
        ),
    ),
    // No set-id files, which would run as somebody else.
    (libc::SYS_creat, without!(1, SET_ID_BITS)),
    (libc::SYS_chmod, without!(1, SET_ID_BITS)),
    (libc::SYS_fchmod, without!(1, SET_ID_BITS)),
    (libc::SYS_fchmodat, without!(2, SET_ID_BITS)),
    (452, without!(2, SET_ID_BITS)), // fchmodat2
    (libc::SYS_mkdir, without!(1, SET_ID_BITS)),
    (libc::SYS_mkdirat, without!(2, SET_ID_BITS)),
    (libc::SYS_mknod, without!(1, SET_ID_BITS)),
    (libc::SYS_mknodat, without!(2, SET_ID_BITS)),
    // RENAME_WHITEOUT leaves a device node (0, 0), which needs no right to make devices.
    (libc::SYS_renameat2, without!(4, libc::RENAME_WHITEOUT)),
    (libc::SYS_setxattr, NO_ATTRIBUTES),
    (libc::SYS_lsetxattr, NO_ATTRIBUTES),
    (libc::SYS_fsetxattr, NO_ATTRIBUTES),
    (libc::SYS_removexattr, NO_ATTRIBUTES),
    (libc::SYS_lremovexattr, NO_ATTRIBUTES),
    (libc::SYS_fremovexattr, NO_ATTRIBUTES),
    (libc::SYS_inotify_init, NO_WATCHES),
    (libc::SYS_inotify_add_watch, NO_WATCHES),
    (libc::SYS_inotify_rm_watch, NO_WATCHES),
    (libc::SYS_inotify_init1, NO_WATCHES),
    // Pages of others' files would stay in memory for as long as a pipe holds them. Programs can
    // copy instead.
    (libc::SYS_splice, Errno(EINVAL)),
    (libc::SYS_tee, Errno(EINVAL)),
    (libc::SYS_sync_file_range, Errno(EINVAL)),
    (libc::SYS_vmsplice, Errno(ENOSYS)),
    (
        libc::SYS_fcntl,
        Case(
            1,
            &[(FILE, Allow), (PIPE_SIZE, Allow), (LEASES, Errno(EPERM))],
            &Errno(EINVAL),
        ),
    ),
    (
        libc::SYS_ioctl,
        Case(
            1,
            &[MODE, (DEVICE, Allow), INTERFACE, (TERMINALS, Errno(EPERM))],
            &Errno(libc::ENOTTY as u32),
        ),
    ),
    // Only connected pairs that cannot send to another address: SOCK_STREAM and SOCK_SEQPACKET.
    (
        libc::SYS_socketpair,
        Case(
            0,
            &[(
                &[In(&[libc::AF_UNIX as u32])],
                without!(1, libc::SOCK_DGRAM as u32),
            )],
            &Errno(EPERM),
        ),
    ),
    (
        libc::SYS_socket,
        Case(0, &[networked::NETLINK, ASKING], &Errno(EPERM)),
    ),
    (
        libc::SYS_bind,
        Case(2, &[(NETLINK_ADDRESS, Allow)], &Errno(EPERM)),
    ),
    (libc::SYS_setsockopt, SOCKET_LEVEL),
    (libc::SYS_getsockopt, SOCKET_LEVEL),
    (libc::SYS_mmap, Case(3, &[HUGE_PAGES], &Allow)),
    (
        libc::SYS_memfd_create,
        Case(1, &[(&[AnyOf(!FILE_OPTIONS)], Errno(EINVAL))], &Allow),
    ),
    (
        libc::SYS_madvise,
        Case(2, &[(ADVICE, Allow)], &Errno(EINVAL)),
    ),
    (libc::SYS_futex, Case(1, &[(WORDS, Allow)], &Errno(ENOSYS))),
    (
        libc::SYS_prctl,
        Case(
            0,
            &[DUMPABLE, (PROCESS, Allow), (THP, Allow)],
            &Errno(EINVAL),
        ),
    ),
    (
        libc::SYS_arch_prctl,
        Case(0, &[(REGISTERS, Allow)], &Errno(EINVAL)),
    ),
    (
        libc::SYS_personality,
        Case(0, &[(&[In(&[0xFFFF_FFFF])], Allow)], &Errno(EPERM)),
    ), // the value that only asks
    (libc::SYS_setrlimit, Case(0, &[(CORE, Errno(0))], &Allow)),
    // A null new value asks only for the old one.
    (
        libc::SYS_prlimit64,
        Case(
            1,
            &[(
                CORE,
                Case(2, &[(NULL, Case(2 | HIGH, &[(NULL, Allow)], &DONE))], &DONE),
            )],
            &Allow,
        ),
    ),
];

/// Replace the rules above where no cgroup counts: refuse what would hold memory that no process
/// shows as its own.
const SAMPLED: &[(i64, Rule)] = &[
    (libc::SYS_memfd_create, Errno(ENOSYS)),
    // Shared anonymous pages stay when every mapping drops them. Files in /tmp and /dev/shm do the
    // same, and count.
    (
        libc::SYS_mmap,
        Case(
            3,
            &[
                HUGE_PAGES,
                (
                    &[AnyOf(libc::MAP_SHARED as u32)],
                    without!(3, libc::MAP_ANONYMOUS as u32),
                ),
            ],
            &Allow,
        ),
    ),
    // Into a pipe or socket, sendfile(2) hands over whole pages of a file, also of one that is
    // removed later.
    (libc::SYS_sendfile, Errno(EINVAL)),
    // A socket is counted with the usual size of its buffers, a pipe as sixteen pages.
    (
        libc::SYS_setsockopt,
        Case(
            1,
            &[(&[In(&[libc::SOL_SOCKET as u32])], USUAL_SOCKET)],
            &NO_OPTION,
        ),
    ),
    (
        libc::SYS_fcntl,
        Case(
            1,
            &[
                (FILE, Allow),
                (PIPE_SIZE, Errno(EPERM)),
                (LEASES, Errno(EPERM)),
            ],
            &Errno(EINVAL),
        ),
    ),
    // Huge pages are off and stay off, because the sampler takes a page fault for 4 KiB.
    (
        libc::SYS_prctl,
        Case(
            0,
            &[DUMPABLE, (PROCESS, Allow), (THP, Errno(EPERM))],
            &Errno(EINVAL),
        ),
    ),
];

/// Replace the rules above where no folder is written live: POSIX named semaphores are made by
/// linking (sem_open(3)). Where a folder is written live, links stay refused: one of the two rules
/// that keep outside files out of it.
const NOTHING_LIVE: &[(i64, Rule)] = &[(libc::SYS_link, Allow), (libc::SYS_linkat, Allow)];
/// Replace the rules above where a folder is written live. Of link(2) the listener makes those in
/// /dev/shm (`listener`). fallocate(2) would take space faster
/// than it can be counted. It answers as on a file system without it, and programs write instead
/// (posix_fallocate(3)).
const LIVE: &[(i64, Rule)] = &[
    (libc::SYS_link, Rule::Notify),
    (libc::SYS_fallocate, Errno(libc::EOPNOTSUPP as u32)),
];

/// What a call has that changes the rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant {
    /// No cgroup counts memory.
    pub sampled: bool,
    /// Some folder is written live.
    pub live: bool,
    /// Hosts are granted.
    pub networked: bool,
    /// Sockets of its own are granted.
    pub local: bool,
}

/// The rule of each number that has one.
fn rules(variant: Variant) -> BTreeMap<i64, Rule> {
    let plain = [
        (ALLOWED, Allow),
        (FORBIDDEN, Errno(EPERM)),
        (MISSING, Errno(ENOSYS)),
    ];
    let plain = plain
        .into_iter()
        .flat_map(|(numbers, rule)| numbers.iter().map(move |number| (*number, rule)));
    let more = if variant.sampled { SAMPLED } else { &[] };
    let writing = if variant.live { LIVE } else { NOTHING_LIVE };
    let sockets = match variant {
        Variant { local: true, .. } => [networked::RULES, local::RULES].concat(),
        Variant {
            networked: true, ..
        } => networked::RULES.to_vec(),
        _ => Vec::new(),
    };
    // Later ones win.
    plain
        .chain(
            RULES
                .iter()
                .chain(more)
                .chain(writing)
                .copied()
                .chain(sockets),
        )
        .collect()
}

fn rule_of(rules: &BTreeMap<i64, Rule>, number: u32) -> Rule {
    let other = Errno(if number < FIRST_NEW_NUMBER {
        EPERM
    } else {
        ENOSYS
    });
    rules.get(&i64::from(number)).copied().unwrap_or(other)
}

/// The rules of all numbers as runs of equal ones, each with its first number. The last run holds
/// all unknown numbers.
fn runs(rules: &BTreeMap<i64, Rule>) -> Vec<(u32, Rule)> {
    let mut out: Vec<(u32, Rule)> = Vec::new();
    for number in 0..=rules.keys().last().map_or(0, |last| *last as u32 + 1) {
        let rule = rule_of(rules, number);
        if out.last().is_none_or(|(_, last)| *last != rule) {
            out.push((number, rule));
        }
    }
    out
}

/// The whole filter.
pub fn program(variant: Variant) -> Vec<Insn> {
    bpf::compile(&runs(&rules(variant)), DenyAction::Errno)
}

/// Last before execve: nothing after it needs a refused call.
/// `listener`: the socket on which somebody waits for the filter's listener. `killable`: only a kill
/// interrupts a call that waits for the listener (Linux 5.19).
pub fn raise(plan: &mut Plan, program: &[Insn], listener: Option<RawFd>, killable: bool) {
    let killable = if killable {
        libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
    } else {
        0
    };
    plan.add(
        "seccomp",
        Step::Seccomp {
            program: program.to_vec(),
            listener,
            flags: libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | killable,
        },
    );
}

#[cfg(test)]
mod tests {
    use super::bpf::*;
    use super::*;

    const NEWEST: u32 = 500;

    fn variants() -> impl Iterator<Item = Variant> {
        (0..16).map(|n| Variant {
            sampled: n & 1 > 0,
            live: n & 2 > 0,
            networked: n & 4 > 0,
            local: n & 8 > 0,
        })
    }

    /// Runs the program on one call, as the kernel would.
    fn verdict(program: &[Insn], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let (mut at, mut acc) = (0, 0u32);
        loop {
            let i = program[at];
            let take = |yes: bool| at + 1 + usize::from(if yes { i.jt } else { i.jf });
            at = match i.code {
                RETURN => return i.k,
                LOAD => {
                    acc = match i.k {
                        OFFSET_NR => nr,
                        OFFSET_ARCH => arch,
                        offset => (args[((offset - 16) / 8) as usize] >> (8 * (offset % 8))) as u32,
                    };
                    at + 1
                }
                JUMP => at + 1 + i.k as usize,
                IF_EQUAL => take(acc == i.k),
                IF_AT_LEAST => take(acc >= i.k),
                IF_ANY_BIT => take(acc & i.k != 0),
                other => panic!("unknown instruction {other}"),
            };
        }
    }

    /// What a rule answers, without a program.
    fn expected(rule: &Rule, args: [u64; 6]) -> u32 {
        match rule {
            Rule::Notify => RET_USER_NOTIF,
            rule => rule
                .refuses(&args)
                .map_or(RET_ALLOW, |errno| RET_ERRNO | errno),
        }
    }

    /// Every value at which the answer of a rule could change.
    fn edges(rule: &Rule, into: &mut Vec<u64>) {
        let Case(_, tests, otherwise) = rule else {
            return;
        };
        for (group, then) in *tests {
            group.iter().for_each(|test| match test {
                In(values) => into.extend(
                    values
                        .iter()
                        .flat_map(|v| [u64::from(*v), u64::from(*v) + 1]),
                ),
                Between(first, last) => {
                    into.extend([first.wrapping_sub(1), *first, *last, last + 1].map(u64::from));
                }
                AnyOf(bits) => into.extend(
                    (0..32)
                        .map(|n| 1 << n)
                        .chain([u64::from(*bits), u64::from(!bits)]),
                ),
            });
            edges(then, into);
        }
        edges(otherwise, into);
    }

    #[test]
    fn the_program_says_what_the_lists_say_for_every_number() {
        for variant in variants() {
            // (A jump that is cut off leads elsewhere.)
            let program = program(variant);
            let rules = rules(variant);
            let recorded = recorded::Recorded::new(variant);
            let listened = recorded.program();
            for nr in 0..=NEWEST {
                let rule = &rule_of(&rules, nr);
                let mut values = vec![0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX];
                edges(rule, &mut values);
                for first in &values {
                    for second in [0, 1, u64::MAX, *first] {
                        // Of two arguments that count, each takes all values.
                        for args in [
                            [*first, *first, second, second, 0, 0],
                            [second, second, *first, *first, 9, 9],
                        ] {
                            let got = verdict(&program, AUDIT_ARCH_X86_64, nr, args);
                            assert_eq!(got, expected(rule, args), "{nr} {args:?} {variant:?}");
                            // The listener hears all that is refused and all that names a file, and
                            // nothing else.
                            let told = verdict(&listened, AUDIT_ARCH_X86_64, nr, args);
                            let refused =
                                recorded.refuses(nr, &args).is_some_and(|errno| errno > 0);
                            let heard = refused || !recorded::named(nr).is_empty();
                            assert_eq!(
                                told,
                                if heard { RET_USER_NOTIF } else { got },
                                "{nr} {args:?}"
                            );
                            assert_eq!(
                                refused,
                                ![RET_ALLOW, RET_ERRNO, RET_USER_NOTIF].contains(&got),
                                "{nr} {args:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_call_stands_in_one_list() {
        let mut all: Vec<i64> = ALLOWED
            .iter()
            .chain(FORBIDDEN)
            .chain(MISSING)
            .copied()
            .collect();
        all.extend(RULES.iter().map(|(number, _)| *number));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let sockets: Vec<i64> = networked::RULES
            .iter()
            .map(|(number, _)| *number)
            .filter(|n| !all.contains(n))
            .collect();
        let known = [libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg];
        assert_eq!(sockets, known, "all that granted hosts add");
        let numbers: Vec<i64> = SAMPLED.iter().map(|(number, _)| *number).collect();
        assert!(
            numbers.iter().all(|number| all.contains(number)),
            "sampling only narrows: {numbers:?}"
        );
    }

    /// Call, arguments, and what becomes of it.
    fn cases() -> Vec<(i64, [u64; 6], u32)> {
        let errno = |errno: i32| RET_ERRNO | errno as u32;
        vec![
            (libc::SYS_futex, [0, 3, 0, 0, 0, 0], errno(libc::ENOSYS)), // FUTEX_REQUEUE
            (libc::SYS_futex, [0, 4, 0, 0, 0, 0], errno(libc::ENOSYS)), // FUTEX_CMP_REQUEUE
            (libc::SYS_futex, [0, 5, 0, 0, 0, 0], errno(libc::ENOSYS)), // FUTEX_WAKE_OP
            (libc::SYS_futex, [0, 0x8E, 0, 0, 0, 0], errno(libc::ENOSYS)),
            (libc::SYS_prctl, [78, 1, 1024, 0, 0, 0], errno(libc::EINVAL)), // PR_FUTEX_HASH
            (libc::SYS_prctl, [22, 2, 0, 0, 0, 0], errno(libc::EINVAL)),    // PR_SET_SECCOMP
            (libc::SYS_seccomp, [1, 0, 0, 0, 0, 0], errno(libc::EPERM)),
            (
                libc::SYS_setsockopt,
                [0, 1, 26, 0, 0, 0],
                errno(libc::ENOPROTOOPT),
            ), // SO_ATTACH_FILTER
            (
                libc::SYS_setsockopt,
                [0, 6, 31, 0, 0, 0],
                errno(libc::ENOPROTOOPT),
            ), // TCP_ULP
            (libc::SYS_fcntl, [0, 1036, 0, 0, 0, 0], errno(libc::EINVAL)), // F_SET_RW_HINT
            (libc::SYS_fcntl, [0, 37, 0, 0, 0, 0], errno(libc::EINVAL)),   // F_OFD_SETLK
            (
                libc::SYS_ioctl,
                [0, 0xC050_6617, 0, 0, 0, 0],
                errno(libc::ENOTTY),
            ), // FS_IOC_ADD_ENCRYPTION_KEY
            (libc::SYS_socket, [16, 3, 0, 0, 0, 0], RET_ALLOW),            // NETLINK_ROUTE
            (libc::SYS_socket, [16, 3, 4, 0, 0, 0], errno(libc::EPERM)),   // NETLINK_SOCK_DIAG
            (libc::SYS_bind, [0, 0, 16, 0, 0, 0], errno(libc::EPERM)),
            (libc::SYS_bind, [0, 0, 12, 0, 0, 0], RET_ALLOW),
            (libc::SYS_ioctl, [1, 0x5421, 0, 0, 0, 0], RET_ERRNO), // FIONBIO
            (libc::SYS_ioctl, [3, 0x5421, 0, 0, 0, 0], RET_ALLOW),
            (libc::SYS_clone, [0x80, 0, 0, 0, 0, 0], errno(libc::EPERM)), // CLONE_NEWTIME
            (
                libc::SYS_clone,
                [0x1_0900, 0, 0, 0, 0, 0],
                errno(libc::EPERM),
            ), // CLONE_THREAD without CLONE_FILES
            (libc::SYS_clone, [0x1_0F00, 0, 0, 0, 0, 0], RET_ALLOW),
            (
                libc::SYS_mmap,
                [0, 0, 0, 0x40022, 0, 0],
                errno(libc::ENOMEM),
            ),
            (libc::SYS_madvise, [0, 0, 12, 0, 0, 0], errno(libc::EINVAL)),
            (libc::SYS_setrlimit, [4, 1, 0, 0, 0, 0], RET_ERRNO),
            (libc::SYS_prlimit64, [0, 4, 1 << 32, 0, 0, 0], RET_ERRNO),
            (
                libc::SYS_prlimit64,
                [0, 4, 1 << 32, 1 << 32, 0, 0],
                errno(libc::EPERM),
            ),
            (
                libc::SYS_prlimit64,
                [0, 4, 1 << 32, 1, 0, 0],
                errno(libc::EPERM),
            ),
            (libc::SYS_close_range, [3, 9, 0, 0, 0, 0], RET_ALLOW),
            (libc::SYS_close_range, [3, 9, 4, 0, 0, 0], RET_ALLOW),
            (
                libc::SYS_close_range,
                [3, 9, 2, 0, 0, 0],
                errno(libc::EINVAL),
            ),
            (libc::SYS_prlimit64, [0, 4, 0, 1 << 32, 0, 0], RET_ALLOW),
            (libc::SYS_prlimit64, [0, 7, 1, 0, 0, 0], RET_ALLOW),
            (libc::SYS_futex, [0, 0x83, 0, 0, 0, 0], RET_ALLOW),
            (335, [0; 6], errno(libc::ENOSYS)), // uretprobe
            (336, [0; 6], errno(libc::ENOSYS)), // uprobe
            (449, [0; 6], errno(libc::ENOSYS)), // futex_waitv
            (456, [0; 6], errno(libc::ENOSYS)), // futex_requeue
            (i64::from(NEWEST), [0; 6], errno(libc::ENOSYS)),
            (0x4000_0000, [0; 6], errno(libc::ENOSYS)), // x32
            (-1, [0; 6], errno(libc::ENOSYS)),
            (-2, [0; 6], errno(libc::ENOSYS)),
        ]
    }

    #[test]
    fn only_the_operations_on_the_lists() {
        let errno = |errno: i32| RET_ERRNO | errno as u32;
        for variant in variants().filter(|variant| !variant.local) {
            let (program, live) = (program(variant), variant.live);
            let (link, named) = if live {
                (errno(libc::EPERM), RET_USER_NOTIF)
            } else {
                (RET_ALLOW, RET_ALLOW)
            };
            assert_eq!(
                verdict(&program, AUDIT_ARCH_X86_64, libc::SYS_link as u32, [0; 6]),
                named,
                "live {live}"
            );
            assert_eq!(
                verdict(&program, AUDIT_ARCH_X86_64, libc::SYS_linkat as u32, [0; 6]),
                link,
                "live {live}"
            );
            let reserve = if live {
                errno(libc::EOPNOTSUPP)
            } else {
                RET_ALLOW
            };
            assert_eq!(
                verdict(
                    &program,
                    AUDIT_ARCH_X86_64,
                    libc::SYS_fallocate as u32,
                    [0; 6]
                ),
                reserve,
                "live {live}"
            );
            for (number, args, wanted) in cases() {
                assert_eq!(
                    verdict(&program, AUDIT_ARCH_X86_64, number as u32, args),
                    wanted,
                    "{number} {args:?}"
                );
            }
            assert_eq!(
                verdict(&program, 0x4000_0003, 0, [0; 6]),
                RET_KILL_PROCESS,
                "i386"
            );
        }
    }

    /// Levels and options of sockets that reach other code of the kernel, or other ways out.
    const FOREIGN: &[(i32, &[i32])] = &[
        (
            libc::SOL_SOCKET,
            &[
                libc::SO_ATTACH_FILTER,
                libc::SO_ATTACH_BPF,
                libc::SO_BINDTODEVICE,
                62,
                libc::SO_ZEROCOPY,
            ],
        ),
        (
            libc::SOL_SOCKET,
            &[
                libc::SO_TXTIME,
                libc::SO_TIMESTAMPING,
                libc::SO_BROADCAST,
                libc::SO_RCVBUFFORCE,
            ],
        ),
        (
            libc::IPPROTO_TCP,
            &[
                libc::TCP_ULP,
                libc::TCP_FASTOPEN,
                libc::TCP_FASTOPEN_CONNECT,
                libc::TCP_REPAIR,
            ],
        ),
        (
            libc::IPPROTO_TCP,
            &[libc::TCP_MD5SIG, libc::TCP_CONGESTION, libc::TCP_INFO, 35],
        ),
        (
            libc::IPPROTO_IP,
            &[
                libc::IP_OPTIONS,
                libc::IP_PKTINFO,
                libc::IP_ADD_MEMBERSHIP,
                libc::IP_UNICAST_IF,
                51,
            ],
        ),
        (
            libc::IPPROTO_IPV6,
            &[
                1,
                libc::IPV6_ADD_MEMBERSHIP,
                libc::IPV6_RECVPKTINFO,
                libc::IPV6_UNICAST_IF,
            ],
        ),
        (
            libc::IPPROTO_UDP,
            &[libc::UDP_CORK, libc::UDP_SEGMENT, libc::UDP_GRO],
        ),
        (libc::SOL_NETLINK, &[1]),
    ];

    #[test]
    fn granted_hosts_add_sockets_that_connect_and_no_others() {
        let errno = |errno: i32| RET_ERRNO | errno as u32;
        let (four, six, stream, datagram) = (
            libc::AF_INET,
            libc::AF_INET6,
            libc::SOCK_STREAM,
            libc::SOCK_DGRAM,
        );
        let usual = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let socket = |family: i32, kind: i32, protocol: i32, wanted| {
            (
                libc::SYS_socket,
                [family as u64, kind as u64, protocol as u64, 0, 0, 0],
                wanted,
            )
        };
        let option = |number, level: i32, name: i32, wanted| {
            (number, [0, level as u64, name as u64, 0, 0, 0], wanted)
        };
        let (set, get, none) = (
            libc::SYS_setsockopt,
            libc::SYS_getsockopt,
            errno(libc::ENOPROTOOPT),
        );
        let unknown = errno(libc::EPROTONOSUPPORT);
        let (early, no_early) = (libc::MSG_FASTOPEN as u64, errno(libc::EOPNOTSUPP));
        let mut cases = vec![
            socket(four, stream, 0, RET_ALLOW),
            socket(four, stream | usual, libc::IPPROTO_TCP, RET_ALLOW),
            socket(six, stream | libc::SOCK_CLOEXEC, 0, RET_ALLOW),
            socket(six, datagram | usual, libc::IPPROTO_UDP, RET_ALLOW),
            socket(four, stream, libc::IPPROTO_MPTCP, unknown),
            socket(four, stream, libc::IPPROTO_SCTP, unknown),
            socket(four, stream, libc::IPPROTO_UDP, unknown),
            socket(four, datagram, libc::IPPROTO_ICMP, unknown),
            socket(six, datagram, libc::IPPROTO_ICMPV6, unknown),
            socket(four, datagram, libc::IPPROTO_UDPLITE, unknown),
            socket(four, libc::SOCK_RAW, libc::IPPROTO_TCP, errno(libc::EPERM)),
            socket(four, libc::SOCK_SEQPACKET, 0, errno(libc::EPERM)),
            socket(four, stream | 0x10, 0, errno(libc::EPERM)),
            (libc::SYS_connect, [0; 6], RET_USER_NOTIF),
            (libc::SYS_bind, [0; 6], errno(libc::EPERM)),
            (libc::SYS_listen, [0; 6], errno(libc::EPERM)),
            (libc::SYS_accept, [0; 6], errno(libc::EPERM)),
            (
                libc::SYS_sendto,
                [0, 0, 0, libc::MSG_NOSIGNAL as u64, 0, 0],
                RET_ALLOW,
            ),
            (libc::SYS_sendto, [0, 0, 0, early, 0, 0], no_early),
            (libc::SYS_sendmsg, [0, 0, early, 0, 0, 0], no_early),
            (libc::SYS_sendmsg, [0, 0, 0, early, 0, 0], RET_ALLOW),
            (libc::SYS_sendmmsg, [0, 0, 0, early | 0x40, 0, 0], no_early),
            (libc::SYS_sendmmsg, [0, 0, 0, 0x40, 0, 0], RET_ALLOW),
            option(set, libc::SOL_SOCKET, libc::SO_RCVBUF, RET_ERRNO),
            option(set, libc::SOL_SOCKET, libc::SO_SNDBUF, RET_ERRNO),
            option(get, libc::SOL_SOCKET, libc::SO_RCVBUF, RET_ALLOW),
            option(get, libc::IPPROTO_TCP, libc::TCP_INFO, RET_ALLOW),
            option(set, libc::IPPROTO_TCP, libc::TCP_NODELAY, RET_ALLOW),
            option(set, libc::IPPROTO_IP, libc::IP_RECVERR, RET_ALLOW),
            option(set, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, RET_ALLOW),
        ];
        let others = [
            libc::AF_UNIX,
            libc::AF_PACKET,
            libc::AF_VSOCK,
            libc::AF_ALG,
            libc::AF_BLUETOOTH,
        ];
        cases.extend(others.map(|family| socket(family, stream, 0, errno(libc::EPERM))));
        let each = FOREIGN
            .iter()
            .flat_map(|(level, names)| names.iter().map(|name| option(set, *level, *name, none)));
        cases.extend(each);
        for variant in variants().filter(|variant| !variant.networked && !variant.local) {
            let networked = Variant {
                networked: true,
                ..variant
            };
            let (with, without) = (program(networked), program(variant));
            for (number, args, wanted) in &cases {
                let got = verdict(&with, AUDIT_ARCH_X86_64, *number as u32, *args);
                assert_eq!(got, *wanted, "{number} {args:?}");
            }
            for number in [
                libc::SYS_socket,
                libc::SYS_connect,
                libc::SYS_sendmmsg,
                libc::SYS_recvmmsg,
            ] {
                let first = [2, 1, 0, 0, 0, 0];
                let got = verdict(&without, AUDIT_ARCH_X86_64, number as u32, first);
                assert_eq!(got, errno(libc::EPERM), "{number}");
            }
        }
    }
}
