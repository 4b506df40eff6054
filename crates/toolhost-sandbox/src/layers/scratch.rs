//! Layer: scratch. /tmp, /dev/shm and the staged copies of a call: one tmpfs with one size, gone
//! before the next call.
//!
//! Made by the launcher between calls, while no call waits; a call's mount namespace starts as a
//! copy of the launcher's.

use crate::base_view::{CALL_INPUT, CALL_OUTPUT, SCRATCH};
use crate::layers::landlock::Right;
use crate::layers::view::{self, LateMount, NODEV, NOEXEC, NOSUID, RDONLY};
use crate::protocol::{Identity, NamedPart, Problem, ProblemKind, ReadFile, Setup};
use crate::spec::{Originals, StagedFolder};
use crate::sys;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{UtimensatFlags, fstatat, utimensat};
use nix::sys::statvfs::fstatvfs;
use nix::sys::time::TimeSpec;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use toolhost_base::files::{self, Stamp};
use toolhost_base::messages::memory_file;
use toolhost_base::names::literal;
use toolhost_base::quantity::{Limit, Limits, MIB};
use toolhost_base::store;

/// Kernel memory of each file of a tmpfs, bytes: the inode and its name.
const INODE: u64 = 1024;

/// One call's scratch.
pub struct Scratch {
    root: OwnedFd,
    identity: Identity,
    /// Mounted, in this order; unmounted in reverse.
    mounted: Vec<CString>,
    /// Of a call that has `CALL_FOLDER`: the memory of its input files, which only we write.
    input: Option<OwnedFd>,
    /// The folders that hold staged copies.
    staged: Vec<PathBuf>,
    /// The staged copies, each with the stamp, digest and size that it was made with.
    copies: Vec<(PathBuf, Stamp, ([u8; 32], u64))>,
    /// What lay in each staged folder before it was copied.
    originals: Vec<Originals>,
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

/// The stamp of an entry of a folder, which is not followed.
fn stamp_at(folder: &OwnedFd, name: &OsStr) -> Result<Stamp, Errno> {
    let facts = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(Stamp::from(&facts))
}

/// The first folder of a path that lies below /tmp or /dev/shm.
fn top(at: &Path) -> Option<PathBuf> {
    SCRATCH.iter().find_map(|scratch| {
        let below = at.strip_prefix(scratch).ok()?.components().next()?;
        Some(Path::new(scratch).join(below))
    })
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

impl Usage {
    /// Of the tmpfs of a folder.
    pub fn at(folder: &OwnedFd) -> Result<Usage, Errno> {
        let stat = fstatvfs(folder)?;
        let used = (stat.blocks() - stat.blocks_free()) * stat.fragment_size();
        let files = stat.files().saturating_sub(stat.files_free());
        Ok(Usage {
            bytes: used + files * INODE,
            files,
            is_full: stat.blocks_free() == 0 || stat.files_free() == 0,
        })
    }
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
            input: None,
            staged: Vec::new(),
            copies: Vec::new(),
            originals: Vec::new(),
            allowed: Vec::new(),
        };
        // Landlock adds up the rights on the way from a file to the root, so what is written below
        // /tmp has the rights of /tmp too. With such a grant, /tmp gets no right to make links and
        // pipes.
        let stages = setup.spec.staged_folders().map(|stage| &stage.folder);
        let stages: Vec<&PathBuf> = stages.filter(|folder| view::is_late(folder)).collect();
        let right = if stages.is_empty() && !late.iter().any(|late| late.is_written) {
            Right::Scratch
        } else {
            Right::Write
        };
        let tmp = scratch.folder("tmp", Path::new("/tmp"), right)?;
        scratch.folder("shm", Path::new("/dev/shm"), right)?;
        scratch.folders_above(late, &stages)?;
        for late in late {
            scratch.attach(late)?;
        }
        if setup.spec.has_call_folder() {
            scratch.call_folder(&tmp, &setup.spec.limits)?;
            if let Some(at) = &setup.spec.output {
                scratch.show_output(&tmp.join("call/output"), at)?;
            }
        }
        for (path, text) in &setup.spec.scratch {
            scratch.seed(&tmp, path, text)?;
        }
        // Last: from here on only we reach the whole scratch, by its descriptor.
        scratch.cover(Path::new(view::KEPT_MOUNTS), view::EMPTY_FOLDER_PATH)?;
        Ok(scratch)
    }

    /// Covers what the call must not see. Done at its start, because a file that is made again has
    /// lost its cover.
    pub fn mask(&mut self, places: &[PathBuf]) -> Result<(), Problem> {
        for place in places {
            let facts = match fs::symlink_metadata(place) {
                // It lies in what is covered already.
                Err(_)
                    if places
                        .iter()
                        .any(|above| above != place && place.starts_with(above)) =>
                {
                    continue;
                }
                facts => facts.map_err(|error| {
                    Problem::of_path("scratch", place.display())(sys::errno(&error))
                })?,
            };
            let empty = if facts.is_dir() {
                view::EMPTY_FOLDER_PATH
            } else {
                view::EMPTY_FILE_PATH
            };
            self.cover(place, empty)?;
        }
        Ok(())
    }

