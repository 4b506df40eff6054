//! Responses: statuses and JSON without host paths or characters that a terminal would obey. A status other than 200 means
//! that the tool did not run.

use super::calls::Begun;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::service::{Caller, Report, Reservation, Service};
use crate::transport::answers::{Built, Payer};
use axum::body::{Body, Bytes, HttpBody};
use axum::response::IntoResponse;
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

pub type Response = http::Response<Body>;
/// A response that ends a request early.
pub struct Refused(pub Box<Response>);

impl From<Response> for Refused {
    fn from(response: Response) -> Refused {
        Refused(Box::new(response))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        *self.0
    }
}

/// When a client may try again, seconds.
fn retry_after(fault: &Fault) -> HeaderValue {
    HeaderValue::from(fault.retry_after_ms.map_or(1, |wait| wait.div_ceil(1000)))
}

/// Fields of JSON that come from elsewhere as text, and the room that it takes.
pub fn with_text(head: &Value, name: &str, text: &str, room: Reservation) -> Response {
    let whole = joined(head, name, text, ("", "\n")).into_bytes();
    let mut response = Response::new(Body::new(AnswerBody::new(std::future::ready(Some((whole, room))), ())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The same as text between two others.
pub fn joined(head: &Value, name: &str, text: &str, (before, after): (&str, &str)) -> String {
    let head = text::json(head, false);
    format!("{before}{},\"{name}\":{text}}}{after}", head.strip_suffix('}').unwrap_or_default())
}

/// A request that cannot be read as one of this server's.
pub fn malformed(words: &str) -> Fault {
    Fault::new(Kind::ParameterValidationError, words)
}

/// The body of a refusal.
pub fn words(fault: &Fault) -> String {
    text::json(&json!({ "error": fault }), false)
}

/// The same, where a function has more to give.
pub fn refused(status: StatusCode, fault: Fault) -> Refused {
    refusal(status, fault).into()
}

/// A request that leads to no call.
pub fn refusal(status: StatusCode, fault: Fault) -> Response {
    let mut response = json_of(status, words(&fault));
    if fault.retryable {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after(&fault));
    }
    response.extensions_mut().insert(fault);
    response
}

/// Marks an answer of which a record tells.
#[derive(Clone)]
pub struct Recorded;

/// Where every answer to a known caller leaves: a refusal of which no record tells has its own, or is counted in one.
/// That something is not there is an answer.
pub fn recorded(service: &Service, caller: &Caller, asked: &str, mut answer: Response) -> Response {
    let (status, known) = (answer.status(), answer.extensions_mut().remove::<Recorded>());
    let refused = (status.is_client_error() || status.is_server_error()) && status != StatusCode::NOT_FOUND;
    if known.is_some() || !refused {
        return answer;
    }
    let fault = answer.extensions_mut().remove::<Fault>();
    let fault = fault.unwrap_or_else(|| malformed(&format!("The request was refused with status {status}.")));
    match service.refuses(caller, asked, fault) {
        Ok(()) => answer,
        Err(fault) => refusal(StatusCode::INTERNAL_SERVER_ERROR, fault),
    }
}

/// A document of ours.
pub fn json_text(document: &str) -> Response {
    json_of(StatusCode::OK, document.to_owned())
}

pub fn text(body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The answer of a server that is about to end.
pub fn stopping() -> Response {
    let fault = Fault::new(Kind::RateLimitError, "The server is being stopped.").retryable();
    refusal(StatusCode::SERVICE_UNAVAILABLE, fault)
}

/// A fault that the service told outside of a call.
pub fn fault(fault: Fault, operator: bool) -> Response {
    let status = status_of(&fault, None);
    let person = fault.person.clone().filter(|_| operator);
    let mut body = json!({ "error": fault });
    if let Some(person) = person {
        body["error"]["person"] = Value::String(person);
    }
    let mut response = value(status, &body);
    response.extensions_mut().insert(fault);
    response
}

pub fn value(status: StatusCode, value: &Value) -> Response {
    json_of(status, text::json(value, false))
}

/// JSON text, made visible.
fn json_of(status: StatusCode, json: String) -> Response {
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Who reads a report.
pub struct Reader {
    pub payer: Payer,
    pub operator: bool,
    pub label: Option<String>,
    /// The status of a request whose body could not be read as a call.
    pub unread: Option<StatusCode>,
}

/// 200: the tool ran, or was to run and was cancelled, and `success` says how it ended. Anything else: nothing of it ran,
/// unless the host itself failed (500).
pub fn status(report: &Report, unread: Option<StatusCode>) -> StatusCode {
    report.error.as_ref().map_or(StatusCode::OK, |fault| status_of(fault, unread))
}

pub fn status_of(fault: &Fault, unread: Option<StatusCode>) -> StatusCode {
    match fault.kind {
        Kind::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
        _ if unread.is_some() => unread.unwrap_or_default(),
        _ if fault.conflict => StatusCode::CONFLICT,
        Kind::TimeoutError
        | Kind::ResourceLimitError
        | Kind::ScriptError
        | Kind::OutputValidationError
        | Kind::CancelledError => StatusCode::OK,
        Kind::ParameterValidationError | Kind::ActionParseError => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::ToolNotFoundError | Kind::VersionMismatchError => StatusCode::NOT_FOUND,
        Kind::AuthorizationError | Kind::SecurityError => StatusCode::FORBIDDEN,
        Kind::RateLimitError => StatusCode::TOO_MANY_REQUESTS,
        Kind::CapabilityError => StatusCode::NOT_IMPLEMENTED,
        Kind::CircuitOpenError | Kind::DependencyError | Kind::ServiceError => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// A report as a whole answer.
pub fn report(report: Report, seen_by: &Reader, begun: Begun) -> Response {
    let status = status(&report, seen_by.unread);
    let retryable = report.error.as_ref().filter(|fault| fault.retryable && status != StatusCode::OK);
    let retry = retryable.map(retry_after);
    let mut response = Response::new(Body::new(AnswerBody::of(report, seen_by, begun, ("", "\n"))));
    *response.status_mut() = status;
    response.extensions_mut().insert(Recorded);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(retry) = retry {
        headers.insert(header::RETRY_AFTER, retry);
    }
    response
}

/// So much of an answer is handed on at a time, bytes.
const PIECE: usize = 64 * 1024;

/// The body of an answer, which keeps its call's place, and the room that it takes, until it is sent.
pub struct AnswerBody {
    state: State,
    /// Its call's place, or whatever else lasts until it is sent.
    _kept: Box<dyn Send>,
}

enum State {
    Building(Pin<Box<dyn Future<Output = Option<Built>> + Send>>),
    Sending { bytes: Bytes, _room: Reservation },
    Sent,
}

impl AnswerBody {
    /// `build` is polled until the answer has room and is built.
    pub fn new(build: impl Future<Output = Option<Built>> + Send + 'static, kept: impl Send + 'static) -> AnswerBody {
        let mut held = AnswerBody { state: State::Building(Box::pin(build)), _kept: Box::new(kept) };
        // A short one that has room is there at once, and its length is known.
        let _ = held.ready(&mut Context::from_waker(Waker::noop()));
        held
    }

    /// The next bytes of it, as part of another body.
    pub async fn piece(&mut self) -> Option<io::Result<Bytes>> {
        let frame = self.frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    fn ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Building(build) = &mut self.state {
            let built = ready!(build.as_mut().poll(cx));
            self.state = built.map_or(State::Sent, |(bytes, room)| State::Sending { bytes: bytes.into(), _room: room });
        }
        Poll::Ready(())
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        ready!(self.ready(cx));
        let State::Sending { bytes, .. } = &mut self.state else { return Poll::Ready(None) };
        let piece = bytes.split_to(bytes.len().min(PIECE));
        if piece.is_empty() {
            self.state = State::Sent;
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Building(_) => false,
            State::Sending { bytes, .. } => bytes.is_empty(),
            State::Sent => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Building(_) => SizeHint::default(),
            State::Sending { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
            State::Sent => SizeHint::with_exact(0),
        }
    }
}
