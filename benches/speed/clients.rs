//! Clients: what HTTP and MCP add to a call, for one of them and for many; a full queue; what a
//! server keeps.
//!
//! The server is the one of `toolhost serve`, in this process: whatever is compared shares
//! executors, service and runtime, and clients are tasks of that runtime, so that their own work
//! counts as what the transport adds.

use super::Plan;
use super::board::{Board, Gate, Series};
use super::calls::{answered, told};
use super::house::{House, Tool};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;
use toolhost::executor::Executor;
use toolhost::fault::Kind;
use toolhost::manifest::Language;
use toolhost::service::background;
use toolhost::service::{Arguments, CallRequest, Caller, Service, Settings, Sink};
use toolhost::transport::http as face;

const CLIENTS: [usize; 3] = [1, 8, 64];
const WHO: &str = "bench";
/// How long a client that finds no room waits before it asks again.
const AGAIN: Duration = Duration::from_millis(5);
const NEW: &str = "2026-07-28";

fn input() -> Value {
    json!({"message": "hello"})
}

/// Whom a client asks.
#[derive(Clone)]
enum Way {
    Executor(Arc<dyn Executor>, Box<Tool>),
    Service(Arc<Service>, Box<CallRequest>),
    Web(Web),
}

impl Way {
    fn service(service: &Arc<Service>, tool: &str) -> Way {
        let arguments = Arguments::Value(input());
        let request = CallRequest::new(Caller::operator(WHO), format!("bench:{tool}"), arguments);
        Way::Service(service.clone(), Box::new(request))
    }
}

/// A request that is made again and again over one connection.
#[derive(Clone)]
struct Web {
    address: String,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl Web {
    fn http(address: &str, tool: &str) -> Web {
        let (path, body) = (
            format!("/v1/tools/bench:{tool}/calls"),
            input().to_string().into(),
        );
        Web {
            address: address.to_owned(),
            path,
            headers: Vec::new(),
            body,
        }
    }

    fn mcp(address: &str, tool: &str) -> Web {
        let name = format!("bench__{tool}");
        let meta = json!({"io.modelcontextprotocol/protocolVersion": NEW, "io.modelcontextprotocol/clientCapabilities": {}});
        let params = json!({"name": name, "arguments": input(), "_meta": meta});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            .to_string()
            .into();
        let headers = [
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", NEW),
            ("mcp-method", "tools/call"),
            ("mcp-name", &name),
        ];
        let headers = headers.map(|(name, value)| (name, value.to_owned())).into();
        Web {
            address: address.to_owned(),
            path: "/mcp".to_owned(),
            headers,
            body,
        }
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// False: there was no room.
    async fn asked(&self, sender: &mut SendRequest<Full<Bytes>>) -> anyhow::Result<bool> {
        let mut request = Request::post(&self.path).body(Full::new(self.body.clone()))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.address.parse()?);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        for (name, value) in &self.headers {
            headers.insert(*name, value.parse()?);
        }
        sender.ready().await?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ]
        .contains(&status)
        {
            return Ok(false);
        }
        let text = std::str::from_utf8(&body)?;
        let good = ["\"success\":true", "\"isError\":false"]
            .iter()
            .any(|words| text.contains(words));
        ensure!(
            status == StatusCode::OK && good,
            "{}: {status}: {text}",
            self.path
        );
        Ok(true)
    }
}

/// What clients of one way saw.
struct Seen {
    calls: Series,
    refused: Series,
    busy: Duration,
}

impl Seen {
    fn new(name: &str) -> Seen {
        Seen {
            calls: Series::new(name),
            refused: Series::new(name),
            busy: Duration::ZERO,
        }
    }

