//! Denials: what a call was refused, and network failures, as data and as text.
//!
//! No text names a host or a file that the tool did not name itself. Whether a file exists on this
//! machine is looked up only for the person who asks for an explanation.

use crate::base::text::{path, printable};
use crate::egress::Traffic;
use crate::egress::protocol::{RefusalReason, TrafficEvent, TrafficKind};
use crate::executor::{Attempt, Denial, Ending, NEVER, Operation};
use crate::fault::{Fault, Kind};
use crate::manifest::host::{self, HostPattern};
use crate::manifest::{self, Handler, Language, RequestedAccess, ToolPaths};
use crate::policy::base_view::{KERNEL, SCRATCH, SYSTEM_FOLDERS};
use crate::policy::{self, Narrower, Verdict};
use crate::quantity::Limit;
use crate::registry;
use crate::service::decision_cache::DecisionCache;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The operation of a limit that was reached.
pub const LIMIT: &str = "limit";
/// Most events that an error lists.
const MAX_LISTED_EVENTS: usize = 3;
/// The system call that every connection begins with.
const SOCKET: &str = "socket";

/// Calls that need sockets of a call's own, without a granted host too.
const OWN_SOCKETS: [&str; 4] = [SOCKET, "bind", "listen", "accept"];

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
}

impl DenialContext<'_> {
    /// A script that is run as a whole, and does not speak of standard input.
    fn reads_no_arguments(&self) -> bool {
        let Handler::Script { entry_point, .. } = &self.tool.manifest.handler else {
            return false;
        };
        entry_point.is_none() && !self.script.is_empty() && !self.script.contains("stdin")
    }
}

/// What was refused, each once. Texts are as the tool gave them: secrets are not hidden yet,
/// nothing is cut.
pub(super) fn observed(
    traffic: &Traffic,
    attempts: &[Attempt],
    about: &DenialContext,
) -> Vec<Denial> {
    let mut found: Vec<Denial> = Vec::new();
    for event in &traffic.events {
        let Some(refusal) = event.refused.as_ref().filter(|refusal| refusal.is_a_rule()) else {
            continue;
        };
        let narrower = narrower(event, refusal, about.decision);
        let rule = printable(&refusal.to_string());
        let ask = (*refusal == RefusalReason::NotGranted)
            .then(|| suggest_host_grant(&event.target, about))
            .flatten();
        let operation = operation(event.what).to_owned();
        let target = event.target.clone();
        let denial = Denial {
            operation,
            target,
            rule,
            narrower,
            ask,
            named: true,
            ..Denial::default()
        };
        if !found.contains(&denial) {
            found.push(denial);
        }
    }
    let mut attempted: Vec<Denial> = attempts
        .iter()
        .map(|attempt| denial_of(attempt, about))
        .collect();
    let mut hosts = Vec::new();
    if attempts
        .iter()
        .any(|attempt| attempt.operation == Operation::Call && attempt.target == SOCKET)
    {
        hosts.extend(
            hosts_in(&(about.script.clone() + &about.arguments))
                .map(|host| no_network(host, about)),
        );
    }
    // What the script itself names comes first, then what its libraries look for, then system
    // calls.
    attempted.sort_by_key(|denial| (denial.operation == verb(Operation::Call), !denial.named));
    found.extend(hosts.into_iter().chain(attempted));
    found
}

/// The hosts of the URLs in a text, each once: the first few.
fn hosts_in(text: &str) -> impl Iterator<Item = &str> {
    fn is_part(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':')
    }
    let after = text
        .split("://")
        .skip(1)
        .map(move |rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
    let mut hosts: Vec<&str> = after
        .filter(|host| host::parse_pattern(host).is_ok())
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    hosts.retain(|host| seen.insert(*host));
    hosts.into_iter().take(MAX_LISTED_EVENTS)
}

/// The denial for a host that the script names, if the script was refused a socket.
fn no_network(host: &str, about: &DenialContext) -> Denial {
    let narrower = verdict_on(host, about.decision).map_or(Narrower::Manifest, |v| {
        v.narrower.unwrap_or(Narrower::Policy)
    });
    Denial {
        operation: operation(TrafficKind::Connection).to_owned(),
        target: host.to_owned(),
        rule: "network: no socket without a granted host".to_owned(),
        narrower: narrower.name().to_owned(),
        ask: suggest_host_grant(host, about),
        named: true,
        ..Denial::default()
    }
}

