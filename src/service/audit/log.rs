//! The audit log: one line of plain ASCII for each call or refusal, complete by itself.
//!
//! A begin record is written before a call runs (`begun`); where it cannot be written, the call
//! does not run. An end that cannot be written stays in memory and is the first record written
//! later; until then no call starts.

use super::begun::{self, BEGUN, Begun};
use super::chain::{Finding, Head};
use super::segments::{self, MAX_LINE_BYTES, Retention, Segment, ascii, refusal};
use crate::base::files::{self, Folder};
use crate::base::lock;
use crate::base::text::cut;
use crate::fault::Fault;
use crate::policy;
use crate::service::alerts::{Alert, Alerts};
use crate::service::call_ended::CUT;
use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// The folder beside the log for the texts of confinements.
pub const CONFINEMENTS: &str = "confinements";
/// The part of a record that holds its call's id, bytes.
const HEAD: usize = 1024;
/// How long the record of a call may come after the text of its confinement. (A policy may allow
/// longer calls; the text of such a call's confinement can be removed early.)
const MAX_CALL_TIME: Duration = Duration::from_secs(8 * 24 * 3600);

/// How often a server writes a head, and how long that may take.
const HEAD_INTERVAL: Duration = Duration::from_secs(60);
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// How often another host may close the file in which a record is to be written.
const MAX_REOPENS: usize = 3;

/// The audit log: its files.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
    retention: Retention,
    /// The root of the host that writes, which others may share the log with.
    root: Option<String>,
    /// The file for heads of the chain.
    heads: Option<PathBuf>,
    alerts: Arc<Alerts>,
    state: Arc<Mutex<LogState>>,
}

#[derive(Debug, Default)]
struct LogState {
    /// The file of the last call: used again while the path still leads to it.
    open: Option<Arc<OpenLog>>,
    /// Records to be written, in order, each with the begin of its call.
    unwritten: VecDeque<(String, Option<Begin>)>,
    /// The head that was written last.
    head: Option<Head>,
}

/// An open log file.
#[derive(Debug)]
struct OpenLog {
    segment: Segment,
    /// Confinements whose text is known to lie beside it.
    described: Mutex<HashSet<String>>,
    begun: Arc<Begun>,
}

impl OpenLog {
    /// How long this file may be, bytes: the begin records of this host count in its limit.
    fn room(&self, retention: Retention) -> u64 {
        retention.segment_bytes.saturating_sub(self.begun.bytes())
    }
}

/// A begin record: its file, and its offset.
#[derive(Debug)]
struct Begin(Arc<OpenLog>, u64);

