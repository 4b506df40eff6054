//! The trace of one call: what the road found out so far, and the audit record it owes.
//!
//! For: the road. In: the call, then each thing that becomes known. Out: a `Report`, one audit
//! record and one run log record. Never: ends without its record: when the call's future is dropped,
//! `Drop` writes it as cancelled.

use super::guard::Turn;
use super::mask::{self, Mask, Shown};
use super::record::{PART, Record, VIOLATIONS, command, cut, cut_to, few, rule};
use super::report::{Digests, Report};
use super::script_digest::Script;
use super::{CallRequest, audit, format, runlog};
use crate::manifest::json::Text;
use crate::manifest::{Handler, Language, json, text};
use crate::quantity::Limit;
use crate::{executor, fault, policy, registry};
use fault::{Fault, Kind, Origin};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Most files in a report: published, and not published.
const FILES: (usize, usize) = (1000, 50);
/// Most log lines kept from events, where the outcome brings none.
const EVENT_LINES: usize = 1000;

pub(super) struct Trace {
    pub id: String,
    pub user: String,
    asked: String,
    began: jiff::Timestamp,
    pub started: Instant,
    tool: Option<Arc<registry::Tool>>,
    speaks_envelope: bool,
    mask: Mask,
    /// The arguments with secrets hidden.
    arguments: Shown,
    /// The argument with the input of a script that the call names: shown once its secrets are known.
    withheld: Option<(String, Value)>,
    policy: Option<String>,
    limits: Option<policy::Limits>,
    digests: Digests,
    /// What is called in this process: `service.method` or an `x-…` type; empty for a script.
    method: String,
    shape: Option<Arc<policy::Shape>>,
    /// The script as it was when its digest was taken.
    script: Option<Script>,
    /// The executors that were chosen; empty: none was.
    executor: String,
    notes: policy::Notes,
    ran: bool,
    /// The first bytes of a stdout that is not one JSON document.
    bad_output: String,
    logs: Vec<String>,
    usage: executor::Usage,
    walls: executor::Walls,
    denials: executor::Denials,
    artifacts: Vec<executor::Artifact>,
    entry: Option<audit::Entry>,
    turn: Option<Arc<Turn>>,
    /// Where the parts of the answer go, if somebody takes them; `room`: bytes of them allowed in all, and left.
    chunks: Option<mpsc::UnboundedSender<String>>,
    room: (u64, u64),
}

impl Trace {
    pub fn begin(request: &CallRequest) -> Trace {
        Trace {
            id: request.id.clone().unwrap_or_else(super::new_id),
            user: request.user.clone(),
            asked: cut_to(&request.tool, PART),
            began: jiff::Timestamp::now(),
            started: Instant::now(),
            tool: None,
            speaks_envelope: false,
            mask: Mask::default(),
            arguments: Shown::Tree(Value::Null),
            withheld: None,
            policy: None,
            limits: None,
            digests: Digests::default(),
            method: String::new(),
            shape: None,
            script: None,
            executor: String::new(),
            notes: policy::Notes::default(),
            ran: false,
            bad_output: String::new(),
            logs: Vec::new(),
            usage: executor::Usage::default(),
            walls: executor::Walls::default(),
            denials: executor::Denials::default(),
            artifacts: Vec::new(),
            entry: None,
            turn: None,
            chunks: None,
            room: (0, 0),
        }
    }

    /// Somebody takes the parts of an answer as they come.
    pub fn streams(&mut self, chunks: mpsc::UnboundedSender<String>) {
        self.chunks = Some(chunks);
    }

    /// How long an answer may be.
    pub fn may_answer(&mut self, decision: &policy::Decision) {
        let limit = Limit::OutputBytes;
        let allowed = decision.limit(limit).map_or(limit.house_default(), |limit| limit.effective);
        self.room = (allowed, allowed);
    }

