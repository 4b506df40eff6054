//! Wasm: WASI tools, with the same confinement, limits and endings as scripts, in wasmtime, in a worker
//! behind the same walls.
//!
//! For: service. In: a call whose language is wasm, with its confinement. Out: outcome or fault.
//! Never: compiles or runs a module in the host; reuses a worker after a trap, a limit or a timeout, for
//! another shape, or after a call that left anything in scratch.
//!
//! The path of one call: `library` finds or makes compiled code (`compile` in a limited child, `cache` on
//! disk), an idle worker is taken or `session` starts one, and `session` talks to it in frames. In the
//! worker process, `worker` runs each call as one `guest` in a fresh store. Only this room uses wasmtime.

mod adapt;
mod cache;
mod compile;
mod engine;
mod folders;
mod frame;
mod guest;
mod http;
mod library;
pub mod rig;
mod session;
mod sinks;
mod ticker;
mod trusted_code;
mod watch;
mod worker;

pub use cache::Cache;

use super::clock::Clock;
use super::idle::Idle;
use super::{Call, Context, Ending, Events, Executor, Outcome, Running, Walls, answer};
use crate::base::places::Places;
use crate::sandbox::grants::Resolved;
use crate::{fault, policy};
use frame::End;
use session::{Answer, Lost, Session};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// Where a worker finds the compiled code, unless its starter says otherwise.
pub const CODE_DESCRIPTOR: i32 = 3;
/// A wait for the compiler that lasts longer is announced.
const QUIET: Duration = Duration::from_millis(400);
/// Longest wait for the walls to say how a worker ended.
const ENDED: Duration = Duration::from_millis(400);

/// The roles in which our own binary is executed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs calls. Reserves 70 GiB of address space (so no RLIMIT_AS) and needs `memfd_create`, or an ENOSYS
    /// for it. It counts time and CPU for each call itself, so the walls set no limit over its life; the host
    /// ends it when a call's time is over.
    Worker,
    /// Compiles one module. Needs as many threads as there are CPUs.
    Compile,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Worker => "wasm-worker",
            Role::Compile => "wasm-compile",
        }
    }

    /// Enters the role; the front door calls it before any thread is started.
    pub fn enter(self) -> ExitCode {
        match self {
            Role::Worker => worker::run(),
            Role::Compile => compile::run(),
        }
    }
}

pub type Looking<'a> = Pin<Box<dyn Future<Output = Result<Resolved, fault::Fault>> + Send + 'a>>;
pub type Starting<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Worker>, fault::Fault>> + Send + 'a>>;
pub type Ended<'a> = Pin<Box<dyn Future<Output = Option<Ending>> + Send + 'a>>;
pub type Publishing<'a> = Pin<Box<dyn Future<Output = Result<Vec<super::Artifact>, fault::Fault>> + Send + 'a>>;

/// What is to be started, behind the walls of `shape`.
pub struct Start<'a> {
    pub shape: &'a policy::Shape,
    /// Its grants as `Workers::look` found them.
    pub grants: Resolved,
    pub role: Role,
    /// Inherited by the worker under `Worker::code_descriptor`.
    pub code: Option<OwnedFd>,
    /// What the role itself needs beyond the shape's `memoryBytes` and `processes`.
    pub own_memory: u64,
    pub own_threads: u64,
}

/// Starts our own binary in a role (`process::WasmWorkers`).
pub trait Workers: Send + Sync {
    /// The grants of a shape as they are now: a worker that was started for other files must not serve the call.
    fn look<'a>(&'a self, shape: &'a policy::Shape) -> Looking<'a>;
    fn start<'a>(&'a self, start: Start<'a>) -> Starting<'a>;
}

/// Descriptors 0 and 1 of a worker.
pub struct Pipes {
    pub to: Box<dyn AsyncWrite + Send + Unpin>,
    pub from: Box<dyn AsyncRead + Send + Unpin>,
}

/// A started worker. Dropping it ends and reaps it.
pub trait Worker: Send {
    /// Gives the pipes, once.
    fn pipes(&mut self) -> Option<Pipes>;
    fn code_descriptor(&self) -> i32 {
        CODE_DESCRIPTOR
    }
    /// The folder of the worker's view that is the guest's `/tmp`.
    fn scratch(&self) -> PathBuf {
        PathBuf::from("/tmp")
    }
    /// The walls as they stand around it.
    fn walls(&self) -> Walls;
    /// Ends it now.
    fn kill(&mut self);
    /// After its pipes closed: what the walls saw, such as a memory limit.
    fn ended(&mut self) -> Ended<'_>;
    /// Ends the worker and publishes its staged files. Called only after a good answer.
    fn publish(&mut self) -> Publishing<'_> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// What a worker was started for: the shape, the files that its grants were then, the key of its module.
#[derive(PartialEq, Eq)]
struct For {
    shape: Arc<policy::Shape>,
    grants: Resolved,
    module: String,
}

/// The executor of WASI tools.
pub struct Wasm {
    workers: Arc<dyn Workers>,
    library: Arc<library::Library>,
    idle: Arc<Idle<For, Session>>,
    places: Arc<Places>,
    /// Set where a call waits for its compiler however long that takes; called to announce the wait.
    waits: Option<fn(&str)>,
}

impl Wasm {
    pub fn new(workers: Arc<dyn Workers>, cache: Cache) -> Wasm {
        let most = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        Wasm {
            workers,
            library: Arc::new(library::Library::new(cache)),
            idle: Idle::new(most),
            // The service limits how many calls run in all.
            places: Places::new(usize::MAX, most),
            waits: None,
        }
    }

