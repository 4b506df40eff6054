//! The files an interpreter needs in view, as few as can be known from its location alone.

use crate::base::links;
use crate::policy::SYSTEM_FOLDERS;
use std::path::{Path, PathBuf};

/// Package stores whose files name each other by absolute path: the interpreter needs the store.
/// Stores are world-readable and hold packages only.
const STORES: [&str; 3] = ["/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew"];
/// Most entries of a library folder that are looked at.
const MOST_LIBRARIES: usize = 2000;

/// Collects roots, each once, none that is always in view.
#[derive(Debug, Default)]
pub(super) struct Roots(Vec<PathBuf>);

impl Roots {
    /// Adds `path` if it exists.
    pub(super) fn add(&mut self, path: impl Into<PathBuf>) {
        let path = path.into();
        if !always_in_view(&path) && !self.0.contains(&path) && path.exists() {
            self.0.push(path);
        }
    }

    /// Adds `prefix/lib/*.so*` and the same under `lib64`; of links also their targets.
    pub(super) fn libraries(&mut self, prefix: &Path) {
        if always_in_view(&prefix.join("lib")) {
            return;
        }
        for folder in ["lib", "lib64"].map(|name| prefix.join(name)) {
            let Ok(entries) = folder.read_dir() else { continue };
            let mut libraries: Vec<PathBuf> = entries
                .take(MOST_LIBRARIES)
                .filter_map(|entry| entry.ok().map(|e| e.path()))
                .filter(|path| is_library(path) && path.is_file())
                .collect();
            libraries.sort();
            for library in libraries {
                self.chain(&library);
            }
        }
    }

    /// Adds every symlink that is met on the way to `path`.
    pub(super) fn links(&mut self, path: &Path) {
        for link in links::way(path).0 {
            self.add(link);
        }
    }

    /// Adds every symlink that is met on the way to `path`, and the file or folder at the end.
    pub(super) fn chain(&mut self, path: &Path) {
        self.links(path);
        if let Ok(real) = path.canonicalize() {
            self.add(real);
        }
    }

    /// Adds the package store that holds `real`, if one does.
    pub(super) fn store(&mut self, real: &Path) {
        for store in STORES.iter().filter(|store| real.starts_with(store)) {
            self.add(*store);
        }
    }

    /// The roots without those that lie below another.
    pub(super) fn finish(self) -> Vec<PathBuf> {
        let all = self.0;
        let is_folder = |p: &PathBuf| p.symlink_metadata().is_ok_and(|m| m.is_dir());
        all.iter()
            .filter(|p| !all.iter().any(|above| above != *p && p.starts_with(above) && is_folder(above)))
            .cloned()
            .collect()
    }
}

/// The walls show the system folders always, read-only.
pub(super) fn always_in_view(path: &Path) -> bool {
    SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// `libssl.so`, `libssl.so.3`
fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".so") || name.contains(".so.")
}
