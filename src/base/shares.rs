//! A bounded map whose entries are charged to keys, each of which has at most so much of it: all of it, a principal, a
//! network.
//!
//! An entry stays until its time. Once that has passed it goes where room is needed: first the one whose time came
//! first, of whoever has most that can go.

use super::places::Claim;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::time::Instant;

/// The time of an entry that stays until it is removed.
pub const IN_USE: Duration = Duration::MAX;

/// The time since some moment.
pub fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// So much of all entries, and so much of those of one principal.
pub fn claim(all: usize, principal: &str, own: usize) -> Claim {
    vec![(String::new(), all), (format!("principal {principal}"), own)]
}

#[derive(Debug)]
pub struct Shares<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    shares: HashMap<String, Share<K>>,
}

#[derive(Debug)]
struct Entry<V> {
    /// From the widest key to the narrowest.
    claim: Claim,
    size: usize,
    until: Duration,
    value: V,
}

/// What is charged to one key.
#[derive(Debug)]
struct Share<K> {
    size: usize,
    /// How much of it is not in use, and those entries by their time.
    removable: usize,
    entries: BTreeSet<(Duration, K)>,
}

impl<K, V> Default for Shares<K, V> {
    fn default() -> Shares<K, V> {
        Shares { entries: BTreeMap::new(), shares: HashMap::new() }
    }
}

impl<K: Ord + Clone, V> Shares<K, V> {
    /// Puts an entry in the place of what has its key. `Err`: it has no room.
    pub fn put(&mut self, key: K, (claim, size): (Claim, usize), until: Duration, value: V) -> Result<(), V> {
        self.remove(&key);
        if !self.make_room(&claim, size) {
            return Err(value);
        }
        self.insert(key, Entry { claim, size, until, value });
        Ok(())
    }

    /// Charges an entry in another way. False: it has no room, and stays as it was.
    pub fn charge(&mut self, key: &K, (claim, size): (Claim, usize)) -> bool {
        let Some(old) = self.take(key) else { return false };
        let fits = self.make_room(&claim, size);
        self.insert(key.clone(), if fits { Entry { claim, size, ..old } } else { old });
        fits
    }

    /// Until when an entry stays.
    pub fn keep(&mut self, key: &K, until: Duration) {
        if let Some(entry) = self.take(key) {
            self.insert(key.clone(), Entry { until, ..entry });
        }
    }

    pub fn until(&self, key: &K) -> Option<Duration> {
        self.entries.get(key).map(|entry| entry.until)
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

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.take(key).map(|entry| entry.value)
    }

    fn insert(&mut self, key: K, entry: Entry<V>) {
        for (name, _) in &entry.claim {
            let new = || Share { size: 0, removable: 0, entries: BTreeSet::new() };
            let share = self.shares.entry(name.clone()).or_insert_with(new);
            share.size += entry.size;
            if entry.until != IN_USE {
                share.removable += entry.size;
                share.entries.insert((entry.until, key.clone()));
            }
        }
        self.entries.insert(key, entry);
    }

    fn take(&mut self, key: &K) -> Option<Entry<V>> {
        let (key, entry) = self.entries.remove_entry(key)?;
        let at = (entry.until, key);
        for (name, _) in &entry.claim {
            let Some(share) = self.shares.get_mut(name) else { continue };
            share.size -= entry.size;
            if share.entries.remove(&at) {
                share.removable -= entry.size;
            }
            if share.size == 0 && share.entries.is_empty() {
                self.shares.remove(name);
            }
        }
        Some(entry)
    }

    fn make_room(&mut self, claim: &Claim, size: usize) -> bool {
        // The narrowest first: whoever has its share makes its own room.
        for (name, most) in claim.iter().rev() {
            while self.shares.get(name).map_or(0, |share| share.size) + size > *most {
                let Some(key) = self.excess(name) else { return false };
                self.remove(&key);
            }
        }
        true
    }

    /// The entry that goes where this key has no room: of whoever below it has most that can go.
    fn excess(&self, name: &str) -> Option<K> {
        let now = now();
        self.shares.get(name)?.entries.first().filter(|(until, _)| *until <= now)?;
        let removable = |(name, _): &(String, usize)| self.shares.get(name).map_or(0, |share| share.removable);
        let firsts = self.shares.values().filter_map(|share| share.entries.first().filter(|(until, _)| *until <= now));
        let below = firsts.filter_map(|(until, key)| {
            let claim = &self.entries.get(key)?.claim;
            let at = claim.iter().position(|(own, _)| own == name)?;
            Some((claim[at + 1..].iter().map(removable).collect::<Vec<_>>(), Reverse(*until), Reverse(key)))
        });
        below.max().map(|(.., Reverse(key))| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_gives_way_and_what_is_in_use_stays() {
        let of = |who: &str| (vec![("all".to_owned(), 8), (who.to_owned(), 6)], 1);
        let past = Duration::from_nanos;
        let mut shares = Shares::default();
        for n in 0..20 {
            let until = if n == 0 { IN_USE } else { past(9 - n % 9) };
            assert!(shares.put(n, of("a"), until, ()).is_ok(), "its own goes for it");
        }
        assert_eq!((shares.iter().count(), shares.get(&0)), (6, Some(&())));
        assert!((100..103).all(|n| shares.put(n, of("b"), past(1), ()).is_ok()));
        let left = |shares: &Shares<u64, ()>, from: u64| shares.iter().filter(|(n, _)| **n / 100 == from).count();
        assert_eq!((left(&shares, 0), left(&shares, 1)), (5, 3), "one of whoever has most");
        let keys: Vec<u64> = shares.iter().map(|(n, _)| *n).collect();
        keys.iter().for_each(|n| shares.keep(n, IN_USE));
        assert!(shares.put(200, of("c"), past(1), ()).is_err());
        shares.remove(&0);
        assert!(shares.put(200, of("c"), IN_USE, ()).is_ok());
        assert!(!shares.charge(&200, (of("c").0, 2)) && shares.charge(&200, of("d")), "a larger one finds no room");
        (0..300).for_each(|n| _ = shares.remove(&n));
        assert!(shares.shares.is_empty());
    }
}
