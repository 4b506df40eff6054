//! Advice for a person: what would grant a tool what a call of it was refused.
//!
//! Nothing is proposed that no policy could hold, and what only the caller names is said to be so:
//! whoever calls a tool may not choose unseen what its person is asked to grant.

use crate::base::text::{is_in_string, names, path, printable};
use crate::executor::Operation;
use crate::manifest::host::{self, HostPattern};
use crate::manifest::{self, RequestedAccess, ToolPaths};
use crate::policy::base_view::{KERNEL, SCRATCH, SYSTEM_FOLDERS};
use crate::policy::{self, Narrower, Verdict};
use crate::registry;
use crate::service::decision_cache::DecisionCache;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most hosts of a text that advice is given about.
const MAX_HOSTS: usize = 3;

/// What ran, and what was decided about it.
pub(super) struct DenialContext<'a> {
    pub site: &'a ToolPaths,
    pub decision: &'a policy::Decision,
    pub tool: &'a registry::Tool,
    /// Judges what would be proposed.
    pub decisions: &'a DecisionCache,
    /// The script's own text, and the arguments.
    pub script: String,
    pub arguments: String,
    /// What the tool wrote to its log.
    pub log: String,
    /// For a person at this machine: the files and folders of this host, for which no grant is
    /// proposed.
    pub own: Option<Vec<PathBuf>>,
    /// The status by which the script ended itself.
    pub exit_status: Option<i32>,
    /// Refusals of files and system calls are recorded.
    pub recorded: bool,
}

