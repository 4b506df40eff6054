//! The files of a log. Several processes append to the file NAME. Once it is full it is renamed to
//! NAME.000001, NAME.000002 …, of which the newest are kept. Files are appended to, renamed and
//! removed under their lock.

use crate::base::files::Folder;
use crate::base::lock;
use crate::quantity::MIB;
use crate::sandbox;
use nix::fcntl::OFlag;
use nix::sys::stat::{self, FileStat};
use serde::Serialize;
use std::ffi::CString;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// The texts of a record are cut so that no record is longer, bytes.
pub const MAX_RECORD_BYTES: u64 = 224 * 1024;
/// Longest line that is read, bytes.
pub(super) const MAX_LINE_BYTES: u64 = 4 * MAX_RECORD_BYTES;
/// Longest wait for another writer's lock, which is held for one write, unless that process is
/// stopped. The line is then added without the lock: one append, which the kernel keeps whole on
/// local file systems (write(2)).
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// A file of this size is closed, bytes. The records of calls that ran at that time can make it
    /// longer.
    pub segment_bytes: u64,
    /// Closed files beside the log; older ones are removed.
    pub segments: usize,
}

impl Retention {
    pub const DEFAULT: Retention = Retention {
        segment_bytes: 64 * MIB,
        segments: 8,
    };
    /// Less would close a file after a few records.
    const MIN_SEGMENT_BYTES: u64 = MIB;

    /// From the settings `audit_segment_bytes` and `audit_segments`.
    pub fn new(segment_bytes: Option<u64>, segments: Option<usize>) -> Result<Retention, String> {
        let default = Retention::DEFAULT;
        match (
            segment_bytes.unwrap_or(default.segment_bytes),
            segments.unwrap_or(default.segments),
        ) {
            (..Retention::MIN_SEGMENT_BYTES, _) => Err(format!(
                "audit_segment_bytes must be at least {}",
                Retention::MIN_SEGMENT_BYTES
            )),
            (_, 0) => Err("audit_segments must be at least 1".to_owned()),
            (segment_bytes, segments) => Ok(Retention {
                segment_bytes,
                segments,
            }),
        }
    }
}

/// A file of the log, open for appending.
#[derive(Debug)]
pub(super) struct Segment {
    pub folder: Folder,
    name: String,
    file: File,
    device: (u32, u32),
    inode: u64,
    /// Excludes other threads; flock(2) excludes processes.
    writer: Mutex<()>,
}

/// The name of a log in its folder.
pub(super) fn name_of(log: &Path) -> io::Result<String> {
    let name = log.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| io::Error::other("its name is not UTF-8 text"))
}

/// The folder of a log, where its closed files will lie: no tool may write there.
pub fn folder(log: &Path) -> &Path {
    log.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

impl Segment {
    /// Opens the file that has the log's own name, or creates it.
    pub fn current(log: &Path) -> io::Result<Segment> {
        let folder = Folder::make(folder(log))?;
        let name = name_of(log)?;
        let file = folder.trusted(&name, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)?;
        let facts = file.metadata()?;
        let device = (
            stat::major(facts.dev()) as u32,
            stat::minor(facts.dev()) as u32,
        );
        Ok(Segment {
            folder,
            name,
            file,
            device,
            inode: facts.ino(),
            writer: Mutex::default(),
        })
    }

    /// The file's size, if the log's name still leads to it. An error: others may write it.
    pub fn size_if_current(&self, log: &Path) -> Result<Option<u64>, String> {
        let now = CString::new(log.as_os_str().as_bytes())
            .ok()
            .and_then(|path| sandbox::lstat(&path).ok());
        let Some(now) = now.filter(|now| (now.device, now.inode) == (self.device, self.inode))
        else {
            return Ok(None);
        };
        crate::base::files::trustworthy(now.mode, now.owner)?;
        Ok(Some(now.size))
    }

    /// Adds a line in one write. `false`: the file was removed meanwhile, and nothing was written.
    pub fn add(&self, record: &str) -> io::Result<bool> {
        let _writer = lock(&self.writer);
        let locked = self.try_lock();
        let added = self.append(record);
        if locked {
            self.file.unlock()?;
        }
        added
    }

    fn append(&self, record: &str) -> io::Result<bool> {
        let now = sandbox::fstat(self.file.as_fd())?;
        if now.links == 0 {
            return Ok(false);
        }
        // An earlier writer may have been cut off in the middle of its line.
        let mut last = [b'\n'];
        if now.size > 0 {
            self.file.read_exact_at(&mut last, now.size - 1)?;
        }
        let line = format!("{}{record}\n", if last == *b"\n" { "" } else { "\n" });
        match (&self.file).write(line.as_bytes())? {
            count if count == line.len() => Ok(true),
            count => Err(io::Error::other(format!(
                "{count} of {} bytes were written",
                line.len()
            ))),
        }
    }

    fn try_lock(&self) -> bool {
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            match self.file.try_lock() {
                Ok(()) => return true,
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                // Its holder is stopped, or this file system has no locks.
                Err(_) => return false,
            }
        }
    }

    /// Renames this file to the next number, unless another process did, and removes the oldest
    /// ones. Returns the time at which the newest removed file was last changed. The next call
    /// retries what fails here.
    pub fn close(&self, retention: Retention) -> io::Result<Option<SystemTime>> {
        let _writer = lock(&self.writer);
        if self.file.try_lock().is_err() {
            return Ok(None);
        }
        let closed = self.close_here(retention);
        self.file.unlock()?;
        closed
    }

    fn close_here(&self, retention: Retention) -> io::Result<Option<SystemTime>> {
        let mine = self.file.metadata()?;
        if self
            .folder
            .stat(&self.name)
            .as_ref()
            .is_none_or(|stat: &FileStat| (stat.st_dev, stat.st_ino) != (mine.dev(), mine.ino()))
            || mine.len() < retention.segment_bytes
        {
            return Ok(None);
        }
        let (mut closed, _) = list_closed(&self.folder, &self.name)?;
        let next = closed
            .last()
            .map_or(1, |(number, _)| number.saturating_add(1));
        let name = format!("{}.{next:06}", self.name);
        self.folder.rename_new(&self.name, &name)?;
        closed.push((next, name));
        let mut removed = None;
        for (_, name) in closed
            .iter()
            .take(closed.len().saturating_sub(retention.segments))
        {
            let Ok(file) = self.folder.trusted(name, OFlag::O_RDONLY) else {
                continue;
            };
            // A file that is being written is removed later. (Ours is locked too, but it is the
            // newest.)
            if file.try_lock().is_ok() && self.folder.remove(name).is_ok() {
                removed = removed.max(file.metadata()?.modified().ok());
            }
        }
        Ok(removed)
    }
}

