//! From a script path as written to one regular file below a script base folder, never upwards, outwards or through a
//! link.

use super::open_beneath::{self, OpenError};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::Site;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A script that was found, and a note for a person on how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundScript {
    pub site: Site,
    pub note: Option<Note>,
}

/// How a script was found, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Another file may have been meant.
    pub doubtful: bool,
    pub words: String,
}

/// Finds a script: in each base, then without a leading name that is the base's own, then in the manifest's folder.
/// A path that may not be used is a `SecurityError`; one that leads nowhere a `ParameterValidationError`.
pub fn resolve(bases: &[PathBuf], manifest_folder: Option<&Path>, script_path: &str) -> Result<Site, Fault> {
    let folder = manifest_folder.and_then(|folder| folder.canonicalize().ok());
    Bases::open(bases).find(folder.as_deref(), script_path).map(|found| found.site)
}

/// Script base folders, opened once for all manifests of a load.
pub(super) struct Bases(Vec<Base>);

struct Base {
    /// Without symbolic links.
    path: PathBuf,
    folder: OwnedFd,
}

impl Bases {
    /// Bases that are not there hold no script; `doctor` and `check` tell about them.
    pub(super) fn open(bases: &[PathBuf]) -> Bases {
        let mut opened: Vec<Base> = Vec::new();
        for path in bases.iter().filter_map(|base| base.canonicalize().ok()) {
            if let Ok(folder) = open_beneath::folder(&path)
                && opened.iter().all(|base| base.path != path)
            {
                opened.push(Base { path, folder });
            }
        }
        Bases(opened)
    }

    /// `manifest_folder`: without symbolic links.
    pub(super) fn find(&self, manifest_folder: Option<&Path>, script_path: &str) -> Result<FoundScript, Fault> {
        let relative = plain(script_path)?;
        let beside = manifest_folder.and_then(|folder| self.beside(folder, &relative));
        let (mut tried, by_call) = (Vec::new(), manifest_folder.is_none());
        for base in &self.0 {
            if let Some(site) = look(base, &relative, script_path, &mut tried, by_call)? {
                let note = also_beside(&site, beside.as_ref());
                return Ok(FoundScript { site, note });
            }
        }
        for base in &self.0 {
            let Some(rest) = base.path.file_name().and_then(|name| relative.strip_prefix(name).ok()) else { continue };
            if rest.as_os_str().is_empty() {
                continue;
            }
            if let Some(site) = look(base, rest, script_path, &mut tried, by_call)? {
                let words = "the path starts with the base folder's own name, which was left out: it is relative to the base folder";
                return Ok(FoundScript { site, note: Some(Note { doubtful: false, words: words.to_owned() }) });
            }
        }
        if let Some((base, relative)) = &beside
            && let Some(site) = look(base, relative, script_path, &mut tried, by_call)?
        {
            let written = text::path(relative);
            let words = format!("found beside its manifest; written from the base folder the path is '{written}'");
            return Ok(FoundScript { site, note: Some(Note { doubtful: false, words }) });
        }
        Err(not_found(script_path, &tried))
    }

    /// Every place that the path could mean in a manifest of this folder; `None`: the path may not be used at all.
    pub(super) fn places(&self, folder: &Path, script_path: &str) -> Option<Vec<PathBuf>> {
        let relative = plain(script_path).ok()?;
        let mut places: Vec<PathBuf> = self.0.iter().map(|base| base.path.join(&relative)).collect();
        let doubled = self.0.iter().filter_map(|base| {
            let rest = relative.strip_prefix(base.path.file_name()?).ok()?;
            Some(base.path.join(rest))
        });
        places.extend(doubled);
        places.extend(self.beside(folder, &relative).map(|(base, beside)| base.path.join(beside)));
        Some(places)
    }

    /// The same path seen from the manifest's folder, when that lies inside a base.
    fn beside(&self, folder: &Path, relative: &Path) -> Option<(&Base, PathBuf)> {
        let inside = self.0.iter().filter(|base| folder.starts_with(&base.path));
        let base = inside.max_by_key(|base| base.path.as_os_str().len())?;
        Some((base, folder.strip_prefix(&base.path).ok()?.join(relative)))
    }
}

