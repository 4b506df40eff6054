//! A small file beside the audit log, which several processes read and change.

use super::audit::segments;
use crate::base::files::{self, Folder, Stamp};
use crate::base::lock;
use crate::quantity::MIB;
use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MAX_BYTES: u64 = MIB;
/// How often servers and running calls look at such a file.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct StateFile<T> {
    pub path: PathBuf,
    name: &'static str,
    known: Mutex<Known<T>>,
}

/// What was read last. No stamp: there was no file.
#[derive(Debug, Default)]
struct Known<T> {
    stamp: Option<Stamp>,
    content: Arc<T>,
}

impl<T: Clone + Default + DeserializeOwned + Serialize> StateFile<T> {
    pub fn new(log: &Path, name: &'static str) -> StateFile<T> {
        StateFile {
            path: segments::folder(log).join(name),
            name,
            known: Mutex::default(),
        }
    }

    /// What it says now: one stat(2), unless the file changed.
    pub fn read(&self) -> io::Result<Arc<T>> {
        let mut known = lock(&self.known);
        known.refresh(&self.path, self.name)?;
        Ok(known.content.clone())
    }

    /// Changes the file, which no other process changes meanwhile.
    pub fn change<C>(&self, change: impl FnOnce(&mut T) -> C) -> io::Result<(C, Arc<T>)> {
        let folder = Folder::make(segments::folder(&self.path))?;
        let _lock = folder.wait_for_lock(&format!(".{}.lock", self.name))?;
        let mut content = T::clone(&*self.read()?);
        let changed = change(&mut content);
        let text = serde_json::to_vec_pretty(&content)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other("it would be longer than 1 MiB"));
        }
        folder.put(self.name, &text)?;
        Ok((changed, self.read()?))
    }
}

impl<T: Default + DeserializeOwned> Known<T> {
    fn refresh(&mut self, path: &Path, name: &str) -> io::Result<()> {
        let facts = match path.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if self.stamp.is_some() {
                    *self = Known::default();
                }
                return Ok(());
            }
            facts => facts?,
        };
        if self.stamp == Some(Stamp::from(&facts)) {
            return Ok(());
        }
        let file = Folder::open(segments::folder(path))?.trusted(name, OFlag::O_RDONLY)?;
        let stamp = Some(Stamp::from_file(&file)?);
        let bytes = files::whole(file, MAX_BYTES)?;
        let bytes = bytes.ok_or_else(|| io::Error::other("it is longer than 1 MiB"))?;
        let content = Arc::new(serde_json::from_slice(&bytes)?);
        *self = Known { stamp, content };
        Ok(())
    }
}
