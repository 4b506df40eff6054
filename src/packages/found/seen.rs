//! Whether anything beside a script changed since its files were read: device, inode, size and times of each.

use super::{node, python};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Two writes within so short a time may leave the same times behind.
const EXACT: Duration = Duration::from_secs(1);

/// Files that are longer, all together, take some milliseconds to read.
const LONG: u64 = 128 * 1024;

/// Device, inode, size, and when it was written and changed.
type Fact = (u64, u64, u64, (i64, i64), (i64, i64));

#[derive(Clone, Debug)]
pub struct FileStamps {
    facts: Vec<(PathBuf, Option<Fact>)>,
    settled: bool,
}

impl FileStamps {
    /// Taken before the files are read.
    pub fn of(script: &Path) -> FileStamps {
        let folder = script.parent().unwrap_or(Path::new("/"));
        let name = script.file_name().unwrap_or_default().to_string_lossy();
        let locks = [format!("{name}.lock"), python::own_lock(&name)];
        let names = python::NAMES.iter().chain(&node::NAMES).map(|name| folder.join(name));
        let named = names.chain(locks.map(|name| folder.join(name))).filter(|path| path.symlink_metadata().is_ok());
        // A file that comes or goes is a change of the folder.
        let all = [folder.to_owned(), script.to_owned()].into_iter().chain(named);
        let facts: Vec<_> = all.map(|path| (fact(&path), path)).map(|(fact, path)| (path, fact)).collect();
        let young = |(_, fact): &(PathBuf, Option<Fact>)| fact.is_none_or(|(.., changed)| since(changed) < EXACT);
        let settled = !facts.iter().any(young);
        FileStamps { facts, settled }
    }

    /// Of what has no script, and so no files beside one.
    pub fn nothing() -> FileStamps {
        FileStamps { facts: Vec::new(), settled: true }
    }

    /// Whether what was seen takes long to read.
    pub fn is_long(&self) -> bool {
        self.facts.iter().filter_map(|(_, fact)| fact.map(|(_, _, size, ..)| size)).sum::<u64>() > LONG
    }

    pub fn still(&self) -> bool {
        self.settled && self.facts.iter().all(|(path, was)| fact(path) == *was)
    }
}

fn fact(path: &Path) -> Option<Fact> {
    let facts: Metadata = path.symlink_metadata().ok()?;
    let times = ((facts.mtime(), facts.mtime_nsec()), (facts.ctime(), facts.ctime_nsec()));
    Some((facts.dev(), facts.ino(), facts.len(), times.0, times.1))
}

/// Zero for times that are yet to come.
fn since((seconds, nanos): (i64, i64)) -> Duration {
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanos)) else { return Duration::MAX };
    let then = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
    SystemTime::now().duration_since(then).unwrap_or_default()
}
