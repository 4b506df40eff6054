//! The guard: how many calls run at once, and how many may wait for their turn (P28).
//!
//! For: the road. In: a request. Out: a turn, or a retryable `RateLimitError`. Never: an unbounded queue;
//! lets the calls of one tool, however long they last, keep those of another from their turn.

use super::{Arguments, CallRequest};
use crate::base::json;
use crate::base::places::{Place, Places};
use crate::fault;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that run at once unless the settings say otherwise.
pub const RUNNING: usize = 64;
/// Calls that may wait behind them.
pub const WAITING: usize = 1024;
/// Memory for the arguments of all admitted calls together, KiB.
const ROOM_KIB: u32 = 256 * 1024;
/// What one value costs in memory beside its text, about, bytes.
const NODE: usize = 64;

#[derive(Debug)]
pub struct Guard {
    running: Arc<Places>,
    admitted: Arc<Places>,
    room: Arc<Semaphore>,
}

/// Held while a call runs, and until its answer is delivered where that may take long; then the next call may run.
#[derive(Debug)]
pub struct Turn {
    _running: Place,
    _admitted: Place,
    _room: OwnedSemaphorePermit,
}

impl Guard {
    pub fn new(running: usize, waiting: usize) -> Guard {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 4);
        // Of one tool at most three quarters.
        let places = |all: usize| Places::new(all, all - all / 4);
        Guard {
            running: places(running),
            admitted: places(running + waiting),
            room: Arc::new(Semaphore::new(ROOM_KIB as usize)),
        }
    }

    /// Waits for a turn, in order among the calls of this tool and by turns with those of others; refuses at once where
    /// too many wait already, or too much.
    pub async fn enter(&self, request: &CallRequest) -> Result<Turn, fault::Fault> {
        let full =
            || fault::Fault::new(fault::Kind::RateLimitError, "Too many calls are waiting in this host.").retryable();
        let id = request.tool.split('@').next().unwrap_or(&request.tool);
        let admitted = self.admitted.try_enter(id).ok_or_else(full)?;
        let room = u32::try_from(weight(&request.arguments) / 1024).unwrap_or(ROOM_KIB).min(ROOM_KIB);
        let room = self.room.clone().try_acquire_many_owned(room).map_err(|_| full())?;
        let running = self.running.enter(id).await;
        Ok(Turn { _running: running, _admitted: admitted, _room: room })
    }
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
    use std::time::Duration;

    fn asked(arguments: Arguments) -> CallRequest {
        CallRequest::new(Caller::named("u"), "t:x", arguments)
    }

    #[tokio::test]
    async fn one_runs_one_waits_the_third_is_refused() {
        let guard = Arc::new(Guard::new(1, 1));
        let none = || asked(Arguments::Text(String::new()));
        let first = guard.enter(&none()).await.unwrap();
        let waiting = tokio::spawn({
            let guard = guard.clone();
            async move { guard.enter(&none()).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let third = guard.enter(&none()).await.expect_err("no room");
        assert!(third.kind == fault::Kind::RateLimitError && third.retryable);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn large_arguments_share_one_room() {
        let guard = Guard::new(64, 64);
        let large = asked(Arguments::Value(Value::Array(vec![Value::from(0); 2_000_000])));
        let first = guard.enter(&large).await.unwrap();
        let _second = guard.enter(&large).await.unwrap();
        assert_eq!(guard.enter(&large).await.expect_err("full").kind, fault::Kind::RateLimitError);
        assert!(guard.enter(&asked(Arguments::Text("{}".into()))).await.is_ok(), "small ones go on");
        drop(first);
        assert!(guard.enter(&large).await.is_ok());
    }
}
