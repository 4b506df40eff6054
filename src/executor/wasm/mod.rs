//! WASI tools: the same confinement, limits and endings as scripts, in wasmtime, in a worker behind
//! the same layers.
//!
//! The path of one call: `library` finds or makes compiled code (`compile` in a limited child), an
//! idle worker is taken or `session` starts one, and `session` talks to it in frames. In its
//! process, `worker` runs each call in a fresh store. The host compiles and runs no module. A
//! worker is not used again after a trap, a limit or a timeout, for another shape, or after a call
//! that left anything in scratch.
//!
//! A worker serves another call only where its scratch is empty again and its grants are the same
//! files as when it started (device and inode, looked at before each call). The times of its
//! scratch are reset, and the ids of files that it sees are salted for each call.
//!
//! wasmtime's own sandbox is one layer more, not the promise. Where no host is granted the host
//! functions refuse sockets and `wasi:http`, so that a module reads an error; else requests go
//! through the worker's own network namespace to the relay. A module has no UDP socket: names are
//! looked up for it.

pub mod adapt;
mod compile;
mod denials;
pub mod engine;
mod frame;
mod guest;
mod http;
mod library;
mod role;
mod session;
mod trusted_code;
mod worker;

pub use adapt::text_fault;
pub use library::Cache;
pub use role::Role;

use super::idle::IdlePool;
use super::output::{self, Log, Output, OutputReader};
use super::process::grants::ResolvedGrants;
use super::process::worker::WorkerError;
use super::process::{self, Launchers};
use super::{
    Call, CallDeadline, Clock, Context, Denials, Ending, Executor, Gauge, Outcome, Reading,
    Running, ToolSender,
};
use crate::base::lock;
use crate::base::semaphore::{FairSemaphore, Permit};
use crate::base::store::Content;
use crate::quantity::Limit;
use crate::sandbox::Totals;
use crate::{fault, policy, sandbox};
use denials::WorkerDenials;
use frame::{CallSummary, End};
use futures_util::future::BoxFuture;
use session::{CallSinks, Session};
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A longer wait for the compiler is announced.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(400);
/// The limits that a worker itself enforces.
const WORKER_LIMITS: [Limit; 5] = [
    Limit::CpuMs,
    Limit::MemoryBytes,
    Limit::ScratchBytes,
    Limit::OpenFiles,
    Limit::OutputBytes,
];

impl Role {
    /// Enters the role; `main.rs` calls it before any thread is started.
    pub fn enter(self) -> ExitCode {
        let served = match self {
            Role::Worker => {
                sandbox::ignore_sigxfsz();
                worker::serve()
            }
            Role::Compile => compile::serve(),
        };
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", self.name());
                ExitCode::FAILURE
            }
        }
    }
}

/// What a worker was started for: the principal, the shape, its resolved grants, the key of its
/// module.
#[derive(PartialEq, Eq)]
struct WorkerKey {
    principal: String,
    shape: Arc<policy::Shape>,
    grants: ResolvedGrants,
    module: String,
}

impl WorkerKey {
    fn new(
        context: &Context,
        shape: &Arc<policy::Shape>,
        grants: ResolvedGrants,
        module: String,
    ) -> WorkerKey {
        WorkerKey {
            principal: context.principal.clone(),
            shape: shape.clone(),
            grants,
            module,
        }
    }
}

/// A call that has all it needs but a worker.
struct PreparedCall<'a> {
    context: &'a Context,
    confinement: &'a policy::Confinement,
    input: Vec<u8>,
    clock: Clock,
    code: Content,
    key: WorkerKey,
    /// The size of the folders that it may write live.
    before: Totals,
    _place: Permit,
}

impl PreparedCall<'_> {
    /// Staged copies are made when a worker starts, so such a worker is for one call.
    fn has_stages(&self) -> bool {
        !self.key.grants.stages.is_empty()
    }
}

/// A call that its worker served.
struct Ran {
    session: Session,
    answered: Result<(CallSummary, Vec<u8>), WorkerError>,
    started: Instant,
    clock: Clock,
}

/// How long a host of one call waits for its worker.
const MAX_START_MS: u64 = 30_000;