    /// A file that each call has from its start, in folders of its own.
    fn seed(&self, tmp: &Path, path: &Path, text: &str) -> Result<(), Problem> {
        let mut at = tmp.to_owned();
        for folder in path.parent().into_iter().flat_map(Path::components) {
            at.push(folder);
            fs::create_dir_all(&at).map_err(filling("a file of the scratch"))?;
            self.own(&at)?;
        }
        let at = tmp.join(path);
        fs::write(&at, text).map_err(filling("a file of the scratch"))?;
        self.own(&at)
    }

    /// `CALL_FOLDER`. The files of the call lie in a memory of their own, so that they take nothing
    /// from its scratch, and may come when the tool already waits for them.
    fn call_folder(&mut self, tmp: &Path, limits: &Limits) -> Result<(), Problem> {
        for folder in ["call", "call/output"] {
            let path = tmp.join(folder);
            fs::create_dir(&path).map_err(filling("the folder of the call"))?;
            self.own(&path)?;
        }
        let files = limits.get(Limit::ArtifactFiles);
        let bytes = limits
            .get(Limit::ArtifactBytes)
            .saturating_add(files * 4096);
        let options = [
            ("size", bytes.max(4096).to_string()),
            ("nr_inodes", (files + 2).to_string()),
            ("mode", "0755".to_owned()),
        ];
        let flags = NOSUID | NODEV | NOEXEC;
        let writable = sys::tmpfs(&options, flags).map_err(problem("a tmpfs"))?;
        let kept = Path::new(view::KEPT_SCRATCH).join("input");
        fs::create_dir(&kept).map_err(filling("the folder of the call"))?;
        self.mount(&writable, &kept)?;
        let shown =
            sys::open_tree(open_path(&kept)?.as_fd(), c"", false).map_err(problem(CALL_INPUT))?;
        sys::mount_setattr(shown.as_fd(), false, flags | RDONLY, 0, None)
            .map_err(problem(CALL_INPUT))?;
        view::make_folder(Path::new(CALL_INPUT))?;
        self.mount(&shown, Path::new(CALL_INPUT))?;
        self.input = Some(writable);
        Ok(())
    }

    /// Shows the folder of results at one more place.
    fn show_output(&mut self, output: &Path, at: &Path) -> Result<(), Problem> {
        let file = open_path(output)?;
        let bound =
            sys::open_tree(file.as_fd(), c"", false).map_err(problem("a bind of scratch"))?;
        self.mount(&bound, at)?;
        self.allowed.push((file, true, Right::Write));
        Ok(())
    }

    /// Copies the files that a call brings to `CALL_INPUT`, where nobody can write them. Also for a
    /// tool that runs and waits for its call.
    pub fn bring(&self, files: &[(NamedPart, OwnedFd)]) -> Result<(), Problem> {
        for (part, content) in files {
            let Some(folder) = &self.input else {
                return Err(problem("a call without a folder for its files")(
                    Errno::EINVAL,
                ));
            };
            let copied = fill(folder, part, content);
            copied.map_err(filling("a file of the call"))?;
        }
        Ok(())
    }

    /// Removes the files of an earlier call of the session.
    pub fn remove_files(&self) -> Result<(), Problem> {
        let Some(folder) = &self.input else {
            return Ok(());
        };
        let files = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        for file in files.map_err(problem(CALL_INPUT))? {
            let removed = file.and_then(|file| fs::remove_file(file.path()));
            removed.map_err(problem(CALL_INPUT))?;
        }
        Ok(())
    }

    /// The memory of the files of the call.
    pub fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
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

    /// The folders above what is shown below /tmp and /dev/shm, with a place for each: read-only, as
    /// elsewhere in the view.
    fn folders_above(&mut self, late: &[LateMount], stages: &[&PathBuf]) -> Result<(), Problem> {
        let places = late
            .iter()
            .map(|late| &late.at)
            .chain(stages.iter().copied());
        let places: BTreeSet<&PathBuf> = places.collect();
        let tops: BTreeSet<PathBuf> = places.iter().filter_map(|at| top(at)).collect();
        for (number, top) in tops.iter().filter(|top| !places.contains(top)).enumerate() {
            let folder = self.path().join(format!("above{number}"));
            fs::create_dir(&folder).map_err(filling("the folders above a grant"))?;
            for late in late {
                if let Ok(below) = late.at.strip_prefix(top) {
                    match &late.link {
                        Some(target) => view::make_link(target, &folder.join(below), &late.at)?,
                        None => view::make_point(&folder.join(below), late.folder)?,
                    }
                }
            }
            let stages = stages
                .iter()
                .filter_map(|stage| stage.strip_prefix(top).ok());
            stages
                .map(|below| folder.join(below))
                .try_for_each(|stage| view::make_folder(&stage))?;
            let bound = sys::open_tree(open_path(&folder)?.as_fd(), c"", false)
                .map_err(problem("the folders above a grant"))?;
            let attributes = RDONLY | NOSUID | NODEV | NOEXEC;
            sys::mount_setattr(bound.as_fd(), false, attributes, 0, None)
                .map_err(problem("the folders above a grant"))?;
            view::make_folder(top)?;
            self.mount(&bound, top)?;
        }
        Ok(())
    }