    /// For a host of one call: waits for the compiler beyond the call's time, since compiling would end with the host.
    /// `tell` hears of a wait that is not short.
    pub fn waiting(self, tell: fn(&str)) -> Wasm {
        Wasm { waits: Some(tell), ..self }
    }

    /// Compiles the tool's module ahead of calls, unless that was done before.
    pub async fn prepare(&self, shape: &policy::Shape) -> Result<(), fault::Fault> {
        let found = self.library.find(shape, None).await?;
        self.library.prepare(&self.workers, shape, found).await.map(|_| ())
    }

    /// How many workers wait for a call.
    pub fn idle_workers(&self) -> usize {
        self.idle.len()
    }

    /// Ends all idle workers.
    pub fn close(&self) {
        self.idle.clear();
    }

    async fn work(&self, context: &Context, call: &Call, events: &Events) -> Result<Outcome, fault::Fault> {
        let Some(confinement @ policy::Confinement { shape, per_call }) = &call.confinement else {
            return Err(fault::Fault::new(fault::Kind::InternalError, "a wasm tool without a confinement"));
        };
        let input = match call.input_within(confinement)? {
            Ok(input) => input,
            Err(ending) => return Ok(outcome(ending)),
        };
        let mut clock = Clock::new(context.came, per_call.timeout_ms);
        let finding = self.library.find(shape, per_call.source.as_deref());
        let found = clock.prepare("the tool's module is still being read", finding).await?;
        if shape.script.is_some() {
            let _ = context.ran.set(found.digest.clone());
        }
        let compiling = self.library.prepare(&self.workers, shape, found);
        let prepared = match self.waits {
            None => clock.prepare("the tool is still being compiled", compiling).await?,
            Some(tell) => {
                let prepared = told_of(compiling, tell).await?;
                clock = Clock::new(Instant::now(), per_call.timeout_ms);
                prepared
            }
        };
        let place = async { Ok::<_, fault::Fault>(self.places.enter(&shape.tool).await) };
        let _place = clock.prepare("all workers of this tool are busy with other calls", place).await?;
        let mut grants = clock.prepare("the tool's grants are still being looked at", self.workers.look(shape)).await?;
        // Taken out of the key: what calls wrote is no reason for another worker.
        let before = std::mem::take(&mut grants.before);
        let wanted = For { shape: shape.clone(), grants, module: prepared.key };
        // Staged copies are made when a worker starts, so such a worker is for one call.
        let staged = !wanted.grants.stages.is_empty();
        let mut idle = if staged { None } else { self.idle.take(|kept| *kept == wanted) };
        let (mut session, answer, started) = loop {
            let from_pool = idle.is_some();
            let mut session = match idle.take() {
                Some(session) => session,
                None => {
                    let opening = Session::open(&*self.workers, shape, wanted.grants.clone(), &prepared.code);
                    clock.prepare("the worker of the tool is still being started", opening).await?
                }
            };
            context.opens(shape)?;
            let started = Instant::now();
            let live = (wanted.grants.mounts.as_slice(), before);
            match watch::held(live, &shape.limits, session.call(&input, &per_call.env, clock.left())).await? {
                // It died while idle and the call never began: start a fresh one.
                Err(Lost::Before) if from_pool => {}
                end => break (session, end, started),
            }
        };
        let (mut outcome, fit) = conclude(answer, shape, per_call.timeout_ms, started.elapsed())?;
        outcome.walls = session.walls();
        for line in &outcome.logs {
            events.log(line.clone());
        }
        if !staged && fit {
            self.idle.put(wanted, session);
        } else if staged && matches!(outcome.ending, Ending::Answered(_)) {
            outcome.published(session.publish().await?, &shape.limits);
        }
        Ok(outcome)
    }
}

impl Executor for Wasm {
    fn prepare<'a>(&'a self, shape: &'a policy::Shape) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        // The call itself will report what is wrong.
        Box::pin(async { drop(Wasm::prepare(self, shape).await) })
    }

