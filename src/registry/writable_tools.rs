//! A tool cannot make tools: what lies where one could write before is not loaded, and what is loaded is never written.

use super::Tool;
use super::conflicts::{Incumbents, Refused};
use crate::manifest::Code;
use crate::policy;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Takes out the tools whose manifest or script some tool could write.
pub(super) fn withhold(tools: &mut Vec<Tool>, recorded: &policy::WritablePaths) -> Vec<Refused> {
    let mut refused = Vec::new();
    for tool in std::mem::take(tools) {
        match files(&tool).find_map(|file| recorded.by(&file)) {
            None => tools.push(tool),
            Some(writer) => refused.push(Refused::new(tool, Code::Security, why(&writer))),
        }
    }
    refused
}

/// Why a file that a tool may write is not loaded.
pub(super) fn why(writer: &str) -> String {
    format!(
        "it lies where {writer}, and a tool cannot make tools: if you know who made it, move it elsewhere, or grant no \
         write there"
    )
}

/// The write trees in the tools' own folders: what lies below one is not registered, whoever put it there. The outer of
/// two trees counts first; a tool that lies below one grants nothing, and none holds a tool that `standing` has or whose
/// own tree counts. A tree elsewhere keeps nothing from being loaded: policy refuses it while it holds a tool.
pub(super) fn own_trees(
    tools: &[Tool],
    policies: &policy::Policies,
    machine: &policy::Machine,
    standing: &Incumbents,
) -> policy::WritablePaths {
    let writers =
        tools.iter().filter(|tool| !tool.manifest.asks.write.is_empty() && tool.site.folder != tool.site.base);
    let mut trees: Vec<(&Tool, policy::Place)> = Vec::new();
    for tool in writers {
        let grants = policy::decide(&tool.manifest, &tool.site, policies, machine).grants;
        let places = policy::Place::of_grants(&grants, &tool.reference()).into_iter();
        trees.extend(places.filter(|place| place.tree.starts_with(&tool.site.folder)).map(|place| (tool, place)));
    }
    trees.sort_by_key(|(_, place)| (place.tree.components().count(), place.tree.clone()));
    let mut registered: BTreeSet<PathBuf> = tools.iter().filter(|tool| standing.has(tool)).flat_map(files).collect();
    let mut all = policy::WritablePaths::default();
    for (tool, place) in trees {
        let holds = registered.range(place.tree.clone()..).next().is_some_and(|file| file.starts_with(&place.tree));
        if !holds && files(tool).all(|file| all.by(&file).is_none()) {
            registered.extend(files(tool));
            all.add(place);
        }
    }
    all
}

/// The trees that these tools are granted to read by `base:`.
pub(super) fn shared<'t>(
    tools: impl Iterator<Item = &'t Tool>,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> BTreeSet<PathBuf> {
    let readers = tools.filter(|tool| tool.manifest.asks.read.iter().flatten().any(|read| read.from_base));
    let decide = |tool: &Tool| policy::decide(&tool.manifest, &tool.site, policies, machine);
    let grants = readers.flat_map(|tool| decide(tool).grants);
    grants.filter_map(|grant| grant.base_tree().map(PathBuf::from)).collect()
}

/// What these tools may write now.
pub(super) fn written<'t>(
    tools: impl Iterator<Item = &'t Tool>,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> policy::WritablePaths {
    let writers = tools.filter(|tool| !tool.manifest.asks.write.is_empty());
    let decisions: Vec<_> = writers.map(|tool| policy::decide(&tool.manifest, &tool.site, policies, machine)).collect();
    policy::WritablePaths::of_tools(decisions.iter().map(|it| (it.tool.as_str(), it.grants.as_slice())))
}

/// The tool's manifest and script, if they are files.
pub(super) fn files(tool: &Tool) -> impl Iterator<Item = PathBuf> + use<> {
    let site = &tool.site;
    let files = [Some(site.manifest.clone()), site.script.clone()];
    files.into_iter().flatten().filter(|path| !path.as_os_str().is_empty())
}
