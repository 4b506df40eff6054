//! MCP over standard input and output, with or without an `initialize` handshake. Only this folder names `rmcp`.
//!
//! For: agents. In: `tools/list` and `tools/call`. Out: the tools of the registry that can be called here;
//! results of `Service::call`. Never: anything but MCP on standard output; a call that outlives its client.

mod frames;
mod open;
mod results;
mod tools;

use crate::base::lock;
use crate::transport::names::Names;
use crate::{fault, registry, service};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode, ErrorData,
    Implementation, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{QuitReason, RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt};
use serde_json::Value;
use service::{Arguments, CallRequest, Caller, Service, Sink};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Tools on one page of a list.
const PAGE: usize = 200;
/// How long we wait for the protocol to end after a signal.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a client that closed its end may read nothing of its answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often we look whether the client is still there.
const LOOK: Duration = Duration::from_millis(250);

/// Which of its ends the client has closed, as far as that can be told without reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct HungUp {
    pub input: bool,
    pub output: bool,
}

/// Who speaks to us.
#[derive(Clone, Debug)]
pub struct Client {
    pub caller: Caller,
    /// On whose behalf its requests come, where they do not say so themselves.
    pub label: Option<String>,
}

/// The member of a request's `_meta` that says on whose behalf it comes.
const LABEL: &str = "dev.toolhost/user";

/// The member that makes the same request run once.
const KEY: &str = "dev.toolhost/idempotencyKey";

/// Serves until the client closes its end or `stop` is cancelled. Calls that still run are killed. `hung_up` is asked
/// now and then, since reading meets the end of the input only after everything before it.
pub async fn serve<R, W>(
    service: Arc<Service>,
    client: Client,
    input: R,
    output: W,
    stop: CancellationToken,
    hung_up: impl Fn() -> HungUp + Send + 'static,
) -> Result<(), String>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let closing = stop.child_token();
    let frames = frames::Frames::new(input, output, closing.clone());
    let written = frames.written();
    let _ends = closing.clone().drop_guard();
    tokio::spawn(watch(hung_up, frames.standing(), written.clone(), closing.clone()));
    let face = Face { service, client, closing: closing.clone(), offered: Mutex::default(), open: frames.open() };
    let running = tokio::select! {
        started = face.serve(frames) => match started {
            Ok(running) => running,
            // A client that closes before it said anything has not met an error.
            Err(_) if closing.is_cancelled() => return Ok(()),
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        },
        // `stop` cancels this too. A client that leaves during the handshake has asked for nothing yet.
        () = closing.cancelled() => return Ok(()),
    };
    let rmcp_stops = running.cancellation_token();
    let mut ended = std::pin::pin!(running.waiting());
    let ended = tokio::select! {
        ended = &mut ended => ended,
        () = stop.cancelled() => {
            // The calls see `closing` and are dropped, which kills them; the answers are not waited for.
            rmcp_stops.cancel();
            tokio::time::timeout(FAREWELL, ended).await.unwrap_or(Ok(QuitReason::Cancelled))
        }
        () = closing.cancelled() => loop {
            // The client closed its end. Answers are written as long as it reads them.
            let before = written.load(Ordering::Relaxed);
            match tokio::time::timeout(PATIENCE, &mut ended).await {
                Ok(ended) => break ended,
                Err(_) if written.load(Ordering::Relaxed) == before => {
                    return Err("the client closed its end and left an answer unread".to_owned());
                }
                Err(_) => {}
            }
        },
    };
    ended.map(|_| ()).map_err(|error| error.to_string())
}

/// Ends the connection where reading does not meet its end: nobody can be answered, or the client's input is closed
/// and nothing is read or written any more.
async fn watch(
    hung_up: impl Fn() -> HungUp,
    standing: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    closing: CancellationToken,
) {
    let mut before = usize::MAX;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = closing.cancelled() => return,
        }
        let HungUp { input, output } = hung_up();
        let now = written.load(Ordering::Relaxed);
        // A client that closed its input and still reads answers has all of its requests taken in first.
        let still = standing.load(Ordering::Relaxed) && now == before;
        if output || (input && still) {
            tokio::time::sleep(if output { Duration::ZERO } else { frames::GRACE }).await;
            return closing.cancel();
        }
        before = now;
    }
}

