//! Starts of ready processes that ended before their call came. After three of them there are no
//! more, until the tool, its packages or its policy changes.

use super::audit::segments;
use crate::base::files::Folder;
use crate::executor::process::EarlyEnd;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Lies beside the audit log, for `check`.
pub const FILE: &str = "ready.json";
/// Longest such file, bytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// Most tools in it.
const MAX_TOOLS: usize = 256;
const MAX_STARTS: u64 = 3;

/// By what the processes were started for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EarlyEnds(BTreeMap<String, Ended>);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Ended {
    tool: String,
    starts: u64,
    last_line: String,
}

impl EarlyEnds {
    /// What was recorded beside this log. What cannot be read costs three more starts.
    pub fn read(log: &Path) -> EarlyEnds {
        let read = || {
            let file = Folder::open(segments::folder(log))?.trusted(FILE, OFlag::O_RDONLY)?;
            let bytes = crate::base::files::whole(file, MAX_BYTES)?.unwrap_or_default();
            Ok::<EarlyEnds, io::Error>(serde_json::from_slice(&bytes)?)
        };
        read().unwrap_or_default()
    }

    pub fn write(&self, log: &Path) -> io::Result<()> {
        Folder::make(segments::folder(log))?.put(FILE, &serde_json::to_vec(self)?)
    }

    pub fn add(&mut self, end: EarlyEnd) {
        let ended = self.0.entry(end.digest).or_default();
        ended.starts += 1;
        (ended.tool, ended.last_line) = (end.tool, end.last_line);
        if self.0.len() > MAX_TOOLS {
            self.0.pop_first();
        }
    }

    /// Why no more processes are started for this.
    pub fn refusal(&self, digest: &str) -> Option<String> {
        let ended = self.0.get(digest).filter(|it| it.starts >= MAX_STARTS)?;
        let line = &ended.last_line;
        let said = if line.is_empty() {
            String::new()
        } else {
            format!(": {line}")
        };
        Some(format!(
            "every call starts cold: {} processes that were started before their calls ended \
             without reading their input{said} (they are tried again once the tool, its packages or \
             its policy changes)",
            ended.starts
        ))
    }
}