    /// A part of the answer. Parts wait in memory for a slow reader, so more than `outputBytes` of them end the call.
    pub fn chunk(&mut self, part: &Value) -> Result<(), Fault> {
        let part = self.hidden(Text::from(part));
        let text = format::response(&part);
        let (allowed, left) = self.room;
        let left = left.checked_sub(u64::try_from(text.len().max(1)).unwrap_or(u64::MAX));
        self.room.1 = left.ok_or_else(|| format::over_limit(Limit::OutputBytes, allowed))?;
        if let Some(chunks) = &self.chunks {
            // The receiver may be gone; the call is then dropped.
            let _ = chunks.send(text);
        }
        Ok(())
    }

    /// From here on the call leaves a record, whatever happens to it.
    pub fn owes(&mut self, entry: audit::Entry) {
        self.entry = Some(entry);
    }

    /// It is this call's turn.
    pub fn begins(&mut self, turn: Turn) {
        self.turn = Some(Arc::new(turn));
    }

    pub fn found(&mut self, tool: &Arc<registry::Tool>, speaks_envelope: bool) {
        self.digests.manifest = Some(tool.manifest.digest.clone());
        self.speaks_envelope = speaks_envelope;
        self.method = match &tool.manifest.handler {
            Handler::ServiceMethod { service, method, .. } => format!("{service}.{method}"),
            Handler::Extension { kind, .. } => kind.clone(),
            Handler::Script { .. } | Handler::ToolService | Handler::DefinitionOnly => String::new(),
        };
        self.tool = Some(tool.clone());
    }

    /// The arguments with their secrets hidden: told before they are checked, and again with defaults filled in.
    pub fn given(&mut self, (mask, shown): mask::Masked) {
        self.mask = mask;
        self.arguments = shown;
        self.withhold();
    }

    /// Hides the environment for a script that the call names, and its input until the script is found.
    fn withhold(&mut self) {
        let Some(tool) = self.tool.clone() else { return };
        let Handler::ServiceMethod { service, parameter_map, .. } = &tool.manifest.handler else { return };
        let Shown::Tree(Value::Object(arguments)) = &mut self.arguments else { return };
        if service != policy::SCRIPT_SERVICE {
            return;
        }
        for (name, value) in arguments {
            match parameter_map.get(name).unwrap_or(name).as_str() {
                "env" => self.mask.hide(value),
                "inputData" => {
                    let hidden = Value::String(mask::HIDDEN.to_owned());
                    self.withheld = Some((name.clone(), std::mem::replace(value, hidden)));
                }
                _ => {}
            }
        }
    }

    /// The script that a call names is found: the schemas of all its manifests say what of its input is secret.
    pub fn script(&mut self, schemas: &[Value], input: Value, env: &[String]) {
        self.mask.also(env.iter().map(String::as_str));
        let (name, mut shown) = self.withheld.take().unwrap_or_else(|| (String::new(), input));
        for schema in schemas {
            let (mask, hidden) = Mask::of(Some(schema), &shown);
            self.mask.join(mask);
            shown = hidden;
        }
        if let Shown::Tree(arguments) = &mut self.arguments
            && let Some(argument) = arguments.get_mut(&name)
        {
            *argument = shown;
        }
    }

    /// Notes on what this call gets less than was decided for its tool.
    pub fn narrowed(&mut self, notes: policy::Notes) {
        self.notes.extend(policy::Notes { all: few(notes.all), told: few(notes.told) });
    }

    /// Policy has decided, for or against the call; the last decision counts.
    pub fn decided(&mut self, policy: &str, digest: &str, notes: policy::Notes) {
        self.notes = policy::Notes { all: few(notes.all), told: few(notes.told) };
        self.policy = Some(policy.to_owned());
        self.digests.policy = Some(digest.to_owned());
    }

