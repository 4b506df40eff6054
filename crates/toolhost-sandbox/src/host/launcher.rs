//! The host's end of one launcher process: starts it, has it start a call, and ends it with
//! everything below it.

use crate::account::totals::Totals;
use crate::child::launcher;
use crate::layers::scratch::Usage;
use crate::layers::{cgroup, identity};
use crate::protocol::{
    CallTexts, Exited, FromLauncher, LayerState, NamedPart, Problem, ProblemKind, Setup, Source,
    ToLauncher,
};
use crate::reenter::role_name;
use crate::spec::{Executable, Spec};
use crate::sys::pidfd_open;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe::{Receiver, Sender};
use toolhost_base::fault::{Fault, Kind};
use toolhost_base::quantity::Limit;
use toolhost_base::text::{self, printable};
use toolhost_base::{Counted, lock, messages};

/// The layers of one launcher: found out once, reported with each of its calls.
pub type Layers = Arc<[LayerState]>;

/// How long an idle launcher or worker may take to accept a call. One that was stopped accepts
/// none.
pub const ACCEPTING: Duration = Duration::from_secs(2);
/// What the kernel counts memory in, bytes.
const PAGE: u64 = 4096;
/// Time limit of a start.
const START: Duration = Duration::from_secs(10);

/// A launcher's process. Dropping it ends it and everything below it.
#[derive(Debug)]
pub struct Process {
    control: Option<UnixDatagram>,
    keeper: Option<Child>,
    group: Option<cgroup::Group>,
    counted: Option<Counted>,
}

/// How many launchers there are, those of relays and workers too, until they are reaped.
pub static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// A launcher that is ready for a call. Dropping it ends the tool, if one runs.
#[derive(Debug)]
pub struct Launcher {
    process: Process,
    pub layers: Layers,
    pub spec: Spec,
    /// The size of the folders that its next call may write live.
    pub before: Totals,
    /// Where hosts are granted: the listening sockets of its network namespace, as
    /// `FromLauncher::Ready` lists them.
    pub sockets: Vec<OwnedFd>,
    /// Whether the launcher ends with its next call.
    pub last: bool,
    /// Whether it waited since an earlier call, and may have been stopped meanwhile.
    pub was_idle: bool,
}

/// What a call gives its launcher beside the pipes.
#[derive(Clone, Default)]
pub struct CallInput<'a> {
    /// What it runs, and the text of that.
    pub source: Option<(Source, &'a [u8])>,
    /// Variables that the call sets.
    pub environment: Option<&'a BTreeMap<String, String>>,
    /// Words of its command line, after those of its `spec::Program`. They hold no NUL.
    pub words: &'a [String],
    /// What it reads at standard input. As much as a pipe holds is there before the program is.
    pub stdin: &'a [u8],
    /// The files that the call brings.
    pub files: &'a [InputFile],
    /// Descriptors of the tool from 3 on, as many as its `spec::Program` says.
    pub inherited: &'a [OwnedFd],
}

/// One file that a call brings: a part of a file that nobody changes.
#[derive(Clone, Debug)]
pub struct InputFile {
    pub name: String,
    pub content: Arc<std::fs::File>,
    pub offset: u64,
    pub bytes: u64,
}

impl PartialEq for InputFile {
    fn eq(&self, other: &InputFile) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.content, &other.content)
    }
}

impl Eq for InputFile {}

impl From<&InputFile> for NamedPart {
    fn from(file: &InputFile) -> NamedPart {
        NamedPart {
            name: file.name.clone(),
            offset: file.offset,
            bytes: file.bytes,
        }
    }
}

/// The host's ends of a call's pipes.
#[derive(Debug)]
pub struct Pipes {
    pub input: Sender,
    /// Bytes of the call's input that are in its pipe already.
    pub fed: usize,
    pub output: Receiver,
    pub log: Receiver,
}

