//! The pipeline of one call: admit → decide → wait → decide again → confine → run → record.
//!
//! `decide` makes the whole decision, from the tool to the packages, under the tools and rules of
//! one moment. It is made again after every wait. If the decision is equal, the call continues. If
//! not, the call starts over or, where a person approved the previous one, is refused. All else is
//! in the record, which the stages fill. Nothing runs that could not be recorded first.

use super::arguments::ReceivedArguments;
use super::artifacts::{Artifacts, MostFiles, Owner};
use super::audit::log::Log;
use super::breaker::Breakers;
use super::call_ended::Stage;
use super::callers::Rights;
use super::catalog::Catalog;
use super::client_call::ClientRuns;
use super::confining::Confining;
use super::confirmation::{Confirmations, changed};
use super::decision_cache::DecisionCache;
use super::files::Brought;
use super::found::FoundTool;
use super::ledger::Ledger;
use super::nested::{NestedCalls, ServesCode, progress};
use super::parent::{AGREED_CALLS, AskingCode, Parent};
use super::quota::{Lender, Limiter, Slot};
use super::ran::{Answered, Ran};
use super::readiness::unavailable;
use super::reading::{AnswerRules, ReadAnswer};
use super::ready::ReadyKeeper;
use super::record::{CallRecord, traffic};
use super::redaction::Redaction;
use super::report::CallResult;
use super::request::{BroughtFile, CallRequest, Event, EventStream};
use super::session_turn::SessionTurn;
use super::streamed::StreamedAnswer;
use super::target::{Decided, Files, Runner, Targets};
use super::tool_stubs::{stubs, wants_shim};
use super::traces::context::TraceContext;
use super::{output, packages, ready, sessions};
use crate::base::mask::Hidden;
use crate::base::{lock, sha256_hex};
use crate::egress::Traffic;
use crate::packages::store::EnvironmentLease;
use crate::quantity::{self, Limit};
use crate::{executor, fault, policy, registry};
use executor::{Call, CallDeadline, Ending, Executor, FromTool, Outcome, ToolAnswer};
use fault::{Fault, Kind};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The variable that tells a script of its call.
const CONTEXT_VARIABLE: &str = "TOOL_CONTEXT";
/// The member of a tool's input with what its client can be asked, and the client's answers.
const CLIENT: &str = "$client";

/// A decision older than this is made again before anything runs.
const MAX_DECISION_AGE: Duration = Duration::from_millis(100);
/// A call is refused once its decision has changed this often.
const CHANGES: usize = 3;

/// A call that has its slot, with all that is needed to decide it, as often as that takes.
struct Admitted {
    id: String,
    request: CallRequest,
    arguments: ReceivedArguments,
    slot: Slot,
    /// What the call does with its network, as the executor notes it.
    traffic: Arc<Mutex<Traffic>>,
    is_approved: bool,
    environment: Option<EnvironmentLease>,
    /// The tools that have counted this call in their rate.
    counted: Vec<String>,
    changes: usize,
    session: SessionTurn,
}

/// A decided call, confined and ready to start.
struct Prepared {
    decided: Decided,
    call: Call,
    context: executor::Context,
    /// Of what runs in this process. The executor enforces the time limit of a script.
    time_limit: Option<Duration>,
}

/// A call that is over. By default somebody cancelled it.
#[derive(Default)]
pub(super) struct Ended {
    pub result: CallResult,
    /// Kept until the answer is delivered.
    pub slot: Option<Slot>,
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Ended {
        Ended {
            result: CallResult::Failed(fault),
            slot: None,
        }
    }
}

enum Run {
    Ended(Box<Ran>),
    /// The check just before the start found another decision, so nothing ran.
    DecideAgain(Box<Result<Decided, Fault>>),
}

enum Attempt {
    Done(Box<CallResult>),
    DecideAgain(Box<Decided>),
}

/// The one path of every call.
pub(super) struct Pipeline {
    pub catalog: Arc<Catalog>,
    pub limiter: Arc<Limiter>,
    pub breakers: Arc<Breakers>,
    pub confirmations: Arc<Confirmations>,
    pub packages: Arc<packages::Packages>,
    pub audit: Log,
    pub ledger: Arc<Ledger>,
    pub artifacts: Arc<Artifacts>,
    /// The service itself, for the calls of code.
    pub for_code: Weak<dyn ServesCode>,
    pub ready: Arc<ReadyKeeper>,
}

