//! What wasmtime alone costs: a guest with the engine settings of a worker, in a bare store,
//! without limits, clock, folders and host.

use std::time::{Duration, Instant};
use toolhost::executor::wasm::adapt::{self, Contract};
use toolhost::executor::wasm::engine;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, Linker, ResourceTable};
use wasmtime::{Engine, Store};
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::pipe::{MemoryInputPipe, MemoryOutputPipe};
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// Longest answer, bytes.
const ANSWER: usize = 1 << 20;

struct Guest {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

enum Entry {
    Typed(InstancePre<Guest>, ComponentExportIndex),
    Command(CommandPre<Guest>),
}

/// One loaded module.
pub struct BareLoop {
    engine: Engine,
    entry: Entry,
    runtime: tokio::runtime::Runtime,
    /// How long adapting and compiling took, and how long loading the compiled code.
    pub compiled_in: Duration,
    pub loaded_in: Duration,
}

impl BareLoop {
    pub fn new(module: &[u8]) -> wasmtime::Result<BareLoop> {
        let compiler = engine::compiling()?;
        let start = Instant::now();
        let component = adapt::component(module).map_err(wasmtime::Error::msg)?;
        let compiled = Component::from_binary(&compiler, &component)?.serialize()?;
        let compiled_in = start.elapsed();
        let engine = engine::running()?;
        let start = Instant::now();
        let component = load(&engine, &compiled)?;
        let loaded_in = start.elapsed();
        let mut linker: Linker<Guest> = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        linker.instance(adapt::EXITS)?.func_wrap(
            "proc-exit",
            |_, (code,): (u32,)| -> wasmtime::Result<()> {
                Err(wasmtime::Error::new(I32Exit(code.cast_signed())))
            },
        )?;
        let ready = linker.instantiate_pre(&component)?;
        let entry = match adapt::contract(&component, None).map_err(wasmtime::Error::msg)? {
            Contract::Typed(name) => {
                let index = component.get_export_index(None, &name);
                Entry::Typed(
                    ready,
                    index.ok_or_else(|| wasmtime::Error::msg("the typed export is gone"))?,
                )
            }
            Contract::Command => Entry::Command(CommandPre::new(ready)?),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        Ok(BareLoop {
            engine,
            entry,
            runtime,
            compiled_in,
            loaded_in,
        })
    }

    /// One call, and how long it took.
    pub fn call(&self, input: &str) -> wasmtime::Result<Duration> {
        let start = Instant::now();
        let mut wasi = WasiCtxBuilder::new();
        if let Entry::Command(_) = self.entry {
            wasi.stdin(MemoryInputPipe::new(input.to_owned()))
                .stdout(MemoryOutputPipe::new(ANSWER));
        }
        let mut store = Store::new(
            &self.engine,
            Guest {
                wasi: wasi.build(),
                table: ResourceTable::new(),
            },
        );
        store.set_epoch_deadline(u64::MAX / 2);
        self.runtime.block_on(self.enter(&mut store, input))?;
        Ok(start.elapsed())
    }

    async fn enter(&self, store: &mut Store<Guest>, input: &str) -> wasmtime::Result<()> {
        match &self.entry {
            Entry::Typed(ready, export) => {
                let instance = ready.instantiate_async(&mut *store).await?;
                let run = instance
                    .get_typed_func::<(&str,), (Result<String, String>,)>(&mut *store, export)?;
                let (answer,) = run.call_async(&mut *store, (input,)).await?;
                answer.map(drop).map_err(wasmtime::Error::msg)
            }
            Entry::Command(ready) => {
                let command = ready.instantiate_async(&mut *store).await?;
                let ended = command.wasi_cli_run().call_run(&mut *store).await?;
                ended.map_err(|()| wasmtime::Error::msg("the guest failed"))
            }
        }
    }
}

#[allow(
    unsafe_code,
    reason = "loading compiled code cannot be checked by the compiler"
)]
fn load(engine: &Engine, compiled: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the caller got these bytes from `Component::serialize` of this wasmtime a moment ago.
    unsafe { Component::deserialize(engine, compiled) }
}
