//! The confinement: manifest ∩ policy on this machine, everything one call may touch. What audit
//! prints is what the layers enforce, because it is this value in both places.

use crate::base::mask::Hidden;
use crate::fault::{Fault, Kind};
use crate::policy::verdicts::{Decision, Notes, Shape};
use crate::quantity::{Limit, MIN_TIMEOUT_MS};
use crate::sandbox::CALL_INPUT;
pub use crate::sandbox::{InputFile, ReadFile};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The script of one call, read once: these bytes are approved, recorded and run, whatever becomes
/// of the file. (A store to a mapped page changes no times.)
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    pub file: ReadFile,
    /// Empty for a module: its executor runs the code of this digest.
    pub bytes: Hidden<Vec<u8>>,
}

/// What one call adds: a time limit within the ceiling, the source text of run-code, variables.
/// Nothing of it is kept for another call, or in a digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerCall {
    /// Milliseconds: what the call requests, else the manifest, else the default; at most the
    /// policy's ceiling.
    pub timeout_ms: u64,
    /// What the file of the script held. `None` for what comes with its source.
    pub script: Option<Arc<Script>>,
    /// Source text of run-code: placed in scratch as the script.
    pub source: Option<String>,
    /// The files that the call brings.
    pub files: Vec<InputFile>,
    /// What its code may call.
    pub offer: Option<Offer>,
    /// Words after the script, for a shape with a command line.
    pub words: Vec<String>,
    /// Set instead of the shape's variables of the same names.
    pub env: Hidden<BTreeMap<String, String>>,
    /// Variables that tell of this call alone. A program that was started before it gets them with
    /// its input.
    pub about: Hidden<BTreeMap<String, String>>,
    /// The digest of its tool, policies and script. A process that was started for the same, with an
    /// equal confinement, may serve the call.
    /// `None`: the call starts cold.
    pub ready: Option<String>,
    /// The values of the secrets that the relay adds to requests, by name.
    pub secrets: Hidden<BTreeMap<String, String>>,
}

/// The variable with the paths of a call's files, as JSON.
pub const FILES_VARIABLE: &str = "TOOL_FILES";

impl PerCall {
    /// Adds the files of the call, and the variable that names them.
    pub fn bring(&mut self, files: Vec<InputFile>) {
        if !files.is_empty() {
            let paths = files
                .iter()
                .map(|file| format!("{CALL_INPUT}/{}", file.name));
            let paths = serde_json::Value::from_iter(paths).to_string();
            self.about.0.insert(FILES_VARIABLE.to_owned(), paths);
        }
        self.files = files;
    }

    /// All variables of the call that are not its shape's.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let all = self.env.0.iter().chain(&self.about.0);
        all.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// The tools that code may call, which are some of those that the shape grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub tools: Vec<String>,
    /// What they take, in the language of the code.
    pub stubs: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    pub shape: Arc<Shape>,
    pub per_call: PerCall,
}

/// The confinement of one call. Nothing in its arguments widens anything.
pub fn confine(
    decision: &Decision,
    asked_ms: Option<u64>,
    source: Option<String>,
) -> Result<Confinement, Fault> {
    let shape = decision.shape.clone()?;
    let timeout_ms = time_ms(decision, asked_ms)?;
    if shape.script.is_some() == source.is_some() {
        return Err(Fault::new(
            Kind::InternalError,
            "a call runs either a script or the source it brings",
        ));
    }
    Ok(Confinement {
        shape,
        per_call: PerCall {
            timeout_ms,
            source,
            ..PerCall::default()
        },
    })
}

/// The time that a call has, milliseconds: what it asks for, at most what policy allows.
pub fn time_ms(decision: &Decision, asked_ms: Option<u64>) -> Result<u64, Fault> {
    if let Some(asked) = asked_ms.filter(|asked| *asked < MIN_TIMEOUT_MS) {
        let message = format!("timeoutMs must be at least {MIN_TIMEOUT_MS}; {asked} was given");
        return Err(Fault::new(Kind::ParameterValidationError, message));
    }
    Ok(decision.time(asked_ms))
}

/// The notes of one call: where it gets less than its tool or the call itself requested.
pub fn call_notes(decision: &Decision, asked_ms: Option<u64>) -> Notes {
    let mut notes = decision.notes.clone();
    if let Some(limit) = decision.limit(Limit::TimeoutMs)
        && let Some(asked) = asked_ms.filter(|asked| *asked > limit.ceiling)
    {
        notes.clamped(limit, asked, limit.ceiling);
    }
    notes
}
