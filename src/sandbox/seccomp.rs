//! Wall: seccomp. Refuses the system calls that reach kernel code no tool needs.
//!
//! A deny list: the calls below answer EPERM (or ENOSYS, where the C library then falls back to a call that
//! can be checked); calls newer than this list answer ENOSYS; another architecture's calls kill the process.
//! The program is a binary search tree, which the kernel loads three times faster than a linear list.

use super::plan::{Plan, Step};
use nix::libc;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the seccomp list is written for x86_64 only; see docs/SECURITY.md");

const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;
/// x32 calls carry this bit.
const X32_BIT: u32 = 0x4000_0000;
/// mseal(2), Linux 6.10: the newest call this list was read against.
const NEWEST_KNOWN: u32 = 462;
const EPERM: u32 = libc::EPERM as u32;
const ENOSYS: u32 = libc::ENOSYS as u32;
const EMFILE: u32 = libc::EMFILE as u32;
const SET_ID_BITS: u32 = 0o6000;
/// All CLONE_NEW* flags.
const NEW_NAMESPACES: u32 = 0x7E02_0000;

/// What to do with one call.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Errno(u32),
    /// EPERM when the low word of this argument has any of these bits.
    NoBits {
        argument: u32,
        bits: u32,
    },
    /// EPERM when the low word of this argument has both of these bits.
    NotBoth {
        argument: u32,
        one: u32,
        other: u32,
    },
    /// EPERM when the low word of this argument is one of these.
    NotOneOf {
        argument: u32,
        values: &'static [u32],
    },
    /// As `Only`, and EPERM when the other argument has any of these bits.
    OnlyWithout {
        argument: u32,
        value: u32,
        other: u32,
        bits: u32,
    },
    /// EPERM unless the low word of this argument is this.
    Only {
        argument: u32,
        value: u32,
    },
    /// `NoBits` on the mode, but only when open(2) flags say that it creates a file.
    Creates {
        flags: u32,
        mode: u32,
    },
}

use Rule::{Creates, Errno, NoBits, NotBoth, NotOneOf, Only, OnlyWithout};

