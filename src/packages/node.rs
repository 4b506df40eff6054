//! Node and Bun: package.json says what is required, and a lock of npm holds it, by place below
//! `node_modules`.

use super::files::{MAX_PACKAGES, ScriptFolder, ScriptLocation, TextFile, misfit, shown, unfit};
use super::keys;
use crate::base::json::{self, Dialect, Document, escape_segment};
use crate::manifest::Language;
use crate::policy::packages::{Ecosystem, Package, PackageRequirements, Required, SourceFile};
use crate::policy::{FileProblem, versions};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The names of all files that count, and of the folder that `npm install` fills.
#[rustfmt::skip]
pub(super) const NAMES: [&str; 10] = [
    "package.json", SHRINKWRAP, LOCK, FOREIGN, "bun.lockb", ".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml",
    "node_modules",
];
const SHRINKWRAP: &str = "npm-shrinkwrap.json";
const LOCK: &str = "package-lock.json";
/// A lock that is not parsed here: the installer translates it.
const FOREIGN: &str = "bun.lock";
/// Most packages nested in one another.
const MAX_DEPTH: usize = 32;
/// Fields of a locked package that name other packages.
const EDGES: [&str; 3] = ["dependencies", "optionalDependencies", "peerDependencies"];
/// One package of a lock, as the installer gets it.
#[derive(Clone, Debug, Serialize)]
struct LockedPackage {
    #[serde(flatten)]
    package: Package,
    /// It lies in the archive of the package around it, whose hash it has; nothing is fetched for
    /// it.
    bundled: bool,
    /// An installer may leave it out if it is for other machines.
    optional: bool,
    /// `os`, `cpu`, `libc`.
    only: BTreeMap<&'static str, Value>,
}

/// By place: `node_modules/a/node_modules/b`.
type Tree = BTreeMap<String, LockedPackage>;

/// By name: a range of versions, and whether the package is optional.
type Dependencies = BTreeMap<String, (String, bool)>;

pub(super) fn find(
    folder: &ScriptFolder<'_>,
    at: &ScriptLocation<'_>,
) -> Result<Option<PackageRequirements>, FileProblem> {
    let Some(file) = folder.read("package.json")? else {
        return Ok(None);
    };
    let document = parse(&file)?;
    check_machine(&file, &document, at)?;
    let asked = read_requirements(&file, &document)?;
    if asked.is_empty() {
        return Ok(None);
    }
    // The first that is there wins, as npm has it.
    let locks: Vec<&str> = [SHRINKWRAP, LOCK]
        .into_iter()
        .filter(|name| !(at.ignore_lock && *name == LOCK) && folder.has(name))
        .collect();
    check_keys(&file, &document, !locks.is_empty())?;
    folder.without_settings(&[".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml"])?;
    let requires: Vec<Required> = asked
        .iter()
        .map(
            |(name, (versions, _)): (&String, &(String, bool))| Required {
                name: name.clone(),
                versions: versions.clone(),
                pinned: versions::pins(Ecosystem::Node, versions),
                place: file.name(),
            },
        )
        .collect();
    for name in locks {
        if let Some(lock) = folder.read(name)? {
            let tree = tree(&lock)?;
            for (wanted, (range, optional)) in &asked {
                is_met(wanted, range, *optional, &tree).map_err(|why| {
                    let words = format!(
                        "`{wanted} {range}` is required, and {} {why}: lock again",
                        lock.name()
                    );
                    file.problem(line(&document, wanted), words)
                })?;
            }
            return Ok(Some(locked(
                vec![file.source(), lock.source()],
                requires,
                &tree,
            )));
        }
    }
    let foreign = folder.read(FOREIGN)?;
    if foreign.is_none() && folder.has("bun.lockb") {
        let why = "the lock beside it, bun.lockb, is not text: `bun install --save-text-lockfile` \
            writes bun.lock";
        return Err(file.problem(0, why));
    }
    if foreign.is_none() {
        folder.without_locks(&["yarn.lock", "pnpm-lock.yaml"])?;
    }
    let sources = [&file]
        .into_iter()
        .chain(&foreign)
        .map(TextFile::source)
        .collect();
    let mut inputs = vec![("package.json".to_owned(), manifest(&asked))];
    inputs.extend(foreign.map(|file| (FOREIGN.to_owned(), file.text)));
    let ecosystem = Ecosystem::Node;
    let lock_file = LOCK.to_owned();
    let packages = Vec::new();
    Ok(Some(PackageRequirements {
        ecosystem,
        sources,
        packages,
        locked: false,
        lock_file,
        inputs,
        requires,
    }))
}

