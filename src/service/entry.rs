//! The service: every call, from any transport, enters by `Service::call`. All else that can be
//! asked of it is a part with its own name.

use super::arguments::Arguments;
use super::artifacts::{Artifacts, ListedArtifact, OpenArtifact, Owner};
use super::audit::log::Log;
use super::breaker::Breakers;
use super::calls::Calls;
use super::catalog::{Catalog, Executors};
use super::confirmation::{CONFIRMATION_TIMEOUT, Confirmations};
use super::decision_cache::Rules;
use super::ledger::Ledger;
use super::meters::Meters;
use super::nested::ServesCode;
use super::packages::{BuildSettings, Packages};
use super::pipeline::{Ended, Pipeline};
use super::quota::{Limiter, MAX_QUEUED, MAX_RUNNING};
use super::ready::ReadyKeeper;
use super::record::{CallRecord, RecordSinks};
use super::refusals::Refusals;
use super::report::{CallResult, Report};
use super::request::{CallRequest, Caller, EventStream, Sink, new_id};
use super::search::{Search, SearchTool, named_call};
use super::sessions::Sessions;
use super::skills;
use super::stops::StopFile;
use super::traces::spans::Traces;
use crate::executor::ToolAnswer;
use crate::executor::method::SEARCH_TOOLS;
use crate::fault::{Fault, Kind};
use crate::registry::{self, Tool};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a service that ends waits for queued spans to reach their collector.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// How long it waits for the program that takes alerts.
const LAST_ALERTS: Duration = Duration::from_secs(5);

/// What a service is made of.
pub struct Components {
    pub registry: Arc<registry::Registry>,
    pub rules: Rules,
    pub executors: Executors,
    pub audit: Log,
    pub packages: BuildSettings,
    /// The script base folders, for scripts that a call names.
    pub scripts: Vec<PathBuf>,
    /// Where artifacts are stored, and for how long.
    pub artifacts: Artifacts,
    pub settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub max_running: usize,
    pub max_queued: usize,
    pub confirmation_timeout: Duration,
    /// How commands begin that a person runs on this machine, with the settings of this host.
    pub program: &'static str,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_running: MAX_RUNNING,
            max_queued: MAX_QUEUED,
            confirmation_timeout: CONFIRMATION_TIMEOUT,
            program: "toolhost",
        }
    }
}

pub struct Service {
    /// The tools and the rules of this moment.
    pub catalog: Arc<Catalog>,
    /// The calls that are open, and those that ended lately.
    pub calls: Arc<Calls>,
    /// The persons who are asked about calls.
    pub confirmations: Arc<Confirmations>,
    pub limiter: Arc<Limiter>,
    pub breakers: Arc<Breakers>,
    pub packages: Arc<Packages>,
    pub refusals: Arc<Refusals>,
    pub traces: Arc<Traces>,
    pub audit: Log,
    pub ledger: Arc<Ledger>,
    pub artifacts: Arc<Artifacts>,
    /// The processes that are started before their calls.
    pub ready: Arc<ReadyKeeper>,
    pub sessions: Arc<Sessions>,
    pub search: Arc<Search>,
    pub(super) meters: Arc<Meters>,
    pub program: &'static str,
    pipeline: Pipeline,
}

impl Service {
    /// An artifact of this caller. `None`: this caller has none of that id.
    pub fn artifact(&self, caller: &Caller, label: Option<&str>, id: &str) -> Option<OpenArtifact> {
        let rights = self.catalog.decisions().ok()?.rights(caller, label);
        self.artifacts.open(&Owner::from(&rights), id)
    }

    /// The artifacts of this caller, the newest first.
    pub fn artifacts_of(&self, caller: &Caller, label: Option<&str>) -> Vec<ListedArtifact> {
        let decisions = self.catalog.decisions();
        let rights = decisions.map(|decisions| decisions.rights(caller, label));
        rights.map_or_else(
            |_| Vec::new(),
            |rights| self.artifacts.list(&Owner::from(&rights)),
        )
    }

    pub fn new(components: Components) -> Arc<Service> {
        let Components {
            registry,
            rules,
            executors,
            audit,
            packages,
            scripts,
            artifacts,
            settings,
        } = components;
        let artifacts = Arc::new(artifacts);
        let limiter = Arc::new(Limiter::new(settings.max_running, settings.max_queued));
        let traces = Arc::<Traces>::default();
        let calls = Arc::<Calls>::default();
        let breakers = Arc::<Breakers>::default();
        let ledger = Arc::new(Ledger::open_beside(audit.path()));
        let process = executors.process.clone();
        let packages = Packages::new(packages, process, audit.clone(), ledger.clone());
        let stops = StopFile::beside(&audit);
        let alerts = audit.alerts().clone();
        let catalog = Catalog::new(registry, rules, executors, scripts, stops, alerts);
        let catalog = Arc::new(catalog);
        let ready = Arc::new(ReadyKeeper::new(
            catalog.clone(),
            packages.clone(),
            ledger.clone(),
            audit.clone(),
        ));
        let sessions = Arc::new(Sessions {
            catalog: catalog.clone(),
            audit: audit.clone(),
            traces: traces.clone(),
        });
        let search = Arc::new(Search::new(catalog.clone(), audit.for_reading()));
        let tool = Arc::new(SearchTool(search.clone()));
        let methods = catalog.methods();
        methods.register_executor(SEARCH_TOOLS.0, SEARCH_TOOLS.1, tool);
        skills::register(&catalog);
        let timeout = settings.confirmation_timeout;
        let confirmations = Confirmations::new(calls.clone(), limiter.clone(), timeout);
        let confirmations = Arc::new(confirmations);
        let refusals = Refusals::new(audit.clone(), limiter.clone(), traces.clone());
        Arc::new_cyclic(|service: &Weak<Service>| Service {
            pipeline: Pipeline {
                for_code: service.clone(),
                catalog: catalog.clone(),
                limiter: limiter.clone(),
                breakers: breakers.clone(),
                confirmations: confirmations.clone(),
                packages: packages.clone(),
                audit: audit.clone(),
                ledger: ledger.clone(),
                artifacts: artifacts.clone(),
                ready: ready.clone(),
            },
            artifacts,
            catalog,
            calls,
            confirmations,
            limiter,
            breakers,
            packages,
            refusals,
            traces,
            audit,
            ledger,
            ready,
            sessions,
            search,
            meters: Arc::default(),
            program: settings.program,
        })
    }

