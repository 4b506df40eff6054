//! Found: what a script requires, read from the files beside it. docs/PACKAGES.md has the table of files and which wins.
//!
//! For: service (each call anew), cli (audit, check, list, deps). In: where a script lies. Out: `Wanted`, or the first
//! problem with its file, place and mend. Never: follows a link, an address or a path of such a file; reads a folder above
//! the script's; takes over a text as it stands: what an installer gets is written here, from parts that were checked.

mod agree;
mod bun_lock;
mod files;
mod markers;
mod node;
mod npm_lock;
mod package_json;
mod pylock;
mod pyproject;
mod python;
mod requirement;
mod requirements;
mod seen;
mod tree;
mod uv_lock;

pub use seen::Seen;

pub use pylock::of_choice as pylock_of;

use crate::manifest::Language;
use crate::policy::FileProblem;
use crate::policy::packages::{Ecosystem, Wanted};
use files::Folder;
use std::path::Path;

/// Where a script lies.
pub struct Place<'a> {
    pub script: &'a Path,
    pub language: Language,
    /// Only the script itself speaks for it: it lies directly in a base folder, or in a folder of other tools.
    pub alone: bool,
    /// As if the lock that toolhost writes were not there.
    pub anew: bool,
    /// Who may write a file, or could in an earlier call: what lies there says nothing.
    pub writer: &'a dyn Fn(&Path) -> Option<String>,
}

/// What the script's files require; `None`: nothing.
pub fn find(place: &Place<'_>) -> Result<Option<Wanted>, FileProblem> {
    let folder = Folder::of(place)?;
    let wanted = match Ecosystem::of(place.language) {
        Some(Ecosystem::Python) => python::find(&folder, place),
        Some(Ecosystem::Node) if place.alone => Ok(None),
        Some(Ecosystem::Node) => node::find(&folder, place.anew),
        // A module has no packages; that files beside it name some is told.
        None if place.alone => Ok(None),
        None => match python::find(&folder, place)? {
            Some(wanted) => Ok(Some(wanted)),
            None => node::find(&folder, place.anew),
        },
    };
    wanted.map(|wanted| wanted.filter(|wanted| !wanted.requires.is_empty()))
}

/// What was wanted, with a lock that an installer made of it: a pylock.toml, or a lock of npm.
pub fn of_lock(wanted: &Wanted, lock: &str) -> Result<Wanted, FileProblem> {
    let locked = match wanted.ecosystem {
        Ecosystem::Python => python::of_lock(&files::Text::new("pylock.toml", lock))?,
        Ecosystem::Node => {
            let asked = wanted.inputs.iter().find(|(name, _)| name == "package.json").map_or("", |(_, text)| text);
            node::of_lock(&files::Text::new("package.json", asked), files::Text::new("package-lock.json", lock))?
        }
    };
    let (sources, requires) = (wanted.sources.clone(), wanted.requires.clone());
    Ok(Wanted { sources, requires, ..locked })
}

#[cfg(test)]
mod tests;
