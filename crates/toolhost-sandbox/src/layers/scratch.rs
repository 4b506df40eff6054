//! Layer: scratch. /tmp, /dev/shm and the staged copies of a call: one tmpfs with one size, gone
//! before the next call.
//!
//! Made by the launcher between calls, while no call waits; a call's mount namespace starts as a
//! copy of the launcher's.

use crate::layers::landlock::Right;
use crate::layers::view::{self, LateMount, NODEV, NOEXEC, NOSUID, RDONLY};
use crate::protocol::{Identity, Problem, ProblemKind, ReadFile, Setup};
use crate::spec::StagedFolder;
use crate::sys;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::statvfs::fstatvfs;
use nix::sys::time::TimeSpec;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use toolhost_base::files::{self, Stamp};
use toolhost_base::names::literal;
use toolhost_base::quantity::{Limit, MIB};
use toolhost_base::store;

/// Kernel memory of each file of a tmpfs, bytes: the inode and its name.
const INODE: u64 = 1024;

/// One call's scratch.
pub struct Scratch {
    root: OwnedFd,
    identity: Identity,
    /// Mounted, in this order; unmounted in reverse.
    mounted: Vec<CString>,
    /// The folders that hold staged copies.
    staged: Vec<PathBuf>,
    /// The staged copies, each with the stamp, digest and size that it was made with.
    copies: Vec<(PathBuf, Stamp, ([u8; 32], u64))>,
    pub allowed: Vec<(OwnedFd, bool, Right)>,
}

fn problem<E: Into<std::io::Error>>(what: impl ToString) -> impl FnOnce(E) -> Problem {
    Problem::from_layer("scratch", what)
}

/// For errors while scratch is filled: when it is full, the call's limit is reached and no layer is
/// missing.
fn filling(what: impl ToString) -> impl FnOnce(std::io::Error) -> Problem {
    move |error| {
        let is_full = error.raw_os_error() == Some(nix::libc::ENOSPC);
        Problem {
            kind: if is_full {
                ProblemKind::Scratch
            } else {
                ProblemKind::Layer
            },
            ..problem(what)(error)
        }
    }
}

/// How much of scratch is in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The kernel's memory for each file included.
    pub bytes: u64,
    pub files: u64,
    /// No byte or no file is left.
    pub is_full: bool,
}

fn open_path(path: &Path) -> Result<OwnedFd, Problem> {
    files::handle(path).map_err(problem(format!("opening {}", path.display())))
}

impl Scratch {
    /// Fresh mounts for one call.
    pub fn raise(setup: &Setup, late: &[LateMount]) -> Result<Scratch, Problem> {
        let bytes = setup.spec.limits.get(Limit::ScratchBytes);
        let options = [
            ("size", bytes.to_string()),
            // One inode for each 4 KiB, so that empty files are bounded as well.
            ("nr_inodes", (bytes / 4096).max(64).to_string()),
            ("mode", "0755".to_owned()),
        ];
        let mount = sys::tmpfs(&options, NOSUID | NODEV | NOEXEC).map_err(problem("a tmpfs"))?;
        sys::move_mount(mount.as_fd(), &view::text(Path::new(view::KEPT_SCRATCH)))
            .map_err(problem("attaching scratch"))?;
        let root = open_path(Path::new(view::KEPT_SCRATCH))?;
        let mut scratch = Scratch {
            root,
            identity: setup.identity,
            mounted: vec![view::text(Path::new(view::KEPT_SCRATCH))],
            staged: Vec::new(),
            copies: Vec::new(),
            allowed: Vec::new(),
        };
        // Landlock adds up the rights on the way from a file to the root, so a grant shown below
        // /tmp has the rights of /tmp too. With such a grant, /tmp gets no right to make links and
        // pipes.
        let right = if late.is_empty() {
            Right::Scratch
        } else {
            Right::Write
        };
        scratch.folder("tmp", Path::new("/tmp"), right)?;
        scratch.folder("shm", Path::new("/dev/shm"), right)?;
        for late in late {
            scratch.attach(late)?;
        }
        // Last: from here on only we reach the whole scratch, by its descriptor.
        scratch.cover(Path::new(view::KEPT_MOUNTS), view::EMPTY_FOLDER_PATH)?;
        Ok(scratch)
    }

    /// Covers what the call must not see. Done at its start, because a file that is made again has
    /// lost its cover.
    pub fn mask(&mut self, places: &[PathBuf]) -> Result<(), Problem> {
        places.iter().try_for_each(|place| {
            let folder = fs::symlink_metadata(place).is_ok_and(|facts| facts.is_dir());
            self.cover(
                place,
                if folder {
                    view::EMPTY_FOLDER_PATH
                } else {
                    view::EMPTY_FILE_PATH
                },
            )
        })
    }

