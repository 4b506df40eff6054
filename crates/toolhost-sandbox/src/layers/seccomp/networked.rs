//! Networked: what the filter also lets through if hosts are granted (part of the layer `seccomp`).
//!
//! Sockets for TCP and UDP that connect. None may bind, listen, or send data with its first packet,
//! before Landlock sees the destination. Only the options that clients set are allowed. The layers
//! `network` and `landlock` decide what a socket reaches.

use super::bpf::{EPERM, Rule, Test};
use Rule::{Allow, Case, Errno};
use Test::{AnyOf, Between, In};
use nix::libc;

const INTERNET: &[Test] = &[In(&[libc::AF_INET as u32, libc::AF_INET6 as u32])];
const USUAL: u32 = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as u32;
/// A type of sockets, with or without flags.
macro_rules! kind {
    ($kind:expr) => {
        &[In(&[
            $kind as u32,
            ($kind | libc::SOCK_NONBLOCK) as u32,
            ($kind | libc::SOCK_CLOEXEC) as u32,
            $kind as u32 | USUAL,
        ])]
    };
}
/// Not MPTCP, SCTP, ICMP, UDP-Lite. A program that asks for MPTCP goes on with TCP.
const NO_PROTOCOL: Rule = Errno(libc::EPROTONOSUPPORT as u32);
const STREAM: Rule = Case(
    2,
    &[(&[In(&[0, libc::IPPROTO_TCP as u32])], Allow)],
    &NO_PROTOCOL,
);
const DATAGRAM: Rule = Case(
    2,
    &[(&[In(&[0, libc::IPPROTO_UDP as u32])], Allow)],
    &NO_PROTOCOL,
);
const KINDS: Rule = Case(
    1,
    &[
        (kind!(libc::SOCK_STREAM), STREAM),
        (kind!(libc::SOCK_DGRAM), DATAGRAM),
    ],
    &Errno(EPERM),
);

/// NETLINK_ROUTE, by which getifaddrs(3) lists interfaces. What changes something needs a
/// capability. Not in the list: other families of netlink.
pub const NETLINK: (&[Test], Rule) = (
    &[In(&[libc::AF_NETLINK as u32])],
    Case(
        2,
        &[(&[In(&[libc::NETLINK_ROUTE as u32])], Allow)],
        &Errno(EPERM),
    ),
);
pub const INTERNET_SOCKETS: (&[Test], Rule) = (INTERNET, KINDS);

/// EOPNOTSUPP with MSG_FASTOPEN, which connects and sends at once, and with MSG_ZEROCOPY.
macro_rules! later {
    ($flags:expr) => {
        Case(
            $flags,
            &[(
                &[AnyOf((libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY) as u32)],
                Errno(libc::EOPNOTSUPP as u32),
            )],
            &Allow,
        )
    };
}

const SOCKET_LEVEL: &[Test] = &[In(&[libc::SOL_SOCKET as u32])];
/// Buffers keep their size, so that the memory of a socket is known; setting it answers success and
/// changes nothing.
const BUFFERS: (&[Test], Rule) = (
    &[In(&[libc::SO_SNDBUF as u32, libc::SO_RCVBUF as u32])],
    Errno(0),
);
/// SO_REUSEADDR, SO_TYPE, SO_ERROR; SO_SNDBUF … SO_KEEPALIVE; SO_LINGER; SO_PASSCRED and
/// SO_PEERCRED; SO_RCVTIMEO and SO_SNDTIMEO; SO_ACCEPTCONN; SO_PROTOCOL and SO_DOMAIN.
pub const SOCKET_OPTIONS: &[Test] = &[
    Between(2, 4),
    Between(7, 9),
    In(&[13, 16, 17, 20, 21, 30, 38, 39]),
];
pub const NO_OPTION: Rule = Errno(libc::ENOPROTOOPT as u32);
/// TCP_NODELAY; TCP_CORK … TCP_KEEPCNT; TCP_QUICKACK; TCP_USER_TIMEOUT; TCP_NOTSENT_LOWAT. Not in
/// the list: other code of the kernel for a socket (TCP_ULP, TCP_CONGESTION), keys, repair, data
/// with the first packet.
const TCP: &[Test] = &[Between(3, 6), In(&[1, 12, 18, 25])];
/// IP_TOS; IP_MTU_DISCOVER and IP_RECVERR, which the C library's resolver needs. Not in the list:
/// options in packets, multicast, interfaces, ranges of own ports.
const IP: &[Test] = &[In(&[1, 10, 11])];
/// IPV6_MTU_DISCOVER, IPV6_RECVERR and IPV6_V6ONLY, IPV6_TCLASS.
const IPV6: &[Test] = &[In(&[23, 25, 26, 67])];
/// Only for getsockopt(2): TCP_MAXSEG, TCP_INFO; the path's MTU.
const TCP_FACTS: &[Test] = &[In(&[2, 11])];
const IP_MTU: &[Test] = &[In(&[14])];
const IPV6_MTU: &[Test] = &[In(&[24])];

const SET: Rule = Case(
    1,
    &[
        (
            SOCKET_LEVEL,
            Case(2, &[BUFFERS, (SOCKET_OPTIONS, Allow)], &NO_OPTION),
        ),
        (
            &[In(&[libc::IPPROTO_TCP as u32])],
            Case(2, &[(TCP, Allow)], &NO_OPTION),
        ),
        (
            &[In(&[libc::IPPROTO_IP as u32])],
            Case(2, &[(IP, Allow)], &NO_OPTION),
        ),
        (
            &[In(&[libc::IPPROTO_IPV6 as u32])],
            Case(2, &[(IPV6, Allow)], &NO_OPTION),
        ),
    ],
    &NO_OPTION,
);
const GET: Rule = Case(
    1,
    &[
        (
            SOCKET_LEVEL,
            Case(2, &[(SOCKET_OPTIONS, Allow)], &NO_OPTION),
        ),
        (
            &[In(&[libc::IPPROTO_TCP as u32])],
            Case(2, &[(TCP, Allow), (TCP_FACTS, Allow)], &NO_OPTION),
        ),
        (
            &[In(&[libc::IPPROTO_IP as u32])],
            Case(2, &[(IP, Allow), (IP_MTU, Allow)], &NO_OPTION),
        ),
        (
            &[In(&[libc::IPPROTO_IPV6 as u32])],
            Case(2, &[(IPV6, Allow), (IPV6_MTU, Allow)], &NO_OPTION),
        ),
    ],
    &NO_OPTION,
);

/// Replace the rules of the other lists.
pub const RULES: &[(i64, Rule)] = &[
    (
        libc::SYS_socket,
        Case(0, &[INTERNET_SOCKETS, NETLINK], &Errno(EPERM)),
    ),
    // Goes on to `network` and `landlock`; the listener notes what they refuse.
    (libc::SYS_connect, Rule::Notify),
    (libc::SYS_sendto, later!(3)),
    (libc::SYS_sendmsg, later!(2)),
    (libc::SYS_sendmmsg, later!(3)),
    (libc::SYS_recvmmsg, Allow),
    (libc::SYS_setsockopt, SET),
    (libc::SYS_getsockopt, GET),
];
