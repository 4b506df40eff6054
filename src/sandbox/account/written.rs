//! Written: what a call adds to the folders that it may write live (part of the wall `limits`).
//!
//! No quota of the kernel counts one call's files in a folder that others use too. So the files are counted while the
//! call runs, whenever the free space of the file system changed, and once more after its end.

use crate::base::files;
use crate::policy::{Access, Limits};
use crate::quantity::{Limit, SAMPLE_MS};
use crate::sandbox::inspect::{self, Totals};
use crate::sandbox::processes::files_of;
use crate::sandbox::protocol::Mount;
use crate::sandbox::sampler::Frozen;
use crate::sandbox::sys::errno;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::fstatvfs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Free bytes and files of a file system; `files` is 0 where it does not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Free {
    bytes: u64,
    files: u64,
}

/// Watches the live writes of one call.
pub struct WriteWatch {
    trees: Vec<(Mount, OwnedFd)>,
    before: Totals,
    at_first: Vec<Free>,
    last: Vec<Free>,
    /// No count before this: counting takes at most a quarter of the time, or half while the call is stopped for it.
    next: Instant,
    /// A count missed an entry, or much free space vanished, so the call is stopped during counts.
    moves: bool,
    /// /proc shows only the processes of the call.
    alone: bool,
}

impl WriteWatch {
    /// Whether a call with this mount must be watched.
    pub fn is_needed(mount: &Mount) -> bool {
        mount.folder && mount.access == Access::Write
    }

