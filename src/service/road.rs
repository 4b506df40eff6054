//! The road of one call: find → target → decide → confine → run → record.
//!
//! For: `Service::call`. In: a request. Out: the answer, or the fault that ends the call; everything else stands in the
//! record that the stages fill. Never: runs anything that policy did not confine, or that could not be recorded first.

use super::call_record::CallRecord;
use super::parts::Parts;
use super::request::{CallRequest, Event, Stream};
use super::shapes::{self, Client, Shape};
use super::stages::Stage;
use super::target::{Found, Target};
use super::traces::TraceContext;
use super::{Service, arguments, blocking, denials, format, hints, idempotency, packages, redact, secrets};
use crate::base::hidden::Hidden;
use crate::base::json::{self, Text, TooMuch};
use crate::base::lock;
use crate::manifest::Manifest;
use crate::packages::store::Held;
use crate::{executor, fault, policy, quantity, registry};
use executor::{Call, Ending, Outcome};
use fault::{Fault, Kind};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The member of a tool's input that tells what its client can be asked, and what it answered.
const CLIENT: &str = "$client";
/// The member of an envelope that holds the output.
const OUTPUT_DATA: &str = "outputData";

impl Service {
    /// The audit log is opened first, so that a refusal is recorded as surely as a run.
    pub(super) async fn road(
        &self,
        mut request: CallRequest,
        stream: &mut Stream,
        record: &mut CallRecord,
    ) -> Result<Text, Fault> {
        record.entry = Some(self.parts.audit.open()?);
        // First what costs nothing: who calls, how often, and whether there is such a tool for that caller.
        let rights = self.decisions()?.rights(&request.caller, request.label.as_deref());
        record.calls_as(&rights.caller);
        if !request.counted {
            self.guard.comes(&rights.share(""), rights.per_minute())?;
        }
        if let Some(fault) = request.refused.take() {
            let id = request.tool.split('@').next().unwrap_or_default();
            let withheld = fault.kind == Kind::ToolNotFoundError && !rights.may_call(id);
            record.denied_by = withheld.then(|| rights.name());
            return Err(fault);
        }
        let asked = self.found(&request, record).await?;
        let share = asked.rights.share(&asked.tool.manifest.id);
        record.turn = Some(Arc::new(self.guard.enter(&mut request, &share).await?));
        record.enters(Stage::Decide);
        drop(asked);
        let mut found = self.found(&request, record).await?;
        let tool = &found.tool;
        record.found(tool.clone());
        self.available(tool, &found.decided.decision)?;
        let limit = policy::time_ms(&found.decided.decision, found.asked_ms)?;
        let mut until = blocking::Until { began: found.came, limit: Duration::from_millis(limit) };
        let input = checked(&tool.manifest, request.arguments, found.asked_ms, until, record).await?;
        found
            .rights
            .accepts(&tool.manifest.id, &input)
            .inspect_err(|_| record.denied_by = Some(found.rights.name()))?;
        let input = match &request.idempotency_key {
            Some(key) => self.first_of(key, &found, input, until, record).await?,
            None => Some(input),
        };
        let Some(input) = input else { return Ok(Text::from(&Value::Null)) };
        let mut target = self.target(&found, input, record).await?;
        let mut attempt = target.attempt(&found, &self.breakers)?;
        if !target.decided.decision.confirm.is_empty() {
            // Nobody is held back while a person thinks.
            drop(attempt.take());
            record.enters(Stage::Confirm);
            found.came = self.agreed(&found, &mut target, request.approver, stream, record).await?;
            until.began = found.came;
            attempt = target.attempt(&found, &self.breakers)?;
        }
        self.guard.starts(&found.rights.share(&found.tool.manifest.id))?;
        let client = std::mem::take(&mut request.client);
        let may_ask = target.may_ask();
        if let (Value::Object(input), true) = (&mut target.input, may_ask) {
            input.insert(CLIENT.to_owned(), client.told());
        }
        let answer = self.answer(&found, &mut target, &client, stream, record, until).await;
        if record.asks.is_some() {
            // The same request with the answers is no repetition of this one.
            record.place = None;
        }
        attempt.into_iter().for_each(|attempt| attempt.ended(answer.as_ref().err()));
        Ok(record.hidden(answer?))
    }

