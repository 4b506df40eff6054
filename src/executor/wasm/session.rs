//! The host's end of one worker or compiler. Its messages are parsed as hostile input.

use super::denials::WorkerDenials;
use super::frame::{
    self, CallSummary, End, FilePart, FrameLimits, Init, MAX_LOG_PIECE, Opening, Order,
    WorkerMessage, invalid,
};
use super::role::Role;
use super::worker::LOOKUPS;
use crate::base::lock;
use crate::base::mask::Hidden;
use crate::base::store::Content;
use crate::egress::Traffic;
use crate::executor::output::{Log, OutputReader};
use crate::executor::process::grants::ResolvedGrants;
use crate::executor::process::{Launchers, Ready, RoleNeeds};
use crate::executor::{Artifact, LayerState, Layers};
use crate::fault::{Fault, Kind};
use crate::policy::{self, Limits, Shape};
use crate::quantity::{KIB, Limit, MIB, SAMPLE_MS};
use crate::sandbox::Mount;
use crate::sandbox::protocol::Killed;
use crate::sandbox::written::WriteWatch;
use crate::sandbox::{ACCEPTING, CallInput, Totals, limits, untaken_bytes};
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Instant, timeout, timeout_at};

/// Longest start of a worker, with loading the compiled code.
const START: Duration = Duration::from_secs(20);
/// How long the host waits beyond the limit, so that the worker can report its usage. Short,
/// because the guest must not run on.
const GRACE: Duration = Duration::from_millis(12);
/// How long counting what was written may go on after the limit of the call.
const MAX_LAST_COUNT: Duration = Duration::from_secs(1);

/// Memory of a worker itself, without compiled code: measured 2 MiB, 17 MiB with the
/// pages of the binary, and 36 MiB where the kernel counts what is mapped (RLIMIT_DATA).
const WORKER_MEMORY: u64 = 48 * MIB;
/// The one that runs calls, the ticker, and one to spare.
const WORKER_THREADS: u64 = 3;

/// Longest wait for the end of a child, or for the launcher's report of it.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(400);

/// Our own binary in a role of this module, behind the layers of a shape. Dropping this kills it.
pub struct Child {
    pub ready: Ready,
    /// Its descriptors 0 and 1. (Its stderr is not read: a guest's log comes in frames.)
    to: Option<Sender>,
    pub from: BufReader<Receiver>,
}

impl Child {
    /// `handed`: compiled code for a worker, a module for the compiler, open for reading. `own`:
    /// memory and threads that the role needs beyond the limits of the shape.
    pub async fn start(
        launchers: &Launchers,
        principal: &str,
        (shape, grants): (&Shape, ResolvedGrants),
        role: Role,
        handed: OwnedFd,
        own: (u64, u64),
    ) -> Result<Child, Fault> {
        let extra = RoleNeeds {
            principal: principal.to_owned(),
            memory: own.0,
            processes: own.1,
            own_source: false,
            outlives_calls: role == Role::Worker,
            keeps_fd3: true,
            role: Some(role.name()),
        };
        let ready = launchers.ready_for(shape, grants, &extra).await?;
        let brings = CallInput {
            fd3: Some(&handed),
            ..CallInput::default()
        };
        let pipes = ready
            .launcher
            .start(shape.limits.get(Limit::TimeoutMs), &brings)?;
        Ok(Child {
            ready,
            to: Some(pipes.input),
            from: BufReader::new(pipes.output),
        })
    }

