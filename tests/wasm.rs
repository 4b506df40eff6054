//! WASI tools, through the real worker and compiler processes (without walls: those have their own suite).
//! Modules are written here as text; each says what it tries, and the outcome is judged from outside.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::unix::pipe;
use toolhost::executor::wasm::{Cache, Ended, Pipes, Role, Starting, Wasm, Worker, Workers};
use toolhost::executor::{Call, Context, Ending, Executor, Outcome, Stood};
use toolhost::fault::{Fault, Kind};
use toolhost::policy::{Access, Confinement, Grant, Opening, PerCall, Shape};
use toolhost::quantity::{Limit, MIB};
use toolhost::{manifest, policy};

// ---- starting workers without walls ----

/// Starts this crate's binary as a plain child. `instead` replaces the worker by a shell script.
#[derive(Default)]
struct Plain {
    workers: AtomicUsize,
    compilers: AtomicUsize,
    pids: Mutex<Vec<u32>>,
    instead: Option<&'static str>,
}

struct PlainWorker {
    child: Child,
    code: Option<OwnedFd>,
    scratch: tempfile::TempDir,
}

impl Workers for Plain {
    fn start<'a>(&'a self, _: &'a Shape, role: Role, code: Option<OwnedFd>) -> Starting<'a> {
        Box::pin(async move {
            let mut command = match (role, self.instead) {
                (Role::Worker, Some(script)) => {
                    let mut shell = Command::new("/bin/sh");
                    shell.args(["-c", script]);
                    shell
                }
                _ => {
                    let mut command = Command::new(env!("CARGO_BIN_EXE_toolhost"));
                    command.arg0(format!("toolhost-{}", role.name()));
                    command
                }
            };
            match role {
                Role::Worker => &self.workers,
                Role::Compile => &self.compilers,
            }
            .fetch_add(1, Ordering::SeqCst);
            if let Some(code) = &code {
                use nix::fcntl::{FcntlArg, FdFlag, fcntl};
                fcntl(code, FcntlArg::F_SETFD(FdFlag::empty())).expect("inheritable");
            }
            let child = command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
            self.pids.lock().expect("pids").push(child.id());
            let scratch = tempfile::tempdir().expect("scratch");
            Ok(Box::new(PlainWorker { child, code, scratch }) as Box<dyn Worker>)
        })
    }
}

impl Worker for PlainWorker {
    fn pipes(&mut self) -> Option<Pipes> {
        let to = pipe::Sender::from_owned_fd(self.child.stdin.take()?.into()).ok()?;
        let from = pipe::Receiver::from_owned_fd(self.child.stdout.take()?.into()).ok()?;
        Some(Pipes { to: Box::new(to), from: Box::new(from) })
    }
    fn code_descriptor(&self) -> i32 {
        self.code.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
    fn scratch(&self) -> PathBuf {
        self.scratch.path().to_owned()
    }
    fn walls(&self) -> Vec<Stood> {
        Vec::new()
    }
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
    fn ended(&mut self) -> Ended<'_> {
        Box::pin(async { None })
    }
}

impl Drop for PlainWorker {
    fn drop(&mut self) {
        self.kill();
    }
}

// ---- one tool, ready to be called ----

struct Tool {
    base: tempfile::TempDir,
    plain: Arc<Plain>,
    wasm: Wasm,
    shape: Shape,
}

impl Tool {
    fn new(module: impl AsRef<[u8]>) -> Tool {
        Tool::with(module, Plain::default())
    }

    fn with(module: impl AsRef<[u8]>, plain: Plain) -> Tool {
        let base = tempfile::tempdir().expect("tempdir");
        let folder = base.path().join("tool");
        std::fs::create_dir(&folder).expect("folder");
        let script = folder.join("tool.wat");
        std::fs::write(&script, module).expect("module");
        let plain = Arc::new(plain);
        let cache = Cache::open(&base.path().join("cache")).expect("cache");
        let wasm = Wasm::new(Arc::clone(&plain) as Arc<dyn Workers>, cache);
        let shape = shape(folder, script);
        Tool { base, plain, wasm, shape }
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
        let (events, _kept) = tokio::sync::mpsc::unbounded_channel();
        self.wasm.run(&context, self.order(input, timeout_ms), &events).await
    }

