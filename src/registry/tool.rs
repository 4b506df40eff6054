//! Tools, reports of files, and the sources that find them.

use crate::base::text;
use crate::manifest::mcp::LIST_ENDING;
use crate::manifest::{Code, Manifest, Problem, ServiceDescriptor, Severity, ToolPaths};
use crate::policy;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The id under which in-process tools are listed.
pub(super) const IN_PROCESS: &str = "in-process";

/// The namespace that only the tools compiled into this binary have.
pub const CORE: &str = "core";

/// The ending of a manifest's file name.
pub const ENDING: &str = ".tool.json";
/// The endings of all manifests: of tools, prompts, resources and tool services.
pub const ENDINGS: [&str; 4] = [ENDING, ".prompt.json", ".resource.json", DESCRIPTOR];

/// True for the name of a manifest of any kind.
pub fn is_manifest_file(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// True for the name of a manifest, or of what is read beside one.
pub fn is_definition_file(name: &str) -> bool {
    is_manifest_file(name) || name.ends_with(LIST_ENDING)
}

/// The list of the server with this manifest. `None`: no manifest of a tool has such a name.
pub fn list_path(manifest: &Path) -> Option<PathBuf> {
    let stem = manifest.to_str()?.strip_suffix(ENDING)?;
    Some(PathBuf::from(format!("{stem}{LIST_ENDING}")))
}

/// Whether a name is nearly that of a manifest: in capitals, without a name before the ending, of
/// another format.
pub(super) fn is_nearly_manifest_file(name: &str) -> bool {
    let name = name.to_lowercase();
    let mut formats = [".json", ".jsonc", ".json5", ".yaml", ".yml", ".toml"].iter();
    let stem = formats.find_map(|format| name.strip_suffix(format));
    stem.is_some_and(|stem| stem == "tool" || is_manifest_file(&format!("{stem}.json")))
}

/// The ending of the name of a file with descriptors of tool services.
pub(super) const DESCRIPTOR: &str = ".tool-service.json";

/// One descriptor of a service, and its file.
#[derive(Clone, Debug)]
pub struct Described {
    pub descriptor: Arc<ServiceDescriptor>,
    pub file: PathBuf,
}

/// One tool that was loaded.
#[derive(Clone, Debug)]
pub struct Tool {
    pub manifest: Arc<Manifest>,
    pub site: ToolPaths,
    /// The id of the source it came from.
    pub source: String,
    /// What it needs and lacks, as far as manifests tell.
    pub needs: Vec<policy::Need>,
}

impl Tool {
    /// A manifest on its own: its `requires` is not looked at.
    pub fn new(manifest: Arc<Manifest>, site: ToolPaths, source: &str) -> Tool {
        let needs = policy::needs_of(&manifest);
        Tool {
            manifest,
            site,
            source: source.to_owned(),
            needs,
        }
    }

    /// A tool that a request brings, for itself alone.
    pub fn of_request(manifest: Manifest) -> Tool {
        Tool::new(Arc::new(manifest), nowhere(), "request")
    }

    /// `id@version`
    pub fn reference(&self) -> String {
        format!("{}@{}", self.manifest.id, self.manifest.version)
    }

    /// The folder of its manifest, or a word for its source. All versions of one id must lie in the
    /// same folder.
    pub(super) fn home(&self) -> PathBuf {
        match self.site.manifest.parent() {
            Some(folder) => folder.to_path_buf(),
            None => PathBuf::from(format!("({})", self.source)),
        }
    }

    /// The path of its manifest, or else the name of its source.
    pub(super) fn origin(&self) -> String {
        if self.site.manifest.as_os_str().is_empty() {
            return format!("source '{}'", self.source);
        }
        text::path(&self.site.manifest)
    }
}

/// Of a file whose reader failed.
pub(super) fn panicked() -> Problem {
    let message = "this file made the reader fail: a fault in toolhost; please report it";
    Problem::new(Severity::Error, Code::Unreadable, "", message)
}

/// The result for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileReport {
    pub path: PathBuf,
    pub status: Status,
    /// `id@version`, if the manifest could be read so far.
    pub tool: Option<String>,
    /// The id that the text of a manifest spells, if the manifest could not be read so far.
    #[serde(skip)]
    pub claims: Option<String>,
    pub problems: Vec<Problem>,
}

impl FileReport {
    pub fn skipped(path: PathBuf, problem: Problem) -> FileReport {
        FileReport {
            path,
            status: Status::Skipped,
            tool: None,
            claims: None,
            problems: vec![problem],
        }
    }

    /// `tool`: `id@version`, where the file holds one tool.
    pub fn loaded(path: PathBuf, tool: Option<String>, problems: Vec<Problem>) -> FileReport {
        FileReport {
            path,
            status: Status::Loaded,
            tool,
            claims: None,
            problems,
        }
    }

    /// Adds a problem; with an error the file counts as skipped.
    pub(super) fn add(&mut self, problem: Problem) {
        if problem.severity == Severity::Error {
            self.status = Status::Skipped;
        }
        self.problems.insert(0, problem);
    }

    /// The id of the tool that it is, or would be.
    pub fn id(&self) -> Option<&str> {
        let tool = self.tool.as_deref().and_then(|tool| tool.split('@').next());
        tool.or(self.claims.as_deref())
    }

    pub fn has_errors(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Loaded,
    /// It is loaded, and cannot run on this machine.
    Unavailable,
    Skipped,
}

/// The scripts of a manifest that is not loaded: what it would request or deny is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    pub manifest: PathBuf,
    /// Scripts that it names, and folders in which any script may be its own. `None`: it may not be
    /// read, so that any script may be its own.
    pub scripts: Option<Vec<PathBuf>>,
}

/// What a source found.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    pub tools: Vec<Tool>,
    pub services: Vec<Described>,
    pub reports: Vec<FileReport>,
    /// The scripts of manifests that could not be loaded.
    pub claims: Vec<Claim>,
    /// The folders that were looked at.
    pub folders: Vec<PathBuf>,
    /// The base folders among them.
    pub bases: Vec<PathBuf>,
    /// The folders below which some manifests may not have been seen: the owners of scripts there
    /// are not known.
    pub unlisted: Vec<PathBuf>,
    /// Whole parts of the source that could not be read. A new one on a refresh keeps the old
    /// tools.
    pub incomplete: Vec<String>,
}

/// A place that tools come from.
pub trait Source: Send + Sync {
    fn id(&self) -> &str;
    /// Everything the source has now. `Err`: it could not be asked.
    fn discover(&self) -> Result<Discovery, String>;
}

/// The site of a tool without files.
pub(super) fn nowhere() -> ToolPaths {
    let nowhere = PathBuf::new();
    ToolPaths {
        manifest: nowhere.clone(),
        base: nowhere.clone(),
        script: None,
        folder: nowhere,
        links: Vec::new(),
    }
}
