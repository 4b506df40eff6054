//! Requests that no policy can grant, on any machine or on this one. Nothing here reads the file system.

use crate::manifest::{Language, Manifest, ToolPaths};
use crate::policy::area::{Area, escape, name_matches, plain_tail};
use crate::policy::base_view::{KERNEL, MADE_ETC, OWN_FOLDER, SYSTEM_FOLDERS};
use crate::policy::confinement::{Access, Program, Runtime};
use crate::policy::machine::Machine;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Programs, libraries and settings of the machine, besides `SYSTEM_FOLDERS`.
const SYSTEM: [&str; 3] = ["/usr", "/etc", "/boot"];

/// What the denials of one tool's requests depend on.
pub struct HardDenials<'a> {
    pub site: &'a ToolPaths,
    /// The other manifests that name the tool's script.
    pub owners: &'a [(Arc<Manifest>, ToolPaths)],
    pub protected: &'a Protected,
    pub machine: &'a Machine,
}

impl HardDenials<'_> {
    /// Why no policy can grant this; `None` if one can.
    pub fn reason(&self, access: Access, request: &Area) -> Option<String> {
        if !matches!(request, Area::File(_)) && request.folder().parent().is_none() {
            return Some("it opens all of /, which is never granted: name the folders or files in it".into());
        }
        if let Some(kernel) = KERNEL.iter().find(|kernel| request.path().starts_with(kernel)) {
            return Some(format!("nothing below {kernel} is ever granted: a tool has its own"));
        }
        if access == Access::Read {
            // Each call's view has files of its own at these paths, so it could not show the host's.
            let made = MADE_ETC.iter().chain([&OWN_FOLDER]).find(|made| request.touches(Path::new(made)))?;
            return Some(format!("every call has its own {made}: name the files that are needed beside it"));
        }
        let rules = [Self::system, Self::run_on_the_host, Self::settings_of_homes, Self::files_in_use, Self::run_later];
        let why = rules.iter().find_map(|rule| rule(self, request))?;
        let fix = "name a folder that holds only results (`out/*`), or files with a fixed ending of data (`*.csv`)";
        Some(format!("{why}; {fix}"))
    }

    /// The script base folder, if the request lies in it.
    fn own_base(&self, request: &Area) -> Option<&Path> {
        let base = self.site.base.as_path();
        (!base.as_os_str().is_empty() && request.folder().starts_with(base)).then_some(base)
    }

    fn system(&self, request: &Area) -> Option<String> {
        if *request == Area::File("/tmp".into()) {
            return Some("a call always has its own /tmp as scratch: remove it from the manifest".into());
        }
        let folder = SYSTEM.iter().chain(&SYSTEM_FOLDERS).find(|folder| request.touches(Path::new(folder)));
        let folder = folder.or(request.folder().parent().is_none().then_some(&"/"))?;
        Some(format!("{folder} holds programs or settings of the machine, which no tool writes"))
    }

    /// Programs on PATH, and interpreters. For a request in the script base, a folder above the base does not count.
    fn run_on_the_host(&self, request: &Area) -> Option<String> {
        let base = self.own_base(request);
        let is_far = |place: &Path| base.and_then(Path::parent).is_some_and(|above| above.starts_with(place));
        let is_relied_on = |(place, _): &(&PathBuf, &String)| request.touches(place) && !is_far(place);
        if let Some((place, words)) = self.machine.relied_on.iter().find(is_relied_on) {
            return Some(format!("{} could be written: {words}", place.display()));
        }
        // The private copy of a folder would cover an interpreter in it.
        let is_written = |root: &PathBuf| {
            request.touches(root) && !base.is_some_and(|base| base.starts_with(root))
                || !matches!(request, Area::Tree(_)) && root.starts_with(request.folder())
        };
        let runtimes = self.machine.runtimes.values().chain(self.machine.named_runtimes.values().flatten());
        let root = runtimes.flat_map(files_of).find(is_written)?;
        Some(format!("files of an interpreter could be written or covered: {}", root.display()))
    }

    /// `.bashrc`, `.config`, `.ssh` and the like: programs of the user and interpreter launchers obey them. A
    /// script base below a home is exempt (other rules protect it); one that is or holds a home is not.
    fn settings_of_homes(&self, request: &Area) -> Option<String> {
        let base = self.own_base(request);
        let names = names_of(request);
        let path = names.as_ref().map_or(request.path().into(), |names| request.folder().join(names));
        let is_written = |home: &&PathBuf| {
            let name = path.strip_prefix(home).ok().and_then(|below| below.iter().next());
            names.is_none() && home.starts_with(&path)
                || name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        };
        let has_own_base = |home: &&PathBuf| base.is_some_and(|base| base.starts_with(home) && base != home.as_path());
        let home = self.machine.homes.iter().find(|home| is_written(home) && !has_own_base(home))?.display();
        Some(format!("programs obey the files of a home whose names start with a dot ({home}/.config …)"))
    }

    /// No write tree may hold files registered with this host, files of the host, or what tools read by `base:`.
    fn files_in_use(&self, request: &Area) -> Option<String> {
        // A staged pattern counts as the tree of its folder, unless it matches nothing but data.
        let tree = names_of(request).is_none_or(|names| may_match_loadable(&names)).then(|| request.folder());
        let is_written = |path: &&Path| request.touches(path) || tree.is_some_and(|tree| path.starts_with(tree));
        let owners = self.owners.iter().map(|(_, other)| &other.manifest);
        let own = owners.chain([&self.site.manifest]).chain(&self.site.script).map(PathBuf::as_path);
        let own = own.filter(|path| !path.as_os_str().is_empty()).filter(is_written).min();
        let records = self.protected.records.as_deref();
        let records = records.filter(|folder| !matches!(request, Area::Tree(_)) && request.folder() == *folder);
        let path = own.or_else(|| self.protected.touched(request, tree)).or(records)?;
        let what = match path {
            path if Some(path) == self.site.script.as_deref() => "the tool's own script",
            path if path == self.site.manifest => "the tool's own manifest",
            _ => "a policy, a manifest, a script or a file of this host",
        };
        Some(format!("{what} could be written: {}", path.display()))
    }

    /// A tool cannot make tools, packages or files that others obey.
    fn run_later(&self, request: &Area) -> Option<String> {
        let below = request.path().strip_prefix(&self.site.folder).unwrap_or(request.path());
        let is_run = |name: &&str| is_obeyed(name) || is_listed(PACKAGES, name);
        if let Some(name) = below.iter().filter_map(|part| part.to_str()).find(is_run) {
            return Some(format!("other programs run or obey `{name}`"));
        }
        let pattern = names_of(request)?;
        if is_definition(&pattern) {
            return Some(format!("`{pattern}` could be written: a tool cannot make tools or policies"));
        }
        let has_script = |folder: &&Path| *folder == self.site.folder || self.protected.scripts.contains(*folder);
        let beside = request.folder().ancestors().find(has_script).filter(|_| is_loadable(&pattern))?.display();
        Some(format!("`{pattern}` could be written below {beside}, where a script lies, and would be run later"))
    }
}

