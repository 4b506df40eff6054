//! Packages: what the files of a script require ∩ the entry of the policy ∩ that of the cap, and
//! what is never installed.
//!
//! An index is a name here; the configuration of the host has its address.

pub use super::confinement::{DeniedPackage, PackageGrant, PackageRules, SourceFile};
use super::grantable::{Ceiling, Grantable, Origin, PolicyEntry};
use super::verdict::{Narrower, RequestKind, Verdict, layer};
use super::versions;
pub use super::versions::Ecosystem;
use crate::base::text::{self, printable};
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
pub(super) fn read(
    document: &mut Reader<'_>,
    policy: Origin<'_>,
) -> BTreeMap<Ecosystem, PolicyEntry<PackagesAllowed>> {
    let deny = document.list::<DeniedPackage>("/packages/deny");
    for (pointer, denied) in &deny {
        fn known(has: &dyn Fn(Ecosystem) -> bool) -> bool {
            Ecosystem::ALL.into_iter().any(has)
        }
        if !known(&|ecosystem| versions::name(ecosystem, &denied.name).is_some()) {
            document.fault(&format!("{pointer}/name"), "not the name of a package");
        }
        if let Some(range) = denied
            .versions
            .as_ref()
            .filter(|range| !known(&|it| versions::is_range(it, range)))
        {
            let shown = printable(&text::head(range, 60));
            let message =
                format!("`{shown}` is not a version range of Python (`>=1,<2`) or Node (`>=1 <2`)");
            document.fault(&format!("{pointer}/versions"), message);
        }
    }
    let deny: Vec<DeniedPackage> = deny.into_iter().map(|(_, denied)| denied).collect();
    let min_age_days = document.get("/packages/min_age_days");
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
pub(super) fn is_lock_name(name: &str) -> bool {
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

pub type Allowance = Result<PackagesAllowed, (Narrower, String)>;

/// The ages of packages in whole days; a missing one is unknown.
pub type Ages = BTreeMap<Package, u64>;

/// What every ceiling allows for one ecosystem.
pub(super) fn allowed(ecosystem: Ecosystem, ceilings: &[Ceiling<'_>]) -> Allowance {
    let mut allowed: Option<PackagesAllowed> = None;
    for ceiling in ceilings {
        let refused = |why| (ceiling.narrower, why);
        let entry = ceiling.policy.packages.get(&ecosystem);
        let entry =
            entry.ok_or_else(|| refused(ceiling.lacks_entry("[packages]", ecosystem.name())))?;
        allowed = Some(match allowed {
            Some(allowed) => allowed.intersection(&entry.grant).ok_or_else(|| {
                refused(format!(
                    "{} names the index `{}`",
                    ceiling.policy.origin().called(),
                    entry.grant.rules.index
                ))
            })?,
            None => entry.grant.clone(),
        });
    }
    allowed.ok_or((Narrower::Policy, String::new()))
}

impl PackagesAllowed {
    /// What both allow. `None`: they name different indexes.
    fn intersection(mut self, other: &PackagesAllowed) -> Option<PackagesAllowed> {
        let rules = &mut self.rules;
        let theirs = &other.rules;
        let more: Vec<DeniedPackage> = theirs
            .deny
            .iter()
            .filter(|denied| !rules.deny.contains(denied))
            .cloned()
            .collect();
        rules.deny.extend(more);
        rules.lock_required |= theirs.lock_required;
        rules.builds &= theirs.builds;
        // `None` is the smallest.
        rules.min_age_days = rules.min_age_days.max(theirs.min_age_days);
        (rules.index == theirs.index).then_some(self)
    }
}

/// Why a script gets no packages.
pub(super) enum PackageRefusal {
    Lacks(String),
    /// What policy never installs, a sentence each.
    Denied(Vec<String>),
}

/// Judges the packages that a script's files require, by what its policies allow.
pub(super) fn judge(
    wanted: &PackageRequirements,
    allowance: Option<&Allowance>,
    indexes: &BTreeMap<(Ecosystem, String), String>,
) -> (Verdict, Result<PackageGrant, PackageRefusal>) {
    let ecosystem = wanted.ecosystem;
    let files = names(&wanted.sources);
    let name = ecosystem.name();
    let asked = format!("{name} ({files})");
    let lacks = |narrower, reason: String, words: String| {
        (
            Verdict::denied(RequestKind::Package, &*asked, narrower, reason, &[]),
            Err(PackageRefusal::Lacks(words)),
        )
    };
    let allowed = match allowance {
        Some(Ok(allowed)) => allowed,
        Some(Err((narrower, reason))) => {
            let also = if *narrower == Narrower::Host {
                ", and into host.policy.toml"
            } else {
                ""
            };
            let entry = format!("[packages] {name} = {{ index = \"default\", why = \"…\" }}");
            let words = format!(
                "its {name} packages ({files}), which no policy allows it: write {entry} into its \
                policy{also}"
            );
            return lacks(*narrower, reason.clone(), words);
        }
        None => {
            let reason = "only scripts of Python, Node and Bun have packages";
            return lacks(
                Narrower::BuiltIn,
                reason.to_owned(),
                format!("no packages ({files}): {reason}"),
            );
        }
    };
    let because =
        |verdict: Verdict| verdict.because(&allowed.rule, &allowed.rules.why, &allowed.place);
    let index = &allowed.rules.index;
    let Some(leads_to) = indexes.get(&(ecosystem, index.clone())) else {
        let reason = format!("the host's configuration has no [indexes.{index}] for {name}");
        let words = format!(
            "the index `{index}` for its {name} packages, which this host's configuration does not \
            name"
        );
        let (verdict, refusal) = lacks(Narrower::Machine, reason, words);
        return (because(verdict), refusal);
    };
    let refused = refused(&allowed.rules, ecosystem, &wanted.packages, None);
    if !refused.is_empty() {
        let verdict = Verdict::denied(
            RequestKind::Package,
            asked,
            Narrower::Policy,
            refused.join("; "),
            &[],
        );
        return (because(verdict), Err(PackageRefusal::Denied(refused)));
    }
    let what = match (wanted.locked, wanted.lacks_lock(&allowed.rules)) {
        (true, _) => format!("{} packages of its lock", wanted.packages.len()),
        (false, true) => "nothing before there is a lock (`toolhost deps lock`)".to_owned(),
        (false, false) => format!("what its {} requirements resolve to", wanted.requires.len()),
    };
    let effective = format!(
        "{what}, from the index `{index}` ({leads_to}); {}",
        words(&allowed.rules)
    );
    let verdict = because(Verdict::met(
        RequestKind::Package,
        asked,
        effective,
        &[layer::VIEW],
    ));
    let rules = allowed.rules.clone();
    let rule = allowed.rule.clone();
    let grant = PackageGrant {
        ecosystem,
        rules,
        rule,
        locked: wanted.locked,
        sources: wanted.sources.clone(),
    };
    (verdict, Ok(grant))
}

/// Why packages are never installed, one sentence for each. `ages`: `None` before anybody asked for
/// them.
pub fn refused(
    rules: &PackageRules,
    ecosystem: Ecosystem,
    packages: &[Package],
    ages: Option<&Ages>,
) -> Vec<String> {
    let denied = packages.iter().flat_map(|package| {
        let by = rules
            .deny
            .iter()
            .filter(|denied| denies(denied, ecosystem, package));
        by.map(move |denied| {
            format!(
                "{} {} is denied: {}",
                package.name, package.version, denied.why
            )
        })
    });
    let young = packages.iter().filter_map(|package| {
        let least = rules.min_age_days?;
        let ages = ages?;
        let shown = format!("{} {}", package.name, package.version);
        match ages.get(package) {
            None => Some(format!(
                "{shown}: its age is not known, and it must be at least {least} days old"
            )),
            Some(days) if *days < u64::from(least) => Some(format!(
                "{shown} is {days} days old, and must be at least {least}"
            )),
            Some(_) => None,
        }
    });
    denied.chain(young).map(|why| printable(&why)).collect()
}

/// A range that the ecosystem does not know denies every version.
fn denies(denied: &DeniedPackage, ecosystem: Ecosystem, package: &Package) -> bool {
    let same = match versions::name(ecosystem, &denied.name) {
        Some(name) => name.eq_ignore_ascii_case(&package.name),
        None => false,
    };
    let range = denied.versions.as_deref();
    same && range.is_none_or(|range| versions::may_hold(ecosystem, range, &package.version))
}

pub(super) fn name(path: &Path) -> String {
    printable(&path.file_name().unwrap_or_default().to_string_lossy())
}

pub(super) fn names(sources: &[SourceFile]) -> String {
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

fn words(rules: &PackageRules) -> String {
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
    format!("{lock}, {builds}{age}{deny}")
}

/// A warning that lists the requirements without an exact version, unless there is a lock.
pub(super) fn unpinned(wanted: &PackageRequirements) -> Option<String> {
    let loose = wanted.requires.iter().filter(|required| !required.pinned);
    let loose: Vec<String> = loose
        .map(|required| format!("{} ({})", required.name, required.place))
        .collect();
    let few = match loose.split_at_checked(5) {
        Some((few, more)) if !more.is_empty() => {
            format!("{} and {} more", few.join(", "), more.len())
        }
        _ => loose.join(", "),
    };
    let few = if few.is_empty() {
        "what the packages themselves require".to_owned()
    } else {
        few
    };
    (!wanted.locked).then(|| {
        format!(
            "warning: not pinned, so another day may bring another version: {few}; `toolhost \
            deps lock` pins it"
        )
    })
}
