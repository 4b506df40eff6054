//! Responses: JSON without host paths or raw control characters, and streams of events. Only
//! the statuses 200, 202 and 500, and `ServiceError`, mean that the tool may have run.

use crate::base::text;
use crate::executor::Part;
use crate::fault::{Fault, Kind};
use crate::service::{Caller, Event, Report, Service};
use crate::transport::answers::{self, Parts, visible};
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::ready;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

pub type Response = http::Response<Body>;
/// Held until an answer is delivered.
pub type Begun = Arc<()>;

/// A document up to this size is not charged: the number of connections bounds how many wait to be
/// read.
const SMALL_ANSWER_BYTES: usize = 64 * 1024;
/// After this much silence a stream sends a comment, to show that it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: &str = ": the call runs\n\n";

/// A request that cannot be read as one of this server's.
pub fn malformed(words: impl Into<String>) -> Fault {
    Fault::new(Kind::ParameterValidationError, words)
}

/// A request that leads to no call.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub fault: Box<Fault>,
}

impl Refusal {
    pub fn new(status: StatusCode, fault: Fault) -> Refusal {
        Refusal {
            status,
            fault: Box::new(fault),
        }
    }

    /// A request that cannot be read.
    pub fn malformed(words: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, malformed(words))
    }

    /// A body that does not have the form that is needed here.
    pub fn unreadable(fault: Fault) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, fault)
    }

    /// The server is about to end.
    pub fn stopping() -> Refusal {
        let fault = Fault::new(Kind::ServiceError, "The server is being stopped.").retryable();
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, fault)
    }
}

/// A fault outside of a call, with the status of its kind.
impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::new(status_of(&fault), fault)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal { status, fault } = self;
        let mut response = json(status, &json!({ "error": fault }));
        if fault.retryable {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, retry_after(&fault));
        }
        response.extensions_mut().insert(*fault);
        response
    }
}

/// When a client may try again, seconds.
fn retry_after(fault: &Fault) -> HeaderValue {
    HeaderValue::from(fault.retry_after_ms.map_or(1, |wait| wait.div_ceil(1000)))
}

/// 200: the tool ran, or was to run and was cancelled, and `success` says how it ended. Anything
/// else: nothing of it ran, unless the host itself (500) or a remote service (503) failed.
pub fn status_of(fault: &Fault) -> StatusCode {
    match fault.kind {
        Kind::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
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
        Kind::CircuitOpenError | Kind::DependencyError | Kind::ServiceError => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

pub fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = json_text(text::json(value, false));
    *response.status_mut() = status;
    response
}

/// A response of JSON text, which must hold no raw control characters.
pub fn json_text(text: impl Into<Body>) -> Response {
    typed_response("application/json", text)
}

pub fn plain_text(text: impl Into<Body>) -> Response {
    typed_response("text/plain; charset=utf-8", text)
}

fn typed_response(kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Marks an answer already recorded.
#[derive(Clone)]
pub struct Recorded;

/// Every answer to a known caller passes here: a refusal that has no record yet gets its own, or is
/// counted in one. Status 404 counts as an answer, not as a refusal.
pub fn record(service: &Service, caller: &Caller, asked: &str, mut answer: Response) -> Response {
    let status = answer.status();
    let recorded = answer.extensions_mut().remove::<Recorded>();
    let refused =
        (status.is_client_error() || status.is_server_error()) && status != StatusCode::NOT_FOUND;
    if recorded.is_some() || !refused {
        return answer;
    }
    let fault = answer.extensions_mut().remove::<Fault>();
    let fault = fault
        .unwrap_or_else(|| malformed(format!("The request was refused with status {status}.")));
    match service.refusals.record(caller, asked, fault) {
        Ok(()) => answer,
        Err(fault) => Refusal::from(fault).into_response(),
    }
}

/// Who gets an answer.
pub struct Recipient {
    pub service: Arc<Service>,
    pub caller: Caller,
    pub label: Option<String>,
}

impl Recipient {
    /// A report as this recipient may see it now.
    pub fn view(&self, report: Report) -> Report {
        let operator = self.service.catalog.who(&self.caller, None).operator;
        let report = report.for_reader(operator, self.label.as_deref());
        report.with_settings(self.service.program)
    }

    /// Writes a report between two texts.
    pub async fn write(&self, report: Report, before: &'static str, after: &'static str) -> Parts {
        answers::of_report(
            self.view(report),
            move |report: &Report, to: &mut dyn Write| {
                to.write_all(before.as_bytes())?;
                visible(report, to)?;
                to.write_all(after.as_bytes())
            },
        )
        .await
    }
}

/// Charges the memory of an answer's body until it is sent. Without room the answer is refused.
pub async fn charge(service: &Service, caller: &Caller, answer: Response) -> Response {
    let size = answer
        .body()
        .size_hint()
        .exact()
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or_default();
    if size <= SMALL_ANSWER_BYTES {
        return answer;
    }
    let room = match service.limiter.try_answer(&caller.user, size) {
        Ok(room) => room,
        Err(fault) => return Refusal::from(fault).into_response(),
    };
    let (mut head, body) = answer.into_parts();
    let Ok(body) = body.collect().await else {
        return Response::from_parts(head, Body::empty());
    };
    head.headers
        .insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    Response::from_parts(
        head,
        Body::from_stream(pieces(vec![body.to_bytes().into()], room)),
    )
}

/// A report as a whole answer. `status`: replaces the status of its fault, unless the host itself
/// failed.
pub async fn report(
    report: Report,
    status: Option<StatusCode>,
    recipient: &Recipient,
    begun: Begun,
) -> Response {
    let own = report.outcome.fault().map_or(StatusCode::OK, status_of);
    let status = status
        .filter(|_| own != StatusCode::INTERNAL_SERVER_ERROR)
        .unwrap_or(own);
    let retryable = report
        .outcome
        .fault()
        .filter(|fault| fault.retryable && status != StatusCode::OK);
    let retry = retryable.map(retry_after);
    let kept = (begun, report.delivery.slot.clone());
    let mut response = document(recipient.write(report, "", "\n").await, kept);
    *response.status_mut() = status;
    response.extensions_mut().insert(Recorded);
    if let Some(retry) = retry {
        response.headers_mut().insert(header::RETRY_AFTER, retry);
    }
    response
}

/// An answer in parts. `kept` lasts until it is sent.
pub fn document(parts: Parts, kept: impl Send + 'static) -> Response {
    if answers::is_too_large(&parts) {
        return Refusal::from(answers::too_large("The answer")).into_response();
    }
    let length = HeaderValue::from(parts.iter().map(Part::bytes).sum::<usize>());
    let mut response = json_text(Body::from_stream(pieces(parts, kept)));
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, length);
    response
}

/// The pieces of a message. What is `kept` lasts until the last of them is sent.
fn pieces<K: Send + 'static>(
    parts: Parts,
    kept: K,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    struct Last<K>(Bytes, K);
    impl<K> AsRef<[u8]> for Last<K> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let mut rest = parts.into_iter().flat_map(Part::pieces).peekable();
    let mut kept = Some(kept);
    stream::iter(std::iter::from_fn(move || {
        let piece = rest.next()?;
        let last = if rest.peek().is_none() {
            kept.take()
        } else {
            None
        };
        Some(Ok(last.map_or(piece.clone(), |kept| {
            Bytes::from_owner(Last(piece, kept))
        })))
    }))
}

