//! What was recorded of a call, without what every script of its runtime is refused, and what could
//! not be observed.

use crate::base::millis;
use crate::executor::{Attempt, Denials, Ending, Outcome};
use crate::sandbox::notes;
use crate::sandbox::protocol::Note;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

const NOT_RECORDED: &str = "which files and system calls the kernel refused: only the tool saw the \
                            error number (`toolhost call TOOL --explain`, or `observe = true` in \
                            the policy, records them)";
const NEVER_SEEN: &str = "descriptors and file sizes that were refused (openFiles, fileBytes)";

/// How many of the first attempts of a call, and of the last, are listed.
const MAX_LISTED: usize = 50;
const UNREAD: &str = "files whose paths lay in memory that could not be read, or that another \
    thread changed meanwhile";
const LOST: &str = "what was refused after the recorder was lost: from then on every file and \
    refused call answered ENOSYS";
/// The folder of a script that comes with a call.
const FOLDER: &str = "/tmp";

/// An outcome of which only the ending and the time are known.
pub fn outcome(ending: Ending, started: Instant) -> Outcome {
    let not_observed = [NOT_RECORDED, NEVER_SEEN].map(str::to_owned).to_vec();
    let denials = Denials {
        observed: Vec::new(),
        not_observed,
    };
    Outcome {
        denials,
        ..Outcome::new(ending, millis(started.elapsed()))
    }
}

/// What was recorded of one call.
#[derive(Debug, Default)]
pub struct RecordedCall {
    pub attempts: Vec<Attempt>,
    /// Connections to ports that the call may not reach.
    pub refused: Vec<SocketAddr>,
    /// What is missing in `attempts`, in words.
    pub missing: Vec<String>,
}

impl RecordedCall {
    /// Reads the output of a recorder. `lost`: the recorder ended before the call.
    pub fn read(found: OwnedFd, lost: bool) -> RecordedCall {
        let mut kept = RecordedCall::default();
        kept.missing.extend(lost.then(|| LOST.to_owned()));
        for note in notes(found) {
            match note {
                Note::Attempt(attempt) => kept.attempts.push(attempt),
                Note::Refused(address) => kept.refused.push(address),
                Note::Full => kept
                    .missing
                    .push("later refusals: there was no room for more".to_owned()),
                Note::Unread => kept.missing.push(UNREAD.to_owned()),
            }
        }
        kept
    }

    /// Leaves out what an empty script of this runtime is refused too, and keeps only the first and
    /// the last attempts. `folder`: of the script.
    pub fn without_noise(
        mut self,
        noise: Option<&BTreeSet<Attempt>>,
        folder: &Path,
    ) -> RecordedCall {
        match noise {
            Some(noise) => self
                .attempts
                .retain(|attempt| !is_noise(noise, attempt, folder)),
            None => self
                .missing
                .push("which of these the interpreter asks for by itself".to_owned()),
        }
        if let Some(more) = self
            .attempts
            .len()
            .checked_sub(2 * MAX_LISTED)
            .filter(|more| *more > 0)
        {
            self.attempts.drain(MAX_LISTED..MAX_LISTED + more);
            self.missing.push(format!(
                "{more} more that were refused: the first and the last {MAX_LISTED} are listed"
            ));
        }
        self
    }
}

/// Whether an empty script in this folder would attempt the same. An interpreter may look for a
/// file of one name in each folder above its script (`package.json`).
fn is_noise(noise: &BTreeSet<Attempt>, attempt: &Attempt, folder: &Path) -> bool {
    let above = |attempt: &Attempt, folder: &Path| {
        let path = Path::new(attempt.path.as_deref().unwrap_or(&attempt.target));
        let named = path
            .parent()
            .filter(|parent| folder.starts_with(parent))
            .and(path.file_name());
        named.map(|name| (attempt.operation, name.to_owned()))
    };
    noise.contains(attempt)
        || noise.iter().any(|known: &Attempt| {
            above(known, Path::new(FOLDER))
                .is_some_and(|known| Some(known) == above(attempt, folder))
        })
}
