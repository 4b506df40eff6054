//! The shape: the part of a confinement that is the same for every call.

use crate::manifest::{CommandLine, Language};
use crate::policy::grammar::{
    ApprovedCode, Area, CallGrant, Grant, McpGrant, Network, PackageGrant, ReadyGrant, SecretGrant,
    SessionGrant,
};
pub use crate::quantity::Limits;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An interpreter (or our own binary, for wasm) and all files it needs in view to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    pub language: Language,
    pub program: Program,
    /// Arguments before the script: `-s -E -B`.
    pub arguments: Vec<String>,
    /// Files and folders that are bound read-only at their own paths (never idmapped).
    pub roots: Vec<PathBuf>,
    pub version: String,
    pub found: String,
    /// A virtual environment beside the script, whose packages Python finds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<PathBuf>,
}

impl Runtime {
    pub fn ourselves(role: &str) -> Runtime {
        Runtime {
            language: Language::Wasm,
            program: Program::Ourselves {
                role: role.to_owned(),
            },
            arguments: Vec::new(),
            roots: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            found: "this binary".to_owned(),
            environment: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Program {
    Path(PathBuf),
    /// This binary, executed from a descriptor: the wasm worker and the audit probe.
    Ourselves {
        role: String,
    },
}

/// A built environment, shown read-only at its own path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Built {
    pub path: PathBuf,
    /// A link in the view: where it lies, and where it leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<(PathBuf, PathBuf)>,
}

/// The text of one environment variable, and where it comes from. The host's own may be a secret:
/// no record, digest, report or debug line shows it.
#[derive(Clone, PartialEq, Eq)]
pub enum Variable {
    /// From the manifest, which everybody may read.
    Literal(String),
    /// The host's own, granted as `env:NAME`.
    Host(String),
}

impl Variable {
    pub fn text(&self) -> &str {
        match self {
            Variable::Literal(text) | Variable::Host(text) => text,
        }
    }

    /// The text, if it is the host's own.
    pub fn host(&self) -> Option<&str> {
        match self {
            Variable::Host(text) => Some(text),
            Variable::Literal(_) => None,
        }
    }

    /// For reports.
    pub fn shown(&self) -> &str {
        if self.host().is_some() {
            "(the host's own)"
        } else {
            self.text()
        }
    }
}

impl Serialize for Variable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.shown())
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shown())
    }
}

/// The part of a confinement that is the same for every call. A launcher is made for one shape;
/// `audit` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    pub tool: String,
    pub runtime: Runtime,
    /// The script as seen by the tool, absolute. `None` when the source comes with the call
    /// (run-code).
    pub script: Option<PathBuf>,
    pub entry_point: Option<String>,
    /// A folder of its own where the results of a call are shown, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Working folder, absolute; `/tmp` for what has no script.
    pub folder: PathBuf,
    pub grants: Vec<Grant>,
    pub network: Network,
    /// Files with certificates by which the tool trusts its hosts, beside those of the machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<PathBuf>,
    /// Sockets on loopback and in scratch, which only the call itself reaches.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub local_sockets: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
    /// Tools that its code may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallGrant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<PackageGrant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub built: Option<Built>,
    pub limits: Limits,
    /// Variables added to an empty environment. Only the text of literals is serialized, and so in
    /// the digest.
    pub env: BTreeMap<String, Variable>,
    /// The policy demands exact accounting; without a cgroup the call is refused.
    pub require_cgroup: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub observe: bool,
    pub stderr_is_error: bool,
    /// Output that is not one JSON value becomes the answer, as text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub text_output: bool,
    /// Exit statuses by which the script answers as by 0.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub answers: BTreeSet<i32>,
    /// The arguments of a call come as words after the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_line: Option<CommandLine>,
    /// Processes of this shape may be started before their calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyGrant>,
    /// Source text may go on in sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionGrant>,
    /// It is an MCP server, whose process serves calls of all its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpGrant>,
    /// What follows its script on the command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The copy of its code that a person approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<Arc<ApprovedCode>>,
    /// What tools wrote or can write below what the call reads: nothing there is loaded as code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<Area>,
}

impl Shape {
    /// A shape that grants nothing: the default limits, and `/tmp` as working folder.
    pub fn bare(tool: &str, runtime: Runtime) -> Shape {
        Shape {
            tool: tool.to_owned(),
            runtime,
            script: None,
            entry_point: None,
            output: None,
            folder: PathBuf::from("/tmp"),
            grants: Vec::new(),
            network: Network::None,
            authorities: Vec::new(),
            local_sockets: false,
            secrets: Vec::new(),
            calls: Vec::new(),
            packages: None,
            built: None,
            limits: Limits::built_in(),
            env: BTreeMap::new(),
            require_cgroup: false,
            observe: false,
            stderr_is_error: false,
            text_output: false,
            answers: BTreeSet::new(),
            command_line: None,
            ready: None,
            sessions: None,
            mcp: None,
            args: Vec::new(),
            approved: None,
            written: Vec::new(),
        }
    }

    /// Has a recorder note what it is refused. A server can then ask for names as well, reaches none of
    /// them without a grant, and what it asked for is noted: its code names hosts, and not its calls.
    pub fn record(&mut self) {
        self.observe = true;
        if self.mcp.is_some() && self.network == Network::None {
            self.network = Network::Hosts(Vec::new());
        }
    }

    /// Where the bytes lie that are shown at this path: in the approved copy, if that has it.
    pub fn place_of(&self, path: &Path) -> PathBuf {
        let approved = self.approved.as_ref();
        approved.map_or_else(|| path.to_owned(), |code| code.place_of(path))
    }

    /// Where the script lies.
    pub fn script_place(&self) -> PathBuf {
        let script = self.script.as_deref();
        self.place_of(script.unwrap_or(Path::new("")))
    }

    /// Whether a call may bring files: its script has a folder for them.
    pub fn takes_files(&self) -> bool {
        matches!(self.runtime.program, Program::Path(_)) && self.mcp.is_none()
    }

    /// SHA-256 over the canonical text of this shape, hex: the confinement's digest.
    pub fn digest(&self) -> String {
        crate::base::sha256_hex(&serde_json::to_vec(self).expect("a shape is plain data"))
    }
}
