//! Calls under way, so that a host which is killed, or whose disk is full, leaves their records too.
//!
//! For: the audit log. In: the record a call leaves if its host ends right now, or that the log had no room for. Out:
//! those records, for whoever opens the log next. Never: gives a record of a call whose host may still write it.
//!
//! One file per host and open segment, `begun/<log>.<id>`: locked (flock(2)) as long as its host lives, one slot per call,
//! with blocks set aside for the longest record. Memory that is not flushed is enough: it outlives the process, though
//! not the machine.

use super::audit::ROOM;
use crate::base::files::Folder;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The folder beside the log.
pub const BEGUN: &str = "begun";

/// The calls of this host that are under way.
#[derive(Debug)]
pub(super) struct Begun {
    file: Flock<File>,
    folder: Folder,
    name: String,
    slots: Mutex<Slots>,
    /// Somebody must add what stands in a slot.
    owes: AtomicBool,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u64>,
    /// How many there ever were at once.
    count: u64,
}

impl Begun {
    /// `beside`: the folder of the log.
    pub fn beside(beside: &Folder, log: &str) -> io::Result<Begun> {
        let folder = beside.below(BEGUN)?;
        loop {
            let name = format!("{log}.{}", uuid::Uuid::now_v7());
            let file = folder.file(&name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?;
            let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
            // Another host may have taken it for a dead one's before it was locked.
            if file.metadata()?.nlink() > 0 {
                let (slots, owes) = (Mutex::default(), AtomicBool::new(false));
                return Ok(Begun { file, folder, name, slots, owes });
            }
        }
    }

    /// A slot for one call, with room for its record: a full disk refuses the call rather than lose that.
    pub fn slot(&self) -> io::Result<u64> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = slots.free.pop() {
            return Ok(free);
        }
        let slot = slots.count;
        let at = |slot: u64| i64::try_from(slot * ROOM).map_err(io::Error::other);
        match fallocate(&*self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, at(slot)?, at(1)?) {
            // Where the file system cannot, the write itself is the test.
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINTR | Errno::EINVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        slots.count += 1;
        Ok(slot)
    }

    /// Keeps a record in its slot.
    pub fn keep(&self, slot: u64, record: &str) -> io::Result<()> {
        if record.len() as u64 >= ROOM {
            return Err(io::Error::other("it is longer than a record may be"));
        }
        self.file.write_all_at(format!("{record}\n").as_bytes(), slot * ROOM)
    }

    /// The same for good: whoever opens the log next adds it.
    pub fn owe(&self, slot: u64, record: &str) -> io::Result<()> {
        self.keep(slot, record)?;
        self.owes.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The call has its record in the log, or leaves none.
    pub fn over(&self, slot: u64) {
        // Where this fails, the next host still finds the record in the log.
        let _ = self.file.write_all_at(b"\n", slot * ROOM);
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(slot);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.owes.load(Ordering::SeqCst) {
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// The calls of one dead host. Removed once their records stand in the log.
pub(super) struct Orphans {
    /// Locked, so that one host alone adds them.
    _file: Flock<File>,
    name: String,
    pub records: Vec<String>,
}

impl Orphans {
    pub fn remove(self, beside: &Folder) -> io::Result<()> {
        beside.below(BEGUN)?.remove(&self.name)
    }
}

/// What dead hosts left.
pub(super) fn orphans(beside: &Folder, log: &str) -> io::Result<Vec<Orphans>> {
    let folder = beside.below(BEGUN)?;
    let mut found = Vec::new();
    for name in folder.names()? {
        // The part behind the log's name has no full stop in it.
        if name.rsplit_once('.').is_none_or(|(head, _)| head != log) {
            continue;
        }
        // Somebody else's, or its host lives.
        let Ok(file) = folder.trusted(&name, OFlag::O_RDWR) else { continue };
        let Ok(mut file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
        let facts = file.metadata()?;
        if facts.nlink() == 0 {
            continue;
        }
        let mut records = Vec::new();
        for slot in 0..facts.len().div_ceil(ROOM) {
            file.seek(SeekFrom::Start(slot * ROOM))?;
            let mut line = String::new();
            BufReader::new(Read::by_ref(&mut *file).take(ROOM)).read_line(&mut line).unwrap_or_default();
            if let Some(record) = line.strip_suffix('\n').filter(|record| !record.is_empty()) {
                records.push(record.to_owned());
            }
        }
        found.push(Orphans { _file: file, name, records });
    }
    Ok(found)
}
