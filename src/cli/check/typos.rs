//! What a policy names and is not there: a tool, a folder, a file, an interpreter. Each loads, and does nothing.
//!
//! For: `check`. In: policies, the tools that are loaded, a machine. Out: warnings with place and "did you mean".
//! Never: opens what it looks for; takes a path below a tool's own folder that is only written for missing.

use crate::manifest::suggest;
use crate::manifest::text::printable;
use crate::manifest::{Code, Problem, Severity};
use crate::{policy, registry};
use policy::{At, Policies, Policy, Selector};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The warnings about one file of these policies.
pub fn of(
    policies: &Policies,
    tools: &[Arc<registry::Tool>],
    machine: &policy::Machine,
) -> Vec<(PathBuf, Vec<Problem>)> {
    let files = policies.all().filter(|policy| !policy.file.as_os_str().is_empty());
    files
        .map(|policy| {
            let mut found = names(policy, tools);
            found.extend(elsewhere(policy, policies, tools));
            found.extend(folders(policy));
            found.extend(paths(policy, policies, tools));
            found.extend(interpreters(policy, machine));
            (policy.file.clone(), found)
        })
        .collect()
}

fn warning(code: Code, pointer: String, at: At, message: String) -> Problem {
    Problem { severity: Severity::Warning, code, pointer, line: at.line, column: at.column, message }
}

/// An exact id is a tool, and none of its versions lies in the `folders` of the policy: it is for nobody.
fn elsewhere(policy: &Policy, policies: &Policies, tools: &[Arc<registry::Tool>]) -> Vec<Problem> {
    let told = |(index, named): (usize, &policy::Tools)| {
        let Selector::Exact(id) = &named.selector else { return None };
        let passed = |tool: &Arc<registry::Tool>| {
            let (_, passed_over) = policies.governing(id, &tool.site.manifest);
            passed_over.into_iter().find(|other| other.file == policy.file)
        };
        let meant = tools.iter().filter(|tool| tool.manifest.id == *id);
        let words = meant.map(passed).collect::<Option<Vec<_>>>()?.pop()?.words;
        Some(warning(Code::Security, format!("/tools/{index}"), named.at, words))
    };
    policy.tools.iter().enumerate().filter_map(told).collect()
}

/// `tools`: every exact id is a tool, every namespace has one.
fn names(policy: &Policy, tools: &[Arc<registry::Tool>]) -> Vec<Problem> {
    let ids = || tools.iter().map(|tool| tool.manifest.id.as_str());
    let stray = policy.tools.iter().enumerate().filter(|(_, named)| !ids().any(|id| named.selector.matches(id)));
    stray
        .map(|(index, named)| {
            let near = match &named.selector {
                Selector::Exact(id) => suggest::hint(id, ids()),
                Selector::Namespace(ns) => {
                    let near = suggest::nearest(ns, ids().filter_map(|id| id.split_once(':')).map(|(ns, _)| ns));
                    near.map_or_else(String::new, |near| format!(": did you mean '{near}:*'?"))
                }
                Selector::Any => String::new(),
            };
            let message = format!("no tool that is loaded is named by '{}'{near}", printable(&named.selector.text()));
            warning(Code::Dependency, format!("/tools/{index}"), named.at, message)
        })
        .collect()
}

fn folders(policy: &Policy) -> Vec<Problem> {
    let missing = policy.folders.iter().enumerate().filter(|(_, folder)| !folder.path.is_dir());
    missing
        .map(|(index, folder)| {
            let message =
                format!("there is no folder {}, so no tool can lie there{}", shown(&folder.path), near(&folder.path));
            warning(Code::Dependency, format!("/folders/{index}"), folder.at, message)
        })
        .collect()
}

/// `[files]`: what may be read is there. A relative path is looked for in every tool's folder that the policy governs;
/// one that may be written need not be there yet, but its folder must.
fn paths(policy: &Policy, policies: &Policies, tools: &[Arc<registry::Tool>]) -> Vec<Problem> {
    let governed = |tool: &&Arc<registry::Tool>| {
        policies.governing(&tool.manifest.id, &tool.site.manifest).0.file == policy.file && tool.site.script.is_some()
    };
    let own: Vec<&PathBuf> = tools.iter().filter(governed).map(|tool| &tool.site.folder).collect();
    let mut found = Vec::new();
    for (key, rules) in [("read", &policy.read), ("write", &policy.write)] {
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
                format!("'{}' is granted, and {} is not there{}", printable(&rule.text), shown(path), near(path));
            found.push(warning(Code::Dependency, format!("/files/{key}/{index}/path"), rule.at, message));
        }
    }
    found
}

fn interpreters(policy: &Policy, machine: &policy::Machine) -> Vec<Problem> {
    let unusable = policy.runtimes.iter().filter_map(|(language, named)| {
        let why = machine.named_runtimes.get(&named.path)?.as_ref().err()?;
        let message = format!("{} cannot be used here: {}", shown(&named.path), printable(why));
        Some(warning(Code::Dependency, format!("/runtimes/{}/path", language.name()), named.at, message))
    });
    unusable.collect()
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// The name beside the first part of a path that is missing, when a slip of the finger explains it.
fn near(path: &Path) -> String {
    let there = path.ancestors().skip(1).find(|above| above.is_dir());
    let Some((above, name)) = there.and_then(|above| Some((above, path.strip_prefix(above).ok()?.iter().next()?)))
    else {
        return String::new();
    };
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten().take(1000);
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    suggest::nearest(&name.to_string_lossy(), names.iter().map(String::as_str))
        .map_or_else(String::new, |near| format!(": did you mean '{}'?", shown(&above.join(near))))
}
