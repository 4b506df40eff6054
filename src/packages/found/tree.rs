//! Tree: the packages of a lock of Node as they lie below each other, and the lock that an installer is given.
//!
//! For: `npm_lock`, `bun_lock`, `node`. In: what a lock says of each place. Out: the places that are needed, written as a
//! lock of npm without addresses. Never: a place that is not `node_modules/NAME` over and over; a package without a hash.

use super::files::{Text, shown};
use super::package_json::{Required, no_range};
use crate::policy::FileProblem;
use crate::policy::packages::{Ecosystem, Package};
use crate::policy::versions;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most packages below each other.
const DEEPEST: usize = 32;

/// One place of a lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// What the index calls it; its place may have another name.
    pub name: String,
    pub version: String,
    /// Empty for what lies inside the archive of the package around it.
    pub hashes: Vec<String>,
    pub in_bundle: bool,
    pub dependencies: BTreeMap<String, String>,
    pub optional: BTreeMap<String, String>,
    pub peers: BTreeMap<String, String>,
    /// `os`, `cpu`, `libc`: where it is for.
    pub only: BTreeMap<&'static str, Vec<String>>,
    pub bin: BTreeMap<String, String>,
    pub has_install_script: bool,
}

/// By place: `node_modules/a/node_modules/b`.
pub(super) type Tree = BTreeMap<String, Entry>;

/// The names along a place; `None`: it is none.
pub(super) fn names(place: &str) -> Option<Vec<&str>> {
    let rest = place.strip_prefix("node_modules/")?;
    let names: Vec<&str> = rest.split("/node_modules/").collect();
    let good = names.len() <= DEEPEST && names.iter().all(|name| versions::name(Ecosystem::Node, name).is_some());
    good.then_some(names)
}

/// What one place of a lock says, as both formats write it.
pub(super) fn entry(said: &Value, name: &str) -> Result<Entry, String> {
    let mut entry = Entry { name: name.to_owned(), ..Entry::default() };
    for (field, to) in [
        ("dependencies", &mut entry.dependencies),
        ("optionalDependencies", &mut entry.optional),
        ("peerDependencies", &mut entry.peers),
    ] {
        *to = edges(&said[field])?;
    }
    for field in ["os", "cpu", "libc"] {
        let words = words(&said[field]).ok_or_else(|| format!("`{field}` is no list of short words"))?;
        if !words.is_empty() {
            entry.only.insert(field, words);
        }
    }
    entry.bin = bin(&said["bin"], name)?;
    entry.has_install_script = said["hasInstallScript"] == true;
    entry.in_bundle = said["inBundle"] == true;
    Ok(entry)
}

/// Name → range, or an alias with both.
fn edges(said: &Value) -> Result<BTreeMap<String, String>, String> {
    let members = match said {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(members) => members,
        _ => return Err("what it requires is no object".to_owned()),
    };
    let mut found = BTreeMap::new();
    for (name, range) in members {
        let known = versions::name(Ecosystem::Node, name)
            .ok_or_else(|| format!("`{}` is no name of a package", shown(name)))?;
        let range = range.as_str().unwrap_or_default();
        let alias = range.strip_prefix("npm:").and_then(split);
        let good = match alias {
            Some((name, range)) => versions::name(Ecosystem::Node, name).is_some() && loose(range),
            None => loose(range),
        };
        if !good {
            return Err(format!("it requires `{}`: {}", shown(name), no_range(range)));
        }
        found.insert(known, range.to_owned());
    }
    Ok(found)
}

/// A range, or a tag: the lock says which version that was.
fn loose(range: &str) -> bool {
    let tag = |text: &str| {
        !text.is_empty() && text.len() < 40 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    versions::is_range(Ecosystem::Node, range) || tag(range)
}

/// `name@version`, where the name may begin with `@`.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    let at = text.rfind('@').filter(|at| *at > 0)?;
    Some((&text[..at], &text[at + 1..]))
}

