//! What no policy grants, on any machine or on this one. No file is looked at here.

use crate::manifest::{Language, Site};
use crate::policy::area::{Area, escape, literal, name_matches, plain_tail};
use crate::policy::base_view::{KERNEL, MADE_ETC, OURS, SYSTEM_ETC, SYSTEM_FOLDERS};
use crate::policy::confinement::{Access, Program, Runtime};
use crate::policy::machine::Machine;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Programs, libraries and settings of the machine, which every other program runs or obeys.
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/etc", "/boot"];
/// The fix of every write that is never granted.
const RESULTS_ONLY: &str =
    "name a folder that holds nothing but results (`out/*`), or files with a fixed ending of data (`*.csv`)";

/// What no tool writes, as seen by one tool.
pub struct HardDenials<'a> {
    site: &'a Site,
    /// Own script and manifest, and the manifests that name the same script.
    own: Vec<&'a Path>,
    protected: &'a Protected,
    /// Files and folders of interpreters.
    runtimes: BTreeSet<PathBuf>,
    machine: &'a Machine,
}

impl<'a> HardDenials<'a> {
    /// `namers`: the manifests that name the tool's script beside its own.
    pub fn new(
        site: &'a Site,
        namers: impl Iterator<Item = &'a Path>,
        protected: &'a Protected,
        machine: &'a Machine,
    ) -> Self {
        let own = namers.chain([site.manifest.as_path()]).chain(site.script.as_deref());
        let own = own.filter(|path| !path.as_os_str().is_empty()).collect();
        let runtimes = machine.runtimes.values().chain(machine.named_runtimes.values().flatten());
        HardDenials { site, own, protected, runtimes: runtimes.flat_map(files_of).collect(), machine }
    }

    /// Why no policy can grant this; `None` if one can.
    pub fn reason(&self, access: Access, request: &Area) -> Option<String> {
        if !matches!(request, Area::File(_)) && request.folder().parent().is_none() {
            return Some("it is or needs all of /, which is never granted: name the folders or files in it".into());
        }
        if let Some(kernel) = KERNEL.iter().find(|kernel| request.path().starts_with(kernel)) {
            return Some(format!("nothing below {kernel} is ever granted: a tool has its own"));
        }
        if access == Access::Read {
            // The view makes its own of these for each call, so the host's could not be shown in their place.
            let made = MADE_ETC.iter().chain([&OURS]).find(|made| request.touches(Path::new(made)))?;
            return Some(format!("every call has its own {made}: name the files that are needed beside it"));
        }
        let why = self
            .system(request)
            .or_else(|| self.run_on_the_host(request))
            .or_else(|| self.settings_of_homes(request))
            .or_else(|| self.files_in_use(request))
            .or_else(|| self.run_later(request))?;
        Some(format!("{why}; {RESULTS_ONLY}"))
    }

    /// The script base folder, where the request lies in it.
    fn own_base(&self, request: &Area) -> Option<&Path> {
        let base = self.site.base.as_path();
        (!base.as_os_str().is_empty() && request.folder().starts_with(base)).then_some(base)
    }

    fn system(&self, request: &Area) -> Option<String> {
        let mut scratch = ["/tmp", "/dev/shm"].into_iter();
        if let Some(path) = scratch.find(|path| *request == Area::File(PathBuf::from(path))) {
            return Some(format!("{path} inside a call is its own scratch, always there: take it out of the manifest"));
        }
        let all = SYSTEM.iter().chain(&SYSTEM_FOLDERS).chain(&SYSTEM_ETC);
        let folder = all.into_iter().find(|folder| request.touches(Path::new(folder)));
        let folder = folder.or(request.folder().parent().is_none().then_some(&"/"))?;
        Some(format!("{folder} holds programs or settings of the machine, which no tool writes"))
    }

    /// What this host runs: programs of PATH, and interpreters. What lies above the script base does not count there.
    fn run_on_the_host(&self, request: &Area) -> Option<String> {
        let base = self.own_base(request);
        let above = base.and_then(Path::parent);
        let is_far = |place: &Path| above.is_some_and(|above| above.starts_with(place));
        let relied_on = self.machine.relied_on.iter();
        if let Some((place, words)) = relied_on.clone().find(|(place, _)| request.touches(place) && !is_far(place)) {
            return Some(format!("{} could be written: {words}", place.display()));
        }
        // The private copy of a folder would cover an interpreter in it.
        let is_staged = !matches!(request, Area::Tree(_));
        let is_written = |root: &&PathBuf| {
            request.touches(root) && !base.is_some_and(|base| base.starts_with(root))
                || is_staged && root.starts_with(request.folder())
        };
        let root = self.runtimes.iter().find(is_written)?;
        Some(format!("files of an interpreter could be written or covered: {}", root.display()))
    }

