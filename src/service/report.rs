//! The report: everything about one call that a caller may know; its JSON is the outcome of
//! docs/CALLS.md. What an agent reads holds no path of this host and no text of a policy.

use super::output::{self, Questions};
use super::quota;
use crate::base::text::printable;
use crate::egress::Traffic;
use crate::executor::ToolAnswer;
use crate::{executor, fault, manifest};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// How one call ended. `success` is false exactly when there is an `error`. As JSON it is what the
/// person at the command line reads; others get what `for_reader` returns.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub id: String,
    /// The label in the client's request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The tool's id; where no tool was found, what was asked for.
    pub tool: String,
    pub version: Option<String>,
    pub success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_data: Option<ToolAnswer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<fault::Fault>,
    pub logs: Vec<String>,
    pub usage: executor::Usage,
    /// `None`: not shown to this reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<executor::Layers>,
    pub denials: executor::Denials,
    pub artifacts: Vec<executor::Artifact>,
    /// What a call that may reach hosts did with its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Traffic>,
    pub digests: Digests,
    /// Notes on where the call got less than was requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was run, with what, and how long each stage took, for `--verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbose: Option<Box<Verbose>>,
    /// Questions of the tool to its client, which makes the call again with the answers.
    #[serde(skip)]
    pub questions: Option<Questions>,
    /// The tool's own definition, for transports that show more of it.
    #[serde(skip)]
    pub manifest: Option<Arc<manifest::Manifest>>,
    /// True where the tool's answer is the envelope.
    #[serde(skip)]
    pub speaks_envelope: bool,
    /// The parts that were sent make up the whole answer.
    #[serde(skip)]
    pub streamed: bool,
    /// Kept until the answer is delivered, so that no more answers wait for slow readers than calls
    /// may run.
    #[serde(skip)]
    pub slot: Option<Arc<quota::Slot>>,
}

/// SHA-256 of what the call ran with; `None` where there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Digests {
    pub manifest: Option<String>,
    pub script: Option<String>,
    pub policy: Option<String>,
    pub confinement: Option<String>,
}

/// `{success, outputData?, error?, logs?}`: what a manifest's `output` and `expectedOutput`
/// describe where the tool answers with envelopes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<'a> {
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_data: Option<&'a ToolAnswer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    logs: &'a [String],
}

impl Report {
    /// Gives up the slot, but keeps the memory of the arguments while the client is asked.
    pub fn release_slot_only(mut self) -> Option<Arc<quota::Slot>> {
        let mut slot = self.slot.take()?;
        Arc::get_mut(&mut slot)?.step_aside();
        Some(slot)
    }

    /// Takes the answer out, and leaves its mark.
    pub fn take_answer(&mut self) -> Option<ToolAnswer> {
        let answer = self.output_data.take();
        self.output_data = answer.as_ref().map(|_| ToolAnswer::mark());
        answer
    }

    /// The report of a call of which only the failure is known.
    pub fn of_fault(id: String, tool: &str, mut fault: fault::Fault) -> Report {
        fault.message = printable(&fault.message);
        Report {
            id,
            tool: printable(tool),
            error: Some(fault),
            layers: Some(executor::Layers::default()),
            ..Report::default()
        }
    }

    /// The report for a caller over a network. Only an operator gets what names paths of this host:
    /// the layers, the network, the texts for the person, the lines that would request more.
    pub fn for_reader(mut self, operator: bool, label: Option<&str>) -> Report {
        (self.user, self.verbose) = (label.map(str::to_owned), None);
        if operator {
            self.error = self.error.map(fault::Fault::for_operator);
            return self;
        }
        (self.layers, self.network) = (None, None);
        let names = self
            .artifacts
            .iter_mut()
            .filter(|artifact| artifact.path.starts_with('/'));
        names.for_each(|artifact| {
            artifact.path = artifact
                .path
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        self.for_agents()
    }

    /// Removes the lines that would request what was refused: they name files of this host.
    pub fn for_agents(mut self) -> Report {
        self.denials
            .observed
            .iter_mut()
            .for_each(|denial| denial.ask = None);
        self
    }

    pub fn envelope(&self) -> Envelope<'_> {
        Envelope {
            success: self.success,
            output_data: self.output_data.as_ref(),
            error: self.error.as_ref().map(|fault| match &fault.details {
                Some(details) => {
                    json!({"type": fault.kind, "message": fault.message, "details": details})
                }
                None => json!({"type": fault.kind, "message": fault.message}),
            }),
            logs: &self.logs,
        }
    }

    /// The output, if it is not large.
    pub fn output(&self) -> Option<Value> {
        self.output_data
            .as_ref()
            .and_then(ToolAnswer::small)
            .and_then(|text| serde_json::from_str(text).ok())
    }

    /// The observation of a report whose answer is not large.
    pub fn observation(&self) -> String {
        match &self.error {
            Some(fault) => output::failed(&self.tool, fault),
            None => {
                let answer = self
                    .output_data
                    .clone()
                    .unwrap_or_else(|| ToolAnswer::from(&Value::Null));
                output::succeeded(&self.tool, answer.head(usize::MAX), answer.content.as_ref())
            }
        }
    }
}

/// What was run, with what, and how long each stage took (`call --verbose`), secrets hidden.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verbose {
    /// The interpreter, its arguments and the script; for a method of this process, its name.
    pub command: String,
    pub stdin: String,
    /// The answer, or the end of what was printed instead of one.
    pub stdout: String,
    pub stderr: String,
    /// What the call could touch, as audit shows it.
    pub grants: Vec<String>,
    pub timing: Vec<(&'static str, f64)>,
}
