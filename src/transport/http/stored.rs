//! Responses that their clients had stored (`"store": true`). Such a response goes on without its
//! client, who reads it again, cancels or deletes it, and continues from it. They lie in memory
//! alone, each for its owner, for a day.

use super::reply::{self, Events};
use crate::base::json;
use crate::base::lock;
use crate::base::semaphore;
use crate::base::shares::{self, Charge, IN_USE, Shares};
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::transport::responses::{ResponseStatus, Stream, StreamEvent};
use axum::body::Bytes;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{SetOnce, watch};
use tokio::time::Instant;

/// How long a response is kept after its end.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Bytes of all that are kept, and of those of one principal.
const MAX_BYTES: usize = 64 * 1024 * 1024;
const MAX_BYTES_PER_PRINCIPAL: usize = 16 * 1024 * 1024;
/// What one takes beside its texts: its failure has room, whatever else is kept.
const OWN_BYTES: usize = 8 * 1024;
/// What an event takes beside its text.
const EVENT_BYTES: usize = 128;
/// A reader that does not read holds no more than a few pieces of this size: the number of
/// connections bounds them.
const PIECE_BYTES: usize = 16 * 1024;

/// The responses of this server.
#[derive(Default)]
pub struct StoredResponses(Mutex<Shares<String, Arc<Stored>>>);

/// One response, while it runs and afterwards. It is kept as the text that is sent, which all who
/// read it share.
pub struct Stored {
    id: String,
    owner: Owner,
    /// What the model heard before it, a list.
    items: String,
    /// The members of its failure, which are few.
    failure: Value,
    told: Mutex<Told>,
    changed: watch::Sender<()>,
    /// Why it is to end.
    stopped: SetOnce<Fault>,
}

#[derive(Default)]
struct Told {
    events: Vec<Bytes>,
    /// What they take.
    bytes: usize,
    /// A part of the last event that has it.
    response: Bytes,
    ended: Option<Instant>,
}

/// An event as text.
struct Frame {
    text: Bytes,
    response: Option<Bytes>,
    is_end: bool,
}

impl Frame {
    fn new(event: &StreamEvent) -> Frame {
        let text = reply::event(&event.name, &event.data);
        let response = event.data.get("response");
        let data = str::from_utf8(&text).ok();
        let data = data.and_then(|text| text.split_once("\ndata: "));
        let slice = data
            .filter(|_| response.is_some())
            .and_then(|(_, data)| json::member(data, "/response"))
            .map(|part| text.slice_ref(part.as_bytes()));
        Frame {
            response: slice,
            is_end: response.is_some_and(|it| it["status"] != "in_progress"),
            text,
        }
    }

    fn bytes(&self) -> usize {
        EVENT_BYTES + self.text.len()
    }
}

impl Told {
    fn add(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            self.bytes += frame.bytes();
            self.events.push(frame.text);
            if let Some(response) = frame.response {
                self.response = response;
            }
            if frame.is_end {
                self.ended = Some(Instant::now());
            }
        }
    }

    /// The next piece of the event: at most so much of it.
    fn piece(&self, event: usize, at: usize) -> Option<Bytes> {
        let text = self.events.get(event)?;
        let end = text.len().min(at + PIECE_BYTES);
        // Not a part: that would keep the whole event.
        Some(Bytes::copy_from_slice(&text[at..end]))
    }
}

/// What is sent next of a stored response.
enum Next {
    Piece { text: Bytes, ends_event: bool },
    Later(watch::Receiver<()>),
    End,
}

impl Stored {
    /// `failure`: the least of a response.
    pub fn new(owner: Owner, items: &[Value], mut failure: Value, stream: &mut Stream) -> Stored {
        for member in ["id", "created_at", "store"] {
            failure[member] = stream.response()[member].clone();
        }
        let mut told = Told::default();
        told.add(frames(stream));
        Stored {
            id: word(&failure["id"]),
            owner,
            items: json!(items).to_string(),
            failure,
            told: Mutex::new(told),
            changed: watch::Sender::new(()),
            stopped: SetOnce::new(),
        }
    }

