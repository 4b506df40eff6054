//! Places: a fair semaphore. A claim counts against keys, each of which holds at most so many of the places; claims that
//! wait take turns by what they wait for, first those whose keys, in their order, hold the fewest places.
//!
//! For: calls that run at once, compilers, readers, workers. In: the key whose work it is. Out: a place, given back
//! when dropped. Never: lets a waiter of a full key hold up another key.

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
    /// Waiting keys in the order of their turns, each with its waiters in the order of arrival.
    waiting: VecDeque<(String, VecDeque<Waiter>)>,
}

type Waiter = (Claim, oneshot::Sender<Place>);

/// What a place is for.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Claims of one kind wait behind one another.
    pub turn: String,
    /// The keys it counts against, each with the most places it may hold.
    pub counts: Vec<(String, usize)>,
}

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
        Claim { turn: key.to_owned(), counts: vec![(key.to_owned(), self.each)] }
    }

    /// Waits for a place. Dropping the future ends the wait and takes no place.
    pub async fn enter(self: &Arc<Self>, key: &str) -> Place {
        self.enter_as(self.claim(key)).await
    }

    /// The same for a claim.
    pub async fn enter_as(self: &Arc<Self>, claim: Claim) -> Place {
        let waiting = {
            let mut state = lock(&self.state);
            if state.has_room(&claim) && !state.waiting.iter().any(|(turn, _)| *turn == claim.turn) {
                return self.take(&mut state, &claim);
            }
            let (send, receive) = oneshot::channel();
            match state.waiting.iter_mut().find(|(turn, _)| *turn == claim.turn) {
                Some((_, queue)) => queue.push_back((claim, send)),
                None => state.waiting.push_back((claim.turn.clone(), VecDeque::from([(claim, send)]))),
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

    /// The same for a claim.
    pub fn try_enter_as(self: &Arc<Self>, claim: &Claim) -> Option<Place> {
        let mut state = lock(&self.state);
        state.has_room(claim).then(|| self.take(&mut state, claim))
    }

    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.iter().map(|(_, queue)| queue.len()).sum()
    }

    fn take(self: &Arc<Self>, state: &mut State, claim: &Claim) -> Place {
        state.free -= 1;
        let keys: Vec<String> = claim.counts.iter().map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| *state.held.entry(key.clone()).or_default() += 1);
        Place { places: Arc::clone(self), keys }
    }

    /// Gives free places to waiters.
    fn hand_out(self: &Arc<Self>, state: &mut State) -> Vec<(oneshot::Sender<Place>, Place)> {
        let mut given = Vec::new();
        state.waiting.retain_mut(|(_, queue)| {
            queue.retain(|(_, waiter)| !waiter.is_closed());
            !queue.is_empty()
        });
        while let Some(at) = state.next() {
            let Some((turn, mut queue)) = state.waiting.remove(at) else { break };
            if let Some((claim, waiter)) = queue.pop_front() {
                given.push((waiter, self.take(state, &claim)));
            }
            // The others wait until everybody else had a turn.
            if !queue.is_empty() {
                state.waiting.push_back((turn, queue));
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
        self.free > 0 && claim.counts.iter().all(|(key, most)| self.held(key) < *most)
    }

    /// Whose turn it is.
    fn next(&self) -> Option<usize> {
        let heads = self.waiting.iter().enumerate().filter_map(|(at, (_, queue))| Some((at, &queue.front()?.0)));
        let ready = heads.filter(|(_, claim)| self.has_room(claim));
        let held = |claim: &Claim| claim.counts.iter().map(|(key, _)| self.held(key)).collect::<Vec<_>>();
        ready.min_by_key(|(_, claim)| held(claim)).map(|(at, _)| at)
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
        let claim = |who: &str, what: &str, most: usize| Claim {
            turn: format!("{who} {what}"),
            counts: vec![(who.to_owned(), most), (what.to_owned(), 4)],
        };
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
    }
}
