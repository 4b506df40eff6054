//! Asked: what a request over HTTP brings beside its message, and what its answer brings beside rmcp's.
//!
//! For: the face and `streamable`. In: a caller, the arguments as text. Out: the content of the answer. Never: the answer of
//! one request for another.

use super::results::Answer;
use crate::base::lock;
use crate::service::{Approver, Caller, TraceContext, Turn};
use http::request::Parts;
use rmcp::service::{RequestContext, RoleServer};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

pub struct Asked {
    pub caller: Caller,
    /// Who else than its client can be asked about its call.
    pub approver: Approver,
    arguments: Mutex<Option<String>>,
    answer: Mutex<Option<Arc<Answer>>>,
    /// The call counts as one that runs until its answer is sent.
    turn: Mutex<Option<Arc<Turn>>>,
    /// The client is gone, or has its answer.
    left: CancellationToken,
}

impl Asked {
    pub fn new(caller: Caller, approver: Approver, arguments: Option<String>) -> Arc<Asked> {
        let left = CancellationToken::new();
        let arguments = Mutex::new(arguments);
        Arc::new(Asked { caller, approver, arguments, answer: Mutex::default(), turn: Mutex::default(), left })
    }

    pub fn arguments(&self) -> Option<String> {
        lock(&self.arguments).take()
    }

    pub fn answered(&self, mut answer: Answer) {
        *lock(&self.turn) = answer.turn.take();
        *lock(&self.answer) = Some(Arc::new(answer));
    }

    /// The content of the answer, once the call has ended.
    pub fn answer(&self) -> Option<Arc<Answer>> {
        lock(&self.answer).clone()
    }

    /// All of the answer was sent, or is kept for its client: the call does not run any more. Gives the bytes of its content.
    pub fn over(&self) -> usize {
        drop(lock(&self.turn).take());
        self.answer().map_or(0, |answer| answer.len())
    }

    pub fn has_answer(&self) -> bool {
        lock(&self.answer).is_some()
    }

    pub fn left(&self) -> CancellationToken {
        self.left.clone()
    }
}

/// What the request of this context brought; `None` where it did not come over HTTP.
pub fn of(context: &RequestContext<RoleServer>) -> Option<&Asked> {
    context.extensions.get::<Parts>()?.extensions.get::<Arc<Asked>>().map(Arc::as_ref)
}

/// The trace that a request is part of, as it says itself, else as its headers do.
pub fn trace(context: &RequestContext<RoleServer>) -> Option<TraceContext> {
    let said = |name: &str| context.meta.get(name).and_then(serde_json::Value::as_str);
    match said("traceparent") {
        Some(parent) => TraceContext::parse(parent, said("tracestate")),
        None => TraceContext::of_headers(&context.extensions.get::<Parts>()?.headers),
    }
}
