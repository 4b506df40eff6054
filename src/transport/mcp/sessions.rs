//! Sessions: what an older client keeps here between its requests over HTTP, from `initialize` on.
//!
//! For: `streamable`. In: a caller, the id of a session. Out: rmcp's session, where it is this caller's. Never: more of them
//! than the bounds below; one that nobody uses kept for long; two open requests under one id.

use crate::base::lock;
use futures_util::Stream;
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
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

struct Known {
    user: String,
    used: Instant,
    /// Responses of it that are being sent.
    uses: usize,
    requests: HashSet<RequestId>,
    /// Cancelled once it is closed: its calls are killed.
    closing: CancellationToken,
}

pub struct Sessions {
    local: LocalSessionManager,
    known: Mutex<HashMap<SessionId, Known>>,
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
        // Only what is on its way is kept: a response that was not taken is not sent again.
        local.session_config.completed_cache_ttl = Duration::ZERO;
        local.session_config.sse_retry = None;
        Arc::new(Sessions { local, known: Mutex::default() })
    }

    /// Makes room for one more session of this user; false where there is none.
    pub async fn make_room(&self, user: &str) -> bool {
        let (forgotten, room) = {
            let known = lock(&self.known);
            let idle = |session: &Known| session.uses == 0;
            let mut forgotten: Vec<SessionId> = known
                .iter()
                .filter(|(_, session)| idle(session) && session.used.elapsed() > IDLE)
                .map(|(id, _)| id.clone())
                .collect();
            let own = known.values().filter(|session| session.user == user).count();
            let full = known.len() - forgotten.len() >= MOST || own >= EACH;
            if full && forgotten.is_empty() {
                let own = known.iter().filter(|(_, session)| session.user == user && idle(session));
                forgotten.extend(own.min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone()));
            }
            (forgotten.clone(), !full || !forgotten.is_empty())
        };
        for id in forgotten {
            self.close(&id).await;
        }
        room
    }

    async fn close(&self, id: &SessionId) {
        if let Some(session) = lock(&self.known).remove(id) {
            session.closing.cancel();
        }
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
        let (id, transport) = self.sessions.local.create_session().await?;
        let (user, closing) = (self.user.clone(), self.closing.clone());
        let session = Known { user, used: Instant::now(), uses: 0, requests: HashSet::new(), closing };
        lock(&self.sessions.known).insert(id.clone(), session);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.sessions.local.initialize_session(id, message).await
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
        self.sessions.local.create_stream(id, message).await
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

    /// A client that has left has its call killed, so that nothing of it is left to send; its common stream goes on.
    async fn resume(
        &self,
        id: &SessionId,
        _last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        self.sessions.local.create_standalone_stream(id).await
    }
}
