//! What handlers extract from a request: the server and the caller.

use super::reply::{self, Begun, Recipient, Refusal, Response};
use super::server::{Connection, Server};
use crate::fault::{Fault, Kind};
use crate::service::{
    self, Approver, Arguments, CallRequest, Caller, RateCharge, Report, Reporting, Sink,
    TraceContext, output,
};
use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A request whose caller the gate knows.
pub struct KnownRequest {
    pub server: Arc<Server>,
    pub caller: Caller,
    pub headers: HeaderMap,
    pub connection: Arc<Connection>,
}

impl FromRequestParts<Arc<Server>> for KnownRequest {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<KnownRequest, Refusal> {
        let known = parts
            .extensions
            .get()
            .cloned()
            .zip(parts.extensions.get().cloned());
        let (caller, connection) = known.ok_or_else(|| {
            Fault::new(
                Kind::InternalError,
                "The server does not know who sent this request.",
            )
        })?;
        Ok(KnownRequest {
            server: server.clone(),
            caller,
            headers: parts.headers.clone(),
            connection,
        })
    }
}

impl KnownRequest {
    /// By `callers.policy.toml`, if there is one; while that cannot be read, by its last version.
    pub fn is_operator(&self) -> bool {
        self.acting().operator
    }

    /// Who the request counts as.
    pub fn acting(&self) -> Caller {
        self.server.service.catalog.who(&self.caller, None)
    }

    /// Who the request counts as now: its token or its role may have been withdrawn since it
    /// arrived.
    pub fn acting_now(&self) -> Result<Caller, Refusal> {
        let caller = self.server.callers.identify(&self.headers).map_err(|_| {
            let words = "The token of this request is not accepted any more.";
            Refusal::new(
                StatusCode::UNAUTHORIZED,
                Fault::new(Kind::AuthorizationError, words),
            )
        })?;
        Ok(self.server.service.catalog.who(&caller, None))
    }

    /// Begins a request that leads to calls, unless the server stops.
    pub fn start(self) -> Result<Start, Refusal> {
        if self.server.stop.is_cancelled() {
            return Err(Refusal::stopping());
        }
        Ok(Start {
            begun: self.server.begun.clone(),
            known: self,
        })
    }

    /// A fault of the service outside of a call.
    pub fn refusal(&self, fault: Fault) -> Refusal {
        if self.is_operator() {
            fault.for_operator()
        } else {
            fault
        }
        .into()
    }

    /// Who can be asked about a call of this caller. Where everybody is one user of this machine,
    /// who asks cannot be distinguished from who answers.
    pub fn approver(&self) -> Approver {
        Approver::Operators {
            not_own: !self.server.callers.is_own(),
        }
    }
}

/// A request of an operator of this host.
pub struct Operator(pub KnownRequest);

impl FromRequestParts<Arc<Server>> for Operator {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<Server>,
    ) -> Result<Operator, Refusal> {
        let known = KnownRequest::from_request_parts(parts, server).await?;
        if known.is_operator() {
            Ok(Operator(known))
        } else {
            Err(not_operator())
        }
    }
}

pub fn not_operator() -> Refusal {
    Fault::new(
        Kind::AuthorizationError,
        "This is for operators of the host.",
    )
    .into()
}

/// A request that leads to calls. The server does not end before this is dropped.
pub struct Start {
    pub known: KnownRequest,
    pub begun: Begun,
}

impl Start {
    /// A call of this request.
    pub fn request(&self, tool: String, arguments: Arguments) -> CallRequest {
        CallRequest {
            id: Some(service::new_id()),
            approver: self.known.approver(),
            reporting: Reporting {
                trace: TraceContext::from_headers(&self.known.headers),
                ..Reporting::default()
            },
            ..CallRequest::new(self.known.caller.clone(), tool, arguments)
        }
    }

    /// Who reads the answer.
    pub fn recipient(&self, label: Option<String>) -> Recipient {
        let KnownRequest { server, caller, .. } = &self.known;
        Recipient {
            service: server.service.clone(),
            caller: caller.clone(),
            label,
        }
    }

    /// Refuses a request that leads to no call. It has a record like every other refusal.
    pub async fn refuse(self, tool: &str, refusal: Refusal) -> Response {
        let recipient = self.recipient(None);
        let request = CallRequest::refused(self.known.caller, tool, *refusal.fault);
        let request = CallRequest {
            id: Some(service::new_id()),
            charged: RateCharge::Free.into(),
            ..request
        };
        let report = run(&self.known.server, request, Sink::none()).await;
        reply::report(report, Some(refusal.status), &recipient, self.begun).await
    }
}

/// Runs the call; where the server must end now, the call is dropped: killed and recorded.
pub async fn run(server: &Server, request: CallRequest, sink: Sink) -> Report {
    run_unless(server, request, sink, &CancellationToken::new()).await
}

/// As `run`, unless the call is cancelled.
pub async fn run_unless(
    server: &Server,
    request: CallRequest,
    sink: Sink,
    cancel: &CancellationToken,
) -> Report {
    let over = async {
        tokio::select! {
            () = server.kill.cancelled() => output::stopped(),
            () = cancel.cancelled() => output::cancelled(),
        }
    };
    server.service.call_unless(request, sink, over).await
}

pub fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind: &str| {
            kind.split(';')
                .next()
                .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
        })
}
