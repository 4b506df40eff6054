//! The file of what the operator disabled, beside the audit log. Each call reads it when it is
//! decided, and a file that cannot be read refuses them all.

use super::audit::segments;
use super::state_file::StateFile;
use crate::base::files::Folder;
use crate::fault::{Fault, Kind};
use crate::policy::{Selector, Stop, Stops};
use std::io;
use std::path::Path;
use std::sync::Arc;

pub const FILE: &str = "disabled.json";

pub type StopFile = StateFile<Stops>;

impl StateFile<Stops> {
    pub fn beside(log: &Path) -> StopFile {
        StateFile::new(log, FILE)
    }

    /// What is disabled now.
    pub fn now(&self) -> Result<Arc<Stops>, Fault> {
        self.read().map_err(|e| {
            let message = "What the operator disabled on this host cannot be read, so no tool runs \
                until that is corrected.";
            let path = crate::base::text::path(&self.path);
            let fix = "correct it, or remove it to enable every tool";
            Fault::new(Kind::SecurityError, message).person(format!("{path}: {e}; {fix}"))
        })
    }

    /// Adds an order. One that stops everything holds also where the file cannot be read.
    pub fn order(&self, stop: &Stop) -> io::Result<()> {
        match stop.tools {
            Selector::Any => self.stop_all(stop),
            _ => self.change(|stops| stops.put(stop.clone())).map(|it| it.1),
        }
        .map(drop)
    }

    /// Stops everything, also where the file cannot be read: then it is put aside.
    fn stop_all(&self, stop: &Stop) -> io::Result<Arc<Stops>> {
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
}
