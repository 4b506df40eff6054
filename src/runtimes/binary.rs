//! An interpreter's own file: where a path leads to it, whether it is one, and the small files beside it. Nothing is started.

use super::off_limits::OffLimits;
use super::trust;
use crate::base::files;
use crate::manifest::Language;
use nix::fcntl::OFlag;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest `pyvenv.cfg`, header or `package.json` that is read for a version, bytes.
const MOST_TEXT_BYTES: u64 = 256 * 1024;

/// The names of each interpreter on a search path.
pub(super) const LANGUAGES: [(Language, &[&str]); 3] =
    [(Language::Python, &["python3", "python"]), (Language::Nodejs, &["node", "nodejs"]), (Language::Bun, &["bun"])];

/// An interpreter's file: where it was found, and the file that this leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// As found, its folder without symlinks. In a virtual environment this path must be started.
    pub(super) path: PathBuf,
    /// The ELF file itself.
    pub(super) real: PathBuf,
}

/// Where a path leads, if no tool and no other user could change what lies on the way.
pub(super) fn followed(path: &Path, off_limits: &OffLimits) -> Result<Binary, String> {
    off_limits.passes(path)?;
    let path = in_real_folder(path)?;
    let real = path.canonicalize().map_err(|e| format!("{} leads nowhere ({e})", path.display()))?;
    trust::path(&path)?;
    trust::path(&real)?;
    Ok(Binary { path, real })
}

impl Binary {
    pub(super) fn runs(&self, language: Language) -> Result<bool, String> {
        Ok(starts_with(&self.real, b"\x7fELF")? && fits(language, &self.real))
    }
}

/// The same file with its folder's symlinks resolved, and its own name kept.
fn in_real_folder(path: &Path) -> Result<PathBuf, String> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            folder.canonicalize().map(|f| f.join(name)).map_err(|e| format!("{}: {e}", folder.display()))
        }
        _ => Err(format!("{} is not a file", path.display())),
    }
}

/// Whether a real file is named like the interpreter, and not like one program for many names (`snap`, `mise`).
fn fits(language: Language, real: &Path) -> bool {
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    match language {
        Language::Python => name.starts_with("python"),
        Language::Nodejs => name.starts_with("node"),
        Language::Bun => name.starts_with("bun"),
        Language::Wasm => false,
    }
}

/// The kind of a file that a policy names as an interpreter and that is none, in words.
pub(super) fn instead(language: Language, real: &Path) -> Result<String, String> {
    let name = language.name();
    let other = LANGUAGES.iter().map(|(other, _)| *other).find(|other| fits(*other, real));
    Ok(match (starts_with(real, b"\x7fELF")?, other) {
        (true, Some(other)) => format!("a {} interpreter, not a {name} one", other.name()),
        (true, None) => format!("another program, not a {name} interpreter by its name"),
        (false, _) if starts_with(real, b"#!")? => "a launcher script, not the interpreter".to_owned(),
        (false, _) => "not a program".to_owned(),
    })
}

/// Whether a regular file starts with these bytes. A pipe or device is refused before it is opened for reading.
fn starts_with(path: &Path, magic: &[u8]) -> Result<bool, String> {
    let say = |e: std::io::Error| format!("{}: {e}", path.display());
    if !path.metadata().map_err(say)?.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let mut head = Vec::new();
    let file = files::open(path, OFlag::empty()).map_err(say)?;
    file.take(magic.len() as u64).read_to_end(&mut head).map_err(say)?;
    Ok(head == magic)
}

/// The text of a small regular file; `None` for anything else.
pub(super) fn small_text(path: &Path) -> Option<String> {
    // Opening a device can have effects.
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let file = files::open(path, OFlag::empty()).ok()?;
    String::from_utf8(files::whole(file, MOST_TEXT_BYTES).ok()??).ok()
}
