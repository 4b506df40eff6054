//! Server-Sent Events: what a call tells while it runs, and its report as the last of them.
//!
//! For: `POST …/calls` with `Accept: text/event-stream`. In: a running call. Out: `start`, then `log`, `chunk` and `progress` as they
//! come, `replay` where the outcome is that of an earlier call, then exactly one `end`. Never: a line of a tool as a line of the stream; a call that runs on once nobody reads.

use super::calls::Begun;
use super::reply::{Held, Reader};
use crate::fault::{Fault, Kind};
use crate::service::{Event, Report};
use crate::transport::answers::visible;
use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Sleep;

/// In a quiet stream a comment shows that both ends are there.
pub const QUIET: Duration = Duration::from_secs(15);
pub const COMMENT: &str = ": the call runs\n\n";

/// The body of a stream. Dropping it drops the call.
pub struct Events {
    id: String,
    ready: Option<Bytes>,
    state: State,
}

enum State {
    Running {
        events: mpsc::Receiver<Event>,
        call: JoinSet<Report>,
        quiet: Pin<Box<Sleep>>,
        seen_by: Reader,
        begun: Option<Begun>,
    },
    Ending(Held),
}

impl Events {
    pub fn running(
        id: &str,
        first: Option<Event>,
        events: mpsc::Receiver<Event>,
        call: JoinSet<Report>,
        seen_by: Reader,
        begun: Begun,
    ) -> Events {
        let mut ready = started(id);
        ready.extend(first.iter().flat_map(written));
        let quiet = Box::pin(tokio::time::sleep(QUIET));
        let state = State::Running { events, call, quiet, seen_by, begun: Some(begun) };
        Events { id: id.to_owned(), ready: Some(ready.into()), state }
    }

    pub fn ended(id: &str, report: Report, seen_by: Reader, begun: Begun) -> Events {
        let state = State::Ending(end(id, report, &seen_by, begun));
        Events { id: id.to_owned(), ready: Some(started(id).into()), state }
    }
}

/// `id`: as the stream began with. The outcome of an idempotency key has the id of its first call.
fn end(id: &str, report: Report, seen_by: &Reader, begun: Begun) -> Held {
    let mut before = match report.id == id {
        true => String::new(),
        false => String::from_utf8_lossy(&event("replay", &json!({ "id": report.id }))).into_owned(),
    };
    before += "event: end\ndata: ";
    Held::of(report, seen_by, begun, (&before, "\n\n"))
}

fn started(id: &str) -> Vec<u8> {
    event("start", &json!({ "id": id }))
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

impl HttpBody for Events {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        let frame = |bytes: Vec<u8>| Poll::Ready(Some(Ok(Frame::data(Bytes::from(bytes)))));
        if let Some(ready) = this.ready.take() {
            return Poll::Ready(Some(Ok(Frame::data(ready))));
        }
        let State::Running { events, call, quiet, seen_by, begun } = &mut this.state else {
            let State::Ending(held) = &mut this.state else { return Poll::Ready(None) };
            return Pin::new(held).poll_frame(cx);
        };
        match events.poll_recv(cx) {
            Poll::Ready(Some(told)) => {
                quiet.as_mut().reset(tokio::time::Instant::now() + QUIET);
                return frame(written(&told));
            }
            // All were told; the report comes.
            Poll::Ready(None) | Poll::Pending => {}
        }
        if let Poll::Ready(ended) = call.poll_join_next(cx) {
            // Whatever was told meanwhile comes first.
            if let Ok(told) = events.try_recv() {
                let report = ended.and_then(Result::ok);
                report.map(|report| call.spawn(std::future::ready(report)));
                return frame(written(&told));
            }
            let report = ended.and_then(Result::ok).unwrap_or_else(|| {
                let fault = Fault::new(Kind::InternalError, "The host failed while it handled this call.");
                Report::of_fault(this.id.clone(), "", fault)
            });
            let Some(begun) = begun.take() else { return Poll::Ready(None) };
            let mut held = end(&this.id, report, seen_by, begun);
            let first = Pin::new(&mut held).poll_frame(cx);
            this.state = State::Ending(held);
            return first;
        }
        if quiet.as_mut().poll(cx).is_ready() {
            quiet.as_mut().reset(tokio::time::Instant::now() + QUIET);
            return frame(COMMENT.into());
        }
        Poll::Pending
    }
}
