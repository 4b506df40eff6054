//! The host's end of one worker. What comes back is parsed as hostile.

use super::cache::Code;
use super::call::LOOKUPS;
use super::frame::{self, Answer, End, FilePart, FrameLimits, Init, MAX_LOG_PIECE, Opening, Order, Report, invalid};
use super::refused::WorkerDenials;
use super::starter::{Role, Start, Started, Worker, Workers, how_it_ended};
use crate::base::hidden::Hidden;
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::output::{Log, OutputReader};
use crate::executor::{Artifact, Ending, WallState, Walls};
use crate::quantity::{KIB, Limit, MIB};
use crate::sandbox::grants::Resolved;
use crate::sandbox::limits;
use crate::{fault, policy};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout, timeout_at};

/// Longest start of a worker, compiled code loaded.
const START: Duration = Duration::from_secs(20);
/// How long the host waits beyond the limit, so that the worker can say what it used. Short, because
/// the guest must not run on.
const GRACE: Duration = Duration::from_millis(12);

/// What a worker takes for itself, without compiled code: measured 2 MiB, 17 MiB with the
/// pages of the binary, and 36 MiB where the kernel counts what is mapped (RLIMIT_DATA).
const WORKER_MEMORY: u64 = 48 * MIB;
/// The one that runs calls, the ticker, and one to spare.
const WORKER_THREADS: u64 = 3;

/// A worker that is ready; dropping it ends it.
pub struct Session {
    worker: Box<dyn Worker>,
    to: Box<dyn AsyncWrite + Send + Unpin>,
    from: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    calls: u64,
    most: FrameLimits,
    walls: Walls,
    fit: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum SessionError {
    /// The order could not be sent: the worker was gone before the call began.
    Before,
    /// The time was over and the worker had not said so itself.
    Late,
    /// The worker ended; how, as far as the walls saw it.
    Died(Option<Ending>),
    /// It sent what is not an answer.
    Garbage(io::Error),
}

/// What a call tells while it runs.
pub struct CallSinks<'a, 'events> {
    pub log: Log<'events>,
    pub out: OutputReader<'events>,
    pub seen: WorkerDenials,
    pub traffic: &'a Mutex<Traffic>,
    /// Where the guest's relative paths start.
    pub folder: &'a Path,
}

impl Session {
    /// Starts a worker for `shape` and has it load `code`.
    pub async fn open(
        workers: &dyn Workers,
        shape: &policy::Shape,
        grants: Resolved,
        code: &Code,
    ) -> Result<Session, fault::Fault> {
        let handed = OwnedFd::from(code.file.try_clone().map_err(|e| broken("no descriptor left", &e))?);
        // Compiled code is read and then copied once while loading.
        let own_memory = WORKER_MEMORY.saturating_add(code.bytes.saturating_mul(2));
        let lookups = if shape.network.hosts().is_empty() { 0 } else { LOOKUPS as u64 };
        let own_threads = WORKER_THREADS + lookups;
        let start = Start { shape, grants, role: Role::Worker, handed, own_memory, own_threads };
        let Started { worker, to, from, handed, scratch, walls } = workers.start(start).await?;
        let mut walls = walls.to_vec();
        walls.push(WallState {
            name: "wasm".to_owned(),
            state: "stood".to_owned(),
            why: "the module sees only its own memory, the granted folders and the granted hosts".to_owned(),
        });
        let payload = shape.limits.get(Limit::OutputBytes).saturating_add(KIB).max(MAX_LOG_PIECE);
        let most = FrameLimits { head: frame::MAX_REPLY_HEAD_BYTES, payload };
        let from = BufReader::new(from);
        let mut session = Session { worker, to, from, calls: 0, most, walls: walls.into(), fit: true };
        let handed = FilePart { descriptor: handed, offset: code.offset, bytes: code.bytes };
        let ready = async {
            session.say(&Order::Init(init(shape, handed, scratch)), &[]).await?;
            frame::read_async::<Report>(&mut session.from, FrameLimits { payload: 0, ..most }).await
        };
        match timeout(START, ready).await {
            Ok(Ok(Some((Report::Ready, _)))) => Ok(session),
            Ok(Ok(Some((Report::Refused { message }, _)))) => {
                let message = format!("not a module this host can run: {message}");
                Err(fault::Fault::new(fault::Kind::ScriptError, message))
            }
            Ok(Ok(Some((Report::Unable { message }, _)))) => Err(unable(&message)),
            Ok(Ok(Some((Report::Log | Report::Output | Report::Denied(_) | Report::Answer(_), _)))) => {
                Err(broken("an answer before a call", &io::ErrorKind::InvalidData.into()))
            }
            Ok(Ok(None)) => {
                let ended = how_it_ended(&mut *session.worker).await;
                Err(broken(&format!("it ended while starting ({ended:?})"), &io::ErrorKind::UnexpectedEof.into()))
            }
            Ok(Err(e)) => Err(broken("while starting", &e)),
            Err(_) => Err(broken("it did not start in time", &io::ErrorKind::TimedOut.into()).retryable()),
        }
    }

