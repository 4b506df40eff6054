//! What a script requires of a package index, as the files beside it say, and the store of what was
//! built. docs/reference/PACKAGES.md has the table of files and which wins.
//!
//! A lock of a format that is read here becomes the list of approved packages; everything else is
//! only input to `deps lock`. No address and no path in such a file counts.
//!
//! Packages come only from the indexes of the operator, and only as the list says, with a hash for
//! each unless a policy relaxes that. The host decides markers; an installer is given none. A line
//! that names a source or runs something is refused by name, and so is an address, a repository, a
//! folder or a source archive anywhere in what is resolved. Denied packages and those too young are
//! refused before they are used, copies inside other packages included as far as their version is
//! known.
//!
//! Resolving reads metadata of the index alone and runs nothing. Packages are fetched with only the
//! index in reach and without running any of their code, compared with their hashes, and installed
//! without a network, both behind the layers of a call. The result is read as hostile: every
//! distribution in it must be in the list, and the tree is compared with what it was before each
//! use. An installer that ran code of what it fetched would reach the hosts of the index, and could
//! write only what is then examined; the credential of an index is in the relay alone.
//!
//! Code of packages is code of the tool: it has the tool's grants from its first line (`.pth` files
//! run before the script). A build (`builds = true`) has none of them.

mod files;
mod index;
pub mod installed;
mod keys;
mod node;
mod python;
pub mod store;
pub mod tree;

pub use crate::policy::packages::{PackageRequirements, Required, SourceFile};
pub use files::ScriptLocation;
pub use index::{Credential, DEFAULT, Index};

use crate::base::files::Stamps;
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use files::ScriptFolder;
use std::path::Path;

/// Files that are longer, all together, take some milliseconds to read.
const LONG: u64 = 128 * 1024;

/// What the script's files require; `None`: nothing.
pub fn find(location: &ScriptLocation<'_>) -> Result<Option<PackageRequirements>, FileProblem> {
    for folder in folders(location.script, location.own) {
        let found = find_in(&ScriptFolder::open(location, folder)?, location)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The folders whose files count, the nearest that holds any: the script's, and those above it in
/// the tool's own.
fn folders<'a>(script: &'a Path, own: &'a Path) -> impl Iterator<Item = &'a Path> {
    let above = script.ancestors().skip(1);
    above.take_while(move |folder| folder.starts_with(own))
}

fn find_in(
    folder: &ScriptFolder<'_>,
    location: &ScriptLocation<'_>,
) -> Result<Option<PackageRequirements>, FileProblem> {
    let node = || {
        if location.alone {
            Ok(None)
        } else {
            node::find(folder, location)
        }
    };
    let wanted = match Ecosystem::for_language(location.language) {
        Some(Ecosystem::Python) => python::find(folder, location)?,
        Some(Ecosystem::Node) => node()?,
        // A module has no packages; files beside it that name some are reported.
        None => python::find(folder, location)?.map_or_else(node, |wanted| Ok(Some(wanted)))?,
    };
    Ok(wanted.filter(|wanted| !wanted.requires.is_empty()))
}

/// Packages that a person names, to be locked in a file of this name.
pub fn from_command_line(
    ecosystem: Ecosystem,
    words: &[String],
    lock_file: String,
) -> Result<PackageRequirements, String> {
    match ecosystem {
        Ecosystem::Python => python::from_command_line(words, lock_file),
        Ecosystem::Node => node::from_command_line(words, lock_file),
    }
}

/// Reads a lock that lies beside no script: one of PEP 751, or of npm. `python`: as in
/// `ScriptLocation`.
pub fn read_lock(
    path: &Path,
    text: &str,
    kind: Ecosystem,
    python: &str,
) -> Result<PackageRequirements, FileProblem> {
    let file = files::TextFile::new(path.to_owned(), text.as_bytes());
    if text.len() as u64 > files::MAX_FILE_BYTES {
        return Err(file.problem(
            0,
            format!("it is larger than {} bytes", files::MAX_FILE_BYTES),
        ));
    }
    match kind {
        Ecosystem::Python => python::read_lock(file, python),
        Ecosystem::Node => node::read_lock(&file),
    }
}

/// The stamps of the files beside a script, to be taken before the files are read.
pub fn stamps(script: &Path, own: &Path) -> Stamps {
    let mut stamps = Stamps::begin();
    let name = script.file_name().unwrap_or_default().to_string_lossy();
    let locks = [format!("{name}.lock"), python::own_lock(&name)];
    let names = python::NAMES
        .iter()
        .chain(&node::NAMES)
        .copied()
        .chain(locks.iter().map(String::as_str));
    let present = names
        .flat_map(|name| folders(script, own).map(move |folder| folder.join(name)))
        .filter(|path| path.symlink_metadata().is_ok());
    // A file that comes or goes is a change of its folder.
    folders(script, own)
        .chain([script])
        .map(Path::to_owned)
        .chain(present)
        .for_each(|path| stamps.add(path));
    stamps
}

/// Whether reading these files takes long.
pub fn are_long(stamps: &Stamps) -> bool {
    stamps.bytes() > LONG
}

#[cfg(test)]
mod tests;
