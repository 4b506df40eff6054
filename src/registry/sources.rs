//! Where the tools of a snapshot come from: each folder, tool service and MCP server is a source.

use super::load;
use super::snapshot::Snapshot;
use super::tool::{FileReport, IN_PROCESS, Tool};
use crate::base::text;
use crate::manifest::Handler;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A source. Each tool counts once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SourceId {
    pub id: String,
    pub kind: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub struct SourceCounts {
    #[serde(flatten)]
    pub source: SourceId,
    pub tools: usize,
    /// Files that are not loaded because something is wrong with them.
    pub skipped: usize,
}

impl Snapshot {
    /// All sources, in order of their ids.
    pub fn sources(&self) -> Vec<SourceCounts> {
        let mut found: BTreeMap<SourceId, SourceCounts> = BTreeMap::new();
        let folders = self.bases.iter().map(|folder| SourceId::folder(folder));
        let services = self
            .services
            .keys()
            .map(|id| SourceId::new(id, "tool-service"));
        for source in folders.chain(services) {
            SourceCounts::of(&mut found, source);
        }
        for tool in self.tools() {
            SourceCounts::of(&mut found, self.source_of(tool)).tools += 1;
        }
        let skipped = |report: &&FileReport| report.has_errors();
        for report in self.skipped_files().filter(skipped) {
            if let Some(folder) = self.base_of(&report.path) {
                SourceCounts::of(&mut found, folder).skipped += 1;
            }
        }
        found.into_values().collect()
    }

    fn source_of(&self, tool: &Tool) -> SourceId {
        match &tool.manifest.handler {
            Handler::McpTool(of) => SourceId::new(&of.server.id, "mcp-server"),
            Handler::ToolService(of) => SourceId::new(&of.service, "tool-service"),
            _ => self
                .base_of(&tool.site.manifest)
                .unwrap_or_else(|| match &*tool.source {
                    load::BUILTIN => SourceId::new(load::BUILTIN, "builtin"),
                    other => SourceId::new(other, IN_PROCESS),
                }),
        }
    }

    /// The nearest folder that was scanned.
    fn base_of(&self, file: &Path) -> Option<SourceId> {
        let above = self.bases.iter().filter(|base| file.starts_with(base));
        let nearest = above.max_by_key(|base| base.as_os_str().len());
        nearest.map(|base| SourceId::folder(base))
    }
}

impl SourceId {
    fn new(id: &str, kind: &'static str) -> SourceId {
        let id = id.to_owned();
        SourceId { id, kind }
    }

    pub fn folder(path: &Path) -> SourceId {
        SourceId::new(&text::path(path), "folder")
    }
}

impl SourceCounts {
    fn of(found: &mut BTreeMap<SourceId, SourceCounts>, source: SourceId) -> &mut SourceCounts {
        found.entry(source.clone()).or_insert(SourceCounts {
            source,
            tools: 0,
            skipped: 0,
        })
    }
}
