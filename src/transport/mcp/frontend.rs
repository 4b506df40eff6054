//! Answers the MCP requests of one client, over HTTP or standard input and output.
#![allow(
    deprecated,
    reason = "levels of messages are deprecated, and clients of both eras set them"
)]

use super::asking::{self, OpenQuestions, Person, Seal, SealedState};
use super::listed::{self, ListStyle, ToolList, ToolLists};
use super::request::McpRequest;
use super::skills::{self, Skills};
use super::tasks::Tasks;
use super::{message, results};
use crate::base::semaphore::Permit;
use crate::base::{lock, text};
use crate::executor::SCHEME;
use crate::executor::{CallDeadline, Level, Progress};
use crate::fault::{Fault, Kind};
use crate::manifest::TaskUse;
use crate::registry;
use crate::service::background::{Background, EndReport};
use crate::service::search::named_call;
use crate::service::{
    Approver, Arguments, CallRequest, CallResult, Caller, Charged, Event, Report, Service, Sink,
    output,
};
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
    ContentBlock, CreateTaskResult, CustomRequest, CustomResult, ErrorCode, ErrorData,
    GetPromptRequestParams, GetPromptResponse, GetSkillRequestParams, GetSkillResult,
    GetTaskParams, GetTaskResult, Implementation, InputRequiredResult, InputResponses,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListSkillsResult,
    ListToolsResult, LoggingLevel, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ReadResourceDirectoryRequestParams,
    ReadResourceDirectoryResult, ReadResourceRequestParams, ReadResourceResponse,
    ResourceUpdatedNotificationParam, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{
    NotificationContext, Peer, RequestContext, RoleServer, SubscriptionContext,
    SubscriptionSendError,
};
use rmcp::task_manager::TaskManager;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

tokio::task_local! {
    /// The caller of the HTTP request that rmcp is handling.
    pub static CALLER: Caller;
}

/// Events that may wait for a slow client.
const EVENT_QUEUE: usize = 16;
/// Most resources that an older client subscribes to, and the longest address, bytes.
const MAX_SUBSCRIPTIONS: usize = 100;
const MAX_URI_BYTES: usize = 1024;

/// The state and the answers that a client brings back.
type ClientReply = (Option<String>, Option<InputResponses>);

/// What all clients of one server share.
pub struct Mcp {
    pub service: Arc<Service>,
    lists: Arc<ToolLists>,
    seal: Seal,
    /// Questions to the persons of clients that make a call again with the answer.
    questions: Arc<OpenQuestions>,
    tasks: Tasks,
    /// `None`: every client waits for its calls.
    background: Option<Arc<Background>>,
}

impl Mcp {
    pub fn new(
        service: Arc<Service>,
        background: Option<Arc<Background>>,
        style: ListStyle,
    ) -> Arc<Mcp> {
        Arc::new(Mcp {
            background,
            lists: Arc::new(ToolLists::new(style)),
            seal: Seal::new(),
            questions: Arc::new(OpenQuestions::new(service.limiter.clone())),
            tasks: Tasks::default(),
            service,
        })
    }

    /// A tool whose clients need not wait for its calls. If a person must agree to them, they do.
    async fn unattended(&self, call: &CallRequest) -> Option<Arc<registry::Tool>> {
        let catalog = &self.service.catalog;
        let tool = catalog.registry.snapshot().find(&call.tool).ok()?;
        let execution = &tool.manifest.execution;
        if execution.task.is_none() && !execution.asynchronous {
            return None;
        }
        let until = CallDeadline::usual(&call.caller.user, None);
        let confirms = catalog.confirms(&tool, &until).await;
        confirms.is_ok_and(|confirms| !confirms).then_some(tool)
    }
}

/// What a call led to.
enum Answered {
    Report(Box<Report>),
    Asks(InputRequiredResult),
}

