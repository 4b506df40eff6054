//! Wall: seccomp. Only the system calls that programs need get through, and of those that are many in one (prctl,
//! fcntl, ioctl, futex …) only the operations that programs need.
//!
//! An allow list, so a call of a newer kernel is refused until somebody has read what it does. The lists were made
//! from what Python, Node, Bun, their most used packages, a shell with coreutils, static Go and musl programs and our
//! own worker asked for; docs/SYSCALLS.md names what was asked for and is refused, with the errors. A call of another
//! architecture kills the process.
//! The program is a binary search tree, which the kernel loads three times faster than a linear list.

mod bpf;
mod networked;
pub mod recorded;
#[cfg(test)]
mod tests;

use crate::sandbox::plan::{Plan, Step};
use bpf::{HIGH, Insn, Refusal, Rule, Test};
use nix::libc;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use syscalls::Sysno;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the seccomp list is written for x86_64 only; see docs/SECURITY.md");

const EPERM: u32 = libc::EPERM as u32;
const ENOSYS: u32 = libc::ENOSYS as u32;
const EINVAL: u32 = libc::EINVAL as u32;
const SET_ID_BITS: u32 = 0o6000;
use Rule::{Allow, Case, Errno};
use Test::{AnyOf, Between, In};

/// The numbers of system calls.
macro_rules! calls {
    ($($name:ident)*) => { &[$(Sysno::$name as i64),*] };
}

