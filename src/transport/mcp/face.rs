//! The face: MCP's requests, answered for one client, whichever way they come.
//!
//! For: stdio and HTTP. In: what rmcp has read. Out: the tools of a caller; results of `Service::call`. Never: another road
//! to a tool; a call that outlives the client who asked for it.
#![allow(deprecated, reason = "levels of messages are deprecated, and clients of both eras set them")]

use super::asked::{self, Asked};
use super::asking::{self, Back, Bound};
use super::offered::Offered;
use super::open::Open;
use super::person::Person;
use super::telling::Telling;
use super::{Client, KEY, LABEL, Mcp, documents, message, results, tasks, telling};
use crate::base::lock;
use crate::fault;
use crate::manifest::TaskUse;
use crate::policy::Ask;
use crate::service::{Approver, Arguments, CallRequest, Caller, Report, Sink, shapes};
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, ClientCapabilities, CreateTaskResult, CustomRequest,
    CustomResult, ErrorCode, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult,
    Implementation, InputRequiredResult, InputResponses, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ResourceUpdatedNotificationParam, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, SubscriptionContext};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// Events that may wait for a slow client.
const WAITING: usize = 16;

/// Addresses of which one older client hears, and the longest, bytes.
const SUBSCRIBED: usize = 100;
const LONGEST: usize = 1024;

/// The state and the answers that a client brings back.
type Again = (Option<String>, Option<InputResponses>);

/// What a call led to.
enum Answered {
    Report(Box<Report>),
    Asks(InputRequiredResult),
}

pub struct Face {
    mcp: Arc<Mcp>,
    client: Client,
    /// The connection or session ends.
    closing: CancellationToken,
    /// Open requests of a connection of lines.
    open: Open,
    /// The least grave messages that an older client wants.
    level: Mutex<LoggingLevel>,
    /// Of which resources it hears.
    subscribed: Arc<Mutex<BTreeSet<String>>>,
    /// It is told of changes.
    hears: AtomicBool,
}

impl Face {
    pub fn new(mcp: Arc<Mcp>, client: Client, closing: CancellationToken, open: Open) -> Face {
        let (level, subscribed) = (Mutex::new(LoggingLevel::Info), Arc::default());
        Face { mcp, client, closing, open, level, subscribed, hears: AtomicBool::new(false) }
    }

    /// Who asks: over HTTP each request proves it anew.
    fn caller(&self, context: &RequestContext<RoleServer>) -> Caller {
        asked::of(context).map_or_else(|| self.client.caller.clone(), |asked| asked.caller.clone())
    }

    /// The tools of this request's caller.
    fn offered(&self, context: &RequestContext<RoleServer>) -> Arc<Offered> {
        self.offered_to(self.caller(context), self.label(context).as_deref())
    }

    fn offered_to(&self, caller: Caller, label: Option<&str>) -> Arc<Offered> {
        self.mcp.lists.of(&self.mcp.service, self.mcp.service.who(&caller, label))
    }

    /// A request that leads to no tool leaves its record like every call.
    async fn refused(&self, context: &RequestContext<RoleServer>, name: &str, fault: fault::Fault) {
        let request = CallRequest::refused(self.caller(context), name, fault);
        drop(self.mcp.service.call(CallRequest { label: self.label(context), ..request }, Sink::none()).await);
    }

    /// On whose behalf a request comes.
    fn label(&self, context: &RequestContext<RoleServer>) -> Option<String> {
        let said = context.meta.get(LABEL).and_then(Value::as_str);
        said.map(str::to_owned).or_else(|| self.client.label.clone())
    }

    /// An unknown name is a protocol error, and leaves its record like every refusal.
    async fn unknown(&self, context: &RequestContext<RoleServer>, name: &str, offered: &Offered) -> ErrorData {
        let shown = crate::base::text::printable(&name.chars().take(100).collect::<String>());
        let mut words = format!("Unknown tool: {shown}.");
        let hidden = |near: &&str| offered.tool(near).is_none();
        if let Some(near) = offered.names.nearest(name).filter(|near| !hidden(near)) {
            words.push_str(&format!(" Did you mean {near}?"));
        }
        let fault = fault::Fault::new(fault::Kind::ToolNotFoundError, words.clone());
        self.refused(context, name, fault).await;
        ErrorData::invalid_params(words, None)
    }

    /// The arguments as they came, where they were kept apart from the message.
    fn arguments(&self, context: &RequestContext<RoleServer>) -> Option<String> {
        match asked::of(context) {
            Some(asked) => asked.arguments(),
            None => self.open.arguments(&context.id),
        }
    }

