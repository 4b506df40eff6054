//! The policies of one host: read from a folder or a file, checked against each other, looked up by
//! tool.

use super::approvals::{APPROVALS_FILE, Approvals, CodeFolders};
use super::callers::{self, CALLERS_FILE, Callers};
use super::document::{FileProblem, PolicyEntry};
use super::file::{self, Folder, HOST_FILE, Policy};
use super::places::Protected;
use super::secrets::{HeaderRule, SecretSource};
use super::stops::Stops;
use super::{disk, hosts};
use crate::base::{files, text};
use crate::manifest::Selector;
use crate::manifest::{At, Code, Language, Manifest, Severity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy that names a tool, and whose `folders` do not hold the tool's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    pub file: PathBuf,
    /// The policy names the tool by its exact id. A second policy that does so would not load.
    pub exact: bool,
    pub words: String,
}

impl PassedOver {
    fn new(policy: &Policy, exact: bool, manifest: &Path) -> PassedOver {
        let at = policy
            .folders
            .first()
            .map(|folder| folder.at)
            .unwrap_or_default();
        let folders: Vec<_> = policy
            .folders
            .iter()
            .map(|folder| text::path(&folder.path))
            .collect();
        let words = format!(
            "policy `{}` ({}) names this tool, but its `folders` are for tools below {}: if this \
             is the tool that is meant, add its folder {} to `folders` there",
            policy.name,
            policy.place(at),
            folders.join(", "),
            text::path(manifest.parent().unwrap_or(manifest))
        );
        PassedOver {
            file: policy.file.clone(),
            exact,
            words,
        }
    }
}

/// What the operator allows on this host.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// Sorted by file; the built-in default is last if no file is for `*`.
    list: Vec<Policy>,
    pub host: Option<Policy>,
    /// Who may call what; `None`: whoever is served may call everything.
    callers: Option<Arc<Callers>>,
    /// What a person approved.
    pub approvals: Arc<Approvals>,
    /// Looks at the code of tools. `None`: nothing is approved.
    pub code: Option<Arc<dyn CodeFolders>>,
    /// Files that no tool may write: policies, and what the caller adds (`protect`).
    /// Shared, because a registry of ten thousand tools is held here and decisions are made often.
    pub protected: Arc<Protected>,
    notes: Vec<FileProblem>,
    /// Faults of policies whose tools are known. Calls of those tools are refused.
    faults: Vec<FileProblem>,
    /// What the operator disabled, as it was read for this decision.
    pub stops: Arc<Stops>,
    /// For a report of what a tool would have once it is approved.
    waives_approvals: bool,
}

impl Policies {
    pub fn built_in() -> Policies {
        Policies {
            list: vec![Policy::built_in()],
            ..Policies::default()
        }
    }

    /// Loads a folder or one file; any problem fails it. `root`: where relative `folders` start.
    pub fn load(path: &Path, root: &Path) -> Result<Policies, Vec<FileProblem>> {
        let (policies, problems) = Policies::look(path, root);
        if problems.is_empty() {
            Ok(policies)
        } else {
            Err(problems)
        }
    }

    /// The policies, and the problems that stop every call: a file that cannot be read as far as
    /// its `tools`, a fault of the cap or of the callers, and policies that contradict each other.
    pub fn look(path: &Path, root: &Path) -> (Policies, Vec<FileProblem>) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let root = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
        let disk::PolicyTexts {
            texts,
            notes,
            mut problems,
        } = disk::read(&path);
        problems.extend(unread_beside(&path));
        let mut policies = Policies {
            notes,
            ..Policies::default()
        };
        for (file, text) in texts {
            let located = |problem| FileProblem {
                path: file.clone(),
                problem,
            };
            if file.file_name().is_some_and(|n| n == CALLERS_FILE) {
                match callers::parse(&text, &file) {
                    Ok(callers) => policies.callers = Some(Arc::new(callers)),
                    Err(found) => problems.extend(found.into_iter().map(located)),
                }
                continue;
            }
            if file.file_name().is_some_and(|n| n == APPROVALS_FILE) {
                match Approvals::parse(&text, &file) {
                    Ok(approvals) => policies.approvals = Arc::new(approvals),
                    Err(problem) => problems.push(problem),
                }
                continue;
            }
            let host = file.file_name().is_some_and(|n| n == HOST_FILE);
            let (policy, found) = file::read(&text, &file, host, &root);
            let found = found.into_iter().map(located);
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
        policies.protect([files::resolved(&path), path]);
        (policies, problems)
    }