/// One session over HTTP, one request of a newer client, or one connection.
pub struct Frontend {
    mcp: Arc<Mcp>,
    /// Cancelled when the server or the connection ends.
    closing: CancellationToken,
    /// Cancelled when this is dropped, because the connection or session ends.
    ended: CancellationToken,
    _ends: DropGuard,
    /// The lowest level of messages that an older client wants.
    level: Mutex<LoggingLevel>,
    /// The resources that an older client has subscribed to.
    subscribed: Arc<Mutex<BTreeSet<String>>>,
    /// Whether an older client gets notifications of changes.
    notifies: AtomicBool,
}

impl Frontend {
    pub fn new(mcp: Arc<Mcp>, closing: &CancellationToken) -> Frontend {
        let level = Mutex::new(LoggingLevel::Info);
        let subscribed = Arc::default();
        let (closing, ended) = (closing.clone(), closing.child_token());
        let ends = ended.clone().drop_guard();
        let notifies = AtomicBool::new(false);
        Frontend {
            mcp,
            closing,
            ended,
            _ends: ends,
            level,
            subscribed,
            notifies,
        }
    }

    /// The tools of this request's caller.
    fn offered(&self, context: &RequestContext<RoleServer>) -> Result<Arc<ToolList>, ErrorData> {
        let caller = self.who(McpRequest::find(context)?, context)?;
        Ok(self.mcp.lists.find(&self.mcp.service, &caller))
    }

    /// Like `offered`, for a request that leads to a call: if it cannot be read, that is recorded.
    async fn offered_for_call(
        &self,
        context: &RequestContext<RoleServer>,
        name: &str,
    ) -> Result<Arc<ToolList>, ErrorData> {
        match self.offered(context) {
            Err(error) => Err(self.invalid(context, name, error).await),
            offered => offered,
        }
    }

    /// Records a request that leads to no tool.
    async fn refused(&self, context: &RequestContext<RoleServer>, name: &str, fault: Fault) {
        let Ok(asked) = McpRequest::find(context) else {
            return;
        };
        let request = CallRequest::refused(asked.caller.clone(), name, fault);
        let label = asked.label(context).unwrap_or_default();
        let request = CallRequest {
            label,
            charged: asked.rate.into(),
            ..request
        };
        drop(self.mcp.service.call(request, Sink::none()).await);
    }