    /// The response as it is now, as text.
    pub fn response(&self) -> Bytes {
        lock(&self.told).response.clone()
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Bytes {
        let mut changed = self.changed.subscribe();
        while lock(&self.told).ended.is_none() {
            let _ = changed.changed().await;
        }
        self.response()
    }

    /// Has its run end, for this reason if there is none yet.
    pub fn stop(&self, why: Fault) {
        let _ = self.stopped.set(why);
    }

    /// Waits until it is to end.
    pub async fn stopped(&self) -> Fault {
        self.stopped.wait().await.clone()
    }

    fn next(&self, event: usize, at: usize) -> Next {
        let changed = self.changed.subscribe();
        let told = lock(&self.told);
        match told.piece(event, at) {
            Some(text) => Next::Piece {
                ends_event: at + text.len() == told.events[event].len(),
                text,
            },
            None if told.ended.is_some() => Next::End,
            None => Next::Later(changed),
        }
    }

    /// Ends it without a run: what it said stays.
    fn fail(&self, told: &mut Told, why: &Fault) {
        let mut stream = Stream::new(self.failure.clone());
        let failed = ResponseStatus::Failed {
            code: why.kind.to_string(),
            message: why.message.clone(),
        };
        stream.end(failed, json!({}));
        let mut events = stream.take_events();
        events.retain(|event| event.data["response"]["status"] != "in_progress");
        for (number, event) in (told.events.len()..).zip(&mut events) {
            event.data["sequence_number"] = json!(number);
        }
        told.add(events.iter().map(Frame::new).collect());
    }
}

/// Sends the events from this one on, and those that come, to the end. It keeps nothing: where the
/// response is removed, the stream ends.
pub async fn replay(stored: Weak<Stored>, mut event: usize, to: &Events) {
    let mut at = 0;
    while let Some(next) = stored.upgrade().map(|stored| stored.next(event, at)) {
        match next {
            Next::Piece { text, ends_event } => {
                at += text.len();
                if ends_event {
                    (event, at) = (event + 1, 0);
                }
                to.send_text(text).await;
            }
            Next::Later(mut changed) => _ = changed.changed().await,
            Next::End => return to.done().await,
        }
    }
}

fn frames(stream: &mut Stream) -> Vec<Frame> {
    stream.take_events().iter().map(Frame::new).collect()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What was said up to the end of a response, as text.
pub struct Said(Arc<Stored>);

impl Said {
    fn read<T>(&self, read: impl FnOnce(&str, &str) -> T) -> T {
        let response = self.0.response();
        let text = str::from_utf8(&response).unwrap_or_default();
        read(&self.0.items, json::member(text, "/output").unwrap_or("[]"))
    }

    /// About how many bytes its items take in memory, with what is made of them.
    pub fn weight(&self) -> usize {
        self.read(|items, output| json::weight(items) + json::weight(output))
    }

    /// Its items. Charge them before.
    pub fn items(&self) -> Vec<Value> {
        self.read(|items, output| {
            let lists = [items, output].map(serde_json::from_str::<Vec<Value>>);
            lists.into_iter().flatten().flatten().collect()
        })
    }
}

impl StoredResponses {
    /// Takes a response that begins. It stays until its end.
    pub fn begin(&self, stored: Arc<Stored>) -> Result<(), Fault> {
        let charge = charge(&stored, &lock(&stored.told), &[]);
        let mut all = lock(&self.0);
        if all.put(stored.id.clone(), charge, IN_USE, stored) {
            Ok(())
        } else {
            let words =
                "The stored responses that still run take all the memory there is for them.";
            Err(Fault::new(Kind::RateLimitError, words).retryable())
        }
    }

    /// Adds what came since. Without room the response ends.
    pub fn add(&self, stored: &Stored, stream: &mut Stream) {
        let frames = frames(stream);
        if frames.is_empty() {
            return;
        }
        let mut all = lock(&self.0);
        let mut told = lock(&stored.told);
        if told.ended.is_some() {
            return;
        }
        if all.charge(&stored.id, charge(stored, &told, &frames)) {
            told.add(frames);
        } else {
            let words = "The response is larger than the memory there is for stored responses.";
            let full = Fault::new(Kind::ResourceLimitError, words);
            stored.fail(&mut told, &full);
            stored.stop(full);
        }
        if told.ended.is_some() {
            all.keep(&stored.id, shares::now());
        }
        drop((told, all));
        stored.changed.send_replace(());
    }

    /// Ends a response whose run was lost.
    pub fn lose(&self, stored: &Stored) {
        let mut all = lock(&self.0);
        let mut told = lock(&stored.told);
        if told.ended.is_none() {
            let lost = Fault::new(Kind::InternalError, "The run of the response was lost.");
            stored.fail(&mut told, &lost);
            all.keep(&stored.id, shares::now());
        }
        drop((told, all));
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
    pub fn said(&self, owner: &Owner, id: &str) -> Result<Said, Fault> {
        let refuse = |why: &str| {
            let words = format!("previous_response_id: {why}");
            Fault::new(Kind::ParameterValidationError, words)
        };
        let stored = self
            .find(owner, id)
            .ok_or_else(|| refuse("this response is unknown; it was not stored, or is gone."))?;
        if lock(&stored.told).ended.is_none() {
            return Err(refuse("this response has not ended."));
        }
        Ok(Said(stored))
    }

    pub fn remove(&self, id: &str) {
        lock(&self.0).remove(&id.to_owned());
    }
}

fn charge(stored: &Stored, told: &Told, more: &[Frame]) -> Charge {
    let principal = stored.owner.principal().to_owned();
    let more: usize = more.iter().map(Frame::bytes).sum();
    Charge {
        claim: semaphore::claim(MAX_BYTES, [(principal, MAX_BYTES_PER_PRINCIPAL)]),
        size: OWN_BYTES + stored.items.len() + told.bytes + more,
    }
}
