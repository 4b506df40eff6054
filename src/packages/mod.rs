//! What a script requires of a package index, as found beside it, and the store of what was built.
//!
//! Of all files of a tool only names, versions and hashes count, never where packages are said to come from.

mod found;
mod index;
pub mod installed;
pub mod store;
pub mod tree;

pub use crate::policy::packages::{PackageRequirements, Required, Source};
pub use found::{FileStamps, Place, find, named, of_lock, of_policy};
pub use index::{Credential, DEFAULT, Index};
