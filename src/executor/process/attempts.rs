//! What a recorded call was refused, as its recorder left it.

use crate::base::messages;
use crate::executor::Attempt;
use crate::sandbox::MOST_RECORDED;
use crate::sandbox::protocol::Note;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The first and the last attempts of a call that are listed.
const MAX_LISTED: usize = 50;
const UNREAD: &str = "files whose paths lay in memory that could not be read, or that another thread changed meanwhile";
const LOST: &str =
    "what was refused after the recorder was lost: from then on every file and refused call answered ENOSYS";
/// The folder of a script that comes with a call.
const FOLDER: &str = "/tmp";

/// What was kept of one call.
#[derive(Debug, Default)]
pub struct RecordedCall {
    pub attempts: Vec<Attempt>,
    /// What is not among them.
    pub missing: Vec<String>,
}

impl RecordedCall {
    /// Reads what a recorder left. `lost`: it ended before the call.
    pub fn read(found: OwnedFd, lost: bool) -> RecordedCall {
        let bytes = messages::read_memory_file(found, 2 * MOST_RECORDED).unwrap_or_default();
        let mut kept = RecordedCall::default();
        kept.missing.extend(lost.then(|| LOST.to_owned()));
        // The last line of a recorder that was killed may be a part of one.
        for note in bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Note>(line).ok()) {
            match note {
                Note::Attempt(attempt) => kept.attempts.push(attempt),
                Note::Full => kept.missing.push("what came later: there was no room for more".to_owned()),
                Note::Unread => kept.missing.push(UNREAD.to_owned()),
            }
        }
        kept
    }

    /// Leaves out what an empty script of this runtime asks for as well, and all but the first and the last. `folder`:
    /// of the script.
    pub fn without_noise(mut self, noise: Option<&BTreeSet<Attempt>>, folder: &Path) -> RecordedCall {
        match noise {
            Some(noise) => self.attempts.retain(|attempt| !is_noise(noise, attempt, folder)),
            None => self.missing.push("which of these the interpreter asks for by itself".to_owned()),
        }
        if let Some(more) = self.attempts.len().checked_sub(2 * MAX_LISTED).filter(|more| *more > 0) {
            self.attempts.drain(MAX_LISTED..MAX_LISTED + more);
            self.missing.push(format!("{more} more that were refused: the first and the last {MAX_LISTED} are listed"));
        }
        self
    }
}

/// Whether an empty script in this folder would ask for it too. An interpreter may look for a file of one name in each
/// folder above its script (`package.json`).
fn is_noise(noise: &BTreeSet<Attempt>, attempt: &Attempt, folder: &Path) -> bool {
    let above = |attempt: &Attempt, folder: &Path| {
        let path = Path::new(attempt.path.as_deref().unwrap_or(&attempt.target));
        let named = path.parent().filter(|parent| folder.starts_with(parent)).and(path.file_name());
        named.map(|name| (attempt.operation, name.to_owned()))
    };
    let same =
        |known: &Attempt| above(known, Path::new(FOLDER)).is_some_and(|known| Some(known) == above(attempt, folder));
    noise.contains(attempt) || noise.iter().any(same)
}
