//! Routes: what the namespace of a networked call routes at all (part of the wall `network`).
//!
//! Messages of rtnetlink(7): loopback up, every address local, and rules by which only TCP to and from the
//! granted ports, and DNS to and from the stub, have a route (`ip rule`, ipproto, sport and dport).
//!
//! For a datagram to 0.0.0.0, and for one that names its interface (IP_PKTINFO), the kernel asks no rules. So a call's own
//! UDP sockets can reach one another, as its pipes can. They reach nothing else, because nothing else is there.

use super::{DNS, Problem, STUB, problem};
use crate::base::netlink::Netlink;
use nix::errno::Errno;
use nix::libc;
use std::net::Ipv4Addr;

/// Loopback's number, the first in every namespace.
const LOOPBACK: u32 = 1;
/// For the requests that make something: the kernel acknowledges them.
const ACK: i32 = libc::NLM_F_ACK;
const MAKE: i32 = ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
const FOUR: u8 = libc::AF_INET as u8;
const SIX: u8 = libc::AF_INET6 as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
/// linux/fib_rules.h
const TO_TABLE: u8 = 1;
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const PROTOCOL: u16 = 22;
const FROM_PORTS: u16 = 23;
const TO_PORTS: u16 = 24;

/// Sets up loopback, its addresses, and the rules.
pub fn set(ports: &[u16], six: bool) -> Result<(), Problem> {
    let mut kernel = Netlink::open().map_err(problem("a netlink socket"))?;
    let up = libc::IFF_UP as u32;
    // struct ifinfomsg
    let link = [[0; 4], LOOPBACK.to_ne_bytes(), up.to_ne_bytes(), up.to_ne_bytes()].concat();
    kernel.ask(libc::RTM_NEWLINK, ACK, &link, &[]).map_err(problem("loopback up"))?;
    let stub = STUB.octets();
    // struct ifaddrmsg
    let address = [[FOUR, 32, 0, libc::RT_SCOPE_HOST], LOOPBACK.to_ne_bytes()].concat();
    kernel
        .ask(libc::RTM_NEWADDR, MAKE, &address, &[(libc::IFA_LOCAL, &stub), (libc::IFA_ADDRESS, &stub)])
        .map_err(problem("the stub's address"))?;
    for family in [FOUR, SIX].into_iter().take(if six { 2 } else { 1 }) {
        // struct rtmsg: every address is local.
        let (table, scope) = (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_HOST);
        let route = [family, 0, 0, 0, table, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL, 0, 0, 0, 0];
        let device = LOOPBACK.to_ne_bytes();
        let with = [(libc::RTA_OIF, device.as_slice()), (libc::RTA_PREFSRC, &stub)];
        let with = if family == FOUR { &with[..] } else { &with[..1] };
        kernel.ask(libc::RTM_NEWROUTE, MAKE, &route, with).map_err(problem("the route to loopback"))?;
        // Without the usual rules nothing is routed.
        loop {
            match kernel.ask(libc::RTM_DELRULE, ACK, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]) {
                Ok(_) => {}
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(problem("removing a routing rule (policy routing)")(errno)),
            }
        }
        let rule = problem("a routing rule by ports (policy routing, Linux 4.17)");
        rules(&mut kernel, family, ports).map_err(rule)?;
    }
    Ok(())
}

/// Packets that have a route: of this protocol to a port, and from it.
struct Routed {
    family: u8,
    protocol: u8,
    port: u16,
    /// Only at this address.
    at: Option<Ipv4Addr>,
}

fn rules(kernel: &mut Netlink, family: u8, ports: &[u16]) -> Result<(), Errno> {
    for port in ports {
        rule(kernel, &Routed { family, protocol: TCP, port: *port, at: None })?;
    }
    for protocol in [UDP, TCP].into_iter().filter(|_| family == FOUR) {
        rule(kernel, &Routed { family, protocol, port: DNS, at: Some(STUB) })?;
    }
    Ok(())
}

/// Two rules: to the port, and from it.
fn rule(kernel: &mut Netlink, routed: &Routed) -> Result<(), Errno> {
    let port = routed.port.to_ne_bytes();
    let (range, address) = ([port, port].concat(), routed.at.map(|at| at.octets()));
    let long = if address.is_some() { 32 } else { 0 };
    let table = libc::RT_TABLE_LOCAL;
    for (ports, side, to, from) in [(TO_PORTS, DESTINATION, long, 0), (FROM_PORTS, SOURCE, 0, long)] {
        // struct fib_rule_hdr
        let rule = [routed.family, to, from, 0, table, 0, 0, TO_TABLE, 0, 0, 0, 0];
        let mut with: Vec<(u16, &[u8])> = vec![(PROTOCOL, std::slice::from_ref(&routed.protocol)), (ports, &range)];
        with.extend(address.as_ref().map(|address| (side, address.as_slice())));
        kernel.ask(libc::RTM_NEWRULE, MAKE, &rule, &with)?;
    }
    Ok(())
}
