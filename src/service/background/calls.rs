//! Calls that outlive their clients: a receipt at once; state, result and cancelling later.
//!
//! Neither arguments nor secrets reach the disk. After its host ended, no call is reported as
//! running.
//!
//! A call runs under the rights that its caller has when it runs, and only as the caller it was
//! accepted for. Receipt, state and result are for that caller and operators. What the disk changed
//! in a kept result is not noticed where it is JSON still.

use super::jobs::{Callback, CallbackState, Delivery, Job, Open};
use super::store::{Change, JobStore, StoredRows};
use super::table::{Kept, KeptTable, OpenRun};
use crate::base::json::Text;
use crate::base::lock;
use crate::base::text::{self, VisibleJson};
use crate::executor::ToolAnswer;
use crate::fault::{Fault, Kind};
use crate::policy::CallbackUrl;
use crate::service::arguments::Arguments;
use crate::service::audit::log::Log;
use crate::service::audit::segments;
use crate::service::callers::Rights;
use crate::service::calls::{CallState, Phase};
use crate::service::entry::Service;
use crate::service::output;
use crate::service::report::Report;
use crate::service::request::{CallRequest, Caller, RateCharge, Sink, new_id};
use crate::service::search::named_call;
use crate::service::traces::context::TraceContext;
use jiff::Timestamp;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// How long storing the ends of calls may take once the host stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a host that starts waits for the store of one that was just killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

pub struct Background {
    /// The service whose calls these are.
    pub service: Arc<Service>,
    /// `host:port` of the operator's proxy.
    pub(super) proxy: Option<String>,
    pub(super) kept: Mutex<KeptTable>,
    /// Held while a run changes its state, in memory and on the disk.
    pub(super) runs: tokio::sync::Mutex<()>,
    /// `None`: the store could not be opened or written. It is opened at its next use.
    store: tokio::sync::Mutex<Option<Arc<JobStore>>>,
    /// The store was open before, so `kept` has all that is in it.
    loaded: AtomicBool,
    /// Notified at the end of each call.
    pub(super) changed: watch::Sender<()>,
    /// The host stops: calls that still run are killed.
    pub(super) kill: CancellationToken,
    /// Cloned for each call, and taken once the host stops.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    over: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

/// How many calls this host keeps.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCounts {
    /// Calls that wait or run.
    pub open: usize,
    pub ended: usize,
    /// Calls with a pending callback.
    pub untold: usize,
}

/// The state of a call in the background, as its caller reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    #[serde(flatten)]
    pub call: CallState,
    /// `async`
    pub mode: &'static str,
    /// RFC 3339
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackState>,
}

/// How the end of a call is reported, beside in its receipt.
#[derive(Debug)]
pub enum EndReport {
    OnRequest,
    /// To this URL.
    Callback(String),
    /// As an observation, which the caller takes.
    Observation,
}

impl Receipt {
    /// `open`: the state of the call, if it has not ended.
    fn new(job: &Job, open: Option<CallState>) -> Receipt {
        let phase = match (job.ended, open) {
            (Some(_), _) => Phase::Ended,
            (None, Some(open)) if open.phase == Phase::Running => Phase::Running,
            (None, _) => Phase::Waiting,
        };
        let call = CallState {
            parent: None,
            id: job.id.clone(),
            caller: job.caller.clone(),
            tool: job.tool.clone(),
            began: job.began.to_string(),
            phase,
            outcome: job.outcome.clone(),
            principal: job.through().to_owned(),
            ran: false,
        };
        let callback = job.callback.as_ref().map(|callback| callback.shown.clone());
        Receipt {
            call,
            mode: "async",
            ended: job.ended.map(|ended| ended.to_string()),
            callback,
        }
    }
}

