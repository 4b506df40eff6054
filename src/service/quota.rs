//! Admission control: rate limits, slots with a bounded queue, and every other quota of this host.
//!
//! A quota is charged to the principal, who authenticated: under whatever names it acts, it has at
//! most its share. A call is admitted, queued, or refused with a retryable `RateLimitError`.
//!
//! A quota is charged before the work is done. Of the slots for calls that run (64) or wait (1024)
//! one principal has at most seven eighths and one tool three quarters; calls that wait take turns.

use super::arguments::{Arguments, ReceivedArguments};
use super::callers::Rights;
use super::parent::Parent;
use super::request::{CallRequest, RateCharge};
use crate::base::semaphore::{self, Claim, FairSemaphore, Permit};
use crate::base::shares::now;
use crate::base::{json, lock};
use crate::executor::{CallDeadline, Pauses};
use crate::fault::{Fault, Kind};
use crate::quantity::MIN_FILE_BYTES;
use futures_util::FutureExt;
use nix::sys::resource::{Resource, getrlimit};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub const MAX_RUNNING: usize = 64;
/// Calls that may wait for a slot.
pub const MAX_QUEUED: usize = 1024;
/// How long to wait before another try where a queue or a quota is full.
const FULL: Duration = Duration::from_secs(1);
/// How long a call waits for the memory of its answer while others to its principal are not read.
const UNREAD: Duration = Duration::from_secs(60);
pub const FULL_OF_FILES: &str = "The files of other calls take the memory of this principal.";
const UNREAD_ANSWERS: &str = "Earlier answers to you still take this host's memory: read the \
                              answers that are open, or repeat the request later.";
/// So many refusals by policy of one caller in a minute are reported to the person who runs this
/// host.
const ALERTS_PER_MINUTE: u32 = 10;
/// Most recorded refusals of one principal in a minute, for the number of its calls or for
/// unreadable requests.
const RECORDED_PER_MINUTE: u32 = 60;
/// The least that an answer is charged, bytes: what is short grows when it is indented for a
/// reader.
const MIN_ANSWER_BYTES: usize = 1 << 20;
/// Memory for the files that calls bring.
const FILES_BYTES: usize = 512 << 20;
pub const MINUTE: Duration = Duration::from_secs(60);
/// Most rates in use at once: of names from one principal's requests, and of all other names
/// together.
const RATES_BROUGHT: usize = 2_000;
const RATES: usize = 100_000;

/// All bounded resources of this host, each charged to principals.
#[derive(Debug)]
pub struct Limiter {
    /// Slots of calls that run, and of those that run or wait.
    pub(super) running: Arc<FairSemaphore>,
    admitted: Arc<FairSemaphore>,
    /// Memory for the arguments of admitted calls, KiB.
    arguments: Arc<FairSemaphore>,
    /// Files that calls bring, KiB.
    pub files: Arc<FairSemaphore>,
    /// The least that one of them is charged, bytes: so many together take a quarter of the
    /// descriptors of this process.
    pub min_file_bytes: usize,
    /// Bodies that have arrived and are not decided yet, KiB.
    pub bodies: Arc<FairSemaphore>,
    /// Threads that read large bodies; the other cores are left to quick calls.
    pub readers: Arc<FairSemaphore>,
    /// Answers of calls that run or are not read yet, other answers that no client has read, and
    /// those that are kept for a client that comes back, bytes.
    answers: Arc<FairSemaphore>,
    pub resumable: Arc<FairSemaphore>,
    /// Calls that wait for a person's answer.
    pub questions: Arc<FairSemaphore>,
    /// Sessions and tasks of MCP.
    pub sessions: Arc<FairSemaphore>,
    pub tasks: Arc<FairSemaphore>,
    /// Calls in the background that run, or whose callback is pending.
    pub background: Arc<FairSemaphore>,
    rates: Mutex<Rates>,
}

/// Rates that are being used up.
#[derive(Debug, Default)]
struct Rates {
    /// When each rate is fully replenished, and the principal whose request named it.
    whole: HashMap<String, (Duration, String)>,
    /// How many names each principal brought.
    brought: HashMap<String, usize>,
    /// Refusals without a record, by principal, since the last with one.
    unrecorded: HashMap<String, u64>,
    /// When replenished rates were last removed: once a second, because that walks over all of
    /// them.
    removed: Duration,
}

