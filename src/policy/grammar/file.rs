//! One policy file: TOML → `Policy`, or every problem in it with line and column. What is not
//! written is not allowed (but for reading the tool's own folder), and what cannot be enforced is
//! not accepted.

use super::approvals::APPROVALS_FILE;
use super::calls::{self, CallGrant};
use super::capability::{self, Capability};
use super::document::{FileProblem, Origin, PolicyEntry, TomlDocument};
use super::files::{self, FileRules};
use super::hosts::{self, HostAuthority, HostGrant};
use super::mcp::{self, McpGrant};
use super::packages::{self, PackagesAllowed};
use super::ready::{self, ReadyGrant};
use super::secrets::{self, SecretGrant};
use super::services::{self, ServiceRule};
use super::sessions::{self, SessionGrant};
use super::versions::Ecosystem;
use crate::base::text;
use crate::manifest::reader::{MAX_PROBLEMS, Reader, TOML};
use crate::manifest::{At, Code, Language, Problem, Selector, Severity, StderrRule};
use crate::quantity::Limit;
use crate::schemas::POLICY;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub const HOST_FILE: &str = "host.policy.toml";
pub const SUFFIX: &str = ".policy.toml";

pub fn is_policy_file(name: &str) -> bool {
    name.len() > SUFFIX.len() && name.ends_with(SUFFIX)
}

/// A policy, or what a person approved.
pub fn is_rules_file(name: &str) -> bool {
    is_policy_file(name) || name == APPROVALS_FILE
}

pub const DEFAULT_POLICY: &str = r#"name  = "default"
why   = "A tool reads its own folder, has scratch, and nothing else."
tools = ["*"]

[files]
read = [{ path = "./**", why = "its own folder" }]
"#;

/// What happens to a tool that asks for more than it may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Reject,
    /// The call runs with less, and its notes say so.
    Narrow,
}

/// An entry of `tools`, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSelector {
    pub selector: Selector,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NamedRuntime {
    pub path: PathBuf,
    pub why: String,
    #[serde(skip)]
    pub at: At,
}

/// One policy as written. Every field is read by what enforces it (`tests/policy/calls.rs` lists
/// where).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: String,
    pub why: String,
    /// The file; empty for the built-in default.
    pub file: PathBuf,
    pub tools: Vec<ToolSelector>,
    /// Empty = anywhere.
    pub folders: Vec<Folder>,
    pub mode: Mode,
    pub stderr: StderrRule,
    pub require_cgroup: bool,
    /// Labels that a manifest must declare in `metadata.permissions`.
    pub require_permissions: BTreeSet<String>,
    /// Only what a person approved runs.
    pub approval_required: bool,
    /// Records what calls request and are refused, which makes them slower.
    pub observe: bool,
    /// If set, a person must agree to each call. The text says why.
    pub confirm: Option<String>,
    /// If set, the calling MCP client may ask its own person. The text says why.
    pub confirm_by_client: Option<String>,
    pub files: FileRules,
    pub limits: BTreeMap<Limit, PolicyEntry<u64>>,
    pub runtimes: BTreeMap<Language, NamedRuntime>,
    pub capabilities: Vec<Capability>,
    pub hosts: Vec<PolicyEntry<HostGrant>>,
    /// The certificates by which tools trust hosts that get no header.
    pub authorities: Vec<HostAuthority>,
    pub secrets: Vec<PolicyEntry<SecretGrant>>,
    pub packages: BTreeMap<Ecosystem, PolicyEntry<PackagesAllowed>>,
    pub services: Vec<ServiceRule>,
    /// Tools that the code of tools may call.
    pub calls: Vec<PolicyEntry<CallGrant>>,
    pub ready: Option<PolicyEntry<ReadyGrant>>,
    pub sessions: Option<PolicyEntry<SessionGrant>>,
    pub mcp: Option<PolicyEntry<McpGrant>>,
    pub source: Value,
    pub digest: String,
    /// The fault of the file, if it has one. Calls of its tools are then refused.
    pub fault: Option<String>,
}

impl Policy {
    /// The policy for tools that no policy file governs.
    pub fn built_in() -> Policy {
        static READ: LazyLock<Policy> = LazyLock::new(|| {
            let nowhere = Path::new("");
            let read = parse(DEFAULT_POLICY, nowhere, false, nowhere);
            Policy {
                name: "built-in default".into(),
                ..read.expect("the default is a policy")
            }
        });
        READ.clone()
    }

