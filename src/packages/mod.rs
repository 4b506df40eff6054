//! Packages: what a script requires of a package index, as found beside it, and the store of what was built.
//!
//! For: service (decides, builds), cli (audit, check, deps). In: a script's folder. Out: `Wanted`; entries of the store.
//! Never: believes where a file of a tool says that packages come from. Only names, versions and hashes count.

use crate::policy::packages::{Ecosystem, Package};
use std::path::PathBuf;

/// What a script requires, read from the files beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub ecosystem: Ecosystem,
    /// The files that say so, with their digests.
    pub sources: Vec<Source>,
    /// What the lock holds, by name and version; empty where there is none.
    pub packages: Vec<Package>,
    /// The lock has a hash for every package.
    pub locked: bool,
    /// What the installer is given, name and text: written by us from names, versions and hashes alone. Where nothing is
    /// locked: the requirements, to be resolved.
    pub inputs: Vec<(String, String)>,
}

/// One file that says what is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub sha256: String,
}
