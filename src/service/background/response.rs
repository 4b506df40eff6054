//! A response that its client had stored: the events of its stream, as the text that all who read it
//! are sent. Its transport writes and reads that text. It goes on without its client.

use crate::base::lock;
use crate::base::mask::Mask;
use crate::fault::Fault;
use crate::service::artifacts::Owner;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::sync::{SetOnce, watch};

/// What one takes beside its texts: its failure has room, whatever else is kept.
pub(super) const RESERVED_BYTES: usize = 8 * 1024;
/// What an event takes beside its text.
const EVENT_BYTES: usize = 128;

/// What of a response does not change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResponseHead {
    pub id: String,
    #[serde(flatten)]
    pub owner: Owner,
    /// The members of its failure, which are few.
    pub failure: Value,
    pub ended: Option<Timestamp>,
}

/// One response, while it runs and afterwards.
pub struct StoredResponse {
    pub head: ResponseHead,
    /// What the model heard before it: a list, as JSON text.
    pub items: String,
    pub(super) told: Mutex<Told>,
    pub(super) changed: watch::Sender<()>,
    /// Why it is to end.
    stopped: SetOnce<Fault>,
    /// The secrets of its calls, and of those before it. Nobody knows them after a restart.
    pub hides: Arc<Mutex<Mask>>,
}

#[derive(Default)]
pub(super) struct Told {
    pub events: Vec<Bytes>,
    /// What they take.
    bytes: usize,
    /// What is charged for the response.
    pub charged: usize,
    /// How many of them are on the disk.
    pub written: usize,
    pub ended: Option<Timestamp>,
}

/// Events of a response, and what else is stored of it. Its items are its result.
#[derive(Debug)]
pub(super) struct EventRows {
    pub head: ResponseHead,
    /// The number of the first of them.
    pub from: usize,
    pub events: Vec<Bytes>,
}

impl Told {
    pub fn add(&mut self, events: Vec<Bytes>) {
        self.bytes += size(&events);
        self.events.extend(events);
    }
}

pub(super) fn size(events: &[Bytes]) -> usize {
    events.iter().map(|text| EVENT_BYTES + text.len()).sum()
}

impl StoredResponse {
    /// `events`: those that it has already.
    pub fn new(
        head: ResponseHead,
        items: String,
        events: Vec<Bytes>,
        hides: Arc<Mutex<Mask>>,
    ) -> StoredResponse {
        let mut told = Told {
            ended: head.ended,
            ..Told::default()
        };
        told.add(events);
        StoredResponse {
            head,
            items,
            told: Mutex::new(told),
            changed: watch::Sender::new(()),
            stopped: SetOnce::new(),
            hides,
        }
    }

    pub fn bytes(&self) -> usize {
        RESERVED_BYTES + self.items.len() + lock(&self.told).bytes
    }

    pub fn ended(&self) -> Option<Timestamp> {
        lock(&self.told).ended
    }

    /// How many events it has.
    pub fn count(&self) -> usize {
        lock(&self.told).events.len()
    }

    pub fn event(&self, number: usize) -> Option<Bytes> {
        lock(&self.told).events.get(number).cloned()
    }

    /// The number of the first event that is not on the disk.
    pub fn written(&self) -> usize {
        lock(&self.told).written
    }

    /// The events from this one on.
    pub fn events_from(&self, number: usize) -> Vec<Bytes> {
        lock(&self.told).events[number..].to_vec()
    }

    /// Notified of each event that comes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Has its run end, for this reason if there is none yet.
    pub fn stop(&self, why: Fault) {
        let _ = self.stopped.set(why);
    }

    /// Waits until it is to end.
    pub async fn stopped(&self) -> Fault {
        self.stopped.wait().await.clone()
    }

    /// Ends one whose host ended first. Its transport adds what it says of that (`add_end`).
    pub(super) fn lose(&mut self) -> EventRows {
        let ended = Some(Timestamp::now());
        self.head.ended = ended;
        lock(&self.told).ended = ended;
        EventRows {
            head: self.head.clone(),
            from: 0,
            events: Vec::new(),
        }
    }

    /// Adds the end of a response whose host ended first: it then has no more than `count` events.
    pub fn add_end(&self, count: usize, events: Vec<Bytes>) {
        let mut told = lock(&self.told);
        if told.events.len() == count {
            told.add(events);
        }
    }
}
