//! The report: everything about one call that a caller may know; its JSON is the outcome of
//! docs/reference/CALLS.md. What an agent reads holds no path of this host and no text of a policy.

use super::artifacts::{ListedArtifact, OpenArtifact};
use super::client_call::ClientCall;
use super::output::{self, Questions};
use super::quota;
use super::redaction::Redaction;
use crate::base::mask::{Hidden, Mask};
use crate::base::text::{printable, printable_block, with_settings};
use crate::egress::Traffic;
use crate::executor::StoredFile;
use crate::executor::ToolAnswer;
use crate::fault::Fault;
use crate::{executor, manifest};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;

/// How a call ended. As JSON: `success`, and `outputData` or `error`.
#[derive(Clone, Debug, PartialEq)]
pub enum CallResult {
    Output(ToolAnswer),
    /// Questions of the tool to its client, which makes the call again with the answers.
    Questions(Questions),
    /// The client runs it, and submits its output.
    RequiresAction(ClientCall),
    /// Questions that the client cannot be asked, which fails the call.
    Unaskable(Questions, Fault),
    Failed(Fault),
}

/// A call that nobody ended.
impl Default for CallResult {
    fn default() -> CallResult {
        CallResult::Failed(output::cancelled())
    }
}

impl CallResult {
    pub fn is_success(&self) -> bool {
        self.fault().is_none()
    }

    pub fn fault(&self) -> Option<&Fault> {
        match self {
            CallResult::Unaskable(_, fault) | CallResult::Failed(fault) => Some(fault),
            CallResult::Output(_) | CallResult::Questions(_) | CallResult::RequiresAction(_) => {
                None
            }
        }
    }

    pub fn into_fault(self) -> Option<Fault> {
        self.fault().cloned()
    }

    pub fn answer(&self) -> Option<&ToolAnswer> {
        match self {
            CallResult::Output(answer) => Some(answer),
            _ => None,
        }
    }

    pub fn map_fault(self, change: impl FnOnce(Fault) -> Fault) -> CallResult {
        match self {
            CallResult::Unaskable(questions, fault) => {
                CallResult::Unaskable(questions, change(fault))
            }
            CallResult::Failed(fault) => CallResult::Failed(change(fault)),
            other => other,
        }
    }

    /// `success`, `requires_action`, or the type of the error.
    pub fn word(&self) -> String {
        match self {
            CallResult::RequiresAction(_) => "requires_action".to_owned(),
            other => other
                .fault()
                .map_or_else(|| "success".to_owned(), |fault| fault.kind.to_string()),
        }
    }
}

impl Serialize for CallResult {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut json = to.serialize_map(None)?;
        json.serialize_entry("success", &self.is_success())?;
        match self {
            CallResult::Output(answer) => json.serialize_entry("outputData", answer)?,
            CallResult::Questions(_) => json.serialize_entry("outputData", &Value::Null)?,
            CallResult::RequiresAction(call) => json.serialize_entry("requiresAction", call)?,
            CallResult::Unaskable(_, fault) | CallResult::Failed(fault) => {
                json.serialize_entry("error", fault)?;
            }
        }
        json.end()
    }
}

/// What is known of one call. As JSON it is what the person at the command line reads; others get
/// what `for_reader` returns.
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
    #[serde(flatten)]
    pub outcome: CallResult,
    pub logs: Vec<String>,
    #[serde(flatten)]
    pub observed: Observed,
    pub digests: Digests,
    /// Notes on where the call got less than was requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was run, with what, and how long each stage took, for `--verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbose: Option<Box<Verbose>>,
    #[serde(skip)]
    pub delivery: Delivery,
}

/// What was observed while the tool ran.
#[derive(Clone, Debug, Serialize)]
pub struct Observed {
    pub usage: executor::Usage,
    /// `None`: not shown to this reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<executor::Layers>,
    pub denials: executor::Denials,
    pub artifacts: Vec<executor::Artifact>,
    /// What a call that may reach hosts did with its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Traffic>,
}

/// Nothing ran.
impl Default for Observed {
    fn default() -> Observed {
        Observed {
            usage: executor::Usage::default(),
            layers: Some(executor::Layers::default()),
            denials: executor::Denials::default(),
            artifacts: Vec::new(),
            network: None,
        }
    }
}

/// What a transport needs to deliver the answer.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// The tool's own definition, for transports that show more of it.
    pub manifest: Option<Arc<manifest::Manifest>>,
    /// True where the tool's answer is the envelope.
    pub speaks_envelope: bool,
    /// Artifacts that the answer itself shows.
    pub pictures: Vec<OpenArtifact>,
    /// The parts that were sent make up the whole answer.
    pub streamed: bool,
    /// Shows the arguments as records do.
    pub(super) redaction: Hidden<Arc<Redaction>>,
    /// Kept until the answer is delivered, so that no more answers wait for slow readers than calls
    /// may run.
    pub slot: Option<Arc<quota::Slot>>,
}

