//! `/v1/runs`: the calls of one turn of a model. Those of tools that the client runs are handed to
//! it, and the run waits for their outputs.

use super::body;
use super::calls::{MAX_CALLS, text_or_json};
use super::gate;
use super::reply::{self, Events, Refusal, Response, malformed};
use super::request::{self, KnownRequest, Start, wants_events};
use super::tools::ToolNames;
use crate::base::json::Object;
use crate::base::text;
use crate::fault::Fault;
use crate::manifest::ClientTool;
use crate::quantity::MAX_OBSERVATION_BYTES;
use crate::service::artifacts::Owner;
use crate::service::background::{Run, RunStatus, RunStep, StepEnd, ToolOutput};
use crate::service::{
    self, Arguments, CallRequest, CallResult, Charged, ClientCall, OwnTools, Report, Show,
    Speakers, Stage, StageEvent, output,
};
use axum::body::Body;
use axum::extract::Path;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Longest id that a model gives to a call, bytes.
const MAX_CALL_ID_BYTES: usize = 128;
const RUN_SHAPE: &str = "The body is {\"calls\": [{\"id\": …, \"name\": …, \"arguments\": …}, …], \
    \"tools\": […], \"user\": …, \"store\": …}, of which only the calls, with their names, are \
    required.";
const OUTPUTS_SHAPE: &str = "The body is {\"tool_outputs\": [{\"tool_call_id\": …, \"output\": \
    …}, …]}, with \"user\" for whom the run is, and \"stream\" for its events.";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunBody {
    calls: Vec<Object<ModelCall>>,
    /// Tools that the client itself runs, in the forms of model APIs.
    #[serde(default, deserialize_with = "body::or_default")]
    tools: Vec<Value>,
    /// The user to call for.
    user: Option<String>,
    /// Whether the run is kept on the disk, and after its end.
    #[serde(default, deserialize_with = "body::or_default")]
    store: bool,
}

/// A call as a model made it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelCall {
    id: Option<String>,
    name: String,
    /// An object, or its JSON text.
    arguments: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputsBody {
    tool_outputs: Vec<Object<ToolOutput>>,
    user: Option<String>,
    #[serde(default, deserialize_with = "body::or_default")]
    stream: bool,
}

fn parse(body: &str) -> Result<RunBody, Refusal> {
    let mut run: RunBody = body::typed(body, RUN_SHAPE)?;
    run.user = service::label(run.user).map_err(Refusal::unreadable)?;
    if !(1..=MAX_CALLS).contains(&run.calls.len()) {
        let words = format!("A run is 1 to {MAX_CALLS} calls.");
        return Err(Refusal::malformed(words));
    }
    let mut known = HashSet::new();
    for (at, Object(call)) in run.calls.iter().enumerate() {
        let Some(id) = &call.id else { continue };
        if id.is_empty() || id.len() > MAX_CALL_ID_BYTES || !known.insert(id) {
            return Err(Refusal::malformed(format!(
                "calls[{at}].id must be its own, and 1 to {MAX_CALL_ID_BYTES} bytes."
            )));
        }
    }
    Ok(run)
}

