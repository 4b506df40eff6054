//! Admission control: rate limits, slots with a bounded queue, and every other quota of this host.
//!
//! A quota is charged to the principal, who authenticated: under whatever names it acts, it has at most its share. A
//! call is admitted, queued, or refused with a retryable `RateLimitError`.

use super::callers::Rights;
use super::{Arguments, CallRequest, blocking};
use crate::base::places::{Claim, Place, Places};
use crate::base::shares::{Shares, now};
use crate::base::{json, lock};
use crate::fault::{Fault, Kind};
use futures_util::FutureExt;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

pub const RUNNING: usize = 64;
/// Calls that may wait behind them.
pub const WAITING: usize = 1024;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Calls in the background that run, or whose callback is pending.
    Background,
}

/// How much there is of each resource, in the order of `Resource`, and the most that one principal has.
const BOUNDS: [(usize, usize); 8] = [
    (256 * 1024, 192 * 1024),
    (64 * 1024, 48 * 1024),
    (256 * 1024 * 1024, 64 * 1024 * 1024),
    (64 * 1024 * 1024, 16 * 1024 * 1024),
    (128, 32),
    (256, 192),
    (32, 24),
    (512, 128),
];

/// An amount of a resource, until it is dropped.
pub type Reservation = Place;

#[derive(Debug)]
pub struct Limiter {
    /// Slots of calls that run, and of those that run or wait.
    running: Arc<Places>,
    admitted: Arc<Places>,
    /// The work of reading large bodies; the other cores are left to quick calls.
    readers: Arc<Places>,
    resources: [Arc<Places>; BOUNDS.len()],
    /// Rates that are being used up, until they are whole again.
    rates: Mutex<Shares<String, ()>>,
    /// Refusals without a record, by principal, since the last with one.
    unrecorded: Mutex<HashMap<String, u64>>,
}

/// Held while a call runs, and until its answer is delivered where that may take long; then the next call may run.
#[derive(Debug)]
pub struct Slot {
    /// `None`: the call waits for a person, or for another call.
    running: Option<Place>,
    _admitted: Place,
    _arguments: Reservation,
}

fn full(message: impl Into<String>) -> Fault {
    Fault::new(Kind::RateLimitError, message).retry_after(FULL)
}

fn too_often(words: &str, wait: Duration) -> Fault {
    let seconds = wait.as_millis().div_ceil(1000);
    Fault::new(Kind::RateLimitError, format!("{words} Try again in {seconds} s.")).retry_after(wait)
}

impl Limiter {
    pub fn new(running: usize, waiting: usize) -> Limiter {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let admitted = running + waiting.min(Semaphore::MAX_PERMITS / 4);
        let readers = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        let [running, admitted, readers] = [running, admitted, readers].map(|all| Places::new(all, all));
        let resources = BOUNDS.map(|(all, share)| Places::new(all, share));
        Limiter { running, admitted, readers, resources, rates: Mutex::default(), unrecorded: Mutex::default() }
    }

    /// Takes an amount of a resource. `None`: the principal has its share, or too little is left.
    pub fn take(&self, resource: Resource, principal: &str, amount: usize) -> Option<Reservation> {
        let places = &self.resources[resource as usize];
        places.try_enter_as(&places.claim(principal), amount)
    }

    /// Waits for room for an answer of so many bytes. Meanwhile no new call of the principal starts.
    pub async fn answer(&self, principal: &str, bytes: usize) -> Reservation {
        let answers = &self.resources[Resource::Answers as usize];
        // What is larger than a share has all of it.
        answers.enter_as(answers.claim(principal), bytes.min(answers.each)).await
    }

    /// Waits for a reader of bodies; principals take turns.
    pub async fn reader(&self, principal: &str) -> Place {
        self.readers.enter(principal).await
    }

    pub fn waiting(&self) -> usize {
        self.running.waiting()
    }