    fn order(&self, input: Value, timeout_ms: u64) -> Call {
        let per_call = PerCall { timeout_ms, source: None };
        let site = manifest::Site {
            manifest: self.shape.folder.join("x.tool.json"),
            base: self.shape.folder.clone(),
            script: self.shape.script.clone(),
            folder: self.shape.folder.clone(),
        };
        let confinement = Some(Confinement { shape: self.shape.clone(), per_call });
        Call { manifest: Arc::new(a_manifest()), site, input, confinement }
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

fn context() -> Context {
    Context {
        id: "call".into(),
        user: "tester".into(),
        cancel: tokio_util::sync::CancellationToken::new(),
        started: Instant::now(),
        depth: 0,
    }
}

fn shape(folder: PathBuf, script: PathBuf) -> Shape {
    let runtime = policy::Runtime {
        language: manifest::Language::Wasm,
        program: policy::Program::Ourselves { role: Role::Worker.name().into() },
        arguments: Vec::new(),
        roots: Vec::new(),
        version: "48".into(),
        found: "built in".into(),
    };
    Shape {
        tool: "t:wasm@1.0.0".into(),
        runtime,
        script: Some(script),
        entry_point: None,
        folder,
        grants: Vec::new(),
        network: policy::Network::None,
        limits: policy::Limits::house(),
        env: BTreeMap::new(),
        require_cgroup: false,
        stderr_is_error: false,
    }
}

fn a_manifest() -> manifest::Manifest {
    manifest::Manifest {
        id: "t:wasm".into(),
        display_name: String::new(),
        description: String::new(),
        version: semver::Version::new(1, 0, 0),
        handler: manifest::Handler::DefinitionOnly,
        parameters: None,
        output: None,
        asks: manifest::Asks::default(),
        execution: manifest::Execution::default(),
        limits: BTreeMap::new(),
        is_final: false,
        hidden: false,
        metadata: manifest::Metadata::default(),
        requires: BTreeMap::new(),
        examples: Vec::new(),
        tags: Vec::new(),
        raw: Value::Null,
        digest: String::new(),
    }
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

// ---- E-005, E-007: shapes ----

#[tokio::test]
async fn all_three_shapes_echo() {
    let input = json!({"text": "héllo", "list": [1, 2.5, null]});
    let binary = wat::parse_str(command_echo()).expect("wat");
    for module in [typed_echo().into_bytes(), command_echo().into_bytes(), binary, cli_component()] {
        let tool = Tool::new(module);
        let outcome = tool.call(input.clone()).await.expect("an outcome");
        assert_eq!(outcome.ending, Ending::Answered(input.clone()));
        assert!(outcome.usage.cpu_ms.is_some());
        assert!(outcome.usage.peak_memory_bytes.is_some_and(|n| n >= 2 << 16));
        assert!(outcome.walls.iter().any(|w| w.name == "wasm"));
    }
}

#[tokio::test]
async fn a_long_input_arrives_whole() {
    let input = json!({"text": "x".repeat(200_000)});
    assert_eq!(Tool::new(command_echo()).ending(input.clone()).await, Ending::Answered(input));
}

#[tokio::test]
async fn entry_point_names_another_typed_export() {
    let mut tool = Tool::new(typed_echo());
    tool.shape.entry_point = Some("again".into());
    assert_eq!(tool.ending(json!([1])).await, Ending::Answered(json!([1])));
    tool.shape.entry_point = Some("missing".into());
    let message = tool.refusal().await;
    assert!(
        message.contains("no export `missing`; exports of the right type: ") && message.contains("again"),
        "{message}"
    );
}

#[tokio::test]
async fn anything_else_is_refused_with_what_is_accepted() {
    let reactor = r#"(module (memory (export "memory") 1) (func (export "_initialize")))"#;
    let bare = r#"(module (memory (export "memory") 1) (func (export "main")))"#;
    let hidden = r#"(module (memory 1) (func (export "_start")))"#;
    let number = r#"(component (core module $m (func (export "f") (result i32) (i32.const 1)))
        (core instance $i (instantiate $m)) (func (export "run") (result u32) (canon lift (core func $i "f"))))"#;
    for (module, why) in [
        (reactor, "is a WASI reactor"),
        (bare, "exports no `_start`"),
        (hidden, "but not its `memory`"),
        (number, "`run` is not `func(input: string)"),
        ("(component)", "the component exports nothing"),
    ] {
        let message = Tool::new(module).refusal().await;
        assert!(message.contains(why), "{message}");
        for accepted in ["run: func(input: string) -> result<string, string>", "wasi:cli/run@0.2.x", "_start"] {
            assert!(message.contains(accepted), "{message}");
        }
    }
    let foreign = r#"(module (import "env" "system" (func)) (memory (export "memory") 1) (func (export "_start")))"#;
    assert!(Tool::new(foreign).refusal().await.contains("cannot be linked"));
    let imports = r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance (export "x" (func)))))"#;
    let message = Tool::new(imports).refusal().await;
    assert!(message.contains("exports nothing") || message.contains("does not offer"), "{message}");
    assert!(Tool::new("(module (oops))").refusal().await.contains("not WebAssembly"));
    assert!(Tool::new(b"\xff\xfe\x00").refusal().await.contains("neither WebAssembly nor its text form"));
    assert!(Tool::new(b"\0asm\x01\0\0\0\x07\xff\xff\xff\xff").refusal().await.contains("damaged"));
}

