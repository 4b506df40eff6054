//! One request, one call; its answer as JSON, or as Server-Sent Events while it runs. A call ends with its client.

use super::body::{BodyError, CallBody};
use super::extract::{RequestCaller, Start};
use super::gate::once;
use super::reply::{self, AnswerBody, Response};
use super::stream::{self, Running};
use super::{Face, background, body, tools};
use crate::fault::Fault;
use crate::service::{self, Arguments, CallRequest, Report, Sink};
use crate::transport::answers;
use axum::body::Body;
use axum::extract::Path;
use http::{HeaderMap, HeaderName, StatusCode, header};
use std::io::Write;
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
pub async fn call(start: Start, Path(tool): Path<String>, body: Body) -> Response {
    let tool = tools::ToolNames::of(start.face(), start.caller()).id(tool);
    match read(&start, &tool, body).await {
        Ok(asked) => begin(start, asked).await,
        Err(unread) => start.refuse(&tool, unread).await,
    }
}

async fn read(start: &Start, tool: &str, body: Body) -> Result<CallBody, BodyError> {
    let received = start.read(tool, body).await?;
    let request = CallRequest { counted: received.counted, ..start.request(tool.to_owned(), Arguments::default()) };
    let parse = move |text: &str| body::call(request, text);
    // The service counts the arguments once the body is dropped.
    let mut asked = body::apart(start.face(), start.caller(), received.text, parse).await?;
    asked.request.idempotency_key = key(&start.headers)?;
    Ok(asked)
}

async fn begin(start: Start, CallBody { request, detached, callback, stray }: CallBody) -> Response {
    let seen_by = start.reader(request.label.clone());
    let Start { known: RequestCaller { face, .. }, headers, begun } = start;
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
    let mut call = JoinSet::new();
    call.spawn(run(face, request, sink));
    // A refusal has its own status, as long as nothing was sent.
    let (first, report) = tokio::select! {
        biased;
        Some(event) = events.recv() => (Some(event), None),
        Some(Ok(report)) = call.join_next() => {
            if reply::status(&report, None) != StatusCode::OK {
                return reply::report(body::explained(report, stray.as_deref()), &seen_by, begun);
            }
            (None, Some(report))
        }
        () = tokio::time::sleep(UNDECIDED) => (None, None),
    };
    stream::events(Running { id, events, call, report, seen_by, begun }, first)
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

/// Held until an answer is delivered.
pub type Begun = mpsc::Sender<()>;

impl AnswerBody {
    pub fn of(report: Report, seen_by: &reply::Reader, begun: Begun, around: (&str, &'static str)) -> AnswerBody {
        let kept = (begun, report.turn.clone());
        let (payer, operator, label) = (seen_by.payer.clone(), seen_by.operator, seen_by.label.clone());
        let (before, after) = (around.0.to_owned(), around.1);
        let write = move |report: &Report, to: &mut dyn Write| {
            to.write_all(before.as_bytes())?;
            answers::visible(&report.shown(operator, label.as_deref()), to)?;
            to.write_all(after.as_bytes())
        };
        AnswerBody::new(answers::of_report(payer, report, write), kept)
    }
}
