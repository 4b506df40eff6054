//! Warnings about names in a policy that mean nothing here: tools, folders, files, interpreters,
//! indexes, secrets. Such a policy still loads.

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
struct ToolIndex<'t> {
    by_id: BTreeMap<&'t str, Vec<&'t Arc<registry::Tool>>>,
    /// Of manifests that are not loaded, too: those have problems of their own.
    ids: BTreeSet<&'t str>,
    namespaces: BTreeSet<&'t str>,
    /// The namespaces that the config gives to announcers.
    announced: &'t BTreeSet<String>,
    /// The tools that each policy file governs.
    governed: BTreeMap<PathBuf, Vec<&'t registry::Tool>>,
}

impl<'t> ToolIndex<'t> {
    fn index(
        tools: &'t [Arc<registry::Tool>],
        reports: &'t [registry::FileReport],
        announced: &'t BTreeSet<String>,
    ) -> ToolIndex<'t> {
        let (by_id, ids, namespaces, governed) = Default::default();
        let mut found = ToolIndex {
            by_id,
            ids,
            namespaces,
            announced,
            governed,
        };
        for tool in tools {
            let id = tool.manifest.id.as_str();
            found.by_id.entry(id).or_default().push(tool);
        }
        found.ids = reports
            .iter()
            .filter_map(registry::FileReport::id)
            .collect();
        found.ids.extend(found.by_id.keys());
        let namespaces = found.ids.iter().filter_map(|id| id.split_once(':'));
        found.namespaces = namespaces.map(|(namespace, _)| namespace).collect();
        found
    }

    fn add_policies(&mut self, policies: &Policies, tools: &'t [Arc<registry::Tool>]) {
        for tool in tools {
            let (policy, _) = policies.governing(&tool.manifest.id, &tool.site.manifest);
            let governed = self.governed.entry(policy.file.clone()).or_default();
            governed.push(tool);
        }
    }

    /// Services of announcers have ids that begin with their namespace and a dot.
    fn may_be_announced(&self, id: &str) -> bool {
        id.split_once('.')
            .is_some_and(|(namespace, _)| self.announced.contains(namespace))
    }

    /// A warning if this selector names no loaded tool.
    fn stray(&self, selector: &Selector, pointer: String, at: At) -> Option<Problem> {
        let is_known = match selector {
            // What is announced is here only while a host serves.
            Selector::Exact(id) | Selector::Namespace(id) if self.may_be_announced(id) => true,
            Selector::Exact(id) => self.ids.contains(id.as_str()),
            Selector::Namespace(namespace) => self.namespaces.contains(namespace.as_str()),
            Selector::Any => true,
        };
        let near = || match selector {
            Selector::Exact(id) => suggest::hint(id, self.by_id.keys().copied()),
            _ => String::new(),
        };
        (!is_known).then(|| {
            warning(
                Code::Dependency,
                pointer,
                at,
                format!(
                    "'{}' names no loaded tool{}",
                    printable(&selector.text()),
                    near()
                ),
            )
        })
    }
}

/// The warnings about each file of these policies. `announced`: namespaces whose tools other hosts
/// may announce.
pub fn find(
    policies: &Policies,
    tools: &[Arc<registry::Tool>],
    reports: &[registry::FileReport],
    machine: &Machine,
    announced: &BTreeSet<String>,
) -> Vec<(PathBuf, Vec<Problem>)> {
    let files = policies
        .all()
        .filter(|policy| !policy.file.as_os_str().is_empty());
    let mut index = ToolIndex::index(tools, reports, announced);
    index.add_policies(policies, tools);
    let tools = index;
    let callers = policies
        .callers()
        .map(|callers| (callers.file.clone(), unknown_in_callers(callers, &tools)));
    files
        .map(|policy| (policy.file.clone(), unknown(policy, &tools, machine)))
        .chain(callers)
        .collect()
}

/// Adds to the reports of manifests a warning for each tool that they call and that is not here.
pub fn add_unknown_calls(
    tools: &[Arc<registry::Tool>],
    reports: &mut [registry::FileReport],
    announced: &BTreeSet<String>,
) {
    let index = ToolIndex::index(tools, reports, announced);
    let mut found = Vec::new();
    for tool in tools {
        let calls = tool.manifest.calls.iter().enumerate();
        let strays = calls
            .filter_map(|(at, called)| index.stray(called, format!("/calls/{at}"), At::default()));
        found.extend(strays.map(|problem| (&tool.site.manifest, problem)));
    }
    for (path, mut problem) in found {
        registry::locate(std::slice::from_mut(&mut problem), path);
        let report = reports.iter_mut().find(|report| report.path == *path);
        report
            .into_iter()
            .for_each(|report| report.problems.push(problem.clone()));
    }
}

