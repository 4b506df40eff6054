//! One message of this host itself to a receiver outside, dialled as for a tool. Redirects are not followed.

use super::dial::Dialler;
use super::protocol::Refusal;
use super::tls::{self, Trust};
use crate::manifest::host::Host;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest head of an answer, bytes.
const HEAD: usize = 16 * 1024;

#[derive(Clone, Debug)]
pub struct Receiver {
    /// Who vouches for it; `None`: plain HTTP.
    pub trust: Option<Trust>,
    pub host: Host,
    pub port: u16,
    /// The name or address in its certificate.
    pub name: String,
    /// As the `Host` header has it.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum PostError {
    /// Refused before anything was sent.
    Refused(Refusal),
    /// Reached, and no answer came.
    Broken(String),
}

impl From<Refusal> for PostError {
    fn from(refusal: Refusal) -> PostError {
        PostError::Refused(refusal)
    }
}

/// Sends one message on a connection of its own.
pub async fn post(dialler: &Dialler, to: &Receiver, headers: HeaderMap, body: Bytes) -> Result<StatusCode, PostError> {
    let stream = dialler.dial(&to.host, to.port).await?;
    let Some(trust) = &to.trust else { return sent(stream, to, headers, body).await };
    let stream = tls::connect(trust, &to.name, stream).await.map_err(|e| Refusal::Tls { why: e.to_string() })?;
    sent(stream, to, headers, body).await
}

async fn sent<S>(stream: S, to: &Receiver, headers: HeaderMap, body: Bytes) -> Result<StatusCode, PostError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken = |e: hyper::Error| PostError::Broken(e.to_string());
    let mut client = http1::Builder::new();
    let (mut sender, connection) = client.max_buf_size(HEAD).handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It ends with the answer, or with this future.
    let mut connecting = tokio::task::JoinSet::new();
    connecting.spawn(connection);
    let request = Request::builder().method(Method::POST).uri(&to.target).header(header::HOST, &to.authority);
    let mut request = request.body(Full::new(body)).map_err(|e| PostError::Broken(e.to_string()))?;
    request.headers_mut().extend(headers);
    Ok(sender.send_request(request).await.map_err(broken)?.status())
}
