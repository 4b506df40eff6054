//! Compares what an installer left with the approved list: every distribution in the tree must be
//! on that list.

use super::tree::{Item, TreeError, hostile, shown};
use crate::base::files::{self, open_at};
use crate::policy::packages::{Ecosystem, Package, Required};
use crate::policy::{Program, Runtime, versions};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Largest description of a package, and largest list of the files of one, that is read, bytes.
const MAX_METADATA_BYTES: u64 = 4 << 20;
const MAX_RECORD_BYTES: u64 = 32 << 20;

/// A copy of a package that lies inside another one, where no installer put it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Vendored {
    pub name: String,
    pub version: String,
    /// Below the tree.
    pub path: String,
}

/// A package found in the tree: its place, as the lock names places (`None`: where no installer
/// puts packages), its name and its version.
type Distribution = (Option<String>, String, String);

/// Compares the tree with the lock: each place must hold the package that the lock has for it.
/// `site`: the folder of packages in the tree. Returns the copies of packages that lie elsewhere.
pub fn compare(
    root: BorrowedFd,
    items: &[Item],
    site: &str,
    ecosystem: Ecosystem,
    approved: &BTreeMap<String, Package>,
) -> Result<Vec<Vendored>, TreeError> {
    let mut vendored = Vec::new();
    let mut met = BTreeMap::new();
    for item in items {
        let Some(below) = item
            .path
            .strip_prefix(site)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            continue;
        };
        let found = match ecosystem {
            Ecosystem::Python => python(root, item, below)?,
            Ecosystem::Node => node(root, item, below)?,
        };
        let Some((place, name, version)) = found else {
            continue;
        };
        let Some(place) = place else {
            vendored.push(Vendored {
                name,
                version,
                path: item.path.clone(),
            });
            continue;
        };
        let why = match (
            approved.get(&place).is_some_and(|it: &Package| {
                it.name == name && versions::are_same(ecosystem, &it.version, &version)
            }),
            met.insert(place, item),
        ) {
            (false, _) => "was installed, and is not in the lock at this place",
            (true, Some(_)) => "is installed twice",
            (true, None) => continue,
        };
        return hostile(
            &item.path,
            &format!("`{} {}` {why}", shown(&name), shown(&version)),
        );
    }
    if ecosystem == Ecosystem::Python {
        met.values().try_for_each(|item| check_record(root, item))?;
    }
    Ok(vendored)
}

/// A folder `*.dist-info` or `*.egg-info` (of which the latter may be a file).
fn python(root: BorrowedFd, item: &Item, below: &str) -> Result<Option<Distribution>, TreeError> {
    let Some((stem, ending)) = info(below.rsplit('/').next().unwrap_or(below)) else {
        return Ok(None);
    };
    let is_position = !below.contains('/');
    let file = match (item.is_file, &*ending) {
        (true, _) => item.path.clone(),
        (false, "dist-info") => format!("{}/METADATA", item.path),
        (false, _) => format!("{}/PKG-INFO", item.path),
    };
    let text = read(root, &file, MAX_METADATA_BYTES)?;
    let text = String::from_utf8_lossy(&text);
    let header = |key: &str| {
        let mut fields = text
            .lines()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.split_once(':'));
        fields
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, value)| value.trim())
    };
    let name = header("Name").and_then(|name| versions::name(Ecosystem::Python, name));
    let version =
        header("Version").and_then(|version| versions::version(Ecosystem::Python, version));
    let Some((name, version)) = name.zip(version) else {
        return if is_position {
            hostile(&item.path, "its name and version cannot be read")
        } else {
            Ok(None)
        };
    };
    // Python finds a distribution by the name of its folder, too: both must say the same.
    let (folder_name, folder_version) = stem.split_once('-').unwrap_or((stem, ""));
    let folder_version = folder_version.split("-py").next().unwrap_or_default();
    let agrees = versions::name(Ecosystem::Python, folder_name).as_ref() == Some(&name)
        && (ending == "egg-info"
            || versions::are_same(Ecosystem::Python, folder_version, &version));
    if is_position && !agrees {
        return hostile(
            &item.path,
            "its name and version differ from those of its folder",
        );
    }
    Ok(Some((is_position.then(|| name.clone()), name, version)))
}

