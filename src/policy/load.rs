//! Load: the policies of one host, read from a folder or a file, checked against each other, looked up by tool.
//!
//! For: service and cli. In: a path. Out: `Policies`, or every problem of every file.
//! Never: starts with a policy that is broken, that others can write, or that is reached by a link.

use super::callers::{self, CALLERS_FILE, Callers};
use super::document::{At, FileProblem};
use super::file::{self, Folder, HOST_FILE, Policy, Selector};
use super::grantable::Entry;
use super::hosts;
use super::writable::hard_denials::Protected;
use super::{SecretSource, disk};
use crate::base::text;
use crate::manifest::{Code, Language, Severity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy that names a tool, and whose `folders` do not hold the tool's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    pub file: PathBuf,
    /// It names the tool by its exact id: a second policy that does would not load.
    pub exact: bool,
    /// Which one, why, and the mend.
    pub words: String,
}

impl PassedOver {
    fn new(policy: &Policy, exact: bool, manifest: &Path) -> PassedOver {
        let at = policy.folders.first().map(|folder| folder.at).unwrap_or_default();
        let held: Vec<_> = policy.folders.iter().map(|folder| text::path(&folder.path)).collect();
        let mend = match manifest.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => format!(
                "this one's manifest lies in {}; if it is the tool that is meant, add that folder to `folders` there",
                text::path(folder)
            ),
            None => "this one has no file; leave `folders` out there if it is the tool that is meant".to_owned(),
        };
        let (name, place, held) = (&policy.name, policy.place(at), held.join(", "));
        let words =
            format!("policy `{name}` ({place}) names this tool, but its `folders` are for tools below {held}: {mend}");
        PassedOver { file: policy.file.clone(), exact, words }
    }
}

/// What the operator allows on this host.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// Sorted by file; the built-in default is last if no file is for `*`.
    pub(super) list: Vec<Policy>,
    pub(super) host: Option<Policy>,
    /// Who may call what; `None`: whoever is served may call everything.
    pub(super) callers: Option<Arc<Callers>>,
    /// Files no tool may write: policies, and what the caller adds (`protect`).
    /// Shared, because a registry of ten thousand tools is held here and decisions are made often.
    pub(super) protected: Arc<Protected>,
    /// A folder in which no tool makes files, whatever their names: this host keeps its records there.
    pub(super) records: Option<PathBuf>,
    /// The folders of the scripts among `protected`.
    pub(super) scripts: Arc<BTreeSet<PathBuf>>,
    /// Trees that manifests read by `base:`, as far as policy grants them.
    pub(super) shared: Arc<BTreeSet<PathBuf>>,
    /// Manifests whose scripts lie in folders of other tools: rules relative to such a folder grant them nothing.
    pub(super) guests: Arc<BTreeSet<PathBuf>>,
    notes: Vec<FileProblem>,
    /// What is wrong with policies whose tools are known: those tools are refused.
    faults: Vec<FileProblem>,
}

impl Policies {
    fn of(list: Vec<Policy>, host: Option<Policy>, notes: Vec<FileProblem>) -> Policies {
        Policies { list, host, notes, ..Policies::default() }
    }

    /// The policies of a host without a policies folder.
    pub fn built_in() -> Policies {
        Policies::of(vec![Policy::built_in()], None, Vec::new())
    }

    /// A folder or one file. `root`: where relative `folders` start.
    pub fn load(path: &Path, root: &Path) -> Result<Policies, Vec<FileProblem>> {
        let (policies, problems) = Policies::look(path, root);
        if problems.is_empty() { Ok(policies) } else { Err(problems) }
    }

