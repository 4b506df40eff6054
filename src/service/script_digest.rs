//! The digest of a script, for reports and records; read again only when the file changed.
//!
//! For: the road. In: a decision about a script. Out: SHA-256 in hex, or nothing where it cannot be read.
//! Never: decides anything; what runs is what the executor opens.

use crate::{manifest, policy};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Larger scripts have no digest in reports.
const LARGEST: u64 = 64 * 1024 * 1024;
/// Scripts that are remembered.
const REMEMBERED: usize = 4096;

/// Device, inode, size, and both times that a write moves.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// A script as it was when its digest was found.
#[derive(Clone, Debug)]
pub(super) struct Script {
    path: PathBuf,
    stamp: Stamp,
    pub digest: String,
}

impl Script {
    /// Whether the path still leads to the same, unchanged file: renaming moves a file's ctime, too.
    pub fn stayed(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|facts| stamp(&facts) == self.stamp)
    }
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    known: Mutex<HashMap<PathBuf, (Stamp, String)>>,
}

impl Cache {
    /// Of the script that a call leads to. `None` also for modules: their executor tells what it ran.
    pub fn of(&self, decision: &policy::Decision) -> Option<Script> {
        let shape = decision.shape.as_ref().ok()?;
        let script = shape.script.as_deref().filter(|_| shape.runtime.language != manifest::Language::Wasm)?;
        let found = |stamp, digest| Some(Script { path: script.to_owned(), stamp, digest });
        let seen = stamp(&script.symlink_metadata().ok()?);
        if let Some((_, digest)) = self.known().get(script).filter(|(was, _)| *was == seen) {
            return found(seen, digest.clone());
        }
        let (facts, digest) = read(script)?;
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(script.to_owned(), (stamp(&facts), digest.clone()));
        found(stamp(&facts), digest)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, (Stamp, String)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The digest of the file as it is now; `None` where it cannot be read, or is too large.
pub fn of(script: &Path) -> Option<String> {
    read(script).map(|(_, digest)| digest)
}

fn read(script: &Path) -> Option<(Metadata, String)> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags.bits()).open(script).ok()?;
    let facts = file.metadata().ok().filter(|facts| facts.is_file() && facts.len() <= LARGEST)?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).ok()?;
    Some((facts, crate::base::sha256_hex(&bytes)))
}

fn stamp(facts: &Metadata) -> Stamp {
    let times = ((facts.mtime(), facts.mtime_nsec()), (facts.ctime(), facts.ctime_nsec()));
    (facts.dev(), facts.ino(), facts.len(), times.0, times.1)
}
