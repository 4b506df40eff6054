//! How a tool ended.

use super::answer::ToolAnswer;
use crate::quantity::Limit;
pub use crate::sandbox::protocol::{Attempt, Operation};
pub use crate::sandbox::{LayerState, Layers};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// Exit status 0 and exactly one JSON document, or a function's return value.
    Answered(ToolAnswer),
    /// Exit status other than 0.
    Exited { code: i32 },
    /// Killed by a signal of somebody else.
    Signalled { signal: i32 },
    /// The layer-time limit, milliseconds.
    TimedOut { limit_ms: u64 },
    /// `allowed`: how much the call might use.
    OverLimit { limit: Limit, allowed: u64 },
    /// Exit status 0, but stdout is not one JSON document. `head`: its first bytes, escaped.
    BadOutput { reason: String, head: String },
    /// The tool said that it failed: `err` of a typed component, a missing entry point, stderr text
    /// under `stderr: error`.
    Raised { message: String },
    /// A module trapped.
    Trapped { message: String },
    /// The caller cancelled the call.
    Cancelled,
    /// A service method returned an envelope, which is the outcome. `told`: the envelope without
    /// its `outputData`.
    Envelope {
        told: Value,
        output: Option<ToolAnswer>,
    },
}

impl Ending {
    /// An answer that exists as a value.
    pub fn answer(value: &Value) -> Ending {
        Ending::Answered(ToolAnswer::from(value))
    }
}

/// What one call used. `None`: it was not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub wall_ms: u64,
    /// Set where the process was started before its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Started>,
    /// How long that process had waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub output_bytes: u64,
}

/// How the process of a call was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Started {
    /// Before the call.
    Ready,
}

/// What was refused, as far as the mechanism can observe it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denials {
    pub observed: Vec<Denial>,
    /// What this mechanism cannot see, in words.
    pub not_observed: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Denial {
    pub operation: String,
    pub target: String,
    pub rule: String,
    /// `manifest` or `policy`: which was the narrower.
    pub narrower: String,
    /// The line that would request it, and the file to add it to: for the person, never for an
    /// agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<String>,
    /// Whether the script or the arguments name the target.
    #[serde(skip)]
    pub named: bool,
    /// Whether the target is a file that this machine does not have. Only looked up for an
    /// explanation.
    #[serde(skip)]
    pub absent: bool,
}

/// Rules of attempts, or the beginnings of rules, to which no manifest and no policy can make an
/// exception.
pub const NEVER: [&str; 3] = [WITHIN, crate::sandbox::WRITABLE, crate::sandbox::UNRESOLVED];
/// The rule where wasmtime refused a file that is granted.
pub const WITHIN: &str = "wasm: in a granted folder: a link or `..` leads out of it, the file's \
                          own rights forbid it, or it would make a link";

/// The scheme of an artifact's address in MCP.
pub const SCHEME: &str = "artifact://";

/// What is known of a file in the store of artifacts. Its media type is what its content shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredFile {
    pub id: String,
    pub name: String,
    pub media_type: String,
    pub sha256: String,
}

/// Whether clients show this media type as a picture. What can hold a script (SVG, HTML) is none.
pub fn is_picture(media_type: &str) -> bool {
    let kind = media_type.strip_prefix("image/");
    kind.is_some_and(|kind| ["png", "jpeg", "gif", "webp"].contains(&kind))
}

/// A picture that stands in the answer itself, where nothing is stored. `b64`: its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inlined {
    pub media_type: String,
    pub b64: String,
}

impl StoredFile {
    /// Its address in MCP.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}", self.id)
    }
}

/// Why a file is not in its place although no rule dropped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// The host could not write it.
    Host,
    /// Another changed the file while the call worked on a copy of it.
    Overtaken,
}

/// A file that left the call: published, stored, or dropped and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Relative to the tool's folder where it lies below that, else absolute.
    pub path: String,
    pub bytes: u64,
    pub published: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_because: Option<String>,
    /// No rule dropped it.
    #[serde(skip)]
    pub failed: Option<WriteFailure>,
    /// Publishing it would pass this limit of the call.
    #[serde(skip)]
    pub over: Option<Limit>,
    /// `None`: it did not go to the store.
    #[serde(flatten)]
    pub stored: Option<StoredFile>,
    #[serde(flatten)]
    pub inlined: Option<Inlined>,
}

impl Artifact {
    pub fn stored(file: StoredFile, bytes: u64) -> Artifact {
        Artifact {
            path: format!("output/{}", file.name),
            bytes,
            published: true,
            dropped_because: None,
            failed: None,
            over: None,
            stored: Some(file),
            inlined: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub ending: Ending,
    /// Whether the answer consists of the parts of a stream, and is not a document of its own.
    pub parts: bool,
    /// stderr (and, with `entryPoint`, what was printed), cut to the log limit, one line each, not
    /// yet escaped.
    pub logs: Vec<String>,
    /// The end of what a tool that gave no answer wrote to stdout, one line each, not yet escaped.
    pub printed: Vec<String>,
    pub usage: Usage,
    pub layers: Layers,
    pub denials: Denials,
    /// What a recorded call was refused, without what every script of its runtime is refused.
    pub attempts: Vec<Attempt>,
    pub artifacts: Vec<Artifact>,
}

impl Outcome {
    /// An outcome of which only the ending and the time are known.
    pub fn new(ending: Ending, wall_ms: u64) -> Outcome {
        Outcome {
            ending,
            parts: false,
            logs: Vec::new(),
            printed: Vec::new(),
            usage: Usage {
                wall_ms,
                ..Usage::default()
            },
            layers: Layers::default(),
            denials: Denials::default(),
            attempts: Vec::new(),
            artifacts: Vec::new(),
        }
    }

    /// Records how the staged files of a good answer were published. If they exceed a limit, that
    /// limit is the ending.
    pub fn published(&mut self, artifacts: Vec<Artifact>, limits: &crate::policy::Limits) {
        if let Some(limit) = artifacts.iter().find_map(|artifact| artifact.over) {
            self.ending = Ending::OverLimit {
                limit,
                allowed: limits.get(limit),
            };
        }
        self.artifacts = artifacts;
    }
}
