//! Where tools may write, or could in earlier calls.

use super::names;
use crate::base::links;
use crate::manifest::Language;
use crate::policy::{Access, Area, Decision, Grant, Opening, SCRIPT_FOLDER, Shape};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where one tool may write, or could in an earlier call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    pub tree: PathBuf,
    /// `id@version`
    pub tool: String,
    /// Only files directly in the folder whose names match: a staged pattern that no name of code can match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// Policy grants it now.
    #[serde(skip)]
    pub granted: bool,
}

impl Place {
    fn of_grant(grant: &Grant, tool: &str) -> Option<Place> {
        let names = match &grant.opening {
            _ if grant.access == Access::Read => return None,
            Opening::Staged { names, .. } if !names::may_be_loaded(names) => Some(names.clone()),
            _ => None,
        };
        let tree = grant.opening.folder().to_path_buf();
        Some(Place { tree, tool: tool.to_owned(), names, granted: true })
    }

    /// Where a call of this shape can write.
    pub fn of(shape: &Shape) -> Vec<Place> {
        Place::of_grants(&shape.grants, &shape.tool)
    }

    /// Where a tool can write by these grants.
    pub fn of_grants(grants: &[Grant], tool: &str) -> Vec<Place> {
        grants.iter().filter_map(|grant| Place::of_grant(grant, tool)).collect()
    }

    fn holds(&self, path: &Path) -> bool {
        match &self.names {
            None => path.starts_with(&self.tree),
            Some(names) => Area::Names { folder: self.tree.clone(), names: names.clone() }.holds(path),
        }
    }

    fn writer(&self) -> String {
        let when = if self.granted { "may write" } else { "could write in an earlier call" };
        format!("{} {when}", self.tool)
    }

    /// Any version of the same tool.
    pub fn is_of(&self, tool: &str) -> bool {
        self.tool.split('@').next() == tool.split('@').next()
    }
}

/// Where many tools may write now, or could in earlier calls. Of one area two tools are known, no more.
#[derive(Clone, Debug, Default)]
pub struct WritablePaths {
    trees: BTreeMap<PathBuf, BTreeSet<Place>>,
    /// Staged patterns, by their folder and the ending of what they match.
    names: BTreeMap<(PathBuf, String), BTreeSet<Place>>,
    /// Trees below the folder of any script that a builtin tool runs.
    anywhere: BTreeMap<PathBuf, String>,
}

impl WritablePaths {
    /// Where these tools may write now.
    pub fn of<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> WritablePaths {
        let mut all = WritablePaths::default();
        for decision in decisions {
            for place in Place::of_grants(&decision.grants, &decision.tool) {
                match place.tree.strip_prefix(SCRIPT_FOLDER) {
                    Err(_) => all.add(place),
                    Ok(below) if !below.as_os_str().is_empty() && place.names.is_none() => {
                        all.anywhere.insert(below.to_path_buf(), place.writer());
                    }
                    Ok(_) => {}
                }
            }
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.trees.is_empty() && self.names.is_empty() && self.anywhere.is_empty()
    }

    pub fn add(&mut self, mut place: Place) {
        place.names = place.names.filter(|names| !names::may_be_loaded(names));
        if self.has(&place) {
            return;
        }
        let near = match &place.names {
            None => self.trees.entry(place.tree.clone()).or_default(),
            Some(names) => self.names.entry((place.tree.clone(), names::ending(names))).or_default(),
        };
        near.insert(place);
    }

    /// Adds the places of another set; what may be written below any script's folder stays as it is here.
    pub fn merge(&mut self, other: &WritablePaths) {
        other.places().for_each(|place| self.add(place.clone()));
    }

    /// Whether a place adds nothing to these.
    fn has(&self, place: &Place) -> bool {
        let near = match &place.names {
            None => self.trees.get(&place.tree),
            Some(names) => self.names.get(&(place.tree.clone(), names::ending(names))),
        };
        let alike = |known: &&Place| known.names == place.names && known.granted >= place.granted;
        let alike: Vec<&Place> = near.into_iter().flatten().filter(alike).collect();
        alike.len() > 1 || alike.iter().any(|known| known.is_of(&place.tool))
    }

    /// The place in which a path lies; what a tool may write now comes before what it could.
    fn place_of(&self, path: &Path) -> Option<&Place> {
        let trees = path.ancestors().filter_map(|above| self.trees.get(above)).flatten();
        let named = || self.names.get(&(path.parent()?.to_path_buf(), names::ending_of(path)));
        let named = named().into_iter().flatten().filter(|place| place.holds(path));
        trees.chain(named).max_by_key(|place| place.granted)
    }

    /// Who may write this path, or could before: `ops:x may write`.
    pub fn by_place(&self, path: &Path) -> Option<String> {
        self.place_of(path).map(Place::writer)
    }

    /// As `by_place`, or what a builtin tool may write beside the scripts that it runs.
    pub fn by(&self, path: &Path) -> Option<String> {
        let anywhere = || self.anywhere.iter().find(|(tree, _)| path.ancestors().any(|above| above.ends_with(tree)));
        self.by_place(path).or_else(|| anywhere().map(|(_, writer)| writer.clone()))
    }

    /// The trees above and below a folder, itself included. The cost grows with the number of places found.
    pub fn around<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = &'a Place> {
        let above = folder.ancestors().skip(1).filter_map(|above| self.trees.get(above));
        let below = self.trees.range(folder.to_path_buf()..).take_while(move |(tree, _)| tree.starts_with(folder));
        above.chain(below.map(|(_, places)| places)).flatten()
    }

