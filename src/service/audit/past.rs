//! Records as people look at them: the newest, those of calls that run, and those that are written
//! while somebody looks.

use super::begun;
use super::log::Log;
use super::segments::{self, MAX_LINE_BYTES, Opened};
use crate::base::files::Folder;
use crate::manifest::Selector;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};

/// The outcomes of calls that did not fail: the client of one runs it.
const ENDS_WELL: [&str; 2] = ["success", "requires_action"];

/// Which calls somebody looks for.
#[derive(Clone, Debug, Default)]
pub struct CallFilter {
    pub tool: Option<Selector>,
    pub caller: Option<String>,
    /// Those of hosts of this root, where a log is one for several.
    pub root: Option<String>,
    /// Those that were refused before anything ran.
    pub refused: bool,
    /// Those that ran and failed. Without either, all.
    pub failed: bool,
    pub since: Option<Timestamp>,
    /// Those that were written after the record of this number. A log that does not reach it is
    /// another one, of which all count.
    pub after: Option<u64>,
}

impl CallFilter {
    pub fn fits(&self, record: &Value) -> bool {
        let is_refused = text(record, "decision") == "refused";
        let tool = self.tool.as_ref();
        let (caller, root) = (self.caller.as_deref(), self.root.as_deref());
        let is_failed = !is_refused && !ENDS_WELL.contains(&text(record, "outcome"));
        let time = text(record, "time").parse::<Timestamp>();
        tool.is_none_or(|tool| tool.matches(text(record, "tool")))
            && caller.is_none_or(|caller| caller == text(record, "user"))
            && root.is_none_or(|root| text(record, "root") == root)
            && (!self.refused && !self.failed
                || self.refused && is_refused
                || self.failed && is_failed)
            && self
                .since
                .is_none_or(|since| time.is_ok_and(|time| time >= since))
    }
}

fn text<'r>(record: &'r Value, member: &str) -> &'r str {
    record[member].as_str().unwrap_or_default()
}

/// Records of calls, the oldest first.
#[derive(Default)]
pub struct PastCalls {
    pub ended: VecDeque<Value>,
    pub running: Vec<Value>,
    /// The number of the newest record of a call, whether that fits or not.
    pub last: Option<u64>,
}

/// The number of a record in its chain.
pub fn number(record: &Value) -> Option<u64> {
    record["chain"]["n"].as_u64()
}

impl Log {
    /// The newest calls that fit, and those of them that run in any host with this log.
    pub fn calls(&self, limit: usize, wanted: &CallFilter) -> io::Result<PastCalls> {
        let mut found = self.newest(limit, wanted)?;
        // What is refused or has failed does not run.
        let mut running = match wanted.refused || wanted.failed {
            true => Vec::new(),
            false => self.running()?,
        };
        running.retain(|record| wanted.fits(record));
        found.running = running;
        Ok(found)
    }

