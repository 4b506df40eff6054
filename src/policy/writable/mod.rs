//! The rule that a tool cannot make tools: what a tool may write, or once could, is never loaded by this host, and no
//! write tree holds what this host or another tool's script relies on.

mod hard_denials;
mod paths;

pub(super) use hard_denials::{HardDenials, Protected};
pub use hard_denials::{definition, loaded, obeyed, spells_loaded};
pub use paths::{Place, WritablePaths, module_folders, written_trees};