/// Packages that a person names: `lodash`, `lodash@^4`, `@scope/name@1.0.0`.
pub(super) fn from_command_line(
    words: &[String],
    lock_file: String,
) -> Result<PackageRequirements, String> {
    let mut asked = Dependencies::new();
    let mut requires = Vec::new();
    for word in words {
        // The first `@` of a name is its scope.
        let named = word.rsplit_once('@').filter(|(name, _)| !name.is_empty());
        let (text, range) = named.unwrap_or((word, "*"));
        let name = versions::name(Ecosystem::Node, text)
            .ok_or_else(|| format!("`{}` is not the name of a package", shown(text)))?;
        if !versions::is_range(Ecosystem::Node, range) {
            return Err(format!("`{}`: {}", shown(word), no_range(range)));
        }
        requires.push(Required {
            name: name.clone(),
            versions: range.to_owned(),
            pinned: versions::pins(Ecosystem::Node, range),
            place: "(the command line)".to_owned(),
        });
        asked.insert(name, (range.to_owned(), false));
    }
    Ok(PackageRequirements {
        ecosystem: Ecosystem::Node,
        sources: Vec::new(),
        packages: Vec::new(),
        locked: false,
        lock_file,
        inputs: vec![("package.json".to_owned(), manifest(&asked))],
        requires,
    })
}

/// Reads a lock without a package.json beside it: the packages at its top are the requirements.
pub(super) fn read_lock(lock: &TextFile) -> Result<PackageRequirements, FileProblem> {
    let tree = tree(lock)?;
    let top = tree
        .iter()
        .filter(|(place, _)| names(place).is_some_and(|names| names.len() == 1));
    let requires = top.map(|(place, entry)| Required {
        name: place["node_modules/".len()..].to_owned(),
        versions: entry.package.version.clone(),
        pinned: true,
        place: lock.name(),
    });
    Ok(locked(vec![lock.source()], requires.collect(), &tree))
}

fn locked(sources: Vec<SourceFile>, requires: Vec<Required>, tree: &Tree) -> PackageRequirements {
    let mut packages: Vec<Package> = tree.values().map(|entry| entry.package.clone()).collect();
    packages.sort();
    packages.dedup();
    let inputs = vec![("places.json".to_owned(), json!(tree).to_string())];
    let ecosystem = Ecosystem::Node;
    let lock_file = LOCK.to_owned();
    PackageRequirements {
        ecosystem,
        sources,
        packages,
        locked: true,
        lock_file,
        inputs,
        requires,
    }
}

/// The package.json that a resolver is given: names and ranges alone.
fn manifest(asked: &Dependencies) -> String {
    let part = |optional| -> Map<String, Value> {
        let members = asked.iter().filter(|(_, (_, soft))| *soft == optional);
        members
            .map(|(name, (range, _))| (name.clone(), json!(range)))
            .collect()
    };
    json!({"name": "packages", "private": true, "dependencies": part(false, ), "optionalDependencies": part(true, )})
        .to_string()
}

fn parse(file: &TextFile) -> Result<Document<'_>, FileProblem> {
    json::parse(file.text.as_bytes(), Dialect::Strict)
        .map_err(|bad| file.problem(bad.line, format!("it cannot be read: {}", bad.message)))
}

/// The line of a requirement.
fn line(document: &Document<'_>, name: &str) -> usize {
    let fields = ["dependencies", "optionalDependencies", "peerDependencies"].iter();
    let pointers = fields.map(|field| format!("/{field}/{}", escape_segment(name)));
    pointers
        .map(|pointer| document.place_of_key(&pointer).0)
        .find(|line| *line > 0)
        .unwrap_or_default()
}

fn read_requirements(
    file: &TextFile,
    document: &Document<'_>,
) -> Result<Dependencies, FileProblem> {
    let mut asked = Dependencies::new();
    // A package in two fields has what the later one says, as in npm.
    for field in ["peerDependencies", "dependencies", "optionalDependencies"] {
        let listed = match &document.value[field] {
            Value::Null => continue,
            Value::Object(listed) if listed.len() <= MAX_PACKAGES => listed,
            _ => {
                return Err(file.problem(
                    0,
                    format!("`{field}` is not an object of at most {MAX_PACKAGES} packages"),
                ));
            }
        };
        // npm does not install peers that are optional.
        let meta = &document.value["peerDependenciesMeta"];
        for (name, range) in listed
            .iter()
            .filter(|(name, _)| field != "peerDependencies" || meta[*name]["optional"] != true)
        {
            let bad =
                |why: &str| file.problem(line(document, name), format!("`{}`: {why}", shown(name)));
            let read = versions::name(Ecosystem::Node, name)
                .ok_or_else(|| bad("this is not the name of a package"))?;
            let range = range.as_str().unwrap_or_default();
            if !versions::is_range(Ecosystem::Node, range) {
                return Err(bad(&no_range(range)));
            }
            asked.insert(read, (range.to_owned(), field == "optionalDependencies"));
        }
    }
    Ok(asked)
}

