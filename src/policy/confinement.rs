//! The confinement: manifest ∩ policy on this machine, everything one call may touch. What audit
//! prints is what the layers enforce, because it is this value in both places.

use super::area::Area;
use super::versions::Ecosystem;
use crate::base::files::Stamp;
use crate::base::mask::Hidden;
use crate::manifest::Language;
use crate::manifest::host::{Host, HostPattern};
use crate::quantity::Limit;
use ipnet::IpNet;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
}

/// A part of the file system that a grant opens, and how.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Opening {
    Live {
        path: PathBuf,
    },
    /// Files in one folder whose names match, bound read-only at call start.
    /// `names` is a glob over one path component (a literal name is escaped).
    Snapshot {
        folder: PathBuf,
        names: String,
    },
    /// A private copy of the folder's matching files; published after success, only what matches.
    Staged {
        folder: PathBuf,
        names: String,
    },
}

impl Opening {
    pub fn folder(&self) -> &Path {
        match self {
            Opening::Live { path } => path,
            Opening::Snapshot { folder, .. } | Opening::Staged { folder, .. } => folder,
        }
    }
}

/// Placeholder for the script's folder where a service method gets its script with the call.
pub const SCRIPT_FOLDER: &str = "/<folder of the script>";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    pub access: Access,
    pub opening: Opening,
    pub asked: String,
    pub rule: String,
    pub why: String,
}

impl Grant {
    /// The folder of a read grant that the manifest requested with `base:`.
    pub fn base_tree(&self) -> Option<&Path> {
        (self.access == Access::Read && self.asked.starts_with("base:"))
            .then(|| self.opening.folder())
    }
}

/// What a call reaches over a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing: an empty network namespace and no sockets.
    #[default]
    None,
    /// These hosts, through the stub and relay of `egress`, which are all that its network
    /// namespace holds. Never empty.
    Hosts(Vec<HostGrant>),
}

impl Network {
    pub fn hosts(&self) -> &[HostGrant] {
        match self {
            Network::None => &[],
            Network::Hosts(hosts) => hosts,
        }
    }

    pub fn ports(&self) -> Vec<u16> {
        let ports: BTreeSet<u16> = self
            .hosts()
            .iter()
            .flat_map(|grant| grant.pattern.ports())
            .collect();
        ports.into_iter().collect()
    }
}

/// Hosts that a call may reach, and the rule that grants them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostGrant {
    #[serde(flatten)]
    pub pattern: HostPattern,
    /// The non-public addresses that these hosts may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<IpNet>,
    pub asked: String,
    pub rule: String,
    pub why: String,
}

impl HostGrant {
    /// Whether a host of this exact name or address is granted at this port.
    pub fn reaches(&self, host: &Host, port: u16) -> bool {
        self.pattern.host.covers(host) && self.pattern.ports().contains(&port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretGrant {
    pub name: String,
    pub from: SecretSource,
    /// The header in which the relay adds the secret. `None`: the tool gets a variable of the
    /// secret's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderRule>,
    pub rule: String,
    pub why: String,
}

/// Where the value of a secret lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretSource {
    Env(String),
    File(PathBuf),
    /// A file for each caller, absolute; `{caller}` occurs once, in its name.
    #[serde(rename = "callerFile")]
    CallerFile(PathBuf),
    /// The output of a program. The words are its path and arguments; no shell is involved.
    Command(Vec<String>),
}

/// A header that the relay adds to the requests for one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderRule {
    pub host: String,
    /// The port at which the host speaks TLS.
    pub port: u16,
    pub name: String,
    /// The header's value, with `{}` in place of the secret.
    pub value: String,
    /// Empty: all.
    pub methods: Vec<String>,
    /// `/exact` or `/below/**`. Empty: all.
    pub paths: Vec<String>,
    /// With methods or paths: the names that a query may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<String>,
    /// With methods or paths: the headers that a request may have beside the standard ones, in
    /// lower case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<String>,
    /// A file of CA certificates by which the host is verified, instead of the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl HeaderRule {
    /// Whether the header is added to only some of the requests for its host.
    pub fn is_limited(&self) -> bool {
        !self.methods.is_empty() || !self.paths.is_empty()
    }
}

/// A file that says which packages a script requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    pub path: PathBuf,
    pub sha256: String,
}

/// The packages that a call has, and where that comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageGrant {
    pub ecosystem: Ecosystem,
    #[serde(flatten)]
    pub rules: PackageRules,
    pub rule: String,
    pub locked: bool,
    pub sources: Vec<SourceFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageRules {
    /// The name of an index in the host's configuration.
    pub index: String,
    /// A lock with hashes is required. If false, the versions that the first call resolves are
    /// kept.
    pub lock_required: bool,
    /// Build steps and lifecycle scripts of packages may run, inside the layers and without network.
    pub builds: bool,
    pub deny: Vec<DeniedPackage>,
    /// A version must have been published this many days ago.
    pub min_age_days: Option<u32>,
    pub why: String,
}

/// A package that policy never installs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeniedPackage {
    pub name: String,
    /// A range, as the ecosystem writes it; `None`: all.
    pub versions: Option<String>,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Limits(pub BTreeMap<Limit, u64>);

impl Limits {
    pub fn built_in() -> Limits {
        Limits(
            Limit::ALL
                .into_iter()
                .map(|l| (l, l.built_in_default()))
                .collect(),
        )
    }
    pub fn get(&self, limit: Limit) -> u64 {
        self.0
            .get(&limit)
            .copied()
            .unwrap_or_else(|| limit.built_in_default())
    }
    pub fn set(&mut self, limit: Limit, value: u64) {
        self.0.insert(limit, value);
    }
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
    pub(super) fn shown(&self) -> &str {
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
    /// Working folder, absolute; `/tmp` for what has no script.
    pub folder: PathBuf,
    pub grants: Vec<Grant>,
    pub network: Network,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
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
    /// What tools wrote or can write below what the call reads: nothing there is loaded as code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<Area>,
}

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    pub path: PathBuf,
    /// SHA-256 of its bytes, in hex.
    pub digest: String,
    pub mode: u32,
    pub stamp: Stamp,
}

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
    /// Set instead of the shape's variables of the same names.
    pub env: Hidden<BTreeMap<String, String>>,
    /// The values of the secrets that the relay adds to requests, by name.
    pub secrets: Hidden<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    pub shape: Arc<Shape>,
    pub per_call: PerCall,
}

impl Shape {
    /// A shape that grants nothing: the default limits, and `/tmp` as working folder.
    pub fn bare(tool: &str, runtime: Runtime) -> Shape {
        Shape {
            tool: tool.to_owned(),
            runtime,
            script: None,
            entry_point: None,
            folder: PathBuf::from("/tmp"),
            grants: Vec::new(),
            network: Network::None,
            secrets: Vec::new(),
            packages: None,
            built: None,
            limits: Limits::built_in(),
            env: BTreeMap::new(),
            require_cgroup: false,
            observe: false,
            stderr_is_error: false,
            text_output: false,
            written: Vec::new(),
        }
    }

    /// SHA-256 over the canonical text of this shape, hex: the confinement's digest.
    pub fn digest(&self) -> String {
        crate::base::sha256_hex(&serde_json::to_vec(self).expect("a shape is plain data"))
    }
}
