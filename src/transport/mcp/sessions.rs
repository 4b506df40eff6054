//! Sessions: what an older client keeps here between its requests over HTTP, from `initialize` on. rmcp's manager runs
//! them; here stands whose they are, how many there may be, and which requests are open.

use super::asked::CURRENT;
use super::events::{self, Events};
use crate::base::lock;
use crate::service::{Limiter, Reservation, Resource};
use futures_util::{Stream, StreamExt, stream};
use rmcp::model::{
    ClientJsonRpcMessage, JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionError,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A session that nobody uses is forgotten after this time.
const IDLE: Duration = Duration::from_secs(600);
/// The worker of a session that is closed ends in this time.
const ENDING: Duration = Duration::from_secs(10);
/// Requests of one session that are open at once.
const OPEN: usize = 64;
/// The first revision whose clients know an event without content.
const PRIMED: ProtocolVersion = ProtocolVersion::V_2025_11_25;

struct SessionState {
    user: String,
    used: Instant,
    /// Responses of it that are being sent.
    uses: usize,
    requests: HashSet<RequestId>,
    /// Its client knows an event that only tells it how to come back.
    primed: bool,
    _kept: Reservation,
}

pub struct Sessions {
    local: LocalSessionManager,
    known: Mutex<HashMap<SessionId, SessionState>>,
    limiter: Arc<Limiter>,
    pub events: Arc<Events>,
}

/// One response of a session, until it is sent or dropped.
pub struct SessionLease {
    sessions: Arc<Sessions>,
    id: SessionId,
    request: Option<RequestId>,
}

/// Why a request cannot be taken now.
pub enum Busy {
    /// A request of this id is open.
    Taken,
    Full,
}

impl Sessions {
    pub fn new(limiter: Arc<Limiter>) -> Arc<Sessions> {
        let events = Events::new(limiter.clone());
        let mut local = LocalSessionManager::default().with_event_store(Arc::new(events::Store(events.clone())));
        // A call may run for longer than any such time; what is idle is seen here.
        local.session_config.keep_alive = None;
        // Of a request's stream rmcp forgets all with its end; the store keeps it.
        local.session_config.completed_cache_ttl = Duration::ZERO;
        local.session_config.sse_retry = Some(events::RETRY);
        Arc::new(Sessions { local, known: Mutex::default(), limiter, events })
    }

    /// A place for one more session of this user, which takes it when it is made.
    pub async fn place(&self, user: &str) -> Option<Reservation> {
        self.forget(|session| session.used.elapsed() > IDLE, usize::MAX).await;
        if let Some(kept) = self.limiter.take(Resource::Sessions, user, 1) {
            return Some(kept);
        }
        self.forget(|session| session.user == user, 1).await;
        self.limiter.take(Resource::Sessions, user, 1)
    }

    /// Closes such sessions that nobody uses, so many of them, the longest unused first.
    async fn forget(&self, which: impl Fn(&SessionState) -> bool, most: usize) {
        let gone = {
            let mut known = lock(&self.known);
            let unused = known.iter().filter(|(_, session)| session.uses == 0 && which(session));
            let mut unused: Vec<_> = unused.map(|(id, session)| (session.used, id.clone())).collect();
            unused.sort();
            unused.truncate(most);
            // From here on no request finds them.
            unused.iter().for_each(|(_, id)| drop(known.remove(id)));
            unused
        };
        for (_, id) in gone {
            // One that ended by itself is gone already.
            let _ = self.close_session(&id).await;
        }
    }

    /// Opens a request, or a stream. `None`: there is no such session of this user.
    pub fn uses(
        self: &Arc<Self>,
        id: &str,
        user: &str,
        request: Option<RequestId>,
    ) -> Result<Option<SessionLease>, Busy> {
        let mut known = lock(&self.known);
        let Some(session) = known.get_mut(id).filter(|session| session.user == user) else { return Ok(None) };
        if session.uses >= OPEN {
            return Err(Busy::Full);
        }
        if request.as_ref().is_some_and(|request| !session.requests.insert(request.clone())) {
            return Err(Busy::Taken);
        }
        (session.uses, session.used) = (session.uses + 1, Instant::now());
        Ok(Some(SessionLease { sessions: self.clone(), id: id.into(), request }))
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(session) = lock(&self.sessions.known).get_mut(&self.id) {
            (session.uses, session.used) = (session.uses - 1, Instant::now());
            self.request.take().map(|request| session.requests.remove(&request));
        }
    }
}

type Failed = LocalSessionManagerError;

impl SessionManager for Sessions {
    type Error = Failed;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Failed> {
        let place = CURRENT.try_with(|current| Some((current.user(), lock(&current.place).take()?)));
        let (user, kept) = place.ok().flatten().ok_or_else(|| Failed::SessionNotFound("".into()))?;
        let (id, transport) = self.local.create_session().await?;
        let requests = HashSet::new();
        let session = SessionState { user, used: Instant::now(), uses: 0, requests, primed: false, _kept: kept };
        lock(&self.known).insert(id.clone(), session);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Failed> {
        let welcome = self.local.initialize_session(id, message).await?;
        if let JsonRpcMessage::Response(welcome) = &welcome
            && let ServerResult::InitializeResult(welcome) = &welcome.result
            && let Some(session) = lock(&self.known).get_mut(id)
        {
            session.primed = welcome.protocol_version >= PRIMED;
        }
        Ok(welcome)
    }

    /// All that names a session asks this first, but its end, before which `uses` was asked.
    async fn has_session(&self, id: &SessionId) -> Result<bool, Failed> {
        let user = CURRENT.try_with(|current| current.user()).ok();
        let own = lock(&self.known).get(id).is_some_and(|session| Some(&session.user) == user.as_ref());
        Ok(own && self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Failed> {
        lock(&self.known).remove(id);
        self.events.close(id);
        let closed = self.local.close_session(id).await;
        // Its worker ends a moment later, and may have told something meanwhile.
        let (events, id) = (self.events.clone(), id.clone());
        tokio::spawn(async move {
            tokio::time::sleep(ENDING).await;
            events.close(&id);
        });
        closed
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Failed> {
        let mut events = Box::pin(self.local.create_stream(id, message).await?);
        // The first, which is there at once, has nothing but an id.
        let first = events.next().await;
        let begin = |first| CURRENT.try_with(|current| current.reads(self.events.begin(first, id, &current.asked)));
        first.as_ref().map(begin);
        let primed = lock(&self.known).get(id).is_some_and(|session| session.primed);
        Ok(stream::iter(first.filter(|_| primed)).chain(events))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Failed> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Failed> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Failed> {
        let log = self.events.resumed(id, &last_event_id).map_err(SessionError::EventStore)?;
        let _ = CURRENT.try_with(|current| current.reads(log));
        self.local.resume(id, last_event_id).await
    }
}
