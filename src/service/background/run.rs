//! A run: the calls of one turn of a model, some of which its client runs. Its states, and how they
//! follow each other. Plain data; nothing is stored here.

use crate::base::json;
use crate::base::mask::Mask;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::service::client_call::ClientCall;
use crate::service::output;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::collections::HashSet;

/// How long a run waits for its client.
const ACTION_MINUTES: i64 = 10;
/// What a model reads of an output without text.
const NO_RESULT: &str = "The tool call has no result.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Queued,
    InProgress,
    /// The client runs calls, and submits their outputs.
    RequiresAction,
    Cancelling,
    Completed,
    Failed,
    Cancelled,
    /// The client submitted nothing in time.
    Expired,
}

impl RunStatus {
    pub fn is_final(self) -> bool {
        self.next().is_empty()
    }

    /// The states that may follow.
    fn next(self) -> &'static [RunStatus] {
        use RunStatus::{
            Cancelled, Cancelling, Completed, Expired, Failed, InProgress, Queued, RequiresAction,
        };
        match self {
            Queued => &[InProgress, Cancelled, Failed],
            InProgress => &[RequiresAction, Completed, Failed, Cancelling],
            RequiresAction => &[Queued, InProgress, Completed, Failed, Cancelling, Expired],
            Cancelling => &[Cancelled, Failed],
            Completed | Failed | Cancelled | Expired => &[],
        }
    }

    /// As clients read it.
    pub fn word(self) -> &'static str {
        match self {
            RunStatus::Queued => "queued",
            RunStatus::InProgress => "in_progress",
            RunStatus::RequiresAction => "requires_action",
            RunStatus::Cancelling => "cancelling",
            RunStatus::Completed => "completed",
            RunStatus::Failed => "failed",
            RunStatus::Cancelled => "cancelled",
            RunStatus::Expired => "expired",
        }
    }
}

/// One call of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStep {
    /// The id to which the output of the call refers.
    pub call: String,
    /// The tool, as the model called it.
    pub name: String,
    /// JSON text, secrets hidden.
    pub arguments: String,
    pub status: RunStatus,
    /// What the model reads.
    pub output: Option<String>,
    /// What the client is handed. Stored with secrets hidden.
    pub client: Option<ClientCall>,
}

/// How one call of a run ended here.
#[derive(Debug)]
pub enum StepEnd {
    Output { text: String, is_success: bool },
    Client(ClientCall),
}

impl StepEnd {
    pub fn failed(tool: &str, fault: &Fault) -> StepEnd {
        StepEnd::Output {
            text: output::failed(tool, &output::for_model(fault)),
            is_success: false,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            StepEnd::Output { text, .. } => text.len(),
            // Its arguments are charged with the body.
            StepEnd::Client(_) => 0,
        }
    }
}

/// An output that a client submits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolOutput {
    pub tool_call_id: String,
    pub output: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub id: String,
    #[serde(flatten)]
    pub owner: Owner,
    pub status: RunStatus,
    pub began: Timestamp,
    /// When a run that waits for its client expires.
    pub expires: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// Kept on the disk, and after its end.
    pub store: bool,
    pub steps: Vec<RunStep>,
}

impl RunStep {
    /// A call that begins now.
    pub fn new(call: String, name: String) -> RunStep {
        RunStep {
            call,
            name,
            arguments: String::new(),
            status: RunStatus::InProgress,
            output: None,
            client: None,
        }
    }

    fn bytes(&self) -> usize {
        let output = self.output.as_ref().map_or(0, String::len);
        // The client's arguments are values, and about those that are shown.
        let values = self.client.as_ref().map(|_| json::weight(&self.arguments));
        let shown = self.arguments.len() + values.unwrap_or_default();
        self.call.len() + self.name.len() + shown + output
    }
}

impl Run {
    /// A run whose calls begin now.
    pub fn new(id: String, owner: Owner, steps: Vec<RunStep>, store: bool) -> Run {
        Run {
            id,
            owner,
            status: RunStatus::InProgress,
            began: Timestamp::now(),
            expires: None,
            ended: None,
            store,
            steps,
        }
    }

    /// It without its steps.
    pub fn head(&self) -> Run {
        Run {
            id: self.id.clone(),
            owner: self.owner.clone(),
            steps: Vec::new(),
            ..*self
        }
    }

    /// Bytes of what it holds.
    pub fn bytes(&self) -> usize {
        self.steps.iter().map(RunStep::bytes).sum()
    }

