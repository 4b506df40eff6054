//! A service on a folder of its own, with an executor that does what a script's name says.

use crate::harness::service::{executors, service_on};
use crate::harness::{manifest, script};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolhost::executor::{
    self, Call, Context, Denials, Ending, Executor, Outcome, Running, ToolSender, Usage,
};
use toolhost::manifest::Language;
use toolhost::service::{
    Arguments, CallRequest, Caller, Event, Executors, Report, Service, Settings, Sink,
};
use toolhost::{policy, quantity};

/// An executor whose scripts are their file names.
#[derive(Default)]
pub struct Fake {
    pub runs: AtomicUsize,
    /// Calls that were dropped before they ended.
    pub dropped: Arc<AtomicUsize>,
    pub seen: Mutex<Vec<policy::Confinement>>,
}

struct OnDrop(Arc<AtomicUsize>, bool);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Executor for Fake {
    fn run<'a>(&'a self, context: &'a Context, call: Call, events: &'a ToolSender) -> Running<'a> {
        Box::pin(async move {
            self.runs.fetch_add(1, Ordering::SeqCst);
            let confinement = call.confinement.expect("scripts are confined");
            let mut guard = OnDrop(self.dropped.clone(), false);
            let script = confinement
                .shape
                .script
                .clone()
                .unwrap_or_else(|| PathBuf::from("source"));
            let name = script
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let limit_ms = confinement.per_call.timeout_ms;
            let source = confinement.per_call.source.clone();
            self.seen.lock().unwrap().push(confinement);
            let mut logs = Vec::new();
            let input = call.input;
            let ending = match name.as_str() {
                "echo" => Ending::answer(&json!({"received_message": input["message"]})),
                "whole" => Ending::answer(&input),
                "user" => {
                    tokio::time::sleep(Duration::from_millis(input["delay"].as_u64().unwrap_or(0)))
                        .await;
                    Ending::answer(&json!({"user": context.user, "n": input["n"]}))
                }
                "text" => Ending::answer(&json!("plain \u{202e}text")),
                "list" => Ending::answer(&json!([1, 2])),
                "long_running" => {
                    tokio::time::sleep(Duration::from_millis(limit_ms)).await;
                    Ending::TimedOut { limit_ms }
                }
                "fails" => {
                    logs.push("Traceback \u{1b}[31m".into());
                    logs.push(format!(
                        "bad token {}",
                        input["token"].as_str().unwrap_or("none")
                    ));
                    Ending::Exited { code: 3 }
                }
                "panics" => panic!("the executor has a bug"),
                "over" => Ending::OverLimit {
                    limit: quantity::Limit::MemoryBytes,
                    allowed: 209_715_200,
                },
                "source" => Ending::answer(&json!({"source": source})),
                other => Ending::Raised {
                    message: format!("no such fake: {other}"),
                },
            };
            events.log("live line".into());
            guard.1 = true;
            Ok(outcome(ending, logs))
        })
    }
}

pub fn outcome(ending: Ending, logs: Vec<String>) -> Outcome {
    Outcome {
        ending,
        parts: false,
        logs,
        printed: Vec::new(),
        usage: Usage {
            wall_ms: 1,
            ..Usage::default()
        },
        layers: [executor::LayerState {
            name: "fake".into(),
            state: "active".into(),
            why: "a test".into(),
        }]
        .into(),
        denials: Denials::default(),
        attempts: Vec::new(),
        artifacts: Vec::new(),
    }
}

pub struct World {
    pub folder: tempfile::TempDir,
    pub service: Arc<Service>,
    pub fake: Arc<Fake>,
}

/// One manifest per script of the fake, and the core tools.
pub fn world() -> World {
    world_with(|_, _| {})
}

pub fn world_with(more: impl FnOnce(&Path, &mut Executors)) -> World {
    world_of(Settings::default(), more)
}

