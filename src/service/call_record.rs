//! The record of one call: what each stage of the road found out, and the audit record that the call owes.
//!
//! For: the road. In: each thing as it becomes known. Out: a `Report`, one audit record and one run log record.
//! Never: ends without its audit record: when the call's future is dropped, `Drop` writes it as cancelled.

mod answer;
mod beside;
mod files;
mod kept;
mod line;
mod summary;

use super::calls::{Listed, Phase};
use super::guard::Turn;
use super::idempotency;
use super::record::{PART, Record, cut, cut_to, few};
use super::redact::{self, Mask, Shown};
use super::report::{Digests, Report};
use super::request::{CallRequest, Caller, new_id};
use super::script_digest::Script;
use super::shapes::Questions;
use super::stages::{Stage, Stages};
use super::traces::{CallSpan, TraceContext};
use super::verbose::Verbose;
use super::{audit, format};
use crate::base::json::Text;
use crate::base::{lock, millis, text};
use crate::egress::Traffic;
use crate::manifest::Handler;
use crate::quantity::Limit;
use crate::{executor, fault, policy, registry};
use fault::{Fault, Kind};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Longest target and longest line that would ask for one, characters.
const TARGET: usize = 200;
const ASK: usize = 2000;
/// Most log lines kept from events, where the outcome brings none.
const EVENT_LINES: usize = 1000;

pub(super) struct CallRecord {
    // The request.
    pub id: String,
    /// Who the call counts as.
    pub caller: Caller,
    /// Who authenticated, where that is another.
    through: Option<String>,
    /// On whose behalf the request says it comes.
    label: Option<String>,
    /// Its place among the calls that are open.
    pub listed: Option<Listed>,
    /// Its place under its idempotency key.
    pub place: Option<idempotency::Place>,
    /// The outcome of an earlier call, which this one gets.
    pub kept: Option<Arc<Report>>,
    /// Which earlier call that was.
    replayed: Option<String>,
    /// What of the file of callers refused it.
    pub denied_by: Option<String>,
    /// Who agreed to it, where a policy has a person asked.
    pub approved_by: Option<String>,
    transaction: Option<String>,
    asked: String,
    began: jiff::Timestamp,
    started: Instant,
    span: CallSpan,
    stages: Stages,
    /// What is told beside, where that was asked for.
    verbose: Option<Box<Verbose>>,
    // The place in the audit log, and among the calls that run.
    pub entry: Option<audit::Entry>,
    pub turn: Option<Arc<Turn>>,
    // find
    pub tool: Option<Arc<registry::Tool>>,
    arguments: ShownArguments,
    // target
    /// The answer is told as an envelope.
    pub enveloped: bool,
    // decide
    decided: Option<PolicySaid>,
    notes: policy::Notes,
    // confine
    confined: Option<Confined>,
    // run
    /// False: whatever happened, nothing of the tool ran.
    pub ran: bool,
    /// What the tool asks of its client.
    pub asks: Option<Questions>,
    seen: Seen,
}

/// The arguments, secrets hidden.
struct ShownArguments {
    mask: Mask,
    shown: Shown,
    /// The argument with the input of a script that the call names: shown once its secrets are known.
    withheld: Option<(String, Value)>,
}

struct PolicySaid {
    policy: String,
    digest: String,
    /// Where the work of a service elsewhere is asked for.
    service: Option<String>,
}

/// What the call may touch.
struct Confined {
    shape: Arc<policy::Shape>,
    limits: policy::Limits,
    digest: String,
    /// SHA-256 in hex of the script.
    script_digest: Option<String>,
    /// The script as it was when this digest was taken; `None`: the executor told the digest of what it ran.
    script: Option<Script>,
}

/// What was observed of the run.
#[derive(Default)]
struct Seen {
    /// The first bytes of a stdout that is not one JSON document.
    bad_output: String,
    logs: Vec<String>,
    /// The answer is what its parts said.
    streamed: bool,
    usage: executor::Usage,
    walls: executor::Walls,
    denials: executor::Denials,
    artifacts: Vec<executor::Artifact>,
    /// Filled while the call runs, and read however it ends.
    traffic: Arc<Mutex<Traffic>>,
}