/// Each call with its rule and the reason.
const RULES: &[(i64, Rule)] = &[
    // Mounts and namespaces: would change the view, or reach kernel code meant for administrators.
    (libc::SYS_mount, Errno(EPERM)),
    (libc::SYS_umount2, Errno(EPERM)),
    (libc::SYS_pivot_root, Errno(EPERM)),
    (libc::SYS_chroot, Errno(EPERM)),
    (libc::SYS_open_tree, Errno(EPERM)),
    (libc::SYS_move_mount, Errno(EPERM)),
    (libc::SYS_fsopen, Errno(EPERM)),
    (libc::SYS_fsconfig, Errno(EPERM)),
    (libc::SYS_fsmount, Errno(EPERM)),
    (libc::SYS_fspick, Errno(EPERM)),
    (libc::SYS_mount_setattr, Errno(EPERM)),
    (457, Errno(EPERM)), // statmount
    (458, Errno(EPERM)), // listmount
    (libc::SYS_unshare, Errno(EPERM)),
    (libc::SYS_setns, Errno(EPERM)),
    (libc::SYS_clone, NoBits { argument: 0, bits: NEW_NAMESPACES }),
    (libc::SYS_clone3, Errno(ENOSYS)), // flags lie in memory, where they cannot be checked
    // Other processes.
    (libc::SYS_ptrace, Errno(EPERM)),
    (libc::SYS_process_vm_readv, Errno(EPERM)),
    (libc::SYS_process_vm_writev, Errno(EPERM)),
    (libc::SYS_process_madvise, Errno(EPERM)),
    (libc::SYS_pidfd_getfd, Errno(EPERM)),
    (libc::SYS_kcmp, Errno(EPERM)),
    // Wide kernel interfaces with a history.
    (libc::SYS_bpf, Errno(EPERM)),
    (libc::SYS_perf_event_open, Errno(EPERM)),
    (libc::SYS_userfaultfd, Errno(EPERM)),
    (libc::SYS_io_uring_setup, Errno(EPERM)),
    (libc::SYS_io_uring_enter, Errno(EPERM)),
    (libc::SYS_io_uring_register, Errno(EPERM)),
    (libc::SYS_keyctl, Errno(EPERM)), // keys outlive the call and are not namespaced
    (libc::SYS_add_key, Errno(EPERM)),
    (libc::SYS_request_key, Errno(EPERM)),
    (libc::SYS_modify_ldt, Errno(EPERM)),
    (libc::SYS_personality, Only { argument: 0, value: 0xFFFF_FFFF }), // asking is fine
    (libc::SYS_memfd_secret, Errno(EPERM)),
    (libc::SYS_io_setup, Errno(ENOSYS)), // the machine has so many for everybody together
    (libc::SYS_inotify_init, Errno(EMFILE)), // a user has so many for all programs together: as if they were used up
    (libc::SYS_inotify_init1, Errno(EMFILE)),
    (libc::SYS_open_by_handle_at, Errno(EPERM)),
    (libc::SYS_name_to_handle_at, Errno(EPERM)),
    (libc::SYS_fanotify_init, Errno(EPERM)),
    (libc::SYS_fanotify_mark, Errno(EPERM)),
    (libc::SYS_lookup_dcookie, Errno(EPERM)),
    (libc::SYS_uselib, Errno(EPERM)),
    (libc::SYS_remap_file_pages, Errno(EPERM)),
    // The machine.
    (libc::SYS_init_module, Errno(EPERM)),
    (libc::SYS_finit_module, Errno(EPERM)),
    (libc::SYS_delete_module, Errno(EPERM)),
    (libc::SYS_kexec_load, Errno(EPERM)),
    (libc::SYS_kexec_file_load, Errno(EPERM)),
    (libc::SYS_reboot, Errno(EPERM)),
    (libc::SYS_swapon, Errno(EPERM)),
    (libc::SYS_swapoff, Errno(EPERM)),
    (libc::SYS_acct, Errno(EPERM)),
    (libc::SYS_settimeofday, Errno(EPERM)),
    (libc::SYS_clock_settime, Errno(EPERM)),
    (libc::SYS_clock_adjtime, Errno(EPERM)),
    (libc::SYS_adjtimex, Errno(EPERM)),
    (libc::SYS_sethostname, Errno(EPERM)),
    (libc::SYS_setdomainname, Errno(EPERM)),
    (libc::SYS_iopl, Errno(EPERM)),
    (libc::SYS_ioperm, Errno(EPERM)),
    (libc::SYS_quotactl, Errno(EPERM)),
    (libc::SYS_quotactl_fd, Errno(EPERM)),
    (libc::SYS_nfsservctl, Errno(EPERM)),
    (libc::SYS_syslog, Errno(EPERM)),
    (libc::SYS_vhangup, Errno(EPERM)),
    // Sockets: no family at all; a pair of connected unix sockets stays inside the call.
    (libc::SYS_socket, Errno(EPERM)),
    // Of connected pairs only those that cannot be sent elsewhere by name: SOCK_STREAM and SOCK_SEQPACKET.
    (libc::SYS_socketpair, OnlyWithout { argument: 0, value: libc::AF_UNIX as u32, other: 1, bits: 2 }),
    (libc::SYS_connect, Errno(EPERM)),
    (libc::SYS_bind, Errno(EPERM)),
    (libc::SYS_listen, Errno(EPERM)),
    // System V and POSIX IPC: outlive processes.
    (libc::SYS_shmget, Errno(EPERM)),
    (libc::SYS_shmat, Errno(EPERM)),
    (libc::SYS_semget, Errno(EPERM)),
    (libc::SYS_msgget, Errno(EPERM)),
    (libc::SYS_mq_open, Errno(EPERM)),
    // Terminals: characters pushed into somebody's input.
    (libc::SYS_ioctl, NotOneOf { argument: 1, values: &[libc::TIOCSTI as u32, 0x541C, 0x5423] }), // TIOCLINUX, TIOCSETD
    // Leases and directory watches on a read grant would hold up the host's own programs.
    (libc::SYS_fcntl, NotOneOf { argument: 1, values: &[1024, 1026] }), // F_SETLEASE, F_NOTIFY
    // Hard links: one of the two rules that keep an outside file out of a writable tree.
    (libc::SYS_link, Errno(EPERM)),
    (libc::SYS_linkat, Errno(EPERM)),
    // RENAME_WHITEOUT leaves a device node (0, 0), which needs no right to make devices.
    (libc::SYS_renameat2, NoBits { argument: 4, bits: libc::RENAME_WHITEOUT }),
    // Files that would run as somebody else.
    (libc::SYS_chmod, NoBits { argument: 1, bits: SET_ID_BITS }),
    (libc::SYS_fchmod, NoBits { argument: 1, bits: SET_ID_BITS }),
    (libc::SYS_fchmodat, NoBits { argument: 2, bits: SET_ID_BITS }),
    (452, NoBits { argument: 2, bits: SET_ID_BITS }), // fchmodat2
    (libc::SYS_mkdir, NoBits { argument: 1, bits: SET_ID_BITS }),
    (libc::SYS_mkdirat, NoBits { argument: 2, bits: SET_ID_BITS }),
    (libc::SYS_mknod, NoBits { argument: 1, bits: SET_ID_BITS }),
    (libc::SYS_mknodat, NoBits { argument: 2, bits: SET_ID_BITS }),
    (libc::SYS_creat, NoBits { argument: 1, bits: SET_ID_BITS }),
    (libc::SYS_open, Creates { flags: 1, mode: 2 }),
    (libc::SYS_openat, Creates { flags: 2, mode: 3 }),
    (libc::SYS_openat2, Errno(ENOSYS)), // mode lies in memory
];

