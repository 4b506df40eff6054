//! One immutable state of the registry: every tool that is loaded, and what became of every file.

use super::code::Folders;
use super::conflicts::folded;
use super::owner::{self, Ownership};
use super::tool::{self, Described, FileReport, Status, Tool};
use crate::base::{suggest, text};
use crate::fault::{Fault, Kind};
use crate::manifest::{self, Code, Problem, Severity, skill};
use crate::policy;
use semver::{Version, VersionReq};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most versions named in a message.
const MAX_NAMED: usize = 10;

/// Which tools to list: those that have any of the tags, and all of the other values that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub tags: Vec<String>,
    pub category: Option<String>,
    pub namespace: Option<String>,
    pub source: Option<String>,
}

impl Filter {
    pub fn takes(&self, tool: &Tool) -> bool {
        let manifest = &tool.manifest;
        fn is(wanted: &Option<String>, got: Option<&str>) -> bool {
            wanted.is_none() || wanted.as_deref() == got
        }
        (self.tags.is_empty() || manifest.tags.iter().any(|tag| self.tags.contains(tag)))
            && is(&self.category, manifest.metadata.category.as_deref())
            && is(&self.namespace, Some(manifest.namespace()))
            && is(&self.source, Some(&tool.source))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Per id, the lowest version first.
    pub(super) tools: BTreeMap<String, Vec<Arc<Tool>>>,
    /// Folded ids of tools that were refused and have no loaded version, with the reason for a
    /// person.
    pub(super) disabled: BTreeMap<String, String>,
    /// Services that tools may name, by their ids.
    pub services: BTreeMap<String, Described>,
    pub reports: Vec<FileReport>,
    pub warnings: Vec<String>,
    /// The folders that were looked at.
    pub folders: Vec<PathBuf>,
    /// The base folders among them.
    pub(super) bases: Vec<PathBuf>,
    /// Where tools may write now, or could before; only the latter until policies are read.
    pub written: policy::WritablePaths,
    /// Every manifest and script that is registered, loaded or not: no tool is given write access
    /// to one.
    pub files: Vec<PathBuf>,
    pub(super) ownership: Ownership,
    /// Folders that could not be listed completely, and manifests that could not be read; without
    /// those that a tool could write.
    pub(super) unlisted: BTreeSet<PathBuf>,
    pub(super) by_manifest: HashMap<PathBuf, Arc<Tool>>,
}

impl Snapshot {
    /// How many files are not loaded because something is wrong with them.
    pub fn skipped(&self) -> usize {
        self.skipped_files()
            .filter(|report| report.has_errors())
            .count()
    }

    /// Why a manifest was not loaded. `None`: it was loaded, or the reason does not have the code
    /// `Security`.
    pub fn refused(&self, manifest: &Path) -> Option<&str> {
        let report = self
            .skipped_files()
            .find(|report| report.path == manifest)?;
        report
            .problems
            .iter()
            .find(|problem: &&Problem| {
                problem.severity == Severity::Error && problem.code == Code::Security
            })
            .map(|problem| problem.message.as_str())
    }

    /// Adds these tools to the snapshot.
    pub(super) fn with(mut self, tools: Vec<Tool>) -> Snapshot {
        for tool in tools {
            self.tools
                .entry(tool.manifest.id.clone())
                .or_default()
                .push(Arc::new(tool));
        }
        for versions in self.tools.values_mut() {
            versions.sort_by(|a, b| a.manifest.version.cmp(&b.manifest.version));
        }
        let all = self.tools.values().flatten();
        let files = all.map(|tool| (tool.site.manifest.clone(), tool.clone()));
        self.by_manifest = files
            .filter(|(manifest, tool): &(PathBuf, Arc<Tool>)| {
                !manifest.as_os_str().is_empty() && tool.manifest.mcp_tool().is_none()
            })
            .collect();
        self
    }

    pub(super) fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.tools.values().flatten().map(Arc::as_ref)
    }

