//! The registry itself: sources in, snapshots out. A snapshot is built aside and swapped whole; a
//! failed refresh changes no tool.

use super::aliases;
use super::conflicts::{self, Incumbents, Refused};
use super::listed;
use super::owner::{self, Ownership};
use super::snapshot::Snapshot;
use super::tool::{
    self, Claim, Described, Discovery, ENDING, FileReport, IN_PROCESS, Source, Status, Tool,
    nowhere,
};
use super::{load, remote_source};
use crate::base::{lock, text};
use crate::fault::{Fault, Kind};
use crate::manifest::{self, Code, Problem, Severity};
use crate::policy;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

#[derive(Default)]
pub struct Registry {
    state: Mutex<State>,
    current: RwLock<Arc<Snapshot>>,
    /// The next snapshot is to be built once somebody asks for it.
    outdated: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The policies that govern every tool, and the facts of the machine.
    rules: Option<(Arc<policy::Policies>, Arc<policy::Machine>)>,
    /// Where tools could write before, even if they no longer may.
    earlier: policy::WritablePaths,
    sources: Vec<LoadedSource>,
    in_process: Vec<Tool>,
    /// Loaded tools count as new: they were loaded under other rules, or none.
    all_are_new: bool,
    /// Files that were read since the last snapshot.
    unlogged: BTreeSet<PathBuf>,
}

struct LoadedSource {
    source: Arc<dyn Source>,
    found: Discovery,
    /// Why the last refresh changed nothing, or left single tools as they were.
    stale: Vec<String>,
}