    /// Counts a call against the entries of its callers, without the first `counted`, before anything is looked at.
    pub(super) fn arrives(&self, rights: &Rights, counted: usize) -> Result<(), Fault> {
        let rates = rights.entries().skip(counted).filter_map(|(name, rule)| {
            // Whoever authenticated chose any other name, and can bring any number of them.
            let brought = if *name == rights.principal { String::new() } else { format!("by {}", rights.principal) };
            Some((format!("caller {name}"), rule?.calls_per_minute?, brought))
        });
        let words = |limit| format!("You may make {limit} calls a minute.");
        self.rate(rates.collect()).map_err(|(limit, wait)| too_often(&words(limit), wait))
    }

    /// Counts a call that is about to run against its tools: one that cannot run uses up nothing that others may have.
    pub(super) fn starts(&self, rights: &Rights, tools: &[String]) -> Result<(), Fault> {
        let rate = |tool: &String| Some((format!("tool {tool}"), rights.limit(tool)?.calls_per_minute?, String::new()));
        let words = |limit| format!("This tool may be called {limit} times a minute.");
        self.rate(tools.iter().filter_map(rate).collect()).map_err(|(limit, wait)| too_often(&words(limit), wait))
    }

    /// Counts one against each of these names with a limit a minute, or against none where one of them is reached:
    /// which, and for how long. The third: what the name is charged to.
    fn rate(&self, counted: Vec<(String, u32, String)>) -> Result<(), (u32, Duration)> {
        let (now, mut rates, mut next) = (now(), lock(&self.rates), Vec::new());
        for (name, limit, claim) in counted {
            // A changed limit begins with a whole minute.
            let key = format!("{name} {limit}");
            let step = MINUTE.checked_div(limit).ok_or((limit, MINUTE))?;
            let whole_at = rates.until(&key).map_or(now, |whole_at| whole_at.max(now)) + step;
            if whole_at > now + MINUTE {
                return Err((limit, whole_at - now - MINUTE));
            }
            next.push((key, limit, claim, whole_at));
        }
        for (key, limit, claim, whole_at) in next {
            if rates.get(&key).is_some() {
                rates.keep(&key, whole_at);
                continue;
            }
            let most = if claim.is_empty() { RATES } else { RATES_BROUGHT };
            rates.put(key, (vec![(claim, most)], 1), whole_at, ()).map_err(|()| (limit, MINUTE))?;
        }
        Ok(())
    }

    fn own_rate(&self, what: &str, principal: &str, limit: u32) -> bool {
        self.rate(vec![(format!("{what} {principal}"), limit, String::new())]).is_ok()
    }

    /// Counts a refusal by policy; true where there are so many that somebody should look, once a minute.
    pub fn alarms(&self, principal: &str) -> bool {
        !self.own_rate("refused", principal, ALERTS_PER_MINUTE) && self.own_rate("alert", principal, 1)
    }

    /// Whether one of many refusals is recorded: with so many before it that were not.
    pub fn recorded(&self, principal: &str) -> Option<u64> {
        let recorded = self.own_rate("recorded", principal, RECORDED_PER_MINUTE);
        recorded.then(|| lock(&self.unrecorded).remove(principal).unwrap_or_default())
    }

    /// Counts refusals without a record. True: they are the first since the last record.
    pub fn unrecorded(&self, principal: &str, count: u64) -> bool {
        let mut unrecorded = lock(&self.unrecorded);
        let known = unrecorded.entry(principal.to_owned()).or_default();
        *known += count;
        *known == count
    }

    /// Takes the refusals without a record, of one principal or of all.
    pub fn take_unrecorded(&self, principal: Option<&str>) -> Vec<(String, u64)> {
        let mut unrecorded = lock(&self.unrecorded);
        unrecorded.extract_if(|name, _| principal.is_none_or(|one| one == name)).collect()
    }

