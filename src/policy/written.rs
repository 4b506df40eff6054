//! Written: where tools may write, or ever could. Nothing there is loaded or run as a tool, a script, a module, a
//! policy or an interpreter.
//!
//! For: registry (what is loaded), service (scripts that a call names, what a call may see), runtimes (interpreters).
//! In: decisions, and the places of earlier calls. Out: who may write a path; the parts of a call's view not to load.
//! Never: changes anything; forgets a place because it or a folder above it was renamed.

use super::area::Area;
use super::decide::SCRIPT_FOLDER;
use super::verdict::{Decision, Notes};
use super::{Access, Grant, Opening, Shape, writable};
use crate::manifest::{Language, text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Where a tool could write in an earlier call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    pub tree: PathBuf,
    /// `id@version`
    pub tool: String,
    /// Only files of the folder whose names match this glob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// The folder's identity, which stays when it is renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderId>,
}

/// Facts of a folder that stay when it, or one above it, is renamed. Inode numbers are reused, times of birth are not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FolderId {
    pub device: u64,
    pub inode: u64,
    /// Nanoseconds since 1970, where the file system tells.
    pub born: Option<u64>,
}

impl FolderId {
    pub fn of(facts: &Metadata) -> FolderId {
        let born = facts.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let born = born.and_then(|since| u64::try_from(since.as_nanos()).ok());
        FolderId { device: facts.dev(), inode: facts.ino(), born }
    }

    fn is(&self, other: &FolderId) -> bool {
        let both = self.born.is_some() && other.born.is_some();
        (self.device, self.inode) == (other.device, other.inode) && (!both || self.born == other.born)
    }
}

impl Place {
    /// Where a call of this shape can write files that somebody could load: live trees, and staged files unless the
    /// pattern has an ending of data.
    pub fn of(shape: &Shape) -> Vec<Place> {
        let place = |tree: &Path, names| Place { tree: tree.into(), tool: shape.tool.clone(), names, folder: None };
        let grants = shape.grants.iter().filter(|grant| grant.access == Access::Write);
        let places = grants.filter_map(|grant| match &grant.opening {
            Opening::Live { path } => Some(place(path, None)),
            Opening::Staged { folder, names }
                if writable::spelled_code(names).is_some() || writable::unknown(names) =>
            {
                Some(place(folder, Some(names.clone())))
            }
            Opening::Staged { .. } | Opening::Snapshot { .. } => None,
        });
        places.collect()
    }

    fn words(&self) -> String {
        format!("{} could write in an earlier call", self.tool)
    }

    /// Any version of the same tool.
    pub fn is_of(&self, tool: &str) -> bool {
        self.tool.split('@').next() == tool.split('@').next()
    }
}

/// The write grants of many tools.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Trees, with the words for who may write them.
    trees: BTreeMap<PathBuf, String>,
    /// Files of one folder.
    names: BTreeMap<PathBuf, Vec<(Area, String)>>,
    /// Trees below the folder of any script that a builtin tool runs.
    anywhere: BTreeMap<PathBuf, String>,
    /// The folders of earlier calls, by inode.
    folders: BTreeMap<u64, Vec<Place>>,
}

impl Written {
    pub fn of<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Written {
        let mut written = Written::default();
        for decision in decisions {
            for grant in decision.grants.iter().filter(|grant| grant.access == Access::Write) {
                written.add(&grant.opening, &format!("{} may write", decision.tool));
            }
        }
        written
    }

    /// Adds a place that a tool could write in an earlier call, even if it may not now.
    pub fn before(&mut self, place: &Place) {
        match &place.names {
            None => drop(self.trees.entry(place.tree.clone()).or_insert_with(|| place.words())),
            // Scripts have an ending of code, and files with one are published only where the pattern spells it.
            Some(names) if writable::spelled_code(names).is_none() => {}
            Some(names) => {
                let area = Area::Names { folder: place.tree.clone(), names: names.clone() };
                let known = self.names.entry(place.tree.clone()).or_default();
                if known.iter().all(|(known, _)| *known != area) {
                    known.push((area, place.words()));
                }
            }
        }
        if let Some(folder) = &place.folder {
            let known = self.folders.entry(folder.inode).or_default();
            if !known.contains(place) {
                known.push(place.clone());
            }
        }
    }

