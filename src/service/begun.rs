//! Calls under way, so that a host which is killed leaves their records too (P30).
//!
//! For: the audit log. In: the record a call leaves if its host ends right now. Out: after such an end, those
//! records, for the next host that opens the log. Never: gives a record of a call whose host may still write it.
//!
//! One file per host and open log, `begun/<log>.<random>`: locked (flock(2)) as long as its host lives, one slot per
//! running call. Memory that is not flushed is enough: it outlives the process, though not the machine.

use super::audit::{ROOM, private_folder, trustworthy};
use nix::fcntl::{Flock, FlockArg, OFlag};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folder beside the log.
pub const BEGUN: &str = "begun";

/// The calls of this host that are under way.
#[derive(Debug)]
pub(super) struct Begun {
    file: Flock<File>,
    path: PathBuf,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u64>,
    /// How many there ever were at once.
    count: u64,
}

impl Begun {
    pub fn beside(log: &Path) -> io::Result<Begun> {
        let folder = folder(log);
        private_folder(&folder)?;
        let name = log.file_name().unwrap_or_default().to_string_lossy();
        loop {
            let made = tempfile::Builder::new().prefix(&format!("{name}.")).rand_bytes(12).tempfile_in(&folder)?;
            let (file, path) = made.keep().map_err(|e| e.error)?;
            let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
            // Another host may have taken it for a dead one's before it was locked.
            if file.metadata()?.nlink() > 0 {
                return Ok(Begun { file, path, slots: Mutex::default() });
            }
        }
    }

    /// Keeps a record in a slot of its own, or in `slot`. Returns the slot.
    pub fn keep(&self, slot: Option<u64>, line: &str) -> io::Result<u64> {
        if line.len() as u64 > ROOM {
            return Err(io::Error::other("it is longer than a record may be"));
        }
        let slot = slot.unwrap_or_else(|| {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.free.pop().unwrap_or_else(|| {
                slots.count += 1;
                slots.count - 1
            })
        });
        self.file.write_all_at(line.as_bytes(), slot * ROOM)?;
        Ok(slot)
    }

    /// The call has its record in the log.
    pub fn over(&self, slot: u64) {
        // Where this fails, the next host still finds the record in the log.
        let _ = self.file.write_all_at(b"\n", slot * ROOM);
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(slot);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The calls of one dead host. Removed once their records stand in the log.
pub(super) struct Orphans {
    /// Locked, so that one host alone adds them.
    _file: Flock<File>,
    path: PathBuf,
    pub lines: Vec<String>,
}

impl Orphans {
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// What dead hosts left.
pub(super) fn orphans(log: &Path) -> io::Result<Vec<Orphans>> {
    let entries = match std::fs::read_dir(folder(log)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // The random part has no full stop in it.
        if path.file_stem() != log.file_name() {
            continue;
        }
        let Some(mut file) = of_the_dead(&path)? else { continue };
        let mut lines = Vec::new();
        for slot in 0..file.metadata()?.len().div_ceil(ROOM) {
            file.seek(SeekFrom::Start(slot * ROOM))?;
            let mut line = String::new();
            BufReader::new(Read::by_ref(&mut *file).take(ROOM)).read_line(&mut line).unwrap_or_default();
            if line.len() > 1 && line.ends_with('\n') {
                lines.push(line);
            }
        }
        found.push(Orphans { _file: file, path, lines });
    }
    Ok(found)
}

/// Opened and locked; `None` where its host lives, or where it is not one of our files.
fn of_the_dead(path: &Path) -> io::Result<Option<Flock<File>>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let facts = file.metadata()?;
    if trustworthy(facts.mode(), facts.uid()).is_err() {
        return Ok(None);
    }
    let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
    Ok((file.metadata()?.nlink() > 0).then_some(file))
}

fn folder(log: &Path) -> PathBuf {
    log.parent().unwrap_or(Path::new(".")).join(BEGUN)
}
