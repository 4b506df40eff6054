//! `wasi:http` for components that may reach hosts: requests go through the worker's own network
//! namespace, where the relay of `egress` decides. Without hosts every request is refused.
//! (Components of JavaScript import it whether they need it or not.)

use super::denials::Watch;
use super::frame::DenialKind;
use crate::egress::tls::{self, TlsConfig};
use http::uri::Scheme;
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wasmtime_wasi_http::{Error, RequestOptions, Result, WasiBody, WasiHttpHooks};

/// Longest wait for a connection or for the first byte of an answer, where the guest names none.
/// The call's own time limit is usually shorter.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Sends or refuses the requests of a call. (Headers are values of the guest's own, so they work
/// without hosts.)
pub struct Hooks {
    /// The tool may reach hosts.
    networked: bool,
    watch: Watch,
    /// The machine's roots, read when the call first needs them.
    trust: Arc<OnceLock<TlsConfig>>,
}

impl Hooks {
    pub fn new(networked: bool, watch: Watch) -> Hooks {
        Hooks {
            networked,
            watch,
            trust: Arc::default(),
        }
    }
}

type Later<T> = Box<dyn Future<Output = Result<T>> + Send>;

impl WasiHttpHooks for Hooks {
    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Later<()>,
    ) -> Later<(Response<WasiBody>, Later<()>)> {
        if self.networked {
            return Box::new(send(
                request,
                options.unwrap_or_default(),
                Arc::clone(&self.trust),
            ));
        }
        let to = request.uri().authority().map(|to| to.host().to_owned());
        self.watch.saw(DenialKind::Request, to.unwrap_or_default());
        // Reads the body: a JavaScript runtime ends if the body is closed before it reads the
        // answer.
        let mut body = request.into_body();
        tokio::spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}

/// One request on a connection of its own. The connection's task ends with the runtime of the call.
async fn send(
    mut request: Request<WasiBody>,
    options: RequestOptions,
    trust: Arc<OnceLock<TlsConfig>>,
) -> Result<(Response<WasiBody>, Later<()>)> {
    let https = request.uri().scheme() == Some(&Scheme::HTTPS);
    let authority = request
        .uri()
        .authority()
        .ok_or(Error::HttpRequestUriInvalid)?;
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
    let connecting = async {
        let stream = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(Error::Connect)?;
        stream.set_nodelay(true).map_err(Error::Connect)?;
        if !https {
            return Ok::<Box<dyn AsyncStream>, Error>(Box::new(stream));
        }
        let encrypted = tls::connect(trust.get_or_init(tls::machine_roots), &host, stream)
            .await
            .map_err(Error::Tls)?;
        Ok(Box::new(encrypted))
    };
    let patience = options.connect_timeout.unwrap_or(DEFAULT_TIMEOUT);
    let stream = timeout(patience, connecting)
        .await
        .map_err(|_| Error::ConnectionTimeout)??;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    // A request to a server names only the path (RFC 9112, section 3.2.1).
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    *request.uri_mut() = path
        .parse::<Uri>()
        .map_err(|_| Error::HttpRequestUriInvalid)?;
    let patience = options.first_byte_timeout.unwrap_or(DEFAULT_TIMEOUT);
    let answered = timeout(patience, sender.send_request(request))
        .await
        .map_err(|_| Error::HttpResponseTimeout)?;
    let response = answered?.map(|body| body.map_err(Error::from).boxed_unsync());
    Ok((response, Box::new(std::future::ready(Ok(())))))
}

trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}
