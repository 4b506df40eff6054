//! The registry itself: sources in, snapshots out. A snapshot is built aside and swapped whole; a failed refresh
//! changes no tool.

use super::conflicts::Refused;
use super::ownership::Ownership;
use super::{Claim, Claimed, Discovery, ENDING, FileReport, Snapshot, Source, Status, Tool};
use super::{announced, availability, conflicts, nowhere, services, writable_tools};
use crate::base::lock;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::{self, Code, Problem, Severity};
use crate::policy;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The id under which in-process tools are listed.
const IN_PROCESS: &str = "in-process";

#[derive(Default)]
pub struct Registry {
    state: Mutex<State>,
    current: RwLock<Arc<Snapshot>>,
}

#[derive(Default)]
struct State {
    /// The policies that every tool answers to, once the registry was told.
    rules: Option<(Arc<policy::Policies>, Arc<policy::Machine>)>,
    /// Where tools could write before, even if they no longer may.
    earlier: policy::WritablePaths,
    sources: Vec<Loaded>,
    in_process: Vec<Tool>,
}

struct Loaded {
    source: Arc<dyn Source>,
    found: Discovery,
    /// Why the last refresh changed nothing, or left single tools as they were.
    stale: Vec<String>,
}

/// The tools that own their scripts, and those that were turned away.
struct Owned {
    tools: Vec<Tool>,
    /// They lie where a tool may or could write.
    fenced: Vec<Refused>,
    strangers: Vec<Refused>,
    ownership: Ownership,
    files: Vec<PathBuf>,
    /// Where nothing is loaded from.
    unloaded: policy::WritablePaths,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// The present tools. Calls that hold a snapshot keep its definitions, whatever changes.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the policies, so that nothing which a tool may write is loaded: a tool cannot make tools.
    pub fn answers_to(&self, policies: Arc<policy::Policies>, machine: Arc<policy::Machine>) {
        let mut state = lock(&self.state);
        let known = |(p, m): &(_, _)| Arc::ptr_eq(p, &policies) && Arc::ptr_eq(m, &machine);
        if state.rules.as_ref().is_some_and(known) {
            return;
        }
        state.rules = Some((policies, machine));
        // Tools loaded under other rules, or none, count as newcomers under these.
        self.publish_beside(&mut state, &conflicts::Incumbents::default());
    }

    /// Tells where tools could write in earlier calls: nothing there is loaded either.
    pub fn wrote_before(&self, places: &policy::WritablePaths) {
        let mut state = lock(&self.state);
        state.earlier.merge(places);
        self.publish_beside(&mut state, &conflicts::Incumbents::default());
    }

    /// Adds a source and loads it.
    pub fn add_source(&self, source: Arc<dyn Source>) -> Result<(), String> {
        let mut state = lock(&self.state);
        let id = source.id().to_owned();
        if id == IN_PROCESS || state.sources.iter().any(|entry| entry.source.id() == id) {
            return Err(format!("there already is a source '{id}'"));
        }
        let found = source.discover()?;
        let files = paths(&found);
        state.sources.push(Loaded { source, found, stale: Vec::new() });
        self.publish(&mut state);
        log(&self.snapshot().reports, &files);
        Ok(())
    }

    /// Asks a source again and replaces its tools. An unknown id is a no-op. When the source, or a whole folder of it,
    /// cannot be read, the old tools stay and the error is returned and kept in `warnings`.
    pub fn refresh_source(&self, id: &str) -> Result<(), String> {
        let mut state = lock(&self.state);
        let Some(entry) = state.sources.iter_mut().find(|entry| entry.source.id() == id) else { return Ok(()) };
        let known = entry.found.incomplete.clone();
        let outcome =
            entry.source.discover().and_then(|found| match found.incomplete.iter().find(|why| !known.contains(why)) {
                Some(why) => Err(why.clone()),
                None => Ok(found),
            });
        let mut files = BTreeSet::new();
        let result = match outcome {
            Ok(mut found) => {
                files = paths(&found);
                entry.stale = keep_broken(&entry.found, &mut found);
                entry.stale.iter().for_each(|message| tracing::error!("{message}"));
                entry.found = found;
                Ok(())
            }
            Err(why) => {
                let message = format!("source '{id}' could not be refreshed, its old tools stay: {why}");
                tracing::error!("{message}");
                entry.stale = vec![message.clone()];
                Err(message)
            }
        };
        self.publish(&mut state);
        log(&self.snapshot().reports, &files);
        result
    }

