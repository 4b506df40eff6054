//! The requests of a tool at port 80, each parsed, judged and written anew.
//!
//! A request that gets a secret, or that has a body, is the only one of its connection to the host: a host that takes a
//! part of it for a second request has nothing of ours to join to that part.
//!
//! hyper parses and writes on both sides. It drops Content-Length where Transfer-Encoding stands beside it, and one of
//! two equal ones, and closes the connection after such a request (RFC 9112, 6.3): the host never sees two lengths.

use super::answers;
use super::call::quoted;
use super::connections::{Connection, target};
use super::masking::Masked;
use super::secrets::{Admitted, Guard};
use super::stream::{BUFFER, Stream};
use crate::base::{lock, text};
use crate::egress::protocol::{Refusal, TrafficKind};
use crate::egress::tls;
use crate::manifest::host::{self, Host, HostPattern};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Longest head of a request or response, bytes. hyper takes at most 100 headers.
const HEAD: usize = 64 * 1024;
/// How long the end of a connection to the host may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a host may take to agree on TLS.
const TLS: Duration = Duration::from_secs(10);
/// Methods whose requests may have a body. A host may overlook the body of any other and take it for a request.
const BODIED: [&str; 6] = ["POST", "PUT", "PATCH", "PROPFIND", "REPORT", "QUERY"];
/// Headers about one connection, which end with it (RFC 9110, 7.6.1).
pub const OF_ONE_CONNECTION: [&str; 6] =
    ["connection", "keep-alive", "proxy-connection", "te", "upgrade", "http2-settings"];
