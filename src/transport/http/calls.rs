//! Calls: one request, one call; its answer as JSON, or as Server-Sent Events while it runs.
//!
//! For: `/v1/tools/{tool}/calls` and `/v1/calls`. In: a caller, a body. Out: the report of `Service::call` in the words of
//! HTTP. Never: a call that outlives its client or the server; the report of another caller's call.

use super::body::Asked;
use super::gate::once;
use super::reply::{self, Held, Response};
use super::stream::Events;
use super::{Face, OfFace, approvals, background, body, tools};
use crate::fault::Fault;
use crate::service::{self, CallRequest, Caller, Report, Sink, TraceContext};
use crate::transport::answers;
use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, State};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub const KEY: &str = "idempotency-key";
/// Events that may wait for a slow reader.
const WAITING: usize = 16;
/// How long a call that may still be refused keeps the head of its stream back.
const UNDECIDED: Duration = Duration::from_millis(300);

/// `POST /v1/tools/{tool}/calls`.
pub async fn call(
    State(face): OfFace,
    Extension(caller): Extension<Caller>,
    Path(tool): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(face) = face.upgrade() else { return reply::stopping() };
    // Until it is dropped the server waits with its end.
    let Some(begun) = face.begin() else { return reply::stopping() };
    let approver = approvals::of(&face, &caller);
    let operator = tools::is_operator(&face, &caller);
    let tool = tools::Named::of(&face, &caller).id(tool);
    let received = match body::read(&face, &caller, &headers, body, (&tool, |_| true)).await {
        Ok(received) => received,
        Err(unread) => return body::refuse(face, caller, &tool, unread, begun).await,
    };
    let (from, to) = (caller.clone(), tool.clone());
    let asked = body::apart(&face, &caller, received.text, move |text| body::call(from, &to, text)).await;
    // The service counts the arguments from here.
    drop(received.kept);
    let (asked, idempotency_key) = match asked.and_then(|asked| Ok((asked, key(&headers)?))) {
        Ok(asked) => asked,
        Err(fault) => return body::refuse(face, caller, &tool, body::Unread::bad(fault), begun).await,
    };
    let Asked { request, detached, callback, stray } = asked;
    let request = CallRequest {
        id: Some(service::new_id()),
        counted: received.counted,
        idempotency_key,
        approver,
        trace: TraceContext::of_headers(&headers),
        ..request
    };
    let payer = face.payer(&caller);
    let seen_by = reply::Reader { payer, operator, label: request.label.clone(), unread: None };
    if background::wanted(&face, &request, detached, &headers) {
        return background::begin(face, request, callback, &seen_by, begun).await;
    }
    let refused = request.refused.or_else(|| callback.map(|_| background::nobody_told()));
    let request = CallRequest { refused, ..request };
    if !wants_events(&headers) {
        let report = body::explained(run(face, request, Sink::none()).await, stray.as_deref());
        return reply::report(report, &seen_by, begun);
    }
    let (sink, mut events) = Sink::new(WAITING);
    let id = request.id.clone().unwrap_or_default();
    let mut running = JoinSet::new();
    running.spawn(run(face, request, sink));
    // A refusal has its own status, as long as nothing was sent.
    let first = tokio::select! {
        biased;
        Some(event) = events.recv() => Some(event),
        Some(Ok(report)) = running.join_next() => {
            if reply::status(&report, None) != StatusCode::OK {
                return reply::report(body::explained(report, stray.as_deref()), &seen_by, begun);
            }
            return streamed(Events::ended(&id, report, seen_by, begun));
        }
        () = tokio::time::sleep(UNDECIDED) => None,
    };
    streamed(Events::running(&id, first, events, running, seen_by, begun))
}

/// Runs the call; where the server must end now, it is dropped, which kills, reaps and records.
pub async fn run(face: Arc<Face>, request: CallRequest, sink: Sink) -> Report {
    let (id, tool) = (request.id.clone().unwrap_or_default(), request.tool.clone());
    let ended = run_while_served(&face, face.service.call(request, sink)).await;
    ended.unwrap_or_else(|| Report::of_fault(id.clone(), &tool, face.service.stopped(&id)))
}

/// `None`: the server had to end first.
pub async fn run_while_served<T>(face: &Face, call: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = face.kill.cancelled() => None,
        ended = call => Some(ended),
    }
}

/// One that cannot be read is refused: without it the call could run twice.
pub fn key(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    if !headers.contains_key(KEY) {
        return Ok(None);
    }
    let key = once(headers, &HeaderName::from_static(KEY)).map(str::trim);
    let key = key.ok_or_else(|| reply::malformed("Idempotency-Key must stand once, and hold one key."))?;
    service::idempotency::check_key(key).map(|()| Some(key.to_owned()))
}

pub fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream")))
}

pub fn streamed(events: impl HttpBody<Data = Bytes, Error = io::Error> + Send + 'static) -> Response {
    let mut response = Response::new(Body::new(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// Held until an answer is delivered.
pub type Begun = mpsc::Sender<()>;

impl Held {
    pub fn of(report: Report, seen_by: &reply::Reader, begun: Begun, around: (&str, &'static str)) -> Held {
        let kept = (begun, report.turn.clone());
        let (payer, operator, label) = (seen_by.payer.clone(), seen_by.operator, seen_by.label.clone());
        let (before, after) = (around.0.to_owned(), around.1);
        let write = move |report: &Report, to: &mut dyn Write| {
            to.write_all(before.as_bytes())?;
            answers::visible(&report.shown(operator, label.as_deref()), to)?;
            to.write_all(after.as_bytes())
        };
        Held::new(answers::of_report(payer, report, write), kept)
    }
}
