//! What no policy grants, on any machine or on this one. No file is looked at here.

use super::names;
use crate::manifest::{Language, Site};
use crate::policy::base_view::{KERNEL, MADE_ETC, OURS, SCRATCH, SYSTEM_ETC, SYSTEM_FOLDERS};
use crate::policy::{Access, Area, Machine, Policies, Program, Runtime};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Programs, libraries and settings of the machine, which every other program runs or obeys.
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/etc", "/boot"];
/// The fix of every write that is never granted.
const RESULTS_ONLY: &str = "name a folder that holds nothing but results (`out/*`)";

/// What no tool writes, as seen by one tool.
pub struct HardDenials<'a> {
    site: &'a Site,
    /// Own script and manifest, and the manifests that name the same script.
    own: Vec<&'a Path>,
    policies: &'a Policies,
    /// Files and folders of interpreters.
    runtimes: BTreeSet<PathBuf>,
    machine: &'a Machine,
}

impl<'a> HardDenials<'a> {
    /// `namers`: the manifests that name the tool's script beside its own.
    pub fn of(
        site: &'a Site,
        namers: impl Iterator<Item = &'a Path>,
        policies: &'a Policies,
        machine: &'a Machine,
    ) -> Self {
        let own = namers.chain([site.manifest.as_path()]).chain(site.script.as_deref());
        let named = machine.named_runtimes.values().flatten();
        HardDenials {
            site,
            own: own.filter(|path| !path.as_os_str().is_empty()).collect(),
            policies,
            runtimes: machine.runtimes.values().chain(named).flat_map(files_of).collect(),
            machine,
        }
    }

    /// Why no policy can grant this; `None` if one can.
    pub fn reason(&self, access: Access, ask: &Area) -> Option<String> {
        if matches!(ask, Area::Tree(path) if path.parent().is_none()) {
            return Some("the whole file system is never granted; name the folders that are needed".into());
        }
        if matches!(ask, Area::Names { folder, .. } if folder.parent().is_none()) {
            return Some("a pattern directly in / would need all of /, which is never granted; name each file".into());
        }
        if let Some(kernel) = KERNEL.iter().find(|kernel| ask.path().starts_with(kernel)) {
            return Some(format!("nothing below {kernel} is ever granted: a tool has its own and need not ask"));
        }
        match access {
            Access::Read => made_up(ask),
            Access::Write => system(ask)
                .or_else(|| self.run_on_the_host(ask))
                .or_else(|| self.settings_of_homes(ask))
                .or_else(|| self.files_in_use(ask))
                .or_else(|| self.interpreters(ask))
                .or_else(|| self.run_later(ask)),
        }
    }

    /// The script base folder, where the ask lies in it.
    fn own_base(&self, ask: &Area) -> Option<&Path> {
        let base = self.site.base.as_path();
        (!base.as_os_str().is_empty() && ask.folder().starts_with(base)).then_some(base)
    }

    fn run_on_the_host(&self, ask: &Area) -> Option<String> {
        // A folder of PATH above the script base does not count: a file in the base is no program of that folder.
        let above = self.own_base(ask).and_then(Path::parent);
        let far = |place: &Path| above.is_some_and(|above| above.starts_with(place));
        let (place, words) = self.machine.relied_on.iter().find(|(place, _)| ask.touches(place) && !far(place))?;
        Some(format!("{} could be written: {words}; name a folder that holds nothing but results", place.display()))
    }

    fn settings_of_homes(&self, ask: &Area) -> Option<String> {
        // A script base below a home has denials of its own; one that is or holds a home is not exempt.
        let own = self.own_base(ask);
        let other = |home: &&PathBuf| !own.is_some_and(|base| base.starts_with(home) && base != home.as_path());
        self.machine.homes.iter().filter(other).find_map(|home| settings_of_a_home(ask, home))
    }

    /// No write tree holds what is registered with this host, or what it keeps.
    fn files_in_use(&self, ask: &Area) -> Option<String> {
        let tree = written_tree(ask);
        let own = || self.own.iter().copied();
        let touched = own().filter(|path| ask.touches(path)).chain(self.policies.protected.touched(ask)).min();
        let below = || {
            let tree = tree?;
            own().filter(|path| path.starts_with(tree)).chain(first_below(&self.policies.protected.paths, tree)).min()
        };
        if let Some(path) = touched.or_else(below) {
            let what = match path {
                p if Some(p) == self.site.script.as_deref() => "the tool's own script",
                p if p == self.site.manifest => "the tool's own manifest",
                _ => "a policy, a manifest, a script or a file of this host",
            };
            let path = path.display();
            return Some(match touched {
                Some(_) => format!("{what} could be written: {path}; {RESULTS_ONLY}"),
                None => format!(
                    "{} could match what an interpreter loads, so it counts as its whole folder, where {what} lies \
                     ({path}); give it a fixed ending of data (`*.csv`), or {RESULTS_ONLY}",
                    ask.text()
                ),
            });
        }
        if let Some(shared) = tree.and_then(|tree| first_below(&self.policies.shared, tree)) {
            let shared = shared.display();
            return Some(format!("code that tools read by `base:` could be written: {shared}; {RESULTS_ONLY}"));
        }
        let records = self.policies.records.as_deref();
        let folder = records.filter(|folder| !matches!(ask, Area::Tree(_)) && ask.folder() == *folder)?;
        let shown = folder.display();
        Some(format!("the audit log of this host and its closed files lie in {shown}; {RESULTS_ONLY}"))
    }