impl Pipes {
    /// Our ends, and the tool's as stdin, stdout, stderr.
    fn new(stdin: &[u8]) -> io::Result<(Pipes, [OwnedFd; 3])> {
        let (their_in, our_in) = pipe()?;
        let (our_out, their_out) = pipe()?;
        let (our_log, their_log) = pipe()?;
        let input = Sender::from_owned_fd(our_in)?;
        let pipes = Pipes {
            fed: nix::unistd::write(&input, stdin).unwrap_or(0),
            input,
            output: Receiver::from_owned_fd(our_out)?,
            log: Receiver::from_owned_fd(our_log)?,
        };
        Ok((pipes, [their_in, their_out, their_log]))
    }
}

/// A pipe: the end to read from, and the end to write to.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from)
}

pub fn no_pipe(error: &io::Error) -> Fault {
    Fault::new(Kind::InternalError, "no descriptors left for a call")
        .person(error.to_string())
        .retryable()
}

pub fn broken(what: &str, error: &io::Error) -> Fault {
    failure_of_host(what, error).unwrap_or_else(|| {
        Fault::new(Kind::InternalError, "the launcher failed")
            .person(format!("launcher: {what}: {error}"))
    })
}

/// The fault of a process that could not be made, since some limit allows no more.
fn no_process(what: &str, error: &io::Error) -> Option<Fault> {
    (error.raw_os_error() == Some(nix::libc::EAGAIN))
        .then(|| crate::layers::limits::no_process(what))
}

/// Failures for which no layer is at fault: this host has too few descriptors, or no /dev/null.
pub fn failure_of_host(what: &str, error: &io::Error) -> Option<Fault> {
    match Errno::from_raw(error.raw_os_error()?) {
        errno @ (Errno::EMFILE | Errno::ENFILE) => {
            Some(crate::layers::limits::too_few_files(what, errno))
        }
        Errno::ENOENT if !Path::new("/dev/null").exists() => {
            let person = "there is no /dev/null: this machine's /dev is not complete; as root: \
                mknod -m 666 /dev/null c 1 3";
            Some(
                Fault::new(
                    Kind::CapabilityError,
                    "this machine has no /dev/null, so nothing was run",
                )
                .person(person),
            )
        }
        _ => None,
    }
}

/// Why a launcher did not start or answer.
#[derive(Debug)]
pub enum LauncherError {
    /// A layer that cannot be raised (`doctor` reads the facts).
    Layer(Problem),
    /// The program does not exist any more.
    Missing(PathBuf),
    /// The launcher was gone before it took the call: nothing ran.
    Gone,
    Fault(Fault),
}

impl LauncherError {
    /// A layer that could not be raised, unless this host itself is the reason.
    pub fn layer(problem: Problem) -> LauncherError {
        let what = &problem.what;
        let error = problem.error();
        let ours = failure_of_host(what, &error).or_else(|| no_process(what, &error));
        ours.map_or(LauncherError::Layer(problem), LauncherError::Fault)
    }
}

impl From<Fault> for LauncherError {
    fn from(fault: Fault) -> LauncherError {
        LauncherError::Fault(fault)
    }
}

impl From<LauncherError> for Fault {
    /// Everybody gets the name of the layer; only the person gets the cause and the fix.
    fn from(error: LauncherError) -> Fault {
        match error {
            LauncherError::Layer(problem) => {
                let layer = &problem.layer;
                let what = printable(&problem.what);
                let error = problem.error();
                let message = format!(
                    "the layer `{layer}` cannot be raised on this machine, so nothing was run"
                );
                Fault::new(Kind::CapabilityError, message).person(format!("{what}: {error}"))
            }
            LauncherError::Missing(program) => {
                let message = "the program no longer exists, so nothing was run";
                let person = format!("{} is gone", text::path(&program));
                Fault::new(Kind::DependencyError, message).person(person)
            }
            LauncherError::Gone => lost("before the call began").retryable(),
            LauncherError::Fault(fault) => fault,
        }
    }
}

/// The fault of a call whose launcher was lost.
pub fn lost(how: &str) -> Fault {
    Fault::new(Kind::InternalError, "the launcher was lost").person(format!("launcher: {how}"))
}