    /// Adds what was known before.
    pub fn since(mut self, earlier: &Written) -> Written {
        for (tree, tool) in &earlier.trees {
            self.trees.entry(tree.clone()).or_insert_with(|| tool.clone());
        }
        for (folder, areas) in &earlier.names {
            let known = self.names.entry(folder.clone()).or_default();
            let new: Vec<_> = areas.iter().filter(|area| !known.contains(area)).cloned().collect();
            known.extend(new);
        }
        for (inode, places) in &earlier.folders {
            self.folders.entry(*inode).or_default().extend(places.iter().cloned());
        }
        self
    }

    fn add(&mut self, opening: &Opening, who: &str) {
        let area = Area::of(opening);
        match (&area, area.folder().strip_prefix(SCRIPT_FOLDER)) {
            (Area::Tree(_), Ok(below)) if !below.as_os_str().is_empty() => {
                self.anywhere.insert(below.to_path_buf(), who.to_owned());
            }
            (_, Ok(_)) => {}
            (Area::Tree(path), Err(_)) => {
                self.trees.insert(path.clone(), who.to_owned());
            }
            (_, Err(_)) => {
                self.names.entry(area.folder().to_path_buf()).or_default().push((area.clone(), who.to_owned()));
            }
        }
    }

    /// Who may write this path: `ops:x may write`.
    pub fn by(&self, path: &Path) -> Option<&str> {
        let named = path.parent().and_then(|folder| self.names.get(folder)).into_iter().flatten();
        let named = named.filter(|(area, _)| area.holds(path)).map(|(_, tool)| tool);
        let trees = path.ancestors().filter_map(|ancestor| self.trees.get(ancestor));
        let anywhere = self.anywhere.iter().filter(|(tree, _)| path.ancestors().any(|a| a.ends_with(tree)));
        trees.chain(named).chain(anywhere.map(|(_, tool)| tool)).next().map(String::as_str)
    }

    /// The places of earlier calls whose folder this is by identity, under its new name; none if it was not renamed.
    pub fn moved(&self, folder: &Path) -> Vec<Place> {
        if self.folders.is_empty() {
            return Vec::new();
        }
        let Some(facts) = folder.symlink_metadata().ok().filter(Metadata::is_dir) else { return Vec::new() };
        let now = FolderId::of(&facts);
        let known = self.folders.get(&now.inode).into_iter().flatten();
        let same = known.filter(|place| place.folder.as_ref().is_some_and(|folder| folder.is(&now)));
        same.filter(|place| place.tree != folder).map(|place| Place { tree: folder.into(), ..place.clone() }).collect()
    }

    /// Who may or could write this path, by its name or by the identity of a folder above it.
    pub fn over(&self, path: &Path) -> Option<String> {
        if let Some(who) = self.by(path) {
            return Some(who.to_owned());
        }
        let mut here = Written::default();
        path.ancestors().flat_map(|above| self.moved(above)).for_each(|place| here.before(&place));
        here.by(path).map(str::to_owned)
    }
}

/// The parts of a call's view in which tools could write before. A script's modules are found in its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Past {
    /// Trees in the script's folder in which another tool could write: live grants show them empty, grants of files by
    /// name leave out their code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<PathBuf>,
    /// Trees in which the tool itself may or could write: code in one refuses the call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checked: Vec<PathBuf>,
    /// Folder and pattern of files, neither code nor data by their names, that another tool could publish: live grants
    /// show them empty, grants by name leave them out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<(PathBuf, String)>,
    /// Folders of staged files that lie below another tool's script.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<PathBuf>,
}