#[tokio::test]
async fn a_refusal_is_remembered_and_not_compiled_again() {
    let tool = Tool::new("(component)");
    tool.refusal().await;
    tool.refusal().await;
    assert_eq!(tool.plain.compilers.load(Ordering::SeqCst), 1);
}

// ---- E-006, E-009, A-029: limits ----

fn within(elapsed: Duration, limit_ms: u64) {
    // A busy test machine may be late; the bench holds the real gate of 1.10.
    let most = Duration::from_millis(limit_ms * 2);
    assert!(elapsed >= Duration::from_millis(limit_ms) && elapsed < most, "{elapsed:?} for {limit_ms} ms");
}

#[tokio::test]
async fn endless_loops_and_sleeps_end_at_the_limit() {
    let sleep = "(i32.store8 (i32.const 108) (i32.const 0)) (i32.store (i32.const 116) (i32.const 1))
        (i64.store (i32.const 124) (i64.const 60000000000))
        (drop (call $poll (i32.const 100) (i32.const 200) (i32.const 1) (i32.const 300)))";
    let start =
        r#"(module (memory (export "memory") 1) (func $s (loop $l (br $l))) (start $s) (func (export "_start")))"#;
    let spin = format!("{SPIN} (unreachable)");
    for module in [command("", SPIN), command("", sleep), start.to_owned(), typed(&spin)] {
        let tool = Tool::new(module);
        tool.wasm.prepare(&tool.shape).await.expect("compiled");
        // The first call also starts a worker, which is not the tool's time.
        let outcome = tool.call_for(json!({}), 200).await.expect("an outcome");
        assert_eq!(outcome.ending, Ending::TimedOut { limit_ms: 200 });
        within(Duration::from_millis(outcome.usage.wall_ms), 200);
        assert_eq!(tool.wasm.idle_workers(), 0, "a worker is not used again after a timeout");
    }
}

#[tokio::test]
async fn cpu_time_is_its_own_limit() {
    let tool = Tool::new(command("", SPIN)).limit(Limit::CpuMs, 150);
    assert_eq!(tool.ending(json!({})).await, Ending::OverLimit { limit: Limit::CpuMs, allowed: 150 });
}

