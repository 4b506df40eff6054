//! Compiling: untrusted bytes become compiled code, ahead of calls, in a limited child behind the walls.
//!
//! For: the front door (role `wasm-compile`) and the library. In: a module. Out: compiled code, or a refusal
//! that names what is accepted. Never: compiles in the host, gives a compiler any file, or waits without limit.

use super::frame::{self, CompileOrder, CompileReport, Most};
use super::{Pipes, Role, Start, Workers, adapt, cache, engine};
use crate::executor::Ending;
use crate::quantity::{GIB, Limit, MIB};
use crate::sandbox::grants::Resolved;
use crate::{fault, manifest, policy};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wasmtime::component::Component;

/// Largest module that is read: the largest interpreter measured has 105 MB.
pub const MAX_MODULE_BYTES: u64 = 256 << 20;
/// Largest module in text form.
pub const MAX_TEXT_BYTES: u64 = 16 << 20;
/// Piece in which modules and compiled code are passed on.
const PIECE: usize = 256 << 10;

/// Most bytes of compiled code for each byte of module (about three are usual); more is refused.
const GROWTH: u64 = 32;
/// Bytes allowed besides, for memory images, which a module can describe in a few bytes.
const IMAGE_BYTES: u64 = 64 << 20;

/// What compiling one module may take. A megabyte takes about a second and 30 MB (measured: 1 to 25 MB); a small module
/// that takes far more was made for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub time: Duration,
    pub memory: u64,
    /// The tool's `memoryBytes` keeps `memory` below what this module could need.
    pub capped: bool,
}

impl Allowed {
    /// For a module of `bytes`, of a tool that may use `memory_bytes` when it runs.
    pub fn of(bytes: u64, memory_bytes: u64) -> Allowed {
        let mib = bytes.div_ceil(MIB);
        let time = Duration::from_secs(20 + mib.saturating_mul(5)).min(Duration::from_secs(300));
        let (wanted, most) = ((256 * MIB).saturating_add(bytes.saturating_mul(24)), memory_bytes.max(GIB));
        Allowed { time, memory: wanted.min(most), capped: wanted > most }
    }
}

/// A module on its way to a compiler.
pub enum Module {
    /// Text that came with the call.
    Text(Vec<u8>),
    /// A file that is read again, and compiled only if its content still has this digest.
    File { file: File, bytes: u64, digest: String },
}

impl Module {
    pub fn len(&self) -> u64 {
        match self {
            Module::Text(text) => text.len() as u64,
            Module::File { bytes, .. } => *bytes,
        }
    }

    /// Sends it, a piece at a time.
    async fn send(self, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), Broke> {
        let (mut file, bytes, expected) = match self {
            Module::Text(text) => return Ok(to.write_all(&text).await?),
            Module::File { file, bytes, digest } => (file, bytes, digest),
        };
        let (mut sum, mut left) = (Sha256::new(), bytes);
        while left > 0 {
            let length = PIECE.min(usize::try_from(left).unwrap_or(PIECE));
            let read = move || {
                let mut piece = vec![0; length];
                file.read_exact(&mut piece).map(|()| (file, piece))
            };
            let read = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?;
            let (back, piece) = read.map_err(Broke::Module)?;
            file = back;
            sum.update(&piece);
            left -= length as u64;
            // Checked before the last piece is sent, so that changed content is never compiled.
            if left == 0 && manifest::hex(&sum.clone().finalize()) != expected {
                return Err(Broke::Module(io::Error::other("it changed while it was read")));
            }
            to.write_all(&piece).await?;
        }
        Ok(())
    }
}

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

/// Adapts, compiles and links once, so that a module that cannot run is refused before any call.
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
#[derive(Debug)]
pub enum Failure {
    /// The module is at fault, and always will be.
    Refused(String),
    /// It takes more than a module of its size may.
    TooMuch(String),
    /// It cannot be read, or changed since it was looked at.
    Unreadable(io::Error),
    /// This attempt failed.
    Failed(fault::Fault),
}

