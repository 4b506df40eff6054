//! One connection: who may have it, for how long, and what it may cost.
//!
//! For: the server. In: an accepted socket. Out: its requests, one after another, to the gate and the router. Never: a
//! connection without a place; one that waits for ever for a head, a body or a reader; a call whose client has left.

use super::listen::Socket;
use super::patient::Patient;
use super::reply::{self, Refused};
use super::{Face, gate};
use crate::base::lock;
use crate::base::places::Place;
use crate::fault::{Fault, Kind};
use crate::transport;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Connections at once; one user of this machine, or one address elsewhere, has at most three quarters of them.
pub const MOST: usize = 512;
/// Beside them those that have not shown a good token yet, in the same shares.
pub const STRANGERS: usize = 128;
/// Refused connections at once that are told why; others are closed without a word.
pub const FAREWELLS: usize = 32;
/// A head is whole in this time after the connection was made or the answer before it was taken.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// Largest head, bytes, and most header lines.
const HEAD_BYTES: usize = 16 * 1024;
const HEAD_LINES: usize = 64;
/// How often we look whether the client is still there.
const LOOK: Duration = Duration::from_millis(250);
/// How long a refused client may take to read why.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is known of a connection.
pub struct Connection {
    /// The address that the client connected to; `None`: a unix socket.
    pub ours: Option<IpAddr>,
    pub tls: bool,
    /// For the log.
    pub peer: String,
    standing: Standing,
}

/// A connection's place.
struct Standing {
    share: String,
    /// And whether it is one of those for callers that are known.
    place: Mutex<(Place, bool)>,
}

impl Standing {
    /// A good request came: the connection moves to the places of those that are known.
    fn becomes_known(&self, face: &Face) -> Result<(), Refused> {
        let mut place = lock(&self.place);
        if !place.1 {
            let full = || reply::refused(StatusCode::SERVICE_UNAVAILABLE, full());
            *place = (face.places.try_enter(&self.share).ok_or_else(full)?, true);
        }
        Ok(())
    }

    fn is_known(&self) -> bool {
        lock(&self.place).1
    }
}

