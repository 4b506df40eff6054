//! The calls of MCP servers: each finds the server of its caller, or starts it, and is one request to
//! it.

use super::dialogue::{Ask, MAX_LOG_LINES, Reply, ServerEnd, Unsent};
use super::result;
use super::server::{Server, Started};
use super::servers::{LiveTools, RunningServer, ServerId};
use crate::base::json::Text;
use crate::base::mask::Mask;
use crate::base::{lock, millis, text};
use crate::egress::Traffic;
use crate::executor::process::pool::{Launchers, fault};
use crate::executor::process::ready;
use crate::executor::process::recorded::{RecordedCall, outcome};
use crate::executor::process::session_calls::killed_ending;
use crate::executor::process::spec::RoleNeeds;
use crate::executor::process::waiting::ReadyKey;
use crate::executor::{CallDeadline, Clock, Context, Ending, Event, Outcome, ToolSender, channel};
use crate::fault::{Fault, Kind};
use crate::manifest::{McpTool, mcp};
use crate::packages::store::EnvironmentLease;
use crate::policy::{Confinement, Shape};
use crate::quantity::{KIB, LARGE_TEXT_BYTES, Limit, MIB};
use crate::sandbox::CallInput;
use crate::sandbox::protocol::Source;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The message for a caller whose server is not ready in time.
const STARTING: &str = "the MCP server of this tool is still being started";
/// The same for the person.
const SLOW_START: &str = "its start counts in the time of a call: raise timeout_ms below [limits] of \
    its policy, or call it at a server (`serve`), which goes on starting it";
/// The revisions that are spoken: without a handshake, and with one.
const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
/// How long a server may take to answer whether it knows the modern revision, before it is greeted in
/// the older way as well.
const PROBE: Duration = Duration::from_secs(5);
/// How long a server may take that is started for its list alone.
const MAX_LISTING: Duration = Duration::from_secs(60);
/// How long the start of a server may go on, whatever becomes of the call that wanted it.
const MAX_STARTING: Duration = Duration::from_secs(300);
/// Most pages of a list of tools, and most bytes of all.
const MAX_PAGES: usize = 100;
const MAX_LIST_BYTES: usize = 4 * MIB as usize;
/// How much of the details of a start that failed is shown, bytes.
const SHOWN_BYTES: usize = 2 * KIB as usize;
/// The member of a tool's input with what its client can be asked, and the client's answers.
const CLIENT: &str = "$client";
/// The key of a server's one question.
const QUESTION: &str = "question";

/// Serves the calls of MCP servers.
pub struct McpCalls {
    pub launchers: Arc<Launchers>,
}

/// One call of a server's tool.
pub struct McpCall<'a> {
    pub context: &'a Context,
    pub tool: &'a McpTool,
    /// The arguments.
    pub input: Value,
    pub confinement: &'a Confinement,
    pub environment: Option<EnvironmentLease>,
    pub events: &'a ToolSender,
}

