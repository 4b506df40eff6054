//! A process beside the launcher that records what a call attempted and was refused.
//!
//! The recorder has the listener of the call's seccomp filter. It answers a call that the filter's
//! rules refuse with their error, and lets other calls go on to the other layers. It starts with
//! the three capabilities that it needs to enter the tool's namespaces and read its memory. At the
//! tool's first file call it enters the tool's user and mount namespaces and its root, becomes its
//! user, and keeps only the capability to read the memory of processes.
//!
//! It reads a path through /proc/TID/mem while the call waits, and the kernel resolves it:
//! openat2(2) sees what the task sees. If a component is missing, the mount of the last folder that
//! exists decides. Files are opened only with O_PATH. A path that cannot be read or resolved (a
//! dangling link) is recorded as such. Another thread may change a path later: the record is for
//! people who write a manifest, and decides nothing. If the recorder dies, the kernel refuses every
//! call that it would have been notified of.
//!
//! It keeps 1,000 entries, and its CPU time is the call's. It needs Linux 5.19. All probes of the
//! attack suite run once more in recorded calls, with the same answers. A signal that is handled
//! without SA_RESTART can end a system call that the recorder has not read yet with EINTR; open(2)
//! does not do so otherwise.

use super::protocol::{Attempt, Note, Operation};
use super::sys::{self, ExitReport, SeccompNotification};
use crate::account::processes;
use crate::layers::identity::GUEST;
use crate::layers::network::Reach;
use crate::layers::seccomp::recorded::{self, FileUse, PathArgument, Recorded};
use crate::protocol::Problem;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socketpair, sockopt};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{LinkatFlags, Pid, chroot, fchdir, linkat, setresgid, setresuid};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use toolhost_base::{files, messages};

/// Most entries of one call, and most bytes of them.
const MAX_EVENTS: usize = 1000;
/// Most addresses that are noted.
pub const MAX_ADDRESSES: usize = 25;
pub const MAX_EVENT_BYTES: u64 = 512 * 1024;
/// How long a recorder may take to end after its call, ms.
const TIMEOUT_MS: u16 = 1000;

/// Not recorded: in every program the C library tries these two calls and then uses older ones.
const NOT_RECORDED_CALLS: [libc::c_long; 2] = [libc::SYS_clone3, libc::SYS_openat2];

/// The launcher's end of a recorder. Dropping it ends the process.
pub struct Recorder {
    pid: i32,
    found: File,
    theirs: OwnedFd,
}

/// The output of a recorder.
pub struct RecorderOutput {
    /// Lines of JSON, each a `Note`.
    pub found: OwnedFd,
    pub cpu_ms: u64,
    /// The recorder failed, or had to be killed.
    pub lost: bool,
}

fn failed<E: Into<std::io::Error>>() -> impl FnOnce(E) -> Problem {
    Problem::from_layer("seccomp", "the recorder of refusals (Linux 5.19)")
}

impl Recorder {
    /// Starts the recorder of the next call.
    pub fn start(rules: &Recorded, reach: &Reach) -> Result<Recorder, Problem> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(failed())?;
        let found = File::from(messages::memory_file(b"").map_err(failed())?);
        let Some(pid) = sys::fork().map_err(failed())? else {
            let code = i32::from(record(ours, &found, rules, reach).is_err());
            std::process::exit(code);
        };
        Ok(Recorder { pid, found, theirs })
    }

    /// The socket to which the filter's listener is sent.
    pub fn socket(&self) -> RawFd {
        self.theirs.as_raw_fd()
    }

    /// CPU time that the recorder has used so far. It counts as the call's.
    pub fn cpu_ms(&self) -> u64 {
        processes::process(self.pid.unsigned_abs())
            .ok()
            .flatten()
            .map_or(0, |(_, process)| process.own_ms)
    }

    /// Waits for the recorder of a call that has ended, and returns its output.
    pub fn end(mut self) -> Result<RecorderOutput, Problem> {
        if let Ok(process) = sys::pidfd_open(self.pid) {
            let _ = poll(
                &mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)],
                PollTimeout::from(TIMEOUT_MS),
            );
        }
        let ExitReport { status, cpu_ms, .. } = self.reap();
        self.found.rewind().map_err(failed())?;
        let found = self.found.try_clone().map_err(failed())?;
        Ok(RecorderOutput {
            found: found.into(),
            cpu_ms,
            lost: status != 0,
        })
    }

    fn reap(&mut self) -> ExitReport {
        let pid = std::mem::replace(&mut self.pid, 0);
        if pid <= 0 {
            return ExitReport::default();
        }
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        sys::wait4(pid, true).ok().flatten().unwrap_or_default()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.reap();
    }
}

