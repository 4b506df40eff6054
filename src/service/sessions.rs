//! Sessions: code of a caller that goes on between its calls. Who may have one, who sees and ends
//! it, and that it ends with what decided about it.

use super::arguments::Arguments;
use super::audit::log::{Log, RecordPermit};
use super::callers::Rights;
use super::catalog::Catalog;
use super::ready::{decision_of_source, digest, digest_of_server};
use super::record::{CallRecord, RecordSinks};
use super::report::CallResult;
use super::request::{CallRequest, Caller, new_id};
use super::traces::spans::Traces;
use crate::executor::mcp_server::{Servers, Unclaimed};
use crate::executor::process::{self, OpenSession};
use crate::executor::{CallDeadline, SessionId, ToolAnswer};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::policy::{self, SESSIONS_LINE, Stop};
use crate::registry::Filter;
use crate::runtimes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often the sessions that wait are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Refuses code that can have no session.
pub(super) fn check(
    input: &Value,
    language: Language,
    decision: &policy::Decision,
) -> Result<(), Fault> {
    let refused = |kind, message: &str| Err(Fault::new(kind, message));
    match &decision.conditions.sessions {
        None => {
            let message = "Code cannot go on in a session here: leave `session` out.";
            let person = format!("{SESSIONS_LINE} in the policy of this tool allows sessions");
            Err(Fault::new(Kind::SecurityError, message).person(person))
        }
        Some(Err(why)) => {
            let message = "Code of this tool cannot go on in a session: leave `session` out.";
            Err(Fault::new(Kind::SecurityError, message).person(why))
        }
        Some(Ok(_)) if runtimes::cells_shim(language).is_none() => refused(
            Kind::ParameterValidationError,
            "Sessions run code in Python or Node.js.",
        ),
        Some(Ok(_)) if input.as_object().is_some_and(|it| !it.is_empty()) => refused(
            Kind::ParameterValidationError,
            "A session reads no `inputData`: write the values into the code, or send a file.",
        ),
        Some(Ok(_)) => Ok(()),
    }
}

/// Refuses a session to code that calls tools: it could wait for its own turn.
pub(super) fn check_nested(session: Option<&str>) -> Result<(), Fault> {
    let message = "Code that is called by code cannot go on in a session.";
    session.map_or(Ok(()), |_| {
        Err(Fault::new(Kind::ParameterValidationError, message))
    })
}

/// The sessions of this host.
pub struct Sessions {
    pub(super) catalog: Arc<Catalog>,
    pub(super) audit: Log,
    pub(super) traces: Arc<Traces>,
}

impl Sessions {
    fn all(&self) -> Option<&process::Sessions> {
        Some(self.catalog.ready_processes()?.sessions())
    }

    fn servers(&self) -> Option<&Servers> {
        Some(&self.catalog.ready_processes()?.launchers().servers)
    }

    /// Ends all MCP servers, each within 2 s.
    pub async fn end_servers(&self) {
        if let Some(servers) = self.servers() {
            servers.close().await;
            self.record_traffic();
        }
    }

    /// Ends the launchers and relays that wait for a next call.
    pub fn end_launchers(&self) {
        if let Some(ready) = self.catalog.ready_processes() {
            ready.launchers().close();
        }
    }

    /// Records what MCP servers that have ended did with their network outside of calls.
    fn record_traffic(&self) {
        let Some(servers) = self.servers() else {
            return;
        };
        for unclaimed in servers.take_unclaimed() {
            match self.audit.open() {
                Ok(entry) => self.record(unclaimed, entry),
                Err(_) => servers.give_back(unclaimed),
            }
        }
    }

    fn record(&self, Unclaimed { id, traffic }: Unclaimed, entry: RecordPermit) {
        let principal = Caller::named(id.principal);
        let request = CallRequest::new(principal, id.tool, Arguments::default());
        let sinks = RecordSinks::of_entry(self.traces.of_call(None), entry);
        let mut record = CallRecord::begin(new_id(), &request, sinks);
        record.set_caller(&Caller::named(id.caller));
        record.outside_of_calls(traffic);
        record.end(CallResult::Output(ToolAnswer::from(&Value::Null)));
    }

    /// From now on this host keeps sessions.
    pub fn open(&self) {
        self.all().into_iter().for_each(process::Sessions::open);
    }

    /// Ends all that wait, and keeps none any more.
    pub fn close(&self) {
        self.all().into_iter().for_each(process::Sessions::close);
    }

