//! Python: which files say what a script of Python requires, and which of them wins.
//!
//! For: `found`. In: the script's folder. Out: `Wanted`. Never: a file that was not checked whole, whether it wins or not.

use super::agree;
use super::files::{Folder, Text};
use super::markers::Marker;
use super::requirement::Requirement;
use super::{Place, pylock, pyproject, requirements, uv_lock};
use crate::manifest::Language;
use crate::policy::FileProblem;
use crate::policy::packages::{Ecosystem, Package, Required, Source, Wanted};

/// One package that a lock holds.
#[derive(Clone, Debug)]
pub(super) struct Pin {
    pub name: String,
    pub version: String,
    pub hashes: Vec<String>,
    pub marker: Option<Marker>,
    pub line: usize,
}

pub(super) struct Asks {
    pub file: Text,
    pub requirements: Vec<Requirement>,
}

pub(super) struct Lock {
    pub file: Text,
    pub pins: Vec<Pin>,
}

/// All names that say something, beside the script's own.
pub(super) const NAMES: [&str; 6] = ["requirements.txt", "pyproject.toml", "uv.lock", LOCK, "pip.conf", "uv.toml"];
/// The lock of a folder.
const LOCK: &str = "pylock.toml";
const SETTINGS: [&str; 2] = ["pip.conf", "uv.toml"];

pub(super) fn find(folder: &Folder<'_>, place: &Place<'_>) -> Result<Option<Wanted>, FileProblem> {
    let (mut asks, mut locks): (Vec<Asks>, Vec<Lock>) = Default::default();
    let name = place.script.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (own, mut writes) = (own_lock(name), LOCK.to_owned());
    let script = if place.language == Language::Python { folder.script(name) } else { None };
    let block = script.map(|script| Ok(pyproject::block(&script)?.map(|asked| (script, asked.requirements))));
    match block.transpose()?.flatten() {
        // The script says it itself: what the folder's project requires is for others.
        Some((file, requirements)) => {
            asks.push(Asks { file, requirements });
            if !place.anew {
                locks.extend(pylock(folder, &own)?);
            }
            if let Some(file) = folder.read(&format!("{name}.lock"))? {
                let pins = uv_lock::read(&file, None)?;
                locks.push(Lock { file, pins });
            }
            writes = own;
        }
        None if place.alone => return Ok(None),
        None => {
            if place.language == Language::Python {
                locks.extend(pylock(folder, &own)?);
            }
            if !place.anew {
                locks.extend(pylock(folder, LOCK)?);
            }
            project(folder, &mut asks, &mut locks)?;
            entries(folder, &mut asks, &mut locks)?;
        }
    }
    if asks.is_empty() && locks.is_empty() {
        return Ok(None);
    }
    folder.without(&SETTINGS)?;
    agree::python(&asks, &locks)?;
    Ok(Some(wanted(&asks, &locks, writes)))
}

/// The lock of one script, by the name that PEP 751 gives to a lock for one of many: a dot in it would be no name there.
pub(super) fn own_lock(script: &str) -> String {
    let name = script.rsplit_once('.').map_or(script, |(name, _)| name);
    format!("pylock.{}.toml", name.replace('.', "-"))
}

fn pylock(folder: &Folder<'_>, name: &str) -> Result<Option<Lock>, FileProblem> {
    let Some(file) = folder.read(name)? else { return Ok(None) };
    let pins = pylock::read(&file)?;
    Ok(Some(Lock { file, pins }))
}

fn project(folder: &Folder<'_>, asks: &mut Vec<Asks>, locks: &mut Vec<Lock>) -> Result<(), FileProblem> {
    let Some(file) = folder.read("pyproject.toml")? else { return Ok(()) };
    let Some(asked) = pyproject::read(&file)? else { return Ok(()) };
    asks.push(Asks { file, requirements: asked.requirements });
    if let Some(file) = folder.read("uv.lock")? {
        let pins = uv_lock::read(&file, Some(asked.name.as_deref().unwrap_or_default()))?;
        locks.push(Lock { file, pins });
    }
    Ok(())
}

