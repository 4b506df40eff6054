//! The service: every call, from any transport, enters by `Service::call` and takes one pipeline.
//! Events go to a `Sink` while the tool runs; a `Report` always comes last.

pub mod arguments;
pub mod audit;
pub mod background;
mod breaker;
mod call_ended;
mod callers;
mod calls;
mod confirmation;
mod decision_cache;
mod denials;
pub mod ledger;
pub mod metrics;
pub mod output;
pub mod packages;
mod pipeline;
pub mod preflight;
mod quota;
mod reading;
mod record;
mod redact;
mod report;
mod request;
pub mod requirements;
pub mod runlog;
mod script;
mod secrets;
mod speakers;
mod target;
mod tools;
mod traces;

pub use arguments::Arguments;
pub use breaker::BreakerState;
pub use calls::{CallState, Phase};
pub use confirmation::changed as changed_meanwhile;
pub use decision_cache::Rules;
pub use denials::LIMIT;
pub use quota::{Limiter, MAX_QUEUED, MAX_RUNNING, Slot};
pub use report::{CallResult, Digests, Report, Verbose};
pub use request::{
    Answer, Approver, Ask, CallRequest, Caller, Event, MAX_NAME_BYTES, Question, RateCharge, Sink,
    label, new_id, user_name,
};
pub use script::digest_of_script;
pub use secrets::{TOO_SHORT, credential};
pub use speakers::{CONCURRENCY, Show, Speakers, Stage, StageEvent};
pub use tools::{Effects, OfferKey, Reread};
pub use traces::{Collector, TraceContext};

use crate::base::text::{head, printable};
use crate::executor::{Executor, method};
use crate::{fault, registry};
use call_ended::CallEnded;
use decision_cache::{CurrentRules, DecisionCache};
use fault::{Fault, Kind};
use futures_util::FutureExt;
use record::CallRecord;
use request::EventStream;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Duration;

/// The ways this host can run tools. `None`: it has no such way, and refuses calls that need one.
pub struct Executors {
    pub process: Option<Arc<dyn Executor>>,
    pub wasm: Option<Arc<dyn Executor>>,
    /// Tool services behind a broker.
    pub remote: Option<Arc<dyn Executor>>,
    pub methods: Arc<method::Methods>,
    /// Handler types an embedding program brings (`x-…`), by name.
    pub extensions: BTreeMap<String, Arc<dyn Executor>>,
}

/// What a service is made of.
pub struct Components {
    pub registry: Arc<registry::Registry>,
    pub rules: Rules,
    pub executors: Executors,
    pub audit: audit::Log,
    pub packages: packages::BuildSettings,
    /// The script base folders, for scripts that a call names.
    pub scripts: Vec<PathBuf>,
    pub settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub max_running: usize,
    pub max_queued: usize,
    pub confirmation_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_running: MAX_RUNNING,
            max_queued: MAX_QUEUED,
            confirmation_timeout: confirmation::CONFIRMATION_TIMEOUT,
        }
    }
}

pub struct Service {
    me: Weak<Service>,
    components: Components,
    limiter: Arc<quota::Limiter>,
    breakers: Arc<breaker::Breakers>,
    calls: Arc<calls::Calls>,
    questions: confirmation::OpenQuestions,
    metrics: Arc<metrics::Metrics>,
    traces: Arc<traces::Traces>,
    packages: Arc<packages::Packages>,
    rules: Mutex<CurrentRules>,
    /// Why newer rules are not in force.
    stale: Mutex<Option<String>>,
    /// The extensions of `components`, and those registered since.
    extensions: RwLock<BTreeMap<String, Arc<dyn Executor>>>,
    /// Snapshot, rules and decisions of the last call, used again until the snapshot or the rules
    /// change.
    decisions: Mutex<Option<Arc<DecisionCache>>>,
    /// How a host that makes one call reads tools and rules again; a server reads them when they
    /// change.
    reread: OnceLock<Reread>,
    /// Notified when the tools or rules may have changed.
    changed: tokio::sync::watch::Sender<()>,
}

impl Service {
    pub fn new(components: Components) -> Arc<Service> {
        let Rules { policies, machine } = &components.rules;
        components
            .registry
            .set_policies(policies.clone(), machine.clone());
        let process = components.executors.process.clone();
        Arc::new_cyclic(|me| Service {
            me: me.clone(),
            packages: packages::Packages::new(
                components.packages.clone(),
                process,
                components.audit.clone(),
            ),
            breakers: Arc::default(),
            calls: Arc::default(),
            questions: confirmation::OpenQuestions::default(),
            limiter: Arc::new(quota::Limiter::new(
                components.settings.max_running,
                components.settings.max_queued,
            )),
            metrics: Arc::default(),
            traces: Arc::default(),
            extensions: RwLock::new(components.executors.extensions.clone()),
            stale: Mutex::default(),
            rules: Mutex::new(CurrentRules {
                rules: Arc::new(components.rules.clone()),
                unread: None,
            }),
            decisions: Mutex::default(),
            reread: OnceLock::new(),
            changed: tokio::sync::watch::Sender::new(()),
            components,
        })
    }

    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    pub fn registry(&self) -> &registry::Registry {
        &self.components.registry
    }

    /// Whether limits are counted by a cgroup; else they are sampled.
    pub fn counted(&self) -> bool {
        self.components.rules.machine.cgroup
    }

