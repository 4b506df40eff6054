//! Manifests: how a tool describes itself, and what it *requests*. Nothing here touches the file
//! system or grants anything.

pub mod arguments;
pub mod bounds;
mod client;
mod command_line;
pub mod descriptor;
mod document;
pub mod environment;
mod file;
pub mod host;
mod listed;
pub mod mcp;
pub mod pattern;
pub mod reader;
pub mod schema;
mod selector;
pub mod skill;
mod types;

pub use crate::base::problem::{At, Code, Problem, Severity};
pub use client::{ClientTool, INPUT, Syntax, TextFormat};
pub use command_line::{CommandInput, CommandLine};
pub use document::{Body, Document};
pub use file::{FINAL_AND_HIDDEN, read};
pub use listed::ListedTool;
pub use pattern::{Pattern, PatternShape, parse as parse_pattern};
pub use selector::Selector;
pub use skill::SKILL_FILE;
pub use types::*;
