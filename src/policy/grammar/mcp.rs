//! `[mcp]`: how the process of an MCP server serves calls.

use super::document::PolicyEntry;
use super::grantable::Grantable;
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};

/// Who shares the process of a server, and how long it waits for its next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpGrant {
    /// All callers share one process, and so what it remembers.
    #[serde(default)]
    pub shared: bool,
    #[serde(default = "ten_minutes", alias = "idle_ms")]
    pub idle_ms: u64,
    #[serde(default)]
    pub rule: String,
    #[serde(default)]
    pub why: String,
}

fn ten_minutes() -> u64 {
    600_000
}

impl Default for McpGrant {
    fn default() -> McpGrant {
        McpGrant {
            shared: false,
            idle_ms: ten_minutes(),
            rule: String::new(),
            why: String::new(),
        }
    }
}

impl Grantable for McpGrant {
    fn kind(&self) -> &'static str {
        "mcp"
    }
    fn text(&self) -> String {
        let whose = if self.shared {
            "one process of the server for all callers, who see what the others left in it"
        } else {
            "a process of the server for each caller"
        };
        format!("{whose}; it ends after {} ms without a call", self.idle_ms)
    }
    fn covers(&self, other: &McpGrant) -> bool {
        self.shared >= other.shared && self.idle_ms >= other.idle_ms
    }
    fn is_near(&self, _: &McpGrant) -> bool {
        true
    }
}

pub fn read(document: &mut Reader<'_>) -> Option<PolicyEntry<McpGrant>> {
    Some(PolicyEntry {
        grant: document.get("/mcp")?,
        at: document.at("/mcp"),
    })
}
