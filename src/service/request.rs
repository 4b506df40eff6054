//! A request: one call, its caller, who can be asked about it, and where its events go while it
//! runs. The queue between a tool and its reader is bounded.

use super::arguments::Arguments;
use super::client_call::ClientRuns;
use super::output::AskableClient;
use super::parent::{AskingCode, Parent};
use super::traces::context::TraceContext;
use crate::base::messages;
use crate::base::semaphore::Permit;
use crate::base::text::{self, printable};
use crate::executor::{Level, Progress, Showing};
use crate::fault::{Fault, Kind};
use crate::policy::{Confirm, InputFile};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The name by which the caller authenticated; records show it.
    pub user: String,
    /// The caller runs this host: sees audit records, metrics and the calls of others.
    pub operator: bool,
    pub proof: Proof,
}

/// What proved a caller, asked again after each wait of a call. Without a function: what nobody
/// withdraws.
#[derive(Clone, Default)]
pub struct Proof(pub Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Proof {
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|holds| holds())
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

/// Callers are the same by name and role, however they proved it.
impl PartialEq for Proof {
    fn eq(&self, _: &Proof) -> bool {
        true
    }
}

impl Eq for Proof {}

impl Caller {
    pub fn named(user: impl Into<String>) -> Caller {
        Caller {
            user: user.into(),
            ..Caller::default()
        }
    }

    pub fn operator(user: impl Into<String>) -> Caller {
        Caller {
            operator: true,
            ..Caller::named(user)
        }
    }

    /// Whether this caller may see a call of that caller or principal.
    pub(super) fn sees(&self, caller: &str, principal: &str) -> bool {
        self.operator || [caller, principal].contains(&self.user.as_str())
    }
}

/// Longest name of a caller or of a user that a request names, bytes. Such a name is refused where
/// it is accepted, and never cut.
pub const MAX_NAME_BYTES: usize = 256;

/// The name of a user.
pub fn user_name(name: &str) -> Result<String, String> {
    if name.len() <= MAX_NAME_BYTES {
        Ok(name.to_owned())
    } else {
        Err(format!("user must be at most {MAX_NAME_BYTES} bytes."))
    }
}

/// The user whom a request names; an empty name counts as none.
pub fn label(user: Option<String>) -> Result<Option<String>, Fault> {
    let named = user
        .filter(|user| !user.is_empty())
        .map(|user| user_name(&user))
        .transpose();
    named.map_err(|why| Fault::new(Kind::ParameterValidationError, why))
}

/// Whose calls a minute a request still counts among.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateCharge {
    /// Those of its principal, and of the caller that this acts as.
    #[default]
    Due,
    /// The principal's have counted it already, with its body.
    Paid,
    /// Nobody's.
    Free,
}

/// What of a request was charged before its call.
#[derive(Clone, Debug, Default)]
pub struct Charged {
    pub rate: RateCharge,
    /// The quota of the body that brought the arguments, until they are charged themselves.
    pub body: Option<Arc<Permit>>,
    /// The quota of the files that came with the request.
    pub files: Option<Arc<Permit>>,
}

impl From<RateCharge> for Charged {
    fn from(rate: RateCharge) -> Charged {
        Charged {
            rate,
            ..Charged::default()
        }
    }
}

/// What the records and the report of a call hold beside the usual.
#[derive(Clone, Debug, Default)]
pub struct Reporting {
    /// The trace that the call is part of.
    pub trace: Option<TraceContext>,
    /// What the caller groups calls by; the record shows it, and nothing else reads it.
    pub transaction: Option<String>,
    /// A person at this machine reads the report.
    pub at_machine: bool,
    /// Records and reports what the tool is refused, which makes the call slower.
    pub explain: bool,
    /// Adds to the report what was run, with what, and what it could touch: for the person at the
    /// command line.
    pub verbose: bool,
}

/// A file that a request brings.
#[derive(Clone, Debug)]
pub enum BroughtFile {
    /// `parameter`: the one that it is for, if its tool has that.
    Content { file: InputFile, parameter: String },
    /// An earlier artifact, by its id.
    Stored(String),
}