/// Held while a call runs, and until its answer is delivered where that may take long; then the
/// next call may run.
#[derive(Debug)]
pub struct Slot {
    pub(super) running: SharedPlace,
    /// The call in whose slot this one may run.
    parent: Option<Parent>,
    /// The memory of the answer, once it is decided what runs.
    pub(super) answer: Option<Permit>,
    _admitted: Permit,
    _arguments: Permit,
}

/// `None`: a person is asked about the call, or about a call of its code.
pub(super) type SharedPlace = Arc<Mutex<Option<Place>>>;

/// A call whose code makes calls, and what it lends.
pub(super) struct Lender {
    pub place: SharedPlace,
    /// The place in its slot.
    pub seat: Arc<Semaphore>,
    pub pauses: Arc<Pauses>,
    pub parent: Option<Parent>,
    pub rights: Rights,
    pub tools: Vec<String>,
}

/// A slot of this host, or the one place in the slot of a parent.
#[derive(Debug)]
pub(super) struct Place {
    permit: Permit,
    seat: Option<OwnedSemaphorePermit>,
}

fn busy() -> Fault {
    full("Too many calls are waiting in this host.")
}

fn full(message: impl Into<String>) -> Fault {
    Fault::new(Kind::RateLimitError, message).retry_after(FULL)
}

/// A refusal for now, which says when to try again.
pub(super) fn held_back(kind: Kind, words: &str, wait: Duration) -> Fault {
    let seconds = wait.as_millis().div_ceil(1000);
    Fault::new(kind, format!("{words} Try again in {seconds} s.")).retry_after(wait)
}

impl Slot {
    /// Gives up all but the memory of the arguments, while the call waits.
    pub(super) fn step_aside(&mut self) {
        *lock(&self.running) = None;
        self.answer = None;
    }

    /// The answer takes so many bytes, and no more.
    pub(super) fn answered(&mut self, bytes: usize) {
        self.answer
            .iter_mut()
            .for_each(|permit| _ = permit.resize(bytes.max(MIN_ANSWER_BYTES)));
    }
}