/// The tools that own their scripts, and those that were refused.
struct Owned {
    tools: Vec<Tool>,
    refused: Vec<Refused>,
    ownership: Ownership,
    files: Vec<PathBuf>,
    /// The places from which nothing is loaded.
    unloaded: policy::WritablePaths,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// The present tools. Calls that hold a snapshot keep its definitions, whatever changes.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        if self.outdated.load(Ordering::Acquire) {
            self.publish_changes(&mut lock(&self.state));
        }
        self.current()
    }

    fn publish_changes(&self, state: &mut State) {
        if self.outdated.load(Ordering::Acquire) {
            self.publish(state);
        }
    }

    fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the policies. Then nothing is loaded that a tool may write: a tool cannot make tools.
    pub fn set_policies(&self, policies: Arc<policy::Policies>, machine: Arc<policy::Machine>) {
        let mut state = lock(&self.state);
        if !state
            .rules
            .as_ref()
            .is_some_and(|(p, m): &(_, _)| Arc::ptr_eq(p, &policies) && Arc::ptr_eq(m, &machine))
        {
            state.rules = Some((policies, machine));
            state.all_are_new = true;
            self.outdated.store(true, Ordering::Release);
        }
    }

    /// Adds places where tools could write in earlier calls: nothing there is loaded either.
    pub fn add_earlier_writes(&self, places: &policy::WritablePaths) {
        let mut state = lock(&self.state);
        state.earlier.merge(places);
        state.all_are_new = true;
        self.outdated.store(true, Ordering::Release);
    }

    /// Adds a source and loads it.
    pub fn add_source(&self, source: Arc<dyn Source>) -> Result<(), String> {
        let mut state = lock(&self.state);
        let id = source.id().to_owned();
        if id == IN_PROCESS || state.sources.iter().any(|entry| entry.source.id() == id) {
            return Err(format!("there already is a source '{id}'"));
        }
        // The tools of sources before this one count as loaded: no newcomer takes over an id.
        if state
            .sources
            .iter()
            .any(|entry| entry.source.id() != load::BUILTIN)
        {
            self.publish_changes(&mut state);
        }
        let found = source.discover()?;
        state
            .unlogged
            .extend(found.reports.iter().map(|report| report.path.clone()));
        state.sources.push(LoadedSource {
            source,
            found,
            stale: Vec::new(),
        });
        self.outdated.store(true, Ordering::Release);
        Ok(())
    }

    /// Puts a source in the place of the one with its id, from the next refresh on.
    pub fn replace_source(&self, source: Arc<dyn Source>) {
        let sources = &mut lock(&self.state).sources;
        for entry in sources {
            if entry.source.id() == source.id() {
                entry.source = source.clone();
            }
        }
    }

    /// Asks a source again and replaces its tools. An unknown id is a no-op. When the source, or a
    /// whole folder of it, cannot be read, the old tools stay and the error is returned and kept in
    /// `warnings`.
    pub fn refresh_source(&self, id: &str) -> Result<(), String> {
        let mut state = lock(&self.state);
        self.publish_changes(&mut state);
        let state = &mut *state;
        let Some(entry) = state
            .sources
            .iter_mut()
            .find(|entry| entry.source.id() == id)
        else {
            return Ok(());
        };
        let known = &entry.found.incomplete;
        let found = entry.source.discover().and_then(|found| {
            match found.incomplete.iter().find(|why| !known.contains(why)) {
                Some(why) => Err(why.clone()),
                None => Ok(found),
            }
        });
        let result = match found {
            Ok(mut found) => {
                state
                    .unlogged
                    .extend(found.reports.iter().map(|report| report.path.clone()));
                entry.stale = keep_broken(&entry.found, &mut found);
                entry.found = found;
                Ok(())
            }
            Err(why) => {
                let message =
                    format!("source '{id}' could not be refreshed, its old tools stay: {why}");
                entry.stale = vec![message.clone()];
                Err(message)
            }
        };
        entry
            .stale
            .iter()
            .for_each(|message| tracing::error!("{message}"));
        self.publish(state);
        result
    }

    /// Uses the snapshot of another registry, for a host of one call that reads its files again.
    pub fn adopt(&self, other: &Registry) {
        let snapshot = other.snapshot();
        self.outdated.store(false, Ordering::Release);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// Asks every source again. Returns what failed; each failure keeps that source's old tools.
    pub fn refresh(&self) -> Vec<String> {
        let ids: Vec<String> = lock(&self.state)
            .sources
            .iter()
            .map(|entry| entry.source.id().to_owned())
            .collect();
        ids.iter()
            .filter_map(|id| self.refresh_source(id).err())
            .collect()
    }

    /// Registers a tool of this process. `document`: a manifest, in which version and display name
    /// may be missing. `kind`: the `x-…` type for which its executor is registered, which becomes
    /// the handler.
    pub fn register(&self, document: Value, kind: &str) -> Result<Arc<Tool>, Fault> {
        let mut state = lock(&self.state);
        self.publish_changes(&mut state);
        let tool = in_process(document, kind)?;
        let id = tool.manifest.id.clone();
        let version = tool.manifest.version.clone();
        let same = |t: &Tool| t.manifest.id == id && t.manifest.version == version;
        if state.in_process.iter().any(same) {
            return Err(invalid(format!(
                "Tool registration failed: {id}@{version} is already registered; unregister it \
                first."
            )));
        }
        let candidates = candidates(&state)
            .0
            .into_iter()
            .chain([tool.clone()])
            .collect();
        let (_, refused) = conflicts::settle_ids(candidates, None);
        if let Some(refused) = refused
            .into_iter()
            .find(|r| r.tool.source == IN_PROCESS && same(&r.tool))
        {
            return Err(
                invalid(format!("Tool registration failed: the name {id} is taken."))
                    .person(refused.message),
            );
        }
        state.in_process.push(tool);
        self.publish(&mut state);
        self.current().find(&format!("{id}@{version}"))
    }

    /// Removes every version of an in-process tool; false if there was none.
    pub fn unregister(&self, id: &str) -> bool {
        let mut state = lock(&self.state);
        let before = state.in_process.len();
        state.in_process.retain(|tool| tool.manifest.id != id);
        let removed = state.in_process.len() < before;
        if removed {
            self.publish(&mut state);
        }
        removed
    }

    /// Builds the next snapshot and swaps it in.
    fn publish(&self, state: &mut State) {
        let previous = self.current();
        let incumbents = Incumbents::new(previous.tools());
        // Tools that stay loaded, whatever others may write.
        let standing = if state.all_are_new {
            &Incumbents::default()
        } else {
            &incumbents
        };
        let (tools, described) = candidates(state);
        let mut owned = own(state, tools, state.earlier.clone());
        if let Some((policies, machine)) = &state.rules {
            let mut unloaded = owner::own_trees(&owned.tools, policies, machine, standing);
            if unloaded.places().next().is_some() {
                // A running call may still write where its tool no longer may.
                unloaded.merge(&state.earlier);
                owned = own(state, candidates(state).0, unloaded);
            }
        }
        let Owned {
            tools,
            refused: foreign,
            ownership,
            files,
            unloaded,
        } = owned;
        let (mut tools, mut refused) =
            conflicts::settle_ids(tools, state.rules.as_ref().map(|(policies, _)| &**policies));
        refused.extend(foreign);
        let (services, mut problems) = conflicts::settle_services(
            described,
            &unloaded,
            &previous.services,
            &mut tools,
            &mut refused,
        );
        problems.extend(listed::add_tools(&mut tools, &refused));
        aliases::settle(&mut tools, &mut refused);
        conflicts::settle_requires(&mut tools);
        let mut reports: Vec<FileReport> = state
            .sources
            .iter()
            .flat_map(|entry| entry.found.reports.clone())
            .collect();
        let disabled = report_refused(&mut reports, refused, problems, &tools);
        let found = || state.sources.iter().map(|entry| &entry.found);
        // Folders that may hold manifests, and manifests, that could not be read.
        let closed = found()
            .flat_map(|found| &found.claims)
            .filter(|claim| claim.scripts.is_none());
        let unlisted = found()
            .flat_map(|found| &found.unlisted)
            .chain(closed.map(|claim| &claim.manifest));
        let rest = Snapshot {
            disabled,
            services,
            reports,
            warnings: state
                .sources
                .iter()
                .flat_map(|entry| entry.stale.clone())
                .collect(),
            folders: found().flat_map(|found| found.folders.clone()).collect(),
            bases: found().flat_map(|found| found.bases.clone()).collect(),
            unlisted: unlisted
                .filter(|folder| unloaded.by(folder).is_none())
                .cloned()
                .collect(),
            written: unloaded,
            files,
            ownership,
            ..Snapshot::default()
        };
        let mut next = rest.with(tools);
        if let Some((policies, machine)) = &state.rules {
            next.apply_policies(policies, machine);
        }
        state.earlier.merge(&next.written);
        state.all_are_new = false;
        log(&next.reports, &std::mem::take(&mut state.unlogged));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        self.outdated.store(false, Ordering::Release);
    }
}

