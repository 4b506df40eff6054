//! From a script path as written to one regular file below a script base folder, never upwards,
//! outwards or through a link.
//!
//! The path is plain and relative, with the ending of its language and nothing hidden in it. The
//! script is read once, after the decision, and at most 64 MiB: these bytes are approved, recorded
//! and shown at its path, read-only, whatever is stored in the file. (A module runs as the code of
//! the digest that was read.) Where the file is changed or renamed during the call, the record has
//! no digest: its place may have shown another one. What the script imports is read when it is
//! imported.

use super::open_beneath::{self, Base, OpenError};
use crate::base::{files, text};
use crate::fault::{Fault, Kind};
use crate::manifest::{Severity, ToolPaths};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Finds a script: in each base, then without a leading name that is the base's own, then in the
/// manifest's folder. A path that may not be used is a `SecurityError`; one that leads nowhere a
/// `ParameterValidationError`.
pub fn resolve(
    bases: &[PathBuf],
    manifest_folder: Option<&Path>,
    script_path: &str,
) -> Result<ToolPaths, Fault> {
    let folder = manifest_folder.and_then(|folder| folder.canonicalize().ok());
    Bases::open(bases)
        .find(folder.as_deref(), script_path)
        .map(|(site, _)| site)
}

/// How a script was found, for a person; a warning where another file may have been meant.
pub(super) type Note = Option<(Severity, String)>;

/// Script base folders, opened once for all manifests of a load.
pub(super) struct Bases(Vec<Arc<Base>>);

impl Bases {
    /// Bases that are not there hold no script; `doctor` and `check` report them.
    pub(super) fn open(bases: &[PathBuf]) -> Bases {
        let mut opened: Vec<Arc<Base>> = Vec::new();
        for base in bases.iter().filter_map(|base| Base::open(base).ok()) {
            if opened.iter().all(|known| known.path != base.path) {
                opened.push(Arc::new(base));
            }
        }
        Bases(opened)
    }

    /// For the manifests of a linked folder: they name scripts of that folder alone.
    pub(super) fn of_linked(folder: &Arc<Base>) -> Bases {
        Bases(vec![folder.clone()])
    }

    /// `manifest_folder`: without symbolic links.
    pub(super) fn find(
        &self,
        manifest_folder: Option<&Path>,
        script_path: &str,
    ) -> Result<(ToolPaths, Note), Fault> {
        let candidates = self.candidates(manifest_folder, &plain(script_path)?);
        let mut tried = Vec::new();
        for (kind, base, relative) in &candidates {
            let path = base.path.join(relative);
            if tried.contains(&path) {
                continue;
            }
            if look(base, relative, script_path, manifest_folder.is_none())? {
                let folder = self.own_folder(manifest_folder, &path).to_path_buf();
                let site = ToolPaths {
                    manifest: PathBuf::new(),
                    base: base.top().to_path_buf(),
                    script: Some(path.clone()),
                    folder,
                    links: base.links.clone(),
                };
                let note = note(*kind, &path, relative, &candidates);
                return Ok((site, note.filter(|_| base.links.is_empty())));
            }
            tried.push(path);
        }
        Err(not_found(script_path, &tried))
    }

    /// The script's folder, or that of a manifest above it, unless a base lies between the two.
    fn own_folder<'p>(&self, manifest_folder: Option<&'p Path>, script: &'p Path) -> &'p Path {
        let between = |folder: &Path, base: &Base| {
            base.links.is_empty() && base.path.starts_with(folder) && script.starts_with(&base.path)
        };
        manifest_folder
            .filter(|folder| script.starts_with(folder))
            .filter(|folder| !self.0.iter().any(|base| between(folder, base)))
            .or(script.parent())
            .unwrap_or(script)
    }

    /// Every place that the path could mean in a manifest of this folder; `None`: the path may not
    /// be used at all.
    pub(super) fn places(&self, folder: &Path, script_path: &str) -> Option<Vec<PathBuf>> {
        let candidates = self.candidates(Some(folder), &plain(script_path).ok()?);
        Some(
            candidates
                .into_iter()
                .map(|(_, base, relative)| base.path.join(relative))
                .collect(),
        )
    }

    /// The places that a path can mean, in the order in which they are looked at.
    fn candidates(
        &self,
        manifest_folder: Option<&Path>,
        relative: &Path,
    ) -> Vec<(SearchKind, &Base, PathBuf)> {
        let mut found: Vec<_> = self
            .0
            .iter()
            .map(|base| (SearchKind::InBase, &**base, relative.to_path_buf()))
            .collect();
        fn stripped(base: &Base, relative: &Path) -> Option<PathBuf> {
            relative
                .strip_prefix(base.name()?)
                .ok()
                .map(Path::to_path_buf)
        }
        let doubled = self
            .0
            .iter()
            .filter_map(|base| Some((SearchKind::Doubled, &**base, stripped(base, relative)?)));
        found.extend(doubled.filter(|(.., rest)| !rest.as_os_str().is_empty()));
        let beside = manifest_folder.and_then(|folder| {
            let inside = self.0.iter().filter(|base| folder.starts_with(&base.path));
            let base = inside.max_by_key(|base| base.path.as_os_str().len())?;
            Some((
                SearchKind::Beside,
                &**base,
                folder.strip_prefix(&base.path).ok()?.join(relative),
            ))
        });
        found.extend(beside);
        found
    }
}

