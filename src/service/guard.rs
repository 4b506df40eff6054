//! The guard: how often calls come, how many run at once, and how many may wait for their turn.
//!
//! For: the road. In: a request, and what its caller and tool may have. Out: a turn, or a retryable `RateLimitError`.
//! Never: an unbounded queue; lets the calls of one tool, or of one caller, however long they last, keep others from
//! their turn.

use super::rates::Rates;
use super::{Arguments, CallRequest, blocking};
use crate::base::places::{Claim, Place, Places};
use crate::base::{json, lock};
use crate::fault;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Calls that run at once unless the settings say otherwise.
pub const RUNNING: usize = 64;
/// Calls that may wait behind them.
pub const WAITING: usize = 1024;
/// Memory for the arguments of all admitted calls together, KiB; of one who authenticated three quarters (an operator: all).
const ROOM_KIB: usize = 256 * 1024;
/// What one value costs in memory beside its text, about, bytes.
const NODE: usize = 64;
/// Whoever finds no room is told to wait so long.
const FULL: Duration = Duration::from_secs(1);
/// So many refusals by policy in a minute of one caller are told to the person who runs this host.
const ALERT: u32 = 10;
/// Refusals for the number of calls, of one who authenticated, that are recorded in a minute.
const RECORDED: u32 = 60;

#[derive(Debug)]
pub struct Guard {
    running: Arc<Places>,
    admitted: Arc<Places>,
    room: Arc<Room>,
    /// Places in all: that run, and that run or wait.
    sizes: [usize; 2],
    rates: Rates,
    /// Refusals without a record, by who authenticated, since the last with one.
    unrecorded: Mutex<HashMap<String, u64>>,
}

/// What one call counts against.
#[derive(Clone, Debug, Default)]
pub(super) struct Share<'a> {
    pub caller: &'a str,
    /// Who authenticated: the caller itself, or one that acts as it.
    pub through: &'a str,
    /// The tool's id.
    pub tool: &'a str,
    /// Runs this host: no part of it is kept free of its calls.
    pub operator: bool,
    /// Most calls at once, of the caller and of the tool.
    pub at_once: [Option<u32>; 2],
    /// Most calls a minute of the tool.
    pub per_minute: Option<u32>,
}

/// Held while a call runs, and until its answer is delivered where that may take long; then the next call may run.
#[derive(Debug)]
pub struct Turn {
    /// `None`: the call waits for a person, or for another call.
    running: Option<Place>,
    _admitted: Place,
    _room: Taken,
}

/// The memory for arguments: KiB that are taken, by who authenticated.
#[derive(Debug, Default)]
struct Room(Mutex<HashMap<String, usize>>);

#[derive(Debug)]
struct Taken {
    room: Arc<Room>,
    through: String,
    kib: usize,
}

impl Room {
    /// `None`: there is too little. Larger than everything, it has everything.
    fn take(self: &Arc<Room>, share: &Share<'_>, kib: usize) -> Option<Taken> {
        let most = if share.operator { ROOM_KIB } else { ROOM_KIB - ROOM_KIB / 4 };
        let kib = kib.min(most);
        let mut taken = lock(&self.0);
        let own = taken.get(share.through).copied().unwrap_or_default();
        if own + kib > most || taken.values().sum::<usize>() + kib > ROOM_KIB {
            return None;
        }
        *taken.entry(share.through.to_owned()).or_default() += kib;
        Some(Taken { room: self.clone(), through: share.through.to_owned(), kib })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = lock(&self.room.0);
        let left = taken.get(&self.through).copied().unwrap_or_default() - self.kib;
        match left {
            0 => drop(taken.remove(&self.through)),
            left => drop(taken.insert(self.through.clone(), left)),
        }
    }
}

