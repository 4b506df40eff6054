//! Runtimes: the interpreters of this machine, and the files that each one needs to run.
//!
//! No file is taken or run that lies in a tool folder, where a tool could ever write, or where
//! another user can change it. An interpreter is not started if its files say enough. A launcher
//! script is asked once where its interpreter is.

mod binary;
mod guard;
mod javascript;
mod probe;
mod python;
mod trust;

pub use guard::{Guard, guard, lacks_guard, set_variables};
pub use javascript::npm;
pub use trust::{OffLimits, outside};

use crate::base::files;
use crate::manifest::Language;
use crate::policy;
use binary::{Binary, LANGUAGES, Roots, follow};
use probe::InterpreterProbe;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The result of a search. `notes` are for the person: they hold host paths.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    pub runtimes: BTreeMap<Language, policy::Runtime>,
    /// Candidates that were passed over, and why; one sentence each.
    pub notes: Vec<String>,
    /// Paths that this search and later ones rely on, each with the reason in words: no tool may
    /// write there.
    pub relied_on: BTreeMap<PathBuf, String>,
}

/// Finds one interpreter per language: the first on `search_path` that may be trusted.
pub fn discover(search_path: &OsStr, off_limits: &OffLimits) -> Discovered {
    let mut found = Discovered {
        relied_on: search_relies_on(search_path),
        ..Discovered::default()
    };
    let folders = search_folders(search_path, off_limits, &mut found.notes);
    let probe = InterpreterProbe::new(&folders, off_limits);
    for (language, names) in LANGUAGES {
        let candidates = folders
            .iter()
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        for candidate in candidates.filter(|c| c.symlink_metadata().is_ok()) {
            relies_on(&candidate, &mut found.relied_on);
            match resolve(language, &candidate, "PATH", off_limits, Some(&probe)) {
                Ok(runtime) => {
                    found.runtimes.insert(language, runtime);
                    break;
                }
                Err(why) => note(
                    &mut found.notes,
                    format!("{}: passed over: {why}", candidate.display()),
                ),
            }
        }
    }
    found
}

/// Every folder of a search path, also one that is not there yet, and the links that lead to it.
fn search_relies_on(search_path: &OsStr) -> BTreeMap<PathBuf, String> {
    let mut relied_on = BTreeMap::new();
    for entry in std::env::split_paths(search_path) {
        let words = format!(
            "{} is in PATH, and programs of that folder are run on the host",
            entry.display()
        );
        add_way(&entry, None, &words, &mut relied_on);
    }
    relied_on
}

/// Adds the paths that lead to a program of the search path, or to one that a policy names: its
/// name, the links to its file, and the installation that tells a launcher what to start.
pub fn relies_on(candidate: &Path, relied_on: &mut BTreeMap<PathBuf, String>) {
    let words = format!(
        "{} leads there, and tools or this host run it",
        candidate.display()
    );
    let installation = candidate
        .parent()
        .filter(|folder| folder.ends_with("shims"))
        .and_then(Path::parent);
    add_way(candidate, installation, &words, relied_on);
}

/// Adds the links that lead on from a path, the file at their end, the path itself, and one more. A
/// relative path adds nothing.
fn add_way(
    path: &Path,
    more: Option<&Path>,
    words: &str,
    relied_on: &mut BTreeMap<PathBuf, String>,
) {
    let (links, end) = files::way(path);
    let steps = links
        .into_iter()
        .chain([end, path.to_owned()])
        .chain(more.map(Path::to_path_buf));
    for step in steps.filter(|_| path.is_absolute()) {
        relied_on.entry(step).or_insert_with(|| words.to_owned());
    }
}

/// The interpreter a policy names: a virtual environment's `bin/python`, or any other interpreter
/// file.
pub fn named(
    language: Language,
    path: &Path,
    off_limits: &OffLimits,
) -> Result<policy::Runtime, String> {
    if !path.is_absolute() {
        return Err(format!(
            "{} is not absolute; write the whole path of the interpreter",
            path.display()
        ));
    }
    let is_bun = path
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("bun"));
    // Bun runs what is written for Node, too.
    let language = if language == Language::Nodejs && is_bun {
        Language::Bun
    } else {
        language
    };
    resolve(language, path, "policy", off_limits, None)
}

/// The folders of a search path that may hold an interpreter, without symlinks, each once.
fn search_folders(
    search_path: &OsStr,
    off_limits: &OffLimits,
    notes: &mut Vec<String>,
) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in std::env::split_paths(search_path) {
        if !entry.is_absolute() {
            note(
                notes,
                format!(
                    "PATH entry '{}' passed over: it is not absolute",
                    entry.display()
                ),
            );
            continue;
        }
        // An entry that does not exist is common and harmless: it gets no note.
        let Ok(real) = entry.canonicalize() else {
            continue;
        };
        if folders.contains(&real) {
            continue;
        }
        if let Err(why) = off_limits.check(&entry) {
            note(
                notes,
                format!("PATH entry {} passed over: {why}", entry.display()),
            );
            continue;
        }
        folders.push(real);
    }
    folders
}

