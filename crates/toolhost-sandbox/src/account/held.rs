//! Kernel memory that a call holds through its descriptors. `sampler` needs all of it; with a
//! cgroup only file locks are counted here, which the kernel charges to no group, and entries of
//! epolls, which it counts for each user.
//!
//! Each descriptor counts as the most that its kind can hold; a pipe or socket counts once, however
//! many processes share it. Kinds, watches and locks are read from /proc/PID/fd and
//! /proc/PID/fdinfo (proc_pid_fdinfo(5)).

use crate::account::processes::{Met, files_of, gone, has_memory, lines_at};
use crate::layers::network::CONNECTION;
use crate::sys::{Compared, errno};
use nix::errno::Errno;
use nix::fcntl::readlinkat;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Kernel memory of an open file, bytes: struct file, its inode and name.
const FILE: u64 = 1024;
/// An open file of /proc with the buffer of its text, which grows to the longest record and does
/// not shrink. It is judged by its name alone: to open it here would read, with the launcher's
/// rights, what the tool may only name.
const TEXT: u64 = 1024 * 1024;
/// What a folder of scratch can add to a record, which may hold a path through all of them: a name
/// of 255 bytes, each written as four, in a buffer of twice the length.
const NAME_IN_TEXT: u64 = 2 * 4 * 256;
/// A pipe of sixteen pages; `seccomp` refuses larger ones.
const PIPE: u64 = FILE + 64 * 1024;
/// A lock, and an entry of an epoll.
const LOCK: u64 = 256;
/// They are counted again after this much CPU time, in which a call can make some megabytes of
/// them.
const CPU_MS: u64 = 200;
/// The pause between two looks: `PART` times as long as a look takes, at most `MAX_PAUSE`.
const PART: u32 = 10;
const MAX_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct DescriptorMemory {
    /// Most bytes that a socket can hold. For one end of a pair: what its peer can have sent, and
    /// one more message.
    socket: u64,
    /// How many descriptors there were at the last look, and their bytes.
    count: u64,
    descriptors: u64,
    /// Bytes of locks, and how many entries of epolls and descriptors on their way there were.
    locks: u64,
    pub watches: u64,
    sent: u64,
    /// The call may have sockets with names, which can hold data before anybody has a descriptor.
    pub local_sockets: bool,
    /// Counting stops beyond this number of entries.
    pub max_watches: u64,
    /// CPU used when locks were counted last, ms.
    cpu_ms: u64,
    due: Instant,
    locks_due: Instant,
}

impl Default for DescriptorMemory {
    fn default() -> DescriptorMemory {
        let buffer = fs::read_to_string("/proc/sys/net/core/wmem_default")
            .ok()
            .and_then(|t| t.trim().parse().ok());
        // The same formula fits a UDP socket; of a TCP connection both ends count.
        let socket = (2 * FILE + buffer.unwrap_or(212_992_u64) / 2 * 3).max(CONNECTION);
        let now = Instant::now();
        DescriptorMemory {
            socket,
            count: 0,
            descriptors: 0,
            locks: 0,
            watches: 0,
            sent: 0,
            local_sockets: false,
            max_watches: u64::MAX,
            cpu_ms: 0,
            due: now,
            locks_due: now,
        }
    }
}

impl DescriptorMemory {
    /// Bytes held by descriptors and locks of these processes, which have made `files` in scratch
    /// and used `cpu_ms` so far. New descriptors since the last look count as sockets; if the sum
    /// exceeds `room`, all are looked at.
    pub fn bytes(
        &mut self,
        pids: &[u32],
        files: u64,
        cpu_ms: u64,
        room: u64,
    ) -> Result<u64, Errno> {
        let count: u64 = pids.iter().map(|pid| files_of(*pid).1).sum();
        fn more(held: &DescriptorMemory, count: u64) -> u64 {
            count.saturating_sub(held.count).saturating_mul(held.socket)
        }
        if Instant::now() >= self.due || self.descriptors.saturating_add(more(self, count)) > room {
            let began = Instant::now();
            (self.descriptors, self.count) = (self.look(pids, files, room)?, count);
            self.due = Instant::now() + MAX_PAUSE.min(began.elapsed() * PART);
        }
        let sum = self.descriptors.saturating_add(more(self, count));
        let locks = self.locks(|| Ok(pids.to_vec()), cpu_ms, room.saturating_sub(sum))?;
        // A descriptor on its way may be a socket, full itself.
        Ok(sum.saturating_add(locks + LOCK * self.watches + self.socket * self.sent))
    }

