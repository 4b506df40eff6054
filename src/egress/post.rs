//! One message of this host itself to a receiver outside, dialled as for a tool. Redirects are not followed.

use super::dial::Dialler;
use super::protocol::Refusal;
use super::tls;
use crate::policy::CallbackUrl;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest head of an answer, bytes.
const HEAD: usize = 16 * 1024;

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
pub async fn post(
    dialler: &Dialler,
    url: &CallbackUrl,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, PostError> {
    // The machine's roots may have changed, and take long to read.
    let trust = match url.https {
        true => tokio::task::spawn_blocking(tls::of_machine).await.map(Some),
        false => Ok(None),
    };
    let trust = trust.map_err(|e| PostError::Broken(e.to_string()))?;
    let stream = dialler.dial(&url.host, url.port).await?;
    let Some(trust) = trust else { return sent(stream, url, headers, body).await };
    let stream = tls::connect(&trust, &url.name(), stream).await.map_err(|e| Refusal::Tls { why: e.to_string() })?;
    sent(stream, url, headers, body).await
}

async fn sent<S>(stream: S, url: &CallbackUrl, headers: HeaderMap, body: Bytes) -> Result<StatusCode, PostError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken = |e: hyper::Error| PostError::Broken(e.to_string());
    let mut client = http1::Builder::new();
    let (mut sender, connection) = client.max_buf_size(HEAD).handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It ends with the answer, or with this future.
    let mut connecting = tokio::task::JoinSet::new();
    connecting.spawn(connection);
    let query = url.query.as_ref().map_or_else(String::new, |query| format!("?{query}"));
    let request = Request::builder().method(Method::POST).uri(format!("{}{query}", url.path));
    let mut request = request
        .header(header::HOST, url.authority())
        .body(Full::new(body))
        .map_err(|e| PostError::Broken(e.to_string()))?;
    request.headers_mut().extend(headers);
    Ok(sender.send_request(request).await.map_err(broken)?.status())
}
