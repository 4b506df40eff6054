//! Requests that lead to calls: one call, several in a batch, the call that a model wrote into its
//! text, and MCP. A call ends with its client, unless it has a receipt.

use super::reply::{self, Begun, Events, Recipient, Refusal, Response, malformed};
use super::request::{self, KnownRequest, Start};
use super::server::Server;
use super::{background, body, tools};
use crate::base::json::{self, Object};
use crate::base::semaphore::Permit;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::quantity::MAX_FILES;
use crate::service::background::{EndReport, Receipt};
use crate::service::tool_files::{FOR_ALL, SharedFile, ToolFiles, ToolResources};
use crate::service::{
    self, Arguments, BroughtFile, CallRequest, CallResult, Charged, Event, Report, Show, Sink,
    Speakers, Stage, StageEvent, arguments,
};
use crate::transport::action::{self, ActionResult};
use crate::transport::answers;
use crate::transport::mcp::{Message, Sender};
use axum::body::Body;
use axum::extract::{Path, Request};
use http::{Method, StatusCode};
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

/// Events that may wait for a slow reader.
const EVENT_QUEUE: usize = 16;
/// How long the head of a stream waits, because its call may still be refused with another status.
const UNDECIDED: Duration = Duration::from_millis(300);
/// Longest `config`, bytes.
const MAX_CONFIG_BYTES: usize = 64 * 1024;
/// The members of an envelope. A body with others is the arguments themselves.
const MEMBERS: [&str; 6] = ["user", "config", "arguments", "files", "mode", "callback"];

/// `POST /v1/tools/{tool}/calls`.
pub async fn call(
    known: KnownRequest,
    Path(tool): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let start = known.start()?;
    let id = tools::ToolNames::new(&start.known, None).id(tool.clone());
    let mut read = read(&start, &id, body).await;
    if let Ok(CallBody { request, .. }) = &mut read
        && let Some(label) = &request.label
    {
        request.tool = tools::ToolNames::new(&start.known, Some(label)).id(tool);
    }
    Ok(match read.and_then(CallBody::checked) {
        Ok(body) => begin(start, body).await,
        Err(refusal) => start.refuse(&id, refusal).await,
    })
}

async fn read(start: &Start, tool: &str, body: Body) -> Result<CallBody, Refusal> {
    let received = body::read_with_files(&start.known, tool, body).await?;
    let request = CallRequest {
        charged: received.charged,
        files: received.files,
        ..start.request(tool.to_owned(), Arguments::default())
    };
    body::parse(&start.known, received.text, move |text| {
        parse(request, text)
    })
    .await
}

async fn begin(
    start: Start,
    CallBody {
        request,
        detached,
        callback,
        stray,
        ..
    }: CallBody,
) -> Response {
    let recipient = start.recipient(request.label.clone());
    if background::is_detached(&start.known, &request, detached) {
        return background::begin(start, request, callback, &recipient).await;
    }
    let Start {
        known: request::KnownRequest {
            server, headers, ..
        },
        begun,
    } = start;
    fn no_callback() -> Fault {
        malformed(
            "A callback needs a call in the background: add \"mode\": \"async\", or leave it out.",
        )
    }
    let refused = request.refused.or_else(|| callback.map(|_| no_callback()));
    let request = CallRequest { refused, ..request };
    let id = request.id.clone().unwrap_or_default();
    if !request::wants_events(&headers) {
        let report = explain(
            request::run(&server, request, Sink::none()).await,
            stray.as_deref(),
        );
        return reply::report(report, None, &recipient, begun).await;
    }
    let (sink, mut events) = Sink::new(EVENT_QUEUE);
    let mut call = JoinSet::new();
    call.spawn(async move { request::run(&server, request, sink).await });
    // A refusal has its own status, as long as nothing was sent.
    let (first, report) = tokio::select! {
        biased;
        Some(event) = events.recv() => (Some(event), None),
        Some(Ok(report)) = call.join_next() => {
            if report.outcome.fault().is_some_and(|fault| reply::status_of(fault) != StatusCode::OK) {
                return reply::report(explain(report, stray.as_deref()), None, &recipient, begun).await;
            }
            (None, Some(report))
        }
        () = tokio::time::sleep(UNDECIDED) => (None, None),
    };
    let stream = CallStream {
        first,
        events,
        call,
        report,
    };
    reply::events(move |to| stream.send(to, id, recipient, begun))
}

