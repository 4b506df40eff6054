//! MCP servers that this host confines, seen from outside.

mod listed;