/// The work of the recorder's process. Returns when no process has the filter any more.
fn record(socket: OwnedFd, found: &File, rules: &Recorded, reach: &Reach) -> Result<(), Errno> {
    // Until the tool starts: only the capabilities that entering its namespaces needs.
    sys::keep_capabilities(sys::CAP_SYS_ADMIN | sys::CAP_SYS_CHROOT | sys::CAP_SYS_PTRACE)?;
    // The launcher recognises the recorder among the processes of the call by its session
    // (`processes`).
    nix::unistd::setsid()?;
    nix::unistd::dup2_stdin(&socket)?;
    nix::unistd::dup2_stdout(found)?;
    // Closes all descriptors of the launcher, also its control socket, because the host waits until
    // that is closed.
    let _ = socket.into_raw_fd();
    sys::close_range(2, false)?;
    let socket = messages::adopt(0);
    let found = File::from(messages::adopt(1));
    let listener = listener(&socket)?;
    drop(socket);
    let proc = files::handle(Path::new("/proc"))?;
    let mut entries = Entries {
        found,
        bytes: 0,
        keys: BTreeSet::new(),
        addresses: BTreeSet::new(),
        full: false,
        unread: false,
    };
    let mut init = None;
    let mut inside = false;
    loop {
        let mut wait = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wait, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        }
        if wait[0]
            .revents()
            .is_some_and(|ready| !ready.contains(PollFlags::POLLIN))
        {
            return Ok(());
        }
        let notif = match sys::receive_notification(listener.as_fd()) {
            Ok(notif) => notif,
            // Meanwhile the process was killed, or a signal interrupted its call.
            Err(Errno::ENOENT | Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        let named = recorded::named(notif.number);
        let errno = match rules.refuses(notif.number, &notif.args) {
            Some(errno) => Some(errno as i32),
            None if rules.notifies(notif.number) => answer(&proc, &notif, reach, |address| {
                entries.refused(address);
            }),
            None if named.is_empty() => Some(libc::EPERM),
            None => None,
        };
        match (errno, init) {
            // The first call starts the tool. That call, and the one that starts the init (pid 1),
            // are our own.
            (_, None) => {
                init = Some(
                    processes::process(notif.thread)?
                        .ok_or(Errno::ESRCH)?
                        .1
                        .parent,
                )
            }
            (Some(0), _) => {}
            (Some(errno), _) => entries.call(notif.number, errno),
            (None, Some(init)) if notif.thread != init && !entries.full => {
                inside = inside || enter(&proc, notif.thread)?;
                if inside {
                    named.iter().for_each(|named| {
                        entries.file(&proc, &notif, named, || {
                            sys::is_valid(listener.as_fd(), notif.id)
                        })
                    })
                } else {
                    entries.unread()
                }
            }
            (None, Some(_)) => {}
        }
        // Fails if the process was killed meanwhile.
        let _ = sys::respond(listener.as_fd(), notif.id, errno);
    }
}

/// Enters the namespaces and the root of this task, and becomes its user. `false`: its program's
/// memory may not be read (the file has no read right), and then its namespaces may not be entered
/// either.
fn enter(proc: &OwnedFd, task: u32) -> Result<bool, Errno> {
    let into = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    let root = Task { proc, thread: task }.open("root");
    let entered = root.and_then(|root| setns(sys::pidfd_open(task as i32)?, into).map(|()| root));
    let Ok(root) = entered else { return Ok(false) };
    fchdir(root)?;
    chroot(".")?;
    setresgid(GUEST.into(), GUEST.into(), GUEST.into())?;
    setresuid(GUEST.into(), GUEST.into(), GUEST.into())?;
    sys::keep_capabilities(sys::CAP_SYS_PTRACE)?;
    Ok(true)
}

/// Waits for the filter's listener.
pub fn listener(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let (_, descriptors) = messages::receive_bytes(socket.as_fd(), &mut [0])?;
    descriptors.into_iter().next().ok_or(Errno::EBADF)
}

/// Answers a call that a filter tells of, whether or not its refusals are recorded: the error with
/// which it ends, or 0; `None`: it goes on to the kernel and the other layers. `refused`: takes an
/// address that they refuse.
pub fn answer(
    proc: &OwnedFd,
    asked: &SeccompNotification,
    reach: &Reach,
    refused: impl FnOnce(SocketAddr),
) -> Option<i32> {
    if i64::from(asked.number) == libc::SYS_link {
        return Some(link(proc, asked).map_or_else(|errno| errno as i32, |()| 0));
    }
    let thread = asked.thread;
    let task = Task { proc, thread };
    let address = task.address_at(asked.args[1], asked.args[2]);
    if let Some(address) = address.filter(|address| !reach.holds(*address))
        && task.is_stream(asked.args[0]).unwrap_or(true)
    {
        refused(address);
    }
    None
}

/// Makes the link of link(2), if both names lie directly in /dev/shm.
fn link(proc: &OwnedFd, asked: &SeccompNotification) -> Result<(), Errno> {
    let task = Task {
        proc,
        thread: asked.thread,
    };
    let from = task.shared_memory_at(asked.args[0])?;
    let to = task.shared_memory_at(asked.args[1])?;
    linkat(AT_FDCWD, &from, AT_FDCWD, &to, LinkatFlags::empty())
}

/// The record of one call: distinct entries, as lines of JSON in a memory file.
struct Entries {
    found: File,
    bytes: u64,
    keys: BTreeSet<Attempt>,
    addresses: BTreeSet<SocketAddr>,
    full: bool,
    unread: bool,
}

impl Entries {
    fn add(&mut self, attempt: Attempt) {
        if self.full || self.keys.contains(&attempt) {
            return;
        }
        self.full = self.keys.len() >= MAX_EVENTS
            || !self.write(&Note::Attempt(attempt.clone()), MAX_EVENT_BYTES);
        if self.full {
            _ = self.write(&Note::Full, u64::MAX)
        } else {
            _ = self.keys.insert(attempt)
        }
    }

    fn write(&mut self, note: &Note, most: u64) -> bool {
        let Ok(mut line) = serde_json::to_vec(note) else {
            return false;
        };
        line.push(b'\n');
        self.bytes += line.len() as u64;
        self.bytes <= most && self.found.write_all(&line).is_ok()
    }

    fn refused(&mut self, address: SocketAddr) {
        if self.addresses.len() < MAX_ADDRESSES && self.addresses.insert(address) && !self.full {
            _ = self.write(&Note::Refused(address), MAX_EVENT_BYTES);
        }
    }

    /// Records, once, that some path could not be read.
    fn unread(&mut self) {
        self.unread = self.unread || self.write(&Note::Unread, u64::MAX);
    }

    fn call(&mut self, number: u32, errno: i32) {
        if !NOT_RECORDED_CALLS.contains(&i64::from(number)) {
            let rule = format!("{:?}", Errno::from_raw(errno));
            self.add(Attempt {
                operation: Operation::Call,
                target: recorded::name(number),
                path: None,
                rule,
            });
        }
    }

    /// `valid`: whether the call still waits. If not, the path may have been read from another
    /// task.
    fn file(
        &mut self,
        proc: &OwnedFd,
        notif: &SeccompNotification,
        named: &PathArgument,
        valid: impl Fn() -> bool,
    ) {
        let (operation, last) = match named.usage {
            FileUse::Read => (Operation::Read, LinkHandling::Follow),
            FileUse::ReadItself => (Operation::Read, LinkHandling::NoFollow),
            FileUse::Write => (Operation::Write, LinkHandling::Follow),
            FileUse::WriteItself => (Operation::Write, LinkHandling::NoFollow),
            FileUse::Make => (Operation::Write, LinkHandling::CreateNew),
            FileUse::MakeFolder => (Operation::MakeFolder, LinkHandling::CreateNew),
            FileUse::Run => (Operation::Run, LinkHandling::Follow),
            FileUse::Flags(argument) => open_operation(notif.args[argument]),
        };
        let task = Task {
            proc,
            thread: notif.thread,
        };
        let address = notif.args[named.path];
        // Without a path, or with an empty one, the call is about a descriptor.
        let read = if address == 0 {
            Ok(Vec::new())
        } else {
            task.path_at(address)
        };
        let Ok(requested) = &read else {
            if valid() {
                self.unread();
            }
            return;
        };
        if requested.is_empty() {
            return;
        }
        let folder = named
            .folder
            .map(|argument| notif.args[argument] as i32)
            .filter(|fd| *fd != libc::AT_FDCWD);
        let refused = task.refusal(folder, requested, operation, last);
        let changed = task.path_at(address) != read;
        if !valid() {
            return;
        }
        if changed {
            self.unread();
        }
        if let Some((path, rule)) = refused {
            let target = String::from_utf8_lossy(requested).into_owned();
            let path = path
                .map(|path| path.to_string_lossy().into_owned())
                .filter(|path| *path != target);
            self.add(Attempt {
                operation,
                target,
                path,
                rule,
            });
        }
    }
}

/// What open(2) with these flags would do.
fn open_operation(flags: u64) -> (Operation, LinkHandling) {
    fn any(bits: i32, flags: u64) -> bool {
        flags & bits as u64 != 0
    }
    let changes = any(
        libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
        flags,
    );
    let last = if any(libc::O_CREAT, flags) && any(libc::O_EXCL, flags) {
        LinkHandling::CreateNew
    } else if any(libc::O_NOFOLLOW, flags) {
        LinkHandling::NoFollow
    } else {
        LinkHandling::Follow
    };
    (
        if changes {
            Operation::Write
        } else {
            Operation::Read
        },
        last,
    )
}

/// The rule of a file that is not granted.
const NOT_SHOWN: &str = "view: not granted";
const READ_ONLY: &str = "view: read-only";
/// The rule of a program that the tool can write. No policy can allow it.
pub const WRITABLE: &str = "view: what the tool can write is not run";
/// The rule of a path that could not be resolved, followed by the error: it is not known whether it
/// was refused.
pub const UNRESOLVED: &str = "not observed: the path could not be resolved";
/// Longest path of the kernel (PATH_MAX).
const MAX_PATH_BYTES: usize = 4096;
const PAGE: usize = 4096;

/// How a system call treats a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkHandling {
    Follow,
    NoFollow,
    /// As `NoFollow`, and the call fails if the path exists.
    CreateNew,
}

