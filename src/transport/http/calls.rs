//! Calls: one request, one call; its answer as JSON, or as Server-Sent Events while it runs.
//!
//! For: `/v1/tools/{tool}/calls` and `/v1/calls`. In: a caller, a body. Out: the report of `Service::call` in the words of
//! HTTP. Never: a call that outlives its client or the server; the report of another caller's call.

use super::body::Asked;
use super::gate::once;
use super::reply::{self, Held, Refused, Response};
use super::stream::Events;
use super::{Face, OfFace, approvals, background, body, tools};
use crate::service::{self, CallRequest, Caller, Report, Sink, TraceContext};
use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, State};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::io;
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
    let (text, places) = match body::read(&face, &caller, &headers, body).await {
        Ok(read) => read,
        Err(refusal) => return *refusal,
    };
    let approver = approvals::of(&face, &caller);
    let operator = tools::is_operator(&face, &caller);
    let tool = tools::Named::of(&face, &caller).id(tool);
    let (asked, unread) = match body::asked(&face, caller, tool, text).await {
        Ok(asked) => (asked, false),
        Err(refused) => (refused.into(), true),
    };
    // The service counts the arguments from here.
    drop(places);
    let idempotency_key = match key(&headers) {
        Ok(key) => key,
        Err(refusal) => return *refusal,
    };
    let Asked { request, detached, callback, stray } = asked;
    let request = CallRequest {
        id: Some(service::new_id()),
        idempotency_key,
        approver,
        trace: TraceContext::of_headers(&headers),
        ..request
    };
    let seen_by = reply::Reader { operator, label: request.label.clone(), unread };
    if !unread && background::wanted(&face, &request, detached, &headers) {
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
            if reply::status(&report, unread) != StatusCode::OK {
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
pub fn key(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    if !headers.contains_key(KEY) {
        return Ok(None);
    }
    let key = once(headers, &HeaderName::from_static(KEY)).map(str::trim).filter(|key| !key.is_empty());
    let words = "Idempotency-Key must stand once, and hold one key.";
    key.map(|key| Some(key.to_owned())).ok_or_else(|| reply::refused(StatusCode::BAD_REQUEST, reply::malformed(words)))
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
        let (operator, label) = (seen_by.operator, seen_by.label.clone());
        Held::made(around.0.to_owned(), around.1, kept, report.is_large(), move |to| {
            reply::visible(&report.shown(operator, label.as_deref()), to)
        })
    }
}
