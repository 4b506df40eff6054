//! Reports beforehand why calls of a tool would be refused, from the same decision that a call
//! obeys.

use super::python::{self, MAX_SCRIPT_BYTES, script_text};
use crate::base::json::escape_segment;
use crate::base::suggest;
use crate::base::text::{self, printable};
use crate::manifest::{Code, Language, Manifest, Problem, ScriptReference, Severity, host};
use crate::service::readiness::{Need, Readiness};
use crate::{executor, policy, registry, service};
use policy::{RequestKind, Verdict};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const READ: &str = "/securityContext/fileAccess/allowRead";
const WRITE: &str = "/securityContext/fileAccess/allowWrite";
const HOSTS: &str = "/securityContext/networkAccess/allowHosts";
const SCRIPT: &str = "/handler/scriptPath";
/// Most entries of a folder that are looked at in search of code.
const MAX_ENTRIES: usize = 10_000;

/// Adds to the report of each file the reasons for which calls of its tool would be refused.
pub fn tell(
    snapshot: &registry::Snapshot,
    policies: &policy::Policies,
    machine: &policy::Machine,
    reports: &mut [crate::registry::FileReport],
) -> Vec<python::Script> {
    let mut scripts = Vec::new();
    let policies = snapshot.protect(policies);
    let places: BTreeMap<PathBuf, usize> = reports
        .iter()
        .enumerate()
        .map(|(at, r)| (r.path.clone(), at))
        .collect();
    let tools = snapshot.list(&registry::Filter::default());
    // Of an MCP server, its manifest is reported once.
    let with_manifest = tools.iter().filter(|it| it.manifest.mcp_tool().is_none());
    for tool in with_manifest {
        let Some(report) = places
            .get(&tool.site.manifest)
            .and_then(|at| reports.get_mut(*at))
        else {
            continue;
        };
        let mut decision = service::requirements::decide(tool, snapshot, &policies, machine);
        let planted = decision.shape.as_mut().ok();
        let planted = planted
            .and_then(|shape| service::ledger::look_back(shape, None, &snapshot.written).err());
        let mut found = asks(tool, &decision);
        let obstacles = find_obstacles(tool, &decision);
        let approval = decision.approval.as_ref();
        let waits = approval.is_some_and(|approval| !approval.is_met());
        if (waits || !obstacles.is_empty()) && report.status == registry::Status::Loaded {
            report.status = registry::Status::Unavailable;
        }
        found.extend(obstacles);
        found.extend(planted.map(|fault| {
            let message = format!(
                "every call is refused: {}",
                fault.person.unwrap_or(fault.message)
            );
            Problem::new(Severity::Warning, Code::Security, SCRIPT, message)
        }));
        found.extend(files(tool, &decision));
        found.extend(left_out(&decision));
        found.extend(writes_below_scratch(&decision));
        found.extend(written_code(&decision));
        found.extend(repositories(tool, &decision));
        found.extend(no_folder(tool));
        found.extend(script(tool));
        // What is not pinned, and other remarks about packages.
        let warnings = decision
            .notes
            .all
            .iter()
            .filter_map(|note| note.strip_prefix("warning: "));
        found.extend(
            warnings.map(|words| Problem::new(Severity::Warning, Code::Dependency, "", words)),
        );
        registry::locate(&mut found, &tool.site.manifest);
        report.problems.append(&mut found);
        scripts.extend(python::Script::new(tool, &decision));
    }
    scripts
}

/// What the tool requests and policy refuses.
fn asks(tool: &registry::Tool, decision: &policy::Decision) -> Vec<Problem> {
    let refused = decision.is_denied();
    // In mode "narrow" the tool runs with less. A request that no policy can grant is still a
    // mistake.
    let mut problems: Vec<Problem> = decision
        .verdicts
        .iter()
        .filter(|verdict: &&Verdict| verdict.refuses() && (refused || verdict.never()))
        .map(|verdict: &Verdict| {
            let (severity, message) = verdict_in_words(verdict, decision, refused);
            Problem::new(
                severity,
                Code::Security,
                pointer(verdict, &tool.manifest),
                message,
            )
        })
        .collect();
    if let Err(fault) = &decision.shape
        && refused
        && problems.is_empty()
    {
        let why = fault
            .person
            .as_deref()
            .unwrap_or(&fault.message)
            .replace('\n', " ");
        let message = format!(
            "every call is refused by policy '{}': {why}",
            decision.governing.policy
        );
        problems.push(Problem::new(Severity::Warning, Code::Security, "", message));
    }
    problems
}

