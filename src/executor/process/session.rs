//! One session: an interpreter behind all layers that runs the source text of one call after the
//! other, and is stopped between them. What it sends is parsed as hostile.
//!
//! Earlier code of a session can disturb its later code, and can forge what the answers of its own
//! session say; nothing else reads them. It calls only tools that the call which runs has named. A
//! call that was cancelled, and whose cell is interrupted, keeps its slot until then.

use super::call::Ready;
use super::cells::{Order, Printed, Shown};
use super::tool_calls::{self, Delivery};
use super::waiting::ReadyKey;
use crate::base::files::Stamp;
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::{Clock, LeftFile, Pauses, ToolSender};
use crate::packages::store::EnvironmentLease;
use crate::policy::Confinement;
use crate::quantity::{Limit, OVERDUE};
use crate::sandbox::protocol::{Exited, Killed};
use crate::sandbox::{self, CallInput, LauncherError, Pipes, no_pipe};
use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long a cell may take to end once it is interrupted.
pub const INTERRUPTED: Duration = Duration::from_secs(2);
/// Most orders that it has not read, answers to its calls included.
const MAX_ORDERS: usize = 32;
/// Longest wait for what only a busy machine delays.
const PATIENCE: Duration = Duration::from_secs(10);

/// An interpreter with its state. Dropping this ends it and everything that it started.
#[derive(Debug)]
pub struct Session {
    pub key: ReadyKey,
    pub ready: Ready,
    orders: Sender,
    results: BufReader<Receiver>,
    stdout: Receiver,
    stderr: Receiver,
    /// The files that were in its folder of results after its last cell.
    left: BTreeMap<String, Stamp>,
    pub cells: u64,
    /// Memory of its files that its processes do not show.
    files_bytes: u64,
    /// When its last cell ended.
    pub since: Instant,
    /// Keeps its packages in the store.
    _environment: Option<EnvironmentLease>,
}

/// One call of a session.
pub struct Cell {
    pub confinement: Confinement,
    pub clock: Clock,
    pub traffic: Arc<Mutex<Traffic>>,
    pub events: ToolSender,
    /// Cancelled once nobody waits for its answer.
    pub gone: CancellationToken,
}

/// What operators and callers ask of a cell that runs.
#[derive(Debug, Default)]
pub struct Signals {
    pub end: CancellationToken,
    pub interrupt: Notify,
}

/// How a cell ended.
#[derive(Debug)]
pub enum CellEnd {
    /// The session goes on. Beside it: the folder of its results.
    Shown(Shown, Option<OwnedFd>),
    /// The rest end the session.
    Exited(Exited),
    Over(Limit),
    TimedOut,
    /// Its call was cancelled, and it ran on.
    Abandoned,
    Ended,
    Invalid(io::Error),
}

impl Session {
    /// Starts the interpreter in a launcher that was made for it.
    pub fn start(
        ready: Ready,
        key: ReadyKey,
        environment: Option<EnvironmentLease>,
    ) -> Result<Session, LauncherError> {
        let (their_orders, orders) = sandbox::pipe().map_err(|e| no_pipe(&e))?;
        let (results, their_results) = sandbox::pipe().map_err(|e| no_pipe(&e))?;
        let brings = CallInput {
            environment: Some(&key.env),
            inherited: &[their_orders, their_results],
            ..CallInput::default()
        };
        // Nobody writes to its stdin, which ends at once.
        let Pipes { output, log, .. } = ready.launcher.start(None::<u64>, &brings)?;
        Ok(Session {
            key,
            ready,
            orders: Sender::from_owned_fd(orders).map_err(|e| no_pipe(&e))?,
            results: BufReader::new(Receiver::from_owned_fd(results).map_err(|e| no_pipe(&e))?),
            stdout: output,
            stderr: log,
            left: BTreeMap::new(),
            cells: 0,
            files_bytes: 0,
            since: Instant::now(),
            _environment: environment,
        })
    }

    /// Runs one cell. A session whose cell did not end as `Shown` must be dropped.
    pub async fn run(
        &mut self,
        cell: &Cell,
        signals: &Signals,
    ) -> Result<(CellEnd, [Printed; 2]), LauncherError> {
        let Confinement { shape, per_call } = &cell.confinement;
        self.ready.begin(&per_call.secrets)?;
        if self.cells > 0 {
            self.ready.launcher.resume()?;
        }
        self.cells += 1;
        let most = cell.clock.left() + INTERRUPTED + OVERDUE;
        let begun = self
            .ready
            .launcher
            .begin(crate::base::millis(most), &per_call.files);
        timeout(PATIENCE, begun)
            .await
            .map_err(|_| LauncherError::Gone)??;
        let output_bytes = shape.limits.get(Limit::OutputBytes);
        let mut printed = [Printed::new(output_bytes), Printed::new(output_bytes)];
        let mut end = self.attend(cell, signals, &mut printed).await;
        self.ready.end(&cell.traffic).await;
        if let Some(limit) = lock(&cell.traffic).over {
            end = CellEnd::Over(limit);
        }
        if let CellEnd::Shown(_, folder) = &mut end {
            let paused = timeout(PATIENCE, self.ready.launcher.pause_session()).await;
            let folders = paused.map_err(|_| LauncherError::Gone)??;
            (*folder, self.files_bytes) = (folders.results, folders.bytes);
            self.since = Instant::now();
        }
        printed[0].drain(&self.stdout);
        printed[1].drain(&self.stderr);
        Ok((end, printed))
    }