/// Where memory is sampled: what would hold pages that no process shows as its own.
const SAMPLED: &[(i64, Rule)] = &[
    (libc::SYS_memfd_create, Errno(ENOSYS)),
    // Its pages stay when they are dropped from every mapping. Files in /tmp and /dev/shm do the same, and count.
    (libc::SYS_mmap, NotBoth { argument: 3, one: libc::MAP_SHARED as u32, other: libc::MAP_ANONYMOUS as u32 }),
    (libc::SYS_vmsplice, Errno(ENOSYS)), // one byte in a pipe holds 2 MiB
    // Huge pages are off, because the sampler takes a page fault for 4 KiB: not to be turned on again.
    (libc::SYS_prctl, NotOneOf { argument: 0, values: &[libc::PR_SET_THP_DISABLE as u32] }),
    // Rule sets are memory of the kernel that no process shows. As where the kernel has none.
    (libc::SYS_landlock_create_ruleset, Errno(ENOSYS)),
    (libc::SYS_landlock_add_rule, Errno(ENOSYS)),
    (libc::SYS_landlock_restrict_self, Errno(ENOSYS)),
];

type Insn = libc::sock_filter;

const RET_ALLOW: u32 = 0x7FFF_0000;
const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}
fn answer(value: u32) -> Insn {
    insn(RETURN, 0, 0, value)
}
fn load_argument(number: u32) -> Insn {
    insn(LOAD, 0, 0, 16 + 8 * number)
}