    /// The newest records of calls that fit. Nothing older than what is found is read.
    fn newest(&self, limit: usize, wanted: &CallFilter) -> io::Result<PastCalls> {
        let mut found = PastCalls::default();
        for opened in files(self)? {
            for line in Backwards::new(opened.file)? {
                let Some(record) = call_of(&line?) else {
                    continue;
                };
                found.last = found.last.or(number(&record));
                let after = wanted.after.filter(|after| found.last >= Some(*after));
                if after.is_some() && number(&record) <= after {
                    return Ok(found);
                }
                if wanted.fits(&record) {
                    found.ended.push_front(record);
                }
                if found.ended.len() == limit {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// The begin records of calls that run in any host with this log: `outcome` is `running`.
    fn running(&self) -> io::Result<Vec<Value>> {
        let name = segments::name_of(self.path())?;
        let hosts = Folder::open(segments::folder(self.path()))
            .and_then(|folder| begun::all(&folder, &name));
        let hosts = unless_missing(hosts)?;
        let alive = hosts.iter().filter(|host| host.is_running());
        let records = alive.flat_map(|host| &host.records);
        let parsed = records.filter_map(|(_, record)| serde_json::from_str(record).ok());
        // What they say of an end is for the host that finds them without one.
        let running = parsed.map(|mut record: Value| {
            (record["outcome"], record["message"]) = (json!("running"), Value::Null);
            record["usage"] = Value::Null;
            record
        });
        Ok(running.collect())
    }

    /// The begin record of the one running call whose id begins so.
    pub fn running_call(&self, call: &str) -> Option<Value> {
        let running = self.running().ok()?.into_iter();
        let mut fits = running.filter(|record| text(record, "call").starts_with(call));
        let one = fits.next();
        one.filter(|_| fits.next().is_none())
    }

    /// What is written from now on.
    pub fn follow(&self) -> io::Result<Follower> {
        Ok(Follower {
            log: self.clone(),
            lines: Lines::of_current(self, SeekFrom::End(0))?,
        })
    }
}

/// The files of a log, newest first. There are none before the first record.
fn files(log: &Log) -> io::Result<Vec<Opened>> {
    unless_missing(segments::open_all(log.path()).map(|(files, _)| files))
}

fn unless_missing<T: Default>(found: io::Result<T>) -> io::Result<T> {
    match found {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        found => found,
    }
}

/// Reads the log as it grows, also when its file is closed and another begins.
pub struct Follower {
    log: Log,
    /// `None`: no file was written yet.
    lines: Option<Lines>,
}

impl Follower {
    /// The next record of a call, if one was written since.
    pub fn next_call(&mut self) -> io::Result<Option<Value>> {
        if let Some(lines) = &mut self.lines
            && let Some(record) = lines.next_call()?
        {
            return Ok(Some(record));
        }
        let now = Lines::of_current(&self.log, SeekFrom::Start(0))?;
        let is_other = now.as_ref().map(|it| it.file) != self.lines.as_ref().map(|it| it.file);
        if is_other && now.is_some() {
            self.lines = now;
            return self.next_call();
        }
        Ok(None)
    }
}

/// The record of a call, if the line is one.
fn call_of(line: &[u8]) -> Option<Value> {
    let record = serde_json::from_slice::<Value>(line).ok()?;
    record["call"].is_string().then_some(record)
}

/// Fewest bytes that are read at once.
const BLOCK_BYTES: u64 = 1 << 16;

/// The lines of one file, the last first. One whose end is not written yet is left out.
struct Backwards {
    file: std::fs::File,
    /// Where the bytes begin in the file.
    start: u64,
    bytes: Vec<u8>,
}

impl Backwards {
    fn new(file: std::fs::File) -> io::Result<Backwards> {
        let mut lines = Backwards {
            start: file.metadata()?.len(),
            file,
            bytes: Vec::new(),
        };
        // What follows the last line break.
        lines.next().transpose()?;
        Ok(lines)
    }

    fn read_more(&mut self) -> io::Result<()> {
        // No record is so long.
        if self.bytes.len() as u64 > MAX_LINE_BYTES {
            self.bytes.clear();
        }
        let length = self.start.min(BLOCK_BYTES.max(self.bytes.len() as u64));
        self.start -= length;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, self.start)?;
        bytes.append(&mut self.bytes);
        self.bytes = bytes;
        Ok(())
    }
}

impl Iterator for Backwards {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        loop {
            if let Some(at) = self.bytes.iter().rposition(|byte| *byte == b'\n') {
                let line = self.bytes.split_off(at + 1);
                self.bytes.truncate(at);
                return Some(Ok(line));
            }
            if self.start == 0 {
                let first = std::mem::take(&mut self.bytes);
                return (!first.is_empty()).then_some(Ok(first));
            }
            if let Err(why) = self.read_more() {
                return Some(Err(why));
            }
        }
    }
}

/// The lines of one file.
struct Lines {
    /// Its device and number.
    file: (u64, u64),
    reader: BufReader<std::fs::File>,
    /// The beginning of a line whose end is not written yet.
    line: Vec<u8>,
}

impl Lines {
    fn new(opened: Opened, at: SeekFrom) -> io::Result<Lines> {
        let facts = opened.file.metadata()?;
        let mut reader = BufReader::with_capacity(1 << 16, opened.file);
        reader.seek(at)?;
        Ok(Lines {
            file: (facts.dev(), facts.ino()),
            reader,
            line: Vec::new(),
        })
    }

    /// Of the file that is written to.
    fn of_current(log: &Log, at: SeekFrom) -> io::Result<Option<Lines>> {
        let name = segments::name_of(log.path())?;
        let current = files(log)?.into_iter().find(|opened| opened.name == name);
        current.map(|opened| Lines::new(opened, at)).transpose()
    }

    /// The next whole record of a call. `None`: for now that was all.
    fn next_call(&mut self) -> io::Result<Option<Value>> {
        loop {
            let room = MAX_LINE_BYTES.saturating_sub(self.line.len() as u64);
            let mut bounded = self.reader.by_ref().take(room);
            bounded.read_until(b'\n', &mut self.line)?;
            let is_whole = self.line.ends_with(b"\n") || self.line.len() as u64 == MAX_LINE_BYTES;
            if !is_whole {
                return Ok(None);
            }
            let record = call_of(&self.line);
            self.line.clear();
            if record.is_some() {
                return Ok(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_come_from_the_end_whole_and_only_as_far_as_they_are_read() {
        let lines: [&str; 5] = [
            "first",
            "",
            &"x".repeat(200_000),
            "third",
            &"y".repeat(70_000),
        ];
        let mut file = tempfile::tempfile().expect("made");
        file.write_all(lines.join("\n").as_bytes())
            .expect("written");
        let read = |file: &std::fs::File| {
            let lines = Backwards::new(file.try_clone().expect("a copy")).expect("opened");
            let lines = lines.map(|line| String::from_utf8(line.expect("read")).expect("text"));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(read(&file), [lines[3], lines[2], lines[1], lines[0]]);
        file.write_all(b"\n").expect("written");
        assert_eq!(read(&file)[0], lines[4]);
        // A hole of 4 TiB before it is not looked at.
        let mut file = tempfile::tempfile().expect("made");
        file.seek(SeekFrom::Start(1 << 42)).expect("moved");
        file.write_all(b"\nlast\n").expect("written");
        let mut lines = Backwards::new(file).expect("opened");
        assert_eq!(lines.next().expect("one").expect("read"), b"last");
    }
}