/// Files that no tool may write: those registered with this host, and its own. Indexed: a lookup does not scan all.
#[derive(Clone, Debug, Default)]
pub struct Protected {
    paths: BTreeSet<PathBuf>,
    /// For each component of those paths: its folder and the ending of its name, which may be empty.
    endings: BTreeSet<(PathBuf, String)>,
    pub scripts: BTreeSet<PathBuf>,
    /// Trees that manifests read by `base:`, as far as policy grants them.
    pub shared: Arc<BTreeSet<PathBuf>>,
    /// A folder in which no tool makes files, whatever their names: this host keeps its records there.
    pub records: Option<PathBuf>,
}

impl Protected {
    pub fn add(&mut self, path: PathBuf) {
        let ending = |at: &Path| ending(&escape(&at.file_name().unwrap_or_default().to_string_lossy()));
        self.endings.extend(path.ancestors().filter_map(|at| Some((at.parent()?.to_path_buf(), ending(at)))));
        let is_script = !Language::of_file_name(&path.to_string_lossy()).is_empty();
        self.scripts.extend(path.parent().filter(|_| is_script).map(Path::to_path_buf));
        self.paths.insert(path);
    }

    /// A protected path in, above or below the area, or in `tree`, if the area counts as that whole tree.
    fn touched(&self, request: &Area, tree: Option<&Path>) -> Option<&Path> {
        let above = request.path().ancestors().find_map(|above| self.paths.get(above)).map(PathBuf::as_path);
        let in_tree = || tree.and_then(|tree| first_below(&self.paths, tree).or(first_below(&self.shared, tree)));
        let named = || match request {
            Area::Tree(_) => None,
            Area::File(file) => first_below(&self.paths, file),
            Area::Names { folder, names } => {
                let some = self.endings.contains(&(folder.clone(), ending(names)));
                let mut near = self.paths.range(folder.clone()..).take_while(|path| some && path.starts_with(folder));
                near.find(|path| request.touches(path)).map(PathBuf::as_path)
            }
        };
        above.or_else(in_tree).or_else(named)
    }
}

