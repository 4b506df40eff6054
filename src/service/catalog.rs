//! Which tools can be called here, and what runs them. Tools and rules can change while calls run;
//! a running call keeps those of its start.

use super::alerts::Alerts;
use super::callers::Rights;
use super::client_call::client_runs;
use super::decision_cache::{CachedDecision, CurrentRules, DecisionCache, Rules};
use super::quota::Limiter;
use super::readiness::{Readiness, no_extension};
use super::request::{Caller, RateCharge};
use super::requirements;
use super::state_file::LOOK_INTERVAL;
use super::stops::StopFile;
use crate::base::lock;
use crate::base::place::Mounts;
use crate::executor::document::Documents;
use crate::executor::process::ReadyProcesses;
use crate::executor::remote::queues;
use crate::executor::{CallDeadline, Executor, Gauge, method};
use crate::manifest::{Handler, Language};
use crate::registry::{self, Filter, Tool};
use crate::{fault, policy};
use fault::{Fault, Kind};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tokio::sync::watch;

/// Reads policies and tools from the disk.
pub type Reread = Arc<dyn Fn() -> Result<(Rules, Arc<registry::Registry>), Fault> + Send + Sync>;

/// What a tool's calls can do besides reading files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    pub writes: bool,
    pub hosts: bool,
}

/// What the tools that a caller is offered depend on: equal keys stand for the same tools.
#[derive(Clone)]
pub struct OfferKey {
    decisions: Arc<DecisionCache>,
    /// The entry of the file of callers.
    entry: Option<String>,
}

impl OfferKey {
    /// Whether the tools and rules are the same.
    pub fn is_of_same_moment(&self, other: &OfferKey) -> bool {
        Arc::ptr_eq(&self.decisions, &other.decisions)
    }
}

impl PartialEq for OfferKey {
    fn eq(&self, other: &OfferKey) -> bool {
        self.is_of_same_moment(other) && self.entry == other.entry
    }
}

/// The ways this host can run tools. `None`: it has no such way, and refuses calls that need one.
pub struct Executors {
    pub process: Option<Arc<dyn Executor>>,
    /// The processes of scripts that are started before their calls.
    pub ready: Option<Arc<ReadyProcesses>>,
    pub wasm: Option<Arc<dyn Executor>>,
    /// Tool services behind a broker.
    pub remote: Option<Arc<dyn Executor>>,
    pub methods: Arc<method::Methods>,
    /// Handler types an embedding program brings (`x-…`), by name.
    pub extensions: BTreeMap<String, Arc<dyn Executor>>,
}

/// The tools and the rules of this moment, and what runs them.
pub struct Catalog {
    pub registry: Arc<registry::Registry>,
    executors: Executors,
    /// The script base folders, for scripts that a call names.
    pub(super) scripts: Vec<PathBuf>,
    /// Whether limits are counted by a cgroup; else they are sampled.
    pub counted: bool,
    rules: Mutex<CurrentRules>,
    /// Why newer rules are not in force.
    stale: Mutex<Option<String>>,
    /// The extensions of `executors`, and those registered since.
    extensions: RwLock<BTreeMap<String, Arc<dyn Executor>>>,
    /// Snapshot, rules and decisions of the last call, used again until the snapshot or the rules
    /// change.
    decisions: Mutex<Option<Arc<DecisionCache>>>,
    /// How a host that makes one call reads tools and rules again; a server reads them when they
    /// change.
    reread: OnceLock<Reread>,
    /// What the operator disabled.
    pub stops: StopFile,
    alerts: Arc<Alerts>,
    /// Notified when the tools or rules may have changed.
    changed: watch::Sender<()>,
}

impl Catalog {
    pub(super) fn new(
        registry: Arc<registry::Registry>,
        rules: Rules,
        executors: Executors,
        scripts: Vec<PathBuf>,
        stops: StopFile,
        alerts: Arc<Alerts>,
    ) -> Catalog {
        registry.set_policies(rules.policies.clone(), rules.machine.clone());
        Catalog {
            registry,
            extensions: RwLock::new(executors.extensions.clone()),
            executors,
            scripts,
            counted: rules.machine.cgroup,
            stale: Mutex::default(),
            rules: Mutex::new(CurrentRules {
                rules: Arc::new(rules),
                unread: None,
            }),
            decisions: Mutex::default(),
            reread: OnceLock::new(),
            stops,
            alerts,
            changed: watch::Sender::new(()),
        }
    }

