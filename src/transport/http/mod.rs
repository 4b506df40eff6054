//! HTTP/1.1 over loopback, a unix socket or TLS, for programs and the operator.
//!
//! The caller is known, and memory is charged, before a body is read. A call ends with its client, unless it has a receipt.

mod actions;
mod background;
mod batch;
mod body;
mod callers;
mod calls;
mod connection;
mod crowd;
mod extract;
mod gate;
mod jwt;
mod listen;
mod mcp;
mod metadata;
mod peer;
mod reply;
mod running;
mod stream;
mod tokens;
mod tools;
mod warnings;

pub use callers::Callers;
pub use gate::Names;
pub use jwt::{Jwt, Terms};
pub use listen::{Address, Listener, tls};
pub use peer::{Kernel, of_unix as other_end};
pub use tokens::{Tokens, make as make_token};

use crate::base::lock;
use crate::service::background::Background;
use crate::service::{Caller, Service};
use crate::transport;
use crate::transport::announced::Announcements;
use crate::transport::answers::Payer;
use crate::transport::broker::Brokers;
use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use crowd::Crowd;
use http::{Method, StatusCode, Uri};
use reply::Response;
use serde_json::json;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How long calls may still run once the server is told to stop.
const DRAIN: Duration = Duration::from_secs(30);
/// How long their answers may take after that.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a server is made of.
pub struct Options {
    pub callers: Callers,
    pub names: Names,
    pub tls: Option<TlsAcceptor>,
    /// What is served beside it: ready is only who is connected there.
    pub brokers: Arc<Brokers>,
    /// What other hosts announce.
    pub announced: Arc<Announcements>,
}

/// The server, as its connections and handlers see it.
struct Face {
    service: Arc<Service>,
    background: Arc<Background>,
    callers: Callers,
    names: Names,
    tls: Option<TlsAcceptor>,
    brokers: Arc<Brokers>,
    announced: Arc<Announcements>,
    router: Router,
    mcp: transport::mcp::Streamable,
    /// Asked whose a connection is.
    kernel: peer::Kernel,
    warnings: warnings::Warnings,
    /// The connections that are served, and those for which there is no room.
    crowd: Arc<Crowd>,
    overflow: Arc<Crowd>,
    /// Cloned for each call, and taken once no more may begin.
    begin: Mutex<Option<mpsc::Sender<()>>>,
    /// Told to stop: no call begins any more.
    stop: CancellationToken,
    /// Calls that still run are killed.
    kill: CancellationToken,
}

impl Face {
    /// Held by a call until its answer is delivered. `None`: the server stops.
    fn begin(&self) -> Option<mpsc::Sender<()>> {
        lock(&self.begin).clone()
    }

    /// Who pays for answers to this caller.
    fn payer(&self, caller: &Caller) -> Payer {
        Payer::new(self.service.limiter(), &caller.user)
    }

    fn tell_left_out(&self) {
        self.warnings.left_out().iter().for_each(|words| tracing::warn!(target: "toolhost::http", "{words}"));
    }
}

/// Refuses an address that others can reach unless everybody must present a token and nobody can listen on the way.
pub fn wide_enough(address: &Address, callers: &Callers, tls: bool, insecure: bool) -> Result<(), String> {
    if address.is_local() {
        return Ok(());
    }
    if callers.is_own() {
        return Err(format!(
            "--http {address} can be reached from other machines, so callers must present a token: add --token-file FILE \
             (`toolhost token NAME` makes one) or [http.jwt] in the configuration file"
        ));
    }
    if !tls && !insecure {
        return Err(format!(
            "--http {address} can be reached from other machines, and tokens would cross the network in the clear: add \
             --tls-cert FILE --tls-key FILE, or --insecure where something else encrypts"
        ));
    }
    Ok(())
}