/// The reasons other than policy for which no call can begin.
fn find_obstacles(tool: &registry::Tool, decision: &policy::Decision) -> Vec<Problem> {
    let mut found = Readiness::shipped(tool, decision).needs();
    found.retain(|need| !matches!(need, Need::Policy(..)));
    fn problem(need: &Need) -> Problem {
        // A tool that another machine or a later version could run is not a fault of its file.
        let severity = if need.mistake {
            Severity::Warning
        } else {
            Severity::Note
        };
        let message = format!("unavailable here: {}", need.text());
        Problem::new(severity, Code::Dependency, &*need.pointer, message)
    }
    found.iter().map(problem).collect()
}

/// A script directly in a base folder: it has no folder of its own to read.
fn no_folder(tool: &registry::Tool) -> Option<Problem> {
    let site = &tool.site;
    let message = format!(
        "the script lies directly in the base folder {}, where other tools' files lie too. So \
         without a grant it reads only itself: move it into a folder of its own",
        site.base.display()
    );
    let shared = site.script.is_some() && site.folder == site.base;
    shared.then(|| Problem::new(Severity::Note, Code::Security, SCRIPT, message))
}

/// A grant because of which every call is refused, given the files on disk now.
fn files(tool: &registry::Tool, decision: &policy::Decision) -> Option<Problem> {
    let (fault, grant) = executor::process::grants::foresee(decision.shape.as_deref().ok()?)?;
    let list = if grant.access == policy::Access::Write {
        WRITE
    } else {
        READ
    };
    let why = fault.person.as_deref().unwrap_or_default();
    let message = format!(
        "every call is refused because of the files on disk now: {}: {why}",
        fault.message
    );
    Some(Problem::new(
        Severity::Warning,
        Code::Security,
        item(&tool.manifest, list, &grant.asked),
        message,
    ))
}

fn writes_below_scratch(decision: &policy::Decision) -> Option<Problem> {
    let found = decision.write_below_scratch()?;
    let message = format!(
        "{} lies below /tmp or /dev/shm, so that this tool makes no links, pipes and sockets in its \
         scratch: keep tools elsewhere",
        text::path(found.area.path())
    );
    Some(Problem::new(Severity::Note, Code::Security, WRITE, message))
}

/// What is mounted in a granted folder, which calls do not see.
fn left_out(decision: &policy::Decision) -> Option<Problem> {
    let shape = decision.shape.as_deref().ok()?;
    let first = executor::process::grants::left_out(shape)
        .into_iter()
        .next()?;
    let message = format!(
        "{} is mounted in a granted folder and left out of it: grant the folders beside it and it \
         one by one",
        text::path(&first)
    );
    Some(Problem::new(Severity::Note, Code::Security, READ, message))
}

/// A script that lies where tools write below what this one reads: it looks like a module of this
/// tool, and is not.
fn written_code(decision: &policy::Decision) -> Option<Problem> {
    let shape = decision.shape.as_deref().ok()?;
    let found = shape.written.iter().find_map(|area| {
        let below = walkdir::WalkDir::new(area.path())
            .sort_by_file_name()
            .into_iter()
            .take(MAX_ENTRIES)
            .flatten();
        let mut code =
            below.filter(|entry| entry.file_type().is_file() && area.holds(entry.path()));
        code.find(|entry| {
            entry.file_name().to_str().is_some_and(|name: &str| {
                Language::of_file_name(name).contains(&shape.runtime.language)
            })
        })
    })?;
    let place = text::path(found.path());
    let message = format!(
        "{place}: tools write there, so it is data: this tool can read it, and not load it as code"
    );
    Some(Problem::new(
        Severity::Note,
        Code::Security,
        SCRIPT,
        message,
    ))
}

/// A live write into a repository outside of the tools' own folders, where people keep code.
fn repositories(tool: &registry::Tool, decision: &policy::Decision) -> Vec<Problem> {
    let writes = decision
        .grants
        .files
        .iter()
        .filter(|grant| grant.access == policy::Access::Write);
    writes.filter_map(|grant: &policy::Grant| {
        let policy::Area::Tree(path) = &grant.area else {
            return None;
        };
        let repository = path
            .ancestors()
            .find(|folder: &&Path| {
            [".git", ".hg"]
                .iter()
                .any(|name| folder.join(name).exists())
        })
            .filter(|_| !path.starts_with(&tool.site.base))?;
        let message = format!(
            "it writes live into the repository {}: people and other programs run what lies there \
             (`.git`, `.hg` and settings of editors and agents stay read-only)",
            text::path(repository)
        );
        Some(Problem::new(
            Severity::Warning,
            Code::Security,
            item(&tool.manifest, WRITE, &grant.asked),
            message,
        ))
    }).collect()
}

