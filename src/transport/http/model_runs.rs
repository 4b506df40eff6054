//! `POST /v1/responses`: a model of the operator's server, with the tools of this host. The calls of
//! each of its turns run here, for the caller, like those of any batch.

use super::body;
use super::gate::parameter;
use super::offered::OfferedTools;
use super::reply::{self, Refusal, Response, malformed};
use super::request::{KnownRequest, Start, wants_events};
use super::responses::{Output, Planned, RUN_CODE, Reader, speak};
use super::stored::{self, Storing, replay, said};
use super::text_settings::TextSettings;
use super::tool_choice::{MAX_NAMES, ToolChoice};
use super::tools::ToolNames;
use crate::base::json::{self, Object};
use crate::base::lock;
use crate::base::mask::Mask;
use crate::base::semaphore::Permit;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::registry::Tool;
use crate::service::background::StoredResponse;
use crate::service::{
    self, Charged, ClientRuns, OwnTools, RateCharge, Speakers, StageEvent, output,
};
use crate::transport::export::{self, Format};
use crate::transport::names::{self, Names};
use crate::transport::responses::{
    Answering, Conversation, Ended, Finish, Message, ModelCall, ModelServer, ModelTurn,
    ResponseStatus, Step, Stream, SubmittedOutput, Telling, ToolCall, Usage, head, submitted,
};
use axum::body::Body;
use axum::extract::Path;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

const LOST: &str = "The turn of the model was lost.";
/// The label of this host's own tools in `tools`.
const LABEL: &str = "toolhost";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRequest {
    model: String,
    input: Value,
    instructions: Option<String>,
    #[serde(default, deserialize_with = "body::or_default")]
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    stream: Option<bool>,
    store: Option<bool>,
    previous_response_id: Option<String>,
    background: Option<bool>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_output_tokens: Option<u64>,
    text: Option<Object<TextSettings>>,
    metadata: Option<Map<String, Value>>,
    /// The user to call for.
    user: Option<String>,
    // What clients send by themselves, and what changes nothing here.
    #[serde(rename = "include")]
    _include: Option<IgnoredAny>,
    #[serde(rename = "truncation")]
    _truncation: Option<IgnoredAny>,
    #[serde(rename = "reasoning")]
    _reasoning: Option<IgnoredAny>,
    #[serde(rename = "service_tier")]
    _tier: Option<IgnoredAny>,
    #[serde(rename = "prompt_cache_key")]
    _cache_key: Option<IgnoredAny>,
    #[serde(rename = "safety_identifier")]
    _safety: Option<IgnoredAny>,
    #[serde(rename = "stream_options")]
    _stream_options: Option<IgnoredAny>,
}

impl RunRequest {
    /// The members of its response that stay as they are.
    fn head(&self, label: Option<&str>) -> Value {
        let mut head = head(&self.model);
        for (member, value) in [
            ("instructions", json!(self.instructions)),
            ("metadata", json!(self.metadata.clone().unwrap_or_default())),
            ("tools", self.tools.iter().map(shown_tool).collect()),
            ("max_output_tokens", json!(self.max_output_tokens)),
            ("user", json!(label)),
            ("store", json!(self.store == Some(true))),
            ("previous_response_id", json!(self.previous_response_id)),
            (
                "tool_choice",
                self.tool_choice.clone().unwrap_or(json!("auto")),
            ),
            (
                "text",
                self.text
                    .as_ref()
                    .map_or_else(|| head["text"].clone(), |Object(text)| json!(text)),
            ),
            ("temperature", json!(self.temperature.unwrap_or(1.0))),
            ("top_p", json!(self.top_p.unwrap_or(1.0))),
            (
                "parallel_tool_calls",
                json!(self.parallel_tool_calls.unwrap_or(true)),
            ),
        ] {
            head[member] = value;
        }
        head
    }
}

/// A tool of a request as its response shows it.
fn shown_tool(tool: &Value) -> Value {
    let mut shown = tool.get("function").unwrap_or(tool).clone();
    if let (Value::Object(members), "function") = (&mut shown, tool["type"].as_str().unwrap_or(""))
    {
        members.insert("type".to_owned(), json!("function"));
        for member in ["description", "parameters", "strict"] {
            members.entry(member).or_insert(Value::Null);
        }
    }
    shown
}