impl BroughtFile {
    /// Puts these bytes into memory that no tool can change.
    pub fn new(parameter: &str, name: String, content: &[u8]) -> Result<BroughtFile, Fault> {
        let file = messages::memory_file(content).map_err(|e| {
            let message = "this host has no room for a file of the call";
            Fault::new(Kind::InternalError, message)
                .person(e.to_string())
                .retryable()
        })?;
        let bytes = content.len() as u64;
        Ok(BroughtFile::from_file(parameter, name, file.into(), bytes))
    }

    /// As `new`, with an open file.
    pub fn from_file(parameter: &str, name: String, file: File, bytes: u64) -> BroughtFile {
        BroughtFile::Content {
            parameter: parameter.to_owned(),
            file: InputFile {
                name,
                content: Arc::new(file),
                offset: 0,
                bytes,
            },
        }
    }

    /// Its name, if it is for this parameter.
    pub(super) fn name_for(&self, name: &str) -> Option<&str> {
        match self {
            BroughtFile::Content { file, parameter } if parameter == name => Some(&file.name),
            _ => None,
        }
    }

    /// Whether it is for one of these: parameters, or tools of a batch.
    pub fn is_for(&self, names: &[&str]) -> bool {
        matches!(self, BroughtFile::Content { parameter, .. } if names.contains(&&**parameter))
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        matches!(self, BroughtFile::Content { file, .. } if file.name == name)
    }
}

#[derive(Clone, Debug, Default)]
pub struct CallRequest {
    /// The call's id, where the transport had to know it beforehand; else one is made.
    pub id: Option<String>,
    pub caller: Caller,
    /// The user whom the request names. A label: an identity only where the caller may act as that
    /// user.
    pub label: Option<String>,
    /// `id` or `id@range`.
    pub tool: String,
    pub arguments: Arguments,
    pub files: Vec<BroughtFile>,
    pub charged: Charged,
    pub timeout_ms: Option<u64>,
    pub approver: Approver,
    /// What the tool may ask its client, and what the client answered.
    pub client: AskableClient,
    pub client_runs: ClientRuns,
    pub reporting: Reporting,
    /// The caller that it was accepted for: it runs only as that caller.
    pub acts_as: Option<String>,
    /// The call whose code makes this one.
    pub parent: Option<Parent>,
    /// Why the transport refuses the request (unknown tool, malformed parameters). The call is
    /// recorded and ends so.
    pub refused: Option<Fault>,
}

impl CallRequest {
    /// A copy for another round, which counts as a call of its own. The body is charged no more.
    pub fn again(&self) -> CallRequest {
        CallRequest {
            charged: Charged {
                files: self.charged.files.clone(),
                ..Charged::default()
            },
            ..self.clone()
        }
    }

    /// What all calls have that the code of this one makes: its caller, label and trace, and the
    /// person who can be asked.
    pub(super) fn for_code(&self) -> CallRequest {
        CallRequest {
            label: self.label.clone(),
            acts_as: self.acts_as.clone(),
            approver: self.approver.for_code(),
            reporting: Reporting {
                trace: self.reporting.trace.clone(),
                transaction: self.reporting.transaction.clone(),
                ..Reporting::default()
            },
            ..CallRequest::new(self.caller.clone(), "", Arguments::default())
        }
    }

    pub fn new(caller: Caller, tool: impl Into<String>, arguments: Arguments) -> CallRequest {
        CallRequest {
            caller,
            tool: tool.into(),
            arguments,
            ..CallRequest::default()
        }
    }

    /// A request that its transport cannot accept. `asked`: the text in the place of the tool's id.
    pub fn refused(caller: Caller, asked: &str, fault: Fault) -> CallRequest {
        CallRequest {
            refused: Some(fault),
            ..CallRequest::new(caller, asked, Arguments::Value(Value::Null))
        }
    }
}

/// An id for a call: unique, and in the order of time.
pub fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Who can be asked to approve a call, as its transport knows.
#[derive(Clone, Default)]
pub enum Approver {
    #[default]
    Nobody,
    /// Operators, who see `Confirmations::list`. `not_own`: not the caller itself.
    Operators { not_own: bool },
    /// A person whom the transport itself can ask.
    Transport(Arc<dyn Ask>),
    /// The person at the calling client, if every policy that requires approval allows that;
    /// otherwise `or`.
    Client {
        transport: Arc<dyn Ask>,
        or: Box<Approver>,
    },
}

