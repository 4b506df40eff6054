//! The memory of what waits for calls: sessions and ready processes.

use std::collections::BTreeMap;
use std::time::Instant;

/// The memory of something that waits.
pub struct HeldMemory<T> {
    /// To whom it counts.
    pub owner: String,
    pub since: Instant,
    pub bytes: u64,
    pub what: T,
}

/// What must end so that the rest fits: of the owner that has most what waits longest, one after
/// the other.
pub fn too_much<T>(mut waits: Vec<HeldMemory<T>>, most: u64) -> Vec<T> {
    waits.sort_by_key(|held| held.since);
    let mut gone = Vec::new();
    loop {
        let mut owners: BTreeMap<&str, u64> = BTreeMap::new();
        for held in &waits {
            *owners.entry(&held.owner).or_default() += held.bytes;
        }
        let largest = owners.iter().max_by_key(|(_, bytes)| **bytes);
        let at = largest.and_then(|(owner, _)| waits.iter().position(|it| it.owner == **owner));
        match at {
            Some(at) if owners.values().sum::<u64>() > most => gone.push(waits.remove(at).what),
            _ => return gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_has_most_loses_first() {
        let start = Instant::now();
        let all = [
            ("bob", 1),
            ("alice", 7),
            ("alice", 7),
            ("root", 1),
            ("alice", 7),
        ];
        let waits = || {
            let held = all
                .iter()
                .enumerate()
                .map(|(at, (owner, bytes))| HeldMemory {
                    owner: (*owner).to_owned(),
                    since: start + Duration::from_secs(at as u64),
                    bytes: *bytes,
                    what: at,
                });
            held.collect()
        };
        assert_eq!(too_much(waits(), 23), [] as [usize; 0]);
        assert_eq!(too_much(waits(), 20), [1]);
        assert_eq!(too_much(waits(), 9), [1, 2]);
        assert_eq!(too_much(waits(), 0), [1, 2, 4, 3, 0]);
    }
}
