//! Writable: the one rule that a tool cannot make tools. What any tool may write now, or could in an earlier call, is
//! never code, a manifest, a policy or an interpreter; and where such files lie, no tool is ever allowed to write.
//!
//! For: every room that grants, loads, shows, publishes or runs files. In: names, asks, decisions, places of earlier
//! calls. Out: what a name is (`names`), why an ask is never granted (`hard_denials`), who may have written a path
//! (`paths`). Never: looks at a policy; forgets a place because it or a folder above it was renamed.

pub(super) mod hard_denials;
mod names;
mod paths;

pub use names::{code, definition, obeyed, packages, spells, spells_name, unknown};
pub use paths::{FolderId, Place, WritablePaths};