/// Serves until `stop` is cancelled and the calls that run have ended, or `kill` is. Returns only then.
pub async fn serve(
    listener: Listener,
    options: Options,
    background: Arc<Background>,
    stop: CancellationToken,
    kill: CancellationToken,
) -> io::Result<()> {
    let Options { callers, names, tls, brokers, announced } = options;
    let (begin, calls) = mpsc::channel(1);
    let face = Arc::new_cyclic(|face: &Weak<Face>| Face {
        mcp: transport::mcp::Streamable::new(background.service(), kill.clone()),
        service: background.service(),
        background,
        callers,
        names,
        tls,
        brokers,
        announced,
        router: router(face.clone()),
        kernel: peer::Kernel::default(),
        warnings: warnings::Warnings::default(),
        crowd: Crowd::new(connection::MOST),
        overflow: Crowd::new(connection::OVERFLOW),
        begin: Mutex::new(Some(begin)),
        stop,
        kill,
    });
    let mut connections = JoinSet::new();
    let ended = drained(&face, calls);
    tokio::pin!(ended);
    let mut minute = tokio::time::interval(Duration::from_secs(60));
    loop {
        tokio::select! {
            () = &mut ended => break,
            Some(_) = connections.join_next() => {}
            _ = minute.tick() => face.tell_left_out(),
            accepted = listener.accept() => match accepted {
                // Looked at, and the one that goes for it closed, before the next one is accepted: those that are
                // refused never pile up.
                Ok(socket) => if let Some(guest) = connection::met(&face, socket) {
                    connections.spawn(connection::serve(face.clone(), guest));
                    tokio::task::yield_now().await;
                },
                Err(why) => {
                    // The client gave up, or this host has too many files open.
                    face.warnings.once("-", "not accepted", &format!("a connection was not accepted: {why}"));
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    face.tell_left_out();
    face.kill.cancel();
    let farewell = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::join!(tokio::time::timeout(FAREWELL, farewell), face.background.stop());
    Ok(())
}

/// Told to stop, and no call runs any more; or told to kill.
async fn drained(face: &Face, mut calls: mpsc::Receiver<()>) {
    let calls_ended = async {
        face.stop.cancelled().await;
        drop(lock(&face.begin).take());
        let _ = tokio::time::timeout(DRAIN, calls.recv()).await;
    };
    tokio::select! {
        () = calls_ended => {}
        () = face.kill.cancelled() => {}
    }
}

/// Every path of this server.
fn router(face: Weak<Face>) -> Router {
    Router::new()
        .route("/healthz", get(async || reply::value(StatusCode::OK, &json!({ "status": "up" }))))
        .route("/readyz", get(ready))
        .route("/openapi.json", get(async || reply::json_text(include_str!("openapi.json"))))
        .route("/v1/tools", get(tools::list))
        .route("/v1/tools/{tool}", get(tools::one))
        .route("/v1/tools/{tool}/audit", get(tools::audit))
        .route("/v1/tools/{tool}/calls", post(calls::call))
        .route("/v1/actions", post(actions::act))
        .route("/v1/calls", get(running::calls).post(batch::call))
        .route("/v1/calls/{call}", get(running::call).delete(running::cancel))
        .route("/v1/approvals", get(running::approvals))
        .route("/v1/approvals/{call}", post(running::approve))
        .route("/v1/status", get(running::status))
        .route("/metrics", get(running::metrics))
        .route(metadata::PATHS[0], get(metadata::metadata))
        .route(metadata::PATHS[1], get(metadata::metadata))
        .route(mcp::PATH, get(mcp::mcp).post(mcp::mcp).delete(mcp::mcp))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(face)
}

async fn ready(State(face): State<Weak<Face>>) -> Response {
    let (status, words) = match face.upgrade().filter(|face| !face.stop.is_cancelled()) {
        None => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Some(face) if face.service.ready().is_err() => (StatusCode::SERVICE_UNAVAILABLE, "policies cannot be read"),
        Some(face) if face.brokers.is_away() => (StatusCode::SERVICE_UNAVAILABLE, "a broker is away"),
        Some(_) => (StatusCode::OK, "ready"),
    };
    reply::value(status, &json!({ "status": words }))
}

async fn no_such_path(method: Method, uri: Uri) -> Response {
    // It names a host and no path.
    if method == Method::CONNECT {
        return no_such_method(method).await;
    }
    let path = crate::base::text::printable(&crate::base::text::head(uri.path(), 100));
    let words = format!("There is no {path} here; /openapi.json lists the paths.");
    reply::refusal(StatusCode::NOT_FOUND, reply::malformed(&words))
}

async fn no_such_method(method: Method) -> Response {
    let method = crate::base::text::printable(method.as_str());
    let words = format!("{method} is not taken here: the header Allow says what is.");
    reply::refusal(StatusCode::METHOD_NOT_ALLOWED, reply::malformed(&words))
}
