//! One policy file: TOML → `Policy`, or every problem in it with line and column.
//!
//! For: `policy/load.rs`. In: the text of one file. Out: a `Policy`. Never: fills a gap with a
//! permission: what is not written is not allowed, and what cannot be enforced is not accepted.

use super::capability;
use super::hosts::{self, HostRule};
use super::package_table::{self, PackageTable};
use super::rules::{self, Grants, Rule};
use super::secrets::{self, SecretRule};
use super::services::{self, ServiceRule};
use super::source::{At, Reader, Table};
use crate::base::text;
use crate::manifest::{Code, Language, Problem, StderrRule};
use crate::quantity::Limit;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The name of the file that caps every tool.
pub const HOST_FILE: &str = "host.policy.toml";
/// The ending of every policy file's name.
pub const SUFFIX: &str = ".policy.toml";

pub fn is_policy_file(name: &str) -> bool {
    name.len() > SUFFIX.len() && name.ends_with(SUFFIX)
}

/// The built-in default, as a policy file.
pub const DEFAULT_POLICY: &str = r#"name  = "default"
why   = "A tool reads its own folder, has scratch, and nothing else."
tools = ["*"]

[files]
read = [{ path = "./**", why = "its own folder" }]
"#;

/// The largest limit that can be written: the largest integer that every JSON reader keeps exactly.
pub const MAX_LIMIT: u64 = (1 << 53) - 1;

pub(super) const TOP_KEYS: [&str; 18] = [
    "name",
    "why",
    "tools",
    "folders",
    "mode",
    "stderr",
    "require",
    "observe",
    "confirm",
    "confirm_by_client",
    "files",
    "limits",
    "runtimes",
    "capabilities",
    "network",
    "secrets",
    "packages",
    "services",
];

/// Which tools a policy is for; narrower wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// `*`
    Any,
    /// `ns:*`
    Namespace(String),
    /// `ns:name`
    Exact(String),
}

/// As it is written.
impl Serialize for Selector {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.text())
    }
}

impl Selector {
    pub fn matches(&self, id: &str) -> bool {
        match self {
            Selector::Any => true,
            Selector::Namespace(ns) => id.split_once(':').is_some_and(|(n, _)| n == ns),
            Selector::Exact(exact) => exact == id,
        }
    }
    pub fn text(&self) -> String {
        match self {
            Selector::Any => "*".into(),
            Selector::Namespace(ns) => format!("{ns}:*"),
            Selector::Exact(id) => id.clone(),
        }
    }
}

/// What happens to a tool that asks for more than it may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The call is refused.
    #[default]
    Reject,
    /// The call runs with less, and its notes say so.
    Narrow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    pub value: u64,
    pub at: At,
}

/// An interpreter the operator chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRuntime {
    pub path: PathBuf,
    pub why: String,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub name: String,
    pub why: String,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    pub selector: Selector,
    pub at: At,
}

/// One entry of `folders`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Absolute.
    pub path: PathBuf,
    pub at: At,
}

/// One policy as written. Every field is read by what enforces it (`tests/policy/calls.rs` lists where).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: String,
    pub why: String,
    /// The file; empty for the built-in default.
    pub file: PathBuf,
    pub tools: Vec<Tools>,
    /// Empty = anywhere.
    pub folders: Vec<Folder>,
    pub mode: Mode,
    pub stderr: StderrRule,
    pub require_cgroup: bool,
    /// What calls ask for and are refused is kept, at a cost.
    pub observe: bool,
    /// Why a person is asked before each call.
    pub confirm: Option<String>,
    /// Why the person may be one that the client which calls asks.
    pub confirm_by_client: Option<String>,
    pub read: Vec<Rule>,
    pub write: Vec<Rule>,
    pub limits: BTreeMap<Limit, Ceiling>,
    pub runtimes: BTreeMap<Language, NamedRuntime>,
    pub capabilities: Vec<Capability>,
    pub hosts: Vec<HostRule>,
    pub secrets: Vec<SecretRule>,
    pub packages: PackageTable,
    pub services: Vec<ServiceRule>,
    /// SHA-256 of the file's text, hex.
    pub digest: String,
}