fn operation(what: TrafficKind) -> &'static str {
    match what {
        TrafficKind::Lookup => "resolve",
        TrafficKind::Connection => "connect",
        TrafficKind::Request => "request",
        TrafficKind::Listener => "listen",
        TrafficKind::Replaced => "replace",
    }
}

fn narrower(event: &TrafficEvent, refusal: &RefusalReason, decision: &policy::Decision) -> String {
    let narrower = match refusal {
        RefusalReason::NotGranted => match verdict_on(&event.target, decision) {
            Some(verdict) => verdict.narrower.unwrap_or(Narrower::Policy),
            None => Narrower::Manifest,
        },
        RefusalReason::Address { .. } | RefusalReason::Secret { .. } => Narrower::Policy,
        _ => Narrower::BuiltIn,
    };
    narrower.name().to_owned()
}

/// The verdict on this target, if the manifest requests it.
fn verdict_on<'d>(target: &str, decision: &'d policy::Decision) -> Option<&'d Verdict> {
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

/// The limit that ended a call, and its value.
pub(super) fn limit_of(ending: &Ending) -> Option<(Limit, u64)> {
    match ending {
        Ending::TimedOut { limit_ms } => Some((Limit::TimeoutMs, *limit_ms)),
        Ending::OverLimit { limit, allowed } => Some((*limit, *allowed)),
        _ => None,
    }
}

/// Says who set a limit, and its maximum. `requested_ms`: the call's own time limit.
pub(super) fn set_by(
    limit: Limit,
    decision: &policy::Decision,
    requested_ms: Option<u64>,
) -> Option<String> {
    let verdict = decision.limit(limit)?;
    let name = limit.name();
    let policy = match verdict.set_by() {
        from if verdict.from == policy::LimitVerdict::BUILT_IN => {
            format!("{from}, which a policy may raise ([limits])")
        }
        from => format!("the policy {from}"),
    };
    let field = if limit == Limit::TimeoutMs {
        "execution.timeoutMs".to_owned()
    } else {
        format!("limits.{name}")
    };
    let by_call =
        limit == Limit::TimeoutMs && requested_ms.is_some_and(|asked| asked <= verdict.ceiling);
    let setter = match verdict.asked {
        _ if by_call => "this call".to_owned(),
        Some(asked) if verdict.clamped => format!("{policy} (the manifest requests {asked})"),
        Some(_) => format!("the manifest ({field})"),
        None => format!("{policy}; a manifest requests more in {field}"),
    };
    Some(format!(
        "{name} was set by {setter}; maximum {}, set by {policy}",
        verdict.ceiling
    ))
}

/// The limit that ended a call, with its value. `ask`: who set it, and who may set a larger one.
pub(super) fn limit(
    limit: Limit,
    allowed: u64,
    decided: &policy::Decision,
    ask: Option<String>,
) -> Option<Denial> {
    let verdict = decided.limit(limit)?;
    // Only a policy raises the ceiling; below it the manifest can request more.
    let narrower = if verdict.effective < verdict.ceiling {
        Narrower::Manifest
    } else {
        Narrower::Policy
    };
    let operation = LIMIT.to_owned();
    let target = limit.name().to_owned();
    let rule = format!("at most {allowed}");
    Some(Denial {
        operation,
        target,
        rule,
        narrower: narrower.name().to_owned(),
        ask,
        ..Denial::default()
    })
}

