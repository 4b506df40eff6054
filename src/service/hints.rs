//! What is said beside a tool's failure: who set the limit that ended it, what it was refused, which package is missing.
//!
//! No host path is for an agent. To the tool a file that was not granted is absent, and without `--explain` nothing
//! observes that it looked for one: the words say "if".

use super::denials;
use crate::base::text::{path, printable};
use crate::manifest::{Handler, Language};
use crate::quantity::Limit;
use crate::{executor, fault, policy, registry};
use executor::{Denial, Ending};
use fault::{Fault, Kind};

/// How runtimes say that a host could not be reached.
const NETWORK_WORDS: [&str; 19] = [
    "gaierror",
    "name resolution",
    "NameResolutionError",
    "Name or service not known",
    "getaddrinfo",
    "EAI_AGAIN",
    "ENETUNREACH",
    "Network is unreachable",
    "Failed to establish a new connection",
    "/socket.py\"",
    "connect EPERM",
    "syscall: 'connect'",
    "syscall: \"connect\"",
    "syscall: \"socket\"",
    "fetch failed",
    "Failed to connect",
    "Unable to connect",
    "ould not resolve host",
    "unable to resolve host",
];

/// What is said of the network where nothing was seen on it.
fn no_network(decision: &policy::Decision) -> String {
    if decision.hosts.is_empty() {
        return "This tool has no network: no name resolves, and every connection is refused.".to_owned();
    }
    let hosts: Vec<String> = decision.hosts.iter().map(|grant| grant.pattern.to_string()).collect();
    format!("This tool reaches {} and nothing else (without a port: 80 and 443).", hosts.join(", "))
}

/// How runtimes say that a file could not be opened, made or written.
const REFUSED_WORDS: [&str; 10] = [
    "PermissionError",
    "Permission denied",
    "EACCES",
    "EPERM",
    "Operation not permitted",
    "EROFS",
    "Read-only file system",
    "FileNotFoundError",
    "No such file or directory",
    "ENOENT",
];

/// The limit that ended a call, and its value.
pub(super) fn limit_of(ending: &Ending) -> Option<(Limit, u64)> {
    match ending {
        Ending::TimedOut { limit_ms } => Some((Limit::TimeoutMs, *limit_ms)),
        Ending::OverLimit { limit, allowed } => Some((*limit, *allowed)),
        _ => None,
    }
}

/// Who set a limit, and who may set a larger one. `asked_ms`: the call's own time limit.
pub(super) fn limit(limit: Limit, decision: &policy::Decision, asked_ms: Option<u64>) -> Option<String> {
    let verdict = decision.limit(limit)?;
    let name = limit.name();
    let field = if limit == Limit::TimeoutMs { "execution.timeoutMs".to_owned() } else { format!("limits.{name}") };
    let most = format!("the most is {}, set by the {}", verdict.ceiling, source(verdict));
    Some(match (verdict.asked, asked_ms.filter(|_| limit == Limit::TimeoutMs)) {
        (_, Some(asked)) if asked <= verdict.ceiling => format!("{name} was set by this call; {most}"),
        (_, Some(asked)) => format!("{name} was set by the {} (this call asked for {asked})", source(verdict)),
        (Some(asked), None) if verdict.clamped => {
            format!("{name} was set by the {} (the manifest asks for {asked})", source(verdict))
        }
        (Some(_), None) => format!("{name} was set by the manifest ({field}); {most}"),
        (None, None) if verdict.effective == verdict.ceiling => format!("{name} was set by the {}", source(verdict)),
        (None, None) => format!("{name} was set by the house default; the manifest may ask for more ({field}): {most}"),
    })
}

/// `policy at file:line`, or the house default.
fn source(verdict: &policy::LimitVerdict) -> String {
    match verdict.from.as_str() {
        "house default" => "house default, which a policy may raise ([limits])".to_owned(),
        from => format!("policy {from}"),
    }
}

/// What is said beside a script's own words, where they are among the known ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// For whoever called.
    pub anyone: Option<String>,
    pub person: Option<String>,
}

/// What a call was refused, or failed on its way to a host.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// What went wrong on the network: for whoever called, and for the person.
    pub network: Option<String>,
    pub network_mend: Option<String>,
    /// Secrets are hidden, and long texts cut.
    pub denials: Vec<Denial>,
}

/// For a failure of the tool's own. `printed`: bytes of its output.
pub(super) fn of_failure(
    fault: &Fault,
    printed: u64,
    refused: &Refused,
    tool: &registry::Tool,
    decision: &policy::Decision,
) -> Hints {
    if !matches!(fault.kind, Kind::ScriptError | Kind::TimeoutError) {
        return Hints::default();
    }
    if fault.kind == Kind::TimeoutError && printed > 0 {
        return Hints { anyone: Some(left_running(printed)), person: None };
    }
    let words = format!("{}\n{}", fault.message, fault.details.as_deref().unwrap_or_default());
    let (mut spoken_of, mut others) = denials::spoken_of(&refused.denials, &words);
    // Words may speak of a refusal and not say of what.
    if spoken_of.is_empty() && REFUSED_WORDS.iter().any(|word| words.contains(word)) {
        std::mem::swap(&mut spoken_of, &mut others);
    }
    let said = match (&spoken_of[..], &others[..]) {
        ([], []) => None,
        ([], others) => Some(format!("Also refused, perhaps unrelated: {}.", denials::few(others))),
        (spoken_of, _) => Some(format!("Refused: {}.", denials::few(spoken_of))),
    };
    let guessed = match (fault.kind, &refused.network) {
        (Kind::ScriptError, None) => guessed(&words, spoken_of.is_empty(), tool, decision),
        _ => Hints::default(),
    };
    let anyone = [refused.network.clone(), said, guessed.anyone].into_iter().flatten();
    let person = [refused.network_mend.clone(), denials::asks(&spoken_of)].into_iter().flatten();
    let join = |all: String, more: String| all + "\n" + &more;
    Hints { anyone: anyone.reduce(join), person: person.reduce(join).or(guessed.person).or(denials::asks(&others)) }
}