fn warning(code: Code, pointer: String, at: At, message: String) -> Problem {
    Problem {
        severity: Severity::Warning,
        code,
        pointer,
        line: at.line,
        column: at.column,
        message,
    }
}

/// `callers.policy.toml`: unknown tools, and parameters that a tool does not have.
fn unknown_in_callers(callers: &policy::Callers, tools: &ToolIndex) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, rule) in callers.list.iter().enumerate() {
        let named = rule.tools.iter().enumerate();
        found.extend(named.filter_map(|(at, it)| {
            tools.stray(it, format!("/caller/{index}/tools/{at}"), rule.at)
        }));
        for (at, parameter) in rule.parameters.iter().enumerate() {
            let Selector::Exact(id) = &parameter.tool else {
                continue;
            };
            let mut versions = tools.by_id.get(id.as_str()).into_iter().flatten();
            if let Some(tool) = versions.rfind(|tool: &&&Arc<registry::Tool>| {
                let known = tool
                    .manifest
                    .parameters
                    .as_ref()
                    .and_then(|schema| schema.raw["properties"].as_object());
                known.is_some_and(|known| !known.contains_key(&parameter.name))
            }) {
                let name = printable(&parameter.name);
                let tool = tool.reference();
                let message =
                    format!("{tool} has no parameter `{name}`, so this caller can never call it");
                found.push(warning(
                    Code::Dependency,
                    format!("/caller/{index}/parameters/{at}"),
                    parameter.at,
                    message,
                ));
            }
        }
    }
    found
}

/// The tools that a policy names and does not govern, or lets code call, and that are not here.
fn unknown_tools(policy: &Policy, tools: &ToolIndex) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, entry) in policy.calls.iter().enumerate() {
        let pointer = format!("/calls/allow/{index}");
        found.extend(tools.stray(&entry.grant.tool, pointer, entry.at));
    }
    for (index, named) in policy.tools.iter().enumerate() {
        found.extend(tools.stray(&named.selector, format!("/tools/{index}"), named.at));
        // If no version of an exact id lies in the policy's `folders`, the policy governs none of
        // them.
        let versions = match &named.selector {
            Selector::Exact(id) => tools.by_id.get(id.as_str()),
            _ => None,
        };
        let elsewhere = versions.and_then(|all| {
            all.iter()
                .map(|tool| policy.passed_over(&tool.site.manifest))
                .collect()
        });
        let words = elsewhere.and_then(|mut words: Vec<_>| words.pop());
        found.extend(
            words.map(|words| warning(Code::Security, format!("/tools/{index}"), named.at, words)),
        );
    }
    found
}

/// What one policy names and this host does not have.
fn unknown(policy: &Policy, tools: &ToolIndex, machine: &Machine) -> Vec<Problem> {
    let mut found = unknown_tools(policy, tools);
    fn missing(pointer: String, at: At, message: String, found: &mut Vec<Problem>) {
        found.push(warning(Code::Dependency, pointer, at, message));
    }
    for (index, folder) in policy
        .folders
        .iter()
        .enumerate()
        .filter(|(_, folder)| !folder.path.is_dir())
    {
        let message = format!(
            "the folder {} does not exist, so no tool lies there",
            text::path(&folder.path)
        );
        missing(format!("/folders/{index}"), folder.at, message, &mut found);
    }
    for (language, named) in &policy.runtimes {
        if let Some(Err(why)) = machine.named_runtimes.get(&named.path) {
            let message = format!(
                "{} cannot be used here: {}",
                text::path(&named.path),
                printable(why)
            );
            missing(
                format!("/runtimes/{}/path", language.name()),
                named.at,
                message,
                &mut found,
            );
        }
    }
    for (ecosystem, entry) in &policy.packages {
        let index = &entry.grant.rules.index;
        let name = ecosystem.name();
        let known = machine
            .indexes
            .keys()
            .filter(|(of, _)| of == ecosystem)
            .map(|(_, name)| name.as_str());
        let known: Vec<&str> = known.collect();
        if !known.contains(&index.as_str()) {
            let message = format!(
                "this host's configuration has no [indexes.{index}] {name}, so tools that require \
                 packages are unavailable; known: {}",
                known.join(", ")
            );
            missing(
                format!("/packages/{name}/index"),
                entry.at,
                message,
                &mut found,
            );
        }
    }
    let governed = tools
        .governed
        .get(&policy.file)
        .map_or(&[][..], Vec::as_slice);
    found.extend(unrequested(policy, governed));
    for (key, rules) in [("read", &policy.files.read), ("write", &policy.files.write)] {
        for (index, rule) in rules.iter().enumerate() {
            if let Some(path) = missing_path(key, rule, governed) {
                let message = format!(
                    "'{}' is granted, and {} does not exist",
                    printable(&rule.text),
                    text::path(&path)
                );
                missing(
                    format!("/files/{key}/{index}/path"),
                    rule.at,
                    message,
                    &mut found,
                );
            }
        }
    }
    for (index, entry) in policy.secrets.iter().enumerate() {
        let Some((code, why)) = unusable(&entry.grant.from) else {
            continue;
        };
        let name = &entry.grant.name;
        let message = format!(
            "the secret {name} cannot be read, so every call that uses it is refused: {why}"
        );
        found.push(warning(
            code,
            format!("/secrets/grant/{index}/from"),
            entry.at,
            message,
        ));
    }
    found
}

