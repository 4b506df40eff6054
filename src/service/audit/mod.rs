//! The audit log: one line per call or refusal, opened before the call runs.
//!
//! For: the pipeline of a call, and `audit`. In: one record as JSON. Out: one line of plain ASCII, appended to the
//! log (`segments`); the text of each confinement once, in `confinements/<digest>.json`. For a call whose host was
//! killed, or whose record the disk had no room for, the next host that opens the log writes the line (`in_flight`).
//! Never: follows a link, truncates, or lets a call run that it could not record.

mod in_flight;
pub mod last;
pub mod segments;

pub use super::ledger::LEDGER;
use super::ledger::Ledger;
use crate::base::lock;
use in_flight::InFlight;
pub use in_flight::{BEGUN, ROOM};
use segments::Segment;
pub use segments::{Keeping, ascii};

use crate::base::files::Folder;
use crate::{executor, fault, policy};
use fault::{Fault, Kind};
use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// The folder beside the log for the texts of confinements.
pub const CONFINEMENTS: &str = "confinements";
/// Longest line that is read, bytes.
const LONGEST_LINE: u64 = 4 * ROOM;
/// The part of a record that holds its call's id, bytes.
const HEAD: usize = 1024;
/// How long after its closing a segment is taken to still get records, from calls that began before. (A policy may
/// allow longer calls; the text of such a call's confinement can be removed early.)
const LONGEST_CALL: Duration = Duration::from_secs(8 * 24 * 3600);

/// Where the records go.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
    keeping: Keeping,
    /// The file of the last call: used again while the path still leads to it.
    kept: Arc<Mutex<Option<Arc<OpenLog>>>>,
    ledger: Arc<Ledger>,
}

/// An open log file.
#[derive(Debug)]
struct OpenLog {
    segment: Segment,
    /// Confinements whose text is known to lie beside it.
    described: Mutex<HashSet<String>>,
    in_flight: InFlight,
}

/// An open log with room for one record.
#[derive(Debug)]
pub struct Entry {
    log: Log,
    kept: Arc<OpenLog>,
    /// The slot with the record that this call leaves if its host is killed. `None`: a slot is left for the next host.
    slot: Option<u64>,
}

/// One past call: its record, and the confinement it ran under.
#[derive(Clone, Debug)]
pub struct PastCall {
    pub record: Value,
    /// The text whose SHA-256 is the record's confinement digest, as JSON.
    pub confinement: Option<Value>,
}

impl Log {
    pub fn new(path: impl Into<PathBuf>) -> Log {
        Log::keeping(path, Keeping::USUAL)
    }

    pub fn keeping(path: impl Into<PathBuf>, keeping: Keeping) -> Log {
        let path = path.into();
        Log { ledger: Arc::new(Ledger::beside(&path)), path, keeping, kept: Arc::default() }
    }

    /// Where tools could write before.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the log, unless it is open, and sets room aside. What fails here refuses the call.
    pub fn open(&self) -> Result<Entry, Fault> {
        let kept = self.opened().map_err(|why| refusal(&self.path, &why))?;
        let slot = kept.in_flight.slot().map_err(|e| refusal(&self.path, &e.to_string()))?;
        Ok(Entry { log: self.clone(), kept, slot: Some(slot) })
    }

    fn opened(&self) -> Result<Arc<OpenLog>, String> {
        let mut kept = lock(&self.kept);
        if let Some(open) = kept.as_ref() {
            // Asked for every call: the log may have been moved away, or opened to others.
            match open.segment.still(&self.path)? {
                Some(size) if size < self.keeping.segment_bytes => return Ok(open.clone()),
                Some(_) => self.close(&open.segment),
                None => {}
            }
        }
        let mut new = self.anew()?;
        if new.segment.still(&self.path)?.is_some_and(|size| size >= self.keeping.segment_bytes) {
            self.close(&new.segment);
            new = self.anew()?;
        }
        let new = Arc::new(new);
        *kept = Some(new.clone());
        Ok(new)
    }

    /// Closes a full file. A failure costs room on the disk, but no record.
    fn close(&self, full: &Segment) {
        let closed = full.close(self.keeping).and_then(|removed| match removed {
            Some(last) => self.forget(&full.folder, last),
            None => Ok(()),
        });
        if let Err(why) = closed {
            tracing::warn!(target: "toolhost::host", "audit log {}: {why}", self.path.display());
        }
    }

    /// Removes the texts of confinements that only removed records can name. A host renews the times of the texts that
    /// it uses with each new file of the log.
    fn forget(&self, beside: &Folder, last: SystemTime) -> io::Result<()> {
        let folder = beside.below(CONFINEMENTS)?;
        let Some(oldest) = last.checked_sub(LONGEST_CALL) else { return Ok(()) };
        for name in folder.names()?.into_iter().filter(|name| name.ends_with(".json")) {
            let file = folder.file(&name, OFlag::O_RDONLY)?;
            if file.metadata()?.modified()? < oldest {
                folder.remove(&name)?;
            }
        }
        Ok(())
    }

