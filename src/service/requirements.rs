//! Adds to policy's decision about a script the packages that the files beside it request. A file
//! counts for its own script only.

use super::script::SkillScript;
use crate::manifest::{Language, ToolPaths};
use crate::packages::{self, PackageRequirements, ScriptLocation};
use crate::policy::packages::Ecosystem;
use crate::policy::{
    self, Allowance, Decision, FileProblem, Machine, Policies, RunTarget, decide_skill_script,
};
use crate::registry::{Snapshot, Tool};
use std::path::Path;
use std::sync::Arc;

/// What policy decides about a tool, with what its files ask for now. About an alias it decides
/// what it decides about its tool, and what holds for both.
pub fn decide(
    tool: &Tool,
    snapshot: &Snapshot,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    if let Some(target) = snapshot.behind(tool) {
        let own = crate::policy::decide(&tool.manifest, &tool.site, policies, machine);
        return decide(&target, snapshot, policies, machine).called_as_alias(own);
    }
    let mut decision = crate::policy::decide(&tool.manifest, &tool.site, policies, machine);
    if let Some(language) = tool.manifest.handler.language() {
        let script = ScriptOfTool {
            site: &tool.site,
            language,
            is_run: false,
            is_guest: tool.site.is_guest(),
        };
        script.add(&mut decision, snapshot, machine);
    }
    if tool.manifest.handler.script().is_none()
        && tool.manifest.skill().is_none()
        && decision
            .packages
            .allowed
            .values()
            .any(|allowed: &Allowance| {
                allowed
                    .as_ref()
                    .is_ok_and(|allowed| allowed.lock_file.is_some())
            })
    {
        decision.packages.runs = [Language::Python, Language::Nodejs]
            .map(|language| of_source(tool, language, snapshot, policies, machine))
            .into_iter()
            .filter(|it| it.packages.required.is_some() || it.refused().is_some())
            .collect();
    }
    decision
}

/// What policy decides about a tool, or a script of a skill, as if the lock that toolhost writes did
/// not exist.
pub(super) fn decide_unlocked(
    tool: &Tool,
    script: Option<&RunTarget>,
    snapshot: &Snapshot,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let mut decision = match script {
        Some(script) => decide_skill_script(&tool.manifest, script, policies, machine),
        None => crate::policy::decide(&tool.manifest, &tool.site, policies, machine),
    };
    let language = script.map(|script| script.language);
    if let Some(language) = language.or(tool.manifest.handler.language()) {
        let version = decision.grants.runtime.as_ref().map(|r| r.version.clone());
        let site = script.map_or(&tool.site, |script| &script.site);
        let script = ScriptOfTool {
            site,
            language,
            is_run: false,
            is_guest: site.is_guest(),
        };
        if let Some(found) = script.find_beside(version.as_deref(), true, snapshot) {
            decision.add_requirements(found, None, machine);
        }
    }
    decision
}

/// The decision about source text of this language that a builtin tool runs.
pub(super) fn of_source(
    tool: &Tool,
    language: Language,
    snapshot: &Snapshot,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let site = ToolPaths {
        manifest: "".into(),
        base: "".into(),
        script: None,
        folder: crate::sandbox::CALL_FOLDER.into(),
        links: Vec::new(),
    };
    let target = crate::policy::RunTarget {
        site: site.clone(),
        language,
    };
    let mut decision = crate::policy::decide_run(&target, &tool.manifest, &[], policies, machine);
    let script = ScriptOfTool {
        site: &site,
        language,
        is_run: true,
        is_guest: false,
    };
    script.add(&mut decision, snapshot, machine);
    decision
}

/// What policy decides about a script of a skill, with what the script asks for.
pub fn of_skill_script(
    skill: &Tool,
    script: &SkillScript,
    snapshot: &Snapshot,
    policies: &Policies,
    machine: &Machine,
) -> Decision {
    let target = RunTarget {
        site: script.site_in(skill),
        language: script.language,
    };
    let mut decision = decide_skill_script(&skill.manifest, &target, policies, machine);
    let required = ScriptOfTool {
        site: &target.site,
        language: target.language,
        is_run: true,
        is_guest: false,
    };
    if Ecosystem::for_language(target.language).is_some() {
        required.add(&mut decision, snapshot, machine);
    }
    decision
}

/// A script that a decision is about.
pub(super) struct ScriptOfTool<'a> {
    pub site: &'a ToolPaths,
    pub language: Language,
    /// A builtin tool runs it.
    pub is_run: bool,
    /// It lies in a folder of other tools than those that name it.
    pub is_guest: bool,
}

