//! An interpreter's own file, the small files beside it, and the files that it needs in view.
//! Nothing is started.

use super::trust::{self, OffLimits};
use crate::base::files;
use crate::manifest::Language;
use crate::policy::SYSTEM_FOLDERS;
use nix::fcntl::OFlag;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest `pyvenv.cfg`, header or `package.json` that is read for a version, bytes.
const MAX_TEXT_BYTES: u64 = 256 * 1024;

/// The names of each interpreter on a search path.
pub(super) const LANGUAGES: [(Language, &[&str]); 4] = [
    (Language::Python, &["python3", "python"]),
    (Language::Nodejs, &["node", "nodejs"]),
    (Language::Bun, &["bun"]),
    (Language::Bash, &["bash"]),
];

/// An interpreter's file: where it was found, and the file that this leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// As found, its folder without symlinks. In a virtual environment this path must be started.
    pub(super) path: PathBuf,
    /// The ELF file itself.
    pub(super) real: PathBuf,
}

/// Where a path leads, if no tool and no other user could change what lies on the way.
pub(super) fn follow(path: &Path, off_limits: &OffLimits) -> Result<Binary, String> {
    off_limits.check(path)?;
    let path = in_real_folder(path)?;
    let real = path
        .canonicalize()
        .map_err(|e| format!("{} leads nowhere ({e})", path.display()))?;
    trust::path(&path)?;
    Ok(Binary { path, real })
}

impl Binary {
    pub(super) fn runs(&self, language: Language) -> Result<bool, String> {
        Ok(is_elf(&self.real)? && fits(language, &self.real))
    }
}

/// The same file with its folder's symlinks resolved, and its own name kept.
fn in_real_folder(path: &Path) -> Result<PathBuf, String> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => folder
            .canonicalize()
            .map(|f| f.join(name))
            .map_err(|e| format!("{}: {e}", folder.display())),
        _ => Err(format!("{} is not a file", path.display())),
    }
}

/// Whether a real file is named like the interpreter, and not like one program for many names
/// (`snap`, `mise`).
fn fits(language: Language, real: &Path) -> bool {
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    match language {
        Language::Python => name.starts_with("python"),
        Language::Nodejs => name.starts_with("node"),
        Language::Bun => name.starts_with("bun"),
        Language::Bash => name.starts_with("bash"),
        Language::Wasm => false,
    }
}

/// Whether a regular file is a program. A pipe or device is refused before it is opened for
/// reading.
fn is_elf(path: &Path) -> Result<bool, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let mut head = Vec::new();
    files::open(path, OFlag::empty())
        .map_err(failed)?
        .take(4)
        .read_to_end(&mut head)
        .map_err(failed)?;
    Ok(head == b"\x7fELF")
}

/// The text of a small regular file; `None` for anything else.
pub(super) fn small_text(path: &Path) -> Option<String> {
    // Opening a device can have effects.
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let file = files::open(path, OFlag::empty()).ok()?;
    String::from_utf8(files::whole(file, MAX_TEXT_BYTES).ok()??).ok()
}

/// Package stores whose files name each other by absolute path: the interpreter needs the store.
/// Stores are world-readable and hold packages only.
const STORES: [&str; 3] = ["/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew"];
/// Most entries of a library folder that are looked at.
const MAX_LIBRARIES: usize = 2000;

/// Collects roots, each once, without those that are always in view.
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
            let Ok(entries) = folder.read_dir() else {
                continue;
            };
            let mut libraries: Vec<PathBuf> = entries
                .take(MAX_LIBRARIES)
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
        for link in files::way(path).0 {
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
        all.iter()
            .filter(|p| {
                !all.iter().any(|above| {
                    above != *p
                        && p.starts_with(above)
                        && above.symlink_metadata().is_ok_and(|m| m.is_dir())
                })
            })
            .cloned()
            .collect()
    }
}

/// The layers show the system folders always, read-only.
pub(super) fn always_in_view(path: &Path) -> bool {
    SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// `libssl.so`, `libssl.so.3`
fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".so") || name.contains(".so.")
}
