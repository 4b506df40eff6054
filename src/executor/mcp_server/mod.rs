//! MCP servers of others: scripts that speak the Model Context Protocol on stdin and stdout, each a
//! process behind all layers that goes on between its calls. What one sends is parsed as hostile.
//!
//! A server serves calls side by side, so it can answer one with what belongs to another of the
//! same caller, or, where a policy says `shared`, of others.

mod calls;
mod dialogue;
mod result;
mod server;
pub(super) mod servers;
mod wire;

pub use calls::{McpCall, McpCalls};
pub use servers::{ServerId, Servers, Unclaimed};