/// What runs when the number matched.
fn block(rule: Rule) -> Vec<Insn> {
    let refuse = answer(RET_ERRNO | EPERM);
    let allow = answer(RET_ALLOW);
    match rule {
        Errno(errno) => vec![answer(RET_ERRNO | errno)],
        NoBits { argument, bits } => vec![load_argument(argument), insn(IF_ANY_BIT, 0, 1, bits), refuse, allow],
        NotBoth { argument, one, other } => {
            vec![load_argument(argument), insn(IF_ANY_BIT, 0, 2, one), insn(IF_ANY_BIT, 0, 1, other), refuse, allow]
        }
        Only { argument, value } => vec![load_argument(argument), insn(IF_EQUAL, 1, 0, value), refuse, allow],
        OnlyWithout { argument, value, other, bits } => vec![
            load_argument(argument),
            insn(IF_EQUAL, 0, 2, value),
            load_argument(other),
            insn(IF_ANY_BIT, 0, 1, bits),
            refuse,
            allow,
        ],
        NotOneOf { argument, values } => {
            let mut out = vec![load_argument(argument)];
            for value in values {
                out.push(insn(IF_EQUAL, 0, 1, *value));
                out.push(refuse);
            }
            out.push(allow);
            out
        }
        Creates { flags, mode } => vec![
            load_argument(flags),
            // O_CREAT, or the bit by which O_TMPFILE differs from O_DIRECTORY.
            insn(IF_ANY_BIT, 0, 3, (libc::O_CREAT | 0o20000000) as u32),
            load_argument(mode),
            insn(IF_ANY_BIT, 0, 1, SET_ID_BITS),
            refuse,
            allow,
        ],
    }
}

/// Most plain refusals that share one leaf.
const LEAF: usize = 6;

/// A search tree over `rules`, which are sorted by number. Neighbours that only refuse share a leaf: the kernel
/// checks and translates every instruction when the filter is loaded, which is once a call.
fn tree(rules: &[(u32, Rule)]) -> Vec<Insn> {
    if rules.len() <= LEAF
        && let Some(errno) = common_errno(rules)
    {
        let mut out = Vec::with_capacity(rules.len() + 2);
        for (at, (number, _)) in rules.iter().enumerate() {
            // To the refusal, which stands behind the rest of the numbers and the allowance.
            out.push(insn(IF_EQUAL, (rules.len() - at) as u8, 0, *number));
        }
        out.push(answer(RET_ALLOW));
        out.push(answer(RET_ERRNO | errno));
        return out;
    }
    if let [(number, rule)] = rules {
        let block = block(*rule);
        let mut out = vec![insn(IF_EQUAL, 0, block.len() as u8, *number)];
        out.extend(block);
        out.push(answer(RET_ALLOW));
        return out;
    }
    let (low, high) = rules.split_at(rules.len() / 2);
    let left = tree(low);
    let mut out = match u8::try_from(left.len()) {
        Ok(skip) => vec![insn(IF_AT_LEAST, skip, 0, high[0].0)],
        // Farther than a conditional jump reaches.
        Err(_) => vec![insn(IF_AT_LEAST, 0, 1, high[0].0), insn(JUMP, 0, 0, left.len() as u32)],
    };
    out.extend(left);
    out.extend(tree(high));
    out
}

/// The errno that all of these answer, whatever their arguments.
fn common_errno(rules: &[(u32, Rule)]) -> Option<u32> {
    let mut errnos = rules.iter().map(|(_, rule)| if let Errno(errno) = rule { Some(*errno) } else { None });
    let first = errnos.next()??;
    errnos.all(|errno| errno == Some(first)).then_some(first)
}

/// The whole filter; `sampled`: no cgroup counts memory.
pub fn program(sampled: bool) -> Vec<Insn> {
    let more = if sampled { SAMPLED } else { &[] };
    let mut rules: Vec<(u32, Rule)> = RULES.iter().chain(more).map(|(number, rule)| (*number as u32, *rule)).collect();
    rules.sort_by_key(|(number, _)| *number);
    let mut out = vec![
        insn(LOAD, 0, 0, OFFSET_ARCH),
        insn(IF_EQUAL, 1, 0, AUDIT_ARCH_X86_64),
        answer(RET_KILL_PROCESS),
        insn(LOAD, 0, 0, OFFSET_NR),
        insn(IF_AT_LEAST, 0, 1, X32_BIT),
        answer(RET_KILL_PROCESS),
        insn(IF_AT_LEAST, 0, 1, NEWEST_KNOWN + 1),
        answer(RET_ERRNO | ENOSYS),
    ];
    out.extend(tree(&rules));
    out
}