/// A call under way, with the event or the end that was received already.
struct CallStream {
    first: Option<Event>,
    events: Receiver<Event>,
    call: JoinSet<Report>,
    report: Option<Report>,
}

impl CallStream {
    /// The events of the call: `start`, then `log`, `chunk` and `progress` as they come, then exactly one
    /// `end`.
    async fn send(self, to: Events, id: String, recipient: Recipient, begun: Begun) {
        let CallStream {
            first,
            mut events,
            mut call,
            mut report,
        } = self;
        to.send("start", &json!({ "id": id })).await;
        if let Some(event) = first {
            to.tell(&event, None).await;
        }
        while report.is_none() {
            tokio::select! {
                biased;
                Some(event) = events.recv() => to.tell(&event, None).await,
                ended = call.join_next() => report = Some(ended.and_then(Result::ok).unwrap_or_else(|| {
                    let fault = Fault::new(Kind::InternalError, "The host failed while it handled this \
                        call.");
                    Report::of_fault(id.clone(), "", fault)
                })),
            }
        }
        // Events that wait are sent first.
        while let Ok(event) = events.try_recv() {
            to.tell(&event, None).await;
        }
        if let Some(report) = report {
            to.end(report, &recipient, begun).await;
        }
    }
}

/// The call that a body requests.
struct CallBody {
    request: CallRequest,
    /// In the background; `None`: it does not say.
    detached: Option<bool>,
    /// The URL to which the end is reported.
    callback: Option<String>,
    /// The unknown member because of which a body with `arguments` was taken as the arguments.
    stray: Option<String>,
    config_tool: Option<Value>,
}

impl CallBody {
    /// Refuses a config that names another tool or version than the path.
    fn checked(self) -> Result<CallBody, Refusal> {
        if self
            .config_tool
            .as_ref()
            .is_some_and(|tool| *tool != self.request.tool)
        {
            return Err(Refusal::malformed(
                "The config names another tool or version than the path.",
            ));
        }
        Ok(self)
    }
}

#[derive(Deserialize)]
struct Envelope<'b> {
    user: Option<String>,
    #[serde(borrow)]
    config: Option<&'b RawValue>,
    #[serde(borrow)]
    arguments: &'b RawValue,
    /// Ids of artifacts.
    #[serde(default)]
    files: Vec<String>,
    mode: Option<CallMode>,
    callback: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CallMode {
    Sync,
    Async,
}

/// The first member of a document that an envelope does not have.
struct Stray(Option<String>);

impl<'de> Deserialize<'de> for Stray {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Stray, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Stray;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Stray, M::Error> {
                let mut stray = None;
                while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                    stray = stray.or((!MEMBERS.contains(&name.as_str())).then_some(name));
                }
                Ok(Stray(stray))
            }
        }
        from.deserialize_map(Members)
    }
}