    /// Has the skills of this request's caller answer it, on another thread.
    async fn of_skills<T: Serialize + Send + 'static>(
        &self,
        context: &RequestContext<RoleServer>,
        answer: impl FnOnce(&Skills) -> Result<T, ErrorData> + Send + 'static,
    ) -> Result<T, ErrorData> {
        let asked = McpRequest::find(context)?;
        let caller = self.who(asked, context)?;
        let user = asked.caller.user.clone();
        let service = self.mcp.service.clone();
        let readers = service.limiter.readers.clone();
        let answer = readers.run(&user, move || answer(&Skills::of(&service, &caller)?));
        let answer = answer.await.map_err(|e| {
            ErrorData::internal_error(format!("The skills were not read: {e}"), None)
        })??;
        asked.charge(answer)
    }

    async fn read_artifact(
        &self,
        context: &RequestContext<RoleServer>,
        id: &str,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let asked = McpRequest::find(context)?;
        let label = asked.label(context)?;
        let caller = asked.caller.clone();
        let user = caller.user.clone();
        let service = self.mcp.service.clone();
        let readers = service.limiter.readers.clone();
        let id = id.to_owned();
        let content = readers.run(&user, move || {
            let uri = format!("{SCHEME}{id}");
            listed::artifact(&uri, service.artifact(&caller, label.as_deref(), &id))
        });
        let content = content.await.map_err(|e| {
            ErrorData::internal_error(format!("The artifact was not read: {e}"), None)
        })??;
        asked.charge(content).map(Into::into)
    }

    /// Records a request whose parameters are wrong. Returns its error.
    async fn invalid(
        &self,
        context: &RequestContext<RoleServer>,
        name: &str,
        error: ErrorData,
    ) -> ErrorData {
        let fault = Fault::new(Kind::ParameterValidationError, error.message.clone());
        self.refused(context, name, fault).await;
        error
    }

    /// An unknown name is a protocol error, and leaves its record like every refusal.
    async fn unknown(
        &self,
        context: &RequestContext<RoleServer>,
        name: &str,
        offered: &ToolList,
    ) -> ErrorData {
        let mut words = format!("Unknown tool: {}.", text::printable(&text::head(name, 100)));
        if let Some(near) = offered
            .names
            .nearest(name)
            .filter(|near| offered.tool(near).is_some())
        {
            words.push_str(&format!(" Did you mean {near}?"));
        }
        let fault = Fault::new(Kind::ToolNotFoundError, words.clone());
        self.refused(context, name, fault).await;
        ErrorData::invalid_params(words, None)
    }

    /// Runs a call, again with each round of answers if an older client is asked meanwhile. Ends
    /// with its client.
    async fn answer(
        &self,
        context: &RequestContext<RoleServer>,
        call: CallRequest,
        again: ClientReply,
    ) -> Result<Answered, ErrorData> {
        let asked = McpRequest::find(context)?;
        let id = &*call.tool.clone();
        let who = self.who(asked, context)?;
        let is_askable = asking::is_askable(context);
        // Only a call that may ask can come back with answers.
        let asks = again.0.is_some() || is_askable;
        let bound = if asks {
            asking::bind(&who.user, id, &call.arguments.canonical_text())
        } else {
            Vec::new()
        };
        let SealedState {
            answers,
            state,
            person,
        } = match self.mcp.seal.open(&bound, again.0.as_deref(), again.1) {
            Ok(opened) => opened,
            Err(error) => return Err(self.invalid(context, id, error).await),
        };
        let waiting_client = context
            .meta
            .protocol_version()
            .is_none()
            .then(|| (context.peer.clone(), context.id.clone()));
        let open = self.mcp.questions.clone();
        let operator = who.operator;
        let person = Person {
            operator,
            waiting_client,
            open,
            answer: person.into(),
            question: Mutex::default(),
        };
        let person = is_askable.then(|| Arc::new(person));
        let client = output::AskableClient {
            is_askable,
            answers,
            state,
        };
        let call = match asked.complete(context, call) {
            Ok(call) => call,
            Err(error) => return Err(self.invalid(context, id, error).await),
        };
        let approver = approver(asked, person.as_ref());
        let call = CallRequest {
            client,
            approver,
            ..call
        };
        // rmcp only sets a token; dropping the future is what kills the call and records it.
        tokio::select! {
            // Polled first: a call leaves its record, also if it is cancelled at once.
            biased; // The rounds are boxed, because rmcp moves the futures of requests.
            answer = Box::pin(self.rounds(context, call, &bound, person.as_deref())) => answer,
            over = self.over(context, asked) => Err(over),
        }
    }

    /// Returns once nobody waits for the answer.
    async fn over(&self, context: &RequestContext<RoleServer>, asked: &McpRequest) -> ErrorData {
        let words = tokio::select! {
            () = context.ct.cancelled() => "The call was cancelled.",
            () = asked.left.cancelled() => "The client has left.",
            () = self.closing.cancelled() => "The server is closing.",
        };
        ErrorData::internal_error(words, None)
    }

    async fn rounds(
        &self,
        context: &RequestContext<RoleServer>,
        mut call: CallRequest,
        bound: &[u8],
        person: Option<&Person>,
    ) -> Result<Answered, ErrorData> {
        let modern = context.meta.protocol_version().is_some();
        for _ in 0..asking::ROUNDS {
            let tool = call.tool.clone();
            let client = call.client.clone();
            let again = (!modern && client.is_askable).then(|| call.again());
            let (sink, events) = Sink::new(EVENT_QUEUE);
            let notified = Notifier::new(context, &tool, *lock(&self.level)).send_all(events);
            let mut report = tokio::join!(self.mcp.service.call(call, sink), notified).0;
            if let Some((person, form)) = person.and_then(Person::take_question) {
                let state = SealedState {
                    state: client.state,
                    answers: client.answers,
                    person: Some(person),
                };
                return self.mcp.seal.ask(bound, &state, form).map(Answered::Asks);
            }
            let questions = match std::mem::take(&mut report.outcome) {
                CallResult::Questions(questions) => questions,
                CallResult::Unaskable(..) if modern => {
                    return Err(asking::missing_capability());
                }
                other => {
                    report.outcome = other;
                    return Ok(Answered::Report(Box::new(report)));
                }
            };
            let Some(again) = again else {
                let state = SealedState {
                    state: questions.state,
                    ..SealedState::default()
                };
                return self
                    .mcp
                    .seal
                    .ask(bound, &state, asking::requests(&tool, questions.requests)?)
                    .map(Answered::Asks);
            };
            call = again;
            // The arguments take memory while the client is asked.
            let _held = report.release_slot_only();
            let open = self.mcp.service.confirmations.begin();
            let _open = open.map_err(|fault| ErrorData::internal_error(fault.message, None))?;
            (call.client.answers, call.client.state) =
                asking::ask_all(context, &tool, questions).await?;
        }
        Err(ErrorData::internal_error("The tool asked too often.", None))
    }

    /// Who the request counts as, and whether that is an operator.
    fn who(
        &self,
        asked: &McpRequest,
        context: &RequestContext<RoleServer>,
    ) -> Result<Caller, ErrorData> {
        Ok(self
            .mcp
            .service
            .catalog
            .who(&asked.caller, asked.label(context)?.as_deref()))
    }

    /// Begins a call as a task, which the client polls.
    fn begin_task(
        &self,
        context: &RequestContext<RoleServer>,
        call: CallRequest,
        kept: Permit,
    ) -> Result<CallToolResponse, ErrorData> {
        let asked = McpRequest::find(context)?;
        let client = output::AskableClient {
            is_askable: asking::is_askable(context),
            ..Default::default()
        };
        let call = asked.complete(context, call)?;
        let call = CallRequest {
            client,
            approver: approver(asked, None),
            ..call
        };
        let user = self.who(asked, context)?.user;
        let Mcp {
            service,
            lists,
            tasks,
            ..
        } = &*self.mcp;
        let host = (service.clone(), lists.clone());
        Ok(CreateTaskResult::new(tasks.begin(host, user, kept, call, self.closing.clone())).into())
    }

    /// The manager of a task, if the task is the caller's.
    fn tasks(
        &self,
        context: &RequestContext<RoleServer>,
        id: &str,
    ) -> Result<TaskManager, ErrorData> {
        self.mcp
            .tasks
            .find(&self.who(McpRequest::find(context)?, context)?.user, id)
    }
}

