//! Warnings about refusals: one line for each peer and reason, and each minute how many more there were. Whoever may
//! connect cannot fill a disk.

use crate::base::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// Peers and reasons that are kept apart; all others share one line for each reason.
const MOST: usize = 256;

/// By peer and reason: how often since its line.
#[derive(Default)]
pub struct Warnings(Mutex<HashMap<(String, &'static str), u64>>);

impl Warnings {
    /// Writes the line where this peer had none of this reason in the last minute.
    pub fn warn(&self, peer: &str, reason: &'static str, words: &str) {
        if self.is_new(peer, reason) {
            tracing::warn!(target: "toolhost::http", %peer, "{words}");
        }
    }

    fn is_new(&self, peer: &str, reason: &'static str) -> bool {
        let mut known = lock(&self.0);
        let own = (peer.to_owned(), reason);
        let apart = known.len() < MOST || known.contains_key(&own);
        let key = if apart { own } else { ("others".to_owned(), reason) };
        let count = known.entry(key).and_modify(|more| *more += 1).or_default();
        *count == 0
    }

    /// Writes how many lines were left out since the last time. For each minute.
    pub fn log_repeated(&self) {
        for ((peer, reason), more) in std::mem::take(&mut *lock(&self.0)) {
            if more > 0 {
                tracing::warn!(target: "toolhost::http", "{peer}: {more} times more within a minute: {reason}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_line_a_minute_and_the_many_share_one() {
        let warnings = Warnings::default();
        let lines = |peer: &str| (0..1000).filter(|_| warnings.is_new(peer, "refused")).count();
        assert_eq!((lines("uid 1"), lines("uid 2")), (1, 1));
        warnings.log_repeated();
        assert_eq!(lines("uid 1"), 1, "and a minute later again");
        let many = (0..10_000).filter(|peer| warnings.is_new(&format!("::{peer}"), "refused")).count();
        assert_eq!(many, MOST, "the others have one of those");
    }
}
