//! What a script may read and not load: files that tools wrote, or could have written, below what it reads.

use super::area::{name_matches, names_as_regex, text_as_regex};
use super::confinement::{Grant, Shape};
use super::writable::WritablePath;
use crate::manifest::Language;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A place in the view of a call from which nothing is loaded as code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenPlace {
    pub tree: PathBuf,
    /// Only files directly in the folder whose names match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
}

impl WrittenPlace {
    pub fn holds(&self, path: &Path) -> bool {
        let Some(names) = &self.names else { return path.starts_with(&self.tree) };
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(&self.tree) && name.is_some_and(|name| name_matches(names, name))
    }

    /// A regular expression of the paths that it holds, as both Python and JavaScript read it.
    pub fn as_regex(&self) -> String {
        // A shape holds only paths that are text.
        let tree = text_as_regex(&self.tree.to_string_lossy());
        self.names
            .as_ref()
            .map_or_else(|| format!("{tree}(?:/.*)?"), |names| format!("{tree}/{}", names_as_regex(names)))
    }
}

/// Those of these places that lie in or above what a call reads, and its own. A module has no loader: it has none.
pub fn written_places(shape: &Shape, near: &[WritablePath]) -> Vec<WrittenPlace> {
    let own = WritablePath::of_grants(&shape.grants, &shape.tool);
    let counted = own.iter().chain(near).filter(|place| counts(shape, place));
    let places: BTreeSet<WrittenPlace> =
        counted.map(|place| WrittenPlace { tree: place.tree.clone(), names: place.names.clone() }).collect();
    let mut outer: Vec<WrittenPlace> = Vec::new();
    for place in places {
        let last_tree = outer.iter().rev().find(|above| above.names.is_none());
        if !last_tree.is_some_and(|above| place.tree.starts_with(&above.tree)) {
            outer.push(place);
        }
    }
    outer
}

/// What only this tool writes is its own affair outside of the folders in which its modules lie (its own folder, and
/// what it reads by `base:`), and in a hidden folder there (`.cache`).
fn counts(shape: &Shape, place: &WritablePath) -> bool {
    let is_hidden = |below: &Path| below.iter().any(|part| part.as_encoded_bytes().starts_with(b"."));
    let own = shape.script.iter().map(|_| shape.folder.as_path());
    let mut modules = own.chain(shape.grants.iter().filter_map(Grant::base_tree));
    let is_module_of_own = |folder: &Path| match place.tree.strip_prefix(folder) {
        Ok(below) => !is_hidden(below),
        Err(_) => folder.starts_with(&place.tree),
    };
    let has_loader = shape.runtime.language != Language::Wasm;
    has_loader && (!place.is_of(&shape.tool) || modules.any(is_module_of_own))
}
