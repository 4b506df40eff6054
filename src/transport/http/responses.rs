//! `POST /v1/tool-batches`: the calls of one turn of a model, answered as the Responses API does.

use super::body;
use super::calls;
use super::reply::{self, Events, Recipient, Refusal, Response};
use super::request::{KnownRequest, Start, wants_events};
use super::stored::Storing;
use super::tools::ToolNames;
use crate::base::json::Object;
use crate::base::lock;
use crate::base::mask::Mask;
use crate::base::semaphore::Permit;
use crate::fault::{Fault, Kind};
use crate::manifest::{ClientTool, INPUT, TextFormat};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::registry::Tool;
use crate::service::{
    self, Arguments, CallRequest, Charged, ClientRuns, Event, OwnTools, Report, Show, Speakers,
    Stage, StageEvent,
};
use crate::transport::responses::{
    Ended, ResponseStatus, Step, Stream, Telling, ToolCall, function_output, head,
};
use axum::body::Body;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// Longest id of a call, bytes.
const MAX_CALL_ID_BYTES: usize = 256;
/// The builtin tool whose code is shown as code.
pub const RUN_CODE: &str = "core:run-code";
const SHAPE: &str = "The body is {\"calls\": [{\"type\": \"function_call\", \"call_id\": …, \
     \"name\": …, \"arguments\": …}, …], \"tools\": […], \"user\": …, \"atOnce\": …, \"stream\": …}, of which \
     only the calls are required; a call is an item function_call, custom_tool_call, \
     local_shell_call, shell_call or tool_search_call, or has the form of Chat Completions.";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TurnBody {
    calls: Vec<Object<TurnCall>>,
    /// The user to call for.
    user: Option<String>,
    #[serde(default, deserialize_with = "calls::whole")]
    at_once: Option<usize>,
    /// Tools that the client itself runs, in the forms of model APIs.
    #[serde(default, deserialize_with = "body::or_default")]
    tools: Vec<Value>,
    #[serde(default, deserialize_with = "body::or_default")]
    stream: bool,
}

/// A call as a model asks for it: an item of the Responses API, each of which a tool of `GET
/// /v1/tools?format=openai-responses` can lead to, or a call of Chat Completions.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TurnCall {
    FunctionCall {
        call_id: String,
        name: String,
        arguments: String,
        #[serde(flatten)]
        passed_on: Map<String, Value>,
    },
    CustomToolCall {
        call_id: String,
        name: String,
        input: String,
        #[serde(flatten)]
        passed_on: Map<String, Value>,
    },
    LocalShellCall(ShellCall),
    ShellCall(ShellCall),
    ToolSearchCall {
        call_id: String,
        arguments: Map<String, Value>,
        #[serde(flatten)]
        passed_on: Map<String, Value>,
    },
    Function {
        id: String,
        function: NamedFunction,
    },
    Custom {
        id: String,
        custom: NamedText,
    },
}

#[derive(Deserialize)]
struct ShellCall {
    call_id: String,
    action: Map<String, Value>,
    #[serde(flatten)]
    passed_on: Map<String, Value>,
}