/// `POST /v1/runs`.
pub async fn begin(known: KnownRequest, body: Body) -> Result<Response, Refusal> {
    let start = known.start()?;
    let received = body::read(&start.known, "", body, |_| true).await?;
    let run = body::parse(&start.known, received.text, parse).await;
    let run = match run {
        Ok(run) => run,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    match Turn::new(&start, run, received.charged).await {
        Ok(turn) => turn.run(start).await,
        Err(fault) => Ok(start.refuse("", Refusal::unreadable(fault)).await),
    }
}

/// A call as the model made it.
struct MadeCall {
    id: String,
    name: String,
}

/// The calls of a turn, ready to run.
struct Turn {
    calls: Vec<CallRequest>,
    /// As the model made them, by the ids of the calls.
    made: HashMap<String, MadeCall>,
    owner: Owner,
    store: bool,
}

impl Turn {
    async fn new(start: &Start, body: RunBody, mut charged: Charged) -> Result<Turn, Fault> {
        let server = &start.known.server;
        let label = body.user.as_deref();
        let owner = server.background.owner(&start.known.caller, label)?;
        let names = ToolNames::new(&start.known, label);
        let taken = names.taken();
        let own = OwnTools::read_for(&start.known.caller.user, body.tools, move |name| {
            taken.id(name).is_some()
        });
        let own = own.await?;
        let mut made = HashMap::new();
        let mut calls = Vec::new();
        for Object(call) in body.calls {
            let ModelCall {
                id,
                name,
                arguments,
            } = call;
            let arguments = arguments.map(|text| text_or_json(text.get()));
            // The first call was counted with the body.
            let rate = std::mem::take(&mut charged.rate);
            let tool = match own.find(&name) {
                Some(tool) => tool.manifest.id.clone(),
                None => names.id(name.clone()),
            };
            let request = CallRequest {
                label: body.user.clone(),
                client_runs: own.runs(&names.name(&tool).unwrap_or_else(|| name.clone())),
                charged: Charged {
                    rate,
                    ..charged.clone()
                },
                ..start.request(tool, Arguments::Text(arguments.unwrap_or_default()))
            };
            let call = request.id.clone().unwrap_or_default();
            let id = id.unwrap_or_else(|| call.clone());
            made.insert(call, MadeCall { id, name });
            calls.push(request);
        }
        Ok(Turn {
            calls,
            made,
            owner,
            store: body.store,
        })
    }

    /// Runs the calls of this host, and answers when they have ended.
    async fn run(self, start: Start) -> Result<Response, Refusal> {
        let Turn {
            calls,
            made,
            owner,
            store,
        } = self;
        let server = start.known.server.clone();
        let background = &server.background;
        let user = &start.known.caller.user;
        let id = format!("run_{}", service::new_id().replace('-', ""));
        let steps = calls
            .iter()
            .filter_map(|call| made.get(call.id.as_ref()?))
            .map(|call| RunStep::new(call.id.clone(), call.name.clone()));
        let run = Run::new(id, owner, steps.collect(), store);
        let mut running = background
            .begin_run(run)
            .await
            .map_err(|fault| start.known.refusal(fault))?;
        let calls = calls.into_iter().map(|call| (call, Show::Result)).collect();
        let own = server.clone();
        let cancel = running.cancel();
        let mut speakers = Speakers::new(calls, service::CONCURRENCY, move |request, sink| {
            let server = own.clone();
            let cancel = cancel.clone();
            async move { request::run_unless(&server, request, sink, &cancel).await }
        });
        let mut kept = Vec::new();
        while let Some(StageEvent { call, stage }) = speakers.next().await {
            let (Stage::Completed(report), Some(made)) = (stage, made.get(&*call)) else {
                continue;
            };
            let arguments = report.arguments();
            let tool = report.tool.clone();
            let mut end = end_of(*report).await;
            match server.service.limiter.keep_text(user, end.bytes()) {
                Ok(permit) => kept.push(permit),
                Err(full) => end = StepEnd::failed(&tool, &full),
            }
            running.end_step(&made.id, arguments, end).await;
        }
        answer(&start.known, running.settle().await)
    }
}

/// How a call ended, as its step has it.
async fn end_of(report: Report) -> StepEnd {
    let read = match report.outcome {
        CallResult::RequiresAction(call) => return StepEnd::Client(call),
        CallResult::Output(answer) => answer
            .read(false, |text| output::response(text.as_str()))
            .await
            .map(|text| cut(&text)),
        other => Err(other.into_fault().unwrap_or_else(output::cancelled)),
    };
    match read {
        Ok(text) => StepEnd::Output {
            text,
            is_success: true,
        },
        Err(fault) => StepEnd::failed(&report.tool, &fault),
    }
}

/// What a model reads at once.
fn cut(text: &str) -> String {
    if text.len() <= MAX_OBSERVATION_BYTES {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(MAX_OBSERVATION_BYTES)];
    format!("{head}…[cut {} bytes]", text.len() - head.len())
}

/// `GET /v1/runs`. `as`: for whom the runs are.
pub async fn list(known: KnownRequest, uri: Uri) -> Result<Response, Refusal> {
    let owner = owner(&known, &uri)?;
    let background = &known.server.background;
    let runs = background.runs_of(&owner).await;
    let runs = runs.map_err(|fault| known.refusal(fault))?;
    let runs: Vec<Value> = runs.iter().map(head).collect();
    Ok(reply::json(StatusCode::OK, &json!({ "runs": runs })))
}

/// `GET /v1/runs/{run}`.
pub async fn one(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let owner = owner(&known, &uri)?;
    let run = known.server.background.run_of(&owner, &id).await;
    found(&known, run)
}

/// `POST /v1/runs/{run}/cancel`.
pub async fn cancel(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let owner = owner(&known, &uri)?;
    let run = known.server.background.cancel_run(owner, id).await;
    found(&known, run)
}

/// `DELETE /v1/runs/{run}`.
pub async fn delete(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let owner = owner(&known, &uri)?;
    let deleted = known.server.background.delete_run(owner, id.clone()).await;
    if deleted.map_err(|fault| known.refusal(fault))? {
        let done = json!({ "id": id, "deleted": true });
        return Ok(reply::json(StatusCode::OK, &done));
    }
    Err(no_such_run())
}

fn outputs_of(body: &str) -> Result<OutputsBody, Refusal> {
    body::typed(body, OUTPUTS_SHAPE)
}

/// `POST /v1/runs/{run}/submit_tool_outputs`.
pub async fn submit(
    known: KnownRequest,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let received = body::read(&known, "", body, |_| true).await?;
    let body = body::parse(&known, received.text, outputs_of).await?;
    let label = service::label(body.user).map_err(Refusal::unreadable)?;
    let background = &known.server.background;
    let owner = background.owner(&known.caller, label.as_deref())?;
    let outputs = body.tool_outputs.into_iter().map(|Object(output)| output);
    let run = background
        .submit_outputs(owner, id, outputs.collect())
        .await
        .map_err(|fault| known.refusal(fault))?;
    let run = run.ok_or_else(no_such_run)?;
    if body.stream || wants_events(&known.headers) {
        return Ok(reply::events(async move |to| go_on(run, &to).await));
    }
    answer(&known, Ok(run))
}

/// The events of a run that took its outputs.
async fn go_on(run: Run, to: &Events) {
    for step in run.steps.iter().filter(|step| step.client.is_some()) {
        to.send("thread.run.step.completed", &show_step(step)).await;
    }
    for status in [RunStatus::Queued, RunStatus::InProgress, run.status] {
        let mut shown = show(&run);
        shown["status"] = json!(status.word());
        if !status.is_final() {
            shown["ended_at"] = Value::Null;
        }
        let event = format!("thread.run.{}", status.word());
        to.send(&event, &shown).await;
    }
    to.done().await;
}

fn owner(known: &KnownRequest, uri: &Uri) -> Result<Owner, Refusal> {
    let label = gate::parameter(uri, "as");
    let background = &known.server.background;
    Ok(background.owner(&known.caller, label.as_deref())?)
}

fn found(known: &KnownRequest, run: Result<Option<Run>, Fault>) -> Result<Response, Refusal> {
    let run = run.map_err(|fault| known.refusal(fault))?;
    answer(known, Ok(run.ok_or_else(no_such_run)?))
}

fn answer(known: &KnownRequest, run: Result<Run, Fault>) -> Result<Response, Refusal> {
    let run = run.map_err(|fault| known.refusal(fault))?;
    Ok(reply::json(StatusCode::OK, &show(&run)))
}

fn no_such_run() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, malformed("You have no such run."))
}