    /// Moves it to a state, if that may follow. The same state again changes nothing.
    pub fn enter(&mut self, status: RunStatus) -> Result<(), Fault> {
        if self.status == status {
            return Ok(());
        }
        if !self.status.next().contains(&status) {
            let message = format!(
                "A run that is {} does not become {}.",
                self.status.word(),
                status.word()
            );
            return Err(refused(message));
        }
        self.status = status;
        self.expires = None;
        if status == RunStatus::RequiresAction {
            let until = Timestamp::now() + SignedDuration::from_mins(ACTION_MINUTES);
            self.expires = Some(until);
        }
        if status.is_final() {
            self.ended = Some(Timestamp::now());
            let open = self.steps.iter_mut().filter(|step| !step.status.is_final());
            open.for_each(|step| step.status = status);
        }
        Ok(())
    }

    /// The end of one of its calls. `arguments`: with secrets hidden.
    pub fn end_step(&mut self, call: &str, arguments: String, end: StepEnd) {
        let step = self.steps.iter_mut().find(|step| step.call == call);
        let Some(step) = step.filter(|step| step.status == RunStatus::InProgress) else {
            return;
        };
        step.arguments = arguments;
        match end {
            StepEnd::Output { text, is_success } => {
                step.output = Some(text);
                step.status = if is_success {
                    RunStatus::Completed
                } else {
                    RunStatus::Failed
                };
            }
            StepEnd::Client(call) => {
                step.status = RunStatus::RequiresAction;
                step.client = Some(call);
            }
        }
    }

    /// All its calls have ended, or wait for the client.
    pub fn settle(&mut self) -> Result<(), Fault> {
        let waits = self.required().next().is_some();
        self.enter(if waits {
            RunStatus::RequiresAction
        } else {
            RunStatus::Completed
        })
    }

    /// The calls whose outputs the client must submit.
    pub fn required(&self) -> impl Iterator<Item = (&RunStep, &ClientCall)> {
        let waiting = self
            .steps
            .iter()
            .filter(|step| step.status == RunStatus::RequiresAction);
        waiting.filter_map(|step| Some((step, step.client.as_ref()?)))
    }

    /// Takes the outputs of all calls that wait for them, or none of them.
    pub fn submit(&mut self, outputs: Vec<ToolOutput>) -> Result<(), Fault> {
        if self.status != RunStatus::RequiresAction {
            let message = format!(
                "The run does not wait for outputs: it is {}.",
                self.status.word()
            );
            return Err(refused(message));
        }
        let mut given = HashSet::new();
        for ToolOutput { tool_call_id, .. } in &outputs {
            let is_waiting = self.required().any(|(step, _)| step.call == *tool_call_id);
            let shown = printable(tool_call_id);
            if !is_waiting {
                return Err(refused(format!(
                    "No tool call waits for an output with id: {shown}."
                )));
            }
            if !given.insert(tool_call_id) {
                return Err(refused(format!(
                    "The tool call has two outputs, with id: {shown}."
                )));
            }
        }
        let missing = self
            .required()
            .find(|(step, _)| !given.contains(&step.call));
        if let Some((step, _)) = missing {
            let id = printable(&step.call);
            return Err(refused(format!(
                "tool call id is not provided, with id: {id}"
            )));
        }
        self.enter(RunStatus::Queued)?;
        for ToolOutput {
            tool_call_id,
            output,
        } in outputs
        {
            let written = output.filter(|output| !output.trim().is_empty());
            let steps = self.steps.iter_mut();
            for step in steps.filter(|step| step.call == tool_call_id) {
                step.output = Some(written.clone().unwrap_or_else(|| NO_RESULT.to_owned()));
                step.status = RunStatus::Completed;
            }
        }
        self.enter(RunStatus::InProgress)
    }

    /// Its state at this moment: a client that is late finds it expired.
    pub fn expire(&mut self, now: Timestamp) {
        if let Some(until) = self.expires.filter(|until| *until <= now) {
            let _ = self.enter(RunStatus::Expired);
            // A host that reads it again says the same.
            self.ended = Some(until);
        }
    }

    /// Ends it where its host ended while it ran. False: it did not run.
    pub fn lose(&mut self) -> bool {
        let ran = !self.status.is_final() && self.status != RunStatus::RequiresAction;
        if ran {
            self.status = RunStatus::InProgress;
            let _ = self.enter(RunStatus::Failed);
        }
        ran
    }

