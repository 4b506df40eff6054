//! `toolhost allow TOOL`: what a tool's last denials ask for, written into its manifest and its
//! policy: into both, or neither.
//!
//! Both files are judged as a call would judge them before anything is written, and read once more
//! after the person agreed.
//!
//! It opens nothing that the loader would not load, and stands in the audit log before the files
//! change: the tool, the operator's uid and name, the digests of each file before and after.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::base::text::{self, is_in_string, names, printable};
use crate::manifest::host::{HostPattern, parse_pattern};
use crate::manifest::{Manifest, Pattern, RequestedAccess, Selector, pattern};
use crate::policy::suggest::Entry;
use crate::policy::{self, Decision, Grantable, Policies, RequestKind, Verdict};
use crate::registry::{Filter, Tool};
use crate::service;
use crate::service::audit::last::LatestDenial;
use crate::service::{is_open_to_all, is_plain};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstRootNode};
use nix::unistd::getuid;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use toml_edit::{Array, DocumentMut, Item, Table};

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// The tool: id, id@1.2.0 or id@^1
    pub tool: String,
    /// A file or folder (`PATH/`) to read, as a manifest names it; without such options: what the
    /// last call was refused
    #[arg(long, value_name = "PATH")]
    pub read: Vec<String>,
    /// A file or folder (`PATH/`) to write
    #[arg(long, value_name = "PATH")]
    pub write: Vec<String>,
    /// A host to reach, with or without its port
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// A capability, such as local-sockets
    #[arg(long, value_name = "NAME")]
    pub capability: Vec<String>,
    /// A tool that its code may call
    #[arg(long, value_name = "TOOL")]
    pub call: Vec<String>,
    /// Write without asking; high risks are refused
    #[arg(long)]
    pub yes: bool,
}

impl Args {
    /// Whether it says what to add.
    fn names_something(&self) -> bool {
        let lists = [
            &self.read,
            &self.write,
            &self.host,
            &self.capability,
            &self.call,
        ];
        lists.iter().any(|words| !words.is_empty())
    }
}

/// What is added to the lists of a manifest.
#[derive(Debug, Default)]
struct Requests {
    read: BTreeSet<String>,
    write: BTreeSet<String>,
    hosts: BTreeSet<String>,
    capabilities: BTreeSet<String>,
    calls: BTreeSet<String>,
    /// What a call was refused and is not written, each with the reason and what grants it.
    left: Vec<String>,
    /// A person typed them; else they come from the log, where callers have a say.
    is_typed: bool,
}

/// A tool that requests more.
struct Asking {
    tool: Tool,
    /// `None`: a builtin tool, which has no file.
    change: Option<Change>,
}

/// One file, before and after.
#[derive(PartialEq)]
struct Change {
    path: PathBuf,
    /// `None`: it is new.
    before: Option<String>,
    after: String,
}

/// What would be written, and what it opens.
#[derive(PartialEq)]
struct Proposal {
    changes: Vec<Change>,
    risks: Vec<String>,
    /// What is not written, and why.
    left: Vec<String>,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let proposal = propose(settings, &args)?;
    proposal.left.iter().for_each(|line| words::note(line));
    if proposal.changes.is_empty() {
        let tool = printable(&args.tool);
        if args.names_something() {
            words::note(&format!("{tool}: it has that: nothing to write"));
        } else if args.yes {
            words::note(&format!(
                "{tool}: nothing to write: --yes takes nothing from the log, in which callers have a \
                 say: leave it out, or name what to add"
            ));
        } else if proposal.left.is_empty() {
            words::note(&format!(
                "{tool}: nothing to write: its last calls have no refusal on record that a manifest \
                 and a policy could lift (the same call with --explain records all of them; --read, \
                 --write and --host name what to add)"
            ));
        }
        return Ok(Exit::Ok.into());
    }
    proposal.changes.iter().for_each(Change::show);
    for risk in &proposal.risks {
        words::note(&format!("high risk: {risk}"));
    }
    if args.yes && !proposal.risks.is_empty() {
        return Err(refused("--yes accepts no risk: answer the question yourself").into());
    }
    if !args.yes && !is_agreed()? {
        return Err(refused("not agreed").into());
    }
    let again = propose(settings, &args)?;
    if again != proposal {
        return Err(refused("the files changed meanwhile: try again").into());
    }
    proposal.write(settings, &args.tool)?;
    Ok(Exit::Ok.into())
}

