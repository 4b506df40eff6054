//! Whether only root or we ourselves can change an interpreter's place.

use crate::base::files::{self, every_id_is_mapped};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const STICKY: u32 = 0o1000;

/// Folders that are never bound as a whole for an interpreter.
const TOO_WIDE: [&str; 17] = [
    "/",
    "/usr",
    "/usr/local",
    "/etc",
    "/var",
    "/opt",
    "/home",
    "/root",
    "/tmp",
    "/srv",
    "/mnt",
    "/media",
    "/run",
    "/dev",
    "/proc",
    "/sys",
    "/boot",
];

/// Refuses `path` where it, or a folder above it, can be changed by others than root and us.
pub(super) fn path(path: &Path) -> Result<(), String> {
    for place in path.ancestors() {
        let facts = place.symlink_metadata().map_err(|e| format!("{}: {e}", place.display()))?;
        if !files::is_of_system(facts.uid(), place) {
            return Err(format!("{} belongs to another user (uid {})", place.display(), facts.uid()));
        }
        if facts.file_type().is_symlink() {
            // A link has no mode of its own: its folder's mode counts, and its target is judged apart.
            continue;
        }
        // In a sticky folder (/tmp) others can add names, but not replace those of root or us.
        let sticky_folder = facts.is_dir() && facts.mode() & STICKY != 0;
        if !sticky_folder && files::others_may_write(facts.mode(), facts.uid(), facts.gid()) {
            return Err(format!("others can write to {0}; `chmod go-w {0}` mends it", place.display()));
        }
    }
    Ok(())
}

/// Refuses a folder whose binding would open a home or a whole system folder.
pub(super) fn narrow(path: &Path) -> Result<(), String> {
    let is_home = path.parent() == Some(Path::new("/home"))
        || std::env::var_os("HOME").is_some_and(|home| !home.is_empty() && Path::new(&home) == path);
    if is_home || TOO_WIDE.iter().any(|wide| Path::new(wide) == path) {
        return Err(format!("it needs the whole of {}, which holds more than an interpreter", path.display()));
    }
    Ok(())
}

/// Under real root tools have ids of their own and interpreters keep their modes: others must be able to read them.
pub(super) fn readable_by_tools(path: &Path) -> Result<(), String> {
    if !(nix::unistd::geteuid().is_root() && every_id_is_mapped() == Some(true)) {
        return Ok(());
    }
    let facts = path.metadata().map_err(|e| format!("{}: {e}", path.display()))?;
    let needed = if facts.is_dir() { 0o005 } else { 0o004 };
    if facts.mode() & needed == needed {
        return Ok(());
    }
    Err(format!("tools never run as root and could not read {0}; `chmod -R o+rX {0}` mends it", path.display()))
}
