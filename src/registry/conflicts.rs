//! Resolves conflicts between files: ids of tools and tool services, and requirements between
//! tools. Neither the order nor the age of files decides.

use super::load::{self, position};
use super::tool::{CORE, Described, IN_PROCESS, Tool};
use crate::base::json::escape_segment;
use crate::base::{sha256_hex, suggest, text};
use crate::manifest::skill::NAMESPACE;
use crate::manifest::{Code, Handler, Problem, ServiceDescriptor, ServiceReference, Severity};
use crate::policy::{self, Need};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// A candidate that was refused.
pub(super) struct Refused {
    pub tool: Tool,
    /// For the report of its own file.
    pub message: String,
    /// For a person who asks for the tool and does not see the report. It names the refused file,
    /// too.
    pub summary: String,
    pub code: Code,
    /// JSON pointer of the part of the file that is at fault.
    pub pointer: Cow<'static, str>,
}

impl Refused {
    pub fn new(tool: Tool, code: Code, message: String) -> Refused {
        let pointer = if code == Code::Conflict {
            "/toolId"
        } else {
            ""
        };
        Refused {
            tool,
            summary: message.clone(),
            message,
            code,
            pointer: pointer.into(),
        }
    }
}

/// The tools of the previous snapshot: the folded id of each, and its file.
#[derive(Default)]
pub(super) struct Incumbents(BTreeSet<(String, PathBuf)>);

impl Incumbents {
    pub fn new<'t>(tools: impl Iterator<Item = &'t Tool>) -> Incumbents {
        Incumbents(tools.map(key).collect())
    }

    pub fn has(&self, tool: &Tool) -> bool {
        !self.0.is_empty() && self.0.contains(&key(tool))
    }
}

/// A loaded tool is remembered by its id and its file.
fn key(tool: &Tool) -> (String, PathBuf) {
    let file = if tool.site.manifest.as_os_str().is_empty() {
        tool.home()
    } else {
        tool.site.manifest.clone()
    };
    (folded(&tool.manifest.id), file)
}

/// Ids that differ in case only are one id: a person, or a file system without case, would take one
/// for the other. (Only ASCII is allowed in an id.)
pub(super) fn folded(id: &str) -> String {
    id.to_ascii_lowercase()
}

/// The tools that get the ids that they claim, and those that do not.
pub(super) fn settle_ids(
    candidates: Vec<Tool>,
    policies: Option<&policy::Policies>,
) -> (Vec<Tool>, Vec<Refused>) {
    let mut kept = Vec::new();
    let mut refused = Vec::new();
    let mut groups: BTreeMap<String, Vec<Tool>> = BTreeMap::new();
    for tool in candidates {
        let namespace = folded(tool.manifest.namespace());
        if namespace == NAMESPACE && tool.manifest.skill().is_none() {
            let message = "the namespace 'skill' is for folders with a SKILL.md: choose another, \
                           for example custom";
            refused.push(Refused::new(tool, Code::Conflict, message.to_owned()));
        } else if namespace != CORE || tool.source == load::BUILTIN {
            groups
                .entry(folded(&tool.manifest.id))
                .or_default()
                .push(tool);
        } else if !load::is_builtin_copy(&tool) {
            let message =
                "the namespace 'core' is compiled into toolhost: choose another, for example \
                custom"
                    .to_owned();
            refused.push(Refused::new(tool, Code::Conflict, message));
        }
    }
    for group in groups.into_values() {
        settle_id(group, policies, &mut kept, &mut refused);
    }
    (kept, refused)
}

