//! package.json: `dependencies` and `optionalDependencies`, and nothing else of it.
//!
//! For: `node`. In: its text. Out: requirements by name. Never: a script of it; a version that says where from.

use super::files::{MOST, Text, shown};
use crate::base::json::{self, Dialect, Document, escape_segment};
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use serde_json::Value;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Required {
    pub name: String,
    pub versions: String,
    pub optional: bool,
    pub line: usize,
}

/// Fields that choose where from, change what a lock holds, or run something, and what to do instead.
const REFUSED: [(&str, &str); 10] = [
    ("overrides", "changes what packages require: require the version that is meant in `dependencies`"),
    ("resolutions", "changes what packages require: require the version that is meant in `dependencies`"),
    ("pnpm", "is the settings of an installer: take it out"),
    ("workspaces", "installs other folders: give the script a folder of its own"),
    ("catalog", "names versions in another place: write them in `dependencies`"),
    ("catalogs", "names versions in another place: write them in `dependencies`"),
    ("bundleDependencies", "brings packages from elsewhere: take it out"),
    ("bundledDependencies", "brings packages from elsewhere: take it out"),
    ("patchedDependencies", "changes packages: take it out"),
    ("trustedDependencies", "says which packages may build: the policy says that (`builds`); take it out"),
];
/// Requirements of which each is told with its line.
const MOST_PLACES: usize = 200;
/// Scripts that an installer would run for the folder itself.
const HOOKS: [&str; 7] = ["preinstall", "install", "postinstall", "preprepare", "prepare", "postprepare", "prepublish"];

/// The text as JSON. `dialect`: bun's lock has commas that JSON has not.
pub(super) fn parse(file: &Text, dialect: Dialect) -> Result<Document<'_>, FileProblem> {
    json::parse(file.text.as_bytes(), dialect)
        .map_err(|bad| file.problem(bad.line, format!("it cannot be read: {}", bad.message)))
}

pub(super) fn read(file: &Text) -> Result<Vec<Required>, FileProblem> {
    let document = parse(file, Dialect::Strict)?;
    let (mut found, mut names): (Vec<Required>, BTreeSet<String>) = Default::default();
    for (field, optional) in [("optionalDependencies", true), ("dependencies", false)] {
        let listed = table(file, &document, field)?;
        if listed.len() > MOST {
            return Err(file.problem(0, format!("more than {MOST} packages")));
        }
        // Each look for a place goes through the text: none for a list that nobody reads.
        let few = listed.len() <= MOST_PLACES;
        let line = |name: &str| match few {
            true => document.place_of_key(&format!("/{field}/{}", escape_segment(name))).0,
            false => 0,
        };
        for (name, range) in listed {
            let bad = |why: String| Err(file.problem(line(name), format!("`{}`: {why}", shown(name))));
            let Some(read) = versions::name(Ecosystem::Node, name) else {
                return bad("this is no name of a package".to_owned());
            };
            let Some(range) = range.as_str() else { return bad("its versions are no text".to_owned()) };
            if !versions::is_range(Ecosystem::Node, range) {
                return bad(no_range(range));
            }
            // What stands in both is optional, as npm has it.
            if names.insert(read.clone()) {
                found.push(Required { name: read, versions: range.to_owned(), optional, line: line(name) });
            }
        }
    }
    if found.is_empty() {
        return Ok(found);
    }
    let filled = |field: &str| document.value.get(field).is_some_and(|value| !empty(value));
    if let Some((field, why)) = REFUSED.iter().find(|(field, _)| filled(field)) {
        return Err(file.problem(document.place_of_key(&format!("/{field}")).0, format!("`{field}` {why}")));
    }
    if let Some(hook) = HOOKS.iter().find(|hook| document.value["scripts"].get(hook).is_some()) {
        let line = document.place_of_key(&format!("/scripts/{hook}")).0;
        return Err(file.problem(
            line,
            format!("the script `{hook}` would be run by an installer, and nothing here runs it: take it out"),
        ));
    }
    if found.len() > MOST {
        return Err(file.problem(0, format!("more than {MOST} requirements")));
    }
    Ok(found)
}

pub(super) fn empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn table<'d>(file: &Text, document: &'d Document<'_>, key: &str) -> Result<Vec<(&'d String, &'d Value)>, FileProblem> {
    match document.value.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Object(members)) => Ok(members.iter().collect()),
        Some(_) => Err(file.problem(document.place_of_key(&format!("/{key}")).0, format!("`{key}` is no object"))),
    }
}

/// What a text that is no range asks for, and the mend.
pub(super) fn no_range(text: &str) -> String {
    let kinds = [
        ("npm:", "an alias of another package"),
        ("file:", "a file reference"),
        ("link:", "a link to a folder"),
        ("portal:", "a link to a folder"),
        ("workspace:", "a folder of a workspace"),
        ("catalog:", "a version in another place"),
        ("patch:", "a patch"),
        ("git", "a git reference"),
        ("github:", "a git reference"),
        ("http:", "a URL"),
        ("https:", "a URL"),
        (".", "a file reference"),
        ("/", "a file reference"),
        ("~/", "a file reference"),
    ];
    let known = kinds.iter().find(|(begin, _)| text.starts_with(begin)).map(|(_, what)| *what);
    let what = known.unwrap_or(if text.contains('/') { "a git reference" } else { "no range of versions" });
    format!(
        "`{}` is {what}, and packages come from the policy's index by name and version alone: write for example `^1.2.0`",
        shown(text)
    )
}