impl fmt::Debug for Approver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Approver")
    }
}

impl Approver {
    /// Who can be asked about a call of code, which cannot be made again with the answer.
    pub(super) fn for_code(&self) -> Approver {
        match self {
            Approver::Client { transport, or } if !transport.waits() => or.for_code(),
            approver => approver.clone(),
        }
    }
}

/// Asks a person. Dropping the future ends the question.
pub trait Ask: Send + Sync {
    /// Whether the answer comes while the call waits.
    fn waits(&self) -> bool {
        true
    }

    fn ask<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Answer>;
}

/// A question to a person, with everything that the answer applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    pub call: String,
    pub tool: String,
    pub caller: String,
    /// Who authenticated, if not `caller`; and the label of the request. Names are as they were
    /// brought.
    pub through: Option<String>,
    pub label: Option<String>,
    pub why: Vec<Confirm>,
    /// The code that makes the call, if code does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<AskingCode>,
    /// JSON text, secrets hidden, without control characters.
    pub arguments: String,
    /// How many characters of the arguments are left out.
    pub not_shown: usize,
    pub touches: Vec<String>,
    /// SHA-256 of the whole decision and the whole arguments.
    pub digest: String,
    /// RFC 3339: when the question came, and when it ends unanswered.
    pub asked: String,
    pub until: String,
}

impl Question {
    /// The question in lines. What callers chose is quoted, as JSON. `touches`: also what the call
    /// may touch.
    pub fn text(&self, touches: bool) -> String {
        let Question {
            tool,
            caller,
            through,
            label,
            why,
            code,
            arguments,
            not_shown,
            ..
        } = self;
        let mut lines = vec![format!("{tool}: may this call run?")];
        lines.extend(
            why.iter()
                .map(|rule| format!("  why        {} (policy {})", rule.why, rule.policy)),
        );
        let through = through
            .iter()
            .map(|name| format!(", through {}", quoted(name)));
        let label = label
            .iter()
            .map(|label| format!(", which calls itself {}", quoted(label)));
        lines.push(format!(
            "  for        {}{}",
            quoted(caller),
            through.chain(label).collect::<String>()
        ));
        lines.extend(code.iter().map(|code| {
            let AskingCode {
                tool,
                digest,
                calls,
            } = code;
            format!(
                "  called by  code of {tool} (SHA-256 {digest}); a yes is for {calls} calls of this \
                tool, whatever their arguments"
            )
        }));
        let rest = if *not_shown > 0 {
            format!(" … and {not_shown} more characters")
        } else {
            String::new()
        };
        lines.push(format!("  arguments  {arguments}{rest}"));
        let nothing = ["nothing but its script and scratch".to_owned()];
        let all = if self.touches.is_empty() {
            &nothing
        } else {
            self.touches.as_slice()
        };
        lines.extend(
            all.iter()
                .filter(|_| touches)
                .map(|line| format!("  may        {line}")),
        );
        lines
            .iter()
            .map(|line| printable(line))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// A text that a caller chose, as one JSON string.
fn quoted(chosen: &String) -> String {
    text::json(&json!(chosen), false)
}

/// What the person said. `by`: who, as records show it.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Approved {
        by: String,
    },
    Denied {
        by: String,
    },
    Dismissed {
        by: String,
    },
    /// The client asks its person now, and makes this call again with the answer.
    InputRequired,
    /// No answer that counts.
    Refused(Fault),
    Nobody,
}

/// What a transport receives while a call runs, secrets hidden. The report comes last, from
/// `Service::call`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Log(String),
    /// A message of the tool to its caller.
    Message(Level, String),
    /// How far the tool is.
    Progress(Progress),
    /// What this host does for the call before its tool runs.
    Preparing(String),
    /// A part of the answer of a tool that streams, as text. All parts together are at most
    /// `outputBytes`.
    Part(String),
    /// What the tool shows of its work. Counts as a part of that many bytes.
    Shown(Showing, usize),
}

