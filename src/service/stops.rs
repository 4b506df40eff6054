//! The file of what the operator disabled, beside the audit log. Each call reads it when it is
//! decided, and a file that cannot be read refuses them all.
//!
//! An order from the command line is one to every host with that log. One over HTTP comes from whoever
//! operates one server, and so is about hosts of its root alone.

use super::audit::Log;
use super::audit::segments;
use super::state_file::StateFile;
use crate::base::files::Folder;
use crate::fault::{Fault, Kind};
use crate::policy::{Selector, Stop, Stops};
use std::io;
use std::sync::Arc;

pub const FILE: &str = "disabled.json";

#[derive(Debug)]
pub struct StopFile {
    pub file: StateFile<Stops>,
    /// `None`: the host obeys all.
    pub root: Option<String>,
}

impl StopFile {
    pub fn beside(log: &Log) -> StopFile {
        StopFile {
            file: StateFile::new(log.path(), FILE),
            root: log.root().map(str::to_owned),
        }
    }

    /// What is disabled now for hosts of this root.
    pub fn now(&self) -> Result<Arc<Stops>, Fault> {
        let all = self.all()?;
        Ok(match &self.root {
            Some(root) => Arc::new(all.for_root(root)),
            None => all,
        })
    }

    /// What is disabled now, for whichever host.
    pub fn all(&self) -> Result<Arc<Stops>, Fault> {
        self.file.read().map_err(|e| {
            let message = "What the operator disabled on this host cannot be read, so no tool runs \
                until that is corrected.";
            let path = crate::base::text::path(&self.file.path);
            let fix = "correct it, or remove it to enable every tool";
            Fault::new(Kind::SecurityError, message).person(format!("{path}: {e}; {fix}"))
        })
    }

    /// Adds an order. One that stops everything holds also where the file cannot be read.
    pub fn order(&self, stop: &Stop) -> io::Result<()> {
        match stop.tools {
            Selector::Any => self.stop_all(stop),
            _ => self.put(stop),
        }
    }

    fn put(&self, stop: &Stop) -> io::Result<()> {
        let put = self.file.change(|stops| stops.put(stop.clone()));
        put.map(drop)
    }

    /// Stops everything, also where the file cannot be read: then it is put aside.
    fn stop_all(&self, stop: &Stop) -> io::Result<()> {
        self.put(stop).or_else(|why| {
            if self.all().is_ok() {
                return Err(why);
            }
            let aside = format!("{FILE}.{}", stop.at.as_second());
            Folder::open(segments::folder(&self.file.path))?.rename_new(FILE, &aside)?;
            self.put(stop)
        })
    }
}
