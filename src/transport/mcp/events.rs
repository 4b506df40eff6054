//! Events of the responses to an older client's requests, kept for a client that comes back after its connection broke
//! (`Last-Event-ID`): rmcp's event store, bounded for each principal, and read by the caller in its session alone.

use super::asked::McpRequest;
use crate::base::lock;
use crate::service::{Limiter, Reservation, Resource};
use futures_util::stream;
use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::{
    EventId, EventStore, EventStoreError, EventStream, ServerSseMessage, SessionId, StreamId,
};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// When a client is told to come back after its connection broke.
pub const RETRY: Duration = Duration::from_secs(1);
/// How long a call goes on for a client that has left and does not say so.
const AWAY: Duration = Duration::from_secs(10);
/// How long a stream that is over is kept: nobody knows whether its client got all of it.
const KEPT: Duration = Duration::from_secs(60);
/// Events of one stream, and their bytes; the last one is there in any case, and the content of an answer beside.
const EVENTS: usize = 256;
const BYTES: usize = 256 * 1024;
/// A larger stream is not kept once it is over, bytes.
const LARGEST: usize = 4 * 1024 * 1024;

const COMMON: &str = ":common";

/// The place of an event in its stream, and the stream.
fn parsed(id: &str) -> Option<(u64, &str)> {
    let (at, stream) = id.split_once('/')?;
    Some((at.parse().ok()?, stream))
}

/// The stream of what a session is told outside of requests, as rmcp names it.
fn common(session: &SessionId) -> StreamId {
    format!("{session}{COMMON}")
}

fn is_common(stream: &str) -> bool {
    stream.ends_with(COMMON)
}

/// The events of one stream.
pub struct Log {
    began: Instant,
    /// The request whose response it is.
    of: OnceLock<(SessionId, Arc<McpRequest>)>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By their places.
    events: VecDeque<(u64, ServerSseMessage)>,
    bytes: usize,
    /// Since when no more comes.
    over: Option<Instant>,
    /// What lasts until it is over.
    lasts: Option<Box<dyn Any + Send>>,
    /// What it takes of its principal's quota since it is over.
    room: Option<Reservation>,
    /// How many read, and the number of the latest: only that one goes on, since a connection can be broken long before
    /// this host sees that.
    readers: usize,
    latest: u64,
}

/// All streams that can be read again.
pub struct Events {
    logs: Mutex<HashMap<StreamId, Arc<Log>>>,
    limiter: Arc<Limiter>,
}

impl Events {
    pub fn new(limiter: Arc<Limiter>) -> Arc<Events> {
        Arc::new(Events { logs: Mutex::default(), limiter })
    }

    fn log(&self, stream: &str) -> Arc<Log> {
        let mut logs = lock(&self.logs);
        if let Some(log) = logs.get(stream) {
            return log.clone();
        }
        // One whose request ended before it was known whose it is.
        logs.retain(|stream, log| log.of.get().is_some() || is_common(stream) || log.began.elapsed() < KEPT);
        let log = Arc::new(Log::new());
        logs.insert(stream.to_owned(), log.clone());
        log
    }

    /// The stream that this event begins is the response to a request of this session.
    pub fn begin(&self, event: &ServerSseMessage, session: &SessionId, asked: &Arc<McpRequest>) -> Option<Arc<Log>> {
        let (_, stream) = parsed(event.event_id.as_deref()?)?;
        let log = self.log(stream);
        log.of.set((session.clone(), asked.clone())).ok()?;
        Some(log)
    }

    /// The stream of an event that this session's client has; `None` for what it is told outside of requests.
    pub fn resumed(&self, session: &SessionId, event: &str) -> Result<Option<Arc<Log>>, EventStoreError> {
        let (_, stream) = parsed(event).ok_or("not an event's id")?;
        if stream == common(session) {
            return Ok(None);
        }
        let log = lock(&self.logs).get(stream).cloned();
        let own = log.filter(|log| log.of.get().is_some_and(|(of, _)| of == session));
        own.map(Some).ok_or_else(|| "no such stream is kept".into())
    }

    /// Ends all streams of a session, and their calls.
    pub fn close(&self, session: &SessionId) {
        let own = |stream: &StreamId, log: &Arc<Log>| {
            *stream == common(session) || log.of.get().is_some_and(|(of, _)| of == session)
        };
        let gone: Vec<_> = lock(&self.logs).extract_if(|stream, log| own(stream, log)).collect();
        for (_, log) in gone {
            log.of.get().into_iter().for_each(|(_, asked)| asked.left.cancel());
            log.end();
        }
    }

