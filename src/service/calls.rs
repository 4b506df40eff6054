//! Calls that wait or run, and those that ended lately: each is visible to whom it counts as, to
//! its principal and to operators.

use super::output;
use super::report::CallResult;
use super::request::{Answer, CallRequest, Caller, Question};
use crate::base::lock;
use crate::base::semaphore::{self, Claim, Permit};
use crate::base::shares::{Charge, IN_USE, Shares};
use crate::base::text::{head, printable};
use crate::fault::Fault;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// Most ended calls that are remembered. Beyond it, the oldest of the principal with the most is
/// removed.
const ENDED: usize = 1000;
/// Longest text of a request that is kept, characters.
const SHOWN: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The call waits for a slot, or is being prepared.
    Waiting,
    Running,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallState {
    pub id: String,
    /// The call whose code made this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    pub caller: String,
    /// The requested name, or `id@version` once the tool is found.
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

/// Open and ended calls, by id, which is the order of time.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Shares<String, CallEntry>>);

#[derive(Debug)]
pub(super) struct CallEntry {
    pub state: CallState,
    /// Ends the call with this fault.
    cancel: Option<oneshot::Sender<Fault>>,
    /// A person is asked about it.
    pub is_asking: bool,
    /// A question that operators may answer.
    pub question: Option<OpenQuestion>,
}

impl CallEntry {
    /// Only the first end counts.
    fn end(&mut self, fault: Fault) {
        if let Some(cancel) = self.cancel.take() {
            let _ = cancel.send(fault);
        }
    }
}

/// A question that operators may answer, kept in the entry of its call.
#[derive(Debug)]
pub(super) struct OpenQuestion {
    pub question: Question,
    /// The caller may not answer it.
    pub not_own: bool,
    pub answer: oneshot::Sender<Answer>,
    pub _reserved: Permit,
}

/// One open call. Dropped without `end`, the call counts as cancelled.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub calls: Arc<Calls>,
    id: String,
}

impl Calls {
    pub(super) fn begin(
        self: &Arc<Self>,
        id: &str,
        request: &CallRequest,
    ) -> (OpenCall, oneshot::Receiver<Fault>) {
        let (cancel, cancelled) = oneshot::channel();
        let state = CallState {
            id: id.to_owned(),
            parent: request.parent.as_ref().map(|parent| parent.call.clone()),
            caller: request.caller.user.clone(),
            principal: request.caller.user.clone(),
            tool: printable(&head(&request.tool, SHOWN)),
            began: jiff::Timestamp::now().to_string(),
            phase: Phase::Waiting,
            outcome: None,
            ran: false,
        };
        let entry = CallEntry {
            state,
            cancel: Some(cancel),
            is_asking: false,
            question: None,
        };
        // Admission (`quota`) bounds how many are open.
        let free = Charge {
            claim: Claim::new(),
            size: 0,
        };
        lock(&self.0).put(id.to_owned(), free, IN_USE, entry);
        let open = OpenCall {
            calls: self.clone(),
            id: id.to_owned(),
        };
        (open, cancelled)
    }

    /// Changes an open call, or reads it.
    pub(super) fn change<T>(
        &self,
        id: &str,
        change: impl FnOnce(&mut CallEntry) -> T,
    ) -> Option<T> {
        lock(&self.0)
            .get_mut(&id.to_owned())
            .filter(|call| call.state.phase != Phase::Ended)
            .map(change)
    }

    /// Whether all open calls wait for persons.
    pub fn are_only_asking(&self) -> bool {
        let calls = lock(&self.0);
        let open = calls
            .iter()
            .filter(|(_, call)| call.state.phase != Phase::Ended);
        let (asking, others): (Vec<_>, Vec<_>) = open.partition(|(_, call)| call.is_asking);
        // A call stands still while a person is asked about what its code calls.
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        let parents = asking
            .iter()
            .filter_map(|(_, call)| call.state.parent.as_deref());
        for parent in parents {
            let above = |id: &&str| calls.get(&(*id).to_owned())?.state.parent.as_deref();
            waiting.extend(std::iter::successors(Some(parent), above));
        }
        others.iter().all(|(id, _)| waiting.contains(id.as_str()))
    }

    pub fn questions(&self) -> Vec<Question> {
        lock(&self.0)
            .iter()
            .filter_map(|(_, call)| Some(call.question.as_ref()?.question.clone()))
            .collect()
    }
}

impl OpenCall {
    /// Records how the call ended. Only the first end counts.
    pub fn end(&self, outcome: &CallResult) {
        let mut calls = lock(&self.calls.0);
        let Some(call) = calls
            .get_mut(&self.id)
            .filter(|call: &&mut CallEntry| call.state.phase != Phase::Ended)
        else {
            return;
        };
        (call.state.phase, call.question) = (Phase::Ended, None);
        call.state.outcome = Some(outcome.word());
        let claim = semaphore::claim(ENDED, [(call.state.principal.clone(), ENDED)]);
        calls.keep(&self.id, Duration::ZERO);
        calls.charge(&self.id, Charge { claim, size: 1 });
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.end(&CallResult::default());
    }
}

impl Calls {
    /// The calls of a caller (`who`) and those that it made as others, or everybody's for an
    /// operator: those that ended lately, then those that are open.
    pub fn of(&self, caller: &Caller) -> Vec<CallState> {
        let calls = lock(&self.0);
        let seen = calls
            .iter()
            .map(|(_, call)| &call.state)
            .filter(|state| caller.sees(&state.caller, &state.principal));
        let mut seen: Vec<_> = seen.cloned().collect();
        seen.sort_by_key(|state| state.phase != Phase::Ended);
        seen
    }

    pub fn state(&self, caller: &Caller, id: &str) -> Option<CallState> {
        let state = lock(&self.0).get(&id.to_owned())?.state.clone();
        caller
            .sees(&state.caller, &state.principal)
            .then_some(state)
    }

    /// Cancels an open call of this caller (`who`), or any call for an operator. False: the call
    /// does not exist.
    pub fn cancel(&self, caller: &Caller, id: &str) -> bool {
        self.change(id, |call| {
            let CallState {
                caller: owner,
                principal,
                ..
            } = &call.state;
            let fault = output::cancelled_by(&caller.user, [owner, principal]);
            caller.sees(owner, principal).then(|| call.end(fault))
        })
        .flatten()
        .is_some()
    }

    /// Ends an open call with this fault.
    pub(super) fn end(&self, id: &str, fault: Fault) {
        self.change(id, |call| call.end(fault));
    }
}