#[tokio::test]
async fn memory_has_a_limit_and_a_peak() {
    let grow = "(if (i32.eq (memory.grow (i32.const 16384)) (i32.const -1)) (then (unreachable))) (call $echo)";
    let allowed = 64 * MIB;
    let tool = Tool::new(command("", grow)).limit(Limit::MemoryBytes, allowed);
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::OverLimit { limit: Limit::MemoryBytes, allowed });
    assert!(outcome.usage.peak_memory_bytes.is_some_and(|peak| peak < allowed));
    assert_eq!(tool.wasm.idle_workers(), 0);

    let survives = "(drop (memory.grow (i32.const 16384))) (call $echo)";
    let tool = Tool::new(command("", survives)).limit(Limit::MemoryBytes, allowed);
    assert_eq!(tool.ending(json!(1)).await, Ending::Answered(json!(1)));

    let small = Tool::new(command("", grow)).limit(Limit::MemoryBytes, 2048 * MIB);
    let outcome = small.call(json!(1)).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::Answered(json!(1)));
    assert!(outcome.usage.peak_memory_bytes.is_some_and(|peak| peak >= 1024 * MIB));

    let minimum = r#"(module (memory (export "memory") 16384) (func (export "_start")))"#;
    let tool = Tool::new(minimum).limit(Limit::MemoryBytes, allowed);
    assert_eq!(tool.ending(json!({})).await, Ending::OverLimit { limit: Limit::MemoryBytes, allowed });
}

#[tokio::test]
async fn output_and_log_have_limits() {
    let flood = |fd: u32| {
        format!(
            "(loop $l (call $write (i32.const {fd}) (i32.const 4096) (i32.const 60000))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if $l (i32.lt_u (local.get $i) (i32.const 100)))) (call $echo)"
        )
    };
    let tool = Tool::new(command("", &flood(1)));
    let allowed = Limit::OutputBytes.house_default();
    assert_eq!(tool.ending(json!({})).await, Ending::OverLimit { limit: Limit::OutputBytes, allowed });
    assert_eq!(tool.wasm.idle_workers(), 0);

    let outcome = Tool::new(command("", &flood(2))).call(json!({})).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::Answered(json!({})));
    assert!(outcome.logs.iter().any(|line| line.contains("bytes of log left out")));
    let kept: usize = outcome.logs.iter().map(|line| line.len()).sum();
    assert!(kept as u64 <= Limit::LogBytes.house_default() + 100);

    // A typed answer that is too long, by a little and by more than may be copied at once.
    for pages in [20, 100] {
        let bytes = pages * 65536;
        let long = typed(&format!(
            "(drop (memory.grow (i32.const {pages}))) (call $answer (i32.const 0) (i32.const 0) (i32.const {bytes}))"
        ));
        let ending = Tool::new(long).ending(json!({})).await;
        assert_eq!(ending, Ending::OverLimit { limit: Limit::OutputBytes, allowed });
    }
}

#[tokio::test]
async fn input_has_a_limit() {
    let tool = Tool::new(typed_echo()).limit(Limit::InputBytes, 256);
    let ending = tool.ending(json!("x".repeat(300))).await;
    assert_eq!(ending, Ending::OverLimit { limit: Limit::InputBytes, allowed: 256 });
}

#[tokio::test]
async fn handles_are_capped() {
    let open = "(loop $l
        (local.set $i (call $open (i32.const 3) (i32.const 1024) (i32.const 1) (i32.const 0) (i64.const 2)))
        (br_if $l (i32.eqz (local.get $i)))) (call $number (local.get $i))";
    let tool = Tool::new(command(r#"(data (i32.const 1024) ".")"#, open)).limit(Limit::OpenFiles, 100);
    // The table of handles ends the call, or the adapter's own smaller table says "too many open files" (33) or
    // "no memory" (48).
    match tool.ending(json!({})).await {
        Ending::OverLimit { limit: Limit::OpenFiles, allowed: 100 } => {}
        Ending::Answered(errno) => assert!(errno == json!(33) || errno == json!(48), "{errno}"),
        other => panic!("{other:?}"),
    }
}

// ---- endings ----

#[tokio::test]
async fn traps_exit_codes_and_errors_are_told_apart() {
    let tool = Tool::new(command("", "(unreachable)"));
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert!(
        matches!(&outcome.ending, Ending::Raised { message } if message.contains("trapped") && message.contains("unreachable")),
        "{:?}",
        outcome.ending
    );
    assert!(outcome.logs.iter().any(|line| line.contains("main")), "where it happened: {:?}", outcome.logs);
    assert_eq!(tool.wasm.idle_workers(), 0, "a worker is not used again after a trap");

    let tool = Tool::new(command("", "(call $exit (i32.const 3))"));
    assert_eq!(tool.ending(json!({})).await, Ending::Exited { code: 3 });
    assert_eq!(tool.ending(json!({})).await, Ending::Exited { code: 3 });
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 1, "an exit code harms no worker");
    let tool = Tool::new(command("", "(call $echo) (call $exit (i32.const 0))"));
    assert_eq!(tool.ending(json!(7)).await, Ending::Answered(json!(7)));

    let tool = Tool::new(typed("(call $answer (i32.const 1) (i32.const 1024) (i32.const 11))"));
    assert_eq!(tool.ending(json!({})).await, Ending::Raised { message: "no such row".into() });
    assert_eq!(tool.wasm.idle_workers(), 1);
}

