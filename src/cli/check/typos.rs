//! What a policy names and is not there: a tool, a folder, a file, an interpreter, a secret. Such a policy still loads.

use crate::base::text::{self, printable};
use crate::base::{files, mask, suggest};
use crate::manifest::{Code, Problem, Severity};
use crate::{policy, registry, service};
use policy::{At, Machine, Policies, Policy, SecretSource, Selector};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The tools, indexed once: a thousand policies may name a thousand tools.
struct Tools<'t> {
    by_id: BTreeMap<&'t str, Vec<&'t Arc<registry::Tool>>>,
    namespaces: BTreeSet<&'t str>,
    /// By the file of a policy, the folders of the tools with a script that it governs.
    governed: BTreeMap<PathBuf, Vec<&'t PathBuf>>,
}

impl<'t> Tools<'t> {
    fn index(policies: &Policies, tools: &'t [Arc<registry::Tool>]) -> Tools<'t> {
        let mut found = Tools { by_id: BTreeMap::new(), namespaces: BTreeSet::new(), governed: BTreeMap::new() };
        for tool in tools {
            let id = tool.manifest.id.as_str();
            found.by_id.entry(id).or_default().push(tool);
            found.namespaces.extend(id.split_once(':').map(|(namespace, _)| namespace));
            if tool.site.script.is_some() {
                let policy = policies.governing(id, &tool.site.manifest).0;
                found.governed.entry(policy.file.clone()).or_default().push(&tool.site.folder);
            }
        }
        found
    }

    fn named(&self, selector: &Selector) -> bool {
        match selector {
            Selector::Exact(id) => self.by_id.contains_key(id.as_str()),
            Selector::Namespace(namespace) => self.namespaces.contains(namespace.as_str()),
            Selector::Any => !self.by_id.is_empty(),
        }
    }
}

/// The warnings about each file of these policies.
pub fn find(policies: &Policies, tools: &[Arc<registry::Tool>], machine: &Machine) -> Vec<(PathBuf, Vec<Problem>)> {
    let files = policies.all().filter(|policy| !policy.file.as_os_str().is_empty());
    let tools = Tools::index(policies, tools);
    let callers = policies.callers().map(|callers| (callers.file.clone(), callers_of(callers, &tools)));
    files
        .map(|policy| {
            let mut found = names(policy, &tools);
            found.extend(elsewhere(policy, &tools));
            found.extend(folders(policy));
            found.extend(indexes(policy, machine));
            found.extend(paths(policy, &tools));
            found.extend(interpreters(policy, machine));
            found.extend(secrets(policy));
            (policy.file.clone(), found)
        })
        .chain(callers)
        .collect()
}

/// `callers.policy.toml`: tools that are none, and parameters that a tool does not have.
fn callers_of(callers: &policy::Callers, tools: &Tools) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, rule) in callers.list.iter().enumerate() {
        let pointer = |key: &str, at: usize| format!("/caller/{index}/{key}/{at}");
        for (at, selector) in rule.tools.iter().enumerate().filter(|(_, selector)| !tools.named(selector)) {
            found.push(stray_name(selector, pointer("tools", at), rule.at, tools));
        }
        for (at, parameter) in rule.parameters.iter().enumerate() {
            let Selector::Exact(id) = &parameter.tool else { continue };
            let mut versions = tools.by_id.get(id.as_str()).into_iter().flatten();
            let lacks = |tool: &&&Arc<registry::Tool>| {
                let schema = tool.manifest.parameters.as_ref().map(|schema| &schema.raw["properties"]);
                schema.and_then(|known| known.as_object()).is_some_and(|known| !known.contains_key(&parameter.name))
            };
            if let Some(tool) = versions.rfind(lacks) {
                let (name, tool) = (printable(&parameter.name), tool.reference());
                let message = format!("{tool} has no parameter `{name}`, so this caller can never call it");
                found.push(warning(Code::Dependency, pointer("parameters", at), parameter.at, message));
            }
        }
    }
    found
}

fn warning(code: Code, pointer: String, at: At, message: String) -> Problem {
    Problem { severity: Severity::Warning, code, pointer, line: at.line, column: at.column, message }
}

/// Exact ids of tools of which no version lies in the policy's `folders`: it governs none of them.
fn elsewhere(policy: &Policy, tools: &Tools) -> Vec<Problem> {
    let told = |(index, named): (usize, &policy::Tools)| {
        let Selector::Exact(id) = &named.selector else { return None };
        let meant = tools.by_id.get(id.as_str())?.iter();
        let words = meant.map(|tool| policy.passed_over(&tool.site.manifest)).collect::<Option<Vec<_>>>()?.pop()?;
        Some(warning(Code::Security, format!("/tools/{index}"), named.at, words))
    };
    policy.tools.iter().enumerate().filter_map(told).collect()
}

/// `tools`: exact ids that are no tool, and namespaces without one.
fn names(policy: &Policy, tools: &Tools) -> Vec<Problem> {
    let stray = policy.tools.iter().enumerate().filter(|(_, named)| !tools.named(&named.selector));
    stray.map(|(index, named)| stray_name(&named.selector, format!("/tools/{index}"), named.at, tools)).collect()
}

/// That a word names no tool, and what may be meant.
fn stray_name(selector: &Selector, pointer: String, at: At, tools: &Tools) -> Problem {
    let near = match selector {
        Selector::Exact(id) => suggest::hint(id, tools.by_id.keys().copied()),
        Selector::Namespace(ns) => {
            let near = suggest::nearest(ns, tools.namespaces.iter().copied());
            near.map_or_else(String::new, |near| format!(": did you mean '{near}:*'?"))
        }
        Selector::Any => String::new(),
    };
    let message = format!("no tool that is loaded is named by '{}'{near}", printable(&selector.text()));
    warning(Code::Dependency, pointer, at, message)
}