impl Policy {
    /// The policy for tools that no policy file governs.
    pub fn built_in() -> Policy {
        let nowhere = Path::new("");
        let read = parse(DEFAULT_POLICY, nowhere, false, nowhere);
        Policy { name: "built-in default".into(), ..read.expect("the default is a policy") }
    }

    /// Where a rule is written: `file:line`, or the policy's name.
    pub fn place(&self, at: At) -> String {
        if self.file.as_os_str().is_empty() {
            return self.name.clone();
        }
        let file = text::path(&self.file);
        if at.line == 0 { file } else { format!("{file}:{}", at.line) }
    }

    /// The policy's name, with its file if it has one.
    pub fn called(&self) -> String {
        let place = self.place(At::default());
        if place == self.name { format!("`{place}`") } else { format!("`{}` ({place})", self.name) }
    }

    /// True if it allows more than the built-in default does.
    pub fn is_wider_than_default(&self) -> bool {
        !self.write.is_empty()
            || self.read.iter().any(|rule| !rule.relative)
            || !self.capabilities.is_empty()
            || !self.hosts.is_empty()
            || !self.secrets.is_empty()
            || !self.packages.entries.is_empty()
            || !self.services.is_empty()
            || !self.runtimes.is_empty()
            || self.limits.iter().any(|(limit, ceiling)| ceiling.value > limit.house_default())
    }
}

/// Reads one policy. `host`: the file caps every tool. `root`: where relative `folders` start.
pub fn parse(source: &str, file: &Path, host: bool, root: &Path) -> Result<Policy, Vec<Problem>> {
    let mut reader = Reader::new(source);
    if source.trim().is_empty() {
        // `… > name.policy.toml` empties the file for a moment, and for good where the command fails.
        reader.schema(
            "",
            reader.at(0),
            "the file is empty: write a policy into it, or take it away (of `toolhost … > FILE` the shell makes FILE \
             first: print elsewhere, then move it here)"
                .to_owned(),
        );
        return Err(reader.problems);
    }
    let Some(whole) = reader.parse() else { return Err(reader.problems) };
    let top = Table { pointer: String::new(), at: reader.at(0), entries: whole.get_ref() };
    reader.only(&top, &TOP_KEYS);
    let name = name(&mut reader, &top);
    let why = why(&mut reader, &top);
    let tools = if host { host_only(&mut reader, &top) } else { tools(&mut reader, &top) };
    let folders = folders(&mut reader, &top, root);
    let narrow = reader.choice(&top, "mode", ["reject", "narrow"]);
    let strict = reader.choice(&top, "stderr", ["log", "error"]);
    let require_cgroup = require(&mut reader, &top);
    let observe = reader.flag(&top, "observe").unwrap_or_default();
    let (confirm, confirm_by_client) = confirm(&mut reader, &top);
    let Grants { read, write } = rules::files(&mut reader, &top);
    let limits = limits(&mut reader, &top);
    let runtimes = runtimes(&mut reader, &top);
    let capabilities = capabilities(&mut reader, &top, host);
    let hosts = hosts::read(&mut reader, &top);
    // The complaint about `[secrets]` in a cap is that it stands there.
    let secrets = match host {
        true => Vec::new(),
        false => secrets::read(&mut reader, &top, file.parent().unwrap_or(Path::new(""))),
    };
    let packages = package_table::read(&mut reader, &top);
    let services = services::read(&mut reader, &top);
    if !reader.problems.is_empty() {
        reader.problems.sort_by_key(|p| (p.line, p.column));
        return Err(reader.problems);
    }
    Ok(Policy {
        name,
        why,
        file: file.to_path_buf(),
        tools,
        folders,
        mode: if narrow { Mode::Narrow } else { Mode::Reject },
        stderr: if strict { StderrRule::Error } else { StderrRule::Log },
        require_cgroup,
        observe,
        confirm,
        confirm_by_client,
        read,
        write,
        limits,
        runtimes,
        capabilities,
        hosts,
        secrets,
        packages,
        services,
        digest: crate::base::sha256_hex(source.as_bytes()),
    })
}

