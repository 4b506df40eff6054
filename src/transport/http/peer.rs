//! The user at the other end of a connection of this machine, as the kernel says. A connection without an owner differs
//! from one about which the kernel could not be asked.

use crate::base::lock;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{self, PeerCredentials};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, getsockopt, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

/// Length of nlmsghdr (netlink(7)).
const HEAD: usize = 16;
const ERROR: u16 = 2;
/// SOCK_DIAG_BY_FAMILY (sock_diag(7)).
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
/// TCP_ESTABLISHED, and the states in which one end was shut: FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
/// Others are listeners, or connections that are not made yet or over.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];
/// Where `idiag_state`, the two ports, `idiag_uid` and `idiag_inode` stand in inet_diag_msg.
const STATE: usize = HEAD + 1;
const PORTS: usize = HEAD + 4;
const UID: usize = HEAD + 64;
const INODE: usize = HEAD + 68;

/// The user that connected a unix socket.
pub fn unix_peer(stream: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&stream.as_fd(), PeerCredentials)?.uid())
}

/// A way to ask the kernel, which is kept: a host without a free descriptor can ask too.
#[derive(Default)]
pub struct Kernel(Mutex<Option<OwnedFd>>);

impl Kernel {
    /// The owner of the socket that is bound to `theirs` and connected to `ours`, as sock_diag(7) knows it. `None`:
    /// it has no owner. `Err`: the kernel could not be asked.
    pub fn owner(&self, theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
        let mut kept = lock(&self.0);
        let kernel = match kept.take() {
            Some(kernel) => kernel,
            None => opened()?,
        };
        send(kernel.as_raw_fd(), &question(theirs, ours), MsgFlags::empty())?;
        let mut answer = [0; 1024];
        let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        // Not kept where an answer may still come, which would be taken for that to the next question.
        *kept = Some(kernel);
        owner(answer.get(..length).unwrap_or_default(), theirs, ours)
    }
}

fn opened() -> io::Result<OwnedFd> {
    let kernel =
        socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    setsockopt(&kernel, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    Ok(kernel)
}

/// nlmsghdr and inet_diag_req_v2: one socket by both of its addresses.
fn question(theirs: SocketAddr, ours: SocketAddr) -> Vec<u8> {
    let (theirs_ip, ours_ip) = (theirs.ip().to_canonical(), ours.ip().to_canonical());
    let family = if theirs_ip.is_ipv4() { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    let mut body = vec![u8::try_from(family).unwrap_or_default(), 6, 0, 0];
    body.extend(CONNECTED.iter().fold(0u32, |all, state| all | 1 << state).to_ne_bytes());
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

/// The uid in the kernel's answer, if it is about exactly this connection, and a process still holds that socket. Where
/// the client's socket is gone the kernel may answer with a listener on its port.
fn owner(answer: &[u8], theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = answer.get(4..6).map_or(0, |kind| u16::from_ne_bytes([kind[0], kind[1]]));
    if kind == ERROR {
        let errno = Errno::from_raw(number(HEAD).map_or(0, |errno| errno.cast_signed().wrapping_neg()));
        return if errno == Errno::ENOENT { Ok(None) } else { Err(errno.into()) };
    }
    let exact = kind == BY_FAMILY
        && answer.get(STATE).is_some_and(|state| CONNECTED.contains(state))
        && answer.get(PORTS..PORTS + 4) == Some(ports(theirs, ours).as_slice())
        && number(INODE).is_some_and(|inode| inode != 0);
    Ok(number(UID).filter(|_| exact))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_kernel_that_could_not_look_has_not_said_that_nobody_is_there() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let told = |errno: Errno| {
            let mut answer = vec![0; HEAD];
            answer[4..6].copy_from_slice(&ERROR.to_ne_bytes());
            answer.extend((-(errno as i32)).to_ne_bytes());
            owner(&answer, at(1), at(2)).map_err(|why| why.raw_os_error())
        };
        assert_eq!(told(Errno::ENOENT), Ok(None));
        assert_eq!(told(Errno::ENOMEM), Err(Some(Errno::ENOMEM as i32)));
    }

    #[test]
    fn the_kernel_names_the_owner_of_exactly_this_connection() {
        let (me, kernel) = (nix::unistd::geteuid().as_raw(), Kernel::default());
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let ours = listener.local_addr().unwrap();
            let client = TcpStream::connect(ours).unwrap();
            let theirs = client.local_addr().unwrap();
            let owner = |theirs, ours| kernel.owner(theirs, ours).unwrap();
            assert_eq!(owner(theirs, ours), Some(me), "{at}");
            assert_eq!(owner(ours, theirs), None, "it is not accepted yet");
            let _accepted = listener.accept().unwrap();
            assert_eq!(owner(ours, theirs), Some(me));
            let mut other = theirs;
            other.set_port(theirs.port() ^ 1);
            assert_eq!(owner(other, ours), None, "the other end is closed");
            // One that sends no more is still somebody's, until it is closed.
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!((owner(theirs, ours), owner(ours, theirs)), (Some(me), Some(me)), "half closed");
            drop(client);
            assert_eq!(owner(theirs, ours), None, "closed");
            // A listener at the client's address is not the client.
            other = ours;
            other.set_port(1);
            assert_eq!(owner(ours, other), None);
        }
    }
}
