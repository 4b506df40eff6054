//! Files that are written together: all of them stay, or none, and what they replace comes back.

use super::target::at;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How names begin of what was moved away.
const MOVED: &str = ".toolhost-replaced-";

struct Change {
    path: PathBuf,
    /// Where what was there before lies now.
    before: Option<PathBuf>,
}

/// Undone when dropped, unless kept.
#[derive(Default)]
pub struct Changes(Vec<Change>);

impl Changes {
    /// Moves away what is there, and notes that the path is ours.
    pub fn clear(&mut self, path: &Path) -> Result<(), String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = path.with_file_name(format!("{MOVED}{name}"));
        let is_there = path.symlink_metadata().is_ok();
        if is_there {
            remove(&aside).map_err(|why| at(&aside, &why))?;
            fs::rename(path, &aside).map_err(|why| at(path, &why))?;
        }
        self.0.push(Change {
            path: path.to_path_buf(),
            before: is_there.then_some(aside),
        });
        Ok(())
    }

    /// Writes a file whole, with this mode whatever the umask.
    pub fn write(&mut self, path: &Path, text: &[u8], mode: u32) -> Result<(), String> {
        self.clear(path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        put(folder, path, text, mode).map_err(|why| at(path, &why))
    }

    /// Makes a folder, unless it is there. What is above it must be there.
    pub fn folder(&mut self, path: &Path, mode: u32) -> Result<(), String> {
        if path.is_dir() {
            return Ok(());
        }
        let made = DirBuilder::new().mode(mode).create(path);
        made.map_err(|why| at(path, &why))?;
        self.0.push(Change {
            path: path.to_path_buf(),
            before: None,
        });
        Ok(())
    }

    pub fn keep(mut self) {
        for change in self.0.drain(..) {
            let _ = change.before.map(|before| remove(&before));
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        for Change { path, before } in self.0.drain(..).rev() {
            let _ = remove(&path);
            let _ = before.map(|before| fs::rename(before, &path));
        }
    }
}

fn put(folder: &Path, path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".toolhost-")
        .tempfile_in(folder)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text)?;
    file.persist_noclobber(path)?;
    Ok(())
}

/// Removes a file or a folder, if it is there. No link is followed.
pub fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(facts) if facts.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}
