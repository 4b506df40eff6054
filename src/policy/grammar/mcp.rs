//! `[mcp]`: how the process of an MCP server serves calls.

use super::document::PolicyEntry;
use super::file::Policy;
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

impl McpGrant {
    /// What all of these policies allow. The first is the one that governs the server.
    pub fn narrowest<'p>(policies: impl Iterator<Item = &'p Policy>) -> McpGrant {
        let silent = McpGrant {
            shared: false,
            idle_ms: ten_minutes(),
            rule: String::new(),
            why: String::new(),
        };
        let all = policies.map(|policy| {
            let entry = policy.mcp.as_ref();
            let grant = entry.map_or(silent.clone(), |entry| entry.grant.clone());
            McpGrant {
                rule: format!("{}: [mcp]", policy.name),
                ..grant
            }
        });
        let least = all.reduce(|first, next| McpGrant {
            shared: first.shared && next.shared,
            idle_ms: first.idle_ms.min(next.idle_ms),
            ..first
        });
        least.unwrap_or(silent)
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
