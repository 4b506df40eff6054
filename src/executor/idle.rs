//! A pool of idle launchers or workers for later calls with the same key: at most `most`, each for about a minute.

use crate::base::lock;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long an idle entry is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How many times in `IDLE_TIMEOUT` the pool is swept.
const SWEEPS_PER_TIMEOUT: u32 = 6;

#[derive(Debug)]
pub struct IdlePool<K, T> {
    kept: Mutex<IdleEntries<K, T>>,
    most: usize,
    keep_for: Duration,
}

#[derive(Debug)]
struct IdleEntries<K, T> {
    /// In the order of use, the most recent last.
    entries: Vec<(K, T, Instant)>,
    sweeping: bool,
}

impl<K: Send + 'static, T: Send + 'static> IdlePool<K, T> {
    pub fn new(most: usize) -> IdlePool<K, T> {
        let kept = Mutex::new(IdleEntries { entries: Vec::new(), sweeping: false });
        IdlePool { kept, most, keep_for: IDLE_TIMEOUT }
    }

    /// Takes the most recently used entry that fits, so that the others expire.
    pub fn take(&self, fits: impl Fn(&K) -> bool) -> Option<T> {
        let mut kept = lock(&self.kept);
        let at = kept.entries.iter().rposition(|(key, ..)| fits(key))?;
        Some(kept.entries.remove(at).1)
    }

    /// Adds an entry. If there are too many, the oldest is dropped.
    pub fn put(self: &Arc<Self>, key: K, thing: T) {
        let mut kept = lock(&self.kept);
        let oldest = (kept.entries.len() >= self.most).then(|| kept.entries.remove(0));
        kept.entries.push((key, thing, Instant::now()));
        if !std::mem::replace(&mut kept.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self), self.keep_for));
        }
        drop(kept);
        drop(oldest);
    }

    pub fn len(&self) -> usize {
        lock(&self.kept).entries.len()
    }

    /// Drops all entries.
    pub fn clear(&self) {
        let entries = std::mem::take(&mut lock(&self.kept).entries);
        drop(entries);
    }
}

/// Drops what was idle too long, and ends when nothing is left.
async fn sweep<K: Send + 'static, T: Send + 'static>(idle: Weak<IdlePool<K, T>>, keep_for: Duration) {
    loop {
        tokio::time::sleep(keep_for / SWEEPS_PER_TIMEOUT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut kept = lock(&idle.kept);
        let (old, young): (Vec<_>, Vec<_>) =
            std::mem::take(&mut kept.entries).into_iter().partition(|(_, _, since)| since.elapsed() >= keep_for);
        kept.entries = young;
        kept.sweeping = !kept.entries.is_empty();
        let done = !kept.sweeping;
        drop(kept);
        // Outside the lock, since dropping them takes a while.
        drop(old);
        if done {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_goes_to_its_like_only_and_the_oldest_makes_room_or_ends() {
        let idle = IdlePool { keep_for: Duration::from_millis(200), ..IdlePool::new(2) };
        let idle = Arc::new(idle);
        for (key, thing) in [("a", 1), ("a", 2), ("b", 3)] {
            idle.put(key, thing);
        }
        assert_eq!(idle.take(|key| *key == "c"), None);
        assert_eq!(idle.take(|key| *key == "a"), Some(2), "the first one made room");
        assert_eq!((idle.take(|key| *key == "a"), idle.len()), (None, 1));
        let ended = async {
            while idle.len() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended).await.expect("ended without a call");
    }
}