impl Process {
    /// Starts a process, which prepares what every call needs and then waits for its set-up. `own`
    /// is this binary, open; it is executed from the descriptor, so that the version is the same
    /// even if the file at its path was replaced. `owner`: uid and gid that granted files probably
    /// have.
    pub fn start(
        own: &OwnedFd,
        lease: &identity::Lease,
        owner: Option<(u32, u32)>,
    ) -> Result<Process, Fault> {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(|e| broken("a socket pair", &e.into()))?;
        nonblocking(&ours).map_err(|e| broken("a socket pair", &e))?;
        let keeper = Command::new(format!("/proc/self/fd/{}", own.as_raw_fd()))
            .arg0(role_name(launcher::ROLE))
            .env_clear()
            .current_dir("/")
            // A group of its own in the session of its host: no signal from a terminal reaches it,
            // and if it is stopped when the host ends, the kernel wakes it and ends it (setpgid(2),
            // orphaned process groups).
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                no_process("starting a launcher", &e).unwrap_or_else(|| broken("starting it", &e))
            })?;
        let mut process = Process {
            control: None,
            keeper: Some(keeper),
            group: None,
            counted: Some(Counted::by(&ALIVE)),
        };
        // SOCK_SEQPACKET keeps messages whole like a datagram socket, and says when the other end
        // is gone.
        let enter = ToLauncher::Enter {
            identity: lease.identity,
            owner,
        };
        let lock: Vec<_> = lease.lock.iter().map(AsFd::as_fd).collect();
        messages::send(ours.as_fd(), &enter, &lock).map_err(|e| broken("writing to it", &e))?;
        process.control =
            Some(UnixDatagram::from_std(ours.into()).map_err(|e| broken("its socket", &e))?);
        Ok(process)
    }

    /// The other end is held by a test.
    pub fn for_test(control: UnixDatagram) -> Process {
        Process {
            control: Some(control),
            keeper: None,
            group: None,
            counted: None,
        }
    }
}

impl Launcher {
    pub fn new(process: Process, spec: Spec) -> Launcher {
        let layers = Layers::default();
        let before = Totals::default();
        let sockets = Vec::new();
        Launcher {
            process,
            layers,
            spec,
            before,
            sockets,
            last: false,
            was_idle: false,
        }
    }