impl Pipeline {
    /// Boxed: the future is large, and every future around it would move it.
    pub fn run<'c>(
        &'c self,
        id: String,
        request: CallRequest,
        stream: &'c mut EventStream,
        record: &'c mut CallRecord,
    ) -> BoxFuture<'c, Ended> {
        Box::pin(async move {
            let mut admitted = match self.admit(id, request, record).await {
                Ok(admitted) => admitted,
                Err(fault) => return fault.into(),
            };
            let result = self.run_admitted(&mut admitted, stream, record).await;
            Ended {
                result: result.unwrap_or_else(CallResult::Failed),
                slot: Some(admitted.slot),
            }
        })
    }

    async fn run_admitted(
        &self,
        admitted: &mut Admitted,
        stream: &mut EventStream,
        record: &mut CallRecord,
    ) -> Result<CallResult, Fault> {
        let parent = admitted.request.parent.as_ref();
        let hides = parent.map_or_else(Arc::default, |parent| parent.redaction.clone());
        let mut decided = self.decide(admitted, hides, record).await?;
        loop {
            if self
                .await_next_need(admitted, &decided, stream, record)
                .await?
            {
                let now = self.decide_again(admitted, &decided, record).await?;
                if now.digest() != decided.digest() {
                    admitted.change()?;
                }
                decided = now;
                continue;
            }
            match self.attempt(admitted, decided, stream, record).await? {
                Attempt::Done(result) => return Ok(*result),
                Attempt::DecideAgain(now) => decided = *now,
            }
        }
    }

    /// Cheap checks first: who calls, how often, and whether the tool exists for that caller. Then
    /// waits for a slot.
    async fn admit(
        &self,
        id: String,
        mut request: CallRequest,
        record: &mut CallRecord,
    ) -> Result<Admitted, Fault> {
        let rights = self
            .catalog
            .decisions()?
            .rights(&request.caller, request.label.as_deref());
        record.set_caller(&rights.caller);
        self.limiter.charge_callers(&rights, request.charged.rate)?;
        if let Some(fault) = request.refused.take() {
            let id = request.tool.split('@').next().unwrap_or_default();
            let withheld = fault.kind == Kind::ToolNotFoundError && !rights.may_call(id);
            record.denied_by = withheld.then(|| rights.name());
            return Err(fault);
        }
        request
            .acts_as
            .get_or_insert_with(|| rights.caller.user.clone());
        let (_, rights, tool) = self.tool(&request, record)?;
        let tools = std::slice::from_ref(&tool.manifest.id);
        let arguments = std::mem::take(&mut request.arguments).into();
        let entered = self.limiter.enter(&mut request, &arguments, &rights, tools);
        let slot = entered.await?;
        let traffic = traffic(&rights.principal);
        record.admitted(&traffic);
        Ok(Admitted {
            id,
            slot,
            traffic,
            arguments,
            request,
            is_approved: false,
            environment: None,
            counted: Vec::new(),
            changes: 0,
            session: SessionTurn::default(),
        })
    }

    /// The requested tool, and the rights of its caller, under the tools and rules of this moment.
    fn tool(
        &self,
        request: &CallRequest,
        record: &mut CallRecord,
    ) -> Result<(Arc<DecisionCache>, Rights, Arc<registry::Tool>), Fault> {
        let decisions = self.catalog.decisions()?;
        let rights = decisions.rights(&request.caller, request.label.as_deref());
        if !request.caller.proof.holds() {
            let message = "The token of this call is not accepted any more, so nothing was run.";
            return Err(Fault::new(Kind::AuthorizationError, message));
        }
        if request
            .acts_as
            .as_ref()
            .is_some_and(|name| *name != rights.caller.user)
        {
            record.denied_by = Some(rights.name());
            let message = "The caller that this call was accepted for may no longer be used, so \
                nothing was run.";
            return Err(Fault::new(Kind::AuthorizationError, message));
        }
        record.set_caller(&rights.caller);
        if let ClientRuns::Own(tool) = &request.client_runs {
            return Ok((decisions, rights, tool.clone()));
        }
        let tool = decisions.find(&request.tool, &rights).inspect_err(|_| {
            let id = request.tool.split('@').next().unwrap_or_default();
            record.denied_by = (!rights.may_call(id)).then(|| rights.name());
        })?;
        Ok((decisions, rights, tool))
    }

    /// The whole decision about a call, under the tools and rules of this moment.
    /// `redaction`: that of the decision before this one.
    async fn decide(
        &self,
        admitted: &Admitted,
        redaction: Arc<Redaction>,
        record: &mut CallRecord,
    ) -> Result<Decided, Fault> {
        record.enters(Stage::Decide);
        let request = &admitted.request;
        let timeout_ms = request.timeout_ms;
        let (decisions, rights, called) = self.tool(request, record)?;
        let tool = decisions.behind(&called);
        // Until policy is read, a call has at most the time that it or its manifest requests. One that
        // requests too little is refused for that, however long the decision takes.
        let requested = timeout_ms
            .filter(|asked| *asked >= quantity::MIN_TIMEOUT_MS)
            .into_iter()
            .chain(tool.manifest.execution.timeout_ms)
            .min();
        let mut deadline = CallDeadline::usual(&rights.principal, requested);
        deadline.began -= admitted.session.waited;
        let decided = decisions.decided_for(&called, &deadline).await?;
        record.found(tool.clone());
        let lacks = self.catalog.readiness_of(&tool, &decided).lacks();
        unavailable(&tool, &decided.decision, &lacks).map_or(Ok(()), Err)?;
        deadline.limit = Duration::from_millis(policy::time_ms(&decided.decision, timeout_ms)?);
        let found = FoundTool {
            call: admitted.id.clone(),
            label: request.label.clone(),
            decisions,
            rights,
            alias: Some(called).filter(|called| called.manifest.alias().is_some()),
            tool,
            decided,
            timeout_ms,
            at_machine: request.reporting.at_machine,
            explain: request.reporting.explain,
            deadline,
        };
        let brought = Brought {
            files: request.files.clone(),
            owner: Owner::from(&found.rights),
            store: self.artifacts.clone(),
        };
        let received = &admitted.arguments;
        let mut arguments = found.check(received, brought, redaction, record).await?;
        let files = std::mem::take(&mut arguments.files);
        found
            .ids()
            .try_for_each(|id| found.rights.accepts(id, &arguments.input))
            .inspect_err(|_| record.denied_by = Some(found.rights.name()))?;
        let targets = Targets {
            catalog: &self.catalog,
            ledger: &self.ledger,
            client: &request.client_runs,
        };
        let mut decided = targets.decide(found, arguments, record).await?;
        if let Some(parent) = &request.parent {
            sessions::check_nested(decided.code.session.as_deref())?;
            let decision = &decided.decided.decision;
            let mut ids = decided.found.ids();
            ids.try_for_each(|id| parent.accepts_decided(id, decision))?;
        }
        decided.files = self.bring(&decided, files).await?;
        record.brings(&decided.files.records);
        Ok(decided)
    }

    /// The files of a call: looked up for each decision, and charged before they are copied for it.
    async fn bring(&self, decided: &Decided, brought: Vec<BroughtFile>) -> Result<Files, Fault> {
        if brought.is_empty() {
            return Ok(Files::default());
        }
        let FoundTool {
            tool,
            rights,
            deadline,
            ..
        } = &decided.found;
        let decision = &decided.decided.decision;
        if !decision
            .shape
            .as_ref()
            .is_ok_and(|shape| shape.takes_files())
        {
            let message = format!(
                "Tool {} takes no files: only scripts of Python, Node and Bun do.",
                tool.manifest.id
            );
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        let limit = |limit: Limit| decision.limit(limit).map_or(0, |limit| limit.effective);
        let most = MostFiles {
            files: limit(Limit::ArtifactFiles),
            bytes: limit(Limit::ArtifactBytes),
        };
        let artifacts = self.artifacts.clone();
        let owner = Owner::from(rights);
        let bring = move || artifacts.bring(&owner, brought, most);
        let (all, records) = deadline.run(true, bring).await??;
        let sizes = all.iter().map(|file| file.bytes);
        let charged = self.limiter.keep_files(&rights.principal, sizes)?;
        Ok(Files {
            all,
            records,
            _charged: Some(charged),
        })
    }

    async fn decide_again(
        &self,
        admitted: &Admitted,
        before: &Decided,
        record: &mut CallRecord,
    ) -> Result<Decided, Fault> {
        self.catalog.read_again().await;
        let redaction = before.redaction.clone();
        self.decide(admitted, redaction, record).await
    }

    /// Waits for the next thing that this decision needs: a slot, a person, its packages. False: it
    /// needs nothing more.
    async fn await_next_need(
        &self,
        admitted: &mut Admitted,
        target: &Decided,
        stream: &mut EventStream,
        record: &mut CallRecord,
    ) -> Result<bool, Fault> {
        let slot = &mut admitted.slot;
        if !self
            .limiter
            .charge_to(slot, &target.found.rights, &target.tools)
        {
            // Another tool of the target has no free slot now.
            slot.step_aside();
            self.reacquire_slot(slot, target).await?;
            return Ok(true);
        }
        // A call whose breaker is open is refused before it waits.
        drop(target.attempt(&self.breakers, false)?);
        if !target.decided.decision.conditions.confirm.is_empty() && !admitted.is_approved {
            record.enters(Stage::Confirm);
            slot.step_aside();
            self.confirmations
                .ask(target, &admitted.request, stream, record)
                .await?;
            self.reacquire_slot(slot, target).await?;
            admitted.is_approved = true;
            return Ok(true);
        }
        if admitted.environment.is_none()
            && let Some(need) = packages::Need::from_decision(&target.decided.decision)?
        {
            record.enters(Stage::Prepare);
            let ready = self.prepare_packages(need, target, stream).await?;
            record.environment(&ready.lease.entry.about.packages, ready.built);
            admitted.environment = Some(ready.lease);
            if ready.built {
                return Ok(true);
            }
        }
        if admitted.session.take(&self.catalog, target, slot).await? {
            self.reacquire_slot(slot, target).await?;
            return Ok(true);
        }
        self.charge_answer(slot, target).await
    }

    /// Charges the answer, as the last step before the call runs. Without room, the call
    /// waits without a slot.
    async fn charge_answer(&self, slot: &mut Slot, target: &Decided) -> Result<bool, Fault> {
        let bytes = target.output_bytes();
        let principal = &target.found.rights.principal;
        if self.limiter.charge_answer(slot, principal, bytes) {
            return Ok(false);
        }
        slot.step_aside();
        self.limiter.await_answer(slot, principal, bytes).await?;
        self.reacquire_slot(slot, target).await?;
        Ok(true)
    }

    /// Waits for a slot again, at most as long as the call may run. It keeps the slot until its
    /// answer is delivered.
    async fn reacquire_slot(&self, slot: &mut Slot, target: &Decided) -> Result<(), Fault> {
        let found = &target.found;
        self.limiter
            .reacquire_slot(slot, &found.rights, &target.tools, found.deadline.limit)
            .await
    }

    /// The built environment of a target that requires packages, held for the call.
    async fn prepare_packages(
        &self,
        need: packages::Need,
        target: &Decided,
        stream: &mut EventStream,
    ) -> Result<packages::Ready, Fault> {
        let within = Duration::from_millis(policy::time_ms(
            &target.decided.decision,
            target.timeout_ms,
        )?);
        let (tell, mut lines) = tokio::sync::mpsc::channel(16);
        // A line that finds no room is dropped.
        let ready = self
            .packages
            .ready(need, within, move |line| _ = tell.try_send(line));
        tokio::pin!(ready);
        loop {
            tokio::select! {
                biased;
                ready = &mut ready => return ready,
                Some(line) = lines.recv() => stream.push(Event::Preparing(format!("packages: \
                    {line}"))),
                () = stream.hand_on() => {}
            }
        }
    }

    /// Runs what was decided, unless that has changed meanwhile.
    async fn attempt(
        &self,
        admitted: &mut Admitted,
        mut decided: Decided,
        stream: &mut EventStream,
        record: &mut CallRecord,
    ) -> Result<Attempt, Fault> {
        let executor = match &decided.runner {
            Runner::Here(executor) => executor.clone(),
            Runner::Client(tool) => {
                let call = tool.hand_out(&decided.found, decided.input.take());
                admitted.count(&self.limiter, &decided)?;
                record.enters(Stage::Run);
                record.running()?;
                let result = CallResult::RequiresAction(call);
                return Ok(Attempt::Done(Box::new(result)));
            }
        };
        let breaker = decided.attempt(&self.breakers, true)?;
        let stopped = self.catalog.end_of_calls(decided.references());
        let run = match self.prepare(admitted, decided, record).await {
            Ok(prepared) => tokio::select! {
                // First: a session that the same order ends looks like a cancelled call.
                biased;
                fault = stopped => Err(fault),
                run = self.start(admitted, &*executor, prepared, stream, record) => run,
            },
            Err(fault) => Err(fault),
        };
        let mut has_crashed = false;
        let result = match run {
            Ok(Run::DecideAgain(now)) => {
                let now = (*now)?;
                admitted.change()?;
                return Ok(Attempt::DecideAgain(Box::new(now)));
            }
            Ok(Run::Ended(ran)) => {
                has_crashed = matches!(
                    ran.outcome.ending,
                    Ending::Signalled { .. } | Ending::Trapped { .. }
                );
                self.answer(admitted, *ran, record).await
            }
            Err(fault) => Err(fault),
        };
        let result = result.unwrap_or_else(CallResult::Failed);
        breaker.ended(result.fault(), has_crashed);
        Ok(Attempt::Done(Box::new(result)))
    }

    /// The result of a call that ran.
    async fn answer(
        &self,
        admitted: &mut Admitted,
        mut ran: Ran,
        record: &mut CallRecord,
    ) -> Result<CallResult, Fault> {
        let FoundTool {
            at_machine,
            explain,
            ..
        } = ran.decided.found;
        let left = std::mem::take(&mut ran.left);
        let owner = Owner::from(&ran.decided.found.rights);
        let is_read = explain || !matches!(ran.outcome.ending, Ending::Answered(_));
        let own =
            (at_machine && is_read).then(|| self.catalog.own_files(&ran.decided.decided.decision));
        let Answered {
            decided: target,
            envelope,
            output,
            is_streamed,
        } = ran.answered(own, record)?;
        let manifest = target.found.tool.manifest.clone();
        // The parts of a stream are a list, or one text where the tool's answer is declared as
        // that.
        let is_string = manifest
            .output
            .as_ref()
            .is_some_and(|schema| schema.raw["type"] == "string");
        let conditions = &target.decided.decision.conditions;
        let rules = AnswerRules {
            manifest,
            envelope,
            redaction: target.redaction.clone(),
            is_streamed,
            joins_texts: is_streamed && (conditions.text_output || is_string),
            max_bytes: target.output_bytes(),
        };
        let found = &target.found.deadline;
        let own = CallDeadline {
            limit: found.limit + quantity::OVERDUE,
            ..found.clone()
        };
        let deadline = output.deadline().cloned().unwrap_or(own);
        let ReadAnswer {
            result,
            hid_secrets,
        } = rules.read(output, deadline).await?;
        let bytes = result.answer().map_or(0, ToolAnswer::bytes);
        admitted.slot.answered(bytes);
        if hid_secrets {
            record.hid_secrets();
        }
        if matches!(result, CallResult::Output(_)) && !left.is_empty() {
            self.keep(owner, left, record).await?;
        }
        match result {
            CallResult::Questions(questions) => target.asks(questions, &admitted.request.client),
            other => Ok(other),
        }
    }

    /// Decides again, unless the decision is fresh. `None`: it holds.
    async fn decide_if_old(
        &self,
        admitted: &Admitted,
        decided: &Decided,
        record: &mut CallRecord,
    ) -> Option<Result<Decided, Fault>> {
        if decided.found.deadline.began.elapsed() <= MAX_DECISION_AGE {
            return None;
        }
        match self.decide_again(admitted, decided, record).await {
            Ok(now) if now.digest() == decided.digest() => {
                record.enters(Stage::Run);
                None
            }
            other => Some(other),
        }
    }

    /// Confines the call, and keeps the text of its confinement beside the audit log. `None`: it
    /// runs in this process.
    async fn confine(
        &self,
        target: &mut Decided,
        admitted: &Admitted,
        record: &mut CallRecord,
    ) -> Result<Option<policy::Confinement>, Fault> {
        let found = &target.found;
        let decision = &target.decided.decision;
        if decision.identity.in_process {
            return Ok(None);
        }
        let mut confinement =
            policy::confine(decision, target.timeout_ms, target.code.source.take())?;
        confinement.per_call.script.clone_from(&target.code.script);
        // A session has a recorder from its start, or none.
        let is_recorded = found.explain && target.code.session.is_none();
        if is_recorded || confinement.shape.observe {
            Arc::make_mut(&mut confinement.shape).record();
        }
        let tools = std::mem::take(&mut target.code.tools);
        // A script with `calls` runs alike for a caller who may call none of them.
        let is_script = confinement.per_call.source.is_none();
        let calls = is_script && !confinement.shape.calls.is_empty();
        let offers = calls || !tools.is_empty() || wants_shim(&confinement);
        confinement.per_call.offer = offers.then(|| policy::Offer {
            stubs: stubs(confinement.shape.runtime.language, &tools),
            tools: tools.iter().map(|tool| tool.manifest.id.clone()).collect(),
        });
        // Code that calls tools has pipes of its own, which no process has that waits.
        let is_alone = confinement.per_call.offer.is_none() && target.code.session.is_none();
        if confinement.shape.ready.is_some() && is_alone {
            let script = target.code.script.as_deref();
            confinement.per_call.ready = Some(ready::digest(&found.tool, decision, script));
        }
        if let Some(tool) = found.tool.manifest.mcp_tool() {
            let shape = &target.decided.shape_digest;
            confinement.per_call.ready = Some(ready::digest_of_server(&tool.server, shape));
        }
        confinement.per_call.env = Hidden(std::mem::take(&mut target.code.env));
        confinement.per_call.words = std::mem::take(&mut target.code.words);
        if decision.conditions.context {
            let context = admitted
                .context_of(target, confinement.per_call.timeout_ms)
                .to_string();
            let about = &mut confinement.per_call.about.0;
            about.insert(CONTEXT_VARIABLE.to_owned(), context);
        }
        confinement.per_call.bring(target.files.all.clone());
        let redaction = Arc::make_mut(&mut target.redaction);
        let server = confinement.shape.mcp.as_ref();
        let is_shared = server.is_some_and(|it| it.shared);
        let confining = Confining {
            ledger: &self.ledger,
            written: &found.decisions.snapshot.written,
            environment: admitted.environment.as_ref(),
            // What callers share is nobody's.
            caller: if is_shared {
                ""
            } else {
                &found.rights.caller.user
            },
            left: Duration::from_millis(confinement.per_call.timeout_ms)
                .saturating_sub(found.deadline.began.elapsed()),
        };
        confining.finish(&mut confinement, redaction).await?;
        // No log may show the host's own variables.
        redaction.hide_variables(&confinement.shape);
        record.redacts(&target.redaction);
        // The tool can continue the trace of its call, if its manifest declares these variables.
        if let Some(context) = &admitted.request.reporting.trace {
            for (name, text) in [
                ("TRACEPARENT", context.parent()),
                ("TRACESTATE", context.state()),
            ] {
                if let Some(policy::Variable::Literal(_)) = confinement.shape.env.get(name) {
                    let policy::PerCall { env, about, .. } = &mut confinement.per_call;
                    if !env.contains_key(name) {
                        about.0.insert(name.to_owned(), text);
                    }
                }
            }
        }
        let same = decision
            .shape
            .as_ref()
            .is_ok_and(|shape| Arc::ptr_eq(&confinement.shape, shape));
        let digest = if same {
            target.decided.shape_digest.clone()
        } else {
            confinement.shape.digest()
        };
        self.audit.keep(&confinement.shape, &digest)?;
        record.confined(&confinement, digest);
        Ok(Some(confinement))
    }

    /// Confines the call, and charges the rates of its tools.
    async fn prepare(
        &self,
        admitted: &mut Admitted,
        mut decided: Decided,
        record: &mut CallRecord,
    ) -> Result<Prepared, Fault> {
        let may_ask = decided.may_ask();
        if let Value::Object(input) = &mut decided.input {
            // What this host says of a client, no caller says.
            input.remove(CLIENT);
            if may_ask {
                input.insert(CLIENT.to_owned(), admitted.request.client.to_json());
            }
        }
        record.enters(Stage::Prepare);
        admitted.count(&self.limiter, &decided)?;
        let confinement = self.confine(&mut decided, admitted, record).await?;
        let decision = &decided.decided.decision;
        let ms = policy::time_ms(decision, decided.timeout_ms)?;
        let time_limit = confinement.is_none().then(|| Duration::from_millis(ms));
        record.sends(&decided.input);
        let call = Call {
            manifest: decided.found.tool.manifest.clone(),
            site: decided.site(),
            input: std::mem::take(&mut decided.input),
            confinement,
            service: decision.grants.service.clone(),
            output_bytes: decided.output_bytes(),
            session: admitted.session.call(&decided, &admitted.slot),
            environment: admitted.environment.clone(),
        };
        Ok(Prepared {
            call,
            context: admitted.context(&decided.found),
            time_limit,
            decided,
        })
    }

    /// Runs the call, and handles what comes from its tool. What runs in this process ends at its
    /// time limit here.
    async fn start(
        &self,
        admitted: &Admitted,
        executor: &dyn Executor,
        prepared: Prepared,
        stream: &mut EventStream,
        record: &mut CallRecord,
    ) -> Result<Run, Fault> {
        let Prepared {
            decided,
            call,
            context,
            time_limit,
        } = prepared;
        let _cancels = context.cancel.clone().drop_guard();
        record.enters(Stage::Run);
        if time_limit.is_some()
            && let Some(now) = self.decide_if_old(admitted, &decided, record).await
        {
            return Ok(Run::DecideAgain(Box::new(now)));
        }
        record.running()?;
        let mut answer = StreamedAnswer::new(&decided);
        let mut left = (Vec::new(), Vec::new());
        let (from_tool, mut received) = executor::channel(context.deadline.clone());
        let mut nested = self.nested_calls(admitted, &decided, &call);
        let is_confined = call.confinement.is_some();
        let ready = (call.confinement.as_ref()).and_then(|it| it.per_call.ready.clone());
        let ended = {
            let mut running = executor.run(&context, call, &from_tool);
            let until = context.deadline.began + time_limit.unwrap_or_default();
            let mut clock = std::pin::pin!(tokio::time::sleep_until(until.into()));
            loop {
                let message = tokio::select! {
                    biased;
                    // Polled first: otherwise a steady stream of events would starve the clock.
                    () = &mut clock, if time_limit.is_some() => {
                        let limit_ms = crate::base::millis(time_limit.unwrap_or_default());
                        break Ok(Outcome::new(Ending::TimedOut { limit_ms }, limit_ms));
                    }
                    // Wait for a slow reader. The tool then waits too.
                    Some(message) = received.next(), if !stream.is_behind() => message,
                    () = stream.hand_on() => continue,
                    () = progress(&mut nested) => continue,
                    ended = &mut running => break ended,
                };
                let (shape, reply) = match message {
                    FromTool::Event(event) => {
                        answer.push(event, record, stream).await?;
                        continue;
                    }
                    FromTool::NestedCall(call) => {
                        if let Some(nested) = &mut nested {
                            nested.start(call);
                        }
                        continue;
                    }
                    FromTool::Recheck(reply) => (None, reply),
                    FromTool::Opened(shape, reply) => (Some(shape), reply),
                    FromTool::Left(files, reply) => {
                        left = self.receive(files, &decided).await?;
                        let _ = reply.send(Ok(()));
                        continue;
                    }
                };
                if let Some(now) = self.decide_if_old(admitted, &decided, record).await {
                    record.runs(false);
                    return Ok(Run::DecideAgain(Box::new(now)));
                }
                if shape.as_ref().is_some_and(|shape| shape.ready.is_some()) {
                    self.ready.called(&decided.found.tool);
                }
                // An executor that is gone by now starts nothing.
                let recorded = shape.map_or(Ok(()), |shape| self.ledger.record(&shape));
                let _ = reply.send(recorded);
            }
        };
        // Their parent has ended.
        drop(nested);
        answer.finish(received, record, stream).await?;
        record.enters(Stage::Answer);
        record.ended(&ended);
        record.not_ready(ready.and_then(|digest| self.ready.refusal(&digest)));
        let said = is_confined.then_some(answer.logs.as_slice());
        let mask = &decided.redaction.mask;
        let mut outcome = ended.map_err(|fault| output::of_service(fault, said, mask))?;
        outcome.artifacts.extend(left.1);
        decided.redaction.apply(&mut outcome);
        let has_parts = answer.has_parts();
        if outcome.logs.is_empty() {
            outcome.logs = answer.logs;
        }
        Ok(Run::Ended(Box::new(Ran {
            decided,
            outcome,
            traffic: lock(&context.traffic).clone(),
            has_parts,
            left: left.0,
        })))
    }
}

