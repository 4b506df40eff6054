//! Packages: what the files of a script require ∩ the entry of the policy ∩ that of the cap, and what is never installed.
//!
//! An index is a name here; the configuration of the host has its address.

use super::document::{Document, FileProblem};
use super::file::Policy;
use super::grantable::{Entry, Grantable};
use super::needs::Need;
use super::verdict::{Decision, Narrower, RequestKind, Verdict, wall};
pub use super::versions::Ecosystem;
use super::{Machine, versions};
use crate::base::text::{self, printable};
use crate::fault::{Fault, Kind};
use crate::manifest::Code;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a script requires, as its files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRequirements {
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

impl PackageRequirements {
    /// What the lock holds, by the place where an installer puts it: a name of Python, a path below `node_modules`.
    pub fn places(&self) -> BTreeMap<String, Package> {
        match (self.ecosystem, self.inputs.first()) {
            (Ecosystem::Node, Some((_, places))) => serde_json::from_str(places).unwrap_or_default(),
            _ => self.packages.iter().map(|package| (package.name.clone(), package.clone())).collect(),
        }
    }

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

#[derive(Deserialize)]
struct PackageLine {
    index: String,
    #[serde(default)]
    lock: Lock,
    #[serde(default)]
    builds: bool,
    lock_file: Option<String>,
    why: String,
}

/// What is not written is not allowed: neither an unlocked package nor a build.
#[derive(Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Lock {
    #[default]
    Required,
    Relaxed,
}

/// The entries of a policy; `name`, `file`: the policy's.
pub(super) fn read(
    document: &mut Document<'_>,
    name: &str,
    file: &Path,
) -> BTreeMap<Ecosystem, Entry<PackagesAllowed>> {
    let deny: Vec<Denied> = document.list("/packages/deny").into_iter().map(|denied| check(document, denied)).collect();
    let min_age_days = document.get("/packages/min_age_days");
    let mut found = BTreeMap::new();
    for ecosystem in Ecosystem::ALL {
        let pointer = format!("/packages/{}", ecosystem.name());
        let Some(PackageLine { index, lock, builds, lock_file, why }) = document.get(&pointer) else { continue };
        let at = format!("{pointer}/index");
        document.parsed(&at, index_name(&index));
        let at = document.at(&at);
        let (lock_required, deny) = (lock == Lock::Required, deny.clone());
        let rules = PackageRules { index, lock_required, builds, deny, min_age_days, why };
        let (rule, place) = (format!("{name}: {}", ecosystem.name()), super::file::place(name, file, at));
        let lock_file = lock_file.map(|name| file.with_file_name(name));
        found.insert(ecosystem, Entry { grant: PackagesAllowed { rules, rule, place, lock_file }, at });
    }
    found
}

fn check(document: &mut Document<'_>, (pointer, denied): (String, Denied)) -> Denied {
    let shown = |text: &str| text::printable(&text::head(text, 60));
    if !Ecosystem::ALL.iter().any(|ecosystem| versions::name(*ecosystem, &denied.name).is_some()) {
        document.fault(&format!("{pointer}/name"), format!("`{}` is no name of a package", shown(&denied.name)));
    }
    let unknown = |range: &&String| !Ecosystem::ALL.iter().any(|ecosystem| versions::is_range(*ecosystem, range));
    if let Some(range) = denied.versions.as_ref().filter(unknown) {
        let message = format!(
            "`{}` is no range of versions, neither for Python (`>=1,<2`) nor for Node (`>=1 <2`); leave it out where no version is wanted",
            shown(range)
        );
        document.fault(&format!("{pointer}/versions"), message);
    }
    denied
}

/// The name of a lock that lies beside a policy.
pub(super) fn is_lock_name(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) && name.len() <= 200;
    let ends = [".pylock.toml", ".package-lock.json"].iter().any(|end| name.len() > end.len() && name.ends_with(end));
    plain && ends && !name.starts_with('.')
}

/// The name of an index, in a policy and in the host's configuration.
pub fn index_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(plain) && !name.starts_with('-') {
        return Ok(());
    }
    let shown = text::printable(&text::head(name, 60));
    Err(format!(
        "`{shown}` is no name of an index: letters, digits, `-` and `_`; its address stands in the host's configuration ([indexes.NAME])"
    ))
}

