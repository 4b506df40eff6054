//! The files of a log. Several processes append to the file NAME. Once it is full it is renamed to
//! NAME.000001, NAME.000002 …, of which the newest are kept. Files are appended to, renamed and
//! removed under their lock.

use super::chain::{self, Finding, Head, Walk};
use crate::base::files::Folder;
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::quantity::{KIB, MIB};
use crate::sandbox;
use nix::fcntl::OFlag;
use nix::sys::stat;
use serde::Serialize;
use serde_json::json;
use std::ffi::CString;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// The texts of a record are cut so that no record is longer, bytes.
pub const MAX_RECORD_BYTES: u64 = 224 * 1024;
/// Longest line that is read, bytes.
pub(super) const MAX_LINE_BYTES: u64 = 4 * MAX_RECORD_BYTES;
/// Longest wait for another writer's lock, which is held for one write, unless that process is
/// stopped. Without the lock two records could name the same one as the record before.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a file is first read from its end, bytes.
const LAST_BYTES: u64 = 16 * KIB;

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
    path: PathBuf,
    name: String,
    file: File,
    device: (u32, u32),
    inode: u64,
    /// Excludes other threads; flock(2) excludes processes.
    tail: Mutex<Tail>,
}

/// Where the log ended when this process last wrote or looked.
#[derive(Debug, Default)]
struct Tail {
    /// Length of the file. `None`: it was not looked at.
    size: Option<u64>,
    /// Nobody waits for the lock again before it was free once.
    is_stuck: bool,
    walk: Walk,
}

/// Files that were removed: when the newest was last changed, and what is wrong with the records
/// that were read for it.
#[derive(Default)]
pub(super) struct Removed {
    pub modified: Option<SystemTime>,
    pub found: Vec<Finding>,
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

/// The refusal of a call that could not be recorded.
pub(in crate::service) fn refusal(log: &Path, why: &str) -> Fault {
    Fault::new(
        Kind::InternalError,
        "The call was refused: it could not have been recorded in the audit log.",
    )
    .person(format!(
        "audit log {}: {why}; correct that, or name another file with --audit-log",
        log.display()
    ))
    .retryable()
}

impl Segment {
    /// Opens the file that has the log's own name, or creates it. `known`: the last record that this
    /// process wrote.
    pub fn current(log: &Path, known: Option<Head>) -> io::Result<Segment> {
        let folder = Folder::make(folder(log))?;
        let name = name_of(log)?;
        let file = folder.trusted(&name, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT)?;
        let facts = file.metadata()?;
        let device = (
            stat::major(facts.dev()) as u32,
            stat::minor(facts.dev()) as u32,
        );
        let tail = Tail {
            walk: Walk::behind(known),
            ..Tail::default()
        };
        Ok(Segment {
            folder,
            path: log.to_owned(),
            name,
            file,
            device,
            inode: facts.ino(),
            tail: Mutex::new(tail),
        })
    }

    /// The last record that this process knows.
    pub fn last(&self) -> Option<Head> {
        lock(&self.tail).walk.to.clone()
    }

    /// The file's size, if the log's name still leads to it. An error: others may write it.
    pub fn size_if_current(&self) -> io::Result<Option<u64>> {
        let now = CString::new(self.path.as_os_str().as_bytes())
            .ok()
            .and_then(|path| sandbox::lstat(&path).ok());
        let Some(now) = now.filter(|now| (now.device, now.inode) == (self.device, self.inode))
        else {
            return Ok(None);
        };
        crate::base::files::trustworthy(now.mode, now.owner).map_err(io::Error::other)?;
        Ok(Some(now.size))
    }

    /// Adds a line in one write, as the next record of the chain. Returns what is wrong with the
    /// records of others that were read for it. `None`: the log goes on in another file, and nothing
    /// was written.
    pub fn add(&self, record: &str) -> io::Result<Option<Vec<Finding>>> {
        let mut tail = lock(&self.tail);
        self.lock(&mut tail.is_stuck)?;
        let added = self.append(&mut tail, record);
        self.file.unlock()?;
        added
    }