    pub fn origin(&self) -> Origin<'_> {
        Origin {
            name: &self.name,
            file: &self.file,
        }
    }

    pub fn place(&self, at: At) -> String {
        self.origin().place(at)
    }

    /// Whether it has grants, limits, or rules of a process.
    pub fn says_more_than_conditions(&self) -> bool {
        let has_limits = !self.limits.is_empty() || !self.require_permissions.is_empty();
        has_limits || self.observe || self.require_cgroup || self.is_wider_than_default()
    }

    pub fn is_wider_than_default(&self) -> bool {
        !self.files.write.is_empty()
            || self.files.read.iter().any(|rule| !rule.relative)
            || !self.capabilities.is_empty()
            || !self.hosts.is_empty()
            || !self.secrets.is_empty()
            || !self.packages.is_empty()
            || !self.services.is_empty()
            || !self.calls.is_empty()
            || self.ready.is_some()
            || self.sessions.is_some()
            || self.mcp.is_some()
            || !self.runtimes.is_empty()
            || self
                .limits
                .iter()
                .any(|(limit, ceiling)| ceiling.grant > limit.built_in_default())
    }
}

/// Reads one policy. `host`: the file caps every tool. `root`: where relative `folders` start.
pub fn parse(source: &str, file: &Path, host: bool, root: &Path) -> Result<Policy, Vec<Problem>> {
    match read(source, file, host, root) {
        (Some(policy), problems) if problems.is_empty() => Ok(policy),
        (_, problems) => Err(problems),
    }
}

/// `… > name.policy.toml` empties the file for a moment, and for good where the command fails.
const EMPTY: &str = "the file is empty: write a policy into it, or remove it (for `toolhost … > \
                     FILE` the shell makes FILE first: print elsewhere, then move it here)";

/// Reads one policy as far as it can be read. A policy with a fault grants nothing to the tools
/// that it names. `None`: those tools are not known, or the file is `host.policy.toml`.
pub fn read(source: &str, file: &Path, host: bool, root: &Path) -> (Option<Policy>, Vec<Problem>) {
    if source.trim().is_empty() {
        let empty = Problem::new(Severity::Error, Code::Schema, "", EMPTY);
        return (
            None,
            vec![Problem {
                line: 1,
                column: 1,
                ..empty
            }],
        );
    }
    let document = match TomlDocument::parse(source) {
        Ok(document) => document,
        Err(problems) => return (None, problems),
    };
    let mut reader = Reader::new(&document.value, &document, &TOML);
    let it = &mut reader;
    it.check_schema(&POLICY, &document.value, "");
    let name: String = it.get("/name").unwrap_or_default();
    if text::printable(&name) != name {
        it.fault("/name", "`name` must be at most 100 plain characters");
    }
    let name = if name.is_empty() {
        text::path(file)
    } else {
        name
    };
    let tools = if host { cap_only(it) } else { tools(it) };
    let folders = folders(it, root);
    let (require_cgroup, require_permissions) = require(it);
    let beside = file.parent().unwrap_or(Path::new(""));
    let hosts = hosts::read(it, &name);
    // In `host.policy.toml` the table `[secrets]` itself is the fault, so its entries are not read.
    let mut secrets = if host {
        Vec::new()
    } else {
        secrets::read(it, &name, beside)
    };
    let authorities = hosts::set_authorities(it, &mut secrets, beside);
    if let Some(first) = authorities.first().filter(|_| host) {
        let message = "its `ca` has no effect here: write it in the policies of tools";
        it.fault("/network/hosts", format!("`{}`: {message}", first.pattern));
    }
    let packages = packages::read(it, Origin { name: &name, file });
    let calls = calls::read(it, &name);
    let policy = Policy {
        name,
        why: it.get("/why").unwrap_or_default(),
        file: file.to_path_buf(),
        tools,
        folders,
        mode: it.get("/mode").unwrap_or_default(),
        stderr: if it.value["stderr"] == "error" {
            StderrRule::Error
        } else {
            StderrRule::Log
        },
        require_cgroup,
        require_permissions,
        approval_required: it.get("/approval/required").unwrap_or_default(),
        observe: it.get("/observe").unwrap_or_default(),
        confirm: it.get("/confirm"),
        confirm_by_client: it.get("/confirm_by_client"),
        files: files::read(it),
        limits: limits(it),
        runtimes: runtimes(it),
        capabilities: capability::read(it, host),
        hosts,
        authorities,
        secrets,
        packages,
        services: services::read(it),
        calls,
        ready: ready::read(it),
        sessions: sessions::read(it),
        mcp: mcp::read(it),
        source: document.value.clone(),
        digest: crate::base::sha256_hex(source.as_bytes()),
        fault: None,
    };
    let problems = reader.problems();
    let is_faulty = |pointer: &str| problems.iter().any(|problem| problem.is_below(pointer));
    // At the limit of problems some are not listed, perhaps one about `tools`.
    if !problems.is_empty() && (host || problems.len() >= MAX_PROBLEMS || is_faulty("/tools")) {
        return (None, problems);
    }
    // If `folders` has a fault, the policy governs its tools wherever they lie.
    let folders = if is_faulty("/folders") {
        Vec::new()
    } else {
        policy.folders.clone()
    };
    let policy = match problems.first() {
        Some(first) => without_grants(Policy { folders, ..policy }, first.clone()),
        None => policy,
    };
    (Some(policy), problems)
}

