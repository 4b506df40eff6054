//! Sessions: the state of an older client between its requests over HTTP, from `initialize` on.
//! rmcp's manager runs them. This file keeps the user of each, its open requests, and the events of
//! their responses, for clients whose connection broke.
//!
//! A session, its stream and its open requests belong to the caller who began it, and a bounded
//! part of a stream is kept for a minute. A client that leaves, cancels or ends its session has its
//! calls killed; an older client that can come back, ten seconds after it left. No request changes
//! a manifest, document, policy or caller.

use super::request::McpRequest;
use crate::base::lock;
use crate::base::semaphore::Permit;
use crate::executor::Part;
use crate::service::Limiter;
use crate::transport::answers::Parts;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use rmcp::model::RequestId;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// An unused session may be forgotten after this time.
const IDLE: Duration = Duration::from_secs(600);
/// Requests of one session that are open at once.
const OPEN: usize = 64;
/// How long a client should wait before it reconnects.
const RETRY: Duration = Duration::from_secs(1);
/// How long a call goes on for a client that has left and does not say so.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a response that is over is kept: its client may not have got all of it.
const RESPONSE_TTL: Duration = Duration::from_secs(60);
/// Events of one response that are kept, and their bytes; the last one is always kept.
const EVENTS: usize = 256;
const BYTES: usize = 256 * 1024;
/// A larger response is not kept once it is over, bytes.
const MAX_STORED_BYTES: usize = 4 * 1024 * 1024;
/// After this much silence a stream sends a comment, to show that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

struct Session {
    user: String,
    used: Instant,
    /// Its responses that are being sent.
    uses: usize,
    requests: HashSet<RequestId>,
    /// Responses by the number that rmcp gave each.
    responses: HashMap<String, Arc<Recording>>,
    _kept: Permit,
}

pub struct Sessions {
    pub local: Arc<LocalSessionManager>,
    known: Mutex<HashMap<String, Session>>,
    limiter: Arc<Limiter>,
    /// Only one user can connect.
    is_alone: bool,
}

/// One response of a session, until it is sent or dropped.
pub struct SessionLease {
    sessions: Arc<Sessions>,
    pub id: String,
    request: Option<RequestId>,
}

/// Why a request is refused.
pub enum LeaseError {
    /// The user has no such session.
    Unknown,
    /// A request of this id is open.
    Taken,
    Full,
}

impl Sessions {
    pub fn new(limiter: Arc<Limiter>, is_alone: bool) -> Arc<Sessions> {
        let mut local = LocalSessionManager::default();
        // A call may run for longer than any such time. `reserve` closes idle sessions instead.
        local.session_config.keep_alive = None;
        local.session_config.completed_cache_ttl = Duration::ZERO;
        local.session_config.sse_retry = Some(RETRY);
        Arc::new(Sessions {
            local: Arc::new(local),
            known: Mutex::default(),
            limiter,
            is_alone,
        })
    }

    /// A place for one more session of this user.
    pub async fn reserve(&self, user: &str) -> Option<Permit> {
        self.forget(|session| session.used.elapsed() > IDLE, usize::MAX)
            .await;
        let claim = self
            .limiter
            .sessions
            .claim_unless_alone(user, self.is_alone);
        loop {
            if let Some(kept) = self.limiter.sessions.try_enter_as(&claim, 1) {
                return Some(kept);
            }
            if self.forget(|session| session.user == user, 1).await == 0 {
                return None;
            }
        }
    }

    pub fn add(&self, id: &str, user: &str, kept: Permit) {
        let user = user.to_owned();
        let used = Instant::now();
        let requests = HashSet::new();
        let responses = HashMap::new();
        let session = Session {
            user,
            used,
            uses: 0,
            requests,
            responses,
            _kept: kept,
        };
        lock(&self.known).insert(id.to_owned(), session);
    }

    /// Closes at most `most` unused sessions that `which` accepts, the longest unused first.
    /// Returns how many.
    async fn forget(&self, which: impl Fn(&Session) -> bool, most: usize) -> usize {
        let gone: Vec<(String, Session)> = {
            let mut known = lock(&self.known);
            let unused = known
                .iter()
                .filter(|(_, session)| session.uses == 0 && which(session));
            let mut unused: Vec<_> = unused
                .map(|(id, session)| (session.used, id.clone()))
                .collect();
            unused.sort();
            unused
                .into_iter()
                .take(most)
                .filter_map(|(_, id)| known.remove_entry(&id))
                .collect()
        };
        let count = gone.len();
        for (id, session) in gone {
            self.end(id, session).await;
        }
        count
    }

