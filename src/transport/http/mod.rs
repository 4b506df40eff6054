//! HTTP/1.1 over loopback, a unix socket or TLS, for programs and the operator.
//!
//! The caller is known, and memory is charged, before a body is read. A call ends with its client,
//! unless it has a receipt.
//!
//! A wider address needs tokens or JWTs, and TLS or an explicit `--insecure`. Without tokens a
//! connection is served only where the kernel says that its other end belongs to the user who runs
//! the server. Host and Origin are checked before any handler, and what is not JSON with a known
//! length is refused.

mod artifacts;
mod background;
mod body;
mod callers;
mod calls;
mod connection;
mod crowd;
mod gate;
mod head;
mod jwt;
mod listen;
mod model_runs;
mod offered;
mod operate;
mod page;
mod peer;
mod reply;
mod request;
mod responses;
mod runs;
mod scripts;
mod server;
mod stored;
mod text_settings;
mod tokens;
mod tool_choice;
mod tools;

pub use callers::Callers;
pub use jwt::{Jwt, Terms};
pub use listen::{Address, Listener, tls};
pub use peer::{SocketDiag, unix_peer};
pub use server::ServerNames;
pub use tokens::{Tokens, make as make_token};

use crate::base::semaphore::FairSemaphore;
use crate::base::text;
use crate::service::Lists;
use crate::service::background::Background;
use crate::transport;
use crate::transport::announced::Announcements;
use crate::transport::broker::Brokers;
use crate::transport::responses::ModelServer;
use axum::Router;
use axum::extract::State;
use axum::routing::{get, post, put};
use crowd::ConnectionLimiter;
use http::{Method, StatusCode, Uri};
use reply::{Refusal, Response};
use serde_json::json;
use server::Server;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How long calls may still run once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often we look whether they have ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long their answers may take after that.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server is made of.
pub struct Options {
    pub callers: Callers,
    pub names: ServerNames,
    pub tls: Option<TlsAcceptor>,
    /// Brokers that are served beside it: the server is ready only while they are connected.
    pub brokers: Arc<Brokers>,
    /// What other hosts announce.
    pub announced: Arc<Announcements>,
    /// The model server of `/v1/responses`.
    pub model: Option<Arc<ModelServer>>,
    /// What lists over MCP say of tools.
    pub style: transport::mcp::ListStyle,
    /// Where scripts go that operators upload.
    pub uploads: PathBuf,
    /// Whether there is a page for operators.
    pub page: bool,
}

/// Refuses an address that others can reach unless everybody must present a token, over TLS or with
/// `--insecure`.
pub fn check_exposure(
    address: &Address,
    callers: &Callers,
    may_send_tokens: bool,
) -> Result<(), String> {
    if address.is_local() {
        return Ok(());
    }
    if callers.is_own() {
        return Err(format!(
            "--http {address} can be reached from other machines, so callers must present a token: \
             add --token-file FILE (`toolhost token NAME` makes one) or [http.jwt] in the \
             configuration file"
        ));
    }
    if !may_send_tokens {
        return Err(format!(
            "--http {address} can be reached from other machines, and tokens would cross the \
             network in the clear: add --tls-cert FILE --tls-key FILE, or --insecure where \
             something else encrypts"
        ));
    }
    Ok(())
}