impl Pipeline {
    /// The calls that the code of a call makes. `None`: it may call nothing.
    fn nested_calls(
        &self,
        admitted: &Admitted,
        decided: &Decided,
        call: &Call,
    ) -> Option<NestedCalls> {
        let confinement = call.confinement.as_ref()?;
        let Admitted {
            id, request, slot, ..
        } = admitted;
        let per_call = &confinement.per_call;
        let offer = per_call.offer.as_ref().filter(|it| !it.tools.is_empty())?;
        let above = request.parent.as_ref();
        let mut tools = above.map_or_else(Vec::new, |above| above.tools.clone());
        tools.extend_from_slice(&decided.tools);
        let advice = decided.found.call_advice(offer.tools.clone());
        let deadline = &decided.found.deadline;
        let mut pauses = above.map_or_else(Vec::new, |above| above.pauses.clone());
        pauses.push(deadline.pauses.clone());
        let seat = Arc::new(Semaphore::new(1));
        let lender = Lender {
            place: slot.running.clone(),
            seat: seat.clone(),
            pauses: deadline.pauses.clone(),
            parent: request.parent.clone(),
            rights: decided.found.rights.clone(),
            tools: decided.tools.clone(),
        };
        let script = per_call.script.as_ref().map(|it| it.file.digest.clone());
        let text = || sha256_hex(per_call.source.as_deref().unwrap_or_default().as_bytes());
        Some(NestedCalls {
            lending: self.limiter.clone().lend(lender).boxed(),
            service: self.for_code.upgrade()?,
            request: request.for_code(),
            parent: Parent {
                call: id.clone(),
                grants: confinement.shape.calls.as_slice().into(),
                offered: offer.tools.as_slice().into(),
                tools,
                depth: above.map_or(0, |above| above.depth + 1),
                refuse: Arc::new(move |id| advice.refuse(id)),
                seat,
                redaction: Arc::new(decided.redaction.for_nested()),
                code: AskingCode {
                    tool: decided.found.tool.reference(),
                    digest: script.unwrap_or_else(text),
                    calls: AGREED_CALLS,
                },
                pauses,
                agreements: Arc::default(),
            },
            deadline: deadline.clone(),
            most: confinement.shape.limits.get(Limit::NestedCalls),
            made: 0,
            running: FuturesUnordered::new(),
        })
    }
}

