//! Batches: several calls of one request, told to its client one after the other.
//!
//! For: `POST /v1/calls`. In: a caller, calls. Out: Server-Sent Events: `batch`, of each call what it tells and its one
//! `end`, and last `done`. Never: events of two calls mixed; a call that outlives its client or the server.

use super::calls::{Begun, run, streamed};
use super::reply::{self, Held, Reader, Response, malformed};
use super::stream::{COMMENT, QUIET, event, of_event};
use super::{OfFace, approvals, body, tools};
use crate::base::json::{self, Object};
use crate::fault::Fault;
use crate::service::{self, Arguments, CallRequest, Caller, Reservation, Show, Speakers, Stage, Told, TraceContext};
use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use hyper::body::Frame;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::Sleep;

/// Most calls of one request.
const MOST: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    calls: Vec<Object<One>>,
    /// On whose behalf.
    user: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    at_once: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct One {
    tool: String,
    /// An object, or its JSON text.
    arguments: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "whole")]
    timeout_ms: Option<u64>,
    /// Nothing of it is told but its end.
    #[serde(default)]
    hidden: bool,
}

/// A whole number, which JSON Schema lets be written as 8.0, too.
fn whole<'de, D: Deserializer<'de>, N: TryFrom<u64>>(from: D) -> Result<Option<N>, D::Error> {
    let number = |given: Value| json::whole(&given).and_then(|number| N::try_from(number).ok());
    let given = Option::<Value>::deserialize(from)?;
    given.map(|given| number(given).ok_or_else(|| D::Error::custom("a whole number is expected"))).transpose()
}

/// `POST /v1/calls`.
pub async fn call(
    State(face): OfFace,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(face) = face.upgrade() else { return reply::stopping() };
    let Some(begun) = face.begin() else { return reply::stopping() };
    if headers.contains_key(super::calls::KEY) {
        let words = "An Idempotency-Key stands for one call: make the calls of a batch without it.";
        return reply::refusal(StatusCode::BAD_REQUEST, malformed(words));
    }
    let received = match body::read(&face, &caller, &headers, body, ("", |_| true)).await {
        Ok(received) => received,
        Err(unread) => return body::refuse(face, caller, "", unread, begun).await,
    };
    let asked = body::apart(&face, &caller, received.text, read).await;
    let asked = asked.and_then(|asked| Ok((service::label(asked.user)?, asked.calls, asked.at_once)));
    let (label, calls, at_once) = match asked {
        Ok(asked) => asked,
        Err(fault) => return body::refuse(face, caller, "", body::Unread::bad(fault), begun).await,
    };
    // The first call was counted with the body.
    let mut counted = received.counted;
    let seen_by = Reader {
        payer: face.payer(&caller),
        operator: tools::is_operator(&face, &caller),
        label: label.clone(),
        unread: None,
    };
    let named = tools::Named::of(&face, &caller);
    let (who, trace) = (face.service.who(&caller, label.as_deref()), TraceContext::of_headers(&headers));
    let mut request = |Object(one): Object<One>| {
        let tool = named.id(one.tool);
        let known = face.service.find(&who, &tool);
        let hidden = one.hidden || known.is_ok_and(|tool| tool.manifest.hidden);
        let request = CallRequest {
            id: Some(service::new_id()),
            label: label.clone(),
            timeout_ms: one.timeout_ms,
            approver: approvals::of(&face, &caller),
            trace: trace.clone(),
            counted: std::mem::take(&mut counted),
            ..CallRequest::new(caller.clone(), tool, arguments(one.arguments))
        };
        (request, if hidden { Show::Result } else { Show::All })
    };
    let calls: Vec<_> = calls.into_iter().map(&mut request).collect();
    let at_once = at_once.unwrap_or(service::AT_ONCE);
    let speakers = Speakers::new(calls, at_once, {
        let face = face.clone();
        move |request, sink| run(face.clone(), request, sink)
    });
    streamed(Batch::of(speakers, seen_by, begun, received.kept))
}