    fn rate(&self) -> f64 {
        self.calls.len() as f64 / self.busy.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn shown(&self, clients: usize) -> Series {
        let mut shown = self.calls.clone();
        shown.name = format!(
            "{clients:>2} clients, {:<9}{:>7.0} calls/s",
            self.calls.name,
            self.rate()
        );
        shown
    }

    /// So many clients of one way at once.
    fn slice(
        &mut self,
        house: &House,
        way: &Way,
        clients: usize,
        until: Until,
    ) -> anyhow::Result<()> {
        let start = Arc::new(Barrier::new(clients + 1));
        let runtime = if matches!(way, Way::Web(_)) {
            &house.clients
        } else {
            &house.runtime
        };
        let client = || runtime.spawn(client(way.clone(), until, start.clone()));
        let tasks: Vec<_> = (0..clients).map(|_| client()).collect();
        house.runtime.block_on(start.wait());
        let began = Instant::now();
        for task in tasks {
            let (calls, refused) = house.runtime.block_on(task)??;
            calls.into_iter().for_each(|time| self.calls.push(time));
            refused.into_iter().for_each(|time| self.refused.push(time));
        }
        self.busy += began.elapsed();
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Calls(usize),
}

type Times = Vec<Duration>;

/// One client, whose connection is there when all start; the times of its calls, and of those that
/// found no room.
async fn client(way: Way, until: Until, start: Arc<Barrier>) -> anyhow::Result<(Times, Times)> {
    let connection = match &way {
        Way::Web(web) => web.connect().await.map(Some),
        _ => Ok(None),
    };
    start.wait().await;
    let (mut connection, began) = (connection?, Instant::now());
    let (mut calls, mut refused) = (Vec::new(), Vec::new());
    loop {
        let over = match until {
            Until::Time(length) => began.elapsed() >= length,
            Until::Calls(most) => calls.len() >= most,
        };
        if over {
            return Ok((calls, refused));
        }
        let started = Instant::now();
        let served = match (&way, &mut connection) {
            (Way::Executor(executor, tool), _) => {
                answered(&**executor, tool, &input()).await.map(|_| true)?
            }
            (Way::Service(service, request), _) => {
                match service
                    .call((**request).clone(), Sink::none())
                    .await
                    .outcome
                    .into_fault()
                {
                    None => true,
                    Some(fault) if fault.kind == Kind::RateLimitError => false,
                    Some(fault) => return Err(told(fault)),
                }
            }
            (Way::Web(web), Some(connection)) => web.asked(connection).await?,
            (Way::Web(_), None) => bail!("no connection"),
        };
        if served {
            calls.push(started.elapsed());
        } else {
            refused.push(started.elapsed());
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// A server in this process, until it is dropped.
struct Served {
    address: String,
    kill: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

fn served(house: &House, service: &Arc<Service>) -> anyhow::Result<Served> {
    house.runtime.block_on(async {
        let anywhere = face::Address::parse("127.0.0.1:0").map_err(anyhow::Error::msg)?;
        let listener = face::Listener::bind(&anywhere)
            .await
            .map_err(anyhow::Error::msg)?;
        let address = listener.address()?.to_string();
        let background = background::stored(service.clone(), None);
        let opened = background.open_store().await;
        opened.map_err(anyhow::Error::msg)?;
        let callers = face::Callers::Own(WHO.to_owned());
        let (brokers, announced) = Default::default();
        let options = face::Options {
            style: Default::default(),
            callers,
            names: face::ServerNames::default(),
            tls: None,
            brokers,
            announced,
            model: None,
            uploads: Default::default(),
            page: false,
        };
        let kill = CancellationToken::new();
        tokio::spawn(face::serve(
            listener,
            options,
            background,
            CancellationToken::new(),
            kill.clone(),
        ));
        Ok(Served { address, kill })
    })
}

/// Executor, service, HTTP and MCP by turns.
fn compared(
    house: &House,
    plan: &Plan,
    board: &mut Board,
    tool: &str,
    gate: Gate,
) -> anyhow::Result<()> {
    let service = house.another_service(Settings::default())?;
    let server = served(house, &service)?;
    let of_tool = house.tool(tool)?;
    let executor: Arc<dyn Executor> = if tool == "typed" {
        house.wasm.clone()
    } else {
        house.scripts.clone()
    };
    let ways = [
        ("executor", Way::Executor(executor, Box::new(of_tool))),
        ("service", Way::service(&service, tool)),
        ("HTTP", Way::Web(Web::http(&server.address, tool))),
        ("MCP", Way::Web(Web::mcp(&server.address, tool))),
    ];
    let (rounds, length) = if plan.quick { (2, 300) } else { (8, 500) };
    for clients in CLIENTS {
        let mut all = ways.each_ref().map(|(name, _)| Seen::new(name));
        // So that launchers and workers are up.
        Seen::new("").slice(
            house,
            &ways[1].1,
            clients,
            Until::Time(Duration::from_millis(300)),
        )?;
        for _ in 0..rounds {
            for (seen, (_, way)) in all.iter_mut().zip(&ways) {
                seen.slice(
                    house,
                    way,
                    clients,
                    Until::Time(Duration::from_millis(length)),
                )?;
            }
        }
        board.base(&all[0].shown(clients));
        for seen in &all[1..] {
            board.beside(&seen.shown(clients), &all[0].calls, Gate::None);
        }
        let [_, service, http, mcp] = &all;
        for seen in [http, mcp] {
            let added = (seen.calls.p50() - service.calls.p50()) * 1e3;
            let gate = if clients == 8 { gate } else { Gate::None };
            board.number(
                &format!("{clients:>2} clients: {} adds, ms, p50", seen.calls.name),
                added,
                gate,
            );
        }
    }
    board
        .note("ratio: p50 / the executor alone; what is added is the p50 less that of the service");
    Ok(())
}

pub fn wasi(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("clients of a typed WASI tool");
    compared(house, plan, board, "typed", Gate::AtMost(1.0))
}

/// Without a gate: two cores share the interpreters of all clients, and a p50 moves by more than a
/// transport takes.
pub fn python(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("clients of a Python tool");
    if house.version(Language::Python).is_none() {
        board.skip("clients of a Python tool", "not found on PATH");
        return Ok(());
    }
    compared(house, plan, board, "python", Gate::None)
}

/// 64 clients of a host in which 4 calls run and 4 wait, of one tool three quarters, beside 6
/// clients of the same host.
pub fn full(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    board.section("a full queue: 4 run, 4 wait");
    let service = house.another_service(Settings {
        max_running: 4,
        max_queued: 4,
        ..Settings::default()
    })?;
    let server = served(house, &service)?;
    let way = Way::Web(Web::http(&server.address, "typed"));
    let length = Until::Time(Duration::from_millis(if plan.quick { 300 } else { 1000 }));
    let (mut few, mut many) = (Seen::new("HTTP"), Seen::new("HTTP"));
    for _ in 0..if plan.quick { 2 } else { 6 } {
        few.slice(house, &way, 6, length)?;
        many.slice(house, &way, 64, length)?;
    }
    board.base(&few.shown(6));
    board.beside(&many.shown(64), &few.calls, Gate::None);
    let mut refused = many.refused.clone();
    refused.name = format!(
        "64 clients, refused {:>8.0} a s",
        refused.len() as f64 / many.busy.as_secs_f64()
    );
    board.base(&refused);
    ensure!(refused.len() > 0, "the queue was never full");
    let p99 = |seen: &Seen| seen.calls.percent(99).as_secs_f64();
    board.number(
        "p99, full / with room",
        p99(&many) / p99(&few),
        Gate::AtMost(6.0),
    );
    Ok(())
}

/// The memory of a server of its own, after the first thousand calls and after many.
pub fn memory(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let calls = if plan.long {
        100_000
    } else {
        plan.rounds(10_000).max(1000)
    };
    board.section(&format!("memory of a server, {calls} calls by 8 clients"));
    let server = Apart::start(house)?;
    let way = Way::Web(Web::http(&server.address, "typed"));
    let mut seen = Seen::new("HTTP");
    let mut made = |calls: usize| seen.slice(house, &way, 8, Until::Calls(calls / 8));
    made(1000)?;
    let before = server.resident_mib()?;
    let began = Instant::now();
    made(calls)?;
    let rate = calls as f64 / began.elapsed().as_secs_f64();
    let after = server.resident_mib()?;
    board.number("resident after 1000 calls, MiB", before, Gate::None);
    board.number(
        &format!("and {calls} later, MiB ({rate:.0} calls/s)"),
        after,
        Gate::None,
    );
    board.number("later / before", after / before, Gate::AtMost(1.25));
    Ok(())
}

/// `toolhost serve`, a process of its own.
struct Apart {
    child: Child,
    address: String,
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Apart {
    fn start(house: &House) -> anyhow::Result<Apart> {
        let mut command = house.server()?;
        let mut child = command
            .args(["serve", "--http", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(child.stderr.take().context("stderr")?).lines();
        let line = said.by_ref().find(|line| {
            !line
                .as_ref()
                .is_ok_and(|line| !line.contains("serving http at "))
        });
        std::thread::spawn(move || said.for_each(drop));
        let line = line.transpose()?.unwrap_or_default();
        let address = line
            .split(" at ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_default()
            .to_owned();
        ensure!(!address.is_empty(), "the server does not start: {line}");
        Ok(Apart { child, address })
    }

    fn resident_mib(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        });
        let kib: f64 = kib.context("VmRSS")?;
        Ok(kib / 1024.0)
    }
}
