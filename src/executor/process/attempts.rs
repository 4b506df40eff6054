//! What a recorded call was refused, less what an empty script with the same interpreter and packages is refused as well.

use super::{Launchers, Scripts};
use crate::base::{lock, messages};
use crate::executor::{Attempt, Ending, Events};
use crate::policy::{Built, Confinement, PerCall, Runtime, Shape};
use crate::sandbox::MOST_RECORDED;
use crate::sandbox::protocol::Note;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The first and the last attempts of a call that are listed.
const MAX_LISTED: usize = 50;
const UNREAD: &str = "files whose paths lay in memory that could not be read, or that another thread changed meanwhile";
/// The folder of a script that comes with a call.
const FOLDER: &str = "/tmp";
/// Longest run of an empty script, ms. The call is over by then, but nobody has its answer yet.
const LONGEST_MS: u64 = 3_000;
/// Most interpreters that are remembered.
const MAX_RUNTIMES: usize = 64;

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
        let mut miss = |words: &str| kept.missing.push(words.to_owned());
        if lost {
            miss(
                "what was refused after the recorder was lost: from then on every file and refused call answered ENOSYS",
            );
        }
        // The last line of a recorder that was killed may be a part of one.
        let notes = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Note>(line).ok());
        let mut attempts = Vec::new();
        for note in notes {
            match note {
                Note::Attempt(attempt) => attempts.push(attempt),
                Note::Full => miss("what came later: there was no room for more"),
                Note::Unread => miss(UNREAD),
            }
        }
        kept.attempts = attempts;
        kept
    }

    /// Without what an empty script of this runtime asks for as well, and bounded.
    pub async fn without_noise(mut self, launchers: &Arc<Launchers>, shape: &Shape) -> RecordedCall {
        if self.attempts.is_empty() {
            return self;
        }
        match launchers.noise(shape).await {
            Some(noise) => self.attempts.retain(|attempt| !is_noise(&noise, attempt, &shape.folder)),
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

/// A runtime with packages, and what an empty script with them was refused.
type Refused = (Runtime, Option<Built>, Arc<BTreeSet<Attempt>>);

/// What empty scripts were refused, by runtime and packages.
#[derive(Debug, Default)]
pub struct Noise(Mutex<Vec<Refused>>);

impl Launchers {
    /// What an empty script with this runtime and these packages was refused: found out once. `None` where it does not
    /// run.
    async fn noise(self: &Arc<Launchers>, shape: &Shape) -> Option<Arc<BTreeSet<Attempt>>> {
        let Shape { runtime, built, .. } = shape;
        let same = |(of, with, _): &&Refused| of == runtime && with == built;
        if let Some((.., known)) = lock(&self.noise.0).iter().find(same) {
            return Some(Arc::clone(known));
        }
        let bare = Shape::bare("toolhost:noise@1.0.0", runtime.clone());
        let shape = Shape { observe: true, built: built.clone(), ..bare };
        let source = match runtime.language {
            crate::manifest::Language::Python => "print(0)\n",
            _ => "console.log(0)\n",
        };
        let per_call = PerCall { timeout_ms: LONGEST_MS, source: Some(source.to_owned()), ..PerCall::default() };
        let confinement = Confinement { shape: shape.into(), per_call };
        let scripts = Scripts::new(Arc::clone(self));
        let (outcome, kept) =
            scripts.run_once(None, &confinement, b"{}", Instant::now(), &Events::unheard()).await.ok()?;
        if !matches!(outcome.ending, Ending::Answered(_)) {
            return None;
        }
        let found: Arc<BTreeSet<Attempt>> = Arc::new(kept?.attempts.into_iter().collect());
        let mut known = lock(&self.noise.0);
        if known.len() < MAX_RUNTIMES {
            known.push((runtime.clone(), built.clone(), Arc::clone(&found)));
        }
        Some(found)
    }
}
