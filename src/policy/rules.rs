//! `[files]`: the paths of a policy, each an exact file or `dir/**`, each with a why.
//!
//! For: `policy/file.rs`. In: a TOML table. Out: `Rule`s. Never: accepts a path that could be read
//! two ways (`..`, `~`, a glob that is not a trailing `/**`).

use super::area::Area;
use super::base_view::KERNEL;
use super::source::{At, Reader, Table};
use std::path::{Path, PathBuf};

/// One line of `[files]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As written.
    pub text: String,
    /// The path is below the tool's own folder.
    pub relative: bool,
    /// A tree or one file; if `relative`, `area_at` puts the tool's folder before it.
    pub area: Area,
    pub why: String,
    pub at: At,
}

impl Rule {
    /// The rule for a tool that lies in `folder`.
    pub fn area_at(&self, folder: &Path) -> Area {
        match (&self.area, self.relative) {
            (Area::Tree(path), true) if path.as_os_str().is_empty() => Area::Tree(folder.to_path_buf()),
            (Area::Tree(path), true) => Area::Tree(folder.join(path)),
            (Area::File(path), true) => Area::File(folder.join(path)),
            (area, _) => area.clone(),
        }
    }
}

#[derive(Default)]
pub(super) struct Grants {
    pub read: Vec<Rule>,
    pub write: Vec<Rule>,
}

pub(super) fn files(reader: &mut Reader<'_>, top: &Table<'_, '_>) -> Grants {
    let Some(table) = reader.table(top, "files") else { return Grants::default() };
    reader.only(&table, &["read", "write"]);
    Grants { read: list(reader, &table, "read"), write: list(reader, &table, "write") }
}

fn list(reader: &mut Reader<'_>, table: &Table<'_, '_>, key: &str) -> Vec<Rule> {
    let mut found = Vec::new();
    for entry in reader.tables(table, key, "{ path = \"…\", why = \"…\" }") {
        let why = "say why this is granted; a grant without a reason is not loaded";
        let Some((path, why)) = reader.reasoned(&entry, "path", ["write an exact file or `dir/**`", why]) else {
            continue;
        };
        match area(&path.value) {
            Ok((relative, area)) => {
                found.push(Rule { text: path.value, relative, area, why, at: path.at });
            }
            Err(message) => reader.schema(entry.pointer_to("path"), path.at, message),
        }
    }
    found
}

/// Parses a rule's path: whether it is relative, and its area.
fn area(text: &str) -> Result<(bool, Area), String> {
    let shown = crate::base::text::printable(text);
    if text == "self" {
        return Err(
            "`self` needs no rule: the script itself can always be read (a file of that name is `./self`)".into()
        );
    }
    if text.starts_with('/') && text.trim_end_matches(['/', '*']).is_empty() {
        return Err("the whole file system is never granted; name the folders".into());
    }
    let tree = text.strip_suffix("/**").or(if text == "**" { Some(".") } else { None });
    let path = match tree {
        Some("." | "") => PathBuf::new(),
        Some(folder) => plain_path(folder)?,
        None if text == "." || text == "./" => {
            return Err("for the tool's own folder and all below write `./**`".into());
        }
        None if text.ends_with('/') => {
            let folder = shown.trim_end_matches('/');
            let mend = if folder.ends_with("/**") { folder.to_owned() } else { format!("{folder}/**") };
            // The mend is offered only if it would load; else its own fault is the answer.
            return area(&mend).and_then(|_| Err(format!("for the folder and all below write `{mend}`")));
        }
        None => plain_path(text)?,
    };
    if let Some(kernel) = KERNEL.iter().find(|kernel| path.starts_with(kernel)) {
        return Err(format!("nothing below {kernel} is ever granted: a tool has its own, made for it"));
    }
    let relative = !path.is_absolute();
    Ok((relative, if tree.is_some() { Area::Tree(path) } else { Area::File(path) }))
}

/// A path of plain components; a leading `./` is taken off.
pub(super) fn plain_path(text: &str) -> Result<PathBuf, String> {
    let shown = crate::base::text::printable(text);
    if text.is_empty() {
        return Err("a path is missing".into());
    }
    if text.contains('\0') || text.chars().any(char::is_control) {
        return Err(format!("`{shown}` holds a control character"));
    }
    if text.starts_with('~') {
        return Err(format!("`{shown}`: `~` is not read; write the absolute path"));
    }
    if text.contains(['*', '?', '[', ']', '{', '}']) {
        return Err(format!(
            "`{shown}`: a policy names an exact file or `dir/**`; no other pattern, so that it can be compared exactly"
        ));
    }
    let (lead, rest) = match text.strip_prefix('/') {
        Some(rest) => ("/", rest),
        None => ("", text.strip_prefix("./").unwrap_or(text)),
    };
    for part in rest.split('/') {
        match part {
            ".." => return Err(format!("`{shown}`: `..` is not allowed; write the path it leads to")),
            "" | "." => {
                return Err(format!(
                    "`{shown}` is not a clean path: write each folder once, without `//`, `/./` or a last `/`"
                ));
            }
            _ => {}
        }
    }
    Ok(Path::new(lead).join(rest))
}
