//! The rules of `[files]`, and grants of files.
//!
//! A rule is an exact file or `dir/**`. Two rules are never joined into a wider one.

use super::area::{Access, Area, Opening};
use super::grantable::Grantable;
use crate::base::text;
use crate::manifest::At;
use crate::manifest::reader::Reader;
use crate::sandbox::base_view::KERNEL;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub text: String,
    /// The path is below the tool's own folder.
    pub relative: bool,
    /// A tree or one file; if `relative`, `area_at` puts the tool's folder before it.
    pub area: Area,
    pub why: String,
    pub at: At,
}

impl Rule {
    pub fn area_at(&self, folder: &Path) -> Area {
        let own = if self.relative {
            self.area.moved(Path::new(""), folder)
        } else {
            None
        };
        own.unwrap_or_else(|| self.area.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRules {
    pub read: Vec<Rule>,
    pub write: Vec<Rule>,
}

impl FileRules {
    /// Whether the policy has no list of what is read.
    pub fn reads_by_default(&self) -> bool {
        matches!(&self.read[..], [rule] if rule.at == At::default())
    }

    /// The rules that allow an access. A rule for writing also allows reading.
    pub fn allowing(&self, access: Access) -> impl Iterator<Item = &Rule> {
        let read: &[Rule] = if access == Access::Read {
            &self.read
        } else {
            &[]
        };
        read.iter().chain(&self.write)
    }
}

#[derive(Deserialize)]
struct FileLine {
    path: String,
    why: String,
}

pub fn read(document: &mut Reader<'_>) -> FileRules {
    let own_folder = Rule {
        text: "./** (default)".to_owned(),
        relative: true,
        area: Area::Tree(PathBuf::new()),
        why: "its own folder, read-only: the policy has no `[files] read`".to_owned(),
        at: At::default(),
    };
    let is_written = document.value.pointer("/files/read").is_some();
    let read = if is_written {
        list(document, "/files/read")
    } else {
        vec![own_folder]
    };
    FileRules {
        read,
        write: list(document, "/files/write"),
    }
}

fn list(document: &mut Reader<'_>, pointer: &str) -> Vec<Rule> {
    let mut found = Vec::new();
    for (pointer, FileLine { path, why }) in document.list(pointer) {
        let pointer = format!("{pointer}/path");
        let Some((relative, area)) = document.parsed(&pointer, rule_area(&path)) else {
            continue;
        };
        found.push(Rule {
            text: path,
            relative,
            area,
            why,
            at: document.at(&pointer),
        });
    }
    found
}

fn rule_area(text: &str) -> Result<(bool, Area), String> {
    let area = match text.strip_suffix("/**").or((text == "**").then_some(".")) {
        Some(".") => Area::Tree(PathBuf::new()),
        Some(folder) => Area::Tree(plain_path(folder)?),
        None => Area::File(plain_path(text)?),
    };
    if text == "self" || KERNEL.iter().any(|kernel| area.path().starts_with(kernel)) {
        Err(format!("`{text}` needs no rule: every tool has its own"))
    } else {
        Ok((!area.path().is_absolute(), area))
    }
}

/// A path of plain components; a leading `./` is taken off.
pub fn plain_path(text: &str) -> Result<PathBuf, String> {
    let (lead, rest) = match text.strip_prefix('/') {
        Some(rest) => ("/", rest),
        None => ("", text.strip_prefix("./").unwrap_or(text)),
    };
    let expands = text.starts_with('~') || text.starts_with("base:");
    match expands
        || text.contains(|c: char| c.is_control() || "*?[]{}".contains(c))
        || rest.split('/').any(|part| matches!(part, "" | "." | ".."))
    {
        true => Err(format!(
            "`{}` is not a plain path: no `..`, `.`, `//`, `~`, `base:`, pattern or control \
            character",
            text::printable(text)
        )),
        false => Ok(Path::new(lead).join(rest)),
    }
}

/// Placeholder for the script's folder where a service method gets its script with the call.
pub const SCRIPT_FOLDER: &str = "/<folder of the script>";

/// Files that a call may read or write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenGrant", into = "WrittenGrant")]
pub struct Grant {
    pub access: Access,
    pub area: Area,
    pub asked: String,
    pub rule: String,
    pub why: String,
}

/// A grant as shapes and reports write it: with the way in which its files are opened.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenGrant {
    access: Access,
    opening: Opening,
    asked: String,
    rule: String,
    why: String,
}

impl From<WrittenGrant> for Grant {
    fn from(written: WrittenGrant) -> Grant {
        Grant {
            access: written.access,
            area: written.opening.into(),
            asked: written.asked,
            rule: written.rule,
            why: written.why,
        }
    }
}

impl From<Grant> for WrittenGrant {
    fn from(grant: Grant) -> WrittenGrant {
        WrittenGrant {
            opening: grant.opening(),
            access: grant.access,
            asked: grant.asked,
            rule: grant.rule,
            why: grant.why,
        }
    }
}

impl Grant {
    pub fn opening(&self) -> Opening {
        self.area.opening(self.access)
    }

    /// Whether calls write to a private copy, in which any name can be made.
    pub fn is_staged(&self) -> bool {
        self.access == Access::Write && !matches!(self.area, Area::Tree(_))
    }

    /// The area in which a call finds or makes files by it.
    pub fn reachable(&self) -> Area {
        if self.is_staged() {
            // Other names than the staged ones can be made there, and are dropped afterwards.
            Area::Tree(self.area.folder().to_path_buf())
        } else {
            self.area.clone()
        }
    }

    /// The folder of a read grant that the manifest requested with `base:`.
    pub fn base_tree(&self) -> Option<&Path> {
        (self.access == Access::Read && self.asked.starts_with("base:")).then(|| self.area.folder())
    }
}

impl Grantable for Grant {
    fn kind(&self) -> &'static str {
        self.access.name()
    }
    fn text(&self) -> String {
        let staged = if self.is_staged() { " (staged)" } else { "" };
        format!("{} {}{staged}", self.kind(), self.area.text())
    }
    fn covers(&self, other: &Grant) -> bool {
        // Code is loaded from a tree that is read by `base:` (`written_areas`), so another grant
        // does not cover it.
        if self.access < other.access || other.base_tree().is_some() && self.base_tree().is_none() {
            return false;
        }
        match self.area {
            Area::Tree(_) => other.area.within(&self.area),
            _ => other.area == self.area,
        }
    }
    fn is_near(&self, other: &Grant) -> bool {
        self.area.overlap(&other.area).is_some()
    }
}
