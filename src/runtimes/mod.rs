//! Runtimes: the interpreters of this machine, and the files that each one needs to run.
//!
//! For: cli (facts of `policy::Machine`), executor (the built-in shims).
//! In: a search path, folders that tools live in, a path a policy names. Out: `policy::Runtime`s and
//! notes for `doctor` on what was passed over and why.
//! Never: takes, or runs, a file in a tool folder, where a tool could ever write, or in a place another user can
//! change; starts an interpreter whose files tell enough; uses a shell; sees a manifest or a call.

mod ask;
mod javascript;
mod off_limits;
mod pyenv;
mod python;
mod roots;
pub mod shims;
mod trust;

pub use off_limits::OffLimits;

use crate::base::{files, links};
use crate::manifest::Language;
use crate::policy;
use nix::fcntl::OFlag;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The result of a search. `notes` are for the person: they hold host paths.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub runtimes: BTreeMap<Language, policy::Runtime>,
    /// Candidates that were passed over, and why; one sentence each.
    pub notes: Vec<String>,
    /// Paths that this search and later ones rely on, each with the reason in words: no tool may write there.
    pub relied_on: BTreeMap<PathBuf, String>,
}

/// An interpreter's file: where it was found, and the file that this leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binary {
    /// As found, its folder without symlinks. In a virtual environment this path must be started.
    path: PathBuf,
    /// The ELF file itself.
    real: PathBuf,
}

/// Largest `pyvenv.cfg`, header or `package.json` that is read for a version, bytes.
const MOST_TEXT_BYTES: u64 = 256 * 1024;

const LANGUAGES: [(Language, &[&str]); 3] =
    [(Language::Python, &["python3", "python"]), (Language::Nodejs, &["node", "nodejs"]), (Language::Bun, &["bun"])];

/// Finds one interpreter per language: the first on `search_path` that may be trusted.
pub fn discover(search_path: &OsStr, off_limits: &OffLimits) -> Found {
    let mut found = Found { relied_on: search_relies_on(search_path), ..Found::default() };
    let folders = search_folders(search_path, off_limits, &mut found.notes);
    let asker = ask::Asker::new(&folders, off_limits);
    for (language, names) in LANGUAGES {
        let candidates = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        for candidate in candidates.filter(|c| c.symlink_metadata().is_ok()) {
            relies_on(&candidate, &mut found.relied_on);
            let runtime = binary(language, &candidate, off_limits, Some(&asker)).and_then(|binary| {
                let runtime = describe(language, &binary, "PATH", off_limits, Some(&asker))?;
                outside(&runtime, off_limits)?;
                Ok(runtime)
            });
            match runtime {
                Ok(runtime) => {
                    found.runtimes.insert(language, runtime);
                    break;
                }
                Err(why) => note(&mut found.notes, format!("{}: passed over: {why}", candidate.display())),
            }
        }
    }
    found
}

/// Every folder of a search path, also one that is not there yet, and the links that lead to it.
fn search_relies_on(search_path: &OsStr) -> BTreeMap<PathBuf, String> {
    let mut relied_on = BTreeMap::new();
    for entry in std::env::split_paths(search_path).filter(|entry| entry.is_absolute()) {
        let words = format!("{} is in PATH, and programs of that folder are run on the host", entry.display());
        let (links, end) = links::way(&entry);
        for step in links.into_iter().chain([end, entry]) {
            relied_on.entry(step).or_insert_with(|| words.clone());
        }
    }
    relied_on
}

/// Adds the paths that lead to a program of the search path, or to one that a policy names: its name, the links to its
/// file, and the installation that tells a launcher what to start. (A relative path adds nothing.)
pub fn relies_on(candidate: &Path, relied_on: &mut BTreeMap<PathBuf, String>) {
    let words = format!("{} leads there, and tools or this host run it", candidate.display());
    let (links, end) = links::way(candidate);
    let installation = candidate.parent().filter(|folder| folder.ends_with("shims")).and_then(Path::parent);
    let steps = links.into_iter().chain([end, candidate.to_owned()]).chain(installation.map(Path::to_path_buf));
    for step in steps.filter(|_| candidate.is_absolute()) {
        relied_on.entry(step).or_insert_with(|| words.clone());
    }
}

/// The interpreter a policy names: a virtual environment's `bin/python`, or any other interpreter file.
pub fn named(language: Language, path: &Path, off_limits: &OffLimits) -> Result<policy::Runtime, String> {
    if !path.is_absolute() {
        return Err(format!("{} is not absolute; write the whole path of the interpreter", path.display()));
    }
    let binary = binary(language, path, off_limits, None)?;
    let runtime = describe(language, &binary, "policy", off_limits, None)?;
    outside(&runtime, off_limits)?;
    Ok(runtime)
}