/// Reads `{user, config, arguments, mode, callback}`, of which only `arguments` is required, or the
/// arguments alone.
fn parse(request: CallRequest, body: &str) -> Result<CallBody, Refusal> {
    let mut read = CallBody {
        request,
        detached: None,
        callback: None,
        stray: None,
        config_tool: None,
    };
    if body.trim().is_empty() {
        return Ok(read);
    }
    let document = body::document(body)?;
    let text = document.as_str();
    let Stray(stray) = serde_json::from_str(text)
        .map_err(|_| Refusal::malformed("The body must be a JSON object."))?;
    let has_arguments = json::member(text, "/arguments").is_some();
    if stray.is_some() || !has_arguments {
        read.request.arguments = Arguments::Text(text.to_owned());
        read.stray = stray.filter(|_| has_arguments);
        return Ok(read);
    }
    let envelope: Envelope = serde_json::from_str(text).map_err(|error| {
        let words = "user and callback must be strings, files a list of ids, and mode \"sync\" or \"async\".";
        Refusal::unreadable(malformed(words).details(error.to_string()))
    })?;
    let config = match envelope
        .config
        .map(RawValue::get)
        .filter(|config| *config != "null")
    {
        Some(config) if config.len() > MAX_CONFIG_BYTES => {
            return Err(Refusal::malformed("The config is too long."));
        }
        Some(config) => arguments::config(&text_or_json(config)).map_err(Refusal::unreadable)?,
        None => serde_json::Map::new(),
    };
    read.config_tool = config.get("tool").cloned();
    read.request.label = service::label(envelope.user).map_err(Refusal::unreadable)?;
    read.request.timeout_ms = arguments::timeout_ms(&config).map_err(Refusal::unreadable)?;
    read.request.arguments = Arguments::Text(text_or_json(envelope.arguments.get()));
    let stored = envelope.files.into_iter().map(BroughtFile::Stored);
    read.request.files.extend(stored);
    read.detached = envelope.mode.map(|mode| matches!(mode, CallMode::Async));
    read.callback = envelope.callback;
    Ok(read)
}

/// The JSON text in a string, or the value itself.
pub fn text_or_json(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.to_owned())
}

/// If the arguments do not fit, says in the report that the whole body was taken as the arguments.
fn explain(mut report: Report, stray: Option<&str>) -> Report {
    if let (CallResult::Failed(fault), Some(stray)) = (&mut report.outcome, stray)
        && fault.kind == Kind::ParameterValidationError
    {
        let words = format!(
            "The whole body was taken as the arguments, since it holds '{}' beside 'arguments'; \
            other members are {}.",
            text::printable(&text::head(stray, 80)),
            MEMBERS.join(", ")
        );
        fault.details = Some(
            fault
                .details
                .take()
                .map_or(words.clone(), |details| format!("{details}\n{words}")),
        );
    }
    report
}

/// Most calls of one request.
pub const MAX_CALLS: usize = 64;
const BATCH_SHAPE: &str = "The body is {\"calls\": \
                     [{\"tool\": …, \"arguments\": …, \"files\": …, \"timeoutMs\": …, \"hidden\": …}, …], \
                     \"user\": …, \"atOnce\": …, \"files\": …, \"tool_resources\": …}, of which only the calls, with their tools, are \
                     required.";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BatchBody {
    calls: Vec<Object<BatchCall>>,
    /// Artifacts for tools of the batch, by tool and by file.
    #[serde(default, rename = "tool_resources")]
    resources: ToolResources,
    #[serde(default)]
    files: Vec<SharedFile>,
    /// The user to call for.
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
    /// Ids of artifacts.
    #[serde(default)]
    files: Vec<String>,
    #[serde(default, deserialize_with = "whole")]
    timeout_ms: Option<u64>,
    /// Only its end is shown.
    #[serde(default)]
    hidden: bool,
}

/// A whole number. JSON Schema allows 8.0, too.
pub fn whole<'de, D: Deserializer<'de>, N: TryFrom<u64>>(from: D) -> Result<Option<N>, D::Error> {
    let given = Option::<Value>::deserialize(from)?;
    given
        .map(|given| {
            json::whole(&given)
                .and_then(|number| N::try_from(number).ok())
                .ok_or_else(|| D::Error::custom("a whole number is expected"))
        })
        .transpose()
}