impl Past {
    pub fn is_empty(&self) -> bool {
        *self == Past::default()
    }
}

impl Shape {
    /// Whether a script, of this tool or of another, lies in this staged folder or in one above it.
    pub fn below_script(&self, folder: &Path) -> bool {
        folder.starts_with(&self.folder) || self.past.beside.iter().any(|beside| beside == folder)
    }

    /// The parts of the view that lie in these places. `Err`: who could write the script itself.
    pub fn past<'a>(&self, places: impl IntoIterator<Item = &'a Place>) -> Result<(Past, Notes), String> {
        let mut notes = Notes::default();
        let touch = |access: Access, tree: &Path| {
            self.grants.iter().any(|grant| grant.access >= access && Area::of(&grant.opening).touches(tree))
        };
        let writes_all = |tree: &Path| {
            let live = |grant: &Grant| matches!(&grant.opening, Opening::Live { path } if tree.starts_with(path));
            self.grants.iter().any(|grant| grant.access == Access::Write && live(grant))
        };
        let mut past = self.past.clone();
        for place in places {
            let mut here = Written::default();
            here.before(place);
            if let Some(who) = self.script.as_deref().and_then(|script| here.by(script)) {
                return Err(who.to_owned());
            }
            let tree = &place.tree;
            // A WASI module loads no code; trees that this call writes live are inspected for code anyway.
            let loads = self.runtime.language != Language::Wasm && tree.starts_with(&self.folder);
            if !loads || !touch(Access::Read, tree) || writes_all(tree) {
                continue;
            }
            if let Some(names) = place.names.as_ref().filter(|names| writable::spelled_code(names).is_none()) {
                let unknown = (tree.clone(), names.clone());
                // Files that the tool published itself stay in its view.
                if !place.is_of(&self.tool) && !past.unknown.contains(&unknown) {
                    past.unknown.push(unknown);
                }
                continue;
            }
            let shown = text::printable(&tree.strip_prefix(&self.folder).unwrap_or(tree).to_string_lossy());
            let new = self.named_in(tree).filter(|new| !place.is_of(&self.tool) && !past.unknown.contains(new));
            let new: Vec<_> = new.collect();
            if !new.is_empty() {
                let mend = "spell the names of those that are needed";
                let words = place.words();
                notes.narrowed(format!(
                    "narrowed: files of {shown} without an ending of data are left out: {words}; {mend}"
                ));
            }
            past.unknown.extend(new);
            if touch(Access::Write, tree) || place.is_of(&self.tool) {
                if !past.checked.contains(tree) {
                    past.checked.push(tree.clone());
                }
            } else if !past.hidden.contains(tree) {
                past.hidden.push(tree.clone());
                let (what, mend) = match self.opens_tree(tree) {
                    true => ("", "; ask for its files by name (`data/*.csv`) and not for the folder above"),
                    false => ("code in ", ""),
                };
                notes.narrowed(format!("narrowed: {what}{shown} is not in view: {}{mend}", place.words()));
            }
        }
        past.checked.retain(|tree| !past.hidden.contains(tree));
        Ok((past, notes))
    }

    /// All names, hidden ones too, in the folders below a tree of which files are granted by name.
    fn named_in(&self, tree: &Path) -> impl Iterator<Item = (PathBuf, String)> {
        let named = self.grants.iter().filter_map(move |grant| match &grant.opening {
            Opening::Staged { folder, .. } | Opening::Snapshot { folder, .. } => {
                folder.starts_with(tree).then_some(folder)
            }
            Opening::Live { .. } => None,
        });
        named.flat_map(|folder| ["*", ".*"].map(|names| (folder.clone(), names.to_owned())))
    }

    /// Whether a live grant opens this tree, or a part of it.
    pub fn opens_tree(&self, tree: &Path) -> bool {
        let opens = |path: &Path| tree.starts_with(path) || path.starts_with(tree);
        self.grants.iter().any(|grant| matches!(&grant.opening, Opening::Live { path } if opens(path)))
    }
}