/// The denial of an attempt to use a file or a system call.
fn denial_of(attempt: &Attempt, about: &DenialContext) -> Denial {
    let what = match attempt.operation {
        Operation::Read | Operation::Run => policy::RequestKind::Read,
        Operation::Write | Operation::MakeFolder => policy::RequestKind::Write,
        Operation::Call => {
            let target = attempt.target.clone();
            let rule = format!("seccomp: {}", attempt.rule);
            let own = OWN_SOCKETS.contains(&attempt.target.as_str());
            let narrower = Narrower::BuiltIn.name().to_owned();
            return Denial {
                operation: "call".to_owned(),
                target,
                rule,
                narrower,
                ask: own.then(|| about.suggest_sockets()),
                named: own && is_refused_socket(&about.log),
                ..Denial::default()
            };
        }
    };
    let path = Path::new(attempt.path.as_deref().unwrap_or(&attempt.target));
    let decided = about
        .decision
        .verdict_for(what, path)
        .filter(|verdict| !verdict.allowed);
    let narrower = decided
        .and_then(|verdict| verdict.narrower)
        .unwrap_or(Narrower::Manifest);
    let own = [Some(&about.site.manifest), about.site.script.as_ref()];
    let own = attempt.operation == Operation::Write && own.contains(&Some(&path.to_owned()));
    let never = own || NEVER.iter().any(|rule| attempt.rule.starts_with(rule));
    Denial {
        operation: verb(attempt.operation).to_owned(),
        target: match attempt.operation {
            Operation::MakeFolder => attempt.target.trim_end_matches('/').to_owned() + "/",
            _ => attempt.target.clone(),
        },
        rule: attempt.rule.clone(),
        narrower: if never { Narrower::BuiltIn } else { narrower }
            .name()
            .to_owned(),
        ask: (!never)
            .then(|| suggest_file_grant(path, attempt.operation, decided, about))
            .flatten(),
        named: about.log.contains(&attempt.target)
            || path
                .file_name()
                .map(|name| name.to_string_lossy())
                .is_some_and(|name| {
                    [&about.script, &about.arguments]
                        .iter()
                        .any(|text| text.contains(&*name))
                }),
        absent: about.own.is_some()
            && what == policy::RequestKind::Read
            && path.symlink_metadata().is_err(),
    }
}

/// Words of a failure by which the kernel or a resolver refuses: strerror(3) of ENOENT and EROFS, and
/// what resolvers say that reach no name server.
const MISSING: &str = "o such file or directory";
const READ_ONLY: &str = "ead-only file system";
const DENIED: &str = "ermission denied";
const NO_NAMES: [&str; 3] = ["name resolution", "getaddrinfo", "esolve host"];

/// The parts of a line in single quotes, and its words that are absolute paths.
fn quoted(line: &str) -> Vec<&str> {
    let words = line
        .split_whitespace()
        .map(|word| word.trim_matches([':', ',']));
    let words = words.filter(|word| word.starts_with('/'));
    line.split('\'').skip(1).step_by(2).chain(words).collect()
}

/// Whether a failure says that a socket of the tool's own was refused.
fn is_refused_socket(words: &str) -> bool {
    let is_refused = words.contains("ot permitted") || words.contains("EPERM");
    is_refused && OWN_SOCKETS.iter().any(|call| words.contains(call))
}

/// Whether everybody on this machine may read the file and list its folder. If the file is missing,
/// the nearest existing folder counts. No grant is proposed for other files.
fn is_open_to_all(path: &Path) -> bool {
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

fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write | Operation::MakeFolder => "write",
        Operation::Run => "run",
        Operation::Call => "call",
    }
}

/// The first few network failures, for the caller.
pub(super) fn words(traffic: &Traffic) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    for event in &traffic.events {
        let Some(refusal) = &event.refused else {
            continue;
        };
        let line = format!("{} {}: {refusal}", operation(event.what), event.target);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.sort_by_key(|line| line.starts_with("resolve"));
    let more = lines.len().saturating_sub(MAX_LISTED_EVENTS);
    lines.truncate(MAX_LISTED_EVENTS);
    let more = (more > 0).then(|| format!("and {more} more"));
    let lines: Vec<String> = lines
        .into_iter()
        .map(|line| printable(&line))
        .chain(more)
        .collect();
    (!lines.is_empty()).then(|| format!("On the network: {}.", lines.join("; ")))
}

/// Hints beside a failure: for the caller, and for the person.
pub(super) type Hints = (Option<String>, Option<String>);