impl Background {
    /// `store`: one that is open; else the file beside the audit log.
    pub(super) fn new(
        service: Arc<Service>,
        proxy: Option<String>,
        store: Option<JobStore>,
    ) -> Arc<Background> {
        let (alive, over) = mpsc::channel(1);
        let kept = Mutex::new(KeptTable::new(service.limiter.clone()));
        Arc::new(Background {
            service,
            proxy,
            kept,
            runs: tokio::sync::Mutex::default(),
            loaded: AtomicBool::new(store.is_some()),
            store: tokio::sync::Mutex::new(store.map(Arc::new)),
            changed: watch::Sender::default(),
            kill: CancellationToken::new(),
            alive: Mutex::new(Some(alive)),
            over: tokio::sync::Mutex::new(over),
        })
    }

    /// Opens the store, and adds an end to the calls of a dead host. `Err` says why calls in the
    /// background are refused until that is fixed.
    pub async fn open_store(&self) -> Result<(), String> {
        self.open_or_get(KILL_TIMEOUT).await.map(drop)
    }

    /// Starts a call that continues if its client leaves, and returns its receipt. A refusal leaves
    /// no receipt, and nothing runs.
    pub async fn submit(
        self: &Arc<Self>,
        mut request: CallRequest,
        report: EndReport,
    ) -> Result<Receipt, Fault> {
        // Its receipt names what its record names.
        named_call::unwrap_skill(&mut request, &self.service.catalog).await;
        let job = self.new_job(&mut request, report)?;
        self.store().await.map_err(|why| {
            Fault::new(
                Kind::CapabilityError,
                "This host cannot keep calls in the background.",
            )
            .person(why)
        })?;
        let Some(alive) = lock(&self.alive).clone() else {
            return Err(stopped());
        };
        let (cancel, cancelled) = oneshot::channel();
        let open = Open {
            cancel: Some(cancel),
            ..Open::new(job.clone())
        };
        let gone = lock(&self.kept).put(&job.id, Kept::Job(open))?;
        let (begun, receipt) = oneshot::channel();
        let me = self.clone();
        tokio::spawn(async move {
            let _alive = alive;
            let put = vec![job.clone()];
            if let Err(why) = me
                .write(Change {
                    put,
                    gone,
                    ..Change::default()
                })
                .await
            {
                lock(&me.kept).remove(&job.id);
                let message = "The call was refused: it could not be stored.";
                let _ = begun.send(Err(Fault::new(Kind::InternalError, message)
                    .person(why)
                    .retryable()));
                return;
            }
            let _ = begun.send(Ok(Receipt::new(&job, None)));
            me.run(job, request, cancelled).await;
        });
        receipt.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// As `submit`. `Err`: the report of the refusal, which is recorded.
    pub async fn begin(
        self: &Arc<Self>,
        request: CallRequest,
        report: EndReport,
    ) -> Result<Receipt, Report> {
        let refused = CallRequest {
            id: request.id.clone(),
            label: request.label.clone(),
            charged: RateCharge::Free.into(),
            ..CallRequest::new(request.caller.clone(), &request.tool, Arguments::default())
        };
        match self.submit(request, report).await {
            Ok(receipt) => Ok(receipt),
            Err(fault) => {
                let refused = CallRequest {
                    refused: Some(fault),
                    ..refused
                };
                Err(self.service.call(refused, Sink::none()).await)
            }
        }
    }

    /// Whether the tool of a request says that its calls run in the background.
    pub fn is_asked_by(&self, request: &CallRequest) -> bool {
        let catalog = &self.service.catalog;
        let who = catalog.who(&request.caller, request.label.as_deref());
        let tool = catalog.find(&who, &request.tool);
        request.refused.is_none() && tool.is_ok_and(|tool| tool.manifest.execution.asynchronous)
    }

    /// Checks a request, and makes its job. The call pipeline decides again when the call runs.
    fn new_job(&self, request: &mut CallRequest, report: EndReport) -> Result<Job, Fault> {
        let decisions = self.service.catalog.decisions()?;
        let rights = decisions.rights(&request.caller, request.label.as_deref());
        let rate = std::mem::replace(&mut request.charged.rate, RateCharge::Free);
        self.service.limiter.charge_callers(&rights, rate)?;
        request.acts_as = Some(rights.caller.user.clone());
        let tool = decisions.find(&request.tool, &rights)?;
        let (mut callback, mut observation) = (None, None);
        match report {
            EndReport::OnRequest => {}
            EndReport::Callback(url) => callback = Some(new_callback(&rights, &url)?),
            EndReport::Observation => observation = Some(Delivery::Pending),
        }
        Ok(Job {
            id: request.id.get_or_insert_with(new_id).clone(),
            caller: rights.caller.user.clone(),
            through: Some(rights.principal.clone())
                .filter(|through| *through != rights.caller.user),
            tool: tool.reference(),
            began: Timestamp::now(),
            callback,
            observation,
            trace: request.reporting.trace.as_ref().map(TraceContext::id),
            ..Job::default()
        })
    }

    async fn run(&self, job: Job, request: CallRequest, cancelled: oneshot::Receiver<Fault>) {
        let label = request.label.clone();
        let over = async {
            tokio::select! {
                Ok(fault) = cancelled => fault,
                () = self.kill.cancelled() => output::stopped(),
            }
        };
        let report = self.service.call_unless(request, Sink::none(), over).await;
        self.keep_end(job, report, label.as_deref()).await;
    }

    /// Stores the outcome of a call.
    async fn keep_end(&self, mut job: Job, report: Report, label: Option<&str>) {
        let tool = report.tool.clone();
        let mut fault = report.outcome.fault().cloned();
        let mut text = render(report, label).await;
        let gone = {
            let mut kept = lock(&self.kept);
            let (gone, fits) = kept.charge(&job.id, text.len());
            if !fits {
                let words = "This call ended, and there was no room to keep its outcome.";
                let large = Fault::new(Kind::ResourceLimitError, words);
                text = render_small(
                    Report::of_fault(job.id.clone(), &tool, large.clone()),
                    label,
                );
                fault = Some(large);
            }
            job.bytes = text.len();
            kept.change(&job.id, |open| open.job.bytes = job.bytes);
            gone
        };
        over(&mut job, fault.as_ref());
        let result = Some((job.id.clone(), text.clone()));
        let kept = self
            .write(Change {
                put: vec![job.clone()],
                result,
                gone,
                ..Change::default()
            })
            .await;
        if let Err(why) = &kept {
            tracing::error!(target: "toolhost::host", call = job.id, trace = job.trace, "its end \
                is not stored: {why}");
        }
        let id = job.id.clone();
        lock(&self.kept).change(&id, |open| {
            (open.job, open.unkept) = (job, kept.err().map(|_| text))
        });
        self.changed.send_replace(());
    }

    /// The receipt of a call of this caller (`Catalog::who`), or of any call for an operator.
    pub fn receipt(&self, who: &Caller, id: &str) -> Option<Receipt> {
        let job = lock(&self.kept)
            .job(id)
            .filter(|open| is_for(who, &open.job))
            .map(|open| open.job.clone())?;
        let open = if job.ended.is_none() {
            self.service.calls.state(who, id)
        } else {
            None
        };
        Some(Receipt::new(&job, open))
    }

    /// All receipts that `receipt` would give this caller, the oldest first.
    pub fn receipts(&self, who: &Caller) -> Vec<Receipt> {
        let own: Vec<Job> = lock(&self.kept)
            .jobs()
            .filter(|open| is_for(who, &open.job))
            .map(|open| open.job.clone())
            .collect();
        let mut open: HashMap<String, CallState> = self
            .service
            .calls
            .of(who)
            .into_iter()
            .map(|call| (call.id.clone(), call))
            .collect();
        own.iter()
            .map(|job| Receipt::new(job, open.remove(&job.id)))
            .collect()
    }

    /// The calls that this caller itself started as actions, that ended, and whose observations
    /// it has not taken; the oldest first.
    pub fn unobserved(&self, who: &Caller) -> Vec<Receipt> {
        let who = Caller::named(&who.user);
        let kept = lock(&self.kept);
        let ended = kept.jobs().map(|open| &open.job).filter(|job| {
            job.ended.is_some() && job.observation == Some(Delivery::Pending) && is_for(&who, job)
        });
        ended.map(|job| Receipt::new(job, None)).collect()
    }

    /// Marks the observations of these calls as taken. Those that somebody took meanwhile are left
    /// out of the answer: the ids of the calls whose observations are the caller's.
    pub async fn observed(&self, calls: &[Receipt]) -> Result<Vec<String>, Fault> {
        let ids = calls.iter().map(|receipt| &receipt.call.id);
        let put: Vec<Job> = ids
            .filter_map(|id| self.mark(id, Delivery::Pending, Delivery::Delivered))
            .collect();
        let taken: Vec<String> = put.iter().map(|job| job.id.clone()).collect();
        let change = Change {
            put,
            ..Change::default()
        };
        if let Err(why) = self.write(change).await {
            for id in &taken {
                self.mark(id, Delivery::Delivered, Delivery::Pending);
            }
            return Err(unread(why));
        }
        Ok(taken)
    }

    /// Changes the state of an observation, if it is `from`.
    fn mark(&self, id: &str, from: Delivery, to: Delivery) -> Option<Job> {
        let mut kept = lock(&self.kept);
        let observation = kept.job(id)?.job.observation.as_ref();
        if observation != Some(&from) {
            return None;
        }
        kept.change(id, |open| open.job.observation = Some(to));
        Some(kept.job(id)?.job.clone())
    }

    /// Like `receipt`, but waits until the call has ended, at most this long.
    pub async fn waited(&self, who: &Caller, id: &str, time: Duration) -> Option<Receipt> {
        let mut changed = self.changed.subscribe();
        let over = async {
            loop {
                changed.mark_unchanged();
                let runs = lock(&self.kept)
                    .job(id)
                    .is_some_and(|open| is_for(who, &open.job) && open.job.ended.is_none());
                if !runs || changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(time, over).await;
        self.receipt(who, id)
    }

    /// How large the result of a call is, bytes.
    pub fn size(&self, id: &str) -> usize {
        lock(&self.kept).job(id).map_or(0, |open| open.job.bytes)
    }

    /// The outcome of a call that ended, as JSON for its caller (docs/reference/CALLS.md). `None`:
    /// open, or unknown.
    pub async fn result(&self, who: &Caller, id: &str) -> Result<Option<String>, Fault> {
        {
            let kept = lock(&self.kept);
            match kept
                .job(id)
                .filter(|open| is_for(who, &open.job) && open.job.ended.is_some())
            {
                None => return Ok(None),
                Some(open) if open.unkept.is_some() => return Ok(open.unkept.clone()),
                Some(_) => {}
            }
        }
        fn failed(why: String) -> Fault {
            Fault::new(
                Kind::InternalError,
                "The outcome of this call cannot be read.",
            )
            .person(why)
        }
        let store = self.store().await.map_err(failed)?;
        let asked = id.to_owned();
        let read = tokio::task::spawn_blocking(move || store.result(&asked)).await;
        let text = read
            .unwrap_or_else(|e| Err(e.to_string()))
            .map_err(failed)?;
        match text {
            None if lock(&self.kept).has(id) => {
                Err(failed("the store does not have it".to_owned()))
            }
            text => Ok(text),
        }
    }

    /// Cancels a call that has not ended. False: this caller has no such call.
    pub fn cancel(&self, who: &Caller, id: &str) -> bool {
        let kept = lock(&self.kept);
        let open = kept
            .job(id)
            .filter(|open| is_for(who, &open.job) && open.job.ended.is_none());
        let Some(job) = open.map(|open| open.job.clone()) else {
            return false;
        };
        drop(kept);
        if !self.service.calls.cancel(who, id) {
            let fault = output::cancelled_by(&who.user, [&job.caller, job.through()]);
            lock(&self.kept).change(id, |open| {
                let cancel = open.cancel.take();
                cancel.map(|cancel| cancel.send(fault));
            });
        }
        true
    }

    pub fn kept(&self) -> JobCounts {
        let kept = lock(&self.kept);
        let count =
            |which: &dyn Fn(&Job) -> bool| kept.jobs().filter(|open| which(&open.job)).count();
        JobCounts {
            open: count(&|job| job.ended.is_none()),
            ended: count(&|job| job.ended.is_some()),
            untold: count(&Job::has_pending_callback),
        }
    }

    /// Kills the calls that run, and waits until their ends are stored.
    pub async fn stop(&self) {
        self.kill.cancel();
        drop(lock(&self.alive).take());
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, async {
            self.over.lock().await.recv().await
        })
        .await;
    }

    /// `Err`: the store cannot be read now, so it is not known whether a call exists.
    pub async fn ready(&self) -> Result<(), Fault> {
        self.store().await.map(drop).map_err(unread)
    }

    pub(super) async fn store(&self) -> Result<Arc<JobStore>, String> {
        self.open_or_get(Duration::ZERO).await
    }

    /// A store that cannot be written is closed, and opened again at its next use.
    pub(super) async fn write(&self, change: Change) -> Result<(), String> {
        let store = self.store().await?;
        let written = write(&store, change).await;
        if written.is_err() {
            self.store
                .lock()
                .await
                .take_if(|open| Arc::ptr_eq(open, &store));
        }
        written
    }

    async fn open_or_get(&self, patience: Duration) -> Result<Arc<JobStore>, String> {
        let mut store = self.store.lock().await;
        if let Some(store) = store.as_ref() {
            return Ok(store.clone());
        }
        let log = self.service.audit.clone();
        let loaded = self.loaded.load(Ordering::Relaxed);
        // Readers of the store that was closed end soon.
        let patience = if loaded { KILL_TIMEOUT } else { patience };
        let opened = tokio::task::spawn_blocking(move || open_store(&log, patience, loaded)).await;
        let (opened, found) = opened.unwrap_or_else(|e| Err(e.to_string()))?;
        let (gone, unkept) = {
            let mut kept = lock(&self.kept);
            let StoredRows {
                jobs,
                runs,
                responses,
            } = found;
            let changed = jobs.iter().filter_map(|job| {
                let open = kept.job(&job.id).filter(|open| open.job != *job)?;
                Some((open.job.clone(), open.unkept.clone()))
            });
            let changed: Vec<_> = changed.collect();
            let jobs = jobs.into_iter().map(Open::new).map(Kept::Job);
            let runs = runs.into_iter().map(OpenRun::new).map(Kept::Run);
            let responses = responses.into_iter().map(Arc::new).map(Kept::Response);
            let mut gone = kept.load(jobs.chain(runs).chain(responses), loaded);
            gone.extend(kept.expire(Timestamp::now()));
            (gone, changed)
        };
        let opened = Arc::new(opened);
        write(
            &opened,
            Change {
                gone,
                ..Change::default()
            },
        )
        .await?;
        for (job, result) in unkept {
            let id = job.id.clone();
            let result = result.map(|text| (job.id.clone(), text));
            write(
                &opened,
                Change {
                    put: vec![job],
                    result,
                    ..Change::default()
                },
            )
            .await?;
            lock(&self.kept).change(&id, |open| open.unkept = None);
        }
        self.loaded.store(true, Ordering::Relaxed);
        *store = Some(opened.clone());
        // Some jobs may have a pending callback.
        self.changed.send_replace(());
        Ok(opened)
    }
}

/// The callback of a call that names this URL, if policy allows it.
fn new_callback(rights: &Rights, written: &str) -> Result<Callback, Fault> {
    let url = CallbackUrl::parse(written).map_err(|why| {
        let message = "The callback is not a URL that can be used.";
        Fault::new(Kind::ParameterValidationError, message).details(text::printable(&why))
    })?;
    rights.callback(&url)?;
    let url = url.to_string();
    let event = new_id();
    let shown = CallbackState {
        url,
        event,
        state: Delivery::Pending,
        attempts: 0,
        error: None,
    };
    Ok(Callback {
        shown,
        next: Timestamp::now(),
    })
}

fn is_for(who: &Caller, job: &Job) -> bool {
    who.sees(&job.caller, job.through())
}

fn unread(why: String) -> Fault {
    let words = "The background calls of this host cannot be read now.";
    Fault::new(Kind::ServiceError, words)
        .person(why)
        .retryable()
}

fn stopped() -> Fault {
    Fault::new(Kind::CancelledError, "The server was stopped.").retryable()
}

fn over(job: &mut Job, fault: Option<&Fault>) {
    job.ended = Some(Timestamp::now());
    job.outcome = Some(fault.map_or_else(|| "success".to_owned(), |fault| fault.kind.to_string()));
}

/// The outcome as an agent may read it, even for an operator: roles may change before it is read.
async fn render(mut report: Report, label: Option<&str>) -> String {
    let id = report.id.clone();
    let tool = report.tool.clone();
    let Some(answer) = report.take_answer() else {
        return render_small(report, label);
    };
    let around = render_small(report, label);
    answer
        .read(false, move |text: &Text| {
            around.replacen(ToolAnswer::MARK, text.as_str(), 1)
        })
        .await
        .unwrap_or_else(|late| render_small(Report::of_fault(id, &tool, late), label))
}

/// As `render`, for a report without a large answer.
fn render_small(report: Report, label: Option<&str>) -> String {
    let mut text = Vec::new();
    let mut to = serde_json::Serializer::with_formatter(&mut text, VisibleJson);
    // A vector takes everything.
    let _ = report.for_reader(false, label).serialize(&mut to);
    String::from_utf8_lossy(&text).into_owned()
}

async fn write(store: &Arc<JobStore>, change: Change) -> Result<(), String> {
    let store = store.clone();
    let written = tokio::task::spawn_blocking(move || store.write(&change)).await;
    written.unwrap_or_else(|e| Err(e.to_string()))
}

/// Opens the store, and adds an end for all whose host ended first.
/// `ours`: what has no end runs in this host.
fn open_store(log: &Log, patience: Duration, ours: bool) -> Result<(JobStore, StoredRows), String> {
    let (store, mut rows) = JobStore::open(segments::folder(log.path()), patience)?;
    if ours {
        return Ok((store, rows));
    }
    for run in &mut rows.runs {
        if run.lose() {
            let runs = vec![run.clone()];
            store.write(&Change {
                runs,
                ..Change::default()
            })?;
        }
    }
    for response in rows.responses.iter_mut().filter(|it| it.ended().is_none()) {
        let response = Some(response.lose());
        store.write(&Change {
            response,
            ..Change::default()
        })?;
    }
    end_lost_jobs(log, &store, &mut rows.jobs)?;
    Ok((store, rows))
}

fn end_lost_jobs(log: &Log, store: &JobStore, jobs: &mut [Job]) -> Result<(), String> {
    let open: HashSet<String> = jobs
        .iter()
        .filter(|job| job.ended.is_none())
        .map(|job| job.id.clone())
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    // Opening the log adds the records of calls whose host was killed.
    drop(
        log.open()
            .map_err(|fault| fault.person.unwrap_or(fault.message))?,
    );
    let recorded = log
        .outcomes(open)
        .map_err(|e| format!("{}: {e}", log.path().display()))?;
    for job in jobs.iter_mut().filter(|job| job.ended.is_none()) {
        let fault = fault_of_lost(recorded.get(&job.id));
        let tool = job.tool.split('@').next().unwrap_or_default();
        let text = render_small(Report::of_fault(job.id.clone(), tool, fault.clone()), None);
        over(job, Some(&fault));
        job.bytes = text.len();
        store.write(&Change {
            put: vec![job.clone()],
            result: Some((job.id.clone(), text)),
            ..Change::default()
        })?;
    }
    Ok(())
}

/// The fault of a call whose host ended first. `recorded`: its outcome and message in the audit
/// log.
fn fault_of_lost(recorded: Option<&(String, Option<String>)>) -> Fault {
    match recorded {
        None => {
            let message = "The host ended before this call began: its log has no record that \
                anything of it ran.";
            Fault::new(Kind::InternalError, message).retryable()
        }
        Some((outcome, message)) if *outcome == Kind::InternalError.to_string() => {
            let unknown =
                "The host ended before this call did; how far the call came is not known.";
            Fault::new(Kind::InternalError, message.as_deref().unwrap_or(unknown))
        }
        Some((outcome, _)) => {
            let message = format!(
                "The call ended ({outcome}), but the host ended before the answer was stored."
            );
            Fault::new(Kind::InternalError, message)
        }
    }
}
