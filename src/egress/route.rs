//! Where this machine's kernel would send packets for an address (rtnetlink(7)).

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// Length of `nlmsghdr` and `rtmsg`, and where the type of a route stands in an answer, bytes.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const KIND: usize = HEADER + 7;
/// Longest answer, bytes.
const ANSWER: usize = 4096;

/// Why packets for this address would not leave for one host elsewhere; `None`: they would, or there is no route at all.
pub fn inward(address: IpAddr) -> Option<&'static str> {
    match kind(address) {
        Ok(libc::RTN_LOCAL) => Some("an address of this machine"),
        Ok(libc::RTN_BROADCAST) => Some("a broadcast address"),
        Ok(libc::RTN_MULTICAST) => Some("a multicast address"),
        Ok(libc::RTN_ANYCAST) => Some("an anycast address of this network"),
        Ok(_) => None,
        Err(_) => Some("an address whose route is not known"),
    }
}

/// The type of the route; `RTN_UNSPEC` where there is none.
fn kind(address: IpAddr) -> nix::Result<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let attribute = [(4 + bytes.len()) as u16, libc::RTA_DST].map(u16::to_ne_bytes).concat();
    let length = HEADER + ROUTE + attribute.len() + bytes.len();
    let mut request = (length as u32).to_ne_bytes().to_vec();
    request.extend([libc::RTM_GETROUTE, libc::NLM_F_REQUEST as u16].map(u16::to_ne_bytes).concat());
    request.extend([0; 8]);
    // Family and length of the destination; all else is the kernel's to say.
    request.extend([family as u8, bytes.len() as u8 * 8]);
    request.extend([0; ROUTE - 2]);
    request.extend(attribute.into_iter().chain(bytes));
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    send(netlink.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut answer = [0; ANSWER];
    let read = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let answer = &answer[..read];
    match u16::from_ne_bytes([answer[4], answer[5]]) {
        libc::RTM_NEWROUTE if answer.len() > KIND => Ok(answer[KIND]),
        kind if i32::from(kind) == libc::NLMSG_ERROR && answer.len() >= HEADER + 4 => {
            let [a, b, c, d] = [answer[HEADER], answer[HEADER + 1], answer[HEADER + 2], answer[HEADER + 3]];
            match Errno::from_raw(-i32::from_ne_bytes([a, b, c, d])) {
                Errno::ENETUNREACH | Errno::EHOSTUNREACH => Ok(libc::RTN_UNSPEC),
                errno => Err(errno),
            }
        }
        _ => Err(Errno::EBADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_addresses_are_its_own() {
        for own in ["127.0.0.1", "127.200.0.1", "::1"] {
            assert_eq!(inward(own.parse().expect("an address")), Some("an address of this machine"), "{own}");
        }
    }
}
