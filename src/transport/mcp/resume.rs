//! Resume: streams of answers that an older client goes on reading after its connection broke (`Last-Event-ID`).
//!
//! For: `sessions` and `streamable`. In: rmcp's events of one request of a session, the last one that the client has. Out: those
//! after it, told and to come. Never: the events of another caller's session; a call that runs on for long while nobody reads;
//! more of them than the bounds below.

use super::asked::Asked;
use crate::base::lock;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::body::Body;
use rmcp::transport::streamable_http_server::session::SessionId;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

/// When a client is told to come back after its connection broke.
pub const RETRY: Duration = Duration::from_secs(1);
/// How long a call goes on for a client that has left and does not say so.
const AWAY: Duration = Duration::from_secs(10);
/// How long a stream that is over is kept: nobody knows whether its client got all of it.
const KEPT: Duration = Duration::from_secs(60);
/// Events of one stream, and their bytes; the last one is there in any case, and the content of an answer beside.
const EVENTS: usize = 256;
const BYTES: usize = 256 * 1024;

/// How many streams that are over are kept, and how many bytes of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    streams: usize,
    bytes: usize,
}

const MIB: usize = 1024 * 1024;
const ALL: Size = Size { streams: 256, bytes: 64 * MIB };
/// Of one caller, in all of its sessions.
const EACH: Size = Size { streams: 64, bytes: 16 * MIB };
/// A larger one is not kept once it is over, bytes.
const LARGEST: usize = 4 * MIB;

/// A session, and rmcp's number of one of its requests.
pub type Key = (SessionId, u64);

/// An event's place in its stream, and the request whose stream it is; `None`: that of the session.
pub fn event(id: &str) -> Option<(u64, Option<u64>)> {
    match id.split_once('/') {
        Some((at, request)) => Some((at.parse().ok()?, Some(request.parse().ok()?))),
        None => Some((id.parse().ok()?, None)),
    }
}

/// All streams that can be resumed.
#[derive(Default)]
pub struct Store(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    all: HashMap<Key, Entry>,
    /// Somebody looks whether their time is over.
    swept: bool,
}

struct Entry {
    user: String,
    events: Arc<Events>,
    over: Option<Over>,
}

struct Over {
    since: Instant,
    bytes: usize,
}

/// The events of one stream.
struct Events {
    asked: Arc<Asked>,
    state: Mutex<State>,
}

struct State {
    /// Where they come from, and what is held until the last has come: dropping it ends the call. `None`: the stream is over.
    source: Option<(BoxBody<Bytes, Infallible>, Box<dyn Any + Send>)>,
    /// By their places.
    past: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Who reads: the latest, since a connection can be broken long before this host sees that.
    reader: u64,
    waker: Option<Waker>,
}

