//! The one channel from a running tool up to the pipeline, in order: whether it may start, lines of
//! its log, its progress, parts of its answer. The outcome comes after them.
//!
//! At most a few hundred messages wait. A tool never waits for the reader of its log, and no part
//! of an answer is lost.

use super::answer::ToolAnswer;
use super::deadline::CallDeadline;
use crate::base::json::Text;
use crate::fault::{Fault, Kind};
use crate::policy::Shape;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Events that may wait.
const MAX_WAITING: usize = 256;
/// Parts of an answer among them: each may be long.
const MAX_WAITING_PARTS: usize = 16;
/// The beginning of a stderr line that holds progress or a message; one JSON object follows.
const MARK: &str = "@toolhost ";
/// Longest such object, bytes.
const MAX_MARKED_BYTES: usize = 16 * 1024;

/// What comes from a running tool.
#[derive(Debug)]
pub enum FromTool {
    /// Everything is ready. Does the decision about the call still hold?
    Recheck(Reply),
    /// As `Recheck`, for a tool that starts behind layers which hold the grants of this shape.
    Opened(Arc<Shape>, Reply),
    /// It answered, and left these files for its caller. They are gone after the reply.
    Left(Vec<LeftFile>, Reply),
    Event(Event),
    NestedCall(NestedCall),
}

/// A call of another tool, by the code of this one.
#[derive(Debug)]
pub struct NestedCall {
    /// `id` or `id@range`, as the code wrote it.
    pub tool: String,
    /// JSON text, not read yet.
    pub arguments: String,
    pub reply: oneshot::Sender<NestedAnswer>,
}

/// What the code gets: the value of the other tool, or why there is none.
#[derive(Debug)]
pub struct NestedAnswer {
    pub result: Result<ToolAnswer, Fault>,
    /// What is charged for the answer, until it is delivered.
    pub charged: Option<Box<dyn Any + Send>>,
}

/// A file that a call left, open for reading. No process of the call is left.
#[derive(Debug)]
pub struct LeftFile {
    pub name: String,
    pub file: std::fs::File,
    pub bytes: u64,
}

/// Answers a question of an executor. Nothing is started before the answer, or after an error.
pub type Reply = oneshot::Sender<Result<(), Fault>>;

/// Texts are not yet escaped.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One line of the log.
    Log(String),
    Progress(Progress),
    /// A message of the tool for the log of its client.
    Message(Level, String),
    /// A part of the answer of a tool that streams. The outcome still holds the whole answer.
    Chunk(Text),
    /// The JSON of a `Showing`, checked. The answer does not have it.
    Shown(Text),
}

/// What a tool shows of its work, for clients that show more of a call than its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Showing {
    /// It makes a picture.
    Image(ImageStage),
    /// It searches files for these texts.
    Search(Vec<String>),
    /// Anything of its own.
    Custom(Value),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageStage {
    Generating,
    /// The picture so far, in base64.
    Partial(String),
}

/// How far a tool is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    pub progress: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The severity of a message (RFC 5424).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// The two forms of a marked line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Marked {
    Progress(Progress),
    Message(Message),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    log: Level,
    message: String,
}

impl Event {
    /// The event in a line of stderr. A line that is not exactly one of the two marked forms is a
    /// line of the log.
    pub fn from_line(line: String) -> Event {
        let json = line
            .strip_prefix(MARK)
            .filter(|json| json.len() <= MAX_MARKED_BYTES);
        match json.and_then(|json| serde_json::from_str(json).ok()) {
            Some(Marked::Progress(progress)) => Event::Progress(progress),
            Some(Marked::Message(Message { log, message })) => Event::Message(log, message),
            None => Event::Log(line),
        }
    }
}

/// The end of the executor.
#[derive(Clone, Debug)]
pub struct ToolSender {
    /// `None`: nobody listens, and the call may start.
    sender: Option<mpsc::Sender<FromTool>>,
    lost: Arc<AtomicU64>,
    parts: Arc<Semaphore>,
    /// The time of the call, within which its parts are read.
    pub deadline: CallDeadline,
}

/// The end of the pipeline. Once it is dropped, events are thrown away and no call may start.
#[derive(Debug)]
pub struct ToolReceiver {
    messages: mpsc::Receiver<FromTool>,
    lost: Arc<AtomicU64>,
    parts: Arc<Semaphore>,
}

impl Drop for ToolReceiver {
    fn drop(&mut self) {
        self.parts.close();
    }
}

/// Makes the channel of a call.
pub fn channel(deadline: CallDeadline) -> (ToolSender, ToolReceiver) {
    let (sender, messages) = mpsc::channel(MAX_WAITING);
    let sender = ToolSender {
        sender: Some(sender),
        lost: Arc::default(),
        parts: Arc::new(Semaphore::new(MAX_WAITING_PARTS)),
        deadline,
    };
    let receiver = ToolReceiver {
        messages,
        lost: sender.lost.clone(),
        parts: sender.parts.clone(),
    };
    (sender, receiver)
}

