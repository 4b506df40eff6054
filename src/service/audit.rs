//! The audit log: one append-only line per call or refusal, opened before the call runs.
//!
//! For: the road of a call, and `audit --call`. In: one record as JSON. Out: one line of plain ASCII,
//! written with one write(2); the text of each confinement once, in `confinements/<digest>.json`. A call whose host
//! was killed has its line too: the next host that opens the log writes it (`begun`).
//! Never: follows a link, truncates, or lets a call run that it could not record (P30).

pub use super::begun::BEGUN;
use super::begun::{self, Begun};
pub use super::ledger::LEDGER;
use super::ledger::Ledger;

use crate::{executor, fault, policy, sandbox};
use fault::{Fault, Kind};
use nix::fcntl::{FallocateFlags, OFlag};
use nix::sys::stat::{self, SFlag};
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Room that is set aside for a record before the call runs, bytes. No record is longer.
pub(super) const ROOM: u64 = 128 * 1024;
/// Records for which room is set aside at a time.
const ROOMS: u64 = 16;
/// The folder beside the log for the texts of confinements.
pub const CONFINEMENTS: &str = "confinements";
/// Longest line that `recall` reads, bytes.
const LONGEST_LINE: u64 = 4 * ROOM;
/// The part of a record that holds its call's id, bytes.
const HEAD: usize = 1024;

/// Where the records go.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
    /// The file of the last call: used again while the path still leads to it.
    kept: Arc<Mutex<Option<Arc<Kept>>>>,
    ledger: Arc<Ledger>,
}

/// An open log file.
#[derive(Debug)]
struct Kept {
    file: File,
    device: (u32, u32),
    inode: u64,
    /// How far blocks are set aside, bytes from its start.
    reserved: Mutex<u64>,
    /// Where our last record ended; held while one is added.
    end: Mutex<u64>,
    /// Confinements whose text is known to lie beside it.
    described: Mutex<HashSet<String>>,
    begun: Begun,
}

/// An open log with room for one record.
#[derive(Debug)]
pub struct Entry {
    log: Arc<Kept>,
    path: PathBuf,
    /// Where the record stands that this call leaves if this host is killed.
    slot: Option<u64>,
}

/// One past call: its record, and the confinement it ran under.
#[derive(Clone, Debug)]
pub struct Recalled {
    pub record: Value,
    /// The exact bytes whose SHA-256 is the record's confinement digest, as JSON.
    pub confinement: Option<Value>,
}

impl Log {
    pub fn new(path: impl Into<PathBuf>) -> Log {
        let path = path.into();
        Log { ledger: Arc::new(Ledger::beside(&path)), path, kept: Arc::default() }
    }

    /// Where tools could write before.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the log, unless it still is, and sets room aside. What fails here refuses the call.
    pub fn open(&self) -> Result<Entry, Fault> {
        let log = self.opened().map_err(|why| refusal(&self.path, &why))?;
        Ok(Entry { log, path: self.path.clone(), slot: None })
    }

