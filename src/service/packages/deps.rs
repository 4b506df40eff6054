//! What tools require, what that resolves to, and what policy says of it; `toolhost deps` asks for all of this. Answers of
//! installers are read as hostile: where they say that something comes from does not count.

use super::installer::Report;
use super::{Need, Packages, Resolved, under_way, unusable};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::packages;
use crate::packages::installed::Vendored;
use crate::packages::store::{BuildInfo, Entry};
use crate::policy::packages::{Ecosystem, Package};
use crate::policy::{self, Decision};
use crate::service::{Service, requirements};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SECONDS_OF_A_DAY: i64 = 24 * 3600;

impl Service {
    pub fn packages(&self) -> &Arc<Packages> {
        &self.packages
    }

    /// What a tool requires; `None`: nothing.
    pub fn need(&self, reference: &str) -> Result<Option<Need>, Fault> {
        let decisions = self.decisions()?;
        let tool = decisions.snapshot.find(reference)?;
        if tool.manifest.handler.is_ours() {
            let of = |language| {
                let machine = &decisions.rules.machine;
                requirements::of_source(&tool, language, &decisions.snapshot, &decisions.policies, machine)
            };
            let found = [Language::Python, Language::Nodejs].into_iter().map(of);
            return found
                .map(|decision| Need::of(&decision))
                .find(|need| !matches!(need, Ok(None)))
                .unwrap_or(Ok(None));
        }
        Need::of(&decisions.decided(&tool).decision)
    }

    /// What a person names for the source text of a builtin tool, and the lock that its policy names for that.
    pub fn need_named(&self, reference: &str, packages: &[String]) -> Result<(Need, PathBuf), Fault> {
        let decisions = self.decisions()?;
        let tool = decisions.snapshot.find(reference)?;
        let bad = |kind, why: &str| Err(Fault::new(kind, text::printable(why)).by_caller());
        if !tool.manifest.handler.is_ours() {
            return bad(Kind::ParameterValidationError, "this tool's packages are named in files beside its script");
        }
        let (policies, machine) = (&decisions.policies, &decisions.rules.machine);
        let decision = requirements::of_source(&tool, Language::Python, &decisions.snapshot, policies, machine);
        let allowed = decision.package_rules.get(&Ecosystem::Python).and_then(|allowed| allowed.as_ref().ok());
        let Some((allowed, path)) = allowed.and_then(|allowed| Some((allowed, allowed.lock_file.clone()?))) else {
            let why = format!(
                "no policy for {reference} names a lock: write [packages] python = {{ index = \"default\", lock_file = \"run-code.pylock.toml\", why = \"…\" }} into it"
            );
            return bad(Kind::CapabilityError, &why);
        };
        let Some(runtime) = decision.runtime.clone() else {
            return bad(Kind::CapabilityError, "this host has no Python");
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match packages::named(packages, name) {
            Err(why) => bad(Kind::ParameterValidationError, &why),
            Ok(wanted) => {
                let rules = allowed.rules.clone();
                let tool = format!("{}@{}", tool.manifest.id, tool.manifest.version);
                Ok((Need { tool, wanted: Arc::new(wanted), rules, runtime }, path))
            }
        }
    }

    /// The same, as if the lock that would be written were not there.
    pub fn need_anew(&self, reference: &str) -> Result<Option<Need>, Fault> {
        let decisions = self.decisions()?;
        let tool = decisions.snapshot.find(reference)?;
        Need::of(&requirements::anew(&tool, &decisions.snapshot, &decisions.policies, &decisions.rules.machine))
    }
}

impl Need {
    /// What a decided tool requires; `None`: nothing.
    pub fn of(decision: &Decision) -> Result<Option<Need>, Fault> {
        match (&decision.wanted, &decision.packages, &decision.shape) {
            // The files cannot be read, or disagree.
            (None, _, Err(fault)) if fault.kind == Kind::DependencyError => Err(fault.clone()),
            (None, ..) => Ok(None),
            (Some(wanted), Some(grant), Ok(shape)) => Ok(Some(Need {
                tool: decision.tool.clone(),
                wanted: Arc::clone(wanted),
                rules: grant.rules.clone(),
                runtime: shape.runtime.clone(),
            })),
            (.., Err(fault)) => Err(fault.clone()),
            (.., Ok(_)) => Err(Fault::new(Kind::SecurityError, "no policy lets this tool have packages")),
        }
    }
}

/// What there is for a tool by now.
pub struct PackageState {
    /// What its requirements were resolved to, where it has no lock.
    pub resolved: Option<Vec<Package>>,
    pub built: Option<Arc<Entry>>,
}

/// `None`: the tool requires no packages, or is not granted any. `Err`: in words for the person.
pub type PackageStatus = Option<Result<PackageState, String>>;

/// As audits have it.
pub fn value(found: &PackageStatus) -> Value {
    match found {
        None => Value::Null,
        Some(Err(why)) => json!({ "unreadable": why }),
        Some(Ok(PackageState { resolved, built })) => {
            let built = built.as_ref().map(|entry| {
                let (files, bytes) = (entry.files(), entry.bytes);
                json!({"key": entry.key, "about": entry.about, "files": files, "bytes": bytes, "starts": entry.starts})
            });
            json!({ "resolved": resolved, "built": built })
        }
    }
}

impl Packages {
    /// What is kept for a tool.
    pub fn found(&self, decision: &Decision) -> PackageStatus {
        let need = Need::of(decision).ok().flatten()?;
        Some(self.kept(&need).map_err(|fault| fault.person.unwrap_or(fault.message)))
    }