/// All tools and services that sources offer.
fn candidates(state: &State) -> (Vec<Tool>, Vec<Described>) {
    let mut tools = state
        .sources
        .iter()
        .flat_map(|entry| &entry.found.tools)
        .chain(&state.in_process)
        .cloned()
        .collect();
    let mut services = state
        .sources
        .iter()
        .flat_map(|entry| entry.found.services.clone())
        .collect();
    remote_source::drop_taken(&mut tools, &mut services);
    (tools, services)
}

/// Decides which of these tools own their scripts. No file below the trees of `unloaded` counts.
fn own(state: &State, mut tools: Vec<Tool>, unloaded: policy::WritablePaths) -> Owned {
    // First: a file that a tool wrote must not even conflict with another tool.
    let mut refused = owner::withhold(&mut tools, &unloaded);
    // A manifest that a tool could write claims no script, not even to deny something.
    let found = state
        .sources
        .iter()
        .flat_map(|entry| entry.found.claims.clone());
    let withheld = refused.iter().filter_map(|refused| {
        let site = &refused.tool.site;
        Some(Claim {
            manifest: site.manifest.clone(),
            scripts: Some(vec![site.script.clone()?]),
        })
    });
    let claims: Vec<Claim> = found
        .chain(withheld)
        .filter(|claim| unloaded.by(&claim.manifest).is_none())
        .collect();
    let files = registered(state, &tools, &claims, &unloaded);
    let ownership = Ownership::new(&tools, &claims);
    // Before ids are settled: a manifest that names a script of others claims no id.
    let mut foreign = ownership.refuse_foreign_scripts(&mut tools);
    foreign.append(&mut refused);
    Owned {
        tools,
        refused: foreign,
        ownership,
        files,
        unloaded,
    }
}