/// Serves until `stop` is cancelled and the calls that run have ended, or `kill` is. Returns only
/// then.
pub async fn serve(
    listener: Listener,
    options: Options,
    background: Arc<Background>,
    stop: CancellationToken,
    kill: CancellationToken,
) -> io::Result<()> {
    let Options {
        callers,
        names,
        tls,
        brokers,
        announced,
        model,
        style,
        uploads,
        page,
    } = options;
    let server = Arc::new(Server {
        mcp: transport::mcp::StreamableHttp::new(
            background.clone(),
            style,
            callers.is_own(),
            kill.clone(),
        ),
        lists: Lists::default(),
        service: background.service.clone(),
        background,
        callers,
        names,
        tls,
        brokers,
        announced,
        model,
        uploads,
        page,
        kernel: SocketDiag::default(),
        warnings: server::Warnings::new(),
        crowd: ConnectionLimiter::new(connection::MAX_CONNECTIONS),
        overflow: ConnectionLimiter::new(connection::OVERFLOW),
        known: FairSemaphore::shared(connection::MAX_CONNECTIONS),
        begun: Arc::default(),
        stop,
        kill,
    });
    let router = match page {
        true => page::routes(router()),
        false => router(),
    };
    let router = router.with_state(server.clone());
    let mut connections = JoinSet::new();
    let ended = wait_until_drained(&server);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                // Each is admitted or refused, and another closed to make room, before the next is
                // accepted, so that refused ones never pile up.
                Ok(socket) => if let Some((socket, connection)) = connection::admit(&server, socket) {
                    connections.spawn(connection::serve(server.clone(), router.clone(), socket, connection));
                    tokio::task::yield_now().await;
                },
                Err(why) => {
                    // The client gave up, or this host has too many files open.
                    server.warnings.warn("-", "not accepted", &format!("a connection was not \
                        accepted: {why}"));
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    server.kill.cancel();
    let farewell = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::join!(
        tokio::time::timeout(SHUTDOWN_TIMEOUT, farewell),
        server.background.stop()
    );
    Ok(())
}

/// Waits until the server stops and no call runs any more, or until it must end at once. A call
/// that only waits for the answer to a question is not waited for.
async fn wait_until_drained(server: &Server) {
    let drained = async {
        fn begun(server: &Server) -> usize {
            Arc::strong_count(&server.begun) - 1 + server.background.kept().open
        }
        while begun(server) > 0 && !server.service.confirmations.is_only_asking(begun(server)) {
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
    };
    let calls_ended = async {
        server.stop.cancelled().await;
        server.service.confirmations.stop();
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    };
    tokio::select! {
        () = calls_ended => {}
        () = server.kill.cancelled() => {}
    }
}

/// Every path of this server.
fn router() -> Router<Arc<Server>> {
    Router::new()
        .route(
            "/healthz",
            get(async || reply::json(StatusCode::OK, &json!({ "status": "up" }))),
        )
        .route("/readyz", get(ready))
        .route(
            "/openapi.json",
            get(async || reply::json_text(include_str!("openapi.json"))),
        )
        .route("/v1/tools", get(tools::list))
        .route("/v1/tools/{tool}", get(tools::one))
        .route("/v1/tools/{tool}/audit", get(tools::audit))
        .route("/v1/tools/{tool}/approval", get(operate::approval))
        .route("/v1/tools/{tool}/disable", post(operate::disable))
        .route("/v1/tools/{tool}/enable", post(operate::enable))
        .route("/v1/inventory", get(operate::tools))
        .route("/v1/log", get(operate::calls))
        .route("/v1/log/{call}", get(operate::call))
        .route("/v1/tools/{tool}/calls", post(calls::call))
        .route("/v1/actions", post(calls::act))
        .route(
            "/v1/observations",
            get(background::observations).post(background::observations),
        )
        .route("/v1/calls", get(background::list).post(calls::batch))
        .route(
            "/v1/calls/{call}",
            get(background::one).delete(background::cancel),
        )
        .route("/v1/runs", get(runs::list).post(runs::begin))
        .route("/v1/runs/{run}", get(runs::one).delete(runs::delete))
        .route("/v1/runs/{run}/cancel", post(runs::cancel))
        .route("/v1/runs/{run}/submit_tool_outputs", post(runs::submit))
        .route("/v1/responses", post(model_runs::create))
        .route(
            "/v1/responses/{response}",
            get(model_runs::one).delete(model_runs::delete),
        )
        .route("/v1/responses/{response}/cancel", post(model_runs::cancel))
        .route(
            "/v1/responses/{response}/input_items",
            get(model_runs::input_items),
        )
        .route("/v1/tool-batches", post(responses::tool_batch))
        .route("/v1/calls/{call}/interrupt", post(background::interrupt))
        .route("/v1/artifacts", get(artifacts::list))
        .route("/v1/artifacts/{id}", get(artifacts::one))
        .route("/v1/scripts/{*path}", put(scripts::put))
        .route("/v1/approvals", get(tools::approvals))
        .route("/v1/approvals/{call}", post(tools::approve))
        .route("/v1/status", get(tools::status))
        .route("/metrics", get(tools::metrics))
        .route(jwt::METADATA_PATH, get(gate::metadata))
        .route(
            &format!("{}/{{*path}}", jwt::METADATA_PATH),
            get(gate::metadata),
        )
        .route(
            calls::MCP_PATH,
            get(calls::mcp).post(calls::mcp).delete(calls::mcp),
        )
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
}

async fn ready(State(server): State<Arc<Server>>) -> Response {
    let refused = server.refuses_calls();
    let status = refused
        .as_ref()
        .map_or(StatusCode::OK, |_| StatusCode::SERVICE_UNAVAILABLE);
    reply::json(
        status,
        &json!({ "status": refused.as_deref().unwrap_or("ready") }),
    )
}

async fn no_such_path(method: Method, uri: Uri) -> Refusal {
    // CONNECT names a host and no path.
    if method == Method::CONNECT {
        return no_such_method(method).await;
    }
    let path = text::printable(&text::head(uri.path(), 100));
    let fault = reply::malformed(format!(
        "There is no {path} here; /openapi.json lists the paths."
    ));
    Refusal::new(StatusCode::NOT_FOUND, fault)
}

async fn no_such_method(method: Method) -> Refusal {
    let method = text::printable(method.as_str());
    let fault = reply::malformed(format!(
        "Method {method} is not allowed; see the header Allow."
    ));
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, fault)
}