/// Closed files, by number.
type Closed = Vec<(u64, String)>;

/// The closed files of a log, oldest first; and those that are skipped because others may write
/// them.
fn list_closed(folder: &Folder, log: &str) -> io::Result<(Closed, Vec<String>)> {
    let mut found = Vec::new();
    let mut skipped = Vec::new();
    for name in folder.names()? {
        let digits = name
            .strip_prefix(log)
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or_default();
        let ours = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
        let (true, Ok(number)) = (ours, digits.parse()) else {
            continue;
        };
        let Some(file) = folder.stat(&name) else {
            continue;
        };
        match crate::base::files::trustworthy(file.st_mode, file.st_uid) {
            Ok(()) => found.push((number, name)),
            Err(why) => skipped.push(format!("{name}: {why}")),
        }
    }
    found.sort();
    Ok((found, skipped))
}

/// Every file of a log for reading, newest first, and those that were skipped. The current one is
/// opened before others are listed, so that one that is closed meanwhile is not missed.
pub(super) fn open_all(log: &Path) -> io::Result<(Vec<File>, Vec<String>)> {
    let folder = Folder::open(self::folder(log))?;
    let name = name_of(log)?;
    let there = |name: &str| match folder.trusted(name, OFlag::O_RDONLY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    let mut files: Vec<File> = there(&name)?.into_iter().collect();
    fn same(file: &File) -> Result<(u64, u64), io::Error> {
        file.metadata().map(|facts| (facts.dev(), facts.ino()))
    }
    let current = files.first().map(same).transpose()?;
    let (closed, skipped) = list_closed(&folder, &name)?;
    for (_, name) in closed.iter().rev() {
        if let Some(file) = there(name)?
            && Some(same(&file)?) != current
        {
            files.push(file);
        }
    }
    Ok((files, skipped))
}

/// JSON on one line of plain ASCII: nothing in a record can break a line or drive a terminal.
pub fn ascii(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(text);
    }
    let mut line = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            ' '..='~' => line.push(c),
            // serde_json does not escape such characters; they occur only in strings.
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    line.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Retention = Retention {
        segment_bytes: 100,
        segments: 2,
    };

    fn text(folder: &Path, name: &str) -> String {
        std::fs::read_to_string(folder.join(name)).unwrap_or_default()
    }

    #[test]
    fn a_full_file_is_closed_once_and_the_oldest_go() {
        let kept = tempfile::tempdir().expect("a folder");
        let (folder, log) = (kept.path(), kept.path().join("log"));
        std::fs::write(folder.join("log.old"), "mine").expect("written");
        let line = |n: u32| format!("{n:0>99}");
        for n in 1..=5 {
            let (one, other) = (
                Segment::current(&log).expect("open"),
                Segment::current(&log).expect("open"),
            );
            assert!(one.add(&line(n)).expect("written"));
            one.close(RETENTION).expect("closed");
            // Another process that had it open finds that out, and loses nothing.
            other.close(RETENTION).expect("not twice");
            assert_eq!(other.size_if_current(&log), Ok(None));
            assert!(
                other
                    .add("late")
                    .expect("a closed file takes the record of a call that ran")
            );
        }
        let mut names: Vec<String> = Folder::open(folder).expect("ours").names().expect("listed");
        names.sort();
        assert_eq!(names, ["log.000004", "log.000005", "log.old"]);
        assert_eq!(text(folder, "log.000005"), format!("{}\nlate\n", line(5)));
        let gone = Segment::current(&log).expect("open");
        std::fs::remove_file(&log).expect("removed");
        assert!(
            !gone.add("lost").expect("no error"),
            "a removed file takes no record"
        );
    }
}
