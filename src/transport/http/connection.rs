//! One connection: who may have it, for how long, and what it may cost. Its requests go to the gate
//! and the router, one after another.

use super::gate;
use super::head::StrictHeads;
use super::listen::Socket;
use super::reply::{self, Refusal, Response};
use super::server::{Connection, Server, full};
use crate::base::{files, lock, text};
use crate::fault::{Fault, Kind};
use crate::transport;
use crate::transport::patience::WriteTimeout;
use axum::Router;
use axum::response::IntoResponse;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// Connections at once.
pub const MAX_CONNECTIONS: usize = 512;
/// Further connections at once. They get 503, except on the health paths.
pub const OVERFLOW: usize = 32;
/// The paths on which such a connection is answered.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];
/// How long the head of a request may take, from the connection or the previous answer on.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// Largest head, bytes, and most header lines.
const HEAD_BYTES: usize = 16 * 1024;
const HEAD_LINES: usize = 64;
/// How often we look whether the client is still there.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long a connection that is refused or ended may still take: to send its request, and to read
/// the answer.
const CLOSING_TIME: Duration = Duration::from_secs(1);

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// Admits or refuses a connection. `None`: it is closed unanswered, because the places for refusals
/// are taken too.
pub fn admit(server: &Server, socket: Socket) -> Option<(Socket, Connection)> {
    let (peer, ours) = match &socket {
        Socket::Tcp(stream, peer) => {
            let ours = stream
                .local_addr()
                .map(|ours| ours.ip().to_canonical())
                .ok();
            (peer.ip().to_canonical().to_string(), ours)
        }
        Socket::Unix(_) => ("unix".to_owned(), None),
    };
    // Other users of this machine take no room from the one whom it serves.
    let seat = check_user(server, &socket).and_then(|()| server.crowd.enter().ok_or_else(full));
    let (seat, refusal) = match seat {
        Ok(seat) => (seat, None),
        Err(fault) => (server.overflow.enter()?, Some(fault)),
    };
    let tls = server.tls.is_some() && ours.is_some();
    Some((
        socket,
        Connection {
            ours,
            tls,
            peer,
            seat,
            principal: Mutex::default(),
            refusal,
        },
    ))
}

/// Whether this user may speak to the server at all.
fn check_user(server: &Server, socket: &Socket) -> Result<(), Fault> {
    if !server.callers.is_own() {
        return Ok(());
    }
    let who = match socket.uid(&server.kernel) {
        Ok(Some(uid)) if files::is_me(uid) => return Ok(()),
        Ok(Some(uid)) => format!("uid {uid}"),
        Ok(None) => "unknown user".to_owned(),
        Err(why) => {
            let words = format!("the user of a connection could not be looked up: {why}");
            server.warnings.warn("-", "not looked up", &words);
            let words = "This host cannot find out now which user made this connection.";
            return Err(Fault::new(Kind::RateLimitError, words).retryable());
        }
    };
    server
        .warnings
        .warn(&who, "refused", &format!("refused: {who}"));
    let words = "This server is for the user who runs it: connect as that user, or present a token \
                 to a server with a token file.";
    Err(Fault::new(Kind::AuthorizationError, words))
}

/// Serves a connection to its end.
pub async fn serve(server: Arc<Server>, router: Router, socket: Socket, connection: Connection) {
    let watched = match &socket {
        Socket::Tcp(stream, _) => {
            let _ = stream.set_nodelay(true);
            stream.as_fd().try_clone_to_owned()
        }
        Socket::Unix(stream) => stream.as_fd().try_clone_to_owned(),
    };
    let Ok(watched) = watched else { return };
    let time = if connection.refusal.is_some() {
        CLOSING_TIME
    } else {
        HEAD_TIME
    };
    let close = connection.seat.close.clone();
    let tls = server.tls.clone();
    let served = async {
        let stream: Box<dyn Duplex> = match (socket, tls) {
            (Socket::Unix(stream), _) => Box::new(stream),
            (Socket::Tcp(stream, _), None) => Box::new(stream),
            (Socket::Tcp(stream, _), Some(tls)) => {
                match tokio::time::timeout(time, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    _ => return,
                }
            }
        };
        speak(server, router, connection, stream, watched, time).await;
    };
    tokio::select! {
        () = served => {}
        () = close.cancelled() => {}
    }
}

