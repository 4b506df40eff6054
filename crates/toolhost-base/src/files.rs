//! Folders and files of toolhost itself, opened once, checked, and then used by descriptor
//! (`Folder`: only this user and root can replace its files); and the ways in which every module
//! opens, reads and remembers a file. Nothing waits for a pipe.
//!
//! The audit log and what lies beside it, the caches and the locks of ids are opened one folder at
//! a time. Each must belong to the user who runs toolhost or to root, and only they may write it
//! (except in a sticky folder such as /tmp); a link on the way is followed only where nobody else
//! could have made it. What root makes in another user's folder is made with that user's rights
//! (setfsuid(2)) and belongs to that user from the first moment.

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, OpenHow, RenameFlags, ResolveFlag, openat, openat2,
    readlinkat, renameat, renameat2,
};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, geteuid, setfsgid, setfsuid, unlinkat};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const STICKY: u32 = 0o1000;
const GROUP_WRITABLE: u32 = 0o020;
const WORLD_WRITABLE: u32 = 0o002;
/// Most links followed on the way to a folder, as many as the kernel follows (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Longest wait for another holder of a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The folder of this host's caches: `$XDG_CACHE_HOME/toolhost`, or `~/.cache/toolhost`; relative
/// values do not count.
pub fn cache_folder(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| {
        environment(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("toolhost"))
}

/// The bytes of an open file; `None`: it has more than `most`. Refuses anything but a regular file.
pub fn whole(file: File, most: u64) -> io::Result<Option<Vec<u8>>> {
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    if facts.len() > most {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or(0) + 1);
    // The file may have grown meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= most))
}

/// Opens a file for reading, without waiting for a pipe or taking a terminal. `flags`: more of
/// them, or none.
pub fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let always = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(File::from(openat(
        AT_FDCWD,
        path,
        flags | always,
        Mode::empty(),
    )?))
}

/// Why a file does not count as private to this user or root. `None`: it is private.
pub fn not_private(facts: &Metadata) -> Option<String> {
    if !facts.is_file() {
        return Some("it is not a regular file: name the file itself".to_owned());
    }
    if facts.mode() & 0o077 != 0 {
        return Some(format!(
            "others may read it (mode {:04o}): chmod 600",
            facts.mode() & 0o7777
        ));
    }
    (!is_trusted(facts.uid())).then(|| format!("{}: chown it", foreign(facts.uid())))
}

/// Reads a regular file of at most `most` bytes, unless `refuse` gives a reason against it.
pub fn checked(
    file: io::Result<File>,
    most: u64,
    refuse: impl Fn(&Metadata) -> Option<String>,
) -> Result<Vec<u8>, String> {
    let words = |e: io::Error| e.to_string();
    let file = file.map_err(words)?;
    if let Some(why) = refuse(&file.metadata().map_err(words)?) {
        return Err(why);
    }
    whole(file, most)
        .map_err(words)?
        .ok_or_else(|| format!("it is larger than {most} bytes"))
}

/// Identifies a regular file and its state: a write or a rename changes its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    device: u64,
    inode: u64,
    pub size: u64,
    /// Seconds and nanoseconds.
    pub changed: (i64, i64),
    pub modified: (i64, i64),
}

impl Stamp {
    pub fn from_file(file: &File) -> io::Result<Stamp> {
        Stamp::from_regular(&file.metadata()?)
    }

    /// The stamp of the file at a path, without opening it. A link is not a regular file.
    pub fn at(path: &Path) -> io::Result<Stamp> {
        Stamp::from_regular(&path.symlink_metadata()?)
    }

    /// Whether this is the same file with the same content, as far as its times tell. Links to it
    /// and its access may have changed.
    pub fn has_content_of(&self, other: &Stamp) -> bool {
        let changed = other.changed;
        Stamp { changed, ..*self } == *other
    }