pub fn not_found(script_path: &str, tried: &[PathBuf]) -> Fault {
    let tried: Vec<_> = tried.iter().map(|path| text::path(path)).collect();
    let place = if tried.is_empty() {
        "there is no script base folder".to_owned()
    } else {
        format!("tried {}", tried.join(", "))
    };
    let shown = shown(script_path);
    let message = format!("No script '{shown}' was found: the path is relative to a script base folder.");
    Fault::new(Kind::ParameterValidationError, message)
        .person(format!("no script '{shown}': {place}; put the script there or mend the path"))
}

/// A note where a second file fits the path: the one in the base is run.
fn also_beside(site: &Site, beside: Option<&(&Base, PathBuf)>) -> Option<Note> {
    let (base, relative) = beside?;
    if site.script.as_deref() == Some(&base.path.join(relative)) {
        return None;
    }
    open_beneath::file(&base.folder, relative).ok()?;
    let taken = text::path(site.script.as_deref().unwrap_or(Path::new("")));
    let words = format!(
        "a file of this name also lies beside the manifest, but {taken} is run: write the path from the base folder to choose"
    );
    Some(Note { doubtful: true, words })
}

/// Looks at one place. `Ok(None)`: nothing is there. To a call also where a folder is: which there are would tell of tools
/// that its caller may not know.
fn look(
    base: &Base,
    relative: &Path,
    written: &str,
    tried: &mut Vec<PathBuf>,
    by_call: bool,
) -> Result<Option<Site>, Fault> {
    let path = base.path.join(relative);
    if !tried.contains(&path) {
        tried.push(path.clone());
    }
    let shown = shown(written);
    match open_beneath::file(&base.folder, relative) {
        Ok(_) => {
            let folder = path.parent().unwrap_or(&base.path).to_path_buf();
            Ok(Some(Site { manifest: PathBuf::new(), base: base.path.clone(), script: Some(path), folder }))
        }
        Err(refusal) => {
            let (kind, message) = match refusal {
                OpenError::Missing => return Ok(None),
                OpenError::NotAFile(open_beneath::FOLDER) if by_call => return Ok(None),
                OpenError::Link | OpenError::Outside | OpenError::NotAFile(_) | OpenError::TooLarge => {
                    let why = "it is not a plain file in a script base folder";
                    (Kind::SecurityError, format!("The script '{shown}' may not be run: {why}."))
                }
                OpenError::System(_) => {
                    (Kind::DependencyError, format!("The script '{shown}' cannot be read by the host."))
                }
            };
            Err(Fault::new(kind, message).person(format!("{} {}", text::path(&path), refusal.why())))
        }
    }
}

/// Plain components only; `.` and doubled slashes are left out.
fn plain(written: &str) -> Result<PathBuf, Fault> {
    let drive = written.as_bytes().get(1) == Some(&b':') && written.starts_with(|c: char| c.is_ascii_alphabetic());
    let refused = if written.is_empty() {
        Some("it is empty: name a script")
    } else if written.len() > 4096 {
        Some("it is longer than a path may be")
    } else if !text::is_printable(written) {
        Some("it holds a control or invisible character")
    } else if written.contains('\\') {
        Some("it holds a backslash: folders are separated by '/'")
    } else if written.starts_with('/') || drive {
        Some("it must be relative to a script base folder, not absolute")
    } else if written.starts_with('~') {
        Some("it must be relative to a script base folder: '~' is not expanded")
    } else if written.to_ascii_lowercase().starts_with("file:") || written.contains("://") {
        Some("it must be a path, not a URL")
    } else if written.split('/').any(|component| component == "..") {
        Some("it must not lead upwards ('..')")
    } else if written.ends_with('/') {
        Some("it names a folder, not a script")
    } else if written.split('/').any(|component| component.starts_with('.') && component != ".") {
        Some("no part of it may start with a dot: hidden files are no scripts")
    } else {
        None
    };
    let parts: PathBuf = written.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let refused = refused.or_else(|| parts.as_os_str().is_empty().then_some("it names no script"));
    match refused {
        None => Ok(parts),
        Some(why) => {
            let shown = shown(written);
            let fault = Fault::new(Kind::SecurityError, format!("The script path '{shown}' is refused: {why}."));
            Err(fault.person(format!("script path '{shown}': {why}")).by_caller())
        }
    }
}

fn shown(written: &str) -> String {
    text::printable(&text::head(written, 200))
}