/// How many workers may be idle at least: each waits for its own principal.
const MIN_IDLE: usize = 16;

/// The executor of WASI tools.
pub struct Wasm {
    launchers: Arc<Launchers>,
    library: Arc<library::Library>,
    idle: Arc<IdlePool<WorkerKey, Session>>,
    places: Arc<FairSemaphore>,
    /// Set where a call waits for its compiler and its worker beyond its own time; called to announce the
    /// wait.
    waits: Option<fn(&str)>,
}

impl Wasm {
    pub fn new(launchers: Arc<Launchers>, cache: Cache) -> Wasm {
        let most = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        Wasm {
            launchers,
            library: Arc::new(library::Library::new(cache)),
            idle: Arc::new(IdlePool::new(most.max(MIN_IDLE))),
            // The service limits how many calls run in all.
            places: FairSemaphore::new(usize::MAX, most),
            waits: None,
        }
    }

    /// For a host of one call: waits for the compiler beyond the call's time, since compiling would
    /// end with the host. `tell` is called to announce a long wait.
    pub fn waiting(self, tell: fn(&str)) -> Wasm {
        Wasm {
            waits: Some(tell),
            ..self
        }
    }

    /// Compiles the tool's module ahead of calls, unless that was done before.
    pub async fn prepare(&self, shape: &policy::Shape) -> Result<(), fault::Fault> {
        let found = self.library.module(
            Some(
                &self
                    .library
                    .read(shape, &CallDeadline::usual("", None))
                    .await?,
            ),
            None,
        )?;
        self.library
            .prepare(&self.launchers, shape, found)
            .await
            .map(|_| ())
    }

    /// Ends all idle workers.
    pub fn close(&self) {
        self.idle.clear();
    }

    async fn work(
        &self,
        context: &Context,
        call: &Call,
        events: &ToolSender,
    ) -> Result<Outcome, fault::Fault> {
        let Some(confinement @ policy::Confinement { shape, .. }) = &call.confinement else {
            return Err(fault::Fault::new(
                fault::Kind::InternalError,
                "a wasm tool without a confinement",
            ));
        };
        let input = match call.input_within(confinement)? {
            Ok(input) => input,
            Err(ending) => return Ok(outcome(ending)),
        };
        let prepared = self.ready(context, confinement, input).await?;
        let mut sinks = CallSinks {
            log: Log::new(shape.limits.get(Limit::LogBytes), events),
            out: OutputReader::new(shape.limits.get(Limit::OutputBytes), events),
            denials: WorkerDenials::default(),
            traffic: &context.traffic,
            folder: &shape.folder,
        };
        let ran = self.serve(&prepared, events, &mut sinks).await?;
        self.finish(prepared, ran, sinks).await
    }