/// Refuses keys that change what is installed and are not honoured here.
fn check_keys(
    file: &TextFile,
    document: &Document<'_>,
    is_locked: bool,
) -> Result<(), FileProblem> {
    let empty = [Value::Null, json!(false), json!([]), json!({})];
    for (table, pointer) in [("package.json", ""), ("package.json scripts", "/scripts")] {
        let members = document.value.pointer(pointer).and_then(Value::as_object);
        for (key, value) in members.into_iter().flatten() {
            if let Some(why) =
                keys::refusal(table, key, is_locked).filter(|_| !empty.contains(value))
            {
                let line = document
                    .place_of_key(&format!("{pointer}/{}", escape_segment(key)))
                    .0;
                return Err(file.problem(line, format!("`{key}` {why}")));
            }
        }
    }
    Ok(())
}

/// Refuses a folder that is for other interpreters (`engines`) or machines (`os`, `cpu`).
fn check_machine(
    file: &TextFile,
    document: &Document<'_>,
    at: &ScriptLocation<'_>,
) -> Result<(), FileProblem> {
    let engine = match at.language {
        Language::Bun => "/engines/bun",
        _ => "/engines/node",
    };
    let range = document.value.pointer(engine).and_then(Value::as_str);
    let interpreter = range
        .zip(at.version)
        .and_then(|(range, version)| unfit(Ecosystem::Node, range, version))
        .map(|why| (engine, why));
    let cpu = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let machine = [("/os", "linux"), ("/cpu", cpu)]
        .into_iter()
        .find(|(key, here)| {
            document
                .value
                .pointer(key)
                .is_some_and(|said| leaves_out(said, here))
        })
        .map(|(key, here)| (key, format!("this machine is {here}")));
    interpreter.or(machine).map_or(Ok(()), |(key, why)| {
        let line = document.place_of_key(key).0;
        Err(file.problem(line, format!("`{}`: {why}", &key[1..])))
    })
}

/// Whether a list of machines, some of them by `!`, is without this one.
fn leaves_out(said: &Value, here: &str) -> bool {
    let said = list(said);
    let words: Vec<&str> = said.iter().filter_map(Value::as_str).collect();
    let is_for_others = words.iter().any(|word| !word.starts_with('!'));
    words.contains(&&*format!("!{here}")) || is_for_others && !words.contains(&here)
}

/// A list of words, of which one may stand alone.
fn list(words: &Value) -> Vec<Value> {
    words
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![words.clone()])
}

/// Checks that the lock has the package under its own name, at a version that fits.
fn is_met(name: &str, range: &str, optional: bool, tree: &Tree) -> Result<(), String> {
    match tree
        .get(&format!("node_modules/{name}"))
        .map(|entry| &entry.package)
    {
        None if optional => Ok(()),
        Some(package) if package.name != *name => {
            Err(format!("holds `{}` in its place", package.name))
        }
        held => misfit(Ecosystem::Node, range, held).map_or(Ok(()), Err),
    }
}

/// The names of the packages along a place. `None`: not a place below `node_modules`.
fn names(place: &str) -> Option<Vec<&str>> {
    let names: Vec<&str> = place
        .strip_prefix("node_modules/")?
        .split("/node_modules/")
        .collect();
    let good = names.len() <= MAX_DEPTH
        && names
            .iter()
            .all(|name| versions::name(Ecosystem::Node, name).is_some());
    good.then_some(names)
}

fn tree(file: &TextFile) -> Result<Tree, FileProblem> {
    let document = parse(file)?;
    let version = document.value["lockfileVersion"].as_u64();
    let Some(places) = document.value["packages"]
        .as_object()
        .filter(|_| matches!(version, Some(2 | 3)))
    else {
        let fix = "`npm install --package-lock-only` of npm 7 or later writes 3";
        return Err(file.problem(0, format!("its lockfileVersion is not read: {fix}")));
    };
    if places.len() > MAX_PACKAGES {
        return Err(file.problem(0, format!("more than {MAX_PACKAGES} packages")));
    }
    let mut tree = Tree::new();
    // Sorted, so that a place comes after the place around it.
    for (place, said) in places
        .iter()
        .filter(|(place, _)| !place.is_empty())
        .collect::<BTreeMap<_, _>>()
    {
        let entry = entry(place, said, &tree);
        let entry = entry.map_err(|why| {
            file.problem(
                document
                    .place_of_key(&format!("/packages/{}", escape_segment(place)))
                    .0,
                format!("`{}`: {why}", shown(place)),
            )
        })?;
        // What only development needs is checked like the rest, and not installed.
        tree.extend(
            entry
                .filter(|_| said["dev"] != true)
                .map(|entry| (place.clone(), entry)),
        );
    }
    Ok(tree)
}