    /// What the call may touch is settled; the executor comes next.
    pub fn confined(&mut self, confinement: &policy::Confinement, digest: String, script: Option<Script>) {
        let shape = &confinement.shape;
        // No log may show the host's own variables. Those that the call brings are masked already.
        self.mask.also(shape.env.values().filter_map(policy::Variable::host));
        self.ran |= self.speaks_envelope;
        self.digests.confinement = Some(digest);
        self.digests.script = script.as_ref().map(|script| script.digest.clone());
        self.script = script;
        let mut limits = shape.limits.clone();
        limits.set(Limit::TimeoutMs, confinement.per_call.timeout_ms);
        self.limits = Some(limits);
        if self.speaks_envelope {
            self.executor = format!("method, {}", executor_of(shape.runtime.language));
        }
        self.shape = Some(shape.clone());
        if self.speaks_envelope {
            // A record with fewer details is kept already, so this may fail.
            let _ = self.begun();
        }
    }

    /// The executor starts. A method that runs scripts has run something only once a script is `confined`.
    pub fn running(&mut self) -> Result<(), Fault> {
        self.begun()?;
        self.ran |= !self.speaks_envelope;
        self.executor = match self.tool.as_ref().map(|tool| &tool.manifest.handler) {
            Some(Handler::Script { language, .. }) => executor_of(*language).to_owned(),
            Some(Handler::ServiceMethod { .. }) => "method".to_owned(),
            Some(Handler::Extension { kind, .. }) => kind.clone(),
            Some(Handler::ToolService | Handler::DefinitionOnly) | None => String::new(),
        };
        Ok(())
    }

    /// Keeps the record that this call leaves if this host is killed while it runs.
    fn begun(&mut self) -> Result<(), Fault> {
        let Some(mut entry) = self.entry.take() else { return Ok(()) };
        let record = Record {
            decision: "allowed",
            rule: self.ran_under(),
            outcome: Kind::InternalError.to_string(),
            message: Some("The host ended before this call did; how far the call came is not known.".to_owned()),
            ..self.line(None)
        };
        let kept = entry.begin(&record);
        self.entry = Some(entry);
        kept
    }

    /// The digest of the script that ran, from the executor.
    pub fn ran_script(&mut self, digest: String) {
        self.digests.script = Some(digest);
        self.script = None;
    }

    /// The executor refused the call, and started nothing.
    pub fn never_ran(&mut self) {
        self.ran = false;
    }

    pub fn log(&mut self, line: &str) {
        if self.logs.len() < EVENT_LINES {
            self.logs.push(cut(&self.mask.text(line)));
        }
    }

    /// Takes over what the executor observed. Returns the log lines and the end of stdout, secrets hidden.
    pub fn took(&mut self, outcome: &mut executor::Outcome) -> (&[String], Vec<String>) {
        if self.script.take().is_some_and(|script| !script.stayed()) {
            // What was hashed need not be what ran.
            self.digests.script = None;
            self.notes.all.push("the script changed while the call ran: its digest is not known".to_owned());
        }
        if !outcome.logs.is_empty() {
            self.logs = outcome.logs.drain(..).map(|line| self.mask.text(&line)).collect();
        }
        if let executor::Ending::BadOutput { head, .. } = &outcome.ending {
            self.bad_output.clone_from(head);
        }
        self.usage = outcome.usage.clone();
        self.walls = std::mem::take(&mut outcome.walls);
        self.denials = std::mem::take(&mut outcome.denials);
        for denial in &mut self.denials.observed {
            denial.target = self.mask.text(&denial.target);
        }
        self.wrote(std::mem::take(&mut outcome.artifacts));
        let printed = outcome.printed.drain(..).map(|line| self.mask.text(&line)).collect();
        (&self.logs, printed)
    }

    /// Bounds the files in the report: a tool can write as many as it likes.
    fn wrote(&mut self, mut artifacts: Vec<executor::Artifact>) {
        artifacts.iter_mut().for_each(|artifact| artifact.path = self.mask.text(&artifact.path));
        let (mut published, mut dropped): (Vec<_>, Vec<_>) = artifacts.into_iter().partition(|file| file.published);
        // The failed ones, which fail the call, come first and are cut last.
        dropped.sort_by_key(|file| !file.failed);
        for (files, most, what) in [(&mut published, FILES.0, "were"), (&mut dropped, FILES.1, "were not")] {
            if let Some(more) = files.len().checked_sub(most).filter(|more| *more > 0) {
                files.truncate(most);
                let words = format!("{more} more files {what} published");
                self.notes.all.push(words.clone());
                self.notes.told.push(words);
            }
        }
        published.append(&mut dropped);
        self.artifacts = published;
    }