impl CallRecord {
    pub fn begin(request: &CallRequest, span: CallSpan) -> CallRecord {
        CallRecord {
            id: request.id.clone().unwrap_or_else(new_id),
            caller: request.caller.clone(),
            through: None,
            label: request.label.as_deref().map(|label| cut_to(label, PART)),
            listed: None,
            place: None,
            kept: None,
            replayed: None,
            denied_by: None,
            approved_by: None,
            transaction: request.transaction.as_deref().map(|transaction| cut_to(transaction, PART)),
            asked: cut_to(&request.tool, PART),
            began: jiff::Timestamp::now(),
            started: Instant::now(),
            span,
            stages: Stages::begin(),
            verbose: request.verbose.then(Box::default),
            entry: None,
            turn: None,
            tool: None,
            arguments: ShownArguments { mask: Mask::default(), shown: Shown::Tree(Value::Null), withheld: None },
            enveloped: false,
            decided: None,
            notes: policy::Notes::default(),
            confined: None,
            ran: false,
            asks: None,
            seen: Seen::default(),
        }
    }

    /// Who the request counts as, by the rules.
    pub fn calls_as(&mut self, caller: &Caller) {
        if caller.user != self.caller.user {
            self.through = Some(std::mem::replace(&mut self.caller, caller.clone()).user);
            self.listed.iter().for_each(|listed| listed.change(|state| state.caller.clone_from(&caller.user)));
        }
    }

    pub fn through(&self) -> Option<&str> {
        self.through.as_deref()
    }

    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// A stage of the road begins.
    pub fn enters(&mut self, stage: Stage) {
        self.stages.enters(stage);
    }

    /// The trace that the call is part of.
    pub fn context(&self) -> Option<&TraceContext> {
        self.span.context()
    }

    /// Its id.
    pub fn trace(&self) -> Option<String> {
        self.context().map(TraceContext::id)
    }

    /// As JSON text, secrets hidden.
    pub fn shown_arguments(&self) -> String {
        self.arguments.mask.text(&self.arguments.shown.to_string())
    }

    /// The arguments with their secrets hidden: told before they are checked, and again with defaults filled in.
    /// Hides the environment for a script that the call names, and its input until the script is found.
    pub fn given(&mut self, (mask, shown): redact::Masked) {
        self.arguments = ShownArguments { mask, shown, withheld: None };
        let Some(tool) = &self.tool else { return };
        let Handler::ServiceMethod { service, parameter_map, .. } = &tool.manifest.handler else { return };
        let ShownArguments { mask, shown: Shown::Tree(Value::Object(arguments)), withheld } = &mut self.arguments
        else {
            return;
        };
        if service != policy::SCRIPT_SERVICE {
            return;
        }
        for (name, value) in arguments {
            match parameter_map.get(name).unwrap_or(name).as_str() {
                "env" => mask.hide(value),
                "inputData" => {
                    let hidden = Value::String(redact::HIDDEN.to_owned());
                    *withheld = Some((name.clone(), std::mem::replace(value, hidden)));
                }
                _ => {}
            }
        }
    }