    /// Who a request counts as: the caller, or the user that its label names, if the caller may act
    /// as that user. A file of callers says who is an operator; while it cannot be read, its last
    /// version counts, so that somebody can see and end what runs.
    pub fn who(&self, caller: &Caller, label: Option<&str>) -> Caller {
        let rules = lock(&self.rules).rules.clone();
        Rights::new(rules.policies.callers(), caller, label).caller
    }

    /// Counts a request against the entry of its principal, before its body is read. `tool`: must
    /// exist for the principal, unless that may act as others, who can have more tools.
    pub fn charge(
        &self,
        limiter: &Limiter,
        caller: &Caller,
        tool: Option<&str>,
    ) -> Result<(), Fault> {
        self.charge_as(limiter, caller, None)?;
        let decisions = self.decisions()?;
        let rights = decisions.rights(caller, None);
        let tool = tool.filter(|_| !rights.may_act_as_others());
        tool.map_or(Ok(()), |tool| decisions.find(tool, &rights).map(drop))
    }

    /// Counts a request against the entries of its principal and of the user whom its label names, as
    /// a call is counted.
    pub fn charge_as(
        &self,
        limiter: &Limiter,
        caller: &Caller,
        label: Option<&str>,
    ) -> Result<(), Fault> {
        let rights = self.decisions()?.rights(caller, label);
        limiter.charge_callers(&rights, RateCharge::Due)
    }

    /// The tools that a caller (`who`) may call, in order of id and version.
    pub fn list(&self, caller: &Caller) -> Result<Vec<Arc<Tool>>, Fault> {
        let decisions = self.decisions()?;
        let rights = decisions.rights(caller, None);
        let mut tools = decisions.snapshot.list(&Filter::default());
        tools.retain(|tool| decisions.may_call(&rights, &tool.manifest.id));
        for tool in &mut tools {
            requirements::name_packages(tool, |tool| decisions.decided(tool).decision.clone());
        }
        Ok(tools)
    }

    pub fn find(&self, caller: &Caller, reference: &str) -> Result<Arc<Tool>, Fault> {
        let decisions = self.decisions()?;
        let mut tool = decisions.find(reference, &decisions.rights(caller, None))?;
        requirements::name_packages(&mut tool, |tool| decisions.decided(tool).decision.clone());
        Ok(tool)
    }

    /// The tools that a caller is offered, with those that its client runs.
    pub fn offered(&self, caller: &Caller) -> Vec<Arc<Tool>> {
        offered(
            self.list(caller).unwrap_or_default(),
            |id| self.find(caller, id).ok(),
            |tool| self.can_hand_out(caller, tool),
        )
    }

    pub fn offer_key(&self, caller: &Caller) -> Result<OfferKey, Fault> {
        let decisions = self.decisions()?;
        let entry = decisions.rights(caller, None).entry_name();
        Ok(OfferKey { decisions, entry })
    }

