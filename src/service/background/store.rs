//! The store of calls in the background: one redb file beside the audit log, private to this user.
//! A file that another host has open, or of another version, is refused.

use super::jobs::Job;
use super::response::{EventRows, ResponseHead, StoredResponse};
use super::run::Run;
use crate::base::files::{self, Folder};
use bytes::Bytes;
use nix::fcntl::OFlag;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The file beside the audit log.
pub const FILE: &str = "background.redb";
/// What the tables hold, as this version of toolhost writes it.
const VERSION: u64 = 1;
/// Memory for pages of the file, bytes.
const CACHE: usize = 4 * 1024 * 1024;
/// A file of more than this many bytes is made smaller when it is opened, where half of it is free.
const LARGE: u64 = 64 * 1024 * 1024;

/// Wait between two attempts to open a file that another process has open.
const RETRY_DELAY: Duration = Duration::from_millis(20);
const IN_USE: &str = "another toolhost serves calls in the background there: give one of the two \
    an --audit-log of its own";

const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const JOBS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("jobs");
const RESULTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("results");
const RUNS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("runs");
const RESPONSES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("responses");
/// By the response, and the number of the event.
const EVENTS: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("events");

#[derive(Debug)]
pub(super) struct JobStore(Database);

/// What is written in one step.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub put: Vec<Job>,
    pub result: Option<(String, String)>,
    pub runs: Vec<Run>,
    pub response: Option<EventRows>,
    /// The ids of what is removed, of whatever kind it is.
    pub gone: Vec<String>,
}

/// All that a store has.
#[derive(Default)]
pub(super) struct StoredRows {
    pub jobs: Vec<Job>,
    pub runs: Vec<Run>,
    pub responses: Vec<StoredResponse>,
}

impl StoredRows {
    /// Bytes of its texts.
    fn bytes(&self) -> usize {
        let jobs = self.jobs.iter().map(|job| job.bytes);
        let runs = self.runs.iter().map(Run::bytes);
        let responses = self.responses.iter().map(StoredResponse::bytes);
        jobs.chain(runs).chain(responses).sum()
    }
}

fn database(file: File) -> Result<Database, DatabaseError> {
    Database::builder()
        .set_cache_size(CACHE)
        .create_with_backend(FileBackend::new(file)?)
}

fn describe(e: impl Into<redb::Error>) -> String {
    e.into().to_string()
}

/// All values of a table. `what`: each of them.
fn rows<T: DeserializeOwned>(
    database: &Database,
    table: TableDefinition<'_, &str, &[u8]>,
    what: &str,
) -> Result<Vec<T>, String> {
    let reading = database.begin_read().map_err(describe)?;
    let table = reading.open_table(table).map_err(describe)?;
    let mut all = Vec::new();
    for row in table.iter().map_err(describe)? {
        let (id, value) = row.map_err(describe)?;
        let value = serde_json::from_slice(value.value());
        all.push(value.map_err(|e| format!("the {what} {} cannot be read: {e}", id.value()))?);
    }
    Ok(all)
}

/// The responses, each with its events.
fn responses(database: &Database) -> Result<Vec<StoredResponse>, String> {
    let heads: Vec<ResponseHead> = rows(database, RESPONSES, "response")?;
    let reading = database.begin_read().map_err(describe)?;
    let texts = reading.open_table(RESULTS).map_err(describe)?;
    let events_of = reading.open_table(EVENTS).map_err(describe)?;
    let mut all = Vec::new();
    for head in heads {
        let id = head.id.as_str();
        let items = texts.get(id).map_err(describe)?;
        let items = items.map(|text| String::from_utf8_lossy(text.value()).into_owned());
        let rows = events_of
            .range((id, 0)..=(id, u64::MAX))
            .map_err(describe)?;
        let events = rows.map(|row| Ok(Bytes::copy_from_slice(row.map_err(describe)?.1.value())));
        let events = events.collect::<Result<Vec<Bytes>, String>>()?;
        let items = items.unwrap_or_default();
        all.push(StoredResponse::new(head, items, events, Arc::default()));
    }
    Ok(all)
}

