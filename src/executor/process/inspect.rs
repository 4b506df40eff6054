//! Checks a granted folder before a call: for entries by which a write would reach outside, and for
//! files that other programs run. No link is followed.

use crate::base::files::without_links;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::policy::{Access, is_obeyed};
use crate::quantity::{MAX_SNAPSHOT_FILES, MAX_WRITABLE_ENTRIES};
use crate::sandbox::{Totals, below, errno as errno_of, is_closed};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, fstat, lstat};
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use walkdir::DirEntry;

pub fn refuse(message: &str, person: String) -> Fault {
    Fault::new(Kind::SecurityError, message).person(printable(&person))
}

pub fn look(path: &Path) -> Result<FileStat, Errno> {
    fstat(&without_links(path, OFlag::O_PATH)?)
}

pub fn explain(path: &Path, errno: Errno) -> Fault {
    let path = path.display();
    match errno {
        Errno::ELOOP => refuse(
            "a granted path leads through a symbolic link",
            format!(
                "{path}: a component is a symbolic link; name the real path in manifest and policy"
            ),
        ),
        // Not a refusal: the path went away, or never existed.
        Errno::ENOENT => Fault::new(Kind::DependencyError, "a granted path does not exist")
            .person(printable(&format!("{path}: does not exist; create it"))),
        Errno::EMFILE | Errno::ENFILE => {
            crate::sandbox::limits::too_few_files(&path.to_string(), errno)
        }
        _ => refuse(
            "a granted path cannot be opened",
            format!("{path}: {}", errno.desc()),
        ),
    }
}

/// Longest time that checking one tree may take.
const MAX_INSPECTION_TIME: Duration = Duration::from_secs(5);