    fn run<'a>(&'a self, context: &'a Context, call: Call, events: &'a Events) -> Running<'a> {
        Box::pin(async move {
            tokio::select! {
                biased;
                // The other branch is dropped, and with it the session and its worker.
                () = context.cancel.cancelled() => Ok(outcome(Ending::Cancelled)),
                done = self.work(context, &call, events) => done,
            }
        })
    }
}

/// What a call's answer, or its absence, means; and whether the worker may serve another call.
fn conclude(
    answer: Result<Answer, Lost>,
    shape: &policy::Shape,
    limit_ms: u64,
    wall: Duration,
) -> Result<(Outcome, bool), fault::Fault> {
    let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
    let alone = |ending| {
        let mut outcome = outcome(ending);
        outcome.usage.wall_ms = wall_ms;
        Ok((outcome, false))
    };
    let fault = |message: &str| fault::Fault::new(fault::Kind::InternalError, message);
    let answer = match answer {
        Ok(answer) => answer,
        Err(Lost::Late) => return alone(Ending::TimedOut { limit_ms }),
        Err(Lost::Died(Some(Ending::OverLimit { limit, .. }))) => {
            return alone(Ending::OverLimit { limit, allowed: shape.limits.get(limit) });
        }
        Err(Lost::Died(Some(ending))) => return alone(ending),
        Err(Lost::Died(None)) => return Err(fault("the wasm worker stopped without an answer")),
        Err(Lost::Before) => return Err(fault("the wasm worker was gone before the call").retryable()),
        Err(Lost::Garbage(e)) => {
            return Err(fault("the wasm worker sent what is not an answer").person(format!("wasm worker: {e}")));
        }
    };
    let fit = answer.clean && matches!(answer.end, End::Exit { .. } | End::Returned | End::Raised);
    let logs = answer::lines(&answer.log);
    let printed = if matches!(answer.end, End::Exit { code: 0 } | End::Returned | End::Raised) {
        Vec::new()
    } else {
        answer::last_lines(&answer.output)
    };
    let ending = match answer.end {
        End::Exit { code: 0 } => answer::judge_output(&answer.output, false),
        End::Exit { code } => Ending::Exited { code },
        End::Returned => answer::judge_returned(&answer.output),
        End::Raised => Ending::Raised { message: frame::short(&String::from_utf8_lossy(&answer.output)) },
        End::Trapped { message } => Ending::Raised { message: format!("the module trapped: {message}") },
        End::TimedOut => Ending::TimedOut { limit_ms },
        End::OverLimit { limit } => Ending::OverLimit { limit, allowed: shape.limits.get(limit) },
    };
    let complaint = if shape.stderr_is_error { answer::judge_stderr(&logs) } else { None };
    let ending = match (ending, complaint) {
        (Ending::Answered(_), Some(complaint)) => complaint,
        (ending, _) => ending,
    };
    let mut outcome = outcome(ending);
    outcome.logs = logs;
    outcome.printed = printed;
    outcome.usage = super::Usage {
        wall_ms,
        cpu_ms: Some(answer.cpu_ms),
        peak_memory_bytes: Some(answer.peak_memory),
        output_bytes: answer.output.len() as u64,
    };
    Ok((outcome, fit))
}

/// Waits for the compiler, and announces a long wait.
async fn told_of<T>(compiling: impl Future<Output = T>, tell: fn(&str)) -> T {
    tokio::pin!(compiling);
    if let Ok(done) = tokio::time::timeout(QUIET, &mut compiling).await {
        return done;
    }
    tell("toolhost: compiling the tool's module; that is kept for later calls");
    compiling.await
}

fn outcome(ending: Ending) -> Outcome {
    Outcome {
        ending,
        logs: Vec::new(),
        printed: Vec::new(),
        usage: super::Usage::default(),
        walls: Walls::default(),
        denials: super::Denials {
            observed: Vec::new(),
            not_observed: vec!["a file outside the grants: the module saw an error number, nobody kept it".to_owned()],
        },
        artifacts: Vec::new(),
    }
}

/// What the walls saw of a worker whose pipes closed.
async fn how_it_ended(worker: &mut dyn Worker) -> Option<Ending> {
    tokio::time::timeout(ENDED, worker.ended()).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use crate::{manifest, policy};

    /// A wasm tool in `folder`, without grants.
    pub fn shape(folder: &str) -> policy::Shape {
        policy::Shape {
            tool: "t:t@1.0.0".into(),
            runtime: policy::Runtime {
                language: manifest::Language::Wasm,
                program: policy::Program::Ourselves { role: super::Role::Worker.name().into() },
                arguments: Vec::new(),
                roots: Vec::new(),
                version: String::new(),
                found: String::new(),
            },
            script: None,
            entry_point: None,
            folder: folder.into(),
            grants: Vec::new(),
            network: policy::Network::None,
            limits: policy::Limits::house(),
            env: Default::default(),
            require_cgroup: false,
            stderr_is_error: false,
            past: Default::default(),
        }
    }
}