    pub async fn send(&mut self, order: &Order, payload: &[u8]) -> io::Result<()> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        to.write_all(&frame::encode(order, payload)?).await
    }

    pub async fn receive(
        &mut self,
        most: FrameLimits,
    ) -> io::Result<Option<(WorkerMessage, Vec<u8>)>> {
        frame::read_async(&mut self.from, most).await
    }

    /// After its pipes closed: the limit that the child exceeded, as the launcher reports it.
    pub async fn limit(&self) -> Option<Limit> {
        let (exited, _) = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.ready.launcher.wait())
            .await
            .ok()?
            .ok()?;
        match exited.killed? {
            Killed::Memory => Some(Limit::MemoryBytes),
            Killed::Cpu => Some(Limit::CpuMs),
            Killed::Deadline | Killed::Requested | Killed::TooMany(..) | Killed::Written(_) => None,
        }
    }

    /// Ends the worker after success, and publishes its staged files.
    pub async fn publish(&mut self, shape: &Shape) -> Result<Vec<Artifact>, Fault> {
        // A worker that may serve another call waits for its next order.
        drop(self.to.take());
        fn failed() -> Fault {
            Fault::new(
                Kind::InternalError,
                "the worker did not end after its answer",
            )
        }
        let ended = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.ready.launcher.wait())
            .await
            .map_err(|_| failed())?;
        let (_, staged) = ended.map_err(|_| failed())?;
        Ok(self.ready.publish(&staged, shape).await)
    }
}

/// A worker that is ready; dropping this kills it.
pub struct Session {
    pub child: Child,
    calls: u64,
    most: FrameLimits,
    cpu_limit: u64,
    pub layers: Layers,
    /// False once its network can no longer be used: this worker then serves no further call.
    pub is_reusable: bool,
}

/// Why a call has no answer.
#[derive(Debug)]
pub enum SessionError {
    /// The order could not be sent: the worker was gone before the call began.
    NotStarted,
    /// The time limit passed without a report from the worker.
    TimedOut,
    /// The worker ended or was killed: the exceeded limit, if known.
    Died(Option<Limit>),
    /// The worker sent something other than an answer.
    InvalidMessage(io::Error),
}

/// Where the reports of a running call go.
pub struct CallSinks<'a, 'events> {
    pub log: Log<'events>,
    pub out: OutputReader<'events>,
    pub denials: WorkerDenials,
    pub traffic: &'a Mutex<Traffic>,
    /// Where the guest's relative paths start.
    pub folder: &'a Path,
}

impl Session {
    /// Starts a worker for `shape` and has it load `code`.
    pub async fn open(
        launchers: &Launchers,
        principal: &str,
        shape: &Shape,
        grants: ResolvedGrants,
        code: &Content,
    ) -> Result<Session, Fault> {
        let handed = OwnedFd::from(
            code.file
                .try_clone()
                .map_err(|e| broken("no descriptor left", &e))?,
        );
        // Compiled code is read and then copied once while loading.
        let memory = WORKER_MEMORY.saturating_add(code.bytes.saturating_mul(2));
        let lookups = if shape.network.hosts().is_empty() {
            0
        } else {
            LOOKUPS as u64
        };
        let own = (memory, WORKER_THREADS + lookups);
        let child = Child::start(
            launchers,
            principal,
            (shape, grants),
            Role::Worker,
            handed,
            own,
        )
        .await?;
        let mut layers = child.ready.launcher.layers.to_vec();
        layers.push(LayerState {
            name: "wasm".to_owned(),
            state: "active".to_owned(),
            why: "the module sees only its own memory, the granted folders and the granted hosts"
                .to_owned(),
        });
        let payload = shape
            .limits
            .get(Limit::OutputBytes)
            .saturating_add(KIB)
            .max(MAX_LOG_PIECE);
        let most = FrameLimits {
            head: frame::MAX_REPLY_HEAD_BYTES,
            payload,
        };
        let cpu_limit = shape.limits.get(Limit::CpuMs);
        let mut session = Session {
            child,
            calls: 0,
            most,
            cpu_limit,
            layers: layers.into(),
            is_reusable: true,
        };
        let code = FilePart {
            offset: code.offset,
            bytes: code.bytes,
        };
        let ready = async {
            session
                .child
                .send(&Order::Init(init(shape, code)), &[])
                .await?;
            session
                .child
                .receive(FrameLimits { payload: 0, ..most })
                .await
        };
        match timeout(START, ready).await {
            Ok(Ok(Some((WorkerMessage::Ready, _)))) => Ok(session),
            Ok(Ok(Some((WorkerMessage::Refused { message }, _)))) => Err(Fault::new(
                Kind::ScriptError,
                format!("not a module this host can run: {message}"),
            )),
            Ok(Ok(Some((WorkerMessage::Unable { message }, _)))) => Err(wasmtime_fault(&message)),
            Ok(Ok(Some(_))) => Err(broken(
                "an answer before a call",
                &io::ErrorKind::InvalidData.into(),
            )),
            Ok(Ok(None)) => {
                let limit = session.child.limit().await;
                let limit = limit.map_or_else(String::new, |limit| {
                    format!(" at its limit {}", limit.name())
                });
                Err(broken(
                    &format!("it ended while starting{limit}"),
                    &io::ErrorKind::UnexpectedEof.into(),
                ))
            }
            Ok(Err(e)) => Err(broken("while starting", &e)),
            Err(_) => {
                Err(broken("it did not start in time", &io::ErrorKind::TimedOut.into()).retryable())
            }
        }
    }

