//! Packages: what a policy allows a script to have installed, and from where.
//!
//! For: the readers of policies, decide, and who builds. In: `[packages]` of a policy. Out: rules as plain data.
//! Never: knows an address; an index is a name here, and the host's configuration says what it means.

use serde::Serialize;

/// Where packages come from, and who installs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ecosystem {
    Python,
    Node,
}

/// One package that a lock holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Package {
    /// As its index spells it when it compares names.
    pub name: String,
    pub version: String,
    /// `sha256:…` in hexadecimal digits, or `sha512-…` in Base64 (Subresource Integrity).
    pub hashes: Vec<String>,
}

/// What a policy allows for one ecosystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageRules {
    /// The name of an index in the host's configuration.
    pub index: String,
    /// A lock with hashes is required; else what the first call resolves is kept.
    pub lock_required: bool,
    /// Build steps and lifecycle scripts of packages may run, inside the walls and without network.
    pub builds: bool,
    pub deny: Vec<Denied>,
    /// A version must have been published this many days ago.
    pub min_age_days: Option<u32>,
    pub why: String,
}

/// Versions that are never installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denied {
    pub name: String,
    /// A range, as the ecosystem writes it; `None`: all.
    pub versions: Option<String>,
    pub why: String,
}
