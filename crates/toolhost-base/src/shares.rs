//! A bounded map whose entries are charged to keys with a limit each: one key for the whole map,
//! one for each principal or network.
//!
//! An entry stays until its deadline. After that it is removed when room is needed: the earliest
//! one first, of the key whose unused entries are largest in all.

use super::semaphore::{Claim, FairSemaphore, Permit};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::Instant;

/// The time of an entry that stays until it is removed.
pub const IN_USE: Duration = Duration::MAX;

/// Time since a fixed moment.
pub fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

#[derive(Debug)]
pub struct Shares<K, V> {
    semaphore: Arc<FairSemaphore>,
    entries: BTreeMap<K, Entry<V>>,
    /// For each key: its entries that are not in use, by deadline, and their total size.
    unused: HashMap<String, (BTreeSet<(Duration, K)>, usize)>,
}

/// What an entry takes of the keys of its claim.
pub struct Charge {
    pub claim: Claim,
    pub size: usize,
}

#[derive(Debug)]
pub struct Entry<V> {
    permit: Permit,
    until: Duration,
    value: V,
}

impl<V> Entry<V> {
    pub fn into_value(self) -> V {
        self.value
    }
}

impl<K, V> Default for Shares<K, V> {
    /// Its semaphore has no bounds of its own: each claim has them.
    fn default() -> Shares<K, V> {
        Shares {
            semaphore: FairSemaphore::new(0, 0),
            entries: BTreeMap::new(),
            unused: HashMap::new(),
        }
    }
}

impl<K: Ord + Clone, V> Shares<K, V> {
    /// Removes the entry of this key, and inserts another. False: it has no room.
    pub fn put(&mut self, key: K, charge: Charge, until: Duration, value: V) -> bool {
        self.remove(&key);
        let mut permit = self.semaphore.none();
        let fits = self.make_room(&mut permit, &charge);
        if fits {
            self.insert(
                key,
                Entry {
                    permit,
                    until,
                    value,
                },
            );
        }
        fits
    }

    /// Charges an entry to another claim or size. False: without room, the entry stays as it was.
    pub fn charge(&mut self, key: &K, charge: Charge) -> bool {
        let Some(mut entry) = self.remove(key) else {
            return false;
        };
        let fits = self.make_room(&mut entry.permit, &charge);
        self.insert(key.clone(), entry);
        fits
    }

    /// Sets until when an entry stays.
    pub fn keep(&mut self, key: &K, until: Duration) {
        if let Some(entry) = self.remove(key) {
            self.insert(key.clone(), Entry { until, ..entry });
        }
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    fn insert(&mut self, key: K, entry: Entry<V>) {
        for (name, _) in entry.permit.claim.iter().filter(|_| entry.until != IN_USE) {
            let (unused, size) = self.unused.entry(name.clone()).or_default();
            unused.insert((entry.until, key.clone()));
            *size += entry.permit.size;
        }
        self.entries.insert(key, entry);
    }

    pub fn remove(&mut self, key: &K) -> Option<Entry<V>> {
        let (key, entry) = self.entries.remove_entry(key)?;
        let at = (entry.until, key);
        for (name, _) in &entry.permit.claim {
            if let Some((unused, size)) = self
                .unused
                .get_mut(name)
                .filter(|(unused, _)| unused.contains(&at))
            {
                unused.remove(&at);
                *size -= entry.permit.size;
                if unused.is_empty() {
                    self.unused.remove(name);
                }
            }
        }
        Some(entry)
    }

    fn make_room(&mut self, permit: &mut Permit, charge: &Charge) -> bool {
        while let Err(full) = permit.charge(&charge.claim, charge.size) {
            let Some(key) = self.excess(full) else {
                return false;
            };
            self.remove(&key);
        }
        true
    }

    /// The entry to remove if this key has no room: the earliest of the key below it whose unused
    /// entries are largest.
    fn excess(&self, full: &str) -> Option<K> {
        let now = now();
        let first = |name: &str| {
            self.unused
                .get(name)?
                .0
                .first()
                .filter(|(until, _)| *until <= now)
        };
        first(full)?;
        let below = self
            .unused
            .keys()
            .filter_map(|name| first(name))
            .filter_map(|(until, key)| {
                let claim = &self.entries.get(key)?.permit.claim;
                let at = claim.iter().position(|(name, _)| name == full)?;
                let sizes = claim[at + 1..]
                    .iter()
                    .map(|(name, _)| self.unused.get(name).map_or(0, |(_, size)| *size));
                Some((sizes.collect::<Vec<_>>(), Reverse(*until), Reverse(key)))
            });
        below.max().map(|(.., Reverse(key))| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_gives_way_and_what_is_in_use_stays() {
        fn of(who: &str) -> Charge {
            Charge {
                claim: crate::semaphore::claim(8, [(who.to_owned(), 6)]),
                size: 1,
            }
        }
        let past = Duration::from_nanos;
        let mut shares = Shares::default();
        for n in 0..20 {
            let until = if n == 0 { IN_USE } else { past(9 - n % 9) };
            assert!(shares.put(n, of("a"), until, ()), "its own goes for it");
        }
        assert_eq!((shares.iter().count(), shares.get(&0)), (6, Some(&())));
        assert!((100..103).all(|n| shares.put(n, of("b"), past(1), ())));
        let left = |shares: &Shares<u64, ()>, from: u64| {
            shares.iter().filter(|(n, _)| **n / 100 == from).count()
        };
        assert_eq!(
            (left(&shares, 0), left(&shares, 1)),
            (5, 3),
            "one of whoever has most"
        );
        let keys: Vec<u64> = shares.iter().map(|(n, _)| *n).collect();
        keys.iter().for_each(|n| shares.keep(n, IN_USE));
        assert!(!shares.put(200, of("c"), past(1), ()));
        shares.remove(&0);
        assert!(shares.put(200, of("c"), IN_USE, ()));
        assert!(
            !shares.charge(&200, Charge { size: 2, ..of("c") }) && shares.charge(&200, of("d")),
            "a larger one finds no room"
        );
        (0..300).for_each(|n| _ = shares.remove(&n));
        assert!(
            shares.semaphore.try_enter_as(&of("a").claim, 6).is_some(),
            "nothing is charged any more"
        );
    }
}
