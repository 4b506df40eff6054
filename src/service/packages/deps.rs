//! The packages that tools require, and which of them exist: for `toolhost deps` and reports.

use super::build::{self, Packages, ResolvedLock, under_way};
use super::need::{LineSink, Need, unusable};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::{Handler, Language, Skill};
use crate::packages;
use crate::packages::store::BuiltEnvironment;
use crate::policy::packages::{Ecosystem, Package, PackageRules};
use crate::policy::{Advisories, Decision, RunTarget};
use crate::registry::Tool;
use crate::service::catalog::Catalog;
use crate::service::requirements;
use crate::service::script::SkillScript;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// What a tool requires, for each language that it runs.
pub fn needs(catalog: &Catalog, reference: &str) -> Result<Vec<Need>, Fault> {
    let decisions = catalog.decisions()?;
    let tool = decisions.snapshot.find(reference)?;
    let decided = decisions.decided(&tool);
    let needs = runs(&decided.decision)
        .iter()
        .filter_map(|it| Need::from_decision(it).transpose());
    needs.collect()
}

/// The decision about the tool's script, or those about the languages that it runs.
fn runs(decision: &Decision) -> &[Decision] {
    match &decision.packages.runs[..] {
        [] => std::slice::from_ref(decision),
        runs => runs,
    }
}

fn bad(kind: Kind, why: &str) -> Fault {
    Fault::new(kind, text::printable(why)).by_caller()
}

/// The packages that a person names for the code of a builtin tool, and the lock file that its
/// policy names. `language`: of the code, where the person says it.
pub fn need_named(
    catalog: &Catalog,
    reference: &str,
    packages: &[String],
    language: Option<Language>,
) -> Result<(Need, PathBuf), Fault> {
    let decisions = catalog.decisions()?;
    let tool = decisions.snapshot.find(reference)?;
    let Handler::ServiceMethod { language: own, .. } = &tool.manifest.handler else {
        let why = "for this tool, name the packages in files beside its script";
        return Err(bad(Kind::ParameterValidationError, why));
    };
    let decide = |language| {
        let machine = &decisions.rules.machine;
        requirements::of_source(
            &tool,
            language,
            &decisions.snapshot,
            &decisions.policies,
            machine,
        )
    };
    let decided = decisions.decided(&tool);
    let (ecosystem, rules, path) = lock_named(&decided.decision, reference, language.or(*own))?;
    let language = match ecosystem {
        Ecosystem::Python => Language::Python,
        Ecosystem::Node => Language::Nodejs,
    };
    let runtime = decide(language).grants.runtime.ok_or_else(|| {
        let why = format!("this host has no {}", language.name());
        bad(Kind::CapabilityError, &why)
    })?;
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let wanted = packages::from_command_line(ecosystem, packages, name);
    let wanted = Arc::new(wanted.map_err(|why| bad(Kind::ParameterValidationError, &why))?);
    Ok((
        Need {
            tool: tool.reference(),
            wanted,
            rules,
            runtime,
        },
        path,
    ))
}

/// Whose lock is written: that of the language, else of the one for which the policy names a lock.
fn lock_named(
    decision: &Decision,
    reference: &str,
    language: Option<Language>,
) -> Result<(Ecosystem, PackageRules, PathBuf), Fault> {
    let wanted = language.and_then(Ecosystem::for_language);
    let allows = |it: &Ecosystem| decision.packages.allowed.get(it).is_some_and(Result::is_ok);
    let mut locks: Vec<_> = decision
        .packages
        .allowed
        .iter()
        .filter(|(ecosystem, _)| wanted.is_none_or(|wanted| wanted == **ecosystem))
        .filter_map(|(ecosystem, allowed)| {
            let allowed = allowed.as_ref().ok()?;
            Some((
                *ecosystem,
                allowed.rules.clone(),
                allowed.lock_file.clone()?,
            ))
        })
        .collect();
    match (locks.pop(), locks.is_empty()) {
        (Some(lock), true) => Ok(lock),
        (Some(_), false) => {
            let why = format!(
                "the policy of {reference} names a lock for each language: add --language python or \
                 --language nodejs"
            );
            Err(bad(Kind::ParameterValidationError, &why))
        }
        (None, _) => {
            let is_node = allows(&Ecosystem::Node) && !allows(&Ecosystem::Python);
            let (name, ending) = match wanted {
                Some(Ecosystem::Node) => ("node", "package-lock.json"),
                None if is_node => ("node", "package-lock.json"),
                _ => ("python", "pylock.toml"),
            };
            let why = format!(
                "no policy for {reference} names a lock: write `[packages]` and, on a line below, \
                 `{name} = {{ index = \"default\", lock_file = \"run-code.{ending}\", why = \"…\" \
                 }}` into it"
            );
            Err(bad(Kind::CapabilityError, &why))
        }
    }
}

