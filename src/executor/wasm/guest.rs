//! The state of one store, and what its guest may import.

use super::adapt::EXITS;
use super::denials::{Granted, Watch, below};
use super::folders::Folders;
use super::frame::Denied;
use super::http::Http;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use wasmtime::component::{Linker, LinkerInstance, Resource, ResourceTable};
use wasmtime::{Engine, ResourceLimiter, StoreContextMut};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, ErrorCode, HostDescriptor, MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode as NetworkError, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{ip_name_lookup, tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{FsResult, SocketResult};
use wasmtime_wasi::sockets::WasiSocketsView;
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
    /// The names of opened files and folders, by handle.
    names: HashMap<u32, String>,
    granted: Arc<Granted>,
    watch: Watch,
    salt: RandomState,
}

impl Guest {
    /// `memory`: most bytes of all its linear memories together. `networked`: it may send HTTP requests.
    pub fn new(
        wasi: WasiCtx,
        folders: Option<Folders>,
        granted: Arc<Granted>,
        memory: u64,
        networked: bool,
        watch: Watch,
    ) -> Guest {
        let meter = Meter { allowed: memory, total: 0, peak: 0, asked: 0, refused: false, watch: watch.clone() };
        let http = Http::new(networked, watch.clone());
        let (table, names, salt) = (ResourceTable::new(), HashMap::new(), RandomState::new());
        Guest { table, meter, wasi, http, folders, names, granted, watch, salt }
    }

    /// Passes the answer to a question about paths on, each below a handle; a refusal is reported. Of two paths the
    /// first is reported unless only the other can be the reason.
    fn answered<T>(
        &self,
        doing: Doing,
        paths: &[(u32, &str)],
        answer: FsResult<T>,
    ) -> wasmtime::Result<(Result<T, ErrorCode>,)> {
        let error = match answer {
            Ok(answer) => return Ok((Ok(answer),)),
            Err(error) => error.downcast()?,
        };
        let writes = doing != Doing::Reads;
        let whole = |(handle, path): &(u32, &str)| below(self.names.get(handle).map_or("", String::as_str), path);
        let paths: Vec<String> = paths.iter().map(whole).collect();
        let Some(path) = paths.iter().find(|path| !self.granted.holds(path, writes)).or(paths.last()) else {
            return Ok((Err(error),));
        };
        let holds = |writes| self.granted.holds(path, writes);
        let denied = match error {
            ErrorCode::Access if doing == Doing::Links => Some(Denied::WriteWithin),
            ErrorCode::NotPermitted => Some(match (writes, holds(false)) {
                (true, _) if holds(true) => Denied::WriteWithin,
                (true, true) => Denied::ReadOnly,
                (false, true) => Denied::ReadWithin,
                (true, false) => Denied::Write,
                (false, false) => Denied::Read,
            }),
            ErrorCode::NoEntry if self.granted.hides(path) => Some(if writes { Denied::Write } else { Denied::Read }),
            _ => None,
        };
        if let Some(denied) = denied {
            self.watch.saw(denied, path.clone());
        }
        Ok((Err(error),))
    }

    /// Salted for each call: hashes are made of inode numbers, which a tmpfs counts up with every file, and so would
    /// tell of earlier calls.
    fn salted(&self, hash: FsResult<MetadataHashValue>) -> FsResult<MetadataHashValue> {
        let MetadataHashValue { lower, upper } = hash?;
        let half = |half: u8| self.salt.hash_one((lower, upper, half));
        Ok(MetadataHashValue { lower: half(0), upper: half(1) })
    }

    fn opened(&mut self) -> wasmtime::Result<Vec<(Handle, String)>> {
        let Some(folders) = &self.folders else { return Ok(Vec::new()) };
        let opened = folders.give(&mut self.table)?;
        for (handle, name) in &opened {
            let shown = self.granted.relative(name);
            self.names.insert(handle.rep(), shown.unwrap_or_else(|| name.clone()));
        }
        Ok(opened)
    }

