//! A pool of idle launchers or workers for later calls with the same key: at most `most`, each for
//! about a minute.

use crate::base::lock;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How many times in `IDLE_TIMEOUT` the pool is swept.
const SWEEPS_PER_TIMEOUT: u32 = 6;

#[derive(Debug)]
pub struct IdlePool<K, T> {
    entries: Mutex<IdleEntries<K, T>>,
    most: usize,
    idle_timeout: Duration,
}

#[derive(Debug)]
struct IdleEntries<K, T> {
    /// In the order of use, the most recent last.
    entries: Vec<(K, T, Instant)>,
    sweeping: bool,
}

impl<K: Send + 'static, T: Send + 'static> IdlePool<K, T> {
    pub fn new(most: usize) -> IdlePool<K, T> {
        let entries = Mutex::new(IdleEntries {
            entries: Vec::new(),
            sweeping: false,
        });
        IdlePool {
            entries,
            most,
            idle_timeout: IDLE_TIMEOUT,
        }
    }

    /// Takes the most recently used entry that fits, so that the others expire.
    pub fn take(&self, fits: impl Fn(&K) -> bool) -> Option<T> {
        let mut state = lock(&self.entries);
        let at = state.entries.iter().rposition(|(key, ..)| fits(key))?;
        Some(state.entries.remove(at).1)
    }

    /// Adds an entry. If there are too many, the oldest is dropped.
    pub fn put(self: &Arc<Self>, key: K, thing: T) {
        let mut state = lock(&self.entries);
        let oldest = (state.entries.len() >= self.most).then(|| state.entries.remove(0));
        state.entries.push((key, thing, Instant::now()));
        if !std::mem::replace(&mut state.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self), self.idle_timeout));
        }
        drop(state);
        drop(oldest);
    }

    pub fn len(&self) -> usize {
        lock(&self.entries).entries.len()
    }

    /// Drops all entries.
    pub fn clear(&self) {
        let entries = std::mem::take(&mut lock(&self.entries).entries);
        drop(entries);
    }
}

/// Drops what was idle too long, and ends when nothing is left.
async fn sweep<K: Send + 'static, T: Send + 'static>(
    idle: Weak<IdlePool<K, T>>,
    idle_timeout: Duration,
) {
    loop {
        tokio::time::sleep(idle_timeout / SWEEPS_PER_TIMEOUT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut state = lock(&idle.entries);
        let (old, young): (Vec<_>, Vec<_>) = std::mem::take(&mut state.entries)
            .into_iter()
            .partition(|(_, _, since)| since.elapsed() >= idle_timeout);
        state.entries = young;
        state.sweeping = !state.entries.is_empty();
        let done = !state.sweeping;
        drop(state);
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
        let idle = IdlePool {
            idle_timeout: Duration::from_millis(200),
            ..IdlePool::new(2)
        };
        let idle = Arc::new(idle);
        for (key, thing) in [("a", 1), ("a", 2), ("b", 3)] {
            idle.put(key, thing);
        }
        assert_eq!(idle.take(|key| *key == "c"), None);
        assert_eq!(
            idle.take(|key| *key == "a"),
            Some(2),
            "the first one made room"
        );
        assert_eq!((idle.take(|key| *key == "a"), idle.len()), (None, 1));
        let ended = async {
            while idle.len() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended)
            .await
            .expect("ended without a call");
    }
}