impl ScriptOfTool<'_> {
    /// Adds to the decision about the script what the files beside it ask for.
    pub(super) fn add(&self, decision: &mut Decision, snapshot: &Snapshot, machine: &Machine) {
        let version = decision
            .grants
            .runtime
            .as_ref()
            .map(|runtime| runtime.version.clone());
        let found = self.find_approved(decision, version.as_deref(), snapshot);
        let found = found.or_else(|| self.find_beside(version.as_deref(), false, snapshot));
        // Files beside the script, locked or not, count before the lock of the policy.
        let found = found
            .filter(|found| !matches!(found, Ok(None)))
            .or_else(|| of_policy(decision, self.language, self.is_run));
        let Some(found) = found else { return };
        let by_hand = by_hand(decision, self.site, self.language, &found);
        decision.add_requirements(found, by_hand, machine);
    }

    /// What the files ask for in the copy of its code that was approved. `None`: it has no copy.
    fn find_approved(
        &self,
        decision: &Decision,
        version: Option<&str>,
        snapshot: &Snapshot,
    ) -> Option<Result<Option<PackageRequirements>, FileProblem>> {
        let code = decision.approved_code()?;
        let copied = ToolPaths {
            folder: code.place_of(&self.site.folder),
            script: Some(code.place_of(self.site.script.as_deref()?)),
            ..self.site.clone()
        };
        let copied = ScriptOfTool {
            site: &copied,
            ..*self
        };
        let mut found = copied.find_beside(version, false, snapshot)?;
        if let Ok(Some(required)) = &mut found {
            for source in &mut required.sources {
                source.path = code.shown(&source.path);
            }
        }
        Some(found)
    }

    /// What the files beside it ask for. `ignore_lock`: without the lock that toolhost writes.
    fn find_beside(
        &self,
        version: Option<&str>,
        ignore_lock: bool,
        snapshot: &Snapshot,
    ) -> Option<Result<Option<PackageRequirements>, FileProblem>> {
        Some(packages::find(&ScriptLocation {
            script: self.site.script.as_deref()?,
            own: &self.site.folder,
            language: self.language,
            version: version.filter(|_| self.language != Language::Wasm),
            alone: self.is_guest || self.site.folder == self.site.base,
            ignore_lock,
            writer: &|path: &Path| snapshot.written.by(path),
        }))
    }
}

/// The packages that the policy gives to a script without such files, or to source text.
fn of_policy(
    decision: &mut Decision,
    language: Language,
    is_run: bool,
) -> Option<Result<Option<PackageRequirements>, FileProblem>> {
    let ecosystem = Ecosystem::for_language(language)?;
    if !is_run {
        let named = decision
            .packages
            .allowed
            .get(&ecosystem)
            .and_then(|allowed| allowed.as_ref().ok()?.lock_file.as_ref());
        let note = "warning: `lock_file` is for core:run-code and core:execute-*; this tool's lock \
            lies beside its script";
        decision.notes.all.extend(named.map(|_| note.to_owned()));
        return None;
    }
    let path = decision
        .packages
        .allowed
        .get(&ecosystem)?
        .as_ref()
        .ok()?
        .lock_file
        .as_ref()?;
    let version = decision
        .grants
        .runtime
        .as_ref()
        .map_or("", |runtime| runtime.version.as_str());
    let text = crate::policy::lock_file(path);
    Some(
        text.and_then(|text| packages::read_lock(path, &text, ecosystem, version))
            .map(Some),
    )
}

/// Says where packages were installed by hand: for the interpreter that the policy names, or beside
/// the script.
fn by_hand(
    decision: &Decision,
    site: &ToolPaths,
    language: Language,
    found: &Result<Option<PackageRequirements>, FileProblem>,
) -> Option<&'static str> {
    let runtime = decision.grants.runtime.as_ref();
    match language {
        Language::Python if runtime.is_some_and(|runtime| runtime.found != "PATH") => {
            Some("toolhost assumes that the interpreter of its policy has them")
        }
        Language::Python => {
            let Ok(Some(required)) = found else {
                return None;
            };
            if runtime?.environment.is_some() && !required.locked {
                return Some("the virtual environment beside the script has them (not checked)");
            }
            let has_all = packages::installed::has_all(runtime?, &required.requires);
            // A lock of uv beside them is a second file.
            (has_all && !required.locked && required.inputs.len() == 1)
                .then_some("the interpreter of this machine has them (not checked)")
        }
        Language::Nodejs | Language::Bun if site.folder.join("node_modules").is_dir() => {
            Some("node_modules beside the script is used unchanged")
        }
        _ => None,
    }
}

/// Ends the description of the tool that runs source text with the packages which the text may use.
pub fn name_packages(tool: &mut Arc<Tool>, decide: impl FnOnce(&Arc<Tool>) -> Decision) {
    if tool.manifest.id != policy::RUN_CODE {
        return;
    }
    let decision = decide(tool);
    let runs = decision.packages.runs.iter();
    let lines = runs.filter_map(|run| Some(packages_of(run.packages.required.as_ref()?)));
    let lines: String = lines.collect();
    if !lines.is_empty() {
        let manifest = &mut Arc::make_mut(tool).manifest;
        Arc::make_mut(manifest).description += &lines;
    }
}

fn packages_of(required: &PackageRequirements) -> String {
    let packages = required.packages.iter();
    let packages: Vec<String> = packages
        .map(|package| format!("{} {}", package.name, package.version))
        .collect();
    let language = match required.ecosystem {
        Ecosystem::Python => "Python",
        Ecosystem::Node => "Node.js",
    };
    format!("\n{language} packages: {}.", packages.join(", "))
}