/// A lock of PEP 751.
pub(super) fn of_lock(file: &Text) -> Result<Wanted, FileProblem> {
    let pins = pylock::read(file)?;
    Ok(wanted(&[], &[Lock { file: file.clone(), pins }], file.name()))
}

/// A lock where every entry has a hash; half of one is refused.
fn entries(folder: &Folder<'_>, asks: &mut Vec<Asks>, locks: &mut Vec<Lock>) -> Result<(), FileProblem> {
    let Some(file) = folder.read("requirements.txt")? else { return Ok(()) };
    let entries = requirements::read(&file)?;
    let hashed = entries.iter().filter(|entry| !entry.hashes.is_empty()).count();
    if hashed == 0 {
        if !entries.is_empty() {
            let requirements = entries.into_iter().map(|entry| entry.requirement).collect();
            asks.push(Asks { file, requirements });
        }
        return Ok(());
    }
    let pins = pinned(&file, entries)?;
    locks.push(Lock { file, pins });
    Ok(())
}

fn pinned(file: &Text, entries: Vec<requirements::Entry>) -> Result<Vec<Pin>, FileProblem> {
    let mut pins = Vec::new();
    for requirements::Entry { requirement, hashes } in entries {
        let line = requirement.line;
        let bad = |why: &str| Err(file.problem(line, format!("`{}` {why}", requirement.name)));
        let Some(version) = requirement.pin() else {
            return bad(
                "is not pinned (`==`), and other entries have hashes: `uv pip compile --generate-hashes` writes all of them",
            );
        };
        if hashes.is_empty() {
            return bad("has no hash, and other entries do: `uv pip compile --generate-hashes` writes all of them");
        }
        pins.push(Pin { name: requirement.name, version, hashes, marker: requirement.marker, line });
    }
    Ok(pins)
}

/// The first lock wins; without one, all that is asked for.
fn wanted(asks: &[Asks], locks: &[Lock], lock_file: String) -> Wanted {
    let ecosystem = Ecosystem::Python;
    let files = asks.iter().map(|asks| &asks.file).chain(locks.iter().map(|lock| &lock.file));
    let sources: Vec<Source> = files.map(Text::source).collect();
    let asked = asks.iter().flat_map(|asks| asks.requirements.iter().map(move |required| (&asks.file, required)));
    let mut requires: Vec<Required> = asked
        .clone()
        .map(|(file, required)| Required {
            name: required.name.clone(),
            versions: required.versions.clone(),
            pinned: required.pin().is_some(),
            place: file.place(required.line),
        })
        .collect();
    let Some(lock) = locks.first() else {
        let mut lines: Vec<String> = asked.map(|(_, required)| required.text() + "\n").collect();
        lines.dedup();
        let inputs = vec![("requirements.txt".to_owned(), lines.concat())];
        return Wanted { ecosystem, sources, packages: Vec::new(), locked: false, lock_file, inputs, requires };
    };
    let line = |pin: &Pin| {
        let marker = pin.marker.as_ref().map_or_else(String::new, |marker| format!(" ; {marker}"));
        let hashes: String = pin.hashes.iter().map(|hash| format!(" --hash={hash}")).collect();
        format!("{}=={}{marker}{hashes}\n", pin.name, pin.version)
    };
    let inputs = vec![("requirements.txt".to_owned(), lock.pins.iter().map(line).collect())];
    // What is for other machines is not fetched here: nothing is asked of it.
    let here = |pin: &&Pin| pin.marker.as_ref().is_none_or(|marker| marker.may_hold());
    let package =
        |pin: &Pin| Package { name: pin.name.clone(), version: pin.version.clone(), hashes: pin.hashes.clone() };
    if requires.is_empty() {
        requires.extend(lock.pins.iter().map(|pin| Required {
            name: pin.name.clone(),
            versions: format!("=={}", pin.version),
            pinned: true,
            place: lock.file.place(pin.line),
        }));
    }
    Wanted {
        ecosystem,
        sources,
        packages: lock.pins.iter().filter(here).map(package).collect(),
        locked: true,
        lock_file,
        inputs,
        requires,
    }
}