/// Refuses a runtime whose files lie in a place that is off limits, or whose view would open such a place, a home or a
/// whole system folder.
pub fn outside(runtime: &policy::Runtime, off_limits: &OffLimits) -> Result<(), String> {
    let program = match &runtime.program {
        policy::Program::Path(path) => Some(path),
        policy::Program::Ourselves { .. } => None,
    };
    for root in runtime.roots.iter().chain(program) {
        let real = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
        off_limits.passes(root)?;
        if Some(root) == program {
            continue;
        }
        for path in [root, &real] {
            trust::narrow(path)?;
            if let Some(place) = off_limits.below(path) {
                return Err(format!("it needs {}, which holds {place}", path.display()));
            }
        }
    }
    Ok(())
}

/// The folders of a search path that may hold an interpreter, without symlinks, each once.
fn search_folders(search_path: &OsStr, off_limits: &OffLimits, notes: &mut Vec<String>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in std::env::split_paths(search_path) {
        if !entry.is_absolute() {
            note(notes, format!("PATH entry '{}' passed over: it is not absolute", entry.display()));
            continue;
        }
        // An entry that does not exist is common and harmless: it gets no note.
        let Ok(real) = entry.canonicalize() else { continue };
        if folders.contains(&real) {
            continue;
        }
        if let Err(why) = off_limits.passes(&entry) {
            note(notes, format!("PATH entry {} passed over: {why}", entry.display()));
            continue;
        }
        folders.push(real);
    }
    folders
}

/// From a candidate to the interpreter's own file. Without an asker (a path a policy names) a shim is refused.
fn binary(
    language: Language,
    candidate: &Path,
    off_limits: &OffLimits,
    asker: Option<&ask::Asker>,
) -> Result<Binary, String> {
    let found = followed(candidate, off_limits)?;
    if found.runs(language)? {
        return Ok(found);
    }
    let target = match (pyenv::interpreter(&found.path)?, asker) {
        (Some(target), _) => target,
        (None, Some(asker)) => asker.executable(language, &found.path)?,
        (None, None) => {
            let instead = instead(language, &found.real)?;
            return Err(format!("{} is {instead}; name the interpreter", found.path.display()));
        }
    };
    let found = followed(&target, off_limits)?;
    if found.runs(language)? {
        return Ok(found);
    }
    Err(format!("it leads to {}, which is not a {} interpreter", found.real.display(), language.name()))
}

/// Where a path leads, if no tool and no other user could change what lies on the way.
fn followed(path: &Path, off_limits: &OffLimits) -> Result<Binary, String> {
    off_limits.passes(path)?;
    let path = in_real_folder(path)?;
    let real = path.canonicalize().map_err(|e| format!("{} leads nowhere ({e})", path.display()))?;
    trust::path(&path)?;
    trust::path(&real)?;
    Ok(Binary { path, real })
}

impl Binary {
    fn runs(&self, language: Language) -> Result<bool, String> {
        Ok(trust::starts_with(&self.real, b"\x7fELF")? && fits(language, &self.real))
    }
}

fn describe(
    language: Language,
    binary: &Binary,
    found: &str,
    off_limits: &OffLimits,
    asker: Option<&ask::Asker>,
) -> Result<policy::Runtime, String> {
    let runtime = match language {
        Language::Python => python::runtime(binary, found)?,
        Language::Nodejs | Language::Bun => javascript::runtime(language, binary, found, off_limits, asker)?,
        Language::Wasm => return Err("wasm runs in this binary; there is no interpreter to name".to_owned()),
    };
    runtime.roots.iter().try_for_each(|root| trust::readable_by_tools(root))?;
    Ok(runtime)
}

/// The same file with its folder's symlinks resolved, and its own name kept.
fn in_real_folder(path: &Path) -> Result<PathBuf, String> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            folder.canonicalize().map(|f| f.join(name)).map_err(|e| format!("{}: {e}", folder.display()))
        }
        _ => Err(format!("{} is not a file", path.display())),
    }
}

/// Whether a real file is named like the interpreter, and not like one program for many names (`snap`, `mise`).
fn fits(language: Language, real: &Path) -> bool {
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    match language {
        Language::Python => name.starts_with("python"),
        Language::Nodejs => name.starts_with("node"),
        Language::Bun => name.starts_with("bun"),
        Language::Wasm => false,
    }
}

/// The kind of a file that a policy names as an interpreter and that is none, in words.
fn instead(language: Language, real: &Path) -> Result<String, String> {
    let name = language.name();
    let other = LANGUAGES.iter().map(|(other, _)| *other).find(|other| fits(*other, real));
    Ok(match (trust::starts_with(real, b"\x7fELF")?, other) {
        (true, Some(other)) => format!("a {} interpreter, not a {name} one", other.name()),
        (true, None) => format!("another program, not a {name} interpreter by its name"),
        (false, _) if trust::starts_with(real, b"#!")? => "a launcher script, not the interpreter".to_owned(),
        (false, _) => "not a program".to_owned(),
    })
}

/// The text of a small regular file; `None` for anything else.
fn small_text(path: &Path) -> Option<String> {
    // Opening a device can have effects.
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let file = files::open(path, OFlag::empty()).ok()?;
    String::from_utf8(files::whole(file, MOST_TEXT_BYTES).ok()??).ok()
}

fn note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}