impl Limiter {
    pub fn new(running: usize, waiting: usize) -> Limiter {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let admitted = running + waiting.min(Semaphore::MAX_PERMITS / 4);
        let readers =
            std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| {
            usize::try_from(soft).unwrap_or(usize::MAX)
        });
        Limiter {
            running: FairSemaphore::new(running, running),
            admitted: FairSemaphore::new(admitted, admitted),
            arguments: FairSemaphore::new(256 << 10, 192 << 10),
            files: FairSemaphore::new(FILES_BYTES / 1024, FILES_BYTES / 2048),
            min_file_bytes: (FILES_BYTES / (descriptors / 4).max(1)).max(MIN_FILE_BYTES as usize),
            bodies: FairSemaphore::shared(64 << 10),
            readers: FairSemaphore::new(readers, readers),
            answers: FairSemaphore::new(256 << 20, 64 << 20),
            resumable: FairSemaphore::new(64 << 20, 16 << 20),
            questions: FairSemaphore::new(128, 32),
            sessions: FairSemaphore::shared(256),
            tasks: FairSemaphore::new(32, 24),
            background: FairSemaphore::new(512, 128),
            rates: Mutex::default(),
        }
    }

    /// Waits for room for an answer of so many bytes.
    pub async fn answer(&self, principal: &str, bytes: usize) -> Permit {
        // An answer larger than a share takes all of the share.
        self.answers
            .enter_as(
                self.answers.claim_for(principal),
                bytes.min(self.answers.each),
            )
            .await
    }

    /// Takes memory for an answer that can be requested again, or refuses it. Never waits.
    pub fn try_answer(&self, principal: &str, bytes: usize) -> Result<Permit, Fault> {
        let place = self
            .answers
            .try_enter(principal, bytes.min(self.answers.each));
        place.ok_or_else(|| full(UNREAD_ANSWERS))
    }

    /// Counts a call against the entries of its callers, before anything else.
    pub(super) fn charge_callers(&self, rights: &Rights, rate: RateCharge) -> Result<(), Fault> {
        let counted = match rate {
            RateCharge::Due => 0,
            RateCharge::Paid => 1,
            RateCharge::Free => return Ok(()),
        };
        let rates = rights.entries().skip(counted).filter_map(|(name, rule)| {
            // Any other name was chosen by the principal, which can choose any number of them.
            let brought = if *name == rights.principal {
                String::new()
            } else {
                format!("by {}", rights.principal)
            };
            Some((format!("caller {name}"), rule?.calls_per_minute?, brought))
        });
        self.rate(rates.collect(), |limit| {
            format!("You may make {limit} calls a minute.")
        })
    }

    /// Counts a call that is about to run against its tools: one that was refused before this uses
    /// up nothing.
    pub(super) fn starts(&self, rights: &Rights, tools: &[String]) -> Result<(), Fault> {
        let rates = tools
            .iter()
            .filter_map(|tool: &String| {
                Some((
                    format!("tool {tool}"),
                    rights.limit(tool)?.calls_per_minute?,
                    String::new(),
                ))
            })
            .collect();
        self.rate(rates, |limit| {
            format!("This tool may be called {limit} times a minute.")
        })
    }

    /// Counts one call against each of these names, with their limits a minute; or against none, if
    /// a limit is reached. The third member: the principal that brought the name.
    fn rate(
        &self,
        counted: Vec<(String, u32, String)>,
        words: impl Fn(u32) -> String,
    ) -> Result<(), Fault> {
        let refused = |limit, wait| held_back(Kind::RateLimitError, &words(limit), wait);
        let now = now();
        let mut rates = lock(&self.rates);
        let mut next = Vec::new();
        for (name, limit, by) in counted {
            // A changed limit begins with a whole minute.
            let key = format!("{name} {limit}");
            let step = MINUTE
                .checked_div(limit)
                .ok_or_else(|| refused(limit, MINUTE))?;
            let whole_at = rates
                .whole
                .get(&key)
                .map_or(now, |(whole_at, _)| now.max(*whole_at))
                + step;
            if whole_at > now + MINUTE {
                return Err(refused(limit, whole_at - now - MINUTE));
            }
            if !rates.whole.contains_key(&key) && !rates.has_room(&by, now) {
                return Err(refused(limit, MINUTE));
            }
            next.push((key, (whole_at, by)));
        }
        for (key, (whole_at, by)) in next {
            // A rate that exists stays charged to the principal that first used its name.
            if let Some((known, _)) = rates.whole.get_mut(&key) {
                *known = whole_at;
                continue;
            }
            *rates.brought.entry(by.clone()).or_default() += 1;
            rates.whole.insert(key, (whole_at, by));
        }
        Ok(())
    }

    fn own_rate(&self, what: &str, principal: &str, limit: u32) -> bool {
        self.rate(
            vec![(format!("{what} {principal}"), limit, String::new())],
            |_| String::new(),
        )
        .is_ok()
    }

    /// Counts a refusal by policy. True, once a minute, if there are so many that somebody should
    /// look.
    pub fn should_alert(&self, principal: &str) -> bool {
        !self.own_rate("refused", principal, ALERTS_PER_MINUTE)
            && self.own_rate("alert", principal, 1)
    }

    /// `Some`: this refusal is to be recorded, with the number of those before it that were not.
    pub fn recorded(&self, principal: &str) -> Option<u64> {
        let recorded = self.own_rate("recorded", principal, RECORDED_PER_MINUTE);
        recorded.then(|| {
            lock(&self.rates)
                .unrecorded
                .remove(principal)
                .unwrap_or_default()
        })
    }

    /// Counts refusals without a record. True: they are the first since the last record.
    pub fn unrecorded(&self, principal: &str, count: u64) -> bool {
        let unrecorded = &mut lock(&self.rates).unrecorded;
        let first = unrecorded.is_empty();
        *unrecorded.entry(principal.to_owned()).or_default() += count;
        first
    }

    /// Takes the refusals without a record.
    pub fn take_unrecorded(&self) -> HashMap<String, u64> {
        std::mem::take(&mut lock(&self.rates).unrecorded)
    }

    /// Takes memory for files of a call.
    pub fn keep_files(
        &self,
        principal: &str,
        bytes: impl Iterator<Item = u64>,
    ) -> Result<Permit, Fault> {
        let bytes: u64 = bytes.map(|it| it.max(self.min_file_bytes as u64)).sum();
        let kib = usize::try_from(bytes / 1024).unwrap_or(usize::MAX);
        self.files
            .try_enter(principal, kib.min(self.files.each))
            .ok_or_else(|| full(FULL_OF_FILES))
    }

    /// Takes memory for what is kept of a request until its call ends.
    pub fn keep_text(&self, principal: &str, bytes: usize) -> Result<Permit, Fault> {
        // What is larger than a share takes all of the share.
        let kib = (bytes / 1024).min(self.arguments.each);
        let words = "The arguments of other calls take the memory of this principal.";
        self.arguments
            .try_enter(principal, kib)
            .ok_or_else(|| full(words))
    }

    /// Waits for a slot, in order among equal calls and in turns with others. Refuses at once if
    /// too many calls wait already, or the arguments of those that wait take too much memory.
    pub(super) async fn enter(
        &self,
        request: &mut CallRequest,
        received: &ReceivedArguments,
        rights: &Rights,
        tools: &[String],
    ) -> Result<Slot, Fault> {
        // Not `limited`: more calls may wait than may run at once.
        let admitted = self
            .admitted
            .try_enter_as(&claim(&self.admitted, rights, tools, false), 1)
            .ok_or_else(busy)?;
        let arguments = received.arguments.clone();
        let until = CallDeadline::usual(&rights.principal, request.timeout_ms);
        let bytes = until.run(received.are_long, move || weight(&arguments));
        let bytes = bytes.await?;
        let reserved = self.keep_text(&rights.principal, bytes)?;
        request.charged.body = None;
        let parent = request.parent.clone();
        Ok(Slot {
            running: Arc::new(Mutex::new(Some(
                self.place(parent.as_ref(), rights, tools).await?,
            ))),
            parent,
            answer: None,
            _admitted: admitted,
            _arguments: reserved,
        })
    }

    /// Charges the answer of a call before the call runs: as much as it may become. False: other
    /// answers of the principal take the memory now.
    pub(super) fn charge_answer(&self, slot: &mut Slot, principal: &str, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .max(MIN_ANSWER_BYTES);
        if slot
            .answer
            .as_mut()
            .is_some_and(|permit| permit.resize(bytes.min(self.answers.each)))
        {
            return true;
        }
        slot.answer = self.answer(principal, bytes).now_or_never();
        slot.answer.is_some()
    }

    /// Waits until the answer of a call can be charged.
    pub(super) async fn await_answer(
        &self,
        slot: &mut Slot,
        principal: &str,
        bytes: u64,
    ) -> Result<(), Fault> {
        if slot.parent.is_some() {
            // Its parents may hold what it would wait for.
            return Err(full(UNREAD_ANSWERS));
        }
        let bytes = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .max(MIN_ANSWER_BYTES);
        let room = tokio::time::timeout(UNREAD, self.answer(principal, bytes)).await;
        slot.answer = Some(room.map_err(|_| full(UNREAD_ANSWERS))?);
        Ok(())
    }

    /// Waits for a slot. A call from code has a place in the slot of its parent, or, while a sibling
    /// has that, a slot of its own if one is free: it waits for no slot that a parent holds.
    async fn place(
        &self,
        parent: Option<&Parent>,
        rights: &Rights,
        tools: &[String],
    ) -> Result<Place, Fault> {
        let whole = claim(&self.running, rights, tools, true);
        let mut seat = None;
        if let Some(Parent { seat: own, .. }) = parent {
            seat = own.clone().try_acquire_owned().ok();
            if seat.is_none()
                && let Some(permit) = self.running.try_enter_as(&whole, 1)
            {
                return Ok(Place { permit, seat });
            }
            if seat.is_none() {
                // It is never closed.
                seat = own.clone().acquire_owned().await.ok();
            }
        }
        let Some(parent) = parent else {
            let permit = self.running.enter_as(whole, 1).await;
            return Ok(Place { permit, seat });
        };
        // Not for long: others may wait for what this one's parents hold.
        let permit = self.running.enter_as(self.seated(parent, rights, tools), 1);
        let permit = tokio::time::timeout(FULL, permit).await;
        let permit =
            permit.map_err(|_| full("The tool already runs as often as it may at once."))?;
        Ok(Place { permit, seat })
    }

    /// The claim of a call in the slot of its parent: the limits `at_once` of tools that do not run
    /// already for it.
    fn seated(&self, parent: &Parent, rights: &Rights, tools: &[String]) -> Claim {
        let new = tools.iter().filter(|tool| !parent.tools.contains(tool));
        let limits = new.filter_map(|tool| {
            let limit = rights.limit(tool)?.at_once?;
            Some((format!("tool {tool}"), limit as usize))
        });
        semaphore::claim(self.running.all, limits).split_off(1)
    }

    /// Charges a slot to all tools of its target. False: one of them has no room now.
    pub(super) fn charge_to(&self, slot: &mut Slot, rights: &Rights, tools: &[String]) -> bool {
        let Some(Place { permit, seat }) = &mut *lock(&slot.running) else {
            return true;
        };
        let claim = match &slot.parent {
            Some(parent) if seat.is_some() => self.seated(parent, rights, tools),
            _ => claim(&self.running, rights, tools, true),
        };
        permit.charge(&claim, 1).is_ok()
    }

    /// Waits for a slot again, for a call that had to wait, at most this long.
    pub(super) async fn reacquire_slot(
        &self,
        slot: &mut Slot,
        rights: &Rights,
        tools: &[String],
        at_most: Duration,
    ) -> Result<(), Fault> {
        let parent = slot.parent.clone();
        let place = self.place(parent.as_ref(), rights, tools);
        let place = tokio::time::timeout(at_most, place).await;
        let place = place.map_err(|_| {
            full(format!(
                "No slot for this call was free for {} s.",
                at_most.as_secs_f32()
            ))
        })??;
        *lock(&slot.running) = Some(place);
        Ok(())
    }

    /// Has a call stand still whenever a person is asked about a call of its code, and gives others
    /// its slot meanwhile, unless such a call runs in that. Never ends.
    pub(super) async fn lend(self: Arc<Self>, lender: Lender) {
        let Lender {
            place,
            seat,
            pauses,
            parent,
            rights,
            tools,
        } = lender;
        loop {
            pauses.until(true).await;
            pauses.stand(true);
            tokio::select! {
                biased;
                () = pauses.until(false) => {}
                free = seat.acquire() => {
                    *lock(&place) = None;
                    pauses.until(false).await;
                    let again = loop {
                        // A tool may have no room for a moment.
                        if let Ok(again) = self.place(parent.as_ref(), &rights, &tools).await {
                            break again;
                        }
                    };
                    *lock(&place) = Some(again);
                    drop(free);
                }
            }
            pauses.stand(false);
        }
    }
}