/// `POST /v1/calls`.
pub async fn batch(known: KnownRequest, body: Body) -> Result<Response, Refusal> {
    let start = known.start()?;
    let received = match body::read_with_files(&start.known, "", body).await {
        Ok(received) => received,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    let batch = match body::parse(&start.known, received.text, parse_batch).await {
        Ok(batch) => batch,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    let recipient = start.recipient(batch.user.clone());
    let mut speakers = begin_batch(&start, batch, received.charged, received.files);
    let begun = start.begun;
    Ok(reply::events(async move |to| {
        let calls: Vec<_> = speakers
            .calls()
            .map(|(id, tool)| json!({"call": id, "tool": tool}))
            .collect();
        to.send("batch", &json!({ "calls": calls })).await;
        while let Some(StageEvent { call, stage }) = speakers.next().await {
            match stage {
                Stage::Prepare => to.send("start", &json!({ "call": &*call })).await,
                Stage::Processing(event) => to.tell(&event, Some(&call)).await,
                Stage::Output(text) => {
                    to.send("chunk", &json!({ "text": text, "call": &*call }))
                        .await
                }
                Stage::Completed(report) => to.end(*report, &recipient, begun.clone()).await,
            }
        }
        to.send("done", &json!({ "calls": calls.len() })).await;
    }))
}

/// `files`: each for the calls of the tool that its part is named after, or for all.
fn begin_batch(
    start: &Start,
    batch: BatchBody,
    mut charged: Charged,
    files: Vec<BroughtFile>,
) -> Speakers {
    let server = &start.known.server;
    let names = tools::ToolNames::new(&start.known, batch.user.as_deref());
    let who = server
        .service
        .catalog
        .who(&start.known.caller, batch.user.as_deref());
    let mut stored = ToolFiles::from(&batch.resources);
    stored.extend(batch.files.as_slice().into());
    let mut request = |Object(one): Object<BatchCall>| {
        let brought = files
            .iter()
            .filter(|file| file.is_for(&[&one.tool, FOR_ALL]));
        let mut ids = stored.of(&one.tool);
        ids.extend(one.files.iter().map(String::as_str));
        // One more than a call can have is refused like any more.
        let ids = ids.into_iter().take(MAX_FILES as usize + 1);
        let stored = ids.map(|id| BroughtFile::Stored(id.to_owned()));
        let brought = brought.cloned().chain(stored).collect();
        let tool = names.id(one.tool);
        let hidden = one.hidden
            || server
                .service
                .catalog
                .find(&who, &tool)
                .is_ok_and(|tool| tool.manifest.hidden);
        let arguments = one
            .arguments
            .map(|arguments| text_or_json(arguments.get()))
            .unwrap_or_default();
        // The first call was counted with the body.
        let rate = std::mem::take(&mut charged.rate);
        let request = CallRequest {
            label: batch.user.clone(),
            files: brought,
            timeout_ms: one.timeout_ms,
            charged: Charged {
                rate,
                ..charged.clone()
            },
            ..start.request(tool, Arguments::Text(arguments))
        };
        (request, if hidden { Show::Result } else { Show::All })
    };
    let calls: Vec<_> = batch.calls.into_iter().map(&mut request).collect();
    let at_once = batch.at_once.unwrap_or(service::CONCURRENCY);
    speakers(server, calls, at_once)
}

/// Begins calls, each of which ends where the server must end.
pub fn speakers(server: &Arc<Server>, calls: Vec<(CallRequest, Show)>, at_once: usize) -> Speakers {
    let server = server.clone();
    Speakers::new(calls, at_once, move |request, sink| {
        let server = server.clone();
        async move { request::run(&server, request, sink).await }
    })
}

fn parse_batch(body: &str) -> Result<BatchBody, Refusal> {
    let mut batch: BatchBody = body::typed(body, BATCH_SHAPE)?;
    batch.user = service::label(batch.user).map_err(Refusal::unreadable)?;
    check_bounds(batch.calls.len(), batch.at_once)?;
    Ok(batch)
}

/// Refuses too many calls of one request, and none.
pub fn check_bounds(calls: usize, at_once: Option<usize>) -> Result<(), Refusal> {
    match (calls, at_once) {
        (1..=MAX_CALLS, None | Some(1..=MAX_CALLS)) => Ok(()),
        (1..=MAX_CALLS, _) => Err(Refusal::malformed(format!(
            "atOnce must be 1 to {MAX_CALLS}."
        ))),
        _ => Err(Refusal::malformed(format!(
            "A batch is 1 to {MAX_CALLS} calls."
        ))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionBody {
    /// What the model wrote.
    text: String,
    /// The user to call for.
    user: Option<String>,
}

/// `POST /v1/actions`: the call that a model wrote into its text.
pub async fn act(known: KnownRequest, body: Body) -> Result<Response, Refusal> {
    let start = known.start()?;
    Ok(match read_action(&start, body).await {
        Ok(action) => run_action(start, action).await,
        Err(refusal) => start.refuse("", refusal).await,
    })
}

/// A body that was read: the model's text, and the call that it may lead to.
struct Action {
    reading: action::ParsedText,
    request: CallRequest,
    /// The memory of the model's text, which the answer repeats.
    kept: Permit,
}

async fn read_action(start: &Start, body: Body) -> Result<Action, Refusal> {
    let received = body::read(&start.known, "", body, |_| true).await?;
    let (reading, user) = body::parse(&start.known, received.text, |body: &str| {
        serde_json::from_str(body)
            .map(|Object(ActionBody { text, user })| (action::read(&text), user))
    })
    .await
    .map_err(|_| {
        let words =
            "The body is {\"text\": what the model wrote}, with \"user\" to call for somebody.";
        Refusal::malformed(words)
    })?;
    let request = CallRequest {
        label: service::label(user).map_err(Refusal::unreadable)?,
        charged: received.charged,
        ..start.request(String::new(), Arguments::default())
    };
    let kept = start
        .known
        .server
        .service
        .limiter
        .keep_text(&start.known.caller.user, reading.lead.len())?;
    Ok(Action {
        reading,
        request,
        kept,
    })
}

async fn run_action(
    start: Start,
    Action {
        mut reading,
        request,
        kept: _text,
    }: Action,
) -> Response {
    let recipient = start.recipient(request.label.clone());
    let server = &start.known.server;
    let background = &server.background;
    let mut answer = match action::request(&server.service, &[], request, &mut reading) {
        Some(request) if background.is_asked_by(&request) => {
            match background.begin(request, EndReport::Observation).await {
                Ok(receipt) => reading.accepted(receipt),
                Err(report) => reading.answered(report).await,
            }
        }
        Some(request) => {
            reading
                .answered(request::run(server, request, Sink::none()).await)
                .await
        }
        None => reading.without_action(),
    };
    let outcome = answer.outcome.take().map(|report| recipient.view(report));
    let kept = (
        start.begun,
        outcome
            .as_ref()
            .and_then(|report| report.delivery.slot.clone()),
    );
    let write = move |outcome: Option<&Report>, to: &mut dyn Write| {
        let ActionResult {
            lead,
            dialect,
            observation,
            warnings,
            receipt,
            ..
        } = &answer;
        answers::visible(
            &ActionAnswer {
                lead,
                dialect,
                observation,
                warnings,
                receipt,
                outcome,
            },
            to,
        )?;
        to.write_all(b"\n")
    };
    let parts = match outcome {
        Some(report) => answers::of_report(report, move |report, to| write(Some(report), to)).await,
        None => {
            let mut written = Vec::new();
            let _ = write(None, &mut written);
            vec![written.into()]
        }
    };
    reply::document(parts, kept)
}

/// An answer as its caller may see it.
#[derive(Serialize)]
struct ActionAnswer<'a> {
    lead: &'a str,
    dialect: &'a Option<action::Dialect>,
    observation: &'a Option<String>,
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: &'a Option<Receipt>,
    outcome: Option<&'a Report>,
}

/// MCP is another protocol than the rest, with its own documents.
pub const MCP_PATH: &str = "/mcp";

/// The MCP server, behind the same gate and the same quotas as everything else here.
pub async fn mcp(known: KnownRequest, request: Request) -> Result<Response, Refusal> {
    // A server that stops still takes the answers to its questions.
    let start = Start {
        begun: known.server.begun.clone(),
        known,
    };
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        let KnownRequest { server, caller, .. } = start.known;
        return Ok(server.mcp.get_or_delete(caller, parts).await.map(Body::new));
    }
    let received = match body::read(&start.known, "", body, |length| length > body::SMALL).await {
        Ok(received) => received,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    let Start { known, begun } = start;
    let message = body::parse(&known, received.text, |text| Message::read(text.as_bytes())).await;
    if message.is_request() && known.server.stop.is_cancelled() {
        return Err(Refusal::stopping());
    }
    let recorded = message.is_refused();
    let sender = Sender {
        approver: known.approver(),
        caller: known.caller,
        charged: received.charged,
    };
    let mut answer = known.server.mcp.post(sender, parts, message, begun).await;
    if recorded {
        answer.extensions_mut().insert(reply::Recorded);
    }
    Ok(answer.map(Body::new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Caller;

    type Parsed = (Option<String>, Option<u64>, String);

    fn parsed(body: &str) -> Result<Parsed, String> {
        let request = CallRequest::new(Caller::named("alice"), "t:x", Arguments::default());
        let call = parse(request, body)
            .and_then(CallBody::checked)
            .map_err(|refusal| refusal.fault.message)?
            .request;
        let Arguments::Text(text) = call.arguments else {
            panic!("not text")
        };
        Ok((call.label, call.timeout_ms, text))
    }

    #[test]
    fn both_forms_are_read_and_no_other() {
        let plain = |text: &str| Ok((None, None, text.to_owned()));
        let bob = || Ok((Some("bob".to_owned()), Some(5), "{\"n\":1}".to_owned()));
        for (body, wanted) in [
            ("", plain("")),
            ("{\"n\": 1}", plain("{\"n\":1}")),
            ("{\"user\": \"bob\"}", plain("{\"user\":\"bob\"}")),
            (
                "{\"arguments\": 1, \"n\": 2}",
                plain("{\"arguments\":1,\"n\":2}"),
            ),
            (
                "{\"user\":\"bob\",\"config\":{\"tool\":\"t:x\",\"timeoutMs\":5},\"arguments\":{\"n\":1}}",
                bob(),
            ),
            (
                "{\"user\":\"bob\",\"config\":\"{\\\"timeoutMs\\\":5}\",\"arguments\":\"{\\\"n\\\":1}\"}",
                bob(),
            ),
        ] {
            assert_eq!(parsed(body), wanted, "{body}");
        }
        for (bad, wanted) in [
            ("[1]", "must be a JSON object"),
            ("{\"n\":1,\"n\":2}", "not one JSON document"),
            ("{\"n\":1} {}", "not one JSON document"),
            (
                "{\"arguments\":{},\"config\":{\"tool\":\"other:x\"}}",
                "another tool",
            ),
            ("{\"arguments\":{},\"config\":{\"tool\":1}}", "another tool"),
            (
                "{\"arguments\":{},\"config\":{\"tool\":\"t:x@1\"}}",
                "another tool",
            ),
            (
                "{\"arguments\":{},\"config\":[]}",
                "config must be a JSON object",
            ),
            (
                "{\"arguments\":{},\"config\":{\"timeoutMs\":-1}}",
                "timeoutMs",
            ),
            ("{\"arguments\":{},\"user\":1}", "must be strings"),
            ("{\"arguments\":{},\"mode\":\"fast\"}", "must be strings"),
            ("{\"arguments\":{},\"callback\":[]}", "must be strings"),
        ] {
            let why = parsed(bad).unwrap_err();
            assert!(why.contains(wanted), "{bad}: {why}");
        }
    }
}
