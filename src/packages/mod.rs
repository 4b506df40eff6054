//! Packages: what a script requires of a package index, as found beside it, and the store of what was built.
//!
//! For: service (decides, builds), cli (audit, check, deps). In: a script's folder. Out: `Wanted`; entries of the store.
//! Never: believes where a file of a tool says that packages come from. Only names, versions and hashes count.

mod found;
mod index;
pub mod store;
pub mod tree;

pub use crate::policy::packages::{Required, Source, Wanted};
pub use found::{Place, Seen, find, of_lock, pylock_of};
pub use index::{Credential, DEFAULT, Index};
