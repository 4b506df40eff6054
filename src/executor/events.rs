//! Events of a running call, in order: lines of its log, its progress, parts of its answer. The
//! outcome comes after them.
//!
//! At most a few hundred events wait. A tool never waits for the reader of its log, and no part of
//! an answer is lost.

use super::CallDeadline;
use crate::base::json::Text;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, mpsc};

/// Events that may wait.
const MAX_WAITING: usize = 256;
/// Parts of an answer among them: each may be long.
const MAX_WAITING_PARTS: usize = 16;
/// The beginning of a stderr line that holds progress or a message; one JSON object follows.
const MARK: &str = "@toolhost ";
/// Longest such object, bytes.
const MAX_MARKED_BYTES: usize = 16 * 1024;

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

/// Where a running call sends its events.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    lost: Arc<AtomicU64>,
    parts: Arc<Semaphore>,
    /// The time of the call, within which its parts are read.
    pub deadline: CallDeadline,
}

/// The other end. Once it is dropped, events are thrown away.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::Receiver<Event>,
    lost: Arc<AtomicU64>,
    parts: Arc<Semaphore>,
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.parts.close();
    }
}

/// Makes a channel: the sender and the receiver.
pub fn events() -> (Events, EventReceiver) {
    let (sender, events) = mpsc::channel(MAX_WAITING);
    let lost = Arc::<AtomicU64>::default();
    let parts = Arc::new(Semaphore::new(MAX_WAITING_PARTS));
    let receiver = EventReceiver {
        events,
        lost: lost.clone(),
        parts: parts.clone(),
    };
    (
        Events {
            sender,
            lost,
            parts,
            deadline: CallDeadline::usual("", None),
        },
        receiver,
    )
}

impl Events {
    /// A sender for a call without a listener: its events are dropped.
    pub fn unheard() -> Events {
        events().0
    }

    /// Sends a line of the log.
    pub fn log(&self, line: String) {
        self.send(Event::Log(line));
    }

    /// Sends an event, or drops it without room: the outcome still holds the tool's log. Dropped
    /// log lines are counted.
    pub fn send(&self, line: Event) {
        if let Err(mpsc::error::TrySendError::Full(Event::Log(_))) = self.sender.try_send(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a part of the answer, as soon as there is room.
    pub async fn chunk(&self, part: Value) {
        self.part(Text::from(&part)).await;
    }

    /// As `chunk`, for a part that is JSON text already.
    pub async fn part(&self, part: Text) {
        // Without a listener the part is dropped.
        if let Ok(place) = self.parts.acquire().await {
            place.forget();
            let _ = self.sender.send(Event::Chunk(part)).await;
        }
    }
}

impl EventReceiver {
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.received(event)
    }

    /// The next event that was sent already.
    pub fn try_next(&mut self) -> Option<Event> {
        let event = self.events.try_recv().ok();
        self.received(event)
    }

    fn received(&self, event: Option<Event>) -> Option<Event> {
        if matches!(event, Some(Event::Chunk(_))) {
            self.parts.add_permits(1);
        }
        event
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