/// Has a child compile `module` and write its code to `into`. `tool` names the runtime the child is started from.
pub async fn ask(
    workers: &dyn Workers,
    tool: &policy::Shape,
    module: Module,
    into: cache::New,
) -> Result<cache::New, Failure> {
    let allowed = Allowed::of(module.len(), tool.limits.get(Limit::MemoryBytes));
    let shape = confinement(tool, allowed);
    let grants = Resolved::default();
    let start = Start { shape: &shape, grants, role: Role::Compile, code: None, own_memory: 0, own_threads: 0 };
    let mut child = workers.start(start).await.map_err(Failure::Failed)?;
    let talked = match child.pipes() {
        None => Ok(Err(Broke::Pipes(io::Error::other("no pipes")))),
        Some(pipes) => {
            let order = CompileOrder { entry_point: tool.entry_point.clone() };
            tokio::time::timeout(allowed.time, talk(pipes, &order, module, into)).await
        }
    };
    let more = if allowed.capped { " (a higher memory_bytes in the tool's policy raises it)" } else { "" };
    let over = |most: u64, unit: &str, more: &str| {
        Failure::TooMuch(format!(
            "compiling the module takes more than {most} {unit}, the most for one of its size{more}"
        ))
    };
    let ended = match &talked {
        Ok(Ok(Some(_)) | Err(Broke::Module(_))) | Err(_) => None,
        // The pipes closed because the child ended: the walls know why.
        Ok(_) => super::how_it_ended(&mut *child).await,
    };
    child.kill();
    match (talked, ended) {
        (Ok(Ok(Some(Said::Compiled(code)))), _) => Ok(code),
        (Ok(Ok(Some(Said::Refused(message)))), _) => Err(Failure::Refused(message)),
        (Err(_), _) => Err(over(allowed.time.as_secs(), "s", "")),
        (_, Some(Ending::OverLimit { limit: Limit::MemoryBytes, .. })) => Err(over(allowed.memory / MIB, "MiB", more)),
        (_, Some(Ending::OverLimit { limit: Limit::CpuMs, .. })) => {
            Err(over(allowed.time.as_secs().saturating_mul(cpus()), "s of CPU time", ""))
        }
        (Ok(Ok(None)), ended) => {
            let fault = fault::Fault::new(fault::Kind::InternalError, "the wasm compiler stopped without an answer");
            Err(Failure::Failed(fault.person(format!("the wasm compiler ended without an answer: {ended:?}"))))
        }
        (Ok(Err(Broke::Module(e))), _) => Err(Failure::Unreadable(e)),
        (Ok(Err(Broke::Pipes(e))), _) => Err(Failure::Failed(broken(&e))),
    }
}

/// Why there is no answer.
enum Broke {
    Module(io::Error),
    Pipes(io::Error),
}

impl From<io::Error> for Broke {
    fn from(error: io::Error) -> Broke {
        Broke::Pipes(error)
    }
}

enum Said {
    Compiled(cache::New),
    Refused(String),
}

async fn talk(
    mut pipes: Pipes,
    order: &CompileOrder,
    module: Module,
    mut into: cache::New,
) -> Result<Option<Said>, Broke> {
    let payload = module.len().saturating_mul(GROWTH).saturating_add(IMAGE_BYTES).min(cache::MAX_CODE_BYTES);
    pipes.to.write_all(&frame::encode_head(order, module.len())?).await?;
    module.send(&mut *pipes.to).await?;
    pipes.to.flush().await?;
    let most = Most { header: frame::MAX_REPLY_HEADER_BYTES, payload };
    let Some((report, length)) = frame::read_head_async::<CompileReport>(&mut *pipes.from, most).await? else {
        return Ok(None);
    };
    match report {
        CompileReport::Refused { message } => return Ok(Some(Said::Refused(message))),
        CompileReport::Compiled => {}
    }
    // Never whole in our memory, since a few bytes of module can make much code.
    let mut left = length;
    while left > 0 {
        let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
        pipes.from.read_exact(&mut piece).await?;
        left -= piece.len() as u64;
        let write = move || into.write(&piece).map(|()| into);
        into = tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
    }
    Ok(Some(Said::Compiled(into)))
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// What a compiler may touch: two pipes, time and memory.
fn confinement(tool: &policy::Shape, allowed: Allowed) -> policy::Shape {
    let mut limits = policy::Limits::house();
    let time = u64::try_from(allowed.time.as_millis()).unwrap_or(u64::MAX);
    limits.set(Limit::TimeoutMs, time);
    limits.set(Limit::CpuMs, time.saturating_mul(cpus()));
    limits.set(Limit::MemoryBytes, allowed.memory);
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