fn words(said: &Value) -> Option<Vec<String>> {
    let plain = |word: &&str| {
        !word.is_empty() && word.len() < 40 && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"!_-".contains(&b))
    };
    let word = |value: &Value| value.as_str().filter(plain).map(str::to_owned);
    match said {
        Value::Null => Some(Vec::new()),
        Value::String(_) => Some(vec![word(said)?]),
        Value::Array(items) => items.iter().map(word).collect(),
        _ => None,
    }
}

/// Programs of a package: name → a path inside of it.
fn bin(said: &Value, name: &str) -> Result<BTreeMap<String, String>, String> {
    let own = name.rsplit('/').next().unwrap_or(name);
    let given: Vec<(&str, &Value)> = match said {
        Value::Null => Vec::new(),
        Value::String(_) => vec![(own, said)],
        Value::Object(members) => members.iter().map(|(name, path)| (name.as_str(), path)).collect(),
        _ => return Err("`bin` is no object".to_owned()),
    };
    let mut found = BTreeMap::new();
    for (program, path) in given {
        let inside = path.as_str().map(|path| path.strip_prefix("./").unwrap_or(path)).filter(|path| {
            let parts = || path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
            path.len() < 400 && parts() && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/+@".contains(&b))
        });
        let known = versions::name(Ecosystem::Node, program).filter(|program| !program.starts_with('@'));
        let (Some(program), Some(path)) = (known, inside) else {
            return Err(format!("its program `{}` is no path inside of the package", shown(program)));
        };
        found.insert(program, path.to_owned());
    }
    Ok(found)
}

/// `sha512-…` and the like, the strong ones of a list.
pub(super) fn integrity(text: &str) -> Result<Vec<String>, String> {
    let length = |kind: &str| match kind {
        "sha256" => Some(44),
        "sha384" => Some(64),
        "sha512" => Some(88),
        _ => None,
    };
    let strong = |hash: &&str| {
        hash.split_once('-').is_some_and(|(kind, digits)| {
            let body = digits.trim_end_matches('=');
            length(kind) == Some(digits.len()) && body.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/".contains(&b))
        })
    };
    let found: Vec<String> = text.split_ascii_whitespace().filter(strong).map(str::to_owned).collect();
    match found.is_empty() {
        true => Err(format!("`{}` is no hash that counts: sha512, sha384 or sha256", shown(text))),
        false => Ok(found),
    }
}

/// The places that the requirements lead to, each with whether all ways there are optional.
pub(super) fn needed(tree: &Tree, required: &[Required], lock: &Text) -> Result<BTreeMap<String, bool>, FileProblem> {
    let mut found: BTreeMap<String, bool> = BTreeMap::new();
    let mut open: Vec<(String, bool)> = Vec::new();
    for Required { name, optional, .. } in required {
        let place = format!("node_modules/{name}");
        if tree.contains_key(&place) {
            open.push((place, *optional));
        }
    }
    while let Some((place, optional)) = open.pop() {
        // Once more only where it was thought optional and is not.
        if found.get(&place).is_some_and(|known| !known || optional) {
            continue;
        }
        found.insert(place.clone(), optional);
        let Some(entry) = tree.get(&place) else { continue };
        let hard =
            entry.dependencies.keys().filter(|name| !entry.optional.contains_key(*name)).map(|name| (name, false));
        let soft = entry.optional.keys().chain(entry.peers.keys()).map(|name| (name, true));
        for (name, soft) in hard.chain(soft) {
            let peer = entry.peers.contains_key(name);
            match resolved(tree, &place, name) {
                Some(to) => open.push((to, optional || (soft && !peer))),
                None if soft || optional => {}
                None => {
                    let why = format!(
                        "`{}` requires `{}`, which the lock does not hold: lock anew",
                        shown(&entry.name),
                        shown(name)
                    );
                    return Err(lock.problem(0, why));
                }
            }
        }
    }
    Ok(found)
}