/// Calls `look` for every entry below a folder, in bounded number and time. Entries that vanish
/// meanwhile are skipped. `message`: the refusal if not all could be checked; `closed`: folders
/// that we may not read are skipped.
fn walk(
    folder: &OwnedFd,
    path: &Path,
    message: &str,
    closed: bool,
    mut look: impl FnMut(PathBuf, DirEntry, Metadata) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let begun = Instant::now();
    for (seen, found) in below(folder, path).enumerate() {
        if seen > MAX_WRITABLE_ENTRIES || begun.elapsed() > MAX_INSPECTION_TIME {
            let why = format!(
                "more than {MAX_WRITABLE_ENTRIES} entries, or {} s to check them",
                MAX_INSPECTION_TIME.as_secs()
            );
            let person = format!("{}: {why}; grant a smaller folder", path.display());
            return Err(refuse(message, person));
        }
        let error = match found.and_then(|(place, entry)| Ok((entry.metadata()?, place, entry))) {
            Ok((meta, place, entry)) => {
                look(place, entry, meta)?;
                continue;
            }
            Err(error) => error,
        };
        match error.io_error().map(errno_of) {
            Some(Errno::ENOENT) => {}
            Some(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => {
                return Err(explain(path, errno));
            }
            _ if closed => {}
            Some(Errno::EACCES) if is_closed(error.path()) => {}
            // An unreadable folder may hold a link, and the tool as its owner could make the folder
            // readable.
            errno => {
                let why = errno.map_or("cannot be read", Errno::desc);
                let place = error.path().and_then(|at| {
                    at.strip_prefix(format!("/proc/self/fd/{}", folder.as_raw_fd()))
                        .ok()
                });
                let place = path.join(place.unwrap_or(Path::new("")));
                let person = format!(
                    "{}: {why}; make it readable or move it out of the grant",
                    place.display()
                );
                return Err(refuse(message, person));
            }
        }
    }
    Ok(())
}

/// Pipes, sockets and devices below a folder. Below /tmp and staged folders Landlock does not stop
/// writes into a pipe of a read grant (see `scratch`), so they are covered there.
pub fn specials(folder: &OwnedFd, path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut found = Vec::new();
    let message = "a granted folder holds too much to check for pipes";
    walk(folder, path, message, true, |place, entry, _| {
        let kind = entry.file_type();
        if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
            found.push(place);
        }
        if found.len() > MAX_SNAPSHOT_FILES {
            let person = format!(
                "{}: more than {MAX_SNAPSHOT_FILES} pipes, sockets or devices",
                path.display()
            );
            return Err(refuse(message, person));
        }
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

/// Refuses a folder with a socket file for a tool that may connect to one: somebody outside may
/// listen there.
pub fn no_sockets(folder: &OwnedFd, path: &Path) -> Result<(), Fault> {
    let message = "a folder of a tool with local-sockets holds a socket file, or too much to check";
    walk(folder, path, message, false, |place, entry, _| {
        if entry.file_type().is_socket() {
            let person = format!("{}: move the socket out of the folder", place.display());
            return Err(refuse(message, person));
        }
        Ok(())
    })
}

/// As `specials`, for a path. A folder that cannot be opened holds none.
pub fn specials_at(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    without_links(path, OFlag::O_PATH).map_or(Ok(Vec::new()), |folder| specials(&folder, path))
}

/// Entries of a writable tree that others run or obey, or that may be files elsewhere, shown
/// read-only. The folders above them
/// become writable mounts of their own: a mount point cannot be renamed (EBUSY, rename(2)), so
/// nothing can take the place of these folders.
type ReadOnlyEntries = Vec<(PathBuf, Access, FileStat)>;

/// Refuses a writable tree that holds packages, or a link to a repository. Returns the entries to
/// show read-only, and the tree's size.
pub fn check_writable(folder: &OwnedFd, path: &Path) -> Result<(ReadOnlyEntries, Totals), Fault> {
    let (mut kept, mut totals): (ReadOnlyEntries, _) = (Vec::new(), Totals::default());
    walk(
        folder,
        path,
        "a writable folder holds too much, or cannot be checked",
        false,
        |place, entry, meta| {
            totals.add(&meta);
            if kept
                .last()
                .is_some_and(|(above, ..)| place.starts_with(above))
            {
                return Ok(());
            }
            let name = place.file_name().unwrap_or_default().to_string_lossy();
            // The other name of a file with two may lie outside the grant.
            if is_obeyed(&name)
                || meta.is_dir() && is_repository(entry.path())
                || meta.is_file() && meta.nlink() > 1
            {
                let stat = lstat(entry.path()).map_err(|errno| explain(&place, errno))?;
                if entry.depth() == 0 || !(meta.is_dir() || meta.is_file()) {
                    let person = format!(
                        "{}: other programs run or obey its files; grant a folder beside it",
                        place.display()
                    );
                    return Err(refuse(
                        "a writable folder is a repository, or holds a link to one",
                        person,
                    ));
                }
                kept.push((place, Access::Read, stat));
                return Ok(());
            }
            if ["node_modules", "pyvenv.cfg"].contains(&&*name) {
                let why = "a tool may not write into packages; move it out of the grant";
                let person = format!("{}: {why}", place.display());
                return Err(refuse("a writable folder holds packages", person));
            }
            Ok(())
        },
    )?;
    fn between(place: &Path, path: &Path) -> Vec<PathBuf> {
        place
            .ancestors()
            .skip(1)
            .take_while(|above| *above != path)
            .map(Path::to_owned)
            .collect()
    }
    let between: BTreeSet<PathBuf> = kept
        .iter()
        .flat_map(|(place, ..)| between(place, path))
        .collect();
    if kept.len() > MAX_SNAPSHOT_FILES || between.len() > 2 * MAX_SNAPSHOT_FILES {
        let person = format!(
            "{}: grant the folders that are to be written one by one",
            path.display()
        );
        return Err(refuse(
            "a writable folder holds too many repositories, settings or hard links",
            person,
        ));
    }
    for place in between {
        let stat = look(&place).map_err(|errno| explain(&place, errno))?;
        kept.push((place, Access::Write, stat));
    }
    Ok((kept, totals))
}

/// Refuses to write in a repository without a work tree: git runs its hooks, and what its settings
/// name.
pub fn outside_repositories(folder: &Path) -> Result<(), Fault> {
    let Some(repository) = folder.ancestors().find(|above| is_repository(above)) else {
        return Ok(());
    };
    let person = format!(
        "{}: git runs files in it; grant another folder",
        repository.display()
    );
    Err(refuse(
        "a writable folder is a repository, or lies in one",
        person,
    ))
}

/// Whether a folder is a repository without a work tree, which git recognises by these entries.
fn is_repository(path: &Path) -> bool {
    path.join("HEAD").is_file() && path.join("objects").is_dir() && path.join("refs").is_dir()
}
