//! What interpreters load before a script. The guard: where tools write below what a call reads,
//! its interpreter loads no code from there. And for Bun, what makes its output blocking.
//!
//! The guard protects a tool from its neighbours, not the host from the tool, so it is not a layer.
//! Python finds it by a virtual environment, so that children and worker processes have it, too;
//! Node and Bun preload it.
//!
//! Where a place that tools write, or once could, lies below what a call reads, a module whose real
//! path lies there is not loaded, and the log names the file and the fix. Nothing in such a place
//! is executed or mapped as a library (noexec). What only this tool writes counts below its own
//! folder and its `base:` trees, but for hidden folders (`.cache`): such a folder can keep code for
//! the tool's own later calls. An interpreter that is too old for the guard (Python before 3.8,
//! Node before 20.6, Bun before 1.2) is refused there.
//!
//! It runs beside the tool's own code, which can remove it. It does not see:
//!
//! - code that a script reads by itself (`exec(open(…).read())`, `vm`, `eval`, templates);
//! - children with variables of their own, Python with `-S`, interpreters that are started by
//!   another path;
//! - what settings that a person wrote name (`extends` in `tsconfig.json`);
//! - in Bun, a `package.json` that leads from a written folder to a module elsewhere. (A file
//!   without an ending is text there while the guard is on.)
//! - a library that matches a staged pattern, or whose folder was made during the call, where
//!   functions other than Python's or Node's own open it.

use super::binary::small_text;
use crate::manifest::Language;
use crate::policy::{Area, Program, Runtime, Shape};
use std::path::{Path, PathBuf};

/// What the guard adds to the set-up of a call.
#[derive(Default)]
pub struct Guard {
    /// Files below `OWN_FOLDER`, and links.
    pub files: Vec<(String, String)>,
    pub links: Vec<(PathBuf, PathBuf)>,
    /// The interpreter's name for itself, by which Python finds the virtual environment.
    pub program: Option<PathBuf>,
    pub arguments: Vec<&'static str>,
}

const NODE: &str = "--require=/.toolhost/guard.cjs";
/// A file without an ending is text: Bun asks no plugin about it.
const BUN: &str = "--preload=/.toolhost/guard.cjs --loader=:text";
/// Makes what Bun prints blocking. (Node prints so, because `seccomp` lets it do nothing else.)
const BUN_OUTPUT: &str = "--preload=/.toolhost/output.mjs";
/// The programs of the virtual environment.
const BIN: &str = "/.toolhost/python/bin";

/// The interpreter that would be needed, if this one is too old: for audit events,
/// `module.register`, or plugins that are preloaded in workers.
pub fn lacks_guard(runtime: &Runtime) -> Option<String> {
    let oldest = match runtime.language {
        Language::Python => [3, 8],
        Language::Nodejs => [20, 6],
        Language::Bun => [1, 2],
        Language::Wasm | Language::Bash => return None,
    };
    let version: Vec<u64> = runtime
        .version
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect();
    (version.as_slice() < oldest.as_slice()).then(|| {
        format!(
            "{} {}.{} or later",
            runtime.language.name(),
            oldest[0],
            oldest[1]
        )
    })
}

/// Whether something may not be loaded, or packages beside the script are to be found.
fn needs_guard(shape: &Shape) -> bool {
    !shape.written.is_empty() || shape.runtime.environment.is_some()
}

pub fn guard(shape: &Shape) -> Guard {
    let mut guard = Guard::default();
    let Program::Path(program) = &shape.runtime.program else {
        return guard;
    };
    if shape.runtime.language == Language::Bun {
        guard.file("output.mjs", include_str!("shims/output.mjs"));
    }
    if !needs_guard(shape) {
        return guard;
    }
    let written: Vec<String> = shape.written.iter().map(Area::as_regex).collect();
    guard.file("written", written.join("|"));
    guard.file("guard.cjs", include_str!("shims/guard.cjs"));
    match shape.runtime.language {
        Language::Python => guard.virtual_environment(program, &shape.runtime),
        Language::Nodejs => guard.arguments.push(NODE),
        Language::Bun => guard.arguments.extend(BUN.split(' ')),
        Language::Wasm | Language::Bash => {}
    }
    guard
}

impl Guard {
    fn file(&mut self, name: &str, text: impl Into<String>) {
        self.files.push((name.to_owned(), text.into()));
    }

    /// A virtual environment that leads to the interpreter's own packages, and to the programs
    /// beside it.
    fn virtual_environment(&mut self, program: &Path, runtime: &Runtime) {
        let bin = program.parent().unwrap_or(program);
        let prefix = bin.parent().unwrap_or(bin);
        let own = small_text(&prefix.join("pyvenv.cfg"));
        let prefix = runtime
            .environment
            .as_deref()
            .or(own.as_ref().map(|_| prefix));
        // Otherwise the packages are those of the interpreter at `home`.
        self.file(
            "python/prefix",
            prefix.map_or("".into(), Path::to_string_lossy),
        );
        let outer = format!(
            "home = {}\ninclude-system-site-packages = true\n",
            bin.display()
        );
        self.file("python/pyvenv.cfg", own.unwrap_or(outer));
        let minor: Vec<&str> = runtime.version.split('.').take(2).collect();
        let packages = format!("python/lib/python{}/site-packages", minor.join("."));
        self.file(
            &format!("{packages}/toolhost.pth"),
            "import toolhost_guard\n",
        );
        self.file(
            &format!("{packages}/toolhost_guard.py"),
            include_str!("shims/guard.py"),
        );
        self.links.push((BIN.into(), bin.to_owned()));
        self.program = program.file_name().map(|name| Path::new(BIN).join(name));
    }
}

/// Adds to the variables of a call what guards the interpreters that it starts, and what makes the
/// output of Bun and of its children blocking.
pub fn set_variables(shape: &Shape, lines: &mut Vec<String>) {
    let is_guarded = needs_guard(shape);
    for (name, own, applies) in [
        ("NODE_OPTIONS=", format!("{NODE} "), is_guarded),
        ("BUN_OPTIONS=", format!("{BUN} "), is_guarded),
        (
            "BUN_OPTIONS=",
            format!("{BUN_OUTPUT} "),
            shape.runtime.language == Language::Bun,
        ),
        ("PATH=", format!("{BIN}:"), is_guarded),
    ] {
        if !applies {
            continue;
        }
        match lines.iter_mut().find(|line| line.starts_with(name)) {
            Some(line) => line.insert_str(name.len(), &own),
            None => lines.push(name.to_owned() + &own),
        }
    }
}