/// Faults of the script itself: a file that is not a module, or an entry point that the script does
/// not name.
fn script(tool: &registry::Tool) -> Option<Problem> {
    let ScriptReference {
        language,
        entry_point,
        ..
    } = tool.manifest.handler.script()?;
    let text = script_text(tool)?;
    fn error(pointer: &str, message: String) -> Option<Problem> {
        Some(Problem::new(
            Severity::Error,
            Code::Dependency,
            pointer,
            message,
        ))
    }
    if *language == Language::Wasm {
        return error(
            SCRIPT,
            format!("{}, so every call fails", no_module(&text)?),
        );
    }
    let entry = entry_point.as_deref()?;
    let text = String::from_utf8_lossy(&text);
    fn is_part(c: char) -> bool {
        !(c.is_alphanumeric() || c == '_' || c == '$')
    }
    // The script must define the function itself, so its name occurs in the text; a default export
    // has no name.
    if entry == "default"
        || text.len() as u64 >= MAX_SCRIPT_BYTES
        || text
            .split(is_part)
            .any(|word: &str| Some(word) == entry.split('.').next())
    {
        return None;
    }
    let near = suggest::hint(entry, text.split(is_part).filter(|word| !word.is_empty()));
    let message = format!(
        "the script has nothing named '{}', so every call fails{near}",
        printable(entry)
    );
    error("/handler/entryPoint", message)
}

/// Why a file is not a module: the binary form is known by its beginning, the text form is parsed.
fn no_module(text: &[u8]) -> Option<String> {
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if text.starts_with(b"\0asm") {
        return None;
    }
    // A text begins with a parenthesis or, in a comment, with a semicolon
    // (webassembly.github.io/spec/core/text).
    if !matches!(first, Some(b'(' | b';')) {
        return Some(
            "this file is not a WebAssembly module: it begins neither with \\0asm nor like the \
            text form"
                .to_owned(),
        );
    }
    #[cfg(feature = "wasi")]
    if (text.len() as u64) < MAX_SCRIPT_BYTES {
        return crate::executor::wasm::text_fault(text);
    }
    None
}

fn verdict_in_words(
    verdict: &Verdict,
    decision: &policy::Decision,
    refused: bool,
) -> (Severity, String) {
    let reason = verdict.reason.as_deref().unwrap_or("not allowed");
    let asked = format!("{} {}: {reason}", verdict.what.name(), verdict.asked);
    match (verdict.never(), refused) {
        (false, _) => {
            let id = decision.identity.tool.split('@').next().unwrap_or_default();
            let fix = format!("`toolhost audit {id} --suggest-policy` prints what would grant it");
            (
                Severity::Warning,
                format!(
                    "every call is refused by policy '{}': {asked}; {fix}",
                    decision.governing.policy
                ),
            )
        }
        (true, true) => (
            Severity::Error,
            format!("every call is refused, and no policy can change that: {asked}"),
        ),
        (true, false) => (
            Severity::Warning,
            format!("never granted, whatever a policy says: {asked}"),
        ),
    }
}

/// Where the manifest asks for what a verdict is about.
fn pointer(verdict: &Verdict, manifest: &Manifest) -> String {
    let list = match verdict.what {
        RequestKind::Read => READ,
        RequestKind::Write => WRITE,
        RequestKind::Host => HOSTS,
        RequestKind::Capability => "/securityContext/requiredCapabilities",
        RequestKind::Env => return format!("/execution/env/{}", escape_segment(&verdict.asked)),
        RequestKind::Runtime => return "/handler/language".to_owned(),
        RequestKind::Call => "/calls",
        RequestKind::Package => return String::new(),
        RequestKind::Service => {
            return manifest
                .remote()
                .map(|remote| remote.pointers.0.clone())
                .unwrap_or_default();
        }
    };
    item(manifest, list, &verdict.asked)
}

/// Where in a list of the manifest a text stands.
fn item(manifest: &Manifest, list: &str, text: &str) -> String {
    let items = manifest.raw.pointer(list).and_then(Value::as_array);
    // A host is shown in its canonical form.
    let index = items.and_then(|items| {
        items.iter().position(|item: &Value| {
            item.as_str().is_some_and(|item| {
                item == text
                    || host::parse_pattern(item)
                        .is_ok_and(|host| list == HOSTS && host.to_string() == text)
            })
        })
    });
    index.map_or_else(String::new, |index| format!("{list}/{index}"))
}
