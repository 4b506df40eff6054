//! Resolve: has the kernel resolve a path in the view of a task, and tells what refuses it (part of the recorder).
//!
//! The recorder has entered the task's mount namespace and root as its user, so openat2(2) sees what the task sees. Where
//! a part is missing, the mount of the last folder that is there decides: what is missing in the view's own read-only
//! tree was not granted.

use crate::sandbox::protocol::Operation;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The rule of a file that is not granted.
const NOT_SHOWN: &str = "view: not granted";
const READ_ONLY: &str = "view: read-only";
/// The rule of a program that the tool can write, which no policy lifts.
pub const WRITABLE: &str = "view: what the tool can write is not run";
/// The rule of a path that could not be resolved, with an error behind it: whether it was refused is not known.
pub const UNRESOLVED: &str = "not observed: the path could not be resolved";
/// Most links that are followed in one path, and its longest text, as by the kernel (path_resolution(7), PATH_MAX).
const LINKS: usize = 40;
const LONGEST: usize = 4096;
const PAGE: usize = 4096;

/// How a system call takes the last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkHandling {
    /// A link there is followed.
    Followed,
    /// The link itself is meant.
    Itself,
    /// As `Itself`, and the call fails where there is something.
    New,
}

/// A thread of the call, in the /proc of the launcher.
pub struct Task<'a> {
    pub proc: &'a OwnedFd,
    pub thread: u32,
}

/// Where a path leads: what is there, or the last folder that is there and what is missing in it.
enum Place {
    There(OwnedFd),
    Missing(OwnedFd, Vec<u8>),
}

impl Task<'_> {
    /// A file of this thread's folder in /proc, as a handle on what it leads to.
    pub fn open(&self, name: &str) -> Result<OwnedFd, Errno> {
        let name = format!("{}/{name}", self.thread);
        openat(self.proc, name.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
    }

    /// The path at this address of the thread's memory, which the kernel reads whatever its protection is.
    pub fn path_at(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let name = format!("{}/mem", self.thread);
        let memory = File::from(openat(self.proc, name.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?);
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < LONGEST {
            let from = address.checked_add(bytes.len() as u64).ok_or(Errno::EFAULT)?;
            let mut page = vec![0; PAGE - from as usize % PAGE];
            let read = memory.read_at(&mut page, from).map_err(|error| crate::sandbox::sys::errno(&error))?;
            if let Some(end) = page[..read].iter().position(|byte| *byte == 0) {
                bytes.extend(&page[..end]);
                return Ok(bytes);
            }
            if read == 0 {
                return Err(Errno::EFAULT);
            }
            bytes.extend(&page[..read]);
        }
        Err(Errno::ENAMETOOLONG)
    }

    /// Where a path leads and the rule that refuses this operation there; `None`: the view refuses nothing. `folder`: the
    /// descriptor in which a relative path starts, if it is not the working folder.
    pub fn refusal(
        &self,
        folder: Option<i32>,
        path: &[u8],
        operation: Operation,
        last: LinkHandling,
    ) -> Option<(Option<PathBuf>, String)> {
        let place = self.resolve(folder, path, last).and_then(|place| {
            let rule = rule(&place, operation, last)?;
            Ok(rule.map(|rule| (place, rule)))
        });
        match place {
            Ok(None) => None,
            Ok(Some((place, rule))) => {
                let path = match &place {
                    Place::There(file) => self.name_of(file),
                    Place::Missing(folder, rest) => self.name_of(folder).map(|at| at.join(OsStr::from_bytes(rest))),
                };
                Some((path.ok(), rule.to_owned()))
            }
            Err(errno) => Some((None, format!("{UNRESOLVED} ({errno:?})"))),
        }
    }

    fn resolve(&self, folder: Option<i32>, path: &[u8], last: LinkHandling) -> Result<Place, Errno> {
        let mut path = path.to_owned();
        let mut start = match folder {
            _ if path.starts_with(b"/") => open(AT_FDCWD, b"/", false)?,
            Some(number) => self.open(&format!("fd/{number}"))?,
            None => self.open("cwd")?,
        };
        for _ in 0..LINKS {
            let errno = match open(&start, &path, last == LinkHandling::Followed) {
                Ok(file) => return Ok(Place::There(file)),
                Err(errno) => errno,
            };
            // What is shorter is there where what is longer is.
            let ends: Vec<usize> = (1..path.len()).filter(|end| path[*end] == b'/' && path[end - 1] != b'/').collect();
            let there = ends.partition_point(|end| open(&start, &path[..*end], true).is_ok());
            let (mut end, mut at) = (0, None);
            if there > 0 {
                end = ends[there - 1];
                at = Some(open(&start, &path[..end], true)?);
            } else if path.starts_with(b"/") {
                at = Some(open(AT_FDCWD, b"/", false)?);
            }
            let at = at.unwrap_or(start);
            let rest: Vec<u8> = path[end..].iter().copied().skip_while(|byte| *byte == b'/').collect();
            let stop = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let (name, after) = rest.split_at(stop);
            let is_last = after.iter().all(|byte| *byte == b'/');
            let link = open(&at, name, false).ok().filter(|file| is(file, SFlag::S_IFLNK));
            let Some(link) = link.filter(|_| last == LinkHandling::Followed || !is_last) else {
                return if errno == Errno::ENOENT { Ok(Place::Missing(at, rest)) } else { Err(errno) };
            };
            (start, path) = self.follow(at, name, &link, errno)?;
            if path.is_empty() && after.is_empty() {
                return Ok(Place::There(start));
            }
            path = [if path.is_empty() { b"." } else { &path[..] }, after].concat();
        }
        Err(Errno::ELOOP)
    }

    /// Where a link leads that the kernel does not follow for us to its end: the folder and the path in it.
    fn follow(&self, at: OwnedFd, name: &[u8], link: &OwnedFd, errno: Errno) -> Result<(OwnedFd, Vec<u8>), Errno> {
        let target = readlinkat(link, "");
        let (own, of_thread) = self.numbers()?;
        match target {
            Ok(target) if errno == Errno::ENOENT => Ok((at, target.into_vec())),
            // `self` leads elsewhere for each reader.
            Err(Errno::ENOENT) if name == b"self" => Ok((at, own.into_bytes())),
            Err(Errno::ENOENT) if name == b"thread-self" => Ok((at, of_thread.into_bytes())),
            // A magic link of the task itself leads to its own root, folders, program and descriptors.
            Ok(_) if errno == Errno::ELOOP => {
                let folder = self.name_of(&at)?;
                let mut places = [of_thread, own].into_iter().map(|own| Path::new("/proc").join(own));
                let rest = places.find_map(|place| folder.strip_prefix(place).ok()).ok_or(errno)?;
                let name = rest.join(OsStr::from_bytes(name));
                let own = ["root", "cwd", "exe"].map(Path::new).contains(&name.as_path()) || rest == Path::new("fd");
                if own { Ok((self.open(&name.to_string_lossy())?, Vec::new())) } else { Err(errno) }
            }
            _ => Err(errno),
        }
    }

    /// The names of the process and of the thread in the /proc of the call.
    fn numbers(&self) -> Result<(String, String), Errno> {
        let name = format!("{}/status", self.thread);
        let status = openat(self.proc, name.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let status = std::io::read_to_string(File::from(status)).map_err(|error| crate::sandbox::sys::errno(&error))?;
        let number = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|line| line.split_whitespace().last()).unwrap_or_default().to_owned()
        };
        let (process, thread) = (number("NStgid:"), number("NSpid:"));
        let of_thread = format!("{process}/task/{thread}");
        Ok((process, of_thread))
    }

    /// The path of an open file from the root of the call.
    fn name_of(&self, file: &OwnedFd) -> Result<PathBuf, Errno> {
        readlinkat(self.proc, format!("self/fd/{}", file.as_raw_fd()).as_str()).map(PathBuf::from)
    }
}

