//! Requirement: one requirement of Python (PEP 508), without anything that says where from.
//!
//! For: requirements.txt, pyproject.toml, blocks in scripts. In: one line. Out: name, extras, versions, marker; or what is
//! refused and the mend. Never: a reference to an address, a repository or a file.

use super::files::shown;
use super::markers::{self, Marker};
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requirement {
    pub name: String,
    pub extras: BTreeSet<String>,
    /// Empty: any version.
    pub versions: String,
    pub marker: Option<Marker>,
    /// Where it stands.
    pub line: usize,
}

impl Requirement {
    /// As an installer is given it.
    pub fn text(&self) -> String {
        let extras: Vec<&str> = self.extras.iter().map(String::as_str).collect();
        let extras = if extras.is_empty() { String::new() } else { format!("[{}]", extras.join(",")) };
        let marker = self.marker.as_ref().map_or_else(String::new, |marker| format!(" ; {marker}"));
        format!("{}{extras}{}{marker}", self.name, self.versions)
    }

    /// The one version that fits.
    pub fn pin(&self) -> Option<String> {
        let only = self.versions.strip_prefix("==")?.trim_start_matches('=');
        versions::version(Ecosystem::Python, only)
    }
}

/// What chooses where from, by how it begins, and its name.
const REFERENCES: [(&str, &str); 8] = [
    ("git+", "a git reference"),
    ("hg+", "a Mercurial reference"),
    ("svn+", "a Subversion reference"),
    ("bzr+", "a Bazaar reference"),
    ("file:", "a file reference"),
    ("http://", "a URL"),
    ("https://", "a URL"),
    ("ssh://", "a URL"),
];

pub(super) fn parse(text: &str, line: usize) -> Result<Requirement, String> {
    let text = text.trim();
    let whole = shown(text);
    if let Some((_, what)) = REFERENCES.iter().find(|(begin, _)| text.starts_with(begin)) {
        return Err(elsewhere(&whole, what));
    }
    let archive = [".whl", ".tar.gz", ".zip"].iter().any(|ending| text.ends_with(ending)) && !text.contains('@');
    if archive || text.starts_with(['.', '/', '~']) {
        return Err(elsewhere(&whole, "a file reference"));
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let name = versions::name(Ecosystem::Python, name)
        .ok_or_else(|| format!("`{whole}` is no requirement: it begins with no name of a package"))?;
    let (extras, rest) = extras(rest.trim_start(), &whole)?;
    if let Some(target) = rest.trim_start().strip_prefix('@') {
        let begin = |(begin, _): &&(&str, &str)| target.trim_start().starts_with(begin);
        let what = REFERENCES.iter().find(begin).map_or("a reference", |(_, what)| what);
        return Err(elsewhere(&whole, what));
    }
    let (range, marker) = match rest.split_once(';') {
        None => (rest, None),
        Some((range, marker)) => (range, Some(markers::parse(marker).map_err(|why| format!("`{whole}`: {why}"))?)),
    };
    let range = range.trim();
    let range = range.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(range);
    let versions: String = range.chars().filter(|c| !c.is_whitespace()).collect();
    if !versions::is_range(Ecosystem::Python, &versions) {
        return Err(format!(
            "`{whole}`: `{}` is no range of versions: write for example `{name}>=1.2,<2`",
            shown(range)
        ));
    }
    Ok(Requirement { name, extras, versions, marker, line })
}

fn extras<'t>(rest: &'t str, whole: &str) -> Result<(BTreeSet<String>, &'t str), String> {
    let Some(inner) = rest.strip_prefix('[') else { return Ok((BTreeSet::new(), rest)) };
    let (inner, rest) = inner.split_once(']').ok_or_else(|| format!("`{whole}`: a `]` is missing"))?;
    let named = inner.split(',').map(str::trim).filter(|extra| !extra.is_empty());
    let read = |extra: &str| {
        versions::name(Ecosystem::Python, extra).ok_or_else(|| format!("`{whole}`: `{}` is no extra", shown(extra)))
    };
    Ok((named.map(read).collect::<Result<_, _>>()?, rest))
}

fn elsewhere(whole: &str, what: &str) -> String {
    format!("`{whole}` is {what}, and packages come from the policy's index alone: write a name and versions of it")
}
