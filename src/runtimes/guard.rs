//! The guard: what a call starts with where tools write below what it reads. Its interpreter loads no code from there.
//!
//! It protects a tool from its neighbours, not the host from the tool, so it is not a layer. Python finds it by a virtual
//! environment, so that children and worker processes have it, too; Node and Bun preload it.

use super::binary::small_text;
use crate::manifest::Language;
use crate::policy::{Program, Runtime, Shape, WrittenPlace};
use std::path::{Path, PathBuf};

/// The oldest interpreters that can be guarded: audit events, `module.register`, preloaded plugins for workers.
const OLDEST: [(Language, &str); 3] =
    [(Language::Python, "3.8.0"), (Language::Nodejs, "20.6.0"), (Language::Bun, "1.2.0")];

/// What the guard adds to the set-up of a call.
#[derive(Default)]
pub struct Guard {
    /// Files below `OWN_FOLDER`, and links.
    pub files: Vec<(String, String)>,
    pub links: Vec<(PathBuf, PathBuf)>,
    /// The interpreter's name for itself, by which Python finds the virtual environment.
    pub program: Option<PathBuf>,
    pub arguments: Vec<String>,
}

/// The interpreter that would be needed, if this one cannot be guarded.
pub fn lacks_guard(runtime: &Runtime) -> Option<String> {
    let (language, oldest) = OLDEST.iter().find(|(language, _)| *language == runtime.language)?;
    let version = semver::Version::parse(&runtime.version).or_else(|_| format!("{}.0", runtime.version).parse());
    let oldest: semver::Version = oldest.parse().expect("a version");
    (!version.is_ok_and(|version| version >= oldest)).then(|| format!("{} {oldest} or later", language.name()))
}

pub fn guard(shape: &Shape) -> Guard {
    let Program::Path(program) = &shape.runtime.program else { return Guard::default() };
    if shape.written.is_empty() {
        return Guard::default();
    }
    let places: Vec<String> = shape.written.iter().map(WrittenPlace::as_regex).collect();
    let mut guard = Guard {
        files: vec![
            ("written".to_owned(), places.join("|")),
            ("guard.cjs".to_owned(), include_str!("shims/guard.cjs").to_owned()),
        ],
        ..Guard::default()
    };
    match shape.runtime.language {
        Language::Python => virtual_environment(program, &shape.runtime.version, &mut guard),
        Language::Nodejs => guard.arguments.push(NODE.to_owned()),
        Language::Bun => guard.arguments.extend(BUN.split(' ').map(str::to_owned)),
        Language::Wasm => {}
    }
    guard
}

const NODE: &str = "--require=/.toolhost/guard.cjs";
/// A file without an ending is text: plugins are not asked about it.
const BUN: &str = "--preload=/.toolhost/guard.cjs --loader=:text";
const PYTHON: &str = "/.toolhost/python";

/// A virtual environment that leads to the interpreter's own packages, and to its programs.
fn virtual_environment(program: &Path, version: &str, guard: &mut Guard) {
    let bin = program.parent().unwrap_or(Path::new("/"));
    let above = bin.parent().unwrap_or(Path::new("/"));
    let own = small_text(&above.join("pyvenv.cfg"));
    let prefix = own.as_ref().map_or_else(String::new, |_| above.to_string_lossy().into_owned());
    let settings = own.unwrap_or_else(|| format!("home = {}\ninclude-system-site-packages = true\n", bin.display()));
    let minor = version.split('.').take(2).collect::<Vec<_>>().join(".");
    // A build without the global lock has a folder of its own.
    for folder in
        [format!("python/lib/python{minor}/site-packages"), format!("python/lib/python{minor}t/site-packages")]
    {
        guard.files.push((format!("{folder}/toolhost.pth"), "import toolhost_guard\n".to_owned()));
        guard.files.push((format!("{folder}/toolhost_guard.py"), include_str!("shims/guard.py").to_owned()));
    }
    guard.files.push(("python/pyvenv.cfg".to_owned(), settings));
    guard.files.push(("python/prefix".to_owned(), prefix));
    guard.links.push((format!("{PYTHON}/bin").into(), bin.to_owned()));
    guard.program = program.file_name().map(|name| Path::new(PYTHON).join("bin").join(name));
}

/// Adds to the variables of a call what its children need to be guarded as well.
pub fn guard_children(shape: &Shape, lines: &mut Vec<String>) {
    if shape.written.is_empty() {
        return;
    }
    for (name, option) in [("NODE_OPTIONS=", NODE), ("BUN_OPTIONS=", BUN)] {
        match lines.iter_mut().find(|line| line.starts_with(name)) {
            Some(line) => line.extend([" ", option]),
            None => lines.push(format!("{name}{option}")),
        }
    }
    let path = lines.iter_mut().find(|line| line.starts_with("PATH="));
    if let (Some(path), Language::Python) = (path, shape.runtime.language) {
        path.insert_str("PATH=".len(), &format!("{PYTHON}/bin:"));
    }
}