fn refused(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(Exit::Caller, format!("{why}; nothing was written"))
}

pub(super) fn is_agreed() -> anyhow::Result<bool> {
    words::note("Press y and Enter to write this; anything else leaves the files as they are:");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()))
}

fn propose(settings: &Settings, args: &Args) -> anyhow::Result<Proposal> {
    let known = host::Tools::load(settings)?;
    let tool = known
        .snapshot
        .find(&args.tool)
        .map_err(|fault| Refusal::from_fault(&fault))?;
    // What an alias may touch is what its tool may, and of a server's tool what the server may.
    let tool = known.snapshot.of_grants(&tool).unwrap_or(tool);
    let before = known.decide(&tool);
    let requests = Requests::new(settings, args, &tool, &before)?;
    let asking = requests.asking(&tool)?;
    let decide = |policies: &Policies| {
        service::requirements::decide(&asking.tool, &known.snapshot, policies, &known.machine)
    };
    let lacking = decide(&known.policies);
    let calls = unnamed_calls(&known, &asking.tool.manifest, &lacking);
    let policy = policy_change(settings, &asking.tool, &lacking, calls)?;
    let mut affected = Vec::new();
    let after = match &policy {
        Some(change) => {
            let policy = policy::parse(&change.after, &change.path, false, &root(settings));
            let policy = policy.map_err(|problems| refused(&problems[0].message))?;
            let policies = known.policies.with(policy);
            let policies = policies.map_err(|problems| refused(&problems[0].problem.message))?;
            affected = others_affected(&known, &policies, &tool);
            affected.extend(lost_permissions(&known.policies, &policies, &tool));
            decide(&policies)
        }
        None => lacking,
    };
    if let Some(verdict) = after.denied().find(|verdict| verdict.refuses()) {
        let asked = printable(&verdict.asked);
        let why = printable(verdict.reason.as_deref().unwrap_or_default());
        let what = verdict.what.name();
        let words = format!("{what} {asked} cannot be granted: {why}; nothing was written");
        return Err(Refusal::new(Exit::Policy, words).into());
    }
    let risks: Vec<_> = before.grants.high_risks().collect();
    let risks = after
        .grants
        .high_risks()
        .filter(|risk| !risks.contains(risk));
    let mut risks: Vec<_> = risks
        .map(|(host, why)| format!("`{host}`: {why}"))
        .collect();
    risks.extend(requests.gains(&before, &after, &tool, &known));
    risks.extend(affected);
    if is_loosened(&before, &after) {
        let file = text::path(&before.governing.file);
        risks.push(format!(
            "conditions or limits of {file} would not bind this tool any more"
        ));
    }
    let changes = policy.into_iter().chain(asking.change);
    Ok(Proposal {
        changes: changes.filter(Change::is_one).collect(),
        risks,
        left: requests.left,
    })
}

/// What the tool of this id does outside its own call. Calls of many tools (`ns:*`) are granted only
/// where that is nothing.
fn effects(known: &host::Tools, id: &str) -> Option<String> {
    let tool = known.snapshot.find(id).ok()?;
    let decision = known.decide(&tool);
    let touches = policy::audit::touches(&decision);
    decision.has_effects().then(|| touches.join(", "))
}

/// The entries that a policy lacks for calls of tools with effects, which only their exact ids open.
fn unnamed_calls(known: &host::Tools, manifest: &Manifest, decision: &Decision) -> Vec<Entry> {
    let met = decision.verdicts.iter();
    let met = met.filter(|it| it.what == RequestKind::Call && it.allowed);
    let unnamed = met.filter(|it| {
        let mut grants = decision.grants.calls.iter();
        effects(known, &it.asked).is_some() && !grants.any(|grant| grant.allows(&it.asked, true))
    });
    unnamed
        .map(|it| policy::suggest::call_entry(manifest, &it.asked))
        .collect()
}

/// The other tools for which these policies decide otherwise: they share the policy's file.
fn others_affected(known: &host::Tools, policies: &Policies, tool: &Tool) -> Vec<String> {
    let decide = |other: &Tool, policies: &Policies| {
        let decision =
            service::requirements::decide(other, &known.snapshot, policies, &known.machine);
        let verdicts = decision.verdicts.iter().map(granted);
        verdicts
            .map(|verdict| format!("{verdict:?}"))
            .collect::<BTreeSet<_>>()
    };
    let others = known.snapshot.list(&Filter::default());
    let others = others.into_iter().filter(|other| {
        // The tools of a server have its decision.
        other.manifest.of_process().id != tool.manifest.id
            && decide(other, policies) != decide(other, &known.policies)
    });
    others
        .map(|other| format!("{} is governed by the same policy", other.reference()))
        .collect()
}

