//! The worker process (role `wasm-worker`): one tool, one shape, one call at a time, behind the
//! layers.
//!
//! Orders come on descriptor 0, compiled code on an inherited descriptor, reports leave on
//! descriptor 1. An unexpected order ends it. Each call runs in one fresh store, held to its
//! limits; nothing is kept for the next call.

use super::adapt::{self, Contract};
use super::denials::{Granted, Watch};
use super::frame::{
    self, CallSummary, DenialKind, End, FrameLimits, Init, Order, ToHost, WorkerMessage,
};
use super::guest::{self, Folders, Guest, Sink};
use super::{compile, engine, trusted_code};
use crate::base::cpu_time;
use crate::quantity::{KIB, Limit, MIB};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, ResourceTableError};
use wasmtime::{Store, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::sockets::SocketAddrUse;
use wasmtime_wasi::{I32Exit, WasiCtxBuilder};

/// Most random bytes of one request.
const MAX_RANDOM_BYTES: u64 = 8 * MIB;
/// Handles that every guest needs besides files: standard streams, terminals, pollables.
const SPARE_HANDLES: u64 = 64;
/// Threads that look up names, of a guest that may connect.
pub const LOOKUPS: usize = 2;
/// Longest wait for them after a call.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest call, whatever the host says: u64 milliseconds could pass the end of the clock.
const MAX_CALL_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// A tick is the most by which a spinning guest overshoots.
const TICK: Duration = Duration::from_millis(5);
/// Ticks without a call before the thread sleeps until it is needed; waking it costs more than a
/// tick.
const IDLE_TICKS: u32 = 20;

/// The whole life of a worker.
pub fn serve() -> io::Result<()> {
    // Not through `io::stdout`, whose line buffer splits a frame at its last line break.
    let mut from = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let to = ToHost::new(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    let Some((Order::Init(init), _)) = frame::read(&mut from, FrameLimits::from_host(0))? else {
        return Err(io::Error::other("the first order was not init"));
    };
    let loaded = match load(init) {
        Ok(loaded) => loaded,
        Err(report) => return to.send(&report, &[]),
    };
    to.send(&WorkerMessage::Ready, &[])?;
    let most = FrameLimits::from_host(loaded.init.limits.get(Limit::InputBytes));
    while let Some((order, input)) = frame::read(&mut from, most)? {
        let Order::Call {
            id,
            timeout_ms,
            env,
        } = order
        else {
            return Err(io::Error::other("init came twice"));
        };
        let (answer, output) = loaded
            .call(id, &env, input, Duration::from_millis(timeout_ms), &to)
            .map_err(|e| io::Error::other(format!("{e:#}")))?;
        let again = answer.is_fit();
        to.send(&WorkerMessage::Answer(answer), &output)?;
        if !again {
            break;
        }
    }
    Ok(())
}

fn load(init: Init) -> Result<Loaded, WorkerMessage> {
    fn refused(message: String) -> WorkerMessage {
        WorkerMessage::Refused {
            message: frame::short(&message),
        }
    }
    let engine = engine::running().map_err(|e| WorkerMessage::Unable {
        message: frame::short(&format!("{e:#}")),
    })?;
    let compiled = trusted_code::read(&init.code, compile::MAX_CODE_BYTES)
        .map_err(|e| refused(format!("the compiled code cannot be read: {e}")))?;
    let component = trusted_code::load(&engine, &compiled)
        .map_err(|e| refused(format!("a worker cannot load it: {e:#}")))?;
    drop(compiled);
    Loaded::new(&component, init).map_err(refused)
}

/// Why the epoch check ended a call.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("out of time")]
    Time,
    #[error("out of CPU time")]
    Cpu,
}

enum GuestEntry {
    Typed(InstancePre<Guest>, ComponentExportIndex),
    Command(CommandPre<Guest>),
}

/// A component that is ready for calls.
pub struct Loaded {
    entry: GuestEntry,
    init: Init,
    folders: Folders,
    granted: Arc<Granted>,
    engine: wasmtime::Engine,
    ticker: Ticker,
    runtime: Runtime,
}

impl Loaded {
    /// Links a component; the error is for a person.
    pub fn new(component: &Component, init: Init) -> Result<Loaded, String> {
        let contract = adapt::contract(component, init.entry_point.as_deref())?;
        let engine = component.engine().clone();
        let linker = guest::linker(&engine).map_err(|e| format!("{e:#}"))?;
        let ready = linker
            .instantiate_pre(component)
            .map_err(|e| format!("the component imports what this host does not offer: {e:#}"))?;
        let entry = match contract {
            Contract::Typed(name) => {
                let index = component
                    .get_export_index(None, &name)
                    .ok_or("the typed export is gone")?;
                GuestEntry::Typed(ready, index)
            }
            Contract::Command => {
                GuestEntry::Command(CommandPre::new(ready).map_err(|e| format!("{e:#}"))?)
            }
        };
        let ticker = Ticker::start(&engine).map_err(|e| format!("no thread for the timer: {e}"))?;
        let folders = Folders::open(&init.openings, &init.scratch)
            .map_err(|e| format!("the folders cannot be opened: {e}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let runtime = runtime.map_err(|e| format!("no runtime for calls: {e}"))?;
        let granted = Arc::new(Granted::new(&init.folder, &init.granted));
        Ok(Loaded {
            entry,
            init,
            folders,
            granted,
            engine,
            ticker,
            runtime,
        })
    }

    /// Runs one call to its end or to its limit: the answer, and the text that a typed export
    /// returned. `to` gets the log and what is printed, in frames.
    pub fn call(
        &self,
        id: u64,
        env: &BTreeMap<String, String>,
        input: Vec<u8>,
        timeout: Duration,
        to: &ToHost,
    ) -> wasmtime::Result<(CallSummary, Vec<u8>)> {
        let limits = &self.init.limits;
        let deadline = Instant::now() + timeout.min(MAX_CALL_TIME);
        let cpu_before = cpu_time();
        let cpu_end = cpu_before + Duration::from_millis(limits.get(Limit::CpuMs));
        let most = limits.get(Limit::OutputBytes);
        let log = Sink::new(to, WorkerMessage::Log, u64::MAX);
        let out = Sink::new(to, WorkerMessage::Output, most);
        let watch = Watch::new(to.clone());
        let mut store = Store::new(
            &self.engine,
            self.guest(env, &input, &out, &log, watch.clone()),
        );
        store.limiter(|guest| &mut guest.meter);
        let handles = limits.get(Limit::OpenFiles).saturating_add(SPARE_HANDLES);
        store
            .data_mut()
            .table
            .set_max_capacity(usize::try_from(handles).unwrap_or(usize::MAX));
        // How much one host call may copy: about as much as the guest may answer.
        let copy = most.max(MIB).saturating_add(64 * KIB);
        store.set_hostcall_fuel(usize::try_from(copy).unwrap_or(usize::MAX));
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            if Instant::now() >= deadline {
                Err(wasmtime::Error::new(Cut::Time))
            } else if cpu_time() >= cpu_end {
                Err(wasmtime::Error::new(Cut::Cpu))
            } else {
                Ok(UpdateDeadline::Yield(1))
            }
        });
        self.ticker.running(true);
        let run =
            async { tokio::time::timeout_at(deadline.into(), self.enter(&mut store, input)).await };
        let ended = self.block_on(run)?;
        self.ticker.running(false);
        let guest = store.into_data();
        let (end, mut returned) = match ended {
            Err(_) => (End::TimedOut, Vec::new()),
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => (failed(&error, copy, &log), Vec::new()),
        };
        log.finish()?;
        let over = out.finish()? || returned.len() as u64 > most;
        if over {
            returned.clear();
        }
        let has_failed = !matches!(
            end,
            End::Exit { code: 0 } | End::Returned | End::TimedOut | End::OverLimit { .. }
        );
        // A limit outranks the guest's own ending: a guest that was refused memory and then failed,
        // failed for lack of memory, while one that succeeded is fine. The same holds for a full
        // scratch.
        let exceeded = if over {
            Some(Limit::OutputBytes)
        } else if has_failed && guest.meter.refused {
            Some(Limit::MemoryBytes)
        } else if has_failed && self.folders.were_asked_for() && is_full(&self.init.scratch) {
            Some(Limit::ScratchBytes)
        } else {
            None
        };
        let end = exceeded.map_or(end, |limit| End::OverLimit { limit });
        let cpu_ms = crate::base::millis(cpu_time().saturating_sub(cpu_before));
        let peak_memory = guest.meter.peak;
        // Closes the handles, before scratch is checked.
        drop(guest);
        let clean = self.folders.are_clean();
        let more_denied = watch.more();
        Ok((
            CallSummary {
                id,
                end,
                cpu_ms,
                peak_memory,
                clean,
                more_denied,
            },
            returned,
        ))
    }

    async fn enter(
        &self,
        store: &mut Store<Guest>,
        input: Vec<u8>,
    ) -> wasmtime::Result<(End, Vec<u8>)> {
        match &self.entry {
            GuestEntry::Typed(ready, export) => {
                let instance = ready.instantiate_async(&mut *store).await?;
                let run = instance
                    .get_typed_func::<(&str,), (Result<String, String>,)>(&mut *store, export)?;
                let input = String::from_utf8(input)?;
                Ok(match run.call_async(&mut *store, (&input,)).await? {
                    (Ok(text),) => (End::Returned, text.into_bytes()),
                    (Err(text),) => (End::Raised, text.into_bytes()),
                })
            }
            GuestEntry::Command(ready) => {
                let command = ready.instantiate_async(&mut *store).await?;
                let ok = command.wasi_cli_run().call_run(&mut *store).await?;
                Ok((
                    End::Exit {
                        code: i32::from(ok.is_err()),
                    },
                    Vec::new(),
                ))
            }
        }
    }

    /// What this call may touch, built from nothing.
    fn guest(
        &self,
        env: &BTreeMap<String, String>,
        input: &[u8],
        out: &Sink,
        log: &Sink,
        watch: Watch,
    ) -> Guest {
        let mut wasi = WasiCtxBuilder::new();
        let networked = !self.init.ports.is_empty();
        let ports = self.init.ports.clone();
        let binds = watch.clone();
        wasi.allow_tcp(networked)
            .allow_udp(false)
            .allow_ip_name_lookup(networked)
            .socket_addr_check(move |address, how| {
                // If the guest bound no address, this is also asked about the address that the
                // kernel chooses.
                let chosen = address.ip().is_unspecified() && address.port() == 0;
                let connects = match how {
                    SocketAddrUse::TcpConnect => true,
                    SocketAddrUse::TcpBind => chosen,
                    _ => false,
                };
                let is_open = ports.contains(&address.port());
                if matches!(how, SocketAddrUse::TcpConnect) && !is_open {
                    binds.saw(DenialKind::Connect, address.to_string());
                }
                if !connects {
                    binds.saw(DenialKind::Bind, address.to_string());
                }
                Box::pin(async move { networked && connects })
            })
            .max_random_size(MAX_RANDOM_BYTES)
            // The worker has nothing else to do; should a file block for ever, the host ends the
            // worker.
            .allow_blocking_current_thread(true)
            .arg(&self.init.program)
            .stderr(log.clone());
        // A variable of the call replaces the one with the same name.
        for (name, value) in self
            .init
            .env
            .iter()
            .filter(|(name, _)| !env.contains_key(*name))
            .chain(env)
        {
            wasi.env(name, value);
        }
        match self.entry {
            // What a typed export prints goes to the log: its answer is what it returns.
            GuestEntry::Typed(..) => wasi.stdout(log.clone()),
            GuestEntry::Command(_) => wasi
                .stdin(MemoryInputPipe::new(input.to_vec()))
                .stdout(out.clone()),
        };
        let memory = self.init.limits.get(Limit::MemoryBytes);
        let folders = self.folders.clone();
        let granted = Arc::clone(&self.granted);
        Guest::new(wasi.build(), folders, granted, memory, networked, watch)
    }

    /// A guest that connects leaves tasks behind, so its call has a runtime of its own, which ends
    /// them.
    fn block_on<T>(&self, run: impl Future<Output = T>) -> wasmtime::Result<T> {
        if self.init.ports.is_empty() {
            return Ok(self.runtime.block_on(run));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(LOOKUPS)
            .build()?;
        let done = runtime.block_on(run);
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        Ok(done)
    }
}

/// Whether no byte or no file is left in scratch.
fn is_full(scratch: &std::path::Path) -> bool {
    nix::sys::statvfs::statvfs(scratch)
        .is_ok_and(|stat| stat.blocks_free() == 0 || stat.files_free() == 0)
}

/// How a guest that did not return ended.
fn failed(error: &wasmtime::Error, copy: u64, log: &Sink) -> End {
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return End::Exit { code: *code };
    }
    match error.downcast_ref() {
        Some(Cut::Time) => return End::TimedOut,
        Some(Cut::Cpu) => {
            return End::OverLimit {
                limit: Limit::CpuMs,
            };
        }
        None => {}
    }
    if let Some(ResourceTableError::Full) = error.downcast_ref() {
        return End::OverLimit {
            limit: Limit::OpenFiles,
        };
    }
    let reason = error.root_cause().to_string();
    // wasmtime does not export this error's type; its text is pinned by a test.
    if reason.contains("fuel allocated for hostcalls has been exhausted") {
        // With a backtrace of the guest, one of its calls copied too much; else what it returned
        // was too much.
        if error.downcast_ref::<WasmBacktrace>().is_none() {
            return End::OverLimit {
                limit: Limit::OutputBytes,
            };
        }
        let message = format!(
            "one call to the host passes more than {copy} bytes; pass them in several calls"
        );
        return End::Trapped { message };
    }
    // Where it happened helps the author, so it goes to the log.
    let _ = log.take(format!("{error:?}\n").as_bytes());
    End::Trapped {
        message: frame::short(&reason),
    }
}

/// Makes running guest code look at the clock: epoch ticks while a call runs. An idle worker is not
/// woken.
struct Ticker {
    running: Arc<AtomicBool>,
    thread: Thread,
}

impl Ticker {
    fn start(engine: &wasmtime::Engine) -> io::Result<Ticker> {
        let running = Arc::new(AtomicBool::new(false));
        let engine = engine.weak();
        let run = Arc::clone(&running);
        let thread = thread::Builder::new()
            .name("ticker".into())
            .stack_size(128 * 1024)
            .spawn(move || {
                let mut idle = 0_u32;
                loop {
                    idle = if run.load(Ordering::SeqCst) {
                        0
                    } else {
                        IDLE_TICKS.min(idle) + 1
                    };
                    if idle > IDLE_TICKS {
                        thread::park();
                        continue;
                    }
                    thread::sleep(TICK);
                    let Some(engine) = engine.upgrade() else {
                        return;
                    };
                    engine.increment_epoch();
                }
            })?;
        Ok(Ticker {
            running,
            thread: thread.thread().clone(),
        })
    }

    fn running(&self, now: bool) {
        self.running.store(now, Ordering::SeqCst);
        if now {
            // A system call only where the thread is parked; else the next `park` returns at once.
            self.thread.unpark();
        }
    }
}
