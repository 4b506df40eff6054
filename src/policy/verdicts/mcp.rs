//! How the process of an MCP server serves calls.

use super::ceiling::Ceilings;
use crate::manifest::Manifest;
use crate::policy::grammar::McpGrant;

/// What all ceilings allow, each as if it had the table with its defaults. `None`: it is not a
/// server, nor a tool of one.
pub fn grant_of(manifest: &Manifest, ceilings: &Ceilings<'_>) -> Option<McpGrant> {
    manifest.mcp_server()?;
    let all = ceilings.policies().map(|policy| match &policy.mcp {
        Some(entry) => entry.grant.clone(),
        None => McpGrant::default(),
    });
    let least = all.reduce(|first, next| McpGrant {
        shared: first.shared && next.shared,
        idle_ms: first.idle_ms.min(next.idle_ms),
        ..first
    });
    Some(McpGrant {
        rule: format!("{}: [mcp]", ceilings.policy.name),
        ..least.unwrap_or_default()
    })
}