/// The rule that refuses an operation at this place.
fn rule(place: &Place, operation: Operation, last: LinkHandling) -> Result<Option<&'static str>, Errno> {
    let (file, there) = match place {
        Place::There(file) => (file, true),
        Place::Missing(folder, _) => (folder, false),
    };
    // The view's own tree holds folders that lead to grants, and nothing of the host.
    let own = || Ok(fstat(file)?.st_dev == fstat(&open(AT_FDCWD, b"/", false)?)?.st_dev);
    let special = || there && [SFlag::S_IFCHR, SFlag::S_IFIFO, SFlag::S_IFSOCK].iter().any(|kind| is(file, *kind));
    let mount = fstatvfs(file)?.flags();
    Ok(match operation {
        _ if !there && own()? => Some(NOT_SHOWN),
        // It fails for what is there already.
        Operation::Write if there && last == LinkHandling::New => None,
        Operation::Write if mount.contains(FsFlags::ST_RDONLY) && !special() => Some(READ_ONLY),
        Operation::Run if there && mount.contains(FsFlags::ST_NOEXEC) => Some(WRITABLE),
        _ => None,
    })
}

fn is(file: &OwnedFd, kind: SFlag) -> bool {
    fstat(file).is_ok_and(|stat| crate::base::files::is(stat.st_mode, kind))
}

/// A handle on what a path leads to, by no magic link.
fn open(start: impl std::os::fd::AsFd, path: &[u8], follow: bool) -> Result<OwnedFd, Errno> {
    let flags = if follow { OFlag::O_PATH } else { OFlag::O_PATH | OFlag::O_NOFOLLOW };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(start, path, how)
}