    /// The policies, and what stops every call: a file that cannot be read, or not as far as its `tools`, a fault of the cap
    /// or of the callers, and policies that contradict each other.
    pub fn look(path: &Path, root: &Path) -> (Policies, Vec<FileProblem>) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let root = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
        let disk::PolicyTexts { texts, notes, mut problems } = disk::read(&path);
        problems.extend(passed_over_beside(&path));
        let mut policies = Policies::of(Vec::new(), None, notes);
        for (file, text) in texts {
            let tell = |problem| FileProblem { path: file.clone(), problem };
            if file.file_name().is_some_and(|n| n == CALLERS_FILE) {
                match callers::parse(&text, &file) {
                    Ok(callers) => policies.callers = Some(Arc::new(callers)),
                    Err(found) => problems.extend(found.into_iter().map(tell)),
                }
                continue;
            }
            let host = file.file_name().is_some_and(|n| n == HOST_FILE);
            let (policy, found) = file::read(&text, &file, host, &root);
            let found = found.into_iter().map(tell);
            match policy {
                None => problems.extend(found),
                Some(policy) if host => policies.host = Some(policy),
                Some(policy) => {
                    policies.list.push(policy);
                    policies.faults.extend(found);
                }
            }
        }
        problems.extend(policies.finished());
        policies.protect([path.clone()].into_iter().chain(path.canonicalize()));
        (policies, problems)
    }

    /// Builds from policies already parsed (tests, an embedding program). The same conflicts are refused.
    pub fn from_parts(list: Vec<Policy>, host: Option<Policy>) -> Result<Policies, Vec<FileProblem>> {
        let mut policies = Policies::of(list, host, Vec::new());
        let problems = policies.finished();
        if problems.is_empty() { Ok(policies) } else { Err(problems) }
    }

    /// Adds the built-in default where no file is for `*`, warnings, and the files of secrets to what no tool may write. Returns what is wrong.
    fn finished(&mut self) -> Vec<FileProblem> {
        let problems = self.conflicts();
        if !self.list.iter().any(|p| p.tools.iter().any(|t| t.selector == Selector::Any)) {
            self.list.push(Policy::built_in());
        }
        self.warn();
        let secrets = || self.list.iter().flat_map(|policy| &policy.secrets).map(|entry| &entry.grant);
        let callers = self.callers.iter().flat_map(|callers| &callers.list);
        let sources =
            secrets().map(|grant| &grant.from).chain(callers.filter_map(|caller| caller.callback_secret.as_ref()));
        let packages = self.list.iter().flat_map(|policy| policy.packages.values());
        let locks = packages.filter_map(|entry| entry.grant.lock_file.clone());
        let named = sources.flat_map(SecretSource::named_files).map(Path::to_path_buf);
        let authorities = secrets().filter_map(|grant| grant.header.as_ref()?.ca.clone());
        let authorities: BTreeSet<PathBuf> = authorities.collect();
        for mut problem in authorities.iter().filter_map(|ca| disk::certificates(ca).err()) {
            problem.problem.severity = Severity::Warning;
            self.notes.push(problem);
        }
        let files: Vec<PathBuf> = named.chain(locks).chain(authorities).collect();
        let resolved: Vec<PathBuf> = files.iter().filter_map(|file| file.canonicalize().ok()).collect();
        // Whoever writes there says what the secret is, and what runs to tell it.
        self.protect(files.into_iter().chain(resolved));
        problems
    }

    /// Two policies of one name, or of the same width for one tool: which one holds would be unclear.
    fn conflicts(&self) -> Vec<FileProblem> {
        let mut problems = Vec::new();
        let mut names: BTreeMap<&str, &Policy> = BTreeMap::new();
        for policy in self.list.iter().chain(&self.host).filter(|policy| policy.fault.is_none()) {
            if let Some(first) = names.insert(&policy.name, policy) {
                let message = format!("the name `{}` is also used by {}", policy.name, first.file.display());
                let at = At { line: 1, column: 1 };
                problems.push(FileProblem::new(&policy.file, Severity::Error, Code::Conflict, "/name", at, message));
            }
        }
        let mut selectors: BTreeMap<&Selector, &Policy> = BTreeMap::new();
        for policy in &self.list {
            for (i, tool) in policy.tools.iter().enumerate() {
                if let Some(first) = selectors.insert(&tool.selector, policy) {
                    let message = format!(
                        "`{}` is named by two policies of the same width: `{}` ({}) and `{}` ({}); keep one",
                        tool.selector.text(),
                        first.name,
                        first.file.display(),
                        policy.name,
                        policy.file.display()
                    );
                    let pointer = format!("/tools/{i}");
                    let (file, at) = (&policy.file, tool.at);
                    problems.push(FileProblem::new(file, Severity::Error, Code::Conflict, pointer, at, message));
                }
            }
        }
        problems
    }

    fn warn(&mut self) {
        let mut notes = Vec::new();
        let warning = |policy: &Policy, pointer: &str, at, message: String| {
            FileProblem::new(&policy.file, Severity::Warning, Code::Security, pointer, at, message)
        };
        for policy in self.list.iter().chain(&self.host) {
            for (limit, ceiling) in policy.limits.iter().filter(|(limit, ceiling)| ceiling.value > limit.most()) {
                let name = limit.policy_name();
                let message =
                    format!("`{name}` is clamped to {}, the largest response: write at most that", limit.most());
                notes.push(warning(policy, &format!("/limits/{name}"), ceiling.at, message));
            }
        }
        for policy in &self.list {
            let open = policy.folders.is_empty() && policy.is_wider_than_default();
            let wide = policy.tools.iter().find(|t| !matches!(t.selector, Selector::Exact(_)));
            if let Some(tool) = wide.filter(|_| open) {
                let message = format!(
                    "allows more than the default to every tool that calls itself `{}`: an id is only the author's claim; name exact ids, or the `folders` those tools lie in",
                    tool.selector.text()
                );
                notes.push(warning(policy, "/tools", tool.at, message));
            }
            for (index, Entry { grant, at }) in policy.hosts.iter().enumerate() {
                for risk in hosts::risks(&grant.pattern, &grant.ranges) {
                    let message = format!("high risk: `{}`: {risk}", grant.pattern);
                    notes.push(warning(policy, &format!("/network/hosts/{index}/host"), *at, message));
                }
            }
            for Entry { grant, at } in policy.secrets_without_query() {
                let message = format!(
                    "the header of {} has `methods` or `paths` and no `query`: a request with any query is refused, and so are headers beyond the standard ones; name what the tool sends, `query = [\"page\"]`, `request_headers = [\"api-version\"]`, or say `query = []`",
                    grant.name
                );
                notes.push(warning(policy, "/secrets/grant", *at, message));
            }
        }
        self.notes.extend(notes);
    }

    /// Remarks that do not stop the start: ignored files, policies wider than they should be.
    pub fn notes(&self) -> &[FileProblem] {
        &self.notes
    }

    /// What is wrong with policies, and does not stop other tools than theirs.
    pub fn faults(&self) -> &[FileProblem] {
        &self.faults
    }

    /// The policy for a tool: the narrowest that names it and whose `folders` hold its manifest.
    /// With it, the policies that name it but do not count.
    pub fn governing(&self, id: &str, manifest: &Path) -> (&Policy, Vec<PassedOver>) {
        let mut best: Option<(&Selector, &Policy)> = None;
        let mut passed_over = Vec::new();
        for policy in &self.list {
            let Some(selector) = policy.tools.iter().map(|t| &t.selector).filter(|s| s.matches(id)).max() else {
                continue;
            };
            if !lies_in(manifest, &policy.folders) {
                passed_over.push(PassedOver::new(policy, matches!(selector, Selector::Exact(_)), manifest));
            } else if best.is_none_or(|(b, _)| selector > b) {
                best = Some((selector, policy));
            }
        }
        let policy = match best {
            Some((_, policy)) => policy,
            None => fallback(),
        };
        (policy, passed_over)
    }

    /// True if a policy for this tool names it by its exact id (`core:run-code` exists only then).
    pub fn names_exactly(&self, id: &str, manifest: &Path) -> bool {
        let names = |policy: &Policy| policy.tools.iter().any(|t| matches!(&t.selector, Selector::Exact(e) if e == id));
        self.list.iter().any(|policy| names(policy) && lies_in(manifest, &policy.folders))
    }

    /// Who may call what. `None`: there is no such file, and whoever this host serves may call everything.
    pub fn callers(&self) -> Option<&Arc<Callers>> {
        self.callers.as_ref()
    }

    /// Interpreters that policies name; the caller looks at each and puts it in `Machine::named_runtimes`.
    pub fn named_runtimes(&self) -> Vec<(Language, PathBuf)> {
        let all = self.list.iter().flat_map(|p| p.runtimes.iter().map(|(l, r)| (*l, r.path.clone())));
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Adds files no tool may write: every manifest and script of the registry.
    pub fn protect(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let (protected, scripts) = (Arc::make_mut(&mut self.protected), Arc::make_mut(&mut self.scripts));
        for path in paths.into_iter().filter(|path| !path.as_os_str().is_empty()) {
            let is_script = !Language::of_file_name(&path.to_string_lossy()).is_empty();
            scripts.extend(path.parent().filter(|_| is_script).map(Path::to_path_buf));
            protected.add(path);
        }
    }

    /// Sets the trees of code that tools share: no write tree holds one.
    pub fn share(&mut self, trees: Arc<BTreeSet<PathBuf>>) {
        self.shared = trees;
    }

    /// Sets the manifests that get their script and nothing else of its folder.
    pub fn hold_to_script(&mut self, guests: Arc<BTreeSet<PathBuf>>) {
        self.guests = guests;
    }

    /// Sets the folder of this host's records.
    pub fn keep_out_of(&mut self, records: Option<PathBuf>) {
        self.records = records;
    }

    /// The policies, host cap last.
    pub fn all(&self) -> impl Iterator<Item = &Policy> {
        self.list.iter().chain(&self.host)
    }
}

