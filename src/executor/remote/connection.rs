//! One instance of a service: where its requests go, and who waits for which reply.
//!
//! A call that reads slowly does not delay others, and what is kept for it is bounded. An
//! unreadable reply ends only its own call.

use crate::base::{lock, text};
use crate::broker::{Delivery, Link, LinkState, Subscription, Terms, ToolServiceResponse, Topic};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// How much longer than its text a reply may be: six bytes for one (`\u0000`), and `FRAME` for its
/// other members.
const ESCAPED: u64 = 6;
const FRAME: u64 = 64 * 1024;
/// Most parts that wait for a call separately. Later ones are appended to the last, so that a
/// million parts of one byte take little memory.
const PARTS: usize = 64;

/// A message for a call.
pub enum ServiceMessage {
    Part(String),
    End(String),
    Error {
        kind: String,
        message: String,
    },
    /// The reply cannot be read: it is not a JSON object, for example.
    Unreadable(String),
    TooMuch,
}

/// A connection to one request queue of a tool service, and the calls that wait for its replies.
pub struct ServiceConnection {
    pub link: Link,
    waiting: Arc<Waiting>,
    /// Queue and broker, as shown to people.
    name: String,
}

/// The calls that wait, by the id of their request.
#[derive(Default)]
struct Waiting {
    by_id: Mutex<HashMap<String, WaitingCall>>,
    strays: AtomicU64,
}

/// A call that waits for replies.
struct WaitingCall {
    inbox: Arc<Inbox>,
    /// Bytes that may still come.
    room: u64,
}

/// Messages for a call that it has not read yet.
#[derive(Default)]
struct Inbox {
    heard: Mutex<VecDeque<ServiceMessage>>,
    came: Notify,
}

impl Inbox {
    fn put(&self, next: ServiceMessage) {
        let mut heard = lock(&self.heard);
        let is_full = heard.len() >= PARTS;
        match (&next, heard.back_mut()) {
            (ServiceMessage::Part(part), Some(ServiceMessage::Part(last))) if is_full => {
                last.push_str(part)
            }
            _ => heard.push_back(next),
        }
        self.came.notify_one();
    }

    async fn next(&self) -> ServiceMessage {
        loop {
            if let Some(heard) = lock(&self.heard).pop_front() {
                return heard;
            }
            self.came.notified().await;
        }
    }
}

impl ServiceConnection {
    pub fn open(terms: Terms, requests: Topic, replies: Topic) -> ServiceConnection {
        let name = format!("{requests} of {terms}");
        let (link, mut came) = Link::open(terms, Subscription::All { topic: replies }, requests);
        let waiting = Arc::<Waiting>::default();
        let listening = waiting.clone();
        tokio::spawn(async move {
            while let Some(delivery) = came.recv().await {
                listening.got(&delivery);
            }
        });
        ServiceConnection {
            link,
            waiting,
            name,
        }
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.link.state(), LinkState::Connected { .. })
    }

    /// As `status` shows it.
    pub fn status(&self) -> Value {
        let strays = self.waiting.strays.load(Ordering::Relaxed);
        let (connected, since, why) = match self.link.state() {
            LinkState::Connected { since } => (true, since, None),
            LinkState::Away { since, why } => (false, since, Some(why)),
        };
        let mut status = json!({ "at": self.name, "connected": connected, "since": since.to_string(), "strays": strays });
        if let Some(why) = why {
            status["why"] = json!(why);
        }
        status
    }

    /// The queue, and why no service reads from it.
    pub fn failure(&self) -> String {
        match self.link.state() {
            LinkState::Connected { .. } => format!("{}: no queue is bound there", self.name),
            LinkState::Away { why, .. } => format!("{}: {why}", self.name),
        }
    }
}

impl Waiting {
    fn got(&self, delivery: &Delivery) {
        let id = std::str::from_utf8(&delivery.id).unwrap_or_default();
        let place = lock(&self.by_id)
            .get(id)
            .map(|place| (place.inbox.clone(), place.room));
        let Some((inbox, room)) = place else {
            // A reply to another caller on the same queue, a late one, or a repetition.
            self.strays.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(target: "toolhost::remote", id = text::head(id, 60), "no call waits \
                for this reply");
            return;
        };
        // Outside of the lock, which every call of the connection takes.
        let heard = read(&delivery.body, room);
        match &heard {
            // An empty part is ignored.
            ServiceMessage::Part(part) if part.is_empty() => return,
            ServiceMessage::Part(part) => {
                if let Some(place) = lock(&self.by_id).get_mut(id) {
                    place.room = room - part.len() as u64;
                }
            }
            _ => _ = lock(&self.by_id).remove(id),
        }
        inbox.put(heard);
    }
}

/// Decodes a reply. `room`: bytes that the call may still receive.
fn read(body: &[u8], room: u64) -> ServiceMessage {
    if body.len() as u64 > room.saturating_mul(ESCAPED).saturating_add(FRAME) {
        return ServiceMessage::TooMuch;
    }
    let reply = match ToolServiceResponse::decode(body) {
        Ok(reply) => reply,
        Err(why) => return ServiceMessage::Unreadable(why),
    };
    if let Some(error) = reply.error {
        return ServiceMessage::Error {
            kind: error.kind,
            message: error.message,
        };
    }
    match (reply.response.len() as u64 > room, reply.end_of_stream) {
        (true, _) => ServiceMessage::TooMuch,
        (false, true) => ServiceMessage::End(reply.response),
        (false, false) => ServiceMessage::Part(reply.response),
    }
}

/// A call that waits for its replies. Once it is dropped, they count as strays.
pub struct Waiter {
    pub connection: Arc<ServiceConnection>,
    pub id: String,
    inbox: Arc<Inbox>,
}

impl Waiter {
    pub fn new(connection: &Arc<ServiceConnection>, room: u64) -> Waiter {
        let inbox = Arc::<Inbox>::default();
        let id = uuid::Uuid::now_v7().to_string();
        lock(&connection.waiting.by_id).insert(
            id.clone(),
            WaitingCall {
                inbox: inbox.clone(),
                room,
            },
        );
        Waiter {
            connection: connection.clone(),
            id,
            inbox,
        }
    }

    pub async fn next(&self) -> ServiceMessage {
        self.inbox.next().await
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        lock(&self.connection.waiting.by_id).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn few_parts_wait_however_many_come_and_nothing_of_them_is_lost() {
        let (inbox, mut said) = (Inbox::default(), String::new());
        for n in 0..100_000 {
            let part = (n % 10).to_string();
            said.push_str(&part);
            inbox.put(ServiceMessage::Part(part));
        }
        inbox.put(ServiceMessage::End("!".to_owned()));
        assert_eq!(lock(&inbox.heard).len(), PARTS + 1);
        let mut heard = String::new();
        loop {
            match inbox.next().await {
                ServiceMessage::Part(part) => heard.push_str(&part),
                ServiceMessage::End(last) => break assert_eq!((heard, last.as_str()), (said, "!")),
                _ => panic!("nothing else was put"),
            }
        }
    }
}
