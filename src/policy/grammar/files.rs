//! The rules of `[files]`, and grants of files.
//!
//! A rule is an exact file or `dir/**`. Two rules are never joined into a wider one.

use super::area::{Access, Area, Opening};
use super::base_view::KERNEL;
use super::grantable::Grantable;
use crate::base::text;
use crate::manifest::At;
use crate::manifest::reader::Reader;
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    pub access: Access,
    pub opening: Opening,
    pub asked: String,
    pub rule: String,
    pub why: String,
}

impl Grant {
    /// The folder of a read grant that the manifest requested with `base:`.
    pub fn base_tree(&self) -> Option<&Path> {
        (self.access == Access::Read && self.asked.starts_with("base:"))
            .then(|| self.opening.folder())
    }
}

impl Grantable for Grant {
    fn kind(&self) -> &'static str {
        self.access.name()
    }
    fn text(&self) -> String {
        let staged = if matches!(self.opening, Opening::Staged { .. }) {
            " (staged)"
        } else {
            ""
        };
        format!(
            "{} {}{staged}",
            self.kind(),
            Area::from_opening(&self.opening).text()
        )
    }
    fn covers(&self, other: &Grant) -> bool {
        // Code is loaded from a tree that is read by `base:` (`written_areas`), so another grant
        // does not cover it.
        if self.access < other.access || other.base_tree().is_some() && self.base_tree().is_none() {
            return false;
        }
        let live = matches!(self.opening, Opening::Live { .. });
        let wide = Area::from_opening(&self.opening);
        let narrow = Area::from_opening(&other.opening);
        if live {
            narrow.within(&wide)
        } else {
            narrow == wide
        }
    }
    fn is_near(&self, other: &Grant) -> bool {
        Area::from_opening(&self.opening)
            .overlap(&Area::from_opening(&other.opening))
            .is_some()
    }
}
