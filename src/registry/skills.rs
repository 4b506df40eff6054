//! Skills on the disk: folders with a `SKILL.md`, found as manifests are. No link out of one is
//! followed.

use super::open_beneath;
use super::scan::{self, Candidate, SKIPPED_FOLDERS};
use super::tool::{Discovery, FileReport, Tool, panicked};
use crate::base::{sha256_hex, text};
use crate::manifest::skill::{self, OUTPUT};
use crate::manifest::{Code, Problem, Severity, ToolPaths};
use crate::quantity::{MAX_DEFINITION_BYTES, MIB};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// The source of their tools.
const SKILLS: &str = "skills";
/// Most files of a skill, bytes of all of them, levels, and entries that are looked at.
const MAX_FILES: usize = 512;
const MAX_BYTES: u64 = 16 * MIB;
const MAX_LEVELS: usize = 16;
const MAX_ENTRIES: usize = 4_000;
/// Most bytes of the paths of all files together: lists of skills name them.
const MAX_PATH_BYTES: usize = 64 << 10;
const TOO_LARGE: &str =
    "it has more than 512 files, 16 MiB, 16 levels of folders or 64 KiB of names";

/// Adds the skills below these folders.
pub(super) fn discover(folders: &[PathBuf], found: &mut Discovery) {
    let candidates = scan::scan(folders.iter(), found);
    for candidate in candidates.iter().filter(|it| it.is_skill()) {
        add(candidate, found);
    }
}

/// Adds the skill of a folder, or says why there is none.
fn add(candidate: &Candidate, found: &mut Discovery) {
    let path = candidate.base.path.join(&candidate.relative);
    let read = catch_unwind(AssertUnwindSafe(|| read(candidate, &path)))
        .unwrap_or_else(|_| Err(panicked()));
    let report = match read {
        Ok((tool, problems)) => {
            let reference = Some(tool.reference());
            found.tools.push(tool);
            FileReport::loaded(path, reference, problems)
        }
        Err(problem) => FileReport::skipped(path, problem),
    };
    found.reports.push(report);
}

fn unread(why: String) -> Problem {
    Problem::new(Severity::Error, Code::Unreadable, "", why)
}

fn read(candidate: &Candidate, path: &Path) -> Result<(Tool, Vec<Problem>), Problem> {
    let Candidate { base, relative } = candidate;
    let folder = path.parent().unwrap_or(path);
    let bytes = open_beneath::read(&base.folder, relative, MAX_DEFINITION_BYTES);
    let bytes = bytes.map_err(|error| unread(error.why()))?;
    let mut flaws = Vec::new();
    let files = files_of(folder, &mut flaws).map_err(unread)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let (manifest, mut problems) = skill::read(&bytes, &name, files)?;
    for flaw in flaws {
        problems.push(Problem::new(Severity::Warning, Code::Security, "", flaw));
    }
    // Where the operator names the folder of one skill, that above it is the base.
    let above = folder.parent().filter(|_| folder == base.top());
    let site = ToolPaths {
        manifest: path.to_owned(),
        base: above.unwrap_or(base.top()).to_owned(),
        script: None,
        folder: folder.to_owned(),
        links: base.links.clone(),
    };
    problems.extend(scan::writable_by_others(&site));
    Ok((Tool::new(manifest.into(), site, SKILLS), problems))
}

fn is_shown(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    // What a script leaves does not belong to the skill, nor does what lies in its place.
    let is_output = entry.depth() == 1 && name == OUTPUT;
    !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&&*name) && !is_output
}

/// The files of a skill. What is hidden is none of them, nor what cannot be read.
fn files_of(folder: &Path, flaws: &mut Vec<String>) -> Result<BTreeMap<String, u64>, String> {
    let mut files = BTreeMap::new();
    let mut left = MAX_BYTES;
    let mut named = 0;
    let walk = WalkDir::new(folder).min_depth(1).max_depth(MAX_LEVELS);
    for (seen, entry) in walk.into_iter().filter_entry(is_shown).enumerate() {
        if seen > MAX_ENTRIES {
            return Err(TOO_LARGE.to_owned());
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(why) => {
                flaws.push(text::printable(&why.to_string()));
                continue;
            }
        };
        let below = entry.path().strip_prefix(folder).ok();
        let path = below.and_then(Path::to_str);
        let Some(path) = path.filter(|path| text::is_printable(path)) else {
            let path = text::path(entry.path());
            return Err(format!("rename {path}: its name is not plain text"));
        };
        let kind = entry.file_type();
        let bytes = entry.metadata().map_or(0, |facts| facts.len());
        if entry.path_is_symlink() {
            flaws.push(format!("{path} is a link, which is not followed"));
        } else if kind.is_file() {
            left = left.checked_sub(bytes).ok_or(TOO_LARGE)?;
            named += path.len();
            match open_beneath::open_file(folder, Path::new(path)) {
                Ok(_) => drop(files.insert(path.to_owned(), bytes)),
                Err(why) => flaws.push(why),
            }
        }
        let is_deep = kind.is_dir() && entry.depth() == MAX_LEVELS;
        if is_deep || files.len() > MAX_FILES || named > MAX_PATH_BYTES {
            return Err(TOO_LARGE.to_owned());
        }
    }
    Ok(files)
}

/// SHA-256 of each file of a skill, hex, as they were when this was asked first, without those that
/// changed since the skill was read.
pub fn skill_digests(tool: &Tool) -> Option<&BTreeMap<String, String>> {
    let skill = tool.manifest.skill()?;
    let read = || {
        let digests = skill.files.iter().filter_map(|(path, size)| {
            let bytes = open_beneath::read_beneath(&tool.site.folder, Path::new(path), *size);
            let bytes = bytes.ok().filter(|it| it.len() as u64 == *size)?;
            Some((path.clone(), sha256_hex(&bytes)))
        });
        digests.collect()
    };
    Some(skill.digests.get_or_init(read))
}

/// The bytes of one of the listed files of a skill. The error is for the person.
pub fn read_skill_file(tool: &Tool, path: &str) -> Result<Vec<u8>, String> {
    let skill = tool.manifest.skill();
    if skill.is_none_or(|skill| !skill.files.contains_key(path)) {
        return Err("the skill has no such file".to_owned());
    }
    let bytes = open_beneath::read_beneath(&tool.site.folder, Path::new(path), MAX_BYTES)?;
    let digest = skill_digests(tool).and_then(|all| all.get(path));
    match digest {
        Some(digest) if sha256_hex(&bytes) == *digest => Ok(bytes),
        _ => Err(format!("{path} changed since the skill was read")),
    }
}