    /// Waits for a slot, in order among equal calls and by turns with others; refuses at once where
    /// too many wait already, or too much.
    pub(super) async fn enter(
        &self,
        request: &mut CallRequest,
        rights: &Rights,
        tools: &[String],
    ) -> Result<Slot, Fault> {
        let busy = || full("Too many calls are waiting in this host.");
        // However few of them run at once, more may wait.
        let admitted = self.admitted.try_enter_as(&claim(&self.admitted, rights, tools, false), 1).ok_or_else(busy)?;
        let arguments = std::mem::take(&mut request.arguments);
        let until = blocking::Until::usual(Instant::now(), request.timeout_ms);
        let weighed = until.run(arguments.are_long(), move || (weight(&arguments), arguments));
        let (bytes, arguments) = weighed.await?;
        request.arguments = arguments;
        // What is larger than a share has all of it.
        let kib = (bytes / 1024).min(BOUNDS[Resource::Arguments as usize].1);
        let reserved = self.take(Resource::Arguments, &rights.principal, kib).ok_or_else(busy)?;
        let running = loop {
            // Behind the answers that wait for room.
            let answered = || self.answer(&rights.principal, 0);
            tokio::time::timeout(UNREAD, answered()).await.map_err(|_| {
                full(
                    "An earlier answer to you still waits for memory of this host: read the answers that are open, or \
                     make the call again later.",
                )
            })?;
            let slot = self.running.enter_as(claim(&self.running, rights, tools, true), 1).await;
            // An answer may have begun to wait meanwhile.
            if answered().now_or_never().is_some() {
                break slot;
            }
        };
        Ok(Slot { running: Some(running), _admitted: admitted, _arguments: reserved })
    }

    /// Charges a slot to more tools. False: one of them has no room now.
    pub(super) fn charge_also(&self, slot: &mut Slot, rights: &Rights, tools: &[String]) -> bool {
        let claim = claim(&self.running, rights, tools, true);
        slot.running.as_mut().is_none_or(|running| running.charge_also(&claim))
    }

    /// Waits for a slot again, for a call that stepped aside, at most this long.
    pub(super) async fn comes_back(
        &self,
        slot: &mut Slot,
        (rights, tools): (&Rights, &[String]),
        at_most: Duration,
    ) -> Result<(), Fault> {
        let place = self.running.enter_as(claim(&self.running, rights, tools, true), 1);
        let place = tokio::time::timeout(at_most, place).await;
        let late = |_| full(format!("No slot for this call was free for {} s.", at_most.as_secs_f32()));
        slot.running = Some(place.map_err(late)?);
        Ok(())
    }
}

impl Slot {
    /// Others may run while this call waits for something else than them.
    pub(super) fn step_aside(&mut self) {
        self.running = None;
    }
}

/// What a slot counts against. Of one principal at most seven eighths, of one tool three quarters: the rest is for
/// others, except from whoever runs this host. `limited`: also to what the file of callers allows at once.
fn claim(slots: &Places, rights: &Rights, tools: &[String], limited: bool) -> Claim {
    let all = slots.each;
    let most = |limit: Option<u32>| limit.filter(|_| limited).map_or(usize::MAX, |limit| limit as usize);
    let own = if rights.caller.operator { all } else { all - all / 8 };
    let entries =
        rights.entries().map(|(name, rule)| (format!("caller {name}"), most(rule.and_then(|rule| rule.at_once))));
    let tools = tools.iter().map(|tool| {
        let limit = most(rights.limit(tool).and_then(|limit| limit.at_once));
        (format!("tool {tool}"), limit.min(all - all / 4))
    });
    [(format!("principal {}", rights.principal), own)].into_iter().chain(entries).chain(tools).collect()
}

