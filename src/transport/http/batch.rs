//! `POST /v1/calls`: several calls of one request, told one after the other as Server-Sent Events: `batch`, what each call
//! tells and its one `end`, and last `done`.

use super::body::{self, BodyError, Received};
use super::calls::{Begun, run};
use super::extract::Start;
use super::reply::{self, AnswerBody, Reader, Response, malformed};
use super::stream::{COMMENT, QUIET, event, of_event, streamed};
use super::tools;
use crate::base::json::{self, Object};
use crate::fault::Fault;
use crate::service::{self, Arguments, CallRequest, Reservation, Show, Speakers, Stage, StageEvent};
use axum::body::{Body, Bytes};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::io;

/// Most calls of one request.
const MOST: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BatchBody {
    calls: Vec<Object<BatchCall>>,
    /// On whose behalf.
    user: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    at_once: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BatchCall {
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
pub async fn call(start: Start, body: Body) -> Response {
    if start.headers.contains_key(super::calls::KEY) {
        let words = "An Idempotency-Key stands for one call: make the calls of a batch without it.";
        return reply::refusal(StatusCode::BAD_REQUEST, malformed(words));
    }
    match parse(&start, body).await {
        Ok((asked, received)) => begin(start, asked, received),
        Err(unread) => start.refuse("", unread).await,
    }
}

async fn parse(start: &Start, body: Body) -> Result<(BatchBody, Received), BodyError> {
    let mut received = start.read("", body).await?;
    let text = std::mem::take(&mut received.text);
    let mut asked = body::apart(start.face(), start.caller(), text, read).await?;
    asked.user = service::label(asked.user)?;
    Ok((asked, received))
}

fn begin(start: Start, asked: BatchBody, received: Received) -> Response {
    // The first call was counted with the body.
    let (mut counted, label) = (received.counted, asked.user);
    let face = start.face();
    let named = tools::ToolNames::of(face, start.caller());
    let who = face.service.who(start.caller(), label.as_deref());
    let mut request = |Object(one): Object<BatchCall>| {
        let tool = named.id(one.tool);
        let known = face.service.find(&who, &tool);
        let hidden = one.hidden || known.is_ok_and(|tool| tool.manifest.hidden);
        let request = CallRequest {
            label: label.clone(),
            timeout_ms: one.timeout_ms,
            counted: std::mem::take(&mut counted),
            ..start.request(tool, arguments(one.arguments))
        };
        (request, if hidden { Show::Result } else { Show::All })
    };
    let calls: Vec<_> = asked.calls.into_iter().map(&mut request).collect();
    let at_once = asked.at_once.unwrap_or(service::AT_ONCE);
    let speakers = Speakers::new(calls, at_once, {
        let face = face.clone();
        move |request, sink| run(face.clone(), request, sink)
    });
    let calls: Vec<_> = speakers.calls().map(|(id, tool)| json!({"call": id, "tool": tool})).collect();
    let last = Some(event("done", &json!({"calls": calls.len()})).into());
    let first = Ok(event("batch", &json!({ "calls": calls })).into());
    let seen_by = start.reader(label);
    let batch = Batch { speakers, last, ending: None, seen_by, begun: start.begun, _kept: received.kept };
    let rest = stream::unfold(batch, |mut batch| async { Some((batch.next().await?, batch)) });
    streamed(stream::once(std::future::ready(first)).chain(rest))
}

fn arguments(given: Option<Box<RawValue>>) -> Arguments {
    let given =
        given.map(|given| serde_json::from_str::<String>(given.get()).unwrap_or_else(|_| given.get().to_owned()));
    Arguments::Text(given.unwrap_or_default())
}

fn read(body: &str) -> Result<BatchBody, Fault> {
    let document = body::document(body)?;
    let Object(asked) = serde_json::from_str::<Object<BatchBody>>(document.as_str()).map_err(|error| {
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

/// The calls of a batch, as its stream tells them. Dropping it drops the calls.
struct Batch {
    speakers: Speakers,
    /// What stands behind the last call.
    last: Option<Bytes>,
    ending: Option<AnswerBody>,
    seen_by: Reader,
    begun: Begun,
    /// Of the arguments that no call has yet.
    _kept: Reservation,
}

impl Batch {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(held) = &mut self.ending {
                match held.piece().await {
                    Some(piece) => return Some(piece),
                    None => self.ending = None,
                }
            }
            let Ok(told) = tokio::time::timeout(QUIET, self.speakers.next()).await else {
                return Some(Ok(COMMENT.into()));
            };
            let Some(StageEvent { call, stage }) = told else { return self.last.take().map(Ok) };
            let (name, mut data) = match stage {
                Stage::Prepare => ("start", json!({})),
                Stage::Processing(told) => of_event(&told),
                Stage::Output(text) => ("chunk", json!({ "text": text })),
                Stage::Completed(report) => {
                    let around = ("event: end\ndata: ", "\n\n");
                    self.ending = Some(AnswerBody::of(*report, &self.seen_by, self.begun.clone(), around));
                    continue;
                }
            };
            data["call"] = json!(&*call);
            return Some(Ok(event(name, &data).into()));
        }
    }
}
