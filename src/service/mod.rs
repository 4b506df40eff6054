//! The service: one road for every call, whoever brings it.
//!
//! For: transports and the cli. In: a `CallRequest`. Out: a `Report`, always: a call is never lost.
//! Never: runs anything that policy did not confine, or that could not be recorded first.

mod apart;
mod arguments;
pub mod audit;
pub mod beforehand;
mod begun;
mod caught;
mod contract;
pub mod format;
mod guard;
pub mod ledger;
mod mask;
mod mends;
mod past;
mod record;
mod report;
pub mod runlog;
mod runner;
mod script_digest;
pub mod segments;
mod standing;
mod tools;
mod trace;

pub use arguments::Arguments;
pub use contract::{ToolServiceError, ToolServiceRequest, ToolServiceResponse};
pub use guard::{RUNNING, Turn, WAITING};
pub use mends::strips_types;
pub use report::{Digests, Report};
pub use script_digest::of as digest_of_script;
pub use standing::Rules;

use crate::executor::method;
use crate::manifest::Manifest;
use crate::manifest::json::{Text, TooMuch};
use crate::{executor, fault, policy, quantity, registry};
use executor::{Call, Ending, Executor, Outcome};
use fault::{Fault, Kind};
use serde_json::Value;
use standing::{Decided, Standing};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use trace::Trace;

/// The member of an envelope that holds the output.
const OUTPUT_DATA: &str = "outputData";

/// The ways this host can run tools. `None`: it has no such way, and refuses calls that need one.
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
    pub rules: Rules,
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

/// An id for a call: unique, and in the order of time.
pub fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Runs calls, and holds what they need.
pub struct Service {
    parts: Parts,
    guard: guard::Guard,
    scripts: script_digest::Cache,
    /// `Err`: the last reload could not read them, and every call is refused.
    rules: Mutex<Result<Arc<Rules>, Fault>>,
    /// The extensions of `parts`, and those registered since.
    extensions: RwLock<BTreeMap<String, Arc<dyn Executor>>>,
    /// Snapshot, rules and decisions of the last call, used again until the snapshot or the rules change.
    standing: Mutex<Option<Arc<Standing>>>,
}

impl Service {
    pub fn new(parts: Parts) -> Arc<Service> {
        let service = Arc::new(Service {
            guard: guard::Guard::new(parts.settings.running, parts.settings.waiting),
            scripts: script_digest::Cache::default(),
            extensions: RwLock::new(parts.executors.extensions.clone()),
            rules: Mutex::new(Ok(Arc::new(parts.rules.clone()))),
            standing: Mutex::default(),
            parts,
        });
        let Rules { policies, machine } = &service.parts.rules;
        service.parts.registry.answers_to(policies.clone(), machine.clone());
        let runner: Weak<Service> = Arc::downgrade(&service);
        service.parts.executors.methods.bind(runner);
        service
    }

    /// What can be called.
    pub fn registry(&self) -> &registry::Registry {
        &self.parts.registry
    }

    /// Whether limits are counted by a cgroup; else they are sampled.
    pub fn counted(&self) -> bool {
        self.parts.rules.machine.cgroup
    }

    /// Runs one call. Dropping the future cancels, kills, reaps and records.
    pub async fn call(&self, request: CallRequest) -> Report {
        Report { turn: None, ..self.call_to_deliver(request).await }
    }

    /// The same, but the call counts as running until its report is dropped (`Report::turn`).
    pub async fn call_to_deliver(&self, request: CallRequest) -> Report {
        self.traced(Trace::begin(&request), request).await
    }

    /// The same as `call`, and sends on the parts that a tool streams, as text; together at most `outputBytes`.
    async fn streamed(&self, request: CallRequest, chunks: mpsc::UnboundedSender<String>) -> Report {
        let mut trace = Trace::begin(&request);
        trace.streams(chunks);
        self.traced(trace, request).await
    }