/// A run as its owner reads it.
fn show(run: &Run) -> Value {
    let required: Vec<Value> = run
        .required()
        .map(|(step, call)| required_call(step, call))
        .collect();
    let action = (!required.is_empty()).then(
        || json!({"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": required}}),
    );
    let steps = run.steps.iter().map(show_step);
    let mut shown = head(run);
    shown["required_action"] = json!(action);
    shown["steps"] = steps.collect();
    shown
}

fn show_step(step: &RunStep) -> Value {
    json!({"call_id": step.call, "name": step.name, "arguments": step.arguments,
        "status": step.status.word(), "output": step.output})
}

/// The same without its calls.
fn head(run: &Run) -> Value {
    json!({
        "id": run.id,
        "object": "run",
        "status": run.status.word(),
        "created_at": run.began.as_second(),
        "expires_at": run.expires.map(|at| at.as_second()),
        "ended_at": run.ended.map(|at| at.as_second()),
        "store": run.store,
    })
}

/// A call that the client runs, as the Assistants API hands it out.
fn required_call(step: &RunStep, call: &ClientCall) -> Value {
    let ClientCall {
        name, arguments, ..
    } = call;
    match call.what {
        ClientTool::Custom { .. } => {
            json!({"id": step.call, "type": "custom",
                "custom": {"name": name, "input": call.input()}})
        }
        _ => json!({"id": step.call, "type": "function",
            "function": {"name": name, "arguments": text::json(&json!(arguments), false)}}),
    }
}