impl DenialContext<'_> {
    /// A script that is run as a whole does not speak of standard input, and the call brought
    /// arguments.
    pub fn ignores_arguments(&self) -> bool {
        let script = &self.script;
        let is_given = !["", "{}"].contains(&self.arguments.trim());
        let own = self.tool.manifest.handler.script();
        own.is_some_and(|own| own.entry_point.is_none())
            && self.tool.manifest.execution.command_line.is_none()
            && is_given
            && !script.is_empty()
            && !script.contains("stdin")
    }

    pub fn requested(&self, operation: Operation, path: &Path) -> Option<&Verdict> {
        let what = match operation {
            Operation::Write | Operation::MakeFolder => policy::RequestKind::Write,
            _ => policy::RequestKind::Read,
        };
        self.decision.verdict_for(what, path)
    }

    /// Whether every tool of this interpreter sees it, or has its own of that name.
    pub fn shows(&self, path: &Path) -> bool {
        let roots = self.decision.grants.runtime.iter();
        roots
            .flat_map(|runtime| &runtime.roots)
            .map(PathBuf::as_path)
            .chain(SYSTEM_FOLDERS.map(Path::new))
            .chain(SCRATCH.map(Path::new))
            .any(|tree| path.starts_with(tree))
    }

    /// The file of the policy that decided, where that is this tool's own; else words for a policy
    /// to write.
    fn policy_file(&self) -> String {
        let id = self
            .decision
            .identity
            .tool
            .split('@')
            .next()
            .unwrap_or_default();
        if !self.decision.governing.exact {
            format!("a policy that names {id}")
        } else {
            path(&self.decision.governing.file)
        }
    }

    /// The command that writes what is needed into both files.
    fn command(&self, option: &str, what: &str) -> String {
        let id = &self.tool.manifest.id;
        format!("`toolhost allow {id} {option} '{what}'`")
    }

    /// The command that grants it, and the same by hand: what the manifest lacks, if it does, and the
    /// line of the policy with its table, as each stands in a file.
    fn ways(&self, command: &str, manifest: Option<String>, policy: PolicyLines) -> String {
        let file = self.policy_file();
        let PolicyLines { table, line } = policy;
        // A skill has no manifest: the policy alone says what it has.
        let manifest = manifest.filter(|_| self.tool.manifest.skill().is_none());
        let manifest = manifest.map_or_else(String::new, |words| format!("{words}, and "));
        format!(
            "{command} writes it. By hand: {manifest}in {file}, on a line below its `[{table}]` (which \
             is a line, too): `{line}`"
        )
    }

    /// What a person reads of a target that only the arguments of the call name.
    fn named_by_caller(&self, option: &str, what: &str) -> Option<String> {
        let command = self.command(option, what);
        let words = format!("only an argument of this call names {what}: {command} grants it");
        self.own.is_some().then_some(words)
    }

    /// Whether a manifest can request more: code that a builtin tool runs has none.
    pub fn has_manifest(&self) -> bool {
        !self.site.manifest.as_os_str().is_empty()
    }

    /// Whether the script or the arguments name this.
    fn says(&self, name: &str) -> bool {
        names(&self.script, name) || names(&self.arguments, name)
    }

    /// The one other file of the tool's own folder that strings of the script name.
    fn result(&self) -> Option<&str> {
        let strings = self.script.split(['"', '\'']).skip(1).step_by(2);
        let mut results = strings.filter(|word| {
            let own = self.site.folder.join(word);
            let is_code = self.site.script.as_ref() == Some(&own);
            is_plain(word) && !word.contains(['/', ' ']) && own.extension().is_some() && !is_code
        });
        let first = results.next()?;
        results.all(|other| other == first).then_some(first)
    }

    /// Whether only the caller names this.
    fn only_caller_names(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        names(&self.arguments.to_lowercase(), &name)
            && !is_in_string(&self.script.to_lowercase(), &name)
    }

    /// The hosts that the call names, each once: those of the URLs in its script and its arguments,
    /// and arguments that its log speaks of. The arguments of a server's tool are what the server works
    /// on, and seldom what it asks.
    pub fn hosts(&self) -> Vec<&str> {
        if self.tool.manifest.mcp_tool().is_some() {
            return Vec::new();
        }
        let arguments = self
            .arguments
            .split('"')
            .filter(|word| word.contains('.') && !word.contains("://") && names(&self.log, word));
        let hosts = hosts_in(&self.script).chain(hosts_in(&self.arguments));
        let mut seen = BTreeSet::new();
        let hosts = hosts.chain(arguments.filter(|word| host::parse_pattern(word).is_ok()));
        hosts
            .filter(|host| seen.insert(*host))
            .take(MAX_HOSTS)
            .collect()
    }

    /// How the tool would reach hosts, where nobody knows which.
    pub fn suggest_hosts(&self) -> Option<String> {
        let command = format!("`toolhost allow {} --host HOST`", self.tool.manifest.id);
        self.has_manifest()
            .then(|| format!("to let the tool reach a host: {command} grants it"))
    }

    /// How a command line whose exit status is an answer, as that of a linter, is made to succeed.
    pub fn suggest_answers(&self, printed: u64) -> Option<String> {
        let status = self.exit_status?;
        let is_line = self.decision.conditions.command_line.is_some() && printed > 0;
        is_line.then(|| {
            format!(
                "if status {status} with what it printed is an answer, and no failure: \
                 `\"answers\": [0, {status}]` below `\"execution\"` ({}) says so",
                self.place("/execution")
            )
        })
    }

    /// Whether the policy that decided has no list of what is read.
    fn reads_by_default(&self) -> bool {
        let id = &self.tool.manifest.of_process().id;
        let (policy, _) = self.decisions.policies.governing(id, &self.site.manifest);
        !self.decision.governing.exact || policy.files.reads_by_default()
    }

    /// The lines that would request sockets of the call's own.
    pub fn suggest_sockets(&self) -> Option<String> {
        let place = self.place("/securityContext/requiredCapabilities");
        let command = self.command("--capability", "local-sockets");
        let manifest =
            format!("\"local-sockets\" in securityContext.requiredCapabilities ({place})");
        let policy = PolicyLines {
            table: "capabilities",
            line: "grant = [{ name = \"local-sockets\", why = \"…\" }]".to_owned(),
        };
        let ways = self.ways(&command, Some(manifest), policy);
        let words = "without sockets of its own the tool cannot listen, serve or use socket files";
        self.has_manifest().then(|| format!("{words}: {ways}"))
    }

    /// `file:line:column` of a part of the manifest; the file where it has no such part.
    fn place(&self, pointer: &str) -> String {
        let (line, column) = registry::position(&self.site.manifest, pointer);
        let manifest = path(&self.site.manifest);
        if line > 0 {
            format!("{manifest}:{line}:{column}")
        } else {
            manifest
        }
    }
}

/// The hosts of the URLs in a text.
fn hosts_in(text: &str) -> impl Iterator<Item = &str> {
    fn is_part(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':')
    }
    let after = text
        .split("://")
        .skip(1)
        .map(move |rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
    after.filter(|host| host::parse_pattern(host).is_ok())
}

/// The verdict on this target, if the manifest requests it.
pub fn verdict_on<'d>(target: &str, decision: &'d policy::Decision) -> Option<&'d Verdict> {
    let target = host::parse_pattern(target).ok()?;
    let mut hosts = decision
        .verdicts
        .iter()
        .filter(|verdict| verdict.what == policy::RequestKind::Host);
    hosts
        .find(|verdict| host::parse_pattern(&verdict.asked).is_ok_and(|ask| reaches(&ask, &target)))
}

