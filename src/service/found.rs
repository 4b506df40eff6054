//! The tool of a call, and its arguments: decoded, checked, and with their secrets known.

use super::arguments::{self, ReceivedArguments};
use super::call_advice::CallAdvice;
use super::callers::Rights;
use super::decision_cache::{CachedDecision, DecisionCache};
use super::files::{self, Brought};
use super::record::CallRecord;
use super::redact;
use super::redaction::{Redaction, Withheld};
use super::request::BroughtFile;
use crate::executor::CallDeadline;
use crate::fault::Fault;
use crate::manifest::arguments::check_written;
use crate::registry;
use serde_json::Value;
use std::sync::Arc;

/// A tool that was found, and the data of its call that all later stages need.
pub(super) struct FoundTool {
    /// The id of the call.
    pub call: String,
    /// The user whom the request names.
    pub label: Option<String>,
    /// The tools and rules under which the whole decision is taken.
    pub decisions: Arc<DecisionCache>,
    pub rights: Rights,
    pub tool: Arc<registry::Tool>,
    /// The alias by which it was called.
    pub alias: Option<Arc<registry::Tool>>,
    pub decided: Arc<CachedDecision>,
    pub timeout_ms: Option<u64>,
    /// A person at this machine reads the report.
    pub at_machine: bool,
    /// Whether to record what the tool is refused.
    pub explain: bool,
    /// When the decision was begun, which is when the clock of the call starts, and the call's time
    /// limit.
    pub deadline: CallDeadline,
}

pub(super) struct CheckedArguments {
    pub input: Value,
    pub redaction: Arc<Redaction>,
    pub withheld: Withheld,
    /// The files that the request and its arguments bring.
    pub files: Vec<BroughtFile>,
}

impl FoundTool {
    /// `named`: the tools that its code may call as its arguments say.
    pub fn call_advice(&self, named: Vec<String>) -> CallAdvice {
        CallAdvice {
            tool: self.tool.clone(),
            decisions: self.decisions.clone(),
            rights: self.rights.clone(),
            named,
        }
    }

    /// The ids that the call answers to: the alias, if it was called by one, and the tool.
    pub fn ids(&self) -> impl Iterator<Item = &String> {
        let tools = self.alias.iter().chain([&self.tool]);
        tools.map(|tool| &tool.manifest.id)
    }

    /// Decodes the arguments and checks them against the parameters of the tool. Their secrets are
    /// marked before a fault can quote them. `redaction`: that of the decision before this one.
    pub async fn check(
        &self,
        received: &ReceivedArguments,
        brought: Brought,
        mut redaction: Arc<Redaction>,
        record: &mut CallRecord,
    ) -> Result<CheckedArguments, Fault> {
        let manifest = &self.tool.manifest;
        let deadline = &self.deadline;
        let arguments = received.arguments.clone();
        let tool = manifest.clone();
        let alias = self.alias.clone();
        let decode = move || {
            let (mut given, written) = arguments.decode()?;
            if let Some(alias) = alias.as_ref().and_then(|tool| tool.manifest.alias()) {
                arguments::fix(alias, &mut given)?;
            }
            let files = files::take(&tool, &mut given, brought)?;
            Ok::<_, Fault>((given, written, files))
        };
        let decoded = deadline.run(received.are_long, decode);
        let (given, written, files) = decoded.await??;
        let given = arguments::with_timeout(manifest, given, self.timeout_ms);
        let long = manifest.takes_long(&given);
        let tool = manifest.clone();
        let (masked, given) = deadline
            .run(long, move || (redact::of_arguments(&tool, &given), given))
            .await?;
        Arc::make_mut(&mut redaction).take(masked);
        record.redacts(&redaction);
        let tool = manifest.clone();
        let (masked, input) = deadline
            .run(long, move || -> Result<(redact::Masked, Value), Fault> {
                let input = check_written(&tool, given, &written)?;
                Ok((redact::of_arguments(&tool, &input), input))
            })
            .await??;
        let withheld = Arc::make_mut(&mut redaction).take(masked);
        record.redacts(&redaction);
        Ok(CheckedArguments {
            input,
            redaction,
            withheld,
            files,
        })
    }
}
