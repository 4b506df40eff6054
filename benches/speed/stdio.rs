//! One client over standard input and output: the time, the processor time and the context switches
//! of a call, beside an echo tool on the official Python SDK, which confines nothing.
//!
//! Processor time and switches are read from `/proc`: they depend little on what else runs.

use super::Plan;
use super::board::{Board, Gate, Series};
use super::house::{BINARY, House};
use anyhow::{Context as _, ensure};
use nix::unistd::{SysconfVar, sysconf};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const CALLS: usize = 2000;
/// Calls before anything is measured: the module is compiled and its worker started.
const FIRST: usize = 200;
/// Calls of one server before it is the other's turn.
const TURN: usize = 100;

const SDK: &str = "from mcp.server import MCPServer\nserver = MCPServer('echo')\n\n\n\
                   @server.tool()\ndef echo(message: str) -> dict:\n    \
                   return {'message': message}\n\n\nserver.run()\n";

/// A server that was started by its only client.
struct Server {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    tool: &'static str,
    id: usize,
    times: Series,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(command: &mut Command, tool: &'static str, name: &str) -> anyhow::Result<Server> {
        let mut server = Server::begin(command, tool, name)?;
        for _ in 0..FIRST {
            server.call()?;
        }
        server.times = Series::new(name);
        Ok(server)
    }

    /// As `start`, before its first call.
    fn begin(command: &mut Command, tool: &'static str, name: &str) -> anyhow::Result<Server> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        let mut server = Server {
            to: child.stdin.take().context("stdin")?,
            from: BufReader::new(child.stdout.take().context("stdout")?),
            child,
            tool,
            id: 0,
            times: Series::new(name),
        };
        let client = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"}});
        server.ask("initialize", &client)?;
        let begun = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
        server.to.write_all(begun.as_bytes())?;
        Ok(server)
    }

    fn ask(&mut self, method: &str, params: &serde_json::Value) -> anyhow::Result<String> {
        self.id += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        self.to.write_all(format!("{request}\n").as_bytes())?;
        // A server may notify its client at any time.
        let answer = self
            .from
            .by_ref()
            .lines()
            .find(|line| !line.as_ref().is_ok_and(|line| line.contains("\"method\"")));
        Ok(answer.context("the server ended")??)
    }

    fn call(&mut self) -> anyhow::Result<()> {
        let params = json!({"name": self.tool, "arguments": {"message": "hello"}});
        let started = Instant::now();
        let answer = self.ask("tools/call", &params)?;
        self.times.push(started.elapsed());
        ensure!(
            answer.contains("hello") && !answer.contains("\"isError\":true"),
            "{}: {answer}",
            self.tool
        );
        Ok(())
    }

    /// What this server used until now, and its descendants.
    fn used(&self) -> anyhow::Result<(Used, Used)> {
        let host = self.child.id();
        let mut workers = Used::default();
        for worker in descendants(host)? {
            let used = Used::by(worker)?;
            workers.time += used.time;
            workers.switches += used.switches;
        }
        Ok((Used::by(host)?, workers))
    }
}

/// What the threads of a process used.
#[derive(Default)]
struct Used {
    time: Duration,
    /// Voluntary context switches.
    switches: u64,
}

impl Used {
    fn by(process: u32) -> anyhow::Result<Used> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        let (_, numbers) = stat.rsplit_once(')').context("stat")?;
        // The fields 14 and 15 (proc(5)); the first behind the name is the third.
        let ticks = numbers.split(' ').skip(12).take(2).map(str::parse::<f64>);
        let ticks = ticks.sum::<Result<f64, _>>()?;
        let a_second = sysconf(SysconfVar::CLK_TCK)?.context("CLK_TCK")? as f64;
        let mut switches = 0;
        for thread in threads(process)? {
            let status = fs::read_to_string(thread.join("status"))?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            switches += line.context("status")?.trim().parse::<u64>()?;
        }
        Ok(Used {
            time: Duration::from_secs_f64(ticks / a_second),
            switches,
        })
    }
}

fn threads(process: u32) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?)
}

fn descendants(process: u32) -> anyhow::Result<Vec<u32>> {
    let mut all = Vec::new();
    for thread in threads(process)? {
        for child in fs::read_to_string(thread.join("children"))?.split_whitespace() {
            let child = child.parse()?;
            all.push(child);
            all.extend(descendants(child)?);
        }
    }
    Ok(all)
}

/// The server on the SDK, where `TOOLHOST_TEST_VENV` names an environment with the package `mcp`.
fn sdk(house: &House) -> anyhow::Result<Server> {
    let venv = std::env::var_os("TOOLHOST_TEST_VENV");
    let venv = venv.context("TOOLHOST_TEST_VENV names no environment with the package mcp")?;
    let script = house.root.join("sdk.py");
    fs::write(&script, SDK)?;
    let mut command = Command::new(PathBuf::from(venv).join("bin/python"));
    Server::start(command.arg(script), "echo", "Python SDK, unconfined")
}

/// An MCP server of somebody else, without a library: what is measured is its process and the way
/// to it. `leave` ends it.
const OTHERS: &str = r#"
import json, os, sys
NAMES = ["echo", "leave"]
for line in sys.stdin:
    asked = json.loads(line)
    method, result = asked["method"], None
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "b", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]}
    elif method == "tools/call":
        result = {"content": [], "structuredContent": asked["params"]["arguments"]}
    if "id" in asked:
        said = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
    if method == "tools/call" and asked["params"]["name"] == "leave":
        os._exit(0)