/// From a candidate to the interpreter's own file. Without a probe (a path that a policy names) a
/// launcher is refused.
fn binary(
    language: Language,
    candidate: &Path,
    off_limits: &OffLimits,
    probe: Option<&InterpreterProbe>,
) -> Result<Binary, String> {
    let found = follow(candidate, off_limits)?;
    if found.runs(language)? {
        return Ok(found);
    }
    let Some(probe) = probe else {
        let path = found.path.display();
        let name = language.name();
        return Err(format!(
            "{path} is not a {name} interpreter, but a launcher or something else; name the \
            interpreter that it starts (`uv python find` and `pyenv which python` print it)"
        ));
    };
    let found = follow(&probe.executable(language, &found.path)?, off_limits)?;
    if found.runs(language)? {
        Ok(found)
    } else {
        Err(format!(
            "it leads to {}, which is not a {} interpreter",
            found.real.display(),
            language.name()
        ))
    }
}

/// From a candidate to everything that the interpreter needs. `found`: where it was named.
fn resolve(
    language: Language,
    candidate: &Path,
    found: &str,
    off_limits: &OffLimits,
    probe: Option<&InterpreterProbe>,
) -> Result<policy::Runtime, String> {
    let binary = binary(language, candidate, off_limits, probe)?;
    let runtime = match language {
        Language::Python => python::runtime(&binary, found)?,
        Language::Nodejs | Language::Bun => {
            javascript::runtime(language, &binary, found, off_limits, probe)?
        }
        Language::Bash => shell(&binary, found),
        Language::Wasm => {
            return Err("wasm runs in this binary and has no interpreter to name".to_owned());
        }
    };
    runtime
        .roots
        .iter()
        .try_for_each(|root| trust::readable_by_tools(root))?;
    outside(&runtime, off_limits)?;
    Ok(runtime)
}

/// A shell, which needs nothing but its own file.
fn shell(binary: &Binary, found: &str) -> policy::Runtime {
    let mut roots = Roots::default();
    roots.add(&binary.real);
    roots.store(&binary.real);
    policy::Runtime {
        language: Language::Bash,
        program: policy::Program::Path(binary.real.clone()),
        arguments: Vec::new(),
        roots: roots.finish(),
        version: "unknown (its files do not say)".to_owned(),
        found: found.to_owned(),
        environment: None,
    }
}

fn note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// The argument that tells a shim to load what follows while it waits for its call.
pub const READY: &str = "--ready";

/// The shim that runs the cells of a session: where it is shown inside the layers, and its text.
/// `None`: code of this language has no sessions.
pub fn cells_shim(language: Language) -> Option<(&'static str, &'static str)> {
    match language {
        Language::Python => Some(("/.toolhost/cells.py", include_str!("shims/cells.py"))),
        Language::Nodejs => Some(("/.toolhost/cells.cjs", include_str!("shims/cells.cjs"))),
        Language::Bun | Language::Wasm | Language::Bash => None,
    }
}

/// The built-in shim through which a script of this shape runs, if any: where it is shown inside
/// the layers, and its text.
pub fn shim(shape: &policy::Shape) -> Option<(&'static str, &'static str)> {
    let waits_for_source = shape.script.is_none() && shape.ready.is_some();
    if shape.entry_point.is_none() && !waits_for_source {
        return None;
    }
    match shape.runtime.language {
        Language::Python if waits_for_source => {
            Some(("/.toolhost/source.py", include_str!("shims/source.py")))
        }
        Language::Python => Some(("/.toolhost/entry.py", include_str!("shims/entry.py"))),
        Language::Nodejs | Language::Bun => {
            Some(("/.toolhost/entry.mjs", include_str!("shims/entry.mjs")))
        }
        Language::Wasm | Language::Bash => None,
    }
}

/// Whether a program of this shape reads `frame` and not the input itself: it may be started before
/// its call.
pub fn reads_frame(shape: &policy::Shape) -> bool {
    shape.ready.is_some() && shim(shape).is_some()
}

/// What a shim that waits for its call reads: a line with the number of bytes of the source text and
/// of the variables, these two, and the input.
pub fn frame(source: &str, variables: &BTreeMap<String, String>, input: &[u8]) -> Vec<u8> {
    let variables = if variables.is_empty() {
        String::new()
    } else {
        json!(variables).to_string()
    };
    let head = format!("{} {}\n", source.len(), variables.len());
    [
        head.as_bytes(),
        source.as_bytes(),
        variables.as_bytes(),
        input,
    ]
    .concat()
}

/// The shim that runs a script which calls tools: where it is shown inside the layers, and its
/// source text. `None`: scripts of this language cannot call tools.
pub fn calls_shim(language: Language) -> Option<(&'static str, &'static str)> {
    match language {
        Language::Python => Some(("/.toolhost/calls.py", include_str!("shims/calls.py"))),
        Language::Nodejs => Some(("/.toolhost/calls.cjs", include_str!("shims/calls.cjs"))),
        Language::Bun | Language::Wasm | Language::Bash => None,
    }
}

/// The argument that tells that shim that the script may call none.
pub const NO_TOOLS: &str = "--no-tools";

/// The name of the file that says what the tools of a script take.
pub fn stubs_name(language: Language) -> &'static str {
    match language {
        Language::Python => "tools.pyi",
        _ => "tools.d.ts",
    }
}

/// The reason that a shim gave: the last line of stderr that starts with `toolhost: `.
pub fn shim_reason<'a>(logs: impl DoubleEndedIterator<Item = &'a str>) -> Option<&'a str> {
    logs.rev().find_map(|line| line.strip_prefix("toolhost: "))
}
