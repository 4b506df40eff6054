//! The local user at the other end of a connection, from the kernel. `Ok(None)`: the connection has
//! no owner. `Err`: the kernel could not be asked.

use crate::base::lock;
use crate::base::netlink::Netlink;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{SockProtocol, getsockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Mutex;

/// SOCK_DIAG_BY_FAMILY (sock_diag(7)).
const BY_FAMILY: u16 = 20;
/// TCP_ESTABLISHED, and the states in which one end was shut: FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT,
/// LAST_ACK, CLOSING. Other states are listening, connecting or closed.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];
/// Offsets of `idiag_state`, the two ports, `idiag_uid` and `idiag_inode` in inet_diag_msg.
const STATE: usize = 1;
const PORTS: usize = 4;
const UID: usize = 64;
const INODE: usize = 68;

/// The user that connected a unix socket.
pub fn unix_peer(stream: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&stream.as_fd(), PeerCredentials)?.uid())
}

/// A netlink socket that stays open, so that lookups work without a free descriptor.
#[derive(Default)]
pub struct SocketDiag(Mutex<Option<Netlink>>);

impl SocketDiag {
    /// The owner of the socket that is bound to `theirs` and connected to `ours`, as sock_diag(7)
    /// knows it. `None`: it has no owner. `Err`: the kernel could not be asked.
    pub fn owner(&self, theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
        let mut open = lock(&self.0);
        let mut kernel = match open.take() {
            Some(kernel) => kernel,
            None => Netlink::open(SockProtocol::NetlinkSockDiag)?,
        };
        let owner = owner(
            kernel.ask(BY_FAMILY, 0, &request_body(theirs, ours), &[]),
            theirs,
            ours,
        )?;
        // Not kept after an error: a late answer would be taken for the answer to the next
        // question.
        *open = Some(kernel);
        Ok(owner)
    }
}

/// inet_diag_req_v2: one socket by both of its addresses.
fn request_body(theirs: SocketAddr, ours: SocketAddr) -> Vec<u8> {
    let theirs_ip = theirs.ip().to_canonical();
    let ours_ip = ours.ip().to_canonical();
    let family = if theirs_ip.is_ipv4() {
        nix::libc::AF_INET
    } else {
        nix::libc::AF_INET6
    };
    let mut body = vec![u8::try_from(family).unwrap_or_default(), 6, 0, 0];
    body.extend(
        CONNECTED
            .iter()
            .fold(0u32, |all, state| all | 1 << state)
            .to_ne_bytes(),
    );
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
    body
}

fn ports(theirs: SocketAddr, ours: SocketAddr) -> [u8; 4] {
    let ([a, b], [c, d]) = (theirs.port().to_be_bytes(), ours.port().to_be_bytes());
    [a, b, c, d]
}

/// The uid in the kernel's answer, if it is about exactly this connection, and a process still
/// holds that socket. Where the client's socket is gone the kernel may answer with a listener on
/// its port.
fn owner(
    answer: Result<Vec<u8>, Errno>,
    theirs: SocketAddr,
    ours: SocketAddr,
) -> io::Result<Option<u32>> {
    let answer = match answer {
        Err(Errno::ENOENT) => return Ok(None),
        answer => answer?,
    };
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let exact = answer
        .get(STATE)
        .is_some_and(|state| CONNECTED.contains(state))
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
        let lookup = |errno| owner(Err(errno), at(1), at(2)).map_err(|why| why.raw_os_error());
        assert_eq!(lookup(Errno::ENOENT), Ok(None));
        assert_eq!(lookup(Errno::ENOMEM), Err(Some(Errno::ENOMEM as i32)));
    }

    #[test]
    fn the_kernel_names_the_owner_of_exactly_this_connection() {
        let (me, kernel) = (nix::unistd::geteuid().as_raw(), SocketDiag::default());
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
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
            // A half-closed connection has an owner until it is closed.
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(
                (owner(theirs, ours), owner(ours, theirs)),
                (Some(me), Some(me)),
                "half closed"
            );
            drop(client);
            assert_eq!(owner(theirs, ours), None, "closed");
            // A listener at the client's address is not the client.
            other = ours;
            other.set_port(1);
            assert_eq!(owner(ours, other), None);
        }
    }
}
