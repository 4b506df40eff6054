//! Names: those by which code, tools, packages and settings are found. A file that a tool writes under one of them
//! would be run or obeyed by somebody else.
//!
//! For: `hard_denials`, `sandbox::grants` (what lies in a writable tree), the publisher of staged files. In: a name, or
//! a pattern of names. Out: whether it is, or could match, one of them. Never: looks at the file system.

use crate::policy::{literal, name_matches};

/// Endings of files that Python, Node or Bun load from the folder of a script, or that tell them what to load.
const CODE: [&str; 27] = [
    ".py",
    ".pyc",
    ".pyz",
    ".pth",
    ".so",
    ".pyd",
    ".egg",
    ".js",
    ".mjs",
    ".cjs",
    ".jsx",
    ".ts",
    ".mts",
    ".cts",
    ".tsx",
    ".node",
    ".wasm",
    ".wat",
    "pyvenv.cfg",
    "package.json",
    "package.json5",
    "package.yaml",
    "bunfig.toml",
    "tsconfig.json",
    "jsconfig.json",
    ".npmrc",
    ".pnp.data.json",
];
/// Names of files that say which packages are installed for the scripts beside them; `package.json` is code, too.
const REQUIREMENTS: [&str; 7] = [
    "requirements.txt",
    "pyproject.toml",
    "uv.lock",
    "pylock.toml",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "bun.lock",
];
/// The end of the name of a lock for one script, as uv calls it; begin and end of one as PEP 751 does.
const SCRIPT_LOCK: &str = ".py.lock";
const NAMED_LOCK: [&str; 2] = ["pylock.", ".toml"];
/// Endings of data files. Node runs a file of any other ending, or of none, as a script when it is named in full
/// (Node.js API, Modules: CommonJS modules, File modules).
const DATA: [&str; 76] = [
    "csv", "tsv", "txt", "md", "rst", "json", "jsonl", "ndjson", "geojson", "xml", "xsd", "html", "htm", "css", "svg",
    "png", "jpg", "jpeg", "gif", "webp", "avif", "bmp", "ico", "tif", "tiff", "pdf", "log", "out", "err", "yaml",
    "yml", "toml", "ini", "parquet", "arrow", "feather", "avro", "orc", "xlsx", "xls", "ods", "docx", "odt", "pptx",
    "odp", "rtf", "epub", "db", "sqlite", "sqlite3", "sql", "npy", "npz", "h5", "hdf5", "dat", "bin", "zip", "tar",
    "gz", "tgz", "bz2", "xz", "zst", "7z", "mp3", "wav", "ogg", "flac", "mp4", "webm", "woff2", "diff", "patch", "ics",
    "tex",
];
/// Endings of manifests and policies.
const DEFINITIONS: [&str; 5] = [".tool.json", ".tool-service.json", ".prompt.json", ".resource.json", ".policy.toml"];
/// Folders of packages and of an interpreter's compiled files: run later, wherever they lie.
const PACKAGES: [&str; 5] = ["node_modules", ".venv", "venv", "site-packages", "__pycache__"];
/// Repositories with their hooks, and what editors, shells and agents run when somebody opens the folder.
const OBEYED: [&str; 36] = [
    ".git",
    ".hg",
    ".svn",
    ".jj",
    ".bzr",
    ".sl",
    ".husky",
    ".githooks",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "lefthook.yaml",
    ".lefthook.yml",
    ".yarnrc.yml",
    ".cargo",
    ".vscode",
    ".idea",
    ".zed",
    ".fleet",
    ".devcontainer",
    ".vim",
    ".exrc",
    ".vimrc",
    ".nvimrc",
    ".nvim.lua",
    ".dir-locals.el",
    ".envrc",
    ".mise.toml",
    "mise.toml",
    ".mcp.json",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    ".kiro",
    ".windsurf",
    ".github",
];
/// The same, for files that a person names freely.
const OBEYED_ENDING: &str = ".code-workspace";

/// The ending by which a file of this name would be loaded from the folder of a script.
pub fn code(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    CODE.into_iter().find(|ending| name.ends_with(ending))
}

/// Neither code nor data by its ending: Node runs such a file if it is named in full (`./lib/local`, `./app.config`).
pub fn unknown(name: &str) -> bool {
    let data = |ending: &str| DATA.contains(&ending.to_lowercase().as_str());
    code(name).is_none() && !name.rsplit_once('.').is_some_and(|(_, ending)| data(ending))
}