/// The right to write one record. A call that began and has not ended counts as running while this
/// host lives.
#[derive(Debug)]
pub struct RecordPermit {
    log: Log,
    begin: Option<Begin>,
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
        Log::with_retention(path, Retention::DEFAULT)
    }

    pub fn with_retention(path: impl Into<PathBuf>, retention: Retention) -> Log {
        let path = path.into();
        Log {
            path,
            retention,
            root: None,
            heads: None,
            alerts: Arc::default(),
            state: Arc::default(),
        }
    }

    /// Names this root in the records of its host.
    pub fn with_root(self, root: &Path) -> Log {
        let root = files::resolved(root).to_string_lossy().into_owned();
        Log {
            root: Some(cut(&root, CUT)),
            ..self
        }
    }

    pub fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    /// Appends heads of the chain to this file.
    pub fn with_heads(self, heads: Option<PathBuf>) -> Log {
        Log { heads, ..self }
    }

    pub fn alerts(&self) -> &Arc<Alerts> {
        &self.alerts
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same log for who only reads it, and so keeps none of its files open: a host that writes has
    /// ended once nobody has them.
    pub fn for_reading(&self) -> Log {
        Log {
            alerts: Arc::default(),
            state: Arc::default(),
            ..self.clone()
        }
    }

    /// The file for heads of the chain.
    pub fn heads(&self) -> Option<&Path> {
        self.heads.as_deref()
    }

    /// Opens the log if needed, and writes the records that could not be written before. An error
    /// refuses the call.
    pub fn open(&self) -> Result<RecordPermit, Fault> {
        let mut state = lock(&self.state);
        let ready = self.reopen(&mut state).and_then(|_| self.flush(&mut state));
        ready.map_err(|why| refusal(&self.path, &why))?;
        Ok(RecordPermit {
            log: self.clone(),
            begin: None,
        })
    }

    fn reopen(&self, state: &mut LogState) -> Result<Arc<OpenLog>, String> {
        let mut begun = None;
        let mut known = None;
        if let Some(open) = &state.open {
            known = open.segment.last();
            // For each call: since the last one the log may have been moved, or opened to others.
            match open.segment.size_if_current().map_err(|e| e.to_string())? {
                Some(size) if size < open.room(self.retention) => return Ok(open.clone()),
                Some(_) => {
                    self.close(open);
                    begun = Some(open.begun.clone());
                }
                None => {}
            }
        }
        let mut is_closed = begun.is_some();
        let mut new = self.open_file(begun, known)?;
        if new
            .segment
            .size_if_current()
            .map_err(|e| e.to_string())?
            .is_some_and(|size| size >= new.room(self.retention))
        {
            self.close(&new);
            is_closed = true;
            new = self.open_file(Some(new.begun.clone()), new.segment.last())?;
        }
        if is_closed {
            self.remove_closed(&new.segment);
        }
        Ok(state.open.insert(Arc::new(new)).clone())
    }

    fn flush(&self, state: &mut LogState) -> Result<(), String> {
        while let Some((record, begin)) = state.unwritten.pop_front() {
            if let Err(why) = self.add(state, &record) {
                state.unwritten.push_front((record, begin));
                return Err(why);
            }
            begin
                .into_iter()
                .for_each(|Begin(open, at)| open.begun.end(at));
        }
        Ok(())
    }

    fn add(&self, state: &mut LogState, record: &str) -> Result<(), String> {
        for _ in 0..MAX_REOPENS {
            let open = match &state.open {
                Some(open) => open.clone(),
                None => self.reopen(state)?,
            };
            if let Some(found) = open.segment.add(record).map_err(|e| e.to_string())? {
                self.report(&found);
                return Ok(());
            }
            // The file was closed or removed meanwhile.
            self.reopen(state)?;
        }
        Err("something keeps removing it".to_owned())
    }

    /// Reports what is wrong with the chain, as far as it was read.
    fn report(&self, found: &[Finding]) {
        if let Some(first) = found.first() {
            let log = self.path.display();
            tracing::error!(target: "toolhost::alert", "audit log {log}: its chain is broken: \
                {first}; `toolhost log verify` shows more");
            self.alerts.send(Alert::ChainBroken {
                log: self.path.clone(),
                finding: first.to_string(),
            });
        }
    }

    /// Closes a full file. A failure costs disk space, but no record.
    fn close(&self, full: &OpenLog) {
        self.tell(full.segment.close(full.room(self.retention)));
    }

    /// Removes the oldest closed files.
    fn remove_closed(&self, segment: &Segment) {
        let removed = self.tell(segment.remove_closed(self.retention.segments));
        let removed = removed.unwrap_or_default();
        self.report(&removed.found);
        if let Some(last) = removed.modified {
            self.tell(self.forget(&segment.folder, last));
        }
    }

    fn tell<T>(&self, done: io::Result<T>) -> Option<T> {
        done.inspect_err(|why| {
            tracing::warn!(target: "toolhost::host", "audit log {}: {why}", self.path.display());
        })
        .ok()
    }

    /// Removes the texts of confinements that only removed records can name. A host renews the
    /// times of the texts that it uses with each new file of the log.
    fn forget(&self, beside: &Folder, last: SystemTime) -> io::Result<()> {
        let folder = beside.below(CONFINEMENTS)?;
        let Some(oldest) = last.checked_sub(MAX_CALL_TIME) else {
            return Ok(());
        };
        for name in folder
            .names()?
            .into_iter()
            .filter(|name| name.ends_with(".json"))
        {
            if folder
                .file(&name, OFlag::O_RDONLY)?
                .metadata()?
                .modified()?
                < oldest
            {
                folder.remove(&name)?;
            }
        }
        Ok(())
    }

    /// `begun`: the host's begin records in this folder, if it has any. `known`: the last record that
    /// it wrote.
    fn open_file(&self, begun: Option<Arc<Begun>>, known: Option<Head>) -> Result<OpenLog, String> {
        let segment = Segment::current(&self.path, known).map_err(|e| e.to_string())?;
        let begun = match begun {
            Some(begun) => Ok(begun),
            None => segments::name_of(&self.path)
                .and_then(|name| {
                    Begun::create(&segment.folder, &name, self.retention.segment_bytes)
                })
                .map(Arc::new),
        };
        let begun = begun
            .map_err(|e| format!("begin records cannot be written beside it: {BEGUN}: {e}"))?;
        self.recover(&segment).map_err(|e| {
            format!("the calls of a host that was killed cannot be added to it: {e}")
        })?;
        Ok(OpenLog {
            segment,
            described: Mutex::default(),
            begun,
        })
    }

    /// Adds the calls of dead hosts that have a begin and no end.
    fn recover(&self, log: &Segment) -> io::Result<()> {
        for mut dead in begun::all(&log.folder, &segments::name_of(&self.path)?)? {
            if dead.is_running() {
                continue;
            }
            let mut open: HashSet<String> =
                dead.records.iter().map(|(call, _)| call.clone()).collect();
            if !open.is_empty() {
                self.find(|call, line| {
                    // A line that was cut off does not count.
                    if open.contains(call) && serde_json::from_slice::<IgnoredAny>(line).is_ok() {
                        open.remove(call);
                    }
                    open.is_empty()
                })?;
            }
            dead.records.retain(|(call, _)| open.contains(call));
            for (_, record) in &dead.records {
                let added = log.add(record)?;
                self.report(&added.ok_or_else(|| io::Error::other("it was removed meanwhile"))?);
            }
            dead.remove(&log.folder)?;
        }
        Ok(())
    }

    /// Passes each record to `last`, newest file first, until that returns true. Returns the number
    /// of files, and those that were skipped. The id of a call is near the start of its line.
    fn find(&self, mut last: impl FnMut(&str, &[u8]) -> bool) -> io::Result<(usize, Vec<String>)> {
        let (files, skipped) = segments::open_all(&self.path)?;
        let count = files.len();
        for opened in files {
            let mut lines = BufReader::with_capacity(1 << 20, opened.file);
            let mut line = Vec::new();
            loop {
                line.clear();
                if lines
                    .by_ref()
                    .take(MAX_LINE_BYTES)
                    .read_until(b'\n', &mut line)?
                    == 0
                {
                    break;
                }
                let head = String::from_utf8_lossy(&line[..line.len().min(HEAD)]);
                let id = head
                    .split_once("\"call\":\"")
                    .and_then(|(_, rest)| rest.split_once('"'));
                if id.is_some_and(|(id, _)| last(id, &line)) {
                    return Ok((count, skipped));
                }
            }
        }
        Ok((count, skipped))
    }

    /// Stores the text of a confinement's shape, once per digest.
    pub fn keep(&self, shape: &policy::Shape, digest: &str) -> Result<(), Fault> {
        let Some(log) = lock(&self.state).open.clone() else {
            return Ok(());
        };
        let mut described = lock(&log.described);
        if !described.contains(digest) {
            describe(&log.segment.folder, shape, digest).map_err(|e| self.unkept(&e))?;
            described.insert(digest.to_owned());
        }
        Ok(())
    }

    fn unkept(&self, e: &io::Error) -> Fault {
        refusal(
            &self.path,
            &format!("the call's confinement cannot be stored beside it: {e}"),
        )
    }

    /// Finds the record of a past call, and what that call could touch. `call`: its id, or the
    /// beginning of the id where no other call has the same.
    pub fn recall(&self, call: &str) -> Result<PastCall, String> {
        let shown = self.path.display();
        let mut found = None;
        let mut count = 0;
        let files = self.find(|id, line| {
            let is_it = id == call;
            // Our ids have no character that JSON would escape.
            if id.starts_with(call)
                && let Ok(record) = serde_json::from_slice::<Value>(line)
            {
                count = if is_it { 1 } else { count + 1 };
                found = Some(record);
            }
            is_it && found.is_some()
        });
        let (files, skipped) = files.map_err(|e| format!("{shown}: {e}"))?;
        if count > 1 {
            let call = call.escape_default();
            return Err(format!(
                "{count} calls begin with '{call}': write more of the id"
            ));
        }
        let record = match found {
            Some(record) => record,
            None => self.begin_of(call)?.ok_or_else(|| {
                let mut older = match files.saturating_sub(1) {
                    0 => String::new(),
                    closed => {
                        format!(" there or in its {closed} closed files (older ones are removed)")
                    }
                };
                if !skipped.is_empty() {
                    older += &format!("; not looked at: {}", skipped.join(", "));
                }
                format!(
                    "{shown}: no call '{}' is recorded{older}",
                    call.escape_default()
                )
            })?,
        };
        let confinement = record["digests"]["confinement"]
            .as_str()
            .and_then(|digest| self.confinement(digest));
        Ok(PastCall {
            record,
            confinement,
        })
    }

    /// The same, of the calls that hosts of this root made.
    pub fn recall_own(&self, call: &str) -> Result<PastCall, String> {
        let past = self.recall(call)?;
        match &self.root {
            Some(root) if past.record["root"] != **root => {
                Err("a host of another root made that call".to_owned())
            }
            _ => Ok(past),
        }
    }

    /// The begin of a call without an end, whose host is gone.
    fn begin_of(&self, call: &str) -> Result<Option<Value>, String> {
        let name = segments::name_of(&self.path).map_err(|e| e.to_string())?;
        let hosts = Folder::open(segments::folder(&self.path))
            .and_then(|folder| begun::all(&folder, &name));
        for host in hosts.unwrap_or_default() {
            let mut records = host.records.iter();
            if let Some((id, record)) = records.find(|(id, _)| id.starts_with(call)) {
                return if host.is_running() {
                    Err(format!("call '{id}' is still running"))
                } else {
                    Ok(serde_json::from_str(record).ok())
                };
            }
        }
        Ok(None)
    }

    /// Appends the digest of the last record that this process wrote to the file for heads, unless
    /// it is there.
    fn write_head(&self) {
        let Some(path) = &self.heads else { return };
        let mut state = lock(&self.state);
        let last = state.open.as_ref().and_then(|open| open.segment.last());
        if last.is_none() || state.head == last {
            return;
        }
        state.head.clone_from(&last);
        drop(state);
        if let Err(why) = write_head(path, last.as_ref()) {
            let shown = path.display();
            tracing::error!(target: "toolhost::alert", "[log] head_to: {shown}: {why}");
            let (file, why) = (path.clone(), why.to_string());
            self.alerts.send(Alert::HeadNotWritten { file, why });
        }
    }

    /// Verifies the chain, then writes a head from time to time, as long as this is polled.
    pub async fn watch(&self) {
        let log = self.clone();
        let verified = tokio::task::spawn_blocking(move || {
            // Before its first record a host has no heads.
            log.verify(log.heads().filter(|path| path.exists()))
        });
        if let Ok(Ok(verified)) = verified.await {
            self.report(&verified.breaches);
        }
        loop {
            tokio::time::sleep(HEAD_INTERVAL).await;
            self.last_head().await;
        }
    }

    /// Writes a head in another thread: the file may lie on another machine.
    pub async fn last_head(&self) {
        if self.heads.is_some() {
            let log = self.clone();
            let writing = tokio::task::spawn_blocking(move || log.write_head());
            let _ = tokio::time::timeout(HEAD_TIMEOUT, writing).await;
        }
    }

    /// The outcome and message of these calls, as far as they are recorded.
    pub fn outcomes(
        &self,
        mut calls: HashSet<String>,
    ) -> io::Result<HashMap<String, (String, Option<String>)>> {
        let mut found = HashMap::new();
        self.find(|id, line| {
            if calls.contains(id)
                && let Ok(record) = serde_json::from_slice::<Value>(line)
            {
                fn text(name: &str, record: &Value) -> Option<String> {
                    record[name].as_str().map(str::to_owned)
                }
                found.insert(
                    id.to_owned(),
                    (
                        text("outcome", &record).unwrap_or_default(),
                        text("message", &record),
                    ),
                );
                calls.remove(id);
            }
            calls.is_empty()
        })?;
        Ok(found)
    }

    /// The stored confinement of a digest. `None`: it is gone or damaged, or `digest` is not a
    /// digest.
    fn confinement(&self, digest: &str) -> Option<Value> {
        if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let bytes = std::fs::read(
            segments::folder(&self.path)
                .join(CONFINEMENTS)
                .join(format!("{digest}.json")),
        )
        .ok()?;
        // The digest comes from the append-only log; a text with another digest proves nothing.
        if crate::base::sha256_hex(&bytes) != digest {
            return None;
        }
        serde_json::from_slice(&bytes).ok()
    }
}