impl McpCalls {
    /// Where this is dropped, the call is cancelled, and its server goes on.
    pub async fn run(
        &self,
        mut call: McpCall<'_>,
    ) -> Result<(Outcome, Option<RecordedCall>), Fault> {
        let began = Instant::now();
        let Confinement { shape, per_call } = call.confinement;
        let client = call.input.as_object_mut().and_then(|it| it.remove(CLIENT));
        let is_askable = client.is_some();
        let client = client.unwrap_or_default();
        let clock = Clock::new(call.context.deadline.began, per_call.timeout_ms);
        let (running, reply) = loop {
            let running = self.prepared(&call, is_askable, &clock).await?;
            let ask = Ask {
                method: "tools/call",
                params: running.params(call.tool, call.input, &client),
                events: call.events.clone(),
                traffic: Some(call.context.traffic.clone()),
                // A shared server can ask for a call that has ended.
                is_askable: client["can"] == json!(["elicitation"]) && !is_shared(shape),
                answered: answered(&client),
                log_bytes: shape.limits.get(Limit::LogBytes),
            };
            match timeout(clock.left(), running.server.ask(ask)).await {
                Ok(Err(Unsent { mut params })) => call.input = params["arguments"].take(),
                Ok(Ok(reply)) => break (running, Some(reply)),
                Err(_) => break (running, None),
            }
        };
        let mut cpu_used = None;
        let mut answered_bytes = 0;
        let ending = match reply {
            None => Ending::TimedOut {
                limit_ms: per_call.timeout_ms,
            },
            Some(Reply::Question { name, params }) => {
                let question = json!({"method": "elicitation/create", "params": params});
                let ask = json!({"$ask": {QUESTION: question}, "$state": {"call": name}});
                Ending::answer(&ask)
            }
            Some(Reply::Answer { result, cpu_ms }) => {
                cpu_used = cpu_ms;
                let bytes = result.as_ref().map_or(0, |text| text.as_str().len());
                answered_bytes = bytes as u64;
                let deadline = clock.reading(&call.context.deadline);
                let own = deadline.clone();
                let read = move || result::ending(result, &own);
                deadline
                    .run(bytes > LARGE_TEXT_BYTES, read)
                    .await?
                    .map_err(unreadable)?
            }
            Some(Reply::Ended(end)) => ending_of(end, shape, per_call.timeout_ms)?,
        };
        let mut outcome = outcome(ending, began);
        outcome.layers = running.server.layers.clone();
        outcome.usage.cpu_ms = cpu_used;
        outcome.usage.output_bytes = answered_bytes;
        // What is recorded of a server is known when it has ended.
        let mut recorded = None;
        if shape.observe {
            running.server.end().await;
            recorded = lock(&running.server.seen.recorded).take();
            let refused = recorded.iter().flat_map(|it| &it.refused);
            refused.for_each(|address| lock(&call.context.traffic).refused_port(*address));
        }
        outcome.usage.wall_ms = millis(began.elapsed());
        Ok((outcome, recorded))
    }

    /// The server for this call, once nothing more is waited for.
    async fn prepared(
        &self,
        call: &McpCall<'_>,
        is_askable: bool,
        clock: &Clock,
    ) -> Result<Arc<RunningServer>, Fault> {
        let running = clock.prepare(STARTING, self.server(call, is_askable));
        let running = running.await.map_err(|fault| match fault.kind {
            Kind::TimeoutError => fault.person(SLOW_START),
            _ => fault,
        })?;
        // Decided again.
        call.events.opened(&call.confinement.shape).await?;
        running.check(call.tool)?;
        Ok(running)
    }

    /// The server that runs for this call, or a new one. One that has not answered a cancelled call
    /// is waited for: it may end, and would end this call, too.
    async fn server(&self, call: &McpCall<'_>, asks: bool) -> Result<Arc<RunningServer>, Fault> {
        let shape = &call.confinement.shape;
        let name = |name: &String| {
            if is_shared(shape) {
                String::new()
            } else {
                name.clone()
            }
        };
        let id = ServerId {
            principal: name(&call.context.principal),
            caller: name(&call.context.user),
            tool: shape.tool.clone(),
        };
        let needs = RoleNeeds {
            principal: id.principal.clone(),
            ..RoleNeeds::default()
        };
        let digest = call
            .confinement
            .per_call
            .ready
            .as_deref()
            .unwrap_or_default();
        let key = ready::key(call.confinement, digest, &needs).await;
        let Some(key) = key.map_err(fault)? else {
            let message = "This server cannot go on between calls: its files cannot be compared.";
            return Err(Fault::new(Kind::CapabilityError, message));
        };
        let servers = &self.launchers.servers;
        if shape.observe {
            // What is recorded of a server is of one call: it has the server for itself.
            let server = self.start(call, &needs, id).await?;
            return greeted(server, call, asks, key).await;
        }
        let place = servers.place(&id);
        let turn = place.turn.clone().lock_owned().await;
        if let Some(running) = place.running() {
            if running.key == key && running.server.settled().await {
                match self.follow(&running, call, asks).await {
                    Ok(()) => return Ok(running),
                    Err(fault) if running.server.runs() => return Err(fault),
                    // It ended meanwhile, and the next one says what its tools are.
                    Err(_) => {}
                }
            }
            running.server.end().await;
        }
        servers.make_room(&id).await?;
        let server = self.start(call, &needs, id).await?;
        let greeting = greeted(server, call, asks, key);
        // It goes on where the call ends first: the next call finds the server.
        let starting = tokio::spawn(async move {
            let running = timeout(MAX_STARTING, greeting).await;
            let running = running.unwrap_or_else(|_| Err(refused("it was not ready in time")))?;
            place.put(running.clone());
            drop(turn);
            Ok(running)
        });
        let ended = |_| Fault::new(Kind::InternalError, "The start of this server failed.");
        starting.await.map_err(ended)?
    }

