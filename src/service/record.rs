//! The record of one call: it collects what each stage found out, and the end of the call is one
//! `CallEnded`, without secrets.
//!
//! A call that is dropped is recorded as
//! cancelled.

use super::artifacts::FileRecord;
use super::audit::log::RecordPermit;
use super::call_ended::{
    AuditRecord, CUT, CallEnded, Decision, PART, Stage, events, few, files, manifest, rule,
    violations,
};
use super::calls::{CallState, OpenCall, Phase};
use super::meters::Meter;
use super::redaction::{Redaction, line, shown_denials};
use super::report::{CallResult, Report};
use super::request::{CallRequest, Caller};
use super::traces::context::TraceContext;
use super::traces::spans::CallSpan;
use super::{output, runlog};
use crate::base::files::Stamp;
use crate::base::mask::{HIDDEN, Hidden, Mask};
use crate::base::text::{self, cut as cut_to};
use crate::base::{lock, millis, sha256_hex};
use crate::egress::Traffic;
use crate::manifest::{Handler, Language};
use crate::quantity::Limit;
use crate::{executor, fault, policy, registry};
use executor::Ending;
use fault::{Fault, Kind};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Longest list of packages in the run log, characters.
const DEPENDENCIES: usize = 2000;

/// Most log lines kept from events, where the outcome brings none.
const EVENT_LINES: usize = 1000;

/// Only collects: no stage reads it.
pub(super) struct CallRecord {
    /// Who authenticated: written once.
    principal: String,
    /// Its line of the audit log, as far as that is known.
    line: AuditRecord,
    /// The first begins when the request was received.
    stages: Vec<(Stage, Instant)>,
    /// Where the end of the call is written.
    sinks: RecordSinks,
    /// What refused the call and is not its policy: a rule of the file of callers, an approval, what
    /// the operator disabled.
    pub denied_by: Option<String>,
    tool: Option<Arc<registry::Tool>>,
    redaction: Arc<Redaction>,
    /// The policy that decided, and the place of the tool service, if there is one.
    decided: Option<(String, Option<String>)>,
    /// The files that the call brings.
    brought: Vec<FileRecord>,
    /// Notes of the last decision and of the call itself.
    notes: policy::Notes,
    /// False: nothing of the tool ran.
    ran: bool,
    run: RunRecord,
    /// What the caller gets, as far as that is known.
    pub report: Report,
}

/// Where the end of a call is written.
pub(super) struct RecordSinks {
    pub span: CallSpan,
    pub meter: Option<Meter>,
    pub listed: Option<OpenCall>,
    /// The permit to write its line of the audit log, until that is written. Without it the call is
    /// refused.
    pub entry: Option<RecordPermit>,
}

impl RecordSinks {
    /// For what is only recorded.
    pub fn of_entry(span: CallSpan, entry: RecordPermit) -> RecordSinks {
        RecordSinks {
            span,
            meter: None,
            listed: None,
            entry: Some(entry),
        }
    }
}

/// What was seen of a run.
#[derive(Default)]
struct RunRecord {
    confined: Option<Confined>,
    /// The packages that it has, and whether it built them.
    dependencies: String,
    bad_output: String,
    /// Filled while the call runs, and read however it ends.
    traffic: Arc<Mutex<Traffic>>,
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
        self.shape.script.is_some()
            && self.shape.runtime.language != Language::Wasm
            && Stamp::at(&self.shape.script_place()).ok() != self.stamp
    }
}