fn write_head(path: &Path, head: Option<&Head>) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT;
    let name = segments::name_of(path)?;
    let mut file = Folder::open(segments::folder(path))?.trusted(&name, flags)?;
    // A writer that was cut off may have left half a line.
    file.write_all(format!("\n{}\n", serde_json::to_string(&head)?).as_bytes())?;
    file.sync_data()
}

fn describe(beside: &Folder, shape: &policy::Shape, digest: &str) -> io::Result<()> {
    let folder = beside.below(CONFINEMENTS)?;
    let name = format!("{digest}.json");
    match folder.trusted(&name, OFlag::O_WRONLY) {
        Ok(file) => file.set_modified(SystemTime::now()),
        Err(_) => folder.put(&name, &serde_json::to_vec(shape)?),
    }
}

impl RecordPermit {
    pub fn root(&self) -> Option<&str> {
        self.log.root()
    }

    /// Writes the begin record, which counts if this host ends before the call. A second one is
    /// ignored.
    pub fn begin(&mut self, record: &impl Serialize) -> Result<(), Fault> {
        let mut state = lock(&self.log.state);
        let Some(open) = state.open.clone().filter(|_| self.begin.is_none()) else {
            return Ok(());
        };
        self.log
            .flush(&mut state)
            .map_err(|why| refusal(&self.log.path, &why))?;
        drop(state);
        let at = ascii(record)
            .map_err(io::Error::from)
            .and_then(|record| open.begun.begin(&record));
        let at = at.map_err(|e| {
            refusal(
                &self.log.path,
                &format!("a begin record cannot be written in {BEGUN}/: {e}"),
            )
        })?;
        self.begin = Some(Begin(open, at));
        Ok(())
    }

