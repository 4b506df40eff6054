//! The host's end of one WASI worker. Its messages are parsed as hostile input.

use super::denials::WorkerDenials;
use super::frame::{
    self, CallSummary, End, FilePart, FrameLimits, Init, MAX_LOG_PIECE, Opening, Order,
    WorkerMessage, invalid,
};
use super::role::Role;
use super::worker::LOOKUPS;
use crate::base::mask::Hidden;
use crate::base::store::Content;
use crate::egress::Traffic;
use crate::executor::output::{Log, OutputReader};
use crate::executor::process::grants::ResolvedGrants;
use crate::executor::process::worker::{Request, Worker, WorkerError};
use crate::executor::process::{Launchers, RoleNeeds};
use crate::executor::{LayerState, Layers};
use crate::fault::{Fault, Kind};
use crate::policy::{self, Limits, Shape};
use crate::quantity::{KIB, Limit, MIB, SAMPLE_MS};
use crate::sandbox::written::WriteWatch;
use crate::sandbox::{Mount, Totals, limits};
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::{Instant, timeout};

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

/// A worker that is ready; dropping this kills it.
pub struct Session {
    pub worker: Worker,
    most: FrameLimits,
    cpu_limit: u64,
    pub layers: Layers,
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
        let needs = RoleNeeds {
            principal: principal.to_owned(),
            memory,
            processes: WORKER_THREADS + lookups,
            outlives_calls: true,
            inherited: 1,
            role: Some(Role::Worker.name()),
            ..RoleNeeds::default()
        };
        let worker = Worker::start(launchers, shape, grants, &needs, &handed).await?;
        let mut layers = worker.ready.launcher.layers.to_vec();
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
            worker,
            most,
            cpu_limit,
            layers: layers.into(),
        };
        let code = FilePart {
            offset: code.offset,
            bytes: code.bytes,
        };
        let ready = async {
            let order = frame::encode(&Order::Init(init(shape, code)), &[])?;
            session.worker.send(&order).await?;
            let most = FrameLimits { payload: 0, ..most };
            frame::read_async(&mut session.worker.from, most).await
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
                let limit = session.worker.limit().await;
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
    ) -> Result<(CallSummary, Vec<u8>), WorkerError> {
        let id = self.worker.calls + 1;
        let order = Order::Call {
            id,
            timeout_ms: crate::base::millis(limit),
            env: Hidden(per_call.variables()),
        };
        let now = Instant::now();
        let deadline = now
            .checked_add(limit.saturating_add(GRACE))
            .unwrap_or(now + Duration::from_secs(7 * 24 * 3600));
        let request = Request {
            frame: &frame::encode(&order, input).map_err(|_| WorkerError::NotStarted)?,
            deadline,
            secrets: &per_call.secrets,
            traffic: sinks.traffic,
            cpu_limit: self.cpu_limit,
        };
        let most = self.most;
        self.worker
            .call(request, |from| answer(from, id, most, sinks))
            .await
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
        ports: shape.network.ports(),
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
    mounts: &[Mount],
    before: Totals,
    limits: &Limits,
    left: Duration,
    call: impl Future<Output = Result<T, WorkerError>>,
) -> Result<Result<T, WorkerError>, Fault> {
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
                (Some(limit), _) => return Ok(Err(WorkerError::Died(Some(limit)))),
                (None, Some(ended)) => return Ok(ended),
                (None, None) => {}
            }
        }
    };
    tokio::time::timeout(left.saturating_add(MAX_LAST_COUNT), counted)
        .await
        .unwrap_or(Ok(Err(WorkerError::TimedOut)))
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
