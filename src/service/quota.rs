//! Admission control: rate limits, slots with a bounded queue, and every other quota of this host.
//!
//! A quota is charged to the principal, who authenticated: under whatever names it acts, it has at most its share. A call
//! is admitted, queued, or refused with a retryable `RateLimitError`.

use super::{Arguments, CallRequest, blocking};
use crate::base::places::{Claim, Place, Places};
use crate::base::shares::{IN_USE, Shares};
use crate::base::{json, lock};
use crate::fault::{Fault, Kind};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// Calls that run at once unless the settings say otherwise.
pub const RUNNING: usize = 64;
/// Calls that may wait behind them.
pub const WAITING: usize = 1024;
/// What one value costs in memory beside its text, about, bytes.
const NODE_BYTES: usize = 64;
/// How long to wait before another try where a queue or a quota is full.
const FULL: Duration = Duration::from_secs(1);
/// How long a call waits for room where answers to its principal are not read.
const UNREAD: Duration = Duration::from_secs(60);
/// So many refusals by policy of one caller in a minute are reported to the person who runs this host.
const ALERTS_PER_MINUTE: u32 = 10;
/// Refusals of one principal, for the number of its calls or of requests that lead to no call, recorded in a minute.
const RECORDED_PER_MINUTE: u32 = 60;
pub const MINUTE: Duration = Duration::from_secs(60);
/// Rates in use at once of names that one principal's requests bring, and of all other names together.
const RATES_BROUGHT: usize = 2_000;
const RATES: usize = 100_000;

/// What there is a bounded amount of, beside slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Memory for the arguments of admitted calls, KiB.
    Arguments,
    /// Bodies that are being read or parsed, KiB.
    Bodies,
    /// Answers that no client has read yet, and those that are kept for a client that comes back, bytes.
    Answers,
    Resumable,
    /// Calls that wait for a person's answer.
    Questions,
    /// Sessions and tasks of MCP.
    Sessions,
    Tasks,
}

impl Resource {
    /// How much of it there is, and the most that one principal has.
    const fn bounds(self) -> (usize, usize) {
        match self {
            Resource::Arguments => (256 * 1024, 192 * 1024),
            Resource::Bodies => (64 * 1024, 48 * 1024),
            Resource::Answers => (256 * 1024 * 1024, 64 * 1024 * 1024),
            Resource::Resumable => (64 * 1024 * 1024, 16 * 1024 * 1024),
            Resource::Questions => (128, 32),
            Resource::Sessions => (256, 192),
            Resource::Tasks => (32, 24),
        }
    }
}

/// An amount of a resource, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    taken: Arc<ResourceUse>,
    id: u64,
}

/// What is taken of each resource.
#[derive(Debug, Default)]
struct ResourceUse {
    /// By a number, and the last number.
    shares: Mutex<(Shares<u64, ()>, u64)>,
    /// Something was given back.
    freed: Notify,
}

/// An answer that waits for room, before others of its principal.
struct WaitingAnswer<'l> {
    place: Option<Place>,
    taken: &'l ResourceUse,
}

impl Drop for WaitingAnswer<'_> {
    fn drop(&mut self) {
        drop(self.place.take());
        self.taken.freed.notify_waiters();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.taken.shares).0.remove(&self.id);
        self.taken.freed.notify_waiters();
    }
}

/// The one limiter of a host.
#[derive(Debug)]
pub struct Limiter {
    running: Arc<Places>,
    admitted: Arc<Places>,
    /// Slots in all: of calls that run, and of those that run or wait.
    sizes: [usize; 2],
    /// The work of reading large bodies; the other cores are left to quick calls.
    readers: Arc<Places>,
    /// One place of each principal: of the answer that waits for room.
    unsent: Arc<Places>,
    taken: Arc<ResourceUse>,
    clock: Clock,
    /// Rates that are being used up, until they are whole again.
    rates: Mutex<Shares<String, ()>>,
    /// Refusals without a record, by principal, since the last with one.
    unrecorded: Mutex<HashMap<String, u64>>,
}

/// One limit a minute that a call counts against.
struct Counted {
    key: String,
    limit: u32,
    /// Whoever authenticated chose the name.
    brought: bool,
}