    fn from_regular(facts: &Metadata) -> io::Result<Stamp> {
        facts
            .is_file()
            .then(|| Stamp::from(facts))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

impl From<&Metadata> for Stamp {
    fn from(facts: &Metadata) -> Stamp {
        Stamp {
            device: facts.dev(),
            inode: facts.ino(),
            size: facts.len(),
            changed: (facts.ctime(), facts.ctime_nsec()),
            modified: (facts.mtime(), facts.mtime_nsec()),
        }
    }
}

impl From<&FileStat> for Stamp {
    fn from(facts: &FileStat) -> Stamp {
        Stamp {
            device: facts.st_dev,
            inode: facts.st_ino,
            size: facts.st_size.cast_unsigned(),
            changed: (facts.st_ctime, facts.st_ctime_nsec),
            modified: (facts.st_mtime, facts.st_mtime_nsec),
        }
    }
}

/// Shows whether files and folders changed since they were read.
#[derive(Clone, Default)]
pub struct Stamps {
    taken: Vec<(PathBuf, Option<Stamp>)>,
    /// A second before anything was read: seconds and nanoseconds.
    second_before: (i64, i64),
    /// Something changed since then, or is gone: a second write may leave the same times, so nothing
    /// counts as unchanged.
    are_young: bool,
}

impl Stamps {
    /// To be made before anything is read.
    pub fn begin() -> Stamps {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        Stamps {
            second_before: (seconds - 1, i64::from(now.subsec_nanos())),
            ..Stamps::default()
        }
    }

    /// Adds a file, which is read after this, or a folder, whose stamp changes when a name in it comes
    /// or goes.
    pub fn add(&mut self, path: PathBuf) {
        let stamp = stamp(&path);
        self.are_young |= stamp.is_none_or(|stamp| stamp.changed >= self.second_before);
        self.taken.push((path, stamp));
    }

    pub fn bytes(&self) -> u64 {
        let stamps = self.taken.iter().flat_map(|(_, stamp)| stamp);
        stamps.map(|stamp| stamp.size).sum()
    }

    pub fn are_unchanged(&self) -> bool {
        let mut taken = self.taken.iter();
        !self.are_young && taken.all(|(path, before)| stamp(path) == *before)
    }
}

/// Says nothing: what was read is the same, whenever that was.
impl fmt::Debug for Stamps {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Stamps")
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let facts = path.symlink_metadata().ok();
    facts.map(|facts| Stamp::from(&facts))
}

/// A folder held open. When opened, only this user and root could replace what is theirs in it or
/// on the way to it.
#[derive(Debug)]
pub struct Folder {
    at: OwnedFd,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.at.as_fd()
    }
}

impl Folder {
    /// Opens an existing folder.
    pub fn open(path: &Path) -> io::Result<Folder> {
        Ok(Folder {
            at: walk(path, false)?,
        })
    }

    /// Opens a folder, and makes what is missing on the way, closed to others from the first
    /// moment.
    pub fn make(path: &Path) -> io::Result<Folder> {
        Ok(Folder {
            at: walk(path, true)?,
        })
    }

    /// A folder in this one, made where it is missing; a link there is refused.
    pub fn below(&self, name: &str) -> io::Result<Folder> {
        match mkdirat(&self.at, name, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let at = open_at(&self.at, name, OFlag::O_DIRECTORY).map_err(|errno| match errno {
            Errno::ELOOP | Errno::ENOTDIR => refused(format!("{name} is not a folder")),
            errno => errno.into(),
        })?;
        check_folder(&fstat(&at)?, Path::new(name), is_trusted)?;
        Ok(Folder { at })
    }

    /// Closed to all other users: for content that is secret, or that is used without another
    /// check.
    pub fn is_private(&self) -> bool {
        fstat(&self.at).is_ok_and(|stat| is_me(stat.st_uid) && stat.st_mode & 0o077 == 0)
    }

    /// Opens a file of this folder, never through a link and never waiting for a pipe. With
    /// `O_CREAT` it is made for this user alone.
    pub fn file(&self, name: &str, flags: OFlag) -> io::Result<File> {
        Ok(File::from(open_at(&self.at, name, flags)?))
    }

    /// As `file`, but refuses a file that others than this user and root can have written.
    pub fn trusted(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let file = self.file(name, flags)?;
        let facts = file.metadata()?;
        trustworthy(facts.mode(), facts.uid()).map_err(refused)?;
        Ok(file)
    }

    /// Writes a file of this folder whole: others see the old one or the new one.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let new = format!(".{name}.{}", uuid::Uuid::now_v7());
        let written = self
            .file(&new, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)
            .and_then(|mut file| file.write_all(content))
            .and_then(|()| Ok(renameat(&self.at, new.as_str(), &self.at, name)?));
        if written.is_err() {
            let _ = self.remove(&new);
        }
        written
    }