    /// Registers a tool of this process with its handler, while calls run. `kind`: an `x-…` type of
    /// its own.
    pub fn register(
        &self,
        document: Value,
        kind: &str,
        handler: Arc<dyn Executor>,
    ) -> Result<Arc<Tool>, Fault> {
        let mut extensions = self
            .extensions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if extensions.contains_key(kind) {
            let message = format!(
                "Tool registration failed: type '{}' is already registered.",
                kind.escape_debug()
            );
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        let tool = self.registry.register(document, kind)?;
        extensions.insert(kind.to_owned(), handler);
        self.changed.send_replace(());
        Ok(tool)
    }

    /// Adds a source of tools and loads it, while calls run.
    pub fn add_source(&self, source: Arc<dyn registry::Source>) -> Result<(), String> {
        self.registry.add_source(source)?;
        self.changed.send_replace(());
        Ok(())
    }

    /// Removes a registered tool and its handler. False: there was none. Running calls of the tool
    /// finish.
    pub fn unregister(&self, id: &str) -> bool {
        let mut extensions = self
            .extensions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let tools = self.registry.snapshot().versions(id).to_vec();
        let removed = self.registry.unregister(id);
        for tool in tools
            .iter()
            .filter(|tool| removed && tool.site.manifest.as_os_str().is_empty())
        {
            if let Handler::Extension { kind, .. } = &tool.manifest.handler {
                extensions.remove(kind);
            }
        }
        self.changed.send_replace(());
        removed
    }

    pub fn set_reload(&self, reread: Reread) {
        let _ = self.reread.set(reread);
    }

    pub(super) async fn read_again(&self) {
        let Some(reread) = self.reread.get().cloned() else {
            return;
        };
        let read = tokio::task::spawn_blocking(move || reread()).await;
        match read.unwrap_or_else(|e: tokio::task::JoinError| {
            Err(Fault::new(
                Kind::InternalError,
                "The tools and policies could not be read again.",
            )
            .person(e.to_string()))
        }) {
            Ok((rules, registry)) => {
                *lock(&self.rules) = CurrentRules {
                    rules: Arc::new(rules),
                    unread: None,
                };
                self.registry.adopt(&registry);
            }
            Err(why) => lock(&self.rules).unread = Some(why),
        }
    }

    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Installs new rules and reloads every source of the registry; running calls keep the rules
    /// they began under. If the new rules cannot be read, no call starts until a reload succeeds;
    /// the last good rules then decide who may see and end running calls. Returns what failed.
    pub fn reload(&self, rules: Result<Rules, Fault>) -> Vec<String> {
        *lock(&self.stale) = None;
        // First the rules: nothing new may run under old ones.
        match rules {
            Ok(rules) => {
                let policies = rules.policies.clone();
                let machine = rules.machine.clone();
                *lock(&self.rules) = CurrentRules {
                    rules: Arc::new(rules),
                    unread: None,
                };
                self.registry.set_policies(policies, machine);
            }
            Err(why) => lock(&self.rules).unread = Some(why),
        }
        let failed = self.registry.refresh();
        self.changed.send_replace(());
        failed
    }

    /// Accepts rules that are to replace the present ones. If there was a file of callers, its
    /// absence is refused: it would allow everybody to call everything.
    pub fn check_replacement(&self, rules: Rules) -> Result<Rules, String> {
        match lock(&self.rules)
            .rules
            .policies
            .callers()
            .filter(|_| rules.policies.callers().is_none())
        {
            Some(gone) => Err(format!(
                "{} is gone, and without it everybody whom this host serves could call everything: \
                 put it back, or restart the host if that is intended",
                crate::base::text::path(&gone.file)
            )),
            None => Ok(rules),
        }
    }

    /// Keeps the present rules: newer ones cannot be read, and no reload was requested. Reloads
    /// every source of the registry; returns what failed.
    pub fn keep_rules(&self, why: String) -> Vec<String> {
        *lock(&self.stale) = Some(why);
        let failed = self.registry.refresh();
        self.changed.send_replace(());
        failed
    }

    /// Reloads one source of the registry, of a kind that never fails.
    pub fn refresh_source(&self, id: &str) {
        let _ = self.registry.refresh_source(id);
        self.changed.send_replace(());
    }

    /// Why newer rules are not in force, for operators.
    pub fn stale_rules(&self) -> Option<String> {
        lock(&self.stale).clone()
    }

    /// The decisions under the present tools and rules. No tool may write a manifest or script of
    /// these tools.
    pub(super) fn decisions(&self) -> Result<Arc<DecisionCache>, Fault> {
        let CurrentRules { rules, unread } = lock(&self.rules).clone();
        if let Some(why) = unread {
            return Err(why);
        }
        let stops = self.stops.now()?;
        let snapshot = self.registry.snapshot();
        let mut kept = lock(&self.decisions);
        if let Some(decisions) = kept.as_ref().filter(|kept: &&Arc<DecisionCache>| {
            let snapshot = Arc::ptr_eq(&kept.snapshot, &snapshot);
            let rules = Arc::ptr_eq(&kept.rules, &rules);
            let stops = kept.policies.stops == stops;
            snapshot && rules && stops && Arc::ptr_eq(&kept.mounts, &Mounts::current())
        }) {
            return Ok(decisions.clone());
        }
        let decisions = Arc::new(DecisionCache::new(
            snapshot,
            rules,
            stops,
            self.alerts.clone(),
        ));
        *kept = Some(decisions.clone());
        Ok(decisions)
    }

    /// Waits until the operator ends the calls of one of these tools, each `id@version`.
    pub(super) async fn end_of_calls(&self, tools: Vec<String>) -> Fault {
        let mut changes = self.changed.subscribe();
        loop {
            // A host of one call follows nothing.
            let _ = tokio::time::timeout(LOOK_INTERVAL, changes.changed()).await;
            let stops = self.stops.now().unwrap_or_default();
            let ended = |tool: &String| {
                let mut all = stops.of(tool);
                Some(all.find(|stop| stop.ends_calls)?.fault(tool))
            };
            if let Some(fault) = tools.iter().find_map(ended) {
                return fault;
            }
        }
    }

    /// Has what waits for calls looked at whenever something is disabled or enabled. Never returns.
    pub async fn follow_stops(&self) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        let mut known = self.stops.now();
        loop {
            looks.tick().await;
            let now = self.stops.now();
            if now != known {
                known = now;
                self.changed.send_replace(());
            }
        }
    }

