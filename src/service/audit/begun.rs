//! Begin records: what the log gets of a running call if its host dies first. A begin counts only
//! if the log has no end of that call and the host of the call is gone. Nothing is flushed
//! (fsync(2)): the page cache outlives the process.

use super::segments::MAX_LINE_BYTES;
use crate::base::files::Folder;
use crate::base::lock;
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;

/// A file that is not longer is not cut: the next record is written in place of the last one, which
/// costs less.
const KEPT_BYTES: u64 = 16 * 1024;

/// The folder beside the log.
pub const BEGUN: &str = "begun";

/// The begin records of one host under one file of the log, `begun/<log>.<id>`: locked (flock(2))
/// while the host lives.
#[derive(Debug)]
pub(super) struct Begun {
    file: Flock<File>,
    folder: Folder,
    name: String,
    /// The records of running calls: where each begins and ends in the file, which ends with the
    /// last of them, or is short.
    running: Mutex<BTreeMap<u64, u64>>,
    /// Most bytes of the file: half of a file of the log, which has the rest.
    allowed: u64,
}

impl Begun {
    /// `beside`: the folder of the log, whose files have at most `segment_bytes`.
    pub fn create(beside: &Folder, log: &str, segment_bytes: u64) -> io::Result<Begun> {
        let folder = beside.below(BEGUN)?;
        loop {
            let name = format!("{log}.{}", uuid::Uuid::now_v7());
            let file = folder.file(&name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?;
            let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
            // Before the lock, another host may have removed the file as a dead host's.
            if file.metadata()?.nlink() > 0 {
                return Ok(Begun {
                    file,
                    folder,
                    name,
                    running: Mutex::default(),
                    allowed: segment_bytes / 2,
                });
            }
        }
    }

    /// Adds a record, in the first gap between those of running calls. Returns its offset in the
    /// file.
    pub fn begin(&self, record: &str) -> io::Result<u64> {
        // What an earlier record left behind this one cannot be read as a record.
        let text = format!("\n{record}\n#");
        let mut running = lock(&self.running);
        let mut at = 0;
        for (start, end) in running.iter() {
            if start - at >= text.len() as u64 {
                break;
            }
            at = *end;
        }
        if at + text.len() as u64 > self.allowed {
            return Err(io::Error::other(
                "those of the calls that run fill half of audit_segment_bytes: increase it",
            ));
        }
        self.file.write_all_at(text.as_bytes(), at)?;
        running.insert(at, at + text.len() as u64);
        Ok(at)
    }

    /// Makes a begin unreadable, once the end of its call is in the log.
    pub fn end(&self, at: u64) {
        let mut running = lock(&self.running);
        let end = running.remove(&at).unwrap_or(at);
        let last = running.last_key_value().map_or(0, |(_, end)| *end);
        // If this fails, the next host finds the end in the log.
        let _ = if last <= at && end > KEPT_BYTES {
            self.file.set_len(last)
        } else {
            self.file.write_all_at(b"\n#", at)
        };
    }

    pub fn bytes(&self) -> u64 {
        lock(&self.running)
            .last_key_value()
            .map_or(0, |(_, end)| *end)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if lock(&self.running).is_empty() {
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// The begin records of one host.
pub(super) struct HostRecords {
    /// `None`: the host is alive. Otherwise its file is locked, so that only one host adds the
    /// records to the log.
    lock: Option<Flock<File>>,
    name: String,
    /// The id of each call, and its record.
    pub records: Vec<(String, String)>,
}

impl HostRecords {
    pub fn is_running(&self) -> bool {
        self.lock.is_none()
    }

    pub fn remove(self, beside: &Folder) -> io::Result<()> {
        beside.below(BEGUN)?.remove(&self.name)
    }
}

/// The begin records of all hosts, dead and alive. A file that others may write is skipped.
pub(super) fn all(beside: &Folder, log: &str) -> io::Result<Vec<HostRecords>> {
    let folder = beside.below(BEGUN)?;
    let mut found = Vec::new();
    for name in folder.names()? {
        // The uuid behind the log's name holds no full stop.
        if name.rsplit_once('.').is_none_or(|(head, _)| head != log) {
            continue;
        }
        let Ok(file) = folder.trusted(&name, OFlag::O_RDWR) else {
            continue;
        };
        let (lock, records) = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Another host took over its records, and removed it.
            Ok(file) if file.metadata()?.nlink() == 0 => continue,
            Ok(file) => {
                let records = read(&file)?;
                (Some(file), records)
            }
            Err((file, _)) => (None, read(&file)?),
        };
        found.push(HostRecords {
            lock,
            name,
            records,
        });
    }
    Ok(found)
}

/// The complete records of a file. Earlier versions wrote slots of fixed size into it, with zeros
/// between them.
fn read(file: &File) -> io::Result<Vec<(String, String)>> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    let mut records = Vec::new();
    loop {
        line.clear();
        while lines.fill_buf()?.first() == Some(&0) {
            let zeros = lines.buffer().iter().take_while(|byte| **byte == 0).count();
            lines.consume(zeros);
        }
        if lines
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return Ok(records);
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if let Ok(record) = serde_json::from_str::<Value>(text)
            && let Some(call) = record["call"].as_str()
        {
            records.push((call.to_owned(), text.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_long_as_what_ran_at_one_time() {
        let kept = tempfile::tempdir().expect("a folder");
        let folder = Folder::make(kept.path()).expect("ours");
        let begun = Begun::create(&folder, "log", MAX_LINE_BYTES).expect("made");
        let record = |n: usize| {
            format!(
                "{{\"call\":\"{n}\",\"x\":\"{}\"}}",
                "y".repeat(n * 7919 % 4000)
            )
        };
        let mut last = begun.begin(&record(0)).expect("written");
        for n in 1..2000 {
            // There is always one that runs.
            let next = begun.begin(&record(n)).expect("written");
            begun.end(last);
            last = next;
            let file = File::open(kept.path().join(BEGUN).join(&begun.name)).expect("there");
            let open: Vec<String> = read(&file)
                .expect("read")
                .into_iter()
                .map(|(call, _)| call)
                .collect();
            assert_eq!(open, [n.to_string()], "no other is read");
        }
        let size = || begun.file.metadata().expect("there").len();
        assert!(size() <= begun.bytes().max(KEPT_BYTES), "{}", size());
        let long = "y".repeat(MAX_LINE_BYTES as usize / 2);
        assert!(
            begun
                .begin(&long)
                .expect_err("too long")
                .to_string()
                .contains("increase it")
        );
        begun.end(last);
        assert!(size() <= KEPT_BYTES && read(&begun.file).expect("read").is_empty());
    }
}
