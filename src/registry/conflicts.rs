//! Which tool gets an id that several files claim. The order of files never decides, and no newcomer takes over a
//! loaded tool.

use super::{CORE, Tool, builtin, position};
use crate::manifest::Code;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A candidate that was turned away.
pub(super) struct Refused {
    pub tool: Tool,
    /// For the report of its own file.
    pub message: String,
    /// For whoever asks for the tool and does not see the report: names the refused file as well.
    pub told: String,
    pub code: Code,
    /// JSON pointer of the part of the file that is at fault.
    pub pointer: Cow<'static, str>,
    /// Line and column of that part; (0, 0) = not known.
    pub at: (usize, usize),
    /// A copy of a builtin's own file: reported as a note, no fault.
    pub harmless: bool,
}

impl Refused {
    pub fn new(tool: Tool, code: Code, message: String) -> Refused {
        let pointer = if code == Code::Conflict { "/toolId" } else { "" };
        Refused { tool, told: message.clone(), message, code, pointer: pointer.into(), at: (0, 0), harmless: false }
    }
}

/// The tools that were loaded in the snapshot before: the folded id of each, and its file.
#[derive(Default)]
pub(super) struct Incumbents(BTreeSet<(String, PathBuf)>);

impl Incumbents {
    pub fn new<'t>(tools: impl Iterator<Item = &'t Tool>) -> Incumbents {
        Incumbents(tools.map(key).collect())
    }

    pub fn has(&self, tool: &Tool) -> bool {
        self.0.contains(&key(tool))
    }
}

/// What a loaded tool is remembered by.
fn key(tool: &Tool) -> (String, PathBuf) {
    let file = if tool.site.manifest.as_os_str().is_empty() { tool.home() } else { tool.site.manifest.clone() };
    (folded(&tool.manifest.id), file)
}

/// Ids that differ in case only are one id: a person, or a file system without case, would take one for the other.
/// (Only ASCII is allowed in an id, so this is all the folding there is.)
pub(super) fn folded(id: &str) -> String {
    id.to_ascii_lowercase()
}

pub(super) fn settle(candidates: Vec<Tool>, held: &Incumbents) -> (Vec<Tool>, Vec<Refused>) {
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    let mut groups: BTreeMap<String, Vec<Tool>> = BTreeMap::new();
    for tool in candidates {
        let claims_core = folded(tool.manifest.namespace()) == CORE && tool.source != "builtin";
        if !claims_core {
            groups.entry(folded(&tool.manifest.id)).or_default().push(tool);
        } else if builtin::same_as_builtin(&tool) {
            let message = "the same manifest is compiled into this binary; this file is not read".to_owned();
            refused.push(Refused { harmless: true, ..Refused::new(tool, Code::Conflict, message) });
        } else {
            let message =
                "the namespace 'core' is compiled into toolhost: choose another namespace, for example custom"
                    .to_owned();
            let at = claims_at(&tool);
            refused.push(Refused { at, ..Refused::new(tool, Code::Conflict, message) });
        }
    }
    for group in groups.into_values() {
        one_id(group, held, &mut kept, &mut refused);
    }
    (kept, refused)
}

/// All candidates of one folded id.
fn one_id(mut group: Vec<Tool>, held: &Incumbents, kept: &mut Vec<Tool>, refused: &mut Vec<Refused>) {
    let names: BTreeSet<_> = group.iter().map(|tool| tool.manifest.id.clone()).collect();
    let homes: BTreeSet<_> = group.iter().map(Tool::home).collect();
    if names.len() > 1 || homes.len() > 1 {
        let what = if names.len() > 1 { "ids that differ only in case" } else { "one id in two folders" };
        let incumbents: BTreeSet<_> =
            group.iter().filter(|tool| held.has(tool)).map(|t| (t.home(), t.manifest.id.clone())).collect();
        let one_home = incumbents.len() == 1;
        let (stay, go): (Vec<_>, Vec<_>) = group
            .into_iter()
            .partition(|tool| one_home && incumbents.contains(&(tool.home(), tool.manifest.id.clone())));
        refuse(go, &stay, what, refused);
        group = stay;
    }
    versions(group, held, kept, refused);
}

/// One id in one folder: every version once. Build metadata does not make another version.
fn versions(group: Vec<Tool>, held: &Incumbents, kept: &mut Vec<Tool>, refused: &mut Vec<Refused>) {
    let mut by_version: BTreeMap<_, Vec<Tool>> = BTreeMap::new();
    for tool in group {
        let version = &tool.manifest.version;
        let key = semver::Version { build: semver::BuildMetadata::EMPTY, ..version.clone() };
        by_version.entry(key).or_default().push(tool);
    }
    for twins in by_version.into_values() {
        if twins.len() == 1 {
            kept.extend(twins);
            continue;
        }
        let incumbents = twins.iter().filter(|tool| held.has(tool)).count();
        let (stay, go): (Vec<_>, Vec<_>) = twins.into_iter().partition(|tool| incumbents == 1 && held.has(tool));
        refuse(go, &stay, "one id and version twice", refused);
        kept.extend(stay);
    }
}

/// Where a tool's file claims its name.
fn claims_at(tool: &Tool) -> (usize, usize) {
    position(&tool.site.manifest, "/toolId")
}

fn refuse(go: Vec<Tool>, stay: &[Tool], what: &str, refused: &mut Vec<Refused>) {
    let places: Vec<_> = go.iter().chain(stay).map(claims_at).collect();
    let claims: Vec<String> = go
        .iter()
        .chain(stay)
        .zip(&places)
        .map(|(tool, at)| match at {
            (0, _) => format!("{} ({})", tool.origin(), tool.reference()),
            (line, column) => format!("{}:{line}:{column} ({})", tool.origin(), tool.reference()),
        })
        .collect();
    let end = if stay.is_empty() { "all of them are disabled" } else { "the one that was loaded before stays" };
    let told = format!("{what}: claimed by {}; {end}. Change one id or take one file away", claims.join(", "));
    for (number, (tool, at)) in go.into_iter().zip(places).enumerate() {
        let others: Vec<&str> =
            claims.iter().enumerate().filter(|(i, _)| *i != number).map(|(_, claim)| claim.as_str()).collect();
        let message =
            format!("{what}: also claimed by {}; {end}. Change one id or take one file away", others.join(", "));
        refused.push(Refused { at, told: told.clone(), ..Refused::new(tool, Code::Conflict, message) });
    }
}