/// `POST /v1/responses`.
pub async fn create(known: KnownRequest, body: Body) -> Result<Response, Refusal> {
    let start = known.start()?;
    let received = match body::read(&start.known, "", body, |_| true).await {
        Ok(received) => received,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    let run = match body::parse(&start.known, received.text, parse).await {
        Ok(request) => Run::new(&start, request).await,
        Err(refusal) => Err(refusal),
    };
    let run = match run {
        Ok(run) => run,
        Err(refusal) => return Ok(start.refuse("", refusal).await),
    };
    let kept = received.charged;
    let wants_stream = run.request.stream == Some(true) || wants_events(&start.known.headers);
    if run.request.store == Some(true) {
        return Ok(match detach(start, run, kept).await? {
            stored if wants_stream => replayed(&stored, 0),
            stored => reply::json_text(stored::ended(&stored).await),
        });
    }
    if wants_stream {
        return Ok(reply::events(async move |to| {
            let to = Output::Stream(to);
            run.run(&start, &to).await;
            to.done().await;
            drop((start, kept));
        }));
    }
    let response = run.run(&start, &Output::Whole).await;
    Ok(reply::json(StatusCode::OK, &response))
}

/// Runs a response that is stored, which goes on without its client.
async fn detach(start: Start, mut run: Run, kept: Charged) -> Result<Arc<StoredResponse>, Refusal> {
    let background = start.known.server.background.clone();
    let owner = background.owner(&start.known.caller, run.label.as_deref())?;
    let items = Value::Array(std::mem::take(&mut run.items));
    let (begun, stored) = oneshot::channel();
    tokio::spawn(async move {
        let (failure, hides) = (head(&run.request.model), run.reader.hides.clone());
        let storing = Storing::begin(background, owner, items, failure, &mut run.stream, hides);
        let storing = match storing.await {
            Ok(storing) => Arc::new(storing),
            Err(fault) => return drop(begun.send(Err(fault))),
        };
        let _ = begun.send(Ok(storing.response.clone()));
        let to = Output::Stored(storing.clone());
        let ended = tokio::spawn(async move {
            run.run(&start, &to).await;
            drop((start, kept));
        });
        if ended.await.is_err() {
            storing.fail(&lost()).await;
        }
    });
    Ok(stored.await.unwrap_or_else(|_| Err(lost()))?)
}

fn lost() -> Fault {
    Fault::new(Kind::InternalError, "The run of the response was lost.")
}

fn parse(body: &str) -> Result<RunRequest, Refusal> {
    let request: RunRequest = body::typed(body, "The body is not a request for a response.")?;
    if request.max_output_tokens == Some(0) {
        return Err(Refusal::malformed("max_output_tokens: must be 1 or more."));
    }
    if request.background == Some(true) {
        let words = "background: leave it out; a response with \"store\": true goes on without \
            its client.";
        return Err(Refusal::malformed(words));
    }
    Ok(request)
}

/// One run of a model.
struct Run {
    request: RunRequest,
    model: Arc<ModelServer>,
    label: Option<String>,
    /// What the model is offered: the names of all tools, those that the request brought, and how
    /// the model reads them.
    offered: Vec<String>,
    own: OwnTools,
    namespaces: HashMap<String, String>,
    tools: Vec<Value>,
    /// What the model must do with them in its first turn.
    first_choice: Value,
    /// All that was said before, as items.
    items: Vec<Value>,
    /// The outputs of the client's calls among them that are new.
    submitted: Vec<SubmittedOutput>,
    conversation: Conversation,
    stream: Stream,
    /// The turn that the model answers now, and what it says.
    answering: Option<Answering>,
    message: Option<Message>,
    /// The calls of a turn that run.
    turn: Option<Turn>,
    reader: Reader,
    used: Usage,
    _place: Permit,
    /// The memory of what it continues.
    _continued: Option<Permit>,
}

impl Run {
    async fn new(start: &Start, mut request: RunRequest) -> Result<Run, Refusal> {
        let known = &start.known;
        let model = known.server.model.clone().ok_or_else(|| {
            let words = "This host has no model: [model] of its configuration names one. POST \
                /v1/tool-batches makes the calls of a model that is elsewhere.";
            Refusal::from(Fault::new(Kind::CapabilityError, words))
        })?;
        if !model.settings.names.contains(&request.model) {
            let names = model.settings.names.join(", ");
            return Err(Refusal::malformed(format!("model: this host has {names}.")));
        }
        let label = service::label(request.user.take()).map_err(Refusal::unreadable)?;
        let service = &known.server.service;
        let who = service.catalog.who(&known.caller, label.as_deref());
        let lists = &known.server.lists;
        let all = lists.find(&service.catalog, &who, || OfferedTools::new(service, &who));
        let mut narrowed = Narrowed::read(&request.tools)?;
        let listed = narrowed.of(&all)?;
        let taken = ToolNames::new(known, label.as_deref()).taken();
        let Before {
            items,
            hides,
            charged,
            submitted,
        } = before(known, label.as_deref(), &mut request).await?;
        narrowed.add_found(&items, &taken)?;
        let own = OwnTools::read_for(&known.caller.user, narrowed.brought, move |name| {
            taken.id(name).is_some()
        });
        let own = own.await.map_err(Refusal::unreadable)?;
        let mut tools = chat_tools(&listed, &all.names);
        let brought: Vec<_> = own.iter().cloned().collect();
        tools.extend(chat_tools(&brought, &export::names(&brought)));
        let mut offered: Vec<String> = tools.iter().map(chat_name).map(str::to_owned).collect();
        let choice = ToolChoice::read(request.tool_choice.as_ref(), |name| {
            let name = all.names.name(name).unwrap_or_else(|| name.to_owned());
            offered.contains(&name).then_some(name)
        })?;
        offered.retain(|name| choice.allows(name));
        tools.retain(|tool| choice.allows(chat_name(tool)));
        let first_choice = choice.in_chat();
        if tools.is_empty() && first_choice == "required" {
            let words = "tool_choice: required, but the model is offered no tool.";
            return Err(Refusal::malformed(words));
        }
        request.tool_choice = Some(choice.shown());
        let instructions = request.instructions.as_deref();
        let conversation = Conversation::read(instructions, &items, |id| {
            all.names.name(id).unwrap_or_else(|| names::safe(id))
        });
        let conversation = conversation.map_err(Refusal::unreadable)?;
        model.check_hour(&known.caller.user)?;
        let place = model.enter(&known.caller.user)?;
        let reader = Reader::new(start.recipient(label.clone()));
        lock(&reader.hides).join(hides);
        Ok(Run {
            _place: place,
            reader,
            stream: Stream::new(request.head(label.as_deref())),
            answering: None,
            message: None,
            turn: None,
            // Only what is stored needs them again.
            items: match request.store {
                Some(true) => items,
                _ => Vec::new(),
            },
            _continued: charged,
            submitted,
            request,
            model,
            label,
            offered,
            own,
            namespaces: narrowed.namespaces,
            tools,
            first_choice,
            conversation,
            used: Usage::default(),
        })
    }

    /// Runs to the end, whatever the model does.
    async fn run(mut self, start: &Start, to: &Output) -> Value {
        let bounds = self.model.settings.bounds;
        let until = Instant::now() + bounds.time;
        let ended = tokio::select! {
            ended = self.turns(start, to) => ended,
            () = tokio::time::sleep_until(until) => {
                let words = format!("The run took more than {} s.", bounds.time.as_secs());
                Err(Fault::new(Kind::TimeoutError, words))
            }
            why = to.stopped() => Err(why),
            () = start.known.server.kill.cancelled() => Err(output::stopped()),
        };
        let status = ended.unwrap_or_else(|fault| {
            let person = fault.person.as_deref().unwrap_or_default();
            tracing::warn!(target: "toolhost::model", person, "{}", fault.message);
            ResponseStatus::Failed {
                code: fault.kind.to_string(),
                message: fault.message,
            }
        });
        if let Some(answering) = self.answering.take() {
            self.count(answering.usage());
            let rest = answering.rest();
            self.say(&rest, to).await;
        }
        if let Some(message) = self.message.take() {
            message.break_off(&mut self.stream);
        }
        self.leave_calls(start).await;
        let usage = json!({"input_tokens": self.used.input, "output_tokens": self.used.output,
            "total_tokens": self.used.total(),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0}});
        self.stream.end(status, json!({ "usage": usage }));
        to.send(&mut self.stream).await;
        self.stream.response().clone()
    }

    /// Tells the calls that the response ends before. Nobody knows the secrets of their arguments yet.
    async fn leave_calls(&mut self, start: &Start) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        let catalog = start.known.server.service.catalog.clone();
        let who = catalog.who(&start.known.caller, self.label.as_deref());
        let left: Vec<ToolCall> = turn.telling.left().cloned().collect();
        let secrets = tokio::task::spawn_blocking(move || {
            let mut all = Mask::default();
            for call in left {
                if let Ok(tool) = catalog.find(&who, &call.tool) {
                    all.join(service::secrets_of(&tool.manifest, &call.arguments));
                }
            }
            all
        });
        let secrets = secrets.await.unwrap_or_default();
        lock(&self.reader.hides).join(secrets);
        turn.break_off(&self.reader, &mut self.stream).await;
    }

    /// Turns of the model, until one asks for no call that runs here.
    async fn turns(&mut self, start: &Start, to: &Output) -> Result<ResponseStatus, Fault> {
        self.record_outputs(start)?;
        let steps = self.model.settings.bounds.steps;
        for step in 0..steps {
            let turn = self.model_turn(start, step == 0, to).await?;
            match turn.finish {
                Finish::Length => return Ok(ResponseStatus::Incomplete("max_output_tokens")),
                Finish::Filtered => return Ok(ResponseStatus::Incomplete("content_filter")),
                Finish::Stop if turn.calls.is_empty() => return Ok(ResponseStatus::Completed),
                Finish::Stop => {}
            }
            let ended = self.calls(start, turn.calls, to).await;
            let is_over = ended
                .iter()
                .any(|(call, ended)| ended.client.is_some() || (call.is_final && ended.is_success));
            if is_over {
                return Ok(ResponseStatus::Completed);
            }
            let ended: Vec<(ModelCall, String)> = ended
                .into_iter()
                .map(|(call, ended)| {
                    let call_id = call.call_id;
                    let (name, arguments) = (call.name, call.arguments);
                    let call = ModelCall {
                        id: call_id,
                        name,
                        arguments,
                    };
                    (call, ended.text())
                })
                .collect();
            self.conversation.add_calls(&turn.text, &ended);
        }
        let words = format!("The model asked for more than {steps} turns.");
        Err(Fault::new(Kind::ResourceLimitError, words))
    }

    /// Records what the client submitted, before the model hears of it.
    fn record_outputs(&mut self, start: &Start) -> Result<(), Fault> {
        let known = &start.known;
        let label = self.label.as_deref();
        let owner = known.server.background.owner(&known.caller, label)?;
        let names = ToolNames::new(known, label);
        for SubmittedOutput { call, tool, output } in self.submitted.drain(..) {
            let service = &known.server.service;
            service.record_output(&owner, &call, &names.id(tool), &output)?;
        }
        Ok(())
    }

    /// One turn of the model; its text is sent as it comes.
    async fn model_turn(
        &mut self,
        start: &Start,
        is_first: bool,
        to: &Output,
    ) -> Result<ModelTurn, Fault> {
        let principal = &start.known.caller.user;
        let tokens = self.model.settings.bounds.tokens;
        let left = tokens.saturating_sub(self.used.total());
        if left == 0 {
            let words = format!("The run used more than {tokens} tokens.");
            return Err(Fault::new(Kind::ResourceLimitError, words));
        }
        to.send(&mut self.stream).await;
        let most = self.request.max_output_tokens.unwrap_or(left).min(left);
        let reserved = self.model.reserve(principal, most)?;
        let body = self.body(is_first, reserved.output);
        self.answering = Some(self.model.ask(reserved, body).await?);
        let limiter = &start.known.server.service.limiter;
        let mut room = limiter.keep_text(principal, 0)?;
        let mut charged = 0;
        while let Some(answering) = &mut self.answering
            && let Some(text) = answering.next().await?
        {
            if answering.held() > charged {
                charged = answering.held().next_power_of_two();
                room = limiter.keep_text(principal, charged)?;
            }
            self.say(&text, to).await;
        }
        let answering = self.answering.as_mut();
        let answering = answering.ok_or_else(|| Fault::new(Kind::InternalError, LOST))?;
        let (turn, last) = answering.finish().await?;
        let usage = answering.usage();
        self.count(usage);
        self.answering = None;
        drop(room);
        self.reader.keep(turn.bytes())?;
        self.say(&last, to).await;
        if let Some(message) = self.message.take() {
            message.end(&mut self.stream);
        }
        to.send(&mut self.stream).await;
        Ok(turn)
    }

    fn count(&mut self, usage: Usage) {
        self.used.input = self.used.input.saturating_add(usage.input);
        self.used.output = self.used.output.saturating_add(usage.output);
    }

    async fn say(&mut self, text: &str, to: &Output) {
        if text.is_empty() {
            return;
        }
        let message = self.message.get_or_insert_with(|| {
            let id: String = service::new_id().replace('-', "");
            Message::begin(format!("msg_{id}"), &mut self.stream)
        });
        message.say(text, &mut self.stream);
        to.send(&mut self.stream).await;
    }

    /// The request to the server. `most`: tokens of the answer.
    fn body(&self, is_first: bool, most: u64) -> String {
        let request = &self.request;
        let mut body = json!({"model": request.model, "messages": self.conversation.messages(),
            "stream": true, "stream_options": {"include_usage": true}});
        body["max_completion_tokens"] = json!(most);
        if !self.tools.is_empty() {
            body["tools"] = json!(self.tools);
            // What is forced is forced once: a model could never answer else.
            body["tool_choice"] = match is_first {
                true => self.first_choice.clone(),
                false => json!("auto"),
            };
        }
        let text = request.text.as_ref();
        let format = text.and_then(|Object(text)| text.format.in_chat());
        let optional = [
            ("temperature", request.temperature.map(Value::from)),
            ("top_p", request.top_p.map(Value::from)),
            (
                "parallel_tool_calls",
                request.parallel_tool_calls.map(Value::from),
            ),
            ("response_format", format),
        ];
        for (member, value) in optional {
            if let Some(value) = value {
                body[member] = value;
            }
        }
        body.to_string()
    }

    /// Runs the calls of a turn, all at once, and tells them.
    async fn calls(
        &mut self,
        start: &Start,
        calls: Vec<ModelCall>,
        to: &Output,
    ) -> Vec<(ToolCall, Ended)> {
        let planned = calls.into_iter().map(|call| self.planned(call)).collect();
        let at_once = match self.request.parallel_tool_calls {
            Some(false) => 1,
            _ => service::CONCURRENCY,
        };
        let charged: Charged = RateCharge::Due.into();
        let (speakers, calls) = speak(start, self.label.as_deref(), planned, at_once, charged);
        let telling = Telling::new(calls);
        let turn = self.turn.insert(Turn { speakers, telling });
        while let Some(StageEvent { call, stage }) = turn.speakers.next().await {
            let step = self.reader.step(stage).await;
            turn.telling.step(&call, step, &mut self.stream);
            to.send(&mut self.stream).await;
        }
        let turn = self.turn.take();
        let ended = turn.map(|turn| turn.telling.finish(&mut self.stream));
        let ended = ended.unwrap_or_default();
        to.send(&mut self.stream).await;
        ended
    }

    /// A call of the model, under an id of this host: models repeat theirs.
    fn planned(&self, call: ModelCall) -> Planned {
        let is_offered = self.offered.contains(&call.name);
        let unknown = "The model was offered no tool of this name.";
        let runs = if is_offered {
            self.own.runs(&call.name)
        } else {
            ClientRuns::Nothing
        };
        let namespace = self.namespaces.get(&call.name);
        let namespace = namespace.map(|it| ("namespace".to_owned(), json!(it)));
        Planned {
            refused: (!is_offered).then(|| Fault::new(Kind::ToolNotFoundError, unknown)),
            client_runs: runs,
            call: ToolCall {
                name: call.name,
                arguments: call.arguments,
                passed_on: namespace.into_iter().collect(),
                ..ToolCall::default()
            },
        }
    }
}