    /// Closes a session: no request finds it any more, and its calls end.
    pub async fn close(&self, id: &str) {
        let session = lock(&self.known).remove_entry(id);
        if let Some((id, session)) = session {
            self.end(id, session).await;
        }
    }

    async fn end(&self, id: String, session: Session) {
        session
            .responses
            .values()
            .for_each(|response| response.request.left.cancel());
        // rmcp may have ended it by itself already.
        let _ = self.local.close_session(&id.into()).await;
    }

    /// Opens a request, or a stream.
    pub fn open(
        self: &Arc<Self>,
        id: &str,
        user: &str,
        request: Option<RequestId>,
    ) -> Result<SessionLease, LeaseError> {
        let mut known = lock(&self.known);
        let session = known
            .get_mut(id)
            .filter(|session| session.user == user)
            .ok_or(LeaseError::Unknown)?;
        if request.is_some() && session.requests.len() >= OPEN {
            return Err(LeaseError::Full);
        }
        if request
            .as_ref()
            .is_some_and(|request| !session.requests.insert(request.clone()))
        {
            return Err(LeaseError::Taken);
        }
        (session.uses, session.used) = (session.uses + 1, Instant::now());
        Ok(SessionLease {
            sessions: self.clone(),
            id: id.into(),
            request,
        })
    }

    /// Keeps a response that is complete and unread. Older ones of the same user are removed for
    /// it.
    fn settle(self: &Arc<Self>, response: &Arc<Recording>) {
        let (bytes, lasts) = {
            let mut state = lock(&response.state);
            if state.over.is_none() || state.reader.is_some() || state.kept.is_some() {
                return;
            }
            state.events.iter_mut().for_each(|event| event.room = None);
            let content = response
                .request
                .answer()
                .map_or(0, |answer| answer.parts.iter().map(Part::bytes).sum());
            (state.bytes + content, state.lasts.take())
        };
        // Dropping the lease needs the lock of the sessions.
        drop(lasts);
        response.request.release();
        let room = (bytes <= MAX_STORED_BYTES)
            .then(|| self.reserve_response(&response.request.caller.user, bytes.max(BYTES)));
        let Some(room) = room.flatten() else {
            return self.forget_response(response);
        };
        lock(&response.state).kept = Some(room);
        let sessions = self.clone();
        let response = response.clone();
        tokio::spawn(async move {
            tokio::time::sleep(RESPONSE_TTL).await;
            sessions.forget_response(&response);
        });
    }

    fn reserve_response(&self, user: &str, bytes: usize) -> Option<Permit> {
        loop {
            if let Some(room) = self.limiter.resumable.try_enter(user, bytes) {
                return Some(room);
            }
            fn kept_since(response: &Arc<Recording>) -> Option<Instant> {
                let state = lock(&response.state);
                state
                    .over
                    .filter(|_| state.kept.is_some() && state.reader.is_none())
            }
            let oldest = {
                let known = lock(&self.known);
                let own = known.values().filter(|session| session.user == user);
                let kept = own.flat_map(|session| session.responses.values());
                let kept = kept.filter_map(|response| Some((kept_since(response)?, response)));
                kept.min_by_key(|(since, _)| *since)
                    .map(|(_, response)| response.clone())?
            };
            self.forget_response(&oldest);
        }
    }

    fn forget_response(&self, response: &Arc<Recording>) {
        for session in lock(&self.known).values_mut() {
            session
                .responses
                .retain(|_, other| !Arc::ptr_eq(other, response));
        }
        drop(lock(&response.state).kept.take());
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(session) = lock(&self.sessions.known).get_mut(&self.id) {
            (session.uses, session.used) = (session.uses - 1, Instant::now());
            self.request
                .take()
                .map(|request| session.requests.remove(&request));
        }
    }
}

/// The place of an event, and the number of its response.
fn parse_event_id(id: &str) -> Option<(u64, &str)> {
    let (place, number) = id.split_once('/')?;
    Some((place.parse().ok()?, number))
}

/// The response to one request: the events that were recorded, and those to come.
struct Recording {
    request: Arc<McpRequest>,
    state: Mutex<RecordingState>,
    changed: Notify,
}

#[derive(Default)]
struct RecordingState {
    /// The place of the first event that is kept.
    first: u64,
    events: VecDeque<RecordedEvent>,
    bytes: usize,
    /// When the response was complete.
    over: Option<Instant>,
    /// Held until the response is complete and sent.
    lasts: Option<(SessionLease, Option<Arc<()>>)>,
    /// The latest reader and its next event. Others get none: their connection may have broken
    /// unnoticed.
    reader: Option<(u64, u64)>,
    readers: u64,
    kept: Option<Permit>,
}