    pub fn has_begun(&self) -> bool {
        self.begin.is_some()
    }

    /// Writes the end record. Where that fails it is kept in memory.
    pub fn write(self, record: &impl Serialize) {
        let record = ascii(record).unwrap_or_else(|e| format!("{{\"unwritable\":\"{e}\"}}"));
        let mut state = lock(&self.log.state);
        state.unwritten.push_back((record, self.begin));
        if let Err(why) = self.log.flush(&mut state) {
            let log = self.log.path.display();
            tracing::error!(target: "toolhost::host", "audit log {log}: {why}; no call starts \
                until it can be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_one_ascii_line_that_reads_back_also_behind_a_torn_one() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("state/audit.jsonl"));
        let record = json!({"call": "c1", "user": "a\nb\u{1b}[31m\u{202e}ö\u{e0041}\u{7f}"});
        log.open().unwrap().write(&record);
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(
            text.is_ascii()
                && text.lines().count() == 1
                && !text.contains('\u{1b}')
                && !text.contains('\u{7f}')
        );
        let recalled = log.recall("c1").unwrap().record;
        assert_eq!(
            (&recalled["user"], &recalled["chain"]["n"]),
            (&record["user"], &json!(1))
        );
        std::fs::File::options()
            .append(true)
            .open(log.path())
            .unwrap()
            .write_all(b"{\"call\": \"to")
            .unwrap();
        log.open().unwrap().write(&json!({"call": "c2"}));
        assert!(log.recall("c1").is_ok() && log.recall("c2").is_ok());
        assert!(log.recall("c3").unwrap_err().contains("no call 'c3'"));
        assert_eq!(
            std::fs::metadata(log.path()).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::metadata(folder.path().join("state"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o700
        );
    }

    #[test]
    fn a_begin_counts_only_once_its_host_is_gone_and_an_end_that_failed_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let host = Log::new(&path);
        let begun = |call: &str| {
            let mut entry = host.open().unwrap();
            entry
                .begin(&json!({"call": call, "outcome": "InternalError"}))
                .unwrap();
            entry
        };
        let (ended, late, _running) = (begun("ended"), begun("late"), begun("killed"));
        ended.write(&json!({"call": "ended", "outcome": "success"}));
        assert!(
            Log::new(&path).open().is_ok()
                && host.recall("killed").unwrap_err().contains("still running")
        );
        // Others may write the log, so that nothing is written, and no call starts.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        late.write(&json!({"call": "late", "outcome": "success"}));
        assert!(host.open().is_err());
        std::fs::remove_dir(&path).unwrap();
        host.open().unwrap().write(&json!({"call": "next"}));
        let text = || std::fs::read_to_string(&path).unwrap();
        assert!(text().lines().next().unwrap().contains("late") && !text().contains("killed"));
        // A host of the version before left slots.
        let slots = format!(
            "\0\0\0\n{}\n\0\0tail\"}}\n",
            json!({"call": "slot", "outcome": "InternalError"})
        );
        std::fs::write(folder.path().join("begun/audit.jsonl.old"), slots).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(folder.path().join("begun/audit.jsonl.old"), mode).unwrap();
        drop((host, _running));
        let next = Log::new(&path);
        next.open().unwrap();
        let outcome = |call: &str| next.recall(call).unwrap().record["outcome"].clone();
        assert_eq!(
            [outcome("killed"), outcome("slot"), outcome("late")],
            ["InternalError", "InternalError", "success"]
        );
        assert_eq!(text().lines().count(), 4, "{}", text());
        assert_eq!(
            std::fs::read_dir(folder.path().join(BEGUN))
                .unwrap()
                .count(),
            1,
            "only the next host's own"
        );
    }

    #[test]
    fn begin_records_count_in_the_limit_of_the_log() {
        for runs in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("audit.jsonl");
            let log = Log::with_retention(
                &path,
                Retention {
                    segment_bytes: 10_000,
                    segments: 2,
                },
            );
            let mut running = log.open().unwrap();
            if runs {
                running
                    .begin(&json!({"call": "running", "text": "x".repeat(4000)}))
                    .unwrap();
                let mut other = log.open().unwrap();
                let refused = other
                    .begin(&json!({"call": "other", "text": "x".repeat(4000)}))
                    .unwrap_err();
                assert!(
                    refused
                        .person
                        .unwrap()
                        .contains("fill half of audit_segment_bytes")
                );
            }
            let closed = folder.path().join("audit.jsonl.000001");
            while !closed.exists() {
                log.open()
                    .unwrap()
                    .write(&json!({"call": "short", "text": "x".repeat(100)}));
            }
            let length = std::fs::metadata(&closed).unwrap().len();
            assert!(
                if runs {
                    length < 7000
                } else {
                    length >= 10_000
                },
                "{runs}: {length}"
            );
            let hosts = std::fs::read_dir(folder.path().join(BEGUN))
                .unwrap()
                .count();
            assert_eq!(
                hosts, 1,
                "the next file of the log has the same begin records"
            );
        }
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
        assert!(Log::new("/dev/null").open().is_err() && Log::new("/dev/full").open().is_err());
    }
}