    fn anew(&self) -> Result<OpenLog, String> {
        let segment = Segment::current(&self.path).map_err(|e| e.to_string())?;
        let in_flight = segments::name_of(&self.path).and_then(|name| InFlight::beside(&segment.folder, &name));
        let in_flight = in_flight.map_err(|e| format!("calls under way cannot be kept beside it: {BEGUN}: {e}"))?;
        let kept = OpenLog { segment, described: Mutex::default(), in_flight };
        self.recover(&kept.segment)
            .map_err(|e| format!("the calls of a host that was killed cannot be added to it: {e}"))?;
        Ok(kept)
    }

    /// Adds the records of calls whose host was killed.
    fn recover(&self, log: &Segment) -> io::Result<()> {
        for dead in in_flight::orphans(&log.folder, &segments::name_of(&self.path)?)? {
            let id = |record: &String| Some(serde_json::from_str::<Value>(record).ok()?["call"].as_str()?.to_owned());
            let mut owed: HashMap<String, &String> =
                dead.records.iter().filter_map(|record| Some((id(record)?, record))).collect();
            // The dead host may have written some of them to the log already; a line that was cut off does not count.
            if !owed.is_empty() {
                self.find(|call, line| {
                    if owed.contains_key(call) && serde_json::from_slice::<IgnoredAny>(line).is_ok() {
                        owed.remove(call);
                    }
                    owed.is_empty()
                })?;
            }
            for record in dead.records.iter().filter(|record| owed.values().any(|owed| owed == record)) {
                if !log.add(record)? {
                    return Err(io::Error::other("it was removed meanwhile"));
                }
            }
            dead.remove(&log.folder)?;
        }
        Ok(())
    }

    /// Shows `last` each record, newest file first, until it says that no more are wanted. Gives the number of files,
    /// and what was passed over. The id of a call stands near the start of its line.
    fn find(&self, mut last: impl FnMut(&str, &[u8]) -> bool) -> io::Result<(usize, Vec<String>)> {
        let (files, strange) = segments::all(&self.path)?;
        let count = files.len();
        for file in files {
            let mut lines = BufReader::with_capacity(1 << 20, file);
            let mut line = Vec::new();
            loop {
                line.clear();
                if lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                    break;
                }
                let head = String::from_utf8_lossy(&line[..line.len().min(HEAD)]);
                let id = head.split_once("\"call\":\"").and_then(|(_, rest)| rest.split_once('"'));
                if id.is_some_and(|(id, _)| last(id, &line)) {
                    return Ok((count, strange));
                }
            }
        }
        Ok((count, strange))
    }

    /// Keeps the text of a confinement's shape, once per digest.
    pub fn keep(&self, shape: &policy::Shape, digest: &str) -> Result<(), Fault> {
        let Some(log) = lock(&self.kept).clone() else { return Ok(()) };
        let mut described = lock(&log.described);
        if !described.contains(digest) {
            describe(&log.segment.folder, shape, digest).map_err(|e| self.unkept(&e))?;
            described.insert(digest.to_owned());
        }
        Ok(())
    }

    fn unkept(&self, e: &io::Error) -> Fault {
        refusal(&self.path, &format!("what the call can touch cannot be kept beside it: {e}"))
    }

    /// Finds the record of a past call, and what that call could touch.
    pub fn recall(&self, call: &str) -> Result<PastCall, String> {
        let shown = self.path.display();
        let mut found = None;
        let files = self.find(|id, line| {
            // An id that JSON would escape is none of ours.
            found = (id == call).then(|| serde_json::from_slice::<Value>(line).ok()).flatten();
            found.is_some()
        });
        let (files, strange) = files.map_err(|e| format!("{shown}: {e}"))?;
        let Some(record) = found else {
            let mut older = match files.saturating_sub(1) {
                0 => String::new(),
                closed => format!(" there or in its {closed} closed files (older ones are removed)"),
            };
            if !strange.is_empty() {
                older += &format!("; not looked at: {}", strange.join(", "));
            }
            return Err(format!("{shown}: no call '{}' is recorded{older}", call.escape_default()));
        };
        let confinement = record["digests"]["confinement"].as_str().and_then(|digest| self.confinement(digest));
        Ok(PastCall { record, confinement })
    }

    /// How these calls ended, and the message, as far as they are recorded.
    pub fn outcomes(&self, mut calls: HashSet<String>) -> io::Result<HashMap<String, (String, Option<String>)>> {
        let mut found = HashMap::new();
        self.find(|id, line| {
            if calls.contains(id)
                && let Ok(record) = serde_json::from_slice::<Value>(line)
            {
                let text = |name: &str| record[name].as_str().map(str::to_owned);
                found.insert(id.to_owned(), (text("outcome").unwrap_or_default(), text("message")));
                calls.remove(id);
            }
            calls.is_empty()
        })?;
        Ok(found)
    }

    /// The kept text of a digest; `None` where it is gone or is no digest.
    fn confinement(&self, digest: &str) -> Option<Value> {
        if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let bytes =
            std::fs::read(segments::folder(&self.path).join(CONFINEMENTS).join(format!("{digest}.json"))).ok()?;
        // The digest comes from the append-only log; a text with another digest proves nothing.
        if crate::base::sha256_hex(&bytes) != digest {
            return None;
        }
        serde_json::from_slice(&bytes).ok()
    }
}