impl JobStore {
    /// Opens the file, or makes it, and reads all that it has. `folder`: that of the audit log.
    /// `patience`: how long to wait for a process that has the file open; a process of a killed
    /// host can live on for a moment.
    pub fn open(folder: &Path, patience: Duration) -> Result<(JobStore, StoredRows), String> {
        let at = |why: String| format!("{}: {why}", crate::base::text::path(&folder.join(FILE)));
        let until = Instant::now() + patience;
        let (mut database, size) = loop {
            let file = JobStore::file(folder).map_err(|e| at(e.to_string()))?;
            let facts = file.metadata().map_err(|e| at(e.to_string()))?;
            if let Some(why) = files::not_private(&facts) {
                return Err(at(why));
            }
            match database(file) {
                Ok(database) => break (database, facts.len()),
                Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < until => {
                    std::thread::sleep(RETRY_DELAY)
                }
                Err(DatabaseError::DatabaseAlreadyOpen) => {
                    return Err(at(IN_USE.to_owned()));
                }
                Err(e) => return Err(at(describe(e))),
            }
        };
        let rows = JobStore::read(&database).map_err(at)?;
        if size > LARGE.max(2 * rows.bytes() as u64) {
            database.compact().map_err(|e| at(describe(e)))?;
        }
        Ok((JobStore(database), rows))
    }

    /// An empty store that ends with this process.
    pub fn in_memory() -> Result<JobStore, String> {
        let made = Database::builder().create_with_backend(InMemoryBackend::new());
        let database = made.map_err(describe)?;
        JobStore::read(&database).map(|_| JobStore(database))
    }

    fn file(folder: &Path) -> io::Result<File> {
        let folder = Folder::make(folder)?;
        if folder.stat(FILE).is_none() {
            JobStore::make(&folder)?;
        }
        folder.trusted(FILE, OFlag::O_RDWR)
    }

    /// Makes an empty store under another name, then renames it, so that a killed host leaves no
    /// half store.
    fn make(folder: &Folder) -> io::Result<()> {
        let half = format!(".{FILE}.");
        for name in folder
            .names()?
            .iter()
            .filter(|name| name.starts_with(&half))
        {
            // Left by a killed host. A host that is making one just now tries again.
            let _ = folder.remove(name);
        }
        let new = format!("{half}{}", uuid::Uuid::now_v7());
        let file = folder.file(&new, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?;
        let made = database(file)
            .map_err(describe)
            .and_then(|database| JobStore::read(&database).map(drop));
        made.map_err(io::Error::other)?;
        match folder.rename_new(&new, FILE) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => folder.remove(&new),
            renamed => renamed,
        }
    }

    fn read(database: &Database) -> Result<StoredRows, String> {
        let made = database.begin_write().map_err(describe)?;
        {
            let mut about = made.open_table(ABOUT).map_err(describe)?;
            let found = about
                .get("version")
                .map_err(describe)?
                .map(|found| found.value());
            match found {
                Some(VERSION) => {}
                None => drop(about.insert("version", VERSION).map_err(describe)?),
                Some(other) => {
                    return Err(format!(
                        "it is of version {other}, and this toolhost knows {VERSION}: use the \
                         toolhost that made it, or move the file away, which forgets its calls"
                    ));
                }
            }
            made.open_table(JOBS).map_err(describe)?;
            made.open_table(RESULTS).map_err(describe)?;
            made.open_table(RUNS).map_err(describe)?;
            made.open_table(RESPONSES).map_err(describe)?;
            made.open_table(EVENTS).map_err(describe)?;
        }
        made.commit().map_err(describe)?;
        Ok(StoredRows {
            jobs: rows(database, JOBS, "call")?,
            runs: rows(database, RUNS, "run")?,
            responses: responses(database)?,
        })
    }

    /// Writes a change; it is on the disk when this returns.
    pub fn write(&self, change: &Change) -> Result<(), String> {
        let writing = self.0.begin_write().map_err(describe)?;
        {
            let mut jobs = writing.open_table(JOBS).map_err(describe)?;
            let mut results = writing.open_table(RESULTS).map_err(describe)?;
            let mut runs = writing.open_table(RUNS).map_err(describe)?;
            let mut responses = writing.open_table(RESPONSES).map_err(describe)?;
            let mut events = writing.open_table(EVENTS).map_err(describe)?;
            for id in &change.gone {
                for table in [&mut jobs, &mut results, &mut runs, &mut responses] {
                    table.remove(id.as_str()).map_err(describe)?;
                }
                let all = (id.as_str(), 0)..=(id.as_str(), u64::MAX);
                events.retain_in(all, |_, _| false).map_err(describe)?;
            }
            for job in &change.put {
                let text = serde_json::to_vec(job).map_err(|e| e.to_string())?;
                jobs.insert(job.id.as_str(), text.as_slice())
                    .map_err(describe)?;
            }
            if let Some((id, result)) = &change.result {
                results
                    .insert(id.as_str(), result.as_bytes())
                    .map_err(describe)?;
            }
            for run in &change.runs {
                let text = serde_json::to_vec(run).map_err(|e| e.to_string())?;
                runs.insert(run.id.as_str(), text.as_slice())
                    .map_err(describe)?;
            }
            if let Some(rows) = &change.response {
                let id = rows.head.id.as_str();
                let text = serde_json::to_vec(&rows.head).map_err(|e| e.to_string())?;
                responses.insert(id, text.as_slice()).map_err(describe)?;
                for (number, event) in (rows.from as u64..).zip(&rows.events) {
                    events.insert((id, number), &**event).map_err(describe)?;
                }
            }
        }
        writing.commit().map_err(describe)
    }