/// The arguments of a call, secrets hidden, and what hides its secrets elsewhere.
pub struct ShownArguments {
    pub text: String,
    pub hides: Mask,
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<ListedArtifact>,
}

impl Report {
    /// Gives up the slot, but keeps the memory of the arguments while the client is asked.
    pub fn release_slot_only(mut self) -> Option<Arc<quota::Slot>> {
        let mut slot = self.delivery.slot.take()?;
        Arc::get_mut(&mut slot)?.step_aside();
        Some(slot)
    }

    /// Takes the answer out, and leaves its mark.
    pub fn take_answer(&mut self) -> Option<ToolAnswer> {
        match &mut self.outcome {
            CallResult::Output(answer) => Some(std::mem::replace(answer, ToolAnswer::mark())),
            _ => None,
        }
    }

    /// The arguments as records show them.
    pub fn arguments(&self) -> ShownArguments {
        let redaction = &self.delivery.redaction;
        ShownArguments {
            text: redaction.arguments(),
            hides: redaction.mask.clone(),
        }
    }

    /// The report of a call of which only the failure is known.
    pub fn of_fault(id: String, tool: &str, mut fault: Fault) -> Report {
        fault.message = printable(&fault.message);
        Report {
            id,
            tool: printable(tool),
            outcome: CallResult::Failed(fault),
            ..Report::default()
        }
    }

    /// The report for a caller over a network. Only an operator gets what names paths of this host:
    /// the layers, the network, the texts for the person, the lines that would request more.
    pub fn for_reader(mut self, operator: bool, label: Option<&str>) -> Report {
        (self.user, self.verbose) = (label.map(str::to_owned), None);
        if operator {
            self.outcome = self.outcome.map_fault(Fault::for_operator);
            return self;
        }
        (self.observed.layers, self.observed.network) = (None, None);
        let names = self
            .observed
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

    /// Gives the commands in the texts for the person the settings of this host.
    pub fn with_settings(mut self, program: &str) -> Report {
        let denials = self.observed.denials.observed.iter_mut();
        for ask in denials.flat_map(|denial| &mut denial.ask) {
            *ask = with_settings(ask, program);
        }
        self.outcome = self.outcome.map_fault(|mut fault| {
            fault.person = fault.person.map(|text| with_settings(&text, program));
            fault
        });
        self
    }

    /// Removes the lines that would request what was refused: they name files of this host.
    pub fn for_agents(mut self) -> Report {
        let denials = &mut self.observed.denials.observed;
        denials.iter_mut().for_each(|denial| denial.ask = None);
        self
    }

    pub fn envelope(&self) -> Envelope<'_> {
        Envelope {
            success: self.outcome.is_success(),
            output_data: self.outcome.answer(),
            error: self.outcome.fault().map(|fault| match &fault.details {
                Some(details) => {
                    json!({"type": fault.kind, "message": fault.message, "details": details})
                }
                None => json!({"type": fault.kind, "message": fault.message}),
            }),
            logs: &self.logs,
            artifacts: self.listed_artifacts(),
        }
    }

    /// The artifacts of the call, each with its size.
    pub fn stored(&self) -> impl Iterator<Item = (&StoredFile, u64)> {
        let artifacts = self.observed.artifacts.iter();
        artifacts.filter_map(|artifact| Some((artifact.stored.as_ref()?, artifact.bytes)))
    }

    pub fn listed_artifacts(&self) -> Vec<ListedArtifact> {
        let listed = self.stored().map(|(file, bytes)| ListedArtifact {
            bytes,
            file: file.clone(),
        });
        listed.collect()
    }

    /// What a model reads of the files that the call left. `None`: it left none.
    pub fn left_files(&self) -> Option<String> {
        let lines = self.stored().map(|(file, bytes)| {
            let StoredFile {
                name, media_type, ..
            } = file;
            format!("{name} ({media_type}, {bytes} bytes): {}", file.uri())
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| printable_block(&format!("Files:\n{}", lines.join("\n"))))
    }

    /// The output, if it is not large.
    pub fn output(&self) -> Option<Value> {
        self.outcome
            .answer()
            .and_then(ToolAnswer::small)
            .and_then(|text| serde_json::from_str(text).ok())
    }

    /// The observation of a report whose answer is not large.
    pub fn observation(&self) -> String {
        match &self.outcome {
            CallResult::Unaskable(_, fault) | CallResult::Failed(fault) => {
                output::failed(&self.tool, fault)
            }
            CallResult::Questions(_) | CallResult::RequiresAction(_) => {
                output::succeeded(&self.tool, "null", None)
            }
            CallResult::Output(answer) => {
                let sentence =
                    output::succeeded(&self.tool, answer.head(usize::MAX), answer.content.as_ref());
                match self.left_files() {
                    Some(files) => format!("{sentence}\n{files}"),
                    None => sentence,
                }
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
