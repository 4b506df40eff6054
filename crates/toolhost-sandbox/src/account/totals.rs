//! The size of what folders contain.

use nix::errno::Errno;
use nix::sys::stat::lstat;
use nix::unistd::{AccessFlags, access, geteuid};
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use walkdir::DirEntry;

/// The size of the contents of folders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Space on disk: holes do not count.
    pub bytes: u64,
    /// Number of entries, folders included.
    pub files: u64,
    /// Size of the largest file.
    pub largest: u64,
}

impl Totals {
    pub fn add(&mut self, meta: &Metadata) {
        // st_blocks is in units of 512 bytes on every file system (stat(3type)).
        self.bytes += meta.blocks() * 512;
        self.files += 1;
        if meta.is_file() {
            self.largest = self.largest.max(meta.len());
        }
    }

    pub fn join(&mut self, other: Totals) {
        self.bytes += other.bytes;
        self.files += other.files;
        self.largest = self.largest.max(other.largest);
    }
}

/// Every entry below an open folder, with its path. A folder that replaces this one meanwhile is
/// not walked.
pub fn below(
    folder: &OwnedFd,
    path: &Path,
) -> impl Iterator<Item = walkdir::Result<(PathBuf, DirEntry)>> {
    let root = format!("/proc/self/fd/{}/.", folder.as_raw_fd());
    walkdir::WalkDir::new(&root)
        .follow_links(false)
        .into_iter()
        .map(move |entry| {
            let entry = entry?;
            Ok((
                path.join(entry.path().strip_prefix(&root).unwrap_or(entry.path())),
                entry,
            ))
        })
}

/// Whether a folder belongs to somebody else who lets us neither list nor enter it: a tool, which
/// has no more rights than we, reaches nothing in it.
pub fn is_closed(folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| {
        lstat(folder).is_ok_and(|facts| facts.st_uid != geteuid().as_raw())
            && access(folder, AccessFlags::X_OK) == Err(Errno::EACCES)
    })
}