fn folders(policy: &Policy) -> Vec<Problem> {
    let missing = policy.folders.iter().enumerate().filter(|(_, folder)| !folder.path.is_dir());
    missing
        .map(|(index, folder)| {
            let message = format!(
                "there is no folder {}, so no tool can lie there{}",
                text::path(&folder.path),
                near(&folder.path)
            );
            warning(Code::Dependency, format!("/folders/{index}"), folder.at, message)
        })
        .collect()
}

/// `[files]`: granted paths that are not there. A relative path is looked for in the folder of every tool that the
/// policy governs. To be written, a relative path need not be there yet, nor a file whose folder is there.
fn paths(policy: &Policy, tools: &Tools) -> Vec<Problem> {
    let own = tools.governed.get(&policy.file).map(Vec::as_slice).unwrap_or_default();
    let mut found = Vec::new();
    for (key, rules) in [("read", &policy.files.read), ("write", &policy.files.write)] {
        for (index, rule) in rules.iter().enumerate() {
            let areas: Vec<policy::Area> = match rule.relative {
                true => own.iter().map(|folder| rule.area_at(folder)).collect(),
                false => vec![rule.area.clone()],
            };
            let there = |area: &policy::Area| match (key, rule.relative, area) {
                ("write", true, _) => true,
                ("write", false, policy::Area::File(file)) => file.parent().is_some_and(Path::exists),
                _ => area.path().exists(),
            };
            let Some(missing) = areas.first().filter(|_| !areas.iter().any(there)) else { continue };
            let path = missing.path();
            let message =
                format!("'{}' is granted, and {} is not there{}", printable(&rule.text), text::path(path), near(path));
            found.push(warning(Code::Dependency, format!("/files/{key}/{index}/path"), rule.at, message));
        }
    }
    found
}

fn interpreters(policy: &Policy, machine: &Machine) -> Vec<Problem> {
    let unusable = policy.runtimes.iter().filter_map(|(language, named)| {
        let why = machine.named_runtimes.get(&named.path)?.as_ref().err()?;
        let message = format!("{} cannot be used here: {}", text::path(&named.path), printable(why));
        Some(warning(Code::Dependency, format!("/runtimes/{}/path", language.name()), named.at, message))
    });
    unusable.collect()
}

/// `[packages]`: indexes that the host's configuration does not name.
fn indexes(policy: &Policy, machine: &Machine) -> Vec<Problem> {
    let unknown = policy.packages.iter().filter_map(|(ecosystem, entry)| {
        let known = machine.indexes.keys().filter(|(of, _)| of == ecosystem).map(|(_, name)| name.as_str());
        let known: Vec<&str> = known.collect();
        let index = &entry.grant.rules.index;
        if known.contains(&index.as_str()) {
            return None;
        }
        let name = ecosystem.name();
        let message = format!(
            "this host's configuration has no [indexes.{index}] {name}, so tools that require packages are unavailable; known: {}",
            known.join(", ")
        );
        Some(warning(Code::Dependency, format!("/packages/{name}/index"), entry.at, message))
    });
    unknown.collect()
}

/// `[secrets]`: files that a call would not read the secret from, programs that are not there, and values too short to
/// be hidden.
fn secrets(policy: &Policy) -> Vec<Problem> {
    let unusable = policy.secrets.iter().enumerate().filter_map(|(index, entry)| {
        let (code, why) = unusable(&entry.grant.from)?;
        let name = &entry.grant.name;
        let message = format!("the secret {name} cannot be had, so every call that uses it is refused: {why}");
        Some(warning(code, format!("/secrets/grant/{index}/from"), entry.at, message))
    });
    unusable.collect()
}

fn unusable(from: &SecretSource) -> Option<(Code, String)> {
    let short = |value: &[u8]| value.trim_ascii_end().len() < mask::SHORTEST;
    let words = |shown: &str| (Code::Schema, format!("{shown}: {}", service::TOO_SHORT));
    if let SecretSource::Env(name) = from {
        let value = std::env::var(name).ok()?;
        return short(value.as_bytes()).then(|| words(&format!("the host's variable {}", text::printable(name))));
    }
    let folder = from.own_file("any").map(|(folder, _)| folder);
    let path = from.file().or(folder)?;
    let shown = text::path(path);
    Some(match (std::fs::symlink_metadata(path), from) {
        (Err(_), _) => (Code::Dependency, format!("{shown} is not there{}", near(path))),
        (Ok(facts), SecretSource::CallerFile(_)) if !facts.is_dir() => {
            (Code::Dependency, format!("{shown} is no folder"))
        }
        (Ok(facts), SecretSource::CallerFile(_)) => {
            let open = files::others_may_write(facts.mode(), facts.uid(), facts.gid());
            open.then(|| (Code::Security, format!("{shown}: others may write there: chmod go-w")))?
        }
        (Ok(_), SecretSource::Command(_)) => return None,
        (Ok(facts), _) => match files::not_private(&facts) {
            Some(why) => (Code::Security, format!("{shown}: {why}")),
            None if facts.len() > 64 || !short(&std::fs::read(path).ok()?) => return None,
            None => words(&shown),
        },
    })
}

/// A name that lies where the first missing part of a path should, if it is nearly the same.
fn near(path: &Path) -> String {
    let there = path.ancestors().skip(1).find(|above| above.is_dir());
    let Some((above, name)) = there.and_then(|above| Some((above, path.strip_prefix(above).ok()?.iter().next()?)))
    else {
        return String::new();
    };
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten().take(1000);
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    suggest::nearest(&name.to_string_lossy(), names.iter().map(String::as_str))
        .map_or_else(String::new, |near| format!(": did you mean '{}'?", text::path(&above.join(near))))
}