/// Calls that are allowed with any arguments. The other walls decide what these calls reach.
const ALLOWED: &[i64] = calls![
    // Files and folders.
    read write close stat fstat lstat lseek pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 access
    faccessat faccessat2 newfstatat statx statfs fstatfs getdents getdents64 getcwd chdir fchdir rename renameat
    rmdir unlink unlinkat symlink symlinkat readlink readlinkat chown fchown lchown fchownat umask utime utimes
    futimesat utimensat truncate ftruncate fallocate fadvise64 fsync fdatasync flock copy_file_range sendfile
    getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    // Descriptors and waiting on them.
    dup dup2 dup3 close_range pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
    // Connected pairs of sockets; there are no others, but in the variant `networked`.
    sendto recvfrom sendmsg recvmsg accept4 shutdown getsockname getpeername
    // Memory.
    mprotect munmap brk mremap msync mincore mlock mlock2 munlock mlockall munlockall pkey_alloc pkey_free
    pkey_mprotect mseal
    // Processes and threads.
    fork vfork execve execveat exit exit_group wait4 waitid set_tid_address set_robust_list rseq membarrier gettid
    getpid getppid getpgid getpgrp setpgid getsid setsid pidfd_open pidfd_send_signal
    // Who it is: there is one id, and no capability to be another.
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

/// Calls from this number on came in 2018 or later: a C library that uses them falls back when they answer ENOSYS.
/// No program expects older calls to be missing, so these answer EPERM, as in other sandboxes.
const LATE: u32 = 333;

/// Late calls that answer EPERM all the same, so that a refusal is not taken for an old kernel.
const FORBIDDEN: &[i64] = calls![
    io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
    mount_setattr statmount listmount pidfd_getfd process_madvise quotactl_fd memfd_secret
];

/// Old calls that answer ENOSYS: asynchronous I/O, which the machine limits for all users together, and calls that
/// x86-64 kernels do not have, or not any more.
const MISSING: &[i64] = calls![
    set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie
];

/// EPERM when the argument has any of these bits.
macro_rules! without {
    ($argument:expr, $bits:expr) => {
        Case($argument, &[(&[AnyOf($bits)], Errno(EPERM))], &Allow)
    };
}

/// `without` on the mode, but only when open(2) flags say that a file is made: O_CREAT, or the bit by which O_TMPFILE
/// differs from O_DIRECTORY.
macro_rules! making {
    ($flags:expr, $mode:expr) => {
        Case($flags, &[(&[AnyOf((libc::O_CREAT | 0o20000000) as u32)], without!($mode, SET_ID_BITS))], &Allow)
    };
}

const NULL: &[Test] = &[In(&[0])];
/// RLIMIT_CORE stays 1, which stops a piped handler too, while 0 does not (core(5)). Setting it changes nothing and
/// answers success, or EPERM where the old value is asked for in the same call.
const CORE: &[Test] = &[In(&[libc::RLIMIT_CORE])];
const DONE: Rule = Case(3 | HIGH, &[(NULL, Errno(0))], &Errno(EPERM));
const FILE_OPTIONS: u32 = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL | libc::MFD_EXEC;
/// Threads, fork(2), vfork(2), posix_spawn(3), descriptors of processes; the low byte is the signal of their end.
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
const THREAD: Rule = Case(0, &[(&[AnyOf(libc::CLONE_FILES as u32)], Allow)], &Errno(EPERM));
/// PR_SET_PDEATHSIG … PR_GET_DUMPABLE, names, PR_GET_SECCOMP, PR_CAPBSET_READ, timer slack, PR_SET_CHILD_SUBREAPER …
/// PR_GET_TID_ADDRESS, PR_GET_THP_DISABLE, PR_CAP_AMBIENT. Not in the list: seccomp filters, futex hashes, names of
/// mappings and core scheduling, which all take memory of the kernel.
const PROCESS: &[Test] = &[Between(1, 3), Between(15, 16), Between(29, 30), Between(36, 40), In(&[21, 23, 42, 47])];
/// Making a process undumpable answers success and changes nothing: nothing is dumped or traced here anyway, and what
/// an undumpable process holds could not be counted.
const DUMPABLE: (&[Test], Rule) = (&[In(&[libc::PR_SET_DUMPABLE as u32])], Errno(0));
const THP: &[Test] = &[In(&[libc::PR_SET_THP_DISABLE as u32])];
/// Not in the list: owners and signals of descriptors, locks that belong to an open file (nobody can count them),
/// hints on how long data lives, delegations.
const FILE: &[Test] = &[
    Between(libc::F_DUPFD as u32, libc::F_SETLKW as u32),
    In(&[libc::F_DUPFD_CLOEXEC as u32]),
    Between(libc::F_GETPIPE_SZ as u32, libc::F_GET_SEALS as u32),
];
const PIPE_SIZE: &[Test] = &[In(&[libc::F_SETPIPE_SZ as u32])];
/// Leases and directory watches on a read grant would hold up the host's own programs.
const LEASES: &[Test] = &[In(&[libc::F_SETLEASE as u32, libc::F_NOTIFY as u32])];
/// Terminal requests, whose failure shows programs that there is no terminal; bytes that wait; flags of a descriptor;
/// copies that share blocks. Not in the list: operations of file systems and devices (encryption keys, flags, quotas).
const DEVICE: &[Test] = &[
    Between(libc::TCGETS as u32, libc::TCSETSF as u32),
    Between(libc::TIOCGPGRP as u32, libc::TIOCOUTQ as u32),
    Between(libc::FIONCLEX as u32, libc::FIOCLEX as u32),
    In(&[
        libc::TIOCGWINSZ as u32,
        libc::FIONREAD as u32,
        libc::FIONBIO as u32,
        0x802C_542A, // TCGETS2
        0x4004_9409, // FICLONE
        0x4020_940D, // FICLONERANGE
    ]),
];
/// Characters pushed into somebody's input: TIOCSTI, TIOCLINUX, TIOCSETD.
const TERMINALS: &[Test] = &[In(&[libc::TIOCSTI as u32, 0x541C, 0x5423])];
/// Not in the list: filters (SO_ATTACH_FILTER and its like), which are memory of the kernel that nobody counts.
const SOCKET: Rule = Case(2, &[(SOCKET_OPTIONS, Allow)], &NO_OPTION);
/// SO_REUSEADDR, SO_TYPE, SO_ERROR; SO_SNDBUF … SO_KEEPALIVE; SO_LINGER; SO_PASSCRED and SO_PEERCRED; SO_RCVTIMEO and
/// SO_SNDTIMEO; SO_ACCEPTCONN; SO_PROTOCOL and SO_DOMAIN.
const SOCKET_OPTIONS: &[Test] = &[Between(2, 4), Between(7, 9), In(&[13, 16, 17, 20, 21, 30, 38, 39])];
/// The same without SO_SNDBUF.
const USUAL_SOCKET: Rule =
    Case(2, &[(&[Between(2, 4), Between(8, 9), In(&[13, 16, 17, 20, 21, 30, 38, 39])], Allow)], &NO_OPTION);
const NO_OPTION: Rule = Errno(libc::ENOPROTOOPT as u32);
const SOCKET_LEVEL: Rule = Case(1, &[(&[In(&[libc::SOL_SOCKET as u32])], SOCKET)], &NO_OPTION);
/// FUTEX_WAIT and FUTEX_WAKE, with and without bits and clock, on words that others may share: pthread_join(3) and
/// semaphores need them. (Moving others' waiters to another word, FUTEX_REQUEUE, would hang them for good.) And all
/// operations up to FUTEX_LOCK_PI2 with FUTEX_PRIVATE_FLAG, which reach only the process's own words.
const WORDS: &[Test] = &[In(&[0, 1, 9, 10, 0x100, 0x109]), Between(0x80, 0x8D), Between(0x180, 0x18D)];

/// MADV_NORMAL … MADV_DONTNEED; MADV_FREE … MADV_DOFORK; MADV_HUGEPAGE … MADV_KEEPONFORK. Not in the list: merging
/// with equal pages of others, pushing out to swap, poisoning.
const ADVICE: &[Test] = &[Between(0, 4), Between(8, 11), Between(14, 19)];
/// Registers of a thread, and permission to use wide ones.
const REGISTERS: &[Test] = &[Between(0x1001, 0x1004), Between(0x1021, 0x1023)];
/// The machine has a fixed number of huge pages for everybody together.
const HUGE_PAGES: (&[Test], Rule) = (&[AnyOf(libc::MAP_HUGETLB as u32)], Errno(libc::ENOMEM as u32));
/// Extended attributes and access lists take kernel memory that no limit of a file system counts, and label files of a
/// write grant. Answers like a file system without them.
const NO_ATTRIBUTES: Rule = Errno(libc::EOPNOTSUPP as u32);
/// inotify is limited for all programs of a user together. Answers as if that limit were reached.
const NO_WATCHES: Rule = Errno(libc::EMFILE as u32);

/// Calls whose arguments decide, and calls with an error of their own.
const RULES: &[(i64, Rule)] = &[
    (libc::SYS_open, making!(1, 2)),
    (libc::SYS_openat, making!(2, 3)),
    (libc::SYS_openat2, Errno(ENOSYS)), // flags and mode lie in memory, where they cannot be checked
    (libc::SYS_clone3, Errno(ENOSYS)),
    (
        libc::SYS_clone,
        Case(0, &[(&[AnyOf(!CLONES)], Errno(EPERM)), (&[AnyOf(libc::CLONE_THREAD as u32)], THREAD)], &Allow),
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
    // Pages of others' files would stay in memory for as long as a pipe holds them. Programs can copy instead.
    (libc::SYS_splice, Errno(EINVAL)),
    (libc::SYS_tee, Errno(EINVAL)),
    (libc::SYS_sync_file_range, Errno(EINVAL)),
    (libc::SYS_vmsplice, Errno(ENOSYS)),
    (libc::SYS_fcntl, Case(1, &[(FILE, Allow), (PIPE_SIZE, Allow), (LEASES, Errno(EPERM))], &Errno(EINVAL))),
    (libc::SYS_ioctl, Case(1, &[(DEVICE, Allow), (TERMINALS, Errno(EPERM))], &Errno(libc::ENOTTY as u32))),
    // Only connected pairs that cannot send to another address: SOCK_STREAM and SOCK_SEQPACKET.
    (
        libc::SYS_socketpair,
        Case(0, &[(&[In(&[libc::AF_UNIX as u32])], without!(1, libc::SOCK_DGRAM as u32))], &Errno(EPERM)),
    ),
    (libc::SYS_setsockopt, SOCKET_LEVEL),
    (libc::SYS_getsockopt, SOCKET_LEVEL),
    (libc::SYS_mmap, Case(3, &[HUGE_PAGES], &Allow)),
    (libc::SYS_memfd_create, Case(1, &[(&[AnyOf(!FILE_OPTIONS)], Errno(EINVAL))], &Allow)),
    (libc::SYS_madvise, Case(2, &[(ADVICE, Allow)], &Errno(EINVAL))),
    (libc::SYS_futex, Case(1, &[(WORDS, Allow)], &Errno(ENOSYS))),
    (libc::SYS_prctl, Case(0, &[DUMPABLE, (PROCESS, Allow), (THP, Allow)], &Errno(EINVAL))),
    (libc::SYS_arch_prctl, Case(0, &[(REGISTERS, Allow)], &Errno(EINVAL))),
    (libc::SYS_personality, Case(0, &[(&[In(&[0xFFFF_FFFF])], Allow)], &Errno(EPERM))), // the value that only asks
    (libc::SYS_setrlimit, Case(0, &[(CORE, Errno(0))], &Allow)),
    // A null new value asks only for the old one.
    (
        libc::SYS_prlimit64,
        Case(1, &[(CORE, Case(2, &[(NULL, Case(2 | HIGH, &[(NULL, Allow)], &DONE))], &DONE))], &Allow),
    ),
];

/// Replace the rules above where no cgroup counts: refuse what would hold memory that no process shows as its own.
const SAMPLED: &[(i64, Rule)] = &[
    (libc::SYS_memfd_create, Errno(ENOSYS)),
    // Shared anonymous pages stay when every mapping drops them. Files in /tmp and /dev/shm can stand in, and count.
    (
        libc::SYS_mmap,
        Case(3, &[HUGE_PAGES, (&[AnyOf(libc::MAP_SHARED as u32)], without!(3, libc::MAP_ANONYMOUS as u32))], &Allow),
    ),
    // Into a pipe or socket, sendfile(2) hands over whole pages of a file, also of one that is removed later.
    (libc::SYS_sendfile, Errno(EINVAL)),
    // A socket is counted with the usual size of its buffers, a pipe as sixteen pages.
    (libc::SYS_setsockopt, Case(1, &[(&[In(&[libc::SOL_SOCKET as u32])], USUAL_SOCKET)], &NO_OPTION)),
    (libc::SYS_fcntl, Case(1, &[(FILE, Allow), (PIPE_SIZE, Errno(EPERM)), (LEASES, Errno(EPERM))], &Errno(EINVAL))),
    // Huge pages are off and stay off, because the sampler takes a page fault for 4 KiB.
    (libc::SYS_prctl, Case(0, &[DUMPABLE, (PROCESS, Allow), (THP, Errno(EPERM))], &Errno(EINVAL))),
];

/// Replace the rules above where no folder is written live: POSIX named semaphores are made by linking (sem_open(3)).
/// Where one is, links stay refused, which is one of the two rules that keep an outside file out of it.
const NOTHING_LIVE: &[(i64, Rule)] = &[(libc::SYS_link, Allow), (libc::SYS_linkat, Allow)];
/// Replace the rules above where a folder is written live: fallocate(2) would take space faster than it can be counted.
/// It answers as on a file system without it, and programs write instead (posix_fallocate(3)).
const LIVE: &[(i64, Rule)] = &[(libc::SYS_fallocate, Errno(libc::EOPNOTSUPP as u32))];

/// The rule of each number that has one. `sampled`: no cgroup counts memory; `live`: some folder is written live;
/// `networked`: hosts are granted.
fn rules(sampled: bool, live: bool, networked: bool) -> BTreeMap<i64, Rule> {
    let plain = [(ALLOWED, Allow), (FORBIDDEN, Errno(EPERM)), (MISSING, Errno(ENOSYS))];
    let plain = plain.into_iter().flat_map(|(numbers, rule)| numbers.iter().map(move |number| (*number, rule)));
    let (more, writing) = (if sampled { SAMPLED } else { &[] }, if live { LIVE } else { NOTHING_LIVE });
    let sockets = if networked { networked::RULES } else { &[] };
    // Later ones win.
    plain.chain(RULES.iter().chain(more).chain(writing).chain(sockets).copied()).collect()
}

fn rule_of(rules: &BTreeMap<i64, Rule>, number: u32) -> Rule {
    let other = Errno(if number < LATE { EPERM } else { ENOSYS });
    rules.get(&i64::from(number)).copied().unwrap_or(other)
}

/// The rules of all numbers as runs of equal ones, each with its first number. The last run holds all unknown numbers.
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
pub fn program(sampled: bool, live: bool, networked: bool) -> Vec<Insn> {
    bpf::compile(&runs(&rules(sampled, live, networked)), Refusal::Errno)
}

/// Last before execve: nothing after it needs a refused call.
/// `recorder`: the socket on which the recorder of the call waits for the filter's listener.
pub fn raise(plan: &mut Plan, program: &[Insn], recorder: Option<RawFd>) {
    plan.add("seccomp", Step::Seccomp { program: program.to_vec(), recorder });
}
