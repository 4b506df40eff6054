//! `approvals.toml`, beside the policies: what a person agreed to run, as digests. `toolhost approve`
//! writes it.

use super::area::Area;
use super::document::FileProblem;
use crate::base::files::Stamps;
use crate::base::text;
pub use crate::manifest::mcp::digest;
use crate::manifest::{At, Code as ProblemCode, Selector, Severity};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const APPROVALS_FILE: &str = "approvals.toml";

/// SHA-256 of each part, hex. A part that the subject does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Digests {
    /// Of the manifest, as canonical JSON (RFC 8785).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Of all files of its folder, and of those that it reads by `base:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Of the files that say which packages it has. They are part of the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grants: Option<String>,
}

impl Digests {
    /// The names of the parts that differ.
    pub fn changed(&self, now: &Digests) -> Vec<&'static str> {
        let parts = [
            ("definition", &self.definition, &now.definition),
            ("code", &self.code, &now.code),
            ("lock", &self.lock, &now.lock),
            ("grants", &self.grants, &now.grants),
        ];
        let changed = parts.into_iter().filter(|(_, before, now)| before != now);
        changed.map(|(name, ..)| name).collect()
    }

    /// The digest that a manifest names: of definition and code, whatever a policy grants.
    pub fn pin(&self) -> String {
        digest(&(&self.definition, &self.code))
    }
}

/// What one person approved: a tool (`id@version`), or a set with the names that are in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRecord {
    pub of: String,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<String>,
    #[serde(default)]
    pub digests: Digests,
    /// The interpreter, which is not part of what was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    pub by: String,
    pub at: String,
    pub why: String,
}

impl ApprovalRecord {
    /// Who approved it, when and why, in words.
    pub fn text(&self) -> String {
        text::printable(&format!("by {} at {}: {}", self.by, self.at, self.why))
    }

    pub fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| error.to_string())
    }

    /// Whether the record is of this tool or set, or of a tool of the set.
    pub fn is_of(&self, name: &str) -> bool {
        let id = self.of.split('@').next().unwrap_or_default();
        let set = Selector::try_from(name.to_owned());
        self.of == name || id == name || set.is_ok_and(|set| set.matches(id))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approvals {
    #[serde(default, rename = "approval")]
    pub list: Vec<ApprovalRecord>,
}

impl Approvals {
    pub fn parse(text: &str, file: &Path) -> Result<Approvals, FileProblem> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(0, |text| text.matches('\n').count() + 1);
            let column = usize::from(line > 0);
            let message = format!("not a list of approvals: {}", error.message());
            let code = ProblemCode::Schema;
            FileProblem::new(
                file,
                Severity::Error,
                code,
                "",
                At { line, column },
                message,
            )
        })
    }

    pub fn find(&self, of: &str) -> Option<&ApprovalRecord> {
        self.list.iter().find(|record| record.of == of)
    }
}

/// Where the code of a tool lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodePlaces {
    /// The tool's own folder, and the base of its script: paths are named relative to them, so that
    /// they are the same on every machine.
    pub folder: PathBuf,
    pub base: PathBuf,
    /// Of this file counts what it says, and not how that is written.
    pub manifest: PathBuf,
    pub trees: Vec<PathBuf>,
}

impl CodePlaces {
    /// The area as it is named on every machine: `./lib/**`, `base:/shared/**`.
    pub fn portable(&self, area: &Area) -> String {
        let shared = Some(&self.base).filter(|base| !base.as_os_str().is_empty());
        let shared = shared.and_then(|base| area.moved(base, Path::new("base:")));
        let own = area.moved(&self.folder, Path::new("."));
        own.or(shared).as_ref().unwrap_or(area).text()
    }

    /// The path of a file with this portable name.
    pub fn path(&self, name: &str) -> PathBuf {
        match (name.strip_prefix("./"), name.strip_prefix("base:/")) {
            (Some(own), _) => self.folder.join(own),
            (_, Some(shared)) => self.base.join(shared),
            _ => PathBuf::from(name),
        }
    }
}

/// What lies there: each file by its portable name, with its digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    pub files: BTreeMap<String, String>,
}

/// What was found at some places.
#[derive(Clone, Debug)]
pub struct LookedAt {
    pub code: Arc<Code>,
    /// Of all files and folders there.
    pub stamps: Arc<Stamps>,
}

/// Looks at the folders of tools, again where something in them changed.
pub trait CodeFolders: Debug + Send + Sync {
    /// The code that lies there now. The error is for the person.
    fn look(&self, places: &CodePlaces) -> Result<LookedAt, String>;

    /// The copy of this code, made where it is missing.
    fn copy(&self, places: &CodePlaces, code: &Code) -> Result<Arc<ApprovedCode>, String>;

    /// What the last approval of this record was about, if this host knows.
    fn recall(&self, record: &ApprovalRecord) -> Option<Value>;

    fn remember(&self, record: &ApprovalRecord, details: &Value) -> Result<(), String>;
}

/// The copy of approved code, which runs whatever lies in the folders of its tool by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApprovedCode {
    pub copies: Vec<CopiedTree>,
    /// What tools write there, now or before: shown as it is.
    pub live: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopiedTree {
    pub tree: PathBuf,
    pub copy: PathBuf,
}

impl CopiedTree {
    /// Where the copy of a path lies. `None`: it is not in the tree.
    pub fn copy_of(&self, path: &Path) -> Option<PathBuf> {
        moved(path, &self.tree, &self.copy)
    }
}

/// The path with the folder `to` in place of `from`, and without a slash at the end.
fn moved(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(from).ok()?;
    Some(to.components().chain(below.components()).collect())
}

impl ApprovedCode {
    /// Where the copy of a path lies. `None`: it has none.
    pub fn copy_of(&self, path: &Path) -> Option<PathBuf> {
        let is_live = self.live.iter().any(|tree| path.starts_with(tree));
        let mut copies = self.copies.iter().filter(|_| !is_live);
        copies.find_map(|copied| copied.copy_of(path))
    }

    /// Where the bytes lie that are shown at this path.
    pub fn place_of(&self, path: &Path) -> PathBuf {
        self.copy_of(path).unwrap_or_else(|| path.to_owned())
    }

    /// Where a path of the copy is shown.
    pub fn shown(&self, place: &Path) -> PathBuf {
        let mut copies = self.copies.iter();
        let shown = copies.find_map(|copied| moved(place, &copied.copy, &copied.tree));
        shown.unwrap_or_else(|| place.to_owned())
    }
}