fn approver(asked: &McpRequest, person: Option<&Arc<Person>>) -> Approver {
    match person {
        Some(person) => Approver::Client {
            transport: person.clone(),
            or: Box::new(asked.approver.clone()),
        },
        None => asked.approver.clone(),
    }
}

impl ServerHandler for Frontend {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_logging()
            .enable_completions()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .enable_skills_with_directory_read()
            .enable_tasks()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("toolhost", env!("CARGO_PKG_VERSION")).with_title("toolhost"),
            )
            .with_instructions(
                "Tools run in a sandbox: each reads and writes only what its manifest asks for and \
                 the operator's policy allows. A failed call says what kind of error it was and \
                 what to do about it.",
            )
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let caller = CALLER
            .try_with(|caller| self.mcp.service.catalog.who(caller, None))
            .ok()?;
        self.mcp
            .lists
            .find(&self.mcp.service, &caller)
            .tool(name)
            .cloned()
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        McpRequest::find(&context)?.charge(self.offered(&context)?.page(request)?)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // Arguments that were not cut out of the message are still in it.
        let asked = McpRequest::find(&context)?;
        let (text, body) = lock(&asked.arguments).take().unzip();
        let arguments = match text {
            Some(text) => Arguments::Text(text),
            None => Arguments::Value(Value::Object(request.arguments.unwrap_or_default())),
        };
        let offered = self.offered_for_call(&context, &request.name).await?;
        let id = match offered.names.id(&request.name) {
            Some(id) => id,
            // The rules cannot be read: the call reports that.
            None if self.mcp.service.catalog.ready().is_err() => &request.name,
            None => return Err(self.unknown(&context, &request.name, &offered).await),
        };
        let charged = Charged {
            body: body.flatten(),
            ..Charged::default()
        };
        let mut call = CallRequest {
            charged,
            ..CallRequest::new(asked.caller.clone(), id, arguments)
        };
        named_call::unwrap(&mut call, &self.mcp.service.catalog).await;
        let id = &call.tool.clone();
        let again = (request.request_state, request.input_responses);
        let unattended = self.mcp.unattended(&call).await;
        let execution = unattended.as_ref().map(|tool| &tool.manifest.execution);
        if let Some(used) = execution.and_then(|execution| execution.task) {
            let can = context
                .client_capabilities()
                .is_some_and(|client| client.supports_tasks());
            if !can && used == TaskUse::Required {
                let tasks = ClientCapabilities::builder().enable_tasks().build();
                let error = ErrorData::missing_required_client_capability(tasks);
                return Err(self.invalid(&context, id, error).await);
            }
            // A client that has too many tasks waits for this call instead.
            let limiter = &self.mcp.service.limiter;
            if let Some(kept) = can
                .then(|| limiter.tasks.try_enter(&asked.caller.user, 1))
                .flatten()
            {
                return match self.begin_task(&context, call, kept) {
                    Err(error) => Err(self.invalid(&context, id, error).await),
                    begun => begun,
                };
            }
        }
        let background = self.mcp.background.as_ref();
        let background = background.filter(|_| execution.is_some_and(|it| it.asynchronous));
        let answered = match background {
            None => self.answer(&context, call, again).await?,
            Some(background) => {
                let call = match asked.complete(&context, call) {
                    Ok(call) => call,
                    Err(error) => return Err(self.invalid(&context, id, error).await),
                };
                match background.begin(call, EndReport::OnRequest).await {
                    Ok(receipt) => {
                        let words = output::accepted(id, &receipt.call.id);
                        let words = offered.names.in_text(&words);
                        return Ok(CallToolResult::success(vec![ContentBlock::text(words)]).into());
                    }
                    Err(report) => Answered::Report(Box::new(report)),
                }
            }
        };
        Ok(match answered {
            Answered::Asks(result) => result.into(),
            Answered::Report(mut report) => {
                offered.rename(&mut report);
                let (result, content) = tokio::select! {
                    result = results::result(*report) => result,
                    over = self.over(&context, asked) => return Err(over),
                };
                content
                    .into_iter()
                    .for_each(|content| asked.set_answer(content));
                result.into()
            }
        })
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let task = self
            .tasks(&context, &request.task_id)?
            .get_task(&request.task_id)?;
        McpRequest::find(&context)?.charge(GetTaskResult::new(task))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks(&context, &request.task_id)?
            .update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks(&context, &request.task_id)?
            .cancel_task(&request.task_id)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        McpRequest::find(&context)?.charge(self.offered(&context)?.documents.prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let offered = self.offered_for_call(&context, &request.name).await?;
        let id = offered
            .names
            .id(&request.name)
            .filter(|_| offered.documents.has_prompt(&request.name));
        let Some(id) = id else {
            let unknown = ErrorData::invalid_params("Unknown prompt.", None);
            return Err(self.invalid(&context, &request.name, unknown).await);
        };
        let arguments = Arguments::Value(Value::Object(
            request.arguments.unwrap_or_default().into_iter().collect(),
        ));
        let again = (request.request_state, request.input_responses);
        let caller = McpRequest::find(&context)?.caller.clone();
        let call = CallRequest::new(caller, id, arguments);
        match self.answer(&context, call, again).await? {
            Answered::Asks(result) => Ok(result.into()),
            Answered::Report(report) if !report.outcome.is_success() => {
                Err(listed::failed(&report))
            }
            Answered::Report(report) => McpRequest::find(&context)?
                .charge(listed::prompt(*report).await?)
                .map(Into::into),
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let asked = McpRequest::find(&context)?;
        let label = asked.label(&context)?;
        let caller = asked.caller.clone();
        let service = self.mcp.service.clone();
        let (readers, user) = (service.limiter.readers.clone(), caller.user.clone());
        let artifacts = readers.run(&user, move || {
            service.artifacts_of(&caller, label.as_deref())
        });
        let artifacts = artifacts.await.unwrap_or_default();
        let offered = self.offered(&context)?;
        asked.charge(offered.documents.resources(artifacts, request)?)
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        McpRequest::find(&context)?.charge(self.offered(&context)?.documents.templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if let Some(id) = request.uri.strip_prefix(SCHEME) {
            return self.read_artifact(&context, id).await;
        }
        if request.uri.starts_with(skills::SCHEME) {
            let uri = request.uri;
            let content = self.of_skills(&context, move |skills| skills.read(&uri));
            return content.await.map(Into::into);
        }
        let offered = self.offered_for_call(&context, &request.uri).await?;
        let Some((id, arguments)) = offered.documents.resource(&request.uri) else {
            return Err(self
                .invalid(&context, &request.uri, listed::missing(&request.uri))
                .await);
        };
        let again = (request.request_state, request.input_responses);
        let caller = McpRequest::find(&context)?.caller.clone();
        let call = CallRequest::new(caller, id, Arguments::Value(arguments));
        match self.answer(&context, call, again).await? {
            Answered::Report(report) if report.outcome.is_success() => McpRequest::find(&context)?
                .charge(listed::content(&report).await?)
                .map(Into::into),
            Answered::Report(report) => Err(listed::failed(&report)),
            Answered::Asks(result) => Ok(result.into()),
        }
    }

    async fn list_skills(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListSkillsResult, ErrorData> {
        let list = self.of_skills(&context, |skills| Ok(skills.list()));
        list.await
    }

    async fn get_skill(
        &self,
        request: GetSkillRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetSkillResult, ErrorData> {
        let skill = self.of_skills(&context, move |skills| skills.get(&request.uri));
        skill.await
    }

    async fn read_resource_directory(
        &self,
        request: ReadResourceDirectoryRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceDirectoryResult, ErrorData> {
        let folder = self.of_skills(&context, move |skills| skills.directory(&request.uri));
        folder.await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if request.uri.len() > MAX_URI_BYTES
            || self
                .offered(&context)?
                .documents
                .resource(&request.uri)
                .is_none()
        {
            return Err(listed::missing(&request.uri));
        }
        let mut subscribed = lock(&self.subscribed);
        if subscribed.len() >= MAX_SUBSCRIPTIONS {
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

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        *lock(&self.level) = request.level;
        Ok(())
    }

    /// An older client, which has no subscriptions to lists, is notified of every change.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if self.notifies.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut changes = self.mcp.service.catalog.changes();
        let ended = self.ended.clone();
        let peer = context.peer;
        let subscribed = self.subscribed.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    changed = changes.changed() => if changed.is_err() { return },
                }
                let lists = [
                    peer.notify_tool_list_changed().await,
                    peer.notify_prompt_list_changed().await,
                    peer.notify_resource_list_changed().await,
                ];
                let all: Vec<String> = lock(&subscribed).iter().cloned().collect();
                for uri in all {
                    let _ = peer
                        .notify_resource_updated(ResourceUpdatedNotificationParam::new(uri))
                        .await;
                }
                if lists.iter().any(Result::is_err) {
                    return;
                }
            }
        });
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.mcp.service.catalog.changes();
        let left = &McpRequest::find(context.request_context())?.left;
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                () = left.cancelled() => return Ok(()),
                () = self.closing.cancelled() => return Ok(()),
                changed = changes.changed() => {
                    if changed.is_err() || notify_changed(&context).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A request that rmcp could not read.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let CustomRequest { method, params, .. } = request;
        let modern = context.meta.protocol_version().is_some();
        let Some(words) = message::fault_of(&method, params.as_ref(), modern) else {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None));
        };
        let name = params
            .as_ref()
            .and_then(|params| params["name"].as_str())
            .unwrap_or_default();
        Err(self
            .invalid(&context, name, ErrorData::invalid_params(words, None))
            .await)
    }
}