    fn opened(&self) -> Result<Arc<Kept>, String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever moved the log away, or opened it to others, finds that out at the next call.
        let now = CString::new(self.path.as_os_str().as_bytes()).ok().and_then(|path| sandbox::lstat(&path).ok());
        let same = |log: &&Arc<Kept>| now.is_some_and(|now| (now.device, now.inode) == (log.device, log.inode));
        if let (Some(log), Some(now)) = (kept.as_ref().filter(same), now) {
            trustworthy(now.mode, now.owner)?;
            log.reserve(now.size, Arc::strong_count(log))?;
            return Ok(log.clone());
        }
        let log = Arc::new(self.anew()?);
        *kept = Some(log.clone());
        Ok(log)
    }

    fn anew(&self) -> Result<Kept, String> {
        if let Some(folder) = self.path.parent() {
            private_folder(folder).map_err(|e| format!("its folder cannot be made: {e}"))?;
        }
        // NONBLOCK: a FIFO in its place must not hang us before we can see what it is.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags.bits())
            .open(&self.path)
            .map_err(|e| e.to_string())?;
        let facts = file.metadata().map_err(|e| e.to_string())?;
        trustworthy(facts.mode(), facts.uid())?;
        let begun = Begun::beside(&self.path).map_err(|e| format!("calls under way cannot be kept beside it: {e}"))?;
        let log = Kept {
            file,
            device: (stat::major(facts.dev()) as u32, stat::minor(facts.dev()) as u32),
            inode: facts.ino(),
            reserved: Mutex::default(),
            end: Mutex::default(),
            described: Mutex::default(),
            begun,
        };
        log.reserve(facts.len(), 1)?;
        self.recover(&log).map_err(|e| format!("the calls of a host that was killed cannot be added to it: {e}"))?;
        Ok(log)
    }

    /// Adds the records of calls whose host was killed.
    fn recover(&self, log: &Kept) -> io::Result<()> {
        for dead in begun::orphans(&self.path)? {
            let id = |line: &String| Some(serde_json::from_str::<Value>(line).ok()?["call"].as_str()?.to_owned());
            let mut owed: HashMap<String, &String> =
                dead.lines.iter().filter_map(|line| Some((id(line)?, line))).collect();
            // That host may have been killed just after it wrote one.
            if !owed.is_empty() {
                self.each_call(|call| {
                    owed.remove(call);
                })?;
            }
            for line in dead.lines.iter().filter(|line| owed.values().any(|owed| owed == line)) {
                log.add(line.trim_end())?;
            }
            dead.remove()?;
        }
        Ok(())
    }

    /// The id of each record in the log: it stands near the start of its line.
    fn each_call(&self, mut saw: impl FnMut(&str)) -> io::Result<()> {
        let mut lines = BufReader::with_capacity(1 << 20, File::open(&self.path)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let head = String::from_utf8_lossy(&line[..line.len().min(HEAD)]);
            if let Some((_, rest)) = head.split_once("\"call\":\"")
                && let Some((id, _)) = rest.split_once('"')
            {
                saw(id);
            }
        }
    }

    /// Keeps the text of a confinement's shape, once per digest.
    pub fn keep(&self, shape: &policy::Shape, digest: &str) -> Result<(), Fault> {
        let log = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut described = log.as_ref().map(|log| log.described.lock().unwrap_or_else(PoisonError::into_inner));
        if described.as_ref().is_some_and(|described| described.contains(digest)) {
            return Ok(());
        }
        let kept = self.describe(shape, digest).map(|()| {
            if let Some(described) = &mut described {
                described.insert(digest.to_owned());
            }
        });
        kept.map_err(|e| self.unkept(&e))
    }

    fn unkept(&self, e: &io::Error) -> Fault {
        refusal(&self.path, &format!("what the call can touch cannot be kept beside it: {e}"))
    }

    fn describe(&self, shape: &policy::Shape, digest: &str) -> io::Result<()> {
        let folder = self.confinements();
        let file = folder.join(format!("{digest}.json"));
        if file.symlink_metadata().is_ok_and(|facts| facts.is_file()) {
            return Ok(());
        }
        private_folder(&folder)?;
        let mut text = tempfile::NamedTempFile::new_in(&folder)?;
        text.write_all(&serde_json::to_vec(shape)?)?;
        text.persist(&file).map(|_| ()).map_err(|e| e.error)
    }

    fn confinements(&self) -> PathBuf {
        self.path.parent().unwrap_or(Path::new(".")).join(CONFINEMENTS)
    }

    /// Finds the record of a past call, and what that call could touch.
    pub fn recall(&self, call: &str) -> Result<Recalled, String> {
        let shown = self.path.display();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(&self.path)
            .map_err(|e| format!("{shown}: {e}"))?;
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            if read.map_err(|e| format!("{shown}: {e}"))? == 0 {
                return Err(format!("{shown}: no call '{}' is recorded", call.escape_default()));
            }
            let Ok(record) = serde_json::from_slice::<Value>(&line) else { continue };
            if record["call"] == call {
                let confinement = record["digests"]["confinement"].as_str().and_then(|d| self.confinement(d));
                return Ok(Recalled { record, confinement });
            }
        }
    }

    /// The kept text of a digest; `None` where it is gone or is no digest.
    fn confinement(&self, digest: &str) -> Option<Value> {
        if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let bytes = std::fs::read(self.confinements().join(format!("{digest}.json"))).ok()?;
        // The digest stands in the record, which is append-only; a text that does not fit it tells nothing.
        if crate::manifest::sha256_hex(&bytes) != digest {
            return None;
        }
        serde_json::from_slice(&bytes).ok()
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
        let kept = ascii(record).map_err(io::Error::from).and_then(|mut line| {
            line.push('\n');
            self.log.begun.keep(self.slot, &line)
        });
        self.slot = Some(
            kept.map_err(|e| refusal(&self.path, &format!("the call cannot be kept in {}/ beside it: {e}", BEGUN)))?,
        );
        Ok(())
    }

    /// Writes the record: one line, one write.
    pub fn write(self, record: &impl Serialize) -> Result<(), Fault> {
        let written = ascii(record).map_err(io::Error::from).and_then(|line| self.log.add(&line));
        written.map_err(|why| {
            Fault::new(Kind::InternalError, "The call ended, but its audit record could not be written.")
                .person(format!("audit log {}: {why}", self.path.display()))
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.log.begun.over(slot);
        }
    }
}

