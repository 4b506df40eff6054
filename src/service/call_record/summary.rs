//! Summary: one call as the run log shows it.
//!
//! For: the record. In: what the stages found out. Out: one line of the run log. Never: shows a secret.

use super::super::record::{command, executor_of};
use super::super::runlog;
use super::CallRecord;
use crate::base::json::Text;
use crate::base::millis;
use crate::fault::{Fault, Origin};
use crate::manifest::Handler;

impl CallRecord {
    pub(super) fn log_run(&self, result: &Result<Text, Fault>) {
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
            Ok(answer) => (self.arguments.mask.text(answer.as_str()), "success".to_owned()),
            Err(fault) => {
                (self.arguments.mask.text(&self.seen.bad_output), format!("{}: {}", fault.kind, fault.message))
            }
        };
        runlog::Summary {
            call: self.id.clone(),
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
    fn command(&self) -> String {
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