    /// The result of a job that ended, as the JSON that was written.
    pub fn result(&self, id: &str) -> Result<Option<String>, String> {
        let reading = self.0.begin_read().map_err(describe)?;
        let Some(found) = reading
            .open_table(RESULTS)
            .map_err(describe)?
            .get(id)
            .map_err(describe)?
        else {
            return Ok(None);
        };
        fn damaged(why: String, id: &str) -> String {
            format!("{FILE}: the result of {id} is damaged: {why}")
        }
        let text =
            String::from_utf8(found.value().to_vec()).map_err(|e| damaged(e.to_string(), id))?;
        serde_json::from_str::<IgnoredAny>(&text).map_err(|e| damaged(e.to_string(), id))?;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn job(id: usize) -> Job {
        Job {
            id: format!("{id:04}"),
            ended: Some(Timestamp::UNIX_EPOCH),
            ..Job::default()
        }
    }

    #[test]
    fn what_was_written_is_there_again_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let (store, rows) = JobStore::open(folder.path(), Duration::ZERO).expect("made");
        assert!(rows.jobs.is_empty());
        let result = Some(("0001".to_owned(), "{}".to_owned()));
        store
            .write(&Change {
                put: vec![job(1), job(2)],
                result,
                ..Change::default()
            })
            .expect("written");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .err()
                .expect("locked")
                .contains("another toolhost")
        );
        drop(store);
        assert_eq!(
            std::fs::metadata(&path).expect("there").mode() & 0o777,
            0o600
        );
        let (store, rows) = JobStore::open(folder.path(), Duration::ZERO).expect("opened");
        assert_eq!(rows.jobs, [job(1), job(2)]);
        assert_eq!(store.result("0001"), Ok(Some("{}".to_owned())));
        store
            .write(&Change {
                gone: vec!["0001".to_owned()],
                ..Change::default()
            })
            .expect("written");
        assert_eq!(store.result("0001"), Ok(None));
        let writing = store.0.begin_write().expect("begun");
        writing
            .open_table(ABOUT)
            .expect("there")
            .insert("version", 2)
            .expect("put");
        writing.commit().expect("written");
        drop(store);
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .err()
                .expect("newer")
                .contains("of version 2, and this toolhost knows 1")
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("changed");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .err()
                .expect("readable")
                .contains("others may read it")
        );
        std::fs::write(&path, "not a store").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .err()
                .expect("other contents")
                .contains(FILE)
        );
        std::fs::remove_file(&path).expect("removed");
        // A host was killed while it made one.
        std::fs::write(folder.path().join(".background.redb.x"), "half").expect("written");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .is_ok_and(|(_, rows)| rows.jobs.is_empty())
        );
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn the_file_stays_as_large_as_what_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, _) = JobStore::open(folder.path(), Duration::ZERO).expect("made");
        let size = || {
            std::fs::metadata(folder.path().join(FILE))
                .expect("there")
                .len()
        };
        let text = "x".repeat(1024 * 1024);
        let mut early = 0;
        for n in 0..60_usize {
            let gone = n.checked_sub(8).map(|old| format!("{old:04}"));
            let result = Some((format!("{n:04}"), text.clone()));
            store
                .write(&Change {
                    put: vec![job(n)],
                    result,
                    gone: gone.into_iter().collect(),
                    ..Change::default()
                })
                .expect("written");
            early = if n == 20 { size() } else { early };
        }
        assert!(
            size() <= early.max(32 * 1024 * 1024),
            "{early}, then {}",
            size()
        );
    }
}