    /// Runs one call: events go to `sink` while the tool runs, the report comes last. The call
    /// counts as running until its report is dropped (`Report::slot`). Dropping the future cancels,
    /// kills, reaps and records.
    pub async fn call(&self, request: CallRequest, sink: Sink) -> Report {
        let mut record = CallRecord::begin(&request, self.traces.of_call(request.trace.clone()));
        record.meter = Some(self.meter(&request.tool));
        let mut stream = EventStream::to(sink);
        let listed = self.calls.begin(&record.id, &request);
        let cancelled = listed.cancelled.clone();
        record.listed = Some(listed);
        let running =
            AssertUnwindSafe(self.pipeline(request, &mut stream, &mut record)).catch_unwind();
        let ended = tokio::select! {
            biased;
            ended = running => ended,
            () = cancelled.cancelled() => Ok(Ok(CallResult::default())),
        };
        let ended = ended.unwrap_or_else(|panic| Err(of_panic(&*panic)));
        let result = ended.unwrap_or_else(CallResult::Failed);
        let principal = record.principal().to_owned();
        self.sample_refusal(&mut record, result.fault());
        let ended = record.end(result);
        self.alert(&ended, &principal);
        stream.finish().await;
        ended.report
    }

    /// Prepares ahead of calls what a tool needs only once (for a WASI module, compiled code).
    pub async fn prepare(&self, reference: &str) {
        let Ok(decisions) = self.decisions() else {
            return;
        };
        let Ok(tool) = decisions.snapshot.find(reference) else {
            return;
        };
        let decided = decisions.decided(&tool);
        if let (Ok(shape), Ok(executor)) = (
            &decided.decision.shape,
            self.executor(&tool.manifest.handler),
        ) {
            executor.prepare(shape).await;
        }
    }
}

fn of_panic(panic: &dyn Any) -> Fault {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    let message = "The host failed while it handled this call.";
    Fault::new(Kind::InternalError, message).person(format!(
        "a panic: {words}; please report it with the call id"
    ))
}

/// Refusals: each has a record, or is counted in one. Refusals by rate limits, and of unreadable
/// requests, have a record each at first; then one record a second, which counts those before it.
impl Service {
    /// Records the refusal of a request that leads to no call. `asked`: what the request was for.
    /// `Err`: it cannot be recorded.
    pub fn record_refusal(&self, caller: &Caller, asked: &str, fault: Fault) -> Result<(), Fault> {
        let request = CallRequest::refused(caller.clone(), asked, fault.clone());
        let mut record = CallRecord::begin(&request, self.traces.of_call(None));
        record.entry = Some(self.open_record(&caller.user)?);
        if self.sample_refusal(&mut record, Some(&fault)) {
            record.end(CallResult::Failed(fault));
        }
        Ok(())
    }

    /// A permit to write a record. If there is none, the refusal is counted in the principal's next
    /// record.
    fn open_record(&self, principal: &str) -> Result<audit::RecordPermit, Fault> {
        self.components
            .audit
            .open()
            .inspect_err(|_| self.count_refusals(principal, 1))
    }

    /// Records the refusals that were counted and have no record yet: after a minute, and before
    /// this host ends.
    pub fn write_counts(&self) {
        // This also writes the ends of calls that could not be written before.
        let _ = self.components.audit.open();
        self.limiter
            .take_unrecorded()
            .iter()
            .for_each(|(principal, count)| self.record_counted(principal, *count));
    }

    /// Whether this call gets a record: some frequent refusals are only counted.
    fn sample_refusal(&self, record: &mut CallRecord, fault: Option<&Fault>) -> bool {
        let many = record.unread || fault.is_some_and(|fault| fault.kind == Kind::RateLimitError);
        let has_begun = record
            .entry
            .as_ref()
            .is_none_or(audit::RecordPermit::has_begun);
        if record.ran || has_begun || !many {
            return true;
        }
        let principal = record.principal().to_owned();
        let before = self.limiter.recorded(&principal);
        record.one_of_many(before);
        if before.is_none() {
            self.count_refusals(&principal, 1);
        }
        before.is_some()
    }

    /// Counts refusals without a record. A record with their number follows within a minute.
    fn count_refusals(&self, principal: &str, count: u64) {
        if !self.limiter.unrecorded(principal, count) {
            return;
        }
        let (service, Ok(runtime)) = (self.me.clone(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        runtime.spawn(async move {
            tokio::time::sleep(quota::MINUTE).await;
            service
                .upgrade()
                .iter()
                .for_each(|service| service.write_counts());
        });
    }

    /// Records the last of `count` refusals, with the number of those before it.
    fn record_counted(&self, principal: &str, count: u64) {
        let Ok(entry) = self.components.audit.open() else {
            return self.count_refusals(principal, count);
        };
        let fault = Fault::new(
            Kind::RateLimitError,
            "Refused, like others before it that have no record.",
        );
        let request = CallRequest::refused(Caller::named(principal), "", fault.clone());
        let mut record = CallRecord::begin(&request, self.traces.of_call(None));
        record.entry = Some(entry);
        record.one_of_many(Some(count - 1));
        record.end(CallResult::Failed(fault));
    }

    /// Logs an alert about a caller that policy keeps refusing.
    fn alert(&self, ended: &CallEnded, principal: &str) {
        if ended.report.outcome.fault().is_some_and(|fault: &Fault| {
            matches!(fault.kind, Kind::SecurityError | Kind::AuthorizationError)
        }) && self.limiter.should_alert(principal)
        {
            let caller = printable(&head(&ended.caller, 200));
            let call = &ended.report.id;
            let trace = &ended.line.trace;
            tracing::error!(target: "toolhost::alert", caller, call, trace, "policy keeps refusing \
                this caller");
        }
    }
}