/// Sends the Server-Sent Events of one response.
pub struct Events(mpsc::Sender<Bytes>);

/// A response of the events that `work` sends, with comments where it is quiet. Dropping it drops
/// the work.
pub fn events<W: Future<Output = ()> + Send + 'static>(work: impl FnOnce(Events) -> W) -> Response {
    let (to, sent) = mpsc::channel(1);
    let work = stream::once(work(Events(to))).filter_map(|()| ready(None));
    let sent = stream::unfold(sent, |mut sent| async {
        let next = tokio::time::timeout(KEEP_ALIVE, sent.recv()).await;
        Some((next.unwrap_or(Some(COMMENT.into()))?, sent))
    });
    typed_response(
        "text/event-stream",
        Body::from_stream(stream::select(sent, work).map(Ok::<_, Infallible>)),
    )
}

/// An event as it is sent.
pub fn event(name: &str, data: &Value) -> Bytes {
    let mut bytes = format!("event: {name}\ndata: ").into_bytes();
    let _ = visible(data, &mut bytes);
    bytes.extend(b"\n\n");
    // It may be kept for long.
    bytes.into_boxed_slice().into()
}

impl Events {
    pub async fn send(&self, name: &str, data: &Value) {
        self.send_text(event(name, data)).await;
    }

    /// Sends events, or a piece of one.
    pub async fn send_text(&self, text: Bytes) {
        // The response is gone where this fails, and the work ends with it.
        let _ = self.0.send(text).await;
    }

    /// Sends the end of a stream of the Responses API.
    pub async fn done(&self) {
        let _ = self.0.send("data: [DONE]\n\n".into()).await;
    }

    /// Sends an event of a call; `call`: which of several.
    pub async fn tell(&self, event: &Event, call: Option<&str>) {
        let (name, mut data) = match event {
            Event::Log(line) => ("log", json!({ "line": line })),
            Event::Part(text) => ("chunk", json!({ "text": text })),
            Event::Shown(shown, _) => ("event", json!({ "event": shown })),
            Event::Message(level, line) => ("log", json!({ "level": level, "line": line })),
            Event::Progress(progress) => ("progress", json!(progress)),
            Event::Preparing(text) => ("progress", json!({ "message": text })),
        };
        if let Some(call) = call {
            data["call"] = json!(call);
        }
        self.send(name, &data).await;
    }

    /// Sends the one `end` of a call.
    pub async fn end(&self, report: Report, recipient: &Recipient, begun: Begun) {
        let kept = (begun, report.delivery.slot.clone());
        self.send_parts(
            recipient.write(report, "event: end\ndata: ", "\n\n").await,
            kept,
        )
        .await;
    }

    /// Sends the text of an event.
    pub async fn send_parts<K: Send + 'static>(&self, parts: Parts, kept: K) {
        let mut pieces = pieces(parts, kept);
        while let Some(Ok(piece)) = pieces.next().await {
            let _ = self.0.send(piece).await;
        }
    }
}
