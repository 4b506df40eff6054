//! Compiling: untrusted bytes become compiled code, ahead of calls, in a limited child behind the walls.
//!
//! For: the front door (role `wasm-compile`) and the library. In: a module. Out: compiled code, or a refusal
//! that names what is accepted. Never: compiles in the host, gives a compiler any file, or waits without limit.

use super::frame::{self, CompileOrder, CompileReport, Most};
use super::{Role, Start, Workers, adapt, cache, engine};
use crate::executor::Ending;
use crate::quantity::{GIB, Limit};
use crate::sandbox::grants::Resolved;
use crate::{fault, policy};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use wasmtime::component::Component;

/// Largest module that is read.
pub const MAX_MODULE_BYTES: u64 = 256 << 20;
/// Longest compilation.
const COMPILE_TIME: Duration = Duration::from_secs(120);
/// The largest interpreter measured needed 1.8 GB.
const COMPILE_MEMORY: u64 = 2 * GIB;

/// Compiled code is about three times its module; what is far beyond that is not taken into our memory.
const GROWTH: u64 = 32;
/// And it may hold memory images of a few MiB that a module describes in a few bytes.
const IMAGE_BYTES: u64 = 64 << 20;

/// The whole life of a compiler child.
pub fn run() -> ExitCode {
    match serve(&mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wasm compiler: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let most = Most { header: frame::MAX_REPLY_HEADER_BYTES, payload: MAX_MODULE_BYTES };
    let Some((order, module)) = frame::read::<CompileOrder>(from, most)? else { return Ok(()) };
    let answer = match compile(&module, order.entry_point.as_deref()) {
        Ok(code) => frame::encode(&CompileReport::Compiled, &[&code])?,
        Err(message) => frame::encode(&CompileReport::Refused { message: frame::short(&message) }, &[])?,
    };
    to.write_all(&answer)?;
    to.flush()
}

/// Adapts, compiles and links once, so that what cannot run is refused before any call.
fn compile(module: &[u8], entry_point: Option<&str>) -> Result<Vec<u8>, String> {
    let component = adapt::component(module)?;
    let engine = engine::compiling().map_err(|e| format!("the compiler does not start: {e:#}"))?;
    let component =
        Component::from_binary(&engine, &component).map_err(|e| format!("the module does not compile: {e:#}"))?;
    adapt::contract(&component, entry_point)?;
    engine::linker(&engine)
        .and_then(|linker| linker.instantiate_pre(&component))
        .map_err(|e| format!("the module imports what this host does not offer: {e:#}"))?;
    component.serialize().map_err(|e| format!("the compiled code cannot be stored: {e:#}"))
}

/// How a compilation ended without code.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The module is at fault, and always will be.
    Refused(String),
    /// This attempt failed.
    Failed(fault::Fault),
}

/// Has a child compile `module`. `tool` names the runtime the child is started from.
pub async fn ask(
    workers: &dyn Workers,
    tool: &policy::Shape,
    module: &[u8],
    entry_point: Option<&str>,
) -> Result<Vec<u8>, Failure> {
    let shape = confinement(tool);
    let grants = Resolved::default();
    let start = Start { shape: &shape, grants, role: Role::Compile, code: None, own_memory: 0, own_threads: 0 };
    let mut child = workers.start(start).await.map_err(Failure::Failed)?;
    let order = CompileOrder { entry_point: entry_point.map(str::to_owned) };
    let order = frame::encode(&order, &[module]).map_err(|e| Failure::Failed(broken(&e)))?;
    let talk = async {
        let Some(mut pipes) = child.pipes() else { return Err(io::Error::other("no pipes")) };
        pipes.to.write_all(&order).await?;
        pipes.to.flush().await?;
        let payload =
            (module.len() as u64).saturating_mul(GROWTH).saturating_add(IMAGE_BYTES).min(cache::MAX_CODE_BYTES);
        let most = Most { header: frame::MAX_REPLY_HEADER_BYTES, payload };
        frame::read_async::<CompileReport>(&mut *pipes.from, most).await
    };
    let answer = tokio::time::timeout(COMPILE_TIME, talk).await;
    let ended = match answer {
        Ok(Ok(None)) => super::how_it_ended(&mut *child).await,
        _ => None,
    };
    child.kill();
    match answer {
        Ok(Ok(Some((CompileReport::Compiled, code)))) => Ok(code),
        Ok(Ok(Some((CompileReport::Refused { message }, _)))) => Err(Failure::Refused(message)),
        Ok(Ok(None)) => {
            let person = format!("the wasm compiler ended without an answer: {ended:?}");
            let fault = match ended {
                Some(Ending::OverLimit { limit, allowed }) => {
                    limit_fault(&format!("compiling the module needs more than {} {allowed}", limit.name()))
                }
                _ => fault::Fault::new(fault::Kind::InternalError, "the wasm compiler stopped without an answer"),
            };
            Err(Failure::Failed(fault.person(person)))
        }
        Ok(Err(e)) => Err(Failure::Failed(broken(&e))),
        Err(_) => {
            let why = format!("compiling the module took longer than {} s", COMPILE_TIME.as_secs());
            Err(Failure::Failed(limit_fault(&why)))
        }
    }
}

/// What a compiler may touch: two pipes, time and memory.
fn confinement(tool: &policy::Shape) -> policy::Shape {
    let mut limits = policy::Limits::house();
    let time = u64::try_from(COMPILE_TIME.as_millis()).unwrap_or(u64::MAX);
    limits.set(Limit::TimeoutMs, time);
    limits.set(Limit::CpuMs, time.saturating_mul(8));
    limits.set(Limit::MemoryBytes, COMPILE_MEMORY);
    limits.set(Limit::Processes, 1024);
    limits.set(Limit::InputBytes, MAX_MODULE_BYTES);
    limits.set(Limit::OutputBytes, cache::MAX_CODE_BYTES);
    let mut runtime = tool.runtime.clone();
    runtime.program = policy::Program::Ourselves { role: Role::Compile.name().to_owned() };
    policy::Shape {
        tool: tool.tool.clone(),
        runtime,
        script: None,
        entry_point: None,
        folder: PathBuf::from("/tmp"),
        grants: Vec::new(),
        network: policy::Network::None,
        limits,
        env: BTreeMap::new(),
        require_cgroup: tool.require_cgroup,
        stderr_is_error: false,
        past: Default::default(),
    }
}

fn broken(error: &io::Error) -> fault::Fault {
    fault::Fault::new(fault::Kind::InternalError, "the wasm compiler sent what is not an answer")
        .person(format!("wasm compiler: {error}"))
}

fn limit_fault(why: &str) -> fault::Fault {
    fault::Fault::new(fault::Kind::ResourceLimitError, why)
}
