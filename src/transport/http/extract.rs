//! What a handler takes of a request: the server, and who calls. A server that ends refuses it.

use super::body::{self, BodyError, Received};
use super::calls::{self, Begun};
use super::reply::{self, Reader, Refused, Response};
use super::{Face, running};
use crate::fault::{Fault, Kind};
use crate::service::{self, Arguments, CallRequest, Caller, Sink, TraceContext};
use axum::body::Body;
use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use std::sync::{Arc, Weak};

/// The caller of a request, known to the gate.
pub struct RequestCaller {
    pub face: Arc<Face>,
    pub caller: Caller,
}

impl FromRequestParts<Weak<Face>> for RequestCaller {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, face: &Weak<Face>) -> Result<RequestCaller, Refused> {
        let face = face.upgrade().ok_or_else(reply::stopping)?;
        let caller = parts.extensions.get().cloned().ok_or_else(|| {
            let fault = Fault::new(Kind::InternalError, "The server does not know who sent this request.");
            reply::refused(StatusCode::INTERNAL_SERVER_ERROR, fault)
        })?;
        Ok(RequestCaller { face, caller })
    }
}

impl RequestCaller {
    /// As `callers.policy.toml` says, where there is one; while that cannot be read, as it was last.
    pub fn is_operator(&self) -> bool {
        self.face.service.who(&self.caller, None).operator
    }

    /// A fault that the service told outside of a call.
    pub fn fault(&self, fault: Fault) -> Refused {
        reply::fault(fault, self.is_operator()).into()
    }
}

/// An operator of this host.
pub struct Operator {
    pub face: Arc<Face>,
    pub caller: Caller,
}

impl FromRequestParts<Weak<Face>> for Operator {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, face: &Weak<Face>) -> Result<Operator, Refused> {
        let known = RequestCaller::from_request_parts(parts, face).await?;
        if !known.is_operator() {
            let fault = Fault::new(Kind::AuthorizationError, "This is for operators of the host.");
            return Err(reply::refused(StatusCode::FORBIDDEN, fault));
        }
        Ok(Operator { face: known.face, caller: known.caller })
    }
}

/// A request that leads to calls. Until it is dropped the server waits with its end.
pub struct Start {
    pub known: RequestCaller,
    pub headers: HeaderMap,
    pub begun: Begun,
}

impl FromRequestParts<Weak<Face>> for Start {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, face: &Weak<Face>) -> Result<Start, Refused> {
        let known = RequestCaller::from_request_parts(parts, face).await?;
        let begun = known.face.begin().ok_or_else(reply::stopping)?;
        Ok(Start { known, headers: parts.headers.clone(), begun })
    }
}

impl Start {
    pub fn face(&self) -> &Arc<Face> {
        &self.known.face
    }

    pub fn caller(&self) -> &Caller {
        &self.known.caller
    }

    /// Reads the body of a call. `tool`: see `body::read`.
    pub async fn read(&self, tool: &str, body: Body) -> Result<Received, BodyError> {
        body::read(self.face(), self.caller(), &self.headers, body, (tool, |_| true)).await
    }

    /// A call of this request.
    pub fn request(&self, tool: String, arguments: Arguments) -> CallRequest {
        CallRequest {
            id: Some(service::new_id()),
            approver: running::approver(self.face(), self.caller()),
            trace: TraceContext::of_headers(&self.headers),
            ..CallRequest::new(self.caller().clone(), tool, arguments)
        }
    }

    /// Who reads the answer.
    pub fn reader(&self, label: Option<String>) -> Reader {
        let (payer, operator) = (self.face().payer(self.caller()), self.known.is_operator());
        Reader { payer, operator, label, unread: None }
    }

    /// Refuses a request that leads to no call, which leaves its record like every other refusal.
    pub async fn refuse(self, tool: &str, unread: BodyError) -> Response {
        let reader = Reader { unread: Some(unread.status), ..self.reader(None) };
        let RequestCaller { face, caller } = self.known;
        let request = CallRequest::refused(caller, tool, unread.fault);
        let request = CallRequest { id: Some(service::new_id()), counted: usize::MAX, ..request };
        reply::report(calls::run(face, request, Sink::none()).await, &reader, self.begun)
    }
}