    /// Turns a waiting process into a launcher for this set-up.
    pub async fn prepare(
        mut process: Process,
        own: &OwnedFd,
        setup: Setup,
        group: Option<cgroup::Group>,
    ) -> Result<Launcher, LauncherError> {
        process.group = group;
        let text = serde_json::to_vec(&setup).map_err(io::Error::from);
        let mut launcher = Launcher::new(process, setup.spec);
        let text = text
            .and_then(|text| messages::memory_file(&text))
            .map_err(|e| broken("writing its set-up", &e))?;
        let mut files = vec![text.as_fd(), own.as_fd()];
        files.extend(
            launcher
                .process
                .group
                .iter()
                .flat_map(cgroup::Group::descriptors),
        );
        // An error is kept until the first answer is read: that may be an earlier refusal, which
        // explains it.
        let sent = launcher.send(&ToLauncher::Setup, &files);
        let answer = tokio::time::timeout(START, launcher.first_answer()).await;
        match answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((FromLauncher::Ready { layers }, sockets)) => {
                if sockets.len()
                    != launcher
                        .spec
                        .network
                        .as_ref()
                        .map_or(0, |ports| ports.len() + 2)
                {
                    return Err(broken(
                        "the sockets of its network",
                        &io::ErrorKind::InvalidData.into(),
                    )
                    .into());
                }
                (launcher.layers, launcher.sockets) = (layers.into(), sockets);
                Ok(launcher)
            }
            Ok((FromLauncher::Refused(refused), _)) => Err(launcher.refusal(refused)),
            Ok(_) => Err(broken(
                "an answer before a call",
                &io::ErrorKind::InvalidData.into(),
            )
            .into()),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                Err(broken("it was not ready in time", &e).retryable().into())
            }
            Err(e) => Err(sent
                .err()
                .unwrap_or_else(|| broken("its first answer", &e))
                .into()),
        }
    }

    async fn first_answer(&self) -> io::Result<(FromLauncher, Vec<OwnedFd>)> {
        match self.receive().await {
            // The launcher ended with the set-up unread (unix(7)); a message that it sent before
            // comes next.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => self.receive().await,
            message => message,
        }
    }

    /// Turns a refusal into the fault that fits its kind.
    fn refusal(&self, problem: Problem) -> LauncherError {
        let fault = match problem.kind {
            ProblemKind::Layer => match &self.spec.program.executable {
                Executable::Path(program) if !program.exists() => {
                    return LauncherError::Missing(program.clone());
                }
                _ => return LauncherError::layer(problem),
            },
            ProblemKind::Scratch => {
                let allowed = |limit| self.spec.limits.get(limit);
                let message = format!(
                    "the call's source or files do not fit beside what it keeps: the limit \
                     scratchBytes is {} bytes, and artifactBytes {}, so nothing was run",
                    allowed(Limit::ScratchBytes),
                    allowed(Limit::ArtifactBytes)
                );
                Fault::new(Kind::ResourceLimitError, message)
            }
            ProblemKind::Ran => {
                let message = "the tool was started, but how it ended is unknown: its effects were \
                    not undone";
                Fault::new(Kind::InternalError, message)
            }
            ProblemKind::Changed => {
                let message = "a granted file was replaced while the call was being prepared, so \
                               nothing was run; try again";
                Fault::new(Kind::InternalError, message).retryable()
            }
        };
        fault
            .person(format!("{}: {}", printable(&problem.what), problem.error()))
            .into()
    }

    /// Whether the launcher still waits for a call. It sends nothing unasked: if there is anything
    /// to read, it ended.
    pub fn waits(&self) -> bool {
        let Some(control) = &self.process.control else {
            return false;
        };
        poll(
            &mut [PollFd::new(control.as_fd(), PollFlags::POLLIN)],
            PollTimeout::ZERO,
        ) == Ok(0)
    }

    /// Whether the launcher has not taken every message yet.
    pub fn is_behind(&self) -> bool {
        self.process.control.as_ref().is_some_and(|control| {
            crate::sys::untaken_bytes(control.as_fd(), nix::libc::TIOCOUTQ) > 0
        })
    }

    /// CPU time of the launcher's calls so far, ms. `None`: no cgroup counts it.
    pub fn cpu_ms(&self) -> Option<u64> {
        self.process.group.as_ref()?.cpu_ms()
    }

    /// Memory of what the launcher started, bytes: as its cgroup counts it, else as far as /proc
    /// shows it, which is without the files in its scratch.
    pub fn memory_bytes(&self) -> u64 {
        let group = self.process.group.as_ref();
        if let Some(bytes) = group.and_then(cgroup::Group::memory_bytes) {
            return bytes;
        }
        let keeper = self.process.keeper.as_ref().map(Child::id);
        let launchers = keeper.map(children).unwrap_or_default();
        let started = launchers.into_iter().flat_map(children);
        started.map(resident_bytes).sum()
    }

    /// Makes the launcher start a call, or without a time a program that waits for its call.
    pub fn start(
        &self,
        timeout_ms: impl Into<Option<u64>>,
        input: &CallInput,
    ) -> Result<Pipes, LauncherError> {
        let (pipes, theirs) = Pipes::new(input.stdin).map_err(|e| no_pipe(&e))?;
        fn file(text: &[u8]) -> Result<OwnedFd, Fault> {
            messages::memory_file(text).map_err(|e| no_pipe(&e))
        }
        let source = input
            .source
            .as_ref()
            .map(|(_, text)| file(text))
            .transpose()?;
        let variables = input.environment.filter(|own| !own.is_empty());
        let texts = (variables.is_some() || !input.words.is_empty()).then(|| CallTexts {
            variables: variables.map(Cow::Borrowed).unwrap_or_default(),
            words: Cow::Borrowed(input.words),
        });
        let texts = texts.map(|own| serde_json::to_vec(&own)).transpose();
        let texts = texts
            .map_err(|e| no_pipe(&e.into()))?
            .map(|text| file(&text))
            .transpose()?;
        let own = theirs.iter().chain(&source).chain(&texts);
        let brought = input.files.iter().map(|file| file.content.as_fd());
        let files: Vec<_> = own
            .map(AsFd::as_fd)
            .chain(brought)
            .chain(input.inherited.iter().map(AsFd::as_fd))
            .collect();
        let start = ToLauncher::Start {
            timeout_ms: timeout_ms.into(),
            source: input.source.as_ref().map(|(source, _)| source.clone()),
            texts: texts.is_some(),
            files: input.files.iter().map(NamedPart::from).collect(),
            before: self.before,
            last: self.last,
        };
        self.send(&start, &files).map_err(|_| LauncherError::Gone)?;
        Ok(pipes)
    }

    /// Tells a program that was started before its call that the call comes, and waits until the
    /// call's files are in their place. Its input may follow.
    pub async fn begin(&self, timeout_ms: u64, files: &[InputFile]) -> Result<(), LauncherError> {
        let begin = ToLauncher::Begin {
            timeout_ms,
            files: files.iter().map(NamedPart::from).collect(),
        };
        let contents: Vec<_> = files.iter().map(|file| file.content.as_fd()).collect();
        self.send(&begin, &contents)
            .map_err(|_| LauncherError::Gone)?;
        while !files.is_empty() {
            match self.receive().await {
                Ok((FromLauncher::Begun, _)) => break,
                Ok((FromLauncher::Refused(refused), _)) => return Err(self.refusal(refused)),
                // It ended before its call.
                Ok((FromLauncher::Exited(_), _)) | Err(_) => return Err(LauncherError::Gone),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Stops every process of the call. Its time stands still until `resume`.
    pub fn pause(&self) -> Result<(), Fault> {
        self.send(&ToLauncher::Pause, &[])
    }

    /// Stops every process of a session.
    pub async fn pause_session(&self) -> Result<SessionFolders, LauncherError> {
        self.pause()?;
        self.send(&ToLauncher::Results, &[])?;
        loop {
            match self.receive().await {
                Ok((FromLauncher::Results, folders)) => {
                    let is_counted = self.process.group.is_some();
                    return Ok(SessionFolders::new(folders, is_counted));
                }
                Ok((FromLauncher::Exited(_) | FromLauncher::Refused(_), _)) | Err(_) => {
                    return Err(LauncherError::Gone);
                }
                Ok(_) => {}
            }
        }
    }

    pub fn resume(&self) -> Result<(), Fault> {
        self.send(&ToLauncher::Resume, &[])
    }

    /// Waits for the end of the call. Also returns its staged folders and the recorder's output.
    /// Cancel-safe.
    pub async fn wait(&self) -> Result<(Exited, Vec<OwnedFd>), LauncherError> {
        loop {
            if let LauncherNews::Exited(exited, staged) = self.news().await? {
                return Ok((exited, staged));
            }
        }
    }

    /// As `wait`, also for the answer to `ToLauncher::Refused`.
    pub async fn news(&self) -> Result<LauncherNews, LauncherError> {
        loop {
            match self.receive().await {
                Ok((FromLauncher::Exited(exited), staged)) => {
                    return Ok(LauncherNews::Exited(exited, staged));
                }
                Ok((FromLauncher::RefusedPorts(all), _)) => return Ok(LauncherNews::Refused(all)),
                Ok((FromLauncher::Refused(refused), _)) => return Err(self.refusal(refused)),
                // The other end was closed with a message of ours unread (unix(7)): the start.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(LauncherError::Gone);
                }
                Err(e) => return Err(lost(&e.to_string()).into()),
                Ok(_) => {}
            }
        }
    }

    pub fn send(&self, message: &ToLauncher, files: &[BorrowedFd]) -> Result<(), Fault> {
        let Some(control) = &self.process.control else {
            return Err(broken("it was ended", &io::ErrorKind::NotConnected.into()));
        };
        // The queue of the socket holds far more than the few messages of one call.
        messages::send(control.as_fd(), message, files).map_err(|e| broken("writing to it", &e))
    }

    /// The next message. Cancel-safe: a message is taken whole or not at all.
    async fn receive(&self) -> io::Result<(FromLauncher, Vec<OwnedFd>)> {
        let Some(control) = &self.process.control else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let message = control
            .async_io(Interest::READABLE, || messages::receive(control.as_fd()))
            .await?;
        message.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Process {
    /// Closing the socket ends launcher and tool. A separate thread waits until they are reaped,
    /// so that no task of the host waits.
    fn drop(&mut self) {
        drop(self.control.take());
        *lock(&WAITING.0) += 1;
        let leftover = Leftover {
            keeper: self.keeper.take(),
            group: self.group.take(),
            _counted: self.counted.take(),
        };
        // If no thread can be started, the closure and with it the leftover are dropped here, which
        // waits.
        let _ = std::thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || drop(leftover));
    }
}

/// Longest wait for a keeper to end by itself, which usually takes milliseconds.
const PATIENCE_MS: u16 = 1000;

/// How many dropped launchers are not reaped yet.
static WAITING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

struct Leftover {
    keeper: Option<Child>,
    group: Option<cgroup::Group>,
    _counted: Option<Counted>,
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            if !ends(keeper) {
                // The keeper hangs or was stopped. The launcher sees the closed socket too, and
                // holds the id's lock.
                let _ = keeper.kill();
            }
            let _ = keeper.wait();
        }
        drop(self.group.take());
        *lock(&WAITING.0) -= 1;
        WAITING.1.notify_all();
    }
}

