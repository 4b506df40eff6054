//! The guard: how often calls come, how many run at once, and how many may wait for their turn (P28).
//!
//! For: the road. In: a request, and what its caller and tool may have. Out: a turn, or a retryable `RateLimitError`.
//! Never: an unbounded queue; lets the calls of one tool, or of one caller, however long they last, keep others from
//! their turn.

use super::rates::Rates;
use super::{Arguments, CallRequest};
use crate::base::json;
use crate::base::places::{Claim, Place, Places};
use crate::fault;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that run at once unless the settings say otherwise.
pub const RUNNING: usize = 64;
/// Calls that may wait behind them.
pub const WAITING: usize = 1024;
/// Memory for the arguments of all admitted calls together, KiB.
const ROOM_KIB: u32 = 256 * 1024;
/// What one value costs in memory beside its text, about, bytes.
const NODE: usize = 64;
/// Whoever finds no room is told to wait so long.
const FULL: Duration = Duration::from_secs(1);
/// So many refusals by policy in a minute of one caller are told to the person who runs this host.
const ALERT: u32 = 10;

#[derive(Debug)]
pub struct Guard {
    running: Arc<Places>,
    admitted: Arc<Places>,
    room: Arc<Semaphore>,
    /// Places in all: that run, and that run or wait.
    sizes: [usize; 2],
    rates: Rates,
}

/// What one call counts against.
#[derive(Clone, Debug, Default)]
pub(super) struct Share<'a> {
    pub caller: &'a str,
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
    _room: OwnedSemaphorePermit,
}

impl Guard {
    pub fn new(running: usize, waiting: usize) -> Guard {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 4);
        let sizes = [running, running + waiting];
        let [running, admitted] = sizes.map(|all| Places::new(all, all));
        let room = Arc::new(Semaphore::new(ROOM_KIB as usize));
        Guard { running, admitted, room, sizes, rates: Rates::default() }
    }

    /// Calls that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.running.waiting()
    }

    /// Counts a call that its caller asks for, before anything is looked at.
    pub fn comes(&self, caller: &str, per_minute: Option<u32>) -> Result<(), fault::Fault> {
        let Some(limit) = per_minute else { return Ok(()) };
        let many = format!("You may make {limit} calls a minute.");
        self.rates.take(&format!("caller {caller}"), limit).map_err(|wait| too_many(&many, wait))
    }

    /// Counts a refusal by policy; true where there are so many that somebody should look, once a minute.
    pub fn alarms(&self, caller: &str) -> bool {
        self.rates.take(&format!("refused {caller}"), ALERT).is_err()
            && self.rates.take(&format!("told {caller}"), 1).is_ok()
    }

    /// Counts a call of a tool that is about to run: one that cannot run uses up nothing that others may have.
    pub fn starts(&self, share: &Share<'_>) -> Result<(), fault::Fault> {
        let Some(limit) = share.per_minute else { return Ok(()) };
        let many = format!("This tool may be called {limit} times a minute.");
        self.rates.take(&format!("tool {}", share.tool), limit).map_err(|wait| too_many(&many, wait))
    }

    /// Waits for a turn, in order among the calls of this tool and by turns with those of others; refuses at once where
    /// too many wait already, or too much.
    pub async fn enter(&self, request: &CallRequest, share: &Share<'_>) -> Result<Turn, fault::Fault> {
        let full = || {
            let message = "Too many calls are waiting in this host.";
            fault::Fault::new(fault::Kind::RateLimitError, message).retry_after(FULL)
        };
        let [running, admitted] = self.sizes;
        let running = share.claim(running, share.at_once);
        // However few of them run at once, more may wait.
        let admitted = self.admitted.try_enter_as(&share.claim(admitted, [None; 2]));
        let admitted = admitted.ok_or_else(full)?;
        let room = u32::try_from(weight(&request.arguments) / 1024).unwrap_or(ROOM_KIB).min(ROOM_KIB);
        let room = self.room.clone().try_acquire_many_owned(room).map_err(|_| full())?;
        let running = self.running.enter_as(running).await;
        Ok(Turn { running: Some(running), _admitted: admitted, _room: room })
    }
}

impl Guard {
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
    /// Of one tool at most three quarters, of one caller seven eighths: what is left is for others, and what its one
    /// tool leaves a caller is for its other tools.
    fn claim(&self, all: usize, at_once: [Option<u32>; 2]) -> Claim {
        let most = [if self.operator { all } else { all - all / 8 }, all - all / 4];
        let keys = [format!("caller {}", self.caller), format!("tool {}", self.tool)];
        let held = |limit: Option<u32>| limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let counts = keys.into_iter().zip(most).zip(at_once);
        let counts = counts.map(|((key, most), limit)| (key, most.min(held(limit)))).collect();
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
        Share { caller: "u", tool: "t:x", operator: false, at_once: [None; 2], per_minute: None };

    fn asked(arguments: Arguments) -> CallRequest {
        CallRequest::new(Caller::named("u"), "t:x", arguments)
    }

    #[tokio::test]
    async fn one_runs_one_waits_the_third_is_refused() {
        let guard = Arc::new(Guard::new(1, 1));
        let none = || asked(Arguments::Text(String::new()));
        let first = guard.enter(&none(), &SHARE).await.unwrap();
        let waiting = tokio::spawn({
            let guard = guard.clone();
            async move { guard.enter(&none(), &SHARE).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let third = guard.enter(&none(), &SHARE).await.expect_err("no room");
        assert!(third.kind == fault::Kind::RateLimitError && third.retryable);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn large_arguments_share_one_room() {
        let guard = Guard::new(64, 64);
        let large = asked(Arguments::Value(Value::Array(vec![Value::from(0); 2_000_000])));
        let first = guard.enter(&large, &SHARE).await.unwrap();
        let _second = guard.enter(&large, &SHARE).await.unwrap();
        assert_eq!(guard.enter(&large, &SHARE).await.expect_err("full").kind, fault::Kind::RateLimitError);
        assert!(guard.enter(&asked(Arguments::Text("{}".into())), &SHARE).await.is_ok(), "small ones go on");
        drop(first);
        assert!(guard.enter(&large, &SHARE).await.is_ok());
    }
}
