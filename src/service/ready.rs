//! Starts processes before the calls that they serve, where manifest and policy say so. What one is
//! started for is decided like a call, and never taken from one.

use super::audit::log::Log;
use super::catalog::Catalog;
use super::confining::Confining;
use super::decision_cache::{CachedDecision, DecisionCache};
use super::early_ends::EarlyEnds;
use super::grant_advice::DenialContext;
use super::ledger::Ledger;
use super::output::answer_of;
use super::packages::{self, Packages};
use super::redaction::Redaction;
use super::{denials, requirements};
use crate::base::lock;
use crate::egress::Traffic;
use crate::executor::CallDeadline;
use crate::executor::method::{Method, ScriptMethod};
use crate::executor::process::{ReadyProcess, ReadyProcesses};
use crate::fault::Fault;
use crate::manifest::{Handler, Language, Manifest};
use crate::packages::store::EnvironmentLease;
use crate::policy;
use crate::registry::{Filter, Snapshot, Tool};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often the processes that wait are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Most time that is waited for the packages and secrets of one process.
const MAX_PREPARATION: Duration = Duration::from_secs(60);
/// Most calls whose tools wait for their next process.
const MAX_CALLED: usize = 64;

/// What a process is started for, as a digest: the tool, its policies, its script, its packages.
pub fn digest(tool: &Tool, decision: &policy::Decision, script: Option<&policy::Script>) -> String {
    let script = script.map_or("", |script| &script.file.digest);
    let manifest = &tool.manifest.digest;
    let policies = &decision.governing.digest;
    let required = decision.packages.required.iter();
    let locks = required.flat_map(|required| &required.sources);
    let locks: Vec<&str> = locks.map(|file| file.sha256.as_str()).collect();
    let locks = locks.join(" ");
    let whole = format!(
        "{} {manifest} {policies} {script} {locks}",
        tool.reference()
    );
    crate::base::sha256_hex(whole.as_bytes())
}

/// What an MCP server is started for, as a digest: its manifest and list, and what its shape allows.
pub fn digest_of_server(server: &Manifest, shape: &str) -> String {
    let whole = format!("{}@{} {} {shape}", server.id, server.version, server.digest);
    crate::base::sha256_hex(whole.as_bytes())
}

/// What is decided about what a process of this tool is started for: its script, or Python code that
/// comes with a call.
pub fn decide(
    tool: &Tool,
    snapshot: &Snapshot,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> policy::Decision {
    if policy::takes_source(&tool.manifest) {
        requirements::of_source(tool, Language::Python, snapshot, policies, machine)
    } else {
        requirements::decide(tool, snapshot, policies, machine)
    }
}

/// What is decided about Python code that comes with a call.
pub(super) async fn decision_of_source(
    decisions: &Arc<DecisionCache>,
    tool: &Arc<Tool>,
    deadline: &CallDeadline,
) -> Option<CachedDecision> {
    let (all, own) = (decisions.clone(), tool.clone());
    let deciding = deadline.run(true, move || {
        let machine = &all.rules.machine;
        let language = Language::Python;
        requirements::of_source(&own, language, &all.snapshot, &all.policies, machine)
    });
    Some(deciding.await.ok()?.into())
}

/// One tool whose processes are started ahead.
struct Plan {
    tool: Arc<Tool>,
    decided: Arc<CachedDecision>,
    script: Option<Arc<policy::Script>>,
    digest: String,
}

/// Keeps processes ready.
pub struct ReadyKeeper {
    pub(super) catalog: Arc<Catalog>,
    pub(super) packages: Arc<Packages>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) audit: Log,
    ends: Mutex<EarlyEnds>,
    /// The tools for which no more are started, and why.
    cold: Mutex<BTreeMap<String, String>>,
    called: mpsc::Sender<Arc<Tool>>,
    calls: Mutex<Option<mpsc::Receiver<Arc<Tool>>>>,
}

impl ReadyKeeper {
    pub(super) fn new(
        catalog: Arc<Catalog>,
        packages: Arc<Packages>,
        ledger: Arc<Ledger>,
        audit: Log,
    ) -> ReadyKeeper {
        let (called, calls) = mpsc::channel(MAX_CALLED);
        ReadyKeeper {
            ends: Mutex::new(EarlyEnds::read(audit.path())),
            cold: Mutex::default(),
            catalog,
            packages,
            ledger,
            audit,
            called,
            calls: Mutex::new(Some(calls)),
        }
    }

    /// A call of the tool began: another process is started behind it.
    pub(super) fn called(&self, tool: &Arc<Tool>) {
        // With so many before it, the next call of this tool asks again.
        let _ = self.called.try_send(tool.clone());
    }

    pub fn list(&self) -> Vec<ReadyProcess> {
        let processes = self.catalog.ready_processes();
        processes.map(|it| it.waiting().list()).unwrap_or_default()
    }