/// Versions of one id live side by side in one folder, each version once: the folder that a
/// policy's `folders` names, if there are several. Build metadata does not make another version.
fn settle_id(
    mut group: Vec<Tool>,
    policies: Option<&policy::Policies>,
    kept: &mut Vec<Tool>,
    refused: &mut Vec<Refused>,
) {
    fn place(tool: &Tool) -> (PathBuf, String) {
        (tool.home(), tool.manifest.id.clone())
    }
    let places: BTreeSet<_> = group.iter().map(place).collect();
    if places.len() > 1 {
        let one_id = places
            .iter()
            .map(|(_, id)| id)
            .collect::<BTreeSet<_>>()
            .len()
            == 1;
        let what = if one_id {
            "one id in two folders"
        } else {
            "ids that differ only in case"
        };
        let highest = group.iter().map(|tool| standing(tool, policies)).max();
        let settled: BTreeSet<_> = group
            .iter()
            .filter(|tool: &&Tool| Some(standing(tool, policies)) == highest)
            .map(place)
            .collect();
        let (stay, go): (Vec<_>, Vec<_>) = group
            .into_iter()
            .partition(|tool: &Tool| settled.len() == 1 && settled.contains(&place(tool)));
        refuse(go, &stay, what, refused);
        group = stay;
    }
    let mut by_version: BTreeMap<_, Vec<Tool>> = BTreeMap::new();
    for tool in group {
        let version = semver::Version {
            build: semver::BuildMetadata::EMPTY,
            ..tool.manifest.version.clone()
        };
        by_version.entry(version).or_default().push(tool);
    }
    for twins in by_version.into_values() {
        if twins.len() == 1 {
            kept.extend(twins);
        } else {
            refuse(twins, &[], "one id and version twice", refused);
        }
    }
}

/// Whose word a tool's place is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// Announced by somebody else.
    Remote,
    File,
    /// A policy's `folders` hold its manifest.
    Named,
    /// Registered by the program itself.
    Program,
}

fn standing(tool: &Tool, policies: Option<&policy::Policies>) -> Standing {
    if tool.source == IN_PROCESS {
        Standing::Program
    } else if tool.source != load::FILES && tool.manifest.skill().is_none() {
        Standing::Remote
    } else if policies
        .is_some_and(|all: &policy::Policies| all.settles(&tool.manifest.id, &tool.site.manifest))
    {
        Standing::Named
    } else {
        Standing::File
    }
}

fn refuse(go: Vec<Tool>, stay: &[Tool], what: &str, refused: &mut Vec<Refused>) {
    // Conflicts are rare. Finding a position reads the file again.
    if go.is_empty() {
        return;
    }
    let places: Vec<_> = go
        .iter()
        .chain(stay)
        .map(|tool| position(&tool.site.manifest, "/toolId"))
        .collect();
    let claims: Vec<String> = go
        .iter()
        .chain(stay)
        .zip(&places)
        .map(|(tool, at): (&Tool, &(usize, usize))| match at {
            (0, _) => format!("{} ({})", tool.origin(), tool.reference()),
            (line, column) => format!("{}:{line}:{column} ({})", tool.origin(), tool.reference()),
        })
        .collect();
    let end = if stay.is_empty() {
        "all of them are disabled"
    } else {
        "the one in the folder that a policy names stays"
    };
    let message = format!(
        "{what}: claimed by {}; {end}. Change one id or remove one file",
        claims.join(", ")
    );
    refused.extend(
        go.into_iter()
            .map(|tool| Refused::new(tool, Code::Conflict, message.clone())),
    );
}

/// Why a file that a tool may write is not loaded.
pub(super) fn written_by(writer: &str) -> String {
    format!(
        "it lies where {writer}, and a tool cannot make tools: if you know who made it, move it \
         elsewhere, or grant no write there"
    )
}

/// Services by their ids, and files with their problems.
type Services = (BTreeMap<String, Described>, Vec<(PathBuf, Problem)>);

