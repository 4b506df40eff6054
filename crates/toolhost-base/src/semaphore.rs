//! A fair, weighted semaphore with a limit for each key (a principal, a tool). A claim lists the
//! keys that a waiter's permits count against. Free permits go to the claim whose keys hold the
//! fewest. Only waiters with equal claims queue behind one another.

use super::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::task::JoinError;

#[derive(Debug)]
pub struct FairSemaphore {
    state: Mutex<SemaphoreState>,
    /// How many permits there are in all.
    pub all: usize,
    /// The default limit of one key.
    pub each: usize,
    share: Share,
}

#[derive(Debug, Default)]
struct SemaphoreState {
    in_use: HashMap<String, usize>,
    /// Waiting claims in round-robin order. Each has its waiters, with the permits they need, in
    /// order of arrival.
    waiting: VecDeque<(Claim, Queue)>,
}

type Queue = VecDeque<(usize, oneshot::Sender<Permit>)>;

/// How many permits a key may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    AtMost(usize),
    /// As many as are still free after it, so that nobody takes the last of them.
    WhatStaysFree,
}

/// The keys that a permit counts against, from the widest, of which all permits are, to the
/// narrowest.
pub type Claim = Vec<(String, Share)>;

/// Makes a claim: at most `all` permits in all, and at most the given number for each key.
pub fn claim(all: usize, keys: impl IntoIterator<Item = (String, usize)>) -> Claim {
    let keys = keys
        .into_iter()
        .map(|(key, most)| (format!("of {key}"), Share::AtMost(most)));
    [("all".to_owned(), Share::AtMost(all))]
        .into_iter()
        .chain(keys)
        .collect()
}

/// One permit or more, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    semaphore: Arc<FairSemaphore>,
    pub(super) claim: Claim,
    pub(super) size: usize,
}

/// One waiter in a queue. Dropping it ends the wait.
struct Waiter<'p>(&'p Arc<FairSemaphore>, oneshot::Receiver<Permit>);

impl FairSemaphore {
    pub fn new(all: usize, each: usize) -> Arc<FairSemaphore> {
        Arc::new(FairSemaphore {
            state: Mutex::default(),
            all,
            each,
            share: Share::AtMost(each),
        })
    }

    /// A semaphore of which each key may have what stays free.
    pub fn shared(all: usize) -> Arc<FairSemaphore> {
        Arc::new(FairSemaphore {
            state: Mutex::default(),
            all,
            each: all,
            share: Share::WhatStaysFree,
        })
    }

    pub fn claim_for(&self, key: &str) -> Claim {
        self.claim_unless_alone(key, false)
    }

    /// The claim of a key. `is_alone`: nobody else can have any, so the key may have all.
    pub fn claim_unless_alone(&self, key: &str, is_alone: bool) -> Claim {
        let mut claim = claim(self.all, []);
        claim.extend((!is_alone).then(|| (format!("of {key}"), self.share)));
        claim
    }

    /// Waits for one permit. Dropping the future ends the wait and takes no permit.
    pub async fn enter(self: &Arc<Self>, key: &str) -> Permit {
        self.enter_as(self.claim_for(key), 1).await
    }