/// What is offered of one snapshot.
struct Offered {
    snapshot: Arc<registry::Snapshot>,
    caller: Caller,
    names: Names,
    /// By name.
    tools: Vec<Tool>,
}

struct Face {
    service: Arc<Service>,
    client: Client,
    closing: CancellationToken,
    offered: Mutex<Option<Arc<Offered>>>,
    open: open::Open,
}

impl Face {
    /// The tools that this caller can call here: one version of each id, worked out once per snapshot.
    fn offered(&self, label: Option<&str>) -> Arc<Offered> {
        let snapshot = self.service.registry().snapshot();
        let caller = self.service.who(&self.client.caller, label).unwrap_or_else(|_| self.client.caller.clone());
        let mut kept = lock(&self.offered);
        let same = |offered: &&Arc<Offered>| Arc::ptr_eq(&offered.snapshot, &snapshot) && offered.caller == caller;
        if let Some(offered) = kept.as_ref().filter(same) {
            return offered.clone();
        }
        let mut listed: Vec<Arc<registry::Tool>> = self
            .service
            .tools(&caller)
            .unwrap_or_default()
            .into_iter()
            // Where no version is chosen (all are pre-releases) the id keeps its name, and a call is told why.
            .filter(|tool| {
                snapshot.find(&tool.manifest.id).map_or(true, |chosen| chosen.reference() == tool.reference())
            })
            .collect();
        listed.sort_by(|a, b| a.manifest.id.cmp(&b.manifest.id));
        listed.dedup_by(|a, b| a.manifest.id == b.manifest.id);
        let names = Names::of(listed.iter().map(|tool| tool.manifest.id.as_str()));
        let mut tools: Vec<Tool> = listed
            .iter()
            // The others keep their names all the same: a call is told why it is refused, and a hidden tool runs.
            .filter(|tool| !tool.manifest.hidden && snapshot.find(&tool.manifest.id).is_ok())
            .filter(|tool| self.service.can_call(&caller, tool))
            .filter_map(|tool| Some(tools::tool(&tool.manifest, &names.name(&tool.manifest.id)?)))
            .collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let offered = Arc::new(Offered { snapshot, caller, names, tools });
        *kept = Some(offered.clone());
        offered
    }

    /// A request that leads to no tool leaves its record like every call.
    async fn refused(&self, label: Option<String>, name: &str, fault: fault::Fault) {
        let request = CallRequest::refused(self.client.caller.clone(), name, fault);
        drop(self.service.call(CallRequest { label, ..request }, Sink::none()).await);
    }

    /// On whose behalf a request comes.
    fn label(&self, context: &RequestContext<RoleServer>) -> Option<String> {
        let said = context.meta.get(LABEL).and_then(Value::as_str);
        said.map(str::to_owned).or_else(|| self.client.label.clone())
    }

    /// An unknown name is a protocol error, and leaves its record like every refusal.
    async fn unknown(&self, label: Option<String>, name: &str, offered: &Offered) -> ErrorData {
        let shown = crate::base::text::printable(&name.chars().take(100).collect::<String>());
        let mut words = format!("Unknown tool: {shown}.");
        let hidden = |near: &&str| !offered.tools.iter().any(|tool| tool.name == *near);
        if let Some(near) = offered.names.nearest(name).filter(|near| !hidden(near)) {
            words.push_str(&format!(" Did you mean {near}?"));
        }
        let fault = fault::Fault::new(fault::Kind::ToolNotFoundError, words.clone());
        self.refused(label, name, fault).await;
        ErrorData::invalid_params(words, None)
    }
}

