//! Where the tools of a snapshot come from: each folder, tool service and MCP server is a source.

use super::snapshot::Snapshot;
use super::tool::{FileReport, Tool};
use crate::base::text;
use crate::manifest::Handler;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SourceId {
    id: String,
    kind: &'static str,
}

#[derive(Default)]
struct Counts {
    tools: usize,
    skipped: usize,
}

impl Snapshot {
    /// All sources in order of their `id`: `kind`, number of `tools`, of which each counts once, and of
    /// files that are `skipped` because something is wrong with them.
    pub fn sources(&self) -> Vec<Value> {
        let folders = self.bases.iter().map(|folder| of_folder(folder));
        let services = self.services.keys().map(|id| source(id, "tool-service"));
        let all = folders.chain(services).map(|it| (it, Counts::default()));
        let mut found: BTreeMap<SourceId, Counts> = all.collect();
        for tool in self.tools() {
            found.entry(self.source_of(tool)).or_default().tools += 1;
        }
        let files = self.skipped_files().filter(|report| report.has_errors());
        for folder in files.filter_map(|FileReport { path, .. }| self.base_of(path)) {
            found.entry(folder).or_default().skipped += 1;
        }
        let rows = found.into_iter().map(|(SourceId { id, kind }, counts)| {
            json!({"id": id, "kind": kind, "tools": counts.tools, "skipped": counts.skipped})
        });
        rows.collect()
    }

    fn source_of(&self, tool: &Tool) -> SourceId {
        match &tool.manifest.handler {
            Handler::McpTool(of) => source(&of.server.id, "mcp-server"),
            Handler::ToolService(of) => source(&of.service, "tool-service"),
            // Of tools without a file the source has a name.
            _ => self
                .base_of(&tool.site.manifest)
                .unwrap_or_else(|| source(&tool.source, "program")),
        }
    }

    fn base_of(&self, file: &Path) -> Option<SourceId> {
        let base = self.bases.iter().find(|base| file.starts_with(base));
        base.map(|base| of_folder(base))
    }
}

fn source(id: &str, kind: &'static str) -> SourceId {
    let id = id.to_owned();
    SourceId { id, kind }
}

fn of_folder(path: &Path) -> SourceId {
    source(&text::path(path), "folder")
}