    /// Runs one call. Returns the answer and the returned text; other reports go to `sinks`. After
    /// `Err`, and whenever the answer says so, the session must be dropped.
    pub async fn call(
        &mut self,
        input: &[u8],
        per_call: &policy::PerCall,
        limit: Duration,
        sinks: &mut CallSinks<'_, '_>,
    ) -> Result<(CallSummary, Vec<u8>), SessionError> {
        let traffic = sinks.traffic;
        self.calls += 1;
        if self.child.ready.begin(&per_call.secrets).is_err() {
            return Err(SessionError::NotStarted);
        }
        let timeout_ms = crate::base::millis(limit);
        let order = Order::Call {
            id: self.calls,
            timeout_ms,
            env: per_call.env.clone(),
        };
        let now = Instant::now();
        let deadline = now
            .checked_add(limit.saturating_add(GRACE))
            .unwrap_or(now + Duration::from_secs(7 * 24 * 3600));
        match timeout_at(deadline, self.child.send(&order, input)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(SessionError::NotStarted),
            Err(_) => return Err(SessionError::TimedOut),
        }
        let Child { ready, from, to } = &mut self.child;
        let answered = async {
            tokio::select! {
                // The worker still has not read the order, so it was stopped while it was idle.
                () = is_stopped(to.as_ref()), if self.calls > 1 => Err(io::ErrorKind::NotConnected.into()),
                answered = answer(from, self.calls, self.most, sinks) => answered,
                () = ready.attend(traffic, self.cpu_limit) => Err(io::ErrorKind::QuotaExceeded.into()),
            }
        };
        let answered = timeout_at(deadline, answered).await;
        self.is_reusable &= self.child.ready.end(traffic).await;
        if let Some(limit) = lock(traffic).over {
            return Err(SessionError::Died(Some(limit)));
        }
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) if e.kind() == io::ErrorKind::NotConnected => Err(SessionError::NotStarted),
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(SessionError::Died(self.child.limit().await))
            }
            Ok(Err(e)) => Err(SessionError::InvalidMessage(e)),
            Err(_) => Err(SessionError::TimedOut),
        }
    }
}

/// Returns if the worker did not read an order in time; else never.
async fn is_stopped(to: Option<&Sender>) {
    tokio::time::sleep(ACCEPTING).await;
    if to.is_none_or(|to| untaken_bytes(to.as_fd(), nix::libc::FIONREAD) <= 0) {
        std::future::pending().await
    }
}

async fn answer(
    from: &mut (impl tokio::io::AsyncBufRead + Unpin),
    id: u64,
    most: FrameLimits,
    sinks: &mut CallSinks<'_, '_>,
) -> io::Result<(CallSummary, Vec<u8>)> {
    loop {
        match frame::read_async::<WorkerMessage>(from, most).await? {
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some((WorkerMessage::Log, piece)) => sinks.log.push(&piece),
            Some((WorkerMessage::Denied(refused), _)) => {
                sinks.denials.take(refused, sinks.folder, sinks.traffic)?
            }
            Some((WorkerMessage::Output, piece)) => {
                if sinks.out.push(&piece).await {
                    return Err(invalid("output after the limit or after a bad line"));
                }
            }
            Some((WorkerMessage::Answer(answer), returned)) if answer.id == id => {
                if matches!(answer.end, End::Exit { .. }) {
                    sinks.out.close().await;
                }
                return Ok((answer, returned));
            }
            Some((WorkerMessage::Answer(_), _)) => {
                return Err(invalid("an answer to another call"));
            }
            Some(_) => return Err(invalid("an unexpected message")),
        }
    }
}

