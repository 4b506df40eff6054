//! The digest of a script, for reports and records; read again only when the file changed. What runs is what the executor
//! opens.

use crate::base::files::{self, Stamp};
use crate::base::lock;
use crate::{manifest, policy};
use nix::fcntl::OFlag;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Larger scripts have no digest in reports.
const LARGEST: u64 = 64 * 1024 * 1024;
/// Scripts that are remembered.
const REMEMBERED: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Script {
    path: PathBuf,
    stamp: Stamp,
    pub digest: String,
}

impl Script {
    /// Whether the path still leads to the same, unchanged file: renaming moves a file's ctime, too.
    pub fn stayed(&self) -> bool {
        Stamp::at(&self.path).is_ok_and(|now| now == self.stamp)
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
        let seen = Stamp::at(script).ok()?;
        if let Some((_, digest)) = lock(&self.known).get(script).filter(|(was, _)| *was == seen) {
            return found(seen, digest.clone());
        }
        let (stamp, digest) = read(script)?;
        let mut known = lock(&self.known);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(script.to_owned(), (stamp, digest.clone()));
        found(stamp, digest)
    }
}

/// The digest of the file as it is now; `None` where it cannot be read, or is too large.
pub fn of(script: &Path) -> Option<String> {
    read(script).map(|(_, digest)| digest)
}

fn read(script: &Path) -> Option<(Stamp, String)> {
    let file = files::open(script, OFlag::O_NOFOLLOW).ok()?;
    let stamp = Stamp::of(&file).ok()?;
    let bytes = files::whole(file, LARGEST).ok()??;
    Some((stamp, crate::base::sha256_hex(&bytes)))
}