    /// Finds by `id`, `id@1.2.0` (exactly that), `id@1.2` (the highest 1.2.x) or `id@^1` (the
    /// highest stable 1.x).
    pub fn find(&self, reference: &str) -> Result<Arc<Tool>, Fault> {
        self.find_among(reference, &|_| true)
    }

    /// As `find`, for a caller who may know only some ids: any other tool is reported as unknown.
    pub fn find_among(
        &self,
        reference: &str,
        known: &dyn Fn(&str) -> bool,
    ) -> Result<Arc<Tool>, Fault> {
        let (id, range) = match reference.split_once('@') {
            Some((id, range)) => (id, Some(range.trim())),
            None => (reference, None),
        };
        let Some(versions) = self.tools.get(id).filter(|_| known(id)) else {
            return Err(self.not_found(id, known));
        };
        let found = match (range, range.and_then(|range| Version::parse(range).ok())) {
            (_, Some(exact)) => versions
                .iter()
                .find(|tool| tool.manifest.version.cmp_precedence(&exact).is_eq())
                .cloned(),
            (None, None) => highest(versions, &VersionReq::STAR),
            (Some(range), None) => manifest::version_range(range)
                .ok()
                .and_then(|range| highest(versions, &range)),
        };
        found.ok_or_else(|| mismatch(id, range, versions))
    }

    /// The tool that an alias stands for. `None`: it is not an alias.
    pub fn behind(&self, tool: &Tool) -> Option<Arc<Tool>> {
        self.find(&tool.manifest.alias()?.tool).ok()
    }

    /// The tool whose grants a call of this one has: that of an alias, the server of its tool.
    /// `None`: its own.
    pub fn of_grants(&self, tool: &Tool) -> Option<Arc<Tool>> {
        let target = self.behind(tool);
        let called = target.as_deref().unwrap_or(tool);
        let server = called.manifest.mcp_tool().and_then(|it| {
            let reference = format!("{}@{}", it.server.id, it.server.version);
            self.find(&reference).ok()
        });
        server.or(target)
    }