    async fn traced(&self, mut trace: Trace, request: CallRequest) -> Report {
        let result = match caught::caught(self.road(request, &mut trace)).await {
            Ok(result) => result,
            Err(words) => Err(Fault::new(Kind::InternalError, "The host failed while it handled this call.")
                .person(format!("a panic: {words}; please report it with the call id"))),
        };
        trace.finish(result)
    }

    /// Prepares ahead of calls what a tool needs only once (for a WASI module, compiled code).
    pub async fn prepare(&self, reference: &str) {
        let Ok(standing) = self.standing() else { return };
        let Ok(tool) = standing.snapshot.find(reference) else { return };
        let decided = standing.decided(&tool);
        if let (Ok(shape), Ok(executor)) = (&decided.decision.shape, self.executor(&tool.manifest.handler)) {
            executor.prepare(shape).await;
        }
    }

    /// Records and reports a call that its transport refused before the road began (unknown tool, malformed request).
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

    /// The road of one call. The audit log is opened first, so that a refusal is recorded as surely as a run.
    async fn road(&self, request: CallRequest, trace: &mut Trace) -> Result<Text, Fault> {
        trace.owes(self.parts.audit.open()?);
        trace.begins(self.guard.enter(&request.tool, &request.arguments).await?);
        let came = Instant::now();
        let standing = self.standing()?;
        let tool = standing.snapshot.find(&request.tool)?;
        let method = self.parts.executors.methods.find(&tool.manifest.handler);
        trace.found(&tool, method.as_ref().is_some_and(|method| method.speaks_envelope()));
        let decided = standing.decided(&tool);
        let decision = &decided.decision;
        self.available(&tool, decision)?;
        let until = apart::Until { began: came, limit: time_limit(decision, request.timeout_ms) };
        let input = checked(&tool.manifest, request.arguments, request.timeout_ms, until, trace).await?;
        // A method that runs scripts has each script decided again: `Event::Decided` brings the notes then.
        let runs_scripts = method.as_ref().is_some_and(|method| method.speaks_envelope());
        let notes =
            if runs_scripts { policy::Notes::default() } else { policy::call_notes(decision, request.timeout_ms) };
        trace.decided(&decision.policy, &decision.digest, notes);
        trace.may_answer(decision);
        let (confinement, limit) = if decision.in_process {
            let limit = in_process(decision, request.timeout_ms)?;
            (None, (!method.is_some_and(|method| method.keeps_time())).then_some(limit))
        } else {
            (Some(self.confined(&decided, request.timeout_ms, &input, trace)?), None)
        };
        let executor = self.executor(&tool.manifest.handler)?;
        let call = Call { manifest: tool.manifest.clone(), site: tool.site.clone(), input, confinement };
        let mut outcome = self.drive(&*executor, call, (came, limit), trace).await?;
        // A call that waited for its compiler may be past its limit: its answer is given `OVERDUE` all the same.
        let used_all = Instant::now().checked_sub(until.limit).unwrap_or(until.began);
        let until = apart::Until { began: until.began.max(used_all), ..until };
        let printed = outcome.usage.output_bytes;
        let (logs, said) = trace.took(&mut outcome);
        let ending = outcome.ending;
        let envelope = match &ending {
            Ending::Envelope { told, .. } => Some(told.clone()),
            _ => None,
        };
        let limit = mends::limit_of(&ending);
        let output = format::judge(ending, logs, &said).map_err(|fault| {
            let hints = mends::of_failure(&fault, printed, &tool, decision);
            let set = limit.and_then(|limit| mends::limit(limit, decision, request.timeout_ms));
            let details =
                [fault.details.clone(), hints.anyone].into_iter().flatten().reduce(|all, more| all + "\n" + &more);
            let person = fault.person.clone().or(set).or(hints.person);
            // The caller wrote the code of `core:run-code`, and can mend it.
            let by_caller = fault.by_caller || tool.manifest.id == policy::RUN_CODE && fault.kind == Kind::ScriptError;
            Fault { details, person, by_caller, ..fault }
        })?;
        trace.published()?;
        let answer = answer_fits(&tool.manifest, envelope, output, until).await?;
        Ok(trace.hidden(answer))
    }