    /// Writes a new file of this folder whole, which others may read. An error: the name is taken.
    pub fn put_new(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let new = format!(".{name}.{}", uuid::Uuid::now_v7());
        self.put(&new, content)?;
        let mode = Permissions::from_mode(0o644);
        let done = self
            .file(&new, OFlag::O_RDONLY)
            .and_then(|file| file.set_permissions(mode))
            .and_then(|()| self.rename_new(&new, name));
        if done.is_err() {
            let _ = self.remove(&new);
        }
        done
    }

    /// Gives a file another name, unless that is taken.
    pub fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        match renameat2(&self.at, from, &self.at, to, RenameFlags::RENAME_NOREPLACE) {
            // Not every file system knows that flag (rename(2)).
            Err(Errno::EINVAL) if self.stat(to).is_none() => {
                Ok(renameat(&self.at, from, &self.at, to)?)
            }
            Err(Errno::EINVAL) => Err(Errno::EEXIST.into()),
            done => Ok(done?),
        }
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.at, from, &self.at, to)?)
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.at, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// The metadata of a name, for a link its own. `None`: the name does not exist.
    pub fn stat(&self, name: &str) -> Option<FileStat> {
        fstatat(&self.at, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()
    }

    /// The names in this folder, as far as they are text.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let names: Vec<CString> = names_in(&self.at)?.collect::<nix::Result<_>>()?;
        Ok(names
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect())
    }

    /// Takes the lock of this name, for which it waits a while if another has it.
    pub fn wait_for_lock(&self, name: &str) -> io::Result<Lock<'_>> {
        let began = Instant::now();
        loop {
            if let Some(lock) = self.lock(name)? {
                return Ok(lock);
            }
            if began.elapsed() > LOCK_TIMEOUT {
                return Err(io::Error::other("another process changes it; try again"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Takes the lock of this name for as long as the result lives; `None`: another holder has it.
    /// The lock's file is removed at the end.
    pub fn lock(&self, name: &str) -> io::Result<Option<Lock<'_>>> {
        loop {
            let file = self.trusted(name, OFlag::O_RDWR | OFlag::O_CREAT)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                // The last holder may have removed the file after it was opened here.
                Ok(file) if file.metadata()?.nlink() == 0 => {}
                Ok(file) => {
                    return Ok(Some(Lock {
                        folder: self,
                        name: name.to_owned(),
                        _file: file,
                    }));
                }
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, errno)) => return Err(errno.into()),
            }
        }
    }
}

/// A lock between processes (flock(2)); it ends with its holder.
pub struct Lock<'a> {
    folder: &'a Folder,
    name: String,
    _file: Flock<File>,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = self.folder.remove(&self.name);
    }
}

