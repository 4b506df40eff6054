//! Calls that wait or run, and those that ended lately: each is visible to whom it counts as, to its principal and to
//! operators.

use super::request::CallRequest;
use super::{Caller, Service, output};
use crate::base::lock;
use crate::base::shares::{IN_USE, Shares};
use crate::base::text::{head, printable};
use crate::fault::{Fault, Kind};
use serde::Serialize;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Most calls that ended and are remembered; once there are so many, the oldest of the principal that has most goes.
const ENDED: usize = 1000;
/// Longest text that a request brings, characters.
const SHOWN: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// For a slot, or for what it needs.
    Waiting,
    Running,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallState {
    pub id: String,
    pub caller: String,
    /// As it was asked for, or `id@version` once it is found.
    pub tool: String,
    pub began: String,
    pub phase: Phase,
    /// `success`, or the type of the error.
    pub outcome: Option<String>,
    #[serde(skip)]
    pub principal: String,
    /// Something of it ran.
    #[serde(skip)]
    pub ran: bool,
}

/// Open and ended calls, by number, and the last number.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<(Shares<u64, CallEntry>, u64)>);

type CallEntry = (CallState, CancellationToken);

/// The place of one open call. Dropped without an end, the call was cancelled.
#[derive(Debug)]
pub(super) struct OpenCall {
    calls: Arc<Calls>,
    key: u64,
    pub cancelled: CancellationToken,
}

impl Calls {
    pub fn begin(self: &Arc<Self>, id: &str, request: &CallRequest) -> OpenCall {
        let cancelled = CancellationToken::new();
        let state = CallState {
            id: id.to_owned(),
            caller: request.caller.user.clone(),
            principal: request.caller.user.clone(),
            tool: printable(&head(&request.tool, SHOWN)),
            began: jiff::Timestamp::now().to_string(),
            phase: Phase::Waiting,
            outcome: None,
            ran: false,
        };
        let mut all = lock(&self.0);
        all.1 += 1;
        let key = all.1;
        // How many are open is bounded where they are admitted.
        let _ = all.0.put(key, (Vec::new(), 0), IN_USE, (state, cancelled.clone()));
        OpenCall { calls: self.clone(), key, cancelled }
    }

    /// The calls that a caller sees: those that ended lately, then those that are open.
    fn seen_by(&self, caller: &Caller) -> Vec<CallEntry> {
        let own = |state: &CallState| caller.operator || [&state.caller, &state.principal].contains(&&caller.user);
        let mut seen: Vec<_> =
            lock(&self.0).0.iter().map(|(_, call)| call).filter(|(state, _)| own(state)).cloned().collect();
        seen.sort_by_key(|(state, _)| state.phase != Phase::Ended);
        seen
    }
}

impl OpenCall {
    pub fn change(&self, change: impl FnOnce(&mut CallState)) {
        if let Some((state, _)) = lock(&self.calls.0).0.get_mut(&self.key) {
            change(state);
        }
    }

    /// How the call ended. The first end counts.
    pub fn end(&self, fault: Option<Kind>) {
        let calls = &mut lock(&self.calls.0).0;
        if calls.get(&self.key).is_none_or(|(state, _)| state.phase == Phase::Ended) {
            return;
        }
        let Some((state, cancel)) = calls.remove(&self.key) else { return };
        let claim = vec![(String::new(), ENDED), (format!("principal {}", state.principal), ENDED)];
        let outcome = Some(fault.map_or_else(|| "success".to_owned(), |kind| kind.to_string()));
        let _ = calls.put(
            self.key,
            (claim, 1),
            Duration::ZERO,
            (CallState { phase: Phase::Ended, outcome, ..state }, cancel),
        );
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.end(Some(Kind::CancelledError));
    }
}

impl Service {
    /// The calls of a caller (`who`) and those that it made as others, or everybody's for an operator: those that ended
    /// lately, then those that are open.
    pub fn calls(&self, caller: &Caller) -> Vec<CallState> {
        self.calls.seen_by(caller).into_iter().map(|(state, _)| state).collect()
    }

    pub fn call_state(&self, caller: &Caller, id: &str) -> Option<CallState> {
        self.calls(caller).into_iter().rfind(|state| state.id == id)
    }

    /// The fault of a call that was dropped because its host stops.
    pub fn stopped(&self, id: &str) -> Fault {
        self.midway(id, Fault::new(Kind::CancelledError, "The server was stopped.").retryable())
    }

    /// The same of one whose caller stopped it.
    pub fn interrupted(&self, id: &str) -> Fault {
        self.midway(id, output::cancelled())
    }

    fn midway(&self, id: &str, fault: Fault) -> Fault {
        let ran = self.call_state(&Caller::operator(""), id).is_some_and(|state| state.ran);
        if ran { output::cancelled_midway(fault) } else { fault }
    }

    /// Cancels an open call of this caller (`who`), or anybody's for an operator. False: there is none for it.
    pub fn cancel(&self, caller: &Caller, id: &str) -> bool {
        let open = |(state, _): &(CallState, _)| state.id == id && state.phase != Phase::Ended;
        let found: Vec<_> = self.calls.seen_by(caller).into_iter().filter(open).collect();
        found.iter().for_each(|(_, cancel)| cancel.cancel());
        !found.is_empty()
    }
}
