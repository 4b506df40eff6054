//! Server-Sent Events of a call: `start`, then `log`, `chunk` and `progress` as they come, `replay` where the outcome is that
//! of an earlier call, then exactly one `end`.

use super::calls::Begun;
use super::reply::{AnswerBody, Reader, Response};
use crate::fault::{Fault, Kind};
use crate::service::{Event, Report};
use crate::transport::answers::visible;
use axum::body::{Body, Bytes};
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderValue, header};
use serde_json::{Value, json};
use std::io;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// In a quiet stream a comment shows that both ends are there.
pub const QUIET: Duration = Duration::from_secs(15);
pub const COMMENT: &str = ": the call runs\n\n";

/// A call that runs, as its stream tells it. Dropping it drops the call.
pub struct Running {
    pub id: String,
    pub events: mpsc::Receiver<Event>,
    pub call: JoinSet<Report>,
    /// Once it has ended.
    pub report: Option<Report>,
    pub seen_by: Reader,
    pub begun: Begun,
}

/// A response of Server-Sent Events.
pub fn streamed(events: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// The stream of a call. `first`: an event that came already.
pub fn events(running: Running, first: Option<Event>) -> Response {
    let mut head = event("start", &json!({ "id": running.id }));
    head.extend(first.iter().flat_map(written));
    let head = stream::once(std::future::ready(Ok(head.into())));
    let rest = stream::unfold(State::Running(Box::new(running)), |state| async { state.next().await });
    streamed(head.chain(rest))
}

enum State {
    Running(Box<Running>),
    Ending(AnswerBody),
}

impl State {
    async fn next(self) -> Option<(io::Result<Bytes>, State)> {
        let mut running = match self {
            State::Running(running) => running,
            State::Ending(mut held) => return Some((held.piece().await?, State::Ending(held))),
        };
        if running.report.is_none() {
            let told = tokio::select! {
                biased;
                Some(told) = running.events.recv() => Some(written(&told)),
                ended = running.call.join_next() => {
                    running.report = ended.and_then(Result::ok).or_else(|| {
                        let fault = Fault::new(Kind::InternalError, "The host failed while it handled this call.");
                        Some(Report::of_fault(running.id.clone(), "", fault))
                    });
                    None
                }
                () = tokio::time::sleep(QUIET) => Some(COMMENT.into()),
            };
            if let Some(told) = told {
                return Some((Ok(told.into()), State::Running(running)));
            }
        }
        // Whatever was told meanwhile comes first.
        if let Ok(told) = running.events.try_recv() {
            return Some((Ok(written(&told).into()), State::Running(running)));
        }
        let mut held = end(&running.id, running.report?, &running.seen_by, running.begun);
        Some((held.piece().await?, State::Ending(held)))
    }
}

/// `id`: as the stream began with. The outcome of an idempotency key has the id of its first call.
fn end(id: &str, report: Report, seen_by: &Reader, begun: Begun) -> AnswerBody {
    let mut before = match report.id == id {
        true => String::new(),
        false => String::from_utf8_lossy(&event("replay", &json!({ "id": report.id }))).into_owned(),
    };
    before += "event: end\ndata: ";
    AnswerBody::of(report, seen_by, begun, (&before, "\n\n"))
}

/// The name and the data of an event.
pub fn of_event(told: &Event) -> (&'static str, Value) {
    match told {
        Event::Log(line) => ("log", json!({ "line": line })),
        Event::Part(text) => ("chunk", json!({ "text": text })),
        Event::Message(level, line) => ("log", json!({ "level": level, "line": line })),
        Event::Progress(told) => ("progress", json!(told)),
        Event::Preparing(text) => ("progress", json!({ "message": text })),
    }
}

fn written(told: &Event) -> Vec<u8> {
    let (name, data) = of_event(told);
    event(name, &data)
}

/// Compact JSON holds no line break, so that its data is one line.
pub fn event(name: &str, data: &Value) -> Vec<u8> {
    let mut bytes = format!("event: {name}\ndata: ").into_bytes();
    let _ = visible(data, &mut bytes);
    bytes.extend(b"\n\n");
    bytes
}