/// What a policy allows for one ecosystem, and where it says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagesAllowed {
    pub rules: PackageRules,
    /// `policy-name: python`
    pub rule: String,
    /// `file:line`, or the policy's name.
    pub place: String,
    /// The lock beside the policy, for what has none beside its script.
    pub lock_file: Option<PathBuf>,
}

/// Or who allows none, and why.
pub type Allowance = Result<PackagesAllowed, (Narrower, String)>;

/// The ages of packages in whole days, by name and version; one that is missing is not known.
pub type Ages = BTreeMap<(String, String), u64>;

/// What the policy and its cap allow for one ecosystem.
pub(super) fn allowed(ecosystem: Ecosystem, policy: &Policy, cap: Option<&Policy>) -> Allowance {
    let entry = |by: &Policy, narrower| {
        let none = || (narrower, format!("policy {} has no entry `{}` in [packages]", by.called(), ecosystem.name()));
        by.packages.get(&ecosystem).map(|entry| entry.grant.clone()).ok_or_else(none)
    };
    let allowed = entry(policy, Narrower::Policy)?;
    let Some(cap) = cap else { return Ok(allowed) };
    allowed.intersection(&entry(cap, Narrower::Host)?).map_err(|[ours, theirs]| {
        let reason = format!("policy {} names the index `{ours}`, and {} `{theirs}`", policy.called(), cap.called());
        (Narrower::Host, reason)
    })
}

impl PackagesAllowed {
    /// What both allow. `Err`: their indexes, where these are not one.
    fn intersection(self, other: &PackagesAllowed) -> Result<PackagesAllowed, [String; 2]> {
        let (ours, theirs) = (self.rules, &other.rules);
        if ours.index != theirs.index {
            return Err([ours.index, theirs.index.clone()]);
        }
        let mut deny = ours.deny.clone();
        deny.extend(theirs.deny.iter().filter(|denied| !ours.deny.contains(denied)).cloned());
        let rules = PackageRules {
            lock_required: ours.lock_required || theirs.lock_required,
            builds: ours.builds && theirs.builds,
            deny,
            // `None` is the smallest.
            min_age_days: ours.min_age_days.max(theirs.min_age_days),
            ..ours
        };
        Ok(PackagesAllowed { rules, ..self })
    }
}

/// Narrows what a script may have by what another tool, which names it, may have.
pub(super) fn narrow(ours: &mut BTreeMap<Ecosystem, Allowance>, theirs: &Decision) {
    for (ecosystem, allowance) in ours {
        let Ok(allowed) = allowance.clone() else { continue };
        let both = match theirs.package_rules.get(ecosystem) {
            None => Err(format!("it has no packages of {}", ecosystem.name())),
            Some(Err((_, why))) => Err(why.clone()),
            Some(Ok(other)) => {
                let differ = |[ours, theirs]: [String; 2]| format!("its index is `{theirs}`, not `{ours}`");
                allowed.intersection(other).map_err(differ)
            }
        };
        *allowance = both.map_err(|why| (Narrower::Manifest, format!("{} names this script, and {why}", theirs.tool)));
    }
}

/// Why packages are never installed, one sentence for each. `ages`: `None` before anybody asked for them.
pub fn refused(rules: &PackageRules, ecosystem: Ecosystem, packages: &[Package], ages: Option<&Ages>) -> Vec<String> {
    let denied = packages.iter().flat_map(|package| {
        let by = rules.deny.iter().filter(|denied| denies(denied, ecosystem, package));
        by.map(move |denied| format!("{} {} is denied: {}", package.name, package.version, denied.why))
    });
    let young = packages.iter().filter_map(|package| {
        let (least, ages) = (rules.min_age_days?, ages?);
        let shown = format!("{} {}", package.name, package.version);
        match ages.get(&(package.name.clone(), package.version.clone())) {
            None => Some(format!("{shown}: its age is not known, and it must be at least {least} days old")),
            Some(days) if *days < u64::from(least) => {
                Some(format!("{shown} is {days} days old, and must be at least {least}"))
            }
            Some(_) => None,
        }
    });
    denied.chain(young).map(|why| printable(&why)).collect()
}

/// A range that the ecosystem does not know denies every version.
fn denies(denied: &Denied, ecosystem: Ecosystem, package: &Package) -> bool {
    let same = match versions::name(ecosystem, &denied.name) {
        Some(name) => name.eq_ignore_ascii_case(&package.name),
        None => false,
    };
    let range = denied.versions.as_deref();
    same && range.is_none_or(|range| versions::may_hold(ecosystem, range, &package.version))
}

