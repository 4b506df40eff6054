//! Opens a regular file below a folder, without waiting. The kernel keeps the path inside, and
//! follows no link (openat2(2)).

use crate::base::{files, text};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// Does not exist.
    Missing,
    /// A component is a symbolic link.
    Link,
    /// The path leads out of the folder.
    Outside,
    Folder,
    /// A pipe, a socket, a device.
    NotAFile,
    TooLarge,
    /// Any other error of the system.
    System(Errno),
}

impl OpenError {
    /// For a person: what is wrong and the fix.
    pub(super) fn why(self) -> String {
        match self {
            OpenError::Missing => "is not there".to_owned(),
            OpenError::Link => {
                "is a symbolic link, or lies behind one: links are not followed; put the file \
                itself here"
                    .to_owned()
            }
            OpenError::Outside => "leads out of its folder".to_owned(),
            OpenError::Folder => "is a folder, not a regular file".to_owned(),
            OpenError::NotAFile => "is a pipe, a socket or a device, not a regular file".to_owned(),
            OpenError::TooLarge => "is larger than a definition may be (1 MiB)".to_owned(),
            OpenError::System(Errno::EACCES) => {
                "may not be read by this user: change its mode or owner".to_owned()
            }
            OpenError::System(Errno::ENOSYS | Errno::EPERM) => {
                "needs openat2(2), which the kernel or a container refuses: see `toolhost doctor`"
                    .to_owned()
            }
            OpenError::System(errno) => format!("cannot be opened: {}", errno.desc()),
        }
    }
}

/// A base folder, or a folder that a link in one leads to, open.
pub(super) struct Base {
    /// Without symbolic links.
    pub path: PathBuf,
    pub folder: OwnedFd,
    /// The link in a base folder, and those behind it. None for a base folder.
    pub links: Vec<PathBuf>,
}

impl Base {
    /// The path may hold links, since the operator named it.
    pub(super) fn open(path: &Path) -> std::io::Result<Base> {
        let path = files::resolved(path);
        Ok(Base {
            folder: folder(&path)?,
            path,
            links: Vec::new(),
        })
    }

    /// The folder that a link leads to, if nobody but this user and root can make it lead elsewhere.
    pub(super) fn linked(link: &Path) -> std::io::Result<Base> {
        files::Folder::open(link)?;
        let mut links = files::steps(link);
        links.retain(|step| step.is_symlink());
        Ok(Base {
            links,
            ..Base::open(link)?
        })
    }

    /// The base folder.
    pub(super) fn top(&self) -> &Path {
        let link = self.links.first();
        link.and_then(|link| link.parent()).unwrap_or(&self.path)
    }

    /// The name by which it is known.
    pub(super) fn name(&self) -> Option<&OsStr> {
        self.links.first().unwrap_or(&self.path).file_name()
    }
}

fn folder(path: &Path) -> Result<OwnedFd, Errno> {
    open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

/// Opens a regular file for reading.
pub(super) fn file(folder: &OwnedFd, relative: &Path) -> Result<File, OpenError> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    fn how(flags: OFlag, resolve: &ResolveFlag) -> OpenHow {
        OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(*resolve)
    }
    // First with O_PATH, which does not open the file: opening a device can have effects.
    let look = with_patience(|| openat2(folder, relative, how(OFlag::O_PATH, &resolve)))?;
    regular(&File::from(look))?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(with_patience(|| {
        openat2(folder, relative, how(flags, &resolve))
    })?);
    regular(&file)?;
    Ok(file)
}

/// Opens a regular file below a folder, neither of which lies behind a link; else why not, for a
/// person.
pub(super) fn open_file(below: &Path, relative: &Path) -> Result<File, String> {
    let folder = files::without_links(below, OFlag::O_PATH | OFlag::O_DIRECTORY);
    let folder = folder.map_err(|errno| at(below, relative, errno.desc()))?;
    file(&folder, relative).map_err(|refusal| at(below, relative, &refusal.why()))
}

fn at(below: &Path, relative: &Path, why: &str) -> String {
    format!("{}: {why}", text::path(&below.join(relative)))
}

/// The bytes of a file below a folder; else why not, for a person.
pub fn read_beneath(below: &Path, relative: &Path, most: u64) -> Result<Vec<u8>, String> {
    let read = files::whole(open_file(below, relative)?, most);
    let bytes = read.map_err(|error| at(below, relative, &system(&error).why()))?;
    bytes.ok_or_else(|| at(below, relative, &format!("is larger than {most} bytes")))
}

/// The bytes of a regular file below a folder, up to a bound.
pub(super) fn read(folder: &OwnedFd, relative: &Path, most: u64) -> Result<Vec<u8>, OpenError> {
    let bytes = files::whole(file(folder, relative)?, most).map_err(|error| system(&error))?;
    bytes.ok_or(OpenError::TooLarge)
}

fn regular(file: &File) -> Result<(), OpenError> {
    let facts = file.metadata().map_err(|error| system(&error))?;
    match (facts.is_file(), facts.is_dir()) {
        (true, _) => Ok(()),
        (_, true) => Err(OpenError::Folder),
        _ => Err(OpenError::NotAFile),
    }
}

fn system(error: &std::io::Error) -> OpenError {
    OpenError::System(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// The kernel answers EAGAIN when something was renamed while it looked.
fn with_patience(mut attempt: impl FnMut() -> nix::Result<OwnedFd>) -> Result<OwnedFd, OpenError> {
    let mut last = Errno::EAGAIN;
    for _ in 0..16 {
        match attempt() {
            Ok(fd) => return Ok(fd),
            Err(errno @ (Errno::EAGAIN | Errno::EINTR)) => last = errno,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG) => {
                return Err(OpenError::Missing);
            }
            Err(Errno::ELOOP) => return Err(OpenError::Link),
            Err(Errno::EXDEV) => return Err(OpenError::Outside),
            Err(Errno::ENXIO) => return Err(OpenError::NotAFile),
            Err(errno) => return Err(OpenError::System(errno)),
        }
    }
    Err(OpenError::System(last))
}