/// What one call is charged to.
#[derive(Clone, Debug, Default)]
pub struct Charge {
    pub principal: String,
    /// It runs this host: no slots are kept free of its calls.
    pub operator: bool,
    /// The principal's entry in the file of callers, and that of whom it acts as.
    pub entries: Vec<Limits>,
    /// Every tool that what runs belongs to.
    pub tools: Vec<Limits>,
}

/// The limits of one principal or tool.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub name: String,
    pub at_once: Option<u32>,
    pub per_minute: Option<u32>,
}

/// Held while a call runs, and until its answer is delivered where that may take long; then the next call may run.
#[derive(Debug)]
pub struct Slot {
    /// `None`: the call waits for a person, or for another call.
    running: Option<Place>,
    _admitted: Place,
    _arguments: Reservation,
}

impl Limiter {
    pub fn new(running: usize, waiting: usize) -> Limiter {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 4);
        let sizes = [running, running + waiting];
        let [running, admitted] = sizes.map(|all| Places::new(all, all));
        let readers = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        Limiter {
            running,
            admitted,
            sizes,
            readers: Places::new(readers, readers),
            unsent: Places::new(usize::MAX, 1),
            taken: Arc::default(),
            clock: Clock::default(),
            rates: Mutex::default(),
            unrecorded: Mutex::default(),
        }
    }

    /// Takes an amount of a resource. `None`: the principal has its share, or too little is left.
    pub fn take(&self, resource: Resource, principal: &str, amount: usize) -> Option<Reservation> {
        let (all, share) = resource.bounds();
        let mut shares = lock(&self.taken.shares);
        shares.1 += 1;
        let (id, name) = (shares.1, format!("{resource:?}"));
        let claim = vec![(name.clone(), all), (format!("{name} {principal}"), share)];
        shares.0.put(Duration::ZERO, id, (claim, amount), IN_USE, ()).ok()?;
        Some(Reservation { taken: self.taken.clone(), id })
    }

    /// Waits for room for an answer of so many bytes. Meanwhile no new call of the principal starts.
    pub async fn answer(&self, principal: &str, bytes: usize) -> Reservation {
        // Made first, so that calls are woken also where the wait is dropped with a place that was just handed over.
        let mut first = WaitingAnswer { place: None, taken: &self.taken };
        first.place = Some(self.unsent.enter(principal).await);
        // What is larger than a share has all of it.
        let bytes = bytes.min(Resource::Answers.bounds().1);
        self.freed(|| self.take(Resource::Answers, principal, bytes)).await
    }

    /// What `ready` gives, asked again whenever something was given back.
    async fn freed<T>(&self, ready: impl Fn() -> Option<T>) -> T {
        loop {
            let freed = self.taken.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match ready() {
                Some(given) => return given,
                None => freed.await,
            }
        }
    }

    /// Waits for a reader of bodies; principals take turns.
    pub async fn reader(&self, principal: &str) -> Place {
        self.readers.enter(principal).await
    }

    /// Calls that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.running.waiting()
    }

    /// Counts a call against the entries of its callers, before anything is looked at.
    pub fn arrives(&self, charge: &Charge, entries: &[Limits]) -> Result<(), Fault> {
        self.count("caller", charge, entries, |limit| format!("You may make {limit} calls a minute."))
    }

    /// Counts a call that is about to run against its tools: one that cannot run uses up nothing that others may have.
    pub fn starts(&self, charge: &Charge) -> Result<(), Fault> {
        self.count("tool", charge, &charge.tools, |limit| format!("This tool may be called {limit} times a minute."))
    }

    fn count(
        &self,
        kind: &str,
        charge: &Charge,
        limits: &[Limits],
        words: impl Fn(u32) -> String,
    ) -> Result<(), Fault> {
        let counted = |of: &Limits| {
            let brought = kind == "caller" && of.name != charge.principal;
            Some(Counted { key: format!("{kind} {}", of.name), limit: of.per_minute?, brought })
        };
        let limits: Vec<Counted> = limits.iter().filter_map(counted).collect();
        self.rate(&charge.principal, &limits).map_err(|(limit, wait)| {
            let seconds = wait.as_millis().div_ceil(1000);
            let message = format!("{} Try again in {seconds} s.", words(limit));
            Fault::new(Kind::RateLimitError, message).retry_after(wait)
        })
    }

    /// Counts one against each of these limits a minute, or against none where one of them is reached: which, and for how
    /// long.
    fn rate(&self, principal: &str, limits: &[Counted]) -> Result<(), (u32, Duration)> {
        let now = self.clock.now();
        let mut rates = lock(&self.rates);
        let mut next = Vec::new();
        for Counted { key, limit, brought } in limits {
            // Another limit begins anew.
            let key = format!("{key} {limit}");
            let step = MINUTE.checked_div(*limit).ok_or((*limit, MINUTE))?;
            let whole_at = rates.until(&key).map_or(now, |whole_at| whole_at.max(now)) + step;
            if whole_at > now + MINUTE {
                return Err((*limit, whole_at - now - MINUTE));
            }
            next.push((key, *limit, *brought, whole_at));
        }
        for (key, limit, brought, whole_at) in next {
            if rates.get(&key).is_some() {
                rates.keep(&key, whole_at);
                continue;
            }
            // A request can bring any number of names.
            let claim = if brought { (format!("by {principal}"), RATES_BROUGHT) } else { (String::new(), RATES) };
            rates.put(now, key, (vec![claim], 1), whole_at, ()).map_err(|()| (limit, MINUTE))?;
        }
        Ok(())
    }

    fn own_rate(&self, what: &str, principal: &str, limit: u32) -> bool {
        self.rate(principal, &[Counted { key: format!("{what} {principal}"), limit, brought: false }]).is_ok()
    }

    /// Counts a refusal by policy; true where there are so many that somebody should look, once a minute.
    pub fn alarms(&self, principal: &str) -> bool {
        !self.own_rate("refused", principal, ALERTS_PER_MINUTE) && self.own_rate("alert", principal, 1)
    }

    /// Counts a refusal of which there may be many. `Ok`: it is recorded, with how many before it were not. `Err`: it is
    /// not; so many wait for the next record.
    pub fn recorded(&self, principal: &str) -> Result<u64, u64> {
        if self.own_rate("recorded", principal, RECORDED_PER_MINUTE) {
            return Ok(lock(&self.unrecorded).remove(principal).unwrap_or_default());
        }
        let mut unrecorded = lock(&self.unrecorded);
        let count = unrecorded.entry(principal.to_owned()).or_default();
        *count += 1;
        Err(*count)
    }

    /// Takes the refusals without a record, of one principal or of all.
    pub fn unrecorded(&self, principal: Option<&str>) -> Vec<(String, u64)> {
        let mut unrecorded = lock(&self.unrecorded);
        unrecorded.extract_if(|name, _| principal.is_none_or(|one| one == name)).collect()
    }

    /// Waits for a slot, in order among equal calls and by turns with others; refuses at once where
    /// too many wait already, or too much.
    pub async fn enter(&self, request: &mut CallRequest, charge: &Charge) -> Result<Slot, Fault> {
        let full = || {
            let message = "Too many calls are waiting in this host.";
            Fault::new(Kind::RateLimitError, message).retry_after(FULL)
        };
        let [running, admitted] = self.sizes;
        // However few of them run at once, more may wait.
        let admitted = self.admitted.try_enter_as(&charge.claim(admitted, |_| None)).ok_or_else(full)?;
        let arguments = std::mem::take(&mut request.arguments);
        let until = blocking::Until::usual(Instant::now(), request.timeout_ms);
        let weighed = until.run(arguments.are_long(), move || (weight(&arguments), arguments));
        let (bytes, arguments) = weighed.await?;
        request.arguments = arguments;
        // What is larger than a share has all of it.
        let kib = (bytes / 1024).min(Resource::Arguments.bounds().1);
        let reserved = self.take(Resource::Arguments, &charge.principal, kib).ok_or_else(full)?;
        let running = loop {
            let none_waits = || self.unsent.has_room(&charge.principal).then_some(());
            tokio::time::timeout(UNREAD, self.freed(none_waits)).await.map_err(|_| {
                let message = "An earlier answer to you still waits for memory of this host: read the answers that are \
                               open, or make the call again later.";
                Fault::new(Kind::RateLimitError, message).retry_after(FULL)
            })?;
            let slot = self.running.enter_as(charge.claim(running, |of| of.at_once)).await;
            // An answer may have begun to wait meanwhile.
            if none_waits().is_some() {
                break slot;
            }
        };
        Ok(Slot { running: Some(running), _admitted: admitted, _arguments: reserved })
    }

    /// Charges a slot to more tools, where they have room.
    pub fn charge_also(&self, slot: &mut Slot, charge: &Charge) -> bool {
        let claim = charge.claim(self.sizes[0], |of| of.at_once);
        slot.running.as_mut().is_some_and(|running| running.charge_also(&claim))
    }

    /// Waits for a slot again, for a call that stepped aside, at most this long.
    pub async fn comes_back(&self, slot: &mut Slot, charge: &Charge, at_most: Duration) -> Result<(), Fault> {
        let place = self.running.enter_as(charge.claim(self.sizes[0], |of| of.at_once));
        let place = tokio::time::timeout(at_most, place).await.map_err(|_| {
            let message = format!("No slot for this call was free for {} s.", at_most.as_secs_f32());
            Fault::new(Kind::RateLimitError, message).retry_after(FULL)
        })?;
        slot.running = Some(place);
        Ok(())
    }
}