impl Admitted {
    /// What an executor knows of its call.
    fn context(&self, found: &FoundTool) -> executor::Context {
        let Rights {
            caller, principal, ..
        } = &found.rights;
        let trace = self.request.reporting.trace.as_ref();
        executor::Context {
            principal: principal.clone(),
            deadline: found.deadline.clone(),
            trace: trace.map(TraceContext::sent).unwrap_or_default(),
            ..executor::Context::new(&self.id, &caller.user, self.traffic.clone())
        }
    }

    /// What a script reads of its call, where its manifest requests that.
    fn context_of(&self, decided: &Decided, timeout_ms: u64) -> Value {
        let FoundTool {
            label,
            rights,
            deadline,
            ..
        } = &decided.found;
        let left = Duration::from_millis(timeout_ms).saturating_sub(deadline.began.elapsed());
        let ends =
            jiff::Timestamp::now() + jiff::SignedDuration::try_from(left).unwrap_or_default();
        let files = decided.files.all.iter();
        let files = files.map(|file| json!({ "name": file.name, "bytes": file.bytes }));
        json!({
            "callId": self.id,
            "user": label.as_ref().unwrap_or(&rights.caller.user),
            "deadline": ends.to_string(),
            "files": files.collect::<Vec<_>>(),
        })
    }

    /// Charges the rates of the tools that this call runs, each once, however often it is decided
    /// again.
    fn count(&mut self, limiter: &Limiter, decided: &Decided) -> Result<(), Fault> {
        let mut new = decided.tools.clone();
        new.retain(|tool| !self.counted.contains(tool));
        limiter.starts(&decided.found.rights, &new)?;
        self.counted.extend(new);
        Ok(())
    }

    /// The decision has changed. Refuses a call that a person approved as it was, and one whose
    /// decision keeps changing.
    fn change(&mut self) -> Result<(), Fault> {
        self.changes += 1;
        if self.is_approved {
            return Err(changed());
        }
        if self.changes >= CHANGES {
            return Err(unsettled());
        }
        self.environment = None;
        Ok(())
    }
}

fn unsettled() -> Fault {
    let message = "The tools or policies of this host kept changing while this call waited, so \
        nothing was run; try again.";
    Fault::new(Kind::ServiceError, message).retryable()
}
