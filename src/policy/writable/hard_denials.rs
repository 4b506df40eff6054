//! Hard denials: what no policy grants, on any machine or on this one.
//!
//! For: `judge`. In: an area that is asked for; the files of tools, of this host and of interpreters. Out: the reason,
//! or `None` where a policy may grant it. Never: looks at the file system, or at a policy.

use super::names;
use crate::base::text;
use crate::manifest::{Language, Site};
use crate::policy::base_view::{KERNEL, MADE_ETC, OURS, SCRATCH, SYSTEM_ETC, SYSTEM_FOLDERS};
use crate::policy::{Access, Area, Machine, Policies, Program, Runtime};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Programs, libraries and settings of the machine, which every other program runs or obeys.
const SYSTEM: [&str; 5] = ["/usr", "/bin", "/sbin", "/etc", "/boot"];
/// The mend of every write that is never granted.
const RESULTS_ONLY: &str = "name a folder that holds nothing but results (`out/*`)";

/// What no tool writes, as seen by one tool.
pub struct HardDenials<'a> {
    site: &'a Site,
    /// Own script and manifest, and the manifests that name the same script.
    own: Vec<&'a Path>,
    /// Policies, other tools' files, files of this host.
    protected: &'a BTreeSet<PathBuf>,
    /// The folder of the audit log: no file is made directly in it.
    records: Option<&'a Path>,
    /// Folders of tools' scripts.
    scripts: &'a BTreeSet<PathBuf>,
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
            protected: &policies.protected,
            records: policies.records.as_deref(),
            scripts: &policies.scripts,
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
            return Some(
                "a pattern directly in / would need all of / granted, which it never is; name each file".into(),
            );
        }
        if let Some(kernel) = KERNEL.iter().find(|kernel| ask.path().starts_with(kernel)) {
            return Some(format!(
                "nothing below {kernel} is ever granted: a tool has its own, made for it, and need not ask"
            ));
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

    fn files_in_use(&self, ask: &Area) -> Option<String> {
        let all = self.protected.iter().map(PathBuf::as_path).chain(self.own.iter().copied());
        if let Some(path) = all.into_iter().find(|path| ask.touches(path)) {
            let what = match path {
                p if Some(p) == self.site.script.as_deref() => "the tool's own script",
                p if p == self.site.manifest => "the tool's own manifest",
                _ => "a policy, a manifest, a script or a file of this host",
            };
            return Some(format!("{what} could be written: {}; {RESULTS_ONLY}", path.display()));
        }
        let folder = self.records.filter(|folder| !matches!(ask, Area::Tree(_)) && ask.folder() == *folder)?;
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

    /// A tool cannot make tools, nor code that a script would load.
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
            return Some(format!(
                "files ending in `{ending}` could be written: a tool cannot make tools or policies; {RESULTS_ONLY}"
            ));
        }
        let scripts = |folder: &&Path| *folder == self.site.folder || self.scripts.contains(*folder);
        let beside = ask.folder().ancestors().find(scripts)?;
        if let Some(ending) = names::spelled_code(&pattern) {
            return Some(format!(
                "files ending in `{ending}` could be written below {}, where a script lies, and would be run later",
                beside.display()
            ));
        }
        if let Some(name) = names::requirement(&pattern).filter(|_| ask.folder() == beside) {
            return Some(format!(
                "`{name}` beside the script could be written, and says which packages are installed for it; write into a folder of its own (`out/*`)"
            ));
        }
        let ending = names::possible_code(&pattern).filter(|_| ask.folder() == beside)?;
        Some(format!(
            "a file ending in `{ending}` beside the script could be written, and would be run later; write into a folder of its own (`out/*`)"
        ))
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

/// The view makes its own of these for each call, so the host's could not be shown in their place.
fn made_up(ask: &Area) -> Option<String> {
    let path = MADE_ETC.iter().chain([&OURS]).find(|made| ask.touches(Path::new(made)))?;
    Some(format!(
        "every call has its own {path}, made for it, and need not ask; name the files that are needed beside it"
    ))
}

fn system(ask: &Area) -> Option<String> {
    if !matches!(ask, Area::Tree(_)) && ask.folder().parent().is_none() {
        let folder = match ask {
            Area::File(path) if SCRATCH.iter().any(|scratch| path == Path::new(scratch)) => {
                let own = text::path(path);
                return Some(format!(
                    "{own} inside a call is its own scratch: it is always yours and needs no asking; take it away here"
                ));
            }
            Area::File(path) => format!(" (`{0}` is one file; as a folder it is written `{0}/**`)", text::path(path)),
            _ => String::new(),
        };
        return Some(format!(
            "nothing is written directly below /; name a folder that holds nothing but results{folder}"
        ));
    }
    let all = SYSTEM.iter().chain(&SYSTEM_FOLDERS).chain(&SYSTEM_ETC);
    let folder = all.into_iter().find(|folder| ask.touches(Path::new(folder)))?;
    Some(format!(
        "{folder} holds programs, libraries or settings of the machine, which no tool writes; name a folder elsewhere"
    ))
}

/// `.bashrc`, `.config`, `.ssh` and their like: the user's programs, and launchers of interpreters, obey them.
fn settings_of_a_home(ask: &Area, home: &Path) -> Option<String> {
    let hidden = match (ask, ask.path().strip_prefix(home)) {
        (Area::Tree(tree), _) if home.starts_with(tree) => true,
        (Area::Names { names, .. }, Ok(below)) if below.as_os_str().is_empty() => names.starts_with('.'),
        (_, Ok(below)) => below.components().next().is_some_and(|c| c.as_os_str().as_encoded_bytes().starts_with(b".")),
        (_, Err(_)) => false,
    };
    hidden.then(|| {
        format!(
            "programs obey the files of a home whose names start with a dot ({}/.config and its like), which no tool writes; name a folder beside them",
            home.display()
        )
    })
}
