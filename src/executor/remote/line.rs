//! Line: one instance of a service: where its requests go, and who waits for which reply.
//!
//! For: `Remote`. In: a request queue and a response queue on a broker. Out: what was heard for one id, in its order. Never:
//! waits for a call that reads slowly; keeps more for a call than it has room; ends because one reply cannot be read.

use crate::base::{lock, text};
use crate::broker::{Delivery, Link, Response, Source, State, Terms, Topic, Trace, Unsent};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// How much longer than what it says a reply may be: six bytes for one (`\u0000`), and its other members.
const ESCAPED: u64 = 6;
const FRAME: u64 = 64 * 1024;

/// What came for a call.
pub enum Heard {
    Part(String),
    End(String),
    Error {
        kind: String,
        message: String,
    },
    /// No JSON object, say; for this call alone.
    Unreadable(String),
    TooMuch,
}

/// A connection that is there, told apart from those after it.
pub type Since = State;

pub struct Line {
    link: Link,
    waiting: Arc<Waiting>,
    /// For people.
    name: String,
}

/// Whoever waits, by the id of the request.
#[derive(Default)]
struct Waiting {
    by_id: Mutex<HashMap<String, Place>>,
    strays: AtomicU64,
}

struct Place {
    heard: mpsc::UnboundedSender<Heard>,
    /// Bytes that may still come.
    room: u64,
}

impl Line {
    pub fn open(terms: Terms, requests: Topic, replies: Topic) -> Line {
        let name = format!("{requests} of {terms}");
        let (link, mut came) = Link::open(terms, Source::All { topic: replies }, requests);
        let waiting = Arc::<Waiting>::default();
        let listening = waiting.clone();
        tokio::spawn(async move {
            while let Some(delivery) = came.recv().await {
                listening.got(&delivery);
            }
        });
        Line { link, waiting, name }
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.link.state(), State::Connected { .. })
    }

    pub async fn connected(&self) {
        self.link.connected().await;
    }

    pub fn since(&self) -> Since {
        self.link.state()
    }

    /// Ends when the connection is another than it was: what was published meanwhile did not arrive.
    pub async fn left(&self, since: &Since) {
        self.link.other_than(since).await;
    }

    pub async fn ask(&self, id: &str, body: &[u8], trace: &Trace) -> Result<(), Unsent> {
        self.link.ask(id.as_bytes(), body, trace).await
    }

    pub fn strays(&self) -> u64 {
        self.waiting.strays.load(Ordering::Relaxed)
    }

    /// Where it leads, and why nobody is there.
    pub fn told(&self) -> String {
        match self.link.state() {
            State::Connected { .. } => format!("{}: no queue is bound there", self.name),
            State::Away { why, .. } => format!("{}: {why}", self.name),
        }
    }
}

impl Waiting {
    fn got(&self, delivery: &Delivery) {
        let mut by_id = lock(&self.by_id);
        let id = std::str::from_utf8(&delivery.id).unwrap_or_default();
        let Some(place) = by_id.get_mut(id) else {
            // Of another caller on the same queue, or late, or a repetition.
            self.strays.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(target: "toolhost::remote", id = text::head(id, 60), "a reply that nobody waits for");
            return;
        };
        let heard = place.read(&delivery.body);
        let last = !matches!(heard, Heard::Part(_));
        // An empty part says nothing.
        if !matches!(&heard, Heard::Part(part) if part.is_empty()) {
            let _ = place.heard.send(heard);
        }
        if last {
            by_id.remove(id);
        }
    }
}

impl Place {
    fn read(&mut self, body: &[u8]) -> Heard {
        if body.len() as u64 > self.room.saturating_mul(ESCAPED).saturating_add(FRAME) {
            return Heard::TooMuch;
        }
        let reply = match Response::decode(body) {
            Ok(reply) => reply,
            Err(why) => return Heard::Unreadable(why),
        };
        if let Some(error) = reply.error {
            return Heard::Error { kind: error.kind, message: error.message };
        }
        match self.room.checked_sub(reply.response.len() as u64) {
            None => Heard::TooMuch,
            Some(room) => {
                self.room = room;
                if reply.end_of_stream { Heard::End(reply.response) } else { Heard::Part(reply.response) }
            }
        }
    }
}

/// One call's place. Dropped: its replies are strays.
pub struct Waiter {
    line: Arc<Line>,
    id: String,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Waiter {
    pub fn new(line: &Arc<Line>, room: u64) -> Waiter {
        let (sender, heard) = mpsc::unbounded_channel();
        let id = uuid::Uuid::now_v7().to_string();
        lock(&line.waiting.by_id).insert(id.clone(), Place { heard: sender, room });
        Waiter { line: line.clone(), id, heard }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn line(&self) -> Arc<Line> {
        self.line.clone()
    }

    pub async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            // Its sender is kept until the last reply is read.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        lock(&self.line.waiting.by_id).remove(&self.id);
    }
}