/// A name that is looked up has no port yet.
fn reaches(ask: &HostPattern, target: &HostPattern) -> bool {
    let port = target.port.is_none_or(|port| ask.ports().contains(&port));
    ask.host.covers(&target.host) && port
}

/// Whether everybody on this machine may read the file and list its folder. If the file is missing,
/// the nearest existing folder counts. No grant is proposed for other files.
pub fn is_open_to_all(path: &Path) -> bool {
    fn facts(path: &Path) -> Option<Metadata> {
        path.metadata().ok()
    }
    fn open(facts: Metadata) -> bool {
        if facts.is_dir() {
            facts.mode() & 0o005 == 0o005
        } else {
            facts.mode() & 0o004 == 0o004
        }
    }
    let there = path.ancestors().find_map(|path| Some((path, facts(path)?)));
    there.is_some_and(|(there, found)| {
        let folder = there.parent();
        open(found) && folder.is_none_or(|folder| facts(folder).is_some_and(open))
    })
}

/// The lines that would request this host, with the risks of that. A policy can grant any host.
pub fn suggest_host_grant(target: &str, about: &DenialContext) -> Option<String> {
    use crate::base::address;
    let pattern = host::parse_pattern(target).ok()?;
    let shown = printable(&pattern.to_string());
    let range = match &pattern.host {
        host::Host::Address(address) => {
            address::special(*address).map(|_| ipnet::IpNet::from(*address))
        }
        host::Host::Name(name) if name == "localhost" => "127.0.0.0/8".parse().ok(),
        _ => None,
    };
    let risks = policy::host_risks(&pattern, range.as_slice());
    let risks: String = risks
        .iter()
        .map(|risk| format!("high risk: {risk}; "))
        .collect();
    let ranges = range
        .map(|range| format!("ranges = [\"{range}\"], "))
        .unwrap_or_default();
    let command = about.command("--host", &shown);
    let policy = PolicyLines {
        table: "network",
        line: format!("hosts = [{{ host = \"{shown}\", {ranges}why = \"…\" }}]"),
    };
    if let Some(verdict) = verdict_on(target, about.decision) {
        return Some(match (verdict.narrower, &verdict.reason) {
            (Some(Narrower::Host), Some(reason)) => printable(&format!("{shown}: {reason}")),
            _ => {
                let ways = about.ways(&command, None, policy);
                format!("{risks}{shown} is requested but not allowed: {ways}")
            }
        });
    }
    let name = HostPattern {
        port: None,
        ..pattern
    }
    .to_string();
    if !about.has_manifest() {
        return None;
    }
    if about.only_caller_names(&name) {
        let words = about.named_by_caller("--host", &shown)?;
        return Some(format!("{risks}{words}"));
    }
    let place = about.place("/securityContext/networkAccess/allowHosts");
    let manifest = format!("\"{shown}\" in securityContext.networkAccess.allowHosts ({place})");
    let ways = about.ways(&command, Some(manifest), policy);
    Some(format!("{risks}to let the tool reach {shown}: {ways}"))
}

/// Whether a name is one path of a manifest: not a pattern, and without what would need quotes.
pub fn is_plain(name: &str) -> bool {
    name == printable(name)
        && !name.contains(['"', '\'', '\\', '*', '?', '[', ']', '{', '}', '\u{FFFD}'])
}

/// Whether a file has a plain name, is none of this host's own, and is the tool's or open to all.
fn is_proposable(file: &Path, is_own: bool, about: &DenialContext) -> bool {
    let ours = about
        .own
        .as_ref()
        .is_some_and(|files| files.iter().any(|own| file.starts_with(own)));
    // A file elsewhere is proposed only to a person, and only if everybody may read it.
    is_plain(&file.to_string_lossy())
        && !ours
        && about.has_manifest()
        && !KERNEL.iter().any(|tree| file.starts_with(tree))
        && (is_own || about.own.is_some() && is_open_to_all(file))
}

