//! Guest: one call in one fresh store, held to its limits.
//!
//! For: the worker. In: a loaded component, the input, the limits. Out: how it ended, output, log, usage.
//! Never: keeps anything from one call for the next; gives a socket; inherits a stream, argument or variable.

use super::adapt::{self, Contract};
use super::folders::Folders;
use super::frame::{self, End, Init};
use super::http::Http;
use super::sinks::{Ends, Shared, Whole};
use super::{engine, ticker::Ticker};
use crate::quantity::{KIB, Limit, MIB};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::collections::BTreeMap;
use std::hash::RandomState;
use std::time::{Duration, Instant};
use wasmtime::component::{Component, ComponentExportIndex, InstancePre};
use wasmtime::component::{ResourceTable, ResourceTableError};
use wasmtime::{ResourceLimiter, Store, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// Most random bytes of one request.
const MAX_RANDOM_BYTES: u64 = 8 * MIB;
/// Handles that every guest holds without asking: standard streams, terminals, pollables.
const SPARE_HANDLES: u64 = 64;
/// Largest table of a guest, elements.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;

/// State of one store.
pub struct Guest {
    pub(super) table: ResourceTable,
    wasi: WasiCtx,
    pub(super) http: Http,
    pub(super) folders: Option<Folders>,
    pub(super) salt: RandomState,
    meter: Meter,
}

impl Guest {
    fn new(wasi: WasiCtx, folders: Option<Folders>, meter: Meter) -> Guest {
        Guest { table: ResourceTable::new(), wasi, http: Http::default(), folders, salt: RandomState::new(), meter }
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Counts all linear memories of a call together.
struct Meter {
    allowed: u64,
    total: u64,
    peak: u64,
    /// What the growth under way asked for, to be taken back if it fails.
    asked: u64,
    refused: bool,
}

impl Meter {
    fn new(allowed: u64) -> Meter {
        Meter { allowed, total: 0, peak: 0, asked: 0, refused: false }
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        self.asked = desired.saturating_sub(current) as u64;
        let total = self.total.saturating_add(self.asked);
        if total > self.allowed {
            self.refused = true;
            // A script ends when it passes its memory limit, and so does a module: its memory.grow does not just fail.
            return Err(wasmtime::Error::msg("past memoryBytes"));
        }
        self.total = total;
        self.peak = self.peak.max(total);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.total = self.total.saturating_sub(self.asked);
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }
}

/// Why the epoch check ended a call.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("out of time")]
    Time,
    #[error("out of CPU time")]
    Cpu,
}

enum Entry {
    Typed(InstancePre<Guest>, ComponentExportIndex),
    Command(CommandPre<Guest>),
}

/// A component that is ready for calls.
pub struct Loaded {
    entry: Entry,
    folders: Folders,
    engine: wasmtime::Engine,
    ticker: Ticker,
}

/// One finished call.
pub struct Finished {
    pub end: End,
    pub output: Vec<u8>,
    pub log: Vec<u8>,
    pub cpu_ms: u64,
    pub peak_memory: u64,
    /// Nothing of it is left for the next call.
    pub clean: bool,
}

impl Loaded {
    /// Links a component; the error is for a person.
    pub fn new(component: &Component, init: &Init) -> Result<Loaded, String> {
        let contract = adapt::contract(component, init.entry_point.as_deref())?;
        let engine = component.engine().clone();
        let linker = engine::linker(&engine).map_err(|e| format!("{e:#}"))?;
        let ready = linker
            .instantiate_pre(component)
            .map_err(|e| format!("the component imports what this host does not offer: {e:#}"))?;
        let entry = match contract {
            Contract::Typed(name) => {
                let index = component.get_export_index(None, &name).ok_or("the typed export is gone")?;
                Entry::Typed(ready, index)
            }
            Contract::Command => Entry::Command(CommandPre::new(ready).map_err(|e| format!("{e:#}"))?),
        };
        let ticker = Ticker::start(&engine).map_err(|e| format!("no thread for the timer: {e}"))?;
        let folders = Folders::open(init).map_err(|e| format!("the folders cannot be opened: {e}"))?;
        Ok(Loaded { entry, folders, engine, ticker })
    }

    /// Runs one call to its end or to its limit.
    pub fn call(
        &self,
        runtime: &tokio::runtime::Runtime,
        init: &Init,
        env: &BTreeMap<String, String>,
        input: Vec<u8>,
        timeout: Duration,
    ) -> wasmtime::Result<Finished> {
        let deadline = Instant::now() + timeout;
        let cpu_before = cpu_used();
        let cpu_end = cpu_before + Duration::from_millis(init.limit(Limit::CpuMs));
        let out = Shared::new(Whole::new(usize::try_from(init.limit(Limit::OutputBytes)).unwrap_or(usize::MAX)));
        let log = Shared::new(Ends::new(usize::try_from(init.limit(Limit::LogBytes)).unwrap_or(usize::MAX)));
        let mut store = Store::new(&self.engine, self.guest(init, env, &input, &out, &log));
        store.limiter(|guest| &mut guest.meter);
        let handles = usize::try_from(init.limit(Limit::OpenFiles).saturating_add(SPARE_HANDLES)).unwrap_or(usize::MAX);
        store.data_mut().table.set_max_capacity(handles);
        // How much one host call may copy: about as much as the guest may answer.
        let copy = init.limit(Limit::OutputBytes).max(MIB).saturating_add(64 * KIB);
        store.set_hostcall_fuel(usize::try_from(copy).unwrap_or(usize::MAX));
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| match () {
            () if Instant::now() >= deadline => Err(wasmtime::Error::new(Cut::Time)),
            () if cpu_used() >= cpu_end => Err(wasmtime::Error::new(Cut::Cpu)),
            () => Ok(UpdateDeadline::Yield(1)),
        });
        self.ticker.running(true);
        let ended = runtime
            .block_on(async { tokio::time::timeout_at(deadline.into(), self.enter(&mut store, input, &out)).await });
        self.ticker.running(false);
        let guest = store.into_data();
        let end = match ended {
            Err(_) => End::TimedOut,
            Ok(Ok(end)) => end,
            Ok(Err(error)) => failed(&error, copy, &log),
        };
        let over = out.lock().over;
        let end = settle(end, over, guest.meter.refused, || self.folders.were_asked_for() && is_full(&init.scratch));
        let cpu_ms = u64::try_from(cpu_used().saturating_sub(cpu_before).as_millis()).unwrap_or(u64::MAX);
        let peak_memory = guest.meter.peak;
        // Closes the handles, before scratch is checked.
        drop(guest);
        let clean = self.folders.are_clean();
        let output = std::mem::take(&mut out.lock().bytes);
        let log = std::mem::replace(&mut *log.lock(), Ends::new(0)).into_bytes();
        Ok(Finished { end, output, log, cpu_ms, peak_memory, clean })
    }

    /// One call without limits, clock or folders, for the rig.
    pub fn bare(&self, runtime: &tokio::runtime::Runtime, input: &str) -> wasmtime::Result<()> {
        let out = Shared::new(Whole::new(usize::MAX));
        let mut wasi = WasiCtxBuilder::new();
        if let Entry::Command(_) = self.entry {
            wasi.stdin(MemoryInputPipe::new(input.as_bytes().to_vec())).stdout(out.clone());
        }
        let meter = Meter::new(u64::MAX);
        let guest = Guest::new(wasi.build(), None, meter);
        let mut store = Store::new(&self.engine, guest);
        store.set_epoch_deadline(u64::MAX / 2);
        runtime.block_on(self.enter(&mut store, input.as_bytes().to_vec(), &out)).map(|_| ())
    }

    async fn enter(&self, store: &mut Store<Guest>, input: Vec<u8>, out: &Shared<Whole>) -> wasmtime::Result<End> {
        match &self.entry {
            Entry::Typed(ready, export) => {
                let instance = ready.instantiate_async(&mut *store).await?;
                let run = instance.get_typed_func::<(&str,), (Result<String, String>,)>(&mut *store, export)?;
                let input = String::from_utf8(input)?;
                let (answer,) = run.call_async(&mut *store, (&input,)).await?;
                let (end, text) = match answer {
                    Ok(text) => (End::Returned, text),
                    Err(text) => (End::Raised, text),
                };
                super::sinks::Sink::take(&mut *out.lock(), text.as_bytes());
                Ok(end)
            }
            Entry::Command(ready) => {
                let command = ready.instantiate_async(&mut *store).await?;
                let ok = command.wasi_cli_run().call_run(&mut *store).await?;
                Ok(End::Exit { code: i32::from(ok.is_err()) })
            }
        }
    }

    /// What this call may touch, built from nothing.
    fn guest(
        &self,
        init: &Init,
        env: &BTreeMap<String, String>,
        input: &[u8],
        out: &Shared<Whole>,
        log: &Shared<Ends>,
    ) -> Guest {
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .socket_addr_check(|_, _| Box::pin(async { false }))
            .max_random_size(MAX_RANDOM_BYTES)
            // The worker has nothing else to do; should a file block for ever, the host ends the worker.
            .allow_blocking_current_thread(true)
            .arg(&init.program)
            .stderr(log.clone());
        // A variable of the call takes the place of the one with the same name.
        for (name, value) in init.env.iter().filter(|(name, _)| !env.contains_key(*name)).chain(env) {
            wasi.env(name, value);
        }
        match self.entry {
            // What a typed export prints goes to the log: its answer is what it returns.
            Entry::Typed(..) => wasi.stdout(log.clone()),
            Entry::Command(_) => wasi.stdin(MemoryInputPipe::new(input.to_vec())).stdout(out.clone()),
        };
        let meter = Meter::new(init.limit(Limit::MemoryBytes));
        Guest::new(wasi.build(), Some(self.folders.clone()), meter)
    }
}

/// A limit outranks the guest's own ending: a guest that was refused memory and then failed, failed for
/// lack of memory, while one that succeeded is fine. The same holds for a full scratch.
fn settle(end: End, output_over: bool, memory_refused: bool, scratch_full: impl FnOnce() -> bool) -> End {
    let failed = !matches!(end, End::Exit { code: 0 } | End::Returned | End::TimedOut | End::OverLimit { .. });
    match end {
        _ if output_over => End::OverLimit { limit: Limit::OutputBytes },
        _ if memory_refused && failed => End::OverLimit { limit: Limit::MemoryBytes },
        _ if failed && scratch_full() => End::OverLimit { limit: Limit::ScratchBytes },
        end => end,
    }
}

/// Whether no byte or no file is left in scratch.
fn is_full(scratch: &std::path::Path) -> bool {
    nix::sys::statvfs::statvfs(scratch).is_ok_and(|stat| stat.blocks_free() == 0 || stat.files_free() == 0)
}

/// How a guest ended that did not return.
fn failed(error: &wasmtime::Error, copy: u64, log: &Shared<Ends>) -> End {
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return End::Exit { code: *code };
    }
    match error.downcast_ref() {
        Some(Cut::Time) => return End::TimedOut,
        Some(Cut::Cpu) => return End::OverLimit { limit: Limit::CpuMs },
        None => {}
    }
    if let Some(ResourceTableError::Full) = error.downcast_ref() {
        return End::OverLimit { limit: Limit::OpenFiles };
    }
    let reason = error.root_cause().to_string();
    // wasmtime does not export this error's type; its text is pinned by a test.
    if reason.contains("fuel allocated for hostcalls has been exhausted") {
        // With a backtrace of the guest, one of its calls copied too much; else what it returned was too much.
        if error.downcast_ref::<WasmBacktrace>().is_none() {
            return End::OverLimit { limit: Limit::OutputBytes };
        }
        let message = format!("one call to the host passes more than {copy} bytes; pass them in several calls");
        return End::Trapped { message };
    }
    // Where it happened helps the author, so it goes to the log.
    super::sinks::Sink::take(&mut *log.lock(), format!("{error:?}\n").as_bytes());
    End::Trapped { message: frame::short(&reason) }
}

/// CPU time of this whole process.
fn cpu_used() -> Duration {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |used| {
        let micros = used.user_time().num_microseconds() + used.system_time().num_microseconds();
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    })
}