impl Decision {
    /// Takes over what the script's files ask for: into the shape, or as what keeps every call from starting. `by_hand`:
    /// where somebody installed the packages already, which then need no policy.
    pub fn wants(
        &mut self,
        asked: Result<Option<PackageRequirements>, FileProblem>,
        by_hand: Option<&str>,
        machine: &Machine,
    ) {
        let no_entry = |allowance: &Allowance| matches!(allowance, Err((Narrower::Policy, _)));
        let by_hand = by_hand.filter(|_| self.package_rules.values().all(no_entry));
        let note = |files: &str, how: &str| format!("{files}: nothing is installed; {how}");
        match (asked, by_hand) {
            (Ok(None), _) => {}
            (Ok(Some(wanted)), Some(how)) => self.notes.all.push(note(&names(&wanted.sources), how)),
            (Err(problem), Some(how)) => self.notes.all.push(note(&name(&problem.path), how)),
            (Ok(Some(wanted)), None) => self.judge_packages(wanted, machine),
            (Err(problem), None) => self.unreadable(&problem),
        }
    }

    /// Nothing is installed by half of what the files say.
    fn unreadable(&mut self, FileProblem { path, problem }: &FileProblem) {
        let name = name(path);
        let line = if problem.line > 0 { format!(":{}", problem.line) } else { String::new() };
        let words = format!("{name}{line}: {}", problem.message);
        self.verdicts.push(Verdict::denied(RequestKind::Package, &name, Narrower::Manifest, &*words, &[]));
        let message = match problem.code {
            Code::Unreadable => "the script's folder cannot be looked at, so the tool was not started",
            _ => "this tool's packages cannot be installed, so it was not started",
        };
        let fault = Fault::new(Kind::DependencyError, message);
        let place = format!("{}{line}: {}", text::path(path), printable(&problem.message));
        self.stop(fault.details(printable(&words)).person(place));
    }

    fn judge_packages(&mut self, wanted: PackageRequirements, machine: &Machine) {
        let (ecosystem, files) = (wanted.ecosystem, names(&wanted.sources));
        let name = ecosystem.name();
        let wanted = Arc::new(wanted);
        self.wanted = Some(wanted.clone());
        self.notes.all.extend(unpinned(&wanted));
        let allowed = match self.package_rules.get(&ecosystem).cloned() {
            Some(Ok(allowed)) => allowed,
            Some(Err((narrower, reason))) => {
                let also = if narrower == Narrower::Host { ", and into host.policy.toml" } else { "" };
                let words = format!(
                    "its {name} packages ({files}), which no policy allows it: write [packages] {name} = {{ index = \"default\", lock = \"required\", builds = false, why = \"…\" }} into its policy{also}"
                );
                let verdict = Verdict::denied(RequestKind::Package, format!("{name} ({files})"), narrower, reason, &[]);
                return self.lacking(verdict, words);
            }
            None => {
                let reason = "only scripts of Python, Node and Bun have packages";
                let verdict = Verdict::denied(RequestKind::Package, &*files, Narrower::House, reason, &[]);
                let words = format!(
                    "no packages ({files}): {reason}; take the file away, or give the module a folder of its own"
                );
                return self.lacking(verdict, words);
            }
        };
        let index = &allowed.rules.index;
        let Some(leads_to) = machine.indexes.get(&(ecosystem, index.clone())) else {
            let reason = format!("the host's configuration has no [indexes.{index}] for {name}");
            let verdict =
                Verdict::denied(RequestKind::Package, format!("{name} ({files})"), Narrower::Machine, reason, &[]);
            let words =
                format!("the index `{index}` for its {name} packages, which this host's configuration does not name");
            return self.lacking(verdict.because(&allowed.rule, &allowed.rules.why, &allowed.place), words);
        };
        let asked = format!("{name} ({files})");
        let refused = refused(&allowed.rules, ecosystem, &wanted.packages, None);
        if !refused.is_empty() {
            let verdict = Verdict::denied(RequestKind::Package, asked, Narrower::Policy, refused.join("; "), &[]);
            self.verdicts.push(verdict.because(&allowed.rule, &allowed.rules.why, &allowed.place));
            let fault = Fault::new(Kind::DependencyError, "this tool requires packages that this host never installs");
            let person = format!("{}: {} ({})", self.tool, refused.join("; "), allowed.place);
            self.stop(fault.details(refused.join("\n")).person(printable(&person)));
            return;
        }
        let effective = effective(&wanted, &allowed.rules, leads_to);
        let verdict = Verdict::met(RequestKind::Package, asked, effective, &[wall::VIEW]);
        self.verdicts.push(verdict.because(&allowed.rule, &allowed.rules.why, &allowed.place));
        let (locked, sources) = (wanted.locked, wanted.sources.clone());
        let PackagesAllowed { rules, rule, .. } = allowed;
        let grant = PackageGrant { ecosystem, rules, rule, locked, sources };
        if let Ok(shape) = &mut self.shape {
            Arc::make_mut(shape).packages = Some(grant.clone());
        }
        self.packages = Some(grant);
    }