/// Hints for the tool's own failure. `printed`: bytes of its output; `denials`: secrets are hidden
/// in them, and long texts cut.
pub(super) fn hints(
    fault: &Fault,
    printed: u64,
    traffic: &Traffic,
    denials: &[Denial],
    about: &DenialContext,
) -> Hints {
    let tool = &about.tool.manifest.id;
    match fault.kind {
        Kind::TimeoutError if printed > 0 => {
            let left = "if that was its answer, a thread or timer that it left running kept it \
                from ending";
            return (
                Some(format!("It had printed {printed} bytes by then: {left}.")),
                None,
            );
        }
        Kind::ScriptError | Kind::TimeoutError => {}
        _ => return (None, None),
    }
    let words = format!(
        "{}\n{}",
        fault.message,
        fault.details.as_deref().unwrap_or_default()
    );
    let operations = [
        Operation::Read,
        Operation::Write,
        Operation::Run,
        Operation::Call,
    ]
    .map(verb);
    let files = denials
        .iter()
        .filter(|denial| operations.contains(&denial.operation.as_str()));
    // What neither the failure nor the script names, an interpreter or a library looked for.
    let named: Vec<&Denial> = files.filter(|denial| denial.named).collect();
    let spoken_of: Vec<&Denial> = named
        .iter()
        .copied()
        .filter(|denial| {
            let is_socket = OWN_SOCKETS.contains(&denial.target.as_str());
            words.contains(denial.target.trim_end_matches('/')) || is_socket
        })
        .collect();
    let said = match (&spoken_of[..], &named[..]) {
        ([], []) => None,
        ([], named) => Some(format!("Also refused: {}.", few(named))),
        (spoken_of, _) => Some(format!("Refused: {}.", few(spoken_of))),
    };
    let unrecorded = if named.is_empty() {
        about.unrecorded(&words)
    } else {
        (None, None)
    };
    fn join(all: String, more: String) -> String {
        all + "\n" + &more
    }
    let package = (fault.kind == Kind::ScriptError)
        .then(|| missing_package(&words, about))
        .flatten();
    let arguments = (fault.kind == Kind::ScriptError && about.reads_no_arguments()).then(|| {
        "A script gets its arguments as JSON on standard input. With `\"entryPoint\": \"NAME\"` in \
         the handler of its manifest, its function NAME gets them."
            .to_owned()
    });
    let anyone = [self::words(traffic), said, unrecorded.0, package]
        .into_iter()
        .flatten()
        .reduce(join);
    let requests = request_lines(if spoken_of.is_empty() {
        &named
    } else {
        &spoken_of
    });
    let lines = [network_hints(traffic, denials), requests, unrecorded.1];
    let lines = lines.into_iter().flatten().reduce(join);
    let person = [lines, arguments].into_iter().flatten().reduce(join);
    (
        anyone,
        person.or_else(|| {
            (fault.kind == Kind::ScriptError).then(|| {
        format!(
            "`toolhost audit {tool}` shows its grants, `toolhost call {tool} --explain` its denials"
        )
    })
        }),
    )
}

/// The hint for the first package that an interpreter did not find. A name with a dot or slash
/// first is a file.
fn missing_package(words: &str, about: &DenialContext) -> Option<String> {
    let before = [
        "No module named '",
        "Cannot find package '",
        "Cannot find module '",
        "Cannot find module \"",
    ];
    let rest = before
        .iter()
        .find_map(|before| Some(words.split_once(before)?.1))?;
    let name = rest
        .split(['\'', '"'])
        .next()
        .filter(|name| !name.starts_with(['.', '/']) && !name.starts_with("file:"))?;
    let name = printable(name);
    let runtime = about.decision.grants.runtime.as_ref();
    let runs_python = runtime.is_some_and(|it| it.language == Language::Python);
    let how = match &about.decision.packages.required {
        _ if about.tool.manifest.id != policy::RUN_CODE => {
            "this host installs what a file beside the script asks for, where the policy allows \
                it (docs/PACKAGES.md)"
                .to_owned()
        }
        Some(required) => {
            let names = required.packages.iter().map(|package| &*package.name);
            let names: Vec<&str> = names.collect();
            format!(
                "the code of a call can use what comes with its interpreter, and {}. The operator \
                adds it by `toolhost deps lock core:run-code {} {name}`",
                names.join(", "),
                names.join(" ")
            )
        }
        None if runs_python => format!(
            "the code of a call can use what comes with its interpreter. The operator adds packages \
            by `toolhost deps lock core:run-code --preset data-python` (numpy, pandas, matplotlib, \
            openpyxl, pypdf, pillow), or `toolhost deps lock core:run-code {name}`"
        ),
        None => "the code of a call can use what comes with its interpreter".to_owned(),
    };
    Some(format!("The package '{name}' is not installed: {how}."))
}