    /// An answer with its secrets hidden: a tool may give back the secrets it was given.
    pub fn hidden(&mut self, answer: Text) -> Text {
        let Some(shown) = self.mask.answer(answer.as_str()) else { return answer };
        let shown = json::compact(shown.as_bytes()).unwrap_or_else(|_| Text::from(&json!(mask::HIDDEN)));
        let words = format!("the answer held a secret argument or variable: it is shown as {}", mask::HIDDEN);
        if !self.notes.told.contains(&words) {
            self.notes.all.push(words.clone());
            self.notes.told.push(words);
        }
        shown
    }

    /// Files that were not published: noted, or, where this host failed to write one, a failure of the call.
    pub fn published(&mut self) -> Result<(), Fault> {
        let missing = self.artifacts.iter().filter(|artifact| !artifact.published);
        let lines: Vec<(bool, String)> = missing
            .map(|artifact| {
                let why = artifact.dropped_because.as_deref().unwrap_or("it was dropped");
                (artifact.failed, text::printable(&format!("not published: {}: {why}", artifact.path)))
            })
            .collect();
        let failed = lines.iter().any(|(failed, _)| *failed);
        let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        let all = lines.join("\n");
        let lines = few(lines);
        self.notes.all.extend(lines.iter().cloned());
        self.notes.told.extend(lines);
        if !failed {
            return Ok(());
        }
        let message = "The tool answered, but not all of its files could be written to their folder.";
        Err(Fault::new(Kind::InternalError, message).details(all))
    }