    /// Whether a tool can run here, as it was decided about. Methods may be registered at any time.
    pub(super) fn readiness_of(&self, tool: &Tool, decided: &CachedDecision) -> Readiness {
        Readiness::of(tool, &decided.decision, self.runs(&tool.manifest.handler))
    }

    pub fn readiness(&self, tool: &Arc<Tool>) -> Readiness {
        match self.decisions() {
            Ok(decisions) => self.readiness_of(&decisions.behind(tool), &decisions.decided(tool)),
            Err(fault) => Readiness::Refused(fault),
        }
    }

    /// Whether a call of this caller (`who`) could get as far as its executor: agents are shown
    /// only such tools.
    pub fn can_call(&self, caller: &Caller, tool: &Arc<Tool>) -> bool {
        self.is_open_to(caller, tool) && matches!(self.readiness(tool), Readiness::Ready)
    }

    /// As `can_call`, where clients run tools, too.
    pub fn can_hand_out(&self, caller: &Caller, tool: &Arc<Tool>) -> bool {
        let readiness = self.readiness(tool);
        self.is_open_to(caller, tool) && matches!(readiness, Readiness::Ready | Readiness::AtClient)
    }

    fn is_open_to(&self, caller: &Caller, tool: &Tool) -> bool {
        let decisions = self.decisions();
        decisions.is_ok_and(|known| known.may_call(&known.rights(caller, None), &tool.manifest.id))
    }

    /// Whether a person must agree to a tool's calls. What is not known yet is decided on another
    /// thread.
    pub async fn confirms(&self, tool: &Arc<Tool>, until: &CallDeadline) -> Result<bool, Fault> {
        let decided = self.decisions()?.decided_for(tool, until).await?;
        Ok(!decided.decision.conditions.confirm.is_empty())
    }

    /// What calls of a tool can touch. `None`: not known, because nothing confines them.
    pub fn effects(&self, tool: &Arc<Tool>) -> Option<Effects> {
        let decided = self.decisions().ok()?.decided(tool);
        let decision = &decided.decision;
        let confined = !decision.identity.in_process
            || decision.identity.starts_scripts
            || method::is_call_status(&tool.manifest.handler);
        let grants = &decision.grants;
        // Code that calls other tools has their effects.
        let calls = !grants.calls.is_empty();
        let mut files = grants.files.iter();
        confined.then_some(Effects {
            writes: calls || files.any(|grant| grant.access == policy::Access::Write),
            hosts: calls || !grants.hosts.is_empty(),
        })
    }

    pub(super) fn ready_processes(&self) -> Option<&Arc<ReadyProcesses>> {
        self.executors.ready.as_ref()
    }

    /// The manifests and scripts of this host, and the folder of the policy that decided.
    pub(super) fn own_files(&self, decision: &policy::Decision) -> Vec<PathBuf> {
        let file = &decision.governing.file;
        let policies = file.parent().filter(|folder| folder.is_absolute());
        let files = &self.registry.snapshot().files;
        let files = files.iter().cloned();
        files.chain(policies.map(Path::to_path_buf)).collect()
    }