fn entry(place: &str, said: &Value, tree: &Tree) -> Result<Option<LockedPackage>, String> {
    let names =
        names(place).ok_or("packages outside node_modules (workspaces) are not supported")?;
    if said["link"] == true {
        return Err(
            "it is a link to a folder, and packages come from the policy's index alone".to_owned(),
        );
    }
    if let Some(url) = said["resolved"]
        .as_str()
        .filter(|url: &&str| !url.starts_with("https://") && !url.starts_with("http://"))
    {
        return Err(no_range(url));
    }
    EDGES.iter().try_for_each(|field| edges(&said[*field]))?;
    let above = place.rsplit_once("/node_modules/").map(|(above, _)| above);
    let bundled = said["inBundle"] == true && above.is_some();
    let hashes = match (said["integrity"].as_str(), bundled) {
        (_, true) => match above.and_then(|above| tree.get(above)) {
            Some(around) => around.package.hashes.clone(),
            None if said["dev"] == true => return Ok(None),
            None => return Err("the package that bundles it is missing".to_owned()),
        },
        (Some(text), false) => integrity(text)?,
        (None, false) => {
            return Err("it has no `integrity`: lock again with an index that has it".to_owned());
        }
    };
    let name = said["name"]
        .as_str()
        .or(names.last().copied())
        .unwrap_or_default();
    let name = versions::name(Ecosystem::Node, name)
        .ok_or_else(|| format!("`{}` is not the name of a package", shown(name)))?;
    let version = said["version"].as_str().unwrap_or_default();
    let version = versions::version(Ecosystem::Node, version).ok_or_else(|| no_range(version))?;
    let lists = ["os", "cpu", "libc"]
        .map(|field| (field, said[field].clone()))
        .into_iter()
        .filter(|(_, words)| !words.is_null());
    let only = lists
        .map(|(field, words)| (field, json!(list(&words))))
        .collect();
    let optional = said["optional"] == true || said["devOptional"] == true;
    Ok(Some(LockedPackage {
        package: Package {
            name,
            version,
            hashes,
        },
        bundled,
        optional,
        only,
    }))
}

/// What a package requires is a range or a tag of the index, or an alias with one: no address,
/// folder or repository.
fn edges(said: &Value) -> Result<(), String> {
    if said.is_null() {
        return Ok(());
    }
    let members = said
        .as_object()
        .ok_or("what it requires is not an object")?;
    for (name, range) in members {
        let range = range.as_str().unwrap_or_default();
        let plain = match range.strip_prefix("npm:") {
            Some(alias) => alias
                .rfind('@')
                .filter(|at| *at > 0)
                .map_or("", |at| &alias[at + 1..]),
            None => range,
        };
        let is_tag = !plain.is_empty()
            && plain.len() < 40
            && plain
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_tag && !versions::is_range(Ecosystem::Node, plain) {
            return Err(format!(
                "it requires `{}`: {}",
                shown(name),
                no_range(range)
            ));
        }
    }
    Ok(())
}

/// `sha512-…` and the like, the strong ones of a list.
fn integrity(text: &str) -> Result<Vec<String>, String> {
    let found: Vec<String> = text
        .split_ascii_whitespace()
        .filter(|hash: &&str| {
            let Some((kind, digits)) = hash.split_once('-') else {
                return false;
            };
            let length =
                [("sha256", 44), ("sha384", 64), ("sha512", 88)].contains(&(kind, digits.len()));
            length
                && digits
                    .trim_end_matches('=')
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"+/".contains(&b))
        })
        .map(str::to_owned)
        .collect();
    Some(found)
        .filter(|found| !found.is_empty())
        .ok_or_else(|| {
            format!(
                "`{}`: unsupported hash; use sha512, sha384 or sha256",
                shown(text)
            )
        })
}

fn no_range(text: &str) -> String {
    let what = if text.starts_with("npm:") {
        "an alias"
    } else {
        "not a version or a range (a tag, a URL, a git or file reference)"
    };
    let how = "packages come from the policy's index by name and version alone: write for example \
        `^1.2.0`";
    format!("`{}` is {what}, and {how}", shown(text))
}
