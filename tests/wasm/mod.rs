//! WASI tools, by the executor alone, behind the same walls as everywhere. Modules are written here as text; each says
//! what it tries, and the outcome is judged from outside.

use crate::prelude::*;
use toolhost::executor::process::Launchers;
use toolhost::executor::wasm::{Cache, Role, Wasm};
use toolhost::executor::{Call, Context, Ending, Event, Events, Executor, Outcome};
use toolhost::fault::{Fault, Kind};
use toolhost::manifest;
use toolhost::policy::{self, Access, Confinement, Grant, Opening, PerCall, Shape};
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
        std::fs::create_dir(&folder).expect("folder");
        let script = folder.join("tool.wat");
        std::fs::write(&script, module).expect("module");
        let wasm = wasm(base.path());
        let shape = shape(folder, script);
        Tool { base, wasm, shape }
    }

    /// What the cache holds; an entry that was made again has another number.
    fn entries(&self) -> Vec<(PathBuf, u64)> {
        use std::os::unix::fs::MetadataExt;
        let all = std::fs::read_dir(self.base.path().join("cache")).expect("cache").map(|entry| entry.expect("entry"));
        let all = all.filter(|entry| !entry.file_name().to_string_lossy().ends_with(".lock"));
        all.map(|entry| (entry.path(), entry.metadata().expect("entry").ino())).collect()
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
        let opening = Opening::Live { path: path.to_owned() };
        let (asked, rule, why) = (String::new(), String::new(), String::new());
        self.shape.grants.push(Grant { access, opening, asked, rule, why });
        self
    }

    fn folder(&self) -> PathBuf {
        self.shape.folder.clone()
    }

    async fn call(&self, input: Value) -> Result<Outcome, Fault> {
        self.call_for(input, 10_000).await
    }

    async fn call_for(&self, input: Value, timeout_ms: u64) -> Result<Outcome, Fault> {
        let context = context();
        let events = Events::unheard();
        self.wasm.run(&context, self.order(input, timeout_ms), &events).await
    }

    fn order(&self, input: Value, timeout_ms: u64) -> Call {
        let per_call = PerCall { timeout_ms, ..PerCall::default() };
        let site = manifest::Site {
            manifest: self.shape.folder.join("x.tool.json"),
            base: self.shape.folder.clone(),
            script: self.shape.script.clone(),
            folder: self.shape.folder.clone(),
        };
        let confinement = Some(Confinement { shape: self.shape.clone().into(), per_call });
        Call {
            manifest: Arc::new(made_of("t:wasm", json!({"type": "definition-only"}), json!({}))),
            site,
            input,
            confinement,
            service: None,
            output_bytes: u64::MAX,
        }
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
    let binary = std::fs::File::open(env!("CARGO_BIN_EXE_toolhost")).expect("the binary");
    let cache = Cache::open(&base.join("cache")).expect("cache");
    Wasm::new(Arc::new(Launchers::new(binary.into(), identity::POOL)), cache)
}

fn context() -> Context {
    Context::new("call", "tester", Arc::default())
}

fn shape(folder: PathBuf, script: PathBuf) -> Shape {
    let runtime = policy::Runtime::ourselves(Role::Worker.name());
    Shape { script: Some(script), folder, ..Shape::bare("t:wasm@1.0.0", runtime) }
}

// ---- modules ----

/// A typed component; `body` is `run(ptr, len) -> pointer to {discriminant, ptr, len}`.
fn typed(body: &str) -> String {
    format!(
        r#"(component
  (core module $m
    (memory (export "memory") 2)
    (global $next (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (global.get $next))
      (global.set $next (i32.add (global.get $next) (local.get 3)))
      (local.get $at))
    (func $answer (param $tag i32) (param $ptr i32) (param $len i32) (result i32)
      (i32.store8 (i32.const 0) (local.get $tag))
      (i32.store (i32.const 4) (local.get $ptr))
      (i32.store (i32.const 8) (local.get $len))
      (i32.const 0))
    (data (i32.const 1024) "no such row")
    (func (export "run") (param $ptr i32) (param $len i32) (result i32) {body}))
  (core instance $i (instantiate $m))
  (func $run (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
  (export "run" (func $run))
  (export "again" (func $run)))"#
    )
}

fn typed_echo() -> String {
    typed("(call $answer (i32.const 0) (local.get $ptr) (local.get $len))")
}

/// A preview 1 command with small helpers; `data` are data segments, `body` is `_start`.
fn command(data: &str, body: &str) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ (param i32 i32) (result i32)))
  (memory (export "memory") 4)
  {data}
  (func $write (param $fd i32) (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $echo
    (local $n i32)
    (loop $more
      (i32.store (i32.const 0) (i32.const 4096))
      (i32.store (i32.const 4) (i32.const 60000))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (local.set $n (i32.load (i32.const 8)))
      (if (local.get $n) (then
        (call $write (i32.const 1) (i32.const 4096) (local.get $n))
        (br $more)))))
  (func $number (param $n i32)
    (i32.store8 (i32.const 512) (i32.add (i32.const 48) (i32.div_u (local.get $n) (i32.const 10))))
    (i32.store8 (i32.const 513) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
    (if (i32.ge_u (local.get $n) (i32.const 10))
      (then (call $write (i32.const 1) (i32.const 512) (i32.const 2)))
      (else (call $write (i32.const 1) (i32.const 513) (i32.const 1)))))
  (func $open (param $dir i32) (param $ptr i32) (param $len i32) (param $oflags i32) (param $rights i64) (result i32)
    (call $path_open (local.get $dir) (i32.const 1) (local.get $ptr) (local.get $len) (local.get $oflags)
      (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 600)))
  (func $main (export "_start") (local $i i32) {body}))"#
    )
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
        .adapter(adapter::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, adapter::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER)
        .expect("adapter")
        .encode()
        .expect("component")
}

const SPIN: &str = "(loop $l (br $l))";