/// Decides which service descriptors are loaded, and gives each tool its own; a tool without one is
/// refused. A new file never takes over the id of a loaded service, and a file that a tool may
/// write is refused.
pub(super) fn settle_services(
    described: Vec<Described>,
    written: &policy::WritablePaths,
    incumbents: &BTreeMap<String, Described>,
    tools: &mut Vec<Tool>,
    refused: &mut Vec<Refused>,
) -> Services {
    let mut services = BTreeMap::new();
    let mut problems = Vec::new();
    let mut by_id: BTreeMap<String, Vec<Described>> = BTreeMap::new();
    for one in described {
        match written.by(&one.file) {
            None => by_id
                .entry(one.descriptor.id.clone())
                .or_default()
                .push(one),
            Some(writer) => {
                let message = written_by(&writer);
                problems.push((
                    one.file,
                    Problem::new(Severity::Error, Code::Security, "", message),
                ));
            }
        }
    }
    for (id, mut claims) in by_id {
        let loaded = |one: &Described| {
            incumbents
                .get(&id)
                .is_some_and(|known| known.file == one.file)
        };
        let stays = match claims.len() {
            1 => Some(0),
            _ if claims.iter().filter(|one| loaded(one)).count() == 1 => {
                claims.iter().position(loaded)
            }
            _ => None,
        };
        let end = if stays.is_some() {
            "the one that was loaded before stays"
        } else {
            "none of them is loaded"
        };
        let files: Vec<String> = claims.iter().map(|claim| text::path(&claim.file)).collect();
        if let Some(stays) = stays {
            services.insert(id.clone(), claims.remove(stays));
        }
        for Described { descriptor, file } in claims {
            let message = format!(
                "the service '{id}' is described more than once ({}); {end}. Change one id or \
                remove one file",
                files.join(", ")
            );
            let pointer = format!("{}/id", descriptor.pointer);
            problems.push((
                file,
                Problem::new(Severity::Error, Code::Conflict, pointer, message),
            ));
        }
    }
    for mut tool in std::mem::take(tools) {
        let Some(remote) = tool.manifest.remote() else {
            tools.push(tool);
            continue;
        };
        match service_of(&tool, remote, &services) {
            Ok(descriptor) => {
                problems.extend(undeclared(&tool, remote, &descriptor));
                let manifest = Arc::make_mut(&mut tool.manifest);
                manifest.digest =
                    sha256_hex(format!("{}{}", manifest.digest, descriptor.digest).as_bytes());
                if let Handler::ToolService(remote) = &mut manifest.handler {
                    remote.descriptor = Some(descriptor);
                }
                tools.push(tool);
            }
            Err((pointer, message)) => {
                let pointer = pointer.into();
                refused.push(Refused {
                    pointer,
                    ..Refused::new(tool, Code::Dependency, message)
                });
            }
        }
    }
    (services, problems)
}

/// The descriptor of a tool's service. `Err`: JSON pointer and message.
fn service_of(
    tool: &Tool,
    remote: &ServiceReference,
    services: &BTreeMap<String, Described>,
) -> Result<Arc<ServiceDescriptor>, (String, String)> {
    let id = &remote.service;
    let (at, values) = &remote.pointers;
    let Some(Described { descriptor, .. }) = services.get(id) else {
        let known: Vec<&str> = services.keys().map(String::as_str).take(20).collect();
        let near = suggest::hint(id, known.iter().copied());
        let known = if known.is_empty() {
            "no service is described"
        } else {
            &format!("known: {}", known.join(", "))
        };
        let message = format!(
            "unknown tool service '{}'{near} ({known})",
            text::head(id, 80)
        );
        return Err((at.clone(), message));
    };
    let missing = descriptor
        .params
        .iter()
        .find(|(name, required)| *required && !remote.config.contains_key(name));
    let Some((param, _)) = missing else {
        return Ok(descriptor.clone());
    };
    let id_of_tool = &tool.manifest.id;
    let message = format!(
        "the tool {id_of_tool} sets no '{param}', which the service '{id}' requires of its tools"
    );
    Err((values.clone(), message))
}

/// Warnings of values that the service does not declare: they are not sent.
fn undeclared(
    tool: &Tool,
    remote: &ServiceReference,
    service: &ServiceDescriptor,
) -> Vec<(PathBuf, Problem)> {
    let names = || service.params.iter().map(|(param, _)| param.as_str());
    let unknown = remote
        .config
        .keys()
        .filter(|name| names().all(|param| param != *name));
    let warning = |name: &String| {
        // A tool without typed arguments may have misspelt that field.
        let near = suggest::hint(name, names().chain(remote.untyped.then_some("arguments")));
        let name = text::head(name, 80);
        let id = &service.id;
        let message =
            format!("'{name}' is not a parameter of the service '{id}', and is not sent{near}");
        let pointer = format!("{}/{}", remote.pointers.1, escape_segment(&name));
        (
            tool.site.manifest.clone(),
            Problem::new(Severity::Warning, Code::Schema, pointer, message),
        )
    };
    unknown.map(warning).collect()
}

