//! The rule that a tool cannot make tools: what a tool may write, or once could, is never loaded by this host, and no
//! write tree holds what this host or another tool's script relies on.

pub(super) mod hard_denials;
mod names;
mod paths;

pub use names::{definition, loaded, obeyed, packages, spells_loaded};
pub use paths::{Place, WritablePaths, WrittenTree};