    fn append(&self, tail: &mut Tail, record: &str) -> io::Result<Option<Vec<Finding>>> {
        let Some(size) = self.size_if_current()? else {
            return Ok(None);
        };
        if tail.size != Some(size) {
            self.catch_up(tail, size)?;
        }
        // An earlier writer may have been cut off in the middle of its line.
        let mut last = [b'\n'];
        if size > 0 {
            self.file.read_exact_at(&mut last, size - 1)?;
        }
        let (line, head) = tail.walk.next(record);
        let line = format!("{}{line}\n", if last == *b"\n" { "" } else { "\n" });
        match (&self.file).write(line.as_bytes())? {
            count if count == line.len() => {}
            count => {
                let why = format!("{count} of {} bytes were written", line.len());
                return Err(io::Error::other(why));
            }
        }
        let walk = std::mem::replace(&mut tail.walk, Walk::behind(Some(head)));
        tail.size = Some(size + line.len() as u64);
        Ok(Some(walk.breaches))
    }

    /// Reads what others wrote since the last look.
    fn catch_up(&self, tail: &mut Tail, size: u64) -> io::Result<()> {
        let known = std::mem::replace(&mut tail.walk, self.find_last()?).to;
        tail.walk.expect(known);
        tail.size = Some(size);
        Ok(())
    }

    /// Walks from the last record on, in this file or in the newest closed one.
    fn find_last(&self) -> io::Result<Walk> {
        let mut found = Walk::default();
        let from = last_record(&self.file)?;
        if from.is_none()
            && let Some((_, name)) = list_closed(&self.folder, &self.name)?.0.last()
        {
            let file = self.folder.trusted(name, OFlag::O_RDONLY)?;
            if let Some(at) = last_record(&file)? {
                walk(&file, name, at, &mut found)?;
            }
        }
        walk(&self.file, &self.name, from.unwrap_or(0), &mut found)?;
        Ok(found)
    }