/// The permissions that the policy of a tool requires, and not the one that would govern it now.
fn lost_permissions(before: &Policies, after: &Policies, tool: &Tool) -> Option<String> {
    let [before, after] = [before, after].map(|policies| {
        let governing = policies.governing(&tool.manifest.id, &tool.site.manifest);
        &governing.0.require_permissions
    });
    let lost: Vec<_> = before.difference(after).cloned().collect();
    (!lost.is_empty()).then(|| format!("`{}` would not be required any more", lost.join("`, `")))
}

/// Whether a call would need no person's yes any more, have larger limits, or have packages that
/// were denied.
fn is_loosened(before: &Decision, after: &Decision) -> bool {
    let limits = before.limits.iter().zip(&after.limits);
    let packages = before.grants.packages.iter().zip(&after.grants.packages);
    packages.into_iter().any(|(old, new)| !old.covers(new))
        || !after
            .conditions
            .confirm
            .starts_with(&before.conditions.confirm)
        || before.approval.is_some() && after.approval.is_none()
        || before.conditions.require_cgroup && !after.conditions.require_cgroup
        || limits
            .into_iter()
            .any(|(old, new)| new.ceiling > old.ceiling)
}

/// What a verdict says. A variable that is not set yet may be granted, too.
fn granted(verdict: &Verdict) -> (&str, &str, Option<&str>, bool) {
    let effective = verdict.effective.as_deref();
    (
        verdict.what.name(),
        &verdict.asked,
        effective,
        verdict.allowed,
    )
}

fn with_manifest(tool: &Tool, manifest: Manifest) -> Tool {
    Tool {
        manifest: Arc::new(manifest),
        ..tool.clone()
    }
}

fn root(settings: &Settings) -> PathBuf {
    let root = settings.root.canonicalize();
    root.unwrap_or_else(|_| settings.root.clone())
}

impl Requests {
    /// Those of the command line; without any, those of the newest call that was refused something.
    fn new(
        settings: &Settings,
        args: &Args,
        tool: &Tool,
        decision: &Decision,
    ) -> anyhow::Result<Requests> {
        let set = |words: &[String]| words.iter().cloned().collect();
        if args.names_something() {
            return Ok(Requests {
                read: set(&args.read),
                write: set(&args.write),
                hosts: set(&args.host),
                capabilities: set(&args.capability),
                calls: set(&args.call),
                left: Vec::new(),
                is_typed: true,
            });
        }
        // Nobody would look at what callers brought into the log.
        if args.yes {
            return Ok(Requests::default());
        }
        let last = host::audit_log(settings)?.last_denials(tool, decision);
        let last = last.map_err(refused)?;
        let script = tool.site.script.as_ref().map(std::fs::read).transpose()?;
        let script = String::from_utf8_lossy(&script.unwrap_or_default()).into_owned();
        let mut found = Requests::default();
        let newest = last.denials.first().map(|denial| denial.call.clone());
        for denial in last.denials {
            if Some(&denial.call) == newest.as_ref() {
                found.add(&denial, tool, decision, &script);
            }
        }
        Ok(found)
    }

    /// What a call would get more than before, other than the hosts that are asked for, sockets, files
    /// of the tool's own folder, and calls of tools without effects: a person says yes to each.
    fn gains(
        &self,
        before: &Decision,
        after: &Decision,
        tool: &Tool,
        known: &host::Tools,
    ) -> Vec<String> {
        let calls = after.grants.calls.iter();
        let calls = calls.filter(|grant| !before.grants.calls.iter().any(|it| it.covers(grant)));
        let effects = calls.filter_map(|grant| {
            let id = grant.tool.text();
            Some(format!(
                "call {id}: {}",
                effects(known, &id).filter(|_| grant.by_name)?
            ))
        });
        let seen: BTreeSet<_> = before.verdicts.iter().map(granted).collect();
        let gained = after.verdicts.iter().filter(|verdict| {
            let is_expected = match verdict.what {
                RequestKind::Read | RequestKind::Write => {
                    let area = verdict.area.as_ref();
                    let is_own =
                        area.is_none_or(|area| area.folder().starts_with(&tool.site.folder));
                    is_own && (self.is_typed || verdict.what == RequestKind::Read)
                }
                RequestKind::Host => self.hosts.contains(&verdict.asked),
                RequestKind::Capability => verdict.asked == "local-sockets",
                RequestKind::Call => true,
                _ => false,
            };
            !is_expected && !seen.contains(&granted(verdict))
        });
        gained
            .map(|verdict| format!("{} {}", verdict.what.name(), verdict.asked))
            .chain(effects)
            .map(|risk| printable(&risk))
            .collect()
    }