    /// Takes the place of this request under its key, and gives its input back. `None`: the record has the outcome of the
    /// first that took it.
    async fn first_of(
        &self,
        key: &str,
        found: &Found,
        input: Value,
        until: blocking::Until,
        record: &mut CallRecord,
    ) -> Result<Option<Value>, Fault> {
        let (tool, asked_ms) = (found.tool.reference(), found.asked_ms);
        let long = found.tool.manifest.parameters.as_ref().is_none_or(|schema| schema.takes_long(&input));
        let digest = move || (idempotency::digest(&tool, &input, asked_ms), input);
        let (asked, input) = until.run(long, digest).await?;
        let find = || self.keys.find((&found.rights.caller.user, &found.rights.through), key, asked.clone());
        record.kept = match find()? {
            idempotency::Found::First(place) => {
                record.place = Some(place);
                return Ok(Some(input));
            }
            idempotency::Found::Kept(report) => Some(report),
            idempotency::Found::Open(mut ends) => {
                // The first has a place to run; whoever waits for it needs none, but counts among those that wait. Its
                // answer needs one, as every other.
                drop(input);
                record.step_aside();
                let _ = ends.changed().await;
                record.comes_back(&self.guard, &found.rights.share(&found.tool.manifest.id)).await;
                match find()? {
                    idempotency::Found::Kept(report) => Some(report),
                    _ => {
                        let message =
                            "The first call under this idempotency key did not run. Make the same call again.";
                        return Err(Fault::new(Kind::CancelledError, message).retryable());
                    }
                }
            }
        };
        Ok(None)
    }

    /// Runs the target; its answer, checked.
    async fn answer(
        &self,
        found: &Found,
        target: &mut Target,
        client: &Client,
        stream: &mut Stream,
        record: &mut CallRecord,
        until: blocking::Until,
    ) -> Result<Text, Fault> {
        let outcome = self.run(found, target, stream, record).await?;
        // A call that waited for its compiler may be past its limit: its answer is given `OVERDUE` all the same.
        let used_all = Instant::now().checked_sub(until.limit).unwrap_or(until.began);
        let until = blocking::Until { began: until.began.max(used_all), ..until };
        let (envelope, output) = judged(outcome, target, &found.tool, record)?;
        record.published()?;
        let shape = if envelope.is_some() { Shape::Plain } else { shapes::of(output.as_str())? };
        match shape {
            Shape::Plain => answer_fits(&found.tool.manifest, envelope, output, until).await,
            Shape::Content(content) => {
                if found.tool.manifest.output.is_some() {
                    let structured = content.structured.and_then(|part| json::compact(part.get().as_bytes()).ok());
                    let structured = structured.unwrap_or_else(|| Text::from(&Value::Null));
                    answer_fits(&found.tool.manifest, None, structured, until).await?;
                }
                Ok(output)
            }
            Shape::Asks(_) => {
                // What leaves this host holds no secret.
                let shown = record.hidden(output);
                if let Shape::Asks(questions) = shapes::of(shown.as_str())? {
                    target.asks(&questions, client, record)?;
                }
                Ok(Text::from(&Value::Null))
            }
        }
    }

    /// The tool that is asked for, under the tools and rules of this moment.
    async fn found(&self, request: &CallRequest, record: &mut CallRecord) -> Result<Found, Fault> {
        let came = Instant::now();
        let decisions = self.decisions()?;
        let rights = decisions.rights(&request.caller, request.label.as_deref());
        record.calls_as(&rights.caller);
        let tool = decisions.find(&request.tool, &rights).inspect_err(|_| {
            let id = request.tool.split('@').next().unwrap_or_default();
            record.denied_by = (!rights.may_call(id)).then(|| rights.name());
        })?;
        let decided = decisions.decided_for(&tool, blocking::Until::usual(came, request.timeout_ms)).await?;
        Ok(Found { rights, tool, decided, asked_ms: request.timeout_ms, explain: request.explain, came })
    }

    /// The built environment of a target that requires packages, held for the call. The time that this takes is not the
    /// call's: its clock starts when the environment is there, and the policy must be as it was.
    async fn furnished(
        &self,
        found: &Found,
        target: &Target,
        stream: &mut Stream,
    ) -> Result<(Option<Held>, Instant), Fault> {
        let decision = &target.decided.decision;
        let Some(need) = packages::Need::of(decision)? else { return Ok((None, found.came)) };
        let within = Duration::from_millis(policy::time_ms(decision, target.asked_ms)?);
        let (tell, mut lines) = tokio::sync::mpsc::channel(16);
        // A line that finds no room is one of many.
        let ready = self.packages.ready(need, within, move |line| _ = tell.try_send(line));
        tokio::pin!(ready);
        let ready = loop {
            tokio::select! {
                biased;
                ready = &mut ready => break ready?,
                Some(line) = lines.recv() => stream.push(Event::Preparing(format!("packages: {line}"))),
                () = stream.hand_on() => {}
            }
        };
        if !ready.built {
            return Ok((Some(ready.held), found.came));
        }
        let came = Instant::now();
        let now = self.decisions()?.decided_for(&found.tool, blocking::Until::usual(came, found.asked_ms)).await?;
        if now.decision.digest != found.decided.decision.digest {
            let message =
                "the policy of this tool changed while its packages were built, so nothing was run; try again";
            return Err(Fault::new(Kind::ServiceError, message).retryable());
        }
        Ok((Some(ready.held), came))
    }