/// Like `needs`, but as if the locks that will be written did not exist; of a skill, what each of its
/// scripts requires. An approval covers the lock, so the tool may wait for one, and so may an MCP
/// server for its list.
pub fn needs_unlocked(catalog: &Catalog, reference: &str) -> Result<Vec<Need>, Fault> {
    let decisions = catalog.decisions()?;
    let found = decisions.snapshot.find(reference)?;
    let mut tool = Tool::clone(&found);
    if let Handler::McpServer(server) = &mut Arc::make_mut(&mut tool.manifest).handler {
        server.listed.get_or_insert_default();
    }
    let policies = &decisions.policies.without_approvals();
    let scripts = tool.manifest.skill().into_iter().flat_map(Skill::scripts);
    let scripts = scripts.filter(|(_, language)| Ecosystem::for_language(*language).is_some());
    let mut scripts: Vec<Option<RunTarget>> = scripts
        .map(|(path, language)| {
            let path = path.clone();
            let site = SkillScript { path, language }.site_in(&tool);
            Some(RunTarget { site, language })
        })
        .collect();
    if scripts.is_empty() {
        scripts.push(None);
    }
    let needs = scripts.iter().filter_map(|script| {
        let decision = requirements::decide_unlocked(
            &tool,
            script.as_ref(),
            &decisions.snapshot,
            policies,
            &decisions.rules.machine,
        );
        Need::from_decision(&decision).transpose()
    });
    needs.collect()
}

/// The packages that exist for a tool.
pub struct PackageState {
    /// What its requirements were resolved to, where it has no lock.
    pub resolved: Option<Vec<Package>>,
    pub built: Option<Arc<BuiltEnvironment>>,
}

/// `None`: the tool requires no packages, or is not granted any. `Err`: in words for the person.
pub type PackageStatus = Option<Result<PackageState, String>>;

/// As JSON for audits.
pub fn value(found: &PackageStatus) -> Value {
    match found {
        None => Value::Null,
        Some(Err(why)) => json!({ "unreadable": why }),
        Some(Ok(PackageState { resolved, built })) => {
            let built = built.as_ref().map(|entry| {
                let files = entry.files();
 let bytes = entry.bytes;
                json!({"key": entry.key, "about": entry.about, "files": files, "bytes": bytes, "starts": entry.starts})
            });
            json!({ "resolved": resolved, "built": built })
        }
    }
}

/// The versions that a tool's files, or its policy's lock, hold in one ecosystem.
pub struct Held {
    pub tool: String,
    pub ecosystem: Ecosystem,
    /// Empty without a lock, unless versions were resolved.
    pub packages: Vec<Package>,
    /// Those that the tool's policies name.
    pub advisories: Vec<Advisories>,
}

impl Packages {
    /// What a tool holds, whether policy lets it have that or not.
    pub fn held(&self, catalog: &Catalog, reference: &str) -> Result<Vec<Held>, Fault> {
        let decisions = catalog.decisions()?;
        let tool = decisions.snapshot.find(reference)?;
        let decided = decisions.decided(&tool);
        let held = runs(&decided.decision).iter().filter_map(|run| {
            let Some(required) = &run.packages.required else {
                let fault = run.refused()?;
                return (fault.kind == Kind::DependencyError).then(|| Err(fault.clone()));
            };
            let allowed = run.packages.allowed.get(&required.ecosystem);
            let allowed = allowed.and_then(|allowed| allowed.as_ref().ok());
            let resolved = self.found(run).and_then(|found| found.ok()?.resolved);
            Some(Ok(Held {
                tool: tool.reference(),
                ecosystem: required.ecosystem,
                packages: resolved.unwrap_or_else(|| required.packages.clone()),
                advisories: allowed.map_or_else(Vec::new, |it| it.rules.advisories.clone()),
            }))
        });
        held.collect()
    }

    /// The packages that exist for a decided tool.
    pub fn found(&self, decision: &Decision) -> PackageStatus {
        let need = Need::from_decision(decision).ok().flatten()?;
        Some(
            self.kept(&need)
                .map_err(|fault| fault.person.unwrap_or(fault.message)),
        )
    }

    /// Resolves the requirements, whatever was resolved before.
    pub async fn lock(
        self: &Arc<Self>,
        need: &Need,
        report: LineSink<'_>,
    ) -> Result<ResolvedLock, Fault> {
        let store = self.store()?;
        let key = self.resolved_key(need)?;
        let _lock = store.lock(&key).map_err(unusable)?.ok_or_else(under_way)?;
        let work = store.begin(&key).map_err(unusable)?;
        let resolved = self.resolve(need, &work.path, report).await?;
        build::check_allowed(need, &resolved.wanted.packages, None)?;
        Ok(resolved)
    }

    /// The packages that exist for a need. Resolves and builds nothing, and does not create the
    /// store.
    pub fn kept(&self, need: &Need) -> Result<PackageState, Fault> {
        if self
            .settings
            .store
            .as_ref()
            .is_ok_and(|path| !path.exists())
        {
            return Ok(PackageState {
                resolved: None,
                built: None,
            });
        }
        let store = self.store()?;
        let resolved = if need.wanted.locked {
            None
        } else {
            store.resolved(&self.resolved_key(need)?)
        };
        let resolved = resolved
            .map(|text| build::read_lock(need, text))
            .transpose()?;
        let built = store.entry(&self.key(need)?);
        Ok(PackageState {
            resolved: resolved.map(|resolved| resolved.wanted.packages),
            built,
        })
    }

    /// Forgets what was resolved for requirements without a lock.
    pub fn forget(&self, need: &Need) -> Result<(), Fault> {
        self.store()?
            .forget(&self.resolved_key(need)?)
            .map_err(unusable)
    }
}
