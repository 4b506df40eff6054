//! WASI tools, by the executor alone, behind the same layers as everywhere. Modules are written here
//! as text; each says what it tries, and the outcome is judged from outside.

use crate::prelude::*;
use toolhost::executor::process::Launchers;
use toolhost::executor::wasm::{Cache, Role, Wasm};
use toolhost::executor::{
    Call, CallDeadline, Context, Ending, Event, Executor, Outcome, ToolSender,
};
use toolhost::fault::{Fault, Kind};
use toolhost::manifest;
use toolhost::policy::{self, Access, Area, Confinement, Grant, PerCall, Shape};
use toolhost::quantity::{Limit, MIB};
use toolhost::sandbox::identity;

mod denials;
mod endings;
mod limits;
mod shapes;
mod workers;

// ---- one tool, ready to be called ----

struct Tool {
    base: tempfile::TempDir,
    wasm: Wasm,
    shape: Shape,
}

impl Tool {
    fn new(module: impl AsRef<[u8]>) -> Tool {
        let base = tempfile::tempdir_in("/var/tmp").expect("tempdir");
        let folder = base.path().join("tool");
        fs::create_dir(&folder).expect("folder");
        let script = folder.join("tool.wat");
        fs::write(&script, module).expect("module");
        let wasm = wasm(base.path());
        let shape = shape(folder, script);
        Tool { base, wasm, shape }
    }

    /// What the cache holds; an entry that was made again has another number.
    fn entries(&self) -> Vec<(PathBuf, u64)> {
        let all = fs::read_dir(self.base.path().join("cache"))
            .expect("cache")
            .map(|entry| entry.expect("entry"));
        let all = all.filter(|entry| !entry.file_name().to_string_lossy().ends_with(".lock"));
        all.map(|entry| (entry.path(), entry.metadata().expect("entry").ino()))
            .collect()
    }

    /// Workers that wait for a call.
    fn idle(&self) -> usize {
        self.wasm.gauges().iter().map(|gauge| gauge.value).sum()
    }

    fn limit(mut self, limit: Limit, value: u64) -> Tool {
        self.shape.limits.set(limit, value);
        self
    }

    fn grant(mut self, access: Access, path: &Path) -> Tool {
        let area = Area::Tree(path.to_owned());
        let (asked, rule, why) = (String::new(), String::new(), String::new());
        self.shape.grants.push(Grant {
            access,
            area,
            asked,
            rule,
            why,
        });
        self
    }

    fn folder(&self) -> PathBuf {
        self.shape.folder.clone()
    }

    async fn call(&self, input: Value) -> Result<Outcome, Fault> {
        self.call_for(input, 60_000).await
    }

    async fn call_for(&self, input: Value, timeout_ms: u64) -> Result<Outcome, Fault> {
        let context = context();
        let events = ToolSender::unheard();
        let order = self.order(input, timeout_ms).await?;
        self.wasm.run(&context, order, &events).await
    }

    async fn order(&self, input: Value, timeout_ms: u64) -> Result<Call, Fault> {
        let script = Some(
            self.wasm
                .read(&self.shape, &CallDeadline::usual("", None))
                .await?
                .into(),
        );
        let per_call = PerCall {
            timeout_ms,
            script,
            ..PerCall::default()
        };
        let site = manifest::ToolPaths {
            manifest: self.shape.folder.join("x.tool.json"),
            base: self.shape.folder.clone(),
            script: self.shape.script.clone(),
            folder: self.shape.folder.clone(),
            links: Vec::new(),
        };
        let confinement = Some(Confinement {
            shape: self.shape.clone().into(),
            per_call,
        });
        Ok(Call {
            manifest: Arc::new(made_of(
                "t:wasm",
                json!({"type": "definition-only"}),
                json!({}),
            )),
            site,
            input,
            confinement,
            service: None,
            output_bytes: u64::MAX,
            session: None,
            environment: None,
        })
    }

    async fn ending(&self, input: Value) -> Ending {
        self.call(input).await.expect("an outcome").ending
    }

    async fn refusal(&self) -> String {
        let fault = self.call(json!({})).await.expect_err("refused");
        assert_eq!(fault.kind, Kind::ScriptError, "{fault:?}");
        fault.message
    }
}

fn wasm(base: &Path) -> Wasm {
    let binary = fs::File::open(env!("CARGO_BIN_EXE_toolhost")).expect("the binary");
    let cache = Cache::open(&base.join("cache")).expect("cache");
    Wasm::new(
        Arc::new(Launchers::new(binary.into(), identity::POOL)),
        cache,
    )
}

fn context() -> Context {
    Context::new("call", "tester", Arc::default())
}

fn shape(folder: PathBuf, script: PathBuf) -> Shape {
    let runtime = policy::Runtime::ourselves(Role::Worker.name());
    Shape {
        script: Some(script),
        folder,
        ..Shape::bare("t:wasm@1.0.0", runtime)
    }
}

// ---- modules ----

/// A typed component; `body` is `run(ptr, len) -> pointer to {discriminant, ptr, len}`.
fn typed(body: &str) -> String {
    include_str!("typed.wat").replace("BODY", body)
}

fn typed_echo() -> String {
    typed("(call $answer (i32.const 0) (local.get $ptr) (local.get $len))")
}

/// A preview 1 command with small helpers; `data` are data segments, `body` is `_start`.
fn command(data: &str, body: &str) -> String {
    include_str!("command.wat")
        .replace("DATA", data)
        .replace("BODY", body)
}

fn command_echo() -> String {
    command("", "(call $echo)")
}

/// `wasi:cli/run`, made as a compiler would make it.
fn cli_component() -> Vec<u8> {
    use wasi_preview1_component_adapter_provider as adapter;
    let module = wat::parse_str(command_echo()).expect("wat");
    wit_component::ComponentEncoder::default()
        .module(&module)
        .expect("module")
        .adapter(
            adapter::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
            adapter::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
        )
        .expect("adapter")
        .encode()
        .expect("component")
}

const SPIN: &str = "(loop $l (br $l))";