/// Settles `requires` among the loaded tools: a tool is ready when a ready tool meets each
/// requirement.
pub(super) fn settle_requires(tools: &mut [Tool]) {
    if tools.iter().all(|tool| tool.manifest.requires.is_empty()) {
        return;
    }
    let mut by_id: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut waiters: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, tool) in tools.iter().enumerate() {
        by_id.entry(&tool.manifest.id).or_default().push(index);
        for id in tool.manifest.requires.keys() {
            waiters.entry(id).or_default().push(index);
        }
    }
    let mut ready: BTreeSet<usize> = BTreeSet::new();
    let mut queue: Vec<usize> = (0..tools.len()).collect();
    while let Some(index) = queue.pop() {
        let tool = &tools[index];
        if !ready.contains(&index)
            && tool.needs.is_empty()
            && unmet(tool, tools, &by_id, &ready).is_empty()
        {
            ready.insert(index);
            queue.extend(waiters.get(tool.manifest.id.as_str()).into_iter().flatten());
        }
    }
    let waiting = (0..tools.len()).filter(|index| !ready.contains(index));
    let mut needs: BTreeMap<usize, Vec<Need>> = waiting
        .map(|index| (index, unmet(&tools[index], tools, &by_id, &ready)))
        .collect();
    // A waiting tool that depends on no tool with a missing need waits for a cycle.
    let mut lacking: BTreeSet<usize> = BTreeSet::new();
    queue.extend(
        needs
            .iter()
            .filter(|(index, needs): &(&usize, &Vec<Need>)| {
                !tools[**index].needs.is_empty() || needs.iter().any(|need| need.mistake)
            })
            .map(|(index, _)| *index),
    );
    while let Some(index) = queue.pop() {
        if !ready.contains(&index) && lacking.insert(index) {
            queue.extend(
                waiters
                    .get(tools[index].manifest.id.as_str())
                    .into_iter()
                    .flatten(),
            );
        }
    }
    for (index, needs) in &mut needs {
        if !lacking.contains(index) {
            needs.push(Need::mistaken(
                "/requires",
                "requirements that are not circular (requires)",
            ));
        }
    }
    needs
        .into_iter()
        .for_each(|(index, needs)| tools[index].needs.extend(needs));
}

/// The requirements of one tool that no ready tool meets, as messages.
fn unmet(
    tool: &Tool,
    tools: &[Tool],
    by_id: &BTreeMap<&str, Vec<usize>>,
    ready: &BTreeSet<usize>,
) -> Vec<Need> {
    let mut needs = Vec::new();
    for (id, range) in &tool.manifest.requires {
        let versions = by_id
            .get(id.as_str())
            .map(Vec::as_slice)
            .unwrap_or_default();
        let fitting: Vec<_> = versions
            .iter()
            .filter(|index: &&usize| range.matches(&tools[**index].manifest.version))
            .collect();
        if fitting.iter().any(|index| ready.contains(index)) {
            continue;
        }
        let pointer = format!("/requires/{}", escape_segment(id));
        let there = versions
            .iter()
            .map(|index| tools[*index].manifest.version.to_string())
            .collect::<Vec<_>>();
        needs.push(match (versions, fitting.as_slice()) {
            ([], _) => Need::mistaken(
                pointer,
                format!("the tool {id} {range} (requires), which is not loaded"),
            ),
            (_, []) => Need::mistaken(
                pointer,
                format!(
                    "the tool {id} {range} (requires); loaded: {}",
                    there.join(", ")
                ),
            ),
            _ => Need::new(
                pointer,
                format!("the tool {id} {range} (requires), which is itself unavailable"),
            ),
        });
    }
    needs
}
