//! pylock.toml: the lock that every installer of Python can write (PEP 751).
//!
//! For: `python`; who resolves. In: its text, or what pip chose. Out: pins with hashes; the text. Never: an address or a path in it; a package without an index.

use super::files::{MOST, Text, shown};
use super::markers;
use super::python::Pin;
use super::requirements;
use crate::policy::FileProblem;
use crate::policy::packages::Ecosystem;
use crate::policy::versions;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Spanned, Value};

#[derive(Deserialize)]
struct Lock {
    #[serde(rename = "lock-version")]
    version: String,
    #[serde(default)]
    packages: Vec<Spanned<Locked>>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    vcs: Option<Value>,
    directory: Option<Value>,
    archive: Option<Value>,
    sdist: Option<File>,
    #[serde(default)]
    wheels: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

pub(super) fn read(file: &Text) -> Result<Vec<Pin>, FileProblem> {
    let lock: Lock = file.toml()?;
    if lock.version != "1.0" && !lock.version.starts_with("1.") {
        return Err(file.problem(0, format!("lock-version `{}` is not known here: 1.0 is", shown(&lock.version))));
    }
    if lock.packages.len() > MOST {
        return Err(file.problem(0, format!("more than {MOST} packages")));
    }
    lock.packages.iter().map(|package| pin(file, package)).collect()
}

fn pin(file: &Text, package: &Spanned<Locked>) -> Result<Pin, FileProblem> {
    let line = file.line(package.span().start);
    let Locked { name, version, marker, vcs, directory, archive, sdist, wheels } = package.get_ref();
    let bad = |why: &str| file.problem(line, format!("`{}`: {why}", shown(name)));
    let elsewhere = [("vcs", vcs), ("directory", directory), ("archive", archive)];
    if let Some((kind, _)) = elsewhere.iter().find(|(_, value)| value.is_some()) {
        return Err(bad(&format!("it is a `{kind}`, and packages come from the policy's index alone")));
    }
    let read = versions::name(Ecosystem::Python, name).ok_or_else(|| bad("this is no name of a package"))?;
    let version = version.as_deref().and_then(|text| versions::version(Ecosystem::Python, text));
    let version = version.ok_or_else(|| bad("it has no version, or none that is one"))?;
    let marker = marker.as_deref().map(markers::parse).transpose().map_err(|why| bad(&why))?;
    let all = sdist.iter().chain(wheels).flat_map(|file| &file.hashes);
    let known = all.filter(|(kind, _)| ["sha256", "sha384", "sha512"].contains(&kind.as_str()));
    let hashes = known.map(|(kind, digits)| requirements::hash(&format!("{kind}:{digits}")));
    let mut hashes = hashes.collect::<Result<Vec<_>, _>>().map_err(|why| bad(&why))?;
    hashes.sort();
    hashes.dedup();
    if hashes.is_empty() {
        return Err(bad("it has no hash (sha256, sha384 or sha512)"));
    }
    Ok(Pin { name: read, version, hashes, marker, line })
}

/// One package of pip's choice, and all files that the index has of it.
#[derive(Deserialize)]
struct Chosen {
    name: String,
    version: String,
    files: Vec<Offered>,
}

#[derive(Deserialize)]
struct Offered {
    name: String,
    url: String,
    sha256: String,
}

/// A lock as text (PEP 751), from what pip told of its choice.
pub fn of_choice(packages: &serde_json::Value) -> Option<String> {
    let packages: Vec<Chosen> = serde_json::from_value(packages.clone()).ok()?;
    let mut text = "lock-version = \"1.0\"\ncreated-by = \"toolhost\"\n".to_owned();
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    let file = |file: &Offered| {
        let (name, url, sha256) = (quoted(&file.name), quoted(&file.url), quoted(&file.sha256));
        format!("{{ name = {name}, url = {url}, hashes = {{ sha256 = {sha256} }} }}")
    };
    for Chosen { name, version, files } in packages {
        text.push_str(&format!("\n[[packages]]\nname = {}\nversion = {}\n", quoted(&name), quoted(&version)));
        let (wheels, sources): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.name.ends_with(".whl"));
        if let Some(source) = sources.first() {
            text.push_str(&format!("sdist = {}\n", file(source)));
        }
        let wheels: String = wheels.into_iter().map(|wheel| format!("    {},\n", file(wheel))).collect();
        text.push_str(&format!("wheels = [\n{wheels}]\n"));
    }
    Some(text)
}
