//! The descriptors of tool services, and which of them each tool means.
//!
//! A newcomer never takes over the id of a service that was loaded before, and a file that a tool may write describes
//! none.

use super::conflicts::Refused;
use super::{Described, Tool, position, writable_tools};
use crate::base::{suggest, text};
use crate::manifest::{Code, Handler, Problem, Remote, ServiceDescriptor, Severity};
use crate::policy;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Services by their ids, and files with what is said of them.
type Settled = (BTreeMap<String, Described>, Vec<(PathBuf, Problem)>);

/// Settles which descriptors stand, and tells each tool its own; `refused` gets the tools that have none.
pub(super) fn settle(
    described: Vec<Described>,
    recorded: &policy::WritablePaths,
    held: &BTreeMap<String, Described>,
    tools: &mut Vec<Tool>,
    refused: &mut Vec<Refused>,
) -> Settled {
    let (services, mut told) = standing(described, recorded, held);
    told.extend(bind(tools, &services, refused));
    (services, told)
}

fn standing(
    described: Vec<Described>,
    recorded: &policy::WritablePaths,
    held: &BTreeMap<String, Described>,
) -> Settled {
    let (mut services, mut refused) = (BTreeMap::new(), Vec::new());
    let mut by_id: BTreeMap<String, Vec<Described>> = BTreeMap::new();
    let stood = |one: &Described| held.get(&one.descriptor.id).is_some_and(|held| held.file == one.file);
    for one in described {
        match recorded.by(&one.file) {
            None => by_id.entry(one.descriptor.id.clone()).or_default().push(one),
            Some(writer) => {
                let message = writable_tools::why(&writer);
                refused.push((one.file, Problem::new(Severity::Error, Code::Security, "", message)));
            }
        }
    }
    for (id, claims) in by_id {
        let one = claims.iter().filter(|one| stood(one)).count() == 1;
        let (mut stay, go): (Vec<_>, Vec<_>) =
            claims.iter().cloned().partition(|claim| claims.len() == 1 || (one && stood(claim)));
        for turned_away in go {
            let others = claims.iter().filter(|other| other.file != turned_away.file);
            let others: Vec<String> = others.map(|other| text::path(&other.file)).collect();
            let end = if one { "the one that was loaded before stays" } else { "none of them is loaded" };
            let message = format!(
                "the service '{id}' is described more than once (also in {}); {end}. Change one id or take one file away",
                others.join(", ")
            );
            let pointer = format!("{}/id", turned_away.descriptor.at);
            let mut problem = Problem::new(Severity::Error, Code::Conflict, pointer, message);
            (problem.line, problem.column) = position(&turned_away.file, &problem.pointer);
            refused.push((turned_away.file, problem));
        }
        if let Some(kept) = stay.pop() {
            services.insert(id, kept);
        }
    }
    (services, refused)
}

/// Tells each tool of a service its descriptor, and takes out those whose service is not known or gets less than it must
/// have. Returns what is remarked of the others.
fn bind(
    tools: &mut Vec<Tool>,
    services: &BTreeMap<String, Described>,
    refused: &mut Vec<Refused>,
) -> Vec<(PathBuf, Problem)> {
    let mut remarks = Vec::new();
    for mut tool in std::mem::take(tools) {
        let Some(remote) = tool.manifest.remote() else {
            tools.push(tool);
            continue;
        };
        match service_of(&tool, remote, services) {
            Ok(descriptor) => {
                remarks.extend(undeclared(&tool, remote, &descriptor));
                let manifest = Arc::make_mut(&mut tool.manifest);
                let both = format!("{}{}", manifest.digest, descriptor.digest);
                manifest.digest = crate::base::sha256_hex(both.as_bytes());
                if let Handler::ToolService(remote) = &mut manifest.handler {
                    remote.found = Some(descriptor);
                }
                tools.push(tool);
            }
            Err((pointer, message)) => {
                let at = position(&tool.site.manifest, &pointer);
                let pointer = pointer.into();
                refused.push(Refused { pointer, at, ..Refused::new(tool, Code::Dependency, message) });
            }
        }
    }
    remarks
}

fn service_of(
    tool: &Tool,
    remote: &Remote,
    services: &BTreeMap<String, Described>,
) -> Result<Arc<ServiceDescriptor>, (String, String)> {
    let (id, (at, values)) = (&remote.service, &remote.at);
    let Some(found) = services.get(id) else {
        let known: Vec<&str> = services.keys().map(String::as_str).take(20).collect();
        let near = suggest::hint(id, known.iter().copied());
        let known =
            if known.is_empty() { "none is described".to_owned() } else { format!("known: {}", known.join(", ")) };
        let message = format!("there is no tool service '{}'{near} ({known})", text::head(id, 80));
        return Err((at.clone(), message));
    };
    let descriptor = &found.descriptor;
    let missing = descriptor.params.iter().find(|(name, required)| *required && !remote.config.contains_key(name));
    match missing {
        None => Ok(descriptor.clone()),
        Some((param, _)) => {
            let message = format!(
                "the tool {} sets no '{param}', which the service '{id}' requires of its tools: add \"{param}\": …",
                tool.manifest.id
            );
            Err((values.clone(), message))
        }
    }
}

/// Values that the service does not declare: they are not sent.
fn undeclared<'t>(
    tool: &'t Tool,
    remote: &'t Remote,
    service: &'t ServiceDescriptor,
) -> impl Iterator<Item = (PathBuf, Problem)> + 't {
    let declared = |name: &str| service.params.iter().any(|(param, _)| param == name);
    remote.config.keys().filter(move |name| !declared(name)).map(move |name| {
        let fields = ["arguments"].into_iter().filter(|_| remote.untyped);
        let near = suggest::hint(name, service.params.iter().map(|(param, _)| param.as_str()).chain(fields));
        let message = format!(
            "'{}' is no parameter of the service '{}', and is not sent{near}",
            text::head(name, 80),
            service.id
        );
        let pointer = format!("{}/{}", remote.at.1, crate::base::json::escape_segment(name));
        let mut problem = Problem::new(Severity::Warning, Code::Schema, pointer, message);
        (problem.line, problem.column) = position(&tool.site.manifest, &problem.pointer);
        (tool.site.manifest.clone(), problem)
    })
}
