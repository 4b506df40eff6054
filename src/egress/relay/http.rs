//! The requests of a tool at port 80, each parsed, judged and written again.
//!
//! A request that gets a secret, or that has a body, is the only one of its connection to the host:
//! if the host takes a part of it for a second request, no other request is mixed with that part.
//!
//! hyper parses and writes on both sides. It drops Content-Length where Transfer-Encoding is
//! present, and one of two equal ones, and closes the connection after such a request (RFC 9112,
//! 6.3): the host never sees two lengths.

use super::answers::{self, AnswerBody};
use super::call::Connection;
use super::message::{
    RequestError, canonical, destination, end_connection, is_websocket, reject, rewrite,
};
use super::secrets::{Admitted, Guard};
use super::stream::{BUFFER, MeteredStream, target};
use crate::base::{lock, text};
use crate::egress::protocol::{RefusalReason, TrafficKind};
use crate::egress::tls;
use crate::manifest::host::Host;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderValue};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
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
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a host may take to agree on TLS.
const TLS: Duration = Duration::from_secs(10);

type Reply = Response<AnswerBody>;

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
    /// The connection to the host of the requests that need none of their own.
    upstream: tokio::sync::Mutex<Option<SendRequest<Incoming>>>,
    /// Drive the connections to the host.
    drivers: Mutex<JoinSet<()>>,
    /// A connection to the host ended.
    gone: CancellationToken,
    /// Both ends, after the switch to another protocol.
    switched: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
}

pub async fn serve(connection: Connection, tool: MeteredStream) {
    let exchange = Arc::new(Exchange {
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
            let why = format!("it is not valid HTTP/1: {error}");
            let host = exchange.connection.host();
            exchange
                .connection
                .refuse(TrafficKind::Request, host, RefusalReason::Content { why })
                .await;
        }
        Err(_) => {}
    }
}

impl Exchange {
    async fn answer(&self, mut request: Request<Incoming>) -> Result<Reply, Broken> {
        self.connection.call.state().totals.requests += 1;
        let (host, switch) = match destination(&request, &self.connection.hosts) {
            Ok(destination) => destination,
            Err(rejection) => return Ok(self.refuse(self.connection.host(), rejection).await),
        };
        if let Some(guard) = Guard::for_host(&self.connection.call.lease, host) {
            return self.answer_with_secret(&guard, host, request).await;
        }
        let tool = switch.then(|| hyper::upgrade::on(&mut request));
        rewrite(&mut request, switch, canonical(host));
        if !request.body().is_end_stream() {
            let stream = self.connection.dial().await.ok_or(Broken::Undialled)?;
            let response = self.only_request(stream, request).await?;
            let expected = response.status() != StatusCode::SWITCHING_PROTOCOLS;
            return expected
                .then(|| response.map(BodyExt::boxed_unsync))
                .ok_or(Broken::Unasked);
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
            let tool = tool
                .filter(|_| is_websocket(response.headers()))
                .ok_or(Broken::Unasked)?;
            let host = hyper::upgrade::on(&mut response);
            *lock(&self.switched) = Some((tool, host));
        }
        Ok(response.map(BodyExt::boxed_unsync))
    }

