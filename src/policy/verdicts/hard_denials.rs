//! Requests that no policy can grant, on any machine or on this one.
//!
//! A write tree contains none of these, and lies above none of them: a folder with a registered
//! script, manifest or policy (broken ones too), an interpreter, packages, a file of this host, the
//! source of a secret. A staged pattern counts as the names that it matches. Trees and files are
//! compared by place (`base::place`), so a second path of a mounted folder opens nothing. In a live
//! tree repositories and the settings of editors and agents are bound read-only, and no folder
//! above one can be renamed. A repository that the call makes itself (a folder `.git` where none
//! was) is not among them.

use super::machine::{Machine, MachinePlaces, ReliedOn, files_of, runtimes};
use crate::base::place::{Mounts, Place};
use crate::base::{files, text};
use crate::manifest::{Manifest, ToolPaths};
use crate::policy::grammar::obeyed::{
    is_data_of_tool, is_definition, is_obeyed, leads_modules, publishes,
};
use crate::policy::grammar::{Access, Area, PlacedArea, Protected};
use crate::sandbox::base_view::{CALL_FOLDER, CALL_INPUT, CALL_OUTPUT, MADE_ETC, OWN_FOLDER};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the denials of one tool's requests depend on.
pub struct HardDenials<'a> {
    /// The id of the tool.
    pub tool: &'a str,
    pub site: &'a ToolPaths,
    /// The other manifests that name the tool's script.
    pub owners: &'a [(Arc<Manifest>, ToolPaths)],
    pub protected: &'a Protected,
    pub machine: &'a Machine,
}

