//! A running server, asked over HTTP.
//!
//! For: `ps`, `kill`, `status`, `approvals`. In: an address, a path. Out: its answer. Never: a token to a socket that another user
//! listens on; an answer of any length.

use super::host;
use super::refusal::{Exit, Refusal};
use crate::base::text;
use crate::transport::http::{Address, other_end};
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Largest answer, bytes.
const LARGEST: usize = 16 * 1024 * 1024;
/// The variable with an operator's token, where the server takes tokens.
const TOKEN: &str = "TOOLHOST_TOKEN";
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, clap::Args)]
pub struct Server {
    /// Where the server listens: ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", env = "TOOLHOST_HTTP", default_value = "127.0.0.1:8787")]
    pub http: Address,
}

/// The id of a call, which becomes part of a path.
pub fn call_id(word: &str) -> Result<&str, Refusal> {
    let id = uuid::Uuid::try_parse(word).is_ok().then_some(word);
    id.ok_or_else(|| Refusal::new(Exit::Caller, "a call's id looks as `toolhost ps` shows it"))
}

impl Server {
    /// The answer to one request; its error is ours.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let runtime = host::runtime()?;
        let asked = async {
            let answer = tokio::time::timeout(PATIENCE, self.asked(method, path, body)).await;
            answer.unwrap_or_else(|_| Err("it does not answer".to_owned()))
        };
        let (status, body) = runtime.block_on(asked).map_err(|why| {
            let words = format!("the server at {}: {why} (is `serve --http` running there?)", self.http);
            Refusal::new(Exit::Host, text::printable(&words))
        })?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let told = answer["error"]["message"].as_str().unwrap_or("no reason was given");
        let exit = if status == 404 { Exit::Caller } else { Exit::Host };
        Err(Refusal::new(exit, format!("the server at {} refused ({status}): {}", self.http, text::printable(told)))
            .into())
    }

    async fn asked(&self, method: Method, path: &str, body: String) -> Result<(u16, Bytes), String> {
        match &self.http {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
                self.spoken(stream, method, path, body).await
            }
            Address::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(|e| e.to_string())?;
                let uid = other_end(&stream).map_err(|e| e.to_string())?;
                if uid != 0 && uid != nix::unistd::geteuid().as_raw() {
                    return Err(format!("another user (uid {uid}) listens there"));
                }
                self.spoken(stream, method, path, body).await
            }
        }
    }

    async fn spoken<S>(&self, stream: S, method: Method, path: &str, body: String) -> Result<(u16, Bytes), String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let host = match &self.http {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(_) => "localhost".to_owned(),
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        // Other users of this machine read command lines, and not the variables of a process.
        if let Ok(token) = std::env::var(TOKEN) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|e| e.to_string())?;
        let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|e| e.to_string())?;
        Ok((status, body.to_bytes()))
    }
}
