//! A fair semaphore with weights. A claim counts against keys, each of which has at most so many of the places; claims
//! that wait take turns, first those whose keys, in their order, have the fewest places. Only equal claims wait behind
//! one another.

use super::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

#[derive(Debug)]
pub struct Places {
    state: Mutex<PlacesState>,
    /// Most places of one key.
    pub each: usize,
}

#[derive(Debug)]
struct PlacesState {
    free: usize,
    held: HashMap<String, usize>,
    /// Claims in the order of their turns, each with its waiters, and how much they wait for, in the order of arrival.
    waiting: VecDeque<(Claim, Queue)>,
}

type Queue = VecDeque<(usize, oneshot::Sender<Place>)>;

/// The keys that a place counts against, each with the most places it may have.
pub type Claim = Vec<(String, usize)>;

/// One place or more, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    keys: Vec<String>,
    size: usize,
}

/// Dropping it ends the wait.
struct Waiter<'p>(&'p Arc<Places>, oneshot::Receiver<Place>);

impl Places {
    pub fn new(all: usize, each: usize) -> Arc<Places> {
        let state = PlacesState { free: all, held: HashMap::new(), waiting: VecDeque::new() };
        Arc::new(Places { state: Mutex::new(state), each })
    }

    pub fn claim(&self, key: &str) -> Claim {
        vec![(key.to_owned(), self.each)]
    }

    /// Waits for one place. Dropping the future ends the wait and takes no place.
    pub async fn enter(self: &Arc<Self>, key: &str) -> Place {
        self.enter_as(self.claim(key), 1).await
    }

    /// Waits for so many places. None are had at once, unless equal claims wait.
    pub async fn enter_as(self: &Arc<Self>, claim: Claim, size: usize) -> Place {
        let mut waiter = {
            let mut state = lock(&self.state);
            state.forget_gone();
            let (send, receive) = oneshot::channel();
            match state.waiting.iter().position(|(waiting, _)| *waiting == claim) {
                None if state.has_room(&claim, size) => return self.take(&mut state, &claim, size),
                None => state.waiting.push_back((claim, VecDeque::from([(size, send)]))),
                Some(at) => state.waiting[at].1.push_back((size, send)),
            }
            Waiter(self, receive)
        };
        match (&mut waiter.1).await {
            Ok(place) => place,
            // A sender is dropped unused only where its receiver is gone.
            Err(_) => std::future::pending().await,
        }
    }

    /// A place that is free now, without waiting.
    pub fn try_enter(self: &Arc<Self>, key: &str) -> Option<Place> {
        self.try_enter_as(&self.claim(key), 1)
    }

    pub fn try_enter_as(self: &Arc<Self>, claim: &Claim, size: usize) -> Option<Place> {
        let mut state = lock(&self.state);
        state.has_room(claim, size).then(|| self.take(&mut state, claim, size))
    }

    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.iter().map(|(_, queue)| queue.len()).sum()
    }

    fn take(self: &Arc<Self>, state: &mut PlacesState, claim: &Claim, size: usize) -> Place {
        state.free -= size;
        let keys: Vec<String> = claim.iter().map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| *state.held.entry(key.clone()).or_default() += size);
        Place { places: Arc::clone(self), keys, size }
    }

    /// Gives free places to waiters.
    fn hand_out(self: &Arc<Self>, free: impl FnOnce(&mut PlacesState)) {
        let mut given = Vec::new();
        {
            let mut state = lock(&self.state);
            free(&mut state);
            state.forget_gone();
            while let Some((claim, mut queue)) = state.next().and_then(|at| state.waiting.remove(at)) {
                given.extend(queue.pop_front().map(|(size, to)| (to, self.take(&mut state, &claim, size))));
                // The others wait until everybody else had a turn.
                if !queue.is_empty() {
                    state.waiting.push_back((claim, queue));
                }
            }
        }
        for (to, place) in given {
            // If the waiter left just now, its place is dropped here and goes to the next.
            let _ = to.send(place);
        }
    }
}

impl PlacesState {
    fn held(&self, key: &str) -> usize {
        self.held.get(key).copied().unwrap_or_default()
    }

    fn has_room(&self, claim: &Claim, size: usize) -> bool {
        self.free >= size && claim.iter().all(|(key, most)| self.held(key) + size <= *most)
    }

    /// Takes those away that stopped waiting.
    fn forget_gone(&mut self) {
        self.waiting.retain_mut(|(_, queue)| {
            queue.retain(|(_, waiter)| !waiter.is_closed());
            !queue.is_empty()
        });
    }

    /// Whose turn it is.
    fn next(&self) -> Option<usize> {
        let fits = |(claim, queue): &(Claim, Queue)| self.has_room(claim, queue[0].0);
        let held = |claim: &Claim| claim.iter().map(|(key, _)| self.held(key)).collect::<Vec<_>>();
        let ready = self.waiting.iter().enumerate().filter(|(_, waiting)| fits(waiting));
        ready.min_by_key(|(_, (claim, _))| held(claim)).map(|(at, _)| at)
    }
}

impl Place {
    /// Counts this place against more keys, where each of them has room.
    pub fn charge_also(&mut self, claim: &Claim) -> bool {
        let mut state = lock(&self.places.state);
        let more: Vec<_> = claim.iter().filter(|(key, _)| !self.keys.contains(key)).collect();
        let fits = more.iter().all(|(key, most)| state.held(key) + self.size <= *most);
        for (key, _) in more.into_iter().filter(|_| fits) {
            *state.held.entry(key.clone()).or_default() += self.size;
            self.keys.push(key.clone());
        }
        fits
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.1.close();
        // Whoever waited behind it may have room.
        self.0.hand_out(|_| {});
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.hand_out(|state| {
            state.free += self.size;
            for key in &self.keys {
                if let Some(held) = state.held.get_mut(key) {
                    *held -= self.size;
                    if *held == 0 {
                        state.held.remove(key);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;

    #[test]
    fn equal_claims_take_turns_and_whoever_holds_the_fewest_goes_first() {
        let places = Places::new(2, 2);
        let claim = |who: &str, most: usize| vec![(who.to_owned(), most)];
        let _held = places.enter_as(claim("a", 2), 1).now_or_never().expect("room");
        let first = places.enter("x").now_or_never().expect("room");
        let mut waits = ["a", "a", "b", "c"].map(|who| Box::pin(places.enter_as(claim(who, 2), 1)));
        let mut poll = || waits.iter_mut().map(|wait| wait.now_or_never()).collect::<Vec<_>>();
        assert!(poll().iter().all(Option::is_none) && places.waiting() == 4);
        drop(first);
        let mut order = Vec::new();
        for _ in 0..4 {
            let given = waits.iter_mut().position(|wait| wait.now_or_never().is_some());
            order.extend(given.map(|at| ["a", "a", "b", "c"][at]));
            if let Some(at) = given {
                waits[at] = Box::pin(places.enter_as(claim("late", 0), 1));
            }
        }
        assert_eq!(order, ["b", "c", "a", "a"]);
    }

    #[test]
    fn a_large_claim_is_waited_for_by_equal_ones_until_it_is_given_up() {
        let places = Places::new(8, 8);
        let _held = places.try_enter_as(&places.claim("a"), 5).expect("room");
        let mut large = Box::pin(places.enter_as(places.claim("a"), 4));
        assert!((&mut large).now_or_never().is_none());
        let mut none = pin!(places.enter_as(places.claim("a"), 0));
        assert!((&mut none).now_or_never().is_none() && places.enter("b").now_or_never().is_some());
        drop(large);
        assert!(none.now_or_never().is_some());
    }
}