    /// Builds from policies already parsed (tests, an embedding program). The same conflicts are
    /// refused.
    pub fn from_parts(
        list: Vec<Policy>,
        host: Option<Policy>,
    ) -> Result<Policies, Vec<FileProblem>> {
        let mut policies = Policies {
            list,
            host,
            ..Policies::default()
        };
        let problems = policies.finished();
        if problems.is_empty() {
            Ok(policies)
        } else {
            Err(problems)
        }
    }

    /// These policies, with one file replaced or added.
    pub fn with(&self, policy: Policy) -> Result<Policies, Vec<FileProblem>> {
        let mut policies = self.clone();
        policies.list.retain(|known| known.file != policy.file);
        policies.list.push(policy);
        let problems = policies.finished();
        if problems.is_empty() {
            Ok(policies)
        } else {
            Err(problems)
        }
    }

    /// Adds the built-in default if no file is for `*`, collects warnings, and protects the files
    /// that policies name. Returns the conflicts.
    fn finished(&mut self) -> Vec<FileProblem> {
        let problems = self.conflicts();
        if !self
            .list
            .iter()
            .any(|p| p.tools.iter().any(|t| t.selector == Selector::Any))
        {
            self.list.push(Policy::built_in());
        }
        let warnings: Vec<_> = self
            .list
            .iter()
            .flat_map(warnings)
            .chain(self.host.iter().flat_map(clamped))
            .collect();
        self.notes.extend(warnings);
        let secrets = || {
            self.list
                .iter()
                .flat_map(|policy| &policy.secrets)
                .map(|entry| &entry.grant)
        };
        let callers = self.callers.iter().flat_map(|callers| &callers.list);
        let sources = secrets()
            .map(|grant| &grant.from)
            .chain(callers.filter_map(|caller| caller.callback_secret.as_ref()));
        let packages = self.all().flat_map(|policy| policy.packages.values());
        let locks = packages.flat_map(|PolicyEntry { grant, .. }| {
            let advisories = grant.rules.advisories.iter().map(|named| &named.path);
            grant.lock_file.iter().chain(advisories).cloned()
        });
        let named = sources
            .flat_map(SecretSource::named_files)
            .map(Path::to_path_buf);
        let own = self.list.iter().flat_map(|policy| &policy.authorities);
        let authorities: BTreeSet<PathBuf> = secrets()
            .filter_map(|grant| grant.header.as_ref()?.ca.clone())
            .chain(own.map(|authority| authority.file.clone()))
            .collect();
        let files: Vec<PathBuf> = named
            .chain(locks)
            .chain(authorities.iter().cloned())
            .collect();
        // A file that a policy names may lie beside it.
        self.notes.retain(|note| !files.contains(&note.path));
        for mut problem in authorities
            .iter()
            .filter_map(|ca| disk::certificates(ca).err())
        {
            problem.problem.severity = Severity::Warning;
            self.notes.push(problem);
        }
        let resolved: Vec<PathBuf> = files.iter().map(|file| files::resolved(file)).collect();
        // Whoever can write there decides what a secret is, or which program prints it.
        self.protect(files.into_iter().chain(resolved));
        problems
    }

    /// Policies with the same name or the same selector: it would be unclear which of them governs.
    fn conflicts(&self) -> Vec<FileProblem> {
        let mut problems = Vec::new();
        let (mut names, mut selectors): (BTreeMap<&str, &Policy>, BTreeMap<&Selector, &Policy>) =
            Default::default();
        fn conflict(
            policy: &Policy,
            pointer: String,
            at: At,
            first: &Policy,
            what: &str,
            problems: &mut Vec<FileProblem>,
        ) {
            let message = format!(
                "{what} is defined in {}, too: keep one",
                first.origin().called()
            );
            problems.push(FileProblem::new(
                &policy.file,
                Severity::Error,
                Code::Conflict,
                pointer,
                at,
                message,
            ));
        }
        for policy in self.all().filter(|policy| policy.fault.is_none()) {
            if let Some(first) = names.insert(&policy.name, policy) {
                conflict(
                    policy,
                    "/name".to_owned(),
                    At { line: 1, column: 1 },
                    first,
                    "the name",
                    &mut problems,
                );
            }
        }
        for policy in &self.list {
            for (index, tool) in policy.tools.iter().enumerate() {
                if let Some(first) = selectors.insert(&tool.selector, policy) {
                    let what = format!("`{}`", tool.selector.text());
                    conflict(
                        policy,
                        format!("/tools/{index}"),
                        tool.at,
                        first,
                        &what,
                        &mut problems,
                    );
                }
            }
        }
        problems
    }