/// A thread of the call, in the /proc of the launcher.
pub struct Task<'a> {
    pub proc: &'a OwnedFd,
    pub thread: u32,
}

/// Where a path leads: the file there, or the last folder that exists and the names that are
/// missing in it.
enum ResolvedPath {
    There(OwnedFd),
    Missing(OwnedFd, Vec<u8>),
}

impl Task<'_> {
    /// Opens the target of a link in this thread's /proc folder, with O_PATH.
    pub fn open(&self, name: &str) -> Result<OwnedFd, Errno> {
        let name = format!("{}/{name}", self.thread);
        openat(
            self.proc,
            name.as_str(),
            OFlag::O_PATH | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
    }

    /// Reads the path at this address of the thread's memory. The kernel ignores the protection of
    /// the page.
    pub fn path_at(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let memory = self.memory()?;
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < MAX_PATH_BYTES {
            let from = address
                .checked_add(bytes.len() as u64)
                .ok_or(Errno::EFAULT)?;
            let mut page = vec![0; PAGE - from as usize % PAGE];
            let read = memory
                .read_at(&mut page, from)
                .map_err(|error| sys::errno(&error))?;
            if let Some(end) = page[..read].iter().position(|byte| *byte == 0) {
                bytes.extend(&page[..end]);
                return Ok(bytes);
            }
            if read == 0 {
                return Err(Errno::EFAULT);
            }
            bytes.extend(&page[..read]);
        }
        Err(Errno::ENAMETOOLONG)
    }

    fn memory(&self) -> Result<File, Errno> {
        let name = format!("{}/mem", self.thread);
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        openat(self.proc, name.as_str(), flags, Mode::empty()).map(File::from)
    }

    /// Whether a descriptor is a stream. A connected datagram socket sends nothing: resolvers sort
    /// addresses by one.
    fn is_stream(&self, descriptor: u64) -> Result<bool, Errno> {
        let name = format!("{}/status", self.thread);
        let status = openat(self.proc, name.as_str(), OFlag::O_CLOEXEC, Mode::empty())?;
        let status = std::io::read_to_string(File::from(status)).map_err(|e| sys::errno(&e))?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let group = group.and_then(|group| group.trim().parse().ok());
        let process = sys::pidfd_open(group.ok_or(Errno::ESRCH)?)?;
        let socket = sys::descriptor_of(process.as_fd(), descriptor)?;
        Ok(getsockopt(&socket, sockopt::SockType)? == SockType::Stream)
    }

    /// The internet address at this address of the thread's memory, with its length.
    fn address_at(&self, at: u64, length: u64) -> Option<SocketAddr> {
        let mut bytes = [0; size_of::<libc::sockaddr_in6>()];
        let length = bytes.len().min(usize::try_from(length).ok()?);
        self.memory()
            .ok()?
            .read_exact_at(&mut bytes[..length], at)
            .ok()?;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => {
                let four: [u8; 4] = bytes[4..8].try_into().ok()?;
                Some((Ipv4Addr::from(four), port).into())
            }
            libc::AF_INET6 => {
                let sixteen: [u8; 16] = bytes[8..24].try_into().ok()?;
                Some((Ipv6Addr::from(sixteen).to_canonical(), port).into())
            }
            _ => None,
        }
    }

    /// The path at this address, if its place is directly in /dev/shm; else EPERM.
    fn shared_memory_at(&self, address: u64) -> Result<PathBuf, Errno> {
        let bytes = self.path_at(address).map_err(|_| Errno::EPERM)?;
        let path = PathBuf::from(OsStr::from_bytes(&bytes));
        let name = path.strip_prefix("/dev/shm").map_err(|_| Errno::EPERM)?;
        let mut parts = name.components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(_)), None) => Ok(path),
            _ => Err(Errno::EPERM),
        }
    }

    /// Where a path leads and the rule that refuses this operation there; `None`: the view refuses
    /// nothing. `folder`: the descriptor in which a relative path starts, if it is not the working
    /// folder.
    pub fn refusal(
        &self,
        folder: Option<i32>,
        path: &[u8],
        operation: Operation,
        last: LinkHandling,
    ) -> Option<(Option<PathBuf>, String)> {
        let place = self.resolve(folder, path, last).and_then(|place| {
            let rule = rule(&place, operation, last)?;
            Ok(rule.map(|rule| (place, rule)))
        });
        match place {
            Ok(None) => None,
            Ok(Some((place, rule))) => {
                let path = match &place {
                    ResolvedPath::There(file) => self.name_of(file),
                    ResolvedPath::Missing(folder, rest) => self
                        .name_of(folder)
                        .map(|at| at.join(OsStr::from_bytes(rest))),
                };
                Some((path.ok(), rule.to_owned()))
            }
            Err(errno) => Some((None, format!("{UNRESOLVED} ({errno:?})"))),
        }
    }

    fn resolve(
        &self,
        folder: Option<i32>,
        path: &[u8],
        last: LinkHandling,
    ) -> Result<ResolvedPath, Errno> {
        let start = match folder {
            _ if path.starts_with(b"/") => open(AT_FDCWD, b"/", false)?,
            Some(number) => self.open(&format!("fd/{number}"))?,
            None => self.open("cwd")?,
        };
        let errno = match open(&start, path, last == LinkHandling::Follow) {
            Ok(file) => return Ok(ResolvedPath::There(file)),
            Err(errno) => errno,
        };
        // If a path resolves, every prefix of it does.
        let ends: Vec<usize> = (1..path.len())
            .filter(|end| path[*end] == b'/' && path[end - 1] != b'/')
            .collect();
        let there = ends.partition_point(|end| open(&start, &path[..*end], true).is_ok());
        let end = there.checked_sub(1).map_or(0, |last| ends[last]);
        let at = if end > 0 {
            open(&start, &path[..end], true)?
        } else {
            start
        };
        let rest: Vec<u8> = path[end..]
            .iter()
            .copied()
            .skip_while(|byte| *byte == b'/')
            .collect();
        let name = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
        // If the name exists, it is a dangling link, or one that differs for each reader
        // (/proc/self).
        let is_missing = errno == Errno::ENOENT && open(&at, name, false).is_err();
        if is_missing {
            Ok(ResolvedPath::Missing(at, rest))
        } else {
            Err(errno)
        }
    }

    /// The path of an open file from the root of the call.
    fn name_of(&self, file: &OwnedFd) -> Result<PathBuf, Errno> {
        readlinkat(self.proc, format!("self/fd/{}", file.as_raw_fd()).as_str()).map(PathBuf::from)
    }
}

