//! Responses that their clients had stored (`"store": true`), as text: what is stored of their
//! events, and what is sent of it. Such a response goes on without its client, who reads it again,
//! cancels or deletes it, and continues from it.

use super::reply::{self, Events};
use crate::base::json;
use crate::base::lock;
use crate::base::mask::Mask;
use crate::fault::{Fault, Kind};
use crate::service::artifacts::Owner;
use crate::service::background::{Background, EventTexts, NewEvents, ResponseHead, StoredResponse};
use crate::transport::responses::{ResponseStatus, Stream};
use axum::body::{Body, Bytes};
use futures_util::stream;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, Weak};

/// A reader that does not read holds no more than a few pieces of this size: the number of
/// connections bounds them.
const PIECE_BYTES: usize = 16 * 1024;
/// The last event of a response is one of these.
const ENDS: [&str; 3] = [
    "response.completed",
    "response.failed",
    "response.incomplete",
];

/// Members whose words make the form of events and items, whatever a secret is, and where they stand:
/// the rest is said by models and tools.
const FORM: [&str; 7] = [
    "type", "object", "id", "item_id", "call_id", "status", "role",
];
const FORMED: [&str; 5] = ["response", "item", "output", "part", "content"];

/// A response that runs, and where its events are stored.
pub struct Storing {
    pub response: Arc<StoredResponse>,
    background: Arc<Background>,
}

impl Storing {
    /// Takes a response that begins. `items`: what its model heard before it; `failure`: the least of
    /// a response.
    pub async fn begin(
        background: Arc<Background>,
        owner: Owner,
        items: Value,
        mut failure: Value,
        stream: &mut Stream,
        hides: Arc<Mutex<Mask>>,
    ) -> Result<Storing, Fault> {
        for member in ["id", "created_at", "store"] {
            failure[member] = stream.response()[member].clone();
        }
        let head = ResponseHead {
            id: failure["id"].as_str().unwrap_or_default().to_owned(),
            owner,
            failure,
            ended: None,
        };
        let mask = lock(&hides).clone();
        let shown = apart(move || {
            let text = items.to_string();
            let stored = hidden_items(&mask, &text);
            [text, stored]
        });
        let [items, stored] = shown.await?;
        let response = StoredResponse::new(head, items, frames(stream), hides);
        let response = Arc::new(response);
        background.begin_response(response.clone(), stored).await?;
        Ok(Storing {
            response,
            background,
        })
    }

    /// Tells what came since. Without room the response ends.
    pub async fn tell(&self, stream: &mut Stream) {
        let is_due = !stream.has_open_item();
        let told = frames(stream);
        if told.is_empty() || self.response.ended().is_some() {
            return;
        }
        if let Err(fault) = self.add(told, is_due).await {
            self.fail(&fault).await;
            self.response.stop(fault);
        }
    }

    /// Ends it without its run, if it has not ended: what it said stays.
    pub async fn fail(&self, why: &Fault) {
        if self.response.ended().is_none() {
            let stream = Stream::new(self.response.head.failure.clone());
            let _ = self.add(failure(&self.response, stream, why), true).await;
        }
    }

    /// `is_due`: they are stored now.
    async fn add(&self, told: Vec<Bytes>, is_due: bool) -> Result<(), Fault> {
        let is_end = told.last().is_some_and(is_end);
        let stored = if is_due {
            Some(self.texts(&told, is_end).await?)
        } else {
            None
        };
        let new = NewEvents {
            is_end,
            told,
            stored,
        };
        self.background.tell_response(&self.response, new).await
    }

    /// What is to be stored now. At the end all secrets are known, and what was said before its secret
    /// was known is written again.
    async fn texts(&self, told: &[Bytes], is_end: bool) -> Result<EventTexts, Fault> {
        let mask = lock(&self.response.hides).clone();
        let again = is_end && !mask.is_empty();
        let from = if again { 0 } else { self.response.written() };
        let mut events = self.response.events_from(from);
        events.extend_from_slice(told);
        let mut texts = EventTexts {
            from,
            events,
            items: None,
        };
        if mask.is_empty() {
            return Ok(texts);
        }
        let response = self.response.clone();
        let hide_all = move || {
            texts.events = hidden(&mask, texts.events);
            texts.items = again.then(|| hidden_items(&mask, &response.items));
            texts
        };
        apart(hide_all).await
    }
}