    /// `.bashrc`, `.config`, `.ssh` and their like: the user's programs, and launchers of interpreters, obey them. A
    /// script base below a home has denials of its own; one that is or holds a home is not exempt.
    fn settings_of_homes(&self, request: &Area) -> Option<String> {
        let base = self.own_base(request);
        let is_hidden = |home: &&PathBuf| match (request, request.path().strip_prefix(home)) {
            _ if base.is_some_and(|base| base.starts_with(home) && base != home.as_path()) => false,
            (Area::Tree(tree), _) if home.starts_with(tree) => true,
            (Area::Names { names, .. }, Ok(below)) if below.as_os_str().is_empty() => names.starts_with('.'),
            (_, Ok(below)) => below.iter().next().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")),
            (_, Err(_)) => false,
        };
        let home = self.machine.homes.iter().find(is_hidden)?.display();
        Some(format!("programs obey the files of a home whose names start with a dot ({home}/.config …)"))
    }

    /// No write tree holds what is registered with this host, what it keeps, or what tools read by `base:`.
    fn files_in_use(&self, request: &Area) -> Option<String> {
        let tree = written_tree(request);
        let is_own = |path: &&Path| request.touches(path) || tree.is_some_and(|tree| path.starts_with(tree));
        let records = self.protected.records.as_deref();
        let records = records.filter(|folder| !matches!(request, Area::Tree(_)) && request.folder() == *folder);
        let own = self.own.iter().copied().filter(is_own).min();
        let path = own.or_else(|| self.protected.touched(request, tree)).or(records)?;
        let what = match path {
            path if Some(path) == self.site.script.as_deref() => "the tool's own script",
            path if path == self.site.manifest => "the tool's own manifest",
            _ => "a policy, a manifest, a script or a file of this host",
        };
        Some(format!("{what} could be written: {}", path.display()))
    }

    /// A tool cannot make tools, packages, or what other programs obey.
    fn run_later(&self, request: &Area) -> Option<String> {
        let below = request.path().strip_prefix(&self.site.folder).unwrap_or(request.path());
        if let Some(name) = below.iter().filter_map(|part| part.to_str()).find(|name| run_later(name)) {
            return Some(format!("what lies in `{name}` other programs run or obey"));
        }
        let pattern = match request {
            Area::Tree(_) => return None,
            Area::File(file) => file.file_name().unwrap_or_default().to_string_lossy(),
            Area::Names { names, .. } => names.into(),
        };
        if definition(&pattern) {
            return Some(format!("`{pattern}` could be written: a tool cannot make tools or policies"));
        }
        let has_script = |folder: &&Path| *folder == self.site.folder || self.protected.scripts.contains(*folder);
        let beside = request.folder().ancestors().find(has_script).filter(|_| spells_loaded(&pattern))?;
        Some(format!(
            "`{pattern}` could be written below {}, where a script lies, and would be run later",
            beside.display()
        ))
    }
}

/// Files that no tool writes: what is registered with this host, and what it keeps. Found without a look at each.
#[derive(Clone, Debug, Default)]
pub struct Protected {
    paths: BTreeSet<PathBuf>,
    /// The folder and the ending of each name on the way to them, if it has one.
    endings: BTreeSet<(PathBuf, String)>,
    pub scripts: BTreeSet<PathBuf>,
    /// Trees that manifests read by `base:`, as far as policy grants them.
    pub shared: Arc<BTreeSet<PathBuf>>,
    /// A folder in which no tool makes files, whatever their names: this host keeps its records there.
    pub records: Option<PathBuf>,
}

impl Protected {
    pub fn add(&mut self, path: PathBuf) {
        let ending = |at: &Path| Some(ending_of(at)).filter(|ending| !ending.is_empty());
        self.endings.extend(path.ancestors().filter_map(|at| Some((at.parent()?.to_path_buf(), ending(at)?))));
        let is_script = !Language::of_file_name(&path.to_string_lossy()).is_empty();
        self.scripts.extend(path.parent().filter(|_| is_script).map(Path::to_path_buf));
        self.paths.insert(path);
    }

    /// A path that the area holds, or that lies above or below it; or one in the tree for which the area counts.
    fn touched(&self, request: &Area, tree: Option<&Path>) -> Option<&Path> {
        let above = request.path().ancestors().find_map(|above| self.paths.get(above)).map(PathBuf::as_path);
        let at = || match request {
            Area::Tree(path) | Area::File(path) => first_below(&self.paths, path),
            Area::Names { folder, names } => {
                let ending = ending(names);
                let some = ending.is_empty() || self.endings.contains(&(folder.clone(), ending));
                let near = self.paths.range(folder.clone()..).take_while(|path| some && path.starts_with(folder));
                near.map(PathBuf::as_path).find(|path| request.touches(path))
            }
        };
        let in_tree = || tree.and_then(|tree| first_below(&self.paths, tree).or(first_below(&self.shared, tree)));
        above.or_else(at).or_else(in_tree)
    }
}

fn first_below<'p>(paths: &'p BTreeSet<PathBuf>, folder: &Path) -> Option<&'p Path> {
    paths.range(folder.to_path_buf()..).next().filter(|path| path.starts_with(folder)).map(PathBuf::as_path)
}

/// The folder that counts as a write tree: of a staged pattern too, unless it matches nothing but data.
fn written_tree(request: &Area) -> Option<&Path> {
    let names = match request {
        Area::Tree(tree) => return Some(tree),
        Area::File(file) => file.file_name()?.to_string_lossy(),
        Area::Names { names, .. } => names.into(),
    };
    may_be_loaded(&names).then(|| request.folder())
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
