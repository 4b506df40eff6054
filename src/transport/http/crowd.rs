//! The open connections, and which of them is closed to make room for one more.
//!
//! When all are taken, a connection that has not sent a whole request is closed: the oldest of the owner with the most
//! of those. One owner has at most its share, so that long requests leave room for others.

use crate::base::lock;
use crate::base::semaphore::{self, Claim};
use crate::base::shares::{IN_USE, Shares};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A connection's owners, from the widest to the narrowest: a user of this machine, a principal, an address, or of IPv6
/// the three networks that are given to one customer.
type ConnectionOwner = Vec<String>;

#[derive(Debug)]
pub struct ConnectionLimiter {
    most: usize,
    /// The open connections, and the last id. Until its request is whole a connection may be closed.
    open: Mutex<(Shares<u64, DropGuard>, u64)>,
}

/// A connection's entry, until it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    crowd: Arc<ConnectionLimiter>,
    id: u64,
    /// Cancelled once the connection must go.
    pub close: CancellationToken,
}

impl ConnectionLimiter {
    pub fn new(most: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter { most, open: Mutex::default() })
    }

    /// `None`: all places are taken, and nothing can be closed for it.
    pub fn enter(self: &Arc<ConnectionLimiter>, owner: ConnectionOwner) -> Option<ConnectionSlot> {
        let (mut open, close) = (lock(&self.open), CancellationToken::new());
        open.1 += 1;
        let (id, guard) = (open.1, close.clone().drop_guard());
        let fits = open.0.put(id, self.charge(owner), Duration::ZERO, guard);
        fits.then(|| ConnectionSlot { crowd: self.clone(), id, close })
    }

    /// Three quarters of all for a user, a principal, an address or a /48, five eighths for a /56, half for a /64.
    fn charge(&self, owner: ConnectionOwner) -> (Claim, usize) {
        let shares = owner.into_iter().zip((1..7).rev()).map(|(name, eighths)| (name, self.most * eighths / 8));
        (semaphore::claim(self.most, shares), 1)
    }
}

impl ConnectionSlot {
    /// Sets whether a whole request was received. False: a body is still to come.
    pub fn set_whole(&self, whole: bool) {
        lock(&self.crowd.open).0.keep(&self.id, if whole { IN_USE } else { Duration::ZERO });
    }

    /// Charges the connection to its principal. False: the principal has its whole share already.
    pub fn charge_to(&self, principal: &str) -> bool {
        let open = &mut lock(&self.crowd.open).0;
        open.charge(&self.id, self.crowd.charge(vec![format!("principal {principal}")]))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock(&self.crowd.open).0.remove(&self.id);
    }
}

/// The owner of a connection from an address.
pub fn address_owner(ip: IpAddr) -> ConnectionOwner {
    match ip.to_canonical() {
        ip if ip.is_loopback() => vec!["loopback".to_owned()],
        IpAddr::V4(ip) => vec![ip.to_string()],
        IpAddr::V6(ip) => {
            let network = |bits: u32| format!("{:x}/{bits}", ip.to_bits() >> (128 - bits));
            [48, 56, 64].map(network).to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many connections from one network each enter; how many of them stay open.
    fn stay(crowd: &Arc<ConnectionLimiter>, addresses: impl Iterator<Item = String>) -> (Vec<ConnectionSlot>, usize) {
        let enter = |address: String| crowd.enter(address_owner(address.parse().unwrap())).expect("an own one goes");
        let seats: Vec<ConnectionSlot> = addresses.map(enter).collect();
        let open = seats.iter().filter(|seat| !seat.close.is_cancelled()).count();
        (seats, open)
    }

    #[test]
    fn a_customer_has_one_share_whatever_networks_it_uses() {
        let crowd = ConnectionLimiter::new(16);
        let (others, _) = stay(&crowd, (0..4).map(|_| "2001:db8:2:1::1".to_owned()));
        let (seats, open) = stay(&crowd, (0..30).map(|n| format!("2001:db8:1:{n:x}00::1")));
        assert_eq!(open, 12, "three quarters for a /48, and the oldest of its own goes");
        assert!(seats[0].close.is_cancelled() && others.iter().all(|seat| !seat.close.is_cancelled()));
        seats.iter().for_each(|seat| seat.set_whole(true));
        let enter = |address: &str| crowd.enter(address_owner(address.parse().unwrap()));
        assert!(enter("2001:db8:1:ff00::1").is_none(), "requests that run are not cut off");
        assert!(enter("2001:db8:3::1").is_some());
        let (_, open) = stay(&ConnectionLimiter::new(16), (0..12).map(|_| "2001:db8:1:1::1".to_owned()));
        assert_eq!(open, 8, "half for a /64");
    }
}
