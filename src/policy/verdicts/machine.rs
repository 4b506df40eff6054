//! This machine as decisions see it, what it lacks for a tool, and what of it no tool reads or
//! writes.

use super::shape::{Program, Runtime, Variable};
use crate::base::place::{Mounts, Place, Placed};
use crate::manifest::Language;
use crate::policy::grammar::{Ecosystem, PlaceIndex};
use crate::sandbox::base_view::{KERNEL, SYSTEM_FOLDERS};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Plain facts of this machine, found by `runtimes` and `sandbox::probe`.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub runtimes: BTreeMap<Language, Runtime>,
    /// The interpreters that policies name (`Policies::named_runtimes`), by their path, or why one
    /// cannot be used.
    pub named_runtimes: BTreeMap<PathBuf, Result<Runtime, String>>,
    /// Paths that the search for interpreters relies on, each with the reason in words: no tool
    /// writes there.
    pub relied_on: BTreeMap<PathBuf, String>,
    /// The homes of the user that runs this host, as named and with links resolved; if that is
    /// root, of all users.
    pub homes: BTreeSet<PathBuf>,
    /// The variables that this host offers to tools (`env:NAME`) and has set, by name.
    pub environment: BTreeMap<String, Variable>,
    pub declared: BTreeSet<String>,
    /// The indexes that the host's configuration names, and where each leads, in words.
    pub indexes: BTreeMap<(Ecosystem, String), String>,
    /// The broker of each service, in words. The keys are ids of services, `namespace.*` and `*`.
    pub brokers: BTreeMap<String, String>,
    /// True where memory, CPU and processes are counted by a cgroup.
    pub cgroup: bool,
    /// Made of the paths above.
    pub places: Placed<MachinePlaces>,
}

/// Programs, libraries and settings of the machine, besides `SYSTEM_FOLDERS`.
const SYSTEM: [&str; 3] = ["/usr", "/etc", "/boot"];

/// A path that this host, an interpreter or the machine relies on.
#[derive(Clone, Debug)]
pub struct ReliedOn {
    pub path: PathBuf,
    pub is_runtime: bool,
    pub words: String,
}

/// What of a machine no tool reads or writes.
#[derive(Clone, Debug)]
pub struct MachinePlaces {
    pub root: Place,
    pub kernel: Vec<(&'static str, Place)>,
    pub homes: Vec<(PathBuf, Vec<Place>)>,
    pub relied_on: PlaceIndex<ReliedOn>,
}

impl MachinePlaces {
    pub fn new(machine: &Machine, mounts: &Mounts) -> MachinePlaces {
        let mut relied_on = PlaceIndex::default();
        fn add(
            path: &Path,
            is_runtime: bool,
            words: String,
            relied_on: &mut PlaceIndex<ReliedOn>,
            mounts: &Mounts,
        ) {
            relied_on.insert(
                path,
                ReliedOn {
                    path: path.into(),
                    is_runtime,
                    words,
                },
                mounts,
            );
        }
        for folder in SYSTEM.iter().chain(&SYSTEM_FOLDERS) {
            let words =
                format!("{folder} holds programs or settings of the machine, which no tool writes");
            add(Path::new(folder), false, words, &mut relied_on, mounts);
        }
        for (path, words) in &machine.relied_on {
            add(
                path,
                false,
                format!("{} could be written: {words}", path.display()),
                &mut relied_on,
                mounts,
            );
        }
        for path in runtimes(machine).flat_map(files_of) {
            add(
                &path,
                true,
                format!(
                    "files of an interpreter could be written or covered: {}",
                    path.display()
                ),
                &mut relied_on,
                mounts,
            );
        }
        MachinePlaces {
            root: mounts.place(Path::new("/")),
            kernel: KERNEL
                .iter()
                .map(|kernel| (*kernel, mounts.place(Path::new(kernel))))
                .collect(),
            homes: machine
                .homes
                .iter()
                .map(|home| (home.clone(), mounts.places(home)))
                .collect(),
            relied_on,
        }
    }
}

pub fn runtimes(machine: &Machine) -> impl Iterator<Item = &Runtime> {
    machine
        .runtimes
        .values()
        .chain(machine.named_runtimes.values().flatten())
}

pub fn files_of(runtime: &Runtime) -> Vec<PathBuf> {
    let mut files = runtime.roots.clone();
    if let Program::Path(path) = &runtime.program {
        files.push(path.clone());
        // Python looks for `pyvenv.cfg` beside itself, and one folder above.
        let near = path
            .ancestors()
            .skip(1)
            .take(2)
            .map(|folder| folder.join("pyvenv.cfg"));
        files.extend(near.filter(|_| runtime.language == Language::Python));
    }
    files.retain(|f| f.is_absolute() && f.parent().is_some());
    files
}