    /// Adds what a denial asks for, where it stands as a string in the script: who calls a tool may
    /// not choose what its person is asked to grant. What was denied is one place, never a pattern.
    fn add(&mut self, denial: &LatestDenial, tool: &Tool, decision: &Decision, script: &str) {
        let LatestDenial {
            operation, target, ..
        } = denial;
        let path = tool.site.folder.join(target);
        let own = path.strip_prefix(&tool.site.folder).ok();
        let mut pattern = own.unwrap_or(&path).to_string_lossy().into_owned();
        if (target.ends_with('/') || path.is_dir()) && !pattern.ends_with('/') {
            pattern.push('/');
        }
        let is_host = matches!(operation.as_str(), "connect" | "resolve" | "request");
        let verdict = service::verdict_on(target, decision).filter(|_| is_host);
        if verdict.is_some_and(|verdict| verdict.allowed) {
            let target = printable(target);
            self.left.push(format!(
                "{operation} {target}: the host is granted already; what refused it (its addresses, \
                 say, which `ranges` of its entry opens) is in `toolhost call {} --explain`",
                tool.manifest.id
            ));
            return;
        }
        let host = parse_pattern(target).ok();
        let host = host.map(|host| HostPattern { port: None, ..host }.to_string());
        let file = target.trim_end_matches('/').to_owned();
        let (list, option, name, word) = match (operation.as_str(), host) {
            ("connect" | "resolve" | "request", Some(host)) => {
                (&mut self.hosts, "--host", host, target.to_owned())
            }
            ("read" | "run", _) => (&mut self.read, "--read", file, pattern),
            ("write", _) => (&mut self.write, "--write", file, pattern),
            _ => return,
        };
        let is_file = option != "--host";
        // A script names what lies in its folder by the path from there.
        let own = own.filter(|_| is_file).map(Path::to_string_lossy);
        let is_in_script = is_in_string(script, &name)
            || own.is_some_and(|own| is_in_string(script, own.trim_end_matches('/')));
        if tool.site.manifest.as_os_str().is_empty() || is_file && !is_plain(&word) {
            // What has no manifest requests nothing, and no manifest names such a file alone.
        } else if is_in_script {
            list.insert(word);
        } else if names(&denial.arguments, &name) && (!is_file || is_open_to_all(&path)) {
            let (id, word) = (&tool.manifest.id, words::quote(&word));
            self.left.push(format!(
                "{operation} {}: only an argument of that call names it: `toolhost allow {id} {option} \
                 {word}` grants it",
                printable(target)
            ));
        } else if option == "--write" {
            self.left.push(format!(
                "write {}: nothing names it, so it may be temporary: grant the result beside it, or its \
                 folder: `toolhost allow {} --write PATH`",
                printable(target),
                tool.manifest.id
            ));
        }
    }