    /// These without the trees that do not fit.
    pub fn only(&self, fits: impl Fn(&Path) -> bool) -> WritablePaths {
        let mut some = self.clone();
        some.trees.retain(|tree, _| fits(tree));
        some
    }

    /// As `by`, for the path, each link that leads on from it, and the file at its end; with the step that is meant.
    pub fn on_the_way(&self, path: &Path) -> Option<(PathBuf, String)> {
        links::steps(path).into_iter().find_map(|step| self.by(&step).map(|writer| (step, writer)))
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.trees.values().chain(self.names.values()).flatten()
    }

    /// The trees, each with who may or could write it.
    pub fn trees(&self) -> impl Iterator<Item = (&Path, String)> {
        self.places().map(|place| (place.tree.as_path(), place.writer()))
    }
}

/// A tree in which a script would find the code that some tool wrote: it is looked at before the call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenTree {
    pub tree: PathBuf,
    pub writer: String,
}

impl Shape {
    /// The folders in which the script's modules are found: its own, and those it reads by `base:`.
    pub fn module_folders(&self) -> Vec<&Path> {
        if self.runtime.language == Language::Wasm {
            return Vec::new();
        }
        let own = self.script.iter().map(|_| self.folder.as_path());
        own.chain(self.grants.iter().filter_map(Grant::base_tree)).collect()
    }

    /// The trees to look at before a call, among all places around the folders of modules. A hidden folder that only this
    /// tool ever could write is left out.
    pub fn written_trees(&self, places: &[Place]) -> Vec<WrittenTree> {
        let own = Place::of(self);
        let all = || own.iter().chain(places).filter(|place| place.names.is_none());
        let mut found = BTreeMap::new();
        for root in self.module_folders() {
            for place in all() {
                let tree = if root.starts_with(&place.tree) { root } else { place.tree.as_path() };
                let Ok(below) = tree.strip_prefix(root) else { continue };
                let hidden = below.iter().any(|part| part.as_encoded_bytes().starts_with(b"."));
                let others =
                    || all().any(|other| !other.is_of(&self.tool) && Area::Tree(tree.into()).touches(&other.tree));
                if self.grants.iter().any(|grant| shows_code(grant, tree)) && (!hidden || others()) {
                    found.entry(tree.to_path_buf()).or_insert_with(|| place.writer());
                }
            }
        }
        found.into_iter().map(|(tree, writer)| WrittenTree { tree, writer }).collect()
    }
}

impl Grant {
    /// The tree that is read by `base:`.
    pub fn base_tree(&self) -> Option<&Path> {
        (self.access == Access::Read && self.asked.starts_with("base:")).then(|| self.opening.folder())
    }
}

/// Whether a call sees files of this tree that an interpreter could load.
fn shows_code(grant: &Grant, tree: &Path) -> bool {
    match &grant.opening {
        Opening::Live { path } => path.starts_with(tree) || tree.starts_with(path),
        Opening::Snapshot { folder, names } | Opening::Staged { folder, names } => {
            folder.starts_with(tree) && names::may_be_loaded(names)
        }
    }
}