/// Where Node finds a package that is required from a place.
fn resolved(tree: &Tree, from: &str, name: &str) -> Option<String> {
    let mut above = Some(from);
    while let Some(place) = above {
        let candidate = format!("{place}/node_modules/{name}");
        if tree.contains_key(&candidate) {
            return Some(candidate);
        }
        above = place.rsplit_once("/node_modules/").map(|(above, _)| above);
    }
    let top = format!("node_modules/{name}");
    tree.contains_key(&top).then_some(top)
}

/// The packages of these places. What lies in another's archive has the hash of that.
pub(super) fn packages(tree: &Tree, needed: &BTreeMap<String, bool>) -> Vec<Package> {
    let hashes = |place: &str| {
        let mut at = place;
        loop {
            match (tree.get(at), at.rsplit_once("/node_modules/")) {
                (Some(entry), Some((above, _))) if entry.in_bundle => at = above,
                (entry, _) => return entry.map(|entry| entry.hashes.clone()).unwrap_or_default(),
            }
        }
    };
    let one = |place: &String| {
        let entry = tree.get(place)?;
        Some(Package { name: entry.name.clone(), version: entry.version.clone(), hashes: hashes(place) })
    };
    needed.keys().filter_map(one).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What an installer is given: package.json, and a lock of npm of version 3 without addresses.
pub(super) fn inputs(required: &[Required], locked: Option<(&Tree, &BTreeMap<String, bool>)>) -> Vec<(String, String)> {
    let of = |optional: bool| -> Map<String, Value> {
        required.iter().filter(|r| r.optional == optional).map(|r| (r.name.clone(), json!(r.versions))).collect()
    };
    let mut root = Map::from_iter([("name".to_owned(), json!("packages")), ("version".to_owned(), json!("0.0.0"))]);
    for (field, members) in [("dependencies", of(false)), ("optionalDependencies", of(true))] {
        if !members.is_empty() {
            root.insert(field.to_owned(), Value::Object(members));
        }
    }
    let mut own = root.clone();
    own.insert("private".to_owned(), json!(true));
    let mut inputs = vec![("package.json".to_owned(), format!("{:#}\n", Value::Object(own)))];
    if let Some((tree, needed)) = locked {
        let mut places = Map::from_iter([(String::new(), Value::Object(root))]);
        places.extend(
            needed.iter().filter_map(|(place, optional)| {
                Some((place.clone(), written(tree, tree.get(place)?, place, *optional)))
            }),
        );
        let lock = json!({ "name": "packages", "version": "0.0.0", "lockfileVersion": 3, "requires": true, "packages": places });
        inputs.push(("package-lock.json".to_owned(), format!("{lock:#}\n")));
    }
    inputs
}

/// Of what a package can do without, only what lies there and fits: an installer would miss the rest in the lock.
fn written(tree: &Tree, entry: &Entry, place: &str, optional: bool) -> Value {
    let there = |edges: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let fits = |name: &str, range: &str| {
            let found = resolved(tree, place, name).and_then(|place| tree.get(&place));
            found.is_some_and(|to| versions::holds(Ecosystem::Node, range, &to.version) != Some(false))
        };
        edges.iter().filter(|(name, range)| fits(name, range)).map(|(n, r)| (n.clone(), r.clone())).collect()
    };
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| {
        if !super::package_json::empty(&value) {
            out.insert(key.to_owned(), value);
        }
    };
    if names(place).and_then(|names| names.last().copied()) != Some(entry.name.as_str()) {
        put("name", json!(entry.name));
    }
    put("version", json!(entry.version));
    if !entry.hashes.is_empty() {
        put("integrity", json!(entry.hashes.join(" ")));
    }
    put("inBundle", json!(entry.in_bundle));
    put("optional", json!(optional));
    put("hasInstallScript", json!(entry.has_install_script));
    put("dependencies", json!(entry.dependencies));
    put("optionalDependencies", json!(there(&entry.optional)));
    put("peerDependencies", json!(there(&entry.peers)));
    for (field, words) in &entry.only {
        put(field, json!(words));
    }
    put("bin", json!(entry.bin));
    Value::Object(out)
}
