//! bun.lock: its places are those of npm in other words, so it becomes the same tree, whoever installs.
//!
//! For: `node`. In: the text. Out: a tree. Never: an address in it; a folder or a repository as a package.

use super::files::{MOST, Text, shown};
use super::package_json;
use super::tree::{self, Entry, Tree};
use crate::base::json::{Dialect, escape_segment};
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use serde_json::Value;

pub(super) fn read(file: &Text) -> Result<Tree, FileProblem> {
    let document = package_json::parse(file, Dialect::Commented)?;
    let version = document.value["lockfileVersion"].as_u64();
    if !matches!(version, Some(0..=2)) {
        return Err(file.problem(0, "a lock of this version is not read: lockfileVersion 1 and 2 are"));
    }
    for field in ["overrides", "patchedDependencies", "catalog", "catalogs", "trustedDependencies"] {
        if document.value.get(field).is_some_and(|value| !package_json::empty(value)) {
            let line = document.place_of_key(&format!("/{field}")).0;
            return Err(file.problem(line, format!("`{field}` is not read: take it out of package.json and lock anew")));
        }
    }
    let places = document.value["packages"].as_object();
    if places.is_some_and(|places| places.len() > MOST) {
        return Err(file.problem(0, format!("more than {MOST} packages")));
    }
    let mut tree = Tree::new();
    for (key, said) in places.into_iter().flatten() {
        let line = || document.place_of_key(&format!("/packages/{}", escape_segment(key))).0;
        let read = entry(key, said).map_err(|why| file.problem(line(), format!("`{}`: {why}", shown(key))))?;
        tree.insert(read.0, read.1);
    }
    Ok(tree)
}

/// `a/b`: b below a; a name may have a scope before it.
fn place(key: &str) -> Option<String> {
    let (mut place, mut parts) = (String::new(), key.split('/'));
    while let Some(part) = parts.next() {
        let name = if part.starts_with('@') { format!("{part}/{}", parts.next()?) } else { part.to_owned() };
        let between = if place.is_empty() { "" } else { "/" };
        place.push_str(&format!("{between}node_modules/{name}"));
    }
    tree::names(&place).is_some().then_some(place)
}

/// `["name@version", "index or nothing", { about it }, "hash"]`.
fn entry(key: &str, said: &Value) -> Result<(String, Entry), String> {
    let place = place(key).ok_or("this is no place of a package")?;
    let resolution = said[0].as_str().unwrap_or_default();
    let (name, version) =
        tree::split(resolution).ok_or_else(|| format!("`{}` is no package with a version", shown(resolution)))?;
    let name =
        versions::name(Ecosystem::Node, name).ok_or_else(|| format!("`{}` is no name of a package", shown(name)))?;
    let Some(version) = versions::version(Ecosystem::Node, version) else {
        return Err(package_json::no_range(version));
    };
    let mut entry = tree::entry(&said[2], &name)?;
    (entry.version, entry.in_bundle) = (version, said[2]["bundled"] == true);
    entry.hashes = match said[3].as_str().filter(|text| !text.is_empty()) {
        Some(text) => tree::integrity(text)?,
        None => return Err("it has no hash: lock again with an index that tells it".to_owned()),
    };
    // Inside of another's archive, the hash is that archive's.
    if entry.in_bundle {
        entry.hashes.clear();
    }
    Ok((place, entry))
}