/// Grants of a kind that none of the tools which the policy governs requests: they open nothing.
fn unrequested(policy: &Policy, governed: &[&registry::Tool]) -> Vec<Problem> {
    // What runs code requests what its policy lets it read.
    fn reads(tool: &&registry::Tool) -> bool {
        let read = tool.manifest.requested.read.as_deref();
        tool.manifest.id == policy::RUN_CODE || read.is_some_and(|read| !read.is_empty())
    }
    let read = policy.files.read.iter().find(|rule| !rule.relative);
    let write = policy.files.write.first();
    let host = policy.hosts.first();
    let kinds = [
        (
            "/files/read",
            read.map(|rule| rule.at),
            governed.iter().any(reads),
        ),
        (
            "/files/write",
            write.map(|rule| rule.at),
            governed
                .iter()
                .any(|tool| !tool.manifest.requested.write.is_empty()),
        ),
        (
            "/network/hosts",
            host.map(|entry| entry.at),
            governed
                .iter()
                .any(|tool| !tool.manifest.requested.hosts.is_empty()),
        ),
    ];
    let idle = kinds
        .into_iter()
        .filter(|(_, _, is_requested)| !is_requested && !governed.is_empty());
    idle.filter_map(|(pointer, at, _)| {
        let message = "no tool of this policy requests this, so it opens nothing";
        Some(Problem {
            severity: Severity::Note,
            ..warning(Code::Security, pointer.to_owned(), at?, message.to_owned())
        })
    })
    .collect()
}

/// The path of a file rule if it exists for none of the tools with a script, which the policy
/// governs. A path that may be written need not exist yet.
fn missing_path(key: &str, rule: &policy::Rule, governed: &[&registry::Tool]) -> Option<PathBuf> {
    let areas: Vec<policy::Area> = if rule.relative {
        let scripts = governed.iter().filter(|tool| tool.site.script.is_some());
        scripts
            .map(|tool| rule.area_at(&tool.site.folder))
            .collect()
    } else {
        vec![rule.area.clone()]
    };
    areas
        .first()
        .filter(|_| {
            !areas
                .iter()
                .any(|area: &policy::Area| match (key, rule.relative, area) {
                    ("write", true, _) => true,
                    ("write", false, policy::Area::File(file)) => {
                        file.parent().is_some_and(Path::exists)
                    }
                    _ => area.path().exists(),
                })
        })
        .map(|area| area.path().to_path_buf())
}

/// Why a call could not read a secret from here, or could not hide it.
fn unusable(from: &SecretSource) -> Option<(Code, String)> {
    fn short(value: &[u8]) -> bool {
        value.trim_ascii_end().len() < mask::MIN_SECRET_BYTES
    }
    fn words(shown: &str) -> (Code, String) {
        (Code::Schema, format!("{shown}: {}", service::TOO_SHORT))
    }
    if let SecretSource::Env(name) = from {
        let value = std::env::var(name).ok()?;
        return short(value.as_bytes())
            .then(|| words(&format!("the host's variable {}", text::printable(name))));
    }
    let path = from.file().or_else(|| Some(from.own_file("any")?.0))?;
    let shown = text::path(path);
    Some(match (std::fs::symlink_metadata(path), from) {
        (Err(_), _) => (Code::Dependency, format!("{shown} does not exist")),
        (Ok(facts), SecretSource::CallerFile(_)) if !facts.is_dir() => {
            (Code::Dependency, format!("{shown} is not a folder"))
        }
        (Ok(facts), SecretSource::CallerFile(_)) => {
            let open = files::others_may_write(facts.mode(), facts.uid(), facts.gid());
            open.then(|| {
                (
                    Code::Security,
                    format!("{shown}: others may write there: chmod go-w"),
                )
            })?
        }
        (Ok(_), SecretSource::Command(_)) => return None,
        (Ok(facts), _) => match files::not_private(&facts) {
            Some(why) => (Code::Security, format!("{shown}: {why}")),
            None if facts.len() > 64 || !short(&std::fs::read(path).ok()?) => return None,
            None => words(&shown),
        },
    })
}