/// The lines that would request this file. `None` for files that no policy can open, private files,
/// this host's own files, and names that would need quotes or match more than one file.
pub fn suggest_file_grant(
    file: &Path,
    operation: Operation,
    decided: Option<&Verdict>,
    about: &DenialContext,
) -> Option<String> {
    let text = file.to_str()?;
    let own = file
        .strip_prefix(&about.site.folder)
        .ok()
        .filter(|rest| !rest.as_os_str().is_empty());
    if !is_proposable(file, own.is_some(), about) {
        return None;
    }
    let temporary = around_temporary(file, operation, about).filter(|_| decided.is_none());
    let said = temporary.as_ref().map_or_else(String::new, |_| {
        let name = path(Path::new(file.file_name().unwrap_or_default()));
        format!("nothing names {name}, which may be temporary and another each time; ")
    });
    let request = temporary.unwrap_or_else(|| FileRequest::new(file, own, operation));
    let manifest = &request.pattern;
    if let Some(verdict) = decided.filter(|verdict| verdict.narrower != Some(Narrower::Policy)) {
        return Some(format!(
            "{manifest} is requested: {}",
            verdict.reason.as_deref().unwrap_or_default()
        ));
    }
    if about.decisions.never_grants(about.tool, request.access()?) {
        return None;
    }
    let key = request.key();
    let command = about.command(&format!("--{key}"), manifest);
    let policy = request.policy_lines(about);
    if decided.is_some() {
        let ways = about.ways(&command, None, policy);
        return Some(format!("{manifest} is requested but not allowed: {ways}"));
    }
    let folder = file
        .parent()
        .filter(|_| own.is_none())
        .and_then(Path::to_str);
    let mut parts = file
        .file_name()
        .and_then(|name| name.to_str())
        .into_iter()
        .chain(folder);
    if parts.any(|name| about.only_caller_names(name) && !about.script.contains(text)) {
        let words = about.named_by_caller(&format!("--{key}"), manifest)?;
        return Some(said + &words);
    }
    let field = request.field();
    let place = about.place(&format!("/securityContext/fileAccess/{field}"));
    // Without a list of its own a tool reads its folder: a list that is new must say so.
    let own_pattern = if request.reads && about.tool.manifest.requested.read.is_none() {
        "\"./**\", "
    } else {
        ""
    };
    let entries =
        format!("{own_pattern}\"{manifest}\" in securityContext.fileAccess.{field} ({place})");
    let ways = about.ways(&command, Some(entries), policy);
    Some(format!("{said}to let the tool {key} {manifest}: {ways}"))
}

/// What holds a new file that neither the script nor the arguments name, as the temporary file beside a
/// result: the result, in the tool's own folder, else the folder that they name.
fn around_temporary(
    file: &Path,
    operation: Operation,
    about: &DenialContext,
) -> Option<FileRequest> {
    let is_new = about.own.is_some() && file.symlink_metadata().is_err();
    let is_named = about.says(file.file_name()?.to_str()?);
    let own = &about.site.folder;
    let folder = file.parent()?;
    let at = if folder == own {
        folder.join(about.result()?)
    } else {
        folder.to_owned()
    };
    let below = at.strip_prefix(own).ok();
    let request = FileRequest::new(&at, below, operation);
    let is_proposed = operation == Operation::Write
        && is_new
        && !is_named
        && about.says(below.unwrap_or(&at).to_str()?)
        && !about.decisions.never_grants(about.tool, request.access()?);
    is_proposed.then_some(request)
}

/// What a policy lacks: the table, and the line in it.
struct PolicyLines {
    table: &'static str,
    line: String,
}

/// A file or folder as a manifest and a policy name it.
struct FileRequest {
    reads: bool,
    /// Of the manifest.
    pattern: String,
    /// Of the policy.
    rule: String,
}

impl FileRequest {
    fn new(file: &Path, own: Option<&Path>, operation: Operation) -> FileRequest {
        let mut pattern = path(own.unwrap_or(file));
        let rule = own.map_or_else(|| file.to_owned(), |own| PathBuf::from(".").join(own));
        let mut rule = path(&rule);
        if operation == Operation::MakeFolder || file.is_dir() {
            pattern.push('/');
            rule.push_str("/**");
        }
        FileRequest {
            reads: !matches!(operation, Operation::Write | Operation::MakeFolder),
            pattern,
            rule,
        }
    }

    fn key(&self) -> &'static str {
        if self.reads { "read" } else { "write" }
    }

    fn field(&self) -> &'static str {
        if self.reads {
            "allowRead"
        } else {
            "allowWrite"
        }
    }

    fn access(&self) -> Option<RequestedAccess> {
        let pattern = manifest::parse_pattern(&self.pattern).ok()?;
        let (read, write) = if self.reads {
            (Some(vec![pattern]), Vec::new())
        } else {
            (None, vec![pattern])
        };
        Some(RequestedAccess {
            read,
            write,
            ..RequestedAccess::default()
        })
    }

    fn policy_lines(&self, about: &DenialContext) -> PolicyLines {
        // As in the manifest.
        let own = if self.reads && about.reads_by_default() {
            "{ path = \"./**\", why = \"its own folder\" }, "
        } else {
            ""
        };
        let (key, rule) = (self.key(), &self.rule);
        PolicyLines {
            table: "files",
            line: format!("{key} = [{own}{{ path = \"{rule}\", why = \"…\" }}]"),
        }
    }
}
