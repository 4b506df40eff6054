//! What a call holds and owes besides its record: its turn, its place in the list of calls, its outcome to others under its key.
//!
//! For: the record. In: how the call ended. Out: told to both. Never: ends a call that left no record of its own.

use super::super::guard::{Guard, Share, Turn};
use super::super::report::Report;
use super::CallRecord;
use crate::base::json::Text;
use crate::fault::{Fault, Kind};
use crate::service::format;
use std::sync::Arc;

impl CallRecord {
    pub fn found(&mut self, tool: Arc<crate::registry::Tool>) {
        let reference = tool.reference();
        self.listed.iter().for_each(|listed| listed.change(|state| state.tool.clone_from(&reference)));
        self.tool = Some(tool);
    }

    /// Others may run while the call waits; it keeps its place among those that wait, and the room for its arguments.
    pub fn step_aside(&mut self) {
        self.turn.as_mut().and_then(Arc::get_mut).into_iter().for_each(Turn::step_aside);
    }

    /// Waits for a place among the calls that run, which it then has until its answer is delivered.
    pub async fn comes_back(&mut self, guard: &Guard, share: &Share<'_>) {
        if let Some(turn) = self.turn.as_mut().and_then(Arc::get_mut) {
            guard.comes_back(turn, share).await;
        }
    }

    /// A call that was cancelled while it ran is not made again as if nothing had happened.
    pub(super) fn midway(&self, fault: Fault) -> Fault {
        if self.ran && fault.kind == Kind::CancelledError { format::cancelled_midway(fault) } else { fault }
    }

    /// The outcome is told to whoever waits for it.
    pub(super) fn owes(&mut self, report: &Report) {
        self.place.take().into_iter().for_each(|place| place.ended(report));
        self.listed.take().into_iter().for_each(|listed| listed.ended(report.error.as_ref()));
    }

    /// Closes a call that gets the outcome of an earlier one: its own record, and that outcome.
    pub fn replay(mut self, kept: &Report) -> Report {
        self.replayed = Some(format!("idempotency key of call {}", kept.id));
        let mut report = Report { turn: self.turn.take(), ..kept.clone() };
        if let Err(fault) = self.record(kept.error.as_ref()) {
            report = Report::of_fault(std::mem::take(&mut self.id), &kept.tool, fault);
        }
        let told: Result<Text, Fault> = match (&report.error, &report.output_data) {
            (Some(fault), _) => Err(fault.clone()),
            (None, output) => Ok(output.clone().unwrap_or_else(|| Text::from(&serde_json::Value::Null))),
        };
        self.log_run(&told);
        self.owes(&report);
        report
    }
}
