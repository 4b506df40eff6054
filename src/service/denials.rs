//! Denials: what a call was refused, and network failures, as data and as text.
//!
//! No text names a host or a file that the tool did not name itself. Whether a file exists on this
//! machine is looked up only for the person who asks for an explanation.

use super::grant_advice::{DenialContext, suggest_file_grant, suggest_host_grant, verdict_on};
use crate::base::text::{is_in_string, names, path, printable};
use crate::egress::Traffic;
use crate::egress::protocol::{RefusalReason, TrafficEvent, TrafficKind};
use crate::executor::{Attempt, Denial, Ending, NEVER, Operation};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::policy::base_view::{CALL_FOLDER, CALL_INPUT, CALL_OUTPUT, SCRATCH};
use crate::policy::{self, Narrower};
use crate::quantity::Limit;
use std::collections::BTreeSet;
use std::path::Path;

/// The operation of a limit that was reached.
pub const LIMIT: &str = "limit";
/// Most events that an error lists.
const MAX_LISTED_EVENTS: usize = 3;
/// The system call that every connection begins with.
const SOCKET: &str = "socket";

/// Calls that need sockets of a call's own, without a granted host too.
const OWN_SOCKETS: [&str; 4] = [SOCKET, "bind", "listen", "accept"];

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
    let is_refused_socket = attempts
        .iter()
        .any(|attempt| attempt.operation == Operation::Call && attempt.target == SOCKET);
    let hosts = is_refused_socket.then(|| about.hosts());
    let hosts = hosts.into_iter().flatten();
    // What the script itself names comes first, then what its libraries look for, then system
    // calls.
    attempted.sort_by_key(|denial| (denial.operation == verb(Operation::Call), !denial.named));
    found.extend(hosts.map(|host| no_network(host, about)));
    found.extend(attempted);
    keep_causes(&mut found);
    found
}

/// Where the call itself names something that it was refused, that is the cause. What an interpreter
/// or a library looked for beside it (the files of a resolver, say) is reported, and not proposed.
fn keep_causes(denials: &mut [Denial]) {
    if denials.iter().any(|denial| denial.named) {
        let others = denials.iter_mut().filter(|denial| !denial.named);
        others.for_each(|denial| denial.ask = None);
    }
}

