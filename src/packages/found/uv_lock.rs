//! uv.lock: the packages that the project, or one script, leads to, with the markers under which each is needed.
//!
//! For: `python`. In: its text. Out: pins with hashes. Never: an address in it; a package that is not from an index.

use super::files::{MOST, Text, shown};
use super::markers;
use super::python::Pin;
use super::requirements;
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Spanned, Value};

#[derive(Deserialize)]
struct Lock {
    version: i64,
    #[serde(default)]
    package: Vec<Spanned<Locked>>,
    #[serde(default)]
    manifest: Manifest,
}

/// What a lock of one script was made for.
#[derive(Deserialize, Default)]
struct Manifest {
    #[serde(default)]
    requirements: Vec<Edge>,
    overrides: Option<Value>,
    constraints: Option<Value>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: Option<String>,
    #[serde(default)]
    source: BTreeMap<String, Value>,
    #[serde(default)]
    dependencies: Vec<Edge>,
    #[serde(default, rename = "optional-dependencies")]
    optional: BTreeMap<String, Vec<Edge>>,
    sdist: Option<File>,
    #[serde(default)]
    wheels: Vec<File>,
}

#[derive(Deserialize)]
struct Edge {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    #[serde(default, alias = "extras")]
    extra: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    hash: Option<String>,
}

/// Either of them is enough; of each, all must hold. One empty set: always.
type Conditions = BTreeSet<BTreeSet<String>>;
/// A package of the lock, or one of its extras.
type Node = (usize, Option<String>);
/// Most ways to need one package, each under other markers; most markers of one; most steps of a walk.
const MOST_WAYS: usize = 64;
const MOST_MARKERS: usize = 16;
const MOST_STEPS: usize = 10 * MOST;

/// `project`: the name of the project that the lock is for; `None`: of one script.
pub(super) fn read(file: &Text, project: Option<&str>) -> Result<Vec<Pin>, FileProblem> {
    let lock: Lock = file.toml()?;
    if lock.version != 1 {
        return Err(file.problem(0, format!("a lock of version {} is not known here: version 1 is", lock.version)));
    }
    if lock.manifest.overrides.is_some() || lock.manifest.constraints.is_some() {
        return Err(file.problem(0, "[manifest] has overrides or constraints, which are not read: lock without them"));
    }
    if lock.package.len() > MOST {
        return Err(file.problem(0, format!("more than {MOST} packages")));
    }
    let mut root = None;
    for (index, package) in lock.package.iter().enumerate() {
        let line = file.line(package.span().start);
        let Locked { name, source, .. } = package.get_ref();
        let kind = source.keys().next().map_or("", String::as_str);
        let own = versions::name(Ecosystem::Python, name).as_deref() == project && project.is_some();
        match kind {
            "registry" => {}
            "virtual" | "editable" if own && root.is_none() => root = Some(index),
            _ => {
                let why = format!(
                    "`{}` comes from `{}`, and packages come from the policy's index alone",
                    shown(name),
                    shown(kind)
                );
                return Err(file.problem(line, why));
            }
        }
    }
    let edges: &[Edge] = match (root, project) {
        (Some(root), _) => &lock.package[root].get_ref().dependencies,
        (None, None) => &lock.manifest.requirements,
        (None, Some(project)) => {
            let why = format!(
                "it is not the lock of this project: no package `{project}` is its own; `uv lock` makes it anew"
            );
            return Err(file.problem(0, why));
        }
    };
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, package) in lock.package.iter().enumerate() {
        by_name.entry(&package.get_ref().name).or_default().push(index);
    }
    let graph = Graph { file, packages: &lock.package, by_name };
    let needed = graph.needed(edges)?;
    needed
        .iter()
        .filter(|((index, extra), _)| extra.is_none() && Some(*index) != root)
        .map(|((index, _), when)| graph.pin(*index, when))
        .collect()
}

struct Graph<'a> {
    file: &'a Text,
    packages: &'a [Spanned<Locked>],
    by_name: BTreeMap<&'a str, Vec<usize>>,
}