/// Opens a name in an open folder, never through a link and never waiting for a pipe. With
/// `O_CREAT` it is made for this user alone.
pub fn open_at<N: NixPath + ?Sized>(
    folder: impl AsFd,
    name: &N,
    flags: OFlag,
) -> nix::Result<OwnedFd> {
    let always = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    openat(folder, name, flags | always, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// Opens a path of which no component is a link (openat2(2)).
pub fn without_links(path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(
        AT_FDCWD,
        path,
        OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
            .resolve(resolve),
    )
}

/// Opens the target of a path with O_PATH, following links; for binding and comparing.
pub fn handle(path: &Path) -> nix::Result<OwnedFd> {
    openat(
        AT_FDCWD,
        path,
        OFlag::O_PATH | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

/// The names in an open folder, one by one: a tool can make as many as it likes.
pub fn names_in(folder: impl AsFd) -> nix::Result<impl Iterator<Item = nix::Result<CString>>> {
    // Opened again for a read position of its own.
    let listing = nix::dir::Dir::from_fd(open_at(folder, ".", OFlag::O_DIRECTORY)?)?.into_iter();
    let names = listing.map(|entry| Ok(entry?.file_name().to_owned()));
    Ok(names.filter(|name| !matches!(name.as_deref().map(CStr::to_bytes), Ok(b"." | b".."))))
}

/// Whether a mode is that of a regular file, a folder, a link.
pub fn is(mode: u32, kind: SFlag) -> bool {
    mode & SFlag::S_IFMT.bits() == kind.bits()
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

/// Goes down to a folder, one component at a time. Links are followed where only this user and root
/// can have made them.
fn walk(path: &Path, make: bool) -> io::Result<OwnedFd> {
    let path = std::path::absolute(path)?;
    let mut ahead = names(&path);
    let root = || handle(Path::new("/"));
    let mut at = root()?;
    let mut shown = PathBuf::from("/");
    let mut links = 0;
    check_folder(&fstat(&at)?, &shown, |owner| is_of_system(owner, &shown))?;
    while let Some(part) = ahead.pop() {
        let mut next = open_at(&at, part.as_os_str(), OFlag::O_PATH);
        if make && next.as_ref().err() == Some(&Errno::ENOENT) {
            match mkdirat(&at, part.as_os_str(), Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => next = open_at(&at, part.as_os_str(), OFlag::O_PATH),
                Err(errno) => return Err(errno.into()),
            }
        }
        let next = next?;
        let stat = fstat(&next)?;
        let here = shown.join(&part);
        match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => {
                check_folder(&stat, &here, |owner| is_of_system(owner, &here))?;
                (at, shown) = (next, here);
            }
            SFlag::S_IFLNK => {
                check_owner(stat.st_uid, &here, |owner| is_of_system(owner, &here))?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                let target = PathBuf::from(readlinkat(&next, "")?);
                if target.is_absolute() {
                    (at, shown) = (root()?, PathBuf::from("/"));
                }
                ahead.extend(names(&target));
            }
            _ => return Err(Errno::ENOTDIR.into()),
        }
    }
    check_owner(fstat(&at)?.st_uid, &shown, is_trusted)?;
    Ok(open_at(&at, ".", OFlag::O_DIRECTORY)?)
}

/// Refuses a folder in which others can replace files of this user or root.
fn check_folder(stat: &FileStat, path: &Path, may_own: impl Fn(u32) -> bool) -> io::Result<()> {
    check_owner(stat.st_uid, path, may_own)?;
    // In a sticky folder (/tmp) others can add names, not replace ours.
    if stat.st_mode & STICKY == 0 && others_may_write(stat.st_mode, stat.st_uid, stat.st_gid) {
        let path = path.display();
        return Err(refused(format!(
            "others may write {path} and replace files in it; `chmod go-w {path}` fixes it"
        )));
    }
    Ok(())
}

/// Whether a mode lets others than the owner and root write. A group with the owner's number is
/// that user's private group.
pub fn others_may_write(mode: u32, owner: u32, group: u32) -> bool {
    mode & WORLD_WRITABLE != 0 || (mode & GROUP_WRITABLE != 0 && group != 0 && group != owner)
}

fn check_owner(owner: u32, path: &Path, may_own: impl Fn(u32) -> bool) -> io::Result<()> {
    if may_own(owner) {
        return Ok(());
    }
    let what = foreign(owner).replacen("it", &path.display().to_string(), 1);
    Err(refused(format!(
        "{what}, who could replace what lies in it"
    )))
}

/// Why no file of this uid is used.
pub fn foreign(uid: u32) -> String {
    let anybody = if is_anybody(uid) {
        ", which stands for everybody without an id in this user namespace"
    } else {
        ""
    };
    format!("it belongs to another user (uid {uid}{anybody})")
}

/// Whether an id is this user's. In a user namespace the overflow id stands for every user without
/// an id there, so it is never ours, even where it is also the id of this process.
pub fn is_me(uid: u32) -> bool {
    uid == geteuid().as_raw() && !is_anybody(uid)
}

/// Whether an id is this user's or root's.
pub fn is_trusted(uid: u32) -> bool {
    (uid == 0 || uid == geteuid().as_raw()) && !is_anybody(uid)
}

/// Whether a folder above one of ours, or a program of the machine, may belong to an id. In a user
/// namespace those of the machine's root have the overflow id; where everybody may make names
/// (/tmp) it may be anybody's.
pub fn is_of_system(uid: u32, path: &Path) -> bool {
    is_trusted(uid)
        || is_anybody(uid)
            && path
                .parent()
                .and_then(|above| above.metadata().ok())
                .is_none_or(|of| of.mode() & STICKY == 0)
}

/// Whether an id may stand for any user (user_namespaces(7)). Read once, since every call asks.
fn is_anybody(uid: u32) -> bool {
    static OVERFLOW: OnceLock<Option<u32>> = OnceLock::new();
    every_id_is_mapped() != Some(true)
        && OVERFLOW
            .get_or_init(|| {
                std::fs::read_to_string("/proc/sys/kernel/overflowuid")
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            })
            .is_none_or(|overflow| overflow == uid)
}

/// Whether this is the first user namespace, where every id means itself (user_namespaces(7)).
/// `None`: /proc cannot be read. The answer is kept: it cannot change, and a host without free
/// descriptors could not read it again and would act as another user.
pub fn every_id_is_mapped() -> Option<bool> {
    static TOLD: OnceLock<bool> = OnceLock::new();
    if TOLD.get().is_none() {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let _ = TOLD.set(map.split_ascii_whitespace().eq(["0", "0", "4294967295"]));
    }
    TOLD.get().copied()
}

/// Whether a file is a regular one that only this user and root can have written.
pub fn trustworthy(mode: u32, owner: u32) -> Result<(), String> {
    if !is_trusted(owner) {
        return Err(foreign(owner));
    }
    unwritable(mode)
}

/// Whether only its owner can write a file of this mode.
pub fn unwritable(mode: u32) -> Result<(), String> {
    if !is(mode, SFlag::S_IFREG) {
        return Err("it is not a regular file".into());
    }
    if mode & (GROUP_WRITABLE | WORLD_WRITABLE) != 0 {
        return Err("others may write it; run `chmod go-w` on it".into());
    }
    Ok(())
}

/// Does `work` with the file rights of `owner` (uid, gid) where this process is root: what `work`
/// makes belongs to the owner from the first moment, without chown(2), and `work` can do nothing
/// that the owner could not.
pub fn as_owner<T>(owner: (u32, u32), work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let me = geteuid();
    if !me.is_root() || owner.0 == me.as_raw() {
        return work();
    }
    struct Back(Uid, Gid);
    impl Drop for Back {
        fn drop(&mut self) {
            setfsuid(self.0);
            setfsgid(self.1);
        }
    }
    let none = (Uid::from_raw(u32::MAX), Gid::from_raw(u32::MAX));
    let uid = Uid::from_raw(owner.0);
    let gid = Gid::from_raw(owner.1);
    // These ids are this thread's alone (setfsuid(2)). Asked for an impossible id, the call returns
    // the present one.
    let _back = Back(setfsuid(none.0), setfsgid(gid));
    setfsuid(uid);
    if (setfsuid(none.0), setfsgid(none.1)) != (uid, gid) {
        return Err(refused(format!(
            "this process may not act as uid {} and gid {}",
            owner.0, owner.1
        )));
    }
    work()
}

/// The name under which a folder lists an entry that is there, where its file system takes another
/// spelling for it (case, short names).
fn listed_as(folder: &Path, name: &OsStr, facts: &Metadata) -> Option<OsString> {
    let written = name.to_str().filter(|name| *name != "/")?;
    let cases = [written.to_uppercase(), written.to_lowercase()];
    // Where case does not count, neither does a dot at the end.
    let other = cases
        .into_iter()
        .find(|other| other != written)
        .unwrap_or_else(|| format!("{written}."));
    let other = folder.join(other).symlink_metadata().ok()?;
    if (other.dev(), other.ino()) != (facts.dev(), facts.ino()) {
        return None;
    }
    let entries: Vec<_> = folder.read_dir().ok()?.flatten().collect();
    // Two links of one file can differ in case: then both are listed.
    if entries.iter().any(|entry| entry.file_name() == name) {
        return None;
    }
    entries
        .iter()
        .find(|entry: &&std::fs::DirEntry| {
            entry.ino() == facts.ino()
                || entry.file_name().to_string_lossy().to_lowercase() == written.to_lowercase()
        })
        .map(std::fs::DirEntry::file_name)
}

/// A path below a folder with each component as its folder lists it.
pub fn as_listed(folder: &Path, below: &Path) -> PathBuf {
    let mut at = folder.to_path_buf();
    let mut names = below.iter();
    for name in names.by_ref() {
        let facts = at.join(name).symlink_metadata();
        let listed = facts
            .as_ref()
            .ok()
            .and_then(|facts| listed_as(&at, name, facts));
        at.push(listed.as_deref().unwrap_or(name));
        if facts.is_err() {
            break;
        }
    }
    at.extend(names);
    at
}

/// The links that the kernel would follow to open `path`, in order, each as a path whose folder
/// holds no link; and the path at their end, as its folders list it, whether or not it exists.
pub fn way(path: &Path) -> (Vec<PathBuf>, PathBuf) {
    let mut met = Vec::new();
    let mut done = PathBuf::from("/");
    let mut todo: Vec<OsString> = names(path);
    while let Some(name) = todo.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        let next = done.join(&name);
        match next.read_link() {
            Ok(_) if met.len() >= MAX_LINKS => return (met, done),
            Ok(target) => {
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                todo.extend(names(&target));
                met.push(next);
            }
            Err(_) => done = as_listed(&done, Path::new(&name)),
        }
    }
    (met, done)
}

/// The path itself, the path at its end, and the links between them.
pub fn steps(path: &Path) -> Vec<PathBuf> {
    // A relative path starts at the current folder.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (links, end) = way(&path);
    [path, end].into_iter().chain(links).collect()
}

/// The names of a path, last first.
fn names(path: &Path) -> Vec<OsString> {
    let kept = path
        .components()
        .filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
    kept.map(|c| c.as_os_str().to_owned()).rev().collect()
}

/// The path with links resolved, whether or not there is something at its end.
pub fn resolved(path: &Path) -> PathBuf {
    way(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned())).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    const SOMEBODY: u32 = 12345;

    fn base() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("a path");
        (folder, path)
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    fn why(path: &Path) -> String {
        Folder::make(path).expect_err("refused").to_string()
    }

    #[test]
    fn what_others_can_change_is_not_gone_through() {
        let (_kept, base) = base();
        let inner = base.join("open/inner");
        fs::create_dir_all(&inner).expect("made");
        Folder::open(&inner).expect("the control: ours alone");
        for (bits, good) in [(0o777, false), (0o1777, true), (0o755, true)] {
            mode(&base.join("open"), bits);
            assert_eq!(Folder::open(&inner).is_ok(), good, "{bits:o}");
            assert_eq!(Folder::open(&base.join("open")).is_ok(), good, "{bits:o}");
        }
        mode(&base.join("open"), 0o777);
        assert!(
            why(&inner.join("new")).contains("others may write"),
            "{}",
            why(&inner.join("new"))
        );
        assert!(!inner.join("new").exists(), "nothing is made behind it");
        if geteuid().is_root() {
            mode(&base.join("open"), 0o755);
            chown(base.join("open"), Some(SOMEBODY), None).expect("chown");
            assert!(
                why(&inner).contains("belongs to another user (uid 12345)"),
                "{}",
                why(&inner)
            );
        }
    }

    #[test]
    fn links_are_followed_only_where_nobody_else_could_make_them() {
        let (_kept, base) = base();
        fs::create_dir(base.join("real")).expect("made");
        for (name, target) in [("near", "real"), ("up", "../real"), ("chain", "near")] {
            let place = if name == "up" {
                base.join("real/up")
            } else {
                base.join(name)
            };
            symlink(target, &place).expect("linked");
            fs::write(base.join("real/x"), name).expect("written");
            let mut text = String::new();
            let folder = Folder::open(&place).expect("ours");
            io::Read::read_to_string(
                &mut folder.file("x", OFlag::O_RDONLY).expect("there"),
                &mut text,
            )
            .expect("text");
            assert_eq!(text, name);
        }
        symlink(base.join("loop"), base.join("loop")).expect("linked");
        assert!(Folder::open(&base.join("loop")).is_err());
        if geteuid().is_root() {
            nix::unistd::fchownat(
                AT_FDCWD,
                &base.join("near"),
                Some(Uid::from_raw(SOMEBODY)),
                None,
                AtFlags::AT_SYMLINK_NOFOLLOW,
            )
            .expect("chown");
            assert!(why(&base.join("near/new")).contains("near belongs to another user"));
            assert!(
                why(&base.join("chain")).contains("near belongs to another user"),
                "a link to that link"
            );
        }
    }

    #[test]
    fn a_folder_and_its_files_are_no_links() {
        let (_kept, base) = base();
        let folder = Folder::make(&base.join("a/b")).expect("made");
        assert_eq!(
            fs::metadata(base.join("a")).expect("there").mode() & 0o777,
            0o700
        );
        fs::create_dir(base.join("elsewhere")).expect("made");
        symlink(base.join("elsewhere"), base.join("a/b/inner")).expect("linked");
        symlink(base.join("elsewhere/x"), base.join("a/b/file")).expect("linked");
        assert!(
            folder
                .below("inner")
                .expect_err("a link")
                .to_string()
                .contains("inner is not a folder")
        );
        assert!(
            folder
                .file("file", OFlag::O_WRONLY | OFlag::O_CREAT)
                .is_err()
        );
        folder
            .put("file", b"new")
            .expect("the link is replaced, not followed");
        assert_eq!(fs::read(base.join("a/b/file")).expect("there"), b"new");
        assert_eq!(
            fs::read_dir(base.join("elsewhere")).expect("there").count(),
            0
        );
        fs::remove_file(base.join("a/b/inner")).expect("removed");
        let inner = folder.below("inner").expect("made");
        assert!(inner.is_private() && folder.below("inner").is_ok());
        folder.put("other", b"2").expect("written");
        assert!(
            folder.rename_new("other", "file").is_err()
                && folder.rename_new("other", "third").is_ok()
        );
        mode(&base.join("a/b/file"), 0o666);
        assert!(
            folder.trusted("file", OFlag::O_RDONLY).is_err()
                && folder.trusted("third", OFlag::O_RDONLY).is_ok()
        );
    }

    #[test]
    fn a_lock_has_one_holder_and_leaves_nothing() {
        let (_kept, base) = base();
        let folder = Folder::make(&base).expect("ours");
        let held = folder.lock("x.lock").expect("a lock").expect("free");
        assert!(folder.lock("x.lock").expect("no error").is_none());
        drop(held);
        assert!(folder.stat("x.lock").is_none());
        assert!(folder.lock("x.lock").expect("a lock").is_some());
    }

    #[test]
    fn what_is_made_as_an_owner_is_his_and_no_more_than_he_could() {
        if !geteuid().is_root() || every_id_is_mapped() != Some(true) {
            return println!("SKIPPED acting as another: needs real root");
        }
        let (_kept, base) = base();
        mode(&base, 0o755);
        let (his, ours) = (base.join("his"), base.join("ours"));
        fs::create_dir(&his).expect("made");
        fs::create_dir(&ours).expect("made");
        chown(&his, Some(SOMEBODY), Some(SOMEBODY)).expect("chown");
        as_owner((SOMEBODY, SOMEBODY), || fs::create_dir(his.join("new"))).expect("his own folder");
        let facts = fs::metadata(his.join("new")).expect("there");
        assert_eq!((facts.uid(), facts.gid()), (SOMEBODY, SOMEBODY));
        as_owner((SOMEBODY, SOMEBODY), || fs::create_dir(ours.join("new"))).expect_err("not his");
        fs::create_dir(ours.join("new")).expect("the control: ourselves again");
    }
}
