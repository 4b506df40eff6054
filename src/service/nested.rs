//! Calls that the code of a running call makes. Each is a whole call, for the same caller, and ends
//! with its parent.

use super::arguments::Arguments;
use super::output;
use super::parent::Parent;
use super::report::{CallResult, Report};
use super::request::{CallRequest, RateCharge};
use crate::base::millis;
use crate::executor::{CallDeadline, NestedAnswer, NestedCall};
use crate::fault::{Fault, Kind};
use crate::quantity::{Limit, MIN_TIMEOUT_MS};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;

/// The service, for calls from code.
pub(super) trait ServesCode: Send + Sync {
    fn call_from_code(self: Arc<Self>, request: CallRequest) -> BoxFuture<'static, Report>;
}

/// The nested calls of one call that runs. Dropping them cancels, kills, reaps and records.
pub(super) struct NestedCalls {
    pub service: Arc<dyn ServesCode>,
    /// What all of them have: the caller, the label, the trace, the parent.
    pub request: CallRequest,
    pub parent: Parent,
    pub deadline: CallDeadline,
    /// How many there may be, and how many there were.
    pub most: u64,
    pub made: u64,
    pub running: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Has their parent stand still while a person is asked about one of them.
    pub lending: BoxFuture<'static, ()>,
}

impl NestedCalls {
    /// Begins a call, or refuses it. What is refused leaves a record like any call, but for those
    /// after the first that passes the limit of their number. An answer that comes when the time of
    /// the parent is over is not delivered: the parent ends by its own deadline, and not by what
    /// its code makes of that answer.
    pub fn start(&mut self, call: NestedCall) {
        self.made += 1;
        // Rounded up: it may not be late before its parent is.
        let left_ms = millis(self.deadline.left() + Duration::from_nanos(999_999));
        let refused = self.refusal(&call.tool, left_ms).err();
        if let Some(fault) = refused.clone().filter(|_| self.made > self.most + 1) {
            let answer = NestedAnswer {
                result: Err(fault),
                charged: None,
            };
            return drop(call.reply.send(answer));
        }
        // What the code may not do uses up nothing of its caller's.
        let rate = match refused {
            Some(_) => RateCharge::Free,
            None => self.request.charged.rate,
        };
        let request = CallRequest {
            tool: call.tool,
            arguments: Arguments::Text(call.arguments),
            timeout_ms: Some(left_ms),
            charged: rate.into(),
            parent: Some(self.parent.clone()),
            refused,
            ..self.request.clone()
        };
        let service = self.service.clone();
        let deadline = self.deadline.clone();
        let is_late = left_ms < MIN_TIMEOUT_MS;
        let run = async move {
            let mut report = service.call_from_code(request).await;
            let slot = report.delivery.slot.take();
            if is_late || deadline.left().is_zero() {
                drop((slot, report));
                return std::future::pending().await;
            }
            let result = match report.outcome {
                CallResult::Output(answer) => Ok(answer),
                other => Err(other.into_fault().unwrap_or_else(output::cancelled)),
            };
            // The code may be gone by now.
            drop(call.reply.send(NestedAnswer {
                result,
                charged: slot.map(|slot| Box::new(slot) as _),
            }));
        };
        self.running.push(run.boxed());
    }

    fn refusal(&self, tool: &str, left_ms: u64) -> Result<(), Fault> {
        if self.made > self.most {
            return Err(output::over_limit(Limit::NestedCalls, self.most));
        }
        if left_ms < MIN_TIMEOUT_MS {
            let message = "The time of the call whose code made this call is over.";
            return Err(Fault::new(Kind::TimeoutError, message));
        }
        self.parent.accepts(tool)
    }
}

/// Goes on with the nested calls, until one of them has ended. Without any it never ends.
pub(super) async fn progress(nested: &mut Option<NestedCalls>) {
    let Some(nested) = nested else {
        return std::future::pending().await;
    };
    tokio::select! {
        Some(()) = nested.running.next() => {}
        () = &mut nested.lending => {}
    }
}
