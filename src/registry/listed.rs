//! The tools of MCP servers: each is derived from the manifest of its server and the list beside it.

use super::conflicts::{Refused, folded};
use super::tool::{Tool, list_path};
use crate::base::text;
use crate::manifest::{Code, Handler, Problem, Severity, mcp};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Adds the tools of all lists. One whose id another tool or another server claims, loaded or not,
/// is left out: a list neither replaces a tool nor disables one.
pub(super) fn add_tools(tools: &mut Vec<Tool>, refused: &[Refused]) -> Vec<(PathBuf, Problem)> {
    let others = refused.iter().map(|refused| &refused.tool);
    let own: BTreeSet<String> = tools
        .iter()
        .chain(others)
        .map(|tool| folded(&tool.manifest.id))
        .collect();
    let found: Vec<Tool> = tools.iter().flat_map(of_server).collect();
    let mut claims: BTreeMap<String, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for tool in &found {
        let id = &tool.manifest.id;
        let server = &tool.manifest.of_process().id;
        claims.entry(folded(id)).or_default().insert((server, id));
    }
    let mut problems = Vec::new();
    for tool in &found {
        let id = folded(&tool.manifest.id);
        if !own.contains(&id) && claims[&id].len() == 1 {
            tools.push(tool.clone());
            continue;
        }
        let message = format!(
            "the tool {} of this list is not offered: another file claims this id",
            text::printable(&tool.manifest.id)
        );
        let problem = Problem::new(Severity::Warning, Code::Conflict, "/tools", message);
        problems.extend(list_path(&tool.site.manifest).map(|path| (path, problem)));
    }
    problems
}

fn of_server(server: &Tool) -> Vec<Tool> {
    let Handler::McpServer(own) = &server.manifest.handler else {
        return Vec::new();
    };
    let listed = own.listed.iter().flat_map(|listed| listed.iter());
    let derived = listed.map(|(name, listed)| Tool {
        manifest: Arc::new(mcp::derived(name, listed, &server.manifest)),
        ..server.clone()
    });
    derived.collect()
}