impl Rates {
    fn has_room(&mut self, by: &str, now: Duration) -> bool {
        if now >= self.removed + Duration::from_secs(1) {
            (self.removed, self.brought) = (now, HashMap::new());
            self.whole.retain(|_, (whole_at, _)| *whole_at > now);
            self.whole
                .values()
                .for_each(|(_, by)| *self.brought.entry(by.clone()).or_default() += 1);
        }
        let most = if by.is_empty() { RATES } else { RATES_BROUGHT };
        self.brought.get(by).is_none_or(|brought| *brought < most)
    }
}

/// The claim of a slot. One principal gets at most seven eighths of the slots, unless it is an
/// operator, and one tool three quarters: the rest is for others. `limited`: the limits `at_once`
/// of the file of callers apply too.
fn claim(slots: &FairSemaphore, rights: &Rights, tools: &[String], limited: bool) -> Claim {
    let all = slots.all;
    let most = |limit: Option<u32>| {
        limit
            .filter(|_| limited)
            .map_or(all, |limit| limit as usize)
    };
    let own = if rights.caller.operator {
        all
    } else {
        all - all / 8
    };
    let entries = rights.entries().map(|(name, rule)| {
        (
            format!("caller {name}"),
            most(rule.and_then(|rule| rule.at_once)),
        )
    });
    let tools = tools.iter().map(|tool| {
        let limit = most(rights.limit(tool).and_then(|limit| limit.at_once));
        (format!("tool {tool}"), limit.min(all - all / 4))
    });
    let principal = (format!("principal {}", rights.principal), own);
    semaphore::claim(all, [principal].into_iter().chain(entries).chain(tools))
}