    async fn say(&mut self, order: &Order, payload: &[u8]) -> io::Result<()> {
        self.to.write_all(&frame::encode(order, payload)?).await?;
        self.to.flush().await
    }

    /// One call: its answer and its output; what it tells meanwhile goes to `heard` as it comes. After `Err`, and whenever the answer
    /// says so, the session must be dropped.
    pub async fn call(
        &mut self,
        input: &[u8],
        per_call: &policy::PerCall,
        limit: Duration,
        heard: &mut CallSinks<'_, '_>,
    ) -> Result<(Answer, Vec<u8>), SessionError> {
        let traffic = heard.traffic;
        self.calls += 1;
        if self.worker.lease().is_some_and(|lease| lease.begin(&per_call.secrets).is_err()) {
            return Err(SessionError::Before);
        }
        let timeout_ms = crate::base::millis(limit);
        let order = Order::Call { id: self.calls, timeout_ms, env: per_call.env.clone() };
        let now = Instant::now();
        let deadline = now.checked_add(limit.saturating_add(GRACE)).unwrap_or(now + Duration::from_secs(7 * 24 * 3600));
        match timeout_at(deadline, self.say(&order, input)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(SessionError::Before),
            Err(_) => return Err(SessionError::Late),
        }
        let answering = answer(&mut self.from, self.calls, self.most, heard);
        let attending = async {
            match self.worker.lease() {
                Some(lease) => lease.attend(traffic).await,
                None => std::future::pending().await,
            }
        };
        let answered = async {
            tokio::select! {
                answered = answering => answered,
                () = attending => Err(io::ErrorKind::QuotaExceeded.into()),
            }
        };
        let answered = timeout_at(deadline, answered).await;
        let ended = match self.worker.lease() {
            Some(lease) => lease.end(traffic).await,
            None => Ok(()),
        };
        self.fit &= ended.is_ok();
        if let Some(limit) = lock(traffic).over {
            return Err(SessionError::Died(Some(Ending::OverLimit { limit, allowed: 0 })));
        }
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(SessionError::Died(how_it_ended(&mut *self.worker).await))
            }
            Ok(Err(e)) => Err(SessionError::Garbage(e)),
            Err(_) => Err(SessionError::Late),
        }
    }

    /// Whether it may serve another call, as far as its network says.
    pub fn fit(&self) -> bool {
        self.fit
    }

    pub fn walls(&self) -> Walls {
        self.walls.clone()
    }

    pub async fn publish(&mut self) -> Result<Vec<Artifact>, fault::Fault> {
        // Closes the worker's input: a worker that may serve another call would wait for its next order.
        self.to = Box::new(tokio::io::sink());
        self.worker.publish().await
    }
}

async fn answer(
    from: &mut (impl tokio::io::AsyncBufRead + Unpin),
    id: u64,
    most: FrameLimits,
    heard: &mut CallSinks<'_, '_>,
) -> io::Result<(Answer, Vec<u8>)> {
    loop {
        match frame::read_async(from, most).await? {
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some((Report::Log, piece)) => heard.log.push(&piece),
            Some((Report::Denied(refused), _)) => heard.seen.take(refused, heard.folder, heard.traffic)?,
            Some((Report::Output, piece)) => {
                if heard.out.push(&piece).await {
                    return Err(invalid("output after which nothing is read"));
                }
            }
            Some((Report::Answer(answer), output)) if answer.id == id => {
                if matches!(answer.end, End::Exit { .. }) {
                    heard.out.push(&output).await;
                    heard.out.close().await;
                }
                return Ok((answer, output));
            }
            Some((Report::Answer(_), _)) => return Err(invalid("an answer to another call")),
            Some(_) => return Err(invalid("a report that answers nothing")),
        }
    }
}