    /// Takes over what another registry found, for a host of one call that reads its files again.
    pub fn adopt(&self, other: &Registry) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = other.snapshot();
    }

    /// Asks every source again. Returns what failed; each failure keeps that source's old tools.
    pub fn refresh(&self) -> Vec<String> {
        let ids: Vec<String> = lock(&self.state).sources.iter().map(|entry| entry.source.id().to_owned()).collect();
        ids.iter().filter_map(|id| self.refresh_source(id).err()).collect()
    }

    /// Registers a tool of this process. `document`: a manifest without a handler, version and display name if it
    /// likes. `kind` is the `x-…` type its executor is registered for.
    pub fn register(&self, document: Value, kind: &str) -> Result<Arc<Tool>, Fault> {
        let mut state = lock(&self.state);
        let tool = in_process(document, kind)?;
        let (id, version) = (tool.manifest.id.clone(), tool.manifest.version.clone());
        let same = |t: &Tool| t.manifest.id == id && t.manifest.version == version;
        if state.in_process.iter().any(same) {
            return Err(invalid(format!(
                "Tool registration failed: {id}@{version} is already registered; unregister it first."
            )));
        }
        let (_, refused) = conflicts::settle(self.candidates(&state).chain([tool.clone()]).collect(), &self.held());
        if let Some(refused) = refused.into_iter().find(|r| r.tool.source == IN_PROCESS && same(&r.tool)) {
            return Err(invalid(format!("Tool registration failed: the name {id} is taken.")).person(refused.message));
        }
        state.in_process.push(tool);
        self.publish(&mut state);
        self.snapshot().find(&format!("{id}@{version}"))
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

    fn candidates<'s>(&self, state: &'s State) -> impl Iterator<Item = Tool> + 's {
        state.sources.iter().flat_map(|entry| &entry.found.tools).chain(&state.in_process).cloned()
    }

    fn held(&self) -> conflicts::Incumbents {
        conflicts::Incumbents::new(self.snapshot().tools())
    }

    /// Builds the next snapshot and swaps it in.
    fn publish(&self, state: &mut State) {
        self.publish_beside(state, &self.held());
    }

    /// Which of these tools own their scripts, where nothing below the trees of `unloaded` counts.
    fn own(
        &self,
        state: &State,
        mut tools: Vec<Tool>,
        unloaded: policy::WritablePaths,
        standing: &conflicts::Incumbents,
    ) -> Owned {
        // First, so that a file which a tool wrote cannot even conflict with a good tool.
        let fenced = writable_tools::withhold(&mut tools, &unloaded);
        // A manifest that a tool could write claims no script, not even to deny something.
        let found = state.sources.iter().flat_map(|entry| entry.found.claims.clone());
        let withheld = fenced.iter().filter_map(|refused| {
            let site = &refused.tool.site;
            Some(Claim { manifest: site.manifest.clone(), what: Claimed::Scripts(vec![site.script.clone()?]) })
        });
        let claims: Vec<Claim> = found.chain(withheld).filter(|claim| unloaded.by(&claim.manifest).is_none()).collect();
        let files = registered(state, &tools, &claims, &unloaded);
        let ownership = Ownership::new(&tools, &claims, &self.snapshot().ownership);
        // Before ids are settled: a manifest that names a script of others claims no id.
        let strangers = ownership.turn_away(&mut tools, standing);
        Owned { tools, fenced, strangers, ownership, files, unloaded }
    }

    /// The same; `standing`: the tools that stay loaded whatever other tools may write.
    fn publish_beside(&self, state: &mut State, standing: &conflicts::Incumbents) {
        let mut tools: Vec<Tool> = self.candidates(state).collect();
        let mut described = state.sources.iter().flat_map(|entry| entry.found.services.clone()).collect();
        announced::gives_way(&mut tools, &mut described);
        let mut owned = self.own(state, tools.clone(), state.earlier.clone(), standing);
        if let Some((policies, machine)) = &state.rules {
            let mut policies = (**policies).clone();
            policies.hold_to_script(Arc::new(owned.ownership.guests(owned.tools.iter().map(|tool| &tool.site))));
            policies.share(Arc::new(writable_tools::shared(owned.tools.iter(), &policies, machine)));
            let mut unloaded = writable_tools::own_trees(&owned.tools, &policies, machine, standing);
            if !unloaded.is_empty() {
                // A running call may still write where its tool no longer may.
                unloaded.merge(&state.earlier);
                owned = self.own(state, tools, unloaded, standing);
            }
        }
        let Owned { tools, fenced, strangers, ownership, files, unloaded } = owned;
        let (mut tools, mut refused) = conflicts::settle(tools, &self.held());
        let (services, told) =
            services::settle(described, &unloaded, &self.snapshot().services, &mut tools, &mut refused);
        availability::settle_requires(&mut tools);
        let mut reports: Vec<FileReport> = state.sources.iter().flat_map(|entry| entry.found.reports.clone()).collect();
        let mut by_path: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for (index, report) in reports.iter().enumerate() {
            by_path.entry(report.path.clone()).or_insert(index);
        }
        refused.extend(strangers.into_iter().chain(fenced));
        let mut disabled = BTreeMap::new();
        for refused in refused {
            let report = by_path.get(&refused.tool.site.manifest).and_then(|index| reports.get_mut(*index));
            if let Some(report) = report {
                report.status = Status::Skipped;
                let severity = if refused.harmless { Severity::Note } else { Severity::Error };
                let mut why = Problem::new(severity, refused.code, &*refused.pointer, &*refused.message);
                (why.line, why.column) = refused.at;
                report.problems.insert(0, why);
            }
            disabled.insert(conflicts::folded(&refused.tool.manifest.id), refused.told);
        }
        for (path, problem) in told {
            by_path.get(&path).and_then(|index| reports.get_mut(*index)).into_iter().for_each(|it| it.tells(&problem));
        }
        disabled.retain(|id, _| tools.iter().all(|tool| conflicts::folded(&tool.manifest.id) != *id));
        let unlisted = state.sources.iter().flat_map(|entry| entry.found.unseen());
        let mut sources: Vec<_> = state.sources.iter().map(|entry| entry.source.id().to_owned()).collect();
        if !state.in_process.is_empty() {
            sources.push(IN_PROCESS.to_owned());
        }
        let rest = Snapshot {
            disabled,
            services,
            reports,
            warnings: state.sources.iter().flat_map(|entry| entry.stale.clone()).collect(),
            folders: state.sources.iter().flat_map(|entry| entry.found.folders.clone()).collect(),
            unlisted: unlisted.filter(|folder| unloaded.by(folder).is_none()).cloned().collect(),
            written: unloaded,
            files,
            ownership,
            ..Snapshot::default()
        };
        let mut next = rest.with(tools, sources);
        if let Some((policies, machine)) = &state.rules {
            next.judge(policies, machine);
        }
        state.earlier.merge(&next.written);
        let next = Arc::new(next);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

/// Every manifest, whether or not it is loaded, and every script that one names, but what some tool could write.
fn registered(state: &State, tools: &[Tool], claims: &[Claim], unloaded: &policy::WritablePaths) -> Vec<PathBuf> {
    let reports = state.sources.iter().flat_map(|entry| &entry.found.reports).map(|report| report.path.clone());
    let manifests = reports.filter(|path| super::is_manifest_file(&path.to_string_lossy()));
    let named = claims.iter().flat_map(|claim| match &claim.what {
        Claimed::Scripts(scripts) => scripts.iter().filter(|script| script.is_file()).cloned().collect(),
        Claimed::Beside(_) | Claimed::Any => Vec::new(),
    });
    let scripts = tools.iter().flat_map(writable_tools::files).chain(named);
    let files: BTreeSet<PathBuf> = manifests.chain(scripts).filter(|path| unloaded.by(path).is_none()).collect();
    files.into_iter().collect()
}

/// A manifest whose text became wrong, as it is in the middle of an edit, or that lies in a folder which cannot be listed
/// any more: the tool stays what it was. Returns what to tell.
fn keep_broken(old: &Discovery, found: &mut Discovery) -> Vec<String> {
    let mut told = Vec::new();
    let above = |file: &Path| found.unlisted.iter().find(|folder| file.starts_with(folder)).cloned();
    let seen = |file: &Path| found.reports.iter().any(|report| report.path == file);
    let unseen = |file: &Path| above(file).filter(|_| !seen(file));
    let tools: Vec<_> =
        old.tools.iter().filter_map(|tool| Some((unseen(&tool.site.manifest)?, tool.clone()))).collect();
    let services: Vec<_> = old.services.iter().filter_map(|it| Some((unseen(&it.file)?, it.clone()))).collect();
    let folders: BTreeSet<_> =
        tools.iter().map(|(folder, _)| folder).chain(services.iter().map(|(it, _)| it)).collect();
    let words =
        |folder: &&PathBuf| format!("{} cannot be listed, and the tools in it stay as they were", text::path(folder));
    told.extend(folders.iter().map(words));
    found.tools.extend(tools.into_iter().map(|(_, tool)| tool));
    found.services.extend(services.into_iter().map(|(_, service)| service));
    for report in found.reports.iter_mut().filter(|report| report.status == Status::Skipped && report.tool.is_none()) {
        let first = report.problems.iter().find(|problem| problem.severity == Severity::Error);
        let tools: Vec<_> = old.tools.iter().filter(|tool| tool.site.manifest == report.path).cloned().collect();
        let services: Vec<_> = old.services.iter().filter(|service| service.file == report.path).cloned().collect();
        // A file that cannot be read at all, or that is a link now, is no edit.
        let Some(first) = first.filter(|first| first.code != Code::Unreadable) else { continue };
        if tools.is_empty() && services.is_empty() {
            continue;
        }
        let (path, why) = (text::path(&report.path), text::printable(&first.message));
        told.push(format!("{path} is broken, and its old definition stays: line {}: {why}", first.line));
        let note = "its old definition stays loaded until this is mended";
        report.problems.push(Problem::new(Severity::Note, first.code, "", note));
        found.claims.retain(|claim| claim.manifest != report.path);
        found.tools.extend(tools);
        found.services.extend(services);
    }
    told
}

fn paths(found: &Discovery) -> BTreeSet<PathBuf> {
    found.reports.iter().map(|report| report.path.clone()).collect()
}

/// Logs one line per file that was just read, as it was settled: one that a conflict or a writer disabled is not loaded.
fn log(reports: &[FileReport], files: &BTreeSet<PathBuf>) {
    for report in reports.iter().filter(|report| files.contains(&report.path)) {
        let path = text::path(&report.path);
        // No warning for notes alone: a copy of a builtin's file, a folder that need not be there.
        let first = report.problems.iter().find(|problem| problem.severity != Severity::Note);
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
            (Status::Skipped, Some(first)) => tracing::warn!(path, "not read: {}", text::printable(&first.message)),
            (Status::Loaded, Some(first)) if report.tool.is_none() => {
                tracing::warn!(path, "{}", text::printable(&first.message));
            }
            (Status::Skipped, None) => tracing::debug!(path, "not read"),
            _ => tracing::info!(path, tool = report.tool.as_deref().unwrap_or_default(), "manifest loaded"),
        }
    }
}