"#;

/// How long a server that ended may take to be gone.
const GONE: Duration = Duration::from_millis(200);

/// A host with that server, approved.
fn host_of_others(root: &Path) -> anyhow::Result<impl Fn(&[&str]) -> Command> {
    let folder = root.join("user_scripts/others");
    fs::create_dir_all(&folder)?;
    fs::create_dir_all(root.join("sandbox-policies"))?;
    fs::create_dir_all(root.join("state"))?;
    fs::write(folder.join("server.py"), OTHERS)?;
    let manifest = json!({"toolId": "others:server", "displayName": "others", "description": "Echo.",
        "version": "1.0.0", "handler": {"type": "mcp", "scriptPath": "others/server.py", "language": "python"}});
    fs::write(folder.join("others.tool.json"), manifest.to_string())?;
    let callers = "[[caller]]\nname = \"*\"\nwhy = \"b\"\ntools = [\"*\"]\n\
                   [breaker]\nfailures = 1_000_000\nwhy = \"it leaves\"\n";
    fs::write(root.join("sandbox-policies/callers.policy.toml"), callers)?;
    let root = root.to_owned();
    let host = move |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("--root").arg(&root);
        command
            .arg("--audit-log")
            .arg(root.join("state/audit.jsonl"));
        command.args(words).stdout(Stdio::null());
        command
    };
    for words in [
        &["mcp", "refresh", "others:server"][..],
        &["approve", "others:server", "--why", "bench", "--yes"],
    ] {
        ensure!(host(words).status()?.success(), "{words:?}");
        std::thread::sleep(Duration::from_millis(1100));
    }
    Ok(host)
}

/// An MCP server behind the layers, beside the same script alone: its start, and a call.
pub fn others(_: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let rounds = plan.rounds(60);
    board.section(&format!("an MCP server of others, {rounds} starts"));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let host = host_of_others(folder.path())?;
    let script = folder.path().join("user_scripts/others/server.py");
    let mut bare = Command::new("python3");
    bare.arg(&script);
    let mut starts = [
        Series::new("bare, to its first answer"),
        Series::new("behind the layers"),
    ];
    let mut server = Server::start(
        &mut host(&["serve", "--stdio"]),
        "others__echo",
        "a call behind the layers",
    )?;
    for _ in 0..rounds {
        let began = Instant::now();
        let mut alone = Server::begin(&mut bare, "echo", "")?;
        alone.ask("tools/list", &json!({}))?;
        alone.call()?;
        starts[0].push(began.elapsed());
        server.ask(
            "tools/call",
            &json!({"name": "others__leave", "arguments": {"message": "hello"}}),
        )?;
        std::thread::sleep(GONE);
        let began = Instant::now();
        server.call()?;
        starts[1].push(began.elapsed());
    }
    board.base(&starts[0]);
    board.beside(&starts[1], &starts[0], Gate::AtMost(1.3));
    let mut alone = Server::start(&mut bare, "echo", "a call alone")?;
    server.times = Series::new("a call behind the layers");
    for _ in 0..CALLS / TURN {
        for server in [&mut server, &mut alone] {
            for _ in 0..TURN {
                server.call()?;
            }
        }
    }
    board.base(&alone.times);
    board.beside(&server.times, &alone.times, Gate::None);
    let added = (server.times.p50() - alone.times.p50()) * 1e3;
    board.number("added to a call, ms", added, Gate::AtMost(1.0));
    Ok(())
}

pub fn wasi(house: &House, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
    let calls = if plan.quick { 500 } else { CALLS };
    board.section(&format!("MCP over stdio, a typed WASI tool, {calls} calls"));
    let mut sdk = match sdk(house) {
        Ok(sdk) => Some(sdk),
        Err(why) => {
            board.skip("the Python SDK beside it", &format!("{why:#}"));
            None
        }
    };
    let mut command = house.server()?;
    command.args(["serve", "--stdio"]);
    let mut server = Server::start(&mut command, "bench__typed", "toolhost")?;
    let (host, workers) = server.used()?;
    for _ in 0..calls / TURN {
        for server in [&mut server].into_iter().chain(sdk.as_mut()) {
            for _ in 0..TURN {
                server.call()?;
            }
        }
    }
    let (host_now, workers_now) = server.used()?;
    match &sdk {
        Some(sdk) => {
            board.base(&sdk.times);
            board.beside(&server.times, &sdk.times, Gate::AtMost(0.35));
        }
        None => board.base(&server.times),
    }
    let of_a_call = |more: f64| more / calls as f64;
    let host_time = (host_now.time - host.time).as_secs_f64() * 1e6;
    let worker_time = (workers_now.time - workers.time).as_secs_f64() * 1e6;
    board.number(
        "processor time of the host, µs",
        of_a_call(host_time),
        Gate::None,
    );
    board.number("and of its worker, µs", of_a_call(worker_time), Gate::None);
    let both = of_a_call(host_time + worker_time);
    board.number("of both, µs", both, Gate::AtMost(200.0));
    let switches = (host_now.switches - host.switches) as f64;
    board.number(
        "voluntary switches of the host",
        of_a_call(switches),
        Gate::AtMost(4.0),
    );
    let switches = (workers_now.switches - workers.switches) as f64;
    board.number("and of its worker", of_a_call(switches), Gate::None);
    Ok(())
}
