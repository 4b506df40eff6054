//! A call whose executor is done: what its tool was refused, and what it ended with.

use super::artifacts::Received;
use super::call_advice::MissingCall;
use super::denials;
use super::found::FoundTool;
use super::grant_advice::DenialContext;
use super::output;
use super::record::CallRecord;
use super::target::Decided;
use crate::base::text;
use crate::egress::Traffic;
use crate::executor::{Artifact, Denial, Ending, Outcome, ToolAnswer, WriteFailure};
use crate::fault::{Fault, Kind};
use crate::policy;
use serde_json::{Value, json};
use std::path::PathBuf;

/// How much of a script is searched for names, bytes.
const MAX_LOOKED_AT: usize = 1 << 20;

pub(super) struct Ran {
    pub decided: Decided,
    /// What was observed, secrets hidden.
    pub outcome: Outcome,
    pub traffic: Traffic,
    /// Parts of the answer were received.
    pub has_parts: bool,
    /// What the call left for its caller.
    pub left: Vec<Received>,
}

/// A call whose tool answered.
pub(super) struct Answered {
    pub decided: Decided,
    /// The envelope without its output, if the tool uses one.
    pub envelope: Option<Value>,
    pub output: ToolAnswer,
    /// The answer is made of the parts of a stream.
    pub is_streamed: bool,
}

impl Ran {
    /// What the run ended with: the answer, or the fault with its fix. `own`: the host's own files,
    /// where a person reads of it.
    pub fn answered(
        self,
        own: Option<Vec<PathBuf>>,
        record: &mut CallRecord,
    ) -> Result<Answered, Fault> {
        let Ran {
            decided,
            mut outcome,
            traffic,
            has_parts,
            left: _,
        } = self;
        let help = Help::new(&decided, &mut outcome, &traffic, own);
        for words in output::few_files(&mut outcome.artifacts) {
            record.narrowed(words);
        }
        record.observed(&mut outcome);
        let Outcome {
            ending,
            logs,
            printed,
            artifacts,
            parts: is_streamed,
            ..
        } = outcome;
        let envelope = match &ending {
            Ending::Envelope { told, .. } => Some(told.clone()),
            _ if !decided.enveloped => None,
            _ if logs.is_empty() => Some(json!({"success": true})),
            _ => Some(json!({"success": true, "logs": logs})),
        };
        let output = output::answer_of(ending, &logs, &printed)
            .map_err(|fault| help.explain(fault, outcome.usage.output_bytes, has_parts))?;
        record.not_published(&output::missing_files(&artifacts));
        unwritten(&artifacts)?;
        Ok(Answered {
            envelope,
            output,
            is_streamed,
            decided,
        })
    }
}

/// The fault of a call whose files this host could not write.
pub(super) fn unwritten(artifacts: &[Artifact]) -> Result<(), Fault> {
    let mut failures = artifacts.iter().filter_map(|file| file.failed).peekable();
    if failures.peek().is_none() {
        return Ok(());
    }
    let is_retryable = failures.all(|failure| failure == WriteFailure::Overtaken);
    let message = "The tool answered, but not all of its files could be written to their place.";
    let missing = output::missing_files(artifacts);
    let all: Vec<_> = missing.iter().map(|line| text::printable(line)).collect();
    let fault = Fault::new(Kind::InternalError, message).details(all.join("\n"));
    Err(if is_retryable {
        fault.retryable()
    } else {
        fault
    })
}

/// What helps with the failure of a tool.
struct Help<'r> {
    about: DenialContext<'r>,
    found: &'r FoundTool,
    traffic: &'r Traffic,
    /// What the tool was refused, as the caller gets it.
    denials: Vec<Denial>,
    /// Who set the limit that ended it.
    limit: Option<String>,
}

impl<'r> Help<'r> {
    /// Adds what the tool was refused to what was observed.
    fn new(
        target: &'r Decided,
        outcome: &mut Outcome,
        traffic: &'r Traffic,
        own: Option<Vec<PathBuf>>,
    ) -> Help<'r> {
        let decision = &target.decided.decision;
        let is_refused = !outcome.attempts.is_empty()
            || traffic.events.iter().any(|event| event.refused.is_some());
        let is_read = is_refused || matches!(outcome.ending, Ending::Exited { .. });
        // The beginning of the script that ran, to find names in it.
        let script = target.code.script.as_ref().filter(|_| is_read);
        let bytes = script.map_or(&[][..], |script| &script.bytes.0);
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LOOKED_AT)]);
        let about = DenialContext {
            site: &target.code.site,
            decision,
            tool: &target.found.tool,
            decisions: &target.found.decisions,
            script: text.into_owned(),
            arguments: if is_read {
                target.redaction.arguments()
            } else {
                String::new()
            },
            log: outcome.logs.join("\n"),
            own,
            exit_status: match outcome.ending {
                Ending::Exited { code } => Some(code),
                _ => None,
            },
            recorded: target.found.explain
                || (decision.shape.as_ref()).is_ok_and(|shape| shape.observe),
        };
        let reached = denials::limit_of(&outcome.ending);
        let limit = reached.and_then(|(limit, _)| {
            denials::set_by(limit, decision, target.timeout_ms, about.has_manifest())
        });
        let reached = reached
            .and_then(|(name, allowed)| denials::limit(name, allowed, decision, limit.clone()));
        let mut observed: Vec<_> = reached.into_iter().collect();
        observed.extend(denials::observed(traffic, &outcome.attempts, &about));
        let denials = target.redaction.denials(&observed);
        outcome.denials.observed.extend(observed);
        Help {
            about,
            found: &target.found,
            traffic,
            denials,
            limit,
        }
    }

    /// What code lacks that uses the function of a tool which it does not name.
    fn missing_call(&self, fault: &Fault) -> Option<MissingCall> {
        if fault.kind != Kind::ScriptError {
            return None;
        }
        let details = fault.details.as_deref().unwrap_or_default();
        let words = format!("{}\n{details}", fault.message);
        self.found.call_advice(Vec::new()).for_undefined(&words)
    }

    /// The tool's own failure, with hints. `printed`: bytes of its output.
    fn explain(self, fault: Fault, printed: u64, has_parts: bool) -> Fault {
        let about = &self.about;
        let (anyone, person) = denials::hints(&fault, printed, self.traffic, &self.denials, about);
        let (for_caller, for_person) = match self.missing_call(&fault) {
            Some(MissingCall::OfCaller(words)) => (Some(words), None),
            Some(MissingCall::OfPerson(words)) => (None, Some(words)),
            None => (None, None),
        };
        let details = [fault.details.clone(), anyone, for_caller]
            .into_iter()
            .flatten()
            .reduce(|all, more| all + "\n" + &more);
        let person = for_person.or(person);
        let person = fault.person.clone().or(self.limit).or(person);
        let message = match (fault.kind, &about.decision.grants.service, has_parts) {
            (Kind::TimeoutError, Some(_), true) => {
                "The tool's service sent parts of an answer, but did not end it (`end_of_stream`) \
                in time."
                    .to_owned()
            }
            (Kind::TimeoutError, Some(_), false) => {
                "The tool's service did not answer in time.".to_owned()
            }
            _ => fault.message.clone(),
        };
        // The caller wrote the code of `core:run-code`, and can fix it.
        let is_own_code = about.tool.manifest.id == policy::RUN_CODE;
        let by_caller = fault.by_caller || is_own_code && fault.kind == Kind::ScriptError;
        Fault {
            message,
            details,
            person,
            by_caller,
            ..fault
        }
    }
}
