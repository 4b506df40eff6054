//! Untrusted bytes become compiled code ahead of calls, in a limited child behind the layers (role
//! `wasm-compile`).
//!
//! The compiler gets no file but the module. The host compiles nothing, and waits for a limited
//! time.

use super::frame::{self, FilePart, FrameLimits, Order, WorkerMessage, invalid};
use super::role::Role;
use super::{adapt, engine, guest, trusted_code};
use crate::base::cpu_time;
use crate::base::store::Writer;
use crate::executor::process::grants::ResolvedGrants;
use crate::executor::process::worker::{Request, Worker, WorkerError};
use crate::executor::process::{Launchers, RoleNeeds};
use crate::fault::{Fault, Kind};
use crate::policy;
use crate::quantity::{GIB, Limit, MIB};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::AsyncBufRead;
use tokio::sync::oneshot;
use tokio::time::Instant;
use wasmtime::component::Component;

/// Largest module that is read: the largest interpreter measured has 105 MB.
pub const MAX_MODULE_BYTES: u64 = 256 << 20;
/// Largest compiled module: the largest interpreter measured is 261 MB.
pub const MAX_CODE_BYTES: u64 = 512 << 20;
/// Largest module in text form.
pub const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Most bytes of compiled code for each byte of module (about three are usual); more is refused.
const MAX_CODE_BYTES_PER_BYTE: u64 = 32;
/// Bytes allowed in addition, for memory images: few bytes of a module can describe one.
const IMAGE_BYTES: u64 = 64 << 20;

/// A compiler that has used more CPU time says that it is slow.
pub const QUICK: Duration = Duration::from_secs(2);
/// Most seconds of processor time for one module.
const MAX_CPU_SECONDS: u64 = 300;
/// A compiler may last so many times its CPU time, on a busy machine.
pub const WALL_TIME_FACTOR: u32 = 4;
/// Longest time of a compilation.
pub const MAX_TIME: Duration = Duration::from_secs(MAX_CPU_SECONDS * WALL_TIME_FACTOR as u64 + 30);

/// What compiling one module may take. A megabyte takes about a second and 30 MB (measured: 1 to 25
/// MB); a small module that takes far more is an attack.
struct CompileLimits {
    cpu_time: Duration,
    memory: u64,
    /// The tool's `memoryBytes` keeps `memory` below what this module could need.
    capped: bool,
}

impl CompileLimits {
    /// For a module of `bytes`, of a tool that may use `memory_bytes` when it runs.
    fn new(bytes: u64, memory_bytes: u64) -> CompileLimits {
        let mib = bytes.div_ceil(MIB);
        let cpu_time = Duration::from_secs(20 + mib.saturating_mul(5))
            .min(Duration::from_secs(MAX_CPU_SECONDS));
        let wanted = (256 * MIB).saturating_add(bytes.saturating_mul(24));
        let most = memory_bytes.max(GIB);
        CompileLimits {
            cpu_time,
            memory: wanted.min(most),
            capped: wanted > most,
        }
    }
}

/// A module to compile: the open file, and its size and digest when it was found.
pub struct Module {
    pub file: File,
    pub bytes: u64,
    /// SHA-256 in hex.
    pub digest: String,
}

/// Runs a compiler child.
pub fn serve() -> io::Result<()> {
    let order = frame::read(&mut io::stdin().lock(), FrameLimits::from_host(0))?;
    let Some((
        Order::Compile {
            module,
            digest,
            entry_point,
        },
        _,
    )) = order
    else {
        return Err(invalid("the first order was not to compile"));
    };
    std::thread::spawn(report_slow);
    let compiled = read(&module, &digest).map(|module| compile(&module, entry_point.as_deref()));
    let mut to = io::stdout().lock();
    let end = match compiled {
        Err(message) => WorkerMessage::Unreadable { message },
        Ok(compiled) => match compiled {
            Err(message) => WorkerMessage::Refused {
                message: frame::short(&message),
            },
            Ok(code) => {
                for piece in code.chunks(frame::PIECE) {
                    to.write_all(&frame::encode(&WorkerMessage::Code, piece)?)?;
                }
                WorkerMessage::Compiled
            }
        },
    };
    to.write_all(&frame::encode(&end, &[])?)?;
    to.flush()
}