/// Does what can take long on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Fault::new(Kind::InternalError, "The response was lost."))
}

/// Events as they are stored: secrets are hidden, also those that were told in pieces.
fn hidden(mask: &Mask, events: Vec<Bytes>) -> Vec<Bytes> {
    let all = events.iter().map(|text| serde_json::from_str(data(text)));
    let mut all: Vec<Value> = all.map(Result::unwrap_or_default).collect();
    let deltas = all.iter_mut().filter_map(|event| event.get_mut("delta"));
    let deltas: Vec<&mut Value> = deltas.filter(|delta| delta.is_string()).collect();
    let shown = mask.answer(&json!(deltas).to_string(), &Mask::default(), true);
    let shown: Vec<Value> = shown
        .and_then(|shown| serde_json::from_str(&shown).ok())
        .unwrap_or_default();
    for (delta, shown) in deltas.into_iter().zip(shown) {
        *delta = shown;
    }
    all.iter_mut().for_each(|event| hide(mask, event, true));
    let all = events.iter().zip(&all);
    all.map(|(text, event)| reply::event(name(text), event))
        .collect()
}

/// `is_formed`: it is an event, an item or a part of one.
fn hide(mask: &Mask, value: &mut Value, is_formed: bool) {
    match value {
        Value::String(text) => *text = mask.text_or_document(text),
        Value::Array(items) => {
            let items = items.iter_mut();
            items.for_each(|item| hide(mask, item, is_formed));
        }
        Value::Object(members) if is_formed => {
            let said = members.iter_mut();
            said.filter(|(name, _)| !FORM.contains(&name.as_str()))
                .for_each(|(name, value)| hide(mask, value, FORMED.contains(&name.as_str())));
        }
        Value::Object(members) => {
            for (name, mut value) in std::mem::take(members) {
                hide(mask, &mut value, false);
                members.insert(mask.whole(&name), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What the model heard before a response, as it is stored.
fn hidden_items(mask: &Mask, items: &str) -> String {
    let mut items: Value = serde_json::from_str(items).unwrap_or_default();
    hide(mask, &mut items, true);
    items.to_string()
}

fn frames(stream: &mut Stream) -> Vec<Bytes> {
    let events = stream.take_events();
    let events = events.iter();
    events
        .map(|event| reply::event(&event.name, &event.data))
        .collect()
}

/// The JSON of an event.
fn data(text: &Bytes) -> &str {
    self::text(text)
        .split_once("\ndata: ")
        .unwrap_or_default()
        .1
}

fn name(text: &Bytes) -> &str {
    let first = self::text(text).lines().next().unwrap_or_default();
    first.trim_start_matches("event: ")
}

fn is_end(text: &Bytes) -> bool {
    ENDS.contains(&name(text))
}

/// The last events of a response that fails. `stream`: what it has, begun again.
fn failure(response: &StoredResponse, mut stream: Stream, why: &Fault) -> Vec<Bytes> {
    let begun = stream.take_events().len();
    let failed = ResponseStatus::Failed {
        code: why.kind.to_string(),
        message: why.message.clone(),
    };
    stream.end(failed, json!({}));
    let mut events = stream.take_events();
    for event in &mut events {
        let number = event.data["sequence_number"].as_u64().unwrap_or_default();
        let moved = response.count() as u64 + number - begun as u64;
        event.data["sequence_number"] = json!(moved);
    }
    let events = events.iter();
    events
        .map(|event| reply::event(&event.name, &event.data))
        .collect()
}

/// A response of this owner.
pub async fn find(
    background: &Background,
    owner: &Owner,
    id: &str,
) -> Result<Option<Arc<StoredResponse>>, Fault> {
    let found = background.response_of(owner, id).await?;
    if let Some(response) = &found
        && response.ended().is_some()
    {
        let count = response.count();
        let last = response.event(count.saturating_sub(1));
        if !last.as_ref().is_some_and(is_end) {
            let words = "The host ended before this response did; how far its last calls came is in \
                their records.";
            let lost = Fault::new(Kind::InternalError, words);
            let first = response.event(0).unwrap_or_default();
            let head = json::member(data(&first), "/response").map(serde_json::from_str);
            let head = head.and_then(Result::ok);
            let head = head.unwrap_or_else(|| response.head.failure.clone());
            let output = items_of(response);
            let output = output.iter().map(|item| serde_json::from_str(text(item)));
            let stream = Stream::continued(head, output.flatten().collect());
            response.add_end(count, failure(response, stream, &lost));
        }
    }
    Ok(found)
}

/// The response as it is now: pieces of its JSON text.
pub fn response(stored: &StoredResponse) -> Body {
    let event = now(stored);
    let Some(whole) = json::member(data(&event), "/response") else {
        return Body::empty();
    };
    let output = json::member(whole, "/output").filter(|output| *output == "[]");
    let items = output.map_or(Vec::new(), |_| items_of(stored));
    let (Some(output), false) = (output, items.is_empty()) else {
        return event.slice_ref(whole.as_bytes()).into();
    };
    // Inside of its brackets.
    let (before, after) = whole.split_at(output.as_ptr() as usize - whole.as_ptr() as usize + 1);
    let mut pieces = vec![event.slice_ref(before.as_bytes())];
    for item in items {
        pieces.extend([item, Bytes::from_static(b",")]);
    }
    pieces.pop();
    pieces.push(event.slice_ref(after.as_bytes()));
    Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)))
}

/// The event that has the response as it is now: the last, or what it began with.
fn now(stored: &StoredResponse) -> Bytes {
    let at = match stored.ended() {
        Some(_) => stored.count().saturating_sub(1),
        None => 1,
    };
    stored.event(at).unwrap_or_default()
}

/// What it said, as text: the items of its events, which a response that did not end by itself has
/// nowhere else.
fn items_of(stored: &StoredResponse) -> Vec<Bytes> {
    let events = stored.events_from(0).into_iter();
    let done = events.filter(|event| name(event) == "response.output_item.done");
    let items = done.filter_map(|event| {
        let item = json::member(data(&event), "/item")?;
        Some(event.slice_ref(item.as_bytes()))
    });
    items.collect()
}

/// Waits for the end.
pub async fn ended(stored: &StoredResponse) -> Body {
    let mut changes = stored.changes();
    while stored.ended().is_none() {
        let _ = changes.changed().await;
    }
    response(stored)
}

/// Sends the events from this one on, and those that come, to the end. It keeps nothing: where the
/// response is removed, the stream ends.
pub async fn replay(stored: Weak<StoredResponse>, mut event: usize, to: &Events) {
    let mut at = 0;
    while let Some(stored) = stored.upgrade() {
        let mut changes = stored.changes();
        let is_over = stored.ended().is_some();
        match stored.event(event) {
            Some(text) => {
                let end = text.len().min(at + PIECE_BYTES);
                // Not a part: that would keep the whole event.
                let piece = Bytes::copy_from_slice(&text[at..end]);
                at = end;
                if at == text.len() {
                    (event, at) = (event + 1, 0);
                }
                drop((text, stored));
                to.send_text(piece).await;
            }
            None if is_over => return to.done().await,
            None => {
                drop(stored);
                let _ = changes.changed().await;
            }
        }
    }
}

/// What was said up to the end of a response, as text.
pub struct Said(pub Arc<StoredResponse>);

impl Said {
    /// About how many bytes its items take in memory, with what is made of them.
    pub fn weight(&self) -> usize {
        let said = items_of(&self.0);
        let said = said.iter().map(|item| json::weight(text(item)));
        json::weight(&self.0.items) + said.sum::<usize>()
    }

    /// Its items. Charge them before.
    pub fn items(&self) -> Vec<Value> {
        let before = serde_json::from_str::<Vec<Value>>(&self.0.items);
        let said = items_of(&self.0);
        let said = said.iter().map(|item| serde_json::from_str(text(item)));
        before.into_iter().flatten().chain(said.flatten()).collect()
    }
}

fn text(bytes: &Bytes) -> &str {
    str::from_utf8(bytes).unwrap_or_default()
}

/// What was said up to the end of a response, which the next one continues.
pub async fn said(background: &Background, owner: &Owner, id: &str) -> Result<Said, Fault> {
    let refuse = |why: &str| {
        let words = format!("previous_response_id: {why}");
        Fault::new(Kind::ParameterValidationError, words)
    };
    let stored = find(background, owner, id)
        .await?
        .ok_or_else(|| refuse("this response is unknown; it was not stored, or is gone."))?;
    if stored.ended().is_none() {
        return Err(refuse("this response has not ended."));
    }
    Ok(Said(stored))
}