pub fn world_of(settings: Settings, more: impl FnOnce(&Path, &mut Executors)) -> World {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    for name in [
        "user_scripts/examples",
        "user_scripts/free",
        "tool-defs",
        "sandbox-policies",
    ] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(
        root.join("sandbox-policies/core.policy.toml"),
        "name = \"core\"\nwhy = \"the builtin tools\"\ntools = [\"core:execute-python-script\", \
         \"core:execute-nodejs-script\", \"core:execute-script\", \
         \"core:run-code\"]\n[files]\nread = [{ path = \"./**\", why = \"own folder\" }]\nwrite = \
         [{ path = \"./.cache/**\", why = \"the seed's example asks for it\" }]\n",
    )
    .unwrap();
    for (name, extra) in [
        (
            "echo",
            json!({"execution": {"env": {"GREETING": "hello", "TOKEN": "none"}}}),
        ),
        (
            "whole",
            json!({"parameters": {"type": "object", "properties": {
            "timeoutMs": {"type": "integer", "description": "d", "minimum": 100},
            "inputData": {"type": "object", "description": "d", "additionalProperties": true}}}}),
        ),
        ("user", json!({})),
        ("text", json!({"output": {"type": "string"}})),
        ("list", json!({})),
        (
            "wrong",
            json!({"output": {"type": "object", "required": ["sum"]}}),
        ),
        ("long_running", json!({"execution": {"timeoutMs": 1500}})),
        (
            "fails",
            json!({"execution": {"env": {"KEY": "none"}}, "parameters": {"type": "object", "properties": {
            "open": {"type": "string", "description": "d"},
            "token": {"type": "string", "description": "d", "writeOnly": true}}}}),
        ),
        ("panics", json!({})),
        ("over", json!({})),
        (
            "greedy",
            json!({"securityContext": {"fileAccess": {"allowWrite": ["/srv/greedy/**"]}}}),
        ),
    ] {
        let file = if name == "wrong" { "whole" } else { name };
        fs::write(
            root.join(format!("user_scripts/examples/{file}.py")),
            "pass\n",
        )
        .unwrap();
        define(
            &root,
            &format!("fake:{name}"),
            script(format!("examples/{file}.py"), "python"),
            extra,
        );
    }
    // A script that no manifest names: only the builtin tools and their policy speak for it.
    fs::write(root.join("user_scripts/free/echo.py"), "pass\n").unwrap();
    let fake = Arc::new(Fake::default());
    let mut executors = executors(fake.clone(), executor::method::Methods::new());
    more(&root, &mut executors);
    let service = service_on(&root, machine(), executors, settings);
    World {
        folder,
        service,
        fake,
    }
}

pub fn machine() -> policy::Machine {
    let python = policy::Runtime {
        language: Language::Python,
        program: policy::Program::Path("/usr/bin/python3".into()),
        arguments: vec!["-s".into(), "-E".into(), "-B".into()],
        roots: vec!["/usr".into()],
        version: "3.12".into(),
        found: "PATH".into(),
        environment: None,
    };
    policy::Machine {
        runtimes: BTreeMap::from([(Language::Python, python)]),
        ..policy::Machine::default()
    }
}

impl World {
    pub fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Report {
        self.service
            .call(request(tool, arguments), Sink::none())
            .await
    }

    /// A call under way: its events, and its report. Dropping the set drops the call.
    pub fn start(&self, request: CallRequest) -> (mpsc::Receiver<Event>, JoinSet<Report>) {
        let (service, (sink, events)) = (self.service.clone(), Sink::new(16));
        let mut call = JoinSet::new();
        call.spawn(async move { service.call(request, sink).await });
        (events, call)
    }

    /// The records of the audit log.
    pub fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.root().join("state/audit.jsonl")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn runs(&self) -> usize {
        self.fake.runs.load(Ordering::SeqCst)
    }
}

pub fn caller() -> Caller {
    Caller::named("alice")
}

pub fn request(tool: &str, arguments: Value) -> CallRequest {
    CallRequest::new(caller(), tool, Arguments::Value(arguments))
}

/// A request whose arguments are JSON text, as the tool-service contract brings them.
pub fn written(user: &str, tool: &str, arguments: &Value) -> CallRequest {
    CallRequest::new(
        Caller::named(user),
        tool,
        Arguments::Text(arguments.to_string()),
    )
}

/// A tool of a world: its manifest, in a file of its own.
pub fn define(root: &Path, id: &str, handler: Value, more: Value) {
    let file = root.join(format!(
        "tool-defs/{}.tool.json",
        id.trim_start_matches("fake:").replace(':', "-")
    ));
    fs::write(file, manifest(id, handler, more).to_string()).unwrap();
}
