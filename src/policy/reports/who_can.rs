//! Who can: the tools that can read, write or reach something, by the decisions about the whole registry.
//!
//! For: `audit --who-can`. In: decisions, a question. Out: the tools, each with the rule that lets it.
//! Never: leaves out a tool for which it depends on the call: that is listed as such.

use super::packages;
use crate::base::address::special;
use crate::base::text::printable;
use crate::manifest::host::{self, Host, HostPattern};
use crate::policy::area::{self, Area};
use crate::policy::capability;
use crate::policy::grantable::Grantable;
use crate::policy::packages::Ecosystem;
use crate::policy::secrets::Secret;
use crate::policy::verdict::Decision;
use crate::policy::versions;
use crate::policy::{Access, CallerGrant, Grant, HostGrant, SCRIPT_FOLDER, SecretGrant};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Read(PathBuf),
    Write(PathBuf),
    /// Without a port: at any.
    Reach(HostPattern),
    /// By its name.
    Secret(String),
    /// By its id.
    Call(String),
    /// A tool service, by its id.
    Service(String),
    /// By its name, and its version or a range of them.
    Package(String, Option<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub tool: String,
    /// `all of it`, `a part of it`, `if the script it is told to run lies in a folder above it`, …
    pub how: String,
    /// What is granted.
    pub grant: String,
    pub rule: String,
    pub why: String,
}

impl Answer {
    fn of(decision: &Decision, how: &str, grant: String, rule: &str, why: &str) -> Answer {
        let tool = decision.tool.clone();
        Answer { tool, how: how.to_owned(), grant, rule: rule.to_owned(), why: why.to_owned() }
    }
}

/// `read:PATH`, `write:PATH` (absolute, plain), `reach:HOST`, with or without a port, `secret:NAME`, or `package:NAME`,
/// with or without `@VERSION`.
pub fn question(text: &str) -> Result<Question, String> {
    let help =
        "ask read:PATH, write:PATH, reach:HOST[:PORT], secret:NAME, package:NAME[@VERSION], service:ID or call:TOOL";
    let (verb, target) = text.split_once(':').ok_or_else(|| help.to_string())?;
    if target.is_empty() {
        return Err(help.to_string());
    }
    let path = || {
        Some(Path::new(target))
            .filter(|p| p.is_absolute())
            .and_then(|p| area::join(Path::new("/"), p))
            .ok_or_else(|| "the path must be without `..`, from the root or from the current folder".to_string())
    };
    match verb {
        "read" => Ok(Question::Read(path()?)),
        "write" => Ok(Question::Write(path()?)),
        "reach" => Ok(Question::Reach(host::pattern(target)?)),
        "secret" => match capability::unknown(text) {
            None => Ok(Question::Secret(target.to_owned())),
            Some(why) => Err(format!("no secret has this name{why}")),
        },
        "call" => Ok(Question::Call(target.to_owned())),
        "package" => package(target),
        "service" => Ok(Question::Service(target.to_owned())),
        _ => Err(help.to_string()),
    }
}

/// `@scope/name@1.2.3` is a name with a version, too.
fn package(target: &str) -> Result<Question, String> {
    let at = target.rfind('@').filter(|at| *at > 0);
    let (name, version) = at.map_or((target, None), |at| (&target[..at], Some(&target[at + 1..])));
    if !Ecosystem::ALL.iter().any(|ecosystem| versions::name(*ecosystem, name).is_some()) {
        return Err("no package has this name".to_owned());
    }
    let known = |text: &str| {
        Ecosystem::ALL.iter().any(|e| versions::version(*e, text).is_some() || versions::is_range(*e, text))
    };
    if version.is_some_and(|text| text.is_empty() || !known(text)) {
        return Err("after `@` stands a version, or a range of them (`<2`)".to_owned());
    }
    Ok(Question::Package(name.to_owned(), version.map(str::to_owned)))
}

/// `bases`: the folders scripts are found under; a builtin tool can be told to run any of those.
pub fn answer(decisions: &[Decision], question: &Question, bases: &[PathBuf]) -> Vec<Answer> {
    let runnable = decisions.iter().filter(|d| d.in_process || d.shape.is_ok());
    let about = |decision| match question {
        Question::Read(path) => about(decision, path, Access::Read, bases),
        Question::Write(path) => about(decision, path, Access::Write, bases),
        Question::Reach(asked) => reaching(decision, asked),
        Question::Secret(name) => using(decision, name),
        Question::Call(id) => calling(decision, id),
        Question::Service(id) => served_by(decision, id).into_iter().collect(),
        Question::Package(name, version) => having(decision, name, version.as_deref()).into_iter().collect(),
    };
    runnable.flat_map(about).collect()
}

/// The callers of a tool, each with what it may bring.
fn calling(decision: &Decision, id: &str) -> Vec<Answer> {
    if decision.tool.split('@').next() != Some(id) && decision.tool != id {
        return Vec::new();
    }
    let anybody = || vec![CallerGrant::anybody()];
    let condition = if decision.confirm.is_empty() { "" } else { "; a person agrees to each call" };
    let answer =
        |grant: CallerGrant| Answer::of(decision, &grant.name, grant.text() + condition, &grant.rule, &grant.why);
    decision.callers.clone().unwrap_or_else(anybody).into_iter().map(answer).collect()
}

/// A tool whose work that service does.
fn served_by(decision: &Decision, id: &str) -> Option<Answer> {
    let grant = decision.service.as_ref().filter(|grant| grant.service == id)?;
    let how = if grant.user { "and sends the caller's name" } else { "without the caller's name" };
    Some(Answer::of(decision, how, grant.text(), &grant.rule, &grant.why))
}

