//! Noise: what an interpreter asks for by itself, which no tool is told of as its own.
//!
//! For: recorded calls. In: a runtime. Out: what its empty script was refused. Never: costs a call its time limit.

use super::{Launchers, Scripts};
use crate::base::lock;
use crate::executor::{Attempt, Events};
use crate::policy::{Confinement, PerCall, Runtime, Shape};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The folder of a script that comes with a call.
const FOLDER: &str = "/tmp";
/// Longest run of an empty script, ms.
const LONGEST_MS: u64 = 10_000;
/// Most interpreters that are remembered.
const MOST: usize = 64;

/// By runtime.
#[derive(Debug, Default)]
pub struct Noise(Mutex<Vec<(Runtime, Arc<BTreeSet<Attempt>>)>>);

/// Whether an empty script in this folder would ask for it too. An interpreter may look for a file of one name in each
/// folder above its script (`package.json`).
pub(super) fn asks(noise: &BTreeSet<Attempt>, attempt: &Attempt, folder: &Path) -> bool {
    let above = |attempt: &Attempt, folder: &Path| {
        let path = Path::new(attempt.path.as_deref().unwrap_or(&attempt.target));
        let named = path.parent().filter(|parent| folder.starts_with(parent)).and(path.file_name());
        named.map(|name| (attempt.operation, name.to_owned()))
    };
    let same =
        |known: &Attempt| above(known, Path::new(FOLDER)).is_some_and(|known| Some(known) == above(attempt, folder));
    noise.contains(attempt) || noise.iter().any(same)
}

impl Launchers {
    /// What an empty script of this runtime was refused: found out once. Nothing where it does not run.
    pub(super) async fn noise(self: &Arc<Launchers>, runtime: &Runtime) -> Arc<BTreeSet<Attempt>> {
        if let Some((_, known)) = lock(&self.noise.0).iter().find(|(of, _)| of == runtime) {
            return Arc::clone(known);
        }
        let shape = Shape { observe: true, ..Shape::bare("toolhost:noise@1.0.0", runtime.clone()) };
        let per_call = PerCall { timeout_ms: LONGEST_MS, source: Some(String::new()), ..PerCall::default() };
        let confinement = Confinement { shape: shape.into(), per_call };
        let scripts = Scripts::new(Arc::clone(self));
        let ran = scripts.one(None, &confinement, b"{}", Instant::now(), &Events::unheard()).await;
        let found: Arc<BTreeSet<Attempt>> =
            Arc::new(ran.map(|outcome| outcome.attempts.into_iter().collect()).unwrap_or_default());
        let mut known = lock(&self.noise.0);
        if known.len() < MOST {
            known.push((runtime.clone(), Arc::clone(&found)));
        }
        found
    }
}
