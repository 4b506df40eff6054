//! Packages: what a policy allows a script to have installed, and from where.
//!
//! For: the readers of policies and of requirements, decide, and who builds. In: nothing. Out: plain data.
//! Never: knows an address; an index is a name here, and the host's configuration says what it means.

use crate::manifest::Language;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where packages come from, and who installs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ecosystem {
    Python,
    Node,
}

impl Ecosystem {
    pub const ALL: [Ecosystem; 2] = [Ecosystem::Python, Ecosystem::Node];

    /// The key of a policy, and of an index in the host's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Ecosystem::Python => "python",
            Ecosystem::Node => "node",
        }
    }

    /// `None`: scripts of this language have no packages.
    pub fn of(language: Language) -> Option<Ecosystem> {
        match language {
            Language::Python => Some(Ecosystem::Python),
            Language::Nodejs | Language::Bun => Some(Ecosystem::Node),
            Language::Wasm => None,
        }
    }
}

/// What a script requires, as its files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub ecosystem: Ecosystem,
    /// The files that say so, with their digests.
    pub sources: Vec<Source>,
    /// What the lock holds, by name and version; empty where there is none.
    pub packages: Vec<Package>,
    /// The lock has a hash for every package.
    pub locked: bool,
    /// The name of the lock that toolhost writes beside the script.
    pub lock_file: String,
    /// What the installer is given, name and text: written by us from names, versions and hashes alone. Where nothing is
    /// locked: the requirements, to be resolved.
    pub inputs: Vec<(String, String)>,
    /// What is asked for by name, before anything is resolved.
    pub requires: Vec<Required>,
}

impl Wanted {
    /// A policy demands a lock, and there is none: the call cannot be served before somebody makes it.
    pub fn lacks_lock(&self, rules: &PackageRules) -> bool {
        rules.lock_required && !self.locked
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Required {
    /// As its index spells it when it compares names.
    pub name: String,
    /// The versions that fit, as the ecosystem writes it; empty: any.
    pub versions: String,
    /// Exactly one version fits.
    pub pinned: bool,
    /// Where it stands: `requirements.txt:3`.
    pub place: String,
}

/// One file that says what is required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub path: PathBuf,
    pub sha256: String,
}

/// The packages that a call has, and where that comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageGrant {
    pub ecosystem: Ecosystem,
    #[serde(flatten)]
    pub rules: PackageRules,
    /// `policy-name: python`
    pub rule: String,
    pub locked: bool,
    pub sources: Vec<Source>,
}

/// One package that a lock holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Package {
    /// As its index spells it when it compares names.
    pub name: String,
    pub version: String,
    /// `sha256:…` in hexadecimal digits, or `sha512-…` in Base64 (Subresource Integrity).
    pub hashes: Vec<String>,
}

/// What a policy allows for one ecosystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Denied {
    pub name: String,
    /// A range, as the ecosystem writes it; `None`: all.
    pub versions: Option<String>,
    pub why: String,
}