    /// Starts the process of a server.
    async fn start(
        &self,
        call: &McpCall<'_>,
        needs: &RoleNeeds,
        id: ServerId,
    ) -> Result<Server, Fault> {
        let environment = call.environment.clone();
        let serving = self.serve(call.confinement, needs, environment, call.events);
        let server = serving.await?;
        let mask = mask_of(call.confinement);
        self.launchers.servers.started(id, &server, mask);
        Ok(server)
    }

    /// Reads the list of a server that said that it changed.
    async fn follow(
        &self,
        running: &RunningServer,
        call: &McpCall<'_>,
        asks: bool,
    ) -> Result<(), Fault> {
        let changes = running.server.seen.changes.load(Ordering::Relaxed);
        if lock(&running.tools).changes == changes {
            return Ok(());
        }
        let greeter = Greeter {
            server: &running.server,
            confinement: call.confinement,
            events: call.events,
            asks,
        };
        let tools = greeter.list(running.is_modern).await?;
        *lock(&running.tools) = live(&tools, changes);
        Ok(())
    }

    /// The tools of a server that is started for this alone are its answer. `traffic`: names whom its
    /// dials count against.
    pub async fn list(
        &self,
        confinement: &Confinement,
        environment: Option<EnvironmentLease>,
        traffic: &Mutex<Traffic>,
    ) -> Result<(Outcome, Option<RecordedCall>), Fault> {
        let began = Instant::now();
        let principal = lock(traffic).principal.clone();
        let id = ServerId {
            principal: principal.clone(),
            caller: principal.clone(),
            tool: confinement.shape.tool.clone(),
        };
        let needs = RoleNeeds {
            principal,
            ..RoleNeeds::default()
        };
        let unheard = ToolSender::unheard();
        let serving = self.serve(confinement, &needs, environment, &unheard);
        let server = serving.await?;
        let mask = mask_of(confinement);
        self.launchers.servers.started(id, &server, mask.clone());
        let (events, mut told) = channel(CallDeadline::usual("", None));
        let asked = server.clone();
        let listing = async move {
            let greeter = Greeter {
                server: &asked,
                confinement,
                events: &events,
                asks: false,
            };
            timeout(MAX_LISTING, greeter.greeted()).await
        };
        let mut logs = VecDeque::new();
        let hearing = async {
            while let Some(event) = told.next_event().await {
                if let Event::Log(line) = event {
                    logs.push_back(line);
                    logs.drain(..logs.len().saturating_sub(MAX_LOG_LINES));
                }
            }
        };
        let (listed, ()) = tokio::join!(listing, hearing);
        server.end().await;
        let ending = match listed {
            Ok(Ok(greeted)) => Ending::answer(&Value::Array(greeted.listed)),
            Ok(Err(fault)) => {
                let details = mask.text(&fault.details.unwrap_or_default());
                let details = text::cut(&details, SHOWN_BYTES);
                let message = format!("{} {details}", fault.message);
                Ending::Raised { message }
            }
            Err(_) => {
                let message =
                    "The MCP server of this tool did not list its tools in time.".to_owned();
                Ending::Raised { message }
            }
        };
        let mut outcome = outcome(ending, began);
        outcome.logs = logs.into();
        *lock(traffic) = lock(&server.seen.traffic).clone();
        let recorded = lock(&server.seen.recorded).take();
        Ok((outcome, recorded))
    }

