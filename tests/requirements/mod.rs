//! Requirements that only a whole host can show: the real binary, or the real service with the real executors
//! behind the real walls, judged from outside.

mod agents_scripts;
mod answers;
mod documents;
mod engines;
mod floods;
mod grants;
mod interpreters;
mod killed;
mod kinds;
mod listing;
mod logs;
mod modules;
mod names;
mod owners;
mod ownership;
mod places;
mod plants;
mod reload;
mod removal;
mod search_path;
mod segments;
mod signals;
mod swaps;

use crate::escapes::{self, Playground, Who, is_root, skipped};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use toolhost::executor::method::Methods;
use toolhost::executor::process::{Launchers, Scripts};
use toolhost::sandbox::identity;
use toolhost::service::{Executors, Parts, Rules, Service, Settings, audit};
use toolhost::{policy, registry, runtimes};

/// Where the playground's host looks for interpreters.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Nothing here takes this long: an answer that has not come by then never comes.
const PATIENCE: Duration = Duration::from_secs(40);

/// Runs a test as root, where that is possible, and as an ordinary user.
fn as_everyone(what: &str, test: impl Fn(Who)) {
    for who in [Who::Root, Who::User] {
        match who.possible() {
            true => test(who),
            false => skipped(1, &format!("{what} as root needs root")),
        }
    }
}

/// Who runs the tests, for what runs inside this very process.
fn ourselves() -> Who {
    if is_root() { Who::Root } else { Who::User }
}