    /// The tools that a caller (`Catalog::who`) may call, in order of id and version.
    pub fn tools(&self, caller: &Caller) -> Result<Vec<Arc<Tool>>, Fault> {
        self.catalog.list(caller)
    }

    /// Ends the service after its last call: nobody is asked any more, refusals that were only
    /// counted are recorded, and the last spans are sent.
    pub async fn close(&self) {
        self.ready.close();
        self.sessions.close();
        self.sessions.end_servers().await;
        self.confirmations.stop();
        self.refusals.write_counts();
        self.audit.last_head().await;
        self.traces.finish(LAST_SPANS).await;
        self.audit.alerts().finish(LAST_ALERTS).await;
    }

    /// Why every call would be refused now, if so: what each call needs before it looks at its
    /// tool.
    pub fn accepts_calls(&self) -> Result<(), Fault> {
        self.catalog.ready()?;
        self.audit.open()?;
        self.ledger.check()
    }

    /// Runs one call: events go to `sink` while the tool runs, the report comes last. The call
    /// counts as running until its report is dropped (`Report::slot`). Dropping the future cancels,
    /// kills, reaps and records.
    pub async fn call(&self, mut request: CallRequest, sink: Sink) -> Report {
        named_call::unwrap_skill(&mut request, &self.catalog).await;
        let id = request.id.take().unwrap_or_else(new_id);
        let span = self.traces.of_call(request.reporting.trace.take());
        request.reporting.trace = span.context().cloned();
        let (listed, cancelled) = self.calls.begin(&id, &request);
        let principal = request.caller.user.clone();
        let is_unread = request.refused.is_some();
        // Opened first, so that a refusal is recorded as surely as a run.
        let entry = self.refusals.open_record(&principal);
        let refused = entry.as_ref().err().cloned();
        let meter = self.meters.of(&request.tool, &self.catalog);
        let sinks = RecordSinks {
            span,
            meter: Some(meter),
            listed: Some(listed),
            entry: entry.ok(),
        };
        let mut record = CallRecord::begin(id.clone(), &request, sinks);
        let mut stream = EventStream::to(sink);
        let running = match refused {
            Some(fault) => Box::pin(std::future::ready(fault.into())),
            None => self.pipeline.run(id, request, &mut stream, &mut record),
        };
        let Ended { result, slot } = tokio::select! {
            biased;
            ended = AssertUnwindSafe(running).catch_unwind() => {
                ended.unwrap_or_else(|panic| of_panic(&*panic).into())
            }
            Ok(fault) = cancelled => fault.into(),
        };
        self.refusals.sample(&mut record, result.fault(), is_unread);
        let mut ended = record.end(result);
        self.refusals.alert(&ended, &principal);
        stream.finish().await;
        ended.report.delivery.slot = slot.map(Arc::new);
        ended.report
    }
}

impl Service {
    /// Records an output that the client of a call submits, before it counts.
    pub fn record_output(
        &self,
        owner: &Owner,
        call: &str,
        tool: &str,
        output: &str,
    ) -> Result<(), Fault> {
        let principal = Caller::named(owner.principal());
        let request = CallRequest::new(principal, tool, Arguments::default());
        let sinks = RecordSinks::of_entry(self.traces.of_call(None), self.audit.open()?);
        let mut record = CallRecord::begin(new_id(), &request, sinks);
        record.set_caller(&Caller::named(owner.caller()));
        record.takes_output(call, output);
        record.end(CallResult::Output(ToolAnswer::from(&Value::Null)));
        Ok(())
    }
}

impl ServesCode for Service {
    fn call_from_code(self: Arc<Self>, request: CallRequest) -> BoxFuture<'static, Report> {
        Box::pin(async move { self.call(request, Sink::none()).await })
    }
}

/// How long a call that was ended may take to say so.
const END_TIMEOUT: Duration = Duration::from_secs(1);

impl Service {
    /// As `call`, unless `over` comes first: the call then ends with that fault.
    pub async fn call_unless(
        &self,
        mut request: CallRequest,
        sink: Sink,
        over: impl Future<Output = Fault>,
    ) -> Report {
        let id = request.id.get_or_insert_with(new_id).clone();
        let tool = request.tool.clone();
        let calling = self.call(request, sink);
        tokio::pin!(calling);
        let fault = tokio::select! {
            biased;
            report = &mut calling => return report,
            fault = over => fault,
        };
        self.calls.end(&id, fault.clone());
        match tokio::time::timeout(END_TIMEOUT, calling).await {
            Ok(report) => report,
            Err(_) => Report::of_fault(id, &tool, fault),
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