    /// Closes the call: the record, the run log, the report.
    pub fn finish(mut self, result: Result<Text, Fault>) -> Report {
        let mut result = result.map_err(|fault| self.decent(fault));
        for line in &mut self.logs {
            *line = text::printable(line);
        }
        if !self.ran || self.usage == executor::Usage::default() {
            self.usage.wall_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        if let Err(fault) = self.record(result.as_ref().err()) {
            // A call that left no record must not count as a success.
            result = Err(fault);
        }
        self.log_run(&result);
        let (output_data, error) = match result {
            Ok(value) => (Some(value), None),
            Err(fault) => (None, Some(fault)),
        };
        Report {
            id: std::mem::take(&mut self.id),
            tool: self.tool.as_ref().map_or_else(|| text::printable(&self.asked), |tool| tool.manifest.id.clone()),
            version: self.tool.as_ref().map(|tool| tool.manifest.version.to_string()),
            success: error.is_none(),
            output_data,
            error,
            logs: std::mem::take(&mut self.logs),
            usage: self.usage.clone(),
            walls: std::mem::take(&mut self.walls),
            denials: std::mem::take(&mut self.denials),
            artifacts: std::mem::take(&mut self.artifacts),
            digests: self.digests.clone(),
            notes: std::mem::take(&mut self.notes.told),
            manifest: self.tool.as_ref().map(|tool| tool.manifest.clone()),
            speaks_envelope: self.speaks_envelope,
            turn: self.turn.take(),
        }
    }

    /// A fault whose words carry no secret and no control character.
    fn decent(&self, mut fault: Fault) -> Fault {
        fault.message = text::printable(&self.mask.text(&fault.message));
        fault.details = fault.details.map(|details| format::shown(&self.mask.text(&details)));
        fault.person = fault.person.map(|words| format::shown(&self.mask.text(&words)));
        fault
    }

    /// Writes the record this call owes, once.
    fn record(&mut self, fault: Option<&Fault>) -> Result<(), Fault> {
        let Some(entry) = self.entry.take() else { return Ok(()) };
        self.notes.all = few(std::mem::take(&mut self.notes.all));
        entry.write(&self.line(fault))
    }

    fn line<'a>(&'a self, fault: Option<&'a Fault>) -> Record<'a> {
        let refused = !self.ran;
        Record {
            time: self.began.to_string(),
            call: &self.id,
            user: cut_to(&self.user, PART),
            tool: self.tool.as_ref().map_or(&self.asked, |tool| &tool.manifest.id),
            version: self.tool.as_ref().map(|tool| tool.manifest.version.to_string()),
            digests: &self.digests,
            decision: if refused { "refused" } else { "allowed" },
            rule: fault.filter(|_| refused).map_or_else(|| self.ran_under(), |fault| self.refused_by(fault.kind)),
            limits: self.limits.as_ref(),
            outcome: fault.map_or_else(|| "success".to_owned(), |fault| fault.kind.to_string()),
            message: fault.map(|fault| cut(&fault.message)),
            arguments: cut(&self.mask.text(&self.arguments.to_string())),
            usage: &self.usage,
            notes: &self.notes.all,
            violations: self.violations(fault),
        }
    }

    fn ran_under(&self) -> String {
        self.policy.as_ref().map_or_else(|| "in-process".to_owned(), |policy| format!("policy {policy}"))
    }

    fn refused_by(&self, kind: Kind) -> String {
        match (rule(kind), &self.policy) {
            ("policy", Some(policy)) => format!("policy {policy}"),
            (rule, _) => rule.to_owned(),
        }
    }

    fn violations(&self, fault: Option<&Fault>) -> Vec<Value> {
        let broken = fault.filter(|fault| {
            matches!(fault.kind.origin(), Origin::Policy)
                || matches!(fault.kind, Kind::TimeoutError | Kind::ResourceLimitError)
        });
        let own = broken.map(|fault| json!({"kind": fault.kind, "what": cut_to(&fault.message, PART)}));
        let seen = self.denials.observed.iter().map(|denial| {
            json!({
                "kind": "denied", "operation": cut_to(&denial.operation, PART),
                "target": cut_to(&denial.target, PART),
                "rule": cut_to(&denial.rule, PART), "narrower": denial.narrower,
            })
        });
        own.into_iter().chain(seen).take(VIOLATIONS).collect()
    }

    fn log_run(&self, result: &Result<Text, Fault>) {
        let grade = match result.as_ref().map_err(|fault| fault.kind.origin()) {
            Ok(_) => runlog::Grade::Fine,
            Err(Origin::Policy | Origin::Host) => runlog::Grade::Grave,
            Err(Origin::Caller | Origin::Tool) => runlog::Grade::Failed,
        };
        runlog::record(grade, || self.summary(result));
    }

    fn summary(&self, result: &Result<Text, Fault>) -> runlog::Summary {
        let fault = result.as_ref().err();
        let words = |words: Option<&String>| words.cloned().unwrap_or_default();
        let (stdout, result) = match result {
            Ok(answer) => (self.mask.text(answer.as_str()), "success".to_owned()),
            Err(fault) => (self.mask.text(&self.bad_output), format!("{}: {}", fault.kind, fault.message)),
        };
        runlog::Summary {
            call: self.id.clone(),
            user: self.user.clone(),
            tool: self.tool.as_ref().map_or_else(|| self.asked.clone(), |tool| tool.reference()),
            parameters: self.mask.text(&self.arguments.to_string()),
            executor: self.executor.clone(),
            command: self.shape.as_deref().map_or_else(|| self.method.clone(), command),
            stdout,
            stderr: self.logs.join("\n"),
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            result,
            details: words(fault.and_then(|fault| fault.details.as_ref())),
            person: words(fault.and_then(|fault| fault.person.as_ref())),
            notes: self.notes.all.join("; "),
        }
    }
}

/// The name of the executor for scripts of this language.
fn executor_of(language: Language) -> &'static str {
    match language {
        Language::Wasm => "wasm",
        Language::Python | Language::Nodejs | Language::Bun => "process",
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.entry.is_some() {
            let fault = format::cancelled();
            self.usage.wall_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            // Nobody waits for an answer any more; the record is all that can be saved.
            let written = self.record(Some(&fault));
            self.log_run(&Err(written.err().unwrap_or(fault)));
        }
    }
}