fn having(decision: &Decision, name: &str, version: Option<&str>) -> Option<Answer> {
    let how = packages::has(decision, name, version)?;
    let grant = decision.packages.as_ref()?;
    Some(Answer::of(decision, &how, grant.text(), &grant.rule, &grant.rules.why))
}

fn using(decision: &Decision, name: &str) -> Vec<Answer> {
    let answer = |grant: &SecretGrant| {
        let how = if grant.header.is_some() { "without having it" } else { "and has it" };
        Answer::of(decision, how, Secret::of(grant).text(), &grant.rule, &grant.why)
    };
    decision.secrets.iter().filter(|grant| grant.name == name).map(answer).collect()
}

fn reaching(decision: &Decision, asked: &HostPattern) -> Vec<Answer> {
    let answer =
        |grant: &HostGrant| Some(Answer::of(decision, reaches(grant, asked)?, grant.text(), &grant.rule, &grant.why));
    decision.hosts.iter().filter_map(answer).collect()
}

/// How much of what is asked about the grant reaches; an address is also reached by a name that leads to it.
fn reaches(grant: &HostGrant, asked: &HostPattern) -> Option<&'static str> {
    let (own, host) = (&grant.pattern.host, &asked.host);
    if asked.port.is_some_and(|port| !grant.pattern.ports().contains(&port)) {
        return None;
    }
    if own.covers(host) {
        return Some("all of it");
    }
    let leads = |address| special(address).is_none() || grant.ranges.iter().any(|range| range.contains(&address));
    match (own, host) {
        (Host::Address(_), Host::Address(_)) => None,
        (_, Host::Address(address)) if leads(*address) => Some("if a name that it reaches has this address"),
        _ => host.covers(own).then_some("a part of it"),
    }
}

fn about(decision: &Decision, path: &Path, access: Access, bases: &[PathBuf]) -> Vec<Answer> {
    let mut found: Vec<Answer> = Vec::new();
    for grant in decision.grants.iter().filter(|g| g.access >= access) {
        if let Some(how) = holds(grant, path, bases) {
            found.push(Answer::of(decision, how, Area::of(&grant.opening).text(), &grant.rule, &grant.why));
        }
    }
    if access == Access::Read {
        let script = decision.script.iter().map(|s| (s, "its own script"));
        let granted = !found.is_empty();
        let script = script.filter(|_| !granted);
        let roots = decision.runtime.iter().flat_map(|r| &r.roots).map(|r| (r, "a file of its interpreter"));
        // One system folder is named, preferably one that holds the whole path.
        let mut system: Vec<PathBuf> =
            crate::policy::SYSTEM_FOLDERS.iter().chain(&crate::policy::SYSTEM_ETC).map(PathBuf::from).collect();
        system.retain(|root| path.starts_with(root) || root.starts_with(path));
        system.sort_by_key(|root| !path.starts_with(root));
        let system = system.iter().take(1).map(|root| (root, "a system file, which every tool sees"));
        for (root, why) in script.chain(roots).chain(system) {
            let how = if path.starts_with(root) { "all of it" } else { "a part of it" };
            if path.starts_with(root) || root.starts_with(path) {
                found.push(Answer::of(decision, how, root.display().to_string(), "house", why));
            }
        }
    }
    found
}

fn holds(grant: &Grant, path: &Path, bases: &[PathBuf]) -> Option<&'static str> {
    let area = Area::of(&grant.opening);
    if area.folder().starts_with(SCRIPT_FOLDER) {
        return bases.iter().find_map(|base| below_a_script_folder(&area, path, base));
    }
    if area.holds(path) {
        return Some("all of it");
    }
    area.path().starts_with(path).then_some("a part of it")
}

/// As `holds`, for a grant that starts at the folder of a script which the call names: any folder of a base may be it.
fn below_a_script_folder(area: &Area, path: &Path, base: &Path) -> Option<&'static str> {
    let above = path.ancestors().take_while(|folder| folder.starts_with(base));
    if above.filter_map(|folder| area.moved(Path::new(SCRIPT_FOLDER), folder)).any(|area| area.holds(path)) {
        return Some("if the script it is told to run lies in a folder above it");
    }
    // A folder in a base, or around one, may hold the folder of a script; a file or a missing path does not.
    let around = base.starts_with(path) || (path.starts_with(base) && path.is_dir());
    around.then_some("a part of it, if the script it is told to run lies there or below")
}

pub fn text(question: &Question, answers: &[Answer]) -> String {
    let asked = match question {
        Question::Read(path) => format!("read {}", path.display()),
        Question::Write(path) => format!("write {}", path.display()),
        Question::Reach(host) => format!("reach {host}"),
        Question::Secret(name) => format!("use the secret {name}"),
        Question::Call(id) => format!("call {id}"),
        Question::Service(id) => format!("call the service {id}"),
        Question::Package(name, None) => format!("have the package {name}"),
        Question::Package(name, Some(version)) => format!("have the package {name} {version}"),
    };
    let asked = printable(&asked);
    if let (Question::Call(_), true) = (question, answers.is_empty()) {
        return format!("Nobody can {asked}.\n");
    }
    if answers.is_empty() {
        return format!("No tool can {asked}.\n");
    }
    let mut out = format!("These can {asked}:\n");
    for a in answers {
        let line = format!("{}: {} ({}), rule {}: {}", a.tool, a.how, a.grant, a.rule, a.why);
        out.push_str(&format!("  {}\n", printable(&line)));
    }
    out
}
