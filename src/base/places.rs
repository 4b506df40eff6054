//! A fair semaphore. A claim counts against keys, each of which has at most so many of the places; claims that wait
//! take turns, first those whose keys, in their order, have the fewest places. Only equal claims wait behind one
//! another.

use super::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

#[derive(Debug)]
pub struct Places {
    state: Mutex<State>,
    /// Most places of one key.
    each: usize,
}

#[derive(Debug)]
struct State {
    free: usize,
    held: HashMap<String, usize>,
    /// Claims in the order of their turns, each with its waiters in the order of arrival.
    waiting: VecDeque<(Claim, VecDeque<oneshot::Sender<Place>>)>,
}

/// The keys that a place counts against, each with the most places it may have.
pub type Claim = Vec<(String, usize)>;

/// One place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    keys: Vec<String>,
}

impl Places {
    pub fn new(all: usize, each: usize) -> Arc<Places> {
        let state = State { free: all, held: HashMap::new(), waiting: VecDeque::new() };
        Arc::new(Places { state: Mutex::new(state), each })
    }

    fn claim(&self, key: &str) -> Claim {
        vec![(key.to_owned(), self.each)]
    }

    /// Waits for a place. Dropping the future ends the wait and takes no place.
    pub async fn enter(self: &Arc<Self>, key: &str) -> Place {
        self.enter_as(self.claim(key)).await
    }

    /// The same for a claim.
    pub async fn enter_as(self: &Arc<Self>, claim: Claim) -> Place {
        let waiting = {
            let mut state = lock(&self.state);
            state.forget_gone();
            let (send, receive) = oneshot::channel();
            match state.waiting.iter().position(|(waiting, _)| *waiting == claim) {
                None if state.has_room(&claim) => return self.take(&mut state, &claim),
                None => state.waiting.push_back((claim, VecDeque::from([send]))),
                Some(at) => state.waiting[at].1.push_back(send),
            }
            receive
        };
        match waiting.await {
            Ok(place) => place,
            // A sender is dropped unused only where its receiver is gone.
            Err(_) => std::future::pending().await,
        }
    }

    /// A place that is free now, without waiting.
    pub fn try_enter(self: &Arc<Self>, key: &str) -> Option<Place> {
        self.try_enter_as(&self.claim(key))
    }

    /// Whether a place is free for this key now.
    pub fn has_room(&self, key: &str) -> bool {
        lock(&self.state).has_room(&self.claim(key))
    }

    /// The same as `try_enter` for a claim.
    pub fn try_enter_as(self: &Arc<Self>, claim: &Claim) -> Option<Place> {
        let mut state = lock(&self.state);
        state.has_room(claim).then(|| self.take(&mut state, claim))
    }

    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.iter().map(|(_, queue)| queue.len()).sum()
    }

    fn take(self: &Arc<Self>, state: &mut State, claim: &Claim) -> Place {
        state.free -= 1;
        let keys: Vec<String> = claim.iter().map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| *state.held.entry(key.clone()).or_default() += 1);
        Place { places: Arc::clone(self), keys }
    }

    /// Gives free places to waiters.
    fn hand_out(self: &Arc<Self>, state: &mut State) -> Vec<(oneshot::Sender<Place>, Place)> {
        let mut given = Vec::new();
        state.forget_gone();
        while let Some(at) = state.next() {
            let Some((claim, mut queue)) = state.waiting.remove(at) else { break };
            given.extend(queue.pop_front().map(|waiter| (waiter, self.take(state, &claim))));
            // The others wait until everybody else had a turn.
            if !queue.is_empty() {
                state.waiting.push_back((claim, queue));
            }
        }
        given
    }
}

impl State {
    fn held(&self, key: &str) -> usize {
        self.held.get(key).copied().unwrap_or_default()
    }

    fn has_room(&self, claim: &Claim) -> bool {
        self.free > 0 && claim.iter().all(|(key, most)| self.held(key) < *most)
    }

    /// Takes those away that stopped waiting.
    fn forget_gone(&mut self) {
        self.waiting.retain_mut(|(_, queue)| {
            queue.retain(|waiter| !waiter.is_closed());
            !queue.is_empty()
        });
    }