fn first_below<'p>(paths: &'p BTreeSet<PathBuf>, folder: &Path) -> Option<&'p Path> {
    paths.range(folder.to_path_buf()..).next().filter(|path| path.starts_with(folder)).map(PathBuf::as_path)
}

/// The names that a request has in its folder; `None`: the whole tree.
fn names_of(request: &Area) -> Option<String> {
    match request {
        Area::Tree(_) => None,
        Area::File(file) => Some(file.file_name().unwrap_or_default().to_string_lossy().into_owned()),
        Area::Names { names, .. } => Some(names.clone()),
    }
}

fn files_of(runtime: &Runtime) -> Vec<PathBuf> {
    let mut files = runtime.roots.clone();
    if let Program::Path(path) = &runtime.program {
        files.push(path.clone());
        // Python looks for `pyvenv.cfg` beside itself, and one folder above.
        let near = path.ancestors().skip(1).take(2).map(|folder| folder.join("pyvenv.cfg"));
        files.extend(near.filter(|_| runtime.language == Language::Python));
    }
    files.retain(|f| f.is_absolute() && f.parent().is_some());
    files
}

/// Files and folders that an interpreter loads by name. In these tables `*` stands for any beginning.
const LOADED: &str = "*.py *.pyc *.so *.pth *.js *.mjs *.cjs *.ts *.mts *.cts *.jsx *.tsx *.node *.wasm \
                      package.json node_modules __pycache__ tsconfig.json jsconfig.json";
/// Manifests and policies.
const DEFINITIONS: &str = "*.tool.json *.tool-service.json *.prompt.json *.resource.json *.policy.toml";
/// Folders of packages; the last file makes its folder a virtual environment.
const PACKAGES: &str = "node_modules .venv venv site-packages __pycache__ pyvenv.cfg";
/// Repositories, and the settings of shells, editors and agents that run commands when somebody opens the folder.
const OBEYED: &str = ".git .hg .svn .jj .husky .envrc .vscode .idea .zed .devcontainer .vim .vimrc .exrc .mcp.json \
                      .claude .codex .cursor .gemini .kiro .windsurf";

/// Settings by which Node and Bun find modules.
const SETTINGS: &str = "package.json tsconfig.json jsconfig.json bunfig.toml";

fn is_listed(table: &str, name: &str) -> bool {
    let name = name.to_lowercase();
    table.split(' ').any(|listed| listed.strip_prefix('*').map_or(name == listed, |ending| name.ends_with(ending)))
}

/// Whether an interpreter could load a file or folder of this name; of a pattern, whether it spells such a name itself
/// (`*.py` does, `*` does not).
fn is_loadable(name: &str) -> bool {
    is_listed(LOADED, name)
}

/// Whether the pattern can match a name that an interpreter loads: it has no fixed ending, an ending in `LOADED`, or
/// matches a whole name in `LOADED`.
pub(super) fn may_match_loadable(names: &str) -> bool {
    let (ending, names) = (ending(names), names.to_lowercase());
    ending.len() < 2 || is_loadable(&ending) || LOADED.split(' ').any(|name| name_matches(&names, name))
}

/// The ending, with its dot, of every name that the pattern matches; empty if it is not fixed.
fn ending(names: &str) -> String {
    let tail = plain_tail(names).to_lowercase();
    tail.rfind('.').map_or_else(String::new, |dot| tail[dot..].to_owned())
}

/// Whether a name or pattern is that of a manifest or policy, which no tool may publish.
pub fn is_definition(names: &str) -> bool {
    is_listed(DEFINITIONS, names)
}

/// Whether interpreters find modules by a file of this name.
pub fn leads_modules(name: &str) -> bool {
    is_listed(SETTINGS, name)
}

/// Whether other programs obey files of this name. Case is ignored, as by some file systems (`.GIT`).
pub fn is_obeyed(name: &str) -> bool {
    is_listed(OBEYED, name)
}