/// Headers that stay whatever `Connection` says.
pub const OF_THE_MESSAGE: [HeaderName; 3] = [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

type Reply = Response<Either<Either<Incoming, Masked<Incoming>>, Full<Bytes>>>;

/// The connection cannot go on, and is reset.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the host was not reached")]
    Undialled,
    #[error("the host switched protocols unasked")]
    Unasked,
    #[error(transparent)]
    Upstream(#[from] hyper::Error),
}

/// One connection of a tool.
struct Exchange {
    connection: Connection,
    /// The host gets a secret.
    guard: Option<Guard>,
    /// The connection to the host of the requests that need none of their own.
    upstream: tokio::sync::Mutex<Option<SendRequest<Incoming>>>,
    /// Drive the connections to the host.
    drivers: Mutex<JoinSet<()>>,
    /// A connection to the host ended.
    gone: CancellationToken,
    /// Both ends, after the switch to another protocol.
    switched: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
}

pub async fn serve(connection: Connection, tool: Stream) {
    let exchange = Arc::new(Exchange {
        guard: Guard::of(&connection.call.lease, &connection.host),
        connection,
        upstream: Default::default(),
        drivers: Default::default(),
        gone: CancellationToken::new(),
        switched: Default::default(),
    });
    let own = Arc::clone(&exchange);
    let service = hyper::service::service_fn(move |request| {
        let own = Arc::clone(&own);
        async move { own.answer(request).await }
    });
    let server = hyper::server::conn::http1::Builder::new()
        .preserve_header_case(true)
        .auto_date_header(false)
        .header_read_timeout(None)
        .half_close(true)
        .max_buf_size(HEAD)
        .max_header_size(HEAD)
        .serve_connection(TokioIo::new(tool), service)
        .with_upgrades();
    let mut server = pin!(server);
    let ended = tokio::select! {
        ended = server.as_mut() => ended,
        () = exchange.gone.cancelled() => {
            server.as_mut().graceful_shutdown();
            server.await
        }
    };
    match ended {
        Ok(()) => exchange.finish().await,
        Err(error) if error.is_parse() => {
            exchange.connection.call.state().totals.requests += 1;
            let why = format!("it is not HTTP/1 as it should be: {error}");
            exchange.connection.refuse(TrafficKind::Request, Refusal::Content { why }).await;
        }
        Err(_) => {}
    }
}

impl Exchange {
    async fn answer(&self, mut request: Request<Incoming>) -> Result<Reply, Broken> {
        let Connection { call, host, .. } = &self.connection;
        call.state().totals.requests += 1;
        let switch = match judge(&request, host) {
            Ok(switch) => switch,
            Err(wrong) => return Ok(self.refuse(wrong).await),
        };
        if let Some(guard) = &self.guard {
            return self.guarded(guard, request).await;
        }
        let tool = switch.then(|| hyper::upgrade::on(&mut request));
        rewrite(&mut request, switch, canonical(host)?);
        if !request.body().is_end_stream() {
            let stream = self.connection.dial().await.ok_or(Broken::Undialled)?;
            let response = self.only_request(stream, request).await?;
            let asked = response.status() != StatusCode::SWITCHING_PROTOCOLS;
            return asked.then(|| response.map(|body| Either::Left(Either::Left(body)))).ok_or(Broken::Unasked);
        }
        let mut upstream = self.upstream.lock().await;
        let sender = match &mut *upstream {
            Some(sender) => sender,
            none => {
                let stream = self.connection.dial().await.ok_or(Broken::Undialled)?;
                none.insert(self.open(stream).await?)
            }
        };
        sender.ready().await?;
        let mut response = sender.send_request(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let tool = tool.filter(|_| is_websocket(response.headers())).ok_or(Broken::Unasked)?;
            let host = hyper::upgrade::on(&mut response);
            *lock(&self.switched) = Some((tool, host));
        }
        Ok(response.map(|body| Either::Left(Either::Left(body))))
    }

    /// A request for a host that gets a secret.
    async fn guarded(&self, guard: &Guard, mut request: Request<Incoming>) -> Result<Reply, Broken> {
        let Connection { call, host, port, .. } = &self.connection;
        let Admitted { port: tls_port, finder, replaced } = match guard.admit(&mut request, &call.secrets) {
            Ok(admitted) => admitted,
            Err(wrong) => return Ok(self.refuse(wrong).await),
        };
        for header in replaced {
            call.saw(TrafficKind::Replaced, &format!("{} {header}", target(host, *port)), None).await;
        }
        let stream = match self.open_tls(&guard.name, tls_port).await? {
            Ok(stream) => stream,
            Err(why) => return Ok(self.failed(tls_port, format!("no TLS with {}: {why}", guard.name)).await),
        };
        let response = self.only_request(stream, request).await?;
        match answers::of_host(response, &guard.name, &guard.ports().collect::<Vec<_>>(), finder) {
            Ok(response) => Ok(response.map(|body| Either::Left(Either::Right(body)))),
            Err(why) => Ok(self.refuse(wrong(StatusCode::BAD_GATEWAY, why)).await),
        }
    }

    /// Sends the only request of a connection, which ends with the response, and so does the tool's.
    async fn only_request<S>(&self, stream: S, mut request: Request<Incoming>) -> Result<Response<Incoming>, Broken>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let close = || HeaderValue::from_static("close");
        request.headers_mut().insert(header::CONNECTION, close());
        let mut response = self.open(stream).await?.send_request(request).await?;
        response.headers_mut().insert(header::CONNECTION, close());
        Ok(response)
    }

    /// Speaks TLS with exactly this name, or says why it does not trust who answers.
    async fn open_tls(&self, name: &str, port: u16) -> Result<Result<TlsStream<Stream>, String>, Broken> {
        let Connection { call, host, .. } = &self.connection;
        let stream = self.connection.dial_at(port).await.ok_or(Broken::Undialled)?;
        let Some(trust) = call.trust.get(name) else { return Err(Broken::Undialled) };
        match tokio::time::timeout(TLS, tls::connect(trust, name, stream)).await {
            Ok(Ok(stream)) => {
                call.saw(TrafficKind::Connection, &target(host, port), None).await;
                Ok(Ok(stream))
            }
            Ok(Err(error)) => Ok(Err(text::printable(&error.to_string()))),
            Err(_) => Ok(Err(format!("no answer in {} s", TLS.as_secs()))),
        }
    }

    /// The host cannot be trusted, or not be reached by TLS.
    async fn failed(&self, port: u16, why: String) -> Reply {
        let body = format!("toolhost: {why}\n");
        let refusal = Refusal::Tls { why };
        self.connection.call.saw(TrafficKind::Connection, &target(&self.connection.host, port), Some(refusal)).await;
        plain(StatusCode::BAD_GATEWAY, body)
    }

    /// Speaks HTTP over a stream to the host.
    async fn open<S>(&self, stream: S) -> Result<SendRequest<Incoming>, Broken>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, driver) = hyper::client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .max_buf_size(HEAD)
            .max_header_size(HEAD)
            .handshake(TokioIo::new(stream))
            .await?;
        let gone = self.gone.clone();
        lock(&self.drivers).spawn(async move {
            let _ = driver.with_upgrades().await;
            gone.cancel();
        });
        Ok(sender)
    }

    async fn refuse(&self, wrong: HttpRejection) -> Reply {
        let Connection { call, port, .. } = &self.connection;
        let body = format!("toolhost: {}\n", wrong.why);
        match wrong.asked {
            Some(asked) if !call.granted(&asked, Some(*port)) => {
                call.saw(TrafficKind::Request, &target(&asked, *port), Some(Refusal::NotGranted)).await;
            }
            _ if wrong.by_rule => {
                self.connection.refuse(TrafficKind::Request, Refusal::Secret { why: wrong.why }).await
            }
            _ => self.connection.refuse(TrafficKind::Request, Refusal::Content { why: wrong.why }).await,
        }
        plain(wrong.status, body)
    }

    /// After the last response: the copy of another protocol, or the end of the connection to the host.
    async fn finish(&self) {
        let switched = lock(&self.switched).take();
        if let Some((tool, host)) = switched {
            if let (Ok(tool), Ok(host)) = tokio::join!(tool, host) {
                let (mut tool, mut host): (TokioIo<Upgraded>, _) = (TokioIo::new(tool), TokioIo::new(host));
                let _ = copy_bidirectional_with_sizes(&mut tool, &mut host, BUFFER, BUFFER).await;
            }
            return;
        }
        self.upstream.lock().await.take();
        let mut drivers = std::mem::take(&mut *lock(&self.drivers));
        let _ = tokio::time::timeout(FAREWELL, async { while drivers.join_next().await.is_some() {} }).await;
    }
}

