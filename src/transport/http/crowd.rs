//! The connections that are open, and which of them goes where there is no room for one more.
//!
//! When all are taken, the oldest connection that has not sent a whole request is closed, of whoever has most of those.
//! One owner has its share at most, so that requests that take long leave room for others.

use crate::base::lock;
use crate::base::shares::{IN_USE, Shares};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Whose a connection is, from the widest to the narrowest: a user of this machine, a principal, an address, or of IPv6
/// the three networks that are given to one customer.
type Owner = Vec<String>;

#[derive(Debug)]
pub struct Crowd {
    most: usize,
    /// The open connections, and the last id. Until its request is whole a connection may be closed.
    open: Mutex<(Shares<u64, DropGuard>, u64)>,
}

/// A connection's entry, until it is dropped.
#[derive(Debug)]
pub struct Seat {
    crowd: Arc<Crowd>,
    id: u64,
    /// Cancelled once the connection must go.
    pub close: CancellationToken,
}

impl Crowd {
    pub fn new(most: usize) -> Arc<Crowd> {
        Arc::new(Crowd { most, open: Mutex::default() })
    }

    /// `None`: there is no room, and nothing to close for it.
    pub fn enter(self: &Arc<Crowd>, owner: Owner) -> Option<Seat> {
        let (mut open, close) = (lock(&self.open), CancellationToken::new());
        open.1 += 1;
        let (id, guard) = (open.1, close.clone().drop_guard());
        open.0.put(id, self.charge(owner), Duration::ZERO, guard).ok()?;
        Some(Seat { crowd: self.clone(), id, close })
    }

    /// Three quarters of all for a user, a principal, an address or a /48, five eighths for a /56, half for a /64.
    fn charge(&self, owner: Owner) -> (Vec<(String, usize)>, usize) {
        let shares = owner.into_iter().zip((1..7).rev()).map(|(name, eighths)| (name, self.most * eighths / 8));
        ([(String::new(), self.most)].into_iter().chain(shares).collect(), 1)
    }
}

impl Seat {
    /// Whether a whole request came, or one that has a body still to come.
    pub fn whole(&self, whole: bool) {
        lock(&self.crowd.open).0.keep(&self.id, if whole { IN_USE } else { Duration::ZERO });
    }

    /// Its principal is known. False: that one has its share.
    pub fn belongs_to(&self, principal: &str) -> bool {
        let open = &mut lock(&self.crowd.open).0;
        open.charge(&self.id, self.crowd.charge(vec![format!("principal {principal}")]))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.crowd.open).0.remove(&self.id);
    }
}

/// The owner of a connection from an address.
pub fn of_address(ip: IpAddr) -> Owner {
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

    fn from(address: &str) -> Owner {
        of_address(address.parse().unwrap())
    }

    #[test]
    fn who_has_most_loses_the_oldest_that_sent_nothing_whole() {
        let crowd = Crowd::new(8);
        let mine = crowd.enter(from("10.0.0.1")).unwrap();
        let mut theirs: Vec<Seat> = (0..6).map(|_| crowd.enter(from("10.0.0.2")).unwrap()).collect();
        theirs.push(crowd.enter(from("10.0.0.2")).expect("at its share its own oldest goes"));
        let closed = |seats: &[Seat]| seats.iter().map(|seat| seat.close.is_cancelled()).collect::<Vec<_>>();
        assert_eq!(closed(&theirs), [true, false, false, false, false, false, false]);
        let third = crowd.enter(from("10.0.0.3")).unwrap();
        let fourth = crowd.enter(from("10.0.0.4")).expect("who has most makes room");
        assert_eq!(closed(&theirs)[..3], [true, true, false]);
        assert!(!mine.close.is_cancelled() && !third.close.is_cancelled());
        [&mine, &third, &fourth].into_iter().chain(&theirs).for_each(|seat| seat.whole(true));
        assert!(crowd.enter(from("10.0.0.5")).is_none(), "requests that run are not cut off");
        drop(third);
        assert!(crowd.enter(from("10.0.0.5")).is_some());
        // A customer has one share whatever networks it uses.
        let crowd = Crowd::new(16);
        let theirs = |n: usize| crowd.enter(from(&format!("2001:db8:1:{n:x}00::1")));
        let seats: Vec<Seat> = (0..30).map(|n| theirs(n).expect("an own one goes for it")).collect();
        assert_eq!(seats.iter().filter(|seat| !seat.close.is_cancelled()).count(), 12);
        seats.iter().for_each(|seat| seat.whole(true));
        assert!(theirs(31).is_none() && crowd.enter(from("2001:db8:3::1")).is_some());
    }
}