/// Does a pattern spell all of a name that has no ending, or the ending of one that has?
pub fn spells_name(names: &str, name: &str) -> bool {
    match name.rfind('.') {
        None => literal(names).as_deref() == Some(name),
        Some(dot) => spells(names, &name[dot..].to_lowercase()),
    }
}

/// A manifest or a policy: no tool writes one anywhere.
pub fn definition(name: &str) -> bool {
    DEFINITIONS.iter().any(|ending| name.ends_with(ending))
}

/// A folder of packages, or of a virtual environment by the file that makes it one.
pub fn packages(name: &str) -> bool {
    PACKAGES.contains(&name) || name == "pyvenv.cfg"
}

/// A name that other programs run or obey without being asked, also on a file system that takes `.GIT` for `.git`.
pub fn obeyed(name: &str) -> bool {
    let name = name.to_lowercase();
    OBEYED.contains(&name.as_str()) || name.ends_with(OBEYED_ENDING)
}

/// Does a pattern of names spell an ending? (`*.py` does, `*` does not.)
pub fn spells(names: &str, ending: &str) -> bool {
    names.to_lowercase().ends_with(ending)
}

/// The ending of code that a pattern spells.
pub(super) fn spelled_code(names: &str) -> Option<&'static str> {
    CODE.into_iter().find(|ending| spells(names, ending))
}

/// A file of requirements whose name matches the pattern.
pub(super) fn requirement(names: &str) -> Option<&'static str> {
    let names = names.to_lowercase();
    let named = REQUIREMENTS.into_iter().find(|name| name_matches(&names, name));
    let named_lock = || could_begin(&names, NAMED_LOCK[0]) && could_end(&names, NAMED_LOCK[1]);
    named
        .or_else(|| could_end(&names, SCRIPT_LOCK).then_some("SCRIPT.py.lock"))
        .or_else(|| named_lock().then_some("pylock.SCRIPT.toml"))
}

/// The ending of a definition that a pattern spells.
pub(super) fn spelled_definition(names: &str) -> Option<&'static str> {
    DEFINITIONS.into_iter().find(|ending| spells(names, ending))
}

/// The ending of code that a name matching the pattern could have. (`report*` could end in `.py`, `*.csv` could not.)
pub(super) fn possible_code(names: &str) -> Option<&'static str> {
    let names = names.to_lowercase();
    CODE.into_iter().find(|ending| could_end(&names, ending))
}

fn could_end(names: &str, ending: &str) -> bool {
    could_be(names.chars().rev(), ending.chars().rev())
}

fn could_begin(names: &str, begin: &str) -> bool {
    could_be(names.chars(), begin.chars())
}

fn could_be(mut glob: impl Iterator<Item = char>, text: impl Iterator<Item = char>) -> bool {
    for wanted in text {
        match glob.next() {
            Some('*') => return true,
            Some(c) if c == '?' || c == wanted => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_run_or_obeyed() {
        for (name, ending) in [
            ("x.py", Some(".py")),
            ("X.PY", Some(".py")),
            ("m.cpython-311-x86_64-linux-gnu.so", Some(".so")),
            ("package.json", Some("package.json")),
            ("a.d.mts", Some(".mts")),
            ("data.json", None),
            ("py", None),
            ("x.py.txt", None),
        ] {
            assert_eq!(code(name), ending, "{name}");
        }
        for (names, spelled, possible) in [
            ("*.py", true, true),
            ("*", false, true),
            ("r*", false, true),
            ("*.csv", false, false),
            ("x.p?", false, true),
        ] {
            assert_eq!((spelled_code(names).is_some(), possible_code(names).is_some()), (spelled, possible), "{names}");
        }
        for (names, requires) in [
            ("requirements.txt", true),
            ("*.txt", true),
            ("req*.txt", true),
            ("Requirements.TXT", true),
            ("*.lock", true),
            ("run.py.lock", true),
            ("*.toml", true),
            ("pylock.run.toml", true),
            ("py*.r?n.toml", true),
            ("pylock.*", true),
            ("pylocks.run.toml", false),
            ("pylock.run.csv", false),
            ("report*.txt", false),
            ("*.csv", false),
            ("my-requirements.txt", false),
        ] {
            assert_eq!(requirement(names).is_some(), requires, "{names}");
        }
        assert!(
            obeyed(".git") && obeyed(".GIT") && obeyed("x.code-workspace") && !obeyed(".gitignore") && !obeyed("git")
        );
    }
}