    /// Most bytes that the sockets of the call's network namespace hold: a connection that
    /// waits, with what was sent to it, has no descriptor yet, and no group is charged for TCP.
    pub fn sockets(&self) -> Result<u64, Errno> {
        let tables: &[&str] = if self.local_sockets {
            &["unix", "tcp", "tcp6", "udp", "udp6"]
        } else {
            &[]
        };
        let mut count = 0;
        for table in tables {
            let path = format!("/proc/net/{table}");
            let text = fs::read(path).or_else(|error| match error.kind() {
                // A kernel without IPv6.
                std::io::ErrorKind::NotFound => Ok(Vec::new()),
                _ => Err(errno(&error)),
            })?;
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            count += lines.saturating_sub(1) as u64;
        }
        Ok(count * self.socket)
    }

    /// Bytes held by locks alone, which no group is charged; counting stops beyond `room`.
    pub fn locks(
        &mut self,
        pids: impl FnOnce() -> Result<Vec<u32>, Errno>,
        cpu_ms: u64,
        room: u64,
    ) -> Result<u64, Errno> {
        if Instant::now() >= self.locks_due && cpu_ms >= self.cpu_ms + CPU_MS {
            let began = Instant::now();
            (self.locks, self.watches, self.sent) = (0, 0, 0);
            let mut tables = Met::new(Compared::Tables);
            let mut met = Met::new(Compared::Files);
            for pid in pids()?.into_iter().filter(|pid| tables.is_new(*pid, 0)) {
                let Some(folder) = open(pid, "fdinfo")? else {
                    continue;
                };
                for name in names(&folder)? {
                    let mut watches = 0;
                    let mut sent = 0;
                    // A descriptor that was closed since, or whose process is exiting, shows none.
                    self.locks += LOCK
                        * lines_at(
                            &folder,
                            &name,
                            |line: &[u8]| {
                                watches += u64::from(line.starts_with(b"tfd:"));
                                sent += scm_fds(line);
                                line.starts_with(b"lock:")
                            },
                            u64::MAX,
                        )
                        .unwrap_or(0);
                    if watches + sent > 0 && met.is_new(pid, name.parse().unwrap_or(0)) {
                        self.watches += watches;
                        self.sent += sent;
                    }
                    if self.locks > room || self.watches > self.max_watches {
                        return Ok(self.locks);
                    }
                }
            }
            self.cpu_ms = cpu_ms;
            self.locks_due = Instant::now() + MAX_PAUSE.min(began.elapsed() * PART);
        }
        Ok(self.locks)
    }

    /// Bytes held by descriptors alone; counting stops beyond `room`.
    fn look(&self, pids: &[u32], files: u64, room: u64) -> Result<u64, Errno> {
        let mut bytes = 0;
        let mut counted = BTreeSet::new();
        let mut tables = Met::new(Compared::Tables);
        // The longest record is that of a path, or of all locks of a file.
        let text = TEXT.max(files * NAME_IN_TEXT).max(self.locks);
        for pid in pids.iter().filter(|pid| tables.is_new(**pid, 0)) {
            let Some(folder) = open(*pid, "fd")? else {
                continue;
            };
            for name in names(&folder)? {
                let Ok(target) = readlinkat(&folder, name.as_str()) else {
                    continue;
                };
                let target = target.to_string_lossy().into_owned();
                bytes += match target.split(':').next().unwrap_or_default() {
                    kind @ ("pipe" | "socket") => {
                        let size = if kind == "pipe" { PIPE } else { self.socket };
                        if counted.insert(target) { size } else { 0 }
                    }
                    _ if target.starts_with("/proc/") => text,
                    _ => FILE,
                };
                if bytes > room {
                    return Ok(bytes);
                }
            }
        }
        Ok(bytes)
    }
}

/// A /proc folder of this process; none while it is exiting, when the folder can no longer be read.
fn open(pid: u32, name: &str) -> Result<Option<File>, Errno> {
    match File::open(format!("{}/{name}", files_of(pid).0)) {
        Ok(folder) => Ok(Some(folder)),
        Err(_) if !has_memory(pid)? => Ok(None),
        Err(e) => Err(errno(&e)),
    }
}

fn names(folder: &File) -> Result<Vec<String>, Errno> {
    match fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())) {
        Ok(entries) => Ok(entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()),
        Err(e) if gone(&e) => Ok(Vec::new()),
        Err(e) => Err(errno(&e)),
    }
}

/// How many descriptors are on their way in a socket, by this line of its fdinfo.
pub fn scm_fds(line: &[u8]) -> u64 {
    let count = line
        .strip_prefix(b"scm_fds:")
        .and_then(|count| std::str::from_utf8(count).ok());
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}
