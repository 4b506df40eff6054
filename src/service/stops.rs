//! The file of what the operator disabled, beside the audit log. Each call reads it when it is
//! decided, and a file that cannot be read refuses them all.

use super::audit::segments;
use crate::base::files::{self, Folder, Stamp};
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::policy::{Stop, Stops};
use crate::quantity::MIB;
use nix::fcntl::OFlag;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const FILE: &str = "disabled.json";
const LOCK: &str = ".disabled.lock";
const MAX_BYTES: u64 = MIB;
/// How often servers and running calls look at the file.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct StopFile {
    pub path: PathBuf,
    known: Mutex<Known>,
}

/// What was read last. No stamp: there was no file.
#[derive(Debug, Default)]
struct Known {
    stamp: Option<Stamp>,
    stops: Arc<Stops>,
}

impl StopFile {
    pub fn beside(log: &Path) -> StopFile {
        StopFile {
            path: segments::folder(log).join(FILE),
            known: Mutex::default(),
        }
    }

    /// What is disabled now: one stat(2), unless the file changed.
    pub fn now(&self) -> Result<Arc<Stops>, Fault> {
        let mut known = lock(&self.known);
        known.refresh(&self.path).map_err(|e| {
            let message = "What the operator disabled on this host cannot be read, so no tool runs \
                until that is corrected.";
            let path = crate::base::text::path(&self.path);
            let fix = "correct it, or remove it to enable every tool";
            Fault::new(Kind::SecurityError, message).person(format!("{path}: {e}; {fix}"))
        })?;
        Ok(known.stops.clone())
    }

    /// Stops everything, also where the file cannot be read: then it is put aside.
    pub fn stop_all(&self, stop: &Stop) -> io::Result<Arc<Stops>> {
        let put = || self.change(|stops| stops.put(stop.clone()));
        let stopped = put().or_else(|why| {
            if self.now().is_ok() {
                return Err(why);
            }
            let aside = format!("{FILE}.{}", stop.at.as_second());
            Folder::open(segments::folder(&self.path))?.rename_new(FILE, &aside)?;
            put()
        });
        Ok(stopped?.1)
    }

    /// Changes the file, which no other process changes meanwhile.
    pub fn change<T>(&self, change: impl FnOnce(&mut Stops) -> T) -> io::Result<(T, Arc<Stops>)> {
        let folder = Folder::make(segments::folder(&self.path))?;
        let _lock = folder.wait_for_lock(LOCK)?;
        let mut known = lock(&self.known);
        known.refresh(&self.path)?;
        let mut stops = (*known.stops).clone();
        let changed = change(&mut stops);
        let text = serde_json::to_vec_pretty(&stops)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other("it would be longer than 1 MiB"));
        }
        folder.put(FILE, &text)?;
        known.refresh(&self.path)?;
        Ok((changed, known.stops.clone()))
    }
}

impl Known {
    fn refresh(&mut self, path: &Path) -> io::Result<()> {
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
        let file = Folder::open(segments::folder(path))?.trusted(FILE, OFlag::O_RDONLY)?;
        let stamp = Some(Stamp::from_file(&file)?);
        let bytes = files::whole(file, MAX_BYTES)?;
        let bytes = bytes.ok_or_else(|| io::Error::other("it is longer than 1 MiB"))?;
        let stops = Arc::new(serde_json::from_slice(&bytes)?);
        *self = Known { stamp, stops };
        Ok(())
    }
}