    /// `before`: what lay in the folders when the grants were looked at. `None` where nothing is written live.
    pub fn begin(mounts: &[Mount], before: Totals) -> Result<Option<WriteWatch>, Errno> {
        let live = || mounts.iter().filter(|mount| WriteWatch::is_needed(mount));
        // A folder that lies in another is counted with that one.
        let inner = |m: &Mount| live().any(|above| above.path != m.path && m.path.starts_with(&above.path));
        let opened = live()
            .filter(|m| !inner(m))
            .map(|mount| Ok((mount.clone(), files::without_links(&mount.path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)));
        let trees: Vec<_> = opened.collect::<Result<_, Errno>>()?;
        if trees.is_empty() {
            return Ok(None);
        }
        let at_first = free(&trees)?;
        let last = at_first.clone();
        Ok(Some(WriteWatch { trees, before, at_first, last, next: Instant::now(), moves: false, alone: true }))
    }

    /// Makes a watch for the host, which watches the calls of a worker and cannot count files without a name.
    pub fn for_host(self) -> WriteWatch {
        WriteWatch { alone: false, ..self }
    }

    /// The limit that is exceeded now, if any.
    pub fn look(&mut self, limits: &Limits) -> Result<Option<Limit>, Errno> {
        let now = free(&self.trees)?;
        if now == self.last || Instant::now() < self.next {
            return Ok(None);
        }
        let began = Instant::now();
        let most = limits.get(Limit::WrittenBytes);
        let fell = now.iter().zip(&self.at_first).any(|(now, first)| first.bytes.saturating_sub(now.bytes) > most);
        self.last = now;
        let (mut over, missed) = if self.moves { (None, true) } else { self.count(limits, true)? };
        // Entries that are renamed during a count are missed, and may be what fills the disk.
        self.moves = self.alone && (missed || fell);
        if self.moves && over.is_none() {
            let _still = Frozen::begin(&mut || false)?;
            over = self.count(limits, true)?.0;
        }
        let share = if self.moves { 1 } else { 3 };
        self.next = Instant::now() + (began.elapsed() * share).max(Duration::from_millis(SAMPLE_MS / 2));
        Ok(over)
    }

    /// As `look`, after the end of the call. Always counts: space that neighbours free can hide what the call added.
    pub fn look_at_end(&mut self, limits: &Limits) -> Result<Option<Limit>, Errno> {
        Ok(self.count(limits, false)?.0)
    }

    /// The limit that is passed, if any, and whether an entry vanished during the count.
    fn count(&mut self, limits: &Limits, running: bool) -> Result<(Option<Limit>, bool), Errno> {
        let (mut now, mut missed) = (Totals::default(), false);
        for (mount, folder) in &self.trees {
            for entry in inspect::below(folder, &mount.path) {
                match entry.and_then(|(_, entry)| entry.metadata()) {
                    Ok(meta) => now.add(&meta),
                    Err(e) if e.io_error().is_some_and(|e| e.kind() == std::io::ErrorKind::NotFound) => missed = true,
                    // The entry is too deep for a path, or in a folder that the tool closed and whose group is not
                    // mapped in this user namespace: it cannot be counted.
                    Err(e) if [Some(Errno::ENAMETOOLONG), Some(Errno::EACCES)].contains(&e.io_error().map(errno)) => {
                        return Ok((Some(Limit::WrittenFiles), missed));
                    }
                    Err(e) => return Err(e.into_io_error().map_or(Errno::EIO, |e| errno(&e))),
                }
            }
        }
        if running && self.alone {
            now.bytes += self.unnamed_bytes();
        }
        let added = (now.bytes.saturating_sub(self.before.bytes), now.files.saturating_sub(self.before.files));
        let most = (limits.get(Limit::WrittenBytes), limits.get(Limit::WrittenFiles));
        let over = match () {
            () if added.0 > most.0 => Some(Limit::WrittenBytes),
            () if added.1 > most.1 => Some(Limit::WrittenFiles),
            () => None,
        };
        Ok((over, missed))
    }

    /// Bytes of open files without a name, as far as descriptors of the call show them.
    fn unnamed_bytes(&self) -> u64 {
        let list = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
        let numbers = list("/proc").filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut held = std::collections::BTreeMap::new();
        for file in numbers.filter(|pid| *pid != 1).flat_map(|pid| list(&format!("{}/fd", files_of(pid).0))) {
            let Ok(meta) = std::fs::metadata(file.path()) else { continue };
            let ours = self.trees.iter().any(|(mount, _)| mount.device == meta.dev());
            if ours && meta.nlink() == 0 && meta.is_file() {
                held.insert((meta.dev(), meta.ino()), meta.blocks() * 512);
            }
        }
        held.values().sum()
    }
}

fn free(trees: &[(Mount, OwnedFd)]) -> Result<Vec<Free>, Errno> {
    let of = |folder| {
        fstatvfs(folder).map(|fs| Free { bytes: fs.blocks_free() * fs.fragment_size(), files: fs.files_free() })
    };
    trees.iter().map(|(_, folder)| of(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_neighbour_frees_hides_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().canonicalize().expect("a path").join("out");
        std::fs::create_dir(&path).expect("made");
        let neighbour = root.path().join("neighbour");
        std::fs::write(&neighbour, vec![1; 8 << 20]).expect("written");
        let facts = std::fs::metadata(&path).expect("there");
        let (device, inode, uid, gid) = (facts.dev(), facts.ino(), facts.uid(), facts.gid());
        let mount =
            Mount { path: path.clone(), access: Access::Write, folder: true, device, inode, uid, gid, no_exec: false };
        let mut limits = Limits::house();
        limits.set(Limit::WrittenBytes, 1 << 20);
        let mut written = WriteWatch::begin(&[mount], Totals::default()).expect("opened").expect("written live");
        let synced = |name: &str, bytes: usize| {
            std::fs::write(path.join(name), vec![1; bytes]).expect("written");
            // Space is taken when it is written back (ext4: delayed allocation).
            std::fs::File::open(path.join(name)).and_then(|file| file.sync_all()).expect("on disk");
        };
        synced("within", 64 << 10);
        assert_eq!(written.look_at_end(&limits), Ok(None), "control");
        std::fs::remove_file(neighbour).expect("removed");
        synced("beyond", 2 << 20);
        assert_eq!(written.look_at_end(&limits), Ok(Some(Limit::WrittenBytes)));
    }
}