/// The calls of a turn of the model, as they run.
struct Turn {
    speakers: Speakers,
    telling: Telling,
}

impl Turn {
    /// Tells how its calls ended, until now.
    async fn break_off(mut self, reader: &Reader, stream: &mut Stream) {
        self.telling.leave(stream);
        while let Some((call, report)) = self.speakers.ended_unheard() {
            let ended = Ended {
                // Its parts were told to nobody.
                is_streamed: false,
                ..reader.read(report).await
            };
            self.telling.step(&call, Step::Begins, stream);
            self.telling.step(&call, Step::Ended(ended), stream);
        }
        let has_begun = |call: &str| !self.speakers.is_waiting(call);
        self.telling.break_off(has_begun, stream);
    }
}

/// What was said before a response.
#[derive(Default)]
struct Before {
    /// The items of the response that it continues, and its input.
    items: Vec<Value>,
    /// The memory of the former, and the secrets of their calls.
    charged: Option<Permit>,
    hides: Mask,
    /// The outputs of calls of the response that it continues.
    submitted: Vec<SubmittedOutput>,
}

async fn before(
    known: &KnownRequest,
    label: Option<&str>,
    request: &mut RunRequest,
) -> Result<Before, Refusal> {
    let mut before = Before::default();
    let input = match request.input.take() {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) => items,
        _ => {
            return Err(Refusal::malformed(
                "input: must be a text or a list of items.",
            ));
        }
    };
    if let Some(id) = &request.previous_response_id {
        let background = &known.server.background;
        let owner = background.owner(&known.caller, label)?;
        let said = said(background, &owner, id).await;
        let said = said.map_err(Refusal::unreadable)?;
        let limiter = &known.server.service.limiter;
        before.charged = Some(limiter.keep_text(&known.caller.user, said.weight())?);
        before.hides = lock(&said.0.hides).clone();
        before.items = said.items();
        before.submitted = submitted(&before.items, &input).map_err(Refusal::unreadable)?;
    }
    before.items.extend(input);
    if before.items.is_empty() {
        return Err(Refusal::malformed("input: must say something."));
    }
    Ok(before)
}