    /// Mounts what the view kept aside because its place is below /tmp or /dev/shm.
    fn attach(&mut self, late: &LateMount) -> Result<(), Problem> {
        if let Some(target) = &late.link {
            return view::make_link(target, &late.at, &late.at);
        }
        let aside = late.aside.as_deref().unwrap_or(c"");
        let here = open_path(Path::new("/"))?;
        let bound = sys::open_tree(here.as_fd(), aside, true)
            .map_err(problem(format!("binding {}", late.at.display())))?;
        view::make_point(&late.at, late.folder)?;
        self.mount(&bound, &late.at)
    }

    /// Mounts an empty file or folder over a place.
    fn cover(&mut self, place: &Path, empty: &str) -> Result<(), Problem> {
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
        // The view may show something else there than lies in the folder itself.
        let shown = stage.show_rest.then(|| fs::read_dir(&stage.folder).ok());
        let names = names.chain(shown.flatten().into_iter().flatten());
        let owner = nix::sys::stat::fstat(from)
            .map_err(problem("a staged folder"))?
            .st_uid;
        let entries: BTreeSet<_> = names
            .flatten()
            .map(|entry| stage.folder.join(entry.file_name()))
            .collect();
        let visible: Vec<&PathBuf> = if stage.show_rest {
            entries.iter().collect()
        } else {
            stage.shown.iter().collect()
        };
        // What stays visible is bound before the copy covers it: each entry with its own access,
        // and mounts in it.
        let mut rest = Vec::new();
        for path in visible {
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
        let mut originals = Originals::new();
        for name in entries
            .iter()
            .filter(|path| stage.copies_at(path))
            .filter_map(|path| path.file_name())
        {
            // Only names that are text are published.
            if let (Ok(original), Some(name)) = (stamp_at(from, name), name.to_str()) {
                originals.insert(name.to_owned(), original);
            }
            self.copy(stage, from, name, &place, owner)?;
        }
        self.originals.push(originals);
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
    pub fn source(&self, path: &Path, text: &[u8]) -> Result<(), Problem> {
        let path = self.path().join(path.strip_prefix("/").unwrap_or(path));
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
        Usage::at(&self.root).map_err(problem("looking at scratch"))
    }

    /// Descriptors of the staged folders, for the host to publish from. Copies that the call did
    /// not change are removed: published, they would put back what others changed meanwhile. An
    /// equal stamp is not enough: a write to a mapped page of a tmpfs can leave the times as they
    /// are.
    /// After them comes a memory file with the originals of each, as JSON (`Vec<Originals>`), and
    /// then `CALL_OUTPUT`, if the call has it.
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
        let folders = self.staged.iter().map(|p: &PathBuf| {
            files::open_at(AT_FDCWD, p, OFlag::O_DIRECTORY).map_err(problem("a staged folder"))
        });
        let originals = (!self.staged.is_empty()).then(|| self.changed_originals());
        let output = self.input.iter().map(|_| self.output());
        folders.chain(originals).chain(output).collect()
    }

    /// Of the originals those of the files that are still in the copies.
    fn changed_originals(&self) -> Result<OwnedFd, Problem> {
        let mut originals = self.originals.clone();
        for (originals, place) in originals.iter_mut().zip(&self.staged) {
            originals.retain(|name, _| place.join(name).symlink_metadata().is_ok());
        }
        let text = serde_json::to_vec(&originals).map_err(problem("the staged files"))?;
        memory_file(&text).map_err(problem("the staged files"))
    }

    /// The folder of results, or an empty one where the call has removed or closed its own.
    fn output(&self) -> Result<OwnedFd, Problem> {
        let below = Path::new(CALL_OUTPUT)
            .strip_prefix("/")
            .unwrap_or(Path::new(""));
        let how = OpenHow::new()
            .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        openat2(&self.root, below, how)
            .or_else(|_| files::open_at(AT_FDCWD, view::EMPTY_FOLDER_PATH, OFlag::O_DIRECTORY))
            .map_err(problem("the folder of results"))
    }
}

/// Copies a file of the call to its folder. Reads at places: the host's own position stays.
fn fill(folder: &OwnedFd, part: &NamedPart, content: &OwnedFd) -> std::io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let mut file = fs::File::from(files::open_at(folder, &*part.name, flags)?);
    file.set_permissions(fs::Permissions::from_mode(0o444))?;
    let content = fs::File::from(content.try_clone()?);
    let mut piece = vec![0; MIB as usize];
    let mut done = 0;
    while done < part.bytes {
        let most = (part.bytes - done).min(MIB) as usize;
        let length = content.read_at(&mut piece[..most], part.offset + done)?;
        if length == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        file.write_all(&piece[..length])?;
        done += length as u64;
    }
    Ok(())
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