#[derive(Deserialize)]
struct NamedFunction {
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct NamedText {
    name: String,
    input: String,
}

impl ShellCall {
    /// The call of the tool with this name.
    fn of(self, form: ClientTool, name: &str) -> ToolCall {
        let mut arguments = self.action;
        // Clients write null for an argument that they leave out.
        arguments.retain(|name, value| name != "type" && !value.is_null());
        ToolCall {
            call_id: self.call_id,
            name: name.to_owned(),
            arguments: Value::Object(arguments).to_string(),
            form,
            passed_on: self.passed_on,
            ..ToolCall::default()
        }
    }
}

impl From<TurnCall> for ToolCall {
    fn from(call: TurnCall) -> ToolCall {
        match call {
            TurnCall::FunctionCall {
                call_id,
                name,
                arguments,
                passed_on,
            } => ToolCall {
                call_id,
                name,
                arguments,
                passed_on,
                ..ToolCall::default()
            },
            TurnCall::CustomToolCall {
                call_id,
                name,
                input,
                passed_on,
            } => ToolCall {
                call_id,
                name,
                arguments: json!({ (INPUT): input }).to_string(),
                form: ClientTool::Custom {
                    format: TextFormat::default(),
                },
                passed_on,
                ..ToolCall::default()
            },
            TurnCall::LocalShellCall(call) => call.of(ClientTool::LocalShell, "local_shell"),
            TurnCall::ShellCall(call) => call.of(ClientTool::Shell, "shell"),
            TurnCall::ToolSearchCall {
                call_id,
                arguments,
                passed_on,
            } => ToolCall {
                call_id,
                name: "tool_search".to_owned(),
                arguments: Value::Object(arguments).to_string(),
                passed_on,
                ..ToolCall::default()
            },
            // The messages of tools are the same for both in Chat Completions.
            TurnCall::Function { id, function } => ToolCall {
                call_id: id,
                name: function.name,
                arguments: function.arguments,
                ..ToolCall::default()
            },
            TurnCall::Custom { id, custom } => ToolCall {
                call_id: id,
                name: custom.name,
                arguments: json!({ (INPUT): custom.input }).to_string(),
                ..ToolCall::default()
            },
        }
    }
}

/// The call of a shell has no name. It is for the tool of its kind that the request brought, else for
/// the one that its caller is offered; where that has several, the call finds none.
fn name_shell(call: &mut ToolCall, own: &OwnTools, offered: &[Arc<Tool>]) {
    if !matches!(call.form, ClientTool::LocalShell | ClientTool::Shell) {
        return;
    }
    let is_meant = |tool: &&Arc<Tool>| tool.manifest.client_tool() == Some(&call.form);
    let mut meant = offered.iter().filter(is_meant);
    if own.iter().find(is_meant).is_none()
        && let (Some(tool), None) = (meant.next(), meant.next())
    {
        call.name = tool.manifest.id.clone();
    }
}

/// `POST /v1/tool-batches`.
pub async fn tool_batch(known: KnownRequest, body: Body) -> Result<Response, Refusal> {
    let start = known.start()?;
    let received = match body::read(&start.known, "", body, |_| true).await {
        Ok(received) => received,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    let batch = match body::parse(&start.known, received.text, parse).await {
        Ok(batch) => batch,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    // The arguments are kept until the end.
    let body = received.charged.body.clone();
    let wants_stream = batch.stream || wants_events(&start.known.headers);
    let turn = match Turn::begin(&start, batch, received.charged).await {
        Ok(turn) => turn,
        Err(fault) => return Ok(start.refuse("", Refusal::unreadable(fault)).await),
    };
    let begun = start.begun.clone();
    if wants_stream {
        return Ok(reply::events(async move |to| {
            let to = Output::Stream(to);
            turn.run(&to).await;
            to.done().await;
            drop((begun, body));
        }));
    }
    let response = turn.run(&Output::Whole).await;
    drop((begun, body));
    Ok(reply::json(StatusCode::OK, &response))
}

/// How a response is answered.
pub enum Output {
    Stream(Events),
    Whole,
    Stored(Arc<Storing>),
}

impl Output {
    /// Sends the events that were not sent yet.
    pub async fn send(&self, stream: &mut Stream) {
        match self {
            Output::Stream(to) => {
                for event in stream.take_events() {
                    to.send(&event.name, &event.data).await;
                }
            }
            Output::Whole => drop(stream.take_events()),
            Output::Stored(storing) => storing.tell(stream).await,
        }
    }

    /// Waits until its owner cancels it, or it finds no room.
    pub async fn stopped(&self) -> Fault {
        match self {
            Output::Stored(storing) => storing.response.stopped().await,
            Output::Stream(_) | Output::Whole => std::future::pending().await,
        }
    }

    pub async fn done(&self) {
        if let Output::Stream(to) = self {
            to.done().await;
        }
    }
}

fn parse(body: &str) -> Result<Batch, Refusal> {
    let read: TurnBody = body::typed(body, SHAPE)?;
    let calls: Vec<ToolCall> = read
        .calls
        .into_iter()
        .map(|Object(call)| call.into())
        .collect();
    let mut seen = HashSet::new();
    for (index, call) in calls.iter().enumerate() {
        if !(1..=MAX_CALL_ID_BYTES).contains(&call.call_id.len()) || !seen.insert(&call.call_id) {
            return Err(Refusal::malformed(format!(
                "The id of calls[{index}] must be its own, with 1 to {MAX_CALL_ID_BYTES} bytes."
            )));
        }
    }
    calls::check_bounds(calls.len(), read.at_once)?;
    Ok(Batch {
        calls,
        user: service::label(read.user).map_err(Refusal::unreadable)?,
        at_once: read.at_once,
        tools: read.tools,
        stream: read.stream,
    })
}

struct Batch {
    calls: Vec<ToolCall>,
    user: Option<String>,
    at_once: Option<usize>,
    tools: Vec<Value>,
    stream: bool,
}

/// The calls of a turn that run.
struct Turn {
    speakers: Speakers,
    calls: Vec<ToolCall>,
    recipient: Recipient,
}

/// A call of a model, and how it is made.
pub struct Planned {
    pub call: ToolCall,
    pub client_runs: ClientRuns,
    /// Why it is not.
    pub refused: Option<Fault>,
}

/// Begins the calls of a turn, and completes what is known of them.
pub fn speak(
    start: &Start,
    label: Option<&str>,
    calls: Vec<Planned>,
    at_once: usize,
    mut charged: Charged,
) -> (Speakers, Vec<ToolCall>) {
    let catalog = &start.known.server.service.catalog;
    let names = ToolNames::new(&start.known, label);
    let who = catalog.who(&start.known.caller, label);
    let mut known = Vec::new();
    let mut requests = Vec::new();
    for planned in calls {
        let mut call = planned.call;
        call.tool = names.id(call.name.clone());
        // The first call was counted with the body.
        let rate = std::mem::take(&mut charged.rate);
        let request = CallRequest {
            label: label.map(str::to_owned),
            client_runs: planned.client_runs,
            refused: planned.refused,
            charged: Charged {
                rate,
                ..charged.clone()
            },
            ..start.request(call.tool.clone(), Arguments::Text(call.arguments.clone()))
        };
        let tool = catalog.find(&who, &call.tool).ok();
        let manifest = tool.as_ref().map(|tool| &tool.manifest);
        call.id = request.id.clone().unwrap_or_default();
        if call.call_id.is_empty() {
            call.call_id = format!("call_{}", call.id.replace('-', ""));
        }
        call.is_final = manifest.is_some_and(|manifest| manifest.is_final);
        call.code = code_of(&call);
        call.is_hidden = manifest.is_some_and(|manifest| manifest.hidden);
        let show = match call.is_hidden {
            true => Show::Result,
            false => Show::All,
        };
        requests.push((request, show));
        known.push(call);
    }
    let speakers = calls::speakers(&start.known.server, requests, at_once);
    (speakers, known)
}

impl Turn {
    async fn begin(start: &Start, batch: Batch, charged: Charged) -> Result<Turn, Fault> {
        let user = batch.user.as_deref();
        let names = ToolNames::new(&start.known, user);
        let taken = names.taken();
        let is_taken = move |name: &str| taken.id(name).is_some();
        let own = OwnTools::read_for(&start.known.caller.user, batch.tools, is_taken).await?;
        let offered = names.offered();
        let planned = batch.calls.into_iter().map(|mut call| {
            name_shell(&mut call, &own, &offered.tools);
            Planned {
                client_runs: own.runs(&call.name),
                refused: None,
                call,
            }
        });
        let at_once = batch.at_once.unwrap_or(service::CONCURRENCY);
        let (speakers, calls) = speak(start, user, planned.collect(), at_once, charged);
        Ok(Turn {
            speakers,
            calls,
            recipient: start.recipient(batch.user),
        })
    }

    /// Runs the calls as one response.
    async fn run(mut self, to: &Output) -> Value {
        let mut stream = Stream::new(head("toolhost"));
        to.send(&mut stream).await;
        let reader = Reader::new(self.recipient);
        let mut telling = Telling::new(self.calls);
        while let Some(StageEvent { call, stage }) = self.speakers.next().await {
            telling.step(&call, reader.step(stage).await, &mut stream);
            to.send(&mut stream).await;
        }
        let ended = telling.finish(&mut stream);
        let outputs: Vec<Value> = ended
            .iter()
            .filter(|(_, ended)| ended.client.is_none())
            .map(|(call, ended)| function_output(call, ended))
            .collect();
        stream.end(
            ResponseStatus::Completed,
            json!({ "tool_outputs": outputs }),
        );
        to.send(&mut stream).await;
        stream.response().clone()
    }
}

/// The code in the arguments of a call, where its tool runs such.
fn code_of(call: &ToolCall) -> Option<String> {
    if call.tool.split('@').next() != Some(RUN_CODE) || call.arguments.len() > LARGE_TEXT_BYTES {
        return None;
    }
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    arguments["code"].as_str().map(str::to_owned)
}

/// Most text of the outputs of one response, bytes: they are in its events and at its end.
const MAX_KEPT_BYTES: usize = 8 * 1024 * 1024;

/// Reads reports as their recipient may see them, and charges what is kept of them.
pub struct Reader {
    recipient: Recipient,
    kept: Mutex<Kept>,
    /// The secrets of the calls, where the response is stored.
    pub hides: Arc<Mutex<Mask>>,
}

/// What is kept until a response ends.
#[derive(Default)]
struct Kept {
    permits: Vec<Permit>,
    bytes: usize,
}

impl Reader {
    pub fn new(recipient: Recipient) -> Reader {
        Reader {
            recipient,
            kept: Mutex::default(),
            hides: Arc::default(),
        }
    }

    pub async fn step(&self, stage: Stage) -> Step {
        match stage {
            Stage::Prepare => Step::Begins,
            Stage::Output(text) => Step::Part(text),
            Stage::Processing(Event::Shown(shown, _)) => Step::Shown(shown),
            Stage::Processing(_) => Step::Untold,
            Stage::Completed(report) => Step::Ended(self.read(*report).await),
        }
    }

    pub async fn read(&self, report: Report) -> Ended {
        let tool = report.tool.clone();
        lock(&self.hides).join(report.arguments().hides);
        let ended = Ended::of(self.recipient.view(report)).await;
        match self.keep(ended.bytes()) {
            Ok(()) => ended,
            Err(full) => Ended::failed(&tool, &full),
        }
    }

    /// Charges a text that is kept until the response ends.
    pub fn keep(&self, bytes: usize) -> Result<(), Fault> {
        let mut kept = lock(&self.kept);
        if kept.bytes + bytes > MAX_KEPT_BYTES {
            let words = format!(
                "The outputs of this response are larger than {MAX_KEPT_BYTES} bytes together."
            );
            return Err(Fault::new(Kind::ResourceLimitError, words));
        }
        let Recipient {
            service, caller, ..
        } = &self.recipient;
        let permit = service.limiter.keep_text(&caller.user, bytes)?;
        kept.permits.push(permit);
        kept.bytes += bytes;
        Ok(())
    }
}