    /// Does work on a thread of its own, when this key gets a permit. The work keeps the permit until
    /// it is done, also where nobody waits for it any more.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        key: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let permit = self.enter(key).await;
        tokio::task::spawn_blocking(move || (work(), permit).0).await
    }

    /// Waits for so many permits. A claim of no permits waits only behind equal claims.
    pub async fn enter_as(self: &Arc<Self>, claim: Claim, size: usize) -> Permit {
        let (send, receive) = oneshot::channel();
        let mut waiter = Waiter(self, receive);
        self.hand_out(
            |state| match state.waiting.iter_mut().find(|(other, _)| *other == claim) {
                Some((_, queue)) => queue.push_back((size, send)),
                None => state
                    .waiting
                    .push_back((claim, VecDeque::from([(size, send)]))),
            },
        );
        match (&mut waiter.1).await {
            Ok(permit) => permit,
            // A sender is dropped unused only where its receiver is gone.
            Err(_) => std::future::pending().await,
        }
    }

    /// Takes permits if they are free now. Never waits.
    pub fn try_enter(self: &Arc<Self>, key: &str, size: usize) -> Option<Permit> {
        self.try_enter_as(&self.claim_for(key), size)
    }

    pub fn try_enter_as(self: &Arc<Self>, claim: &Claim, size: usize) -> Option<Permit> {
        let mut permit = self.none();
        permit.charge(claim, size).is_ok().then_some(permit)
    }

    /// A permit of no size, which counts against no key.
    pub fn none(self: &Arc<Self>) -> Permit {
        Permit {
            semaphore: self.clone(),
            claim: Claim::new(),
            size: 0,
        }
    }

    pub fn waiting(&self) -> usize {
        lock(&self.state)
            .waiting
            .iter()
            .map(|(_, queue)| queue.len())
            .sum()
    }

    /// Changes the state, then hands free permits to waiters.
    fn hand_out<T>(self: &Arc<Self>, change: impl FnOnce(&mut SemaphoreState) -> T) -> T {
        let mut granted = Vec::new();
        let changed = {
            let mut state = lock(&self.state);
            let changed = change(&mut state);
            // Remove waiters that gave up.
            state.waiting.retain_mut(|(_, queue)| {
                queue.retain(|(_, waiter)| !waiter.is_closed());
                !queue.is_empty()
            });
            while let Some((claim, mut queue)) =
                state.next().and_then(|at| state.waiting.remove(at))
            {
                if let Some((size, to)) = queue.pop_front() {
                    state.add(&claim, size);
                    granted.push((
                        to,
                        Permit {
                            semaphore: self.clone(),
                            claim: claim.clone(),
                            size,
                        },
                    ));
                }
                // The claim's other waiters go behind all other claims.
                if !queue.is_empty() {
                    state.waiting.push_back((claim, queue));
                }
            }
            changed
        };
        for (to, permit) in granted {
            // If the waiter left just now, its permit is dropped here and goes to the next.
            let _ = to.send(permit);
        }
        changed
    }
}

impl SemaphoreState {
    fn in_use(&self, key: &str) -> usize {
        self.in_use.get(key).copied().unwrap_or_default()
    }

    /// The narrowest key of the claim that has no room for `size` more permits.
    fn full<'c>(&self, claim: &'c Claim, size: usize) -> Option<&'c str> {
        let in_use = |key: &str| self.in_use(key) + size;
        claim
            .iter()
            .rev()
            .find(
                |(key, share): &&(String, Share)| match (share, claim.first()) {
                    (Share::AtMost(most), _) => in_use(key) > *most,
                    (Share::WhatStaysFree, Some((all, Share::AtMost(most)))) => {
                        in_use(key) + in_use(all) > *most
                    }
                    (Share::WhatStaysFree, _) => true,
                },
            )
            .map(|(key, _)| key.as_str())
    }

    fn add(&mut self, claim: &Claim, size: usize) {
        claim
            .iter()
            .for_each(|(key, _)| *self.in_use.entry(key.clone()).or_default() += size);
    }

    fn remove(&mut self, claim: &Claim, size: usize) {
        for (key, _) in claim {
            if let Some(count) = self.in_use.get_mut(key) {
                *count -= size;
                if *count == 0 {
                    self.in_use.remove(key);
                }
            }
        }
    }

    /// The index of the waiting claim to serve next.
    fn next(&self) -> Option<usize> {
        let ready = self
            .waiting
            .iter()
            .enumerate()
            .filter(|(_, (claim, queue))| self.full(claim, queue[0].0).is_none());
        ready
            .min_by_key(|(_, (claim, _))| {
                claim
                    .iter()
                    .map(|(key, _)| self.in_use(key))
                    .collect::<Vec<_>>()
            })
            .map(|(at, _)| at)
    }
}

