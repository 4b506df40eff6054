//! Where settings come from: variables, the folders of a user, and files that only their owner can
//! have written.

use crate::base::{files, text};
use nix::fcntl::OFlag;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Largest config file, bytes.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// The environment, as a function so that tests need not change this process's own.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads a file that only its owner (us, or root) can have written.
pub fn guarded_text(file: &Path) -> Result<String, String> {
    let bytes = files::checked(
        files::open(file, OFlag::empty()),
        MAX_CONFIG_BYTES,
        |facts| match facts {
            _ if !files::is_trusted(facts.uid()) => {
                Some("it belongs to another user, who could change what this host does".to_owned())
            }
            _ if facts.mode() & 0o022 != 0 => {
                Some("others can write it; run `chmod go-w` on it".to_owned())
            }
            _ => None,
        },
    );
    text::decode(&bytes?).map(str::to_owned)
}

/// Reads a regular file of at most so many bytes; never waits on a pipe.
pub fn regular_file(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    files::checked(files::open(path, OFlag::empty()), most, |_| None)
}

/// `$XDG_…`, else the folder below the home folder.
pub fn folder(variable: Variables<'_>, xdg: &str, below_home: &str) -> Option<PathBuf> {
    let named = variable(xdg)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    named.or_else(|| home(variable).map(|home| home.join(below_home)))
}

pub fn home(variable: Variables<'_>) -> Option<PathBuf> {
    let named = variable("HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    named.or_else(|| {
        let me = nix::unistd::User::from_uid(nix::unistd::geteuid())
            .ok()
            .flatten()?;
        Some(me.dir).filter(|path| path.is_absolute())
    })
}
