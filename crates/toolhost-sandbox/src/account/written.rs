//! Written: what a call adds to the folders that it may write live (part of the layer `limits`).
//!
//! No quota of the kernel counts one call's files in a folder that others use too. So the files are
//! counted while the call runs, whenever the free space of the file system changed, and once more
//! after its end.
//!
//! A call can pass its limits by what the disk takes in 20 ms; for the rest of a longer count it is
//! stopped. Space of files without a name is counted where a descriptor of the call shows it. While
//! the call holds removed files that are mapped or run, or descriptors that were sent and not
//! received, free space that fell by more than the limit and is not explained by two counts is the
//! call's, although a neighbour may have taken it. What a WASI module writes to files without a
//! name is not counted. What somebody else writes into the tree meanwhile is.
//!
//! The tool owns what it makes and sets modes. It can leave files that are marked executable
//! (inside, nothing there can be executed) and files and folders that everybody may write; never
//! set-id ones or device nodes. Published files are never writable by others, and have the access
//! list of what they replace.

use crate::account::held::scm_fds;
use crate::account::processes::{self, ProcessSnapshot, files_of};
use crate::account::totals::{Totals, below, is_closed};
use crate::account::walk::Stopped;
use crate::spec::{Access, Mount};
use crate::sys::errno;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::fstatvfs;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use toolhost_base::files;
use toolhost_base::quantity::{Limit, Limits, SAMPLE_MS};

/// Free bytes and files of a file system; `files` is 0 where it does not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    bytes: u64,
    files: u64,
}

/// Watches the live writes of one call.
pub struct WriteWatch {
    trees: Vec<(Mount, OwnedFd)>,
    before: Totals,
    at_first: Vec<Free>,
    /// Free space and what the call had added at the last count.
    last: Vec<Free>,
    added: u64,
    /// No count before this: counting takes at most a quarter of the time, or half while the call
    /// is stopped for it.
    next: Instant,
    /// A count missed an entry, or much free space vanished, so the call is stopped during counts.
    moves: bool,
    /// How many counts of the stopped call in a row did not explain the free space that is gone.
    unexplained: u32,
    /// /proc shows only the processes of the call.
    alone: bool,
}

/// What a count found.
#[derive(Default)]
struct Count {
    over: Option<Limit>,
    /// An entry vanished during the count.
    missed: bool,
    added: u64,
}

impl WriteWatch {
    /// Whether a call with this mount must be watched.
    pub fn is_needed(mount: &Mount) -> bool {
        mount.folder && mount.access == Access::Write
    }

