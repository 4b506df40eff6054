//! Requests to the kernel about links, addresses, routes and sockets (netlink(7), rtnetlink(7),
//! sock_diag(7)).

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::{AsRawFd, OwnedFd};

/// Length of `nlmsghdr`, bytes.
const HEADER: usize = 16;
/// Longest answer, bytes.
const ANSWER: usize = 4096;

pub struct Netlink {
    socket: OwnedFd,
    sent: u32,
}

impl Netlink {
    pub fn open(protocol: SockProtocol) -> Result<Netlink, Errno> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
        Ok(Netlink { socket, sent: 0 })
    }

    /// Sends one request, and waits for its answer: the body, which is empty where the kernel only
    /// acknowledges.
    pub fn ask(
        &mut self,
        kind: u16,
        flags: i32,
        body: &[u8],
        attributes: &[(u16, &[u8])],
    ) -> Result<Vec<u8>, Errno> {
        self.sent += 1;
        let mut message = vec![0; 4];
        message.extend(kind.to_ne_bytes());
        message.extend(((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
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
        let mut answer = [0; ANSWER];
        let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        // struct nlmsghdr; of an error, struct nlmsgerr, which begins with its number: 0 for none.
        let word = |at: usize| {
            answer[..length]
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok())
        };
        let kind =
            word(4).map(|[low, high, ..]: [u8; 4]| i32::from(u16::from_ne_bytes([low, high])));
        if word(8) != Some(self.sent.to_ne_bytes()) {
            return Err(Errno::EBADMSG);
        }
        match (kind, word(HEADER).map(i32::from_ne_bytes)) {
            (Some(libc::NLMSG_ERROR), Some(0)) => Ok(Vec::new()),
            (Some(libc::NLMSG_ERROR), Some(errno)) => Err(Errno::from_raw(-errno)),
            (Some(_), Some(_)) => Ok(answer[HEADER..length].to_vec()),
            _ => Err(Errno::EBADMSG),
        }
    }
}