    /// All that executors hold now.
    pub(super) fn gauges(&self) -> Vec<Gauge> {
        let executors = [&self.executors.process, &self.executors.wasm];
        let executors = executors.into_iter().flatten();
        executors.flat_map(|executor| executor.gauges()).collect()
    }

    pub(super) fn methods(&self) -> &Arc<method::Methods> {
        &self.executors.methods
    }

    /// The connections to tool services.
    pub fn tool_services(&self) -> Vec<Value> {
        self.executors
            .remote
            .as_ref()
            .map(|remote| remote.connections())
            .unwrap_or_default()
    }

    pub fn ready(&self) -> Result<(), Fault> {
        self.decisions().map(drop)
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

    /// Whether this host can run the handler.
    fn runs(&self, handler: &Handler) -> Result<(), Fault> {
        match handler {
            Handler::Client(_) | Handler::McpServer(_) | Handler::Skill(_) => Ok(()),
            Handler::ServiceMethod { .. } => self.executors.methods.find(handler).map(drop),
            _ => self.executor(handler).map(drop),
        }
    }

    pub(super) fn executor(&self, handler: &Handler) -> Result<Arc<dyn Executor>, Fault> {
        let executors = &self.executors;
        fn lacking(what: &str) -> Fault {
            Fault::new(
                Kind::CapabilityError,
                format!("This host cannot run {what}."),
            )
        }
        match handler {
            Handler::Script(script) => self.script_executor(script.language),
            Handler::McpServer(_) => {
                let message =
                    "This is an MCP server, which is not called itself: call one of its tools.";
                Err(Fault::new(Kind::CapabilityError, message))
            }
            Handler::McpTool(tool) => {
                let script = tool.server.handler.script();
                let language = script.map(|it| it.language);
                self.script_executor(language.ok_or_else(|| lacking("a server without a script"))?)
            }
            Handler::ServiceMethod { .. } => Ok(executors.methods.clone()),
            Handler::Extension { kind, .. } => self
                .extensions
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(kind)
                .cloned()
                .ok_or_else(|| no_extension(kind)),
            Handler::Document(_) => Ok(Arc::new(Documents)),
            Handler::ToolService(remote) => {
                remote
                    .descriptor
                    .iter()
                    .try_for_each(|service| queues(service))?;
                executors
                    .remote
                    .clone()
                    .ok_or_else(|| lacking("tools of services elsewhere"))
            }
            Handler::Client(_) => Err(client_runs()),
            Handler::Skill(_) => Err(lacking("a skill without a script")),
            Handler::Alias(_) => Err(lacking("an alias whose tool is gone")),
        }
    }

    pub(super) fn script_executor(&self, language: Language) -> Result<Arc<dyn Executor>, Fault> {
        let executors = &self.executors;
        let found = match language {
            Language::Wasm => &executors.wasm,
            _ => &executors.process,
        };
        found.clone().ok_or_else(|| {
            Fault::new(
                Kind::CapabilityError,
                "This host cannot run scripts of this kind.",
            )
        })
    }
}

/// Whether it is a tool by which skills are listed, read and run.
fn is_of_skills(handler: &Handler) -> bool {
    matches!(handler, Handler::ServiceMethod { service, .. } if service == method::SKILL_SERVICE)
}

/// The tools to offer: for each id the version that a call of the id gets, if that can be called
/// here and is listed.
pub fn offered(
    mut tools: Vec<Arc<Tool>>,
    called: impl Fn(&str) -> Option<Arc<Tool>>,
    can_call: impl Fn(&Arc<Tool>) -> bool,
) -> Vec<Arc<Tool>> {
    let has_skills = tools.iter().any(|tool| tool.manifest.skill().is_some());
    tools.retain(|tool| {
        tool.manifest.is_listed
            && (has_skills || !is_of_skills(&tool.manifest.handler))
            && tool.manifest.document().is_none()
            && called(&tool.manifest.id).is_some_and(|it| it.reference() == tool.reference())
            && can_call(tool)
    });
    tools
}
