//! Responses that their clients had stored (`"store": true`). Such a response goes on without its
//! client, who reads it again, cancels or deletes it, and continues from it. They lie in memory
//! alone, each for its owner, for a day.

use super::reply::Events;
use crate::base::lock;
use crate::base::semaphore;
use crate::base::shares::{self, Charge, IN_USE, Shares};
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::transport::responses::{Stream, StreamEvent};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a response is kept after its end.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Bytes of all that are kept, and of those of one principal.
const MAX_BYTES: usize = 64 * 1024 * 1024;
const MAX_BYTES_PER_PRINCIPAL: usize = 16 * 1024 * 1024;
/// What one takes beside its text.
const OWN_BYTES: usize = 4 * 1024;

/// The responses of this server.
#[derive(Default)]
pub struct StoredResponses(Mutex<Shares<String, Arc<Stored>>>);

/// One response, while it runs and afterwards.
pub struct Stored {
    owner: Owner,
    /// What the model heard before it.
    items: Vec<Value>,
    told: Mutex<Told>,
    changed: watch::Sender<()>,
    pub cancel: CancellationToken,
}

#[derive(Default)]
struct Told {
    events: Vec<StreamEvent>,
    response: Value,
    bytes: usize,
    ended: Option<Instant>,
}

impl Stored {
    pub fn new(owner: Owner, items: Vec<Value>, response: &Value) -> Stored {
        let told = Told {
            response: response.clone(),
            bytes: items.iter().map(|item| item.to_string().len()).sum(),
            ..Told::default()
        };
        Stored {
            owner,
            items,
            told: Mutex::new(told),
            changed: watch::Sender::new(()),
            cancel: CancellationToken::new(),
        }
    }

    /// The response as it is now.
    pub fn response(&self) -> Value {
        lock(&self.told).response.clone()
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Value {
        let mut changed = self.changed.subscribe();
        while lock(&self.told).ended.is_none() {
            let _ = changed.changed().await;
        }
        self.response()
    }

    /// Sends the events from this one on, and those that come, to the end.
    pub async fn replay(&self, mut from: usize, to: &Events) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let (events, is_over) = {
                let told = lock(&self.told);
                let from = from.min(told.events.len());
                (told.events[from..].to_vec(), told.ended.is_some())
            };
            from += events.len();
            for event in events {
                to.send(&event.name, &event.data).await;
            }
            if is_over {
                return to.done().await;
            }
            let _ = changed.changed().await;
        }
    }
}

impl StoredResponses {
    /// Takes a response that begins. It stays until its end.
    pub fn begin(&self, stored: Arc<Stored>) -> Result<(), Fault> {
        let id = stored.response()["id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let charge = charge(&stored, lock(&stored.told).bytes);
        let mut all = lock(&self.0);
        if all.put(id, charge, IN_USE, stored) {
            Ok(())
        } else {
            Err(full())
        }
    }

    /// Adds what came since. Without room the response ends.
    pub fn add(&self, stored: &Stored, stream: &mut Stream) {
        let events = stream.take_events();
        if events.is_empty() {
            return;
        }
        let id = stream.response()["id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let more = events.iter().map(|event| event.data.to_string().len());
        let more: usize = more.sum();
        let bytes = {
            let mut told = lock(&stored.told);
            told.bytes += more;
            told.events.extend(events);
            told.response = stream.response().clone();
            if told.response["status"] != "in_progress" {
                told.ended = Some(Instant::now());
            }
            told.bytes
        };
        let mut all = lock(&self.0);
        if !all.charge(&id, charge(stored, bytes)) {
            stored.cancel.cancel();
        }
        if lock(&stored.told).ended.is_some() {
            all.keep(&id, shares::now());
        }
        drop(all);
        stored.changed.send_replace(());
    }

    /// A response of this owner.
    pub fn find(&self, owner: &Owner, id: &str) -> Option<Arc<Stored>> {
        let mut all = lock(&self.0);
        let old = all.iter().filter(|(_, stored)| {
            let ended = lock(&stored.told).ended;
            ended.is_some_and(|ended| ended.elapsed() > KEPT)
        });
        let old: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        old.iter().for_each(|id| _ = all.remove(id));
        all.get(&id.to_owned())
            .filter(|stored| stored.owner == *owner)
            .cloned()
    }

    /// What was said up to the end of a response, which the next one continues.
    pub fn items_of(&self, owner: &Owner, id: &str) -> Result<Vec<Value>, Fault> {
        let refuse = |why: &str| {
            let words = format!("previous_response_id: {why}");
            Fault::new(Kind::ParameterValidationError, words)
        };
        let stored = self
            .find(owner, id)
            .ok_or_else(|| refuse("this response is unknown; it was not stored, or is gone."))?;
        let response = stored.response();
        if response["status"] == "in_progress" {
            return Err(refuse("this response has not ended."));
        }
        let output = response["output"].as_array().cloned().unwrap_or_default();
        Ok([stored.items.clone(), output].concat())
    }

    /// Ends a response whose run was lost.
    pub fn lose(&self, stored: &Stored) {
        let mut told = lock(&stored.told);
        told.response["status"] = json!("failed");
        told.ended = Some(Instant::now());
        drop(told);
        stored.changed.send_replace(());
    }

    pub fn remove(&self, id: &str) {
        lock(&self.0).remove(&id.to_owned());
    }
}

fn charge(stored: &Stored, bytes: usize) -> Charge {
    let principal = stored.owner.principal().to_owned();
    Charge {
        claim: semaphore::claim(MAX_BYTES, [(principal, MAX_BYTES_PER_PRINCIPAL)]),
        size: OWN_BYTES + bytes,
    }
}

fn full() -> Fault {
    let words = "The stored responses that still run take all the memory there is for them.";
    Fault::new(Kind::RateLimitError, words).retryable()
}