impl ToolSender {
    /// A sender for a call without a listener: its events are dropped.
    pub fn unheard() -> ToolSender {
        ToolSender {
            sender: None,
            lost: Arc::default(),
            parts: Arc::new(Semaphore::new(0)),
            deadline: CallDeadline::usual("", None),
        }
    }

    /// Asks whether the call may still run: the last step of an executor that starts nothing
    /// confined.
    pub async fn recheck(&self) -> Result<(), Fault> {
        self.ask(FromTool::Recheck).await
    }

    /// As `recheck`, before a tool starts behind layers.
    pub async fn opened(&self, shape: &Arc<Shape>) -> Result<(), Fault> {
        self.ask(|reply| FromTool::Opened(shape.clone(), reply))
            .await
    }

    /// Hands on files that the tool left, until they are taken.
    pub async fn left(&self, files: Vec<LeftFile>) -> Result<(), Fault> {
        self.ask(|reply| FromTool::Left(files, reply)).await
    }

    async fn ask(&self, question: impl FnOnce(Reply) -> FromTool) -> Result<(), Fault> {
        let Some(sender) = &self.sender else {
            return Ok(());
        };
        let (reply, answer) = oneshot::channel();
        // A receiver that is gone lets nothing start.
        let _ = sender.send(question(reply)).await;
        answer.await.unwrap_or_else(|_lost| {
            Err(Fault::new(
                Kind::CancelledError,
                "The call was cancelled before it began.",
            ))
        })
    }

    /// Calls another tool. `None`: nobody answers.
    pub async fn call_tool(&self, tool: String, arguments: String) -> Option<NestedAnswer> {
        let (reply, answer) = oneshot::channel();
        let call = NestedCall {
            tool,
            arguments,
            reply,
        };
        let sender = self.sender.as_ref()?;
        sender.send(FromTool::NestedCall(call)).await.ok()?;
        answer.await.ok()
    }

    /// Sends a line of the log.
    pub fn log(&self, line: String) {
        self.send(Event::Log(line));
    }

    /// Sends an event, or drops it without room: the outcome still holds the tool's log. Dropped
    /// log lines are counted.
    pub fn send(&self, event: Event) {
        let sent = self
            .sender
            .as_ref()
            .map(|sender| sender.try_send(FromTool::Event(event)));
        if let Some(Err(mpsc::error::TrySendError::Full(FromTool::Event(Event::Log(_))))) = sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a part of the answer, as soon as there is room.
    pub async fn chunk(&self, part: Value) {
        self.part(Text::from(&part)).await;
    }

    /// As `chunk`, for a part that is JSON text already.
    pub async fn part(&self, part: Text) {
        self.send_whole(Event::Chunk(part)).await;
    }

    /// Sends an event that must not be lost, as soon as there is room.
    pub async fn send_whole(&self, event: Event) {
        // Without a listener it is dropped.
        if let Some(sender) = &self.sender
            && let Ok(place) = self.parts.acquire().await
        {
            place.forget();
            let _ = sender.send(FromTool::Event(event)).await;
        }
    }
}

impl ToolReceiver {
    pub async fn next(&mut self) -> Option<FromTool> {
        let message = self.messages.recv().await;
        self.received(message)
    }

    /// The next event, for a listener that lets every call start.
    pub async fn next_event(&mut self) -> Option<Event> {
        loop {
            match self.next().await? {
                FromTool::Event(event) => return Some(event),
                FromTool::Recheck(reply)
                | FromTool::Opened(_, reply)
                | FromTool::Left(_, reply) => _ = reply.send(Ok(())),
                FromTool::NestedCall(_) => {}
            }
        }
    }

    /// The next event that was sent already.
    pub fn try_next(&mut self) -> Option<Event> {
        loop {
            let message = self.messages.try_recv().ok();
            if let FromTool::Event(event) = self.received(message)? {
                return Some(event);
            }
        }
    }

    fn received(&self, message: Option<FromTool>) -> Option<FromTool> {
        if matches!(
            message,
            Some(FromTool::Event(Event::Chunk(_) | Event::Shown(_)))
        ) {
            self.parts.add_permits(1);
        }
        message
    }

    /// Number of log lines that were dropped for lack of room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_of_the_two_forms_are_more_than_log() {
        let progress = Progress {
            progress: 1.0,
            total: Some(3.0),
            message: Some("one".into()),
        };
        let line = "@toolhost {\"progress\": 1, \"total\": 3, \"message\": \"one\"}";
        assert_eq!(Event::from_line(line.into()), Event::Progress(progress));
        for plain in [
            "toolhost: {\"progress\": 1}",
            "@toolhost {\"progress\": 1, \"x\": 2}",
            "@toolhost {\"log\": \"loud\", \"message\": \"x\"}",
            "@toolhost {\"progress\": 1e999}",
            " @toolhost {\"progress\": 1}",
        ] {
            assert_eq!(
                Event::from_line(plain.into()),
                Event::Log(plain.into()),
                "{plain}"
            );
        }
    }
}
