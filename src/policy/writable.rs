//! The rule that a tool cannot make tools: what a tool may write, or once could, is never loaded by this host, and no
//! write tree holds what this host or another tool's script relies on.

mod hard_denials;

use crate::base::files;
use crate::policy::area::Area;
use crate::policy::confinement::{Access, Grant, Opening, SCRIPT_FOLDER};
use hard_denials::may_match_loadable;
pub(super) use hard_denials::{HardDenials, Protected};
pub use hard_denials::{is_definition, is_obeyed, leads_modules};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where one tool may write, or could in an earlier call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WritablePath {
    pub tree: PathBuf,
    pub tool: String,
    /// Only files directly in the folder whose names match: a staged pattern that no name of code can match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    #[serde(skip)]
    pub granted: bool,
}

impl WritablePath {
    /// Where a tool can write by these grants.
    pub fn of_grants(grants: &[Grant], tool: &str) -> Vec<WritablePath> {
        let place = |grant: &Grant| WritablePath {
            tree: grant.opening.folder().to_path_buf(),
            tool: tool.to_owned(),
            names: match &grant.opening {
                Opening::Staged { names, .. } if !may_match_loadable(names) => Some(names.clone()),
                _ => None,
            },
            granted: true,
        };
        grants.iter().filter(|grant| grant.access == Access::Write).map(place).collect()
    }

    fn holds(&self, path: &Path) -> bool {
        let named = |names: &String| Area::Names { folder: self.tree.clone(), names: names.clone() }.holds(path);
        self.names.as_ref().map_or_else(|| path.starts_with(&self.tree), named)
    }

    /// Who may or could write there, in words.
    pub fn writer(&self) -> String {
        let when = if self.granted { "may write" } else { "could write in an earlier call" };
        format!("{} {when}", self.tool)
    }

    /// Whether this is a path of the tool, in any version of it.
    pub fn is_of(&self, tool: &str) -> bool {
        self.tool.split('@').next() == tool.split('@').next()
    }
}

/// Where many tools may write now, or could in earlier calls. For one area at most two tools are kept.
#[derive(Clone, Debug, Default)]
pub struct WritablePaths {
    /// By their folders.
    places: BTreeMap<PathBuf, BTreeSet<WritablePath>>,
    /// Trees that a builtin tool may write, relative to the folder of the script that it runs, with the writer.
    below_scripts: BTreeMap<PathBuf, String>,
}

impl WritablePaths {
    /// Where these tools may write now, each by its grants.
    pub fn of_tools<'a>(tools: impl IntoIterator<Item = (&'a str, &'a [Grant])>) -> WritablePaths {
        let mut all = WritablePaths::default();
        for place in tools.into_iter().flat_map(|(tool, grants)| WritablePath::of_grants(grants, tool)) {
            match place.tree.strip_prefix(SCRIPT_FOLDER) {
                Err(_) => all.add(place),
                Ok(below) if below.as_os_str().is_empty() || place.names.is_some() => {}
                Ok(below) => _ = all.below_scripts.insert(below.to_path_buf(), place.writer()),
            }
        }
        all
    }

    pub fn add(&mut self, mut place: WritablePath) {
        place.names = place.names.filter(|names| !may_match_loadable(names));
        let near = self.places.entry(place.tree.clone()).or_default();
        let alike = |known: &&WritablePath| known.names == place.names && known.granted >= place.granted;
        let alike: Vec<&WritablePath> = near.iter().filter(alike).collect();
        if alike.len() < 2 && !alike.iter().any(|known| known.is_of(&place.tool)) {
            near.insert(place);
        }
    }

    /// Adds the places of another set; what may be written below any script's folder stays as it is here.
    pub fn merge(&mut self, other: &WritablePaths) {
        other.places().for_each(|place| self.add(place.clone()));
    }

    /// Who may write this path, or could before: `ops:x may write`. What a tool may write now comes first.
    pub fn writer_of_place(&self, path: &Path) -> Option<String> {
        let near = path.ancestors().flat_map(|above| self.places.get(above)).flatten();
        near.filter(|place| place.holds(path)).max_by_key(|place| place.granted).map(WritablePath::writer)
    }

    /// As `writer_of_place`, or what a builtin tool may write beside the scripts that it runs.
    pub fn by(&self, path: &Path) -> Option<String> {
        let below_scripts =
            || self.below_scripts.iter().find(|(tree, _)| path.ancestors().any(|above| above.ends_with(tree)));
        self.writer_of_place(path).or_else(|| below_scripts().map(|(_, writer)| writer.clone()))
    }

    /// The places above and below a folder, itself included. The cost grows with the number of places found.
    pub fn around<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = &'a WritablePath> {
        let above = folder.ancestors().skip(1).flat_map(|above| self.places.get(above));
        let below = self.places.range(folder.to_path_buf()..).take_while(move |(tree, _)| tree.starts_with(folder));
        above.chain(below.map(|(_, places)| places)).flatten()
    }

    /// As `by`, for the path, each link on it, and the file at its end. Returns also the path that was found writable.
    pub fn writer_on_path(&self, path: &Path) -> Option<(PathBuf, String)> {
        files::steps(path).into_iter().find_map(|step| self.by(&step).map(|writer| (step, writer)))
    }

    pub fn places(&self) -> impl Iterator<Item = &WritablePath> {
        self.places.values().flatten()
    }
}
