//! Paths: where tools may write, or ever could. Nothing there is loaded or run as a tool, a script, a module, a policy
//! or an interpreter.
//!
//! For: registry (what is loaded), service (scripts that a call names, what a call may see), runtimes (interpreters),
//! cli (policies). In: decisions, and the places of earlier calls. Out: who may write a path; the parts of a call's
//! view not to load. Never: changes anything; forgets a place because it or a folder above it was renamed.

use super::names;
use crate::base::links;
use crate::base::text;
use crate::manifest::Language;
use crate::policy::{Access, Area, Decision, Grant, Notes, Opening, Past, SCRIPT_FOLDER, Shape};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
            Opening::Staged { folder, names } if names::spelled_code(names).is_some() || names::unknown(names) => {
                Some(place(folder, Some(names.clone())))
            }
            Opening::Staged { .. } | Opening::Snapshot { .. } => None,
        });
        places.collect()
    }

    fn words(&self) -> String {
        format!("{} could write in an earlier call", self.tool)
    }

    /// The files that somebody could load or run. Scripts have an ending of code, and files with one are published only
    /// where the pattern spells it.
    fn code(&self) -> Option<Area> {
        match &self.names {
            None => Some(Area::Tree(self.tree.clone())),
            Some(names) if names::spelled_code(names).is_none() => None,
            Some(names) => Some(Area::Names { folder: self.tree.clone(), names: names.clone() }),
        }
    }

    /// The words for who could write this file, if it lies here.
    pub fn writer_of(&self, file: &Path) -> Option<String> {
        self.code()?.holds(file).then(|| self.words())
    }

    /// Any version of the same tool.
    pub fn is_of(&self, tool: &str) -> bool {
        self.tool.split('@').next() == tool.split('@').next()
    }
}

/// Where many tools may write now, or could in earlier calls.
#[derive(Clone, Debug, Default)]
pub struct WritablePaths {
    /// Trees, with the words for who may write them.
    trees: BTreeMap<PathBuf, String>,
    /// By folder: files in it, with the same words.
    names: BTreeMap<PathBuf, BTreeMap<Area, String>>,
    /// Trees below the folder of any script that a builtin tool runs.
    anywhere: BTreeMap<PathBuf, String>,
    /// The folders of earlier calls, by inode.
    folders: BTreeMap<u64, BTreeSet<Place>>,
}

impl WritablePaths {
    /// Where these tools may write now.
    pub fn of<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> WritablePaths {
        let mut all = WritablePaths::default();
        for decision in decisions {
            for grant in decision.grants.iter().filter(|grant| grant.access == Access::Write) {
                let (area, who) = (Area::of(&grant.opening), format!("{} may write", decision.tool));
                match (&area, area.folder().strip_prefix(SCRIPT_FOLDER)) {
                    (Area::Tree(_), Ok(below)) if !below.as_os_str().is_empty() => {
                        all.anywhere.insert(below.to_path_buf(), who);
                    }
                    (_, Ok(_)) => {}
                    (_, Err(_)) => all.add(area, who),
                }
            }
        }
        all
    }

    fn add(&mut self, area: Area, who: String) {
        match area {
            Area::Tree(tree) => drop(self.trees.entry(tree).or_insert(who)),
            area => drop(self.names.entry(area.folder().to_path_buf()).or_default().entry(area).or_insert(who)),
        }
    }

    /// Adds a place that a tool could write in an earlier call, even if it may not now.
    pub fn before(&mut self, place: &Place) {
        if let Some(area) = place.code() {
            self.add(area, place.words());
        }
        if let Some(folder) = &place.folder {
            self.folders.entry(folder.inode).or_default().insert(place.clone());
        }
    }

    /// Adds what was known before.
    pub fn since(self, earlier: &WritablePaths) -> WritablePaths {
        let mut all = WritablePaths { anywhere: self.anywhere, ..earlier.clone() };
        all.trees.extend(self.trees);
        for (folder, areas) in self.names {
            all.names.entry(folder).or_default().extend(areas);
        }
        for (inode, places) in self.folders {
            all.folders.entry(inode).or_default().extend(places);
        }
        all
    }

    /// Who may write this path, by its name: `ops:x may write`.
    pub fn by(&self, path: &Path) -> Option<&str> {
        let trees = path.ancestors().filter_map(|above| self.trees.get(above));
        let named = path.parent().and_then(|folder| self.names.get(folder)).into_iter().flatten();
        let named = named.filter(|(area, _)| area.holds(path)).map(|(_, who)| who);
        let anywhere = self.anywhere.iter().filter(|(tree, _)| path.ancestors().any(|a| a.ends_with(tree)));
        trees.chain(named).chain(anywhere.map(|(_, who)| who)).next().map(String::as_str)
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
        let moved = || path.ancestors().flat_map(|above| self.moved(above)).find_map(|place| place.writer_of(path));
        self.by(path).map(str::to_owned).or_else(moved)
    }

    /// As `over`, for the path, each link that leads on from it, and the file at its end; with the step that is meant.
    pub fn on_the_way(&self, path: &Path) -> Option<(PathBuf, String)> {
        links::steps(path).into_iter().find_map(|step| self.over(&step).map(|who| (step, who)))
    }

    /// The trees, each with who may write it.
    pub fn trees(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.trees.iter().map(|(tree, who)| (tree.as_path(), who.as_str()))
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
            if let Some(who) = self.script.as_deref().and_then(|script| place.writer_of(script)) {
                return Err(who);
            }
            let tree = &place.tree;
            // A WASI module loads no code; trees that this call writes live are inspected for code anyway.
            let loads = self.runtime.language != Language::Wasm && tree.starts_with(&self.folder);
            if !loads || !touch(Access::Read, tree) || writes_all(tree) {
                continue;
            }
            if let Some(names) = place.names.as_ref().filter(|names| names::spelled_code(names).is_none()) {
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