    /// `before`: what lay in the folders when the grants were looked at. `None` where nothing is
    /// written live.
    pub fn begin(mounts: &[Mount], before: Totals) -> Result<Option<WriteWatch>, Errno> {
        let live = || mounts.iter().filter(|mount| WriteWatch::is_needed(mount));
        // A folder that lies in another is counted with that one.
        let opened = live()
            .filter(|m| {
                !live().any(|above| above.path != m.path && m.path.starts_with(&above.path))
            })
            .map(|mount| {
                Ok((
                    mount.clone(),
                    files::without_links(&mount.path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?,
                ))
            });
        let trees: Vec<_> = opened.collect::<Result<_, Errno>>()?;
        if trees.is_empty() {
            return Ok(None);
        }
        let at_first = free(&trees)?;
        Ok(Some(WriteWatch {
            trees,
            before,
            last: at_first.clone(),
            at_first,
            added: 0,
            next: Instant::now(),
            moves: false,
            unexplained: 0,
            alone: true,
        }))
    }

    /// Makes a watch for the host, which watches the calls of a worker and cannot count files
    /// without a name.
    pub fn for_host(self) -> WriteWatch {
        WriteWatch {
            alone: false,
            ..self
        }
    }

    /// The folders, for who asks for their free space.
    pub fn folders(&self) -> io::Result<Vec<OwnedFd>> {
        self.trees
            .iter()
            .map(|(_, folder)| folder.try_clone())
            .collect()
    }

    /// How many entries may be there before a limit is passed.
    pub fn max_entries(&self, limits: &Limits) -> u64 {
        self.before
            .files
            .saturating_add(limits.get(Limit::WrittenFiles))
    }

    /// The limit that is exceeded now, if any.
    pub fn look(&mut self, limits: &Limits) -> Result<Option<Limit>, Errno> {
        let now = free(&self.trees)?;
        let most = limits.get(Limit::WrittenBytes);
        // More can only have been added since the last count if as much free space is gone.
        let is_urgent = fell(&self.last, &now) > most.saturating_sub(self.added);
        let is_same = now == self.last && self.unexplained == 0;
        if is_same || !is_urgent && Instant::now() < self.next {
            return Ok(None);
        }
        let began = Instant::now();
        let mut count = Count {
            missed: true,
            ..Count::default()
        };
        if !self.moves {
            count = self.count(limits, true)?;
        }
        // Entries that are renamed during a count are missed, and may be what fills the disk.
        self.moves = self.alone && (count.missed || fell(&self.at_first, &now) > most);
        if self.moves && count.over.is_none() {
            let stopped = Stopped::begin()?;
            stopped.settled()?;
            count = self.count(limits, true)?;
            // Neighbours take free space, too: it is the call's where it holds files that cannot be
            // counted.
            let is_gone =
                fell(&self.at_first, &free(&self.trees)?).saturating_sub(count.added) > most;
            self.unexplained = if is_gone && self.holds_unseen()? {
                self.unexplained + 1
            } else {
                0
            };
            if self.unexplained > 1 {
                count.over = count.over.or(Some(Limit::WrittenBytes));
            }
        }
        (self.last, self.added) = (now, count.added);
        let share = if self.moves { 1 } else { 3 };
        self.next =
            Instant::now() + (began.elapsed() * share).max(Duration::from_millis(SAMPLE_MS / 2));
        Ok(count.over)
    }

    /// As `look`, after the end of the call. Always counts: space that neighbours free can hide
    /// what the call added.
    pub fn look_at_end(&mut self, limits: &Limits) -> Result<Option<Limit>, Errno> {
        Ok(self.count(limits, false)?.over)
    }

    fn count(&self, limits: &Limits, running: bool) -> Result<Count, Errno> {
        let mut now = Totals::default();
        let mut count = Count::default();
        for (mount, folder) in &self.trees {
            for entry in below(folder, &mount.path) {
                match entry.and_then(|(_, entry)| entry.metadata()) {
                    Ok(meta) => now.add(&meta),
                    Err(e)
                        if e.io_error()
                            .is_some_and(|e| e.kind() == io::ErrorKind::NotFound) =>
                    {
                        count.missed = true;
                    }
                    Err(e)
                        if e.io_error().map(errno) == Some(Errno::EACCES)
                            && is_closed(e.path()) => {}
                    // The entry is too deep for a path, or in a folder that the tool closed and
                    // whose group is not mapped in this user namespace: it cannot be counted.
                    Err(e)
                        if [Some(Errno::ENAMETOOLONG), Some(Errno::EACCES)]
                            .contains(&e.io_error().map(errno)) =>
                    {
                        count.over = Some(Limit::WrittenFiles);
                    }
                    Err(e) => return Err(e.into_io_error().map_or(Errno::EIO, |e| errno(&e))),
                }
                if now.files > self.max_entries(limits) {
                    count.over = Some(Limit::WrittenFiles);
                }
                if count.over.is_some() {
                    return Ok(count);
                }
            }
        }
        if running && self.alone {
            now.bytes += self.unnamed_bytes()?;
        }
        count.added = now.bytes.saturating_sub(self.before.bytes);
        if count.added > limits.get(Limit::WrittenBytes) {
            count.over = Some(Limit::WrittenBytes);
        }
        Ok(count)
    }

    /// Bytes of files without a name, as far as descriptors and mappings of the call show them.
    fn unnamed_bytes(&self) -> Result<u64, Errno> {
        let mut held = BTreeMap::new();
        for pid in ProcessSnapshot::now()?.of_the_tool() {
            let folder = files_of(pid).0;
            for file in std::fs::read_dir(format!("{folder}/fd"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let Ok(meta) = std::fs::metadata(file.path()) else {
                    continue;
                };
                let ours = self
                    .trees
                    .iter()
                    .any(|(mount, _)| mount.device == meta.dev());
                if ours && meta.nlink() == 0 && meta.is_file() {
                    held.insert((meta.dev(), meta.ino()), meta.blocks() * 512);
                }
            }
        }
        Ok(held.into_values().sum())
    }

    /// Whether the call holds files of which no descriptor shows how large they are: removed ones
    /// that are mapped or run, or descriptors that were sent and not received (unix(7),
    /// proc_pid_fdinfo(5)). What may not be read may be one of these.
    fn holds_unseen(&self) -> Result<bool, Errno> {
        for pid in ProcessSnapshot::now()?.of_the_tool() {
            let folder = files_of(pid).0;
            let run = std::fs::read_link(format!("{folder}/exe"));
            if run.is_ok_and(|path| self.names_removed(path.as_os_str().as_bytes()))
                || processes::lines(
                    &format!("{folder}/maps"),
                    |line| self.names_removed(line),
                    1,
                )
                .unwrap_or(1)
                    > 0
            {
                return Ok(true);
            }
            for entry in std::fs::read_dir(format!("{folder}/fdinfo"))
                .into_iter()
                .flatten()
                .flatten()
            {
                if processes::lines(
                    &entry.path().display().to_string(),
                    |line: &[u8]| scm_fds(line) > 0,
                    1,
                )
                .unwrap_or(1)
                    > 0
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether a line ends as /proc shows a removed file of these trees.
    fn names_removed(&self, line: &[u8]) -> bool {
        let path = line
            .iter()
            .position(|byte| *byte == b'/')
            .map(|at| Path::new(OsStr::from_bytes(&line[at..])));
        line.ends_with(b" (deleted)")
            && path.is_some_and(|path| {
                self.trees
                    .iter()
                    .any(|(mount, _)| path.starts_with(&mount.path))
            })
    }
}

/// Bytes by which free space fell, of the file system where it fell most.
pub fn fell(before: &[Free], now: &[Free]) -> u64 {
    before
        .iter()
        .zip(now)
        .map(|(before, now)| before.bytes.saturating_sub(now.bytes))
        .max()
        .unwrap_or(0)
}

fn free(trees: &[(Mount, OwnedFd)]) -> Result<Vec<Free>, Errno> {
    trees.iter().map(|(_, folder)| free_at(folder)).collect()
}

pub fn free_at(folder: &OwnedFd) -> Result<Free, Errno> {
    fstatvfs(folder).map(|fs| Free {
        bytes: fs.blocks_free() * fs.fragment_size(),
        files: fs.files_free(),
    })
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
        let mount = Mount {
            path: path.clone(),
            access: Access::Write,
            folder: true,
            device,
            inode,
            uid,
            gid,
            no_exec: false,
            source: None,
        };
        let mut limits = Limits::built_in();
        limits.set(Limit::WrittenBytes, 1 << 20);
        let mut written = WriteWatch::begin(&[mount], Totals::default())
            .expect("opened")
            .expect("written live");
        let synced = |name: &str, bytes: usize| {
            std::fs::write(path.join(name), vec![1; bytes]).expect("written");
            // Space is taken when it is written back (ext4: delayed allocation).
            std::fs::File::open(path.join(name))
                .and_then(|file| file.sync_all())
                .expect("on disk");
        };
        synced("within", 64 << 10);
        assert_eq!(written.look_at_end(&limits), Ok(None), "control");
        std::fs::remove_file(neighbour).expect("removed");
        synced("beyond", 2 << 20);
        assert_eq!(written.look_at_end(&limits), Ok(Some(Limit::WrittenBytes)));
    }
}