    fn lacking(&mut self, verdict: Verdict, words: String) {
        self.verdicts.push(verdict);
        let fault = Fault::new(Kind::CapabilityError, format!("this tool cannot run here: it needs {words}"));
        let person = format!("{} is unavailable: it needs {words}", printable(&self.tool));
        self.lacks.push(Need::new("", words));
        self.stop(fault.person(person));
    }

    /// What refused the tool before stays its first reason.
    fn stop(&mut self, fault: Fault) {
        if self.shape.is_ok() {
            self.shape = Err(fault);
        }
    }
}

fn name(path: &Path) -> String {
    printable(&path.file_name().unwrap_or_default().to_string_lossy())
}

fn names(sources: &[Source]) -> String {
    sources.iter().map(|source| name(&source.path)).collect::<Vec<_>>().join(", ")
}

impl Grantable for PackageGrant {
    fn kind(&self) -> &'static str {
        "packages"
    }
    fn text(&self) -> String {
        let PackageGrant { ecosystem, rules, .. } = self;
        format!("{} from the index `{}`; {}", ecosystem.name(), rules.index, words(rules))
    }
    fn covers(&self, other: &PackageGrant) -> bool {
        let (wide, narrow) = (&self.rules, &other.rules);
        self.ecosystem == other.ecosystem
            && wide.index == narrow.index
            && (narrow.lock_required || !wide.lock_required)
            && (wide.builds || !narrow.builds)
            && wide.min_age_days <= narrow.min_age_days
            && wide.deny.iter().all(|denied| {
                narrow.deny.iter().any(|other| (&other.name, &other.versions) == (&denied.name, &denied.versions))
            })
    }
    fn is_near(&self, other: &PackageGrant) -> bool {
        self.ecosystem == other.ecosystem
    }
}

pub(super) fn words(rules: &PackageRules) -> String {
    let lock = if rules.lock_required { "lock required" } else { "lock relaxed" };
    let builds = if rules.builds { "builds allowed, without network" } else { "no builds" };
    let age = rules.min_age_days.map_or_else(String::new, |days| format!(", at least {days} days old"));
    let deny = if rules.deny.is_empty() { String::new() } else { format!(", {} denied", rules.deny.len()) };
    format!("{lock}, {builds}{age}{deny}")
}

fn effective(wanted: &PackageRequirements, rules: &PackageRules, leads_to: &str) -> String {
    let what = match (wanted.locked, wanted.lacks_lock(rules)) {
        (true, _) => format!("{} packages of its lock", wanted.packages.len()),
        (false, true) => "nothing before there is a lock (`toolhost deps lock`)".to_owned(),
        (false, false) => format!("what its {} requirements resolve to", wanted.requires.len()),
    };
    format!("{what}, from the index `{}` ({leads_to}); {}", rules.index, words(rules))
}

/// A warning of what another day would resolve otherwise.
fn unpinned(wanted: &PackageRequirements) -> Option<String> {
    let loose: Vec<String> =
        wanted.requires.iter().filter(|r| !r.pinned).map(|r| format!("{} ({})", r.name, r.place)).collect();
    let most = 5;
    let more = if loose.len() > most { format!(" and {} more", loose.len() - most) } else { String::new() };
    let few = loose.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    (!wanted.locked).then(|| match loose.is_empty() {
        true => "warning: no lock with hashes: what the packages themselves require is not pinned".to_owned(),
        false => format!(
            "warning: not pinned, so another day may bring another version: {few}{more}; `toolhost deps lock` pins them"
        ),
    })
}