impl State {
    fn push(&mut self, at: u64, event: Bytes) {
        self.bytes += event.len();
        self.past.push_back((at, event));
        while self.past.len() > 1 && (self.past.len() > EVENTS || self.bytes > BYTES) {
            self.bytes -= self.past.pop_front().map_or(0, |(_, event)| event.len());
        }
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Events {
    /// Ends the stream, and its call. `reader`: only if this one is still the latest. False: it had ended, or another reads.
    fn end(&self, reader: Option<u64>) -> bool {
        let source = {
            let mut state = lock(&self.state);
            if reader.is_some_and(|reader| reader != state.reader) {
                return false;
            }
            state.wake();
            state.source.take()
        };
        source.is_some()
    }
}

/// A stream, and where it is kept.
#[derive(Clone)]
struct Stream {
    store: Arc<Store>,
    key: Key,
    events: Arc<Events>,
}

impl Stream {
    /// The event from this place on as rmcp wrote it, and its own. `None`: the end, or a later reader.
    fn poll(&self, reader: u64, from: u64, cx: &mut Context<'_>) -> Poll<Option<(Option<u64>, Bytes)>> {
        let mut state = lock(&self.events.state);
        while state.reader == reader {
            let first = state.past.partition_point(|(at, _)| *at < from);
            if let Some((at, event)) = state.past.get(first) {
                return Poll::Ready(Some((Some(*at), event.clone())));
            }
            let Some((body, _)) = &mut state.source else { break };
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => {
                    state.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    match place(&data) {
                        Some(at) => state.push(at, data),
                        // A comment, which shows that the connection is there.
                        None => return Poll::Ready(Some((None, data))),
                    }
                }
                Poll::Ready(None) => {
                    let (source, bytes) = (state.source.take(), state.bytes);
                    drop(state);
                    drop(source);
                    self.store.over(&self.key, bytes + self.events.asked.over());
                    break;
                }
            }
        }
        Poll::Ready(None)
    }

    /// Ends it for a reader that does not come back.
    fn end(&self, reader: u64) {
        if self.events.end(Some(reader)) {
            lock(&self.store.0).all.remove(&self.key);
        }
    }
}

/// Where an event stands in its stream, as its line `id` says.
fn place(event: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(event).ok()?.lines().find_map(|line| line.strip_prefix("id: "))?;
    self::event(line).map(|(at, _)| at)
}

/// One reader of a stream, as the body of an answer.
pub struct Reader {
    stream: Stream,
    number: u64,
    /// The place of the next event.
    next: u64,
    /// The client has an event's id, with which it can come back.
    told: bool,
}

impl Reader {
    pub fn asked(&self) -> Arc<Asked> {
        self.stream.events.asked.clone()
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = ready!(self.stream.poll(self.number, self.next, cx));
        Poll::Ready(event.map(|(at, event)| {
            if let Some(at) = at {
                (self.next, self.told) = (at.saturating_add(1), true);
            }
            event
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let (stream, reader) = (self.stream.clone(), self.number);
        if !self.told {
            return stream.end(reader);
        }
        let reads = {
            let state = lock(&stream.events.state);
            state.reader == reader && state.source.is_some()
        };
        if !reads {
            return;
        }
        // The call goes on for a while, and what it tells is kept.
        tokio::spawn(async move {
            let all = async { while poll_fn(|cx| stream.poll(reader, u64::MAX, cx)).await.is_some() {} };
            if tokio::time::timeout(AWAY, all).await.is_err() {
                stream.end(reader);
            }
        });
    }
}

impl Store {
    /// A stream that begins. `held`: until it is over.
    pub fn begin(
        self: &Arc<Self>,
        (key, user): (Key, &str),
        asked: Arc<Asked>,
        body: BoxBody<Bytes, Infallible>,
        held: impl Send + 'static,
    ) -> Reader {
        let source = Some((body, Box::new(held) as Box<dyn Any + Send>));
        let state = State { source, past: VecDeque::new(), bytes: 0, reader: 0, waker: None };
        let events = Arc::new(Events { asked, state: Mutex::new(state) });
        let entry = Entry { user: user.to_owned(), events: events.clone(), over: None };
        lock(&self.0).all.insert(key.clone(), entry);
        Reader { stream: Stream { store: self.clone(), key, events }, number: 0, next: 0, told: false }
    }

    /// The stream after this place. `None`: it is not kept, or not any more.
    pub fn resume(self: &Arc<Self>, key: Key, at: u64) -> Option<Reader> {
        let events = {
            let kept = lock(&self.0);
            kept.all.get(&key).filter(|entry| !entry.is_old())?.events.clone()
        };
        let number = {
            let mut state = lock(&events.state);
            state.reader += 1;
            state.wake();
            state.reader
        };
        let stream = Stream { store: self.clone(), key, events };
        Some(Reader { stream, number, next: at.saturating_add(1), told: true })
    }

    /// Ends all streams of a session.
    pub fn close(&self, session: &SessionId) {
        let gone: Vec<_> = lock(&self.0).all.extract_if(|(of, _), _| of == session).collect();
        for (_, entry) in gone {
            entry.events.end(None);
        }
    }

    fn over(self: &Arc<Self>, key: &Key, bytes: usize) {
        let mut kept = lock(&self.0);
        kept.over(key, bytes);
        if !std::mem::replace(&mut kept.swept, true) {
            tokio::spawn(self.clone().sweep());
        }
    }

    async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(KEPT / 4).await;
            let mut kept = lock(&self.0);
            kept.all.retain(|_, entry| !entry.is_old());
            kept.swept = kept.all.values().any(|entry| entry.over.is_some());
            if !kept.swept {
                return;
            }
        }
    }
}

impl Entry {
    fn is_old(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.since.elapsed() > KEPT)
    }
}

impl Kept {
    /// Keeps a stream that is over, and forgets what is too much then: its caller's oldest first, then the oldest of the caller
    /// who has the most.
    fn over(&mut self, key: &Key, bytes: usize) {
        let Some(entry) = self.all.get_mut(key) else { return };
        entry.over = Some(Over { since: Instant::now(), bytes });
        let user = entry.user.clone();
        if bytes > LARGEST {
            self.all.remove(key);
        }
        while self.size(Some(&user)).is_beyond(EACH) {
            self.forget(&user);
        }
        while self.size(None).is_beyond(ALL) {
            let Some(most) = self.greediest() else { return };
            self.forget(&most);
        }
    }

    /// Who has the most: a stream counts as its bytes and its place.
    fn greediest(&self) -> Option<String> {
        let mut sums: HashMap<&str, usize> = HashMap::new();
        for entry in self.all.values() {
            let Some(over) = &entry.over else { continue };
            *sums.entry(&entry.user).or_default() += over.bytes + ALL.bytes / ALL.streams;
        }
        sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(user, _)| user.to_owned())
    }

    fn size(&self, user: Option<&str>) -> Size {
        let own = self.all.values().filter(|entry| user.is_none_or(|user| entry.user == user));
        let add = |size: Size, over: &Over| Size { streams: size.streams + 1, bytes: size.bytes + over.bytes };
        own.filter_map(|entry| entry.over.as_ref()).fold(Size { streams: 0, bytes: 0 }, add)
    }

