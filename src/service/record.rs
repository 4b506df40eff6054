//! The record of one call: each stage notes what it found out, and the end of the call is one
//! `CallEnded`.
//!
//! Secrets are hidden here, before anything leaves. A call that is dropped is recorded as
//! cancelled.

use super::audit::log::RecordPermit;
use super::call_ended::{
    AuditRecord, CUT, CallEnded, Decision, PART, Stage, events, few, manifest, rule, violations,
};
use super::calls::{CallState, OpenCall, Phase};
use super::meters::Meter;
use super::quota::Slot;
use super::redact::{self, RecordArguments};
use super::report::{CallResult, Report};
use super::request::{CallRequest, Caller, new_id};
use super::traces::context::TraceContext;
use super::traces::spans::CallSpan;
use super::{output, runlog};
use crate::base::files::Stamp;
use crate::base::mask::{HIDDEN, Mask, TextStream};
use crate::base::text::{self, cut as cut_to};
use crate::base::{lock, millis};
use crate::egress::Traffic;
use crate::manifest::{Handler, Language};
use crate::quantity::{LARGE_TEXT_BYTES, Limit};
use crate::{executor, fault, policy, registry};
use executor::{CallDeadline, Denial, Ending};
use fault::{Fault, Kind};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Longest target of a denial, and longest line that would request it, characters.
const TARGET: usize = 200;
const ASK: usize = 2000;
/// Longest beginning of a bad output, characters.
const BAD_OUTPUT: usize = 200;
/// Most log lines kept from events, where the outcome brings none.
const EVENT_LINES: usize = 1000;
/// Most files in a report: published, and not published. A tool can write as many as it likes.
const FILES: (usize, usize) = (1000, 50);

pub(super) struct CallRecord {
    /// Who authenticated: written once.
    principal: String,
    /// Its line of the audit log, as far as that is known.
    line: AuditRecord,
    /// The first begins when the request was received.
    stages: Vec<(Stage, Instant)>,
    /// Where the end of the call is told.
    pub sinks: RecordSinks,
    /// The rule of the file of callers, or of an approval, that refused the call.
    pub denied_by: Option<String>,
    pub tool: Option<Arc<registry::Tool>>,
    arguments: ShownArguments,
    /// The policy that decided, and the place of the tool service, if there is one.
    decided: Option<(String, Option<String>)>,
    /// Notes of the last decision and of the call itself.
    notes: policy::Notes,
    /// False: nothing of the tool ran.
    pub ran: bool,
    run: RunRecord,
    /// What the caller gets, as far as that is known.
    pub report: Report,
}

/// Where the end of a call is told.
pub(super) struct RecordSinks {
    span: CallSpan,
    pub meter: Option<Meter>,
    pub listed: Option<OpenCall>,
    /// The permit to write its line of the audit log, until that is written.
    pub entry: Option<RecordPermit>,
}

/// What was seen of a run.
#[derive(Default)]
struct RunRecord {
    confined: Option<Confined>,
    bad_output: String,
    /// Filled while the call runs, and read however it ends.
    traffic: Arc<Mutex<Traffic>>,
}

#[derive(Clone, Default)]
struct ShownArguments {
    mask: Mask,
    /// Only the secrets that this host gives: names of members, and what operators read, are
    /// searched for these.
    host: Mask,
    shown: RecordArguments,
    /// The argument with the input of a script that the call names: shown once its secrets are
    /// known.
    withheld: Option<(String, Value)>,
    hides_unmarked: bool,
}

/// Hides secrets in an answer.
pub(super) struct AnswerMask {
    mask: Mask,
    host: Mask,
    joins: bool,
}

impl AnswerMask {
    /// A JSON text with the secrets hidden. `None`: there is nothing to hide.
    pub fn read(&self, json: &str) -> Option<String> {
        self.mask.answer(json, &self.host, self.joins)
    }
}

struct Confined {
    shape: Arc<policy::Shape>,
    /// The script's file when it was read.
    stamp: Option<Stamp>,
}