/// The scratch folder: /dev/shm if there is a grant below /tmp, because then files left in /tmp go
/// unnoticed.
fn scratch(shape: &Shape) -> &'static str {
    let below_tmp = shape
        .grants
        .iter()
        .any(|grant| grant.area.folder().starts_with("/tmp"));
    if below_tmp { "/dev/shm" } else { "/tmp" }
}

fn init(shape: &Shape, code: FilePart) -> Init {
    let mut env: BTreeMap<String, String> =
        [("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
    env.extend(
        shape
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.text().to_owned())),
    );
    let program = shape
        .script
        .as_ref()
        .and_then(|script| script.file_name())
        .map(|name| name.to_string_lossy());
    Init {
        code,
        entry_point: shape.entry_point.clone(),
        limits: shape.limits.clone(),
        openings: openings(shape),
        env: Hidden(env),
        program: program.map_or_else(|| "main.wasm".to_owned(), |name| name.into_owned()),
        scratch: scratch(shape).into(),
        folder: shape.folder.clone(),
        granted: shape
            .grants
            .iter()
            .map(|grant| (grant.access, grant.reachable()))
            .collect(),
        networked: !shape.network.hosts().is_empty(),
    }
}

/// The folders that a guest finds opened: every grant at its own path, and those in the tool's
/// folder also relative to it, because relative paths start there. The layers show only the matching
/// files of a `snapshot` or `staged` folder, so the whole folder is opened.
fn openings(shape: &Shape) -> Vec<Opening> {
    let mut folders: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for grant in &shape.grants {
        let write = grant.access == policy::Access::Write;
        *folders.entry(grant.area.folder().to_owned()).or_default() |= write;
        if let policy::Area::Tree(path) = &grant.area
            && shape.folder.starts_with(path)
        {
            *folders.entry(shape.folder.clone()).or_default() |= write;
        }
    }
    let mut openings = Vec::new();
    for (at, write) in folders {
        let inside = at
            .strip_prefix(&shape.folder)
            .ok()
            .and_then(|p| p.to_str())
            .map(str::to_owned);
        let relative = inside.map(|path| {
            if path.is_empty() {
                ".".to_owned()
            } else {
                path
            }
        });
        for name in [at.to_str().map(str::to_owned), relative]
            .into_iter()
            .flatten()
        {
            openings.push(Opening {
                at: at.clone(),
                name,
                write,
            });
        }
    }
    openings
}

/// The fault where wasmtime did not start, most likely because the address space is limited.
pub fn wasmtime_fault(why: &str) -> Fault {
    let limit = limits::address_space().map_or_else(String::new, |limit| {
        format!("; {limit}, and a worker reserves 70 GiB of it")
    });
    Fault::new(
        Kind::CapabilityError,
        "wasm cannot run on this machine as toolhost was started",
    )
    .person(format!("wasmtime does not start: {why}{limit}"))
}

fn broken(what: &str, error: &io::Error) -> Fault {
    Fault::new(Kind::InternalError, "the wasm worker did not start")
        .person(format!("wasm worker: {what}: {error}"))
}

/// Counts what a call adds to the folders that it may write live: before, while and after it runs.
/// The host counts, since a worker serves several calls, which only the host tells apart. Where a
/// file system does not answer, the call ends at its limit, `left`.
pub async fn count_writes<T>(
    (mounts, before): (&[Mount], Totals),
    (limits, left): (&Limits, Duration),
    call: impl Future<Output = Result<T, SessionError>>,
) -> Result<Result<T, SessionError>, Fault> {
    if !mounts.iter().any(WriteWatch::is_needed) {
        return Ok(call.await);
    }
    let mounts = mounts.to_vec();
    let counted = async {
        let Some(begun) = look(move || WriteWatch::begin(&mounts, before)).await? else {
            return Ok(call.await);
        };
        let mut written = begun.for_host();
        tokio::pin!(call);
        loop {
            let ended = tokio::time::timeout(Duration::from_millis(SAMPLE_MS), &mut call)
                .await
                .ok();
            let last = ended.is_some();
            let limits = limits.clone();
            let (back, over) = look(move || {
                let over = if last {
                    written.look_at_end(&limits)
                } else {
                    written.look(&limits)
                };
                over.map(|over| (written, over))
            })
            .await?;
            written = back;
            match (over, ended) {
                (Some(limit), _) => return Ok(Err(SessionError::Died(Some(limit)))),
                (None, Some(ended)) => return Ok(ended),
                (None, None) => {}
            }
        }
    };
    tokio::time::timeout(left.saturating_add(MAX_LAST_COUNT), counted)
        .await
        .unwrap_or(Ok(Err(SessionError::TimedOut)))
}