/// Where a script was looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchKind {
    InBase,
    /// Without a leading name that is the base's own.
    Doubled,
    /// In the manifest's folder.
    Beside,
}

fn note(
    kind: SearchKind,
    path: &Path,
    relative: &Path,
    candidates: &[(SearchKind, &Base, PathBuf)],
) -> Note {
    let beside = candidates
        .iter()
        .find(|(kind, ..)| *kind == SearchKind::Beside);
    match kind {
        SearchKind::InBase => {
            let (_, base, relative) =
                beside.filter(|(_, base, relative)| base.path.join(relative) != path)?;
            open_beneath::file(&base.folder, relative).ok()?;
            let words = format!(
                "a file of this name also lies beside the manifest, but {} is run: write the path \
                 from the base folder to choose",
                text::path(path)
            );
            Some((Severity::Warning, words))
        }
        SearchKind::Doubled => {
            let words = "the base folder's own name was left out of the path, which is relative to \
                the base folder";
            Some((Severity::Note, words.to_owned()))
        }
        SearchKind::Beside => {
            let written = text::path(relative);
            let words = format!(
                "found beside its manifest; written from the base folder the path is '{written}'"
            );
            Some((Severity::Note, words))
        }
    }
}

pub fn not_found(script_path: &str, tried: &[PathBuf]) -> Fault {
    let tried: Vec<_> = tried.iter().map(|path| text::path(path)).collect();
    let place = if tried.is_empty() {
        "no script base folder exists".to_owned()
    } else {
        format!("tried {}", tried.join(", "))
    };
    let shown = shown(script_path);
    let message =
        format!("No script '{shown}' was found: the path is relative to a script base folder.");
    Fault::new(Kind::ParameterValidationError, message).person(format!(
        "no script '{shown}': {place}; put the script there or correct the path"
    ))
}

/// Looks at one place. False: nothing is there. A call gets false for a folder, too: an error would
/// reveal tools that its caller may not know.
fn look(base: &Base, relative: &Path, written: &str, by_call: bool) -> Result<bool, Fault> {
    let shown = shown(written);
    let error = match open_beneath::file(&base.folder, relative) {
        Ok(_) => {
            let listed = files::as_listed(&base.path, relative);
            let message = format!(
                "The script path '{shown}' is refused: its folder lists it in another spelling."
            );
            let is_listed = listed == base.path.join(relative);
            return is_listed.then_some(true).ok_or_else(|| {
                Fault::new(Kind::SecurityError, message).person(format!(
                    "script path '{shown}': write it as listed, {}",
                    text::path(&listed)
                ))
            });
        }
        Err(OpenError::Missing) => return Ok(false),
        Err(OpenError::Folder) if by_call => return Ok(false),
        Err(error) => error,
    };
    let (kind, message) = match error {
        OpenError::System(_) => (
            Kind::DependencyError,
            format!("The script '{shown}' cannot be read by the host."),
        ),
        _ => {
            let why = "it is not a plain file in a script base folder";
            (
                Kind::SecurityError,
                format!("The script '{shown}' may not be run: {why}."),
            )
        }
    };
    Err(Fault::new(kind, message).person(format!(
        "{} {}",
        text::path(&base.path.join(relative)),
        error.why()
    )))
}

/// Plain components only; `.` and doubled slashes are left out.
pub fn plain(written: &str) -> Result<PathBuf, Fault> {
    let drive = written.as_bytes().get(1) == Some(&b':')
        && written.starts_with(|c: char| c.is_ascii_alphabetic());
    let url = written.to_ascii_lowercase().starts_with("file:") || written.contains("://");
    let parts = || {
        written
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
    };
    let refused = [
        (written.len() > 4096, "it is longer than a path may be"),
        (
            !text::is_printable(written),
            "it holds a control or invisible character",
        ),
        (
            written.contains('\\'),
            "it holds a backslash: folders are separated by '/'",
        ),
        (
            written.starts_with(['/', '~']) || drive || url,
            "it must be a path relative to a script base folder",
        ),
        (
            parts().any(|part| part == ".."),
            "it must not lead upwards ('..')",
        ),
        (
            written.ends_with('/') || parts().next().is_none(),
            "it names no script",
        ),
        (
            parts().any(|part| part.starts_with('.')),
            "no part of it may start with a dot: hidden files are not scripts",
        ),
    ];
    let Some((_, why)) = refused.into_iter().find(|(refused, _)| *refused) else {
        return Ok(parts().collect());
    };
    let shown = shown(written);
    let fault = Fault::new(
        Kind::SecurityError,
        format!("The script path '{shown}' is refused: {why}."),
    );
    Err(fault
        .person(format!("script path '{shown}': {why}"))
        .by_caller())
}

fn shown(written: &str) -> String {
    text::printable(&text::head(written, 200))
}