    /// Confines the call, and keeps the text of its confinement beside the audit log. `None`: it runs in this process.
    async fn confined(
        &self,
        found: &Found,
        target: &mut Target,
        came: Instant,
        environment: Option<&Held>,
        record: &mut CallRecord,
    ) -> Result<Option<policy::Confinement>, Fault> {
        let decision = &target.decided.decision;
        if decision.in_process {
            return Ok(None);
        }
        let mut confinement = policy::confine(decision, target.asked_ms, target.source.take())?;
        if found.explain && !confinement.shape.observe {
            Arc::make_mut(&mut confinement.shape).observe = true;
        }
        let snapshot = self.parts.registry.snapshot();
        record.narrowed(self.parts.audit.ledger().leave_out(&mut confinement.shape, &snapshot.moved)?);
        if let Some(environment) = environment {
            packages::furnish(Arc::make_mut(&mut confinement.shape), environment);
        }
        let left = Duration::from_millis(confinement.per_call.timeout_ms).saturating_sub(came.elapsed());
        let values = secrets::values(&confinement.shape.secrets, &record.caller.user, left).await?;
        confinement.per_call.env = Hidden(std::mem::take(&mut target.env));
        for (grant, value) in confinement.shape.secrets.iter().zip(values) {
            let added = grant.header.is_some();
            record.hide(&value, !added);
            let to = if added { &mut confinement.per_call.secrets } else { &mut confinement.per_call.env };
            to.0.insert(grant.name.clone(), value);
        }
        continues(record.context(), &mut confinement);
        let same = decision.shape.as_ref().is_ok_and(|shape| Arc::ptr_eq(&confinement.shape, shape));
        let digest = if same { target.decided.shape_digest.clone() } else { confinement.shape.digest() };
        self.parts.audit.keep(&confinement.shape, &digest)?;
        record.confined(&confinement, digest, target.script.take());
        Ok(Some(confinement))
    }

    /// Confines and runs the target, and handles its events. What runs in this process ends at its time limit here.
    async fn run(
        &self,
        found: &Found,
        target: &mut Target,
        stream: &mut Stream,
        record: &mut CallRecord,
    ) -> Result<Outcome, Fault> {
        record.enters(Stage::Prepare);
        let (environment, came) = self.furnished(found, target, stream).await?;
        let confinement = self.confined(found, target, came, environment.as_ref(), record).await?;
        let decision = &target.decided.decision;
        // A script's time limit is its executor's; the methods of this process have none of their own.
        let limit = match confinement {
            Some(_) => None,
            None => Some(Duration::from_millis(policy::time_ms(decision, target.asked_ms)?)),
        };
        record.sends(&target.input);
        let call = Call {
            manifest: found.tool.manifest.clone(),
            site: target.site.clone(),
            input: std::mem::take(&mut target.input),
            confinement,
            service: decision.service.clone(),
            output_bytes: output_bytes(decision),
        };
        let cancel = CancellationToken::new();
        let _cancels = cancel.clone().drop_guard();
        let context = executor::Context {
            id: record.id.clone(),
            user: record.caller.user.clone(),
            cancel,
            came,
            ran: Arc::default(),
            traffic: record.traffic(),
            trace: record.context().map(TraceContext::sent).unwrap_or_default(),
            ledger: Some(Arc::new(self.parts.audit.clone())),
        };
        target.is_as_shown()?;
        record.running()?;
        record.enters(Stage::Run);
        let mut parts = Parts::of(decision);
        let (events, mut heard) = executor::events();
        let ended = {
            let mut running = target.executor.run(&context, call, &events);
            let clock = tokio::time::sleep(limit.map_or(Duration::MAX, |limit| limit.saturating_sub(came.elapsed())));
            tokio::pin!(clock);
            loop {
                tokio::select! {
                    biased;
                    // Polled first: events that are always ready would else keep the clock from being looked at.
                    () = &mut clock, if limit.is_some() => break Ok(timed_out(limit.unwrap_or_default())),
                    // A reader that is behind is waited for, and the tool waits with us.
                    Some(event) = heard.next(), if !stream.is_behind() => parts.told(event, record, stream)?,
                    () = stream.hand_on() => {}
                    ended = &mut running => break ended,
                }
            }
        };
        while let Some(event) = heard.sent() {
            parts.told(event, record, stream)?;
        }
        parts.rest(record, stream);
        record.enters(Stage::Answer);
        record.ended(&ended, heard.lost(), context.ran.get());
        ended
    }
}

pub(super) fn output_bytes(decision: &policy::Decision) -> u64 {
    let limit = quantity::Limit::OutputBytes;
    decision.limit(limit).map_or(limit.house_default(), |limit| limit.effective)
}

