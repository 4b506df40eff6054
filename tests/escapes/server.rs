//! A running server, spoken to over MCP, and what it holds.

use super::playground::{Playground, processes_of};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use toolhost::sandbox::launcher::NAME as LAUNCHER;

/// An MCP session with `serve --stdio`.
pub struct Server {
    pub child: Child,
    /// Dropped to say good-bye.
    pub to: Option<ChildStdin>,
    lines: Receiver<Value>,
    next: u64,
}

impl Server {
    pub fn start(playground: &Playground) -> Server {
        let mut command = playground.host();
        command.args(["serve", "--stdio"]);
        if playground.path("state/tmp").is_dir() {
            command.env("TMPDIR", playground.path("state/tmp"));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or_else(|e| json!({"broken": format!("{e}: {line}")}));
                if send.send(value).is_err() {
                    return;
                }
            }
        });
        let mut server = Server { to: child.stdin.take(), child, lines, next: 0 };
        let hello =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let id = server.ask("initialize", hello);
        assert!(server.answers(&[id], Duration::from_secs(20)).contains_key(&id));
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        server
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

    pub fn call(&mut self, tool: &str, n: u64) -> u64 {
        self.ask("tools/call", json!({"name": format!("esc__{tool}"), "arguments": {"n": n}}))
    }

    /// One answer for each id, no more; whoever waits for one that does not come fails.
    pub fn answers(&self, ids: &[u64], patience: Duration) -> BTreeMap<u64, Value> {
        let until = Instant::now() + patience;
        let mut found = BTreeMap::new();
        while found.len() < ids.len() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(answer) = self.lines.recv_timeout(left) else { break };
            assert!(answer["broken"].is_null(), "not a message: {answer}");
            let Some(id) = answer["id"].as_u64() else { continue };
            assert!(ids.contains(&id), "an answer nobody asked for: {answer}");
            assert!(found.insert(id, answer).is_none(), "two answers to {id}");
        }
        found
    }

    /// Open descriptors of the server, and the launchers it keeps.
    pub fn holds(&self) -> (usize, usize) {
        let own = self.child.id();
        let launchers = processes_of(LAUNCHER).into_iter().filter(|(pid, _)| parent_of(*pid) == Some(own));
        (fs::read_dir(format!("/proc/{own}/fd")).map_or(0, Iterator::count), launchers.count())
    }

    /// The same once nothing moves: what ended is reaped by a thread of its own.
    pub fn holds_at_rest(&self) -> (usize, usize) {
        let until = Instant::now() + Duration::from_secs(10);
        let (mut seen, mut same) = (self.holds(), 0);
        while same < 10 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.holds();
            same = if now == seen { same + 1 } else { 0 };
            seen = now;
        }
        seen
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The type of an answer's error, or `none`.
pub fn kind(answer: &Value) -> String {
    if answer["result"]["isError"] != true {
        return "none".into();
    }
    let structured = answer["result"]["structuredContent"]["error"]["type"].as_str().map(str::to_owned);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    structured.unwrap_or_else(|| {
        let at = [
            "ScriptError",
            "TimeoutError",
            "ResourceLimitError",
            "InternalError",
            "CapabilityError",
            "RateLimitError",
            "SecurityError",
            "CircuitOpenError",
        ];
        at.iter().find(|kind| text.contains(*kind)).map_or_else(|| text.to_owned(), |kind| (*kind).to_owned())
    })
}