impl CallRecord {
    pub fn begin(id: String, request: &CallRequest, sinks: RecordSinks) -> CallRecord {
        let verbose = request.reporting.verbose.then(Box::default);
        fn part(text: &str) -> String {
            cut_to(text, PART)
        }
        let line = AuditRecord {
            time: jiff::Timestamp::now().to_string(),
            call: id,
            parent: request.parent.as_ref().map(|parent| parent.call.clone()),
            user: request.caller.user.clone(),
            label: request.label.clone(),
            transaction: request.reporting.transaction.as_deref().map(part),
            trace: sinks.span.context().map(TraceContext::id),
            tool: part(&request.tool),
            root: sinks
                .entry
                .as_ref()
                .and_then(|it| it.root())
                .map(str::to_owned),
            ..AuditRecord::default()
        };
        CallRecord {
            principal: request.caller.user.clone(),
            line,
            stages: vec![(Stage::Turn, Instant::now())],
            sinks,
            denied_by: None,
            tool: None,
            redaction: Arc::default(),
            decided: None,
            brought: Vec::new(),
            notes: policy::Notes::default(),
            ran: false,
            run: RunRecord::default(),
            report: Report {
                verbose,
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
            let through = Some(&self.principal).filter(|principal| **principal != caller.user);
            self.line.through = through.cloned();
            self.state(|state| state.caller.clone_from(&caller.user));
        }
    }

    pub fn id(&self) -> &str {
        &self.line.call
    }

    pub fn principal(&self) -> &str {
        &self.principal
    }

    pub fn approved(&mut self, by: &str) {
        self.line.approved_by = Some(by.to_owned());
    }

    pub fn enters(&mut self, stage: Stage) {
        self.stages.push((stage, Instant::now()));
    }

    /// The call has a slot. `traffic`: filled while it runs, and read however it ends.
    pub fn admitted(&mut self, traffic: &Arc<Mutex<Traffic>>) {
        self.run.traffic = traffic.clone();
    }

    /// What hides the secrets that are known from here on.
    pub fn redacts(&mut self, redaction: &Arc<Redaction>) {
        self.redaction = redaction.clone();
    }

    pub fn found(&mut self, tool: Arc<registry::Tool>) {
        self.state(|state| state.tool = tool.reference());
        self.report.digests.manifest = Some(tool.manifest.digest.clone());
        self.line.tool.clone_from(&tool.manifest.id);
        self.line.version = Some(tool.manifest.version.to_string());
        self.line.manifest = manifest(&tool.site);
        self.tool = Some(tool);
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
        // No other decision refuses so than that the operator disabled the tool.
        let refused = decision.refused().into_iter();
        let mut stop = refused.filter(|fault| fault.kind == Kind::AuthorizationError);
        if let Some(stop) = stop.find_map(|fault| fault.person.as_deref()) {
            self.denied_by = Some(cut_to(stop, PART));
        }
        self.decided = Some((
            decision.governing.policy.clone(),
            decision
                .grants
                .service
                .as_ref()
                .map(policy::ServiceGrant::place),
        ));
    }

    pub fn brings(&mut self, files: &[FileRecord]) {
        self.brought = files.to_vec();
    }

    /// It is the record of an output that the client of this call submits.
    pub fn takes_output(&mut self, call: &str, output: &str) {
        self.ran = true;
        self.line.parent = Some(call.to_owned());
        self.brought = vec![FileRecord {
            name: "output".to_owned(),
            bytes: output.len() as u64,
            sha256: sha256_hex(output.as_bytes()),
        }];
        let words = "the output of its parent, which the client ran";
        self.notes.all.push(words.to_owned());
    }

    /// It runs this script of a skill.
    pub fn runs_script(&mut self, path: &str) {
        self.notes.all.push(format!("runs {path} of the skill"));
    }

    /// It is the record of what a server did with its network while it served no call.
    pub fn outside_of_calls(&mut self, traffic: Traffic) {
        self.ran = true;
        self.run.traffic = Arc::new(Mutex::new(traffic));
        let words = "what its server did with the network outside of calls";
        self.notes.all.push(words.to_owned());
    }

    /// Records the final confinement of the call.
    pub fn confined(&mut self, confinement: &policy::Confinement, digest: String) {
        let shape = &confinement.shape;
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

    pub fn environment(&mut self, packages: &[policy::packages::Package], is_new: bool) {
        let packages: Vec<String> = packages
            .iter()
            .map(|package| format!("{} {}", package.name, package.version))
            .collect();
        let built = if is_new { " (built by this call)" } else { "" };
        let packages = text::head(&packages.join(", "), DEPENDENCIES);
        self.run.dependencies = format!("{packages}{built}");
    }

    pub fn sends(&mut self, input: &Value) {
        if let Some(verbose) = &mut self.report.verbose {
            let stdin = input.to_string();
            verbose.stdin = self.redaction.answer(&stdin, false).unwrap_or(stdin);
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

    /// Adds a line of the tool, secrets hidden: for the run log, and for a call whose outcome has no
    /// log of its own.
    pub fn add_log(&mut self, line: &str) {
        add_line(&mut self.report.logs, line);
        let tool = self.tool.as_ref().map_or("", |tool| &tool.manifest.id);
        runlog::line(&self.line.call, || self.line.trace.clone(), tool, line);
    }

    /// Records that the executor is done.
    pub fn ended(&mut self, ended: &Result<executor::Outcome, Fault>) {
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

    /// Takes over what the executor observed, secrets hidden.
    pub fn observed(&mut self, outcome: &mut executor::Outcome) {
        let confined = self.run.confined.as_ref();
        if confined.is_some_and(Confined::lost_script) {
            self.report.digests.script = None;
            self.notes
                .all
                .push("the script changed while the call ran: its digest is not known".to_owned());
        }
        if let Ending::BadOutput { head, .. } = &outcome.ending {
            self.run.bad_output.clone_from(head);
        }
        self.report.delivery.streamed = outcome.parts;
        if !outcome.logs.is_empty() {
            self.report.logs.clone_from(&outcome.logs);
        }
        let observed = &mut self.report.observed;
        observed.usage = outcome.usage.clone();
        observed.layers = Some(std::mem::take(&mut outcome.layers));
        observed.denials = std::mem::take(&mut outcome.denials);
        observed.artifacts.clone_from(&outcome.artifacts);
        if let Some(verbose) = &mut self.report.verbose {
            verbose.stdout = match &outcome.ending {
                Ending::Answered(answer) => self.redaction.mask.text(answer.head(usize::MAX)),
                Ending::BadOutput { head, .. } => head.clone(),
                _ => outcome.printed.join("\n"),
            };
        }
    }

    /// The caller gets less than the tool gave.
    pub fn narrowed(&mut self, words: String) {
        self.notes.narrowed(words);
    }

    /// Why no process waits for calls of this tool any more, if that is so. What it said before it
    /// ended is not for callers.
    pub fn not_ready(&mut self, why: Option<String>) {
        let words = "narrowed: it was not started before its call: that failed three times (its \
            operator reads why)";
        let words = why.is_some().then(|| words.to_owned());
        self.notes.for_caller.extend(words);
        self.notes.all.extend(why);
    }

    /// Notes the files that were not published.
    pub fn not_published(&mut self, lines: &[String]) {
        let Redaction { mask, host, .. } = &*self.redaction;
        for (mask, notes) in [
            (host, &mut self.notes.all),
            (mask, &mut self.notes.for_caller),
        ] {
            notes.extend(few(lines.iter().map(|text| line(mask, text)).collect()));
        }
    }

    /// The answer held a secret argument or variable.
    pub fn hid_secrets(&mut self) {
        let words =
            format!("the answer held a secret argument or variable: it is shown as {HIDDEN}");
        if !self.notes.for_caller.contains(&words) {
            self.notes.narrowed(words);
        }
    }

    /// Whether something of the call ran, or its entry says that it began or is written.
    pub fn has_begun(&self) -> bool {
        let entry = self.sinks.entry.as_ref();
        self.ran || entry.is_none_or(RecordPermit::has_begun)
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
        if !self.ran || self.report.observed.usage == executor::Usage::default() {
            self.report.observed.usage.wall_ms = millis(took);
        }
        // Nobody at a machine reads the report of a call from code.
        let person = result.fault().and_then(|fault| fault.person.as_deref());
        if let (Some(_), Some(person)) = (&self.line.parent, person) {
            let host = &self.redaction.host;
            self.notes
                .all
                .extend(person.lines().map(|it| line(host, it)));
        }
        self.notes.all = few(std::mem::take(&mut self.notes.all));
        let line = AuditRecord {
            outcome: result.word(),
            ..self.line(result.fault())
        };
        let network = self.network(&self.redaction.mask);
        let (executor, command) = self.executor_and_command();
        let tool = self.tool.as_ref();
        let mut report = std::mem::take(&mut self.report);
        let observed = &mut report.observed;
        observed.network = network;
        observed.denials.observed = self.redaction.denials(&observed.denials.observed);
        observed
            .artifacts
            .iter_mut()
            .for_each(|file| file.path = self.redaction.mask.text(&file.path));
        report
            .logs
            .iter_mut()
            .for_each(|line| *line = text::printable(line));
        report.id.clone_from(&self.line.call);
        report.tool = text::printable(&line.tool);
        report.version.clone_from(&line.version);
        report.delivery.redaction = Hidden(self.redaction.clone());
        report.delivery.manifest = tool.map(|tool| tool.manifest.clone());
        report.outcome = result.map_fault(|fault| self.redaction.fault(fault));
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
            dependencies: std::mem::take(&mut self.run.dependencies),
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
        let redaction = &self.redaction;
        let message = fault.map(|fault| line(&redaction.host, &fault.message));
        let denials = shown_denials(&redaction.host, &self.report.observed.denials.observed);
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
            arguments: cut_to(&redaction.arguments(), CUT),
            usage: self.report.observed.usage.clone(),
            files: files(&self.brought, &redaction.host),
            artifacts: files(&self.left(), &redaction.host),
            notes: self.notes.all.clone(),
            network: self.network(&redaction.host).as_ref().map(events),
            ..self.line.clone()
        }
    }

    /// The files that the call left in the store.
    fn left(&self) -> Vec<FileRecord> {
        let stored = self.report.stored().map(|(file, bytes)| FileRecord {
            name: file.name.clone(),
            bytes,
            sha256: file.sha256.clone(),
        });
        stored.collect()
    }

    /// The network traffic of the call until now, these secrets hidden. `None`: it may reach no
    /// host, and did not try to.
    fn network(&self, mask: &Mask) -> Option<Traffic> {
        let networked = self
            .run
            .confined
            .as_ref()
            .is_some_and(|confined| !confined.shape.network.hosts().is_empty());
        let traffic = lock(&self.run.traffic).clone();
        if !networked && traffic.events.is_empty() {
            return None;
        }
        Some(traffic.hidden(mask))
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
            Some(Handler::Client(_)) => ("client", String::new()),
            Some(Handler::McpTool(tool)) => ("mcp", tool.name.clone()),
            Some(Handler::Skill(skill)) => ("skill", skill.name.clone()),
            Some(Handler::Script(_) | Handler::McpServer(_) | Handler::Alias(_)) | None => {
                ("", String::new())
            }
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

/// Where the executor notes what a call does with its network.
pub(super) fn traffic(principal: &str) -> Arc<Mutex<Traffic>> {
    Arc::new(Mutex::new(Traffic {
        principal: principal.to_owned(),
        ..Traffic::default()
    }))
}

/// The line about log lines that were dropped.
pub(super) fn lost_lines(lost: u64) -> Option<String> {
    (lost > 0).then(|| format!("toolhost: {lost} more lines came too fast for this log"))
}

/// Adds a line to a log that is kept from events.
pub(super) fn add_line(logs: &mut Vec<String>, line: &str) {
    if logs.len() < EVENT_LINES {
        logs.push(cut_to(line, CUT));
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.sinks.entry.is_some() || self.sinks.meter.is_some() {
            // The caller has left: only the record is written.
            self.end(CallResult::default());
        }
    }
}