impl Graph<'_> {
    /// Each package that is needed, and when.
    fn needed(&self, edges: &[Edge]) -> Result<BTreeMap<Node, Conditions>, FileProblem> {
        let always: Conditions = BTreeSet::from([BTreeSet::new()]);
        let mut needed: BTreeMap<Node, Conditions> = BTreeMap::new();
        let mut changed: Vec<Node> = Vec::new();
        for edge in edges {
            self.follow(edge, &always, &mut needed, &mut changed)?;
        }
        let mut steps = 0;
        while let Some(node) = changed.pop() {
            steps += 1;
            if steps > MOST_STEPS {
                return Err(self.file.problem(0, "its markers are too intricate: lock for fewer environments"));
            }
            let (Some(when), Some(package)) = (needed.get(&node).cloned(), self.packages.get(node.0)) else { continue };
            let package = package.get_ref();
            let edges = match &node.1 {
                None => Some(&package.dependencies),
                Some(extra) => package.optional.get(extra),
            };
            for edge in edges.into_iter().flatten() {
                steps += 1;
                self.follow(edge, &when, &mut needed, &mut changed)?;
            }
        }
        Ok(needed)
    }

    fn follow(
        &self,
        edge: &Edge,
        when: &Conditions,
        needed: &mut BTreeMap<Node, Conditions>,
        changed: &mut Vec<Node>,
    ) -> Result<(), FileProblem> {
        let named = self.by_name.get(edge.name.as_str()).into_iter().flatten().copied();
        let fits = |at: &usize| edge.version.is_none() || self.packages[*at].get_ref().version == edge.version;
        let found: Vec<usize> = named.filter(fits).collect();
        if found.is_empty() {
            return Err(self.file.problem(0, format!("it requires `{}` and does not hold it", shown(&edge.name))));
        }
        let marker = edge.marker.as_deref().map(markers::parse).transpose();
        let marker = marker.map_err(|why| self.file.problem(0, format!("`{}`: {why}", shown(&edge.name))))?;
        let when: Conditions = match marker.map(|marker| marker.to_string()) {
            None => when.clone(),
            Some(marker) => when.iter().map(|all| all.iter().cloned().chain([marker.clone()]).collect()).collect(),
        };
        for at in found {
            let extras = edge.extra.iter().map(|extra| (at, Some(extra.clone())));
            for node in std::iter::once((at, None)).chain(extras) {
                let known = needed.entry(node.clone()).or_default();
                if add(known, &when) {
                    if known.len() > MOST_WAYS || known.iter().any(|way| way.len() > MOST_MARKERS) {
                        let why = format!(
                            "`{}` is needed in more than {MOST_WAYS} ways: lock for fewer environments",
                            shown(&edge.name)
                        );
                        return Err(self.file.problem(0, why));
                    }
                    changed.push(node);
                }
            }
        }
        Ok(())
    }

    fn pin(&self, at: usize, when: &Conditions) -> Result<Pin, FileProblem> {
        let package = &self.packages[at];
        let line = self.file.line(package.span().start);
        let bad = |why: &str| self.file.problem(line, format!("`{}`: {why}", shown(&package.get_ref().name)));
        let Locked { name, version, sdist, wheels, .. } = package.get_ref();
        let name = versions::name(Ecosystem::Python, name).ok_or_else(|| bad("this is no name of a package"))?;
        let version = version.as_deref().and_then(|text| versions::version(Ecosystem::Python, text));
        let version = version.ok_or_else(|| bad("it has no version, or none that is one"))?;
        let files = sdist.iter().chain(wheels).filter_map(|file| file.hash.as_deref());
        let mut hashes = files.map(requirements::hash).collect::<Result<Vec<_>, _>>().map_err(|why| bad(&why))?;
        hashes.sort();
        hashes.dedup();
        if hashes.is_empty() {
            return Err(bad("it has no hash: lock again with an index that tells them"));
        }
        let ways: Vec<String> =
            when.iter().map(|all| all.iter().map(|one| format!("({one})")).collect::<Vec<_>>().join(" and ")).collect();
        let marker = match ways.iter().any(String::is_empty) {
            true => None,
            false => Some(markers::parse(&ways.join(" or ")).map_err(|why| bad(&why))?),
        };
        Ok(Pin { name, version, hashes, marker, line })
    }
}

/// Adds ways that no known one holds already; true if one was new.
fn add(known: &mut Conditions, more: &Conditions) -> bool {
    let mut changed = false;
    for way in more {
        if !known.iter().any(|other| other.is_subset(way)) {
            known.retain(|other| !way.is_subset(other));
            known.insert(way.clone());
            changed = true;
        }
    }
    changed
}
