//! Files of a call that are gone with its scratch although the call speaks of them: a caller who reads
//! their path would look for them.

use crate::base::files::{self, open_at};
use crate::base::text::printable;
use crate::executor::Artifact;
use crate::sandbox::{CALL_FOLDER, CALL_OUTPUT};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The scratch folder, and how its output folder is reached from it.
const SCRATCH: &str = "/tmp/";
const OUTPUT_BELOW: &str = "call/output";
/// Most paths of a text that are looked for, and characters of each: a tool chooses its answer.
const MOST_PATHS: usize = 50;
const MAX_PATH_CHARS: usize = 1024;

/// The files outside of the output folder whose paths stand in these texts. `output`: that folder, of a
/// call whose processes are all gone.
pub fn named(output: Option<&OwnedFd>, texts: &[&str]) -> Vec<Artifact> {
    let paths: BTreeSet<&str> = texts.iter().flat_map(|text| paths(text)).collect();
    if paths.is_empty() {
        return Vec::new();
    }
    let Some(scratch) = output.and_then(scratch) else {
        return Vec::new();
    };
    let files = paths
        .into_iter()
        .filter_map(|path| Some((path, file(&scratch, path)?)));
    let why = format!(
        "it lies in the scratch of its call, which is gone; write results to {CALL_OUTPUT}"
    );
    let artifacts = files.map(|(path, facts)| Artifact {
        path: printable(path),
        bytes: u64::try_from(facts.st_size).unwrap_or(0),
        published: false,
        dropped_because: Some(why.clone()),
        failed: None,
        over: None,
        stored: None,
        inlined: None,
    });
    artifacts.collect()
}

/// The paths below the scratch folder in a text, up to what no usual path has.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    fn is_part(c: char) -> bool {
        c.is_alphanumeric() || "/._-+@%=~".contains(c)
    }
    let found = text.match_indices(SCRATCH).filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        before.is_none_or(|c| !is_part(c) || c == '=')
    });
    let paths = found.take(MOST_PATHS).map(|(at, _)| {
        let part = text[at..].chars().take(MAX_PATH_CHARS);
        let length: usize = part.take_while(|c| is_part(*c)).map(char::len_utf8).sum();
        text[at..at + length].trim_end_matches('.')
    });
    paths.filter(|path| !Path::new(path).starts_with(CALL_FOLDER))
}

/// The folder in which the output folder still lies where every call has it.
fn scratch(output: &OwnedFd) -> Option<OwnedFd> {
    let scratch = open_at(output, "../..", OFlag::O_DIRECTORY).ok()?;
    let within = fstatat(&scratch, OUTPUT_BELOW, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let own = fstat(output).ok()?;
    let is_same = (within.st_dev, within.st_ino) == (own.st_dev, own.st_ino);
    is_same.then_some(scratch)
}

/// A file of the scratch itself: links are not followed, and what is shown there from elsewhere stays.
fn file(scratch: &OwnedFd, path: &str) -> Option<FileStat> {
    let own = fstat(scratch).ok()?;
    let below = path.strip_prefix(SCRATCH)?;
    if below.split('/').any(|name| name == "..") {
        return None;
    }
    let (folders, name) = below.rsplit_once('/').unwrap_or(("", below));
    let mut folder = scratch.try_clone().ok()?;
    for name in folders.split('/').filter(|name| !name.is_empty()) {
        folder = open_at(&folder, name, OFlag::O_DIRECTORY).ok()?;
    }
    let facts = fstatat(folder.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    (files::is(facts.st_mode, SFlag::S_IFREG) && facts.st_dev == own.st_dev).then_some(facts)
}

#[cfg(test)]
mod tests {
    use super::{MAX_PATH_CHARS, MOST_PATHS, paths};

    /// Each begins a path that is as long as the rest.
    #[test]
    fn an_answer_full_of_paths_costs_no_more_than_a_few() {
        let text = "=/tmp/".repeat(100_000);
        assert_eq!(paths(&text).count(), MOST_PATHS);
        assert!(paths(&text).all(|path| path.len() <= MAX_PATH_CHARS));
        assert!(paths("wrote /tmp/a.txt.").eq(["/tmp/a.txt"]));
    }
}