/// Whether an interpreter has all that is required, at versions that fit: by the names of what
/// describes the distributions in its own folders of packages.
pub fn has_all(runtime: &Runtime, required: &[Required]) -> bool {
    let Program::Path(program) = &runtime.program else {
        return false;
    };
    let minor: Vec<&str> = runtime.version.split('.').take(2).collect();
    let minor = minor.join(".");
    let prefix = program.parent().and_then(Path::parent).unwrap_or(program);
    let folders = [
        format!("lib/python{minor}/site-packages"),
        "lib/python3/dist-packages".to_owned(),
        format!("local/lib/python{minor}/dist-packages"),
    ];
    let entries = folders
        .iter()
        .filter_map(|folder| prefix.join(folder).read_dir().ok());
    let names = entries
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let held: Vec<(String, String)> = names
        .filter_map(|file| {
            let mut parts = info(&file)?.0.split('-');
            let name = versions::name(Ecosystem::Python, parts.next()?)?;
            Some((name, parts.next()?.to_owned()))
        })
        .collect();
    required.iter().all(|wanted| {
        held.iter().any(|(name, version)| {
            *name == wanted.name
                && versions::holds(Ecosystem::Python, &wanted.versions, version) == Some(true)
        })
    })
}

/// The name and the ending of what describes a distribution. Python reads the ending in any case.
fn info(name: &str) -> Option<(&str, String)> {
    let (stem, ending) = name.rsplit_once('.')?;
    let ending = ending.to_ascii_lowercase();
    matches!(&*ending, "dist-info" | "egg-info").then_some((stem, ending))
}

/// Refuses a distribution whose archive brought the description of another one: its RECORD lists
/// what it brought.
fn check_record(root: BorrowedFd, item: &Item) -> Result<(), TreeError> {
    let record = read(root, &format!("{}/RECORD", item.path), MAX_RECORD_BYTES)?;
    for line in String::from_utf8_lossy(&record).lines() {
        let mut parts = line.trim_start_matches('"').split(['/', ',']);
        let top = parts
            .find(|part| !matches!(*part, "" | "."))
            .unwrap_or_default();
        if item.path.rsplit('/').next() != Some(top) && info(top).is_some() {
            let why = format!(
                "its archive brings `{}`, which describes another package",
                shown(top)
            );
            return hostile(&item.path, &why);
        }
    }
    Ok(())
}

/// Reads a folder below `node_modules` or below a scope there, or a `package.json` anywhere else.
fn node(root: BorrowedFd, item: &Item, below: &str) -> Result<Option<Distribution>, TreeError> {
    let is_folder = !item.is_file;
    let place = is_folder && is_position(below);
    let copy = !is_folder
        && below
            .strip_suffix("/package.json")
            .is_some_and(|folder| !is_position(folder));
    if !place && !copy {
        return Ok(None);
    }
    let file = if place {
        format!("{}/package.json", item.path)
    } else {
        item.path.clone()
    };
    let text = read(root, &file, MAX_METADATA_BYTES)?;
    // npm accepts a byte order mark.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let said: Value = serde_json::from_slice(text).unwrap_or_default();
    let part = |key: &str| said[key].as_str().map(str::to_owned);
    let version = part("version").map(|text| {
        versions::version(Ecosystem::Node, text.trim().trim_start_matches(['v', '=']))
            .unwrap_or(text)
    });
    let name = part("name").or(place.then(|| below.to_owned()));
    let version = version.or(place.then(|| "(no version)".to_owned()));
    Ok(name.zip(version).map(|(name, version)| {
        (
            place.then(|| format!("node_modules/{below}")),
            name,
            version,
        )
    }))
}

/// `a`, `@scope/a`, `a/node_modules/b`: where Node's installers put packages. Dot names are the
/// installers' own.
fn is_position(below: &str) -> bool {
    below.split("/node_modules/").all(|name| {
        let is_whole = name.matches('/').count() == usize::from(name.starts_with('@'));
        is_whole && !name.starts_with('.') && name != "node_modules"
    })
}

/// The content of a file of the tree; empty if it cannot be opened.
fn read(root: BorrowedFd, path: &str, most: u64) -> Result<Vec<u8>, TreeError> {
    let Ok(file) = open_at(root, path, OFlag::O_RDONLY) else {
        return Ok(Vec::new());
    };
    let bytes = files::whole(File::from(file), most)?;
    bytes.map_or_else(
        || hostile(path, &format!("is larger than {most} bytes")),
        Ok,
    )
}