impl Guard {
    pub fn new(running: usize, waiting: usize) -> Guard {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 4);
        let sizes = [running, running + waiting];
        let [running, admitted] = sizes.map(|all| Places::new(all, all));
        Guard { running, admitted, room: Arc::default(), sizes, rates: Rates::default(), unrecorded: Mutex::default() }
    }

    /// Calls that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.running.waiting()
    }

    /// Counts a call that its caller asks for, before anything is looked at.
    pub fn comes(&self, share: &Share<'_>, per_minute: Option<u32>) -> Result<(), fault::Fault> {
        let Some(limit) = per_minute else { return Ok(()) };
        let many = format!("You may make {limit} calls a minute.");
        self.rates.take(&format!("caller {}", share.caller), share.through, limit).map_err(|wait| too_many(&many, wait))
    }

    /// Counts a refusal by policy; true where there are so many that somebody should look, once a minute.
    pub fn alarms(&self, caller: &str, through: &str) -> bool {
        self.rates.take(&format!("refused {caller}"), through, ALERT).is_err()
            && self.rates.take(&format!("told {caller}"), through, 1).is_ok()
    }

    /// Counts a refusal for the number of calls. `Some`: it is recorded, with how many before it were not.
    pub fn recorded(&self, through: &str) -> Option<u64> {
        let mut unrecorded = lock(&self.unrecorded);
        if self.rates.take(&format!("recorded {through}"), through, RECORDED).is_ok() {
            return Some(unrecorded.remove(through).unwrap_or_default());
        }
        *unrecorded.entry(through.to_owned()).or_default() += 1;
        None
    }

    /// Counts a call of a tool that is about to run: one that cannot run uses up nothing that others may have.
    pub fn starts(&self, share: &Share<'_>) -> Result<(), fault::Fault> {
        let Some(limit) = share.per_minute else { return Ok(()) };
        let many = format!("This tool may be called {limit} times a minute.");
        self.rates.take(&format!("tool {}", share.tool), "", limit).map_err(|wait| too_many(&many, wait))
    }

    /// Waits for a turn, in order among the calls of this tool and by turns with those of others; refuses at once where
    /// too many wait already, or too much.
    pub async fn enter(&self, request: &mut CallRequest, share: &Share<'_>) -> Result<Turn, fault::Fault> {
        let full = || {
            let message = "Too many calls are waiting in this host.";
            fault::Fault::new(fault::Kind::RateLimitError, message).retry_after(FULL)
        };
        let [running, admitted] = self.sizes;
        let running = share.claim(running, share.at_once);
        // However few of them run at once, more may wait.
        let admitted = self.admitted.try_enter_as(&share.claim(admitted, [None; 2]));
        let admitted = admitted.ok_or_else(full)?;
        let arguments = std::mem::take(&mut request.arguments);
        let until = blocking::Until::usual(Instant::now(), request.timeout_ms);
        let weighed = until.run(arguments.are_long(), move || (weight(&arguments), arguments));
        let (bytes, arguments) = weighed.await?;
        request.arguments = arguments;
        let room = self.room.take(share, bytes / 1024).ok_or_else(full)?;
        let running = self.running.enter_as(running).await;
        Ok(Turn { running: Some(running), _admitted: admitted, _room: room })
    }

    /// Waits for a place among the calls that run, for one that stepped aside.
    pub async fn comes_back(&self, turn: &mut Turn, share: &Share<'_>) {
        turn.running = Some(self.running.enter_as(share.claim(self.sizes[0], share.at_once)).await);
    }
}

impl Turn {
    /// Others may run while this call waits for something else than them.
    pub(super) fn step_aside(&mut self) {
        self.running = None;
    }
}

impl Share<'_> {
    /// Of one tool at most three quarters, of one caller, and of one who authenticated under whatever names, seven
    /// eighths: what is left is for others, and what its one tool leaves a caller is for its other tools.
    fn claim(&self, all: usize, at_once: [Option<u32>; 2]) -> Claim {
        let own = if self.operator { all } else { all - all / 8 };
        let [caller, tool] = at_once;
        let counts = [
            (format!("through {}", self.through), own, None),
            (format!("caller {}", self.caller), own, caller),
            (format!("tool {}", self.tool), all - all / 4, tool),
        ];
        let held = |limit: Option<u32>| limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let counts = counts.into_iter().map(|(key, most, limit)| (key, most.min(held(limit)))).collect();
        Claim { turn: format!("{} {}", self.caller, self.tool), counts }
    }
}

