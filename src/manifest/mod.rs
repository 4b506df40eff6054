//! Manifests: how a tool describes itself, and what it *requests*. Nothing here touches the file system or grants
//! anything.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a script is written in. `py`, `node`, `js` are accepted spellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Nodejs,
    Bun,
    Wasm,
}

/// How a tool is run.
#[derive(Clone, Debug, PartialEq)]
pub enum Handler {
    /// `external-script`
    Script { script_path: String, language: Language, entry_point: Option<String> },
    /// `service-method`; `parameter_map` renames inputs (left) for the method (right); `language` is a fixed argument.
    ServiceMethod {
        service: String,
        method: String,
        language: Option<Language>,
        parameter_map: BTreeMap<String, String>,
    },
    /// `tool-service`: a service behind a broker does the work.
    ToolService(Box<Remote>),
    /// `definition-only`: known, not built yet.
    DefinitionOnly,
    /// `x-…`: a type an embedding program registered an executor for. Its fields stand in `Manifest::raw`.
    Extension { kind: String },
    /// `prompt`, `resource`: told, not run.
    Document(Document),
}

impl Handler {
    /// Whether this process does the work itself, or has it done elsewhere, unless it leads to a script.
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            Handler::ServiceMethod { .. } | Handler::Extension { .. } | Handler::Document(_) | Handler::ToolService(_)
        )
    }
}

/// One file pattern as asked for, already parsed. A pattern that cannot be enforced exactly was refused before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// As written in the manifest.
    pub text: String,
    /// `base:`: relative to the scripts base and not to the script's folder.
    pub from_base: bool,
    pub shape: PatternShape,
}

/// `path` is relative to the script's folder, or absolute. Plain components only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatternShape {
    /// `self`: the script file.
    SelfScript,
    /// `./*`, `.`, `dir/`, `dir/**`: a live subtree.
    Tree { path: PathBuf },
    /// `data/in.csv`: one file. Reading: expanded at launch. Writing: staged.
    File { path: PathBuf },
    /// `data/*.csv`: names within one folder; `*` and `?` stand in the last component only.
    Names { folder: PathBuf, names: String },
}

/// `securityContext`: a request, never a grant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asks {
    /// `None` = not said = the script's own folder (or `self`, where the script lies directly in a base folder).
    pub read: Option<Vec<Pattern>>,
    pub write: Vec<Pattern>,
    pub hosts: Vec<host::HostPattern>,
    pub capabilities: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StderrRule {
    /// Exit code and stdout decide; stderr goes to the log.
    #[default]
    Log,
    /// Any text on stderr makes the call a failure.
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskUse {
    Optional,
    Required,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Execution {
    pub timeout_ms: Option<u64>,
    pub stderr: StderrRule,
    /// Output that is not one JSON value is the answer as text.
    pub text_output: bool,
    /// `mode: async`: over HTTP a call that does not say otherwise runs in the background.
    pub asynchronous: bool,
    /// Whether an MCP client may, or must, ask after its calls instead of waiting for them.
    pub task: Option<TaskUse>,
    pub env: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pub category: Option<String>,
    pub author: Option<String>,
    /// Labels, shown as not enforced.
    pub permissions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    pub description: String,
    pub input: Value,
    pub expected_output: Option<Value>,
}

/// One validated manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub id: String,
    pub display_name: String,
    pub description: String,
    pub version: semver::Version,
    pub handler: Handler,
    /// Schemas as written, and compiled once at load.
    pub parameters: Option<schema::Schema>,
    pub output: Option<schema::Schema>,
    pub asks: Asks,
    pub execution: Execution,
    /// Only the limits that were written.
    pub limits: BTreeMap<crate::quantity::Limit, u64>,
    /// The author says: twice with the same arguments is once.
    pub idempotent: bool,
    pub is_final: bool,
    pub hidden: bool,
    /// The name by which models know the tool, where the author chose one.
    pub model_name: Option<String>,
    /// Models get the schema of the arguments as it is written.
    pub schema_as_written: bool,
    pub metadata: Metadata,
    /// Other tools this one needs: id → range.
    pub requires: BTreeMap<String, semver::VersionReq>,
    pub examples: Vec<Example>,
    pub tags: Vec<String>,
    /// The document as written, unknown fields included.
    pub raw: Value,
    /// SHA-256 of the file's bytes, hex.
    pub digest: String,
}

impl Manifest {
    /// The id, and the name that the author chose for models.
    pub fn named(&self) -> (&str, Option<&str>) {
        (&self.id, self.model_name.as_deref())
    }

    /// The service that does its work, if it is a tool of one.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.handler {
            Handler::ToolService(remote) => Some(remote),
            _ => None,
        }
    }

    /// What it holds, if it is a prompt or a resource.
    pub fn document(&self) -> Option<&Document> {
        match &self.handler {
            Handler::Document(document) => Some(document),
            _ => None,
        }
    }

    pub fn namespace(&self) -> &str {
        self.id.split_once(':').map_or("", |(ns, _)| ns)
    }
}

/// Where a tool lies on this machine: made by the registry, judged by policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The manifest file, absolute. Empty for a tool with no file (builtin, in-process).
    pub manifest: PathBuf,
    /// The script base folder the script was found under, absolute and without symlinks.
    pub base: PathBuf,
    /// The script, absolute; `None` for tools without a script.
    pub script: Option<PathBuf>,
    /// The script's folder: relative patterns start here.
    pub folder: PathBuf,
}

pub mod applies;
pub mod arguments;
mod bounds;
pub mod descriptor;
mod document;
pub mod environment;
mod file;
pub mod host;
mod language;
mod lint;
pub mod pattern;
pub mod published;
mod reader;
pub mod schema;
pub mod shape;

pub use crate::base::problem::{Code, Problem, Severity};
pub use descriptor::{Remote, ServiceDescriptor};
pub use document::{Body, Document};
pub use file::{extension_kind, id_fault, read};

/// A range of versions. Bare numbers are a prefix: 1.2 is any 1.2.x, 1 is any 1.x, 1.2.3 is itself; operators mean what
/// they mean to Cargo (`^1.2`, `~1.2`, `>=1.2, <2`).
pub fn version_range(text: &str) -> Result<semver::VersionReq, semver::Error> {
    let mut range = semver::VersionReq::parse(text)?;
    let bare = text.trim_start().starts_with(|c: char| c.is_ascii_digit());
    if let ([only], true) = (&mut range.comparators[..], bare)
        && only.op == semver::Op::Caret
    {
        only.op = if only.patch.is_some() { semver::Op::Exact } else { semver::Op::Tilde };
    }
    Ok(range)
}