impl Event {
    /// The bytes of what is never left out; `None`: a line that may be.
    fn kept_bytes(&self) -> Option<usize> {
        match self {
            Event::Part(text) => Some(text.len()),
            Event::Shown(_, bytes) => Some(*bytes),
            Event::Log(_) | Event::Message(..) | Event::Progress(_) | Event::Preparing(_) => None,
        }
    }
}

/// Takes the events of one call.
#[derive(Debug, Default)]
pub struct Sink {
    to: Option<mpsc::Sender<Event>>,
    /// Its reader may take as long as it likes once the call is over.
    patient: bool,
}

impl Sink {
    pub fn none() -> Sink {
        Sink::default()
    }

    /// A sink and its reader, which must read beside the call. `room`: events that may wait for the
    /// reader.
    pub fn new(room: usize) -> (Sink, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(room.max(1));
        (
            Sink {
                to: Some(sender),
                patient: false,
            },
            receiver,
        )
    }

    /// For a reader that takes everything, in its own time.
    pub fn patient(room: usize) -> (Sink, mpsc::Receiver<Event>) {
        let (sink, receiver) = Sink::new(room);
        (
            Sink {
                patient: true,
                ..sink
            },
            receiver,
        )
    }
}

/// Lines that wait for a slow reader; further ones are left out (the report holds the log).
const LINES: usize = 1000;
/// Parts of an answer that wait for a slow reader, and their bytes, before the tool waits, too.
const PARTS: usize = 1000;
const PARTS_BYTES: usize = 64 * 1024;
/// How long a reader may take none of the events that are left once the call is over; then it gets
/// no more of them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The events of one call on their way to its sink. A slow reader makes a tool that streams wait,
/// but not the clock of its call: what waits here is bounded by `PARTS` for parts of an answer and
/// by `LINES` for the log.
pub(super) struct EventStream {
    sink: Option<mpsc::Sender<Event>>,
    patient: bool,
    waiting: VecDeque<Event>,
    /// Parts of an answer among them, and their bytes.
    parts: (usize, usize),
}

impl EventStream {
    pub fn to(sink: Sink) -> EventStream {
        EventStream {
            sink: sink.to,
            patient: sink.patient,
            waiting: VecDeque::new(),
            parts: (0, 0),
        }
    }

    pub fn push(&mut self, event: Event) {
        let kept = event.kept_bytes();
        let full = kept.is_none() && self.waiting.len() - self.parts.0 >= LINES;
        if self.sink.is_none() || full {
            return;
        }
        if let Some(bytes) = kept {
            self.parts = (self.parts.0 + 1, self.parts.1 + bytes);
        }
        self.waiting.push_back(event);
    }

    /// Whether anybody reads the events.
    pub fn is_heard(&self) -> bool {
        self.sink.is_some()
    }

    /// Whether so much of the answer waits for the reader that the tool should wait, too.
    pub fn is_behind(&self) -> bool {
        self.parts.0 >= PARTS || self.parts.1 >= PARTS_BYTES
    }

    /// Hands one event on, as soon as the reader has room. Without an event it never ends.
    pub async fn hand_on(&mut self) {
        let Some(sink) = self.sink.as_ref().filter(|_| !self.waiting.is_empty()) else {
            return std::future::pending().await;
        };
        if let Ok(place) = sink.reserve().await
            && let Some(event) = self.waiting.pop_front()
        {
            if let Some(bytes) = event.kept_bytes() {
                self.parts = (self.parts.0 - 1, self.parts.1 - bytes);
            }
            return place.send(event);
        }
        // The reader is gone.
        (self.sink, self.parts) = (None, (0, 0));
        self.waiting.clear();
    }

    /// Passes on the events that still wait, while the reader takes them.
    pub async fn finish(mut self) {
        let patience = if self.patient {
            Duration::MAX
        } else {
            DRAIN_TIMEOUT
        };
        while !self.waiting.is_empty()
            && tokio::time::timeout(patience, self.hand_on()).await.is_ok()
        {}
    }
}
