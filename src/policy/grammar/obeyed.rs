//! The one table of names that are obeyed wherever they lie: no tool writes or publishes a file of
//! one.

use crate::base::names::name_matches;
use std::path::{Path, PathBuf};

/// Manifests and policies. In these tables `*` stands for any beginning.
const DEFINITIONS: &str =
    "*.tool.json *.tool-service.json *.prompt.json *.resource.json *.mcp-tools.json *.policy.toml";
/// Repositories, and the settings of shells, editors and agents that run commands when somebody
/// opens the folder.
const OBEYED: &str = ".git .hg .svn .jj .husky .envrc .vscode .idea .zed .devcontainer .vim .vimrc \
                      .exrc .mcp.json .claude .codex .cursor .gemini .kiro .windsurf";
/// By these names interpreters find packages and modules, in folders of data, too, and this host
/// what to install.
const PACKAGES: &str = "node_modules .venv venv site-packages __pycache__ pyvenv.cfg package.json \
                        tsconfig.json jsconfig.json bunfig.toml package-lock.json \
                        npm-shrinkwrap.json";
/// The machine's folders of data: a program that reads its folder there reads the user's, too.
const DATA_FOLDERS: [&str; 2] = ["/usr/share", "/usr/local/share"];

fn is_listed(table: &str, name: &str) -> bool {
    let name = name.to_lowercase();
    table.split(' ').any(|listed| {
        listed
            .strip_prefix('*')
            .map_or(name == listed, |ending| name.ends_with(ending))
    })
}

/// Whether a name or pattern is that of a manifest or policy, which no tool may publish.
pub fn is_definition(names: &str) -> bool {
    is_listed(DEFINITIONS, names)
}

/// Whether interpreters find modules, or this host packages, by a file of this name.
pub fn leads_modules(name: &str) -> bool {
    is_listed(PACKAGES, name)
}

/// Whether other programs obey files of this name. Case is ignored, as by some file systems
/// (`.GIT`).
pub fn is_obeyed(name: &str) -> bool {
    is_listed(OBEYED, name)
}

/// Whether a staged pattern may publish a file of this name.
pub fn publishes(names: &str, name: &str) -> bool {
    name_matches(names, name) && !(is_definition(name) || is_obeyed(name) || leads_modules(name))
}

/// Whether a folder of a home is, or lies in, ~/.local/share/NAME, where NAME is the namespace or the
/// name of the tool. Programs run what lies in their own folders there, so none may have that name.
pub fn is_data_of_tool(below_home: &Path, id: &str) -> bool {
    let name = below_home
        .strip_prefix(".local/share")
        .ok()
        .and_then(|below| below.iter().next()?.to_str());
    name.is_some_and(|name| id.split(':').any(|part| part == name) && !is_of_program(name))
}

fn is_of_program(name: &str) -> bool {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search_path)
        .chain(DATA_FOLDERS.map(PathBuf::from))
        .any(|folder| folder.join(name).symlink_metadata().is_ok())
}