impl Kept {
    fn add(&self, record: &str) -> io::Result<()> {
        // A line that another call is writing right now is not torn.
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::with_capacity(record.len() + 2);
        // Its end, and not its times: a kernel that was asked for those writes them anew with the next record.
        let before = (&self.file).seek(SeekFrom::End(0))?;
        if before != *end && self.torn(before) {
            line.push('\n');
        }
        line.push_str(record);
        line.push('\n');
        match (&self.file).write(line.as_bytes())? {
            count if count == line.len() => {
                // Where others wrote in between, the file is longer than this, and looked at again.
                *end = before + count as u64;
                Ok(())
            }
            count => Err(io::Error::other(format!("{count} of {} bytes were written", line.len()))),
        }
    }

    /// Sets blocks aside for the records that are under way, so that a full disk refuses the call instead of
    /// losing its record. Where the file system cannot, the write itself is the test.
    fn reserve(&self, end: u64, records: usize) -> Result<(), String> {
        use nix::errno::Errno;
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let rooms = u64::try_from(records).unwrap_or(u64::MAX).saturating_mul(ROOM);
        if end.saturating_add(rooms) <= *reserved {
            return Ok(());
        }
        let size = rooms.saturating_add(ROOMS * ROOM);
        let (from, room) = (i64::try_from(end), i64::try_from(size));
        let (Ok(from), Ok(room)) = (from, room) else { return Err("it is too long".to_owned()) };
        match nix::fcntl::fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, from, room) {
            Ok(()) => *reserved = end.saturating_add(size),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINTR | Errno::EINVAL) => {}
            Err(e) => return Err(e.to_string()),
        }
        Ok(())
    }

    /// Whether an earlier writer was cut off in the middle of its line.
    fn torn(&self, length: u64) -> bool {
        let mut last = [0];
        length > 0 && self.file.read_exact_at(&mut last, length - 1).is_ok() && last != *b"\n"
    }
}

fn refusal(log: &Path, why: &str) -> Fault {
    Fault::new(Kind::InternalError, "The call was refused: it could not have been recorded in the audit log.")
        .person(format!("audit log {}: {why}; mend that, or name another file with --audit-log", log.display()))
        .retryable()
}

/// Whether a file may take records: nobody else may have written it.
pub(super) fn trustworthy(mode: u32, owner: u32) -> Result<(), String> {
    if mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        return Err("it is not a regular file".into());
    }
    let me = nix::unistd::geteuid().as_raw();
    if owner != me && owner != 0 {
        return Err("it belongs to another user".into());
    }
    if mode & 0o022 != 0 {
        return Err("others may write it; run `chmod go-w` on it".into());
    }
    Ok(())
}

pub(super) fn private_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
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
            // Only inside strings, where serde_json leaves it as it is.
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
    use serde_json::json;
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
        OpenOptions::new().append(true).open(log.path()).unwrap().write_all(b"{\"call\": \"to").unwrap();
        log.open().unwrap().write(&json!({"call": "b"})).unwrap();
        assert!(log.recall("a").is_ok() && log.recall("b").is_ok());
    }
}