    /// All versions of one id, the lowest first; empty if there is none.
    pub fn versions(&self, id: &str) -> &[Arc<Tool>] {
        self.tools.get(id).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether somebody may call the tools of an id, who has these rights: an alias, only with a right
    /// to its tool, too; `core:run-skill-script`, with a right to any skill.
    pub fn opens(&self, id: &str, has_right: impl Fn(&str) -> bool) -> bool {
        if id == skill::RUN_SCRIPT {
            let mut ids = self.tools.keys();
            return ids.any(|id| id.split(':').next() == Some(skill::NAMESPACE) && has_right(id));
        }
        let versions = self.versions(id).iter();
        let mut aliases = versions.filter_map(|tool| tool.manifest.alias());
        has_right(id) && aliases.all(|alias| has_right(alias.id()))
    }

    /// The tools that the filter takes, in order of id and version.
    pub fn list(&self, filter: &Filter) -> Vec<Arc<Tool>> {
        self.tools
            .values()
            .flatten()
            .filter(|tool| filter.takes(tool))
            .cloned()
            .collect()
    }

    /// The policies with every file of this snapshot protected, and its code looked at: calls and
    /// audits decide by these.
    pub fn protect(&self, policies: &policy::Policies) -> policy::Policies {
        let mut policies = self.protected(policies);
        let records = policies.protected.records.as_deref();
        policies.code = Some(Arc::new(Folders::new(self.written.clone(), records)));
        policies
    }

    fn protected(&self, policies: &policy::Policies) -> policy::Policies {
        let mut policies = policies.clone();
        policies.protect(self.files.iter().cloned());
        policies
    }

    /// By these policies, sets which code tools share, and adds where they may write now to where
    /// they could before.
    pub(super) fn apply_policies(
        &mut self,
        policies: &policy::Policies,
        machine: &policy::Machine,
    ) {
        let mut written = owner::writable_paths(self.tools(), &self.protected(policies), machine);
        written.merge(&self.written);
        self.written = written;
    }

    /// The tools that bound a call of a script below this base. `Err`: a manifest that names the
    /// script and is not loaded, or a folder that could not be listed and may hold one: what it
    /// would deny is not known.
    pub fn owners(&self, script: &Path, base: &Path) -> Result<Vec<Arc<Tool>>, PathBuf> {
        let manifests = self.ownership.bounding_manifests(script, base);
        // Manifests elsewhere do not count if one that lies with the script names it.
        let settled = manifests.iter().any(|owner| {
            owner
                .parent()
                .is_some_and(|folder| script.starts_with(folder))
                && self.ownership.names(owner, script)
        });
        if let Some(folder) = self
            .unlisted
            .iter()
            .find(|folder| !settled || script.starts_with(folder))
        {
            return Err(folder.clone());
        }
        let loaded = manifests
            .into_iter()
            .filter_map(|path| match self.by_manifest.get(path) {
                Some(tool) => Some(Ok(tool.clone())),
                // It owns the folder but names another script, so it denies nothing about this one.
                None if !self.ownership.names(path, script) => None,
                None => Some(Err(path.to_path_buf())),
            });
        loaded.collect()
    }

    fn not_found(&self, id: &str, known: &dyn Fn(&str) -> bool) -> Fault {
        let shown = text::printable(&text::head(id, 120));
        fn fault(message: String) -> Fault {
            Fault::new(Kind::ToolNotFoundError, message)
        }
        // An id claimed twice, the namespace `core`, a file that a tool may write: only `person`
        // says which.
        if let Some(why) = self.disabled.get(&folded(id)).filter(|_| known(id)) {
            let words =
                "is disabled: its manifest cannot be loaded beside the others. Ask the operator.";
            return fault(format!("The tool '{shown}' {words}"))
                .person(format!("the tool '{shown}' is disabled: {why}"));
        }
        if known(id) && self.skipped_files().any(|report| report.id() == Some(id)) {
            let words = "is not loaded: its manifest has a fault. Ask the operator.";
            return fault(format!("The tool '{shown}' {words}"))
                .person(self.unread(id).unwrap_or_default());
        }
        let end = match self.near(id, known).join(", ") {
            near if near.is_empty() => "No known name is like it.".to_owned(),
            near => format!("Did you mean {near}?"),
        };
        let fault = fault(format!("Unknown tool '{shown}'. {end}"));
        let why = self.unread(id).or_else(|| self.nothing_found());
        fault.person(why.unwrap_or_else(|| "`toolhost list` shows all names".to_owned()))
    }

    pub(super) fn skipped_files(&self) -> impl Iterator<Item = &FileReport> {
        self.reports
            .iter()
            .filter(|report| report.status == Status::Skipped)
    }

    /// If no manifest was found at all: the folders in which one was looked for, in words.
    pub fn nothing_found(&self) -> Option<String> {
        let mut names = self
            .reports
            .iter()
            .filter_map(|report| report.path.file_name());
        if !self.by_manifest.is_empty()
            || names.any(|name| tool::is_manifest_file(&name.to_string_lossy()))
        {
            return None;
        }
        let shown: Vec<String> = self
            .folders
            .iter()
            .filter(|folder| {
                !self
                    .folders
                    .iter()
                    .any(|above| above != *folder && folder.starts_with(above))
            })
            .map(|folder| text::path(folder))
            .collect();
        Some(if shown.is_empty() {
            "there is no folder of tools: neither tool-defs nor user_scripts below the \
                     root, nor another that was named"
                .to_owned()
        } else {
            format!(
                "no manifest in or below {}: manifest names end with {}",
                shown.join(", "),
                tool::ENDING
            )
        })
    }

    /// The worst fault of a file that was not loaded, preferably one that looks like this tool, and
    /// how many others.
    fn unread(&self, id: &str) -> Option<String> {
        let name = id.rsplit_once(':').map_or(id, |(_, name)| name);
        fn worst(report: &FileReport) -> Option<Severity> {
            report.problems.iter().map(|problem| problem.severity).max()
        }
        let mut skipped: Vec<_> = self
            .skipped_files()
            .filter(|report| worst(report) > Some(Severity::Note))
            .collect();
        skipped.sort_by_key(|report| {
            (
                report.id() != Some(id),
                Reverse(worst(report)),
                !report.path.to_string_lossy().contains(name),
            )
        });
        let first = skipped.first()?;
        let problem = first
            .problems
            .iter()
            .find(|problem| Some(problem.severity) == worst(first))?;
        let rest = match skipped.len() {
            1 => String::new(),
            n => format!("\nand {} more: `toolhost check`", n - 1),
        };
        let mut place = text::path(&first.path);
        let line = problem.line;
        let column = problem.column;
        if line > 0 {
            place += &format!(":{line}:{column}");
        }
        Some(format!(
            "not loaded: {place}: {}{rest}",
            text::printable(&problem.message)
        ))
    }

    /// Up to three ids that may have been meant. Tools that are not listed are not offered.
    fn near(&self, id: &str, known: &dyn Fn(&str) -> bool) -> Vec<String> {
        let ids: Vec<&str> = self
            .tools
            .keys()
            .map(String::as_str)
            .filter(|id| known(id))
            .filter(|id: &&str| self.versions(id).iter().any(|tool| tool.manifest.is_listed))
            .collect();
        // `echo` for `custom:echo`, `ns__echo` for `ns:echo`.
        let name = id
            .rsplit_once("__")
            .or(id.rsplit_once(':'))
            .map_or(id, |(_, name)| name);
        let mut near: Vec<&str> = suggest::nearest(id, ids.iter().copied())
            .into_iter()
            .collect();
        let others = ids
            .into_iter()
            .filter(|id: &&str| {
                id.split_once(':')
                    .is_some_and(|(_, own)| own.eq_ignore_ascii_case(name))
            })
            .filter(|id| !near.contains(id))
            .collect::<Vec<_>>();
        near.extend(others);
        near.iter().take(3).map(|id| format!("'{id}'")).collect()
    }
}

/// The highest stable version that fits; a prerelease only if the range itself names one.
fn highest(versions: &[Arc<Tool>], range: &VersionReq) -> Option<Arc<Tool>> {
    let names_prerelease = range
        .comparators
        .iter()
        .any(|comparator| !comparator.pre.is_empty());
    let fits = |tool: &&Arc<Tool>| {
        let version = &tool.manifest.version;
        (version.pre.is_empty() || names_prerelease) && range.matches(version)
    };
    let stable = versions
        .iter()
        .rev()
        .filter(fits)
        .find(|tool| tool.manifest.version.pre.is_empty());
    stable.or_else(|| versions.iter().rev().find(fits)).cloned()
}

/// No version fits, or the range cannot be read. Lists the versions, and suggests the newest: a
/// stable one, if there is any.
fn mismatch(id: &str, range: Option<&str>, versions: &[Arc<Tool>]) -> Fault {
    let wanted = match range.map(|range| text::printable(&text::head(range, 60))) {
        None => "has no stable version".to_owned(),
        Some(range) => {
            format!("has no version that fits '{range}' (write 1.2.0, 1.2, ^1 or >=1.2, <2)")
        }
    };
    let listed: Vec<_> = versions
        .iter()
        .rev()
        .take(MAX_NAMED)
        .map(|tool| tool.manifest.version.to_string())
        .collect();
    let message = format!("The tool '{id}' {wanted}; there is {}.", listed.join(", "));
    let stable = versions
        .iter()
        .rev()
        .find(|tool| tool.manifest.version.pre.is_empty())
        .or(versions.last());
    let example = stable
        .map(|tool| format!("{id}@{}", tool.manifest.version))
        .unwrap_or_default();
    Fault::new(Kind::VersionMismatchError, message).details(format!("Name one exactly: {example}"))
}