    async fn serve(
        &self,
        confinement: &Confinement,
        needs: &RoleNeeds,
        environment: Option<EnvironmentLease>,
        events: &ToolSender,
    ) -> Result<Server, Fault> {
        let Confinement { shape, per_call } = confinement;
        let ready = self.launchers.ready(shape, needs).await.map_err(fault)?;
        events.opened(shape).await?;
        ready.begin(&per_call.secrets).map_err(fault)?;
        let script = per_call.script.as_ref();
        let brings = CallInput {
            source: script.map(|it| (Source::File(it.file.clone()), it.bytes.as_slice())),
            environment: Some(&per_call.env),
            ..CallInput::default()
        };
        let pipes = ready.launcher.start(None::<u64>, &brings).map_err(fault)?;
        let idle_ms = shape.mcp.as_ref().map_or(0, |grant| grant.idle_ms);
        Ok(Server::serve(Started {
            ready,
            pipes,
            limits: shape.limits.clone(),
            idle: Duration::from_millis(idle_ms),
            principal: needs.principal.clone(),
            environment,
        }))
    }
}

/// A server that was started for a call, once it has said what it is.
fn greeted(
    server: Server,
    call: &McpCall<'_>,
    asks: bool,
    key: ReadyKey,
) -> impl Future<Output = Result<Arc<RunningServer>, Fault>> + use<> {
    let confinement = call.confinement.clone();
    let events = call.events.clone();
    async move {
        let greeter = Greeter {
            server: &server,
            confinement: &confinement,
            events: &events,
            asks,
        };
        let Greeted {
            is_modern,
            listed,
            changes,
        } = greeter.greeted().await?;
        Ok(Arc::new(RunningServer {
            tools: Mutex::new(live(&listed, changes)),
            server,
            key,
            is_modern,
        }))
    }
}

/// What a server has said of itself.
struct Greeted {
    is_modern: bool,
    listed: Vec<Value>,
    /// As in `LiveTools`.
    changes: u64,
}

/// Asks a server what it is, outside of calls.
struct Greeter<'a> {
    server: &'a Server,
    confinement: &'a Confinement,
    events: &'a ToolSender,
    /// Its questions are handed on.
    asks: bool,
}

