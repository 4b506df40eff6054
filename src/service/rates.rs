//! Rates: how many calls a minute somebody may make.
//!
//! For: the guard. In: a key and its limit. Out: yes, or how long to wait. Never: remembers more keys than it has room
//! for: then it refuses.

use crate::base::lock;
use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most keys that are remembered; half of them for one who authenticated, under whatever names.
const KEYS: usize = 10_000;
/// A limit of calls a minute is whole again after this long without a call.
const MINUTE: Duration = Duration::from_secs(60);

/// The time since some moment.
#[derive(Clone)]
pub(super) struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.now())
    }
}

impl Default for Clock {
    fn default() -> Clock {
        let began = Instant::now();
        Clock(Arc::new(move || began.elapsed()))
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Clock {
    pub fn time(&self) -> Duration {
        self.now()
    }

    /// A clock that stands, and what moves it.
    #[cfg(test)]
    pub fn standing() -> (Clock, impl Fn(Duration)) {
        let time = Arc::new(Mutex::new(Duration::ZERO));
        let read = time.clone();
        (Clock(Arc::new(move || *lock(&read))), move |by| *lock(&time) += by)
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>;

#[derive(Debug, Default)]
pub(super) struct Rates {
    clock: Clock,
    known: Mutex<HashMap<String, Rate>>,
}

#[derive(Debug)]
struct Rate {
    /// Who authenticated.
    through: String,
    per_minute: NonZeroU32,
    limiter: Limiter,
    /// When it was asked last.
    asked: Duration,
}

impl Rates {
    #[cfg(test)]
    fn new(clock: Clock) -> Rates {
        Rates { clock, known: Mutex::default() }
    }

    /// Counts one call. `through`: on whose account the key is remembered. `Err`: it is one too many, and when the next one is not.
    pub fn take(&self, key: &str, through: &str, per_minute: u32) -> Result<(), Duration> {
        let Some(per_minute) = NonZeroU32::new(per_minute) else { return Err(MINUTE) };
        let now = self.clock.now();
        let mut known = lock(&self.known);
        if known.len() >= KEYS / 2 && !known.contains_key(key) {
            known.retain(|_, rate| now.saturating_sub(rate.asked) < MINUTE);
            let own = known.values().filter(|rate| rate.through == through).count();
            if own >= KEYS / 2 || known.len() >= KEYS {
                return Err(MINUTE);
            }
        }
        let limiter = || RateLimiter::direct_with_clock(Quota::per_minute(per_minute), self.clock.clone());
        let fresh = || Rate { through: through.to_owned(), per_minute, limiter: limiter(), asked: now };
        let rate = known.entry(key.to_owned()).or_insert_with(fresh);
        if rate.per_minute != per_minute {
            *rate = fresh();
        }
        rate.asked = now;
        rate.limiter.check().map_err(|until| until.wait_time_from(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_a_minute_are_five_and_then_one_each_twelve_seconds() {
        let (clock, pass) = Clock::standing();
        let rates = Rates::new(clock);
        for _ in 0..5 {
            assert_eq!(rates.take("a", "", 5), Ok(()));
        }
        assert_eq!(rates.take("a", "", 5), Err(Duration::from_secs(12)));
        assert_eq!(rates.take("b", "", 5), Ok(()), "others are counted apart");
        pass(Duration::from_secs(11));
        assert_eq!(rates.take("a", "", 5), Err(Duration::from_secs(1)));
        pass(Duration::from_secs(1));
        assert_eq!(rates.take("a", "", 5), Ok(()));
        assert!(rates.take("a", "", 5).is_err());
        assert_eq!(rates.take("a", "", 6), Ok(()), "another limit begins anew");
    }

    #[test]
    fn keys_are_bounded_and_forgotten_when_they_are_whole_again() {
        let (clock, pass) = Clock::standing();
        let rates = Rates::new(clock);
        for key in 0..KEYS {
            let through = if key < KEYS / 2 { "a" } else { "b" };
            assert_eq!(rates.take(&key.to_string(), through, 5), Ok(()));
            if key + 1 == KEYS / 2 {
                assert!(rates.take("one more", "a", 5).is_err(), "others have room");
            }
        }
        assert!(rates.take("one more", "c", 5).is_err() && rates.take("0", "a", 5).is_ok());
        pass(MINUTE);
        assert_eq!(rates.take("one more", "a", 5), Ok(()));
        assert_eq!(lock(&rates.known).len(), 1);
    }
}