impl Slot {
    /// Others may run while this call waits for something else than them.
    pub(super) fn step_aside(&mut self) {
        self.running = None;
    }
}

impl Charge {
    /// Of one principal at most seven eighths, of one tool three quarters: the rest is for others.
    fn claim(&self, all: usize, at_once: impl Fn(&Limits) -> Option<u32>) -> Claim {
        let own = if self.operator { all } else { all - all / 8 };
        let limit = |of: &Limits| at_once(of).and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let entries = self.entries.iter().map(|of| (format!("caller {}", of.name), limit(of)));
        let tools = self.tools.iter().map(|of| (format!("tool {}", of.name), limit(of).min(all - all / 4)));
        [(format!("principal {}", self.principal), own)].into_iter().chain(entries).chain(tools).collect()
    }
}

/// About how many bytes arguments take in memory while they wait. A text counts as the tree that it becomes.
fn weight(arguments: &Arguments) -> usize {
    match arguments {
        Arguments::Text(text) => json::weight(text),
        Arguments::Strings(pairs) => pairs.iter().map(|(name, value)| name.len() + value.len() + NODE_BYTES).sum(),
        Arguments::Value(value) | Arguments::Inputs { texts: value, .. } => {
            let as_text = matches!(arguments, Arguments::Inputs { .. });
            let (mut sum, mut open) = (0usize, vec![value]);
            while let Some(value) = open.pop() {
                sum += NODE_BYTES;
                match value {
                    Value::String(text) => sum += if as_text { json::weight(text) } else { text.len() },
                    Value::Array(items) => open.extend(items),
                    Value::Object(fields) => {
                        sum += fields.keys().map(|name| name.len() + NODE_BYTES).sum::<usize>();
                        open.extend(fields.values());
                    }
                    Value::Null | Value::Bool(_) | Value::Number(_) => {}
                }
            }
            sum
        }
    }
}

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