    fn forget(&mut self, user: &str) {
        let own = self.all.iter().filter(|(_, entry)| entry.user == user);
        let over = own.filter_map(|(key, entry)| Some((entry.over.as_ref()?.since, key)));
        if let Some(key) = over.min_by_key(|(since, _)| *since).map(|(_, key)| key.clone()) {
            self.all.remove(&key);
        }
    }
}

impl Size {
    fn is_beyond(self, most: Size) -> bool {
        self.streams > most.streams || self.bytes > most.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Approver, Caller};
    use futures_util::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::sync::oneshot;

    fn asked() -> Arc<Asked> {
        Asked::new(Caller::named("a"), Approver::Nobody, None)
    }

    fn sizes(kept: &Kept, user: &str) -> (usize, usize) {
        let size = kept.size(Some(user));
        (size.streams, size.bytes)
    }

    fn add(kept: &mut Kept, user: &str, number: u64, bytes: usize) {
        let state = State { source: None, past: VecDeque::new(), bytes: 0, reader: 0, waker: None };
        let events = Arc::new(Events { asked: asked(), state: Mutex::new(state) });
        let key = (SessionId::from(user), number);
        kept.all.insert(key.clone(), Entry { user: user.to_owned(), events, over: None });
        kept.over(&key, bytes);
    }

    #[test]
    fn what_is_kept_is_bounded_for_each_caller_and_in_all() {
        let mut kept = Kept::default();
        (0..100).for_each(|number| add(&mut kept, "a", number, 1));
        assert_eq!(sizes(&kept, "a"), (EACH.streams, EACH.streams));
        assert!(!kept.all.contains_key(&(SessionId::from("a"), 0)), "the oldest went first");
        (0..100).for_each(|number| add(&mut kept, "b", number, MIB));
        assert_eq!(sizes(&kept, "b"), (16, EACH.bytes));
        add(&mut kept, "b", 100, LARGEST + 1);
        assert_eq!(sizes(&kept, "b"), (16, EACH.bytes), "a large one takes the place of none");
        for user in ["c", "d", "e", "f"] {
            (0..100).for_each(|number| add(&mut kept, user, number, MIB));
        }
        assert!(!kept.size(None).is_beyond(ALL));
        assert_eq!(sizes(&kept, "a").0, EACH.streams, "whoever has most loses first");
    }

    fn frame(at: u64) -> Result<Frame<Bytes>, Infallible> {
        Ok(Frame::data(Bytes::from(format!("data: {at}\nid: {at}/7\n\n"))))
    }

    async fn next(reader: &mut Reader) -> Option<String> {
        poll_fn(|cx| reader.poll(cx)).await.map(|event| String::from_utf8_lossy(&event).into_owned())
    }

    #[tokio::test]
    async fn a_stream_goes_on_where_its_reader_was_and_ends_with_its_session() {
        let (store, session) = (Arc::new(Store::default()), SessionId::from("s"));
        let begin = |more: bool| {
            let frames = stream::iter((0..300).map(frame));
            let rest = stream::pending().take(usize::from(more));
            let body = BoxBody::new(StreamBody::new(frames.chain(rest)));
            let (held, over) = oneshot::channel::<()>();
            (store.begin(((session.clone(), 7), "a"), asked(), body, held), over)
        };
        let (mut first, mut over) = begin(false);
        assert_eq!(next(&mut first).await.as_deref(), Some("data: 0\nid: 0/7\n\n"));
        drop(first);
        let _ = (&mut over).await;
        let mut second = store.resume((session.clone(), 7), 298).expect("it is kept");
        assert_eq!(next(&mut second).await.as_deref(), Some("data: 299\nid: 299/7\n\n"));
        assert_eq!(next(&mut second).await, None);
        let mut oldest = store.resume((session.clone(), 7), 0).expect("it is kept");
        assert_eq!(next(&mut oldest).await.as_deref(), Some("data: 44\nid: 44/7\n\n"), "as many as are kept");
        // One that runs: an older reader is done, and the end of the session is the end of what it held.
        let (mut first, mut over) = begin(true);
        let _ = next(&mut first).await;
        let mut second = store.resume((session.clone(), 7), 299).expect("it is kept");
        assert_eq!(next(&mut first).await, None);
        drop(first);
        assert!(over.try_recv() == Err(oneshot::error::TryRecvError::Empty), "it goes on");
        store.close(&session);
        assert_eq!(next(&mut second).await, None);
        assert!(over.await.is_err() && store.resume((session, 7), 0).is_none());
    }

    #[tokio::test]
    async fn whoever_has_no_event_to_come_back_with_ends_the_call() {
        let (store, key) = (Arc::new(Store::default()), (SessionId::from("s"), 1));
        let (held, over) = oneshot::channel::<()>();
        let body = BoxBody::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()));
        drop(store.begin((key.clone(), "a"), asked(), body, held));
        assert!(over.await.is_err() && store.resume(key, 0).is_none());
    }
}
