//! The context of one request: who makes it and what it brings beside its message, what its answer brings beside rmcp's.

use super::events::Log;
use super::results::Content;
use crate::base::lock;
use crate::service::{Approver, Caller, Reservation, Slot, TraceContext};
use crate::transport::answers::Payer;
use http::request::Parts;
use rmcp::model::ErrorData;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// The member of a request's `_meta` that says on whose behalf it comes.
const LABEL: &str = "dev.toolhost/user";

pub struct McpRequest {
    pub caller: Caller,
    /// On whose behalf it comes, where it does not say so itself.
    pub label: Option<String>,
    /// Who else than its client can be asked about its call.
    pub approver: Approver,
    pub payer: Payer,
    /// The arguments of a call as they came, where they were cut out of the message.
    pub arguments: Mutex<Option<String>>,
    /// `CallRequest::counted`.
    pub counted: usize,
    pub answer: Mutex<Option<Arc<Content>>>,
    /// The call counts as one that runs until its answer is sent.
    pub turn: Mutex<Option<Arc<Slot>>>,
    /// Cancelled once the client is gone, or has its answer.
    pub left: CancellationToken,
}

impl McpRequest {
    pub fn new(caller: Caller, payer: Payer) -> McpRequest {
        McpRequest {
            caller,
            label: None,
            approver: Approver::Nobody,
            payer,
            arguments: Mutex::default(),
            counted: 0,
            answer: Mutex::default(),
            turn: Mutex::default(),
            left: CancellationToken::new(),
        }
    }

    /// Keeps the content of the answer until that is sent.
    pub fn answered(&self, mut content: Content) {
        *lock(&self.turn) = content.turn.take();
        *lock(&self.answer) = Some(Arc::new(content));
    }

    pub fn answer(&self) -> Option<Arc<Content>> {
        lock(&self.answer).clone()
    }

    /// All of the answer was sent, or is kept for its client: the call does not run any more. Gives the bytes of its content.
    pub fn over(&self) -> usize {
        drop(lock(&self.turn).take());
        self.answer().map_or(0, |answer| answer.text.len())
    }

    /// On whose behalf the request of this context comes.
    pub fn label(&self, context: &RequestContext<RoleServer>) -> Option<String> {
        let said = context.meta.get(LABEL).and_then(Value::as_str);
        said.map(str::to_owned).or_else(|| self.label.clone())
    }
}

tokio::task_local! {
    /// The request over HTTP that rmcp is looking at.
    pub static CURRENT: Arc<Current>;
}

/// A request over HTTP, and what comes of it beside its response.
pub struct Current {
    pub asked: Arc<McpRequest>,
    /// For the session that it begins.
    pub place: Mutex<Option<Reservation>>,
    /// The stream that it begins or goes on with.
    pub log: Mutex<Option<Arc<Log>>>,
}

impl Current {
    pub fn user(&self) -> String {
        self.asked.caller.user.clone()
    }

    pub fn reads(&self, log: Option<Arc<Log>>) {
        *lock(&self.log) = log;
    }
}

/// What the request of this context brought: over HTTP in its head.
pub fn of(context: &RequestContext<RoleServer>) -> Result<&McpRequest, ErrorData> {
    let own = context.extensions.get::<Arc<McpRequest>>();
    let asked = own.or_else(|| context.extensions.get::<Parts>()?.extensions.get());
    asked.map(Arc::as_ref).ok_or_else(|| ErrorData::internal_error("This request came without its caller.", None))
}

/// The trace that a request is part of, as it says itself, else as its headers do.
pub fn trace(context: &RequestContext<RoleServer>) -> Option<TraceContext> {
    let said = |name: &str| context.meta.get(name).and_then(Value::as_str);
    match said("traceparent") {
        Some(parent) => TraceContext::parse(parent, said("tracestate")),
        None => TraceContext::of_headers(&context.extensions.get::<Parts>()?.headers),
    }
}
