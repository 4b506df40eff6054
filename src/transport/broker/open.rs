//! Requests that are open here, and ids of those that were answered lately: whether what the broker hands out a second time is
//! in good hands.
//!
//! For: the face. In: ids as they come and end. Out: what else is done when one ends. Never: takes a new request of the same id
//! for the old one: only what the broker itself calls redelivered is.

use crate::base::lock;
use crate::broker::{Delivery, LONGEST_ID};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// Ids that are remembered after their answer.
const ENDED: usize = 4096;

#[derive(Default)]
pub struct Open(Mutex<Ids>);

#[derive(Default)]
struct Ids {
    running: HashMap<Vec<u8>, Running>,
    ended: VecDeque<Vec<u8>>,
}

#[derive(Default)]
struct Running {
    count: usize,
    /// The same messages again, after a connection was lost: done when the call is.
    again: Vec<Delivery>,
}

/// What a redelivered message is.
pub enum Known {
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

    pub fn begin(&self, id: &[u8]) {
        lock(&self.0).running.entry(id.to_vec()).or_default().count += 1;
    }

    pub fn known(&self, delivery: Delivery) -> Known {
        let mut ids = lock(&self.0);
        if let Some(running) = ids.running.get_mut(&delivery.id) {
            running.again.push(delivery);
            return Known::Running;
        }
        match ids.ended.contains(&delivery.id) {
            true => Known::Ended(delivery),
            false => Known::No(delivery),
        }
    }

    /// The same messages that came again meanwhile.
    pub fn end(&self, id: &[u8], is_answered: bool) -> Vec<Delivery> {
        let mut ids = lock(&self.0);
        let Some(running) = ids.running.get_mut(id) else { return Vec::new() };
        running.count -= 1;
        if running.count > 0 {
            return Vec::new();
        }
        let again = ids.running.remove(id).map(|running| running.again).unwrap_or_default();
        // A longer one is never answered, and would take memory for nothing.
        if is_answered && id.len() <= LONGEST_ID {
            ids.ended.push_back(id.to_vec());
        }
        while ids.ended.len() > ENDED {
            ids.ended.pop_front();
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
            for id in [&good, &long] {
                open.begin(id);
                assert!(open.end(id, true).is_empty());
            }
        }
        let ids = lock(&open.0);
        assert!(ids.running.is_empty() && ids.ended.len() == ENDED);
        assert!(ids.ended.iter().all(|id| id.len() <= LONGEST_ID));
    }
}