    fn made<T>(&self, made: SocketResult<T>, denied: Denied) -> wasmtime::Result<(Result<T, NetworkError>,)> {
        if let Err(error) = &made
            && matches!(error.downcast_ref(), Some(NetworkError::AccessDenied))
        {
            self.watch.saw(denied, String::new());
        }
        Ok((made.map(Ok).or_else(|error| error.downcast().map(Err))?,))
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

/// Counts all linear memories of a call together.
pub struct Meter {
    allowed: u64,
    total: u64,
    pub peak: u64,
    /// What the growth under way asked for, to be taken back if it fails.
    asked: u64,
    pub refused: bool,
    watch: Watch,
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
        if desired > MAX_TABLE_ELEMENTS {
            self.watch.saw(Denied::Table, String::new());
        }
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }
}

/// What a guest may import: WASI 0.2 with `wasi:http`, and the exit code of adapted modules (see `adapt`). Functions
/// that may refuse a file, a socket or a name report that. `get-directories` gives the folders that all stores share.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    linker.instance(EXITS)?.func_wrap("proc-exit", |_, (code,): (u32,)| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(I32Exit(code.cast_signed())))
    })?;
    linker.allow_shadowing(true);
    linker
        .instance("wasi:filesystem/preopens@0.2.12")?
        .func_wrap("get-directories", |mut store: Store, (): ()| Ok((store.data_mut().opened()?,)))?;
    files(&mut linker.instance("wasi:filesystem/types@0.2.12")?)?;
    linker.instance("wasi:sockets/tcp-create-socket@0.2.12")?.func_wrap(
        "create-tcp-socket",
        |mut store: Store, (family,): (IpAddressFamily,)| {
            let made = tcp_create_socket::Host::create_tcp_socket(&mut store.data_mut().sockets(), family);
            store.data().made(made, Denied::Tcp)
        },
    )?;
    linker.instance("wasi:sockets/udp-create-socket@0.2.12")?.func_wrap_async(
        "create-udp-socket",
        |mut store: Store, (family,): (IpAddressFamily,)| {
            Box::new(async move {
                let made = udp_create_socket::Host::create_udp_socket(&mut store.data_mut().sockets(), family).await;
                store.data().made(made, Denied::Udp)
            })
        },
    )?;
    linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?.func_wrap(
        "resolve-addresses",
        |mut store: Store, (network, name): (Resource<Network>, String)| {
            let guest = store.data_mut();
            let found = ip_name_lookup::Host::resolve_addresses(&mut guest.sockets(), network, name.clone());
            let refused = || found.as_ref().err()?.downcast_ref();
            if matches!(refused(), Some(NetworkError::PermanentResolverFailure)) {
                guest.watch.saw(Denied::Lookup, name);
            }
            Ok((found.map(Ok).or_else(|error| error.downcast().map(Err))?,))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(linker)
}

type Store<'a> = StoreContextMut<'a, Guest>;
type Handle = Resource<Descriptor>;

/// What an operation was to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Reads,
    Writes,
    Links,
}

/// Operations on a path below a handle.
macro_rules! watched {
    ($types:ident: $($doing:ident $name:literal $method:ident($($given:ident: $kind:ty,)* @path $(, $more:ident: $then:ty)*);)*) => {$(
        $types.func_wrap_async(
            concat!("[method]descriptor.", $name),
            |mut store: Store, (handle, $($given,)* path, $($more,)*): (Handle, $($kind,)* String, $($then,)*)| {
                Box::new(async move {
                    let (at, asked) = (handle.rep(), path.clone());
                    let answer = store.data_mut().filesystem().$method(handle, $($given,)* path, $($more,)*).await;
                    store.data().answered(Doing::$doing, &[(at, &asked)], answer)
                })
            },
        )?;
    )*};
}

/// `wasi:filesystem` as wasmtime-wasi has it. What it refuses is reported; nothing is decided here.
fn files(types: &mut LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    watched! { types:
        Writes "create-directory-at" create_directory_at(@path);
        Writes "remove-directory-at" remove_directory_at(@path);
        Writes "unlink-file-at" unlink_file_at(@path);
        Writes "set-times-at" set_times_at(flags: PathFlags, @path, read: NewTimestamp, written: NewTimestamp);
        Reads "stat-at" stat_at(flags: PathFlags, @path);
        Reads "readlink-at" readlink_at(@path);
        Links "symlink-at" symlink_at(target: String, @path);
    }
    types.func_wrap_async(
        "[method]descriptor.open-at",
        |mut store: Store, given: (Handle, PathFlags, String, OpenFlags, DescriptorFlags)| {
            Box::new(async move {
                let (handle, follow, path, how, flags) = given;
                let writes =
                    how.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE) || flags.contains(DescriptorFlags::WRITE);
                let (at, asked, guest) = (handle.rep(), path.clone(), store.data_mut());
                let answer = guest.filesystem().open_at(handle, follow, path, how, flags).await;
                if let Ok(opened) = &answer {
                    let name = below(guest.names.get(&at).map_or("", String::as_str), &asked);
                    guest.names.insert(opened.rep(), name);
                }
                guest.answered(if writes { Doing::Writes } else { Doing::Reads }, &[(at, &asked)], answer)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.rename-at",
        |mut store: Store, (handle, path, to, name): (Handle, String, Handle, String)| {
            Box::new(async move {
                let (from, asked, at, wanted) = (handle.rep(), path.clone(), to.rep(), name.clone());
                let answer = store.data_mut().filesystem().rename_at(handle, path, to, name).await;
                store.data().answered(Doing::Writes, &[(from, &asked), (at, &wanted)], answer)
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.link-at",
        |mut store: Store, (handle, follow, path, to, name): (Handle, PathFlags, String, Handle, String)| {
            Box::new(async move {
                let (from, asked, at, wanted) = (handle.rep(), path.clone(), to.rep(), name.clone());
                let answer = store.data_mut().filesystem().link_at(handle, follow, path, to, name).await;
                store.data().answered(Doing::Links, &[(from, &asked), (at, &wanted)], answer)
            })
        },
    )?;
    types.func_wrap_async("[method]descriptor.metadata-hash", |mut store: Store, (handle,): (Handle,)| {
        Box::new(async move {
            let hash = store.data_mut().filesystem().metadata_hash(handle).await;
            let guest = store.data();
            guest.answered(Doing::Reads, &[], guest.salted(hash))
        })
    })?;
    types.func_wrap_async(
        "[method]descriptor.metadata-hash-at",
        |mut store: Store, (handle, follow, path): (Handle, PathFlags, String)| {
            Box::new(async move {
                let (at, asked) = (handle.rep(), path.clone());
                let hash = store.data_mut().filesystem().metadata_hash_at(handle, follow, path).await;
                let guest = store.data();
                guest.answered(Doing::Reads, &[(at, &asked)], guest.salted(hash))
            })
        },
    )
}
