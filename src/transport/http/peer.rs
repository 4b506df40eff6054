//! Peers: the user at the other end of a connection of this machine.
//!
//! For: connections without a token. In: a unix socket, or the two addresses of a TCP connection over loopback. Out: the
//! uid that owns the other end. Never: guesses: where the kernel names nobody, the connection is refused.

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, getsockopt, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

/// Length of nlmsghdr (netlink(7)).
const HEAD: usize = 16;
/// SOCK_DIAG_BY_FAMILY (sock_diag(7)).
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
/// TCP_ESTABLISHED: other states are listeners, or sockets that nobody owns any more.
const ESTABLISHED: u8 = 1;
/// Where `idiag_state`, the two ports and `idiag_uid` stand in inet_diag_msg.
const STATE: usize = HEAD + 1;
const PORTS: usize = HEAD + 4;
const UID: usize = HEAD + 64;

/// The user that connected a unix socket.
pub fn of_unix(stream: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&stream.as_fd(), PeerCredentials)?.uid())
}

/// The owner of the socket that is bound to `theirs` and connected to `ours`, as sock_diag(7) knows it.
pub fn of_loopback(theirs: SocketAddr, ours: SocketAddr) -> io::Result<u32> {
    let kernel =
        socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    setsockopt(&kernel, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    send(kernel.as_raw_fd(), &question(theirs, ours), MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    owner(answer.get(..length).unwrap_or_default(), theirs, ours).ok_or_else(|| Errno::ENOENT.into())
}

/// nlmsghdr and inet_diag_req_v2: one socket by both of its addresses.
fn question(theirs: SocketAddr, ours: SocketAddr) -> Vec<u8> {
    let (theirs_ip, ours_ip) = (theirs.ip().to_canonical(), ours.ip().to_canonical());
    let family = if theirs_ip.is_ipv4() { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    let mut body = vec![u8::try_from(family).unwrap_or_default(), 6, 0, 0];
    body.extend((1u32 << ESTABLISHED).to_ne_bytes());
    body.extend(ports(theirs, ours));
    for ip in [theirs_ip, ours_ip] {
        let mut place = [0; 16];
        match ip {
            IpAddr::V4(ip) => place[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => place.copy_from_slice(&ip.octets()),
        }
        body.extend(place);
    }
    // Any interface, any cookie.
    body.extend(0u32.to_ne_bytes());
    body.extend([0xff; 8]);
    let length = u32::try_from(HEAD + body.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn ports(theirs: SocketAddr, ours: SocketAddr) -> [u8; 4] {
    let ([a, b], [c, d]) = (theirs.port().to_be_bytes(), ours.port().to_be_bytes());
    [a, b, c, d]
}

/// The uid in the kernel's answer, if it is about exactly this connection. Where the client's socket is gone the kernel
/// may answer with a listener on its port.
fn owner(answer: &[u8], theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let exact = kind == BY_FAMILY
        && *answer.get(STATE)? == ESTABLISHED
        && answer.get(PORTS..PORTS + 4)? == ports(theirs, ours).as_slice();
    exact.then(|| answer.get(UID..UID + 4)?.try_into().ok().map(u32::from_ne_bytes))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_names_the_owner_of_exactly_this_connection() {
        let me = nix::unistd::geteuid().as_raw();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let ours = listener.local_addr().unwrap();
            let client = TcpStream::connect(ours).unwrap();
            let theirs = client.local_addr().unwrap();
            assert_eq!(of_loopback(theirs, ours).unwrap(), me, "{at}");
            let mut other = theirs;
            other.set_port(theirs.port() ^ 1);
            assert!(of_loopback(other, ours).is_err(), "nobody is there");
            // A listener at the client's address is not the client.
            drop(client);
            let mut nobody = ours;
            nobody.set_port(1);
            assert!(of_loopback(ours, nobody).is_err());
        }
    }
}
