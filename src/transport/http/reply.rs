//! Replies: statuses, and JSON in which nothing is hidden.
//!
//! For: the gate and the handlers. In: faults, reports, values. Out: responses. Never: a host path, or a raw character
//! that a terminal would obey; a status that says the tool did not run where it did.

use super::calls::Begun;
use crate::base::text::{self, VisibleJson};
use crate::fault::{Fault, Kind};
use crate::service::Report;
use crate::transport::pieces::{PIECE, Pieces};
use axum::body::{Body, Bytes, HttpBody};
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::{Serializer, Value, json};
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

pub type Response = http::Response<Body>;
/// One that ends a request early.
pub type Refused = Box<Response>;

/// When a client may try again, seconds.
fn retry_after(fault: &Fault) -> HeaderValue {
    HeaderValue::from(fault.retry_after_ms.map_or(1, |wait| wait.div_ceil(1000)))
}

/// Fields of JSON that come from elsewhere as text, with whatever lasts until they are taken.
pub fn with_text(head: &Value, name: &str, text: &str, kept: impl Send + 'static) -> Response {
    let whole = joined(head, name, text, ("", "\n"));
    let mut response = Response::new(Body::new(Held::made(whole, "", kept, false, |_| Ok(()))));
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
    Box::new(refusal(status, fault))
}

/// A request that leads to no call.
pub fn refusal(status: StatusCode, fault: Fault) -> Response {
    let mut response = json_of(status, words(&fault));
    if fault.retryable {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after(&fault));
    }
    response
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
    let status = status_of(&fault, false);
    let person = fault.person.clone().filter(|_| operator);
    let mut body = json!({ "error": fault });
    if let Some(person) = person {
        body["error"]["person"] = Value::String(person);
    }
    value(status, &body)
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
    pub operator: bool,
    pub label: Option<String>,
    /// The body could not be read as a call.
    pub unread: bool,
}

/// 200: the tool ran, or was to run and was cancelled, and `success` says how it ended. Anything else: nothing of it ran,
/// unless the host itself failed (500).
pub fn status(report: &Report, unread: bool) -> StatusCode {
    report.error.as_ref().map_or(StatusCode::OK, |fault| status_of(fault, unread))
}

fn status_of(fault: &Fault, unread: bool) -> StatusCode {
    match fault.kind {
        _ if fault.conflict => StatusCode::CONFLICT,
        Kind::TimeoutError
        | Kind::ResourceLimitError
        | Kind::ScriptError
        | Kind::OutputValidationError
        | Kind::CancelledError => StatusCode::OK,
        Kind::ParameterValidationError | Kind::ActionParseError if unread => StatusCode::BAD_REQUEST,
        Kind::ParameterValidationError | Kind::ActionParseError => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::ToolNotFoundError | Kind::VersionMismatchError => StatusCode::NOT_FOUND,
        Kind::AuthorizationError | Kind::SecurityError => StatusCode::FORBIDDEN,
        Kind::RateLimitError => StatusCode::TOO_MANY_REQUESTS,
        Kind::CapabilityError => StatusCode::NOT_IMPLEMENTED,
        Kind::CircuitOpenError | Kind::DependencyError | Kind::ServiceError => StatusCode::SERVICE_UNAVAILABLE,
        Kind::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A report as a whole answer.
pub fn report(report: Report, seen_by: &Reader, begun: Begun) -> Response {
    let status = status(&report, seen_by.unread);
    let retryable = report.error.as_ref().filter(|fault| fault.retryable && status != StatusCode::OK);
    let retry = retryable.map(retry_after);
    let mut response = Response::new(Body::new(Held::of(report, seen_by, begun, ("", "\n"))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(retry) = retry {
        headers.insert(header::RETRY_AFTER, retry);
    }
    response
}

/// JSON without a character that a terminal would obey.
pub fn visible(value: &impl Serialize, to: &mut dyn Write) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(to, VisibleJson))?)
}

/// The time in which an answer is taken, and how many bytes add a second to it.
const TAKEN_IN: Duration = Duration::from_secs(60);
const BYTES_A_SECOND: u64 = 64 * 1024;

/// A body that keeps the call's place until it is taken. A long one is made while it is sent.
pub struct Held {
    whole: Option<Bytes>,
    pieces: Option<mpsc::Receiver<Vec<u8>>>,
    sent: u64,
    began: Instant,
    /// Its call's place, or whatever else lasts until it is taken.
    _kept: Box<dyn Send>,
}

impl Held {
    /// `write` makes what stands between `before` and `after`.
    pub fn made(
        before: String,
        after: &'static str,
        kept: impl Send + 'static,
        large: bool,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Held {
        let made = move |to: &mut dyn Write| {
            to.write_all(before.as_bytes())?;
            write(to)?;
            to.write_all(after.as_bytes())
        };
        let held = Held { whole: None, pieces: None, sent: 0, began: Instant::now(), _kept: Box::new(kept) };
        if large {
            let (sender, pieces) = mpsc::channel(1);
            tokio::task::spawn_blocking(move || {
                let mut to = io::BufWriter::with_capacity(PIECE, Pieces(sender));
                // A reader that is gone is seen where it reads.
                let _ = made(&mut to).and_then(|()| to.flush());
            });
            return Held { pieces: Some(pieces), ..held };
        }
        let mut bytes = Vec::new();
        let _ = made(&mut bytes);
        Held { whole: Some(bytes.into()), ..held }
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(whole) = self.whole.take() {
            return Poll::Ready(Some(Ok(Frame::data(whole))));
        }
        let until = self.began + TAKEN_IN + Duration::from_secs(self.sent / BYTES_A_SECOND);
        if Instant::now() > until {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(None) };
        let piece = std::task::ready!(pieces.poll_recv(cx));
        self.sent += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.whole.is_none() && self.pieces.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.whole.as_ref().map_or_else(SizeHint::default, |whole| SizeHint::with_exact(whole.len() as u64))
    }
}
