//! The registry: manifests on disk, compiled in, or registered in process → a snapshot of tools.
//!
//! For: service and cli. In: sources. Out: an immutable `Snapshot`, swapped whole, and a report per file.
//! Never: follows a link, opens what is no regular file, lets a dropped file take over a tool's name,
//! runs anything.

mod availability;
mod beneath;
mod builtin;
mod fence;
mod load;
mod ownership;
mod place;
mod scan;
pub mod scripts;
mod settle;
mod shared;
mod snapshot;
mod store;

pub use availability::{needs_of, refused, unsatisfied};
pub use builtin::{BUILTIN_FILES, Builtin};
pub use load::{DirectToolLoader, ENDING};
pub use place::Places;
pub use snapshot::{Filter, Snapshot};
pub use store::{Definition, Registry};

use crate::manifest::{Manifest, Problem, Site};
use crate::policy;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// The namespace that only the tools compiled into this binary have.
pub const CORE: &str = "core";

/// One tool that was loaded.
#[derive(Clone, Debug)]
pub struct Tool {
    pub manifest: Arc<Manifest>,
    pub site: Site,
    /// The id of the source it came from.
    pub source: String,
    pub availability: Availability,
    /// Warnings and notes of its manifest.
    pub warnings: Vec<Problem>,
}

impl Tool {
    /// A manifest on its own: what it needs of other tools is not looked at.
    pub fn new(manifest: Arc<Manifest>, site: Site, source: &str, warnings: Vec<Problem>) -> Tool {
        let availability = availability::of_manifest(&manifest);
        Tool { manifest, site, source: source.to_owned(), availability, warnings }
    }

    /// `id@version`
    pub fn reference(&self) -> String {
        format!("{}@{}", self.manifest.id, self.manifest.version)
    }

    /// Where its name is at home: versions of one id live side by side only within one folder.
    fn home(&self) -> PathBuf {
        match self.site.manifest.parent() {
            Some(folder) => folder.to_path_buf(),
            None => PathBuf::from(format!("({})", self.source)),
        }
    }

    /// Its file, or a word for where it came from.
    fn origin(&self) -> String {
        if self.site.manifest.as_os_str().is_empty() {
            return format!("source '{}'", self.source);
        }
        crate::manifest::text::printable(&self.site.manifest.to_string_lossy())
    }
}

/// Can a call be served, as far as the manifest tells? (What this machine lacks: `needs_of`.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    Ready,
    Unavailable { needs: Vec<policy::Need> },
}

/// What became of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileReport {
    pub path: PathBuf,
    pub status: Status,
    /// `id@version`, when it got that far.
    pub tool: Option<String>,
    pub problems: Vec<Problem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Loaded,
    Skipped,
}

/// Scripts that a manifest speaks for which is not loaded: what it asks, and denies, is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub manifest: PathBuf,
    pub what: Claimed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Scripts(Vec<PathBuf>),
    /// It does not say which: any script beside it may be its own.
    Beside(PathBuf),
}

/// What a source found.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    pub tools: Vec<Tool>,
    pub reports: Vec<FileReport>,
    /// What the manifests that could not be loaded speak for.
    pub claims: Vec<Claim>,
    /// Whole parts of the source that could not be read. A new one on a refresh keeps the old tools (B-011).
    pub incomplete: Vec<String>,
    /// Where tools could write in earlier calls, under the names that those places have by now.
    pub moved: Vec<policy::Place>,
}

/// Where tools come from (A-085, B-007).
pub trait Source: Send + Sync {
    fn id(&self) -> &str;
    /// Everything the source has now. `earlier`: where tools could write. `Err`: it could not be asked.
    fn discover(&self, earlier: &policy::Written) -> Result<Discovery, String>;
}