/// Tells the host once this process has used `QUICK`.
fn report_slow() -> io::Result<()> {
    while cpu_time() < QUICK {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut to = io::stdout().lock();
    to.write_all(&frame::encode(&WorkerMessage::Slow, &[])?)?;
    to.flush()
}

/// Reads the whole module, then checks its digest. No byte of it is used before the check.
fn read(module: &FilePart, digest: &str) -> Result<Vec<u8>, String> {
    let module = trusted_code::read(module, MAX_MODULE_BYTES).map_err(|e| e.to_string())?;
    if crate::base::sha256_hex(&module) == digest {
        Ok(module)
    } else {
        Err("it changed while it was read".to_owned())
    }
}

/// Adapts, compiles and links once, so that a module that cannot be linked is refused before any
/// call.
fn compile(module: &[u8], entry_point: Option<&str>) -> Result<Vec<u8>, String> {
    let component = adapt::component(module)?;
    let engine = engine::compiling().map_err(|e| format!("the compiler does not start: {e:#}"))?;
    let component = Component::from_binary(&engine, &component)
        .map_err(|e| format!("the module does not compile: {e:#}"))?;
    adapt::contract(&component, entry_point)?;
    guest::linker(&engine)
        .and_then(|linker| linker.instantiate_pre(&component))
        .map_err(|e| format!("the module imports what this host does not offer: {e:#}"))?;
    component
        .serialize()
        .map_err(|e| format!("the compiled code cannot be stored: {e:#}"))
}

/// How a compilation ended without code.
#[derive(Debug)]
pub enum Failure {
    /// The module is refused, now and at every attempt.
    Refused(ModuleRefusal),
    /// The module cannot be read, or changed since it was found.
    Unreadable(io::Error),
    /// This attempt failed.
    Failed(Fault),
}

pub fn not_stored(error: &io::Error) -> Failure {
    let fault = Fault::new(Kind::InternalError, "the compiled tool cannot be stored").retryable();
    Failure::Failed(fault.person(format!("the wasm cache cannot be written: {error}")))
}

/// Why a module has no code.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModuleRefusal {
    pub why: String,
    /// True: compiling took more time or memory than a module of its size may. False: this host
    /// cannot run the module.
    pub too_much: bool,
}

/// Has a child compile `module` and write its code to `into`. `tool` names the runtime the child is
/// started from. `slow` hears of it if the child takes more than `QUICK`.
pub async fn run(
    launchers: &Launchers,
    tool: &policy::Shape,
    module: Module,
    into: Writer,
    slow: oneshot::Sender<()>,
) -> Result<Writer, Failure> {
    let Module {
        file,
        bytes,
        digest,
    } = module;
    let allowed = CompileLimits::new(bytes, tool.limits.get(Limit::MemoryBytes));
    let shape = confinement(tool, &allowed);
    let needs = RoleNeeds {
        inherited: 1,
        role: Some(Role::Compile.name()),
        // Any principal's call may wait for this module, so the host itself pays.
        ..RoleNeeds::default()
    };
    let none = ResolvedGrants::default();
    let mut worker = Worker::start(launchers, &shape, none, &needs, &file.into())
        .await
        .map_err(Failure::Failed)?;
    let entry_point = tool.entry_point.clone();
    let order = Order::Compile {
        module: FilePart { offset: 0, bytes },
        digest,
        entry_point,
    };
    let most = bytes
        .saturating_mul(MAX_CODE_BYTES_PER_BYTE)
        .saturating_add(IMAGE_BYTES)
        .min(MAX_CODE_BYTES);
    fn over(most: u64, unit: &str, more: &str) -> Failure {
        let why = format!(
            "compiling the module takes more than {most} {unit}, the limit for its size{more}"
        );
        Failure::Refused(ModuleRefusal {
            why,
            too_much: true,
        })
    }
    let frame = frame::encode(&order, &[]).map_err(|e| no_answer(&e.to_string()))?;
    let request = Request {
        frame: &frame,
        deadline: Instant::now() + allowed.cpu_time * WALL_TIME_FACTOR,
        secrets: &BTreeMap::new(),
        traffic: &Mutex::default(),
        cpu_limit: u64::MAX,
    };
    let failed = match worker
        .call(request, |from| receive(from, into, most, slow))
        .await
    {
        Ok(done) => return done,
        Err(WorkerError::TimedOut) => {
            let message = "this machine is too busy to compile the tool's module; try again later";
            return Err(Failure::Failed(
                Fault::new(Kind::TimeoutError, message).retryable(),
            ));
        }
        Err(failed) => failed,
    };
    let limit = match failed {
        WorkerError::Died(limit) => limit,
        _ => worker.limit().await,
    };
    Err(match limit {
        Some(Limit::MemoryBytes) => {
            let more = if allowed.capped {
                " (a higher memory_bytes in the tool's policy raises it)"
            } else {
                ""
            };
            over(allowed.memory / MIB, "MiB", more)
        }
        Some(Limit::CpuMs) => over(allowed.cpu_time.as_secs(), "s of CPU time", ""),
        _ => no_answer(&format!("{failed:?}")),
    })
}