fn too_many(words: &str, wait: Duration) -> fault::Fault {
    let seconds = wait.as_millis().div_ceil(1000);
    let message = format!("{words} Try again in {seconds} s.");
    fault::Fault::new(fault::Kind::RateLimitError, message).retry_after(wait)
}

/// About how many bytes arguments take in memory while they wait. A text counts as the tree that it becomes.
fn weight(arguments: &Arguments) -> usize {
    match arguments {
        Arguments::Text(text) => json::weight(text),
        Arguments::Strings(pairs) => pairs.iter().map(|(name, value)| name.len() + value.len() + NODE).sum(),
        Arguments::Value(value) | Arguments::Inputs { texts: value, .. } => {
            let as_text = matches!(arguments, Arguments::Inputs { .. });
            let (mut sum, mut open) = (0usize, vec![value]);
            while let Some(value) = open.pop() {
                sum += NODE;
                match value {
                    Value::String(text) => sum += if as_text { json::weight(text) } else { text.len() },
                    Value::Array(items) => open.extend(items),
                    Value::Object(fields) => {
                        sum += fields.keys().map(|name| name.len() + NODE).sum::<usize>();
                        open.extend(fields.values());
                    }
                    Value::Null | Value::Bool(_) | Value::Number(_) => {}
                }
            }
            sum
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Caller;
    use super::*;

    const SHARE: Share<'static> =
        Share { caller: "u", through: "u", tool: "t:x", operator: false, at_once: [None; 2], per_minute: None };

    fn asked(arguments: Arguments) -> CallRequest {
        CallRequest::new(Caller::named("u"), "t:x", arguments)
    }

    #[tokio::test]
    async fn one_runs_one_waits_the_third_is_refused() {
        let guard = Arc::new(Guard::new(1, 1));
        let none = || asked(Arguments::Text(String::new()));
        let first = guard.enter(&mut none(), &SHARE).await.unwrap();
        let waiting = tokio::spawn({
            let guard = guard.clone();
            async move { guard.enter(&mut none(), &SHARE).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let third = guard.enter(&mut none(), &SHARE).await.expect_err("no room");
        assert!(third.kind == fault::Kind::RateLimitError && third.retryable);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn whoever_brings_many_names_has_no_more_places_than_one() {
        let guard = Guard::new(16, 0);
        let none = || asked(Arguments::Text(String::new()));
        let mut held = Vec::new();
        for name in 0..14 {
            let (caller, tool) = (format!("label {name}"), format!("t:{name}"));
            let share = Share { caller: &caller, tool: &tool, ..SHARE };
            held.push(guard.enter(&mut none(), &share).await.expect("room"));
        }
        let more = Share { caller: "one more", tool: "t:y", ..SHARE };
        assert!(guard.enter(&mut none(), &more).await.is_err());
        assert!(guard.enter(&mut none(), &Share { through: "w", ..more }).await.is_ok(), "what is left is for others");
    }

    #[tokio::test]
    async fn large_arguments_share_one_room() {
        let guard = Guard::new(64, 64);
        let mut large = asked(Arguments::Value(Value::Array(vec![Value::from(0); 2_000_000])));
        let first = guard.enter(&mut large, &SHARE).await.unwrap();
        let other = Share { caller: "w", ..SHARE };
        assert!(guard.enter(&mut large, &other).await.is_err(), "under another name it has no more");
        let other = Share { through: "w", ..other };
        let _second = guard.enter(&mut large, &other).await.unwrap();
        let third = Share { through: "x", ..other };
        assert_eq!(guard.enter(&mut large, &third).await.expect_err("full").kind, fault::Kind::RateLimitError);
        assert!(guard.enter(&mut asked(Arguments::Text("{}".into())), &SHARE).await.is_ok(), "small ones go on");
        drop(first);
        assert!(guard.enter(&mut large, &SHARE).await.is_ok());
    }
}