    /// Compiles the module if that was not done before, waits for a place, and resolves the grants.
    async fn ready<'a>(
        &self,
        context: &'a Context,
        confinement: &'a policy::Confinement,
        input: Vec<u8>,
    ) -> Result<PreparedCall<'a>, fault::Fault> {
        let policy::Confinement { shape, per_call } = confinement;
        let mut clock = Clock::new(context.deadline.began, per_call.timeout_ms);
        let found = self
            .library
            .module(per_call.script.as_deref(), per_call.source.as_deref())?;
        let compiling = self.library.prepare(&self.launchers, shape, found);
        let module = match self.waits {
            None => {
                clock
                    .prepare("the tool is still being compiled", compiling)
                    .await?
            }
            Some(tell) => {
                let module = announce_wait(compiling, tell).await?;
                clock = Clock::new(Instant::now(), per_call.timeout_ms);
                module
            }
        };
        let place = async { Ok::<_, fault::Fault>(self.places.enter(&shape.tool).await) };
        let place = clock
            .prepare("all workers of this tool are busy with other calls", place)
            .await?;
        let resolving = process::resolve(shape, true);
        let mut grants = clock
            .prepare("the tool's grants are still being looked at", resolving)
            .await?;
        // Not part of the key: after a call wrote files, its worker can still be used.
        let before = std::mem::take(&mut grants.before);
        Ok(PreparedCall {
            context,
            confinement,
            input,
            clock,
            code: module.code,
            key: WorkerKey::new(context, shape, grants, module.key),
            before,
            _place: place,
        })
    }

    /// Runs the call in an idle worker, or in a new one.
    async fn serve(
        &self,
        call: &PreparedCall<'_>,
        events: &ToolSender,
        sinks: &mut CallSinks<'_, '_>,
    ) -> Result<Ran, fault::Fault> {
        let policy::Confinement { shape, per_call } = call.confinement;
        let grants = &call.key.grants;
        let mut clock = call.clock;
        let mut idle = self
            .idle
            .take(|idle| !call.has_stages() && *idle == call.key);
        loop {
            let from_pool = idle.is_some();
            let mut session = match idle.take() {
                Some(session) => session,
                None => {
                    let opening = Session::open(
                        &self.launchers,
                        &call.context.principal,
                        shape,
                        grants.clone(),
                        &call.code,
                    );
                    if self.waits.is_some() {
                        clock = Clock::new(Instant::now(), MAX_START_MS);
                    }
                    clock
                        .prepare("the worker of the tool is still being started", opening)
                        .await?
                }
            };
            if self.waits.is_some() {
                clock = Clock::new(Instant::now(), per_call.timeout_ms);
            }
            events.opened(shape).await?;
            let started = Instant::now();
            let left = clock.left();
            let calling = session.call(&call.input, per_call, left, sinks);
            let counted =
                session::count_writes(&grants.mounts, call.before, &shape.limits, left, calling);
            match counted.await? {
                // The worker died while idle, and the call never began: start a fresh worker.
                Err(WorkerError::NotStarted) if from_pool => {}
                answered => {
                    return Ok(Ran {
                        session,
                        answered,
                        started,
                        clock,
                    });
                }
            }
        }
    }

    /// The outcome of a call; its worker is kept for another, or its staged files are published.
    async fn finish(
        &self,
        call: PreparedCall<'_>,
        ran: Ran,
        sinks: CallSinks<'_, '_>,
    ) -> Result<Outcome, fault::Fault> {
        let Ran {
            mut session,
            answered,
            started,
            clock,
        } = ran;
        let shape = &call.confinement.shape;
        let is_reusable = session.worker.is_reusable
            && answered.as_ref().is_ok_and(|(answer, _)| answer.is_fit());
        let more = answered
            .as_ref()
            .map_or(0, |(answer, _)| answer.more_denied);
        let mut outcome = conclude(
            answered,
            sinks.out.finish(),
            sinks.log.finish(),
            &call,
            clock,
        )
        .await?;
        let ports = sinks.denials.ports.into_iter();
        ports.for_each(|address| lock(&call.context.traffic).refused_port(address));
        outcome.attempts = sinks.denials.attempts;
        outcome.denials = Denials {
            observed: sinks.denials.denials,
            not_observed: denials::not_observed(more),
        };
        outcome.usage.wall_ms = crate::base::millis(started.elapsed());
        outcome.layers = session.layers.clone();
        if call.has_stages() {
            if matches!(outcome.ending, Ending::Answered(_)) {
                outcome.published(session.worker.end(shape).await?, &shape.limits);
            }
        } else if is_reusable {
            self.idle.put(call.key, session);
        }
        Ok(outcome)
    }
}

impl Executor for Wasm {
    fn gauges(&self) -> Vec<Gauge> {
        let what = "Workers for WASI tools that wait for a call.";
        vec![Gauge {
            name: "toolhost_wasm_workers_idle",
            what,
            value: self.idle.len(),
        }]
    }

    fn prepare<'a>(&'a self, shape: &'a policy::Shape) -> BoxFuture<'a, ()> {
        // The call itself will report what is wrong.
        Box::pin(async { drop(Wasm::prepare(self, shape).await) })
    }

    fn read<'a>(&'a self, shape: &'a policy::Shape, deadline: &'a CallDeadline) -> Reading<'a> {
        Box::pin(self.library.read(shape, deadline))
    }

    fn run<'a>(&'a self, context: &'a Context, call: Call, events: &'a ToolSender) -> Running<'a> {
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

