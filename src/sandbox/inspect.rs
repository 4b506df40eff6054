//! What lies in a granted folder before a call: what a write would reach through it, and what others would run of it.
//!
//! For: `grants`. In: a folder. Out: a refusal with the mend, or what the tool gets less of. Never: follows a link.

use super::grants::{explain, look, refuse};
use crate::fault::Fault;
use crate::policy::writable;
use crate::quantity::{MAX_SNAPSHOT_FILES, MAX_WRITABLE_ENTRIES};
use nix::sys::stat::FileStat;
use std::path::{Path, PathBuf};

/// Below /tmp, and below a staged folder, Landlock does not stop writing into a pipe of a read grant (see `scratch`),
/// so what is no plain file or folder is covered.
pub(super) fn specials(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut found = Vec::new();
    for (seen, entry) in walkdir::WalkDir::new(path).follow_links(false).into_iter().flatten().enumerate() {
        let kind = entry.file_type();
        if seen > MAX_WRITABLE_ENTRIES || found.len() > MAX_SNAPSHOT_FILES {
            let person = format!(
                "{}: a grant below /tmp or a staged folder may hold {MAX_WRITABLE_ENTRIES} entries, {MAX_SNAPSHOT_FILES} of them pipes, sockets or devices; grant a folder elsewhere",
                path.display()
            );
            return Err(refuse("a granted folder holds too much to check for pipes", person));
        }
        if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
            found.push(entry.into_path());
        }
    }
    found.sort();
    Ok(found)
}

/// A writable tree must hold nothing through which a write reaches further, or that a later run executes (`code`: also
/// what a script loads from its folder). Gives what in it others run or obey: the tool gets that for reading only.
pub(super) fn check_writable(path: &Path, code: bool) -> Result<Vec<(PathBuf, FileStat)>, Fault> {
    use std::os::unix::fs::MetadataExt;
    let mut kept = Vec::new();
    let mut entries = walkdir::WalkDir::new(path).follow_links(false).into_iter();
    let mut seen = 0;
    while let Some(entry) = entries.next() {
        seen += 1;
        if seen > MAX_WRITABLE_ENTRIES {
            let person =
                format!("{}: more than {MAX_WRITABLE_ENTRIES} entries cannot be checked before a call", path.display());
            return Err(refuse("a writable folder holds too many files", person));
        }
        let looked = entry.and_then(|entry| Ok((entry.metadata()?, entry)));
        let (meta, entry) = match looked {
            Ok(both) => both,
            Err(e) if e.io_error().is_some_and(|io| io.kind() == std::io::ErrorKind::NotFound) => continue,
            // What cannot be looked into may hold a link; its owner, the tool, could open it.
            Err(e) => {
                return Err(refuse(
                    "a writable folder holds what cannot be checked",
                    format!("{e}; make it readable or move it out of the grant"),
                ));
            }
        };
        let (place, name) = (entry.path().display(), entry.file_name().to_string_lossy());
        if writable::obeyed(&name) || meta.is_dir() && is_repository(entry.path()) {
            let stat = look(entry.path()).map_err(|errno| explain(entry.path(), errno))?;
            if entry.depth() == 0 || !(meta.is_dir() || meta.is_file()) {
                let person = format!("{place}: others run or obey what lies there; grant a folder beside it");
                return Err(refuse("a writable folder is a repository, or holds a link to one", person));
            }
            kept.push((entry.path().to_owned(), stat));
            if meta.is_dir() {
                entries.skip_current_dir();
            }
            continue;
        }
        if meta.is_file() && meta.nlink() > 1 {
            let person = format!(
                "{place}: has more than one hard link, and the other may lie outside the grant; copy the file instead"
            );
            return Err(refuse("a writable folder holds a hard-linked file", person));
        }
        if writable::definition(&name) || ["node_modules", "pyvenv.cfg"].contains(&&*name) {
            let person = format!(
                "{place}: a tool may not write where tools, policies or packages lie; move it out of the grant"
            );
            return Err(refuse("a writable folder holds a tool, policy or packages", person));
        }
        if code {
            is_no_code(entry.path(), &meta)?;
        }
    }
    if kept.len() > MAX_SNAPSHOT_FILES {
        let person = format!("{}: grant the folders that are to be written one by one", path.display());
        return Err(refuse("a writable folder holds too many repositories or settings", person));
    }
    Ok(kept)
}

/// A repository without a work tree: git finds it by what it holds.
fn is_repository(path: &Path) -> bool {
    path.join("HEAD").is_file() && path.join("objects").is_dir() && path.join("refs").is_dir()
}

/// A tree that tools could write holds nothing that a script in a folder above would load.
pub(super) fn no_code(tree: &Path) -> Result<(), Fault> {
    for (seen, entry) in walkdir::WalkDir::new(tree).follow_links(false).into_iter().flatten().enumerate() {
        if seen > MAX_WRITABLE_ENTRIES {
            let person = format!("{}: more than {MAX_WRITABLE_ENTRIES} entries cannot be checked", tree.display());
            return Err(refuse("a folder that the tool could write holds too many files", person));
        }
        if let Ok(facts) = entry.metadata() {
            is_no_code(entry.path(), &facts)?;
        }
    }
    Ok(())
}

fn is_no_code(path: &Path, facts: &std::fs::Metadata) -> Result<(), Fault> {
    if !facts.is_dir() && path.file_name().is_some_and(|name| writable::code(&name.to_string_lossy()).is_some()) {
        let person = format!(
            "{}: a script could load what the tool wrote there; move the file out of there, or let the tool write in a folder that no script lies above",
            path.display()
        );
        return Err(refuse("a writable folder beside the script holds code", person));
    }
    Ok(())
}