    /// Resolves what is required, whatever was resolved before.
    pub async fn lock(self: &Arc<Self>, need: &Need, report: Report<'_>) -> Result<Resolved, Fault> {
        let (store, key) = (self.store()?, self.resolved_key(need)?);
        let _lock = store.lock(&key).map_err(|e| unusable(&e))?.ok_or_else(under_way)?;
        let work = store.begin(&key).map_err(|e| unusable(&e))?;
        let resolved = self.resolve(need, &work.path, report).await?;
        allowed(need, &resolved.wanted.packages, None)?;
        Ok(resolved)
    }

    /// What is required, locked: what was resolved before, or is now.
    pub(super) async fn resolved(&self, need: &Need, work: &Path, report: Report<'_>) -> Result<Resolved, Fault> {
        let (store, key) = (self.store()?, self.resolved_key(need)?);
        if let Some(text) = store.resolved(&key) {
            return read(need, text);
        }
        let resolved = self.resolve(need, work, report).await?;
        store.keep_resolved(&key, &resolved.text).map_err(|e| unusable(&e))?;
        Ok(resolved)
    }

    async fn resolve(&self, need: &Need, work: &Path, report: Report<'_>) -> Result<Resolved, Fault> {
        read(need, self.installer(need, work, report)?.resolve(latest(need)).await?)
    }

    /// What is kept for a need. Nothing is resolved, built or made, not even the store.
    pub fn kept(&self, need: &Need) -> Result<PackageState, Fault> {
        if self.parts.store.as_ref().is_ok_and(|path| !path.exists()) {
            return Ok(PackageState { resolved: None, built: None });
        }
        let store = self.store()?;
        let resolved = if need.wanted.locked { None } else { store.resolved(&self.resolved_key(need)?) };
        let resolved = resolved.map(|text| read(need, text)).transpose()?;
        let built = store.entry(&self.key(need)?);
        Ok(PackageState { resolved: resolved.map(|resolved| resolved.wanted.packages), built })
    }

    /// Forgets what was resolved for requirements without a lock.
    pub fn forget(&self, need: &Need) -> Result<(), Fault> {
        self.store()?.forget(&self.resolved_key(need)?).map_err(|e| unusable(&e))
    }
}

/// Whether policy lets these packages in. `published`: when each was, where that is known by now.
pub(super) fn allowed(
    need: &Need,
    packages: &[Package],
    published: Option<&BTreeMap<String, String>>,
) -> Result<(), Fault> {
    let now = Timestamp::now();
    let ages = published.map(|published| {
        let age = |package: &Package| {
            let time = published.get(&format!("{} {}", package.name, package.version))?;
            let seconds = now.as_second().checked_sub(time.parse::<Timestamp>().ok()?.as_second())?;
            let days = u64::try_from(seconds / SECONDS_OF_A_DAY).ok()?;
            Some(((package.name.clone(), package.version.clone()), days))
        };
        packages.iter().filter_map(age).collect()
    });
    let refused = policy::refused_packages(&need.rules, need.wanted.ecosystem, packages, ages.as_ref());
    if refused.is_empty() {
        return Ok(());
    }
    let mut details = refused.join("\n");
    if !need.wanted.locked {
        let id = text::printable(need.tool.split('@').next().unwrap_or_default());
        details
            .push_str(&format!("\n`toolhost deps clean {id}` forgets what was resolved, so that it is resolved anew"));
    }
    let message = "this tool requires packages that this host never installs, so nothing was run";
    Err(Fault::new(Kind::DependencyError, message).details(details))
}

/// Whether policy lets in what was built: what was approved, and the copies inside it as far as their age is known.
pub(super) fn allows(need: &Need, about: &BuildInfo) -> Result<(), Fault> {
    allowed(need, &about.packages, Some(&about.published))?;
    let copies: Vec<Package> = about.vendored.iter().map(Vendored::package).collect();
    allowed(need, &copies, None)?;
    let known = |package: &Package| about.published.contains_key(&format!("{} {}", package.name, package.version));
    allowed(need, &copies.into_iter().filter(known).collect::<Vec<_>>(), Some(&about.published))
}

/// The latest moment at which a version may have been published.
fn latest(need: &Need) -> Option<String> {
    let days = i64::from(need.rules.min_age_days?);
    let second = Timestamp::now().as_second() - days * SECONDS_OF_A_DAY;
    Timestamp::from_second(second).ok().map(|time| time.to_string())
}

/// A lock that was resolved, read like one that lies beside a script.
fn read(need: &Need, text: String) -> Result<Resolved, Fault> {
    let wanted = packages::of_lock(&need.wanted, &text, &need.runtime.version).map_err(|problem| {
        let message = "what this tool's requirements resolve to cannot be used, so nothing was run";
        Fault::new(Kind::DependencyError, message).details(text::printable(&problem.problem.message))
    })?;
    Ok(Resolved { wanted, text })
}