/// Last before execve: nothing after it needs a refused call.
pub fn raise(plan: &mut Plan, program: &[Insn]) {
    plan.add("seccomp", Step::Seccomp { program: program.to_vec() });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program on one call, as the kernel would.
    fn verdict(program: &[Insn], arch: u32, nr: u32, args: [u32; 6]) -> u32 {
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
                        offset => args[((offset - 16) / 8) as usize],
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

    #[test]
    fn every_rule_refuses_and_everything_else_passes() {
        let program = program(true);
        for nr in 0..=NEWEST_KNOWN {
            let got = |args| verdict(&program, AUDIT_ARCH_X86_64, nr, args);
            let rule = RULES.iter().chain(SAMPLED).find(|(number, _)| *number as u32 == nr).map(|(_, rule)| *rule);
            let refused = RET_ERRNO | EPERM;
            let with = |argument: u32, value: u32| {
                let mut args = [0; 6];
                args[argument as usize] = value;
                args
            };
            match rule {
                None => assert_eq!(got([u32::MAX; 6]), RET_ALLOW, "{nr}"),
                Some(Errno(errno)) => assert_eq!(got([0; 6]), RET_ERRNO | errno, "{nr}"),
                Some(NoBits { argument, bits }) => {
                    assert_eq!(got([0; 6]), RET_ALLOW, "{nr}");
                    assert_eq!(got(with(argument, bits)), refused, "{nr}");
                }
                Some(NotOneOf { argument, values }) => {
                    assert_eq!(got([0; 6]), RET_ALLOW, "{nr}");
                    assert!(values.iter().all(|v| got(with(argument, *v)) == refused), "{nr}");
                }
                Some(NotBoth { argument, one, other }) => {
                    assert_eq!(got(with(argument, one)), RET_ALLOW, "{nr}");
                    assert_eq!(got(with(argument, other)), RET_ALLOW, "{nr}");
                    assert_eq!(got(with(argument, one | other)), refused, "{nr}");
                }
                Some(Only { argument, value }) => {
                    assert_eq!(got(with(argument, value)), RET_ALLOW, "{nr}");
                    assert_eq!(got(with(argument, value ^ 1)), refused, "{nr}");
                }
                Some(OnlyWithout { argument, value, other, bits }) => {
                    let mut args = with(argument, value);
                    assert_eq!(got(args), RET_ALLOW, "{nr}");
                    args[other as usize] = bits;
                    assert_eq!(got(args), refused, "{nr}");
                    assert_eq!(got(with(argument, value ^ 3)), refused, "{nr}");
                }
                Some(Creates { flags, mode }) => {
                    let mut args = with(mode, 0o4755);
                    assert_eq!(got(args), RET_ALLOW, "{nr}: no file is made");
                    args[flags as usize] = libc::O_CREAT as u32;
                    assert_eq!(got(args), refused, "{nr}");
                }
            }
        }
    }

    #[test]
    fn other_architectures_and_newer_calls() {
        let program = program(false);
        assert_eq!(verdict(&program, 0x4000_0003, 0, [0; 6]), RET_KILL_PROCESS);
        assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, X32_BIT, [0; 6]), RET_KILL_PROCESS);
        assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, NEWEST_KNOWN + 1, [0; 6]), RET_ERRNO | ENOSYS);
        for (number, _) in SAMPLED {
            assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, *number as u32, [u32::MAX; 6]), RET_ALLOW, "{number}");
        }
    }
}
