//! The state of one store: what its guest may import, the folders that it finds opened, and where
//! its output goes.

use super::adapt::EXITS;
use super::denials::{Granted, SCRATCH, Watch, below};
use super::engine::TABLE_ELEMENTS;
use super::frame::{DenialKind, MAX_LOG_PIECE, Opening, ToHost, WorkerMessage};
use super::http::Hooks;
use crate::base::lock;
use crate::sandbox;
use bytes::Bytes;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::collections::HashMap;
use std::fs::{File, FileTimes};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio::io::AsyncWrite;
use wasmtime::component::{Linker, LinkerInstance, Resource, ResourceTable};
use wasmtime::{Engine, ResourceLimiter, StoreContextMut};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, ErrorCode, HostDescriptor, MetadataHashValue, NewTimestamp, OpenFlags,
    PathFlags,
};
use wasmtime_wasi::p2::bindings::sockets::network::{
    ErrorCode as NetworkError, IpAddressFamily, Network,
};
use wasmtime_wasi::p2::bindings::sockets::{ip_name_lookup, tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{
    FsResult, OutputStream, Pollable, SocketResult, StreamError, StreamResult,
};
use wasmtime_wasi::sockets::WasiSocketsView;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

/// State of one store.
pub struct Guest {
    pub table: ResourceTable,
    pub meter: MemoryMeter,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: Hooks,
    folders: Folders,
    /// The names of opened files and folders, by handle.
    names: HashMap<u32, String>,
    granted: Arc<Granted>,
    watch: Watch,
    salt: RandomState,
}

impl Guest {
    /// `memory`: most bytes of all its linear memories together. `networked`: it may send HTTP
    /// requests.
    pub fn new(
        wasi: WasiCtx,
        folders: Folders,
        granted: Arc<Granted>,
        memory: u64,
        networked: bool,
        watch: Watch,
    ) -> Guest {
        let meter = MemoryMeter {
            allowed: memory,
            total: 0,
            peak: 0,
            asked: 0,
            refused: false,
            watch: watch.clone(),
        };
        let http = WasiHttpCtx::default();
        let hooks = Hooks::new(networked, watch.clone());
        let table = ResourceTable::new();
        let names = HashMap::new();
        let salt = RandomState::new();
        Guest {
            table,
            meter,
            wasi,
            http,
            hooks,
            folders,
            names,
            granted,
            watch,
            salt,
        }
    }

    /// Passes on the answer to an operation on paths, each below a handle, and reports a refusal.
    /// Of two paths the first is reported unless only the other can be the reason.
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
        let paths: Vec<String> = paths
            .iter()
            .map(|(handle, path): &(u32, &str)| {
                below(self.names.get(handle).map_or("", String::as_str), path)
            })
            .collect();
        let Some(path) = paths
            .iter()
            .find(|path| !self.granted.holds(path, writes))
            .or(paths.last())
        else {
            return Ok((Err(error),));
        };
        let holds = |writes| self.granted.holds(path, writes);
        let denied = match error {
            ErrorCode::Access if doing == Doing::Links => Some(DenialKind::WriteWithin),
            ErrorCode::NotPermitted => Some(match (writes, holds(false)) {
                (true, _) if holds(true) => DenialKind::WriteWithin,
                (true, true) => DenialKind::ReadOnly,
                (false, true) => DenialKind::ReadWithin,
                (true, false) => DenialKind::Write,
                (false, false) => DenialKind::Read,
            }),
            ErrorCode::NoEntry if self.granted.hides(path) => Some(if writes {
                DenialKind::Write
            } else {
                DenialKind::Read
            }),
            _ => None,
        };
        if let Some(denied) = denied {
            self.watch.saw(denied, path.clone());
        }
        Ok((Err(error),))
    }

    /// Salts a hash for each call: hashes are made of inode numbers, which a tmpfs increments with
    /// every file, so they would reveal earlier calls.
    fn salted(&self, hash: FsResult<MetadataHashValue>) -> FsResult<MetadataHashValue> {
        let MetadataHashValue { lower, upper } = hash?;
        let half = |half: u8| self.salt.hash_one((lower, upper, half));
        Ok(MetadataHashValue {
            lower: half(0),
            upper: half(1),
        })
    }

    fn opened(&mut self) -> wasmtime::Result<Vec<(Handle, String)>> {
        let opened = self.folders.give(&mut self.table)?;
        for (handle, name) in &opened {
            let shown = self.granted.relative(name);
            self.names
                .insert(handle.rep(), shown.unwrap_or_else(|| name.clone()));
        }
        Ok(opened)
    }

    fn made<T>(
        &self,
        made: SocketResult<T>,
        denied: DenialKind,
    ) -> wasmtime::Result<(Result<T, NetworkError>,)> {
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
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.hooks,
            table: &mut self.table,
            ctx: &mut self.http,
        }
    }
}