/// The last few denials as text. Files that the script names have priority, then others, then
/// system calls: libraries often only probe with those.
fn few(denials: &[&Denial]) -> String {
    let mut last = denials.to_vec();
    last.sort_by_key(|denial| (denial.named, denial.operation != verb(Operation::Call)));
    let more = last.len().saturating_sub(MAX_LISTED_EVENTS);
    let last = last.split_off(more).into_iter();
    let last =
        last.map(|denial| format!("{} {} ({})", denial.operation, denial.target, denial.rule));
    last.chain((more > 0).then(|| format!("and {more} more")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// For the person: details of network failures, and the lines that would request what was not
/// granted.
pub(super) fn network_hints(traffic: &Traffic, denials: &[Denial]) -> Option<String> {
    let details = traffic.events.iter().filter_map(|event| {
        let detail = event.refused.as_ref()?.detail()?;
        Some(format!("{}: {}", event.target, printable(detail)))
    });
    let mut lines: Vec<String> = details.collect();
    lines.dedup();
    lines.truncate(MAX_LISTED_EVENTS);
    let of_network = [
        TrafficKind::Lookup,
        TrafficKind::Connection,
        TrafficKind::Request,
        TrafficKind::Listener,
    ]
    .map(operation);
    let of_network = denials
        .iter()
        .filter(|denial| of_network.contains(&denial.operation.as_str()));
    lines.extend(
        of_network
            .filter_map(|denial| denial.ask.clone())
            .take(MAX_LISTED_EVENTS),
    );
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The lines that would request the last few of these.
fn request_lines(denials: &[&Denial]) -> Option<String> {
    let mut last: Vec<&Denial> = denials.iter().rev().copied().collect();
    last.sort_by_key(|denial| !denial.named);
    let lines: Vec<String> = last
        .into_iter()
        .filter_map(|denial| denial.ask.clone())
        .take(MAX_LISTED_EVENTS)
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

impl DenialContext<'_> {
    /// Whether only the caller names this: whoever calls a tool may not choose what its person is
    /// asked to grant.
    fn only_caller_names(&self, name: &str) -> bool {
        fn holds(text: &str, name: &str) -> bool {
            text.to_lowercase().contains(&name.to_lowercase())
        }
        holds(&self.arguments, name) && !holds(&self.script, name)
    }

    /// What the words of a failure tell of refusals that nobody recorded: for everybody, and for the
    /// person the lines that would request it.
    fn unrecorded(&self, words: &str) -> Hints {
        if self.site.manifest.as_os_str().is_empty() {
            return (None, None);
        }
        let has_hosts = !self.decision.grants.hosts.is_empty();
        let sockets = is_refused_socket(words)
            && (self.decision.shape.as_ref()).is_ok_and(|shape| !shape.local_sockets);
        let hosts = !has_hosts && (sockets || NO_NAMES.iter().any(|part| words.contains(part)));
        let anyone = match (hosts, sockets) {
            (true, true) => Some("The tool was granted no hosts, and no sockets of its own."),
            (true, false) => Some("The tool was granted no hosts."),
            (false, true) => Some("The tool was granted no sockets of its own."),
            (false, false) => None,
        };
        let spawn = (sockets && words.contains("multiprocessing")).then_some(
            "Without them multiprocessing works by its start method \"spawn\", but for Manager.",
        );
        let mut refused = words.lines().filter(|line| line.contains(DENIED));
        let scratch = refused.any(|line| SCRATCH.iter().any(|at| line.contains(at)))
            && self.decision.write_below_scratch().is_some();
        let scratch = scratch.then_some(
            "The tool writes a folder below /tmp or /dev/shm, so it makes no links, pipes and \
             sockets in its scratch.",
        );
        let anyone = anyone
            .into_iter()
            .chain(spawn)
            .chain(scratch)
            .collect::<Vec<_>>()
            .join(" ");
        let reach = hosts_in(&self.script).filter(|_| hosts);
        let lines = reach.filter_map(|host| suggest_host_grant(host, self));
        let lines = lines.chain(sockets.then(|| self.suggest_sockets()));
        let lines: Vec<String> = lines.chain(self.ungranted(words)).collect();
        let person = (!lines.is_empty()).then(|| lines.join("\n"));
        ((!anyone.is_empty()).then_some(anyone), person)
    }

    /// For a person at this machine: files that a failure names and that are here, but not in the
    /// tool's view, and those that it could not write.
    fn ungranted(&self, words: &str) -> Vec<String> {
        if self.own.is_none() {
            return Vec::new();
        }
        let folder = &self.site.folder;
        let makes_folder = ["mkdir", "makedirs"]
            .iter()
            .any(|call| words.contains(call));
        let write = if makes_folder {
            Operation::MakeFolder
        } else {
            Operation::Write
        };
        let mut lines = Vec::new();
        for line in words.lines() {
            let written = line.contains(READ_ONLY).then(|| quoted(line)).into_iter();
            lines.extend(written.flatten().filter_map(|name| {
                let path = folder.join(name);
                suggest_file_grant(&path, write, self.requested(write, &path), self)
            }));
            let missing = line.contains(MISSING).then(|| quoted(line)).into_iter();
            lines.extend(missing.flatten().filter_map(|name| {
                let path = folder.join(name).canonicalize().ok()?;
                let requested = self.requested(Operation::Read, &path);
                if requested.is_some_and(|verdict| verdict.allowed) || self.shows(&path) {
                    return None;
                }
                let shown = self::path(&path);
                let ask = suggest_file_grant(&path, Operation::Read, requested, self);
                let ask = ask.unwrap_or_else(|| "it is not proposed".to_owned());
                Some(format!(
                    "{shown} exists on this machine, not granted: {ask}"
                ))
            }));
        }
        lines.dedup();
        lines.truncate(MAX_LISTED_EVENTS);
        lines
    }

    fn requested(&self, operation: Operation, path: &Path) -> Option<&Verdict> {
        let what = match operation {
            Operation::Write | Operation::MakeFolder => policy::RequestKind::Write,
            _ => policy::RequestKind::Read,
        };
        self.decision.verdict_for(what, path)
    }

    /// Whether every tool of this interpreter sees it, or has its own of that name.
    fn shows(&self, path: &Path) -> bool {
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

    /// The command that writes both lines.
    fn command(&self, option: &str, what: &str) -> String {
        let id = &self.tool.manifest.id;
        format!("; or `toolhost allow {id} {option} '{what}'`")
    }

    /// Whether the policy that decided has no list of what is read.
    fn reads_by_default(&self) -> bool {
        let id = &self.tool.manifest.id;
        let (policy, _) = self.decisions.policies.governing(id, &self.site.manifest);
        !self.decision.governing.exact || policy.files.reads_by_default()
    }

    /// The lines that would request sockets of the call's own.
    fn suggest_sockets(&self) -> String {
        let place = self.place("/securityContext/requiredCapabilities");
        format!(
            "without sockets of its own the tool cannot listen, serve or use socket files: \
             \"local-sockets\" in securityContext.requiredCapabilities ({place}), and \
             [capabilities] grant = [{{ name = \"local-sockets\", why = \"…\" }}] in {}{}",
            self.policy_file(),
            self.command("--capability", "local-sockets")
        )
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

/// The lines that would request this host, with the risks of that; `None`: only the caller names
/// it. A policy can grant any host.
fn suggest_host_grant(target: &str, about: &DenialContext) -> Option<String> {
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
    let allow = format!(
        "[network] hosts = [{{ host = \"{shown}\", {ranges}why = \"…\" }}] in {}",
        about.policy_file()
    );
    if let Some(verdict) = verdict_on(target, about.decision) {
        return Some(match (verdict.narrower, &verdict.reason) {
            (Some(Narrower::Host), Some(reason)) => printable(&format!("{shown}: {reason}")),
            _ => format!(
                "{risks}{shown} is requested but not allowed: {allow}{}",
                about.command("--host", &shown)
            ),
        });
    }
    let name = HostPattern {
        port: None,
        ..pattern
    }
    .to_string();
    if about.only_caller_names(&name) {
        return None;
    }
    let place = about.place("/securityContext/networkAccess/allowHosts");
    Some(format!(
        "{risks}to let the tool reach {shown}: \"{shown}\" in \
        securityContext.networkAccess.allowHosts ({place}), and {allow}{}",
        about.command("--host", &shown)
    ))
}

/// Whether a file has a plain name, is none of this host's own, and is the tool's or open to all.
fn is_proposable(file: &Path, is_own: bool, about: &DenialContext) -> bool {
    let text = file.to_string_lossy();
    let plain = text == printable(&text)
        && !text.contains(['"', '\'', '\\', '*', '?', '[', ']', '{', '}', '\u{FFFD}']);
    let ours = about
        .own
        .as_ref()
        .is_some_and(|files| files.iter().any(|own| file.starts_with(own)));
    // A file elsewhere is proposed only to a person, and only if everybody may read it.
    plain
        && !ours
        && !about.site.manifest.as_os_str().is_empty()
        && !KERNEL.iter().any(|tree| file.starts_with(tree))
        && (is_own || about.own.is_some() && is_open_to_all(file))
}

/// The lines that would request this file. `None` for files that no policy can open or only the
/// caller names, private files, this host's own files, and names that would need quotes or match
/// more than one file.
fn suggest_file_grant(
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
    let is_folder = operation == Operation::MakeFolder || file.is_dir();
    let mut manifest = path(own.unwrap_or(file));
    let mut rule = path(&own.map_or_else(|| file.to_owned(), |own| PathBuf::from(".").join(own)));
    if is_folder {
        manifest.push('/');
        rule.push_str("/**");
    }
    let reads = !matches!(operation, Operation::Write | Operation::MakeFolder);
    let (field, key) = if reads {
        ("allowRead", "read")
    } else {
        ("allowWrite", "write")
    };
    // Without a list of its own a tool reads its folder: a list that is new must say so.
    let own_rule = "{ path = \"./**\", why = \"its own folder\" }, ";
    let own_rule = if reads && about.reads_by_default() {
        own_rule
    } else {
        ""
    };
    let own_pattern = if reads && about.tool.manifest.requested.read.is_none() {
        "\"./**\", "
    } else {
        ""
    };
    let allow = format!(
        "[files] {key} = [{own_rule}{{ path = \"{rule}\", why = \"…\" }}] in {}",
        about.policy_file()
    );
    if let Some(verdict) = decided.filter(|verdict| verdict.narrower != Some(Narrower::Policy)) {
        return Some(format!(
            "{manifest} is requested: {}",
            verdict.reason.as_deref().unwrap_or_default()
        ));
    }
    let pattern = manifest::parse_pattern(&manifest).ok()?;
    let request = if reads {
        RequestedAccess {
            read: Some(vec![pattern]),
            ..RequestedAccess::default()
        }
    } else {
        RequestedAccess {
            write: vec![pattern],
            ..RequestedAccess::default()
        }
    };
    if about.decisions.never_grants(about.tool, request) {
        return None;
    }
    if decided.is_some() {
        let command = about.command(&format!("--{key}"), &manifest);
        return Some(format!(
            "{manifest} is requested but not allowed: {allow}{command}"
        ));
    }
    let folder = file
        .parent()
        .filter(|_| own.is_none())
        .and_then(Path::to_str);
    if file
        .file_name()
        .and_then(|name| name.to_str())
        .into_iter()
        .chain(folder)
        .any(|name: &str| about.only_caller_names(name) && !about.script.contains(text))
    {
        return None;
    }
    let place = about.place(&format!("/securityContext/fileAccess/{field}"));
    Some(format!(
        "to let the tool {key} {manifest}: {own_pattern}\"{manifest}\" in securityContext.fileAccess.{field} \
        ({place}), and {allow}{}",
        about.command(&format!("--{key}"), &manifest)
    ))
}