fn init(shape: &policy::Shape, code: FilePart, scratch: PathBuf) -> Init {
    let mut env: BTreeMap<String, String> =
        [("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    env.extend(shape.env.iter().map(|(name, value)| (name.clone(), value.text().to_owned())));
    let program = shape.script.as_ref().and_then(|script| script.file_name()).map(|name| name.to_string_lossy());
    Init {
        code,
        entry_point: shape.entry_point.clone(),
        limits: shape.limits.clone(),
        openings: openings(shape),
        env: Hidden(env),
        program: program.map_or_else(|| "main.wasm".to_owned(), |name| name.into_owned()),
        scratch,
        folder: shape.folder.clone(),
        granted: shape.grants.iter().map(|grant| (grant.access, grant.opening.clone())).collect(),
        networked: !shape.network.hosts().is_empty(),
    }
}

/// The folders a guest finds opened: every grant at its own path, and those in the tool's folder once more
/// relative to it, as a script's paths start there. Of a `snapshot` or `staged` folder the walls show only
/// the matching files, so the whole folder is opened.
fn openings(shape: &policy::Shape) -> Vec<Opening> {
    let mut folders: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for grant in &shape.grants {
        let write = grant.access == policy::Access::Write;
        *folders.entry(grant.opening.folder().to_owned()).or_default() |= write;
        if let policy::Opening::Live { path } = &grant.opening
            && shape.folder.starts_with(path)
        {
            *folders.entry(shape.folder.clone()).or_default() |= write;
        }
    }
    let mut openings = Vec::new();
    for (at, write) in folders {
        let inside = at.strip_prefix(&shape.folder).ok().and_then(|p| p.to_str()).map(str::to_owned);
        let relative = inside.map(|path| if path.is_empty() { ".".to_owned() } else { path });
        for name in [at.to_str().map(str::to_owned), relative].into_iter().flatten() {
            openings.push(Opening { at: at.clone(), name, write });
        }
    }
    openings
}

/// The fault where wasmtime did not start, most likely because the address space is limited.
pub fn unable(why: &str) -> fault::Fault {
    let limit = limits::address_space()
        .map_or_else(String::new, |limit| format!("; {limit}, and a worker reserves 70 GiB of it"));
    fault::Fault::new(fault::Kind::CapabilityError, "wasm cannot run on this machine as toolhost was started")
        .person(format!("wasmtime does not start: {why}{limit}"))
}

fn broken(what: &str, error: &io::Error) -> fault::Fault {
    fault::Fault::new(fault::Kind::InternalError, "the wasm worker did not start")
        .person(format!("wasm worker: {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::wasm::tests::shape;

    #[test]
    fn a_grant_below_the_tools_folder_is_found_by_its_relative_name() {
        let mut shape = shape("/tools/t");
        shape.grants = vec![
            grant(policy::Access::Read, policy::Opening::Live { path: "/tools/t".into() }),
            grant(
                policy::Access::Write,
                policy::Opening::Staged { folder: "/tools/t/out".into(), names: "*.csv".into() },
            ),
            grant(policy::Access::Read, policy::Opening::Live { path: "/srv".into() }),
        ];
        let names: Vec<_> = openings(&shape).into_iter().map(|o| (o.name, o.write)).collect();
        let expected = [("/srv", false), ("/tools/t", false), (".", false), ("/tools/t/out", true), ("out", true)];
        assert_eq!(names, expected.map(|(name, write)| (name.to_owned(), write)));
        shape.grants = vec![grant(policy::Access::Read, policy::Opening::Live { path: "/tools".into() })];
        let names: Vec<_> = openings(&shape).into_iter().map(|o| o.name).collect();
        assert_eq!(names, ["/tools", "/tools/t", "."]);
    }

    fn grant(access: policy::Access, opening: policy::Opening) -> policy::Grant {
        policy::Grant { access, opening, asked: String::new(), rule: String::new(), why: String::new() }
    }
}