    /// Remarks that do not stop the start: ignored files, policies wider than they should be.
    pub fn notes(&self) -> &[FileProblem] {
        &self.notes
    }

    /// Faults of policies that stop no other tools than theirs.
    pub fn faults(&self) -> &[FileProblem] {
        &self.faults
    }

    /// The policy for a tool: the narrowest that names it and whose `folders` hold its manifest.
    /// Returned with it: the policies that name the tool but whose `folders` do not hold its
    /// manifest.
    pub fn governing(&self, id: &str, manifest: &Path) -> (&Policy, Vec<PassedOver>) {
        let mut best: Option<(&Selector, &Policy)> = None;
        let mut passed_over = Vec::new();
        for policy in &self.list {
            let Some(selector) = policy
                .tools
                .iter()
                .map(|t| &t.selector)
                .filter(|s| s.matches(id))
                .max()
            else {
                continue;
            };
            if !lies_in(manifest, &policy.folders) {
                passed_over.push(PassedOver::new(
                    policy,
                    matches!(selector, Selector::Exact(_)),
                    manifest,
                ));
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

    /// Whether a policy for this id says in its `folders` that the tool lies where this manifest
    /// does.
    pub fn settles(&self, id: &str, manifest: &Path) -> bool {
        self.list.iter().any(|policy| {
            !policy.folders.is_empty()
                && policy.tools.iter().any(|named| named.selector.matches(id))
                && lies_in(manifest, &policy.folders)
        })
    }

    /// True if a policy for this tool names it by its exact id (`core:run-code` exists only then).
    pub fn names_exactly(&self, id: &str, manifest: &Path) -> bool {
        self.list.iter().any(|policy| {
            policy
                .tools
                .iter()
                .any(|t| matches!(&t.selector, Selector::Exact(e) if e == id))
                && lies_in(manifest, &policy.folders)
        })
    }

    /// What says that a tool runs only as a person approved it: the policy, the host's cap, or that
    /// it is an MCP server, whose record covers all its tools.
    pub fn approval_rule(&self, manifest: &Manifest, place: &Path) -> Option<String> {
        if self.waives_approvals || manifest.mcp_tool().is_some() {
            return None;
        }
        let (policy, _) = self.governing(&manifest.id, place);
        let mut bounding = std::iter::once(policy).chain(&self.host);
        let required = bounding.find(|policy| policy.approval_required);
        let required = required.map(|policy| format!("policy {}", policy.origin().called()));
        let kind = manifest.mcp_server().map(|_| "the handler type mcp");
        let kind = kind.or(manifest.skill().map(|_| "the kind of the tool (a skill)"));
        required.or(kind.map(str::to_owned))
    }

    /// The same policies, where nothing needs an approval.
    pub fn without_approvals(&self) -> Policies {
        Policies {
            waives_approvals: true,
            ..self.clone()
        }
    }

    /// Who may call what. `None`: without such a file, whoever this host serves may call
    /// everything.
    pub fn callers(&self) -> Option<&Arc<Callers>> {
        self.callers.as_ref()
    }

    /// Interpreters that policies name; the caller looks at each and puts it in
    /// `Machine::named_runtimes`.
    pub fn named_runtimes(&self) -> Vec<(Language, PathBuf)> {
        let all = self
            .list
            .iter()
            .flat_map(|p| p.runtimes.iter().map(|(l, r)| (*l, r.path.clone())));
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Adds files no tool may write: every manifest and script of the registry.
    pub fn protect(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let protected = Arc::make_mut(&mut self.protected);
        paths
            .into_iter()
            .filter(|path| !path.as_os_str().is_empty())
            .for_each(|path| protected.add(path));
    }

    /// Sets the folder of this host's records.
    pub fn set_records_folder(&mut self, records: Option<PathBuf>) {
        Arc::make_mut(&mut self.protected).records = records;
    }

    pub fn all(&self) -> impl Iterator<Item = &Policy> {
        self.list.iter().chain(&self.host)
    }
}

fn warning(policy: &Policy, pointer: &str, at: At, message: String) -> FileProblem {
    FileProblem::new(
        &policy.file,
        Severity::Warning,
        Code::Security,
        pointer,
        at,
        message,
    )
}

fn clamped(policy: &Policy) -> impl Iterator<Item = FileProblem> {
    let beyond = policy
        .limits
        .iter()
        .filter(|(limit, ceiling)| ceiling.grant > limit.most());
    beyond.map(|(limit, ceiling)| {
        let name = limit.policy_name();
        let most = limit.most();
        let message = format!("`{name}` is clamped to {most}, the largest response");
        warning(policy, &format!("/limits/{name}"), ceiling.at, message)
    })
}

fn warnings(policy: &Policy) -> Vec<FileProblem> {
    let mut found: Vec<FileProblem> = clamped(policy).collect();
    let mut warn =
        |pointer: &str, at, message: String| found.push(warning(policy, pointer, at, message));
    let wide = policy
        .tools
        .iter()
        .find(|tool| !matches!(tool.selector, Selector::Exact(_)));
    if let Some(tool) = wide.filter(|_| policy.folders.is_empty() && policy.is_wider_than_default())
    {
        let message = format!(
            "allows more than the default to every tool that calls itself `{}`: an id is only the \
             author's claim; name exact ids, or the `folders` those tools lie in",
            tool.selector.text()
        );
        warn("/tools", tool.at, message);
    }
    for (index, PolicyEntry { grant, at }) in policy.hosts.iter().enumerate() {
        for risk in hosts::risks(&grant.pattern, &grant.ranges) {
            let message = format!("high risk: `{}`: {risk}", grant.pattern);
            warn(&format!("/network/hosts/{index}/host"), *at, message);
        }
    }
    let lines = policy.source["secrets"]["grant"]
        .as_array()
        .into_iter()
        .flatten();
    let unqueried: Vec<_> = lines
        .filter(|line| !line["header"]["query"].is_array())
        .map(|line| &line["name"])
        .collect();
    for PolicyEntry { grant, at } in policy.secrets.iter().filter(|entry| {
        entry
            .grant
            .header
            .as_ref()
            .is_some_and(HeaderRule::is_limited)
    }) {
        if unqueried.iter().any(|name| **name == *grant.name) {
            let message = format!(
                "the header of {} has `methods` or `paths` and no `query`: a request with any \
                 query is refused, and so are headers beyond the standard ones; name what the tool \
                 sends, `query = [\"page\"]`, `request_headers = [\"api-version\"]`, or say `query \
                 = []`",
                grant.name
            );
            warn("/secrets/grant", *at, message);
        }
    }
    found
}

impl Policy {
    /// Why this policy does not govern a tool that it names and whose manifest lies there; `None`
    /// if it may.
    pub fn passed_over(&self, manifest: &Path) -> Option<String> {
        (!lies_in(manifest, &self.folders)).then(|| PassedOver::new(self, false, manifest).words)
    }
}

/// The built-in default, for a tool that lies outside the `folders` of every policy.
fn fallback() -> &'static Policy {
    static BUILT_IN: std::sync::LazyLock<Policy> = std::sync::LazyLock::new(Policy::built_in);
    &BUILT_IN
}

/// The callers file and the cap beside a policy file that is loaded alone. Silently ignored, they
/// would not narrow.
fn unread_beside(path: &Path) -> Vec<FileProblem> {
    let others = [CALLERS_FILE, HOST_FILE, APPROVALS_FILE]
        .into_iter()
        .filter(|name| path.file_name().is_some_and(|own| own != *name));
    others
        .filter(|name: &&str| {
            !path.is_dir() && path.with_file_name(name).symlink_metadata().is_ok()
        })
        .map(|name| {
            let message = format!(
                "would not be read, because only the file {} is loaded: name its folder",
                text::path(path)
            );
            FileProblem::new(
                &path.with_file_name(name),
                Severity::Error,
                Code::Conflict,
                "",
                At::default(),
                message,
            )
        })
        .collect()
}

/// Does a manifest lie below one of these folders (by name, or by the folder's real place)?
fn lies_in(manifest: &Path, folders: &[Folder]) -> bool {
    folders.is_empty()
        || folders.iter().any(|Folder { path, .. }| {
            manifest.starts_with(path)
                || path
                    .canonicalize()
                    .is_ok_and(|real| manifest.starts_with(real))
        })
}