/// Writes into the reports of files why their tools were refused. Returns the reasons by folded id,
/// of those that have no loaded version.
fn report_refused(
    reports: &mut [FileReport],
    refused: Vec<Refused>,
    problems: Vec<(PathBuf, Problem)>,
    tools: &[Tool],
) -> BTreeMap<String, String> {
    let mut disabled = BTreeMap::new();
    if refused.is_empty() && problems.is_empty() {
        return disabled;
    }
    let by_path: HashMap<PathBuf, usize> = reports
        .iter()
        .enumerate()
        .rev()
        .map(|(index, report)| (report.path.clone(), index))
        .collect();
    let refused = refused.into_iter().map(|refused| {
        let Refused {
            tool,
            message,
            summary,
            code,
            pointer,
        } = refused;
        disabled.insert(conflicts::folded(&tool.manifest.id), summary);
        (
            tool.site.manifest,
            Problem::new(Severity::Error, code, &*pointer, message),
            true,
        )
    });
    let problems = problems
        .into_iter()
        .map(|(path, problem)| (path, problem, false));
    for (path, mut problem, is_refused) in refused.chain(problems) {
        let Some(report) = by_path.get(&path).map(|index| &mut reports[*index]) else {
            continue;
        };
        load::locate(std::slice::from_mut(&mut problem), &path);
        report.add(problem);
        if is_refused {
            report.status = Status::Skipped;
        }
    }
    tools
        .iter()
        .for_each(|tool| drop(disabled.remove(&conflicts::folded(&tool.manifest.id))));
    disabled
}

/// Every manifest, whether or not it is loaded, and every script that one names, except what some
/// tool could write.
fn registered(
    state: &State,
    tools: &[Tool],
    claims: &[Claim],
    unloaded: &policy::WritablePaths,
) -> Vec<PathBuf> {
    let reports = state
        .sources
        .iter()
        .flat_map(|entry| &entry.found.reports)
        .map(|report| report.path.clone());
    let manifests = reports.filter(|path| tool::is_definition_file(&path.to_string_lossy()));
    let named = claims
        .iter()
        .flat_map(|claim| claim.scripts.iter().flatten())
        .filter(|script| script.is_file())
        .cloned();
    let scripts = tools.iter().flat_map(owner::files).chain(named);
    let mut files: Vec<PathBuf> = manifests
        .chain(scripts)
        .filter(|path| unloaded.by(path).is_none())
        .collect();
    files.sort_unstable_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    files.dedup();
    files
}

/// Keeps the old tools of manifests whose text became wrong, as in the middle of an edit, or whose
/// folder cannot be listed any more. Returns the warnings.
fn keep_broken(old: &Discovery, found: &mut Discovery) -> Vec<String> {
    let mut warnings = BTreeSet::new();
    let keep = |file: &Path, found: &mut Discovery| {
        found.tools.extend(
            old.tools
                .iter()
                .filter(|tool| tool.site.manifest == file)
                .cloned(),
        );
        found.services.extend(
            old.services
                .iter()
                .filter(|service| service.file == file)
                .cloned(),
        );
    };
    let files = old
        .tools
        .iter()
        .map(|tool| &tool.site.manifest)
        .chain(old.services.iter().map(|it| &it.file));
    let files: BTreeSet<PathBuf> = files
        .filter(|file| !file.as_os_str().is_empty())
        .cloned()
        .collect();
    let seen: HashMap<PathBuf, usize> = found
        .reports
        .iter()
        .enumerate()
        .map(|(index, report)| (report.path.clone(), index))
        .collect();
    for file in files {
        let Some(report) = seen.get(&file).map(|index| &mut found.reports[*index]) else {
            if let Some(folder) = found
                .unlisted
                .iter()
                .find(|folder| file.starts_with(folder))
            {
                let folder = text::path(folder);
                warnings.insert(format!(
                    "{folder} cannot be listed, and the tools in it stay as they were"
                ));
                keep(&file, found);
            }
            continue;
        };
        let first = report
            .problems
            .iter()
            .find(|problem| problem.severity == Severity::Error)
            .cloned();
        let broken = report.status == Status::Skipped && report.tool.is_none();
        // A file that cannot be read at all, or that is a link now, is not an edit.
        if let Some(first) = first.filter(|first| broken && first.code != Code::Unreadable) {
            let path = text::path(&file);
            let why = text::printable(&first.message);
            warnings.insert(format!(
                "{path} is broken, and its old definition stays: line {}: {why}",
                first.line
            ));
            let note = "its old definition stays loaded until this is corrected";
            report
                .problems
                .push(Problem::new(Severity::Note, first.code, "", note));
            keep(&file, found);
        }
    }
    // A manifest that cannot be loaded owns what its text names now, and what it owned before.
    let broken: BTreeSet<PathBuf> = found
        .claims
        .iter()
        .map(|claim| claim.manifest.clone())
        .collect();
    let loaded = old.tools.iter().map(|tool| &tool.site).filter_map(|site| {
        Some(Claim {
            manifest: site.manifest.clone(),
            scripts: Some(vec![site.script.clone()?]),
        })
    });
    let before = loaded
        .chain(old.claims.iter().cloned())
        .filter(|claim| broken.contains(&claim.manifest));
    let claims: BTreeSet<Claim> = std::mem::take(&mut found.claims)
        .into_iter()
        .chain(before)
        .collect();
    found.claims = claims.into_iter().collect();
    warnings.into_iter().collect()
}