    /// Those of a caller (`who`) and those that it has as others, or everybody's for an operator: MCP
    /// servers too.
    pub fn of(&self, caller: &Caller) -> Vec<OpenSession> {
        let mut all = self.all().map(process::Sessions::list).unwrap_or_default();
        all.extend(self.servers().into_iter().flat_map(Servers::list));
        let sees = |it: &OpenSession| caller.sees(&it.caller, &it.principal);
        all.into_iter().filter(sees).collect()
    }

    /// Ends a session, and the call that it serves. False: it does not exist for this caller.
    pub fn end(&self, caller: &Caller, id: &str) -> bool {
        let servers = self.servers();
        let ended = self.with(caller, id).map(|all| all.end(id));
        ended
            .inspect(|()| servers.into_iter().for_each(|all| all.end(id)))
            .is_some()
    }

    /// Interrupts what a session runs. False: it does not exist for this caller.
    pub fn interrupt(&self, caller: &Caller, id: &str) -> bool {
        self.with(caller, id).map(|all| all.interrupt(id)).is_some()
    }

    /// All sessions, if the caller sees this one.
    fn with(&self, caller: &Caller, id: &str) -> Option<&process::Sessions> {
        self.of(caller).iter().find(|it| it.id == id)?;
        self.all()
    }

    /// Ends what waited too long, or what was decided otherwise, as long as it is polled.
    pub async fn run(&self) {
        let Some(processes) = self.catalog.ready_processes() else {
            return;
        };
        let mut changes = self.catalog.changes();
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        let mut are_compared = true;
        loop {
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => are_compared = self.end_changed().await,
                    Err(_) => return,
                },
                _ = sweeps.tick() => {
                    // One that serves a call is looked at later.
                    are_compared = are_compared || self.end_changed().await;
                    self.record_traffic();
                    let all = processes.clone();
                    let _ = tokio::task::spawn_blocking(move || all.launchers().sweep()).await;
                }
            }
        }
    }

    /// Ends those whose caller may no longer call the tool, and those that were started under
    /// another decision. False: some served a call.
    async fn end_changed(&self) -> bool {
        let (Some(all), Some(servers)) = (self.all(), self.servers()) else {
            return false;
        };
        let Ok(decisions) = self.catalog.decisions() else {
            return false;
        };
        let mut digests = BTreeMap::new();
        let listed = all.list().into_iter().chain(servers.list());
        for session in listed {
            let stops = &decisions.policies.stops;
            let ends = |stop: &Stop| stop.ends_calls || !session.is_running;
            if stops.of(&session.tool).any(ends) {
                all.end(&session.id);
                servers.end(&session.id);
                continue;
            }
            let Ok(tool) = decisions.snapshot.find(&session.tool) else {
                continue;
            };
            let deadline = CallDeadline::usual("", None);
            if tool.manifest.mcp_server().is_some() {
                if let Ok(decided) = decisions.decided_for(&tool, &deadline).await {
                    let digest = digest_of_server(&tool.manifest, &decided.shape_digest);
                    digests.insert(session.tool, digest);
                }
            } else if let Some(decided) = decision_of_source(&decisions, &tool, &deadline).await {
                digests.insert(session.tool, digest(&tool, &decided.decision, None));
            }
        }
        let callers = decisions.rules.policies.callers();
        let rights = |principal: &str, caller: &str| {
            let principal = Caller::named(principal);
            let rights = Rights::new(callers, &principal, Some(caller));
            (rights.caller.user == caller).then_some(rights)
        };
        let is_equal =
            |tool: &str, digest: &str| digests.get(tool).is_some_and(|now| now == digest);
        let are_compared = all.keep(|id: &SessionId, digest| {
            let tool = id.tool.split('@').next().unwrap_or_default();
            let rights = rights(&id.principal, &id.caller);
            rights.is_some_and(|it| it.may_call(tool)) && is_equal(&id.tool, digest)
        });
        let tools = decisions.snapshot.list(&Filter::default());
        servers.keep(|id, digest| {
            let is_shared = id.principal.is_empty();
            let may_call = |rights: Rights| {
                let server = id.tool.split('@').next();
                let mut its = tools.iter().map(|tool| &tool.manifest);
                its.any(|it| Some(&*it.of_process().id) == server && rights.may_call(&it.id))
            };
            (is_shared || rights(&id.principal, &id.caller).is_some_and(may_call))
                && is_equal(&id.tool, digest)
        }) && are_compared
    }
}
