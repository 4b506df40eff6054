//! `POST /v1/calls`: several calls of one request, told one after the other as Server-Sent Events: `batch`, the events of
//! each call and its one `end`, and last `done`.

use super::reply::{self, Refusal, Response, malformed};
use super::request::{self, Start};
use super::{body, calls, tools};
use crate::base::json::{self, Object};
use crate::service::{self, Arguments, CallRequest, Show, Speakers, Stage, StageEvent};
use axum::body::Body;
use axum::response::IntoResponse;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Most calls of one request.
const MOST: usize = 64;
const SHAPE: &str = "The body is {\"calls\": [{\"tool\": …, \"arguments\": …, \"timeoutMs\": …, \"hidden\": …}, …], \
                     \"user\": …, \"atOnce\": …}, of which only the calls, with their tools, must be there.";

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
    /// Only its end is shown.
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
    if start.known.headers.contains_key(request::IDEMPOTENCY_KEY) {
        let words = "An Idempotency-Key stands for one call: make the calls of a batch without it.";
        return Refusal::malformed(words).into_response();
    }
    let received = match body::read(&start.known, "", body, |_| true).await {
        Ok(received) => received,
        Err(refusal) => return start.refuse("", refusal).await,
    };
    let batch = match body::parse(&start.known, received.text, parse).await {
        Ok(batch) => batch,
        Err(refusal) => return start.refuse("", refusal).await,
    };
    let reader = start.reader(batch.user.clone());
    let speakers = begin(&start, batch, received.counted);
    // The charge covers the arguments that no call has yet.
    let (charge, begun) = (received.charge, start.begun);
    reply::events(async move |to| {
        let (mut speakers, _charge) = (speakers, charge);
        let calls: Vec<_> = speakers.calls().map(|(id, tool)| json!({"call": id, "tool": tool})).collect();
        to.send("batch", &json!({ "calls": calls })).await;
        while let Some(StageEvent { call, stage }) = speakers.next().await {
            match stage {
                Stage::Prepare => to.send("start", &json!({ "call": &*call })).await,
                Stage::Processing(event) => to.tell(&event, Some(&call)).await,
                Stage::Output(text) => to.send("chunk", &json!({ "text": text, "call": &*call })).await,
                Stage::Completed(report) => to.end(*report, &reader, begun.clone()).await,
            }
        }
        to.send("done", &json!({ "calls": calls.len() })).await;
    })
}

fn begin(start: &Start, batch: BatchBody, mut counted: usize) -> Speakers {
    let server = &start.known.server;
    let names = tools::ToolNames::new(&start.known);
    let who = server.service.who(&start.known.caller, batch.user.as_deref());
    let mut request = |Object(one): Object<BatchCall>| {
        let tool = names.id(one.tool);
        let hidden = one.hidden || server.service.find(&who, &tool).is_ok_and(|tool| tool.manifest.hidden);
        let arguments = one.arguments.map(|arguments| calls::text_or_json(arguments.get())).unwrap_or_default();
        let request = CallRequest {
            label: batch.user.clone(),
            timeout_ms: one.timeout_ms,
            // The first call was counted with the body.
            counted: std::mem::take(&mut counted),
            ..start.request(tool, Arguments::Text(arguments))
        };
        (request, if hidden { Show::Result } else { Show::All })
    };
    let calls: Vec<_> = batch.calls.into_iter().map(&mut request).collect();
    let server = server.clone();
    Speakers::new(calls, batch.at_once.unwrap_or(service::AT_ONCE), move |request, sink| {
        let server = server.clone();
        async move { request::run(&server, request, sink).await }
    })
}

fn parse(body: &str) -> Result<BatchBody, Refusal> {
    let document = body::document(body)?;
    let Object(mut batch) = serde_json::from_str::<Object<BatchBody>>(document.as_str())
        .map_err(|error| Refusal::unreadable(malformed(SHAPE).details(error.to_string())))?;
    batch.user = service::label(batch.user).map_err(Refusal::unreadable)?;
    match (batch.calls.len(), batch.at_once) {
        (1..=MOST, None | Some(1..=MOST)) => Ok(batch),
        (1..=MOST, _) => Err(Refusal::malformed(format!("atOnce must be 1 to {MOST}."))),
        _ => Err(Refusal::malformed(format!("A batch is 1 to {MOST} calls."))),
    }
}
