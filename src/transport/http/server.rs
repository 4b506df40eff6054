//! The server and a connection, as handlers see them.

use super::callers::Callers;
use super::crowd::{Crowd, Seat};
use super::peer::Kernel;
use super::reply::Refusal;
use super::warnings::Warnings;
use crate::base::lock;
use crate::fault::{Fault, Kind};
use crate::service::background::Background;
use crate::service::{Caller, Service};
use crate::transport;
use crate::transport::announced::Announcements;
use crate::transport::broker::Brokers;
use http::StatusCode;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The names under which this server is known, beside its address.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub hosts: Vec<String>,
    /// Origins of web pages that may call, `https://name[:port]`.
    pub origins: Vec<String>,
}

/// The server, as its connections and handlers see it.
pub struct Server {
    pub service: Arc<Service>,
    pub background: Arc<Background>,
    pub callers: Callers,
    pub names: Names,
    pub tls: Option<TlsAcceptor>,
    pub brokers: Arc<Brokers>,
    pub announced: Arc<Announcements>,
    pub mcp: transport::mcp::Streamable,
    pub kernel: Kernel,
    pub warnings: Warnings,
    /// The connections that are served, and those for which there is no room.
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
