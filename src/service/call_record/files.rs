//! The files that a call published, and those that it could not.
//!
//! For: the record. In: what became of each staged file. Out: a bounded list for the report, notes, a fault. Never: more files
//! than a report holds: a tool can write as many as it likes.

use super::super::record::few;
use super::CallRecord;
use crate::base::text;
use crate::executor;
use crate::fault::{Fault, Kind};

/// Most files in a report: published, and not published.
const FILES: (usize, usize) = (1000, 50);

impl CallRecord {
    /// Bounds the files in the report.
    pub(super) fn wrote(&mut self, mut artifacts: Vec<executor::Artifact>) {
        artifacts.iter_mut().for_each(|artifact| artifact.path = self.arguments.mask.text(&artifact.path));
        let (mut published, mut dropped): (Vec<_>, Vec<_>) = artifacts.into_iter().partition(|file| file.published);
        // The failed ones, which fail the call, come first and are cut last.
        dropped.sort_by_key(|file| !file.failed);
        for (files, most, what) in [(&mut published, FILES.0, "were"), (&mut dropped, FILES.1, "were not")] {
            if let Some(more) = files.len().checked_sub(most).filter(|more| *more > 0) {
                files.truncate(most);
                let words = format!("{more} more files {what} published");
                self.notes.narrowed(words);
            }
        }
        published.append(&mut dropped);
        self.seen.artifacts = published;
    }

    /// Files that were not published: noted, or, where this host failed to write one, a failure of the call.
    pub fn published(&mut self) -> Result<(), Fault> {
        let missing = self.seen.artifacts.iter().filter(|artifact| !artifact.published);
        let lines: Vec<(bool, String)> = missing
            .map(|artifact| {
                let why = artifact.dropped_because.as_deref().unwrap_or("it was dropped");
                (artifact.failed, text::printable(&format!("not published: {}: {why}", artifact.path)))
            })
            .collect();
        let failed = lines.iter().any(|(failed, _)| *failed);
        let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        let all = lines.join("\n");
        let lines = few(lines);
        self.notes.all.extend(lines.iter().cloned());
        self.notes.told.extend(lines);
        if !failed {
            return Ok(());
        }
        let message = "The tool answered, but not all of its files could be written to their folder.";
        Err(Fault::new(Kind::InternalError, message).details(all))
    }
}
