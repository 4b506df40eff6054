//! Where tools could ever write: what lies there is never loaded or run as a tool, also when the tool that could
//! write it is gone, or its grant is.
//!
//! For: the audit log, which adds to it when the walls of a call stand and before it runs; the registry and the search
//! for interpreters, which read it. In: a shape.
//! Out: one line of JSON per tree, once. Never: follows a link, or lets a call run whose trees it could not keep.

use super::{audit::ascii, segments};
use crate::base::files::Folder;
use crate::policy;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// The file beside the audit log.
pub const LEDGER: &str = "written.jsonl";
/// Longest ledger that is read, bytes.
const LONGEST: u64 = 64 * 1024 * 1024;

/// A tree that a tool could write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    pub tree: PathBuf,
    pub tool: String,
}

/// The ledger beside an audit log. None there = nothing was written yet. One that cannot be read, or that others may
/// write, is an error: what it would say decides what is loaded.
pub fn read(log: &Path) -> Result<BTreeSet<Entry>, String> {
    let path = beside(log);
    match open(log, OFlag::O_RDONLY) {
        Ok(file) => entries(file).map_err(|e| format!("{}: {e}", path.display())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

/// What a call of this shape can write.
pub(super) fn trees(shape: &policy::Shape) -> BTreeSet<PathBuf> {
    let trees = shape.grants.iter().filter_map(|grant| match (&grant.access, &grant.opening) {
        (policy::Access::Write, policy::Opening::Live { path }) => Some(path.clone()),
        // Staged files are published by this host, and never under a name that is loaded.
        _ => None,
    });
    trees.collect()
}

/// Adds these, but for those that stand there.
pub(super) fn add(log: &Path, tool: &str, trees: &BTreeSet<PathBuf>) -> io::Result<()> {
    if trees.is_empty() {
        return Ok(());
    }
    let mut wanted: BTreeSet<Entry> =
        trees.iter().map(|tree| Entry { tree: tree.clone(), tool: tool.to_owned() }).collect();
    let file = open(log, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)?;
    let known = entries(file.try_clone()?)?;
    wanted.retain(|entry| known.iter().all(|known| known.tree != entry.tree));
    let lines: Vec<String> = wanted.iter().map(ascii).collect::<serde_json::Result<_>>()?;
    // Begun with a new line: whoever was cut off before may have left half of one.
    let text: String = lines.iter().map(|line| format!("\n{line}\n")).collect();
    (&file).write_all(text.as_bytes())
}

fn open(log: &Path, flags: OFlag) -> io::Result<File> {
    Folder::open(&segments::folder(log))?.trusted(LEDGER, flags)
}

fn entries(file: File) -> io::Result<BTreeSet<Entry>> {
    if file.metadata()?.len() > LONGEST {
        // What stood behind would be trusted again.
        return Err(io::Error::other(format!(
            "it is longer than {LONGEST} bytes; take away the lines of what is gone"
        )));
    }
    let mut found = BTreeSet::new();
    for line in BufReader::new(file).split(b'\n') {
        if let Ok(entry) = serde_json::from_slice(&line?) {
            found.insert(entry);
        }
    }
    Ok(found)
}

fn beside(log: &Path) -> PathBuf {
    segments::folder(log).join(LEDGER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_cannot_be_read_whole_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let (log, path) = (folder.path().join("audit.jsonl"), folder.path().join(LEDGER));
        assert_eq!(read(&log), Ok(BTreeSet::new()), "nothing was written yet");
        std::fs::write(&path, "\n{\"tree\":\"/t/out\",\"tool\":\"a:x@1.0.0\"}\n{\"tree\":\"/t/o").expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        mode(0o600);
        let known = Entry { tree: "/t/out".into(), tool: "a:x@1.0.0".to_owned() };
        assert_eq!(read(&log), Ok(BTreeSet::from([known])), "the control; half a line is none");
        mode(0o666);
        assert!(read(&log).is_err_and(|why| why.contains("others may write it")));
        mode(0o600);
        File::options().write(true).open(&path).and_then(|file| file.set_len(LONGEST + 1)).expect("longer");
        assert!(read(&log).is_err_and(|why| why.contains("longer than")));
    }
}