/// Turns a call's answer, or the lack of one, into an outcome or a fault.
async fn conclude(
    answered: Result<(CallSummary, Vec<u8>), WorkerError>,
    printed: Output,
    logs: Vec<String>,
    call: &PreparedCall<'_>,
    clock: Clock,
) -> Result<Outcome, fault::Fault> {
    let policy::Confinement { shape, per_call } = call.confinement;
    let limit_ms = per_call.timeout_ms;
    let reading = clock.reading(&call.context.deadline);
    let over = |limit| Ending::OverLimit {
        limit,
        allowed: shape.limits.get(limit),
    };
    let fault = |message: &str| fault::Fault::new(fault::Kind::InternalError, message);
    if let Some(bad) = printed.bad {
        return Ok(Outcome {
            logs,
            ..outcome(bad)
        });
    }
    let (answer, returned) = match answered {
        Ok(answered) => answered,
        Err(WorkerError::TimedOut) => {
            return Ok(Outcome {
                logs,
                ..outcome(Ending::TimedOut { limit_ms })
            });
        }
        Err(WorkerError::Died(Some(limit))) => {
            return Ok(Outcome {
                logs,
                ..outcome(over(limit))
            });
        }
        Err(WorkerError::Died(None)) => {
            return Err(fault("the wasm worker stopped without an answer"));
        }
        Err(WorkerError::NotStarted) => {
            return Err(fault("the wasm worker was gone before the call").retryable());
        }
        Err(WorkerError::InvalidMessage(e)) => {
            return Err(
                fault("the wasm worker sent an invalid answer").person(format!("wasm worker: {e}"))
            );
        }
    };
    let last_lines = output::last_lines(&printed.rest);
    let is_list = printed.is_list();
    let output_bytes = printed.total.max(returned.len() as u64);
    let gave_answer = matches!(
        answer.end,
        End::Exit { code: 0 } | End::Returned | End::Raised
    );
    let ending = match answer.end {
        End::Exit { code: 0 } => printed.ending(shape.text_output, &reading).await?,
        End::Exit { code } => Ending::Exited { code },
        End::Returned => output::returned(returned, shape.text_output, &reading).await?,
        End::Raised => Ending::Raised {
            message: frame::short(&String::from_utf8_lossy(&returned)),
        },
        End::Trapped { message } => Ending::Trapped {
            message: format!("the module trapped: {message}"),
        },
        End::TimedOut => Ending::TimedOut { limit_ms },
        End::OverLimit { limit } if WORKER_LIMITS.contains(&limit) => over(limit),
        End::OverLimit { limit } => {
            let why = format!(
                "wasm worker: it reports the limit {}, which it does not enforce",
                limit.name()
            );
            return Err(fault("the wasm worker sent an invalid answer").person(why));
        }
    };
    let (cpu_ms, exceeded) = process::used(&lock(&call.context.traffic), answer.cpu_ms, shape);
    let ending = exceeded.map_or(ending, over);
    let complaint = if shape.stderr_is_error {
        output::ending_of_stderr(&logs)
    } else {
        None
    };
    let ending = match (ending, complaint) {
        (Ending::Answered(_), Some(complaint)) => complaint,
        (ending, _) => ending,
    };
    let mut outcome = Outcome {
        logs,
        ..outcome(ending)
    };
    if !gave_answer {
        outcome.printed = last_lines;
    }
    outcome.usage.cpu_ms = Some(cpu_ms);
    outcome.usage.peak_memory_bytes = Some(answer.peak_memory);
    outcome.usage.output_bytes = output_bytes;
    outcome.parts = is_list;
    Ok(outcome)
}

/// Waits for the compiler, and announces a long wait.
async fn announce_wait<T>(compiling: impl Future<Output = T>, tell: fn(&str)) -> T {
    tokio::pin!(compiling);
    if let Ok(done) = tokio::time::timeout(ANNOUNCE_AFTER, &mut compiling).await {
        return done;
    }
    tell("toolhost: compiling the tool's module; later calls use the compiled code");
    compiling.await
}

fn outcome(ending: Ending) -> Outcome {
    let denials = Denials {
        observed: Vec::new(),
        not_observed: denials::not_observed(0),
    };
    Outcome {
        denials,
        ..Outcome::new(ending, 0)
    }
}