    /// Runs a call, again with each round of answers where an older client is asked at once. Ends with its client.
    async fn answer(
        &self,
        context: &RequestContext<RoleServer>,
        id: &str,
        arguments: Arguments,
        again: Again,
    ) -> Result<Answered, ErrorData> {
        let (caller, label) = (self.caller(context), self.label(context));
        let idempotency_key = context.meta.get(KEY).and_then(Value::as_str).map(str::to_owned);
        let can = asking::can(context);
        // Only what may ask is asked back.
        let asks = again.0.is_some() || !can.is_empty();
        let bound = if asks { Bound::to(&self.user(context), id, &arguments.same()) } else { Bound::default() };
        let Back { answers, state, given } = self.mcp.seal.opened(&bound, again.0.as_deref(), again.1)?;
        let person = can
            .contains(&Ask::Elicitation)
            .then(|| Arc::new(Person::of(context, self.caller(context), (&self.mcp.questions, given))));
        let approver = self.approver(context, person.as_ref());
        let client = shapes::Client { can, answers, state };
        let trace = asked::trace(context);
        let call = CallRequest::new(caller, id, arguments);
        let call = CallRequest { label, idempotency_key, client, approver, trace, ..call };
        let left = asked::of(context).map_or_else(CancellationToken::new, Asked::left);
        // rmcp only sets a token; dropping the future is what cancels, kills, reaps and records.
        tokio::select! {
            // Polled first: a call leaves its record, also if it is cancelled at once.
            biased; // The rounds are boxed, because rmcp moves the futures of requests.
            answer = Box::pin(self.rounds(context, call, &bound, person.as_deref())) => answer,
            () = context.ct.cancelled() => Err(ErrorData::internal_error("The call was cancelled.", None)),
            () = left.cancelled() => Err(ErrorData::internal_error("The client has left.", None)),
            () = self.closing.cancelled() => Err(ErrorData::internal_error("The server is closing.", None)),
        }
    }

    async fn rounds(
        &self,
        context: &RequestContext<RoleServer>,
        mut call: CallRequest,
        bound: &Bound,
        person: Option<&Person>,
    ) -> Result<Answered, ErrorData> {
        let modern = context.meta.protocol_version().is_some();
        for _ in 0..asking::ROUNDS {
            let (tool, client) = (call.tool.clone(), call.client.clone());
            let again = (!modern && !client.can.is_empty()).then(|| call.clone());
            let (sink, events) = Sink::new(WAITING);
            let telling = Telling::of(context, &tool, *lock(&self.level)).all(events);
            let mut report = tokio::join!(self.mcp.service.call(call, sink), telling).0;
            if let Some(question) = person.and_then(Person::asked) {
                return self.mcp.seal.confirms(bound, question, client).map(Answered::Asks);
            }
            let questions = match report.asks.take() {
                Some(questions) if report.error.is_none() => questions,
                Some(questions) if modern => return Err(asking::lacking(&questions, &client)),
                _ => return Ok(Answered::Report(Box::new(report))),
            };
            let Some(again) = again else {
                return self.mcp.seal.asks(bound, &tool, questions).map(Answered::Asks);
            };
            call = again;
            // The arguments take memory while the client is asked.
            let _held = report.asks_on();
            (call.client.answers, call.client.state) = asking::at_once(context, &tool, questions).await?;
        }
        Err(ErrorData::internal_error("The tool asked too often.", None))
    }

    fn approver(&self, context: &RequestContext<RoleServer>, person: Option<&Arc<Person>>) -> Approver {
        let or = asked::of(context).map_or(Approver::Nobody, |asked| asked.approver.clone());
        match person {
            Some(person) => Approver::Client { face: person.clone(), or: Box::new(or) },
            None => or,
        }
    }

    /// Who the request counts as.
    fn user(&self, context: &RequestContext<RoleServer>) -> String {
        self.mcp.service.who(&self.caller(context), self.label(context).as_deref()).user
    }

    /// Begins a call that the client asks after.
    fn begun(
        &self,
        context: &RequestContext<RoleServer>,
        id: &str,
        arguments: Arguments,
    ) -> Result<CallToolResponse, ErrorData> {
        let (label, client) = (self.label(context), shapes::Client { can: asking::can(context), ..Default::default() });
        let idempotency_key = context.meta.get(KEY).and_then(Value::as_str).map(str::to_owned);
        let approver = self.approver(context, None);
        let trace = asked::trace(context);
        let call = CallRequest::new(self.caller(context), id, arguments);
        let call = CallRequest { label, idempotency_key, client, approver, trace, ..call };
        let task = tasks::begin(&self.mcp, &self.user(context), call, self.closing.clone())?;
        Ok(CreateTaskResult::new(task).into())
    }

    /// Keeps what is written into the answer when it is sent.
    fn answered(&self, context: &RequestContext<RoleServer>, answer: results::Answer) {
        match asked::of(context) {
            Some(asked) => asked.answered(answer),
            None => self.open.answered(&context.id, answer),
        }
    }
}