    /// Each list, and where it stands.
    fn lists(&self) -> [(&'static [&'static str], &BTreeSet<String>); 5] {
        [
            (&["securityContext", "fileAccess", "allowRead"], &self.read),
            (
                &["securityContext", "fileAccess", "allowWrite"],
                &self.write,
            ),
            (
                &["securityContext", "networkAccess", "allowHosts"],
                &self.hosts,
            ),
            (
                &["securityContext", "requiredCapabilities"],
                &self.capabilities,
            ),
            (&["calls"], &self.calls),
        ]
    }

    /// The tool with these requests.
    fn asking(&self, tool: &Tool) -> anyhow::Result<Asking> {
        let file = &tool.site.manifest;
        if tool.manifest.skill().is_some() {
            let mut manifest = (*tool.manifest).clone();
            manifest.requested = self.of_skill()?;
            return Ok(Asking {
                tool: with_manifest(tool, manifest),
                change: None,
            });
        }
        if !file.as_os_str().is_empty() {
            let before = std::fs::read_to_string(file)?;
            let after = self.added_to(&before, tool)?;
            let read = crate::manifest::read(after.as_bytes());
            let (manifest, _) = read.map_err(|problems| refused(&problems[0].message))?;
            let change = Change {
                path: file.clone(),
                before: Some(before),
                after,
            };
            return Ok(Asking {
                tool: with_manifest(tool, manifest),
                change: Some(change),
            });
        }
        let mut others = self.lists().into_iter().take(4);
        if others.any(|(_, words)| !words.is_empty()) {
            let words = "this tool has no manifest that could request it: its code has no network, and \
                 what its policy lets it read is written there by hand";
            return Err(refused(words).into());
        }
        if tool.manifest.id != policy::RUN_CODE && !self.calls.is_empty() {
            return Err(
                refused("only code of core:run-code calls tools without a manifest").into(),
            );
        }
        let mut manifest = (*tool.manifest).clone();
        for id in &self.calls {
            let called = Selector::try_from(id.clone());
            manifest.calls.push(called.map_err(refused)?);
        }
        Ok(Asking {
            tool: with_manifest(tool, manifest),
            change: None,
        })
    }

    /// What a skill, which has no manifest, is to have beside what its policy allows.
    fn of_skill(&self) -> Result<RequestedAccess, Refusal> {
        if !self.calls.is_empty() || !self.capabilities.is_empty() {
            return Err(refused("a script of a skill has no such grant"));
        }
        fn patterns(words: &BTreeSet<String>) -> Result<Vec<Pattern>, Refusal> {
            let parsed = words.iter().map(|word| pattern::parse(word));
            parsed.map(|it| it.map_err(refused)).collect()
        }
        let mut read = self.read.clone();
        if !read.is_empty() {
            read.insert("./**".to_owned());
        }
        let hosts = self.hosts.iter().map(|host| parse_pattern(host));
        let hosts: Result<Vec<HostPattern>, _> = hosts.collect();
        Ok(RequestedAccess {
            read: Some(patterns(&read)?).filter(|it| !it.is_empty()),
            write: patterns(&self.write)?,
            hosts: hosts.map_err(refused)?,
            capabilities: Vec::new(),
        })
    }

    /// The text of the manifest with these requests in it.
    fn added_to(&self, text: &str, tool: &Tool) -> Result<String, Refusal> {
        let root = CstRootNode::parse(text, &ParseOptions::default()).map_err(refused)?;
        let unfit = || refused("its manifest is not made of objects and lists");
        for (path, words) in self
            .lists()
            .into_iter()
            .filter(|(_, words)| !words.is_empty())
        {
            let mut object = root.object_value().ok_or_else(unfit)?;
            let (list, folders) = path.split_last().ok_or_else(unfit)?;
            for name in folders {
                object = object.object_value_or_create(name).ok_or_else(unfit)?;
            }
            let list = object.array_value_or_create(list).ok_or_else(unfit)?;
            // Without a list of its own a tool reads its folder: a new list must say so.
            let own = path.ends_with(&["allowRead"]) && tool.manifest.requested.read.is_none();
            let own = own.then(|| "./**".to_owned());
            let known: Vec<Value> = (list.elements().iter())
                .filter_map(|element| Some(json!(element.as_string_lit()?.decoded_value().ok()?)))
                .collect();
            for word in own
                .iter()
                .chain(words)
                .filter(|word| !known.contains(&json!(word)))
            {
                list.append(CstInputValue::String(word.clone()));
            }
        }
        Ok(root.to_string())
    }
}

