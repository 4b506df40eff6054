//! Sessions: what an older client keeps here between its requests over HTTP, from `initialize` on.
//!
//! For: `streamable`. In: a caller, the id of a session. Out: rmcp's session, where it is this caller's. Never: more of them
//! than the bounds below; one that nobody uses kept for long; two open requests under one id.

use super::resume;
use crate::base::lock;
use crate::base::places::{Place, Places};
use futures_util::{Stream, StreamExt, stream};
use rmcp::model::{
    ClientJsonRpcMessage, JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Sessions at once; one caller has at most three quarters of them.
const MOST: usize = 256;
const EACH: usize = MOST - MOST / 4;
/// A session that nobody uses is forgotten after this time.
const IDLE: Duration = Duration::from_secs(600);
/// Requests of one session that are open at once.
const OPEN: usize = 64;
/// The first revision whose clients know an event without content.
const PRIMED: ProtocolVersion = ProtocolVersion::V_2025_11_25;

struct Known {
    user: String,
    used: Instant,
    /// Responses of it that are being sent.
    uses: usize,
    requests: HashSet<RequestId>,
    /// Its client knows an event that only tells it how to come back.
    primed: bool,
    /// Cancelled once it is closed: its calls are killed.
    closing: CancellationToken,
    _place: Place,
}

pub struct Sessions {
    local: LocalSessionManager,
    known: Mutex<HashMap<SessionId, Known>>,
    places: Arc<Places>,
    /// What was told of their requests, for clients that come back.
    pub told: Arc<resume::Store>,
}

/// One response of a session, until it is sent or dropped.
pub struct Use {
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
    pub fn new() -> Arc<Sessions> {
        let mut local = LocalSessionManager::default();
        // A call may run for longer than any such time; what is idle is seen here.
        local.session_config.keep_alive = None;
        // Of a request's stream rmcp forgets all with its end; `told` keeps it.
        local.session_config.completed_cache_ttl = Duration::ZERO;
        local.session_config.sse_retry = Some(resume::RETRY);
        let (known, told) = (Mutex::default(), Arc::default());
        Arc::new(Sessions { local, known, places: Places::new(MOST, EACH), told })
    }

    /// A place for one more session of this user, which takes it when it is made.
    pub async fn place(&self, user: &str) -> Option<Place> {
        self.forget(|session| session.used.elapsed() > IDLE, usize::MAX).await;
        if let Some(place) = self.places.try_enter(user) {
            return Some(place);
        }
        self.forget(|session| session.user == user, 1).await;
        self.places.try_enter(user)
    }

    /// Closes such sessions that nobody uses, so many of them, the longest unused first.
    async fn forget(&self, which: impl Fn(&Known) -> bool, most: usize) {
        let mut unused: Vec<(Instant, SessionId)> = {
            let known = lock(&self.known);
            let unused = known.iter().filter(|(_, session)| session.uses == 0 && which(session));
            unused.map(|(id, session)| (session.used, id.clone())).collect()
        };
        unused.sort();
        for (_, id) in unused.into_iter().take(most) {
            self.close(&id).await;
        }
    }

    async fn close(&self, id: &SessionId) {
        if let Some(session) = lock(&self.known).remove(id) {
            session.closing.cancel();
        }
        self.told.close(id);
        // One that ended by itself is gone already.
        let _ = self.local.close_session(id).await;
    }

    fn is_of(&self, id: &SessionId, user: &str) -> bool {
        lock(&self.known).get(id).is_some_and(|session| session.user == user)
    }

    /// Opens a request, or a stream. `None`: there is no such session of this user.
    pub fn uses(self: &Arc<Self>, id: &str, user: &str, request: Option<RequestId>) -> Result<Option<Use>, Busy> {
        let mut known = lock(&self.known);
        let Some(session) = known.get_mut(id).filter(|session| session.user == user) else { return Ok(None) };
        if session.uses >= OPEN {
            return Err(Busy::Full);
        }
        if request.as_ref().is_some_and(|request| !session.requests.insert(request.clone())) {
            return Err(Busy::Taken);
        }
        (session.uses, session.used) = (session.uses + 1, Instant::now());
        Ok(Some(Use { sessions: self.clone(), id: id.into(), request }))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(session) = lock(&self.sessions.known).get_mut(&self.id) {
            (session.uses, session.used) = (session.uses - 1, Instant::now());
            self.request.take().map(|request| session.requests.remove(&request));
        }
    }
}

/// The sessions as one caller has them.
pub struct Own {
    pub sessions: Arc<Sessions>,
    pub user: String,
    /// Ends what a new session runs.
    pub closing: CancellationToken,
    /// For a new session.
    pub place: Mutex<Option<Place>>,
    /// The stream that this request began.
    pub begun: Mutex<Option<resume::Key>>,
    /// The stream that it goes on with.
    pub resumed: Mutex<Option<resume::Reader>>,
}

impl Own {
    fn check(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        match self.sessions.is_of(id, &self.user) {
            true => Ok(()),
            false => Err(LocalSessionManagerError::SessionNotFound(id.clone())),
        }
    }
}

impl SessionManager for Own {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let none = || LocalSessionManagerError::SessionNotFound("".into());
        let place = lock(&self.place).take().ok_or_else(none)?;
        let (id, transport) = self.sessions.local.create_session().await?;
        let (user, closing) = (self.user.clone(), self.closing.clone());
        let requests = HashSet::new();
        let session = Known { user, used: Instant::now(), uses: 0, requests, primed: false, closing, _place: place };
        lock(&self.sessions.known).insert(id.clone(), session);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        let welcome = self.sessions.local.initialize_session(id, message).await?;
        if let JsonRpcMessage::Response(welcome) = &welcome
            && let ServerResult::InitializeResult(welcome) = &welcome.result
            && let Some(session) = lock(&self.sessions.known).get_mut(id)
        {
            session.primed = welcome.protocol_version >= PRIMED;
        }
        Ok(welcome)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.check(id).is_ok() && self.sessions.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        if self.check(id).is_ok() {
            self.sessions.close(id).await;
        }
        Ok(())
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        let mut events = Box::pin(self.sessions.local.create_stream(id, message).await?);
        // The first, which is there at once, has nothing but an id.
        let first = events.next().await;
        let place = first.as_ref().and_then(|first| resume::event(first.event_id.as_deref()?));
        *lock(&self.begun) = place.and_then(|(_, request)| Some((id.clone(), request?)));
        let primed = lock(&self.sessions.known).get(id).is_some_and(|session| session.primed);
        Ok(stream::iter(first.filter(|_| primed)).chain(events))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.check(id)?;
        self.sessions.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        self.sessions.local.create_standalone_stream(id).await
    }

    /// The stream of a request is read where it is kept; of what rmcp has of the session's own, the client gets what came later.
    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        match resume::event(&last_event_id) {
            Some((at, None)) => {
                let after = at.saturating_add(1).to_string();
                self.sessions.local.resume(id, after).await.map(StreamExt::left_stream)
            }
            of_request => {
                let of = of_request.and_then(|(at, request)| Some((at, (id.clone(), request?))));
                *lock(&self.resumed) = of.and_then(|(at, key)| self.sessions.told.resume(key, at));
                Ok(stream::empty().right_stream())
            }
        }
    }
}
