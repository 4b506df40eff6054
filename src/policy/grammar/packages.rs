//! The entries of `[packages]`, and what the files of a script require.
//!
//! An index is a name here; the configuration of the host has its address.

use super::document::{Origin, PolicyEntry};
use super::grantable::Grantable;
use super::osv::Advisories;
use super::versions;
pub use super::versions::Ecosystem;
use crate::base::text::{self, printable};
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that says which packages a script requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
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
    pub rule: String,
    pub locked: bool,
    pub sources: Vec<SourceFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageRules {
    /// The name of an index in the host's configuration.
    pub index: String,
    /// A lock with hashes is required. If false, the versions that the first call resolves are
    /// kept.
    pub lock_required: bool,
    /// Build steps and lifecycle scripts of packages may run, inside the layers and without network.
    pub builds: bool,
    pub deny: Vec<DeniedPackage>,
    /// A version must have been published this many days ago.
    pub min_age_days: Option<u32>,
    /// Where known vulnerabilities are looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advisories: Vec<Advisories>,
    pub why: String,
}

/// A package that policy never installs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeniedPackage {
    pub name: String,
    /// A range, as the ecosystem writes it; `None`: all.
    pub versions: Option<String>,
    pub why: String,
}

/// What a script requires, as its files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRequirements {
    pub ecosystem: Ecosystem,
    /// The files that say so, with their digests.
    pub sources: Vec<SourceFile>,
    /// What the lock holds, by name and version; empty where there is none.
    pub packages: Vec<Package>,
    /// The lock has a hash for every package.
    pub locked: bool,
    /// The name of the lock that toolhost writes beside the script.
    pub lock_file: String,
    /// The files for the installer, name and text. toolhost writes them from names, versions and
    /// hashes alone; without a lock they hold the requirements to resolve.
    pub inputs: Vec<(String, String)>,
    /// The packages that are required by name, before anything is resolved.
    pub requires: Vec<Required>,
}

impl PackageRequirements {
    /// What the lock holds, by the place where an installer puts it: a name of Python, a path below
    /// `node_modules`.
    pub fn places(&self) -> BTreeMap<String, Package> {
        match (self.ecosystem, self.inputs.first()) {
            (Ecosystem::Node, Some((_, places))) => {
                serde_json::from_str(places).unwrap_or_default()
            }
            _ => self
                .packages
                .iter()
                .map(|package| (package.name.clone(), package.clone()))
                .collect(),
        }
    }

