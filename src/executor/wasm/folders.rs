//! The folders that guests find opened, opened once for all calls of a worker. Scratch is checked after each call.

use super::denials::SCRATCH;
use super::frame::Opening;
use crate::base::lock;
use crate::sandbox;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::fs::{File, FileTimes};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// One per worker.
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
        // The worker has nothing else to do; should a file block for ever, the host ends the worker.
        wasi.allow_blocking_current_thread(true);
        for opening in openings {
            let perms = if opening.write { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
            // A granted folder that is not there, or that this user may not enter, is simply not
            // found: the same that a script sees.
            let _ = wasi.preopened_dir(&opening.at, &opening.name, perms);
        }
        wasi.preopened_dir(scratch, SCRATCH, FsPerms::ReadWrite).map_err(io::Error::other)?;
        let scratch = Scratch::open(scratch)?;
        Ok(Folders(Arc::new(Mutex::new(Opened { wasi: wasi.build(), scratch, asked: false }))))
    }

    /// Handles of the folders, in the guest's own table.
    pub fn give(&self, table: &mut ResourceTable) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        struct View<'a>(WasiCtxView<'a>);
        impl WasiView for View<'_> {
            fn ctx(&mut self) -> WasiCtxView<'_> {
                WasiCtxView { ctx: self.0.ctx, table: self.0.table }
            }
        }
        let opened = &mut *lock(&self.0);
        if !std::mem::replace(&mut opened.asked, true) {
            opened.scratch.begin()?;
        }
        let mut view = View(WasiCtxView { ctx: &mut opened.wasi, table });
        preopens::Host::get_directories(&mut view.filesystem())
    }

    pub fn were_asked_for(&self) -> bool {
        lock(&self.0).asked
    }

    /// After a call, when its handles are closed: whether nothing is left that the next call could read; no, in doubt.
    pub fn are_clean(&self) -> bool {
        let mut opened = lock(&self.0);
        !std::mem::take(&mut opened.asked) || opened.scratch.is_empty()
    }
}

/// Scratch as every call finds it: empty, its times those of this call.
struct Scratch {
    path: PathBuf,
    folder: File,
    /// The size of the empty folder, where that tells whether anything is in it: on a tmpfs. Other file systems are not
    /// ours alone, and only tests without walls have one here.
    empty: Option<u64>,
}

impl Scratch {
    fn open(path: &Path) -> io::Result<Scratch> {
        let folder = File::open(path)?;
        let tmpfs = fstatfs(&folder).map_err(io::Error::from)?.filesystem_type() == TMPFS_MAGIC;
        let mut scratch = Scratch { path: path.to_owned(), folder, empty: None };
        scratch.empty = if tmpfs && scratch.is_empty() { scratch.size() } else { None };
        Ok(scratch)
    }

    fn begin(&self) -> io::Result<()> {
        // A guest may set these times to anything. (The ctime, which cannot be set, becomes now.)
        let now = SystemTime::now();
        self.folder.set_times(FileTimes::new().set_accessed(now).set_modified(now))
    }

    fn is_empty(&self) -> bool {
        match self.empty {
            Some(size) => self.size() == Some(size),
            None => std::fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none()),
        }
    }

    fn size(&self) -> Option<u64> {
        sandbox::fstat(self.folder.as_fd()).ok().map(|facts| facts.size)
    }
}
