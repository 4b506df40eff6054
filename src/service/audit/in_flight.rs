//! In flight: calls under way, kept so that a host which is killed, or whose disk is full, leaves their records too.
//!
//! For: the audit log. In: the record a call leaves if its host ends right now, or that the log had no room for. Out:
//! those records, for the host that opens the log next. Never: gives out a record that a living host may still write.
//!
//! One file per host and open segment, `begun/<log>.<id>`: locked (flock(2)) as long as its host lives, one slot per
//! call, with blocks set aside for the longest record. Nothing is flushed (fsync(2)): the page cache outlives the
//! process, though not the machine.

use crate::base::files::Folder;
use crate::base::lock;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The folder beside the log.
pub const BEGUN: &str = "begun";
/// Room that is set aside for a record before the call runs, bytes. No record is longer.
pub const ROOM: u64 = 160 * 1024;

/// The calls of this host that are under way.
#[derive(Debug)]
pub(super) struct InFlight {
    file: Flock<File>,
    folder: Folder,
    name: String,
    slots: Mutex<Slots>,
    /// A slot holds a record that the log lacks, so the file is left for the next host.
    owes: AtomicBool,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u64>,
    /// Slots made so far: the most calls that were under way at once.
    count: u64,
}

impl InFlight {
    /// `beside`: the folder of the log.
    pub fn beside(beside: &Folder, log: &str) -> io::Result<InFlight> {
        let folder = beside.below(BEGUN)?;
        loop {
            let name = format!("{log}.{}", uuid::Uuid::now_v7());
            let file = folder.file(&name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)?;
            let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
            // Before the lock, another host may have removed the file as a dead host's.
            if file.metadata()?.nlink() > 0 {
                let (slots, owes) = (Mutex::default(), AtomicBool::new(false));
                return Ok(InFlight { file, folder, name, slots, owes });
            }
        }
    }

    /// A slot for one call, with room for its record: on a full disk the call is refused and no record lost.
    pub fn slot(&self) -> io::Result<u64> {
        let mut slots = lock(&self.slots);
        if let Some(free) = slots.free.pop() {
            return Ok(free);
        }
        let slot = slots.count;
        let at = |slot: u64| i64::try_from(slot * ROOM).map_err(io::Error::other);
        match fallocate(&*self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, at(slot)?, at(1)?) {
            // Where nothing can be set aside, the first write shows whether there is room.
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

    /// Keeps a record that the log could not take: the next host that opens the log adds it.
    pub fn owe(&self, slot: u64, record: &str) -> io::Result<()> {
        self.keep(slot, record)?;
        self.owes.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Frees a slot: the call's record is in the log, or the call leaves none.
    pub fn over(&self, slot: u64) {
        // If this write fails, the next host finds the record in the log and does not add it again.
        let _ = self.file.write_all_at(b"\n", slot * ROOM);
        lock(&self.slots).free.push(slot);
    }
}

impl Drop for InFlight {
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
        // The uuid behind the log's name holds no full stop.
        if name.rsplit_once('.').is_none_or(|(head, _)| head != log) {
            continue;
        }
        // Passed over: a file that others may write, and one whose host lives.
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