    /// A request for a host that gets a secret.
    async fn answer_with_secret(
        &self,
        guard: &Guard,
        host: &Host,
        mut request: Request<Incoming>,
    ) -> Result<Reply, Broken> {
        let Connection { call, port, .. } = &self.connection;
        let Admitted {
            port: tls_port,
            finder,
            replaced,
        } = match guard.admit(&mut request, &call.secrets) {
            Ok(admitted) => admitted,
            Err(rejection) => return Ok(self.refuse(host, rejection).await),
        };
        for header in replaced {
            call.report(
                TrafficKind::Replaced,
                &format!("{} {header}", target(host, *port)),
                None,
            )
            .await;
        }
        let stream = match self.open_tls(&guard.name, host, tls_port).await? {
            Ok(stream) => stream,
            Err(why) => {
                let why = format!("no TLS with {}: {why}", guard.name);
                let body = format!("toolhost: {why}\n");
                call.report(
                    TrafficKind::Connection,
                    &target(host, tls_port),
                    Some(RefusalReason::Tls { why }),
                )
                .await;
                return Ok(plain(StatusCode::BAD_GATEWAY, body));
            }
        };
        let response = self.only_request(stream, request).await?;
        match answers::mask(response, (&guard.name, tls_port), &finder) {
            Some(response) => Ok(response),
            None => {
                let why = "its answer cannot be searched for the secret: it is compressed, in an \
                           encoding without ASCII, a part, or in a switched protocol";
                Ok(self
                    .refuse(host, reject(StatusCode::BAD_GATEWAY, why))
                    .await)
            }
        }
    }

    /// Sends the only request of a connection, which ends with the response, and so does the
    /// tool's.
    async fn only_request<S>(
        &self,
        stream: S,
        mut request: Request<Incoming>,
    ) -> Result<Response<Incoming>, Broken>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        fn close() -> HeaderValue {
            HeaderValue::from_static("close")
        }
        request.headers_mut().insert(header::CONNECTION, close());
        let mut response = self.open(stream).await?.send_request(request).await?;
        end_connection(response.headers_mut());
        response.headers_mut().insert(header::CONNECTION, close());
        Ok(response)
    }

    /// Opens TLS with exactly this name. The inner `Err`: why the host is not trusted.
    async fn open_tls(
        &self,
        name: &str,
        host: &Host,
        port: u16,
    ) -> Result<Result<TlsStream<MeteredStream>, String>, Broken> {
        let Connection { call, slot, .. } = &self.connection;
        let stream = call.dial(host, port, slot).await.ok_or(Broken::Undialled)?;
        let Some(trust) = call.trust.get(name) else {
            return Err(Broken::Undialled);
        };
        match tokio::time::timeout(TLS, tls::connect(trust, name, stream)).await {
            Ok(Ok(stream)) => {
                call.report(TrafficKind::Connection, &target(host, port), None)
                    .await;
                Ok(Ok(stream))
            }
            Ok(Err(error)) => Ok(Err(text::printable(&error.to_string()))),
            Err(_) => Ok(Err(format!("no answer in {} s", TLS.as_secs()))),
        }
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

    async fn refuse(&self, host: &Host, rejection: RequestError) -> Reply {
        let Connection { call, port, .. } = &self.connection;
        match rejection.other {
            Some(other) if !call.granted(&other, Some(*port)) => {
                call.report(
                    TrafficKind::Request,
                    &target(&other, *port),
                    Some(RefusalReason::NotGranted),
                )
                .await;
            }
            _ => {
                self.connection
                    .refuse(TrafficKind::Request, host, rejection.refusal)
                    .await
            }
        }
        plain(rejection.status, format!("toolhost: {}\n", rejection.why))
    }

    /// After the last response: the copy of another protocol, or the end of the connection to the
    /// host.
    async fn finish(&self) {
        let switched = lock(&self.switched).take();
        if let Some((tool, host)) = switched {
            if let (Ok(tool), Ok(host)) = tokio::join!(tool, host) {
                let (mut tool, mut host): (TokioIo<Upgraded>, _) =
                    (TokioIo::new(tool), TokioIo::new(host));
                let _ = copy_bidirectional_with_sizes(&mut tool, &mut host, BUFFER, BUFFER).await;
            }
            return;
        }
        self.upstream.lock().await.take();
        let mut drivers = std::mem::take(&mut *lock(&self.drivers));
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, async {
            while drivers.join_next().await.is_some() {}
        })
        .await;
    }
}

/// A response of our own, the last of its connection.
fn plain(status: StatusCode, body: String) -> Reply {
    let mut response = Response::new(
        Full::from(body)
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