/// Counts the linear memories of a call together.
pub struct MemoryMeter {
    allowed: u64,
    total: u64,
    pub peak: u64,
    /// Bytes of the growth under way, subtracted again if it fails.
    asked: u64,
    pub refused: bool,
    watch: Watch,
}

impl ResourceLimiter for MemoryMeter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.asked = desired.saturating_sub(current) as u64;
        let total = self.total.saturating_add(self.asked);
        if total > self.allowed {
            self.refused = true;
            // A script ends when it passes its memory limit, and so does a module: its memory.grow
            // does not just fail.
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

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            self.watch.saw(DenialKind::Table, String::new());
        }
        Ok(desired <= TABLE_ELEMENTS)
    }
}

/// What a guest may import: WASI 0.2 with `wasi:http`, and the exit code of adapted modules (see
/// `adapt`). Functions that may refuse a file, a socket or a name report that. `get-directories`
/// gives the folders that all stores share.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    linker.instance(EXITS)?.func_wrap(
        "proc-exit",
        |_, (code,): (u32,)| -> wasmtime::Result<()> {
            Err(wasmtime::Error::new(I32Exit(code.cast_signed())))
        },
    )?;
    linker.allow_shadowing(true);
    linker
        .instance("wasi:filesystem/preopens@0.2.12")?
        .func_wrap("get-directories", |mut store: GuestStore, (): ()| {
            Ok((store.data_mut().opened()?,))
        })?;
    files(&mut linker.instance("wasi:filesystem/types@0.2.12")?)?;
    linker
        .instance("wasi:sockets/tcp-create-socket@0.2.12")?
        .func_wrap(
            "create-tcp-socket",
            |mut store: GuestStore, (family,): (IpAddressFamily,)| {
                let made = tcp_create_socket::Host::create_tcp_socket(
                    &mut store.data_mut().sockets(),
                    family,
                );
                store.data().made(made, DenialKind::Tcp)
            },
        )?;
    linker
        .instance("wasi:sockets/udp-create-socket@0.2.12")?
        .func_wrap_async(
            "create-udp-socket",
            |mut store: GuestStore, (family,): (IpAddressFamily,)| {
                Box::new(async move {
                    let made = udp_create_socket::Host::create_udp_socket(
                        &mut store.data_mut().sockets(),
                        family,
                    )
                    .await;
                    store.data().made(made, DenialKind::Udp)
                })
            },
        )?;
    linker
        .instance("wasi:sockets/ip-name-lookup@0.2.12")?
        .func_wrap(
            "resolve-addresses",
            |mut store: GuestStore, (network, name): (Resource<Network>, String)| {
                let guest = store.data_mut();
                let found = ip_name_lookup::Host::resolve_addresses(
                    &mut guest.sockets(),
                    network,
                    name.clone(),
                );
                let refused = || found.as_ref().err()?.downcast_ref();
                if matches!(refused(), Some(NetworkError::PermanentResolverFailure)) {
                    guest.watch.saw(DenialKind::Lookup, name);
                }
                Ok((found.map(Ok).or_else(|error| error.downcast().map(Err))?,))
            },
        )?;
    linker.allow_shadowing(false);
    Ok(linker)
}

type GuestStore<'a> = StoreContextMut<'a, Guest>;
type Handle = Resource<Descriptor>;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Reads,
    Writes,
    Links,
}

/// Operations on a path below a handle.
macro_rules! watched {
    ($types:ident: $(
        $doing:ident $name:literal $method:ident($($given:ident: $kind:ty,)* @path $(, $more:ident: $then:ty)*);
    )*) => {$(
        $types.func_wrap_async(
            concat!("[method]descriptor.", $name),
            |mut store: GuestStore, (handle, $($given,)* path, $($more,)*): (Handle, $($kind,)* String, $($then,)*)| {
                Box::new(async move {
                    let at = handle.rep();
 let asked = path.clone();
                    let answer = store.data_mut().filesystem().$method(handle, $($given,)* path, $($more,)*).await;
                    store.data().answered(Doing::$doing, &[(at, &asked)], answer)
                })
            },
        )?;
    )*};
}

