//! Layer: network. No packet leaves the call and none comes in.
//!
//! One empty network namespace for each launcher, made once because making one is the most
//! expensive step of all; its loopback stays down. A launcher's calls run one after another, and
//! seccomp allows only connected unix socket pairs.
//!
//! Where hosts are granted, the namespace still has nothing but loopback. There every address is
//! local, so whatever address the tool connects to, it reaches our listening socket of that port.
//! Those sockets go to the host, which gives them to a relay. Rules (`ip rule`: ipproto, sport,
//! dport) leave a route only to TCP at the granted ports, and to DNS at the stub. For a datagram to
//! 0.0.0.0, and for one that names its interface (IP_PKTINFO), the kernel applies no rules. So a
//! call's own UDP sockets can reach one another, as its pipes can. They reach nothing else: nothing
//! else is there.
//!
//! With cgroup v1 the buffers of TCP connections have a limit of their own, a quarter of
//! `memoryBytes` and a page a socket, at which sending waits; v2 charges them as memory. A kernel
//! that does not (`cgroup.memory=nosocket`) counts as having no groups. Charged to no call, or
//! under sampling not seen: what 256 connections that wait to be accepted received, and what closed
//! connections have still to send (64 KiB each).

use crate::protocol::Problem;
use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6,
    SockaddrLike, bind, listen, setsockopt, socket, sockopt,
};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use toolhost_base::netlink::Netlink;
use toolhost_base::quantity::{KIB, MAX_PORTS};

/// The address of the stub, the tool's name server.
pub const STUB: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The stub's port, for UDP and TCP.
pub const DNS: u16 = 53;
/// Most bytes of either buffer of a TCP socket here.
const BUFFER: u64 = 64 * KIB;
/// Most bytes of a connection, both ends: four buffers, one message more, the sockets themselves.
pub const CONNECTION: u64 = 4 * BUFFER + BUFFER / 2;
/// Most connections that are not accepted yet, of all ports together. What they received is not
/// charged.
const LISTEN_BACKLOG: usize = 256;

/// What a call's connections can reach.
#[derive(Clone, Debug)]
pub struct Reach {
    pub ports: Vec<u16>,
    /// Its own servers.
    pub local: bool,
}

impl Reach {
    /// Whether a connection to this address gets as far as the relay, the stub or the call itself.
    pub fn holds(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.ports.contains(&address.port())
            || address.port() == DNS && ip == STUB
            || self.local && ip.is_loopback()
    }
}

pub fn raise() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWNET)
}

fn problem<E: Into<std::io::Error>>(what: impl ToString) -> impl FnOnce(E) -> Problem {
    Problem::from_layer("network", what)
}

/// Opens the namespace as far as is granted. `ports`: towards the relay. `local`: sockets on
/// loopback reach one another. Returns the stub's sockets for UDP and TCP, then a listening one for
/// each port.
pub fn open(ports: Option<&[u16]>, local: bool) -> Result<Vec<OwnedFd>, Problem> {
    let made = ports.map_or(Ok(Vec::new()), |ports| open_ports(ports, local))?;
    if ports.is_none() && local {
        settings(&[], has_ipv6()?)?;
        loopback_up(&mut netlink()?)?;
    }
    Ok(made)
}

fn has_ipv6() -> Result<bool, Problem> {
    match socket(
        AddressFamily::Inet6,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    ) {
        Ok(_) => Ok(true),
        Err(Errno::EAFNOSUPPORT) => Ok(false),
        Err(errno) => Err(problem("an IPv6 socket")(errno)),
    }
}

fn open_ports(ports: &[u16], local: bool) -> Result<Vec<OwnedFd>, Problem> {
    // Port 53 is the stub's, and port 0 would mean any port.
    if ports.len() > MAX_PORTS || ports.contains(&DNS) || ports.contains(&0) {
        return Err(problem(format!(
            "ports {ports:?}: at most {MAX_PORTS}, and neither 0 nor {DNS}"
        ))(Errno::EINVAL));
    }
    let six = has_ipv6()?;
    settings(ports, six)?;
    set_routes(ports, six)?;
    if local {
        set_local_routes(six)?;
    }
    let stub = SockaddrIn::from(SocketAddrV4::new(STUB, DNS));
    let mut sockets = vec![
        bound(AddressFamily::Inet, SockType::Datagram, &stub)
            .map_err(problem("the stub's UDP socket"))?,
        listening(AddressFamily::Inet, &stub, 8).map_err(problem("the stub's TCP socket"))?,
    ];
    let waiting = (LISTEN_BACKLOG / ports.len().max(2)) as i32;
    for port in ports {
        let four = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, *port));
        let both = SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, *port, 0, 0));
        let made = if six {
            listening(AddressFamily::Inet6, &both, waiting)
        } else {
            listening(AddressFamily::Inet, &four, waiting)
        };
        sockets.push(made.map_err(problem(format!("listening at port {port}")))?);
    }
    Ok(sockets)
}