fn full() -> Fault {
    Fault::new(Kind::RateLimitError, "Too many connections are open.").retryable()
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that was looked at.
pub struct Guest {
    socket: Socket,
    /// For the log.
    peer: String,
    standing: Result<Standing, Refusal>,
}

/// Why a connection is not served, with its place while that is said.
struct Refusal {
    fault: Fault,
    place: Place,
}

/// Who connected. `None`: nobody to serve, and no place to say so.
pub fn met(face: &Face, socket: Socket) -> Option<Guest> {
    let peer = match &socket {
        Socket::Tcp(_, peer) => peer.ip().to_canonical().to_string(),
        Socket::Unix(_) => "unix".to_owned(),
    };
    let owner = socket.uid(&face.kernel);
    let share = share(&socket, &owner);
    // Nobody presents a token to a server for one user, whose connections are known from the start.
    let known = face.callers.own_uid().is_some();
    let places = if known { &face.places } else { &face.strangers };
    // Other users of this machine take no place of it.
    let place = let_in(face, owner).and_then(|()| places.try_enter(&share).ok_or_else(full));
    let standing = match place {
        Ok(place) => Ok(Standing { share, place: Mutex::new((place, known)) }),
        Err(fault) => Err(Refusal { fault, place: face.farewells.try_enter("")? }),
    };
    Some(Guest { socket, peer, standing })
}

/// Whether whoever is at the other end may speak to this server at all.
fn let_in(face: &Face, owner: io::Result<Option<u32>>) -> Result<(), Fault> {
    let Some(own) = face.callers.own_uid() else { return Ok(()) };
    let who = match owner {
        Ok(Some(uid)) if uid == own => return Ok(()),
        Ok(Some(uid)) => format!("uid {uid}"),
        Ok(None) => "unknown user".to_owned(),
        Err(why) => {
            face.told.once("-", "not looked up", &format!("whose a connection is could not be looked up: {why}"));
            let words = "This host cannot find out now whose this connection is.";
            return Err(Fault::new(Kind::RateLimitError, words).retryable());
        }
    };
    face.told.once(&who, "refused", &format!("refused: {who}"));
    let words = "This server is for the user who runs it: connect as that user, or present a token to a server that has a \
                 token file.";
    Err(Fault::new(Kind::AuthorizationError, words))
}

/// Serves a connection to its end.
pub async fn serve(face: Arc<Face>, guest: Guest) {
    let Guest { socket, peer, standing } = guest;
    let standing = match standing {
        Ok(standing) => standing,
        Err(refusal) => return farewell(socket, refusal).await,
    };
    match socket {
        Socket::Tcp(stream, _) => {
            let _ = stream.set_nodelay(true);
            let ours = stream.local_addr().map(|ours| ours.ip().to_canonical()).ok();
            let Ok(watched) = stream.as_fd().try_clone_to_owned() else { return };
            let connection = Connection { ours, tls: face.tls.is_some(), peer, standing };
            let stream: Box<dyn Stream> = match &face.tls {
                None => Box::new(stream),
                Some(tls) => match tokio::time::timeout(HEAD_TIME, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    _ => return,
                },
            };
            spoken(face, connection, stream, watched).await;
        }
        Socket::Unix(stream) => {
            let Ok(watched) = stream.as_fd().try_clone_to_owned() else { return };
            let connection = Connection { ours: None, tls: false, peer, standing };
            spoken(face, connection, Box::new(stream), watched).await;
        }
    }
}

/// Whose share of the connections it counts to: a user of this machine, which has millions of addresses; an address; or a
/// network of IPv6 that one customer has.
fn share(socket: &Socket, owner: &io::Result<Option<u32>>) -> String {
    match (owner, socket) {
        (Ok(Some(uid)), _) => format!("uid {uid}"),
        (_, Socket::Unix(_)) => "unix".to_owned(),
        (_, Socket::Tcp(_, peer)) => match peer.ip().to_canonical() {
            ip if ip.is_loopback() => "loopback".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => ip.segments()[..4].iter().map(|part| format!("{part:x}:")).collect(),
        },
    }
}

/// Requests and answers. Dropping the connection drops the call that it waits for, which cancels, kills and records.
async fn spoken(face: Arc<Face>, connection: Connection, stream: Box<dyn Stream>, watched: impl AsFd) {
    let (killed, connection) = (face.kill.clone(), Arc::new(connection));
    let router = TowerToHyperService::new(face.router.clone());
    let handler = service_fn(move |request: Request<Incoming>| {
        let (face, connection, router) = (face.clone(), connection.clone(), router.clone());
        async move {
            // No path takes a body in chunks: where it ends nobody else needs to agree with us.
            let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
            let answer = answered(&face, &connection, &router, request).await;
            // Whoever was not let in, or sends what is not read, gets no second request in.
            let closes = answer.is_err() || chunked || !connection.standing.is_known() || face.stop.is_cancelled();
            let mut answer = answer.unwrap_or_else(|refusal| *refusal);
            let headers = answer.headers_mut();
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            if closes {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        // Whoever only sends no more has an answer that takes no time; a call that lasts is ended below.
        .half_close(true)
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .serve_connection(TokioIo::new(Patient::new(stream)), handler);
    tokio::pin!(served);
    // Not at once: who asks and then shuts its sending half has its answer where that takes no time.
    let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
    loop {
        tokio::select! {
            _ = &mut served => break,
            // Behind bytes that nobody reads yet hyper does not see the end.
            _ = look.tick() => if transport::sends_no_more(watched.as_fd()) { break },
            () = killed.cancelled() => {
                served.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(FAREWELL, served).await;
                break;
            }
        }
    }
}

async fn answered(
    face: &Arc<Face>,
    connection: &Connection,
    router: &TowerToHyperService<axum::Router>,
    mut request: Request<Incoming>,
) -> Result<reply::Response, Refused> {
    if let Some(caller) = gate::admitted(face, connection, &request)? {
        connection.standing.becomes_known(face)?;
        request.extensions_mut().insert(caller);
    }
    match router.call(request).await {
        Ok(answer) => Ok(answer),
        Err(never) => match never {},
    }
}

/// One answer to a client whose request is not read.
async fn farewell(socket: Socket, Refusal { fault, place }: Refusal) {
    async fn said(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: String) -> std::io::Result<()> {
        stream.write_all(words.as_bytes()).await?;
        stream.shutdown().await?;
        // An unread request would reset the connection before the answer is read.
        tokio::io::copy(&mut stream.take(64 * 1024), &mut tokio::io::sink()).await.map(drop)
    }
    let body = reply::words(&fault);
    let (status, retry) = match fault.retryable {
        true => (StatusCode::SERVICE_UNAVAILABLE, "Retry-After: 1\r\n"),
        false => (StatusCode::FORBIDDEN, ""),
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n{retry}");
    let words = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let _ = tokio::time::timeout(FAREWELL, async {
        match socket {
            Socket::Tcp(stream, _) => said(stream, words).await,
            Socket::Unix(stream) => said(stream, words).await,
        }
    })
    .await;
    drop(place);
}