/// About how many bytes arguments take in memory as a tree. Texts that are read as JSON later count
/// as what they hold.
fn weight(arguments: &Arguments) -> usize {
    match arguments {
        Arguments::Text(text) => json::weight(text),
        Arguments::Value(value) => json::weight(&value.to_string()),
        Arguments::Inputs { texts, .. } => weight_of_texts(texts),
        Arguments::Strings(pairs) => pairs
            .iter()
            .map(|(name, value)| name.len() + json::weight(value))
            .sum(),
    }
}

/// Any text of an input may be read as JSON.
fn weight_of_texts(value: &Value) -> usize {
    match value {
        Value::String(text) => json::weight(text),
        Value::Array(items) => items.iter().map(weight_of_texts).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| name.len() + weight_of_texts(field))
            .sum(),
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
            let (callers, caller, principal) =
                (None, Caller::named(label.to_string()), principal.to_owned());
            let rights = Rights {
                callers,
                caller,
                principal,
            };
            let arguments = Arguments::Text(format!("[{}{{}}]", "{},".repeat(bytes))).into();
            limiter
                .enter(
                    &mut CallRequest::default(),
                    &arguments,
                    &rights,
                    &[format!("t:{label}")],
                )
                .await
        };
        let limiter = Limiter::new(16, 0);
        let mut slots = Vec::new();
        for n in 0..14 {
            slots.push(enter(&limiter, "u", n, 0).await.expect("room"));
        }
        let refused = enter(&limiter, "u", 14, 0).await.expect_err("its share");
        assert!(refused.kind == Kind::RateLimitError && refused.retryable);
        assert!(
            enter(&limiter, "w", 1, 0).await.is_ok(),
            "what is left is for others"
        );
        let limiter = Limiter::new(64, 64);
        let large = 500_000;
        let first = enter(&limiter, "u", 1, large).await.expect("room");
        assert!(
            enter(&limiter, "u", 2, large).await.is_err(),
            "under another name it has no more"
        );
        assert!(enter(&limiter, "u", 3, 0).await.is_ok(), "small ones go on");
        drop(first);
        assert!(enter(&limiter, "u", 4, large).await.is_ok());
        // Answers that are not read hold back calls of their principal.
        let _unread = limiter.answer("u", usize::MAX).await;
        let [mut own, mut other] = [
            enter(&limiter, "u", 1, 0).await,
            enter(&limiter, "v", 1, 0).await,
        ]
        .map(Result::unwrap);
        assert!(
            !limiter.charge_answer(&mut own, "u", 1)
                && limiter.await_answer(&mut own, "u", 1).await.is_err()
        );
        assert!(
            limiter.charge_answer(&mut other, "v", u64::MAX),
            "control: another principal"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn five_a_minute_are_five_and_then_one_each_twelve_seconds() {
        let limiter = Limiter::new(1, 1);
        let count = |by: &str, names: &[&str], limit: u32| {
            let counted = names
                .iter()
                .map(|name| ((*name).to_owned(), limit, by.to_owned()))
                .collect();
            limiter
                .rate(counted, |_| String::new())
                .map_err(|fault| fault.retry_after_ms.map(|ms| ms.div_ceil(1000)))
        };
        assert!((0..5).all(|_| count("p", &["a"], 5).is_ok()));
        assert_eq!(count("p", &["b", "a"], 5), Err(Some(12)));
        assert_eq!(
            count("p", &["b"], 5),
            Ok(()),
            "others are counted apart, and nothing for a refusal"
        );
        tokio::time::advance(Duration::from_secs(12)).await;
        assert_eq!(
            (count("p", &["a"], 5), count("p", &["a"], 5).is_err()),
            (Ok(()), true)
        );
        assert_eq!(
            (count("p", &["a"], 6), count("p", &["a"], 0)),
            (Ok(()), Err(Some(60)))
        );
        // What a principal brings is bounded, and goes when it is whole again.
        let made = (0..=RATES_BROUGHT)
            .filter(|n| count("q", &[&n.to_string()], 5).is_ok())
            .count();
        assert_eq!(
            (made, count("r", &["x"], 5)),
            (RATES_BROUGHT, Ok(())),
            "others have room"
        );
        tokio::time::advance(MINUTE).await;
        assert_eq!(count("q", &["more"], 5), Ok(()));
    }
}