#[tokio::test]
async fn bad_output_says_the_mend() {
    let print = |text: &str| {
        command(
            &format!(r#"(data (i32.const 1024) "{text}")"#),
            "(call $write (i32.const 1) (i32.const 1024) (i32.const 6)) (call $echo)",
        )
    };
    match Tool::new(print("hello\\n")).ending(json!({"a": 1})).await {
        Ending::BadOutput { reason, head } => {
            assert_eq!(
                reason,
                "stdout must be a single JSON value; found 6 bytes before it — print diagnostics to stderr"
            );
            assert!(head.starts_with("hello\\n"), "{head}");
        }
        other => panic!("{other:?}"),
    }
    match Tool::new(command("", "")).ending(json!({})).await {
        Ending::BadOutput { reason, .. } => assert!(reason.contains("empty")),
        other => panic!("{other:?}"),
    }
    match Tool::new(typed("(call $answer (i32.const 0) (i32.const 1024) (i32.const 11))")).ending(json!({})).await {
        Ending::BadOutput { reason, .. } => assert!(reason.starts_with("the returned text"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn stderr_goes_to_the_log_or_fails_the_call_where_that_is_asked() {
    let complain = command(
        r#"(data (i32.const 1024) "careful")"#,
        "(call $write (i32.const 2) (i32.const 1024) (i32.const 7)) (call $echo)",
    );
    let mut tool = Tool::new(complain);
    let outcome = tool.call(json!({})).await.expect("an outcome");
    assert_eq!((outcome.ending, outcome.logs), (Ending::Answered(json!({})), vec!["careful".to_owned()]));
    tool.shape.stderr_is_error = true;
    assert!(matches!(tool.ending(json!({})).await, Ending::Raised { message } if message.ends_with("careful")));
}

// ---- files ----

/// Opens a path and prints the error number: 0, 63 (not permitted), 44 (no such file), 76 (not capable) …
fn open_and_tell(dir: u32, path: &str, create: bool) -> String {
    let (oflags, rights) = if create { (1, 64) } else { (0, 2) };
    command(
        &format!(r#"(data (i32.const 1024) "{path}")"#),
        &format!(
            "(call $number (call $open (i32.const {dir}) (i32.const 1024) (i32.const {}) (i32.const {oflags}) (i64.const {rights})))",
            path.len()
        ),
    )
}

#[tokio::test]
async fn outside_the_grants_there_is_only_an_error_number() {
    for path in ["/etc/passwd", "../../../../etc/passwd", "../cache", "..", "x/../../.."] {
        let ending = Tool::new(open_and_tell(3, path, false)).ending(json!({})).await;
        let Ending::Answered(errno) = &ending else { panic!("{path}: {ending:?}") };
        assert!([63, 44, 76].iter().any(|n| errno == &json!(n)), "{path}: {errno}");
    }
    // There is no fourth folder.
    assert_eq!(Tool::new(open_and_tell(4, "x", true)).ending(json!({})).await, Ending::Answered(json!(8)));
    // A link inside a granted folder that leads out of it.
    let tool = Tool::new(open_and_tell(3, "link/passwd", false));
    std::os::unix::fs::symlink("/etc", tool.folder().join("link")).expect("link");
    let folder = tool.folder();
    let tool = tool.grant(Access::Write, &folder);
    let Ending::Answered(errno) = tool.ending(json!({})).await else { panic!() };
    assert_ne!(errno, json!(0));
}

#[tokio::test]
async fn read_grants_read_and_write_grants_write() {
    // Control: the same module, with the right that it needs.
    let tool = Tool::new(open_and_tell(3, "new.txt", true));
    let folder = tool.folder();
    let tool = tool.grant(Access::Write, &folder);
    assert_eq!(tool.ending(json!({})).await, Ending::Answered(json!(0)));
    assert!(folder.join("new.txt").exists());

    let tool = Tool::new(open_and_tell(3, "new.txt", true));
    let folder = tool.folder();
    let tool = tool.grant(Access::Read, &folder);
    let Ending::Answered(errno) = tool.ending(json!({})).await else { panic!() };
    assert!(errno == json!(63) || errno == json!(69), "{errno}");
    assert!(!folder.join("new.txt").exists());

    let tool = Tool::new(open_and_tell(3, "tool.wat", false));
    let folder = tool.folder();
    let tool = tool.grant(Access::Read, &folder);
    assert_eq!(tool.ending(json!({})).await, Ending::Answered(json!(0)));
}

#[tokio::test]
async fn nothing_leaks_through_scratch_from_call_to_call() {
    // O_CREAT|O_EXCL: a second call that found the first one's file would say 20 (exists).
    let exclusive = command(
        r#"(data (i32.const 1024) "left")"#,
        "(call $number (call $open (i32.const 3) (i32.const 1024) (i32.const 4) (i32.const 5) (i64.const 64)))",
    );
    let tool = Tool::new(exclusive);
    for _ in 0..2 {
        assert_eq!(tool.ending(json!({})).await, Ending::Answered(json!(0)));
        assert_eq!(tool.wasm.idle_workers(), 0, "its worker is not used again");
    }
}

#[tokio::test]
async fn nothing_leaks_through_memory_either() {
    // Counts in memory; every call must see a fresh one.
    let count = "(i32.store (i32.const 700) (i32.add (i32.load (i32.const 700)) (i32.const 1)))
        (call $number (i32.load (i32.const 700)))";
    let tool = Tool::new(command("", count));
    for _ in 0..3 {
        assert_eq!(tool.ending(json!({})).await, Ending::Answered(json!(1)));
    }
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 1, "one worker served all");
}

// ---- workers and compilers ----

#[tokio::test]
async fn calls_at_once_get_workers_of_their_own() {
    let tool = Tool::new(typed_echo());
    let calls: Vec<_> = (0..16).map(|n| tool.call(json!(n))).collect();
    for (n, call) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(call.expect("an outcome").ending, Ending::Answered(json!(n)));
    }
    assert_eq!(tool.plain.compilers.load(Ordering::SeqCst), 1, "compiled once for all");
    let most = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    assert!(tool.plain.workers.load(Ordering::SeqCst) <= most);
    tool.wasm.close();
    assert_eq!(tool.wasm.idle_workers(), 0);
    gone(&tool.plain);
}

#[tokio::test]
async fn another_shape_never_gets_the_worker() {
    let mut tool = Tool::new(typed_echo());
    tool.ending(json!(1)).await;
    tool.shape.limits.set(Limit::OutputBytes, 1000);
    tool.ending(json!(1)).await;
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 2);
    assert_eq!(tool.wasm.idle_workers(), 2);
}

#[tokio::test]
async fn dropping_and_cancelling_kill_the_worker() {
    let tool = Tool::new(command("", SPIN));
    tool.wasm.prepare(&tool.shape).await.expect("compiled");
    let dropped = tokio::time::timeout(Duration::from_millis(500), tool.call_for(json!({}), 60_000)).await;
    assert!(dropped.is_err());
    gone(&tool.plain);

    let context = context();
    let (events, _kept) = tokio::sync::mpsc::unbounded_channel();
    let cancel = context.cancel.clone();
    let (outcome, ()) = tokio::join!(tool.wasm.run(&context, tool.order(json!({}), 60_000), &events), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    });
    assert_eq!(outcome.expect("an outcome").ending, Ending::Cancelled);
    gone(&tool.plain);
}

/// No child of ours is left, not even unreaped.
fn gone(plain: &Plain) {
    for pid in plain.pids.lock().expect("pids").iter() {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} is still there");
    }
}

#[tokio::test]
async fn an_idle_worker_that_died_is_replaced() {
    let tool = Tool::new(typed_echo());
    assert_eq!(tool.ending(json!(1)).await, Ending::Answered(json!(1)));
    let pid = *tool.plain.pids.lock().expect("pids").last().expect("a worker");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(tool.ending(json!(2)).await, Ending::Answered(json!(2)));
    assert_eq!(tool.plain.workers.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn hostile_workers_are_not_believed() {
    let ready = r#"printf '\007\000\000\000\000\000\000\000"ready"'"#;
    let scripts = [
        // Lengths of 4 GiB, at once and after a good start; garbage; an answer cut short; nothing; silence.
        r"printf '\377\377\377\377\377\377\377\377'; sleep 5".to_owned(),
        format!(r"{ready}; printf '\377\377\377\377\377\377\377\377'; sleep 5"),
        format!(r"{ready}; head -c 100000 /dev/zero | tr '\0' x; sleep 5"),
        format!(r#"{ready}; printf '\100\000\000\000\000\000\020\000{{"answer"'"#),
        format!("{ready}; exit 0"),
        "exit 0".to_owned(),
        format!(r#"{ready}; printf '\007\000\000\000\000\000\000\000"ready"'; sleep 5"#),
    ];
    for script in scripts {
        let plain = Plain { instead: Some(Box::leak(script.clone().into_boxed_str())), ..Plain::default() };
        let tool = Tool::with(typed_echo(), plain);
        let fault = tool.call(json!({})).await.expect_err("a fault");
        assert_eq!(fault.kind, Kind::InternalError, "{script}: {fault:?}");
        gone(&tool.plain);
    }
    let plain =
        Plain { instead: Some(Box::leak(format!("{ready}; exec sleep 60").into_boxed_str())), ..Plain::default() };
    let tool = Tool::with(typed_echo(), plain);
    let outcome = tool.call_for(json!({}), 200).await.expect("an outcome");
    assert_eq!(outcome.ending, Ending::TimedOut { limit_ms: 200 });
    gone(&tool.plain);
}

// ---- the cache ----

#[tokio::test]
async fn compiled_code_is_kept_by_content_and_only_while_it_is_sound() {
    let tool = Tool::new(command_echo());
    let entries = || -> Vec<PathBuf> {
        std::fs::read_dir(tool.base.path().join("cache")).expect("cache").map(|e| e.expect("entry").path()).collect()
    };
    let compiles = |n: usize| {
        let (plain, shape, base) = (Arc::clone(&tool.plain), tool.shape.clone(), tool.base.path().to_owned());
        async move {
            let cache = Cache::open(&base.join("cache")).expect("cache");
            let fresh = Wasm::new(Arc::clone(&plain) as Arc<dyn Workers>, cache);
            fresh.prepare(&shape).await.expect("prepared");
            assert_eq!(plain.compilers.load(Ordering::SeqCst), n);
        }
    };
    compiles(1).await;
    compiles(1).await;
    let [entry] = entries().try_into().expect("one entry");
    // Damaged, then readable by others: built anew, and replaced.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut bytes = std::fs::read(&entry).expect("entry");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&entry, bytes).expect("damaged");
    compiles(2).await;
    compiles(2).await;
    std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    compiles(3).await;
    compiles(3).await;
    // A changed module is another content.
    std::fs::write(tool.shape.script.as_ref().expect("script"), typed_echo()).expect("changed");
    compiles(4).await;
    assert_eq!(entries().len(), 2);
    assert_eq!(tool.ending(json!("typed now")).await, Ending::Answered(json!("typed now")));
}

#[tokio::test]
async fn a_module_behind_a_link_is_not_read() {
    let mut tool = Tool::new(typed_echo());
    let link = tool.folder().join("link.wat");
    std::os::unix::fs::symlink(tool.folder().join("tool.wat"), &link).expect("link");
    tool.shape.script = Some(link);
    let message = tool.refusal().await;
    assert!(message.contains("cannot be read") && !message.contains("link.wat"), "{message}");
}

/// Runs futures side by side on one task.
async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