impl Permit {
    /// Moves this permit to another claim and size. `Err`: the key that has no room; nothing has
    /// changed.
    pub fn charge<'c>(&mut self, claim: &'c Claim, size: usize) -> Result<(), &'c str> {
        self.semaphore.clone().hand_out(|state| {
            state.remove(&self.claim, self.size);
            let full = state.full(claim, size);
            if full.is_none() {
                (self.claim, self.size) = (claim.clone(), size);
            }
            state.add(&self.claim, self.size);
            full.map_or(Ok(()), Err)
        })
    }

    /// Changes the size of this permit. False: the new size does not fit, and nothing has changed.
    pub fn resize(&mut self, size: usize) -> bool {
        self.charge(&self.claim.clone(), size).is_ok()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.1.close();
        // Waiters behind this one may fit now.
        self.0.hand_out(|_| {});
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let _ = self.charge(&Claim::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;

    #[test]
    fn equal_claims_take_turns_and_whoever_holds_the_fewest_goes_first() {
        let semaphore = FairSemaphore::new(2, 2);
        let claim = |who: &str| semaphore.claim_for(who);
        let _held = semaphore
            .enter_as(claim("a"), 1)
            .now_or_never()
            .expect("room");
        let first = semaphore.enter("x").now_or_never().expect("room");
        let mut waits = ["a", "a", "b", "c"].map(|who| Box::pin(semaphore.enter_as(claim(who), 1)));
        let mut poll = || {
            waits
                .iter_mut()
                .map(|wait| wait.now_or_never())
                .collect::<Vec<_>>()
        };
        assert!(poll().iter().all(Option::is_none) && semaphore.waiting() == 4);
        drop(first);
        let mut order = Vec::new();
        for _ in 0..4 {
            let given = waits
                .iter_mut()
                .position(|wait| wait.now_or_never().is_some());
            order.extend(given.map(|at| ["a", "a", "b", "c"][at]));
            if let Some(at) = given {
                waits[at] = Box::pin(semaphore.enter_as(super::claim(0, []), 1));
            }
        }
        assert_eq!(order, ["b", "c", "a", "a"]);
    }

    #[test]
    fn whoever_takes_what_it_can_leaves_others_as_much_as_it_has() {
        let semaphore = FairSemaphore::shared(64);
        let take = |who: &str, size| {
            std::iter::from_fn(|| semaphore.try_enter(who, size)).collect::<Vec<_>>()
        };
        let (first, second, third) = (take("a", 1), take("b", 1), take("c", 1));
        assert_eq!(
            [first.len(), second.len(), third.len()],
            [32, 16, 8],
            "each leaves as much as it takes"
        );
        let alone = semaphore.claim_unless_alone("a", true);
        assert!(
            semaphore.try_enter_as(&alone, 8).is_some(),
            "where nobody else can come"
        );
        drop((first, second, third));
        let turns: Vec<_> = (0..64)
            .map_while(|n| semaphore.try_enter(["a", "b", "c"][n % 3], 1))
            .collect();
        assert_eq!(turns.len(), 48, "three that grow together leave a quarter");
    }

    #[test]
    fn a_large_claim_is_waited_for_by_equal_ones_until_it_is_given_up() {
        let semaphore = FairSemaphore::new(8, 8);
        let _held = semaphore
            .try_enter_as(&semaphore.claim_for("a"), 5)
            .expect("room");
        let mut large = Box::pin(semaphore.enter_as(semaphore.claim_for("a"), 4));
        assert!((&mut large).now_or_never().is_none());
        let mut none = pin!(semaphore.enter_as(semaphore.claim_for("a"), 0));
        assert!(
            (&mut none).now_or_never().is_none() && semaphore.enter("b").now_or_never().is_some()
        );
        drop(large);
        assert!(none.now_or_never().is_some());
    }
}