    /// Confines the call, and keeps the text of its confinement beside the audit log.
    fn confined(
        &self,
        decided: &Decided,
        asked_ms: Option<u64>,
        input: &Value,
        trace: &mut Trace,
    ) -> Result<policy::Confinement, Fault> {
        let Decided { decision, shape_digest } = decided;
        let mut confinement = policy::confine(decision, asked_ms, None)?;
        trace.narrowed(self.looks_back(&mut confinement)?);
        input_fits(&confinement, input, decision)?;
        let same = Arc::ptr_eq(&confinement.shape, decision.shape.as_ref().unwrap_or(&confinement.shape));
        let digest = if same { shape_digest.clone() } else { confinement.shape.digest() };
        self.parts.audit.keep(&confinement.shape, &digest)?;
        trace.confined(&confinement, digest, self.scripts.of(&confinement.shape));
        Ok(confinement)
    }

    /// Runs the executor and handles its events; with a `limit`, ends the call then.
    async fn drive(
        &self,
        executor: &dyn Executor,
        call: Call,
        (came, limit): (Instant, Option<Duration>),
        trace: &mut Trace,
    ) -> Result<Outcome, Fault> {
        let cancel = CancellationToken::new();
        let _cancels = cancel.clone().drop_guard();
        let context = executor::Context {
            id: trace.id.clone(),
            user: trace.user.clone(),
            cancel,
            came,
            depth: 0,
            ran: Arc::default(),
            ledger: Some(Arc::new(self.parts.audit.clone())),
        };
        let (events, mut heard) = mpsc::unbounded_channel();
        trace.running()?;
        let outcome = {
            let mut running = executor.run(&context, call, &events);
            let clock = tokio::time::sleep(limit.map_or(Duration::MAX, |limit| limit.saturating_sub(came.elapsed())));
            tokio::pin!(clock);
            loop {
                tokio::select! {
                    biased;
                    // Polled first: events that are always ready would else keep the clock from being looked at.
                    () = &mut clock, if limit.is_some() => break Ok(timed_out(limit.unwrap_or_default())),
                    Some(event) = heard.recv() => self.heard(event, trace)?,
                    outcome = &mut running => break outcome,
                }
            }
        };
        while let Ok(event) = heard.try_recv() {
            self.heard(event, trace)?;
        }
        if let Some(digest) = context.ran.get() {
            trace.ran_script(digest.clone());
        }
        if outcome.as_ref().is_err_and(|fault| {
            matches!(fault.kind, Kind::SecurityError | Kind::CapabilityError | Kind::DependencyError)
        }) {
            // The executor looked at the grants and refused: nothing was started.
            trace.never_ran();
        }
        outcome
    }

    fn heard(&self, event: executor::Event, trace: &mut Trace) -> Result<(), Fault> {
        match event {
            executor::Event::Log(line) => trace.log(&line),
            executor::Event::Chunk(part) => trace.chunk(&part)?,
            executor::Event::Decided { policy, digest, notes } => trace.decided(&policy, &digest, notes),
            executor::Event::Script { schemas, input, env } => trace.script(&schemas, input.0, &env),
            executor::Event::Confined { confinement } => {
                trace.confined(&confinement, confinement.shape.digest(), self.scripts.of(&confinement.shape));
            }
        }
        Ok(())
    }
}

/// The arguments, decoded and checked against the schema. Their secrets are marked before a fault can quote them.
async fn checked(
    manifest: &Arc<Manifest>,
    arguments: Arguments,
    asked_ms: Option<u64>,
    until: apart::Until,
    trace: &mut Trace,
) -> Result<Value, Fault> {
    let (given, from_text) = arguments.decode()?;
    let given = arguments::with_timeout(manifest, given, asked_ms);
    let long = manifest.parameters.as_ref().is_some_and(|schema| schema.takes_long(&given));
    let (tool, of) = (manifest.clone(), manifest.clone());
    let (hidden, given) = until.run(long, move || (mask::of_arguments(&tool, &given), given)).await?;
    trace.given(hidden);
    let check = move || -> Result<(mask::Masked, Value), Fault> {
        let input = crate::manifest::arguments::check(&of, given, from_text)?;
        Ok((mask::of_arguments(&of, &input), input))
    };
    let (hidden, input) = until.run(long, check).await??;
    trace.given(hidden);
    Ok(input)
}