fn invalid(message: String) -> Fault {
    Fault::new(Kind::ParameterValidationError, message)
}

/// What a tool of this process says of itself. It has no walls, so it can ask for no grant.
#[rustfmt::skip]
const OWN: [&str; 11] = [
    "toolId", "displayName", "description", "version", "parameters", "output", "metadata", "tags", "examples",
    "presentation", "handler",
];

/// Checks a document as a manifest file is checked. What a host says for itself is filled in: name to show, version.
fn in_process(mut document: Value, kind: &str) -> Result<Tool, Fault> {
    let blank = |field: &str| document[field].as_str().is_none_or(|text| text.trim().is_empty());
    let missing = match () {
        () if blank("toolId") => Some("a name (toolId, namespace:tool-name)"),
        () if blank("description") => Some("a description"),
        () if document["parameters"].is_null() => Some("an inputSchema (parameters)"),
        () => None,
    };
    if let Some(missing) = missing {
        return Err(invalid(format!("Tool registration needs {missing}.")));
    }
    if !manifest::extension_kind(kind) {
        return Err(invalid("Tool registration needs a handler type that starts with x-.".to_owned()));
    }
    let foreign =
        document.as_object().into_iter().flat_map(serde_json::Map::keys).find(|field| !OWN.contains(&field.as_str()));
    if let Some(field) = foreign {
        let field = field.escape_debug();
        return Err(invalid(format!("Tool registration takes no '{field}': the tool runs in this process.")));
    }
    document["handler"] = json!({ "type": kind });
    for (field, usual) in [("displayName", document["toolId"].clone()), ("version", json!("1.0.0"))] {
        if document[field].is_null() {
            document[field] = usual;
        }
    }
    let (manifest, _) = manifest::read(document.to_string().as_bytes()).map_err(|problems| {
        let told: Vec<_> = problems.iter().map(|p| format!("{} {}", p.pointer, p.message)).collect();
        invalid(format!("Tool registration failed: {}", told.join("; ")))
    })?;
    Ok(Tool::new(Arc::new(manifest), nowhere(), IN_PROCESS))
}
