//! The service: one road for every call, whoever brings it (DESIGN §2).
//!
//! For: transports and the cli. In: a `CallRequest`. Out: a `Report`, always: a call is never lost.
//! Never: runs anything that policy did not confine, or that could not be recorded first.

mod arguments;
pub mod audit;
mod caught;
mod contract;
pub mod format;
mod guard;
mod mask;
mod report;
pub mod runlog;
mod runner;
mod script_digest;
mod trace;

pub use arguments::Arguments;
pub use contract::{ToolServiceError, ToolServiceRequest, ToolServiceResponse};
pub use report::{Digests, Report};

use crate::executor::method;
use crate::manifest::{Handler, Language, Manifest};
use crate::{executor, fault, policy, quantity, registry};
use executor::{Call, Ending, Executor, Outcome};
use fault::{Fault, Kind};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use trace::Trace;

/// The ways this host can run tools. `None` = this host has no such way, and says so when asked.
pub struct Executors {
    pub process: Option<Arc<dyn Executor>>,
    pub wasm: Option<Arc<dyn Executor>>,
    pub methods: Arc<method::Methods>,
    /// Handler types an embedding program brings (`x-…`), by name.
    pub extensions: BTreeMap<String, Arc<dyn Executor>>,
}

/// What a service is made of.
pub struct Parts {
    pub registry: Arc<registry::Registry>,
    pub policies: Arc<policy::Policies>,
    pub machine: Arc<policy::Machine>,
    pub executors: Executors,
    pub audit: audit::Log,
    /// The script base folders, for scripts that a call names.
    pub scripts: Vec<PathBuf>,
    pub settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Calls that run at once.
    pub running: usize,
    /// Calls that may wait behind them.
    pub waiting: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { running: guard::RUNNING, waiting: guard::WAITING }
    }
}

/// One call asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRequest {
    /// The call's id, where the transport had to know it beforehand; else one is made.
    pub id: Option<String>,
    pub user: String,
    /// `id` or `id@range`.
    pub tool: String,
    pub arguments: Arguments,
    pub timeout_ms: Option<u64>,
}

/// The road of a call, and what it needs on the way.
pub struct Service {
    parts: Parts,
    guard: guard::Guard,
    scripts: script_digest::Cache,
}

impl Service {
    pub fn new(parts: Parts) -> Arc<Service> {
        let service = Arc::new(Service {
            guard: guard::Guard::new(parts.settings.running, parts.settings.waiting),
            scripts: script_digest::Cache::default(),
            parts,
        });
        let runner: Weak<Service> = Arc::downgrade(&service);
        service.parts.executors.methods.bind(runner);
        service
    }

    /// What can be called.
    pub fn registry(&self) -> &registry::Registry {
        &self.parts.registry
    }

    /// Runs one call. Dropping the future cancels, kills, reaps and records.
    pub async fn call(&self, request: CallRequest) -> Report {
        let mut trace = Trace::begin(&request);
        let result = match caught::caught(self.road(request, &mut trace)).await {
            Ok(result) => result,
            Err(words) => Err(Fault::new(Kind::InternalError, "The host failed while it handled this call.")
                .person(format!("a panic: {words}; please report it with the call id"))),
        };
        trace.finish(result)
    }

    /// Records a call that no tool could be found for before the road began, and reports it.
    pub fn refuse(&self, user: &str, asked: &str, fault: Fault) -> Report {
        let request = CallRequest {
            id: None,
            user: user.to_owned(),
            tool: asked.to_owned(),
            arguments: Arguments::Value(Value::Null),
            timeout_ms: None,
        };
        let mut trace = Trace::begin(&request);
        match self.parts.audit.open() {
            Ok(entry) => trace.owes(entry),
            Err(unrecorded) => return trace.finish(Err(unrecorded)),
        }
        trace.finish(Err(fault))
    }