/// The denial for a host that the script names, if the script was refused a socket.
fn no_network(host: &str, about: &DenialContext) -> Denial {
    let narrower = match verdict_on(host, about.decision) {
        Some(verdict) => verdict.narrower.unwrap_or(Narrower::Policy),
        None if about.has_manifest() => Narrower::Manifest,
        None => Narrower::BuiltIn,
    };
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

/// The limit that ended a call, and its value.
pub(super) fn limit_of(ending: &Ending) -> Option<(Limit, u64)> {
    match ending {
        Ending::TimedOut { limit_ms } => Some((Limit::TimeoutMs, *limit_ms)),
        Ending::OverLimit { limit, allowed } => Some((*limit, *allowed)),
        _ => None,
    }
}

/// Says who set a limit, and who may set a larger one. `requested_ms`: the call's own time limit.
/// `has_manifest`: a tool that is compiled in has no file that could request more.
pub(super) fn set_by(
    limit: Limit,
    decision: &policy::Decision,
    requested_ms: Option<u64>,
    has_manifest: bool,
) -> Option<String> {
    let verdict = decision.limit(limit)?;
    let name = limit.name();
    let policy = match verdict.set_by() {
        from if verdict.from == policy::LimitVerdict::BUILT_IN => from.to_owned(),
        from => format!("the policy {from}"),
    };
    let most = format!(
        "at most {}, set by {policy}; a policy sets another by {} below [limits]",
        verdict.ceiling,
        limit.policy_name()
    );
    let field = if limit == Limit::TimeoutMs {
        "execution.timeoutMs".to_owned()
    } else {
        format!("limits.{name}")
    };
    let by_call =
        limit == Limit::TimeoutMs && requested_ms.is_some_and(|asked| asked <= verdict.ceiling);
    let setter = match verdict.asked {
        _ if by_call => "this call set it; ".to_owned(),
        Some(asked) if verdict.clamped => format!("the manifest requests {asked}; "),
        Some(_) => format!("the manifest set it ({field}); "),
        None if verdict.effective < verdict.ceiling && has_manifest => {
            format!("a manifest requests more in {field}; ")
        }
        None => String::new(),
    };
    Some(format!("{name}: {setter}{most}"))
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
            let narrower = Narrower::BuiltIn.name().to_owned();
            let (named, ask) = socket_cause(&attempt.target, about);
            return Denial {
                operation: "call".to_owned(),
                target,
                rule,
                narrower,
                ask,
                named,
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
        named: names(&about.log, &attempt.target)
            || path
                .file_name()
                .map(|name| name.to_string_lossy())
                .is_some_and(|name| {
                    [&about.script, &about.arguments]
                        .iter()
                        .any(|text| names(text, &name))
                }),
        absent: about.own.is_some()
            && what == policy::RequestKind::Read
            && path.symlink_metadata().is_err(),
    }
}

/// Whether a refused system call is what the tool's log speaks of, and what would grant it. A
/// resolver begins with sockets: where a name was not found, the tool lacks hosts.
fn socket_cause(call: &str, about: &DenialContext) -> (bool, Option<String>) {
    if !OWN_SOCKETS.contains(&call) {
        (false, None)
    } else if is_refused_socket(&about.log) {
        (true, about.suggest_sockets())
    } else if !lacks_names(&about.log) {
        (false, about.suggest_sockets())
    } else {
        let hosts = about.hosts().is_empty().then(|| about.suggest_hosts());
        (hosts.is_some(), hosts.flatten())
    }
}

fn lacks_names(words: &str) -> bool {
    NO_NAMES.iter().any(|part| words.contains(part))
}

/// Words of a failure by which the kernel or a resolver refuses: strerror(3) of ENOENT and EROFS, and
/// what resolvers say that reach no name server.
const MISSING: &str = "o such file or directory";
const READ_ONLY: &str = "ead-only file system";
const DENIED: &str = "ermission denied";
const NO_NAMES: [&str; 3] = ["name resolution", "getaddrinfo", "esolve host"];

/// The parts of a line in single quotes, and its words that are absolute paths. What quotes enclose by
/// chance, where one is in another or is an apostrophe, begins or ends as no path does.
fn quoted(line: &str) -> Vec<&str> {
    let words = line
        .split_whitespace()
        .map(|word| word.trim_matches([':', ',', '\'', '"']));
    let words = words.filter(|word| word.starts_with('/'));
    let parts = line.split('\'').skip(1).step_by(2);
    let parts = parts.filter(|part| part.trim() == *part && !part.starts_with([':', ',', '.']));
    parts.chain(words).collect()
}

/// Whether a failure says that a socket of the tool's own was refused.
fn is_refused_socket(words: &str) -> bool {
    let is_refused = words.contains("ot permitted") || words.contains("EPERM");
    is_refused && OWN_SOCKETS.iter().any(|call| words.contains(call))
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

/// Hints beside a failure: for the caller, and lines for the person.
type Hints = (Option<String>, Vec<String>);

/// Hints for the tool's own failure. `printed`: bytes of its output; `denials`: secrets are hidden
/// in them, and long texts cut.
pub(super) fn hints(
    fault: &Fault,
    printed: u64,
    traffic: &Traffic,
    denials: &[Denial],
    about: &DenialContext,
) -> (Option<String>, Option<String>) {
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
    let is_call = |denial: &&Denial| denial.operation == verb(Operation::Call);
    let unrecorded = if named.iter().all(is_call) {
        unrecorded(&words, about)
    } else {
        Hints::default()
    };
    fn join(all: String, more: String) -> String {
        all + "\n" + &more
    }
    let package = (fault.kind == Kind::ScriptError)
        .then(|| missing_package(&words, about))
        .flatten();
    let anyone = [self::words(traffic), said, unrecorded.0, package]
        .into_iter()
        .flatten()
        .reduce(join);
    let mut lines = network_hints(traffic, denials);
    lines.extend(request_lines(if spoken_of.is_empty() {
        &named
    } else {
        &spoken_of
    }));
    lines.extend(unrecorded.1);
    let limits = OF_LIMITS.iter().filter(|(said, _)| words.contains(said));
    lines.extend(
        limits.filter_map(|(_, limit)| set_by(*limit, about.decision, None, about.has_manifest())),
    );
    let mut known = BTreeSet::new();
    lines.retain(|line| known.insert(line.clone()));
    let person = joined(lines);
    let unexplained = fault.kind == Kind::ScriptError && anyone.is_none() && person.is_none();
    let lost = scratch_path(&words, about).filter(|_| anyone.is_none());
    let answers = about.suggest_answers(printed).filter(|_| unexplained);
    let first = unexplained.then(|| first_steps(lost, &words, about));
    let first = first.flatten();
    let person = person.or(joined(answers.into_iter().chain(first).collect()));
    (anyone.or(lost.map(|_| OWN_SCRATCH.to_owned())), person)
}

pub(super) fn joined(lines: Vec<String>) -> Option<String> {
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// What is true of every tool, whether or not this machine has the file that it does not find.
const OWN_SCRATCH: &str =
    "A tool has a /tmp of its own: what this machine has below /tmp is not there.";

/// The path below /tmp that the arguments name and that the failure says is missing.
fn scratch_path<'w>(words: &'w str, about: &DenialContext) -> Option<&'w str> {
    let lines = words.lines().filter(|line| line.contains(MISSING));
    lines.flat_map(quoted).find(|name| {
        let path = Path::new(name);
        let is_scratch = SCRATCH.iter().any(|tree| path.starts_with(tree));
        is_scratch && !path.starts_with(CALL_FOLDER) && names(&about.arguments, name)
    })
}

/// What gives the tool a variable that its script reads from its environment.
fn missing_variable(words: &str, about: &DenialContext) -> Option<String> {
    let name = words.rsplit_once("KeyError: '")?.1.split('\'').next()?;
    let is_variable = about.script.contains("environ") && is_in_string(&about.script, name);
    is_variable.then(|| {
        format!(
            "the tool has no variable {name}: a plain value stands in `env` of `execution` in its \
             manifest; for a key the manifest requests \"secret:{name}\", and [secrets] of the policy \
             says where it lies (docs/RECIPES.md)"
        )
    })
}

/// What strerror(3) says of a limit that no ending names, since the tool goes on.
const OF_LIMITS: [(&str, Limit); 2] = [
    ("oo many open files", Limit::OpenFiles),
    ("esource temporarily unavailable", Limit::Processes),
];

/// What a person may look at where nothing that is known explains the failure. `lost`: a path in the
/// tool's own scratch.
fn first_steps(lost: Option<&str>, words: &str, about: &DenialContext) -> Option<String> {
    let lost = lost.map(Path::new).and_then(|path| {
        let requested = about.requested(Operation::Read, path);
        let requested = requested.filter(|verdict| !verdict.allowed);
        suggest_file_grant(path, Operation::Read, requested, about)
    });
    let tool = &about.tool.manifest.id;
    let arguments = about.ignores_arguments().then(|| {
        "A script gets its arguments as JSON on standard input. With `\"entryPoint\": \"NAME\"` in \
         the handler of its manifest, its function NAME gets them; with \
         `\"execution\": {\"input\": \"argv\"}` they are the words of its command line."
            .to_owned()
    });
    // No refusal makes a script that cannot be parsed.
    let recorded = (!about.recorded && !words.contains("SyntaxError")).then(|| {
        format!(
            "`toolhost audit {tool}` shows its grants; the same call with --explain shows what it is \
             refused"
        )
    });
    lost.into_iter()
        .chain(missing_variable(words, about))
        .chain(arguments)
        .chain(recorded)
        .reduce(|all, more| all + "\n" + &more)
}

/// Whoever chose the name of a module may not choose what is installed.
const OTHER_NAME: &str = "a package may have another name than its modules: look it up first";

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
    let top = name.split('.').next().unwrap_or(&name);
    if words.contains(&format!("'{top}' is not a package")) {
        return Some(format!(
            "The file {top}.py beside the script stands before the package of that name: give it \
             another name."
        ));
    }
    let runtime = about.decision.grants.runtime.as_ref();
    let runs_python = runtime.is_some_and(|it| it.language == Language::Python);
    let how = match &about.decision.packages.required {
        _ if about.tool.manifest.id != policy::RUN_CODE => {
            "this host installs what a file beside the script asks for (requirements.txt, \
             package.json), where the policy allows it: docs/reference/PACKAGES.md begins with the \
             commands"
                .to_owned()
        }
        Some(required) => {
            let names: Vec<&str> = required.requires.iter().map(|it| &*it.name).collect();
            format!(
                "the code of a call can use what comes with its interpreter, and {}. The operator \
                adds a package by `toolhost deps lock core:run-code {} PACKAGE`; {OTHER_NAME}",
                names.join(", "),
                names.join(" ")
            )
        }
        None if runs_python => format!(
            "the code of a call can use what comes with its interpreter. The operator adds packages \
            by `toolhost deps lock core:run-code --preset data-python` (numpy, pandas, matplotlib, \
            openpyxl, pypdf, pillow), or `toolhost deps lock core:run-code PACKAGE`; {OTHER_NAME}"
        ),
        None => "the code of a call can use what comes with its interpreter".to_owned(),
    };
    Some(format!("No package here has the module '{name}': {how}."))
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
pub(super) fn network_hints(traffic: &Traffic, denials: &[Denial]) -> Vec<String> {
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
    lines
}

/// The lines that would request the last few of these.
fn request_lines(denials: &[&Denial]) -> impl Iterator<Item = String> {
    let mut last: Vec<&Denial> = denials.iter().rev().copied().collect();
    last.sort_by_key(|denial| !denial.named);
    let lines = last.into_iter().filter_map(|denial| denial.ask.clone());
    lines.take(MAX_LISTED_EVENTS)
}

/// What the words of a failure tell of refusals that nobody recorded: for everybody, and for the
/// person the lines that would request it.
fn unrecorded(words: &str, about: &DenialContext) -> Hints {
    let has_hosts = !about.decision.grants.hosts.is_empty();
    let sockets = is_refused_socket(words)
        && (about.decision.shape.as_ref()).is_ok_and(|shape| !shape.local_sockets);
    let hosts = !has_hosts && (sockets || lacks_names(words));
    let anyone = match (hosts, sockets, about.has_manifest()) {
        (true, _, false) => Some(
            "This code has no network: it runs without a manifest of its own that could request \
             hosts.",
        ),
        (true, true, true) => Some("The tool was granted no hosts, and no sockets of its own."),
        (true, false, true) => Some("The tool was granted no hosts."),
        (false, true, _) => Some("The tool was granted no sockets of its own."),
        (false, false, _) => None,
    };
    let spawn = (sockets && words.contains("multiprocessing")).then_some(
        "Without them multiprocessing works by its start method \"spawn\", but for Manager.",
    );
    let mut refused = words.lines().filter(|line| line.contains(DENIED));
    let scratch = refused.any(|line| SCRATCH.iter().any(|at| line.contains(at)))
        && about.decision.write_below_scratch().is_some();
    let scratch = scratch.then_some(
        "The tool writes a folder below /tmp or /dev/shm, so it makes no links, pipes and sockets in \
         its scratch.",
    );
    let anyone = anyone
        .into_iter()
        .chain(spawn)
        .chain(scratch)
        .collect::<Vec<_>>()
        .join(" ");
    let mut lines = Vec::new();
    if hosts {
        lines.extend(reachable(about));
    }
    if sockets {
        lines.extend(about.suggest_sockets());
    }
    lines.extend(ungranted(words, about));
    ((!anyone.is_empty()).then_some(anyone), lines)
}

/// How the tool would reach the hosts that its call names, or any.
fn reachable(about: &DenialContext) -> Vec<String> {
    let named = about.hosts();
    let unknown = named.is_empty().then(|| about.suggest_hosts()).flatten();
    let named = named.into_iter();
    named
        .filter_map(|host| suggest_host_grant(host, about))
        .chain(unknown)
        .collect()
}

/// For a person at this machine: files that a failure names and that are here, but not in the
/// tool's view, and those that it could not write.
fn ungranted(words: &str, about: &DenialContext) -> Vec<String> {
    if about.own.is_none() || !about.has_manifest() {
        return Vec::new();
    }
    let folder = &about.site.folder;
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
            if path.starts_with(CALL_INPUT) {
                return Some(format!(
                    "{CALL_INPUT} has the files of this call, which stay as they came: what the tool \
                     leaves in {CALL_OUTPUT} goes to its caller"
                ));
            }
            suggest_file_grant(&path, write, about.requested(write, &path), about)
        }));
        let missing = line.contains(MISSING).then(|| quoted(line)).into_iter();
        lines.extend(missing.flatten().filter_map(|name| {
            let path = folder.join(name).canonicalize().ok()?;
            let requested = about.requested(Operation::Read, &path);
            if requested.is_some_and(|verdict| verdict.allowed) || about.shows(&path) {
                return None;
            }
            let shown = self::path(&path);
            let ask = suggest_file_grant(&path, Operation::Read, requested, about);
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