    /// As it is stored: what the client is handed, and what it submitted, has its secrets hidden.
    pub fn stored(&self, hides: &Mask) -> Run {
        let mut stored = self.clone();
        for step in &mut stored.steps {
            let output = step.output.take();
            step.output = output.map(|text| hides.text_or_document(&text));
            let Some(client) = &mut step.client else {
                continue;
            };
            let shown: Option<Map<_, _>> = serde_json::from_str(&step.arguments).ok();
            client.arguments = client.what.in_form(shown.unwrap_or_default());
        }
        stored
    }
}

fn refused(message: String) -> Fault {
    Fault::new(Kind::ParameterValidationError, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::ClientTool;

    fn client(id: &str) -> StepEnd {
        StepEnd::Client(ClientCall {
            id: id.to_owned(),
            tool: "t:x".to_owned(),
            name: "t__x".to_owned(),
            what: ClientTool::Function,
            arguments: Map::from_iter([("key".to_owned(), "secret".into())]),
        })
    }

    /// One call that ran, and two that wait for the client.
    fn waiting() -> Run {
        let steps = ["a", "b", "c"].map(|id| RunStep::new(id.to_owned(), "t__x".to_owned()));
        let mut run = Run::new("run".to_owned(), Owner::default(), steps.into(), true);
        let text = "1".to_owned();
        let is_success = true;
        run.end_step("a", "{}".to_owned(), StepEnd::Output { text, is_success });
        run.end_step("b", "{\"key\":\"[hidden]\"}".to_owned(), client("b"));
        run.end_step("c", "{}".to_owned(), client("c"));
        run.settle().expect("settled");
        run
    }

    fn output(id: &str, text: &str) -> ToolOutput {
        ToolOutput {
            tool_call_id: id.to_owned(),
            output: Some(text.to_owned()),
        }
    }

    #[test]
    fn all_outputs_or_none_are_taken() {
        let mut run = waiting();
        assert_eq!(run.required().count(), 2);
        let before = run.clone();
        for (outputs, wanted) in [
            (vec![output("b", "x")], "not provided, with id: c"),
            (
                vec![output("b", ""), output("c", ""), output("d", "")],
                "with id: d",
            ),
            (
                vec![output("b", ""), output("b", ""), output("c", "")],
                "two outputs",
            ),
            (vec![output("a", "")], "with id: a"),
        ] {
            let why = run.submit(outputs).expect_err("refused").message;
            assert!(why.contains(wanted), "{why}");
            assert_eq!(run, before);
        }
        let taken = run.submit(vec![output("c", " \n"), output("b", "2")]);
        taken.and_then(|()| run.settle()).expect("taken");
        assert_eq!(run.status, RunStatus::Completed);
        let outputs: Vec<_> = run
            .steps
            .iter()
            .filter_map(|it| it.output.as_deref())
            .collect();
        assert_eq!(outputs, ["1", "2", NO_RESULT]);
        let why = run.submit(Vec::new()).expect_err("a second time").message;
        assert!(why.contains("it is completed"), "{why}");
    }

    #[test]
    fn a_late_client_finds_it_expired_and_final_states_stay() {
        let mut run = waiting();
        run.expire(Timestamp::now());
        assert_eq!(run.status, RunStatus::RequiresAction);
        run.expire(Timestamp::now() + SignedDuration::from_mins(ACTION_MINUTES + 1));
        assert_eq!(
            (run.status, run.steps[1].status),
            (RunStatus::Expired, RunStatus::Expired)
        );
        assert!(run.submit(vec![output("b", ""), output("c", "")]).is_err());
        assert!(run.enter(RunStatus::Queued).is_err() && run.enter(RunStatus::Expired).is_ok());
    }

    #[test]
    fn no_secret_of_the_arguments_is_stored() {
        let stored = serde_json::to_string(&waiting().stored(&Mask::default())).expect("JSON");
        assert!(
            !stored.contains("secret") && stored.contains("[hidden]"),
            "{stored}"
        );
        let read: Run = serde_json::from_str(&stored).expect("read");
        assert_eq!(
            read,
            waiting().stored(&Mask::default()).with_times_of(&read)
        );
    }

    impl Run {
        fn with_times_of(self, other: &Run) -> Run {
            let Run { began, expires, .. } = *other;
            Run {
                began,
                expires,
                ..self
            }
        }
    }
}
