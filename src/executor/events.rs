//! Events: what a call tells while it runs. The outcome comes after them.
//!
//! For: executors and the methods of this process, which send; the road of a call, which hears. In: log lines, parts of
//! an answer. Out: the same, in order. Never: holds more than a few hundred of them; makes a tool wait for whoever
//! reads its log; loses a part of an answer.

use super::told::Told;
use crate::base::json::Text;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, mpsc};

/// Events that may wait to be heard.
const WAITING: usize = 256;
/// Parts of an answer among them: each may be long.
const PARTS: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One line of the log, not yet escaped.
    Log(String),
    /// How far the tool is, or a message of it, not yet escaped.
    Told(Told),
    /// A part of the answer of a tool that streams. The outcome still holds the whole answer.
    Chunk(Text),
}

/// Where a running call sends its events.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    lost: Arc<AtomicU64>,
    parts: Arc<Semaphore>,
}

/// The other end. Dropped: nobody listens, and events are thrown away.
#[derive(Debug)]
pub struct Heard {
    events: mpsc::Receiver<Event>,
    lost: Arc<AtomicU64>,
    parts: Arc<Semaphore>,
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.parts.close();
    }
}

/// The two ends.
pub fn events() -> (Events, Heard) {
    let (sender, events) = mpsc::channel(WAITING);
    let (lost, parts) = (Arc::<AtomicU64>::default(), Arc::new(Semaphore::new(PARTS)));
    let heard = Heard { events, lost: lost.clone(), parts: parts.clone() };
    (Events { sender, lost, parts }, heard)
}

impl Events {
    /// For a call to which nobody listens.
    pub fn unheard() -> Events {
        events().0
    }

    /// Sends a line of the log. Without room it is only counted: the outcome holds the log of a tool.
    pub fn log(&self, line: String) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(Event::Log(line)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what the tool tells of itself. Without room it is left out: more of it comes, and the outcome has the log.
    pub fn tell(&self, told: Told) {
        let _ = self.sender.try_send(Event::Told(told));
    }

    /// Sends a part of the answer, as soon as there is room.
    pub async fn chunk(&self, part: Value) {
        self.part(Text::from(&part)).await;
    }

    /// The same of a part that is text already.
    pub async fn part(&self, part: Text) {
        // Without a listener the part is not missed.
        if let Ok(place) = self.parts.acquire().await {
            place.forget();
            let _ = self.sender.send(Event::Chunk(part)).await;
        }
    }
}

impl Heard {
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.took(event)
    }

    /// What was sent already.
    pub fn sent(&mut self) -> Option<Event> {
        let event = self.events.try_recv().ok();
        self.took(event)
    }

    fn took(&self, event: Option<Event>) -> Option<Event> {
        if matches!(event, Some(Event::Chunk(_))) {
            self.parts.add_permits(1);
        }
        event
    }

    /// Lines that found no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
