//! Places: a fair semaphore. One key holds at most `each` of the places, and keys that wait take turns.
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
    waiting: VecDeque<(String, VecDeque<oneshot::Sender<Place>>)>,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    key: String,
}

impl Places {
    pub fn new(all: usize, each: usize) -> Arc<Places> {
        let state = State { free: all, held: HashMap::new(), waiting: VecDeque::new() };
        Arc::new(Places { state: Mutex::new(state), each })
    }

    /// Waits for a place. Dropping the future ends the wait and takes no place.
    pub async fn enter(self: &Arc<Self>, key: &str) -> Place {
        let waiting = {
            let mut state = lock(&self.state);
            if state.has_room(key, self.each) && !state.waiting.iter().any(|(other, _)| other == key) {
                return self.take(&mut state, key);
            }
            let (send, receive) = oneshot::channel();
            match state.waiting.iter_mut().find(|(other, _)| other == key) {
                Some((_, queue)) => queue.push_back(send),
                None => state.waiting.push_back((key.to_owned(), VecDeque::from([send]))),
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
        let mut state = lock(&self.state);
        state.has_room(key, self.each).then(|| self.take(&mut state, key))
    }

    fn take(self: &Arc<Self>, state: &mut State, key: &str) -> Place {
        state.free -= 1;
        *state.held.entry(key.to_owned()).or_default() += 1;
        Place { places: Arc::clone(self), key: key.to_owned() }
    }

    /// Gives free places to waiters.
    fn hand_out(self: &Arc<Self>, state: &mut State) -> Vec<(oneshot::Sender<Place>, Place)> {
        let mut given = Vec::new();
        state.waiting.retain_mut(|(_, queue)| {
            queue.retain(|waiter| !waiter.is_closed());
            !queue.is_empty()
        });
        while let Some(at) = state.waiting.iter().position(|(key, _)| state.has_room(key, self.each)) {
            let Some((key, mut queue)) = state.waiting.remove(at) else { break };
            if let Some(waiter) = queue.pop_front() {
                given.push((waiter, self.take(state, &key)));
            }
            // The other waiters of this key wait until every other key had its turn.
            if !queue.is_empty() {
                state.waiting.push_back((key, queue));
            }
        }
        given
    }
}

impl State {
    fn has_room(&self, key: &str, each: usize) -> bool {
        self.free > 0 && self.held.get(key).is_none_or(|held| *held < each)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let given = {
            let mut state = lock(&self.places.state);
            state.free += 1;
            if let Some(held) = state.held.get_mut(&self.key) {
                *held -= 1;
                if *held == 0 {
                    state.held.remove(&self.key);
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
}
