//! The server and a connection, as handlers see them.

use super::callers::Callers;
use super::crowd::{ConnectionLimiter, ConnectionSlot};
use super::offered::OfferedTools;
use super::peer::SocketDiag;
use super::reply::{Begun, Refusal};
use crate::base::lock;
use crate::base::semaphore::{FairSemaphore, Permit};
use crate::fault::{Fault, Kind};
use crate::service::Lists;
use crate::service::background::Background;
use crate::service::{Caller, Service};
use crate::transport;
use crate::transport::announced::Announcements;
use crate::transport::broker::Brokers;
use crate::transport::responses::ModelServer;
use http::StatusCode;
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The names under which this server is known, beside its address.
#[derive(Clone, Debug, Default)]
pub struct ServerNames {
    pub hosts: Vec<String>,
    /// Origins of web pages that may call, `https://name[:port]`.
    pub origins: Vec<String>,
}

/// The server, as its connections and handlers see it.
pub struct Server {
    pub service: Arc<Service>,
    pub background: Arc<Background>,
    pub callers: Callers,
    pub names: ServerNames,
    pub tls: Option<TlsAcceptor>,
    pub brokers: Arc<Brokers>,
    pub announced: Arc<Announcements>,
    pub model: Option<Arc<ModelServer>>,
    pub uploads: PathBuf,
    pub page: bool,
    pub mcp: transport::mcp::StreamableHttp,
    pub lists: Lists<OfferedTools>,
    pub kernel: SocketDiag,
    pub warnings: Warnings,
    /// The connections that are served, and those beyond the limit.
    pub crowd: Arc<ConnectionLimiter>,
    pub overflow: Arc<ConnectionLimiter>,
    /// Connections of known callers.
    pub known: Arc<FairSemaphore>,
    /// Cloned for each request that leads to calls.
    pub begun: Begun,
    /// Cancelled: no call begins any more.
    pub stop: CancellationToken,
    /// Cancelled: calls that still run are killed.
    pub kill: CancellationToken,
}

impl Server {
    /// Why no call is taken now, if so.
    pub fn refuses_calls(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return Some("draining".to_owned());
        }
        if let Err(fault) = self.service.accepts_calls() {
            return Some(fault.message);
        }
        let is_away = self.brokers.is_away();
        is_away.then(|| "a broker is away".to_owned())
    }
}

/// What is known of a connection.
pub struct Connection {
    /// The address that the client connected to; `None`: a unix socket.
    pub ours: Option<IpAddr>,
    pub tls: bool,
    /// For the log.
    pub peer: String,
    pub seat: ConnectionSlot,
    /// Its principal, and what that is charged for it, once a good request came.
    pub principal: Mutex<Option<(String, Permit)>>,
    /// Why it is not served.
    pub refusal: Option<Fault>,
}

impl Connection {
    /// Charges the connection to the caller of a good request. `Err`: the caller has its share of
    /// connections.
    pub fn charge_to(&self, server: &Server, caller: &Caller) -> Result<(), Refusal> {
        let mut principal = lock(&self.principal);
        if principal
            .as_ref()
            .is_none_or(|(user, _)| *user != caller.user)
        {
            let claim = server
                .known
                .claim_unless_alone(&caller.user, server.callers.is_own());
            let permit = server.known.try_enter_as(&claim, 1);
            *principal = Some((
                caller.user.clone(),
                permit.ok_or_else(|| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, full()))?,
            ));
        }
        Ok(())
    }
}

pub fn full() -> Fault {
    Fault::new(Kind::RateLimitError, "Too many connections are open.").retryable()
}

/// Most warnings in a minute that name their peers; all others share one line for each reason.
const LINES: usize = 256;
const MINUTE: Duration = Duration::from_secs(60);

/// When the minute began, and the peers and reasons that have a line in it.
pub struct Warnings(Mutex<(Instant, HashSet<(String, &'static str)>)>);

impl Warnings {
    pub fn new() -> Warnings {
        Warnings(Mutex::new((Instant::now(), HashSet::new())))
    }

    /// Writes the line where this minute has none of this peer and reason.
    pub fn warn(&self, peer: &str, reason: &'static str, words: &str) {
        if self.is_new(peer, reason) {
            tracing::warn!(target: "toolhost::http", %peer, "{words}");
        }
    }

    fn is_new(&self, peer: &str, reason: &'static str) -> bool {
        let mut lines = lock(&self.0);
        if lines.0.elapsed() >= MINUTE {
            *lines = (Instant::now(), HashSet::new());
        }
        let peer = if lines.1.len() < LINES {
            peer
        } else {
            "others"
        };
        lines.1.insert((peer.to_owned(), reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_has_one_line_a_minute_and_the_many_share_one() {
        let warnings = Warnings::new();
        let lines = |many: usize| {
            (0..many)
                .filter(|peer| warnings.is_new(&format!("::{}", peer % 500), "refused"))
                .count()
        };
        assert_eq!(
            (lines(1), lines(1), lines(2), lines(10_000)),
            (1, 0, 1, LINES - 2 + 1)
        );
        tokio::time::advance(MINUTE).await;
        assert_eq!((lines(1), lines(1)), (1, 0));
    }
}