    /// Whether the policy requires a lock and there is none. Calls are refused until somebody makes
    /// one.
    pub fn lacks_lock(&self, rules: &PackageRules) -> bool {
        rules.lock_required && !self.locked
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Required {
    pub name: String,
    /// A range of versions, as the ecosystem writes it; empty: any.
    pub versions: String,
    pub pinned: bool,
    /// Where it stands: `requirements.txt:3`.
    pub place: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// `sha256:…` in hexadecimal digits, or `sha512-…` in Base64 (Subresource Integrity).
    pub hashes: Vec<String>,
}

#[derive(Deserialize)]
struct PackageLine {
    index: String,
    lock: Option<String>,
    #[serde(default)]
    builds: bool,
    lock_file: Option<String>,
    why: String,
}

/// The entries of a policy. What is not written is not allowed: neither an unlocked package nor a
/// build.
pub fn read(
    document: &mut Reader<'_>,
    policy: Origin<'_>,
) -> BTreeMap<Ecosystem, PolicyEntry<PackagesAllowed>> {
    let deny = document.list::<DeniedPackage>("/packages/deny");
    for (pointer, denied) in &deny {
        fn is_known(has: &dyn Fn(Ecosystem) -> bool) -> bool {
            Ecosystem::ALL.into_iter().any(has)
        }
        if !is_known(&|ecosystem| versions::name(ecosystem, &denied.name).is_some()) {
            document.fault(&format!("{pointer}/name"), "not the name of a package");
        }
        if let Some(range) = denied
            .versions
            .as_ref()
            .filter(|range| !is_known(&|it| versions::is_range(it, range)))
        {
            let shown = printable(&text::head(range, 60));
            let message =
                format!("`{shown}` is not a version range of Python (`>=1,<2`) or Node (`>=1 <2`)");
            document.fault(&format!("{pointer}/versions"), message);
        }
    }
    let deny: Vec<DeniedPackage> = deny.into_iter().map(|(_, denied)| denied).collect();
    let min_age_days = document.get("/packages/min_age_days");
    let refuse = document.get("/packages/advisories_refuse");
    let advisories: Option<PathBuf> = document.get("/packages/advisories");
    let advisories = advisories.map(|path| Advisories {
        path: policy.file.with_file_name(path),
        refuse: refuse.unwrap_or_default(),
        records: Arc::default(),
    });
    let mut found = BTreeMap::new();
    for ecosystem in Ecosystem::ALL {
        let pointer = format!("/packages/{}", ecosystem.name());
        let Some(PackageLine {
            index,
            lock,
            builds,
            lock_file,
            why,
        }) = document.get(&pointer)
        else {
            continue;
        };
        let at = format!("{pointer}/index");
        document.parsed(&at, index_name(&index));
        let at = document.at(&at);
        let lock_required = lock.is_none_or(|lock| lock != "relaxed");
        let rules = PackageRules {
            index,
            lock_required,
            builds,
            deny: deny.clone(),
            min_age_days,
            advisories: advisories.iter().cloned().collect(),
            why,
        };
        let lock_file = lock_file.map(|name| policy.file.with_file_name(name));
        let rule = format!("{}: {}", policy.name, ecosystem.name());
        let place = policy.place(at);
        found.insert(
            ecosystem,
            PolicyEntry {
                grant: PackagesAllowed {
                    rules,
                    rule,
                    place,
                    lock_file,
                },
                at,
            },
        );
    }
    found
}

/// The name of a lock that lies beside a policy.
pub fn is_lock_name(name: &str) -> bool {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && name.len() <= 200;
    let ends = [".pylock.toml", ".package-lock.json"]
        .iter()
        .any(|end| name.len() > end.len() && name.ends_with(end));
    plain && ends && !name.starts_with('.')
}

/// The name of an index, in a policy and in the host's configuration.
pub fn index_name(name: &str) -> Result<(), String> {
    if !name.is_empty()
        && name.len() <= 64
        && name
            .chars()
            .all(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        && !name.starts_with('-')
    {
        return Ok(());
    }
    let shown = printable(&text::head(name, 60));
    Err(format!(
        "`{shown}` is not the name of an index: letters, digits, `-`, `_`; its address is in the \
         configuration ([indexes.NAME])"
    ))
}

/// What a policy allows for one ecosystem, and where it says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagesAllowed {
    pub rules: PackageRules,
    pub rule: String,
    pub place: String,
    /// The lock beside the policy, for a script that has no lock beside it.
    pub lock_file: Option<PathBuf>,
}

impl PackagesAllowed {
    /// What both allow. `None`: they name different indexes.
    pub fn intersection(mut self, other: &PackagesAllowed) -> Option<PackagesAllowed> {
        let rules = &mut self.rules;
        let theirs = &other.rules;
        let more: Vec<DeniedPackage> = theirs
            .deny
            .iter()
            .filter(|denied| !rules.deny.contains(denied))
            .cloned()
            .collect();
        rules.deny.extend(more);
        rules.advisories.extend_from_slice(&theirs.advisories);
        rules.advisories.dedup();
        rules.lock_required |= theirs.lock_required;
        rules.builds &= theirs.builds;
        // `None` is the smallest.
        rules.min_age_days = rules.min_age_days.max(theirs.min_age_days);
        (rules.index == theirs.index).then_some(self)
    }
}

pub fn name(path: &Path) -> String {
    printable(&path.file_name().unwrap_or_default().to_string_lossy())
}

pub fn names(sources: &[SourceFile]) -> String {
    sources
        .iter()
        .map(|source| name(&source.path))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Grantable for PackageGrant {
    fn kind(&self) -> &'static str {
        "packages"
    }
    fn text(&self) -> String {
        let PackageGrant {
            ecosystem, rules, ..
        } = self;
        format!(
            "{} from the index `{}`; {}",
            ecosystem.name(),
            rules.index,
            words(rules)
        )
    }
    fn covers(&self, other: &PackageGrant) -> bool {
        let wide = &self.rules;
        let narrow = &other.rules;
        self.ecosystem == other.ecosystem
            && wide.index == narrow.index
            && (narrow.lock_required || !wide.lock_required)
            && (wide.builds || !narrow.builds)
            && wide.min_age_days <= narrow.min_age_days
            && wide
                .advisories
                .iter()
                .all(|named| !named.refuse || narrow.advisories.contains(named))
            && wide.deny.iter().all(|denied| {
                narrow.deny.iter().any(|other| {
                    other.name == denied.name
                        && (other.versions.is_none() || other.versions == denied.versions)
                })
            })
    }
    fn is_near(&self, other: &PackageGrant) -> bool {
        self.ecosystem == other.ecosystem
    }
}

pub fn words(rules: &PackageRules) -> String {
    let lock = if rules.lock_required {
        "lock required"
    } else {
        "lock relaxed"
    };
    let builds = if rules.builds {
        "builds allowed, without network"
    } else {
        "no builds"
    };
    let age = rules
        .min_age_days
        .map_or_else(String::new, |days| format!(", at least {days} days old"));
    let deny = if rules.deny.is_empty() {
        String::new()
    } else {
        format!(", {} denied", rules.deny.len())
    };
    let known = if rules.advisories.iter().any(|known| known.refuse) {
        ", known vulnerabilities refused"
    } else {
        ""
    };
    format!("{lock}, {builds}{age}{deny}{known}")
}