/// Logs one line per file that was just read, after conflicts are settled: a file that a conflict
/// or a writer disabled is not logged as loaded.
fn log(reports: &[FileReport], files: &BTreeSet<PathBuf>) {
    for report in reports.iter().filter(|report| files.contains(&report.path)) {
        let path = text::path(&report.path);
        // No warning for notes alone: a copy of a builtin's file, a folder that need not be there.
        let first = report
            .problems
            .iter()
            .find(|problem| problem.severity != Severity::Note);
        match (report.status, first) {
            (Status::Skipped, Some(first)) if path.ends_with(ENDING) => {
                tracing::warn!(
                    path,
                    pointer = text::printable(&first.pointer),
                    line = first.line,
                    "manifest skipped: {}",
                    text::printable(&first.message)
                );
            }
            (Status::Skipped, Some(first)) => {
                tracing::warn!(path, "not read: {}", text::printable(&first.message))
            }
            (Status::Loaded, Some(first)) if report.tool.is_none() => {
                tracing::warn!(path, "{}", text::printable(&first.message));
            }
            (Status::Skipped, None) => tracing::debug!(path, "not read"),
            _ => tracing::info!(
                path,
                tool = report.tool.as_deref().unwrap_or_default(),
                "manifest loaded"
            ),
        }
    }
}

fn invalid(message: String) -> Fault {
    Fault::new(Kind::ParameterValidationError, message)
}

/// The fields of a tool of this process. It runs outside of the sandbox, so it can request no
/// grant.
#[rustfmt::skip]
const IN_PROCESS_FIELDS: [&str; 11] = [
    "toolId", "displayName", "description", "version", "parameters", "output", "metadata", "tags", "examples",
    "presentation", "handler",
];

/// Checks a document as a manifest file is checked. A missing display name or version is filled in.
fn in_process(mut document: Value, kind: &str) -> Result<Tool, Fault> {
    fn blank(field: &str, document: &Value) -> bool {
        document[field]
            .as_str()
            .is_none_or(|text| text.trim().is_empty())
    }
    let missing = if blank("toolId", &document) {
        Some("a name (toolId, namespace:tool-name)")
    } else if blank("description", &document) {
        Some("a description")
    } else if document["parameters"].is_null() {
        Some("an inputSchema (parameters)")
    } else {
        None
    };
    if let Some(missing) = missing {
        return Err(invalid(format!("Tool registration needs {missing}.")));
    }
    if !manifest::extension_kind(kind) {
        return Err(invalid(
            "Tool registration needs a handler type that starts with x-.".to_owned(),
        ));
    }
    let foreign = document
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .find(|field| !IN_PROCESS_FIELDS.contains(&field.as_str()));
    if let Some(field) = foreign {
        let field = field.escape_debug();
        return Err(invalid(format!(
            "Tool registration takes no '{field}': the tool runs in this process."
        )));
    }
    document["handler"] = json!({ "type": kind });
    for (field, usual) in [
        ("displayName", document["toolId"].clone()),
        ("version", json!("1.0.0")),
    ] {
        if document[field].is_null() {
            document[field] = usual;
        }
    }
    let (manifest, _) = manifest::read(document.to_string().as_bytes()).map_err(|problems| {
        let told: Vec<_> = problems
            .iter()
            .map(|p| format!("{} {}", p.pointer, p.message))
            .collect();
        invalid(format!("Tool registration failed: {}", told.join("; ")))
    })?;
    Ok(Tool::new(Arc::new(manifest), nowhere(), IN_PROCESS))
}