/// About how many bytes arguments take in memory as a tree. Texts that are read as JSON later count as what they hold.
fn weight(arguments: &Arguments) -> usize {
    match arguments {
        Arguments::Text(text) => json::weight(text),
        Arguments::Value(value) => json::weight(&value.to_string()),
        Arguments::Inputs { texts, .. } => weight_of_texts(texts),
        Arguments::Strings(pairs) => pairs.iter().map(|(name, value)| name.len() + json::weight(value)).sum(),
    }
}

/// Any text of an input may be read as JSON.
fn weight_of_texts(value: &Value) -> usize {
    match value {
        Value::String(text) => json::weight(text),
        Value::Array(items) => items.iter().map(weight_of_texts).sum(),
        Value::Object(fields) => fields.iter().map(|(name, field)| name.len() + weight_of_texts(field)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Caller;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_principal_has_its_share_under_whatever_names() {
        let enter = async |limiter: &Limiter, principal: &str, label: usize, bytes: usize| {
            let (callers, caller, principal) = (None, Caller::named(label.to_string()), principal.to_owned());
            let rights = Rights { callers, caller, principal };
            let arguments = Arguments::Text(format!("[{}{{}}]", "{},".repeat(bytes)));
            let mut request = CallRequest::new(Caller::named("u"), "t:x", arguments);
            limiter.enter(&mut request, &rights, &[format!("t:{label}")]).await
        };
        let limiter = Limiter::new(16, 0);
        let mut slots = Vec::new();
        for n in 0..14 {
            slots.push(enter(&limiter, "u", n, 0).await.expect("room"));
        }
        let refused = enter(&limiter, "u", 14, 0).await.expect_err("its share");
        assert!(refused.kind == Kind::RateLimitError && refused.retryable);
        assert!(enter(&limiter, "w", 1, 0).await.is_ok(), "what is left is for others");
        let limiter = Limiter::new(64, 64);
        let large = 500_000;
        let first = enter(&limiter, "u", 1, large).await.expect("room");
        assert!(enter(&limiter, "u", 2, large).await.is_err(), "under another name it has no more");
        assert!(enter(&limiter, "u", 3, 0).await.is_ok(), "small ones go on");
        drop(first);
        assert!(enter(&limiter, "u", 4, large).await.is_ok());
        // Answers that are not read refuse calls of their principal.
        let _unread = limiter.answer("u", usize::MAX).await;
        let mut next = Box::pin(limiter.answer("u", 1));
        assert!((&mut next).now_or_never().is_none() && enter(&limiter, "u", 1, 0).await.is_err());
        assert!(enter(&limiter, "v", 1, 0).await.is_ok(), "control: another principal");
    }

    #[tokio::test(start_paused = true)]
    async fn five_a_minute_are_five_and_then_one_each_twelve_seconds() {
        let limiter = Limiter::new(1, 1);
        let count = |by: &str, names: &[&str], limit: u32| {
            let counted = names.iter().map(|name| ((*name).to_owned(), limit, by.to_owned())).collect();
            limiter.rate(counted).map_err(|(_, wait)| wait.as_millis().div_ceil(1000))
        };
        assert!((0..5).all(|_| count("p", &["a"], 5).is_ok()));
        assert_eq!(count("p", &["b", "a"], 5), Err(12));
        assert_eq!(count("p", &["b"], 5), Ok(()), "others are counted apart, and nothing for a refusal");
        tokio::time::advance(Duration::from_secs(12)).await;
        assert_eq!((count("p", &["a"], 5), count("p", &["a"], 5).is_err()), (Ok(()), true));
        assert_eq!((count("p", &["a"], 6), count("p", &["a"], 0)), (Ok(()), Err(60)));
        // What a principal brings is bounded, and goes when it is whole again.
        let made = (0..=RATES_BROUGHT).filter(|n| count("q", &[&n.to_string()], 5).is_ok()).count();
        assert_eq!((made, count("r", &["x"], 5)), (RATES_BROUGHT, Ok(())), "others have room");
        tokio::time::advance(MINUTE).await;
        assert_eq!(count("q", &["more"], 5), Ok(()));
    }
}