/// The rule that refuses an operation at this place.
fn rule(
    place: &ResolvedPath,
    operation: Operation,
    last: LinkHandling,
) -> Result<Option<&'static str>, Errno> {
    let (file, there) = match place {
        ResolvedPath::There(file) => (file, true),
        ResolvedPath::Missing(folder, _) => (folder, false),
    };
    // The view's own tree holds folders that lead to grants, and nothing of the host.
    let own = || Ok(fstat(file)?.st_dev == fstat(&open(AT_FDCWD, b"/", false)?)?.st_dev);
    let mount = fstatvfs(file)?.flags();
    Ok(match operation {
        _ if !there && own()? => Some(NOT_SHOWN),
        // The call fails because the file exists, not for lack of a grant.
        Operation::Write | Operation::MakeFolder if there && last == LinkHandling::CreateNew => {
            None
        }
        Operation::Write | Operation::MakeFolder
            if mount.contains(FsFlags::ST_RDONLY)
                && !(there
                    && [SFlag::S_IFCHR, SFlag::S_IFIFO, SFlag::S_IFSOCK]
                        .iter()
                        .any(|kind| is(file, *kind))) =>
        {
            Some(READ_ONLY)
        }
        Operation::Run if there && mount.contains(FsFlags::ST_NOEXEC) => Some(WRITABLE),
        _ => None,
    })
}

fn is(file: &OwnedFd, kind: SFlag) -> bool {
    fstat(file).is_ok_and(|stat| toolhost_base::files::is(stat.st_mode, kind))
}

/// Opens the target of a path with O_PATH. Follows no magic link.
fn open(start: impl std::os::fd::AsFd, path: &[u8], follow: bool) -> Result<OwnedFd, Errno> {
    let flags = if follow {
        OFlag::O_PATH
    } else {
        OFlag::O_PATH | OFlag::O_NOFOLLOW
    };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(start, path, how)
}
