//! Routes: what the namespace of a networked call routes at all (part of the wall `network`).
//!
//! Messages of rtnetlink(7), made by hand: loopback up, every address local, and rules by which only TCP to and from the
//! granted ports, and DNS to and from the stub, have a route (`ip rule`, ipproto, sport and dport).
//!
//! For a datagram to 0.0.0.0, and for one that names its interface (IP_PKTINFO), the kernel asks no rules. So a call's own
//! UDP sockets can reach one another, as its pipes can. They reach nothing else, because nothing else is there.

use super::{DNS, Problem, STUB, problem};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Loopback's number, the first in every namespace.
const LOOPBACK: u32 = 1;
const MAKE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
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
    let mut kernel = Kernel::open().map_err(problem("a netlink socket"))?;
    let up = libc::IFF_UP as u32;
    // struct ifinfomsg
    let link = [[0; 4], LOOPBACK.to_ne_bytes(), up.to_ne_bytes(), up.to_ne_bytes()].concat();
    kernel.ask(libc::RTM_NEWLINK, 0, &link, &[]).map_err(problem("loopback up"))?;
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
            match kernel.ask(libc::RTM_DELRULE, 0, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]) {
                Ok(()) => {}
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(problem("removing a routing rule (policy routing)")(errno)),
            }
        }
        let rule = problem("a routing rule by ports (policy routing, Linux 4.17)");
        kernel.rules(family, ports).map_err(rule)?;
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

struct Kernel {
    socket: OwnedFd,
    sent: u32,
}

impl Kernel {
    fn open() -> Result<Kernel, Errno> {
        let route = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
        Ok(Kernel { socket, sent: 0 })
    }

    /// Sends one request, and waits for its acknowledgement (netlink(7)).
    fn ask(&mut self, kind: u16, flags: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> Result<(), Errno> {
        self.sent += 1;
        let mut message = vec![0; 4];
        message.extend(kind.to_ne_bytes());
        message.extend((flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
        message.extend([self.sent.to_ne_bytes(), [0; 4]].as_flattened());
        message.extend(body);
        for (kind, value) in attributes {
            message.extend((4 + value.len() as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(*value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&length);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        let mut answer = [0; 1024];
        let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        // struct nlmsghdr, then struct nlmsgerr, which begins with the error: 0 for none.
        let word = |at: usize| answer[..length].get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let kind = word(4).map(|[low, high, ..]: [u8; 4]| u16::from_ne_bytes([low, high]));
        match (kind.map(i32::from), word(8) == Some(self.sent.to_ne_bytes()), word(16).map(i32::from_ne_bytes)) {
            (Some(libc::NLMSG_ERROR), true, Some(0)) => Ok(()),
            (Some(libc::NLMSG_ERROR), true, Some(errno)) => Err(Errno::from_raw(-errno)),
            _ => Err(Errno::EBADMSG),
        }
    }

    fn rules(&mut self, family: u8, ports: &[u16]) -> Result<(), Errno> {
        for port in ports {
            self.rule(&Routed { family, protocol: TCP, port: *port, at: None })?;
        }
        for protocol in [UDP, TCP].into_iter().filter(|_| family == FOUR) {
            self.rule(&Routed { family, protocol, port: DNS, at: Some(STUB) })?;
        }
        Ok(())
    }

    /// Two rules: to the port, and from it.
    fn rule(&mut self, routed: &Routed) -> Result<(), Errno> {
        let port = routed.port.to_ne_bytes();
        let (range, address) = ([port, port].concat(), routed.at.map(|at| at.octets()));
        let long = if address.is_some() { 32 } else { 0 };
        let table = libc::RT_TABLE_LOCAL;
        for (ports, side, to, from) in [(TO_PORTS, DESTINATION, long, 0), (FROM_PORTS, SOURCE, 0, long)] {
            // struct fib_rule_hdr
            let rule = [routed.family, to, from, 0, table, 0, 0, TO_TABLE, 0, 0, 0, 0];
            let mut with: Vec<(u16, &[u8])> = vec![(PROTOCOL, std::slice::from_ref(&routed.protocol)), (ports, &range)];
            with.extend(address.as_ref().map(|address| (side, address.as_slice())));
            self.ask(libc::RTM_NEWRULE, MAKE, &rule, &with)?;
        }
        Ok(())
    }
}