fn name(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> String {
    let Some(name) = reader.said(top, "name", "give the policy a short name, as reports show it") else {
        return String::new();
    };
    if name.value.chars().count() > 100 || text::printable(&name.value) != name.value {
        reader.schema("/name", name.at, "`name` must be at most 100 plain characters");
    }
    name.value
}

fn why(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> String {
    reader.said(top, "why", "say in a sentence what the policy is for").map(|w| w.value).unwrap_or_default()
}

fn confirm(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> (Option<String>, Option<String>) {
    let mut said = |key, mend| top.get(key).and_then(|_| reader.said(top, key, mend)).map(|why| why.value);
    let why = said("confirm", "say why a person is asked before each call");
    let client = said("confirm_by_client", "say why the client that calls may ask the person");
    if client.is_some() && top.get("confirm").is_none() {
        let words = "`confirm_by_client` says who else may be asked: say in `confirm` why anybody is";
        reader.schema("/confirm_by_client", top.at, words);
    }
    (why, client)
}

/// `host.policy.toml` is for all tools: keys that only make sense for some are refused in it.
fn host_only(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> Vec<Tools> {
    for (pointer, tool) in reader.texts(top, "tools") {
        if tool.value != "*" {
            reader.schema(pointer, tool.at, "host.policy.toml caps every tool: leave `tools` out, or write [\"*\"]");
        }
    }
    for key in ["folders", "mode", "runtimes", "secrets"] {
        if let Some(value) = top.get(key) {
            let at = reader.at(value.span().start);
            let more = if key == "secrets" {
                "; here, [capabilities] grant = [{ name = \"secret:NAME\", why = \"…\" }] lets policies grant that one"
            } else {
                ""
            };
            let message = format!(
                "host.policy.toml is a cap and has no `{key}`; write it in the policy that names the tool{more}"
            );
            reader.schema(top.pointer_to(key), at, message);
        }
    }
    vec![Tools { selector: Selector::Any, at: At::default() }]
}

fn tools(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> Vec<Tools> {
    let written = reader.texts(top, "tools");
    if written.is_empty() && !reader.problems.iter().any(|p| p.pointer.starts_with("/tools")) {
        let at = top.get("tools").map_or(top.at, |v| reader.at(v.span().start));
        reader.schema("/tools", at, "`tools` names no tool: write exact ids, \"ns:*\", or \"*\"");
    }
    let mut found: Vec<Tools> = Vec::new();
    for (pointer, tool) in written {
        match selector(&tool.value) {
            Ok(selector) if found.iter().any(|t| t.selector == selector) => {
                reader.complain(Code::Conflict, pointer, tool.at, format!("`{}` is named twice", selector.text()));
            }
            Ok(selector) => found.push(Tools { selector, at: tool.at }),
            Err(message) => reader.schema(pointer, tool.at, message),
        }
    }
    found
}

pub(super) fn selector(text: &str) -> Result<Selector, String> {
    if text == "*" {
        return Ok(Selector::Any);
    }
    let shown = text::printable(text);
    let plain = |t: &str| !t.is_empty() && !t.contains('*') && !t.chars().any(|c| c.is_whitespace() || c.is_control());
    match text.strip_suffix(":*") {
        Some(ns) if plain(ns) && !ns.contains(':') => Ok(Selector::Namespace(ns.to_string())),
        None if plain(text) => Ok(Selector::Exact(text.to_string())),
        _ => Err(format!(
            "`{shown}` names no tool: write an exact id, \"ns:*\", or \"*\" (a `*` stands alone or after `ns:`)"
        )),
    }
}

fn folders(reader: &mut Reader<'_>, top: &Table<'_, '_>, root: &Path) -> Vec<Folder> {
    let mut found = Vec::new();
    for (pointer, folder) in reader.texts(top, "folders") {
        match rules::plain_path(folder.value.trim_end_matches('/')) {
            Ok(path) => found.push(Folder { path: root.join(path), at: folder.at }),
            Err(message) => reader.schema(pointer, folder.at, message),
        }
    }
    if let Some(value) = top.get("folders")
        && found.is_empty()
        && !reader.problems.iter().any(|p| p.pointer.starts_with("/folders"))
    {
        let at = reader.at(value.span().start);
        reader.schema("/folders", at, "`folders` is empty, so no tool could lie there: name a folder or leave it out");
    }
    found
}

fn require(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> bool {
    let mut cgroup = false;
    for (pointer, word) in reader.texts(top, "require") {
        match word.value.as_str() {
            "cgroup" => cgroup = true,
            other => {
                let shown = text::printable(other);
                reader.schema(
                    pointer,
                    word.at,
                    format!("`require` knows only \"cgroup\", not \"{shown}\"; every other wall is always required"),
                );
            }
        }
    }
    cgroup
}

fn limits(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> BTreeMap<Limit, Ceiling> {
    let mut found = BTreeMap::new();
    let Some(table) = reader.table(top, "limits") else { return found };
    reader.only(&table, &Limit::ALL.map(Limit::policy_name));
    for limit in Limit::ALL {
        let key = limit.policy_name();
        let Some(number) = reader.number(&table, key) else { continue };
        let floor = limit.floor();
        let complaint = match u64::try_from(number.value) {
            Ok(0) => format!("`{key}` = 0 would let nothing run; the least is {floor}"),
            Ok(value) if value < floor => {
                format!("`{key}` = {value} is too little for a tool to start; the least is {floor}")
            }
            Ok(value) if value <= MAX_LIMIT => {
                found.insert(limit, Ceiling { value, at: number.at });
                continue;
            }
            Err(_) if number.value < 0 => {
                format!("`{key}` is negative; the least is {floor}, and there is no word for unlimited")
            }
            _ => format!("`{key}` is too large a number; the most is {MAX_LIMIT}"),
        };
        reader.schema(table.pointer_to(key), number.at, complaint);
    }
    found
}

fn runtimes(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> BTreeMap<Language, NamedRuntime> {
    let mut found = BTreeMap::new();
    let Some(table) = reader.table(top, "runtimes") else { return found };
    if let Some(value) = table.get("wasm") {
        let at = reader.at(value.span().start);
        reader.schema("/runtimes/wasm", at, "wasm runs inside toolhost itself; there is no interpreter to name");
    }
    reader.only(&table, &["python", "nodejs", "bun", "wasm"]);
    for (key, language) in [("python", Language::Python), ("nodejs", Language::Nodejs), ("bun", Language::Bun)] {
        let Some(entry) = reader.table(&table, key) else { continue };
        let mends = ["name the interpreter by its absolute path", "say why this interpreter"];
        let Some((path, why)) = reader.reasoned(&entry, "path", mends) else { continue };
        match rules::plain_path(&path.value) {
            Ok(plain) if plain.is_absolute() => {
                found.insert(language, NamedRuntime { path: plain, why, at: path.at });
            }
            Ok(_) => reader.schema(entry.pointer_to("path"), path.at, "an interpreter is named by its absolute path"),
            Err(message) => reader.schema(entry.pointer_to("path"), path.at, message),
        }
    }
    found
}

/// `host`: the file is a cap, which names the secrets that policies may grant.
fn capabilities(reader: &mut Reader<'_>, top: &Table<'_, '_>, host: bool) -> Vec<Capability> {
    let mut found = Vec::new();
    let Some(table) = reader.table(top, "capabilities") else { return found };
    reader.only(&table, &["grant"]);
    for entry in reader.tables(&table, "grant", "{ name = \"env:NAME\", why = \"…\" }") {
        let mends = ["name the capability", "say why it is granted"];
        let Some((name, why)) = reader.reasoned(&entry, "name", mends) else { continue };
        let secret = host && matches!(capability::kind(&name.value), capability::Kind::Secret(_));
        match capability::grantable(&name.value) {
            Err(message) if !secret => reader.schema(entry.pointer_to("name"), name.at, message),
            _ => found.push(Capability { name: name.value, why, at: name.at }),
        }
    }
    found
}
