//! The server and a connection, as handlers see them.

use super::callers::Callers;
use super::crowd::{Crowd, Seat};
use super::peer::Kernel;
use super::reply::Refusal;
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::service::background::Background;
use crate::service::{Caller, Service};
use crate::transport;
use crate::transport::announced::Announcements;
use crate::transport::broker::Brokers;
use http::StatusCode;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
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
    pub mcp: transport::mcp::Streamable,
    pub kernel: Kernel,
    pub warnings: Warnings,
    /// The connections that are served, and those beyond their number.
    pub crowd: Arc<Crowd>,
    pub overflow: Arc<Crowd>,
    /// Cloned for each call, and taken once no more may begin.
    pub begin: Mutex<Option<mpsc::Sender<()>>>,
    /// Cancelled: no call begins any more.
    pub stop: CancellationToken,
    /// Cancelled: calls that still run are killed.
    pub kill: CancellationToken,
}

/// What is known of a connection.
pub struct Connection {
    /// The address that the client connected to; `None`: a unix socket.
    pub ours: Option<IpAddr>,
    pub tls: bool,
    /// For the log.
    pub peer: String,
    pub seat: Seat,
    /// Its principal, once a good request came.
    pub principal: Mutex<Option<String>>,
    /// Why it is not served.
    pub refusal: Option<Fault>,
}

impl Connection {
    /// A good request of this caller came. `Err`: that one has its share of connections.
    pub fn charge_to(&self, caller: &Caller) -> Result<(), Refusal> {
        let mut principal = lock(&self.principal);
        if principal.as_ref() != Some(&caller.user) {
            if !self.seat.charge_to(&caller.user) {
                return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, full()));
            }
            *principal = Some(caller.user.clone());
        }
        Ok(())
    }
}

pub fn full() -> Fault {
    Fault::new(Kind::RateLimitError, "Too many connections are open.").retryable()
}

/// Peers and reasons that are kept apart; all others share one line for each reason.
const MOST: usize = 256;

/// By peer and reason: how often since its line.
#[derive(Default)]
pub struct Warnings(Mutex<HashMap<(String, &'static str), u64>>);

impl Warnings {
    /// Writes the line where this peer had none of this reason in the last minute.
    pub fn warn(&self, peer: &str, reason: &'static str, words: &str) {
        if self.is_new(peer, reason) {
            tracing::warn!(target: "toolhost::http", %peer, "{words}");
        }
    }

    fn is_new(&self, peer: &str, reason: &'static str) -> bool {
        let mut known = lock(&self.0);
        let own = (peer.to_owned(), reason);
        let apart = known.len() < MOST || known.contains_key(&own);
        let key = if apart { own } else { ("others".to_owned(), reason) };
        let count = known.entry(key).and_modify(|more| *more += 1).or_default();
        *count == 0
    }

    /// Writes how many lines were left out since the last time. For each minute.
    pub fn log_repeated(&self) {
        for ((peer, reason), more) in std::mem::take(&mut *lock(&self.0)) {
            if more > 0 {
                tracing::warn!(target: "toolhost::http", "{peer}: {more} times more within a minute: {reason}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_line_a_minute_and_the_many_share_one() {
        let warnings = Warnings::default();
        let lines = |peer: &str| (0..1000).filter(|_| warnings.is_new(peer, "refused")).count();
        assert_eq!((lines("uid 1"), lines("uid 2")), (1, 1));
        warnings.log_repeated();
        assert_eq!(lines("uid 1"), 1, "and a minute later again");
        let many = (0..10_000).filter(|peer| warnings.is_new(&format!("::{peer}"), "refused")).count();
        assert_eq!(many, MOST, "the others have one of those");
    }
}