/// The memory of a process and of all below it. Pages that several share count for each.
fn resident_bytes(process: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|it| it.parse().ok());
    let below: u64 = children(process).into_iter().map(resident_bytes).sum();
    below + pages.unwrap_or(0u64).saturating_mul(PAGE)
}

fn children(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let ids = threads.filter_map(|it| std::fs::read_to_string(it.path().join("children")).ok());
    let ids: Vec<String> = ids.collect();
    let ids = ids.iter().flat_map(|ids| ids.split_whitespace());
    ids.filter_map(|id| id.parse().ok()).collect()
}

/// What a launcher says of a call that runs.
#[derive(Debug)]
pub enum LauncherNews {
    /// With its staged folders and the recorder's output.
    Exited(Exited, Vec<OwnedFd>),
    /// The ports that it was refused so far.
    Refused(Vec<SocketAddr>),
}

/// The folders of a session that is stopped.
#[derive(Debug, Default)]
pub struct SessionFolders {
    pub results: Option<OwnedFd>,
    /// Memory of its files that `Launcher::memory_bytes` lacks.
    pub bytes: u64,
}

impl SessionFolders {
    /// `is_counted`: a group counts the scratch, which the session fills, but no files of its calls.
    fn new(mut folders: Vec<OwnedFd>, is_counted: bool) -> SessionFolders {
        let results = folders.pop();
        let scratch = results.iter().filter(|_| !is_counted);
        let used = scratch.chain(&folders).map(Usage::at);
        SessionFolders {
            bytes: used.map(|used| used.map_or(0, |used| used.bytes)).sum(),
            results,
        }
    }
}

/// Waits for a keeper to end by itself. False: it did not in time.
fn ends(keeper: &Child) -> bool {
    let Ok(pidfd) = pidfd_open(keeper.id().cast_signed()) else {
        return false;
    };
    let mut wait = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut wait, PollTimeout::from(PATIENCE_MS)) {
            Err(Errno::EINTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Waits until everything that was dropped is reaped and its groups are removed, at most this long:
/// for a host that is about to exit.
pub fn settle(longest: Duration) {
    let until = Instant::now() + longest;
    let (waiting, fewer) = &WAITING;
    drop(fewer.wait_timeout_while(lock(waiting), longest, |waiting| *waiting > 0));
    while !cgroup::remove_left() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
