//! Node: which files say what a script of Node or Bun requires, and which of them wins.
//!
//! For: `found`. In: the script's folder. Out: `Wanted`. Never: a file that was not checked whole, whether it wins or not.

use super::agree;
use super::files::{Folder, Text};
use super::tree::{self, Tree};
use super::{bun_lock, npm_lock, package_json};
use crate::policy::FileProblem;
use crate::policy::packages::{Ecosystem, Required, Source, Wanted};
use crate::policy::versions;

/// All names that say something, beside the folder that `npm install` fills.
pub(super) const NAMES: [&str; 10] = [
    "package.json",
    "npm-shrinkwrap.json",
    "package-lock.json",
    "bun.lock",
    "bun.lockb",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    "bunfig.toml",
    "node_modules",
];
const SETTINGS: [&str; 4] = [".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml"];
/// The first that is there wins, as npm has it; bun's comes last.
type Reader = fn(&Text) -> Result<Tree, FileProblem>;
const LOCKS: [(&str, Reader); 3] =
    [("npm-shrinkwrap.json", npm_lock::read), ("package-lock.json", npm_lock::read), ("bun.lock", bun_lock::read)];

/// `anew`: as if there were no package-lock.json.
pub(super) fn find(folder: &Folder<'_>, anew: bool) -> Result<Option<Wanted>, FileProblem> {
    let Some(file) = folder.read("package.json")? else { return Ok(None) };
    let asked = package_json::read(&file)?;
    if asked.is_empty() {
        return Ok(None);
    }
    folder.without(&SETTINGS)?;
    let mut locks: Vec<(Text, Tree)> = Vec::new();
    for (name, read) in LOCKS.into_iter().filter(|(name, _)| !(anew && *name == "package-lock.json")) {
        if let Some(file) = folder.read(name)? {
            let tree = read(&file)?;
            locks.push((file, tree));
        }
    }
    if locks.is_empty() && folder.has("bun.lockb") {
        let why = "the lock beside it, bun.lockb, is no text: `bun install --save-text-lockfile` writes bun.lock";
        return Err(file.problem(0, why));
    }
    let top = |tree: &Tree| {
        let places = tree.iter().filter(|(place, _)| tree::names(place).is_some_and(|names| names.len() == 1));
        places.map(|(place, entry)| (place["node_modules/".len()..].to_owned(), entry.version.clone())).collect()
    };
    let pins: Vec<(&Text, agree::Pins)> = locks.iter().map(|(file, tree)| (file, top(tree))).collect();
    agree::same_pins(&pins)?;
    wanted(&file, &asked, &locks).map(Some)
}

/// `asked`: a package.json. Every requirement is held to the lock.
pub(super) fn of_lock(asked: &Text, lock: Text) -> Result<Wanted, FileProblem> {
    let tree = npm_lock::read(&lock)?;
    wanted(asked, &package_json::read(asked)?, &[(lock, tree)])
}

fn wanted(file: &Text, asked: &[package_json::Required], locks: &[(Text, Tree)]) -> Result<Wanted, FileProblem> {
    let ecosystem = Ecosystem::Node;
    let sources: Vec<Source> =
        std::iter::once(file).chain(locks.iter().map(|(file, _)| file)).map(Text::source).collect();
    let requires = asked.iter().map(|required| Required {
        name: required.name.clone(),
        versions: required.versions.clone(),
        pinned: versions::pins(ecosystem, &required.versions),
        place: file.place(required.line),
    });
    let requires: Vec<Required> = requires.collect();
    let Some((lock, tree)) = locks.first() else {
        let inputs = tree::inputs(asked, None);
        return Ok(Wanted { ecosystem, sources, packages: Vec::new(), locked: false, inputs, requires });
    };
    for required in asked {
        met(file, required, lock, tree)?;
    }
    let needed = tree::needed(tree, asked, lock)?;
    let packages = tree::packages(tree, &needed);
    let inputs = tree::inputs(asked, Some((tree, &needed)));
    Ok(Wanted { ecosystem, sources, packages, locked: true, inputs, requires })
}

/// The lock holds it under its own name, at a version that fits.
fn met(file: &Text, required: &package_json::Required, lock: &Text, tree: &Tree) -> Result<(), FileProblem> {
    let held = tree.get(&format!("node_modules/{}", required.name));
    let why = match held {
        None if required.optional => return Ok(()),
        None => "does not hold it".to_owned(),
        Some(entry) if entry.name != required.name => format!("holds `{}` in its place", entry.name),
        Some(entry) => match versions::holds(Ecosystem::Node, &required.versions, &entry.version) {
            Some(true) => return Ok(()),
            _ => format!("holds {}", entry.version),
        },
    };
    let words = format!("`{} {}` is required, and {} {why}: lock anew", required.name, required.versions, lock.name());
    Err(file.problem(required.line, words))
}
