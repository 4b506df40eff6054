//! Where this machine's kernel would send packets for an address.

use crate::base::netlink::Netlink;
use nix::errno::Errno;
use nix::libc;
use std::net::IpAddr;

/// Length of `rtmsg`, and where the type of the route stands in it, bytes.
const ROUTE: usize = 12;
const KIND: usize = 7;

/// Why packets for this address would not leave for one host elsewhere; `None`: they would, or there is no route at
/// all.
pub fn inward(address: IpAddr) -> Option<&'static str> {
    match kind(address) {
        Ok(libc::RTN_LOCAL) => Some("an address of this machine"),
        Ok(libc::RTN_BROADCAST) => Some("a broadcast address"),
        Ok(libc::RTN_MULTICAST) => Some("a multicast address"),
        Ok(libc::RTN_ANYCAST) => Some("an anycast address of this network"),
        Ok(_) | Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH) => None,
        Err(_) => Some("an address whose route is not known"),
    }
}

/// The type of the route.
fn kind(address: IpAddr) -> Result<u8, Errno> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    // Family and length of the destination; all else is the kernel's to say.
    let mut body = [0; ROUTE];
    (body[0], body[1]) = (family as u8, bytes.len() as u8 * 8);
    let answer = Netlink::open()?.ask(libc::RTM_GETROUTE, 0, &body, &[(libc::RTA_DST, &bytes)])?;
    answer.get(KIND).copied().ok_or(Errno::EBADMSG)
}