    /// Whose turn it is.
    fn next(&self) -> Option<usize> {
        let ready = self.waiting.iter().enumerate().filter(|(_, (claim, _))| self.has_room(claim));
        let held = |claim: &Claim| claim.iter().map(|(key, _)| self.held(key)).collect::<Vec<_>>();
        ready.min_by_key(|(_, (claim, _))| held(claim)).map(|(at, _)| at)
    }
}

impl Place {
    /// Counts this place against more keys, where each of them has room.
    pub fn charge_also(&mut self, claim: &Claim) -> bool {
        let mut state = lock(&self.places.state);
        let more: Vec<_> = claim.iter().filter(|(key, _)| !self.keys.contains(key)).collect();
        let fits = more.iter().all(|(key, most)| state.held(key) < *most);
        for (key, _) in more.into_iter().filter(|_| fits) {
            *state.held.entry(key.clone()).or_default() += 1;
            self.keys.push(key.clone());
        }
        fits
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let given = {
            let mut state = lock(&self.places.state);
            state.free += 1;
            for key in &self.keys {
                if let Some(held) = state.held.get_mut(key) {
                    *held -= 1;
                    if *held == 0 {
                        state.held.remove(key);
                    }
                }
            }
            self.places.hand_out(&mut state)
        };
        for (waiter, place) in given {
            // If the waiter left just now, its place is dropped here and goes to the next.
            let _ = waiter.send(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn at_once(places: &Arc<Places>, key: &str) -> Option<Place> {
        tokio::time::timeout(Duration::from_millis(20), places.enter(key)).await.ok()
    }

    #[tokio::test]
    async fn one_key_never_has_all_and_others_pass_its_queue() {
        let places = Places::new(4, 3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(places.enter("a").await);
        }
        assert!(at_once(&places, "a").await.is_none(), "the fourth is not for a");
        let other = at_once(&places, "b").await.expect("it is for others");
        assert!(at_once(&places, "c").await.is_none(), "all are taken");
        drop(other);
        assert!(at_once(&places, "c").await.is_some());
        held.pop();
        assert!(at_once(&places, "a").await.is_some(), "one who stopped waiting took nothing");
    }

    #[tokio::test]
    async fn keys_that_wait_take_turns() {
        let places = Places::new(1, 1);
        let first = places.enter("x").await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for key in ["a", "a", "a", "b", "c"] {
            let (places, order) = (places.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let _place = places.enter(key).await;
                order.lock().expect("order").push(key);
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        for task in tasks {
            task.await.expect("ended");
        }
        assert_eq!(*order.lock().expect("order"), ["a", "b", "c", "a", "a"]);
        assert!(at_once(&places, "z").await.is_some());
    }

    #[tokio::test]
    async fn whoever_holds_the_fewest_goes_first_and_nobody_holds_more_than_its_own() {
        let places = Places::new(4, 4);
        let claim = |who: &str, what: &str, most: usize| vec![(who.to_owned(), most), (what.to_owned(), 4)];
        let mut held = Vec::new();
        for what in ["x", "y"] {
            held.push(places.enter_as(claim("a", what, 2)).await);
        }
        assert!(places.try_enter_as(&claim("a", "z", 2)).is_none(), "two are all that a may hold");
        held.push(places.enter_as(claim("b", "x", 4)).await);
        held.push(places.enter_as(claim("c", "x", 4)).await);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        // b's many tools wait before d's one.
        for (who, what) in [("b", "p"), ("b", "q"), ("b", "r"), ("d", "x")] {
            let (places, order, claim) = (places.clone(), order.clone(), claim(who, what, 4));
            tasks.push(tokio::spawn(async move {
                let _place = places.enter_as(claim).await;
                order.lock().expect("order").push(who);
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!(places.waiting(), 4);
        held.remove(0);
        for task in tasks {
            task.await.expect("ended");
        }
        assert_eq!(order.lock().expect("order").first(), Some(&"d"));
        held.clear();
        let full = |what: &str| vec![("x".to_owned(), 4), (what.to_owned(), 1)];
        let _first = places.enter_as(full("one")).await;
        let waits = tokio::spawn({
            let (places, claim) = (places.clone(), full("one"));
            async move { drop(places.enter_as(claim).await) }
        });
        tokio::task::yield_now().await;
        assert_eq!(places.waiting(), 1, "control: an equal claim waits");
        let other = tokio::time::timeout(Duration::from_millis(20), places.enter_as(full("two"))).await;
        assert!(other.is_ok(), "no other waits behind it");
        waits.abort();
    }
}
