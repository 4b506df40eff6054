//! The data of one request beside its message, and the content of its answer beside rmcp's.

use super::results::ResultContent;
use crate::base::semaphore::Permit;
use crate::base::{lock, text};
use crate::service::{
    self, Approver, CallRequest, Caller, Charged, Limiter, RateCharge, Reporting, TraceContext,
};
use crate::transport::answers;
use http::request::Parts;
use rmcp::model::ErrorData;
use rmcp::service::{RequestContext, RoleServer};
use serde::Serialize;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// The member of a request's `_meta` with the user to call for.
const LABEL: &str = "dev.toolhost/user";

pub struct McpRequest {
    pub caller: Caller,
    /// The user to call for, if the request itself names none.
    pub label: Option<String>,
    /// Who else than its client can be asked about its call.
    pub approver: Approver,
    pub limiter: Arc<Limiter>,
    /// The arguments of a call, where they were cut out of the message, and the quota of the body
    /// that brought them.
    pub arguments: Mutex<Option<(String, Option<Arc<Permit>>)>>,
    pub rate: RateCharge,
    /// The memory of an answer that no call made, until the answer is sent.
    pub room: Mutex<Option<Permit>>,
    pub answer: Mutex<Option<Arc<ResultContent>>>,
    /// Cancelled once the client has cancelled the request, has left, or has its answer.
    pub left: CancellationToken,
}

impl McpRequest {
    pub fn new(caller: Caller, limiter: &Arc<Limiter>) -> McpRequest {
        McpRequest {
            caller,
            label: None,
            approver: Approver::Nobody,
            limiter: limiter.clone(),
            arguments: Mutex::default(),
            rate: RateCharge::Due,
            room: Mutex::default(),
            answer: Mutex::default(),
            left: CancellationToken::new(),
        }
    }

    /// Finds the data of this context's request: over HTTP, in the extensions of its head.
    pub fn find(context: &RequestContext<RoleServer>) -> Result<&McpRequest, ErrorData> {
        let own = context.extensions.get::<Arc<McpRequest>>();
        let found = own.or_else(|| context.extensions.get::<Parts>()?.extensions.get());
        found
            .map(Arc::as_ref)
            .ok_or_else(|| ErrorData::internal_error("This request came without its caller.", None))
    }

    /// Keeps the content of the answer until that is sent.
    pub fn set_answer(&self, content: ResultContent) {
        *lock(&self.answer) = Some(Arc::new(content));
    }

    /// Charges an answer that no call made. Never waits: the client can request the answer again.
    pub fn charge<T: Serialize>(&self, answer: T) -> Result<T, ErrorData> {
        let size = answers::size(&answer);
        let room = size.map_or_else(
            || Err(answers::too_large("The answer")),
            |size| self.limiter.try_answer(&self.caller.user, size),
        );
        *lock(&self.room) =
            Some(room.map_err(|fault| ErrorData::internal_error(fault.message, None))?);
        Ok(answer)
    }

    /// Whether the answer has its memory. Its holder must not wait for more.
    pub fn is_charged(&self) -> bool {
        lock(&self.room).is_some() || lock(&self.answer).is_some()
    }

    pub fn answer(&self) -> Option<Arc<ResultContent>> {
        lock(&self.answer).clone()
    }

    /// An event or document as it is sent: invisible characters are escaped, and if it is the
    /// result, its content is put into it.
    pub fn parts_of(&self, event: &[u8]) -> answers::Parts {
        let event = text::escaped_json(&String::from_utf8_lossy(event)).into_bytes();
        let with_content = self.answer().and_then(|content| content.put_into(&event));
        with_content.unwrap_or_else(|| vec![event.into()])
    }

    /// The answer was sent, or is kept for a client that comes back: the call and its memory count
    /// no more.
    pub fn release(&self) {
        drop((lock(&self.arguments).take(), lock(&self.room).take()));
        drop(self.answer().and_then(|content| lock(&content.slot).take()));
    }

    /// The user for whom this context's request is.
    pub fn label(&self, context: &RequestContext<RoleServer>) -> Result<Option<String>, ErrorData> {
        fn refuse(words: String) -> ErrorData {
            ErrorData::invalid_params(words, None)
        }
        match context.meta.get(LABEL) {
            None | Some(Value::Null) => Ok(self.label.clone()),
            Some(Value::String(label)) => {
                service::label(Some(label.clone())).map_err(|fault| refuse(fault.message))
            }
            // Otherwise the call would be for the caller itself.
            Some(_) => Err(refuse(format!("_meta: {LABEL} must be a string."))),
        }
    }

    /// Adds to a call what its request says: label and trace.
    pub fn complete(
        &self,
        context: &RequestContext<RoleServer>,
        call: CallRequest,
    ) -> Result<CallRequest, ErrorData> {
        let text = |name: &str| context.meta.get(name).and_then(Value::as_str);
        let trace = match text("traceparent") {
            Some(parent) => TraceContext::parse(parent, text("tracestate")),
            None => context
                .extensions
                .get::<Parts>()
                .and_then(|parts| TraceContext::from_headers(&parts.headers)),
        };
        Ok(CallRequest {
            label: self.label(context)?,
            charged: Charged {
                rate: self.rate,
                ..call.charged
            },
            reporting: Reporting {
                trace,
                ..call.reporting
            },
            ..call
        })
    }
}