impl Confined {
    /// Whether the tool may have seen another file in the place of its script: the kernel takes a
    /// mount away when its mount point is renamed or removed. (The code of a module has no place.)
    fn lost_script(&self) -> bool {
        let path = self
            .shape
            .script
            .as_ref()
            .filter(|_| self.shape.runtime.language != Language::Wasm);
        path.is_some_and(|path| Stamp::at(path).ok() != self.stamp)
    }
}

impl CallRecord {
    pub fn begin(request: &CallRequest, span: CallSpan) -> CallRecord {
        let verbose = request.verbose.then(Box::default);
        let id = request.id.clone().unwrap_or_else(new_id);
        fn part(text: &str) -> String {
            cut_to(text, PART)
        }
        let line = AuditRecord {
            time: jiff::Timestamp::now().to_string(),
            call: id,
            user: request.caller.user.clone(),
            label: request.label.clone(),
            transaction: request.transaction.as_deref().map(part),
            trace: span.context().map(TraceContext::id),
            tool: part(&request.tool),
            ..AuditRecord::default()
        };
        CallRecord {
            principal: request.caller.user.clone(),
            line,
            stages: vec![(Stage::Turn, Instant::now())],
            sinks: RecordSinks {
                span,
                meter: None,
                listed: None,
                entry: None,
            },
            denied_by: None,
            tool: None,
            arguments: ShownArguments::default(),
            decided: None,
            notes: policy::Notes::default(),
            ran: false,
            run: RunRecord::default(),
            report: Report {
                verbose,
                layers: Some(executor::Layers::default()),
                ..Report::default()
            },
        }
    }

    fn state(&self, change: impl FnOnce(&mut CallState)) {
        if let Some(listed) = &self.sinks.listed {
            listed
                .calls
                .change(&self.line.call, |call| change(&mut call.state));
        }
    }

    /// Who the request counts as, by the rules.
    pub fn set_caller(&mut self, caller: &Caller) {
        if caller.user != self.line.user {
            self.line.user.clone_from(&caller.user);
            self.line.through = self.through().map(str::to_owned);
            self.state(|state| state.caller.clone_from(&caller.user));
        }
    }

    pub fn id(&self) -> &str {
        &self.line.call
    }

    /// Who the call counts as.
    pub fn caller(&self) -> &str {
        &self.line.user
    }

    pub fn principal(&self) -> &str {
        &self.principal
    }

    pub fn through(&self) -> Option<&str> {
        Some(self.principal.as_str()).filter(|principal| *principal != self.line.user)
    }

    pub fn label(&self) -> Option<&str> {
        self.line.label.as_deref()
    }

    pub fn approved(&mut self, by: &str) {
        self.line.approved_by = Some(by.to_owned());
    }

    pub fn enters(&mut self, stage: Stage) {
        self.stages.push((stage, Instant::now()));
    }

    pub fn context(&self) -> Option<&TraceContext> {
        self.sinks.span.context()
    }

    pub fn found(&mut self, tool: Arc<registry::Tool>) {
        self.state(|state| state.tool = tool.reference());
        self.report.digests.manifest = Some(tool.manifest.digest.clone());
        self.line.tool.clone_from(&tool.manifest.id);
        self.line.version = Some(tool.manifest.version.to_string());
        self.line.manifest = manifest(&tool.site);
        self.tool = Some(tool);
    }

    /// The arguments as an operator reads them. What a caller brings as secret is hidden where it
    /// stands, and nowhere else: otherwise a caller could decide what an operator does not see.
    pub fn shown_arguments(&self) -> String {
        let shown = self.arguments.shown.to_string();
        self.arguments.host.record(&shown).unwrap_or(shown)
    }

    /// Whether more of the arguments is hidden than what a schema marks as secret.
    pub fn hides_unmarked(&self) -> bool {
        self.arguments.hides_unmarked
    }

