//! The names by which interpreters load code, and those that other programs obey. No file is looked at here.

use crate::policy::area::{escape, literal, name_matches, plain_tail};
use std::path::Path;

/// Endings of files that an interpreter loads by name.
const LOADED_ENDINGS: [&str; 14] =
    [".py", ".pyc", ".so", ".pth", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".node", ".wasm"];
const LOADED_NAMES: [&str; 5] = ["package.json", "node_modules", "__pycache__", "tsconfig.json", "jsconfig.json"];
const DEFINITIONS: [&str; 5] = [".tool.json", ".tool-service.json", ".prompt.json", ".resource.json", ".policy.toml"];
/// Folders of packages; the last file makes its folder a virtual environment.
const PACKAGES: [&str; 6] = ["node_modules", ".venv", "venv", "site-packages", "__pycache__", "pyvenv.cfg"];
/// Repositories, and the settings of shells, editors and agents that run commands when somebody opens the folder.
const OBEYED: &str = ".git .hg .svn .jj .husky .envrc .vscode .idea .zed .devcontainer .vim .vimrc .exrc .mcp.json \
                      .claude .codex .cursor .gemini .kiro .windsurf";

/// Whether an interpreter could load a file or folder of this name.
pub fn loaded(name: &str) -> bool {
    let name = name.to_lowercase();
    LOADED_NAMES.contains(&name.as_str()) || LOADED_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether some name that matches the pattern could be loaded: it has no fixed ending, or one of the table, or matches
/// a whole name.
pub(super) fn may_be_loaded(names: &str) -> bool {
    let ending = ending(names);
    ending.len() < 2
        || LOADED_ENDINGS.contains(&ending.as_str())
        || LOADED_NAMES.iter().any(|name| name_matches(&names.to_lowercase(), name))
}

/// The ending, with its dot, of every name that the pattern matches; empty if it is not fixed.
pub(super) fn ending(names: &str) -> String {
    let tail = plain_tail(names).to_lowercase();
    tail.rfind('.').map_or_else(String::new, |dot| tail[dot..].to_owned())
}

pub(super) fn ending_of(path: &Path) -> String {
    ending(&escape(&path.file_name().unwrap_or_default().to_string_lossy()))
}

/// Whether the pattern itself spells a name or ending of the table (`*.py` does, `*` does not).
pub fn spells_loaded(names: &str) -> bool {
    literal(names).map_or_else(|| LOADED_ENDINGS.iter().any(|end| names.to_lowercase().ends_with(end)), |n| loaded(&n))
}

/// A manifest or a policy: no tool publishes one.
pub fn definition(names: &str) -> bool {
    let names = names.to_lowercase();
    DEFINITIONS.into_iter().any(|ending| names.ends_with(ending))
}

/// A name that other programs obey, also on a file system that takes `.GIT` for `.git`.
pub fn obeyed(name: &str) -> bool {
    OBEYED.split(' ').any(|obeyed| name.eq_ignore_ascii_case(obeyed))
}

/// The same, or a folder of packages.
pub(super) fn run_later(name: &str) -> bool {
    PACKAGES.contains(&name) || obeyed(name)
}