impl ServerHandler for Face {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_logging()
            .enable_completions()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .enable_tasks()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("toolhost", env!("CARGO_PKG_VERSION")).with_title("toolhost"))
            .with_instructions(
                "Tools run in a sandbox: each reads and writes only what its manifest asks for and the operator's \
                 policy allows. A failed call says what kind of error it was and what to do about it.",
            )
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.offered_to(self.client.caller.clone(), self.client.label.as_deref()).tool(name).cloned()
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.offered(&context).page(request)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // Arguments that were not cut out of the message stand in it.
        let arguments = match self.arguments(&context) {
            Some(text) => Arguments::Text(text),
            None => Arguments::Value(Value::Object(request.arguments.unwrap_or_default())),
        };
        let offered = self.offered(&context);
        let id = match offered.names.id(&request.name) {
            Some(id) => id,
            // Who may call what is not known: the call is told so.
            None if self.mcp.service.ready().is_err() => &request.name,
            None => return Err(self.unknown(&context, &request.name, &offered).await),
        };
        let again = (request.request_state, request.input_responses);
        if let Some(used) = self.mcp.task_use(id) {
            let can = context.client_capabilities().is_some_and(|client| client.supports_tasks());
            match (can, used) {
                (true, _) => return self.begun(&context, id, arguments),
                (false, TaskUse::Required) => {
                    let tasks = ClientCapabilities::builder().enable_tasks().build();
                    return Err(ErrorData::missing_required_client_capability(tasks));
                }
                (false, TaskUse::Optional) => {}
            }
        }
        Ok(match self.answer(&context, id, arguments, again).await? {
            Answered::Asks(result) => result.into(),
            Answered::Report(report) => {
                let (result, answer) = results::result(*report);
                answer.into_iter().for_each(|answer| self.answered(&context, answer));
                result.into()
            }
        })
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let manager = self.mcp.tasks.of(&self.user(&context), &request.task_id)?;
        manager.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let manager = self.mcp.tasks.of(&self.user(&context), &request.task_id)?;
        manager.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.mcp.tasks.of(&self.user(&context), &request.task_id)?.cancel_task(&request.task_id)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(self.offered(&context).documents.prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let offered = self.offered(&context);
        let id = offered.names.id(&request.name).filter(|_| offered.documents.has_prompt(&request.name));
        let unknown = || ErrorData::invalid_params("Unknown prompt.", None);
        let arguments = Arguments::Value(Value::Object(request.arguments.unwrap_or_default().into_iter().collect()));
        let again = (request.request_state, request.input_responses);
        match self.answer(&context, id.ok_or_else(unknown)?, arguments, again).await? {
            Answered::Asks(result) => Ok(result.into()),
            Answered::Report(report) if report.error.is_some() => Err(documents::failed(&report)),
            Answered::Report(report) => documents::told(&report).map(Into::into),
        }
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(self.offered(&context).documents.resources())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(self.offered(&context).documents.templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let offered = self.offered(&context);
        let Some((id, arguments)) = offered.documents.resource(&request.uri) else {
            return Err(documents::missing(&request.uri));
        };
        let again = (request.request_state, request.input_responses);
        match self.answer(&context, id, Arguments::Value(arguments), again).await? {
            Answered::Report(report) if report.error.is_none() => documents::content(&report).map(Into::into),
            Answered::Report(report) => Err(documents::failed(&report)),
            Answered::Asks(result) => Ok(result.into()),
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if request.uri.len() > LONGEST || self.offered(&context).documents.resource(&request.uri).is_none() {
            return Err(documents::missing(&request.uri));
        }
        let mut subscribed = lock(&self.subscribed);
        if subscribed.len() >= SUBSCRIBED {
            return Err(ErrorData::invalid_params("Too many subscriptions.", None));
        }
        subscribed.insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        lock(&self.subscribed).remove(&request.uri);
        Ok(())
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        *lock(&self.level) = request.level;
        Ok(())
    }

    /// A client of an era without subscriptions hears of every change.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if self.hears.swap(true, Ordering::Relaxed) {
            return;
        }
        let (mut changes, closing, peer) = (self.mcp.service.changes(), self.closing.clone(), context.peer);
        let subscribed = self.subscribed.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = closing.cancelled() => return,
                    changed = changes.changed() => if changed.is_err() { return },
                }
                let lists = [
                    peer.notify_tool_list_changed().await,
                    peer.notify_prompt_list_changed().await,
                    peer.notify_resource_list_changed().await,
                ];
                let all: Vec<String> = lock(&subscribed).iter().cloned().collect();
                for uri in all {
                    let _ = peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await;
                }
                if lists.iter().any(Result::is_err) {
                    return;
                }
            }
        });
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.mcp.service.changes();
        let left = asked::of(context.request_context()).map_or_else(CancellationToken::new, Asked::left);
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                () = left.cancelled() => return Ok(()),
                () = self.closing.cancelled() => return Ok(()),
                changed = changes.changed() => if changed.is_err() || telling::changed(&context).await.is_err() { return Ok(()) },
            }
        }
    }

    /// What rmcp could not read as one of its requests.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        drop(self.arguments(&context));
        let CustomRequest { method, params, .. } = request;
        let modern = context.meta.protocol_version().is_some();
        let Some(words) = message::wrong(&method, params.as_ref(), modern) else {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None));
        };
        if method == "tools/call" {
            let name = params.as_ref().and_then(|params| params["name"].as_str()).unwrap_or_default();
            let fault = fault::Fault::new(fault::Kind::ParameterValidationError, words.clone());
            self.refused(&context, name, fault).await;
        }
        Err(ErrorData::invalid_params(words, None))
    }
}