fn no_answer(why: &str) -> Failure {
    let fault = Fault::new(Kind::InternalError, "the wasm compiler gave no answer");
    Failure::Failed(fault.person(format!("wasm compiler: {why}")))
}

/// Receives the child's answer. An error: the child stopped, or sent something else.
async fn receive(
    from: &mut (impl AsyncBufRead + Unpin),
    mut into: Writer,
    most: u64,
    slow: oneshot::Sender<()>,
) -> io::Result<Result<Writer, Failure>> {
    let mut slow = Some(slow);
    let mut left = most;
    loop {
        let most = FrameLimits {
            head: frame::MAX_REPLY_HEAD_BYTES,
            payload: left.min(frame::PIECE as u64),
        };
        let Some((report, piece)) = frame::read_async(from, most).await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match report {
            // Never held whole in memory: a few bytes of module can become much code.
            WorkerMessage::Code => {
                left -= piece.len() as u64;
                let written =
                    tokio::task::spawn_blocking(move || into.write(&piece).map(|()| into))
                        .await
                        .map_err(io::Error::other)
                        .flatten();
                into = match written {
                    Ok(into) => into,
                    Err(e) => return Ok(Err(not_stored(&e))),
                };
            }
            WorkerMessage::Slow => {
                slow.take().map(|slow| slow.send(()));
            }
            WorkerMessage::Compiled => return Ok(Ok(into)),
            WorkerMessage::Refused { message: why } => {
                return Ok(Err(Failure::Refused(ModuleRefusal {
                    why,
                    too_much: false,
                })));
            }
            WorkerMessage::Unreadable { message } => {
                return Ok(Err(Failure::Unreadable(io::Error::other(message))));
            }
            _ => return Err(invalid("an answer of a worker")),
        }
    }
}

/// What a compiler may touch: two pipes, time and memory.
fn confinement(tool: &policy::Shape, allowed: &CompileLimits) -> policy::Shape {
    let mut limits = policy::Limits::built_in();
    // The host ends the child earlier; this limit holds if the host is gone.
    limits.set(
        Limit::TimeoutMs,
        crate::base::millis(allowed.cpu_time * (WALL_TIME_FACTOR + 1)),
    );
    limits.set(Limit::CpuMs, crate::base::millis(allowed.cpu_time));
    limits.set(Limit::MemoryBytes, allowed.memory);
    limits.set(Limit::Processes, 1024);
    limits.set(Limit::InputBytes, MAX_MODULE_BYTES);
    limits.set(Limit::OutputBytes, MAX_CODE_BYTES);
    let mut runtime = tool.runtime.clone();
    runtime.program = policy::Program::Ourselves {
        role: Role::Compile.name().to_owned(),
    };
    let require_cgroup = tool.require_cgroup;
    policy::Shape {
        limits,
        require_cgroup,
        ..policy::Shape::bare(&tool.tool, runtime)
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::{CODE, Cache};
    use super::*;

    #[tokio::test]
    async fn hostile_compilers_are_not_believed_and_leave_nothing_in_the_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(&folder.path().join("cache")).expect("a cache");
        let key = "ab".repeat(16);
        let code = "{\"message\":\"code\",\"bytes\":4}\ncode";
        // Lengths of 4 GiB; garbage; what is cut short; nothing; an answer of a worker; more code
        // than is allowed.
        for frames in [
            "{\"message\":\"code\",\"bytes\":4294967295}\n".to_owned(),
            "x".repeat(100_000),
            "{\"message\":\"code\",\"bytes\":64}\nshort".to_owned(),
            String::new(),
            "{\"message\":\"ready\",\"bytes\":0}\n".to_owned(),
            code.repeat(3),
        ] {
            let into = cache.store.write(&key, &CODE).expect("a writer");
            assert!(
                receive(&mut frames.as_bytes(), into, 8, oneshot::channel().0)
                    .await
                    .is_err(),
                "{frames:.80}"
            );
            assert_eq!(
                std::fs::read_dir(folder.path().join("cache"))
                    .expect("the cache")
                    .count(),
                0,
                "{frames:.80}"
            );
        }
        let frames = code.repeat(2) + "{\"message\":\"compiled\",\"bytes\":0}\n";
        let into = cache.store.write(&key, &CODE).expect("a writer");
        let written = receive(&mut frames.as_bytes(), into, 8, oneshot::channel().0)
            .await
            .expect("an answer")
            .expect("code");
        assert!(cache.finish(&key, written).is_ok(), "the control");
    }
}
