//! The rule that a tool cannot make tools: what a tool may write, or once could, is never loaded by
//! this host, and no write tree holds what this host or another tool's script relies on.

use crate::base::files;
use crate::base::place::{Mounts, Place, Placed};
use crate::policy::grammar::files::SCRIPT_FOLDER;
use crate::policy::grammar::obeyed::publishes;
use crate::policy::grammar::{Access, Area, Grant, Opening};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where one tool may write, or could in an earlier call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WritablePath {
    pub tree: PathBuf,
    pub tool: String,
    /// Only files directly in the folder whose names match: a staged pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    #[serde(skip)]
    pub granted: bool,
}

/// Most places where one tool may write. Beyond that the nearest folder above them counts in their
/// stead, so that what is kept of a tool, and compared with every file, is bounded.
pub const MAX_PLACES: usize = 64;

/// The nearest folder above all write grants, where there are more than `MAX_PLACES`.
pub fn common_folder(grants: &[Grant]) -> Option<PathBuf> {
    let mut folders = grants
        .iter()
        .filter(|grant| grant.access == Access::Write)
        .map(|grant| grant.area.folder());
    let first = folders.clone().nth(MAX_PLACES).and(folders.next())?;
    first
        .ancestors()
        .find(|above: &&Path| folders.clone().all(|folder| folder.starts_with(above)))
        .map(Path::to_path_buf)
}

impl WritablePath {
    /// Where a tool can write by these grants.
    pub fn of_grants(grants: &[Grant], tool: &str) -> Vec<WritablePath> {
        let place = |tree: &Path, names| WritablePath {
            tree: tree.to_path_buf(),
            tool: tool.to_owned(),
            names,
            granted: true,
        };
        if let Some(folder) = common_folder(grants) {
            return vec![place(&folder, None)];
        }
        let writes = grants.iter().filter(|grant| grant.access == Access::Write);
        writes
            .map(|grant| match grant.opening() {
                Opening::Staged { folder, names } => place(&folder, Some(names)),
                _ => place(grant.area.folder(), None),
            })
            .collect()
    }

    /// The files that can be written.
    pub fn area(&self) -> Area {
        match &self.names {
            None => Area::Tree(self.tree.clone()),
            Some(names) => Area::Names {
                folder: self.tree.clone(),
                names: names.clone(),
            },
        }
    }

    /// Whether a path is one of these, by its text.
    pub fn takes(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        match &self.names {
            None => path.starts_with(&self.tree),
            Some(names) => {
                path.parent() == Some(&self.tree) && name.is_some_and(|it| publishes(names, it))
            }
        }
    }

    /// Whether a file is one of these. `tree`: the place of this tree.
    fn holds(&self, tree: &Place, file: &Place) -> bool {
        self.names.as_ref().map_or_else(
            || file.starts_with(&**tree),
            |names: &String| {
                let name = file.file_name().and_then(|name| name.to_str());
                file.parent() == Some(tree) && name.is_some_and(|name| publishes(names, name))
            },
        )
    }

    /// Who may or could write there, in words.
    pub fn writer(&self) -> String {
        let when = if self.granted {
            "may write"
        } else {
            "could write in an earlier call"
        };
        format!("{} {when}", self.tool)
    }

    /// Whether this is a path of the tool, in any version of it.
    pub fn is_of(&self, tool: &str) -> bool {
        self.tool.split('@').next() == tool.split('@').next()
    }
}

/// Where many tools may write now, or could in earlier calls. For one area at most two tools are
/// kept.
#[derive(Clone, Debug, Default)]
pub struct WritablePaths {
    /// By their folders.
    paths: BTreeMap<PathBuf, BTreeSet<WritablePath>>,
    /// Trees that a builtin tool may write, relative to the folder of the script that it runs, with
    /// the writer.
    below_scripts: BTreeMap<PathBuf, String>,
    places: Placed<ByPlace>,
}

type ByPlace = BTreeMap<Place, BTreeSet<WritablePath>>;

