//! What a script requires, read from the files beside it. docs/PACKAGES.md has the table of files and which wins.
//!
//! A lock of a format that is read here becomes the list of approved packages; everything else is only input to
//! `deps lock`. No address and no path in such a file counts, and nothing of it reaches an installer as it stands, but
//! a lock that the installer translates.

mod files;
mod node;
mod pyproject;
mod python;
mod requirement;
mod seen;

pub use seen::FileStamps;

use crate::manifest::Language;
use crate::policy::packages::{Ecosystem, Package, PackageRequirements};
use crate::policy::{FileProblem, versions};
use files::Folder;
use requirement::Environment;
use std::path::Path;

/// Where a script lies.
pub struct Place<'a> {
    pub script: &'a Path,
    pub language: Language,
    /// The version of the interpreter, with which markers are compared.
    pub python: Option<&'a str>,
    /// Only the script itself speaks for it: it lies directly in a base folder, or in a folder of other tools.
    pub alone: bool,
    /// As if the lock that toolhost writes were not there.
    pub anew: bool,
    /// Who may write a file, or could in an earlier call: such a file is refused.
    pub writer: &'a dyn Fn(&Path) -> Option<String>,
}

/// What the script's files require; `None`: nothing.
pub fn find(place: &Place<'_>) -> Result<Option<PackageRequirements>, FileProblem> {
    let folder = Folder::of(place)?;
    let node = || if place.alone { Ok(None) } else { node::find(&folder, place.anew) };
    let wanted = match Ecosystem::of(place.language) {
        Some(Ecosystem::Python) => python::find(&folder, place)?,
        Some(Ecosystem::Node) => node()?,
        // A module has no packages; files beside it that name some are reported.
        None if place.alone => None,
        None => python::find(&folder, place)?.map_or_else(node, |wanted| Ok(Some(wanted)))?,
    };
    Ok(wanted.filter(|wanted| !wanted.requires.is_empty()))
}

/// What was wanted, with a lock that was made of it: a lock of PEP 751, or of npm. `python`: as in `Place`.
pub fn of_lock(wanted: &PackageRequirements, lock: &str, python: &str) -> Result<PackageRequirements, FileProblem> {
    let locked = of_policy(Path::new(&wanted.lock_file), lock, wanted.ecosystem, python)?;
    let PackageRequirements { sources, requires, lock_file, .. } = wanted.clone();
    Ok(PackageRequirements { sources, requires, lock_file, ..locked })
}

/// The lock that a policy names for what has none of its own.
pub fn of_policy(
    path: &Path,
    text: &str,
    ecosystem: Ecosystem,
    python: &str,
) -> Result<PackageRequirements, FileProblem> {
    let file = files::Text::new(&path.to_string_lossy(), text);
    if text.len() as u64 > files::LARGEST {
        return Err(file.problem(0, format!("it is larger than {} bytes", files::LARGEST)));
    }
    match ecosystem {
        Ecosystem::Python => python::of_lock(&file, &Environment::new(Some(python))),
        Ecosystem::Node => node::of_lock(&file),
    }
}

/// Requirements of Python that a person names, for a lock of this name.
pub fn named(lines: &[String], lock_file: String) -> Result<PackageRequirements, String> {
    let environment = Environment::new(None);
    let asks = lines.iter().map(|line| environment.requirement(line, 0)).collect::<Result<Vec<_>, _>>()?;
    Ok(python::named(asks, lock_file))
}

/// Why what a lock holds of a package does not fit a requirement.
fn misfit(ecosystem: Ecosystem, range: &str, held: Option<&Package>) -> Option<String> {
    match held {
        None => Some("does not hold it".to_owned()),
        Some(package) if versions::holds(ecosystem, range, &package.version) == Some(true) => None,
        Some(package) => Some(format!("holds {}", package.version)),
    }
}

#[cfg(test)]
mod tests;