impl Policy {
    /// Why this policy does not govern a tool that it names and whose manifest lies there; `None` if it may.
    pub fn passed_over(&self, manifest: &Path) -> Option<String> {
        (!lies_in(manifest, &self.folders)).then(|| PassedOver::new(self, false, manifest).words)
    }
}

/// The built-in default, for a tool that lies outside the `folders` of every policy.
pub(super) fn fallback() -> &'static Policy {
    static BUILT_IN: std::sync::LazyLock<Policy> = std::sync::LazyLock::new(Policy::built_in);
    &BUILT_IN
}

/// What only narrows, beside a file that is read alone: it would be passed over in silence.
fn passed_over_beside(path: &Path) -> Vec<FileProblem> {
    let beside = |name: &&str| !path.is_dir() && path.with_file_name(name).symlink_metadata().is_ok();
    let others = [CALLERS_FILE, HOST_FILE].into_iter().filter(|name| path.file_name().is_some_and(|own| own != *name));
    let told = others.filter(beside).map(|name| {
        let own = text::path(path);
        let message = format!(
            "would not hold, because the policies are the file {own} alone: name its folder, or move one of the two away"
        );
        FileProblem::new(&path.with_file_name(name), Severity::Error, Code::Conflict, "", At::default(), message)
    });
    told.collect()
}

/// Does a manifest lie below one of these folders (by name, or by the folder's real place)?
fn lies_in(manifest: &Path, folders: &[Folder]) -> bool {
    folders.is_empty()
        || folders.iter().any(|Folder { path, .. }| {
            manifest.starts_with(path) || path.canonicalize().is_ok_and(|real| manifest.starts_with(real))
        })
}