impl Clock {
    pub fn now(&self) -> Duration {
        (self.0)()
    }

    /// A clock that stands, and what moves it.
    #[cfg(test)]
    pub fn standing() -> (Clock, impl Fn(Duration)) {
        let time = Arc::new(Mutex::new(Duration::ZERO));
        let read = time.clone();
        (Clock(Arc::new(move || *lock(&read))), move |by| *lock(&time) += by)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Caller;
    use super::*;

    fn charge(principal: &str, tool: &str) -> Charge {
        let of = |name: &str| vec![Limits { name: name.to_owned(), ..Limits::default() }];
        Charge { principal: principal.to_owned(), operator: false, entries: of(principal), tools: of(tool) }
    }

    async fn entered(limiter: &Limiter, arguments: Value, charge: &Charge) -> Result<Slot, Fault> {
        let mut request = CallRequest::new(Caller::named("u"), "t:x", Arguments::Value(arguments));
        limiter.enter(&mut request, charge).await
    }

    #[tokio::test]
    async fn one_runs_one_waits_the_third_is_refused() {
        let limiter = Arc::new(Limiter::new(1, 1));
        let first = entered(&limiter, Value::Null, &charge("u", "t:x")).await.unwrap();
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { entered(&limiter, Value::Null, &charge("u", "t:x")).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let third = entered(&limiter, Value::Null, &charge("u", "t:x")).await.expect_err("full");
        assert!(third.kind == Kind::RateLimitError && third.retryable);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_principal_has_its_share_under_whatever_names() {
        let limiter = Limiter::new(16, 0);
        let mut slots = Vec::new();
        let named = |n: usize| {
            let mut charge = charge("u", &format!("t:{n}"));
            charge.entries.push(Limits { name: format!("label {n}"), ..Limits::default() });
            charge
        };
        for n in 0..14 {
            slots.push(entered(&limiter, Value::Null, &named(n)).await.expect("room"));
        }
        assert!(entered(&limiter, Value::Null, &named(14)).await.is_err());
        assert!(entered(&limiter, Value::Null, &charge("w", "t:y")).await.is_ok(), "what is left is for others");
        let large = || Value::Array(vec![Value::from(0); 2_000_000]);
        let limiter = Limiter::new(64, 64);
        let first = entered(&limiter, large(), &named(1)).await.unwrap();
        assert!(entered(&limiter, large(), &named(2)).await.is_err(), "under another name it has no more");
        let _second = entered(&limiter, large(), &charge("w", "t:x")).await.unwrap();
        assert!(entered(&limiter, large(), &charge("x", "t:x")).await.is_err(), "all is taken");
        assert!(entered(&limiter, Value::Null, &named(3)).await.is_ok(), "small ones go on");
        drop(first);
        assert!(entered(&limiter, large(), &named(4)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_read_slowly_refuse_calls_and_do_not_hold_them_up() {
        let limiter = Limiter::new(16, 0);
        let _unread = limiter.take(Resource::Answers, "u", Resource::Answers.bounds().1).expect("room");
        let next = limiter.answer("u", 1);
        tokio::pin!(next);
        assert!(futures_util::poll!(&mut next).is_pending());
        let refused = entered(&limiter, Value::Null, &charge("u", "t:x")).await.expect_err("no room");
        assert!(refused.kind == Kind::RateLimitError && refused.retryable);
        assert!(entered(&limiter, Value::Null, &charge("v", "t:x")).await.is_ok(), "control: another principal");
    }

    #[test]
    fn five_a_minute_are_five_and_then_one_each_twelve_seconds() {
        let (clock, pass) = Clock::standing();
        let limiter = Limiter { clock, ..Limiter::new(1, 1) };
        let of = |principal: &str, keys: &[&str], limit: u32| {
            let counted = |key: &&str| Counted { key: (*key).to_owned(), limit, brought: true };
            limiter.rate(principal, &keys.iter().map(counted).collect::<Vec<_>>()).map_err(|(_, wait)| wait.as_secs())
        };
        let one = |keys: &[&str], limit: u32| of("p", keys, limit);
        for _ in 0..5 {
            assert_eq!(one(&["a"], 5), Ok(()));
        }
        assert_eq!(one(&["a"], 5), Err(12));
        assert_eq!((one(&["b", "a"], 5), one(&["b"], 5)), (Err(12), Ok(())), "others are counted apart");
        pass(Duration::from_secs(11));
        assert_eq!(one(&["a"], 5), Err(1));
        pass(Duration::from_secs(1));
        assert_eq!((one(&["a"], 5), one(&["a"], 5).is_err()), (Ok(()), true));
        assert_eq!((one(&["a"], 6), one(&["a"], 0)), (Ok(()), Err(60)), "another limit begins anew");
        // What a principal brings is bounded, and forgotten when it is whole again.
        for principal in ["p", "q"] {
            let made = (0..=RATES_BROUGHT).filter(|n| of(principal, &[&format!("{principal} {n}")], 5).is_ok()).count();
            assert!(made <= RATES_BROUGHT && of(principal, &["more"], 5).is_err());
        }
        assert_eq!((of("r", &["x"], 5), one(&["a"], 5)), (Ok(()), Err(12)), "others have room; nothing is forgotten");
        assert!(limiter.own_rate("recorded", "p", 1), "what this host counts for itself has room, too");
        pass(MINUTE);
        assert_eq!(one(&["one more"], 5), Ok(()));
    }
}