    /// The road: each step one type further. The audit log is opened first, so that a refusal leaves
    /// its record as surely as a run does.
    async fn road(&self, request: CallRequest, trace: &mut Trace) -> Result<Value, Fault> {
        trace.owes(self.parts.audit.open()?);
        let _turn = self.guard.enter().await?;
        let tool = self.parts.registry.snapshot().find(&request.tool)?;
        let method = self.parts.executors.methods.find(&tool.manifest.handler);
        trace.found(&tool, method.as_ref().is_some_and(|method| method.speaks_envelope()));
        available(&tool)?;
        let input = checked(&tool.manifest, request.arguments, request.timeout_ms, trace)?;
        let (confinement, limit) = match &tool.manifest.handler {
            Handler::Script { .. } => (Some(self.confined(&tool, request.timeout_ms, &input, trace)?), None),
            _ => {
                let own = method.is_some_and(|method| method.keeps_time());
                (None, if own { None } else { Some(in_process_limit(&tool.manifest, request.timeout_ms)?) })
            }
        };
        let executor = self.executor(&tool.manifest.handler)?;
        let call = Call { manifest: tool.manifest.clone(), site: tool.site.clone(), input, confinement };
        let mut outcome = self.drive(executor, call, limit, trace).await?;
        let ending = std::mem::replace(&mut outcome.ending, Ending::Cancelled);
        let logs = trace.took(&mut outcome);
        let whole = match &ending {
            Ending::Envelope(envelope) => Some(envelope.clone()),
            _ => None,
        };
        let output = format::judge(ending, logs)?;
        tool.manifest.check_output(whole.as_ref().unwrap_or(&output))?;
        Ok(output)
    }

    /// Policy: decide, confine, keep what was decided.
    fn confined(
        &self,
        tool: &registry::Tool,
        asked_ms: Option<u64>,
        input: &Value,
        trace: &mut Trace,
    ) -> Result<policy::Confinement, Fault> {
        let decision = policy::decide(&tool.manifest, &tool.site, &self.parts.policies, &self.parts.machine);
        trace.decided(&decision.policy, &decision.digest);
        let confinement = policy::confine(&decision, asked_ms, None)?;
        input_fits(&confinement, input)?;
        let digest = self.parts.audit.keep(&confinement.shape)?;
        let script = confinement.shape.script.as_deref().and_then(|script| self.scripts.of(script));
        trace.confined(&confinement, digest, script);
        Ok(confinement)
    }

    /// The executor for a handler.
    fn executor(&self, handler: &Handler) -> Result<&dyn Executor, Fault> {
        let executors = &self.parts.executors;
        let lacking = |what: &str| Fault::new(Kind::CapabilityError, format!("This host cannot run {what}."));
        match handler {
            Handler::Script { language, .. } => self.script_executor(*language),
            Handler::ServiceMethod { .. } => Ok(&*executors.methods),
            Handler::Extension { kind, .. } => executors
                .extensions
                .get(kind)
                .map(|executor| &**executor)
                .ok_or_else(|| lacking(&format!("tools of type '{}'", kind.escape_debug()))),
            Handler::ToolService => Err(lacking("remote tool services")),
            Handler::DefinitionOnly => Err(lacking("definition-only tools: the client runs them")),
        }
    }

    fn script_executor(&self, language: Language) -> Result<&dyn Executor, Fault> {
        let executors = &self.parts.executors;
        let found = match language {
            Language::Wasm => &executors.wasm,
            Language::Python | Language::Nodejs | Language::Bun => &executors.process,
        };
        found.as_deref().ok_or_else(|| Fault::new(Kind::CapabilityError, "This host cannot run scripts of this kind."))
    }