    /// Serves a cell until it ends.
    async fn attend(
        &mut self,
        cell: &Cell,
        signals: &Signals,
        printed: &mut [Printed; 2],
    ) -> CellEnd {
        let Session {
            ready,
            orders,
            results,
            stdout,
            stderr,
            cells,
            ..
        } = self;
        let Confinement { shape, per_call } = &cell.confinement;
        let most = shape.limits.get(Limit::OutputBytes);
        let pauses = &*cell.events.deadline.pauses;
        let (to, mut queue) = mpsc::channel::<Delivery>(MAX_ORDERS);
        let (ask, asked) = mpsc::channel(1);
        let frame = Order::cell(*cells, most, per_call);
        let _ = to.try_send((frame, None));
        // One that reads no more orders is killed once it was to be interrupted.
        let interrupt = || drop(to.try_send((Order::interrupt(), None)));
        let sending = async {
            while let Some((frame, _charged)) = queue.recv().await {
                let _ = orders.write_all(&frame).await;
            }
            pending().await
        };
        let answering = tool_calls::answer_all(asked, &cell.events, &to);
        let shown = Shown::read(results, *cells, most, &ask);
        let attending = ready.attend(&cell.traffic, shape.limits.get(Limit::CpuMs));
        let following = ready.follow(pauses);
        let interrupted = signals.interrupt.notified();
        let clock = pass(cell.clock.left(), Some(pauses));
        tokio::pin!(
            sending,
            answering,
            shown,
            attending,
            following,
            interrupted,
            clock
        );
        let [out, err] = printed;
        let mut stop = None;
        loop {
            tokio::select! {
                biased;
                shown = &mut shown => return match shown {
                    Ok(Some(shown)) if stop == Some(Stop::Late) =>
                        CellEnd::Shown(shown.late(per_call.timeout_ms), None),
                    Ok(Some(shown)) => CellEnd::Shown(shown, None),
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => CellEnd::Invalid(e),
                    Ok(None) | Err(_) => exited(ready, cell.clock.left() + INTERRUPTED).await,
                },
                ended = ready.launcher.wait() => return match ended {
                    Ok((exited, _)) => CellEnd::Exited(exited),
                    Err(_) => CellEnd::Ended,
                },
                // The traffic says which limit that was.
                () = &mut attending => return CellEnd::Ended,
                () = signals.end.cancelled() => return CellEnd::Ended,
                () = cell.gone.cancelled(), if stop != Some(Stop::Gone) => {
                    stop = Some(Stop::Gone);
                    // Nobody is asked about its calls any more, so nobody else continues it.
                    let _ = ready.launcher.resume();
                    interrupt();
                    clock.set(pass(INTERRUPTED, None));
                }
                () = &mut interrupted => {
                    interrupted.set(signals.interrupt.notified());
                    interrupt();
                }
                () = &mut clock => match stop {
                    Some(Stop::Late) => return CellEnd::TimedOut,
                    Some(Stop::Gone) => return CellEnd::Abandoned,
                    None => {
                        stop = Some(Stop::Late);
                        interrupt();
                        clock.set(pass(INTERRUPTED, None));
                    }
                },
                never = &mut following, if stop != Some(Stop::Gone) => match never {},
                () = out.read(stdout) => {}
                () = err.read(stderr) => {}
                () = &mut sending => {}
                () = &mut answering => {}
            }
        }
    }

    /// Memory of it while it waits.
    pub fn memory_bytes(&self) -> u64 {
        self.ready.launcher.memory_bytes() + self.files_bytes
    }

    /// Of the files in its folder of results, those that are new or changed since its last cell.
    pub fn new_files(&mut self, files: Vec<LeftFile>) -> Vec<LeftFile> {
        let before = std::mem::take(&mut self.left);
        let files = files.into_iter().filter(|file| {
            let Ok(stamp) = Stamp::from_file(&file.file) else {
                return true;
            };
            let is_new = before.get(&file.name) != Some(&stamp);
            self.left.insert(file.name.clone(), stamp);
            is_new
        });
        files.collect()
    }
}

/// Why a cell was interrupted. What goes on for 2 s after that is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// It reached its time limit.
    Late,
    /// Its call was cancelled.
    Gone,
}

/// Returns after this time, without that in which the call stands still.
async fn pass(limit: Duration, pauses: Option<&Pauses>) {
    let began = Instant::now();
    let stood_before = pauses.map_or(Duration::ZERO, Pauses::lasted);
    loop {
        let stood = pauses.map_or(Duration::ZERO, Pauses::lasted);
        let left = (limit + stood - stood_before).saturating_sub(began.elapsed());
        if left.is_zero() {
            return;
        }
        sleep(left).await;
    }
}

/// How a session ended that closed its pipe. It has the time that its cell had.
async fn exited(ready: &Ready, left: Duration) -> CellEnd {
    match timeout(left.min(PATIENCE), ready.launcher.wait()).await {
        Ok(Ok((exited, _))) => CellEnd::Exited(exited),
        // It goes on without the pipe, and is of no use.
        Err(_) => CellEnd::Exited(Exited {
            killed: Some(Killed::Requested),
            ..Exited::default()
        }),
        Ok(Err(_)) => CellEnd::Ended,
    }
}