    fn lock(&self, is_stuck: &mut bool) -> io::Result<()> {
        let timeout = if *is_stuck {
            Duration::ZERO
        } else {
            LOCK_TIMEOUT
        };
        let until = Instant::now() + timeout;
        *is_stuck = true;
        loop {
            match self.file.try_lock() {
                Ok(()) => {
                    *is_stuck = false;
                    return Ok(());
                }
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(TryLockError::WouldBlock) => {
                    let why = "another process keeps it locked: is a toolhost stopped?";
                    return Err(io::Error::other(why));
                }
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
    }

    /// Renames this file to the next number, unless another process did. The next call retries what
    /// fails here.
    pub fn close(&self, full: u64) -> io::Result<()> {
        let _writer = lock(&self.tail);
        if self.file.try_lock().is_err() {
            return Ok(());
        }
        let closed = self.close_here(full);
        self.file.unlock()?;
        closed
    }

    fn close_here(&self, full: u64) -> io::Result<()> {
        if self.size_if_current()?.is_none_or(|size| size < full) {
            return Ok(());
        }
        let (closed, _) = list_closed(&self.folder, &self.name)?;
        let next = closed
            .last()
            .map_or(1, |(number, _)| number.saturating_add(1));
        self.folder
            .rename_new(&self.name, &format!("{}.{next:06}", self.name))
    }

    /// Removes the oldest closed files, of which so many are kept. Each is recorded before: one that
    /// is still there, since its host was killed in between, is removed by the next.
    pub fn remove_closed(&self, kept: usize) -> io::Result<Removed> {
        let (closed, _) = list_closed(&self.folder, &self.name)?;
        let mut removed = Removed::default();
        for (_, name) in closed.iter().take(closed.len().saturating_sub(kept)) {
            let Ok(file) = self.folder.trusted(name, OFlag::O_RDONLY) else {
                continue;
            };
            // Another process may be removing it.
            if file.try_lock().is_err() || file.metadata()?.nlink() == 0 {
                continue;
            }
            let mut last = Walk::default();
            if let Some(at) = last_record(&file)? {
                walk(&file, name, at, &mut last)?;
            }
            let now = jiff::Timestamp::now();
            let last = last.to.map(|last| last.digest);
            let record = ascii(&json!({"removed": last, "file": name, "time": now}))?;
            let Some(found) = self.add(&record)? else {
                break;
            };
            removed.found.extend(found);
            self.folder.remove(name)?;
            removed.modified = removed.modified.max(Some(file.metadata()?.modified()?));
        }
        Ok(removed)
    }
}

/// Where the last record of a file begins.
fn last_record(file: &File) -> io::Result<Option<u64>> {
    let size = file.metadata()?.len();
    let mut span = LAST_BYTES;
    loop {
        let from = size.saturating_sub(span);
        let mut bytes = vec![0; (size - from) as usize];
        file.read_exact_at(&mut bytes, from)?;
        let mut end = bytes.len();
        for line in bytes.rsplit(|byte| *byte == b'\n') {
            let start = end - line.len();
            // The first line may begin before these bytes.
            if (start > 0 || from == 0) && chain::link(line).is_some() {
                return Ok(Some(from + start as u64));
            }
            end = start.saturating_sub(1);
        }
        if from == 0 {
            return Ok(None);
        }
        span *= 16;
    }
}

/// Walks along a file, from the beginning of a line.
pub(super) fn walk(mut file: &File, name: &str, from: u64, along: &mut Walk) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let mut lines = BufReader::with_capacity(LAST_BYTES as usize, file);
    let start = if from > 0 {
        format!(", from byte {from}")
    } else {
        String::new()
    };
    (along.file, along.line) = (format!("{name}{start}"), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = lines.by_ref().take(MAX_LINE_BYTES);
        if bounded.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        along.line += 1;
        along.take(line.strip_suffix(b"\n").unwrap_or(&line));
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

/// A file of a log, open for reading.
pub(super) struct Opened {
    pub name: String,
    pub file: File,
}

/// Every file of a log for reading, newest first, and those that were skipped. The current one is
/// opened before others are listed, so that one that is closed meanwhile is not missed.
pub(super) fn open_all(log: &Path) -> io::Result<(Vec<Opened>, Vec<String>)> {
    let folder = Folder::open(self::folder(log))?;
    let name = name_of(log)?;
    let there = |name: String| match folder.trusted(&name, OFlag::O_RDONLY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(|file| Some(Opened { name, file })),
    };
    let mut files: Vec<Opened> = there(name.clone())?.into_iter().collect();
    fn same(opened: &Opened) -> Result<(u64, u64), io::Error> {
        let facts = opened.file.metadata()?;
        Ok((facts.dev(), facts.ino()))
    }
    let current = files.first().map(same).transpose()?;
    let (closed, skipped) = list_closed(&folder, &name)?;
    for (_, name) in closed.into_iter().rev() {
        if let Some(opened) = there(name)?
            && Some(same(&opened)?) != current
        {
            files.push(opened);
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
            let open = || Segment::current(&log, None).expect("open");
            let (one, other) = (open(), open());
            assert!(one.add(&line(n)).expect("written").is_some());
            one.close(100).expect("closed");
            // Another process that had it open finds that out.
            other.close(100).expect("not twice");
            assert_eq!(other.size_if_current().ok(), Some(None));
            let added = other.add("late").expect("no error");
            assert!(added.is_none(), "the log goes on in another file");
            open().remove_closed(2).expect("removed");
        }
        let mut names: Vec<String> = Folder::open(folder).expect("ours").names().expect("listed");
        names.sort();
        assert_eq!(names, ["log", "log.000004", "log.000005", "log.old"]);
        let last = text(folder, "log.000005");
        assert!(
            last.contains(&line(5)) && last.starts_with("{\"removed\":"),
            "{last}"
        );
        let gone = Segment::current(&log, None).expect("open");
        std::fs::remove_file(&log).expect("removed");
        assert!(
            gone.add("lost").expect("no error").is_none(),
            "a removed file takes no record"
        );
    }
}
