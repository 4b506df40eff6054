//! The store of calls in the background: one redb file beside the audit log, private to this user.
//! A file that another host has open, or of another version, is refused.

use super::jobs::Job;
use super::run::Run;
use crate::base::files::{self, Folder};
use nix::fcntl::OFlag;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::fs::File;
use std::io;
use std::path::Path;
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

#[derive(Debug)]
pub(super) struct JobStore(Database);

/// What is written in one step.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub put: Vec<Job>,
    pub result: Option<(String, String)>,
    pub gone: Vec<String>,
    pub runs: Vec<Run>,
    pub gone_runs: Vec<String>,
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

impl JobStore {
    /// Opens the file, or makes it, and reads all jobs. `folder`: that of the audit log.
    /// `patience`: how long to wait for a process that has the file open; a process of a killed
    /// host can live on for a moment.
    pub fn open(folder: &Path, patience: Duration) -> Result<(JobStore, Vec<Job>), String> {
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
        let jobs = JobStore::read(&database).map_err(at)?;
        let kept: usize = jobs.iter().map(|job| job.bytes).sum();
        if size > LARGE.max(2 * kept as u64) {
            database.compact().map_err(|e| at(describe(e)))?;
        }
        Ok((JobStore(database), jobs))
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

    fn read(database: &Database) -> Result<Vec<Job>, String> {
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
        }
        made.commit().map_err(describe)?;
        rows(database, JOBS, "call")
    }

    /// All runs that are stored.
    pub fn runs(&self) -> Result<Vec<Run>, String> {
        rows(&self.0, RUNS, "run")
    }

    /// Writes a change; it is on the disk when this returns.
    pub fn write(&self, change: &Change) -> Result<(), String> {
        let writing = self.0.begin_write().map_err(describe)?;
        {
            let mut jobs = writing.open_table(JOBS).map_err(describe)?;
            let mut results = writing.open_table(RESULTS).map_err(describe)?;
            for id in &change.gone {
                jobs.remove(id.as_str()).map_err(describe)?;
                results.remove(id.as_str()).map_err(describe)?;
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
            let mut runs = writing.open_table(RUNS).map_err(describe)?;
            for id in &change.gone_runs {
                runs.remove(id.as_str()).map_err(describe)?;
            }
            for run in &change.runs {
                let text = serde_json::to_vec(run).map_err(|e| e.to_string())?;
                runs.insert(run.id.as_str(), text.as_slice())
                    .map_err(describe)?;
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
        let (store, jobs) = JobStore::open(folder.path(), Duration::ZERO).expect("made");
        assert!(jobs.is_empty());
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
                .expect_err("locked")
                .contains("another toolhost")
        );
        drop(store);
        assert_eq!(
            std::fs::metadata(&path).expect("there").mode() & 0o777,
            0o600
        );
        let (store, jobs) = JobStore::open(folder.path(), Duration::ZERO).expect("opened");
        assert_eq!(jobs, [job(1), job(2)]);
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
                .expect_err("newer")
                .contains("of version 2, and this toolhost knows 1")
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("changed");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .expect_err("readable")
                .contains("others may read it")
        );
        std::fs::write(&path, "not a store").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO)
                .expect_err("other contents")
                .contains(FILE)
        );
        std::fs::remove_file(&path).expect("removed");
        // A host was killed while it made one.
        std::fs::write(folder.path().join(".background.redb.x"), "half").expect("written");
        assert!(
            JobStore::open(folder.path(), Duration::ZERO).is_ok_and(|(_, jobs)| jobs.is_empty())
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
