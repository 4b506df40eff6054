//! Recorder: a process beside the launcher that keeps what a call asked for and was refused.
//!
//! It holds the listener of the call's seccomp filter. A call that the filter's rules refuse is answered with the error
//! of its rule, whatever else is true; one that names a file goes on to the other walls. What is kept depends on the path
//! alone and on what the view shows, which has nothing of the host that was not granted: so nothing is told of whether a
//! file exists elsewhere. A path is read while its call waits, but another thread of the tool may change it then: what
//! is kept is for people who write a manifest, and decides nothing. If the recorder dies, the kernel refuses every call
//! of which it would have been told.

use super::processes;
use super::protocol::{Attempt, Operation, Setup};
use super::seccomp::recorded::{self, Named, Recorded, Use};
use super::sys::{self, Heard};
use super::{Problem, view};
use crate::base::messages;
use crate::base::text::printable;
use crate::policy::Access;
use crate::policy::base_view::{EMPTY_FOLDERS, MADE_ETC, OURS, PROC, SCRATCH};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Most entries that are kept of one call, and most bytes of them.
const MOST: usize = 100;
const MOST_BYTES: u64 = 24 * 1024;
/// Longest path, as the kernel takes it (PATH_MAX), and the part that is shown.
const LONGEST: usize = 4096;
const SHOWN: usize = 200;
/// A page, to the end of which memory can be read without touching another.
const PAGE: usize = 4096;
/// Most links that are followed in one path, as by the kernel (path_resolution(7)).
const LINKS: usize = 40;
/// How long the recorder of a call that is over may take to end, ms.
const PATIENCE_MS: u16 = 1000;

/// The rule of a file that is not granted.
pub const NOT_SHOWN: &str = "not granted";

/// C libraries try these two and go on without them, in every program.
const FALLEN_BACK: [libc::c_long; 2] = [libc::SYS_clone3, libc::SYS_openat2];

/// The launcher's end of a recorder. Dropping it ends the process.
pub struct Recorder {
    pid: i32,
    found: File,
    theirs: OwnedFd,
}

fn failed<E: Into<std::io::Error>>() -> impl FnOnce(E) -> Problem {
    Problem::of("seccomp", "the recorder of refusals")
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

    /// What was kept of a call that has ended.
    pub fn end(mut self) -> Vec<Attempt> {
        if let Ok(process) = sys::pidfd_open(self.pid) {
            let _ = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::from(PATIENCE_MS));
        }
        let mut text = String::new();
        let read = self.found.rewind().and_then(|()| (&self.found).take(MOST_BYTES).read_to_string(&mut text));
        // The last line of a recorder that was killed may be a part of one.
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        if read.is_ok() { lines.collect() } else { Vec::new() }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        let _ = sys::wait4(self.pid, true);
    }
}

/// The recorder itself. Ends when nothing is left that the filter holds.
fn record(socket: OwnedFd, found: &File, shown: &Shown, rules: &Recorded) -> Result<(), Errno> {
    // By this the launcher's look at the processes of the call passes it over (`processes`).
    nix::unistd::setsid()?;
    nix::unistd::dup2_stdin(&socket)?;
    nix::unistd::dup2_stdout(found)?;
    // All that the launcher holds, its control socket too, whose end the host waits for.
    sys::close_range(2, false)?;
    let (socket, found) = (messages::adopt(0), File::from(messages::adopt(1)));
    let listener = listener(&socket)?;
    drop(socket);
    let mut kept = Kept { found, bytes: 0, keys: BTreeSet::new() };
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
            // Its process was killed meanwhile.
            Err(Errno::ENOENT | Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        let refused = rules.refuses(heard.number, &heard.args);
        let named = recorded::named(heard.number);
        let errno = match refused {
            Some(errno) => Some(errno as i32),
            None if named.is_empty() => Some(libc::EPERM),
            None => None,
        };
        match errno {
            Some(errno) => kept.call(heard.number, errno),
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
}

impl Kept {
    fn keep(&mut self, asked: Attempt) {
        if self.keys.len() >= MOST || self.keys.contains(&asked) {
            return;
        }
        let Ok(mut line) = serde_json::to_vec(&asked) else { return };
        line.push(b'\n');
        if self.bytes + line.len() as u64 <= MOST_BYTES && self.found.write_all(&line).is_ok() {
            self.bytes += line.len() as u64;
            self.keys.insert(asked);
        }
    }

    fn call(&mut self, number: u32, errno: i32) {
        if !FALLEN_BACK.contains(&i64::from(number)) {
            let rule = format!("{:?}", Errno::from_raw(errno));
            self.keep(Attempt { operation: Operation::Call, target: recorded::name(number), path: None, rule });
        }
    }

    fn file(&mut self, heard: &Heard, named: &Named, shown: &Shown) {
        let operation = match named.usage {
            Use::Read => Operation::Read,
            Use::Write => Operation::Write,
            Use::Run => Operation::Run,
            Use::Flags(argument) => writes(heard.args[argument]),
        };
        let Some(asked) = path_at(heard.thread, heard.args[named.path]).filter(|asked| !asked.as_os_str().is_empty())
        else {
            return;
        };
        let Some(whole) = whole(heard, named, &asked) else { return };
        if let Some((path, rule)) = shown.refuses(&whole, operation) {
            let show = |path: &Path| printable(&path.to_string_lossy()).chars().take(SHOWN).collect::<String>();
            let (target, path) = (show(&asked), show(&path));
            let path = (path != target).then_some(path);
            self.keep(Attempt { operation, target, path, rule: rule.to_owned() });
        }
    }
}

/// What open(2) with these flags would do.
fn writes(flags: u64) -> Operation {
    let changes = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64;
    if flags & changes == 0 { Operation::Read } else { Operation::Write }
}

/// The path that lies at this address in the memory of a process; `None` where there is none.
fn path_at(thread: u32, address: u64) -> Option<PathBuf> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut address = usize::try_from(address).ok()?;
    while bytes.len() < LONGEST {
        let mut page = vec![0; PAGE - address % PAGE];
        let from = [RemoteIoVec { base: address, len: page.len() }];
        let read = process_vm_readv(Pid::from_raw(thread as i32), &mut [IoSliceMut::new(&mut page)], &from).ok()?;
        if let Some(end) = page[..read].iter().position(|byte| *byte == 0) {
            bytes.extend(&page[..end]);
            return Some(PathBuf::from(OsStr::from_bytes(&bytes)));
        }
        bytes.extend(&page[..read]);
        address = address.checked_add(read.max(1))?;
    }
    None
}

/// The path from the root: what is relative starts in the folder that the call names, or in the working folder.
fn whole(heard: &Heard, named: &Named, asked: &Path) -> Option<PathBuf> {
    if asked.is_absolute() {
        return Some(asked.to_owned());
    }
    let folder = named.folder.map(|argument| heard.args[argument] as i32).filter(|number| *number != libc::AT_FDCWD);
    let link = match folder {
        Some(number) => format!("/proc/{}/fd/{number}", heard.thread),
        None => format!("/proc/{}/cwd", heard.thread),
    };
    let folder = fs::read_link(link).ok()?;
    folder.is_absolute().then(|| folder.join(asked))
}

/// What the view of a call shows, and what the call may do there.
struct Shown<'a> {
    setup: &'a Setup,
}

