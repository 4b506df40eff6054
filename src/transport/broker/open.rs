//! Requests that run here, and those that were answered lately, so that what the broker hands out again is recognized: by its
//! id and its whole body.

use crate::base::{lock, sha256_hex};
use crate::broker::{Delivery, LONGEST_ID};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// Requests that are remembered after their answer.
const ENDED: usize = 4096;

#[derive(Default)]
pub struct Open(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    running: HashMap<Identity, Running>,
    ended: VecDeque<Identity>,
}

/// One request. Clients choose ids, and may use one twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    id: Vec<u8>,
    /// SHA-256 of its body.
    body: String,
}

impl Identity {
    pub fn of(delivery: &Delivery) -> Identity {
        Identity { id: delivery.id.clone(), body: sha256_hex(&delivery.body) }
    }
}

#[derive(Default)]
struct Running {
    count: usize,
    /// The same messages again, after a connection was lost: done when the call is.
    again: Vec<Delivery>,
}

/// What a redelivered message is.
pub enum Redelivery {
    /// Its call runs here, and keeps it.
    Running,
    /// It was answered from here.
    Ended(Delivery),
    /// Somebody else had it, or this host before it was started anew.
    No(Delivery),
}

impl Open {
    pub fn len(&self) -> usize {
        lock(&self.0).running.values().map(|running| running.count).sum()
    }

    pub fn begin(&self, request: &Identity) {
        lock(&self.0).running.entry(request.clone()).or_default().count += 1;
    }

    pub fn known(&self, request: &Identity, delivery: Delivery) -> Redelivery {
        let mut requests = lock(&self.0);
        if let Some(running) = requests.running.get_mut(request) {
            running.again.push(delivery);
            return Redelivery::Running;
        }
        match requests.ended.contains(request) {
            true => Redelivery::Ended(delivery),
            false => Redelivery::No(delivery),
        }
    }

    /// The same messages that came again meanwhile.
    pub fn end(&self, request: Identity, is_answered: bool) -> Vec<Delivery> {
        let mut requests = lock(&self.0);
        let Some(running) = requests.running.get_mut(&request) else { return Vec::new() };
        running.count -= 1;
        if running.count > 0 {
            return Vec::new();
        }
        let again = requests.running.remove(&request).map(|running| running.again).unwrap_or_default();
        // One with a longer id is never answered, and would take memory for nothing.
        if is_answered && request.id.len() <= LONGEST_ID {
            requests.ended.push_back(request);
        }
        while requests.ended.len() > ENDED {
            requests.ended.pop_front();
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_length() {
        let open = Open::default();
        for number in 0..ENDED + 10 {
            let good = number.to_string().into_bytes();
            let long = [good.clone(), vec![b'x'; LONGEST_ID]].concat();
            for id in [good, long] {
                let request = Identity { id, body: sha256_hex(b"{}") };
                open.begin(&request);
                assert!(open.end(request, true).is_empty());
            }
        }
        let requests = lock(&open.0);
        assert!(requests.running.is_empty() && requests.ended.len() == ENDED);
        assert!(requests.ended.iter().all(|request| request.id.len() <= LONGEST_ID));
    }
}