impl Greeter<'_> {
    async fn greeted(&self) -> Result<Greeted, Fault> {
        let is_modern = self.greet().await?;
        let changes = self.server.seen.changes.load(Ordering::Relaxed);
        Ok(Greeted {
            is_modern,
            listed: self.list(is_modern).await?,
            changes,
        })
    }

    /// Learns which revision it speaks. True: the modern one.
    async fn greet(&self) -> Result<bool, Fault> {
        let probe = self.is_modern();
        let hello = self.initialize();
        tokio::pin!(probe, hello);
        if let Ok(is_modern) = timeout(PROBE, &mut probe).await {
            return match is_modern? {
                true => Ok(true),
                false => hello.await.map(|()| false),
            };
        }
        // It may know no such request, or only be slow: then it serves the first and refuses the
        // second.
        let greeted = tokio::select! {
            is_modern = &mut probe => match is_modern? {
                true => return Ok(true),
                false => return hello.await.map(|()| false),
            },
            greeted = &mut hello => greeted,
        };
        match greeted {
            Ok(()) => Ok(false),
            Err(why) => match probe.await? {
                true => Ok(true),
                false => Err(why),
            },
        }
    }

    async fn is_modern(&self) -> Result<bool, Fault> {
        let params = json!({"_meta": about(self.asks)});
        let answer = self.ask("server/discover", params).await?;
        Ok(answer.is_ok_and(|text| {
            let versions = &text.value()["supportedVersions"];
            let versions = versions.as_array();
            versions.is_some_and(|all| all.contains(&json!(MODERN)))
        }))
    }

    async fn initialize(&self) -> Result<(), Fault> {
        let hello = json!({
            "protocolVersion": LEGACY,
            "capabilities": capabilities(self.asks),
            "clientInfo": client_info(),
        });
        let answer = self.ask("initialize", hello).await?;
        answer.map_err(|why| refused(&why))?;
        self.server.notify("notifications/initialized");
        Ok(())
    }

    /// All pages of its list of tools, which everybody reads: its secrets are hidden in them.
    async fn list(&self, is_modern: bool) -> Result<Vec<Value>, Fault> {
        let mask = mask_of(self.confinement);
        let mut tools = Vec::new();
        let mut params = json!({});
        let mut bytes = 0;
        for _ in 0..MAX_PAGES {
            if is_modern {
                params["_meta"] = about(self.asks);
            }
            let page = self
                .ask("tools/list", params)
                .await?
                .map_err(|why| refused(&why))?;
            bytes += page.as_str().len();
            let mut page = page.tree(MAX_LIST_BYTES * 8).unwrap_or_default();
            if let Value::Array(all) = page["tools"].take() {
                tools.extend(all.iter().map(|tool| hidden(&mask, mcp::cut(tool))));
            }
            if bytes > MAX_LIST_BYTES || tools.len() > mcp::MAX_LISTED {
                break;
            }
            let Some(cursor) = page["nextCursor"].as_str() else {
                return Ok(tools);
            };
            params = json!({"cursor": cursor});
        }
        Err(refused("its list of tools is too long"))
    }

    /// Sends a request. `Err`: what the server said against it.
    async fn ask(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Result<Text, String>, Fault> {
        let ask = Ask {
            method,
            params,
            events: self.events.clone(),
            traffic: None,
            is_askable: false,
            answered: None,
            log_bytes: self.confinement.shape.limits.get(Limit::LogBytes),
        };
        let Ok(reply) = self.server.ask(ask).await else {
            return Err(refused("it was ended"));
        };
        match reply {
            Reply::Answer { result, .. } => Ok(result.map_err(|refusal| refusal.message)),
            Reply::Question { .. } => Err(refused("it asked before it was called")),
            Reply::Ended(end) => match ending_of(end, &self.confinement.shape, 0)? {
                Ending::OverLimit { limit, allowed } => {
                    let message = format!(
                        "The MCP server of this tool exceeded {} when it was started.",
                        limit.name()
                    );
                    let fault = Fault::new(Kind::ResourceLimitError, message);
                    Err(fault.details(format!("The limit is {allowed}.")))
                }
                _ => Err(refused("it ended")),
            },
        }
    }
}

impl RunningServer {
    /// Refuses a tool that is not what was approved.
    fn check(&self, tool: &McpTool) -> Result<(), Fault> {
        let name = &tool.name;
        let listed = tool
            .server
            .mcp_server()
            .and_then(|server| server.listed.as_ref());
        let approved = listed.and_then(|all| all.get(name)).map(|it| &it.digest);
        let (kind, message) = match lock(&self.tools).digests.get(name) {
            Some(now) if Some(now) == approved => return Ok(()),
            Some(_) => (
                Kind::SecurityError,
                "The server describes this tool otherwise than when it was approved.",
            ),
            None => (Kind::CapabilityError, "The server no longer has this tool."),
        };
        let server = &tool.server.id;
        let person = format!(
            "`toolhost mcp refresh {server}` shows the difference and records it; then approve it \
             again"
        );
        Err(Fault::new(kind, message).person(person))
    }

    /// The request for a call.
    fn params(&self, tool: &McpTool, input: Value, client: &Value) -> Value {
        let mut params = json!({"name": tool.name, "arguments": input});
        if self.is_modern {
            params["_meta"] = about(!client.is_null());
            let state = &client["state"]["requestState"];
            if !state.is_null() {
                params["requestState"] = state.clone();
            }
            if client["answers"]
                .as_object()
                .is_some_and(|it| !it.is_empty())
            {
                params["inputResponses"] = client["answers"].clone();
            }
        }
        params
    }
}