    fn interpreters(&self, ask: &Area) -> Option<String> {
        let own = |root: &Path| self.own_base(ask).is_some_and(|base| base.starts_with(root));
        if let Some(root) = self.runtimes.iter().find(|root| ask.touches(root) && !own(root)) {
            return Some(format!("files of an interpreter could be written: {}; {RESULTS_ONLY}", root.display()));
        }
        let staged = !matches!(ask, Area::Tree(_));
        let root = self.runtimes.iter().find(|root| staged && root.starts_with(ask.folder()))?;
        Some(format!(
            "the private copy of the folder would cover {}, which an interpreter needs; {RESULTS_ONLY}",
            root.display()
        ))
    }

    /// A tool cannot make tools, packages, or what other programs obey.
    fn run_later(&self, ask: &Area) -> Option<String> {
        let below = ask.path().strip_prefix(&self.site.folder).unwrap_or(ask.path());
        let mut parts = below.components().filter_map(|c| c.as_os_str().to_str());
        if let Some(name) = parts.find(|name| names::packages(name) || names::obeyed(name)) {
            let when = if names::packages(name) { "is run later" } else { "other programs run or obey" };
            return Some(format!("what lies in `{name}` {when}; {RESULTS_ONLY}"));
        }
        let pattern = match ask {
            Area::Tree(_) => return None,
            Area::File(file) => file.file_name().unwrap_or_default().to_string_lossy(),
            Area::Names { names, .. } => names.into(),
        };
        if let Some(ending) = names::spelled_definition(&pattern) {
            return Some(format!("`{ending}` could be written: a tool cannot make tools or policies; {RESULTS_ONLY}"));
        }
        let scripts = |folder: &&Path| *folder == self.site.folder || self.policies.scripts.contains(*folder);
        let beside = ask.folder().ancestors().find(scripts).filter(|_| names::spells_loaded(&pattern))?;
        let beside = beside.display();
        Some(format!("`{pattern}` could be written below {beside}, where a script lies, and would be run later"))
    }
}

/// Files that no tool writes, found without a look at each.
#[derive(Clone, Debug, Default)]
pub struct Protected {
    paths: BTreeSet<PathBuf>,
    /// The folder and the ending of each name on the way to them, if it has one.
    endings: BTreeSet<(PathBuf, String)>,
}

impl Protected {
    pub fn add(&mut self, path: PathBuf) {
        let ending = |at: &Path| Some(names::ending_of(at)).filter(|ending| !ending.is_empty());
        self.endings.extend(path.ancestors().filter_map(|at| Some((at.parent()?.to_path_buf(), ending(at)?))));
        self.paths.insert(path);
    }

    /// A path that the area holds, or that lies above or below it.
    fn touched(&self, ask: &Area) -> Option<&Path> {
        let above = ask.path().ancestors().find_map(|above| self.paths.get(above)).map(PathBuf::as_path);
        above.or_else(|| match ask {
            Area::Tree(path) | Area::File(path) => first_below(&self.paths, path),
            Area::Names { folder, names } => {
                let ending = names::ending(names);
                let some = ending.is_empty() || self.endings.contains(&(folder.clone(), ending));
                let near = self.paths.range(folder.clone()..).take_while(|path| some && path.starts_with(folder));
                near.map(PathBuf::as_path).find(|path| ask.touches(path))
            }
        })
    }
}

/// The first path at or below a folder.
fn first_below<'p>(paths: &'p BTreeSet<PathBuf>, folder: &Path) -> Option<&'p Path> {
    paths.range(folder.to_path_buf()..).next().filter(|path| path.starts_with(folder)).map(PathBuf::as_path)
}

/// The folder that counts as a write tree: of a staged pattern too, unless it matches nothing but data.
fn written_tree(ask: &Area) -> Option<&Path> {
    let names = match ask {
        Area::Tree(tree) => return Some(tree),
        Area::File(file) => file.file_name()?.to_string_lossy(),
        Area::Names { names, .. } => names.into(),
    };
    names::may_be_loaded(&names).then(|| ask.folder())
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

/// The view makes its own of these for each call, so the host's could not be shown in their place.
fn made_up(ask: &Area) -> Option<String> {
    let path = MADE_ETC.iter().chain([&OURS]).find(|made| ask.touches(Path::new(made)))?;
    Some(format!("every call has its own {path} and need not ask; name the files that are needed beside it"))
}

fn system(ask: &Area) -> Option<String> {
    if !matches!(ask, Area::Tree(_)) && ask.folder().parent().is_none() {
        let path = ask.text();
        return Some(match SCRATCH.contains(&path.as_str()) {
            true => format!("{path} inside a call is its own scratch: it is always yours; take it away here"),
            false => format!(
                "nothing is written directly below /; name a folder that holds nothing but results (`{path}` is one \
                 file; as a folder it is written `{path}/**`)"
            ),
        });
    }
    let all = SYSTEM.iter().chain(&SYSTEM_FOLDERS).chain(&SYSTEM_ETC);
    let folder = all.into_iter().find(|folder| ask.touches(Path::new(folder)))?;
    Some(format!("{folder} holds programs or settings of the machine, which no tool writes; name a folder elsewhere"))
}

/// `.bashrc`, `.config`, `.ssh` and their like: the user's programs, and launchers of interpreters, obey them.
fn settings_of_a_home(ask: &Area, home: &Path) -> Option<String> {
    let hidden = match (ask, ask.path().strip_prefix(home)) {
        (Area::Tree(tree), _) if home.starts_with(tree) => true,
        (Area::Names { names, .. }, Ok(below)) if below.as_os_str().is_empty() => names.starts_with('.'),
        (_, Ok(below)) => below.components().next().is_some_and(|c| c.as_os_str().as_encoded_bytes().starts_with(b".")),
        (_, Err(_)) => false,
    };
    let home = home.display();
    hidden.then(|| {
        format!(
            "programs obey the files of a home whose names start with a dot ({home}/.config …); name a folder beside \
             them"
        )
    })
}