/// The answer, checked against the output schema; an envelope is checked as a whole.
async fn answer_fits(
    manifest: &Arc<Manifest>,
    envelope: Option<Value>,
    output: Text,
    until: apart::Until,
) -> Result<Text, Fault> {
    let Some(schema) = &manifest.output else { return Ok(output) };
    let any = envelope.is_some() && schema.takes_any(OUTPUT_DATA);
    let tree = move |output: &Text| -> Result<Value, Fault> {
        let value = if any { Ok(Value::Null) } else { output.tree(quantity::MAX_TREE_BYTES).map_err(too_many) };
        let Some(mut envelope) = envelope else { return value };
        envelope[OUTPUT_DATA] = value?;
        Ok(envelope)
    };
    // The tool may have used all of its time; the check comes after.
    let until = apart::Until { limit: until.limit + quantity::OVERDUE, ..until };
    let (long, checked) = (output.len() > quantity::LARGE_TEXT_BYTES, manifest.clone());
    if long {
        let work = move || tree(&output).and_then(|tree| checked.check_output(&tree)).map(|()| output);
        return until.run(long, work).await?;
    }
    let tree = tree(&output)?;
    until.run(schema.takes_long(&tree), move || checked.check_output(&tree).map(|()| output)).await?
}

fn too_many(_: TooMuch) -> Fault {
    let most = quantity::MAX_TREE_BYTES >> 20;
    let message = format!("Output must hold fewer values: held to its schema it would take more than {most} MiB.");
    Fault::new(Kind::OutputValidationError, message)
}

/// Refuses input over `inputBytes` before any process is started.
fn input_fits(confinement: &policy::Confinement, input: &Value, decision: &policy::Decision) -> Result<(), Fault> {
    let limit = quantity::Limit::InputBytes;
    let allowed = confinement.shape.limits.get(limit);
    let size = input.to_string().len();
    if u64::try_from(size).unwrap_or(u64::MAX) > allowed {
        let fault = format::over_limit(limit, allowed).details(format!("It is {size} bytes."));
        return Err(Fault { person: mends::limit(limit, decision, None), ..fault });
    }
    Ok(())
}

/// The time limit of a tool that runs in this process; policy may refuse it.
fn in_process(decision: &policy::Decision, asked_ms: Option<u64>) -> Result<Duration, Fault> {
    if let Err(fault) = &decision.shape
        && fault.kind != Kind::InternalError
    {
        return Err(fault.clone());
    }
    let least = quantity::MIN_TIMEOUT_MS;
    if let Some(asked) = asked_ms.filter(|asked| *asked < least) {
        let message = format!("timeoutMs must be at least {least}; {asked} was given");
        return Err(Fault::new(Kind::ParameterValidationError, message));
    }
    Ok(time_limit(decision, asked_ms))
}

/// The time this call has.
fn time_limit(decision: &policy::Decision, asked_ms: Option<u64>) -> Duration {
    let limit = quantity::Limit::TimeoutMs;
    let house = limit.house_default();
    let (usual, ceiling) = decision.limit(limit).map_or((house, house), |limit| (limit.effective, limit.ceiling));
    Duration::from_millis(asked_ms.unwrap_or(usual).min(ceiling))
}

fn timed_out(limit: Duration) -> Outcome {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    Outcome {
        ending: Ending::TimedOut { limit_ms },
        logs: Vec::new(),
        printed: Vec::new(),
        usage: executor::Usage { wall_ms: limit_ms, ..executor::Usage::default() },
        walls: executor::Walls::default(),
        denials: executor::Denials::default(),
        artifacts: Vec::new(),
    }
}