/// Operations on a path below a handle, and on another path below another.
macro_rules! watched_pairs {
    ($types:ident: $($doing:ident $name:literal $method:ident($($given:ident: $kind:ty)?);)*) => {$(
        $types.func_wrap_async(
            concat!("[method]descriptor.", $name),
            |mut store: GuestStore, (handle, $($given,)? path, to, name): (Handle, $($kind,)? String, Handle, String)| {
                Box::new(async move {
                    let from = handle.rep();
                    let at = to.rep();
                    let old = path.clone();
                    let new = name.clone();
                    let answer = store.data_mut().filesystem().$method(handle, $($given,)? path, to, name).await;
                    store.data().answered(Doing::$doing, &[(from, &old), (at, &new)], answer)
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
        |mut store: GuestStore, given: (Handle, PathFlags, String, OpenFlags, DescriptorFlags)| {
            Box::new(async move {
                let (handle, follow, path, how, flags) = given;
                let writes = how.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
                    || flags.contains(DescriptorFlags::WRITE);
                let at = handle.rep();
                let asked = path.clone();
                let guest = store.data_mut();
                let answer = guest
                    .filesystem()
                    .open_at(handle, follow, path, how, flags)
                    .await;
                if let Ok(opened) = &answer {
                    let name = below(guest.names.get(&at).map_or("", String::as_str), &asked);
                    guest.names.insert(opened.rep(), name);
                }
                guest.answered(
                    if writes { Doing::Writes } else { Doing::Reads },
                    &[(at, &asked)],
                    answer,
                )
            })
        },
    )?;
    watched_pairs! { types:
        Writes "rename-at" rename_at();
        Links "link-at" link_at(flags: PathFlags);
    }
    hashes(types)
}

fn hashes(types: &mut LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    types.func_wrap_async(
        "[method]descriptor.metadata-hash",
        |mut store: GuestStore, (handle,): (Handle,)| {
            Box::new(async move {
                let hash = store.data_mut().filesystem().metadata_hash(handle).await;
                let guest = store.data();
                guest.answered(Doing::Reads, &[], guest.salted(hash))
            })
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.metadata-hash-at",
        |mut store: GuestStore, (handle, follow, path): (Handle, PathFlags, String)| {
            Box::new(async move {
                let at = handle.rep();
                let asked = path.clone();
                let hash = store
                    .data_mut()
                    .filesystem()
                    .metadata_hash_at(handle, follow, path)
                    .await;
                let guest = store.data();
                guest.answered(Doing::Reads, &[(at, &asked)], guest.salted(hash))
            })
        },
    )
}

/// The folders that guests find opened, opened once for all calls of a worker. Scratch is checked
/// after each call.
#[derive(Clone)]
pub struct Folders(Arc<Mutex<Opened>>);

struct Opened {
    /// Holds the folders; a guest gets handles in a table of its own.
    wasi: WasiCtx,
    scratch: Scratch,
    /// Whether the call under way asked for the folders.
    asked: bool,
}

impl Folders {
    /// `scratch`: the folder that is the guest's `/tmp`.
    pub fn open(openings: &[Opening], scratch: &Path) -> io::Result<Folders> {
        let mut wasi = WasiCtxBuilder::new();
        // The worker has nothing else to do; should a file block for ever, the host ends the
        // worker.
        wasi.allow_blocking_current_thread(true);
        for opening in openings {
            let perms = if opening.write {
                FsPerms::ReadWrite
            } else {
                FsPerms::ReadOnly
            };
            // The guest does not find a granted folder that does not exist, or that this user may
            // not enter: the same that a script sees.
            let _ = wasi.preopened_dir(&opening.at, &opening.name, perms);
        }
        wasi.preopened_dir(scratch, SCRATCH, FsPerms::ReadWrite)
            .map_err(io::Error::other)?;
        let scratch = Scratch::open(scratch)?;
        Ok(Folders(Arc::new(Mutex::new(Opened {
            wasi: wasi.build(),
            scratch,
            asked: false,
        }))))
    }

    /// Handles of the folders, in the guest's own table.
    pub fn give(
        &self,
        table: &mut ResourceTable,
    ) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        struct View<'a>(WasiCtxView<'a>);
        impl WasiView for View<'_> {
            fn ctx(&mut self) -> WasiCtxView<'_> {
                WasiCtxView {
                    ctx: self.0.ctx,
                    table: self.0.table,
                }
            }
        }
        let opened = &mut *lock(&self.0);
        if !std::mem::replace(&mut opened.asked, true) {
            opened.scratch.begin()?;
        }
        let mut view = View(WasiCtxView {
            ctx: &mut opened.wasi,
            table,
        });
        preopens::Host::get_directories(&mut view.filesystem())
    }

    pub fn were_asked_for(&self) -> bool {
        lock(&self.0).asked
    }

    /// After a call, with its handles closed: whether it left nothing that the next call could
    /// read. In doubt, false.
    pub fn are_clean(&self) -> bool {
        let mut opened = lock(&self.0);
        !std::mem::take(&mut opened.asked) || opened.scratch.is_empty()
    }
}

/// Scratch as every call finds it: empty, its times those of this call.
struct Scratch {
    path: PathBuf,
    folder: File,
    /// The size of the empty folder, where that tells whether anything is in it: on a tmpfs. Other
    /// file systems are not ours alone, and only tests without layers have one here.
    empty: Option<u64>,
}

impl Scratch {
    fn open(path: &Path) -> io::Result<Scratch> {
        let folder = File::open(path)?;
        let tmpfs = fstatfs(&folder).map_err(io::Error::from)?.filesystem_type() == TMPFS_MAGIC;
        let mut scratch = Scratch {
            path: path.to_owned(),
            folder,
            empty: None,
        };
        scratch.empty = if tmpfs && scratch.is_empty() {
            scratch.size()
        } else {
            None
        };
        Ok(scratch)
    }

    fn begin(&self) -> io::Result<()> {
        // A guest may set these times to anything. (The ctime, which cannot be set, becomes now.)
        let now = SystemTime::now();
        self.folder
            .set_times(FileTimes::new().set_accessed(now).set_modified(now))
    }

    fn is_empty(&self) -> bool {
        match self.empty {
            Some(size) => self.size() == Some(size),
            None => std::fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none()),
        }
    }

    fn size(&self) -> Option<u64> {
        sandbox::fstat(self.folder.as_fd())
            .ok()
            .map(|facts| facts.size)
    }
}

/// Most bytes of a guest's write.
const CHUNK: usize = (MAX_LOG_PIECE / 2) as usize;

/// A guest's stdout or stderr: it goes to the host, in frames, and reaches no descriptor of the
/// worker. Clones are the same output.
#[derive(Clone)]
pub struct Sink(Arc<Mutex<SinkState>>);

struct SinkState {
    to: ToHost,
    report: WorkerMessage,
    pending: Vec<u8>,
    /// How many bytes may still come.
    left: u64,
    is_over: bool,
}

impl Sink {
    /// `report`: the message that carries the bytes. More than `max_bytes` end the call.
    pub fn new(to: &ToHost, report: WorkerMessage, max_bytes: u64) -> Sink {
        let to = to.clone();
        let pending = Vec::new();
        Sink(Arc::new(Mutex::new(SinkState {
            to,
            report,
            pending,
            left: max_bytes,
            is_over: false,
        })))
    }

    /// Takes bytes, and sends them with each line break, so that a line is seen while the guest
    /// runs. An error ends the call.
    pub fn take(&self, bytes: &[u8]) -> io::Result<()> {
        let own = &mut *lock(&self.0);
        own.is_over |= bytes.len() as u64 > own.left;
        if own.is_over {
            return Err(io::Error::other("the output limit is reached"));
        }
        own.left -= bytes.len() as u64;
        own.pending.extend_from_slice(bytes);
        if bytes.contains(&b'\n') || own.pending.len() >= CHUNK {
            own.send()
        } else {
            Ok(())
        }
    }

    /// Sends the rest, which has no line break. True: the limit was exceeded.
    pub fn finish(&self) -> io::Result<bool> {
        let own = &mut *lock(&self.0);
        own.send().map(|()| own.is_over)
    }
}

impl SinkState {
    fn send(&mut self) -> io::Result<()> {
        self.pending
            .chunks(CHUNK)
            .try_for_each(|piece| self.to.send(&self.report, piece))?;
        self.pending.clear();
        Ok(())
    }
}

impl IsTerminal for Sink {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Sink {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        unimplemented!("only WASI 0.3 asks for this, and its functions are not linked")
    }
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Sink {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Sink {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes)
            .map_err(|e| StreamError::trap(&e.to_string()))
    }
    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }
    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}