    /// The whole scratch, also when its place is covered.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()))
    }

    /// A folder of the scratch, shown at `at`, owned by the tool.
    fn folder(&mut self, name: &str, at: &Path, right: Right) -> Result<PathBuf, Problem> {
        let path = self.path().join(name);
        fs::create_dir(&path).map_err(filling(format!("making {}", at.display())))?;
        self.own(&path)?;
        let file = open_path(&path)?;
        let bound =
            sys::open_tree(file.as_fd(), c"", false).map_err(problem("a bind of scratch"))?;
        self.mount(&bound, at)?;
        self.allowed.push((file, true, right));
        Ok(path)
    }

    fn own(&self, path: &Path) -> Result<(), Problem> {
        let id = Some(self.identity.id);
        if !self.identity.pooled {
            return Ok(());
        }
        chown(path, id, id).map_err(problem(format!("giving {} to the tool", path.display())))
    }

    fn mount(&mut self, bound: &OwnedFd, at: &Path) -> Result<(), Problem> {
        sys::move_mount(bound.as_fd(), &view::text(at))
            .map_err(problem(format!("placing {}", at.display())))?;
        self.mounted.push(view::text(at));
        Ok(())
    }

    /// Mounts what the view kept aside because its place is below /tmp or /dev/shm.
    fn attach(&mut self, late: &LateMount) -> Result<(), Problem> {
        if let Some(target) = &late.link {
            return view::make_link(target, &late.at, &late.at);
        }
        let aside = late.aside.as_deref().unwrap_or(c"");
        let here = open_path(Path::new("/"))?;
        let bound = sys::open_tree(here.as_fd(), aside, false)
            .map_err(problem(format!("binding {}", late.at.display())))?;
        view::make_point(&late.at, late.folder)?;
        self.mount(&bound, &late.at)
    }

    /// Mounts an empty file or folder over a masked place. A place that is gone by now needs no
    /// cover.
    fn cover(&mut self, place: &Path, empty: &str) -> Result<(), Problem> {
        match fs::symlink_metadata(place) {
            Ok(_) => {}
            Err(e)
                if [
                    std::io::ErrorKind::NotFound,
                    std::io::ErrorKind::NotADirectory,
                ]
                .contains(&e.kind()) =>
            {
                return Ok(());
            }
            Err(e) => return Err(problem(place.display().to_string())(e)),
        }
        let bound = sys::open_tree(open_path(Path::new(empty))?.as_fd(), c"", false)
            .map_err(problem(empty))?;
        sys::mount_setattr(
            bound.as_fd(),
            false,
            RDONLY | NOSUID | NODEV | NOEXEC,
            0,
            None,
        )
        .map_err(problem(empty))?;
        self.mount(&bound, place)
    }

    /// A private copy of a staged folder, filled with the files that match now.
    pub fn stage(
        &mut self,
        stage: &StagedFolder,
        from: &OwnedFd,
        number: usize,
    ) -> Result<(), Problem> {
        let names = fs::read_dir(format!("/proc/self/fd/{}", from.as_raw_fd()))
            .map_err(problem(format!("reading {}", stage.folder.display())))?;
        let owner = nix::sys::stat::fstat(from)
            .map_err(problem("a staged folder"))?
            .st_uid;
        let entries: Vec<_> = names
            .flatten()
            .map(|entry| stage.folder.join(entry.file_name()))
            .collect();
        // What stays visible is bound before the copy covers it: each entry with its own access,
        // and mounts in it.
        let mut rest = Vec::new();
        for path in if stage.show_rest {
            &entries
        } else {
            &stage.shown
        } {
            // Not through a link, which could lead to anything in the view.
            let Ok(file) = files::without_links(path, OFlag::O_PATH) else {
                continue;
            };
            let file = fs::File::from(file);
            let Ok(meta) = file.metadata() else { continue };
            if meta.is_dir() || meta.is_file() && !stage.copies_at(path) {
                let bound = sys::open_tree(file.as_fd(), c"", true)
                    .map_err(problem("binding beside a staged file"))?;
                rest.push((path, meta.is_dir(), bound));
            }
        }
        // Made again below /tmp or another stage, which cover the folder that the view had made.
        view::make_folder(&stage.folder)?;
        let place = self.folder(&format!("stage{number}"), &stage.folder, Right::Write)?;
        for name in entries
            .iter()
            .filter(|path| stage.copies_at(path))
            .filter_map(|path| path.file_name())
        {
            self.copy(stage, from, name, &place, owner)?;
        }
        for (path, folder, bound) in rest {
            view::make_point(path, folder)?;
            self.mount(&bound, path)?;
        }
        self.staged.push(place);
        Ok(())
    }

    /// Copies one regular file, opened without following a link.
    fn copy(
        &mut self,
        stage: &StagedFolder,
        from: &OwnedFd,
        name: &OsStr,
        to: &Path,
        owner: u32,
    ) -> Result<(), Problem> {
        let Ok(source) = files::open_at(from, name, OFlag::O_RDONLY) else {
            return Ok(());
        };
        let mut source = fs::File::from(source);
        // Root could read every file, so only files are copied that belong to the folder's owner,
        // that all may read, or that are named exactly.
        let is_exact = stage
            .names
            .iter()
            .any(|names| literal(names).as_deref() == name.to_str());
        if !source.metadata().is_ok_and(|m| {
            m.is_file()
                && (is_exact || !self.identity.pooled || m.uid() == owner || m.mode() & 0o4 != 0)
        }) {
            return Ok(());
        }
        let target = to.join(name);
        let mut copy = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&target)
            .map_err(filling("a staged copy"))?;
        std::io::copy(&mut source, &mut copy).map_err(filling("filling the staged copy"))?;
        let made = fs::File::open(&target)
            .and_then(store::digest)
            .map_err(problem("a staged copy"))?;
        self.own(&target)?;
        let stamp = Stamp::at(&target).map_err(problem("a staged copy"))?;
        self.copies.push((target, stamp, made));
        Ok(())
    }

    /// The source of a run-code call, as a file of its own.
    pub fn source(&self, name: &str, text: &[u8]) -> Result<(), Problem> {
        let path = self.path().join("tmp").join(name);
        fs::write(&path, text).map_err(filling("placing the source"))?;
        self.own(&path)
    }

    /// The bytes that were read of a script, over its file.
    pub fn script(&mut self, file: &ReadFile, text: &[u8]) -> Result<(), Problem> {
        let bound = self
            .copy_of_script(file, text)
            .map_err(problem("the copy of the script"))?;
        self.mount(&bound, &file.path)?;
        self.allowed.push((bound, false, Right::ReadRun));
        Ok(())
    }

    /// In a memory of its own, apart from the tool's scratch; only this mount leads there.
    fn copy_of_script(&self, file: &ReadFile, text: &[u8]) -> std::io::Result<OwnedFd> {
        let size = (text.len() as u64 + MIB).to_string();
        let mode = "0755".to_owned();
        let root = sys::tmpfs(&[("size", size), ("mode", mode)], NOSUID | NODEV)?;
        let kept = view::text(Path::new(view::KEPT_MOUNTS));
        sys::move_mount(root.as_fd(), &kept)?;
        let place = Path::new(view::KEPT_MOUNTS).join("script");
        fs::write(&place, text)?;
        if self.identity.pooled {
            chown(&place, Some(self.identity.id), Some(self.identity.id))?;
        }
        fs::set_permissions(&place, fs::Permissions::from_mode(file.mode))?;
        let modified = TimeSpec::new(file.stamp.modified.0, file.stamp.modified.1);
        utimensat(
            AT_FDCWD,
            &place,
            &modified,
            &modified,
            UtimensatFlags::NoFollowSymlink,
        )?;
        let bound = sys::open_tree(files::handle(&place)?.as_fd(), c"", false)?;
        sys::mount_setattr(bound.as_fd(), false, RDONLY, 0, None)?;
        umount2(&*kept, MntFlags::MNT_DETACH)?;
        Ok(bound)
    }

    pub fn usage(&self) -> Result<Usage, Problem> {
        let stat = fstatvfs(&self.root).map_err(problem("looking at scratch"))?;
        let used = (stat.blocks() - stat.blocks_free()) * stat.fragment_size();
        let files = stat.files().saturating_sub(stat.files_free());
        Ok(Usage {
            bytes: used + files * INODE,
            files,
            is_full: stat.blocks_free() == 0 || stat.files_free() == 0,
        })
    }

    /// Descriptors of the staged folders, for the host to publish from. Copies that the call did
    /// not change are removed: published, they would put back what others changed meanwhile. An
    /// equal stamp is not enough: a write to a mapped page of a tmpfs can leave the times as they
    /// are.
    pub fn staged(&self) -> Result<Vec<OwnedFd>, Problem> {
        for (copy, _, made) in self
            .copies
            .iter()
            .filter(|(copy, stamp, _)| Stamp::at(copy).is_ok_and(|now| now == *stamp))
        {
            if fs::File::open(copy)
                .and_then(store::digest)
                .is_ok_and(|now| now == *made)
            {
                fs::remove_file(copy).map_err(problem("a staged copy"))?;
            }
        }
        self.staged
            .iter()
            .map(|p: &PathBuf| {
                files::open_at(AT_FDCWD, p, OFlag::O_DIRECTORY).map_err(problem("a staged folder"))
            })
            .collect()
    }
}

impl Drop for Scratch {
    /// Unmounts everything; a tmpfs without mounts is freed.
    fn drop(&mut self) {
        for place in self.mounted.iter().rev() {
            let place: &CStr = place;
            let _ = umount2(place, MntFlags::MNT_DETACH);
        }
    }
}
