//! The tools of MCP servers: each is derived from the manifest of its server and the list beside it.

use super::conflicts::{Refused, folded};
use super::tool::{ENDING, Tool};
use crate::base::text;
use crate::manifest::mcp::LIST_ENDING;
use crate::manifest::{Code, Handler, Problem, Severity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The list of the server with this manifest. `None`: no manifest of a tool has such a name.
pub fn list_path(manifest: &Path) -> Option<PathBuf> {
    let stem = manifest.to_str()?.strip_suffix(ENDING)?;
    Some(PathBuf::from(format!("{stem}{LIST_ENDING}")))
}

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
        manifest: Arc::new(listed.of_server(name, &server.manifest)),
        ..server.clone()
    });
    derived.collect()
}