/// The policy that grants what this one lacks: more entries in the one that names the tool by its
/// exact id, else a new one. `None`: nothing is lacking.
fn policy_change(
    settings: &Settings,
    tool: &Tool,
    decision: &Decision,
    calls: Vec<Entry>,
) -> anyhow::Result<Option<Change>> {
    let governing = &decision.governing;
    if !governing.exact {
        if decision.denied().next().is_none() && !governing.unnamed && calls.is_empty() {
            return Ok(None);
        }
        let folder = settings.policy_path();
        if folder.is_file() {
            let words =
                "this host has one file of policies: write a policy for this tool into its own";
            return Err(refused(words).into());
        }
        let places = policy::suggest::Places {
            root: &root(settings),
            policies: &folder,
        };
        let after = policy::suggest::policy(&tool.manifest, &tool.site, decision, &places);
        let after = words::with_settings(&after);
        let named = policy::parse(&after, Path::new(""), false, &root(settings));
        let named = named.map_err(|_| refused(&after))?;
        let path = std::path::absolute(folder)?.join(format!("{}{}", named.name, policy::SUFFIX));
        return Ok(Some(Change {
            path,
            before: None,
            after,
        }));
    }
    let before = std::fs::read_to_string(&governing.file)?;
    let mut document: DocumentMut = before.parse().map_err(refused)?;
    let missing = policy::suggest::missing(&tool.manifest, &tool.site, decision);
    for entry in missing.into_iter().chain(calls) {
        let table = document
            .entry(entry.table)
            .or_insert(Item::Table(Table::new()));
        let table = table.as_table_like_mut();
        let table = table.ok_or_else(|| refused(format!("[{}] must be a table", entry.table)))?;
        let is_new = !table.contains_key(entry.list);
        let list = table
            .entry(entry.list)
            .or_insert(Item::Value(Array::new().into()));
        let list = list.as_array_mut();
        let list = list.ok_or_else(|| refused(format!("{} must be a list", entry.list)))?;
        if is_new && entry.list == "read" {
            append(list, "{ path = \"./**\", why = \"its own folder\" }")?;
        }
        append(list, &entry.text)?;
    }
    Ok(Some(Change {
        path: governing.file.clone(),
        before: Some(before),
        after: document.to_string(),
    }))
}

/// Adds an entry as the others stand: each on its line, or all on one.
fn append(list: &mut Array, entry: &str) -> Result<(), Refusal> {
    let mut value: toml_edit::Value = entry.parse().map_err(refused)?;
    let first = list
        .get(0)
        .and_then(|first| first.decor().prefix()?.as_str());
    let prefix = match first.filter(|prefix| prefix.contains('\n')) {
        Some(_) => "\n  ",
        None if list.is_empty() => "",
        None => " ",
    };
    *value.decor_mut() = toml_edit::Decor::new(prefix, "");
    list.push_formatted(value);
    Ok(())
}

impl Change {
    fn is_one(&self) -> bool {
        self.before.as_ref() != Some(&self.after)
    }

    /// Prints the lines that differ, with a few that tell where.
    fn show(&self) {
        let changed = words::changed_lines(self.before.as_deref().unwrap_or_default(), &self.after);
        let mut lines = vec![format!("{}:{}", text::path(&self.path), changed.first)];
        lines.extend(changed.lines);
        words::note(&lines.join("\n"));
    }

    fn make(&self) -> std::io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // Nobody else may write policies, whatever the umask.
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)?;
        words::write_file(&self.path, &self.after, self.before.is_some())
    }

    fn undo(&self) -> std::io::Result<()> {
        match &self.before {
            Some(before) => words::write_file(&self.path, before, true),
            None => std::fs::remove_file(&self.path),
        }
    }
}

impl Proposal {
    /// Records the changes, and makes all or none.
    fn write(&self, settings: &Settings, tool: &str) -> anyhow::Result<()> {
        let log = host::audit_log(settings)?;
        let record = |outcome: &str| -> Result<(), Refusal> {
            log.open()?.write(&self.record(tool, outcome));
            Ok(())
        };
        record("written")?;
        for (index, change) in self.changes.iter().enumerate() {
            if let Err(why) = change.make() {
                for made in &self.changes[..index] {
                    made.undo()?;
                }
                record("failed")?;
                return Err(refused(format!("{}: {why}", text::path(&change.path))).into());
            }
            words::note(&format!("{}: written", text::path(&change.path)));
        }
        Ok(())
    }

    fn record(&self, tool: &str, outcome: &str) -> Value {
        let files = self.changes.iter().map(|change| {
            let digest = |text: &String| crate::base::sha256_hex(text.as_bytes());
            json!({"path": change.path, "before": change.before.as_ref().map(digest),
                   "after": digest(&change.after)})
        });
        json!({
            "time": jiff::Timestamp::now(),
            "allowed": tool,
            "uid": getuid().as_raw(),
            "user": host::login(),
            "outcome": outcome,
            "files": files.collect::<Vec<_>>(),
            "risks": self.risks,
        })
    }
}
