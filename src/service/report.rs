//! The report: everything about one call that a caller may know; its JSON is the outcome of docs/CALLS.md. What an
//! agent reads holds no path of this host and no text of a policy.

use super::output::{self, Questions};
use super::quota;
use crate::base::json::Text;
use crate::base::text::printable;
use crate::egress::Traffic;
use crate::{executor, fault, manifest};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;

/// How one call ended. `success` is false exactly when there is an `error`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub id: String,
    /// The tool's id; where no tool was found, what was asked for.
    pub tool: String,
    pub version: Option<String>,
    pub success: bool,
    pub output_data: Option<Text>,
    pub error: Option<fault::Fault>,
    pub logs: Vec<String>,
    pub usage: executor::Usage,
    pub walls: executor::Walls,
    pub denials: executor::Denials,
    pub artifacts: Vec<executor::Artifact>,
    /// What a call that may reach hosts did with its network.
    pub network: Option<Traffic>,
    pub digests: Digests,
    /// Where the call got less than was asked.
    pub notes: Vec<String>,
    /// What was run, with what, and how long each stage took: where that was asked for.
    pub verbose: Option<Box<Verbose>>,
    /// What the tool asks of its client: with the answers the call is made again.
    pub asks: Option<Questions>,
    /// The tool's own definition, for faces that show more of it.
    pub manifest: Option<Arc<manifest::Manifest>>,
    /// True where the tool's answer is the envelope.
    pub speaks_envelope: bool,
    /// The answer is what its parts said: whoever has them has all of it.
    pub streamed: bool,
    /// Kept until the answer is delivered: no more answers wait for a slow reader than calls may run.
    pub turn: Option<Arc<quota::Slot>>,
}

/// SHA-256 of what the call ran with; `None` where there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Digests {
    pub manifest: Option<String>,
    pub script: Option<String>,
    pub policy: Option<String>,
    pub confinement: Option<String>,
}

/// `{success, outputData?, error?, logs?}`: what a manifest's `output` and `expectedOutput` describe where the tool
/// answers with envelopes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<'a> {
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_data: Option<&'a Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    logs: &'a [String],
}

/// A report as JSON: its members and their order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportView<'r> {
    id: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'r str>,
    tool: &'r str,
    version: Option<&'r str>,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_data: Option<&'r Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    logs: &'r [String],
    usage: &'r executor::Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    walls: Option<&'r [executor::WallState]>,
    denials: executor::Denials,
    artifacts: Vec<executor::Artifact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'r Traffic>,
    digests: &'r Digests,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'r [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    verbose: Option<&'r Verbose>,
}

/// As the person at the command line reads it.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.view().serialize(to)
    }
}

impl Report {
    /// Ends the call but for the memory of its arguments, which are kept while its client is asked.
    pub fn asks_on(mut self) -> Option<Arc<quota::Slot>> {
        let mut turn = self.turn.take()?;
        Arc::get_mut(&mut turn)?.running = None;
        Some(turn)
    }

    /// The outcome of a call of which nothing but its failure is known.
    pub fn of_fault(id: String, tool: &str, mut fault: fault::Fault) -> Report {
        fault.message = printable(&fault.message);
        Report { id, tool: printable(tool), error: Some(fault), ..Report::default() }
    }

    fn view(&self) -> ReportView<'_> {
        ReportView {
            id: &self.id,
            user: None,
            tool: &self.tool,
            version: self.version.as_deref(),
            success: self.success,
            output_data: self.output_data.as_ref(),
            error: self.error.as_ref().map(|fault| json!(fault)),
            logs: &self.logs,
            usage: &self.usage,
            walls: Some(&self.walls[..]),
            denials: self.denials.clone(),
            artifacts: self.artifacts.clone(),
            network: self.network.as_ref(),
            digests: &self.digests,
            notes: &self.notes,
            verbose: self.verbose.as_deref(),
        }
    }

    /// As JSON for whoever called over a network. Only an operator reads what names paths of this host: the walls, the
    /// network, the words for the person, the lines that would ask for more.
    pub fn shown<'r>(&'r self, operator: bool, user: Option<&'r str>) -> impl Serialize + 'r {
        let mut view = ReportView { user, verbose: None, ..self.view() };
        if operator {
            let person = self.error.as_ref().and_then(|fault| fault.person.as_deref());
            view.error.iter_mut().zip(person).for_each(|(error, person)| error["person"] = json!(person));
            return view;
        }
        (view.walls, view.network) = (None, None);
        view.denials.observed.iter_mut().for_each(|denial| denial.ask = None);
        let names = view.artifacts.iter_mut().filter(|artifact| artifact.path.starts_with('/'));
        names.for_each(|artifact| artifact.path = artifact.path.rsplit('/').next().unwrap_or_default().to_owned());
        view
    }

    /// Without the lines that would ask for what was refused: they name files of this host, which are for the person.
    pub fn for_agents(mut self) -> Report {
        self.denials.observed.iter_mut().for_each(|denial| denial.ask = None);
        self
    }

    pub fn envelope(&self) -> Envelope<'_> {
        Envelope {
            success: self.success,
            output_data: self.output_data.as_ref(),
            error: self.error.as_ref().map(|fault| match &fault.details {
                Some(details) => json!({"type": fault.kind, "message": fault.message, "details": details}),
                None => json!({"type": fault.kind, "message": fault.message}),
            }),
            logs: &self.logs,
        }
    }

    pub fn output(&self) -> Option<Value> {
        self.output_data.as_ref().map(Text::value)
    }

    pub fn observation(&self) -> String {
        match &self.error {
            Some(fault) => output::failed(&self.tool, fault),
            None => output::succeeded(&self.tool, self.output_data.as_ref().unwrap_or(&Text::from(&Value::Null))),
        }
    }
}

/// What was run, with what, and how long each stage took (`call --verbose`), secrets hidden.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verbose {
    /// The interpreter, its words and the script; of a method of this process its name.
    pub command: String,
    pub stdin: String,
    /// The answer, or the end of what was printed instead of one.
    pub stdout: String,
    pub stderr: String,
    /// What the call could touch, as audit shows it.
    pub grants: Vec<String>,
    pub timing: Vec<(&'static str, f64)>,
}
