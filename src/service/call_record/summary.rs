//! Summary: one call as the run log shows it.
//!
//! For: the record. In: what the stages found out. Out: one line of the run log. Never: shows a secret.

use super::super::record::{command, executor_of};
use super::super::runlog;
use super::CallRecord;
use crate::base::json::Text;
use crate::base::millis;
use crate::base::text::{cut, printable};
use crate::fault::{Fault, Kind};
use crate::manifest::Handler;
use crate::service::record::PART;
use crate::service::traces::Told;

impl CallRecord {
    /// The call is over: one line of the run log, and its spans.
    pub(super) fn log_run(&self, result: &Result<Text, Fault>) {
        let grade = result.as_ref().err().map_or(runlog::Grade::Fine, grade);
        runlog::record(grade, || self.summary(result));
        self.span.ended(&self.stages, || self.told(result.as_ref().err()));
    }

    /// What the call's span tells.
    fn told(&self, fault: Option<&Fault>) -> Told {
        let tool = self.tool.as_ref().map(|tool| &tool.manifest);
        let id = tool.map_or("", |manifest| &manifest.id);
        let error = fault.map(|fault| fault.kind.to_string());
        Told {
            name: format!("execute_tool {id}").trim_end().to_owned(),
            attributes: vec![
                ("gen_ai.operation.name", "execute_tool".to_owned()),
                ("gen_ai.tool.name", id.to_owned()),
                ("gen_ai.tool.call.id", self.id.clone()),
                ("toolhost.tool.version", tool.map_or_else(String::new, |manifest| manifest.version.to_string())),
                ("toolhost.caller", shown(&self.caller.user)),
                ("toolhost.policy", self.decided.as_ref().map_or_else(String::new, |decided| decided.policy.clone())),
                ("toolhost.outcome", error.clone().unwrap_or_else(|| "success".to_owned())),
                ("error.type", error.clone().unwrap_or_default()),
            ],
            denials: self.seen.denials.observed.len(),
            error,
        }
    }

    fn summary(&self, result: &Result<Text, Fault>) -> runlog::Summary {
        let fault = result.as_ref().err();
        let words = |words: Option<&String>| words.cloned().unwrap_or_default();
        let (stdout, result) = match result {
            Ok(answer) => (self.arguments.mask.text(answer.as_str()), "success".to_owned()),
            Err(fault) => {
                (self.arguments.mask.text(&self.seen.bad_output), format!("{}: {}", fault.kind, fault.message))
            }
        };
        runlog::Summary {
            call: self.id.clone(),
            trace: self.trace(),
            user: self.caller.user.clone(),
            label: self.label.clone().unwrap_or_default(),
            tool: self.tool.as_ref().map_or_else(|| self.asked.clone(), |tool| tool.reference()),
            parameters: self.shown_arguments(),
            executor: self.executor(),
            command: self.command(),
            stdout,
            stderr: self.seen.logs.join("\n"),
            duration_ms: millis(self.started.elapsed()),
            result,
            details: words(fault.and_then(|fault| fault.details.as_ref())),
            person: words(fault.and_then(|fault| fault.person.as_ref())),
            notes: self.notes.all.join("; "),
        }
    }

    /// Which executors the call leads to; empty: none.
    fn executor(&self) -> String {
        let script = self.confined.as_ref().map(|confined| executor_of(confined.shape.runtime.language));
        match (self.tool.as_ref().map(|tool| &tool.manifest.handler), script) {
            (Some(Handler::ServiceMethod { .. }), Some(script)) => format!("method, {script}"),
            (Some(Handler::ServiceMethod { .. }), None) => "method".to_owned(),
            (Some(Handler::Extension { kind, .. }), _) => kind.clone(),
            (Some(Handler::Document(_)), _) => "document".to_owned(),
            (Some(Handler::ToolService(_)), _) => "remote".to_owned(),
            (_, script) => script.unwrap_or_default().to_owned(),
        }
    }

    /// What was called: a command line, `service.method`, or an `x-…` type.
    pub(super) fn command(&self) -> String {
        if let Some(confined) = &self.confined {
            return command(&confined.shape);
        }
        match self.tool.as_ref().map(|tool| &tool.manifest.handler) {
            Some(Handler::ServiceMethod { service, method, .. }) => format!("{service}.{method}"),
            Some(Handler::Extension { kind, .. }) => kind.clone(),
            Some(Handler::ToolService(remote)) => remote.service.clone(),
            Some(Handler::Script { .. } | Handler::DefinitionOnly | Handler::Document(_)) | None => String::new(),
        }
    }
}

/// What the operator must mend is worse than what callers and tools do wrong.
fn grade(fault: &Fault) -> runlog::Grade {
    match fault.kind {
        _ if fault.by_caller => runlog::Grade::Fine,
        Kind::InternalError => runlog::Grade::Grave,
        Kind::SecurityError | Kind::CapabilityError | Kind::DependencyError | Kind::ServiceError => runlog::Grade::Odd,
        Kind::ToolNotFoundError
        | Kind::ActionParseError
        | Kind::ParameterValidationError
        | Kind::AuthorizationError
        | Kind::RateLimitError
        | Kind::CircuitOpenError
        | Kind::VersionMismatchError
        | Kind::TimeoutError
        | Kind::ResourceLimitError
        | Kind::ScriptError
        | Kind::OutputValidationError
        | Kind::CancelledError => runlog::Grade::Fine,
    }
}

fn shown(words: &str) -> String {
    printable(&cut(words, PART))
}