fn chat_tools(tools: &[Arc<Tool>], names: &Names) -> Vec<Value> {
    match export::tools(tools, names, Format::OpenAi) {
        Value::Array(tools) => tools,
        _ => Vec::new(),
    }
}

/// The name of a tool that the model is offered.
fn chat_name(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// This host's tools in `tools`. What this host would not do as it is asked is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTools {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    server_label: String,
    allowed_tools: Option<Allowed>,
    require_approval: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Allowed {
    Names(Vec<String>),
    Filter(Filter),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    tool_names: Vec<String>,
}

impl HostTools {
    fn is_ours(&self) -> bool {
        let approval = self.require_approval.as_deref().unwrap_or("never");
        self.server_label == LABEL && approval == "never"
    }
}

/// The interpreter of the Responses API, which is a tool of this host. Its code has no container: what
/// a client asks of one is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeInterpreter {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(rename = "container")]
    _container: Option<Container>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum Container {
    Auto {
        #[serde(rename = "file_ids")]
        _file_ids: Option<[IgnoredAny; 0]>,
    },
}

/// A tool of this host, as an entry of `tools` names it.
struct Asked {
    /// The place of the entry.
    at: usize,
    name: String,
}

/// What the `tools` of a request ask for.
#[derive(Default)]
struct Narrowed {
    /// The tools of this host that entries name. `None`: no entry has names.
    only: Option<Vec<Asked>>,
    /// An entry without names asks for all of them.
    all: bool,
    /// The tools that the request brings.
    brought: Vec<Value>,
    /// The namespaces of those that have one, by the names of the tools.
    namespaces: HashMap<String, String>,
}

/// Tools that belong together. A model of Chat Completions is offered each by itself.
#[derive(Deserialize)]
struct Namespace {
    name: String,
    tools: Vec<Value>,
}

/// Whatever else another host found is for that host.
fn is_found(tool: &Value) -> bool {
    let kinds = ["function", "custom", "namespace"];
    kinds.iter().any(|kind| tool["type"] == *kind)
}

impl Narrowed {
    fn read(tools: &[Value]) -> Result<Narrowed, Refusal> {
        let mut narrowed = Narrowed::default();
        for (at, tool) in tools.iter().enumerate() {
            match tool["type"].as_str() {
                Some("mcp") => {
                    let read = HostTools::deserialize(tool).ok();
                    let Some(host) = read.filter(HostTools::is_ours) else {
                        return Err(Refusal::malformed(format!(
                            "tools[{at}]: the one MCP server here is {{\"type\": \"mcp\", \"server_label\": \
                             \"{LABEL}\"}}, with allowed_tools, a list of names, to narrow its tools, \
                             and require_approval \"never\" or none; other members are unknown."
                        )));
                    };
                    match host.allowed_tools {
                        Some(
                            Allowed::Names(names) | Allowed::Filter(Filter { tool_names: names }),
                        ) => narrowed.add(at, names)?,
                        None => narrowed.all = true,
                    }
                }
                Some("code_interpreter") if CodeInterpreter::deserialize(tool).is_ok() => {
                    narrowed.add(at, vec![RUN_CODE.to_owned()])?;
                }
                Some("code_interpreter") => {
                    return Err(Refusal::malformed(format!(
                        "tools[{at}]: code_interpreter is {RUN_CODE} here, whose calls have no container: \
                         {{\"type\": \"auto\"}}, and no other member, is taken as one; files come \
                         with a message as data: URLs, and limits are the operator's."
                    )));
                }
                Some("namespace") => {
                    let read = Namespace::deserialize(tool).map_err(|_| {
                        let words = "a namespace has a name and tools";
                        Refusal::malformed(format!("tools[{at}]: {words}."))
                    });
                    narrowed.add_namespace(read?);
                }
                // All tools are offered at once.
                Some("tool_search") if tool["execution"] != "client" => {}
                Some("programmatic_tool_calling") => {
                    return Err(Refusal::malformed(format!(
                        "tools[{at}]: the model writes no such programs; code that calls tools of \
                         this host is {{\"type\": \"code_interpreter\"}}."
                    )));
                }
                _ => narrowed.brought.push(tool.clone()),
            }
        }
        Ok(narrowed)
    }

    fn add_namespace(&mut self, namespace: Namespace) {
        for tool in namespace.tools {
            let name = OwnTools::name_of(&tool).to_owned();
            self.namespaces.insert(name, namespace.name.clone());
            self.brought.push(tool);
        }
    }

    /// Adds the tools that the searches among these items found and that are not there yet.
    fn add_found(&mut self, items: &[Value], taken: &Names) -> Result<(), Refusal> {
        let outputs = items.iter().filter(|it| it["type"] == "tool_search_output");
        let mut count = 0;
        let there = self.brought.iter().map(OwnTools::name_of);
        let mut there: HashSet<String> = there.map(str::to_owned).collect();
        for output in outputs {
            let tools = output["tools"].as_array().into_iter().flatten();
            let tools: Vec<&Value> = tools.filter(|it| is_found(it)).collect();
            let inner = tools.iter().filter_map(|it| it["tools"].as_array());
            count += tools.len() + inner.map(Vec::len).sum::<usize>();
            if count > MAX_NAMES {
                let words = format!("input: its searches found more than {MAX_NAMES} tools.");
                return Err(Refusal::malformed(words));
            }
            let tools: Vec<Value> = tools.into_iter().cloned().collect();
            let found = Narrowed::read(&tools)?;
            for tool in found.brought {
                let name = OwnTools::name_of(&tool).to_owned();
                if taken.id(&name).is_none() && there.insert(name.clone()) {
                    if let Some(namespace) = found.namespaces.get(&name) {
                        self.namespaces.insert(name, namespace.clone());
                    }
                    self.brought.push(tool);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, at: usize, names: Vec<String>) -> Result<(), Refusal> {
        if names.len() > MAX_NAMES {
            let words = format!("tools[{at}]: allowed_tools has more than {MAX_NAMES} names.");
            return Err(Refusal::malformed(words));
        }
        let asked = names.into_iter().map(|name| Asked { at, name });
        self.only.get_or_insert_default().extend(asked);
        Ok(())
    }

    /// The offered tools of this host, as far as they are asked for.
    fn of(&self, offered: &OfferedTools) -> Result<Vec<Arc<Tool>>, Refusal> {
        let mut asked = Vec::new();
        for Asked { at, name } in self.only.iter().flatten() {
            let found = offered.find(name).ok_or_else(|| {
                let name = text::printable(&text::head(name, 80));
                Refusal::malformed(format!(
                    "tools[{at}]: you are not offered '{name}'. GET /v1/tools has what you are \
                     offered; a policy must name a builtin tool."
                ))
            })?;
            asked.push(&found.manifest.id);
        }
        let mut tools = offered.tools.clone();
        if self.only.is_some() && !self.all {
            tools.retain(|tool| asked.contains(&&tool.manifest.id));
        }
        Ok(tools)
    }
}

/// Whose responses a request is about. `as`: for whom.
async fn found(known: &KnownRequest, id: &str, uri: &Uri) -> Result<Arc<StoredResponse>, Refusal> {
    let label = parameter(uri, "as");
    let background = &known.server.background;
    let owner = background.owner(&known.caller, label.as_deref())?;
    let found = stored::find(background, &owner, id).await;
    found.map_err(|fault| known.refusal(fault))?.ok_or_else(|| {
        let words = "This response is unknown: it was not stored, or is gone.";
        Refusal::new(StatusCode::NOT_FOUND, malformed(words))
    })
}

/// `GET /v1/responses/{response}`; with `stream=true` its events, from the one after
/// `starting_after` on.
pub async fn one(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let stored = found(&known, &id, &uri).await?;
    if parameter(&uri, "stream").as_deref() != Some("true") {
        return Ok(reply::json_text(stored::response(&stored)));
    }
    let from = match parameter(&uri, "starting_after") {
        None => 0,
        Some(number) => number
            .parse::<usize>()
            .map_or(usize::MAX, |last| last.saturating_add(1)),
    };
    if from == usize::MAX {
        return Err(Refusal::malformed(
            "starting_after must be a sequence_number.",
        ));
    }
    // A client that knows of more lost them with the host, and reads the end.
    let count = stored.count();
    let is_lost = from > count && stored.ended().is_some();
    let from = if is_lost {
        count.saturating_sub(1)
    } else {
        from.min(count)
    };
    Ok(replayed(&stored, from))
}

/// `GET /v1/responses/{response}/input_items`: what its model heard before it, the newest first; with
/// `order=asc` the oldest.
pub async fn input_items(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let stored = found(&known, &id, &uri).await?;
    let limiter = &known.server.service.limiter;
    let room = limiter.keep_text(&known.caller.user, json::weight(&stored.items))?;
    let mut items: Vec<Value> = serde_json::from_str(&stored.items).unwrap_or_default();
    if parameter(&uri, "order").as_deref() != Some("asc") {
        items.reverse();
    }
    let ids = [items.first(), items.last()].map(|item| item.map(|item| item["id"].clone()));
    let list = json!({"object": "list", "data": items, "first_id": ids[0], "last_id": ids[1],
        "has_more": false});
    drop(room);
    Ok(reply::json(StatusCode::OK, &list))
}

/// The events of a stored response, from this one on.
fn replayed(stored: &Arc<StoredResponse>, from: usize) -> Response {
    let stored = Arc::downgrade(stored);
    reply::events(async move |to| replay(stored, from, &to).await)
}

/// `POST /v1/responses/{response}/cancel`.
pub async fn cancel(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let stored = found(&known, &id, &uri).await?;
    stored.stop(output::cancelled());
    Ok(reply::json_text(stored::ended(&stored).await))
}

/// `DELETE /v1/responses/{response}`.
pub async fn delete(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let stored = found(&known, &id, &uri).await?;
    stored.stop(output::cancelled());
    drop(stored::ended(&stored).await);
    let deleted = known.server.background.delete_response(id.clone()).await;
    deleted.map_err(|fault| known.refusal(fault))?;
    let deleted = json!({"id": id, "object": "response", "deleted": true});
    Ok(reply::json(StatusCode::OK, &deleted))
}