fn found(program: &str) -> Option<PathBuf> {
    std::env::split_paths(SEARCH_PATH).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Whether this machine can run the language; if not, that is said, and in CI it fails.
fn has(language: &str, count: usize) -> bool {
    let program = match language {
        "python" => "python3",
        "nodejs" => "node",
        "wasm" => return cfg!(feature = "wasi"),
        other => other,
    };
    if found(program).is_some() {
        return true;
    }
    assert!(std::env::var_os("TOOLHOST_CI").is_none(), "CI must have it: {program}");
    skipped(count, &format!("no {program} on this machine"));
    false
}

/// Waits until so many calls of a tool run.
fn runs(playground: &Playground, script: &str, wanted: usize) {
    let script = playground.path(script).display().to_string();
    let until = Instant::now() + PATIENCE;
    while escapes::processes_of(&script).len() != wanted {
        assert!(Instant::now() < until, "{} calls run, not {wanted}", escapes::processes_of(&script).len());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A script `user_scripts/FILE` and its manifest beside it; returns the script's folder.
fn tool(playground: &Playground, id: &str, language: &str, file: &str, script: &str, more: Value) -> PathBuf {
    let path = playground.path("user_scripts").join(file);
    let folder = path.parent().unwrap().to_owned();
    fs::create_dir_all(&folder).unwrap();
    fs::write(&path, script).unwrap();
    let handler = json!({"type": "external-script", "scriptPath": file, "language": language});
    let name = id.replace(':', "-");
    fs::write(folder.join(format!("{name}.tool.json")), manifest(id, handler, more).to_string()).unwrap();
    folder
}

fn manifest(id: &str, handler: Value, more: Value) -> Value {
    let mut whole = json!({
        "toolId": id, "displayName": id, "description": format!("Tries {id}."), "version": "1.0.0", "handler": handler,
    });
    for (name, value) in more.as_object().cloned().unwrap_or_default() {
        match (whole.get_mut(&name), value) {
            // `handler` is added to, everything else replaced.
            (Some(Value::Object(there)), Value::Object(given)) => there.extend(given),
            (_, value) => whole[&name] = value,
        }
    }
    whole
}

/// How a program ended; `out` is what it printed, where that is JSON.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: Value,
    stdout: Vec<u8>,
    stderr: String,
}

impl Ended {
    fn kind(&self) -> &str {
        self.out["error"]["type"].as_str().unwrap_or("none")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Runs a command to its end with this input.
fn finish(command: Command, input: &[u8]) -> Ended {
    let ended = escapes::finish(command, input);
    let out = serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null);
    Ended { code: ended.code, out, stdout: ended.stdout, stderr: ended.stderr }
}

/// A verb of the real binary.
fn cli(playground: &Playground, arguments: &[&str]) -> Ended {
    let mut command = playground.host();
    command.args(arguments);
    finish(command, b"")
}

/// A call of the real binary: the whole outcome, as JSON.
fn call(playground: &Playground, tool: &str, input: &str) -> Ended {
    call_with(playground, tool, input, &[])
}

fn call_with(playground: &Playground, tool: &str, input: &str, more: &[&str]) -> Ended {
    let mut command = playground.host();
    command.args(["call", tool, "--json", "--input", "-"]).args(more);
    finish(command, input.as_bytes())
}

/// `ok`, `ok JSON` or `Kind: part of message, details or what the person is told`.
fn fits(wanted: &str, ended: &Ended) -> Result<(), String> {
    let kind = ended.kind();
    let error = &ended.out["error"];
    let told = format!("{} {} {}", error["message"], error["details"], ended.stderr);
    let good = match wanted.strip_prefix("ok") {
        Some(value) => {
            let value = value.trim();
            ended.out["success"] == true
                && (value.is_empty() || serde_json::from_str::<Value>(value).unwrap() == ended.out["outputData"])
        }
        None => {
            let (wanted, part) = wanted.split_once(": ").unwrap_or((wanted, ""));
            wanted == kind && told.contains(part)
        }
    };
    if good {
        return Ok(());
    }
    let output = ended.out["outputData"].to_string();
    Err(format!("wanted {wanted}, got {kind}: {told}; output {output}; logs {}", ended.out["logs"]))
}

/// An MCP session with `serve --stdio`, the real server.
struct Server {
    child: Child,
    to: Option<ChildStdin>,
    lines: Receiver<String>,
    next: u64,
    /// Everything it ever said.
    said: String,
}

impl Server {
    fn start(playground: &Playground) -> Server {
        let mut server = Server::silent(playground);
        let id = server.hello();
        assert!(server.answers(&[id]).contains_key(&id), "the server does not say hello");
        server
    }

    /// Started, and not spoken to.
    fn silent(playground: &Playground) -> Server {
        let mut command = playground.host();
        command.args(["serve", "--stdio"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Server { to: child.stdin.take(), child, lines, next: 0, said: String::new() }
    }

    fn hello(&mut self) -> u64 {
        let hello =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let id = self.ask("initialize", hello);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        id
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// `tool` by its id.
    fn call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.ask("tools/call", json!({"name": tool.replace(':', "__"), "arguments": arguments}))
    }

    /// One answer for each id, no more.
    fn answers(&mut self, ids: &[u64]) -> BTreeMap<u64, Value> {
        let until = Instant::now() + PATIENCE;
        let mut found = BTreeMap::new();
        while found.len() < ids.len() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else { panic!("no answer to some of {ids:?}: {found:?}") };
            self.said.push_str(&line);
            let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not a message: {e}: {line}"));
            let Some(id) = answer["id"].as_u64() else { continue };
            assert!(ids.contains(&id) && found.insert(id, answer).is_none(), "an answer nobody asked for: {line}");
        }
        found
    }

    fn called(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.call(tool, arguments);
        self.answers(&[id]).remove(&id).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The real service on a playground's folders: real loader, executors and walls, in this process.
fn service(playground: &Playground, methods: Methods) -> Arc<Service> {
    let root = &playground.base;
    let registry = registry::Registry::new();
    registry.add_source(Arc::new(registry::Builtin)).unwrap();
    let (tools, scripts) = (vec![root.join("tool-defs")], vec![root.join("user_scripts")]);
    registry.add_source(Arc::new(registry::DirectToolLoader::new(tools.clone(), scripts.clone()))).unwrap();
    let policies = policy::Policies::load_from(&root.join("sandbox-policies"), root).unwrap();
    let discovered =
        runtimes::discover(SEARCH_PATH.as_ref(), &runtimes::OffLimits::new(std::slice::from_ref(root), []));
    let binary = fs::File::open(env!("CARGO_BIN_EXE_toolhost")).unwrap();
    let launchers = Arc::new(Launchers::new(binary.into(), identity::POOL));
    Service::new(Parts {
        registry: Arc::new(registry),
        rules: Rules {
            policies: Arc::new(policies),
            machine: Arc::new(policy::Machine { runtimes: discovered.runtimes, ..policy::Machine::default() }),
        },
        executors: Executors {
            process: Some(Arc::new(Scripts::new(launchers.clone()))),
            wasm: None,
            methods: Arc::new(methods),
            extensions: BTreeMap::new(),
        },
        audit: audit::Log::new(root.join("state/audit.jsonl")),
        scripts: [scripts, tools].concat(),
        settings: Settings::default(),
    })
}

/// Copies a folder of the repository.
fn copy(from: &Path, to: &Path) {
    for entry in walkdir::WalkDir::new(from) {
        let entry = entry.unwrap();
        let target = to.join(entry.path().strip_prefix(from).unwrap());
        match entry.file_type().is_dir() {
            true => fs::create_dir_all(&target).unwrap(),
            false => drop(fs::copy(entry.path(), &target).unwrap()),
        }
    }
}

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