/// The tool goes on with the trace of its call, where its manifest declares these variables.
fn continues(context: Option<&TraceContext>, confinement: &mut policy::Confinement) {
    let Some(context) = context else { return };
    for (name, text) in [("TRACEPARENT", context.parent()), ("TRACESTATE", context.state())] {
        if let Some(policy::Variable::Literal(_)) = confinement.shape.env.get(name) {
            confinement.per_call.env.0.entry(name.to_owned()).or_insert(text);
        }
    }
}

/// The arguments, decoded and checked against the schema. Their secrets are marked before a fault can quote them.
async fn checked(
    manifest: &Arc<Manifest>,
    arguments: arguments::Arguments,
    asked_ms: Option<u64>,
    until: blocking::Until,
    record: &mut CallRecord,
) -> Result<Value, Fault> {
    let (given, written) = until.run(arguments.are_long(), move || arguments.decode()).await??;
    let given = arguments::with_timeout(manifest, given, asked_ms);
    let long = manifest.parameters.as_ref().is_some_and(|schema| schema.takes_long(&given));
    let (tool, of) = (manifest.clone(), manifest.clone());
    let (hidden, given) = until.run(long, move || (redact::of_arguments(&tool, &given), given)).await?;
    record.given(hidden);
    let check = move || -> Result<(redact::Masked, Value), Fault> {
        let input = crate::manifest::arguments::check_written(&of, given, &written)?;
        Ok((redact::of_arguments(&of, &input), input))
    };
    let (hidden, input) = until.run(long, check).await??;
    record.given(hidden);
    Ok(input)
}

/// What the outcome means: the envelope where the tool speaks one, and the output; or the fault, with what mends it.
fn judged(
    mut outcome: Outcome,
    target: &Target,
    tool: &registry::Tool,
    record: &mut CallRecord,
) -> Result<(Option<Value>, Text), Fault> {
    let decision = &target.decided.decision;
    let traffic = lock(&record.traffic()).clone();
    let about = denials::About { site: &target.site, decision };
    let reached = hints::limit_of(&outcome.ending);
    let set = reached.and_then(|(limit, _)| hints::limit(limit, decision, target.asked_ms));
    let reached = reached.and_then(|reached| denials::limit(reached, decision, set.clone()));
    let mut observed: Vec<_> = reached.into_iter().collect();
    observed.extend(denials::observed(&traffic, &outcome.attempts, &about));
    record.decent_denials(&mut observed);
    let refused = hints::Refused {
        network: denials::words(&traffic),
        network_mend: denials::mend(&traffic, &observed),
        denials: observed,
    };
    outcome.denials.observed.extend(refused.denials.iter().cloned());
    let (logs, printed_lines) = record.took(&mut outcome);
    let (printed, parts) = (outcome.usage.output_bytes, outcome.parts);
    let envelope = match &outcome.ending {
        Ending::Envelope { told, .. } => Some(told.clone()),
        _ if !target.enveloped => None,
        _ if logs.is_empty() => Some(json!({"success": true})),
        _ => Some(json!({"success": true, "logs": logs})),
    };
    let output = format::judge(outcome.ending, logs, &printed_lines).map_err(|fault| {
        let hints = hints::of_failure(&fault, printed, &refused, tool, decision);
        let details =
            [fault.details.clone(), hints.anyone].into_iter().flatten().reduce(|all, more| all + "\n" + &more);
        let person = fault.person.clone().or(set).or(hints.person);
        // The caller wrote the code of `core:run-code`, and can mend it.
        let by_caller = fault.by_caller || tool.manifest.id == policy::RUN_CODE && fault.kind == Kind::ScriptError;
        Fault { details, person, by_caller, ..fault }
    })?;
    Ok((envelope, if parts { joined(&tool.manifest, output) } else { output }))
}

/// The parts of a stream as one answer: their list, or one text where the tool's answer is declared as that.
fn joined(manifest: &Manifest, list: Text) -> Text {
    let is_text = manifest.output.as_ref().is_some_and(|schema| schema.raw["type"] == "string");
    match serde_json::from_str::<Vec<String>>(list.as_str()) {
        Ok(texts) if is_text => Text::from(&Value::String(texts.concat())),
        _ => list,
    }
}

/// The answer, checked against the output schema; an envelope is checked as a whole.
async fn answer_fits(
    manifest: &Arc<Manifest>,
    envelope: Option<Value>,
    output: Text,
    until: blocking::Until,
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
    let until = blocking::Until { limit: until.limit + quantity::OVERDUE, ..until };
    let (long, checked) = (output.as_str().len() > quantity::LARGE_TEXT_BYTES, manifest.clone());
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

fn timed_out(limit: Duration) -> Outcome {
    let limit_ms = crate::base::millis(limit);
    Outcome::of(Ending::TimedOut { limit_ms }, limit_ms)
}
