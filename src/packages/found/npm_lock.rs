//! package-lock.json and npm-shrinkwrap.json, of version 2 and 3.
//!
//! For: `node`. In: the text. Out: a tree. Never: an address in it (`resolved`); a folder or a repository as a package.

use super::files::{MOST, Text, shown};
use super::package_json;
use super::tree::{self, Entry, Tree};
use crate::base::json::{Dialect, escape_segment};
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use serde_json::Value;

pub(super) fn read(file: &Text) -> Result<Tree, FileProblem> {
    let document = package_json::parse(file, Dialect::Strict)?;
    let version = document.value["lockfileVersion"].as_u64();
    let Some(places) = document.value["packages"].as_object().filter(|_| matches!(version, Some(2 | 3))) else {
        let which = version.map_or("no version".to_owned(), |version| format!("version {version}"));
        return Err(file.problem(
            0,
            format!("a lock of {which} is not read: `npm install --package-lock-only` of npm 7 or later writes 3"),
        ));
    };
    if places.len() > MOST {
        return Err(file.problem(0, format!("more than {MOST} packages")));
    }
    let mut tree = Tree::new();
    for (place, said) in places.iter().filter(|(place, _)| !place.is_empty()) {
        let line = || document.place_of_key(&format!("/packages/{}", escape_segment(place))).0;
        let entry = entry(place, said).map_err(|why| file.problem(line(), format!("`{}`: {why}", shown(place))))?;
        tree.insert(place.clone(), entry);
    }
    Ok(tree)
}

fn entry(place: &str, said: &Value) -> Result<Entry, String> {
    let names = tree::names(place).ok_or("packages lie below node_modules alone: this is a folder of its own")?;
    if said["link"] == true {
        return Err("it is a link to a folder, and packages come from the policy's index alone".to_owned());
    }
    let elsewhere = |url: &&str| !url.starts_with("https://") && !url.starts_with("http://");
    if let Some(url) = said["resolved"].as_str().filter(elsewhere) {
        return Err(package_json::no_range(url));
    }
    let name = said["name"].as_str().or(names.last().copied()).unwrap_or_default();
    let name =
        versions::name(Ecosystem::Node, name).ok_or_else(|| format!("`{}` is no name of a package", shown(name)))?;
    let mut entry = tree::entry(said, &name)?;
    let version = said["version"].as_str().unwrap_or_default();
    entry.version = versions::version(Ecosystem::Node, version)
        .ok_or_else(|| format!("`{}` is no version of a package of an index", shown(version)))?;
    entry.hashes = match said["integrity"].as_str() {
        Some(text) => tree::integrity(text)?,
        None if entry.in_bundle && names.len() > 1 => Vec::new(),
        None => return Err("it has no `integrity`: lock again with an index that tells it".to_owned()),
    };
    Ok(entry)
}