    /// Runs the executor, hears its events, and holds the clock where nothing below does.
    async fn drive(
        &self,
        executor: &dyn Executor,
        call: Call,
        limit: Option<Duration>,
        trace: &mut Trace,
    ) -> Result<Outcome, Fault> {
        let cancel = CancellationToken::new();
        let _cancels = cancel.clone().drop_guard();
        let context =
            executor::Context { id: trace.id.clone(), user: trace.user.clone(), cancel, started: trace.started, depth: 0 };
        let (events, mut heard) = mpsc::unbounded_channel();
        trace.running();
        let outcome = {
            let mut running = executor.run(&context, call, &events);
            let clock = tokio::time::sleep(limit.unwrap_or(Duration::MAX));
            tokio::pin!(clock);
            loop {
                tokio::select! {
                    biased;
                    Some(event) = heard.recv() => self.heard(event, trace),
                    outcome = &mut running => break outcome,
                    () = &mut clock, if limit.is_some() => break Ok(timed_out(limit.unwrap_or_default())),
                }
            }
        };
        while let Ok(event) = heard.try_recv() {
            self.heard(event, trace);
        }
        outcome
    }

    fn heard(&self, event: executor::Event, trace: &mut Trace) {
        match event {
            executor::Event::Log(line) => trace.log(&line),
            executor::Event::Decided { policy, digest } => trace.decided(&policy, &digest),
            executor::Event::Confined { confinement } => {
                let script = confinement.shape.script.as_deref().and_then(|script| self.scripts.of(script));
                trace.confined(&confinement, confinement.shape.digest(), script);
            }
        }
    }
}

/// Loaded, but lacking something: refused before anything is looked at (Q9, Q23).
fn available(tool: &registry::Tool) -> Result<(), Fault> {
    match &tool.availability {
        registry::Availability::Ready => Ok(()),
        registry::Availability::Unavailable { needs } => Err(Fault::new(
            Kind::CapabilityError,
            format!("Tool {} is not available in this host: it needs {}.", tool.manifest.id, needs.join(", ")),
        )),
    }
}

/// Decoded and checked against the schema. The secrets are known before anything can be said about them.
fn checked(
    manifest: &Manifest,
    arguments: Arguments,
    asked_ms: Option<u64>,
    trace: &mut Trace,
) -> Result<Value, Fault> {
    let (given, from_text) = arguments.decode()?;
    let given = arguments::with_timeout(manifest, given, asked_ms);
    trace.given(&given);
    let input = crate::manifest::arguments::check(manifest, given, from_text)?;
    trace.given(&input);
    Ok(input)
}

/// Larger input than the limit never reaches a process.
fn input_fits(confinement: &policy::Confinement, input: &Value) -> Result<(), Fault> {
    let limit = quantity::Limit::InputBytes;
    let allowed = confinement.shape.limits.get(limit);
    let size = input.to_string().len();
    if u64::try_from(size).unwrap_or(u64::MAX) > allowed {
        return Err(format::over_limit(limit, allowed).details(format!("It is {size} bytes.")));
    }
    Ok(())
}

/// The clock of a tool that runs in this process: call, else manifest, else the house (Q2).
fn in_process_limit(manifest: &Manifest, asked_ms: Option<u64>) -> Result<Duration, Fault> {
    let least = quantity::MIN_TIMEOUT_MS;
    if asked_ms.is_some_and(|ms| ms < least) {
        let message = format!("The time limit must be at least {least} ms.");
        return Err(Fault::new(Kind::ParameterValidationError, message));
    }
    let house = quantity::Limit::TimeoutMs.house_default();
    let own = manifest.execution.timeout_ms.or_else(|| manifest.limits.get(&quantity::Limit::TimeoutMs).copied());
    let ceiling = own.unwrap_or(house).max(house);
    Ok(Duration::from_millis(asked_ms.or(own).unwrap_or(house).min(ceiling)))
}

fn timed_out(limit: Duration) -> Outcome {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    Outcome {
        ending: Ending::TimedOut { limit_ms },
        logs: Vec::new(),
        usage: executor::Usage { wall_ms: limit_ms, ..executor::Usage::default() },
        walls: Vec::new(),
        denials: executor::Denials::default(),
        artifacts: Vec::new(),
    }
}
