//! A running server, spoken to over MCP, and what it holds.

use super::{PATIENCE, Playground, parent_of, processes_of, signal};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// An MCP session with `serve --stdio`.
pub struct Server {
    pub child: Child,
    /// Dropped to say good-bye.
    pub to: Option<ChildStdin>,
    lines: Receiver<String>,
    next: u64,
    /// Everything it ever said.
    pub said: String,
}

impl Server {
    pub fn start(playground: &Playground) -> Server {
        Server::greeted(Server::silent(playground))
    }

    /// Of this host, a command without its verb.
    pub fn of(mut host: Command) -> Server {
        host.args(["serve", "--stdio"]);
        Server::with(host)
    }

    /// Of this command, and what it says on standard error.
    pub fn heard(serve: Command) -> (Server, std::process::ChildStderr) {
        let mut server = Server::said(serve, Stdio::piped());
        let err = server.child.stderr.take().unwrap();
        (Server::greeted(server), err)
    }

    /// Of this command.
    pub fn with(serve: Command) -> Server {
        Server::greeted(Server::said(serve, Stdio::null()))
    }

    fn greeted(mut server: Server) -> Server {
        let id = server.hello();
        server.answers(&[id]);
        server
    }

    /// Started, and not spoken to.
    pub fn silent(playground: &Playground) -> Server {
        let mut command = playground.host();
        command.args(["serve", "--stdio"]);
        if playground.path("state/tmp").is_dir() {
            command.env("TMPDIR", playground.path("state/tmp"));
        }
        Server::said(command, Stdio::null())
    }

    fn said(mut command: Command, err: Stdio) -> Server {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(err)
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Server {
            to: child.stdin.take(),
            child,
            lines,
            next: 0,
            said: String::new(),
        }
    }

    pub fn hello(&mut self) -> u64 {
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let id = self.ask("initialize", hello);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        id
    }

    pub fn send(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    pub fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// `tool` by its id.
    pub fn call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.ask(
            "tools/call",
            json!({"name": tool.replace(':', "__"), "arguments": arguments}),
        )
    }

    /// A tool `esc:NAME` with a number.
    pub fn call_n(&mut self, name: &str, n: u64) -> u64 {
        self.call(&format!("esc:{name}"), json!({"n": n}))
    }

    /// The next request of the server with this method.
    pub fn request(&mut self, method: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a request");
            let message: Value = serde_json::from_str(&line).expect("a message");
            if message["method"] == method {
                return message;
            }
        }
    }

    /// One answer for each id, no more.
    pub fn answers(&mut self, ids: &[u64]) -> BTreeMap<u64, Value> {
        let until = Instant::now() + PATIENCE;
        let mut found = BTreeMap::new();
        while found.len() < ids.len() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no answer to some of {ids:?}: {found:?}")
            };
            self.said.push_str(&line);
            let answer: Value = serde_json::from_str(&line)
                .unwrap_or_else(|e| panic!("not a message: {e}: {line}"));
            let Some(id) = answer["id"].as_u64() else {
                continue;
            };
            assert!(
                ids.contains(&id) && found.insert(id, answer).is_none(),
                "an answer nobody asked for: {line}"
            );
        }
        found
    }

    /// Asks, and waits for the answer.
    pub fn asked(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        self.answers(&[id]).remove(&id).unwrap()
    }

    pub fn called(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.call(tool, arguments);
        self.answers(&[id]).remove(&id).unwrap()
    }

    /// The names of the tools that it lists.
    pub fn names(&mut self) -> Vec<String> {
        let answer = self.asked("tools/list", json!({}));
        let tools = answer["result"]["tools"].as_array().unwrap();
        tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    }

    pub fn hang_up(&self) {
        signal(self.child.id(), Signal::SIGHUP);
    }

    /// Has it read tools and policies again, and waits until that can be seen.
    pub fn reload(&mut self, what: &str, mut seen: impl FnMut(&mut Server) -> bool) {
        self.hang_up();
        super::wait_for(what, || seen(self));
    }

    /// Its open descriptors, and the launchers it keeps, once nothing moves.
    pub fn holds_at_rest(&self) -> (usize, usize) {
        holds_at_rest(self.child.id())
    }
}

fn holds(host: u32) -> (usize, usize) {
    let launchers = processes_of("toolhost-launcher")
        .into_iter()
        .filter(|(pid, _)| parent_of(*pid) == Some(host));
    (
        fs::read_dir(format!("/proc/{host}/fd")).map_or(0, Iterator::count),
        launchers.count(),
    )
}

/// Open descriptors of a host, and the launchers it keeps, once nothing moves: what ended is reaped
/// by a thread of its own.
pub fn holds_at_rest(host: u32) -> (usize, usize) {
    let until = Instant::now() + Duration::from_secs(10);
    let (mut seen, mut same) = (holds(host), 0);
    while same < 25 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        let now = holds(host);
        same = if now == seen { same + 1 } else { 0 };
        seen = now;
    }
    seen
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a model reads of an answer.
pub fn words(answer: &Value) -> String {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The type of an answer's error, or `none`.
pub fn kind(answer: &Value) -> String {
    if answer["result"]["isError"] != true {
        return "none".into();
    }
    if let Some(kind) = answer["result"]["structuredContent"]["error"]["type"].as_str() {
        return kind.to_owned();
    }
    let kinds = "ScriptError TimeoutError ResourceLimitError InternalError CapabilityError \
                 RateLimitError SecurityError CircuitOpenError";
    let text = words(answer);
    kinds
        .split(' ')
        .find(|kind| text.contains(kind))
        .map_or(text.clone(), str::to_owned)
}