    /// The arguments with their secrets hidden: noted before they are checked, and again with
    /// defaults filled in.
    pub fn given(&mut self, given: redact::Masked) {
        // What was hidden before stays hidden, whatever is decided now.
        self.arguments.mask.join(given.mask);
        (self.arguments.shown, self.arguments.withheld) = (given.shown, given.withheld);
        self.arguments.hides_unmarked = given.hides_unmarked;
    }

    /// The script that a call names is found: the schemas of all its manifests say what of its
    /// input is secret.
    pub fn script_found<'s>(&mut self, schemas: impl Iterator<Item = &'s Value>, input: &Value) {
        let ShownArguments {
            mask,
            shown: arguments,
            withheld,
            hides_unmarked,
            ..
        } = &mut self.arguments;
        let (name, mut shown) = withheld
            .take()
            .unwrap_or_else(|| (String::new(), input.clone()));
        for schema in schemas {
            let redacted = redact::hide(schema, &shown);
            mask.join(redacted.mask);
            shown = redacted.shown;
            *hides_unmarked |= redacted.hides_unmarked;
        }
        if let RecordArguments::Tree(arguments) = arguments
            && let Some(argument) = arguments.get_mut(&name)
        {
            *argument = shown;
        }
    }

    pub fn decided(&mut self, decision: &policy::Decision, notes: policy::Notes) {
        self.notes = policy::Notes {
            all: few(notes.all),
            for_caller: few(notes.for_caller),
        };
        if let Some(verbose) = &mut self.report.verbose {
            verbose.grants = policy::audit::touches(decision);
        }
        self.report.digests.policy = Some(decision.governing.digest.clone());
        self.decided = Some((
            decision.governing.policy.clone(),
            decision
                .grants
                .service
                .as_ref()
                .map(policy::ServiceGrant::place),
        ));
    }

    /// Hides a text of this host in all logs, records and answers.
    pub fn hide(&mut self, name: &str, secret: &str) {
        self.arguments.mask.add(secret);
        self.arguments
            .host
            .add_as(secret, &format!("[secret {name}]"));
    }

    /// Records the final confinement of the call.
    pub fn confined(&mut self, confinement: &policy::Confinement, digest: String) {
        let shape = &confinement.shape;
        // No log may show the host's own variables. What the call brings is not a secret of this
        // host.
        for (name, variable) in &shape.env {
            variable
                .host()
                .into_iter()
                .for_each(|value| self.hide(name, value));
        }
        let mut limits = shape.limits.clone();
        limits.set(Limit::TimeoutMs, confinement.per_call.timeout_ms);
        let script = confinement
            .per_call
            .script
            .as_ref()
            .map(|script| &script.file);
        self.report.digests.script = script.map(|script| script.digest.clone());
        self.report.digests.confinement = Some(digest);
        self.line.limits = Some(limits);
        self.run.confined = Some(Confined {
            shape: shape.clone(),
            stamp: script.map(|script| script.stamp),
        });
    }

    /// The slot of the call, unless its answer is being delivered.
    pub fn slot(&mut self) -> Option<&mut Slot> {
        self.report.slot.as_mut().and_then(Arc::get_mut)
    }

    /// Gives up the slot while the call waits. The call still counts as waiting, and keeps the
    /// memory of its arguments.
    pub fn step_aside(&mut self) {
        self.slot().into_iter().for_each(Slot::step_aside);
    }

    /// Where the executor notes what the call does with its network.
    pub fn traffic(&self) -> Arc<Mutex<Traffic>> {
        lock(&self.run.traffic)
            .principal
            .clone_from(&self.principal);
        self.run.traffic.clone()
    }

    pub fn sends(&mut self, input: &Value) {
        if self.report.verbose.is_some() {
            let stdin = input.to_string();
            let stdin = self.mask().read(&stdin).unwrap_or(stdin);
            self.report
                .verbose
                .iter_mut()
                .for_each(|verbose| verbose.stdin.clone_from(&stdin));
        }
    }

    /// Writes the begin record, just before the executor starts.
    pub fn running(&mut self) -> Result<(), Fault> {
        let Some(mut entry) = self.sinks.entry.take() else {
            return Ok(());
        };
        self.ran = true;
        let killed = "The host ended before this call did; how far the call came is not known.";
        let begun = entry.begin(&self.line(Some(&Fault::new(Kind::InternalError, killed))));
        self.sinks.entry = Some(entry);
        self.runs(begun.is_ok());
        begun
    }

    /// Sets whether something of the call runs.
    pub fn runs(&mut self, ran: bool) {
        self.ran = ran;
        let phase = if ran { Phase::Running } else { Phase::Waiting };
        self.state(|state| (state.phase, state.ran) = (phase, ran));
    }

    /// A text of the tool as a reader may see it.
    pub fn shown(&self, words: &str) -> String {
        shown(&self.arguments.mask, words)
    }

    /// Adds a log line, for a call whose outcome has no log of its own. Returns the line, secrets
    /// hidden.
    pub fn log(&mut self, line: &str) -> String {
        let line = self.shown(line);
        if self.report.logs.len() < EVENT_LINES {
            self.report.logs.push(cut_to(&line, CUT));
        }
        line
    }

    /// Like `log`, for a line of the tool, which the run log gets, too.
    pub fn add_log(&mut self, line: &str) -> String {
        let line = self.log(line);
        let tool = self.tool.as_ref().map_or("", |tool| &tool.manifest.id);
        runlog::line(&self.line.call, || self.line.trace.clone(), tool, &line);
        line
    }

    /// Records that the executor is done. `lost`: log lines that were dropped.
    pub fn ended(&mut self, ended: &Result<executor::Outcome, Fault>, lost: u64) {
        if lost > 0 {
            self.add_log(&format!(
                "toolhost: {lost} more lines came too fast for this log"
            ));
        }
        // The executor refused, or the same call can be made again: nothing was started.
        let outside = self.run.confined.is_some()
            || self
                .decided
                .as_ref()
                .is_some_and(|(_, service)| service.is_some());
        let again = outside && ended.as_ref().is_err_and(|fault| fault.retryable);
        let refused = [
            Kind::SecurityError,
            Kind::CapabilityError,
            Kind::DependencyError,
        ];
        self.ran &= match ended {
            Err(fault) => !again && !refused.contains(&fault.kind),
            Ok(outcome) => !matches!(
                outcome.ending,
                Ending::OverLimit {
                    limit: Limit::InputBytes,
                    ..
                }
            ),
        };
    }

    /// Takes over what the executor observed. Returns the log lines and the end of stdout, secrets
    /// hidden.
    pub fn absorb_outcome(&mut self, outcome: &mut executor::Outcome) -> (&[String], Vec<String>) {
        if self
            .run
            .confined
            .as_ref()
            .is_some_and(Confined::lost_script)
        {
            self.report.digests.script = None;
            self.notes
                .all
                .push("the script changed while the call ran: its digest is not known".to_owned());
        }
        let mask = &self.arguments.mask;
        if !outcome.logs.is_empty() {
            self.report.logs = mask.lines(&outcome.logs);
        }
        if let Ending::BadOutput { head, .. } = &mut outcome.ending {
            *head = text::head(&mask.text(head), BAD_OUTPUT);
            self.run.bad_output.clone_from(head);
        }
        let printed = mask.lines(&outcome.printed);
        self.report.streamed = outcome.parts;
        self.report.usage = outcome.usage.clone();
        self.report.layers = Some(std::mem::take(&mut outcome.layers));
        self.report.denials = std::mem::take(&mut outcome.denials);
        if let Some(mut verbose) = self.report.verbose.take() {
            verbose.stdout = match &outcome.ending {
                Ending::Answered(answer) => mask.text(answer.head(usize::MAX)),
                Ending::BadOutput { .. } => self.run.bad_output.clone(),
                _ => printed.join("\n"),
            };
            self.report.verbose = Some(verbose);
        }
        let files = std::mem::take(&mut outcome.artifacts);
        let (mut published, mut dropped): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.published);
        // The failed ones, which fail the call, come first and are cut last.
        dropped.sort_by_key(|file| !file.failed);
        for (files, most, what) in [
            (&mut published, FILES.0, "were"),
            (&mut dropped, FILES.1, "were not"),
        ] {
            if files.len() > most {
                self.notes.narrowed(format!(
                    "{} more files {what} published",
                    files.len() - most
                ));
                files.truncate(most);
            }
        }
        self.report.artifacts = [published, dropped].concat();
        (&self.report.logs, printed)
    }

    /// Files that were not published: noted, or, where this host failed to write one, a failure of
    /// the call.
    pub fn published(&mut self) -> Result<(), Fault> {
        let missing: Vec<_> = self
            .report
            .artifacts
            .iter()
            .filter(|artifact| !artifact.published)
            .collect();
        fn line(artifact: &&executor::Artifact) -> String {
            let why = artifact
                .dropped_because
                .as_deref()
                .unwrap_or("it was dropped");
            format!("not published: {}: {why}", artifact.path)
        }
        let failed = missing.iter().any(|file| file.failed);
        let lines = missing.iter().map(line).collect::<Vec<_>>();
        let ShownArguments { mask, host, .. } = &self.arguments;
        for (mask, notes) in [
            (host, &mut self.notes.all),
            (mask, &mut self.notes.for_caller),
        ] {
            notes.extend(few(lines.iter().map(|line| shown(mask, line)).collect()));
        }
        if !failed {
            return Ok(());
        }
        let all = lines
            .iter()
            .map(|line| text::printable(line))
            .collect::<Vec<_>>()
            .join("\n");
        let message =
            "The tool answered, but not all of its files could be written to their folder.";
        Err(Fault::new(Kind::InternalError, message).details(all))
    }

    /// Hides secrets in what a tool answers: it may give back what it was given.
    pub fn mask(&self) -> AnswerMask {
        let ShownArguments { mask, host, .. } = self.arguments.clone();
        AnswerMask {
            mask,
            host,
            joins: self.report.streamed,
        }
    }

    /// Takes the next text of a streamed answer, and returns what can be shown now. `None`: returns
    /// the rest.
    pub async fn piece(
        &mut self,
        deadline: &CallDeadline,
        buffer: &mut TextStream,
        text: Option<String>,
    ) -> Result<String, Fault> {
        let is_long = text
            .as_ref()
            .is_some_and(|text| text.len() > LARGE_TEXT_BYTES);
        let mask = self.arguments.mask.clone();
        let mut stream = std::mem::take(buffer);
        let (shown, stream) = deadline
            .run(is_long, move || {
                (mask.piece(&mut stream, text.as_deref()), stream)
            })
            .await?;
        *buffer = stream;
        if buffer.hid {
            self.notes_hidden();
        }
        Ok(shown)
    }

    pub fn notes_hidden(&mut self) {
        let words =
            format!("the answer held a secret argument or variable: it is shown as {HIDDEN}");
        if !self.notes.for_caller.contains(&words) {
            self.notes.narrowed(words);
        }
    }

    /// Denials as the caller gets them.
    pub fn shown_denials(&self, denials: &[Denial]) -> Vec<Denial> {
        shown_denials(&self.arguments.mask, denials)
    }

    /// Hides secrets and control characters in a fault.
    fn sanitize(&self, mut fault: Fault) -> Fault {
        let block = |text: String| text::printable_block(&self.arguments.mask.text(&text));
        fault.message = self.shown(&fault.message);
        fault
            .flaws
            .iter_mut()
            .for_each(|flaw| *flaw = self.shown(flaw));
        fault.details = fault.details.map(block);
        fault.person = fault.person.map(block);
        fault
    }

    /// One of many refusals. `before`: how many before it have no record. `None`: this one gets
    /// none either.
    pub fn one_of_many(&mut self, before: Option<u64>) {
        match before {
            Some(0) => {}
            Some(before) => self.notes.all.push(format!(
                "{before} such refusals before this one have no record"
            )),
            None => drop(self.sinks.entry.take()),
        }
    }

    /// Makes the one value that the call leaves, and has it recorded, logged, traced and counted.
    pub fn end(&mut self, result: CallResult) -> CallEnded {
        // A call that was cancelled while it ran cannot be made again.
        let result = result.map_fault(|fault| {
            if self.ran && fault.kind == Kind::CancelledError {
                output::cancelled_midway(fault)
            } else {
                fault
            }
        });
        let began = self.stages[0].1;
        let took = began.elapsed();
        if !self.ran || self.report.usage == executor::Usage::default() {
            self.report.usage.wall_ms = millis(took);
        }
        self.notes.all = few(std::mem::take(&mut self.notes.all));
        let line = self.line(result.fault());
        let network = self.network(&self.arguments.mask);
        let (executor, command) = self.executor_and_command();
        let tool = self.tool.as_ref();
        let mut report = std::mem::take(&mut self.report);
        report.denials.observed = self.shown_denials(&report.denials.observed);
        report
            .artifacts
            .iter_mut()
            .for_each(|file| file.path = self.arguments.mask.text(&file.path));
        report
            .logs
            .iter_mut()
            .for_each(|line| *line = text::printable(line));
        report.id.clone_from(&self.line.call);
        report.tool = text::printable(&line.tool);
        report.version.clone_from(&line.version);
        report.manifest = tool.map(|tool| tool.manifest.clone());
        report.outcome = result.map_fault(|fault| self.sanitize(fault));
        report.network = network;
        report.notes = std::mem::take(&mut self.notes.for_caller);
        let ends = self
            .stages
            .iter()
            .skip(1)
            .map(|(_, began)| *began)
            .chain([began + took]);
        let mut ended = CallEnded {
            caller: self.line.user.clone(),
            tool: tool.map_or_else(|| line.tool.clone(), |tool| tool.reference()),
            policy: self
                .decided
                .as_ref()
                .map_or_else(String::new, |(policy, _)| policy.clone()),
            executor,
            command,
            bad_output: std::mem::take(&mut self.run.bad_output),
            stages: self
                .stages
                .iter()
                .zip(ends)
                .map(|((stage, at), end)| (*stage, *at - began, end - *at))
                .collect(),
            took,
            line,
            report,
        };
        ended.report.verbose = ended
            .report
            .verbose
            .take()
            .map(|known| Box::new(ended.verbose(&known)));
        self.sinks
            .entry
            .take()
            .into_iter()
            .for_each(|entry| entry.write(&ended.line));
        runlog::call(&ended);
        self.sinks.span.end(&ended);
        self.sinks
            .meter
            .take()
            .into_iter()
            .for_each(|meter| meter.count(&ended));
        self.sinks
            .listed
            .take()
            .into_iter()
            .for_each(|listed| listed.end(&ended.report.outcome));
        ended
    }

    /// What an operator reads: searched for secrets of this host alone, so that no caller hides
    /// what a tool did.
    fn line(&self, fault: Option<&Fault>) -> AuditRecord {
        let host = &self.arguments.host;
        let message = fault.map(|fault| shown(host, &fault.message));
        let denials = shown_denials(host, &self.report.denials.observed);
        let decision = if self.ran {
            Decision::Allowed
        } else {
            Decision::Refused
        };
        let (policy, service) = self.decided.clone().unzip();
        let policy = policy.map(|policy| format!("policy {policy}"));
        let rule = match (fault.filter(|_| !self.ran), &self.denied_by) {
            (None, _) => policy.unwrap_or_else(|| "in-process".to_owned()),
            (Some(_), Some(denied_by)) => denied_by.clone(),
            (Some(fault), None) => match rule(fault.kind) {
                "policy" => policy.unwrap_or_else(|| "policy".to_owned()),
                rule => rule.to_owned(),
            },
        };
        AuditRecord {
            digests: self.report.digests.clone(),
            decision,
            rule,
            service: service
                .flatten()
                .filter(|_| self.ran)
                .as_deref()
                .map(|text: &str| cut_to(text, PART)),
            outcome: fault.map_or_else(|| "success".to_owned(), |fault| fault.kind.to_string()),
            violations: violations(
                fault.map(|fault| fault.kind).zip(message.as_deref()),
                &denials,
            ),
            message: message.map(|message| cut_to(&message, CUT)),
            arguments: cut_to(&self.shown_arguments(), CUT),
            usage: self.report.usage.clone(),
            notes: self.notes.all.clone(),
            network: self.network(host).as_ref().map(events),
            ..self.line.clone()
        }
    }

    /// The network traffic of the call until now, these secrets hidden. `None`: it may reach no
    /// host, and did not try to.
    fn network(&self, mask: &Mask) -> Option<Traffic> {
        let networked = self
            .run
            .confined
            .as_ref()
            .is_some_and(|confined| !confined.shape.network.hosts().is_empty());
        let mut traffic = lock(&self.run.traffic).clone();
        if !networked && traffic.events.is_empty() {
            return None;
        }
        for event in &mut traffic.events {
            event.target = mask.text(&event.target);
            event.refused = event
                .refused
                .take()
                .map(|refusal| refusal.with_text(|text| mask.text(text)));
        }
        Some(traffic)
    }

    /// Which executors the call leads to, and what was called: a command line, `service.method`, or
    /// an `x-…` type.
    fn executor_and_command(&self) -> (String, String) {
        let (kind, name) = match self.tool.as_ref().map(|tool| &tool.manifest.handler) {
            Some(Handler::ServiceMethod {
                service, method, ..
            }) => ("method", format!("{service}.{method}")),
            Some(Handler::Extension { kind, .. }) => (kind.as_str(), kind.clone()),
            Some(Handler::ToolService(remote)) => ("remote", remote.service.clone()),
            Some(Handler::Document(_)) => ("document", String::new()),
            Some(Handler::Script { .. } | Handler::DefinitionOnly) | None => ("", String::new()),
        };
        let Some(Confined { shape, .. }) = &self.run.confined else {
            return (kind.to_owned(), name);
        };
        let engine = if shape.runtime.language == Language::Wasm {
            "wasm"
        } else {
            "process"
        };
        let executor = if kind.is_empty() {
            engine.to_owned()
        } else {
            format!("{kind}, {engine}")
        };
        let program = match &shape.runtime.program {
            policy::Program::Path(path) => path.display().to_string(),
            policy::Program::Ourselves { role } => format!("toolhost {role}"),
        };
        let script = shape
            .script
            .as_ref()
            .map_or_else(|| "<source>".into(), |script| script.display().to_string());
        (
            executor,
            [&[program], &shape.runtime.arguments[..], &[script]]
                .concat()
                .join(" "),
        )
    }
}

/// A text on one line, these secrets hidden.
fn shown(mask: &Mask, words: &str) -> String {
    text::printable(&mask.text(words))
}

/// Denials with these secrets and control characters hidden, and long texts cut.
fn shown_denials(mask: &Mask, denials: &[Denial]) -> Vec<Denial> {
    let sanitize = |text: &str, most| text::head(&shown(mask, text), most);
    let denials = denials.iter().map(|denial| Denial {
        target: sanitize(&denial.target, TARGET),
        rule: sanitize(&denial.rule, TARGET),
        ask: denial.ask.as_ref().map(|ask| sanitize(ask, ASK)),
        ..denial.clone()
    });
    denials.collect()
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.sinks.entry.is_some() || self.sinks.meter.is_some() {
            // The caller has left: only the record is written.
            self.end(CallResult::default());
        }
    }
}