impl Shown<'_> {
    /// Where a path leads, and the rule by which this operation is refused. `None`: no rule refuses it.
    fn refuses(&self, path: &Path, operation: Operation) -> Option<(PathBuf, &'static str)> {
        // Each process's own there, which the recorder cannot follow.
        let own = |path: &Path| [PROC, "/dev"].iter().any(|own| path.starts_with(own));
        if own(path) {
            return None;
        }
        let path = followed(path);
        if own(&path) {
            return None;
        }
        let grants = self.setup.mounts.iter().filter(|mount| path.starts_with(&mount.path));
        let grant = grants.max_by_key(|mount| mount.path.as_os_str().len());
        let made = self.setup.stages.iter().map(|stage| stage.folder.as_path()).chain(SCRATCH.map(Path::new));
        let writable = match grant {
            Some(grant) if grant.access == Access::Read => {
                self.setup.stages.iter().any(|stage| path.starts_with(&stage.folder))
            }
            Some(_) => true,
            None => made.into_iter().any(|made| path.starts_with(made)),
        };
        let rule = match operation {
            _ if !self.shows(&path) => NOT_SHOWN,
            Operation::Write if !writable => "read-only",
            Operation::Run if writable => "what the tool can write is not run",
            _ => return None,
        };
        Some((path, rule))
    }

    /// True for what the view shows, and for the folders above.
    fn shows(&self, path: &Path) -> bool {
        let setup = self.setup;
        let made = MADE_ETC.iter().chain(&SCRATCH).chain(&[OURS]).copied().chain(view::system());
        let granted = setup.mounts.iter().map(|mount| mount.path.as_path());
        let staged = setup.stages.iter().map(|stage| stage.folder.as_path());
        let mut given = granted.chain(staged).chain(setup.roots.iter().map(PathBuf::as_path));
        let covers = |shown: &Path| path.starts_with(shown) || shown.starts_with(path);
        given.any(covers)
            || made.map(Path::new).any(covers)
            || EMPTY_FOLDERS.iter().any(|empty| Path::new(empty).starts_with(path))
    }
}

/// The path with its links followed as far as the view has them; what is not there stays as it is written.
fn followed(path: &Path) -> PathBuf {
    let mut left: Vec<PathBuf> = parts(path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = left.pop() {
        match part.components().next() {
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(name)) => {
                let next = at.join(name);
                match fs::read_link(&next) {
                    Ok(target) if links < LINKS => {
                        links += 1;
                        if target.is_absolute() {
                            at = PathBuf::from("/");
                        }
                        left.extend(parts(&target));
                    }
                    _ => at = next,
                }
            }
            _ => {}
        }
    }
    at
}

/// The components, last first.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

/// Whether a process in the launcher's /proc is a recorder: the only child of the launcher that leads a session.
pub fn is_one(pid: u32, process: &processes::Process) -> bool {
    process.parent == 1 && process.session == pid
}