    /// The tools whose calls start cold because their processes ended early, each with the reason.
    pub fn cold(&self) -> BTreeMap<String, String> {
        lock(&self.cold).clone()
    }

    /// Why no process is started for this any more. `None` also where nobody starts any: there no
    /// call could have had one.
    pub(super) fn refusal(&self, digest: &str) -> Option<String> {
        let is_kept = lock(&self.calls).is_none();
        is_kept.then(|| lock(&self.ends).refusal(digest)).flatten()
    }

    /// Ends all processes, and starts no more.
    pub fn close(&self) {
        if let Some(processes) = self.catalog.ready_processes() {
            processes.waiting().close();
        }
    }

    /// Starts processes as long as it is polled: at first and after each change those of all tools,
    /// then another one behind each call.
    pub async fn run(&self) {
        let Some(processes) = self.catalog.ready_processes() else {
            return;
        };
        let Some(mut calls) = lock(&self.calls).take() else {
            return;
        };
        let mut changes = self.catalog.changes();
        loop {
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() { return },
                () = self.keep(processes, &mut calls) => {}
            }
        }
    }

    /// Under the tools and rules of one moment. Never returns.
    async fn keep(&self, processes: &Arc<ReadyProcesses>, calls: &mut mpsc::Receiver<Arc<Tool>>) {
        for plan in self.renew(processes).await {
            self.start(processes, plan).await;
        }
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            tokio::select! {
                Some(tool) = calls.recv() => self.start_for(processes, tool).await,
                _ = sweeps.tick() => self.sweep(processes).await,
            }
        }
    }

    /// Ends what was started under other tools and rules, and returns what is to be started.
    async fn renew(&self, processes: &ReadyProcesses) -> Vec<Plan> {
        let mut plans = Vec::new();
        lock(&self.cold).clear();
        if let Ok(decisions) = self.catalog.decisions() {
            for tool in decisions.snapshot.list(&Filter::default()) {
                plans.extend(self.plan(&decisions, tool).await);
            }
        }
        let digests = plans.iter().map(|plan: &Plan| plan.digest.clone());
        processes.waiting().keep(&digests.collect::<BTreeSet<_>>());
        plans
    }

    async fn start_for(&self, processes: &ReadyProcesses, tool: Arc<Tool>) {
        let Ok(decisions) = self.catalog.decisions() else {
            return;
        };
        if let Some(plan) = self.plan(&decisions, tool).await {
            self.start(processes, plan).await;
        }
    }

    async fn sweep(&self, processes: &Arc<ReadyProcesses>) {
        let all = processes.clone();
        let swept = tokio::task::spawn_blocking(move || all.waiting().sweep()).await;
        for end in swept.unwrap_or_default() {
            let tool = end.tool.clone();
            let ends = {
                let mut ends = lock(&self.ends);
                ends.add(end);
                ends.clone()
            };
            if let Err(why) = ends.write(self.audit.path()) {
                tracing::warn!("starts that ended early cannot be recorded: {why}");
            }
            let decisions = self.catalog.decisions();
            if let Some(tool) = decisions.ok().and_then(|it| it.snapshot.find(&tool).ok()) {
                self.start_for(processes, tool).await;
            }
        }
    }

    /// What is to be started for a tool. `None`: its calls start cold.
    async fn plan(&self, decisions: &Arc<DecisionCache>, tool: Arc<Tool>) -> Option<Plan> {
        if !tool.manifest.execution.ready {
            return None;
        }
        let deadline = CallDeadline::usual("", None);
        let decided = match &tool.manifest.handler {
            handler if handler.script().is_some() => {
                decisions.decided_for(&tool, &deadline).await.ok()?
            }
            handler @ Handler::ServiceMethod {
                language: None | Some(Language::Python),
                ..
            } => {
                let method = self.catalog.methods().find(handler).ok()?;
                if !matches!(method, Method::Script(ScriptMethod::RunCode)) {
                    return None;
                }
                Arc::new(decision_of_source(decisions, &tool, &deadline).await?)
            }
            _ => return None,
        };
        let shape = decided.decision.shape.as_ref().ok()?;
        shape.ready.as_ref()?;
        let script = match shape.script {
            Some(_) => {
                let executor = self.catalog.script_executor(shape.runtime.language).ok()?;
                Some(Arc::new(executor.read(shape, &deadline).await.ok()?))
            }
            None => None,
        };
        let digest = digest(&tool, &decided.decision, script.as_deref());
        Some(Plan {
            tool,
            decided,
            script,
            digest,
        })
    }

    async fn start(&self, processes: &ReadyProcesses, plan: Plan) {
        let tool = plan.tool.reference();
        if let Some(why) = self.refusal(&plan.digest) {
            if lock(&self.cold).insert(tool.clone(), why.clone()).is_none() {
                tracing::warn!("{tool}: {why}");
            }
            return;
        }
        lock(&self.cold).remove(&tool);
        if let Err(fault) = self.try_start(processes, plan).await {
            let why = fault.person.as_deref().unwrap_or(&fault.message);
            tracing::warn!("no process of {tool} is started before its call: {why}");
        }
    }

    async fn try_start(&self, processes: &ReadyProcesses, plan: Plan) -> Result<(), Fault> {
        let mut redaction = Redaction::default();
        let confined = self.confine(&plan.decided.decision, plan.script, &mut redaction);
        let (confinement, environment) = confined.await?;
        let shape = &confinement.shape;
        self.audit.keep(shape, &shape.digest())?;
        self.ledger.record(shape)?;
        processes
            .start(&confinement, &plan.digest, environment.as_ref())
            .await
    }

    /// What a process may touch that is started for no call. Without a script it gets source text.
    async fn confine(
        &self,
        decision: &policy::Decision,
        script: Option<Arc<policy::Script>>,
        redaction: &mut Redaction,
    ) -> Result<(policy::Confinement, Option<EnvironmentLease>), Fault> {
        let environment = match packages::Need::from_decision(decision)? {
            Some(need) => {
                let ready = self.packages.ready(need, MAX_PREPARATION, drop).await?;
                Some(ready.lease)
            }
            None => None,
        };
        let source = script.is_none().then(String::new);
        let mut confinement = policy::confine(decision, None, source)?;
        confinement.per_call.script = script;
        let decisions = self.catalog.decisions()?;
        let confining = Confining {
            ledger: &self.ledger,
            written: &decisions.snapshot.written,
            environment: environment.as_ref(),
            caller: "",
            left: MAX_PREPARATION,
        };
        confining.finish(&mut confinement, redaction).await?;
        Ok((confinement, environment))
    }

    /// What an MCP server says of its tools. It is started for that alone, as it would be for a call,
    /// whether or not a person approved it: whoever may write its list asks.
    pub async fn tools_of_server(&self, tool: &Arc<Tool>, user: &str) -> Result<Vec<Value>, Fault> {
        let decisions = self.catalog.decisions()?;
        let (all, mut own) = (decisions.clone(), Tool::clone(tool));
        if let Handler::McpServer(server) = &mut Arc::make_mut(&mut own.manifest).handler {
            // It is what we come for.
            server.listed.get_or_insert_default();
        }
        let deadline = CallDeadline::usual("", None);
        let deciding = deadline.run(true, move || {
            let policies = all.policies.without_approvals();
            requirements::decide(&own, &all.snapshot, &policies, &all.rules.machine)
        });
        let decision = deciding.await?;
        decision
            .refused()
            .map_or(Ok(()), |fault| Err(fault.clone()))?;
        let shape = decision.shape.clone()?;
        let executor = self.catalog.script_executor(shape.runtime.language)?;
        let script = Arc::new(executor.read(&shape, &deadline).await?);
        let mut redaction = Redaction::default();
        let confining = self.confine(&decision, Some(script), &mut redaction);
        let (mut confinement, environment) = confining.await?;
        // Where it fails, what it was refused is the first question.
        Arc::make_mut(&mut confinement.shape).record();
        let shape = &confinement.shape;
        self.audit.keep(shape, &shape.digest())?;
        self.ledger.record(shape)?;
        let traffic = Mutex::new(Traffic {
            principal: user.to_owned(),
            ..Traffic::default()
        });
        let listing = executor.list_tools(&confinement, environment, &traffic);
        let mut outcome = listing.await?;
        redaction.apply(&mut outcome);
        let about = DenialContext {
            site: &tool.site,
            decision: &decision,
            tool,
            decisions: &decisions,
            script: String::new(),
            arguments: String::new(),
            log: outcome.logs.join("\n"),
            own: Some(self.catalog.own_files(&decision)),
            exit_status: None,
            recorded: true,
        };
        let listed = answer_of(outcome.ending, &outcome.logs, &[]);
        let listed = listed.map_err(|fault| {
            let traffic = lock(&traffic);
            let observed = denials::observed(&traffic, &outcome.attempts, &about);
            let denials = redaction.denials(&observed);
            let (anyone, person) = denials::hints(&fault, 0, &traffic, &denials, &about);
            let details = fault.details.clone().into_iter().chain(anyone);
            let details = details.reduce(|all, more| all + "\n" + &more);
            redaction.fault(Fault {
                details,
                person,
                ..fault
            })
        })?;
        let read = listed.read(false, |text| serde_json::from_str(text.as_str()).ok());
        Ok(read.await?.unwrap_or_default())
    }
}
