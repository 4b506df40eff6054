//! Guest: the state of one store, and what its guest may import.
//!
//! For: calls, and the compiler, which links a module once. In: the folders, limits and WASI context of one call.
//! Out: the state; the linker. Never: keeps anything from one call for the next.
//!
//! Metadata hashes, by which a guest tells files apart, are salted for each call: they are made of inode numbers, which
//! a tmpfs counts up with every file, and so would tell of earlier calls.

use super::adapt::EXITS;
use super::folders::Folders;
use super::http::Http;
use std::hash::{BuildHasher, RandomState};
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime::{Engine, ResourceLimiter, StoreContextMut};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::FsResult;
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{ErrorCode, HostDescriptor, MetadataHashValue};
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtxView, WasiHttpView};

/// Largest table of a guest, elements.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;

/// State of one store.
pub struct Guest {
    pub table: ResourceTable,
    pub meter: Meter,
    wasi: WasiCtx,
    http: Http,
    folders: Option<Folders>,
    salt: RandomState,
}

impl Guest {
    /// `memory`: most bytes of all its linear memories together. `networked`: it may send HTTP requests.
    pub fn new(wasi: WasiCtx, folders: Option<Folders>, memory: u64, networked: bool) -> Guest {
        let meter = Meter { allowed: memory, total: 0, peak: 0, asked: 0, refused: false };
        let http = Http::new(networked);
        Guest { table: ResourceTable::new(), meter, wasi, http, folders, salt: RandomState::new() }
    }

    fn salted(&self, hash: FsResult<MetadataHashValue>) -> wasmtime::Result<Result<MetadataHashValue, ErrorCode>> {
        match hash {
            Ok(MetadataHashValue { lower, upper }) => {
                let salted = |half: u8| self.salt.hash_one((lower, upper, half));
                Ok(Ok(MetadataHashValue { lower: salted(0), upper: salted(1) }))
            }
            Err(error) => error.downcast().map(Err),
        }
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.http.view(&mut self.table)
    }
}

impl preopens::Host for Guest {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        self.folders.as_ref().map_or(Ok(Vec::new()), |folders| folders.give(&mut self.table))
    }
}

/// Counts all linear memories of a call together.
pub struct Meter {
    allowed: u64,
    total: u64,
    pub peak: u64,
    /// What the growth under way asked for, to be taken back if it fails.
    asked: u64,
    pub refused: bool,
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

/// What a guest may import: WASI 0.2 with `wasi:http`, and the exit code of adapted modules (see `adapt`). Three
/// functions of wasmtime-wasi are replaced: `get-directories`, which knows only the folders of one store, and the two
/// that give metadata hashes.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    struct Whole;
    impl HasData for Whole {
        type Data<'a> = &'a mut Guest;
    }
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    linker.instance(EXITS)?.func_wrap("proc-exit", |_, (code,): (u32,)| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(I32Exit(code.cast_signed())))
    })?;
    linker.allow_shadowing(true);
    preopens::add_to_linker::<Guest, Whole>(&mut linker, |guest| guest)?;
    let mut files = linker.instance("wasi:filesystem/types@0.2.12")?;
    files.func_wrap_async("[method]descriptor.metadata-hash", |mut store: StoreContextMut<Guest>, (file,)| {
        Box::new(async move {
            let guest = store.data_mut();
            let hash = guest.filesystem().metadata_hash(file).await;
            Ok((guest.salted(hash)?,))
        })
    })?;
    files.func_wrap_async(
        "[method]descriptor.metadata-hash-at",
        |mut store: StoreContextMut<Guest>, (file, flags, path)| {
            Box::new(async move {
                let guest = store.data_mut();
                let hash = guest.filesystem().metadata_hash_at(file, flags, path).await;
                Ok((guest.salted(hash)?,))
            })
        },
    )?;
    linker.allow_shadowing(false);
    Ok(linker)
}
