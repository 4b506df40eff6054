//! What a script requires of a package index, as the files beside it say, and the store of what was built.
//! docs/PACKAGES.md has the table of files and which wins.
//!
//! A lock of a format that is read here becomes the list of approved packages; everything else is only input to
//! `deps lock`. No address and no path in such a file counts.

mod files;
mod index;
pub mod installed;
mod node;
mod python;
pub mod store;
pub mod tree;

pub use crate::policy::packages::{PackageRequirements, Required, Source};
pub use files::Place;
pub use index::{Credential, DEFAULT, Index};

use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use files::Folder;
use python::Environment;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files that are longer, all together, take some milliseconds to read.
const LONG: u64 = 128 * 1024;

/// What the script's files require; `None`: nothing.
pub fn find(place: &Place<'_>) -> Result<Option<PackageRequirements>, FileProblem> {
    let folder = Folder::open(place)?;
    let node = || if place.alone { Ok(None) } else { node::find(&folder, place.anew) };
    let wanted = match Ecosystem::for_language(place.language) {
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
    Ok(python::from_names(asks, lock_file))
}

/// Device, inode, size, and when it was written and changed.
type Fact = (u64, u64, u64, (i64, i64), (i64, i64));

/// What tells whether anything beside a script changed since its files were read.
#[derive(Clone, Debug)]
pub struct FileStamps {
    facts: Vec<(PathBuf, Option<Fact>)>,
    is_settled: bool,
}

impl FileStamps {
    /// Taken before the files are read.
    pub fn read(script: &Path) -> FileStamps {
        let folder = script.parent().unwrap_or(Path::new("/"));
        let name = script.file_name().unwrap_or_default().to_string_lossy();
        let own = [format!("{name}.lock"), python::own_lock(&name)];
        let names = python::NAMES.iter().chain(&node::NAMES).copied().chain(own.iter().map(String::as_str));
        let present = names.map(|name| folder.join(name)).filter(|path| path.symlink_metadata().is_ok());
        // A file that comes or goes is a change of the folder.
        let all = [folder.to_owned(), script.to_owned()].into_iter().chain(present);
        let facts: Vec<_> = all.map(|path| (fact(&path), path)).map(|(fact, path)| (path, fact)).collect();
        // Two writes within one second may leave the same times behind.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now = (i64::try_from(now.as_secs()).unwrap_or(0), i64::from(now.subsec_nanos()));
        let is_old = |(.., (seconds, nanos)): Fact| (seconds + 1, nanos) < now;
        let is_settled = facts.iter().all(|(_, fact)| fact.is_some_and(is_old));
        FileStamps { facts, is_settled }
    }

    /// Of what has no script, and so no files beside one.
    pub fn nothing() -> FileStamps {
        FileStamps { facts: Vec::new(), is_settled: true }
    }

    pub fn is_long(&self) -> bool {
        self.facts.iter().filter_map(|(_, fact)| fact.map(|(_, _, size, ..)| size)).sum::<u64>() > LONG
    }

    pub fn is_unchanged(&self) -> bool {
        self.is_settled && self.facts.iter().all(|(path, previous)| fact(path) == *previous)
    }
}

fn fact(path: &Path) -> Option<Fact> {
    let facts = path.symlink_metadata().ok()?;
    let times = ((facts.mtime(), facts.mtime_nsec()), (facts.ctime(), facts.ctime_nsec()));
    Some((facts.dev(), facts.ino(), facts.len(), times.0, times.1))
}

#[cfg(test)]
mod tests;