/// A response of our own, the last of its connection.
fn plain(status: StatusCode, body: String) -> Reply {
    let mut response = Response::new(Either::Right(Full::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[derive(Debug)]
pub struct HttpRejection {
    status: StatusCode,
    why: String,
    /// The other host that it is for.
    asked: Option<Host>,
    /// The rule of a secret refuses it.
    by_rule: bool,
}

pub fn wrong(status: StatusCode, why: impl Into<String>) -> HttpRejection {
    HttpRejection { status, why: why.into(), asked: None, by_rule: false }
}

/// A request that the rule of a secret does not allow.
pub fn not_by_rule(why: String) -> HttpRejection {
    HttpRejection { by_rule: true, ..wrong(StatusCode::FORBIDDEN, why) }
}

/// Whether a request is one for this host alone; true: it asks to switch to WebSocket.
fn judge<B: Body>(request: &Request<B>, host: &Host) -> Result<bool, HttpRejection> {
    let headers = request.headers();
    if [Method::CONNECT, Method::TRACE].contains(request.method()) {
        return Err(wrong(StatusCode::FORBIDDEN, format!("{} is refused", request.method())));
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(named), None) = (hosts.next(), hosts.next()) else {
        return Err(wrong(StatusCode::BAD_REQUEST, "a request needs exactly one Host header"));
    };
    is_for(named.as_bytes(), "the Host header", host)?;
    let uri = request.uri();
    match (uri.scheme_str(), uri.authority()) {
        (None, None) => {}
        (Some("http"), Some(authority)) => is_for(authority.as_str().as_bytes(), "the request line", host)?,
        _ => return Err(wrong(StatusCode::BAD_REQUEST, "the request line is neither a path nor a URL of http")),
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let coding = codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !coding || codings.next().is_some() {
        return Err(wrong(StatusCode::BAD_REQUEST, "the only Transfer-Encoding is chunked"));
    }
    if !request.body().is_end_stream() && !BODIED.contains(&request.method().as_str()) {
        let method = quoted(request.method().as_str().as_bytes());
        let why = format!("{method} with a body is refused: only {} may have one", BODIED.join(", "));
        return Err(wrong(StatusCode::BAD_REQUEST, why));
    }
    let switch = is_websocket(headers) && request.version() == Version::HTTP_11;
    if switch && request.method() != Method::GET {
        return Err(wrong(StatusCode::BAD_REQUEST, "a switch to WebSocket is a GET"));
    }
    Ok(switch)
}

/// Whether this authority is the host, with no port or port 80.
fn is_for(authority: &[u8], place: &str, host: &Host) -> Result<(), HttpRejection> {
    let asked = std::str::from_utf8(authority).ok().and_then(host_of);
    if asked.as_ref() == Some(host) {
        return Ok(());
    }
    let why = format!("{place} names {}, and the connection is to {}", quoted(authority), target(host, 80));
    Err(HttpRejection { asked, ..wrong(StatusCode::MISDIRECTED_REQUEST, why) })
}

fn host_of(authority: &str) -> Option<Host> {
    let bare = authority.strip_suffix(":80").unwrap_or(authority);
    let address = match bare.strip_prefix('[') {
        Some(inside) => Some(IpAddr::V6(inside.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?).to_canonical()),
        None => bare.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    address.map(Host::Address).or_else(|| host::name(bare).map(Host::Name))
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    let first = protocols.next().is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    first && protocols.next().is_none() && in_connection(headers).any(|name| name == header::UPGRADE)
}

/// The headers that `Connection` names.
pub fn in_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    values.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// The host as its header has it.
fn canonical(host: &Host) -> Result<HeaderValue, Broken> {
    let pattern = HostPattern { host: host.clone(), port: None };
    HeaderValue::try_from(pattern.to_string()).map_err(|_| Broken::Undialled)
}

/// The request as it goes to the host: with a path, and without headers about the tool's own connection.
pub fn rewrite<B>(request: &mut Request<B>, switch: bool, host: HeaderValue) {
    *request.uri_mut() = request.uri().path_and_query().cloned().map_or_else(Uri::default, Uri::from);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    let named: Vec<HeaderName> = in_connection(headers).filter(|name| !OF_THE_MESSAGE.contains(name)).collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
    OF_ONE_CONNECTION.iter().for_each(|name| drop(headers.remove(*name)));
    headers.insert(header::HOST, host);
    if switch {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
}