/// A policy with a fault, without its grants. It still governs its tools, and the files of its
/// secrets and interpreters stay protected.
fn without_grants(policy: Policy, problem: Problem) -> Policy {
    let fault = Some(
        FileProblem {
            path: policy.file.clone(),
            problem,
        }
        .to_string(),
    );
    let Policy {
        name,
        why,
        file,
        tools,
        folders,
        runtimes,
        secrets,
        source,
        digest,
        ..
    } = policy;
    let files = FileRules::default();
    let built_in = Policy::built_in();
    Policy {
        files,
        name,
        why,
        file,
        tools,
        folders,
        runtimes,
        secrets,
        source,
        digest,
        fault,
        ..built_in
    }
}

/// `host.policy.toml` is for all tools: keys that only make sense for some are refused in it.
fn cap_only(document: &mut Reader<'_>) -> Vec<ToolSelector> {
    if document
        .value
        .get("tools")
        .is_some_and(|tools| *tools != serde_json::json!(["*"]))
    {
        document.fault(
            "/tools",
            "host.policy.toml caps every tool: leave `tools` out, or write [\"*\"]",
        );
    }
    for key in ["folders", "mode", "runtimes", "secrets"] {
        if document.value.get(key).is_some() {
            let message = format!(
                "host.policy.toml is a cap and has no `{key}`: write it in the policy that names \
                 the tool (for secrets the cap lists their names in [capabilities] grant)"
            );
            document.fault(&format!("/{key}"), message);
        }
    }
    vec![ToolSelector {
        selector: Selector::Any,
        at: At::default(),
    }]
}

fn tools(document: &mut Reader<'_>) -> Vec<ToolSelector> {
    if document.value.get("tools").is_none() {
        document.fault(
            "/tools",
            "`tools` is missing: write exact ids, \"ns:*\", or \"*\"",
        );
    }
    let tools = document.list::<Selector>("/tools").into_iter();
    tools
        .map(|(pointer, selector)| ToolSelector {
            selector,
            at: document.at(&pointer),
        })
        .collect()
}

fn folders(document: &mut Reader<'_>, root: &Path) -> Vec<Folder> {
    let mut found = Vec::new();
    for (pointer, folder) in document.list::<String>("/folders") {
        let path = document.parsed(&pointer, files::plain_path(folder.trim_end_matches('/')));
        found.extend(path.map(|path| Folder {
            path: root.join(path),
            at: document.at(&pointer),
        }));
    }
    found
}

fn require(document: &mut Reader<'_>) -> (bool, BTreeSet<String>) {
    let mut cgroup = false;
    let mut permissions = BTreeSet::new();
    for (pointer, word) in document.list::<String>("/require") {
        match word.strip_prefix("permission:") {
            Some(label) => _ = permissions.insert(label.to_owned()),
            None if word == "cgroup" => cgroup = true,
            None => document.fault(
                &pointer,
                "`require` takes \"cgroup\" and \"permission:NAME\"",
            ),
        }
    }
    (cgroup, permissions)
}

fn limits(document: &mut Reader<'_>) -> BTreeMap<Limit, PolicyEntry<u64>> {
    Limit::ALL
        .into_iter()
        .filter_map(&mut |limit: Limit| {
            let pointer = format!("/limits/{}", limit.policy_name());
            let grant = document.get(&pointer)?;
            Some((
                limit,
                PolicyEntry {
                    grant,
                    at: document.at(&pointer),
                },
            ))
        })
        .collect()
}

fn runtimes(document: &mut Reader<'_>) -> BTreeMap<Language, NamedRuntime> {
    let mut found = BTreeMap::new();
    for language in [Language::Python, Language::Nodejs, Language::Bun] {
        let entry = format!("/runtimes/{}", language.name());
        let Some(NamedRuntime { path, why, .. }) = document.get(&entry) else {
            continue;
        };
        let pointer = format!("{entry}/path");
        let plain = files::plain_path(&path.to_string_lossy());
        let absolute = plain.and_then(|path| {
            path.is_absolute()
                .then_some(path)
                .ok_or("not an absolute path".to_owned())
        });
        let Some(path) = document.parsed(&pointer, absolute) else {
            continue;
        };
        found.insert(
            language,
            NamedRuntime {
                path,
                why,
                at: document.at(&pointer),
            },
        );
    }
    found
}