fn describe(beside: &Folder, shape: &policy::Shape, digest: &str) -> io::Result<()> {
    let (folder, name) = (beside.below(CONFINEMENTS)?, format!("{digest}.json"));
    match folder.trusted(&name, OFlag::O_WRONLY) {
        Ok(file) => file.set_modified(SystemTime::now()),
        Err(_) => folder.put(&name, &serde_json::to_vec(shape)?),
    }
}

impl executor::Ledger for Log {
    fn opens(&self, shape: &policy::Shape) -> Result<(), Fault> {
        self.ledger.add(shape).map_err(|e| self.unkept(&e))
    }
}

impl Entry {
    /// Keeps the record that this call leaves if this host ends before it does.
    pub fn begin(&mut self, record: &impl Serialize) -> Result<(), Fault> {
        let Some(slot) = self.slot else { return Ok(()) };
        let kept = ascii(record).map_err(io::Error::from).and_then(|record| self.kept.in_flight.keep(slot, &record));
        kept.map_err(|e| {
            let why = format!("the call cannot be kept in {BEGUN}/ beside it: {e}");
            refusal(&self.log.path, &why)
        })
    }

    /// Writes the record: one line, one write.
    pub fn write(mut self, record: &impl Serialize) -> Result<(), Fault> {
        let written = ascii(record).map_err(io::Error::from).and_then(|record| self.add(&record));
        written.map_err(|why| {
            Fault::new(Kind::InternalError, "The call ended, but its audit record could not be written.")
                .person(format!("audit log {}: {why}", self.log.path.display()))
        })
    }

    fn add(&mut self, record: &str) -> Result<(), io::Error> {
        let added = match self.kept.segment.add(record) {
            // The file that was open when this call began was closed and removed meanwhile.
            Ok(false) => self.log.opened().map_err(io::Error::other).and_then(|now| now.segment.add(record)),
            added => added,
        };
        let why = match added {
            Ok(true) => return Ok(()),
            Ok(false) => io::Error::other("it is removed as fast as it is made"),
            Err(why) => why,
        };
        // Where the log has no room, the call's slot still has. The next call opens the log anew and adds the record.
        let slot = self.slot.take().ok_or(why)?;
        *lock(&self.log.kept) = None;
        self.kept.in_flight.owe(slot, record)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.kept.in_flight.over(slot);
        }
    }
}

fn refusal(log: &Path, why: &str) -> Fault {
    Fault::new(Kind::InternalError, "The call was refused: it could not have been recorded in the audit log.")
        .person(format!("audit log {}: {why}; mend that, or name another file with --audit-log", log.display()))
        .retryable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_one_ascii_line_that_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("state/audit.jsonl"));
        let record = json!({"call": "c1", "user": "a\nb\u{1b}[31m\u{202e}ö\u{e0041}\u{7f}"});
        log.open().unwrap().write(&record).unwrap();
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.is_ascii() && text.lines().count() == 1 && !text.contains('\u{1b}') && !text.contains('\u{7f}'));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), record);
        assert_eq!(log.recall("c1").unwrap().record, record);
        assert!(log.recall("c2").unwrap_err().contains("no call 'c2'"));
        assert_eq!(std::fs::metadata(log.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(folder.path().join("state")).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_cannot_be_recorded_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("folder")).unwrap();
        std::fs::write(path("real"), "").unwrap();
        std::os::unix::fs::symlink(path("real"), path("link")).unwrap();
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(path("open"), "").unwrap();
        std::fs::set_permissions(path("open"), std::fs::Permissions::from_mode(0o666)).unwrap();
        for name in ["folder", "link", "fifo", "open", "real/below"] {
            let fault = Log::new(path(name)).open().expect_err(name);
            assert!(!fault.message.contains(name), "no host path for an agent");
            assert!(fault.person.unwrap().contains(name));
        }
        assert!(Log::new("/dev/null").open().is_err());
        assert!(Log::new("/dev/full").open().is_err());
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next_record() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("audit.jsonl"));
        log.open().unwrap().write(&json!({"call": "a"})).unwrap();
        std::fs::File::options().append(true).open(log.path()).unwrap().write_all(b"{\"call\": \"to").unwrap();
        log.open().unwrap().write(&json!({"call": "b"})).unwrap();
        assert!(log.recall("a").is_ok() && log.recall("b").is_ok());
    }
}