/// From the script's own words. `files`: they may speak of a file of which nothing else is known.
fn guessed(words: &str, files: bool, tool: &registry::Tool, decision: &policy::Decision) -> Hints {
    let spoken = |known: &[&str]| known.iter().any(|word| words.contains(word));
    if spoken(&NETWORK_WORDS) {
        return Hints { anyone: Some(no_network(decision)), person: None };
    }
    if let Some(package) = missing_package(words) {
        return no_package(&package, tool);
    }
    let files = || (files && spoken(&REFUSED_WORDS)).then(|| self::files(tool, decision)).flatten();
    Hints { anyone: None, person: semaphore(words, decision).or_else(files) }
}

/// Python makes locks between processes by link(2) (sem_open(3)), which a tool with a live write grant may not call.
fn semaphore(words: &str, decision: &policy::Decision) -> Option<String> {
    let live = |grant: &policy::Grant| {
        grant.access == policy::Access::Write && matches!(grant.opening, policy::Opening::Live { .. })
    };
    let grant = decision.shape.as_ref().ok()?.grants.iter().find(|grant| live(grant))?;
    let spoken = ["SemLock", "os.link(", "link("].iter().any(|word| words.contains(word));
    (spoken && words.contains("PermissionError")).then(|| {
        format!(
            "link(2), by which locks of multiprocessing are made too, is refused while a folder is written live (`{}`): name the \
             files that the tool writes as a pattern (`out/*.csv`), or use threads",
            printable(&grant.asked)
        )
    })
}

fn left_running(printed: u64) -> String {
    format!(
        "It had printed {printed} bytes by then: if that was its answer, a thread or timer that it left running kept it \
         from ending."
    )
}

/// The first package that an interpreter did not find. (What begins with a dot or a slash is a file.)
fn missing_package(words: &str) -> Option<String> {
    let named = ["No module named '", "Cannot find package '", "Cannot find module '", "Cannot find module \""];
    let rest = named.iter().find_map(|before| Some(words.split_once(before)?.1))?;
    let name = rest.split(['\'', '"']).next()?;
    (!name.is_empty() && !name.starts_with(['.', '/']) && !name.starts_with("file:")).then(|| printable(name))
}

fn no_package(package: &str, tool: &registry::Tool) -> Hints {
    let installed = match tool.manifest.id == policy::RUN_CODE {
        true => "code that a call brings has what comes with its interpreter, and no packages",
        false => "this host installs what a file beside the script asks for",
    };
    let anyone = Some(format!("The package '{package}' is not there: {installed}."));
    let Handler::Script { language, .. } = &tool.manifest.handler else { return Hints { anyone, person: None } };
    let top = package.split(['.', '/']).next().unwrap_or(package);
    let person = match language {
        Language::Python => format!(
            "write its package into requirements.txt beside the script, and [packages] python into the tool's policy (docs/PACKAGES.md);\n\
             or make a virtual environment that has '{top}', outside the tool folders, and name its interpreter there:\n\
             [runtimes] python = {{ path = \"/…/bin/python\", why = \"…\" }}"
        ),
        Language::Nodejs | Language::Bun => format!(
            "write '{top}' into the dependencies of a package.json beside the script, and [packages] node into the tool's policy\n\
             (docs/PACKAGES.md); or put a node_modules with it into the tool's own folder, {}",
            path(&tool.site.folder)
        ),
        Language::Wasm => return Hints { anyone, person: None },
    };
    Hints { anyone, person: Some(person) }
}

/// Whether this Node runs TypeScript by itself (nodejs.org/api/typescript.html, "Type stripping").
pub fn strips_types(version: &str) -> bool {
    let version = semver::Version::parse(version.trim_start_matches('v'));
    version.is_ok_and(|v| (v.major, v.minor) >= (23, 6) || (v.major == 22 && v.minor >= 18))
}

/// How a file is granted, for a tool whose words speak of one that it could not open.
fn files(tool: &registry::Tool, decision: &policy::Decision) -> Option<String> {
    let manifest = &tool.site.manifest;
    if manifest.as_os_str().is_empty() {
        return None;
    }
    let pointer = "/securityContext/fileAccess";
    let (line, column) = registry::position(manifest, pointer);
    let file = path(manifest);
    let place = match (tool.manifest.raw.pointer(pointer), line) {
        (Some(_), 1..) => format!("in securityContext.fileAccess ({file}:{line}:{column})"),
        _ => format!("by a securityContext.fileAccess in {file}"),
    };
    let policy = match decision.policy_file.as_os_str().is_empty() {
        true => format!("the policy `{}`", decision.policy),
        false => format!("the policy `{}` ({})", decision.policy, path(&decision.policy_file)),
    };
    Some(format!(
        "if it needs a file or folder that it was not granted (to a tool such a one is not there, or cannot be changed):\n\
         ask for it {place}; {policy} must allow it too. `toolhost audit {}` shows what it has now, \
         `toolhost call {} --explain` which files it was refused",
        tool.manifest.id, tool.manifest.id
    ))
}