/// Asks a file system on a thread of its own, because it may not answer.
async fn look<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<T, Fault> {
    let asked = tokio::task::spawn_blocking(ask)
        .await
        .map_err(io::Error::other);
    asked
        .and_then(|asked| asked.map_err(io::Error::from))
        .map_err(|error| uncounted(&error))
}

fn uncounted(error: &io::Error) -> Fault {
    Fault::new(
        Kind::InternalError,
        "what the call wrote could not be counted, so it was ended",
    )
    .person(format!("counting its live write grants: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::ToolSender;

    /// Reads the frames of a hostile worker.
    async fn answered(frames: &str) -> io::Result<(usize, CallSummary)> {
        let (events, traffic) = (ToolSender::unheard(), Mutex::default());
        let (log, out) = (Log::new(100, &events), OutputReader::new(100, &events));
        let mut sinks = CallSinks {
            log,
            out,
            denials: WorkerDenials::default(),
            traffic: &traffic,
            folder: Path::new("/t"),
        };
        let most = FrameLimits {
            head: 1000,
            payload: 1000,
        };
        let (answer, _) = answer(&mut frames.as_bytes(), 1, most, &mut sinks).await?;
        Ok((sinks.denials.attempts.len(), answer))
    }

    #[tokio::test]
    async fn hostile_workers_are_not_believed() {
        let denied = |what: &str, path: &str| {
            format!(r#"{{"message":{{"denied":{{"what":"{what}","target":"{path}"}}}},"bytes":0}}"#)
                + "\n"
        };
        let answer = |id: u64| {
            let rest = r#""end":"returned","cpuMs":0,"peakMemory":0,"clean":false,"moreDenied":0"#;
            format!(r#"{{"message":{{"answer":{{"id":{id},{rest}}}}},"bytes":5}}"#) + "\nnull\n"
        };
        let denial = denied("readWithin", "x");
        let control = answered(&(denial.repeat(50) + &answer(1)))
            .await
            .expect("an answer");
        assert_eq!((control.0, control.1.end), (50, End::Returned));
        for (frames, kind) in [
            // Lengths of 4 GiB; garbage; what is cut short; an answer to another call; nothing;
            // another report.
            (
                "{\"message\":\"log\",\"bytes\":4294967295}\n".to_owned(),
                io::ErrorKind::InvalidData,
            ),
            ("x".repeat(100_000), io::ErrorKind::InvalidData),
            (
                "{\"message\":\"log\",\"bytes\":100}\nshort".to_owned(),
                io::ErrorKind::UnexpectedEof,
            ),
            (
                "{\"message\":{\"answer\"".to_owned(),
                io::ErrorKind::UnexpectedEof,
            ),
            (answer(2), io::ErrorKind::InvalidData),
            (String::new(), io::ErrorKind::UnexpectedEof),
            (
                "{\"message\":\"ready\",\"bytes\":0}\n".to_owned(),
                io::ErrorKind::InvalidData,
            ),
            // More refusals than allowed, a path that is too long, an unknown kind.
            (denial.repeat(51) + &answer(1), io::ErrorKind::InvalidData),
            (
                denied("read", &"x".repeat(513)) + &answer(1),
                io::ErrorKind::InvalidData,
            ),
            (
                denied("because", "x") + &answer(1),
                io::ErrorKind::InvalidData,
            ),
        ] {
            let error = answered(&frames).await.expect_err(&frames);
            assert_eq!(error.kind(), kind, "{frames:.200}");
        }
    }
}
