//! Agree: files that say what is required must not disagree: whichever won, the other would be passed over in silence.
//!
//! For: `python`, `node`. In: what each file says. Out: the first two that disagree, and about which package. Never:
//! chooses between them.

use super::files::{MOST, Text};
use super::python::{Asks, Lock};
use super::requirement::Requirement;
use crate::policy::packages::Ecosystem;
use crate::policy::{FileProblem, versions};
use std::collections::{BTreeMap, BTreeSet};

/// Most comparisons of a version with a range: many entries of one package can ask for very many.
const MOST_COMPARED: usize = 4 * MOST;
const TOO_MANY: &str = "too many entries for one package: write one";

pub(super) fn python(asks: &[Asks], locks: &[Lock]) -> Result<(), FileProblem> {
    let pins = |lock: &Lock| lock.pins.iter().map(|pin| (pin.name.clone(), pin.version.clone())).collect();
    let pins: Vec<(&Text, Pins)> = locks.iter().map(|lock| (&lock.file, pins(lock))).collect();
    same_pins(&pins)?;
    for asks in asks {
        if let Some(lock) = locks.first() {
            met(asks, lock)?;
        }
    }
    // Without a lock, everything that is asked for is given to the installer together.
    if let ([first, rest @ ..], []) = (asks, locks) {
        for other in rest {
            fitting(first, other)?;
        }
    }
    Ok(())
}

/// Name and version of each package.
pub(super) type Pins = Vec<(String, String)>;

/// Two locks: a package that both hold, they hold at the same versions.
pub(super) fn same_pins(locks: &[(&Text, Pins)]) -> Result<(), FileProblem> {
    let by_name = |pins: &Pins| {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, version) in pins {
            found.entry(name.clone()).or_default().insert(version.clone());
        }
        found
    };
    let Some((first, pins)) = locks.first() else { return Ok(()) };
    let ours = by_name(pins);
    for (other, pins) in &locks[1..] {
        let theirs = by_name(pins);
        let differ =
            ours.iter().find_map(|(name, at)| Some((name, at, theirs.get(name).filter(|other| *other != at)?)));
        if let Some((name, at, other_at)) = differ {
            let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" and ");
            let why = format!(
                "it and {} disagree about `{name}`: {} here, {} there; keep one of the two files, or lock both anew",
                other.name(),
                list(at),
                list(other_at)
            );
            return Err(first.problem(0, why));
        }
    }
    Ok(())
}

/// Everything that is asked for stands in the lock, at a version that fits.
fn met(asks: &Asks, lock: &Lock) -> Result<(), FileProblem> {
    let mut pins: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pin in &lock.pins {
        pins.entry(&pin.name).or_default().push(&pin.version);
    }
    let mut steps = 0;
    for required in asks.requirements.iter().filter(|r| r.marker.as_ref().is_none_or(|marker| marker.may_hold())) {
        let held = pins.get(required.name.as_str()).cloned().unwrap_or_default();
        steps += held.len();
        if steps > MOST_COMPARED {
            return Err(asks.file.problem(required.line, TOO_MANY));
        }
        let fits = |version: &&str| versions::holds(Ecosystem::Python, &required.versions, version) == Some(true);
        if held.iter().any(fits) {
            continue;
        }
        let has = if held.is_empty() { "does not hold it".to_owned() } else { format!("holds {}", held.join(" and ")) };
        let why = format!("`{}` is required, and {} {has}: lock anew", required.text(), lock.file.name());
        return Err(asks.file.problem(required.line, why));
    }
    Ok(())
}

/// A version that one file pins lies in the range that the other asks for.
fn fitting(first: &Asks, other: &Asks) -> Result<(), FileProblem> {
    for (ours, theirs) in [(first, other), (other, first)] {
        let mut by_name: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
        for required in &theirs.requirements {
            by_name.entry(&required.name).or_default().push(required);
        }
        let mut steps = 0;
        for pinned in &ours.requirements {
            let Some(version) = pinned.pin() else { continue };
            let named = by_name.get(pinned.name.as_str()).cloned().unwrap_or_default();
            steps += named.len();
            if steps > MOST_COMPARED {
                return Err(ours.file.problem(pinned.line, TOO_MANY));
            }
            let holds = |range: &str| versions::holds(Ecosystem::Python, range, &version);
            let misfit = named.into_iter().find(|required| holds(&required.versions) == Some(false));
            if let Some(required) = misfit {
                let why = format!(
                    "it and {} disagree about `{}`: {version} here, {} there",
                    theirs.file.place(required.line),
                    pinned.name,
                    required.versions
                );
                return Err(ours.file.problem(pinned.line, why));
            }
        }
    }
    Ok(())
}