/// One event as it is sent, and what it takes of the room for answers until it is.
struct RecordedEvent {
    parts: Parts,
    bytes: usize,
    room: Option<Permit>,
}

impl SessionLease {
    /// Records the response to a request of this session, and returns what its client reads.
    /// `first`: its first event, which has nothing but an id; only a client that `knows` such
    /// events gets it.
    pub fn record(
        self,
        request: Arc<McpRequest>,
        first: Bytes,
        body: BoxBody<Bytes, Infallible>,
        knows: bool,
        begun: Option<Arc<()>>,
    ) -> Option<impl Stream<Item = Bytes> + Send + use<>> {
        let id = std::str::from_utf8(&first)
            .ok()?
            .lines()
            .find_map(|line| line.strip_prefix("id: "))?;
        let (place, number) =
            parse_event_id(id).map(|(place, number)| (place, number.to_owned()))?;
        let sessions = self.sessions.clone();
        let session = self.id.clone();
        let state = RecordingState {
            first: place,
            lasts: Some((self, begun)),
            ..RecordingState::default()
        };
        let recording = Arc::new(Recording {
            request,
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        lock(&sessions.known)
            .get_mut(&session)?
            .responses
            .insert(number, recording.clone());
        let reading = ResponseReader::new(
            &sessions,
            recording.clone(),
            place + u64::from(!knows),
            false,
        );
        tokio::spawn(recording.record_all(sessions, first, body));
        Some(reading.into_stream())
    }

    /// The events after this one. `None`: it is not an event of a response. The stream is empty if
    /// the response is not kept any more.
    pub fn resume(&self, event: &str) -> Option<impl Stream<Item = Bytes> + Send + use<>> {
        let (place, number) = parse_event_id(event).or(event.contains('/').then_some((0, "")))?;
        let response = lock(&self.sessions.known)
            .get(&self.id)?
            .responses
            .get(number)
            .cloned();
        let reading = response.map(|response| {
            ResponseReader::new(&self.sessions, response, place.saturating_add(1), true)
        });
        let events = reading.map(ResponseReader::into_stream);
        Some(futures_util::StreamExt::flatten(stream::iter(events)))
    }
}

impl Recording {
    async fn record_all(
        self: Arc<Self>,
        sessions: Arc<Sessions>,
        first: Bytes,
        mut body: BoxBody<Bytes, Infallible>,
    ) {
        self.push(first).await;
        while let Some(Ok(frame)) = body.frame().await {
            // A comment only shows that the connection is there.
            if let Some(event) = frame
                .into_data()
                .ok()
                .filter(|event| !event.starts_with(b":"))
            {
                self.push(event).await;
            }
        }
        lock(&self.state).over = Some(Instant::now());
        self.changed.notify_waiters();
        sessions.settle(&self);
    }

    /// Waits for memory, and for a reader that has not read the oldest event.
    async fn push(&self, event: Bytes) {
        let parts = self.request.parts_of(&event);
        let is_charged = self.request.is_charged();
        let room = if is_charged {
            None
        } else {
            Some(
                self.request
                    .limiter
                    .answer(&self.request.caller.user, event.len())
                    .await,
            )
        };
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = lock(&self.state);
                fn is_full(state: &RecordingState, event: &Bytes) -> bool {
                    !state.events.is_empty()
                        && (state.events.len() >= EVENTS || state.bytes + event.len() > BYTES)
                }
                while is_full(&state, &event)
                    && state.reader.is_none_or(|(_, next)| next > state.first)
                {
                    state.bytes -= state.events.pop_front().map_or(0, |oldest| oldest.bytes);
                    state.first += 1;
                }
                if !is_full(&state, &event) {
                    state.bytes += event.len();
                    state.events.push_back(RecordedEvent {
                        parts,
                        bytes: event.len(),
                        room,
                    });
                    break;
                }
            }
            changed.await;
        }
        self.changed.notify_waiters();
    }
}

/// One reader of a response.
struct ResponseReader {
    sessions: Arc<Sessions>,
    response: Arc<Recording>,
    number: u64,
    /// The client has an event's id, with which it can come back.
    has_id: bool,
}

impl ResponseReader {
    fn new(
        sessions: &Arc<Sessions>,
        response: Arc<Recording>,
        from: u64,
        has_id: bool,
    ) -> ResponseReader {
        let number = {
            let mut state = lock(&response.state);
            state.readers += 1;
            state.reader = Some((state.readers, from));
            state.readers
        };
        response.changed.notify_waiters();
        ResponseReader {
            sessions: sessions.clone(),
            response,
            number,
            has_id,
        }
    }

    fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        let events = stream::unfold(self, |mut reading| async {
            let parts = match tokio::time::timeout(KEEP_ALIVE, reading.next()).await {
                Ok(parts) => parts?,
                Err(_) => vec![COMMENT.into()],
            };
            Some((
                stream::iter(parts.into_iter().flat_map(Part::pieces)),
                reading,
            ))
        });
        futures_util::StreamExt::flatten(events)
    }

    async fn next(&mut self) -> Option<Parts> {
        loop {
            let changed = self.response.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = lock(&self.response.state);
                let (number, next) = state.reader?;
                let place = next.max(state.first);
                if number != self.number {
                    return None;
                }
                match usize::try_from(place - state.first)
                    .ok()
                    .and_then(|at| state.events.get(at))
                {
                    Some(event) => {
                        let parts = event.parts.clone();
                        state.reader = Some((number, place + 1));
                        self.has_id = true;
                        self.response.changed.notify_waiters();
                        return Some(parts);
                    }
                    None if state.over.is_some() => return None,
                    None => {}
                }
            }
            changed.await;
        }
    }
}

impl Drop for ResponseReader {
    fn drop(&mut self) {
        let leaves = {
            let mut state = lock(&self.response.state);
            state
                .reader
                .take_if(|(number, _)| *number == self.number)
                .is_some()
                && state.over.is_none()
        };
        self.response.changed.notify_waiters();
        self.sessions.settle(&self.response);
        if leaves {
            // The call and its recording go on for this long.
            let response = self.response.clone();
            let number = self.number;
            let away = if self.has_id {
                RECONNECT_TIMEOUT
            } else {
                Duration::ZERO
            };
            tokio::spawn(async move {
                tokio::time::sleep(away).await;
                if lock(&response.state).readers == number {
                    response.request.left.cancel();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Caller;
    use futures_util::StreamExt;
    use http_body_util::Full;

    #[tokio::test]
    async fn what_is_kept_is_bounded_for_each_principal_and_found_in_its_session_alone() {
        let limiter = Arc::new(Limiter::new(1, 1));
        let sessions = Sessions::new(limiter.clone(), false);
        for user in ["a", "b"] {
            let kept = sessions.reserve(user).await.expect("room");
            sessions.add(user, user, kept);
            for number in 0..80 {
                let lease = sessions.open(user, user, None).ok().expect("its own");
                let request = Arc::new(McpRequest::new(Caller::named(user), &limiter));
                let first = Bytes::from(format!("data: \nid: 0/{number}\n\n"));
                let body =
                    Full::new(Bytes::from(format!("data: {user}\nid: 1/{number}\n\n"))).boxed();
                let events = lease
                    .record(request, first, body, true, None)
                    .expect("recorded");
                assert_eq!(events.count().await, 2);
            }
        }
        assert!(
            sessions.open("a", "b", None).is_err(),
            "of another principal"
        );
        let lease = sessions.open("a", "a", None).ok().expect("its own");
        let found: Vec<usize> =
            futures_util::future::join_all(["0/0", "0/79", "0/80"].map(|event| async {
                lease
                    .resume(event)
                    .expect("an event of a response")
                    .count()
                    .await
            }))
            .await;
        assert_eq!(found, [0, 1, 0], "the oldest went first");
        assert_eq!(
            ["a", "b"].map(|session| lock(&sessions.known)[session].responses.len()),
            [64, 64]
        );
    }

    /// An answer that has its memory never waits for more, and gives it back once it was read.
    #[tokio::test]
    async fn an_answer_is_charged_once() {
        const SHARE: usize = 64 << 20;
        const LONG: usize = 1 << 20;
        let limiter = Arc::new(Limiter::new(1, 1));
        let sessions = Sessions::new(limiter.clone(), false);
        sessions.add("s", "a", sessions.reserve("a").await.expect("room"));
        let others = limiter.try_answer("a", SHARE - LONG).expect("room");
        for number in 0..3 {
            let lease = sessions.open("s", "a", None).ok().expect("its own");
            let request = Arc::new(McpRequest::new(Caller::named("a"), &limiter));
            let text = request.charge("x".repeat(LONG - 1024)).expect("room");
            assert!(
                limiter.try_answer("a", LONG).is_err(),
                "the control: it takes the rest"
            );
            let first = Bytes::from(format!("data: \nid: 0/{number}\n\n"));
            let body = Full::new(Bytes::from(format!("data: {text}\nid: 1/{number}\n\n"))).boxed();
            let events = lease
                .record(request, first, body, true, None)
                .expect("recorded");
            assert!(
                events.collect::<Vec<_>>().await.concat().len() > LONG - 1024,
                "both events"
            );
        }
        drop(others);
        assert!(
            limiter.try_answer("a", SHARE).is_ok(),
            "all of it is free again"
        );
    }
}