/// What hides the secrets that a server has.
fn mask_of(confinement: &Confinement) -> Mask {
    let Confinement { shape, per_call } = confinement;
    let granted = shape.secrets.iter();
    let granted = granted.filter_map(|grant| per_call.env.get(&grant.name));
    let own = shape.env.values().filter_map(|variable| variable.host());
    let mut mask = Mask::default();
    let values = granted.chain(per_call.secrets.values());
    let values = values.map(String::as_str).chain(own);
    values.for_each(|value| mask.add(value));
    mask
}

fn hidden(mask: &Mask, tool: Value) -> Value {
    let shown = mask.answer(&tool.to_string(), mask, false);
    let shown = shown.and_then(|text| serde_json::from_str(&text).ok());
    shown.unwrap_or(tool)
}

fn is_shared(shape: &Shape) -> bool {
    shape.mcp.as_ref().is_some_and(|grant| grant.shared)
}

/// The name of the call that stands still for this answer, and the answer.
fn answered(client: &Value) -> Option<(String, Value)> {
    let name = client["state"]["call"].as_str()?;
    let answer = client["answers"].get(QUESTION)?;
    Some((name.to_owned(), answer.clone()))
}

/// What this host is for a server. It has no folders and no model for it.
fn about(asks: bool) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": client_info(),
        "io.modelcontextprotocol/clientCapabilities": capabilities(asks),
    })
}

fn capabilities(asks: bool) -> Value {
    if asks {
        json!({"elicitation": {}})
    } else {
        json!({})
    }
}

fn client_info() -> Value {
    json!({"name": "toolhost", "version": env!("CARGO_PKG_VERSION")})
}

fn live(tools: &[Value], changes: u64) -> LiveTools {
    let tools = tools.iter();
    let named =
        tools.filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), mcp::digest(tool))));
    LiveTools {
        digests: named.collect(),
        changes,
    }
}

/// The fault of a server that cannot be used.
fn refused(why: &str) -> Fault {
    let message = "The MCP server of this tool could not be used.";
    Fault::new(Kind::ServiceError, message).details(format!("When it was started: {why}."))
}

fn unreadable(why: String) -> Fault {
    Fault::new(
        Kind::ServiceError,
        "The MCP server of this tool answered wrongly.",
    )
    .details(why)
}

/// The ending of a call whose server ended. Faults count against the server.
fn ending_of(end: ServerEnd, shape: &Shape, limit_ms: u64) -> Result<Ending, Fault> {
    let fault = |message: &str| Fault::new(Kind::ServiceError, message);
    match end {
        ServerEnd::Exited(exited) => match exited.killed {
            Some(killed) => Ok(killed_ending(killed, &shape.limits, limit_ms)),
            None => {
                let how = match exited.status & 0x7f {
                    0 => format!("Its exit status was {}.", (exited.status >> 8) & 0xff),
                    signal => format!("It was ended by signal {signal}."),
                };
                let message = "The MCP server of this tool ended before it had answered.";
                Err(fault(message).details(how))
            }
        },
        ServerEnd::Over(limit) => Ok(Ending::OverLimit {
            limit,
            allowed: shape.limits.get(limit),
        }),
        ServerEnd::Closed => {
            let message =
                "The MCP server of this tool closed its stdin or stdout, and did not end.";
            Err(fault(message))
        }
        ServerEnd::Printed(head) => {
            let message = "The MCP server of this tool wrote something other than a message of MCP \
                           to its stdout.";
            let fault = fault(message).details(format!("It begins: {head}"));
            Err(fault.person("a server must write its log to stderr"))
        }
        ServerEnd::Unanswered => {
            let message = "The MCP server of this tool was ended: it did not answer the cancel of \
                           another of its calls.";
            Err(fault(message).retryable())
        }
        ServerEnd::Ended => {
            let message = "The MCP server of this tool was ended meanwhile.";
            Err(fault(message).retryable())
        }
    }
}
