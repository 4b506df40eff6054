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
use std::os::unix::fs::MetadataExt;

/// The outcomes of calls that did not fail: the client of one runs it.
const ENDS_WELL: [&str; 2] = ["success", "requires_action"];

/// Which calls somebody looks for.
#[derive(Clone, Debug, Default)]
pub struct CallFilter {
    pub tool: Option<Selector>,
    pub caller: Option<String>,
    /// Only those that were refused before anything ran.
    pub refused: bool,
    /// Only those that ran and failed.
    pub failed: bool,
    pub since: Option<Timestamp>,
}

impl CallFilter {
    pub fn fits(&self, record: &Value) -> bool {
        let is_refused = text(record, "decision") == "refused";
        let tool = self.tool.as_ref();
        let caller = self.caller.as_deref();
        let time = text(record, "time").parse::<Timestamp>();
        tool.is_none_or(|tool| tool.matches(text(record, "tool")))
            && caller.is_none_or(|caller| caller == text(record, "user"))
            && (!self.refused || is_refused)
            && (!self.failed || !is_refused && !ENDS_WELL.contains(&text(record, "outcome")))
            && self
                .since
                .is_none_or(|since| time.is_ok_and(|time| time >= since))
    }
}

fn text<'r>(record: &'r Value, member: &str) -> &'r str {
    record[member].as_str().unwrap_or_default()
}

/// Records of calls, the oldest first.
pub struct PastCalls {
    pub ended: Vec<Value>,
    pub running: Vec<Value>,
}

impl Log {
    /// The newest calls that fit, and those of them that run in any host with this log.
    pub fn calls(&self, limit: usize, wanted: &CallFilter) -> io::Result<PastCalls> {
        let ended = self.newest(limit, |record| wanted.fits(record))?;
        // What is refused or has failed does not run.
        let mut running = match wanted.refused || wanted.failed {
            true => Vec::new(),
            false => self.running()?,
        };
        running.retain(|record| wanted.fits(record));
        Ok(PastCalls { ended, running })
    }

    /// The newest records of calls that fit, the oldest of them first. Files that hold only older
    /// ones are not read.
    fn newest(&self, limit: usize, fits: impl Fn(&Value) -> bool) -> io::Result<Vec<Value>> {
        let files = files(self)?;
        let mut found = VecDeque::new();
        for opened in files {
            let room = limit - found.len();
            let mut own = VecDeque::new();
            let mut lines = Lines::new(opened, SeekFrom::Start(0))?;
            while let Some(record) = lines.next_call()? {
                if fits(&record) {
                    own.push_back(record);
                }
                if own.len() > room {
                    own.pop_front();
                }
            }
            own.append(&mut found);
            found = own;
            if found.len() >= limit {
                break;
            }
        }
        Ok(found.into())
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
            let record = serde_json::from_slice::<Value>(&self.line);
            self.line.clear();
            if let Ok(record) = record
                && record["call"].is_string()
            {
                return Ok(Some(record));
            }
        }
    }
}