/// Shortest time between two messages of progress. The next one covers those that are left out.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(20);
/// Most log messages of one call.
const MAX_LOG_MESSAGES: usize = 1000;

pub struct Notifier {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    level: Option<LoggingLevel>,
    tool: String,
    /// The last progress, and when it was sent.
    progress: f64,
    sent: Option<Instant>,
    /// The whole was reported once without waiting for the interval.
    whole: bool,
    messages_left: usize,
}

impl Notifier {
    /// `session`: the level that an older client has set.
    pub fn new(
        context: &RequestContext<RoleServer>,
        tool: &str,
        session: LoggingLevel,
    ) -> Notifier {
        // Newer clients name the level in each request that wants messages.
        let older = context.meta.protocol_version().is_none();
        let level = context.meta.log_level().or(older.then_some(session));
        let peer = context.peer.clone();
        let token = context.meta.get_progress_token();
        Notifier {
            peer,
            token,
            level,
            tool: tool.to_owned(),
            progress: f64::NEG_INFINITY,
            sent: None,
            whole: false,
            messages_left: MAX_LOG_MESSAGES,
        }
    }

    pub async fn send_all(mut self, mut events: mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            self.send(event).await;
        }
    }

    async fn send(&mut self, event: Event) {
        match event {
            Event::Progress(progress) => self.progress(progress).await,
            Event::Message(level, text) => self.message(level, json!(text)).await,
            Event::Preparing(text) => self.message(Level::Info, json!(text)).await,
            // The outcome contains the log and all parts.
            Event::Log(_) | Event::Part(_) | Event::Shown(..) => {}
        }
    }

    async fn progress(&mut self, now: Progress) {
        let is_whole = now.total == Some(now.progress);
        let is_due = self
            .sent
            .is_none_or(|sent| sent.elapsed() >= PROGRESS_INTERVAL)
            || is_whole && !std::mem::replace(&mut self.whole, true);
        let Some(token) = self
            .token
            .clone()
            .filter(|_| is_due && now.progress > self.progress)
        else {
            return;
        };
        (self.progress, self.sent) = (now.progress, Some(Instant::now()));
        let mut params = ProgressNotificationParam::new(token, now.progress);
        (params.total, params.message) = (now.total, now.message);
        let _ = self.peer.notify_progress(params).await;
    }

    async fn message(&mut self, level: Level, data: Value) {
        // Both name their levels as syslog does.
        let level = serde_json::from_value(json!(level)).unwrap_or(LoggingLevel::Info);
        if self.messages_left == 0 || self.level.is_none_or(|least| (level as u8) < (least as u8)) {
            return;
        }
        self.messages_left -= 1;
        let params =
            LoggingMessageNotificationParam::new(level, data).with_logger(self.tool.clone());
        let _ = self.peer.notify_logging_message(params).await;
    }
}

/// Notifies a client of what it subscribed to.
async fn notify_changed(context: &SubscriptionContext) -> Result<(), SubscriptionSendError> {
    let accepted = context.accepted();
    let sink = context.sink();
    if accepted.tools_list_changed == Some(true) {
        sink.notify_tool_list_changed().await?;
    }
    if accepted.prompts_list_changed == Some(true) {
        sink.notify_prompt_list_changed().await?;
    }
    if accepted.resources_list_changed == Some(true) {
        sink.notify_resource_list_changed().await?;
    }
    for uri in accepted.resource_subscriptions.iter().flatten() {
        sink.notify_resource_updated(uri.clone()).await?;
    }
    Ok(())
}
