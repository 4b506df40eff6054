//! What a script may read and not load: files that tools wrote, or could have written, below what
//! it reads.

use super::shape::Shape;
use super::writable::WritablePath;
use crate::manifest::Language;
use crate::policy::grammar::{Area, Grant};
use std::collections::BTreeSet;
use std::path::Path;

/// The areas of these places, and of the tool's own, from which a call loads no code. (A WASI
/// module loads none.)
pub fn written_areas(shape: &Shape, near: &[WritablePath]) -> Vec<Area> {
    let own = WritablePath::of_grants(&shape.grants, &shape.tool);
    let counted = own.iter().chain(near).filter(|place| counts(shape, place));
    let areas: BTreeSet<Area> = counted.map(WritablePath::area).collect();
    areas
        .into_iter()
        .filter(|_| shape.runtime.language != Language::Wasm)
        .collect()
}

/// What only this tool writes is its own affair, except where its modules lie: in its own folder
/// and what it reads by `base:`, but for hidden folders there (`.cache`).
fn counts(shape: &Shape, place: &WritablePath) -> bool {
    let own = shape.script.iter().map(|_| shape.folder.as_path());
    let mut modules = own.chain(shape.grants.iter().filter_map(Grant::base_tree));
    !place.is_of(&shape.tool)
        || modules.any(|folder: &Path| match place.tree.strip_prefix(folder) {
            Ok(below) => !below
                .iter()
                .any(|part| part.as_encoded_bytes().starts_with(b".")),
            Err(_) => folder.starts_with(&place.tree),
        })
}
