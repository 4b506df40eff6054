//! Tests: the program answers as the lists say, for every number and every value that counts.

use super::bpf::*;
use super::*;

const NEWEST: u32 = 500;

fn variants() -> impl Iterator<Item = (bool, bool, bool)> {
    (0..8).map(|n| (n & 1 > 0, n & 2 > 0, n & 4 > 0))
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
fn said(rule: &Rule, args: [u64; 6]) -> u32 {
    rule.refuses(&args).map_or(RET_ALLOW, |errno| RET_ERRNO | errno)
}

/// Every value at which the answer of a rule could change.
fn edges(rule: &Rule, into: &mut Vec<u64>) {
    let Case(_, tests, otherwise) = rule else { return };
    for (group, then) in *tests {
        group.iter().for_each(|test| match test {
            In(values) => into.extend(values.iter().flat_map(|v| [u64::from(*v), u64::from(*v) + 1])),
            Between(first, last) => {
                into.extend([first.wrapping_sub(1), *first, *last, last + 1].map(u64::from));
            }
            AnyOf(bits) => into.extend((0..32).map(|n| 1 << n).chain([u64::from(*bits), u64::from(!bits)])),
        });
        edges(then, into);
    }
    edges(otherwise, into);
}

#[test]
fn the_program_says_what_the_lists_say_for_every_number() {
    for (sampled, live, networked) in variants() {
        // (A jump that is cut off leads elsewhere.)
        let (program, rules) = (program(sampled, live, networked), rules(sampled, live, networked));
        let recorded = recorded::Recorded::new(sampled, live, networked);
        let listened = recorded.program();
        for nr in 0..=NEWEST {
            let rule = &rule_of(&rules, nr);
            let mut values = vec![0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX];
            edges(rule, &mut values);
            for first in &values {
                for second in [0, 1, u64::MAX, *first] {
                    // Of two arguments that count, each takes all values.
                    for args in [[*first, *first, second, second, 0, 0], [second, second, *first, *first, 9, 9]] {
                        let got = verdict(&program, AUDIT_ARCH_X86_64, nr, args);
                        assert_eq!(got, said(rule, args), "{nr} {args:?} sampled {sampled}");
                        // The listener hears all that is refused and all that names a file, and nothing else.
                        let told = verdict(&listened, AUDIT_ARCH_X86_64, nr, args);
                        let refused = recorded.refuses(nr, &args).is_some_and(|errno| errno > 0);
                        let heard = refused || !recorded::named(nr).is_empty();
                        assert_eq!(told, if heard { RET_USER_NOTIF } else { got }, "{nr} {args:?}");
                        assert_eq!(refused, got != RET_ALLOW && got != RET_ERRNO, "{nr} {args:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_call_stands_in_one_list() {
    let mut all: Vec<i64> = ALLOWED.iter().chain(FORBIDDEN).chain(MISSING).copied().collect();
    all.extend(RULES.iter().map(|(number, _)| *number));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    let sockets: Vec<i64> = networked::RULES.iter().map(|(number, _)| *number).filter(|n| !all.contains(n)).collect();
    let known = [libc::SYS_socket, libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg];
    assert_eq!(sockets, known, "all that granted hosts add");
    let numbers: Vec<i64> = SAMPLED.iter().map(|(number, _)| *number).collect();
    assert!(numbers.iter().all(|number| all.contains(number)), "sampling only narrows: {numbers:?}");
}

#[test]
fn only_the_operations_on_the_lists() {
    let errno = |errno: i32| RET_ERRNO | errno as u32;
    let refused = [
        // (call, arguments, with a cgroup, sampled)
        (libc::SYS_futex, [0, 3, 0, 0, 0, 0], errno(libc::ENOSYS)), // FUTEX_REQUEUE
        (libc::SYS_futex, [0, 4, 0, 0, 0, 0], errno(libc::ENOSYS)), // FUTEX_CMP_REQUEUE
        (libc::SYS_futex, [0, 5, 0, 0, 0, 0], errno(libc::ENOSYS)), // FUTEX_WAKE_OP
        (libc::SYS_futex, [0, 0x8E, 0, 0, 0, 0], errno(libc::ENOSYS)),
        (libc::SYS_prctl, [78, 1, 1024, 0, 0, 0], errno(libc::EINVAL)), // PR_FUTEX_HASH
        (libc::SYS_prctl, [22, 2, 0, 0, 0, 0], errno(libc::EINVAL)),    // PR_SET_SECCOMP
        (libc::SYS_seccomp, [1, 0, 0, 0, 0, 0], errno(libc::EPERM)),
        (libc::SYS_setsockopt, [0, 1, 26, 0, 0, 0], errno(libc::ENOPROTOOPT)), // SO_ATTACH_FILTER
        (libc::SYS_setsockopt, [0, 6, 31, 0, 0, 0], errno(libc::ENOPROTOOPT)), // TCP_ULP
        (libc::SYS_fcntl, [0, 1036, 0, 0, 0, 0], errno(libc::EINVAL)),         // F_SET_RW_HINT
        (libc::SYS_fcntl, [0, 37, 0, 0, 0, 0], errno(libc::EINVAL)),           // F_OFD_SETLK
        (libc::SYS_ioctl, [0, 0xC050_6617, 0, 0, 0, 0], errno(libc::ENOTTY)),  // FS_IOC_ADD_ENCRYPTION_KEY
        (libc::SYS_clone, [0x80, 0, 0, 0, 0, 0], errno(libc::EPERM)),          // CLONE_NEWTIME
        (libc::SYS_clone, [0x1_0900, 0, 0, 0, 0, 0], errno(libc::EPERM)),      // CLONE_THREAD without CLONE_FILES
        (libc::SYS_clone, [0x1_0F00, 0, 0, 0, 0, 0], RET_ALLOW),
        (libc::SYS_mmap, [0, 0, 0, 0x40022, 0, 0], errno(libc::ENOMEM)),
        (libc::SYS_madvise, [0, 0, 12, 0, 0, 0], errno(libc::EINVAL)),
        (libc::SYS_setrlimit, [4, 1, 0, 0, 0, 0], RET_ERRNO),
        (libc::SYS_prlimit64, [0, 4, 1 << 32, 0, 0, 0], RET_ERRNO),
        (libc::SYS_prlimit64, [0, 4, 1 << 32, 1 << 32, 0, 0], errno(libc::EPERM)),
        (libc::SYS_prlimit64, [0, 4, 0, 1 << 32, 0, 0], RET_ALLOW),
        (libc::SYS_prlimit64, [0, 7, 1, 0, 0, 0], RET_ALLOW),
        (libc::SYS_futex, [0, 0x83, 0, 0, 0, 0], RET_ALLOW),
        (335, [0; 6], errno(libc::ENOSYS)), // uretprobe
        (336, [0; 6], errno(libc::ENOSYS)), // uprobe
        (449, [0; 6], errno(libc::ENOSYS)), // futex_waitv
        (456, [0; 6], errno(libc::ENOSYS)), // futex_requeue
        (i64::from(NEWEST), [0; 6], errno(libc::ENOSYS)),
    ];
    for (sampled, live, networked) in variants() {
        let program = program(sampled, live, networked);
        let link = if live { errno(libc::EPERM) } else { RET_ALLOW };
        assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, libc::SYS_linkat as u32, [0; 6]), link, "live {live}");
        let reserve = if live { errno(libc::EOPNOTSUPP) } else { RET_ALLOW };
        assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, libc::SYS_fallocate as u32, [0; 6]), reserve, "live {live}");
        for (number, args, wanted) in refused {
            assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, number as u32, args), wanted, "{number} {args:?}");
        }
        assert_eq!(verdict(&program, 0x4000_0003, 0, [0; 6]), RET_KILL_PROCESS, "i386");
        assert_eq!(verdict(&program, AUDIT_ARCH_X86_64, X32_BIT, [0; 6]), RET_KILL_PROCESS, "x32");
    }
}

/// Levels and options of sockets that reach other code of the kernel, or other ways out.
const FOREIGN: &[(i32, &[i32])] = &[
    (libc::SOL_SOCKET, &[libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_BINDTODEVICE, 62, libc::SO_ZEROCOPY]),
    (libc::SOL_SOCKET, &[libc::SO_TXTIME, libc::SO_TIMESTAMPING, libc::SO_BROADCAST, libc::SO_RCVBUFFORCE]),
    (libc::IPPROTO_TCP, &[libc::TCP_ULP, libc::TCP_FASTOPEN, libc::TCP_FASTOPEN_CONNECT, libc::TCP_REPAIR]),
    (libc::IPPROTO_TCP, &[libc::TCP_MD5SIG, libc::TCP_CONGESTION, libc::TCP_INFO, 35]),
    (libc::IPPROTO_IP, &[libc::IP_OPTIONS, libc::IP_PKTINFO, libc::IP_ADD_MEMBERSHIP, libc::IP_UNICAST_IF, 51]),
    (libc::IPPROTO_IPV6, &[1, libc::IPV6_ADD_MEMBERSHIP, libc::IPV6_RECVPKTINFO, libc::IPV6_UNICAST_IF]),
    (libc::IPPROTO_UDP, &[libc::UDP_CORK, libc::UDP_SEGMENT, libc::UDP_GRO]),
    (libc::SOL_NETLINK, &[1]),
];

#[test]
fn granted_hosts_add_sockets_that_connect_and_no_others() {
    let errno = |errno: i32| RET_ERRNO | errno as u32;
    let (four, six, stream, datagram) = (libc::AF_INET, libc::AF_INET6, libc::SOCK_STREAM, libc::SOCK_DGRAM);
    let usual = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let socket = |family: i32, kind: i32, protocol: i32, wanted| {
        (libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0], wanted)
    };
    let option = |number, level: i32, name: i32, wanted| (number, [0, level as u64, name as u64, 0, 0, 0], wanted);
    let (set, get, none) = (libc::SYS_setsockopt, libc::SYS_getsockopt, errno(libc::ENOPROTOOPT));
    let (early, no_early) = (libc::MSG_FASTOPEN as u64, errno(libc::EOPNOTSUPP));
    let mut cases = vec![
        socket(four, stream, 0, RET_ALLOW),
        socket(four, stream | usual, libc::IPPROTO_TCP, RET_ALLOW),
        socket(six, stream | libc::SOCK_CLOEXEC, 0, RET_ALLOW),
        socket(six, datagram | usual, libc::IPPROTO_UDP, RET_ALLOW),
        socket(four, stream, libc::IPPROTO_MPTCP, errno(libc::EPROTONOSUPPORT)),
        socket(four, stream, libc::IPPROTO_SCTP, errno(libc::EPROTONOSUPPORT)),
        socket(four, stream, libc::IPPROTO_UDP, errno(libc::EPROTONOSUPPORT)),
        socket(four, datagram, libc::IPPROTO_ICMP, errno(libc::EPROTONOSUPPORT)),
        socket(six, datagram, libc::IPPROTO_ICMPV6, errno(libc::EPROTONOSUPPORT)),
        socket(four, datagram, libc::IPPROTO_UDPLITE, errno(libc::EPROTONOSUPPORT)),
        socket(four, libc::SOCK_RAW, libc::IPPROTO_TCP, errno(libc::EPERM)),
        socket(four, libc::SOCK_SEQPACKET, 0, errno(libc::EPERM)),
        socket(four, stream | 0x10, 0, errno(libc::EPERM)),
        (libc::SYS_connect, [0; 6], RET_ALLOW),
        (libc::SYS_bind, [0; 6], errno(libc::EPERM)),
        (libc::SYS_listen, [0; 6], errno(libc::EPERM)),
        (libc::SYS_accept, [0; 6], errno(libc::EPERM)),
        (libc::SYS_sendto, [0, 0, 0, libc::MSG_NOSIGNAL as u64, 0, 0], RET_ALLOW),
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
    let others = [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH];
    cases.extend(others.map(|family| socket(family, stream, 0, errno(libc::EPERM))));
    let each = FOREIGN.iter().flat_map(|(level, names)| names.iter().map(|name| option(set, *level, *name, none)));
    cases.extend(each);
    for (sampled, live, _) in variants() {
        let (with, without) = (program(sampled, live, true), program(sampled, live, false));
        for (number, args, wanted) in &cases {
            let got = verdict(&with, AUDIT_ARCH_X86_64, *number as u32, *args);
            assert_eq!(got, *wanted, "{number} {args:?}");
        }
        for number in [libc::SYS_socket, libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg] {
            let first = [2, 1, 0, 0, 0, 0];
            assert_eq!(verdict(&without, AUDIT_ARCH_X86_64, number as u32, first), errno(libc::EPERM), "{number}");
        }
    }
}
