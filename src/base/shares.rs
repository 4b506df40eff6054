//! A bounded map whose entries are charged to keys, each of which has at most so much of it: all of it, a principal, a
//! network.
//!
//! An entry stays until its time. Once that has passed it goes where room is needed: first the one whose time came
//! first, of whoever has most.

use super::places::Claim;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// The time of an entry that stays until it is removed.
pub const IN_USE: Duration = Duration::MAX;

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
    /// The place of the key in the claims that have it.
    level: usize,
    size: usize,
    /// How much of it is in use.
    in_use: usize,
    /// The entries that are not, by their time.
    removable: BTreeSet<(Duration, K)>,
}

impl<K, V> Default for Shares<K, V> {
    fn default() -> Shares<K, V> {
        Shares { entries: BTreeMap::new(), shares: HashMap::new() }
    }
}

impl<K: Ord + Clone, V> Shares<K, V> {
    /// Puts an entry in the place of what has its key. What goes for it is dropped. `Err`: there is no room.
    pub fn put(
        &mut self,
        now: Duration,
        key: K,
        (claim, size): (Claim, usize),
        until: Duration,
        value: V,
    ) -> Result<(), V> {
        self.remove(&key);
        if !self.make_room(now, &claim, size) {
            return Err(value);
        }
        self.insert(key, Entry { claim, size, until, value });
        Ok(())
    }

    /// Charges an entry anew. False: there is no room, and it stays as it was.
    pub fn charge(&mut self, now: Duration, key: &K, (claim, size): (Claim, usize), until: Duration) -> bool {
        let Some(old) = self.take(key) else { return false };
        let fits = self.make_room(now, &claim, size);
        self.insert(key.clone(), if fits { Entry { claim, size, until, ..old } } else { old });
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
        for (level, (name, _)) in entry.claim.iter().enumerate() {
            let new = || Share { level, size: 0, in_use: 0, removable: BTreeSet::new() };
            let share = self.shares.entry(name.clone()).or_insert_with(new);
            share.size += entry.size;
            match entry.until {
                IN_USE => share.in_use += entry.size,
                until => _ = share.removable.insert((until, key.clone())),
            }
        }
        self.entries.insert(key, entry);
    }

    fn take(&mut self, key: &K) -> Option<Entry<V>> {
        let (key, entry) = self.entries.remove_entry(key)?;
        let at = (entry.until, key);
        for (name, _) in &entry.claim {
            if let Some(share) = self.shares.get_mut(name) {
                share.size -= entry.size;
                match entry.until {
                    IN_USE => share.in_use -= entry.size,
                    _ => _ = share.removable.remove(&at),
                }
                if share.size == 0 && share.removable.is_empty() {
                    self.shares.remove(name);
                }
            }
        }
        Some(entry)
    }

    fn make_room(&mut self, now: Duration, claim: &Claim, size: usize) -> bool {
        // The narrowest first: whoever has its share makes its own room.
        for (name, most) in claim.iter().rev() {
            while self.shares.get(name).map_or(0, |share| share.size) + size > *most {
                let Some(key) = self.excess(now, name) else { return false };
                self.remove(&key);
            }
        }
        true
    }

    /// The entry that goes where this key has no room: of whoever below it has most that is not in use.
    fn excess(&self, now: Duration, name: &str) -> Option<K> {
        let share = self.shares.get(name)?;
        let (_, first) = share.first(now)?;
        let belongs =
            |key: &K| self.entries.get(key).is_some_and(|entry| entry.claim.iter().any(|(own, _)| own == name));
        let below = self.shares.iter().filter(|(_, below)| below.level == share.level + 1);
        let below = below.filter(|(_, below)| below.first(now).is_some_and(|(_, key)| belongs(key)));
        match below.max_by_key(|(_, below)| (below.size - below.in_use, Reverse(below.first(now)))) {
            Some((narrower, _)) => self.excess(now, narrower),
            None => Some(first.clone()),
        }
    }
}

impl<K: Ord> Share<K> {
    /// The entry whose time has passed first.
    fn first(&self, now: Duration) -> Option<&(Duration, K)> {
        self.removable.first().filter(|(until, _)| *until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    fn of(who: &str) -> (Claim, usize) {
        (vec![("all".to_owned(), 8), (who.to_owned(), 6)], 1)
    }

    #[test]
    fn whoever_has_most_gives_way_and_what_is_in_use_stays() {
        let mut shares = Shares::default();
        let past = |n: u64| Duration::from_secs(n);
        for n in 0..20 {
            let until = if n == 0 { IN_USE } else { past(9 - n % 9) };
            assert!(shares.put(NOW, n, of("a"), until, ()).is_ok(), "its own goes for it");
        }
        assert_eq!((shares.iter().count(), shares.get(&0)), (6, Some(&())));
        assert!((100..103).all(|n| shares.put(NOW, n, of("b"), past(1), ()).is_ok()));
        let left = |shares: &Shares<u64, ()>, from: u64| shares.iter().filter(|(n, _)| **n / 100 == from).count();
        assert_eq!((left(&shares, 0), left(&shares, 1)), (5, 3), "one of whoever has most");
        let keys: Vec<u64> = shares.iter().map(|(n, _)| *n).collect();
        keys.iter().for_each(|n| shares.keep(n, IN_USE));
        assert!(shares.put(NOW, 200, of("c"), NOW, ()).is_err());
        shares.remove(&0);
        assert!(shares.put(NOW, 200, of("c"), IN_USE, ()).is_ok());
        assert!(!shares.charge(NOW, &200, (of("c").0, 2), IN_USE), "a larger one finds no room");
        assert!(shares.get(&200).is_some() && shares.charge(NOW, &200, of("d"), IN_USE));
        let rest: Vec<u64> = shares.iter().map(|(n, _)| *n).collect();
        rest.iter().for_each(|n| assert!(shares.remove(n).is_some()));
        assert!(shares.shares.is_empty());
    }
}