/// Sets the namespace's sysctls: small buffers, and no remains of closed connections. No connection
/// carries data in its first packet, which Landlock would not see. No socket gets the port of a
/// listener as its own.
fn settings(ports: &[u16], six: bool) -> Result<(), Problem> {
    let buffer = format!("4096 {BUFFER} {BUFFER}");
    let listed = ports
        .iter()
        .map(u16::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let mut all = vec![
        ("ipv4/tcp_rmem", buffer.as_str()),
        ("ipv4/tcp_wmem", &buffer),
        // No connection leaves an entry that the next call could read in /proc/net.
        ("ipv4/tcp_max_tw_buckets", "0"),
        ("ipv4/tcp_fastopen", "0"),
        // Otherwise a connection that found no room could complete later, during another call.
        ("ipv4/tcp_abort_on_overflow", "1"),
        ("ipv4/ip_local_reserved_ports", &listed),
    ];
    if six {
        // Otherwise a kernel booted with IPv6 disabled assigns no IPv6 address here.
        all.push(("ipv6/conf/all/disable_ipv6", "0"));
    }
    for (name, value) in all {
        fs::write(Path::new("/proc/sys/net").join(name), value)
            .map_err(problem(format!("setting net/{name}")))?;
    }
    Ok(())
}

fn bound(
    family: AddressFamily,
    kind: SockType,
    address: &dyn SockaddrLike,
) -> Result<OwnedFd, Errno> {
    let made = socket(
        family,
        kind,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    if family == AddressFamily::Inet6 {
        setsockopt(&made, sockopt::Ipv6V6Only, &false)?;
    }
    bind(made.as_raw_fd(), address)?;
    Ok(made)
}

/// Makes a listening socket. Accepted sockets inherit TCP_NODELAY.
fn listening(
    family: AddressFamily,
    address: &dyn SockaddrLike,
    waiting: i32,
) -> Result<OwnedFd, Errno> {
    let made = bound(family, SockType::Stream, address)?;
    setsockopt(&made, sockopt::TcpNoDelay, &true)?;
    listen(&made, Backlog::new(waiting)?)?;
    Ok(made)
}

/// The interface index of loopback in every namespace.
const LOOPBACK: u32 = 1;
/// Flags of requests that make something; the kernel acknowledges them.
const ACK: i32 = libc::NLM_F_ACK;
const MAKE: i32 = ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
const IPV4: u8 = libc::AF_INET as u8;
const IPV6: u8 = libc::AF_INET6 as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
/// linux/fib_rules.h
const TO_TABLE: u8 = 1;
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const PROTOCOL: u16 = 22;
const FROM_PORTS: u16 = 23;
const TO_PORTS: u16 = 24;

fn netlink() -> Result<Netlink, Problem> {
    Netlink::open(SockProtocol::NetlinkRoute).map_err(problem("a netlink socket"))
}

fn loopback_up(kernel: &mut Netlink) -> Result<(), Problem> {
    let up = libc::IFF_UP as u32;
    // struct ifinfomsg
    let link = [
        [0; 4],
        LOOPBACK.to_ne_bytes(),
        up.to_ne_bytes(),
        up.to_ne_bytes(),
    ]
    .concat();
    kernel
        .ask(libc::RTM_NEWLINK, ACK, &link, &[])
        .map_err(problem("loopback up"))?;
    Ok(())
}

/// Sets up loopback, its addresses, and the rules.
fn set_routes(ports: &[u16], six: bool) -> Result<(), Problem> {
    let mut kernel = netlink()?;
    loopback_up(&mut kernel)?;
    let stub = STUB.octets();
    // struct ifaddrmsg
    let address = [[IPV4, 32, 0, libc::RT_SCOPE_HOST], LOOPBACK.to_ne_bytes()].concat();
    kernel
        .ask(
            libc::RTM_NEWADDR,
            MAKE,
            &address,
            &[(libc::IFA_LOCAL, &stub), (libc::IFA_ADDRESS, &stub)],
        )
        .map_err(problem("the stub's address"))?;
    for family in [IPV4, IPV6].into_iter().take(if six { 2 } else { 1 }) {
        // struct rtmsg: every address is local.
        let table = libc::RT_TABLE_LOCAL;
        let scope = libc::RT_SCOPE_HOST;
        let route = [
            family,
            0,
            0,
            0,
            table,
            libc::RTPROT_STATIC,
            scope,
            libc::RTN_LOCAL,
            0,
            0,
            0,
            0,
        ];
        let device = LOOPBACK.to_ne_bytes();
        let with = [
            (libc::RTA_OIF, device.as_slice()),
            (libc::RTA_PREFSRC, &stub),
        ];
        let with = if family == IPV4 {
            &with[..]
        } else {
            &with[..1]
        };
        kernel
            .ask(libc::RTM_NEWROUTE, MAKE, &route, with)
            .map_err(problem("the route to loopback"))?;
        // Without the usual rules nothing is routed.
        loop {
            match kernel.ask(
                libc::RTM_DELRULE,
                ACK,
                &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[],
            ) {
                Ok(_) => {}
                Err(Errno::ENOENT) => break,
                Err(errno) => {
                    return Err(problem("removing a routing rule (policy routing)")(errno));
                }
            }
        }
        let rule = problem("a routing rule by ports (policy routing, Linux 4.17)");
        rules(&mut kernel, family, ports).map_err(rule)?;
    }
    Ok(())
}

/// Packets that get a route: of this protocol, to a port or from it.
struct Routed {
    family: u8,
    protocol: u8,
    port: u16,
    /// Only at this address.
    at: Option<Ipv4Addr>,
}

fn rules(kernel: &mut Netlink, family: u8, ports: &[u16]) -> Result<(), Errno> {
    for port in ports {
        rule(
            kernel,
            &Routed {
                family,
                protocol: TCP,
                port: *port,
                at: None,
            },
        )?;
    }
    for protocol in [UDP, TCP].into_iter().filter(|_| family == IPV4) {
        rule(
            kernel,
            &Routed {
                family,
                protocol,
                port: DNS,
                at: Some(STUB),
            },
        )?;
    }
    Ok(())
}

/// Packets to the addresses of loopback get a route, whatever their port.
fn set_local_routes(six: bool) -> Result<(), Problem> {
    let mut kernel = netlink()?;
    let four = Ipv4Addr::LOCALHOST.octets();
    let sixteen = Ipv6Addr::LOCALHOST.octets();
    let all: [(u8, u8, &[u8]); 2] = [(IPV4, 8, &four), (IPV6, 128, &sixteen)];
    for (family, long, address) in all.into_iter().take(if six { 2 } else { 1 }) {
        let table = libc::RT_TABLE_LOCAL;
        // struct fib_rule_hdr
        let rule = [family, long, 0, 0, table, 0, 0, TO_TABLE, 0, 0, 0, 0];
        kernel
            .ask(libc::RTM_NEWRULE, MAKE, &rule, &[(DESTINATION, address)])
            .map_err(problem("a routing rule for loopback"))?;
    }
    Ok(())
}

/// Two rules: to the port, and from it.
fn rule(kernel: &mut Netlink, routed: &Routed) -> Result<(), Errno> {
    let port = routed.port.to_ne_bytes();
    let range = [port, port].concat();
    let address = routed.at.map(|at| at.octets());
    let long = if address.is_some() { 32 } else { 0 };
    let table = libc::RT_TABLE_LOCAL;
    for (ports, side, to, from) in [
        (TO_PORTS, DESTINATION, long, 0),
        (FROM_PORTS, SOURCE, 0, long),
    ] {
        // struct fib_rule_hdr
        let rule = [
            routed.family,
            to,
            from,
            0,
            table,
            0,
            0,
            TO_TABLE,
            0,
            0,
            0,
            0,
        ];
        let mut with: Vec<(u16, &[u8])> = vec![
            (PROTOCOL, std::slice::from_ref(&routed.protocol)),
            (ports, &range),
        ];
        with.extend(address.as_ref().map(|address| (side, address.as_slice())));
        kernel.ask(libc::RTM_NEWRULE, MAKE, &rule, &with)?;
    }
    Ok(())
}