impl HardDenials<'_> {
    /// Why no policy can grant this; `None` if one can. `is_exact`: the policy names just this area.
    pub fn reason(&self, access: Access, request: &Area, is_exact: bool) -> Option<String> {
        if !matches!(request, Area::File(_)) && request.folder().parent().is_none() {
            return Some(
                "it opens all of /, which is never granted: name the folders or files in it".into(),
            );
        }
        let (mounts, machine) = self
            .machine
            .places
            .get(|mounts| MachinePlaces::new(self.machine, mounts));
        let way = mounts.way(request.path());
        if let Some((kernel, _)) = machine
            .kernel
            .iter()
            .find(|kernel: &&(&str, Place)| way.iter().any(|place| place.starts_with(&*kernel.1)))
        {
            return Some(format!(
                "nothing below {kernel} is ever granted: a tool has its own"
            ));
        }
        if request.folder().starts_with(CALL_FOLDER) {
            return Some(format!(
                "what lies in {CALL_FOLDER} is the call's own: {CALL_INPUT} has the files that it \
                 brought, and what a tool leaves in {CALL_OUTPUT} goes to its caller"
            ));
        }
        if let Some(listed) = self.misspelt(request) {
            let listed = text::path(&listed);
            return Some(format!(
                "its file system takes several spellings for one file: write it as listed, {listed}"
            ));
        }
        if access == Access::Read {
            // Each call's view has files of its own at these paths, so it could not show the
            // host's.
            let made = MADE_ETC
                .iter()
                .chain([&OWN_FOLDER])
                .find(|made| request.touches(Path::new(made)))?;
            return Some(format!(
                "every call has its own {made}: name the files that are needed beside it"
            ));
        }
        if *request == Area::File("/tmp".into()) {
            return Some(
                "a call always has its own /tmp as scratch: remove it from the manifest".into(),
            );
        }
        let placed = PlacedArea::at(request, &way[0]);
        let why = self
            .relied_on(request, &placed, &machine)
            .or_else(|| self.settings_of_homes(request, &placed, &machine, is_exact));
        let why = why
            .or_else(|| self.files_in_use(request, &placed, &mounts))
            .or_else(|| self.obeyed(request))?;
        let fix = "name a folder that holds only results (`out/*`), or files with a fixed ending \
            of data (`*.csv`)";
        Some(format!("{why}; {fix}"))
    }

    /// The path as its folders list it, if it is written in another way. (The tool's own folder was
    /// listed.)
    fn misspelt(&self, request: &Area) -> Option<PathBuf> {
        let (folder, below) = match request.path().strip_prefix(&self.site.folder) {
            Ok(below) => (self.site.folder.as_path(), below),
            Err(_) => (Path::new("/"), request.path()),
        };
        Some(files::as_listed(folder, below)).filter(|listed| listed != request.path())
    }

    /// The script base folder, if the request lies in it.
    fn own_base(&self, request: &Area) -> Option<&Path> {
        let base = self.site.base.as_path();
        (!base.as_os_str().is_empty() && request.folder().starts_with(base)).then_some(base)
    }

    /// What this host, its interpreters or the machine run. For a request in the script base, a
    /// folder above the base does not count.
    fn relied_on(
        &self,
        request: &Area,
        placed: &PlacedArea,
        machine: &MachinePlaces,
    ) -> Option<String> {
        let base = self.own_base(request);
        if let Some(relied) = machine.relied_on.find(placed, |relied: &ReliedOn| {
            let far = if relied.is_runtime {
                base
            } else {
                base.and_then(Path::parent)
            };
            !far.is_some_and(|far| far.starts_with(&relied.path))
        }) {
            return Some(relied.words.clone());
        }
        if placed.0.folder() == &*machine.root {
            return Some(
                "/ holds programs or settings of the machine, which no tool writes".into(),
            );
        }
        // The private copy of a folder would cover an interpreter in it.
        let root = runtimes(self.machine)
            .flat_map(files_of)
            .find(|root: &PathBuf| {
                !matches!(request, Area::Tree(_)) && root.starts_with(request.folder())
            })?;
        Some(format!(
            "files of an interpreter could be written or covered: {}",
            root.display()
        ))
    }

    /// `.bashrc`, `.config`, `.ssh` and the like: programs of the user and interpreter launchers
    /// obey them. The tool's own data is exempt where a policy names it, and so is a script base below
    /// a home (other rules protect it), but not one that is or holds a home.
    fn settings_of_homes(
        &self,
        request: &Area,
        placed: &PlacedArea,
        machine: &MachinePlaces,
        is_exact: bool,
    ) -> Option<String> {
        let base = self.own_base(request);
        let PlacedArea(request) = placed;
        let name = names_of(request);
        let path = name
            .as_ref()
            .map_or(request.path().into(), |name| request.folder().join(name));
        let is_written = |places: &[Place]| {
            let below = path
                .strip_prefix(&*places[0])
                .ok()
                .and_then(|below| below.iter().next());
            name.is_none() && places.iter().any(|home| home.starts_with(&path))
                || below.is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        };
        let home = machine
            .homes
            .iter()
            .find(|(home, places)| {
                let below = request.folder().strip_prefix(&*places[0]);
                is_written(places)
                    && !(is_exact && below.is_ok_and(|it| is_data_of_tool(it, self.tool)))
                    && !base.is_some_and(|base| base.starts_with(home) && base != home)
            })?
            .0
            .display();
        Some(format!(
            "programs obey the files of a home whose names start with a dot ({home}/.config …); \
             a policy entry may name {home}/.local/share/NAME, if NAME is a part of the tool's id and \
             no program has it"
        ))
    }

    /// No write tree may hold files registered with this host or files of the host.
    fn files_in_use(&self, request: &Area, placed: &PlacedArea, mounts: &Mounts) -> Option<String> {
        let owners = self.owners.iter().map(|(_, other)| &other.manifest);
        let mut own = owners.chain([&self.site.manifest]).chain(&self.site.script);
        let (_, protected) = self
            .protected
            .places
            .get(|mounts| self.protected.places(mounts));
        let records = self
            .protected
            .records
            .as_ref()
            .filter(|_| !matches!(request, Area::Tree(_)));
        let path = protected
            .find(placed, |path| self.is_in_reach(request, path))
            .or_else(|| {
                own.find(|path: &&PathBuf| {
                    self.is_in_reach(request, path)
                        && mounts.way(path).iter().any(|place| placed.0.touches(place))
                })
            })
            .or_else(|| records.filter(|folder| &*mounts.place(folder) == placed.0.folder()))?;
        let what = match path {
            path if Some(path) == self.site.script.as_ref() => "the tool's own script",
            path if *path == self.site.manifest => "the tool's own manifest",
            _ => "a policy, a manifest, a script or a file of this host",
        };
        Some(format!("{what} could be written: {}", path.display()))
    }

    /// Whether a write could change this file. A pattern beside the script (`*.json`) matches names
    /// there that are never published.
    fn is_in_reach(&self, request: &Area, path: &Path) -> bool {
        let own = self.site.folder.as_path();
        let is_beside = request.path() == own && path.parent() == Some(own);
        let name = path.file_name().and_then(|name| name.to_str());
        match (names_of(request), name) {
            (Some(names), Some(name)) if is_beside => publishes(&names, name),
            _ => !path.as_os_str().is_empty(),
        }
    }

    /// Names that are obeyed wherever they lie. What else a tool writes is data, because its place
    /// says so.
    fn obeyed(&self, request: &Area) -> Option<String> {
        let below = request
            .path()
            .strip_prefix(&self.site.folder)
            .unwrap_or(request.path());
        if let Some(name) = below
            .iter()
            .filter_map(|part| part.to_str())
            .find(|name: &&str| is_obeyed(name) || leads_modules(name))
        {
            return Some(format!("other programs run or obey `{name}`"));
        }
        let pattern = names_of(request).filter(|pattern| is_definition(pattern))?;
        Some(format!(
            "`{pattern}` could be written: a tool cannot make tools or policies"
        ))
    }
}

/// The names that a request has in its folder; `None`: the whole tree.
fn names_of(request: &Area) -> Option<String> {
    match request {
        Area::Tree(_) => None,
        Area::File(file) => Some(
            file.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
        ),
        Area::Names { names, .. } => Some(names.clone()),
    }
}