fn arguments(given: Option<Box<RawValue>>) -> Arguments {
    let given =
        given.map(|given| serde_json::from_str::<String>(given.get()).unwrap_or_else(|_| given.get().to_owned()));
    Arguments::Text(given.unwrap_or_default())
}

fn read(body: &str) -> Result<Asked, Fault> {
    let document = json::compact(body.as_bytes()).map_err(|problem| {
        let place = format!("Line {}, column {}: {}", problem.line, problem.column, problem.message);
        malformed("The body is not one JSON document.").details(place)
    })?;
    let Object(asked) = serde_json::from_str::<Object<Asked>>(document.as_str()).map_err(|error| {
        let words = "The body is {\"calls\": [{\"tool\": …, \"arguments\": …, \"timeoutMs\": …, \"hidden\": …}, …], \
                     \"user\": …, \"atOnce\": …}, of which only the calls, with their tools, must be there.";
        malformed(words).details(error.to_string())
    })?;
    match (asked.calls.len(), asked.at_once) {
        (1..=MOST, None | Some(1..=MOST)) => Ok(asked),
        (1..=MOST, _) => Err(malformed(&format!("atOnce must be 1 to {MOST}."))),
        _ => Err(malformed(&format!("A batch is 1 to {MOST} calls."))),
    }
}

/// The body of a batch. Dropping it drops the calls.
struct Batch {
    speakers: Speakers,
    /// What stands before the first call, and behind the last.
    first: Option<Bytes>,
    last: Option<Bytes>,
    ending: Option<Held>,
    quiet: Pin<Box<Sleep>>,
    seen_by: Reader,
    begun: Begun,
    /// Of the arguments that no call has yet.
    _kept: Reservation,
}

impl Batch {
    fn of(speakers: Speakers, seen_by: Reader, begun: Begun, kept: Reservation) -> Batch {
        let calls: Vec<_> = speakers.calls().map(|(id, tool)| json!({"call": id, "tool": tool})).collect();
        let last = event("done", &json!({"calls": calls.len()}));
        let first = event("batch", &json!({ "calls": calls }));
        let quiet = Box::pin(tokio::time::sleep(QUIET));
        let (first, last) = (Some(first.into()), Some(last.into()));
        Batch { speakers, first, last, ending: None, quiet, seen_by, begun, _kept: kept }
    }

    fn told(&mut self, Told { call, stage }: Told) -> Option<Bytes> {
        let told = match stage {
            Stage::Prepare => ("start", json!({})),
            Stage::Processing(told) => of_event(&told),
            Stage::Output(text) => ("chunk", json!({ "text": text })),
            Stage::Completed(report) => {
                let around = ("event: end\ndata: ", "\n\n");
                self.ending = Some(Held::of(*report, &self.seen_by, self.begun.clone(), around));
                return None;
            }
        };
        let (name, mut data) = told;
        data["call"] = json!(&*call);
        Some(event(name, &data).into())
    }
}

impl HttpBody for Batch {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let frame = |bytes: Bytes| Poll::Ready(Some(Ok(Frame::data(bytes))));
        if let Some(first) = this.first.take() {
            return frame(first);
        }
        loop {
            if let Some(held) = &mut this.ending {
                let piece = ready!(Pin::new(held).poll_frame(cx));
                this.quiet.as_mut().reset(tokio::time::Instant::now() + QUIET);
                match piece {
                    Some(piece) => return Poll::Ready(Some(piece)),
                    None => this.ending = None,
                }
            }
            match this.speakers.poll_next(cx) {
                Poll::Ready(Some(told)) => {
                    this.quiet.as_mut().reset(tokio::time::Instant::now() + QUIET);
                    if let Some(bytes) = this.told(told) {
                        return frame(bytes);
                    }
                }
                Poll::Ready(None) => return this.last.take().map_or(Poll::Ready(None), frame),
                Poll::Pending => break,
            }
        }
        if this.quiet.as_mut().poll(cx).is_ready() {
            this.quiet.as_mut().reset(tokio::time::Instant::now() + QUIET);
            return frame(COMMENT.into());
        }
        Poll::Pending
    }
}
