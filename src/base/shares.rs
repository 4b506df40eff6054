//! A bounded map whose entries are charged to keys, each of which has at most so much of it: all of it, a principal, a
//! network.
//!
//! An entry stays until its time. Once that has passed it goes where room is needed: first the one whose time came
//! first, of whoever has most.

use super::places::Claim;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The time of an entry that stays until it is removed.
pub const IN_USE: Duration = Duration::MAX;

#[derive(Debug)]
pub struct Shares<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    taken: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry<V> {
    /// From the widest key to the narrowest.
    claim: Claim,
    size: usize,
    until: Duration,
    value: V,
}

impl<V> Entry<V> {
    fn key(&self, level: usize) -> Option<&str> {
        self.claim.get(level).map(|(name, _)| name.as_str())
    }
}

impl<K, V> Default for Shares<K, V> {
    fn default() -> Shares<K, V> {
        Shares { entries: BTreeMap::new(), taken: HashMap::new() }
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
        claim.iter().for_each(|(name, _)| *self.taken.entry(name.clone()).or_default() += size);
        self.entries.insert(key, Entry { claim, size, until, value });
        Ok(())
    }

    /// Charges an entry anew. False: there is no room, and it stays as it was.
    pub fn charge(&mut self, now: Duration, key: &K, (claim, size): (Claim, usize), until: Duration) -> bool {
        let Some(Entry { claim: old, size: old_size, until: old_until, value }) = self.take(key) else { return false };
        let Err(value) = self.put(now, key.clone(), (claim, size), until, value) else { return true };
        // What it had is still free.
        let _ = self.put(now, key.clone(), (old, old_size), old_until, value);
        false
    }

    /// Until when an entry stays.
    pub fn keep(&mut self, key: &K, until: Duration) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.until = until;
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

    fn take(&mut self, key: &K) -> Option<Entry<V>> {
        let entry = self.entries.remove(key)?;
        for (name, _) in &entry.claim {
            if let Some(taken) = self.taken.get_mut(name) {
                *taken -= entry.size;
                if *taken == 0 {
                    self.taken.remove(name);
                }
            }
        }
        Some(entry)
    }

    fn make_room(&mut self, now: Duration, claim: &Claim, size: usize) -> bool {
        // The narrowest first: whoever has its share makes its own room.
        for (level, (name, most)) in claim.iter().enumerate().rev() {
            while self.taken.get(name).copied().unwrap_or_default() + size > *most {
                let Some(key) = self.excess(now, level, name) else { return false };
                self.remove(&key);
            }
        }
        true
    }

    /// The entry that goes where this key has no room.
    fn excess(&self, now: Duration, level: usize, name: &str) -> Option<K> {
        let past = self.entries.iter().filter(|(_, entry)| entry.until <= now && entry.size > 0);
        let mut among: Vec<(&K, &Entry<V>)> = past.filter(|(_, entry)| entry.key(level) == Some(name)).collect();
        let deepest = among.iter().map(|(_, entry)| entry.claim.len()).max().unwrap_or_default();
        for level in level + 1..deepest {
            let mut sizes: HashMap<Option<&str>, usize> = HashMap::new();
            among.iter().for_each(|(_, entry)| *sizes.entry(entry.key(level)).or_default() += entry.size);
            let most = sizes.values().max().copied();
            let first = among.iter().map(|(_, entry)| entry.key(level)).find(|name| sizes.get(name).copied() == most);
            among.retain(|(_, entry)| Some(entry.key(level)) == first);
        }
        among.into_iter().min_by_key(|(_, entry)| entry.until).map(|(key, _)| key.clone())
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
        assert!(shares.taken.is_empty());
    }
}