impl ServerHandler for Face {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("toolhost", env!("CARGO_PKG_VERSION")).with_title("toolhost"))
            .with_instructions(
                "Tools run in a sandbox: each reads and writes only what its manifest asks for and the operator's \
                 policy allows. A failed call says what kind of error it was and what to do about it.",
            )
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.offered(self.client.label.as_deref()).tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let offered = self.offered(self.label(&context).as_deref());
        let cursor = request.and_then(|request| request.cursor).filter(|cursor| !cursor.is_empty());
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let last = cursor_name(&cursor)
                    .ok_or_else(|| ErrorData::invalid_params("This cursor was not given by this server.", None))?;
                offered.tools.partition_point(|tool| *tool.name <= *last)
            }
        };
        let page: Vec<Tool> = offered.tools.iter().skip(start).take(PAGE).cloned().collect();
        let more = start + page.len() < offered.tools.len();
        let next = page.last().filter(|_| more).map(|tool| cursor_for(&tool.name));
        let mut result = ListToolsResult::with_all_items(page).with_ttl_ms(0).with_cache_scope(CacheScope::Private);
        result.next_cursor = next;
        Ok(result)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // Arguments that were not cut out of the line stand in the message.
        let arguments = match self.open.arguments(&context.id) {
            Some(text) => Arguments::Text(text),
            None => Arguments::Value(Value::Object(request.arguments.unwrap_or_default())),
        };
        let label = self.label(&context);
        let offered = self.offered(label.as_deref());
        let id = match offered.names.id(&request.name) {
            Some(id) => id,
            // Who may call what is not known: the call is told so.
            None if self.service.ready().is_err() => &request.name,
            None => return Err(self.unknown(label, &request.name, &offered).await),
        };
        let idempotency_key = context.meta.get(KEY).and_then(Value::as_str).map(str::to_owned);
        let request =
            CallRequest { label, idempotency_key, ..CallRequest::new(self.client.caller.clone(), id, arguments) };
        let call = self.service.call(request, Sink::none());
        // rmcp only sets a token; dropping the future is what cancels, kills, reaps and records.
        tokio::select! {
            // Polled first: a call leaves its record, also if it is cancelled at once.
            biased;
            report = call => {
                let (result, answer) = results::result(report);
                answer.into_iter().for_each(|answer| self.open.answered(&context.id, answer));
                Ok(result.into())
            }
            () = context.ct.cancelled() => Err(ErrorData::internal_error("The call was cancelled.", None)),
            () = self.closing.cancelled() => Err(ErrorData::internal_error("The server is closing.", None)),
        }
    }

    /// What rmcp could not read as one of its requests.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.open.arguments(&context.id);
        let CustomRequest { method, params, .. } = request;
        let words = match method.as_str() {
            "tools/call" => malformed(params.as_ref()),
            "tools/list" | "initialize" | "ping" => format!("The parameters of {method} are wrong."),
            _ => return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None)),
        };
        if method == "tools/call" {
            let name = params.as_ref().and_then(|params| params["name"].as_str()).unwrap_or_default();
            let fault = fault::Fault::new(fault::Kind::ParameterValidationError, words.clone());
            self.refused(self.label(&context), name, fault).await;
        }
        Err(ErrorData::invalid_params(words, None))
    }
}

/// What is wrong with the parameters of a call, before its tool is looked for.
fn malformed(params: Option<&Value>) -> String {
    let Some(Value::Object(params)) = params else {
        return "The params of tools/call must be an object with the tool's \"name\" and its \"arguments\".".into();
    };
    if !params.get("name").is_some_and(Value::is_string) {
        return "params.name must be a string: the name of a tool.".into();
    }
    match params.get("arguments") {
        Some(Value::String(_)) => {
            "params.arguments must be an object, not its JSON text: send the object itself.".into()
        }
        Some(other) if !other.is_object() => "params.arguments must be an object.".into(),
        _ => "The params of tools/call are wrong.".into(),
    }
}

/// A cursor names the last tool of a page, so that a list that changes meanwhile skips and repeats nothing.
fn cursor_for(name: &str) -> String {
    let check: String = crate::base::sha256_hex(format!("cursor {name}").as_bytes()).chars().take(8).collect();
    format!("{name}.{check}")
}

fn cursor_name(cursor: &str) -> Option<String> {
    let (name, _) = cursor.rsplit_once('.')?;
    (cursor_for(name) == cursor).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_and_a_made_up_one_does_not() {
        assert_eq!(cursor_name(&cursor_for("core__run-code")).as_deref(), Some("core__run-code"));
        for made_up in ["x", "core__run-code", "core__run-code.00000000", "."] {
            assert_eq!(cursor_name(made_up), None);
        }
    }
}