    /// Keeps a stream that is over and that nobody reads, where its principal has room for it: its oldest go first.
    fn settle(self: &Arc<Self>, log: &Arc<Log>) {
        let Some((_, asked)) = log.of.get() else { return };
        let bytes = {
            let state = lock(&log.state);
            if state.over.is_none() || state.readers > 0 || state.room.is_some() {
                return;
            }
            state.bytes + asked.over()
        };
        let room = (bytes <= LARGEST).then(|| self.room(&asked.caller.user, bytes.max(BYTES))).flatten();
        let (events, log) = (self.clone(), log.clone());
        if room.is_none() {
            return events.forget(&log);
        }
        lock(&log.state).room = room;
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            events.forget(&log);
        });
    }

    fn room(&self, principal: &str, bytes: usize) -> Option<Reservation> {
        loop {
            if let Some(room) = self.limiter.take(Resource::Resumable, principal, bytes) {
                return Some(room);
            }
            let kept = |log: &&Arc<Log>| log.of.get().is_some_and(|(_, asked)| asked.caller.user == principal);
            let since = |log: &Arc<Log>| {
                let state = lock(&log.state);
                state.over.filter(|_| state.room.is_some() && state.readers == 0)
            };
            let oldest = {
                let logs = lock(&self.logs);
                let own = logs.values().filter(kept).filter_map(|log| Some((since(log)?, log)));
                own.min_by_key(|(since, _)| *since).map(|(_, log)| log.clone())?
            };
            self.forget(&oldest);
        }
    }

    fn forget(&self, log: &Arc<Log>) {
        lock(&self.logs).retain(|_, other| !Arc::ptr_eq(other, log));
        lock(&log.state).room = None;
    }
}

impl Log {
    fn new() -> Log {
        Log { began: Instant::now(), of: OnceLock::new(), state: Mutex::default(), changed: Notify::new() }
    }

    fn push(&self, event: &ServerSseMessage) -> u64 {
        let mut state = lock(&self.state);
        let at = state.next;
        state.next += 1;
        state.bytes += size(event);
        state.events.push_back((at, event.clone()));
        while state.events.len() > 1 && (state.events.len() > EVENTS || state.bytes > BYTES) {
            let oldest = state.events.pop_front();
            state.bytes -= oldest.map_or(0, |(_, event)| size(&event));
        }
        at
    }

    /// No more comes.
    fn end(&self) {
        let lasts = {
            let mut state = lock(&self.state);
            state.over.get_or_insert_with(Instant::now);
            state.lasts.take()
        };
        drop(lasts);
        self.changed.notify_waiters();
    }

    /// The event from this place on, and its own. `None`: the end.
    async fn event(&self, from: u64) -> Option<(u64, ServerSseMessage)> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = lock(&self.state);
                let first = state.events.partition_point(|(at, _)| *at < from);
                match state.events.get(first) {
                    Some(event) => return Some(event.clone()),
                    None if state.over.is_some() => return None,
                    None => {}
                }
            }
            changed.await;
        }
    }
}

fn size(event: &ServerSseMessage) -> usize {
    event.message.as_ref().and_then(|message| serde_json::to_vec(message.as_ref()).ok()).map_or(0, |text| text.len())
}

fn is_last(message: &ServerJsonRpcMessage) -> bool {
    matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))
}

/// One reader of a stream, as the body of a response.
pub struct Reading {
    events: Arc<Events>,
    log: Arc<Log>,
    number: u64,
    /// The client has an event's id, with which it can come back.
    told: bool,
}

impl Reading {
    /// `lasts`: until the stream is over.
    pub fn new(events: &Arc<Events>, log: Arc<Log>, told: bool, lasts: Option<Box<dyn Any + Send>>) -> Reading {
        let number = {
            let mut state = lock(&log.state);
            state.lasts = lasts.filter(|_| state.over.is_none()).or(state.lasts.take());
            state.readers += 1;
            state.latest += 1;
            state.latest
        };
        Reading { events: events.clone(), log, number, told }
    }

