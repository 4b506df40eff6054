//! Local: what the filter also lets through if a tool may have sockets of its own (part of the layer
//! `seccomp`), beside what `networked` does.
//!
//! Servers on loopback, and sockets with names. What they reach is decided elsewhere: the network
//! namespace has nothing but the call and its relay, Landlock keeps abstract names within the call
//! and socket files within scratch, and the view shows no file that somebody else listens at.

use super::bpf::{EPERM, Rule, Test};
use super::networked;
use Rule::{Allow, Case, Errno};
use Test::In;
use nix::libc;

/// Protocol 0 is the only one of these sockets.
const NAMED: (&[Test], Rule) = (
    &[In(&[libc::AF_UNIX as u32])],
    Case(2, &[(&[In(&[0])], Allow)], &Errno(EPERM)),
);

/// Replace the rules of the other lists.
pub const RULES: &[(i64, Rule)] = &[
    (
        libc::SYS_socket,
        Case(
            0,
            &[NAMED, networked::INTERNET_SOCKETS, networked::NETLINK],
            &Errno(EPERM),
        ),
    ),
    (
        libc::SYS_socketpair,
        Case(0, &[(&[In(&[libc::AF_UNIX as u32])], Allow)], &Errno(EPERM)),
    ),
    (libc::SYS_bind, Allow),
    (libc::SYS_listen, Allow),
    (libc::SYS_accept, Allow),
];
