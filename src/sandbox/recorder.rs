//! Recorder: a process beside the launcher that keeps what a call asked for and was refused.
//!
//! It holds the listener of the call's seccomp filter. A call that the filter's rules refuse is answered with the error
//! of its rule, whatever else is true; one that names a file goes on to the other walls. What is kept depends on the path
//! alone and on what the view shows, which has nothing of the host that was not granted: so nothing is told of whether a
//! file exists elsewhere. A path is read while its call waits, but another thread of the tool may change it then: what
//! is kept is for people who write a manifest, and decides nothing. If the recorder dies, the kernel refuses every call
//! of which it would have been told.

mod shown;

pub use shown::WRITABLE;

use super::Problem;
use super::processes;
use super::protocol::{Attempt, Note, Operation, Setup};
use super::seccomp::recorded::{self, Named, Recorded, Use};
use super::sys::{self, Heard, Waited};
use crate::base::messages;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use shown::{Last, Shown};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{IoSliceMut, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most entries that are kept of one call, and most bytes of them.
const MOST: usize = 1000;
pub const MOST_BYTES: u64 = 512 * 1024;
/// Longest path, as the kernel takes it (PATH_MAX).
const LONGEST: usize = 4096;
/// A page, to the end of which memory can be read without touching another.
const PAGE: usize = 4096;
/// How long the recorder of a call that is over may take to end, ms.
const PATIENCE_MS: u16 = 1000;

/// C libraries try these two and go on without them, in every program.
const FALLEN_BACK: [libc::c_long; 2] = [libc::SYS_clone3, libc::SYS_openat2];

/// The launcher's end of a recorder. Dropping it ends the process.
pub struct Recorder {
    pid: i32,
    found: File,
    theirs: OwnedFd,
}

/// What a recorder leaves.
pub struct Left {
    /// Lines of JSON, each a `Note`.
    pub found: OwnedFd,
    pub cpu_ms: u64,
    /// It did not end by itself.
    pub lost: bool,
}

fn failed<E: Into<std::io::Error>>() -> impl FnOnce(E) -> Problem {
    Problem::of("seccomp", "the recorder of refusals (Linux 5.19)")
}

impl Recorder {
    /// Starts one for the next call of this set-up.
    pub fn start(setup: &Setup, rules: &Recorded) -> Result<Recorder, Problem> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map_err(failed())?;
        let found = File::from(messages::memory_file(b"").map_err(failed())?);
        let Some(pid) = sys::fork().map_err(failed())? else {
            let shown = Shown { setup };
            let code = i32::from(record(ours, &found, &shown, rules).is_err());
            std::process::exit(code);
        };
        Ok(Recorder { pid, found, theirs })
    }

    /// Where the listener is sent to.
    pub fn socket(&self) -> RawFd {
        self.theirs.as_raw_fd()
    }

    /// CPU time that it used so far, which is the call's.
    pub fn cpu_ms(&self) -> u64 {
        processes::cpu_ms(self.pid.unsigned_abs()).unwrap_or(0)
    }

    /// What was kept of a call that has ended.
    pub fn end(mut self) -> Result<Left, Problem> {
        if let Ok(process) = sys::pidfd_open(self.pid) {
            let _ = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::from(PATIENCE_MS));
        }
        let Waited { status, cpu_ms, .. } = self.reap();
        self.found.rewind().map_err(failed())?;
        let found = self.found.try_clone().map_err(failed())?;
        Ok(Left { found: found.into(), cpu_ms, lost: status != 0 })
    }

    fn reap(&mut self) -> Waited {
        let pid = std::mem::replace(&mut self.pid, 0);
        if pid <= 0 {
            return Waited::default();
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

/// The recorder itself. Ends when nothing is left that the filter holds.
fn record(socket: OwnedFd, found: &File, shown: &Shown, rules: &Recorded) -> Result<(), Errno> {
    // By this the launcher's look at the processes of the call tells it apart (`processes`).
    nix::unistd::setsid()?;
    nix::unistd::dup2_stdin(&socket)?;
    nix::unistd::dup2_stdout(found)?;
    // All that the launcher holds, its control socket too, whose end the host waits for, and this socket's other number.
    let _ = socket.into_raw_fd();
    sys::close_range(2, false)?;
    sys::keep_rights_to_read()?;
    let (socket, found) = (messages::adopt(0), File::from(messages::adopt(1)));
    let listener = listener(&socket)?;
    drop(socket);
    let mut kept = Kept { found, bytes: 0, keys: BTreeSet::new(), full: false, unread: false };
    loop {
        let mut wait = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wait, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        if wait[0].revents().is_some_and(|ready| !ready.contains(PollFlags::POLLIN)) {
            return Ok(());
        }
        let heard = match sys::hear(listener.as_fd()) {
            Ok(heard) => heard,
            // Its process was killed, or left the call for a signal, meanwhile.
            Err(Errno::ENOENT | Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        let named = recorded::named(heard.number);
        let errno = match rules.refuses(heard.number, &heard.args) {
            Some(errno) => Some(errno as i32),
            None if named.is_empty() => Some(libc::EPERM),
            None => None,
        };
        match errno {
            Some(errno) => kept.call(heard.number, errno),
            None if kept.full => {}
            None => named.iter().for_each(|named| kept.file(&heard, named, shown)),
        }
        // Refused where its process was killed meanwhile.
        let _ = sys::answer(listener.as_fd(), heard.id, errno);
    }
}

/// Waits for the filter's listener.
fn listener(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut byte = [0];
    let mut space = nix::cmsg_space!(RawFd);
    let mut slices = [IoSliceMut::new(&mut byte)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut rights = got.cmsgs()?.filter_map(|control| match control {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    rights.next().map(messages::adopt).ok_or(Errno::EBADF)
}

/// What is kept of one call, each thing once, as lines of JSON in a memory file.
struct Kept {
    found: File,
    bytes: u64,
    keys: BTreeSet<Attempt>,
    full: bool,
    unread: bool,
}

impl Kept {
    fn keep(&mut self, attempt: Attempt) {
        if self.full || self.keys.contains(&attempt) {
            return;
        }
        self.full = self.keys.len() >= MOST || !self.write(&Note::Attempt(attempt.clone()), MOST_BYTES);
        match self.full {
            true => _ = self.write(&Note::Full, u64::MAX),
            false => _ = self.keys.insert(attempt),
        }
    }

    fn write(&mut self, note: &Note, most: u64) -> bool {
        let Ok(mut line) = serde_json::to_vec(note) else { return false };
        line.push(b'\n');
        self.bytes += line.len() as u64;
        self.bytes <= most && self.found.write_all(&line).is_ok()
    }

    fn call(&mut self, number: u32, errno: i32) {
        if !FALLEN_BACK.contains(&i64::from(number)) {
            let rule = format!("{:?}", Errno::from_raw(errno));
            self.keep(Attempt { operation: Operation::Call, target: recorded::name(number), path: None, rule });
        }
    }

    fn file(&mut self, heard: &Heard, named: &Named, shown: &Shown) {
        let (operation, last) = match named.usage {
            Use::Read => (Operation::Read, Last::Followed),
            Use::ReadItself => (Operation::Read, Last::Itself),
            Use::Write => (Operation::Write, Last::Followed),
            Use::WriteItself => (Operation::Write, Last::Itself),
            Use::Make => (Operation::Write, Last::New),
            Use::Run => (Operation::Run, Last::Followed),
            Use::Flags(argument) => opens(heard.args[argument]),
        };
        let folder = || fs::read_link(format!("/proc/{}/cwd", heard.thread)).ok();
        let asked = path_at(heard.thread, heard.args[named.path]);
        let whole = asked.as_ref().ok().and_then(|asked| whole(heard, named, asked, folder));
        let (Ok(asked), Some(whole)) = (&asked, &whole) else {
            // No path, which is the tool's own error, or one that this process may not read.
            if asked == Err(Errno::EPERM) && !self.unread {
                self.unread = self.write(&Note::Unread, u64::MAX);
            }
            return;
        };
        if asked.as_os_str().is_empty() {
            return;
        }
        if let Some((path, rule)) = shown.refuses(whole, operation, last, folder) {
            let (target, path) = (text(asked), text(&path));
            let path = (path != target).then_some(path);
            self.keep(Attempt { operation, target, path, rule: rule.to_owned() });
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What open(2) with these flags would do.
fn opens(flags: u64) -> (Operation, Last) {
    let any = |bits: i32| flags & bits as u64 != 0;
    let changes = any(libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC);
    let last = match () {
        () if any(libc::O_CREAT) && any(libc::O_EXCL) => Last::New,
        () if any(libc::O_NOFOLLOW) => Last::Itself,
        () => Last::Followed,
    };
    (if changes { Operation::Write } else { Operation::Read }, last)
}

/// The path that lies at this address in the memory of a process.
fn path_at(thread: u32, address: u64) -> Result<PathBuf, Errno> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut address = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    while bytes.len() < LONGEST {
        let mut page = vec![0; PAGE - address % PAGE];
        let from = [RemoteIoVec { base: address, len: page.len() }];
        let read = process_vm_readv(Pid::from_raw(thread as i32), &mut [IoSliceMut::new(&mut page)], &from)?;
        if let Some(end) = page[..read].iter().position(|byte| *byte == 0) {
            bytes.extend(&page[..end]);
            return Ok(PathBuf::from(OsStr::from_bytes(&bytes)));
        }
        bytes.extend(&page[..read]);
        address = address.checked_add(read.max(1)).ok_or(Errno::EFAULT)?;
    }
    Err(Errno::ENAMETOOLONG)
}

/// The path from the root: what is relative starts in the folder that the call names, or in the working folder.
fn whole(heard: &Heard, named: &Named, asked: &Path, folder: impl Fn() -> Option<PathBuf>) -> Option<PathBuf> {
    if asked.is_absolute() {
        return Some(asked.to_owned());
    }
    let number = named.folder.map(|argument| heard.args[argument] as i32).filter(|number| *number != libc::AT_FDCWD);
    let start = match number {
        Some(number) => fs::read_link(format!("/proc/{}/fd/{number}", heard.thread)).ok()?,
        None => folder()?,
    };
    start.is_absolute().then(|| start.join(asked))
}

/// Whether a process in the launcher's /proc is a recorder: the only child of the launcher that leads a session.
pub fn is_one(pid: u32, process: &processes::Process) -> bool {
    process.parent == 1 && process.session == pid
}