impl WritablePaths {
    /// Where these tools may write now, each by its grants.
    pub fn of_tools<'a>(tools: impl IntoIterator<Item = (&'a str, &'a [Grant])>) -> WritablePaths {
        let mut all = WritablePaths::default();
        for place in tools
            .into_iter()
            .flat_map(|(tool, grants)| WritablePath::of_grants(grants, tool))
        {
            match place.tree.strip_prefix(SCRIPT_FOLDER) {
                Err(_) => all.add(place),
                Ok(below) if below.as_os_str().is_empty() || place.names.is_some() => {}
                Ok(below) => {
                    _ = all
                        .below_scripts
                        .insert(below.to_path_buf(), place.writer())
                }
            }
        }
        all
    }

    pub fn add(&mut self, place: WritablePath) {
        let near = self.paths.entry(place.tree.clone()).or_default();
        let alike =
            |known: &&WritablePath| known.names == place.names && known.granted >= place.granted;
        let alike: Vec<&WritablePath> = near.iter().filter(alike).collect();
        if alike.len() < 2 && !alike.iter().any(|known| known.is_of(&place.tool)) {
            near.insert(place.clone());
            self.places.update(|mounts, places| {
                places
                    .entry(mounts.place(&place.tree))
                    .or_default()
                    .insert(place);
            });
        }
    }

    fn by_place(&self) -> (Arc<Mounts>, Arc<ByPlace>) {
        self.places.get(|mounts| {
            let mut places = ByPlace::new();
            for place in self.places() {
                places
                    .entry(mounts.place(&place.tree))
                    .or_default()
                    .insert(place.clone());
            }
            places
        })
    }

    /// Adds the places of another set; what may be written below any script's folder stays as it is
    /// here.
    pub fn merge(&mut self, other: &WritablePaths) {
        other.places().for_each(|place| self.add(place.clone()));
    }

    /// Who may write this path, or could before: `ops:x may write`. What a tool may write now comes
    /// first.
    pub fn writer_of_place(&self, path: &Path) -> Option<String> {
        if self.paths.is_empty() {
            return None;
        }
        let (mounts, places) = self.by_place();
        let mut found = Vec::new();
        for way in mounts.way(path) {
            let near = way
                .ancestors()
                .filter_map(|above| places.get_key_value(above));
            let near =
                near.flat_map(|(tree, written)| written.iter().map(move |written| (tree, written)));
            found.extend(
                near.filter(|(tree, written)| written.holds(tree, &way))
                    .map(|(_, written)| written),
            );
        }
        found
            .into_iter()
            .max_by_key(|place| place.granted)
            .map(WritablePath::writer)
    }

    /// As `writer_of_place`, or what a builtin tool may write beside the scripts that it runs.
    pub fn by(&self, path: &Path) -> Option<String> {
        let below_scripts = || {
            self.below_scripts.iter().find(|(tree, _)| {
                Mounts::current()
                    .way(path)
                    .iter()
                    .any(|way| way.ancestors().any(|above| above.ends_with(tree)))
            })
        };
        self.writer_of_place(path)
            .or_else(|| below_scripts().map(|(_, writer)| writer.clone()))
    }

    /// The places above and below a folder, itself included, each with the path by which it is
    /// reached from there. The cost grows with the number of places found.
    pub fn around(&self, folder: &Path) -> Vec<WritablePath> {
        if self.paths.is_empty() {
            return Vec::new();
        }
        let (mounts, places) = self.by_place();
        let own = mounts.place(folder);
        let above = own
            .ancestors()
            .skip(1)
            .filter_map(|above| places.get(above))
            .flatten();
        let above = above.filter(|written| written.names.is_none());
        let above = above.map(|written| WritablePath {
            tree: folder.to_path_buf(),
            ..written.clone()
        });
        let below = places.range::<Path, _>((Included(&*own), Unbounded));
        let below = below
            .take_while(|(tree, _)| tree.starts_with(&*own))
            .flat_map(|(tree, written)| {
                let tree: PathBuf = folder
                    .components()
                    .chain(tree.strip_prefix(&*own).unwrap_or(tree).components())
                    .collect();
                written.iter().map(move |written| WritablePath {
                    tree: tree.clone(),
                    ..written.clone()
                })
            });
        above.chain(below).collect()
    }

    /// As `by`, for the path, each link on it, and the file at its end. Returns also the path that
    /// was found writable.
    pub fn writer_on_path(&self, path: &Path) -> Option<(PathBuf, String)> {
        files::steps(path)
            .into_iter()
            .find_map(|step| self.by(&step).map(|writer| (step, writer)))
    }

    pub fn places(&self) -> impl Iterator<Item = &WritablePath> {
        self.paths.values().flatten()
    }
}