/// Serves requests. Dropping the connection drops the call that it waits for: that is killed and
/// recorded.
async fn speak(
    server: Arc<Server>,
    router: Router,
    connection: Connection,
    stream: Box<dyn Duplex>,
    watched: impl AsFd,
    head_time: Duration,
) {
    let killed = server.kill.clone();
    let connection = Arc::new(connection);
    let router = TowerToHyperService::new(router);
    let body = Arc::new(AtomicU64::new(0));
    let (read, write) = tokio::io::split(WriteTimeout::new(stream));
    let stream = tokio::io::join(StrictHeads::new(read, body.clone()), write);
    let handler = service_fn(move |request: Request<Incoming>| {
        // A body in chunks is refused, and ends the connection.
        body.store(
            request.body().size_hint().exact().unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        let server = server.clone();
        let connection = connection.clone();
        let router = router.clone();
        async move {
            // No path takes a body in chunks: only we decide where it ends.
            let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
            let answer = answer(&server, &connection, &router, request).await;
            // A client that was refused, or whose body is not read, cannot send a second request.
            let known = answer.is_ok() && lock(&connection.principal).is_some();
            let mut answer = answer.unwrap_or_else(IntoResponse::into_response);
            let status = answer.status();
            let headers = answer.headers_mut();
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert(
                header::X_CONTENT_TYPE_OPTIONS,
                HeaderValue::from_static("nosniff"),
            );
            headers.insert(
                "cross-origin-resource-policy",
                HeaderValue::from_static("same-origin"),
            );
            if status == StatusCode::UNAUTHORIZED {
                headers.insert(header::WWW_AUTHENTICATE, gate::challenge(&server));
            }
            if chunked || !known || server.stop.is_cancelled() {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // A client that shut its sending half still gets a quick answer; a longer call is ended
        // below.
        .half_close(true)
        .header_read_timeout(head_time)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .serve_connection(TokioIo::new(stream), handler);
    tokio::pin!(served);
    // Not at once, so that a client that shut its sending half gets a quick answer.
    let mut look = tokio::time::interval_at(
        Instant::now() + CLIENT_CHECK_INTERVAL,
        CLIENT_CHECK_INTERVAL,
    );
    loop {
        tokio::select! {
            _ = &mut served => break,
            // hyper does not see the end of the stream while bytes before it are unread.
            _ = look.tick() => if transport::sends_no_more(watched.as_fd()) { break },
            () = killed.cancelled() => {
                served.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(CLOSING_TIME, served).await;
                break;
            }
        }
    }
}

async fn answer(
    server: &Server,
    connection: &Arc<Connection>,
    router: &TowerToHyperService<Router>,
    mut request: Request<Incoming>,
) -> Result<Response, Refusal> {
    if let Some(fault) = &connection.refusal
        && !(fault.retryable && HEALTH.contains(&request.uri().path()))
    {
        let status = if fault.retryable {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::FORBIDDEN
        };
        return Err(Refusal::new(status, fault.clone()));
    }
    let caller = gate::admit(server, connection, &request)?;
    connection.seat.set_whole(request.body().is_end_stream());
    let Some(caller) = caller else {
        return Ok(route(router, request).await);
    };
    let asked = text::printable(&text::head(
        &format!("{} {}", request.method(), request.uri().path()),
        200,
    ));
    let answer = match connection.charge_to(server, &caller) {
        Ok(()) => {
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(connection.clone());
            route(router, request).await
        }
        Err(refusal) => {
            let mut answer = refusal.into_response();
            answer
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
            answer
        }
    };
    let answer = reply::charge(&server.service, &caller, answer).await;
    Ok(reply::record(&server.service, &caller, &asked, answer))
}

async fn route(router: &TowerToHyperService<Router>, request: Request<Incoming>) -> Response {
    match router.call(request).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}