    /// The script that a call names is found: the schemas of all its manifests say what of its input is secret.
    pub fn script_found<'s>(&mut self, schemas: impl Iterator<Item = &'s Value>, input: &Value, env: &[&str]) {
        let ShownArguments { mask, shown: arguments, withheld } = &mut self.arguments;
        mask.also(env.iter().copied());
        let (name, mut shown) = withheld.take().unwrap_or_else(|| (String::new(), input.clone()));
        for schema in schemas {
            let (secrets, hidden) = Mask::of(Some(schema), &shown);
            mask.join(secrets);
            shown = hidden;
        }
        if let Shown::Tree(arguments) = arguments
            && let Some(argument) = arguments.get_mut(&name)
        {
            *argument = shown;
        }
    }

    /// Policy has decided, for or against the call; the last decision counts.
    pub fn decided(&mut self, decision: &policy::Decision, notes: policy::Notes) {
        self.notes = policy::Notes { all: few(notes.all), told: few(notes.told) };
        self.verbose.iter_mut().for_each(|verbose| verbose.grants = policy::audit::touches(decision));
        let service = decision.service.as_ref().map(policy::ServiceGrant::place);
        let (policy, digest) = (decision.policy.clone(), decision.digest.clone());
        self.decided = Some(PolicySaid { policy, digest, service });
    }

    /// Texts that no log, record or answer may show. `known`: the tool has them.
    pub fn hide(&mut self, secret: &str, known: bool) {
        match known {
            true => self.arguments.mask.also(std::iter::once(secret)),
            false => self.arguments.mask.also_unknown(std::iter::once(secret)),
        }
    }

    /// Notes on what this call gets less than was decided for its tool.
    pub fn narrowed(&mut self, notes: policy::Notes) {
        self.notes.extend(policy::Notes { all: few(notes.all), told: few(notes.told) });
    }

    /// What the call may touch is settled.
    pub fn confined(&mut self, confinement: &policy::Confinement, digest: String, script: Option<Script>) {
        let shape = &confinement.shape;
        // No log may show the host's own variables. Those that the call brings are masked already.
        self.arguments.mask.also(shape.env.values().filter_map(policy::Variable::host));
        let mut limits = shape.limits.clone();
        limits.set(Limit::TimeoutMs, confinement.per_call.timeout_ms);
        let script_digest = script.as_ref().map(|script| script.digest.clone());
        self.confined = Some(Confined { shape: shape.clone(), limits, digest, script_digest, script });
    }

    /// Where the executor tells what the call does with its network.
    pub fn traffic(&self) -> Arc<Mutex<Traffic>> {
        self.seen.traffic.clone()
    }

    /// The executor starts. Keeps the record that this call leaves if this host is killed while it runs.
    pub fn running(&mut self) -> Result<(), Fault> {
        let Some(mut entry) = self.entry.take() else { return Ok(()) };
        let digests = self.digests();
        let record = Record {
            decision: "allowed",
            rule: self.ran_under(),
            service: self.asks_of(),
            outcome: Kind::InternalError.to_string(),
            message: Some("The host ended before this call did; how far the call came is not known.".to_owned()),
            ..self.line(None, &digests)
        };
        let kept = entry.begin(&record);
        self.entry = Some(entry);
        self.ran = kept.is_ok();
        if self.ran {
            self.listed
                .iter()
                .for_each(|listed| listed.change(|state| (state.phase, state.ran) = (Phase::Running, true)));
            let tool = self.tool.as_ref().map(|tool| tool.manifest.id.clone()).unwrap_or_default();
            self.place.iter_mut().for_each(|place| place.runs(&self.id, &tool));
        }
        kept
    }

    /// The executor is done. `lost`: lines of the log that nobody took in time. `digest`: of the script that ran, where
    /// the executor knows it.
    pub fn ended(&mut self, ended: &Result<executor::Outcome, Fault>, lost: u64, digest: Option<&String>) {
        self.not_heard(lost);
        if let (Some(confined), Some(digest)) = (&mut self.confined, digest) {
            confined.script_digest = Some(digest.clone());
            confined.script = None;
        }
        match ended {
            // The executor looked at the grants, or at the input, and refused: nothing was started.
            Err(fault) => {
                let refused = matches!(fault.kind, Kind::SecurityError | Kind::CapabilityError | Kind::DependencyError);
                self.ran &= !refused;
            }
            Ok(outcome) => {
                let limit = Limit::InputBytes;
                let refused =
                    matches!(outcome.ending, executor::Ending::OverLimit { limit: over, .. } if over == limit);
                self.ran &= !refused;
                if lost > 0 && outcome.logs.is_empty() {
                    self.log(&format!("toolhost: {lost} more lines came faster than they could be taken"));
                }
            }
        }
    }

    /// A text of the tool as a reader may see it.
    pub fn shown(&self, words: &str) -> String {
        text::printable(&self.arguments.mask.text(words))
    }

    /// A line of the log of a call whose outcome has no log of its own. Returns the line, secrets hidden.
    pub fn log(&mut self, line: &str) -> String {
        let line = self.shown(line);
        if self.seen.logs.len() < EVENT_LINES {
            self.seen.logs.push(cut(&line));
        }
        line
    }

    fn digests(&self) -> Digests {
        let confined = self.confined.as_ref();
        Digests {
            manifest: self.tool.as_ref().map(|tool| tool.manifest.digest.clone()),
            script: confined.and_then(|confined| confined.script_digest.clone()),
            policy: self.decided.as_ref().map(|decided| decided.digest.clone()),
            confinement: confined.map(|confined| confined.digest.clone()),
        }
    }

    /// Takes over what the executor observed. Returns the log lines and the end of stdout, secrets hidden.
    pub fn took(&mut self, outcome: &mut executor::Outcome) -> (&[String], Vec<String>) {
        if let Some(confined) = &mut self.confined
            && confined.script.take().is_some_and(|script| !script.stayed())
        {
            // What was hashed need not be what ran.
            confined.script_digest = None;
            self.notes.all.push("the script changed while the call ran: its digest is not known".to_owned());
        }
        let mask = &self.arguments.mask;
        let seen = &mut self.seen;
        if !outcome.logs.is_empty() {
            seen.logs = outcome.logs.drain(..).map(|line| mask.text(&line)).collect();
        }
        if let executor::Ending::BadOutput { head, .. } = &outcome.ending {
            seen.bad_output.clone_from(head);
        }
        seen.streamed = outcome.parts;
        seen.usage = outcome.usage.clone();
        seen.walls = std::mem::take(&mut outcome.walls);
        seen.denials = std::mem::take(&mut outcome.denials);
        let printed: Vec<String> = outcome.printed.drain(..).map(|line| mask.text(&line)).collect();
        self.wrote_out(&outcome.ending, &printed);
        self.wrote(std::mem::take(&mut outcome.artifacts));
        (&self.seen.logs, printed)
    }

    /// What the call did with its network until now, secrets hidden: of one that may reach hosts, or was seen to try.
    fn network(&self) -> Option<Traffic> {
        let networked = self.confined.as_ref().is_some_and(|confined| !confined.shape.network.hosts().is_empty());
        let mut traffic = lock(&self.seen.traffic).clone();
        if !networked && traffic.events.is_empty() {
            return None;
        }
        for event in &mut traffic.events {
            event.target = self.arguments.mask.text(&event.target);
            event.refused =
                event.refused.take().map(|refusal| refusal.with_text(|text| self.arguments.mask.text(text)));
        }
        Some(traffic)
    }

    /// Closes the call: the record, the run log, the report.
    pub fn finish(mut self, result: Result<Text, Fault>) -> Report {
        let mut result = result.map_err(|fault| self.decent(self.midway(fault)));
        for line in &mut self.seen.logs {
            *line = text::printable(line);
        }
        if !self.ran || self.seen.usage == executor::Usage::default() {
            self.seen.usage.wall_ms = millis(self.started.elapsed());
        }
        if let Err(fault) = self.record(result.as_ref().err()) {
            // A call that left no record must not count as a success.
            result = Err(fault);
        }
        self.log_run(&result);
        let verbose = self.told_beside(&result);
        let network = self.network();
        let seen = std::mem::take(&mut self.seen);
        let (output_data, error) = match result {
            Ok(value) => (Some(value), None),
            Err(fault) => (None, Some(fault)),
        };
        let report = Report {
            id: std::mem::take(&mut self.id),
            tool: self.tool.as_ref().map_or_else(|| text::printable(&self.asked), |tool| tool.manifest.id.clone()),
            version: self.tool.as_ref().map(|tool| tool.manifest.version.to_string()),
            success: error.is_none(),
            output_data,
            error,
            logs: seen.logs,
            usage: seen.usage,
            walls: seen.walls,
            denials: seen.denials,
            artifacts: seen.artifacts,
            network,
            digests: self.digests(),
            notes: std::mem::take(&mut self.notes.told),
            asks: self.asks.take(),
            verbose,
            manifest: self.tool.as_ref().map(|tool| tool.manifest.clone()),
            speaks_envelope: self.enveloped,
            streamed: seen.streamed,
            turn: self.turn.take(),
        };
        self.owes(&report);
        report
    }

    /// A refusal for the number of calls; `before`: how many have no record. `None`: this one has none either.
    pub fn one_of_many(&mut self, before: Option<u64>) {
        match before {
            // What ran is recorded, whatever it ended with.
            _ if self.ran => {}
            Some(0) => {}
            Some(before) => self.notes.all.push(format!("{before} such refusals before this one have no record")),
            None => drop(self.entry.take()),
        }
    }

    /// Denials that show no secret and no control character, and are not long.
    pub fn decent_denials(&self, denials: &mut [executor::Denial]) {
        let decent = |text: &str, most| text::head(&text::printable(&self.arguments.mask.text(text)), most);
        for denial in denials {
            denial.target = decent(&denial.target, TARGET);
            denial.rule = decent(&denial.rule, TARGET);
            denial.ask = denial.ask.take().map(|ask| decent(&ask, ASK));
        }
    }

    /// A fault whose words carry no secret and no control character.
    fn decent(&self, mut fault: Fault) -> Fault {
        fault.message = text::printable(&self.arguments.mask.text(&fault.message));
        fault.flaws.iter_mut().for_each(|flaw| *flaw = text::printable(&self.arguments.mask.text(flaw)));
        fault.details = fault.details.map(|details| format::shown(&self.arguments.mask.text(&details)));
        fault.person = fault.person.map(|words| format::shown(&self.arguments.mask.text(&words)));
        fault
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.entry.is_some() {
            let fault = self.midway(format::cancelled());
            self.seen.usage.wall_ms = millis(self.started.elapsed());
            // Nobody waits for an answer any more; the record is all that can be saved.
            let written = self.record(Some(&fault));
            self.log_run(&Err(written.err().unwrap_or(fault)));
        }
    }
}