    /// The request whose response is read.
    pub fn asked(&self) -> Option<&Arc<McpRequest>> {
        self.log.of.get().map(|(_, asked)| asked)
    }

    /// Whether the client gets this event. `None`: the end, to which rmcp also comes without an answer.
    pub fn goes_on(&mut self, event: Option<&[u8]>) -> bool {
        let latest = lock(&self.log.state).latest == self.number;
        // A comment only shows that the connection is there.
        self.told |= event.is_some_and(|event| !event.starts_with(b":"));
        if latest && event.is_none() {
            self.log.end();
        }
        latest && event.is_some()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let leaves = {
            let mut state = lock(&self.log.state);
            state.readers -= 1;
            state.readers == 0 && state.over.is_none()
        };
        self.events.settle(&self.log);
        let (events, log, number) = (self.events.clone(), self.log.clone(), self.number);
        let away = if self.told { AWAY } else { Duration::ZERO };
        if leaves {
            // The call goes on for a while, and what it tells is kept.
            tokio::spawn(async move {
                tokio::time::sleep(away).await;
                if lock(&log.state).latest == number {
                    log.of.get().into_iter().for_each(|(_, asked)| asked.left.cancel());
                    events.settle(&log);
                }
            });
        }
    }
}

type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, EventStoreError>> + Send + 'a>>;

impl EventStore for Store {
    fn store_event<'s, 'i, 'e, 'a>(&'s self, stream: &'i str, event: &'e ServerSseMessage) -> Later<'a, EventId>
    where
        's: 'a,
        'i: 'a,
        'e: 'a,
        Self: 'a,
    {
        let log = self.0.log(stream);
        let id = format!("{}/{stream}", log.push(event));
        log.changed.notify_waiters();
        if !is_common(stream) && event.message.as_ref().is_some_and(|message| is_last(message)) {
            log.end();
            self.0.settle(&log);
        }
        Box::pin(std::future::ready(Ok(id)))
    }

    fn replay_events_after<'s, 'i, 'a>(&'s self, event: &'i str) -> Later<'a, EventStream>
    where
        's: 'a,
        'i: 'a,
        Self: 'a,
    {
        let found = parsed(event).and_then(|(at, stream)| Some((at, stream, lock(&self.0.logs).get(stream)?.clone())));
        let replayed = found.ok_or_else(|| "no such stream is kept".into()).map(|(at, stream, log)| {
            let stream = stream.to_owned();
            let later = stream::unfold((log, at), move |(log, at)| {
                let stream = stream.clone();
                async move {
                    let (at, mut event) = log.event(at.saturating_add(1)).await?;
                    event.event_id = Some(format!("{at}/{stream}"));
                    Some((event, (log, at)))
                }
            });
            Box::pin(later) as EventStream
        });
        Box::pin(std::future::ready(replayed))
    }
}

/// The store as rmcp has it.
pub struct Store(pub Arc<Events>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Caller;
    use crate::transport::answers::Payer;
    use rmcp::model::ErrorData;

    #[tokio::test]
    async fn what_is_kept_is_bounded_for_each_principal_and_in_all() {
        let limiter = Arc::new(Limiter::new(1, 1));
        let events = Events::new(limiter.clone());
        let store = Store(events.clone());
        for user in ["a", "b", "c", "d", "e"] {
            let asked = Arc::new(McpRequest::new(Caller::named(user), Payer::new(&limiter, user)));
            for n in 0..80 {
                let (stream, mut first) = (format!("{user}{n}"), ServerSseMessage::retry(RETRY));
                first.event_id = store.store_event(&stream, &first).await.ok();
                assert!(events.begin(&first, &SessionId::from(user), &asked).is_some());
                let last = JsonRpcMessage::error(ErrorData::internal_error("x", None), None);
                store.store_event(&stream, &ServerSseMessage::from_message(last)).await.unwrap();
            }
        }
        let kept = |user: &str| lock(&events.logs).keys().filter(|stream| stream.starts_with(user)).count();
        assert_eq!(["a", "b", "c", "d", "e"].map(kept), [64, 64, 64, 64, 0]);
        assert!(!lock(&events.logs).contains_key("a0"), "the oldest went first");
        assert!(events.resumed(&SessionId::from("a"), "0/a79").is_ok_and(|log| log.is_some()));
        assert!(events.resumed(&SessionId::from("b"), "0/a79").is_err(), "of another session");
    }
}
