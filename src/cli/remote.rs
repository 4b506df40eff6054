//! Requests to a running server over HTTP. No token is sent to another user of this machine, or
//! unencrypted to another machine.

use super::process;
use super::refusal::{Exit, Refusal};
use crate::base::{files, text};
use crate::egress::tls;
use crate::transport::http::{Address, SocketDiag, unix_peer};
use http::uri::Authority;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Largest answer, bytes.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The variable with an operator's token, where the server takes tokens.
const TOKEN: &str = "TOOLHOST_TOKEN";
/// The variable with a server's address, and the usual address.
const ADDRESS: (&str, &str) = ("TOOLHOST_HTTP", "127.0.0.1:8787");
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, clap::Args)]
pub struct Server {
    /// Where the server listens: ADDRESS:PORT or unix:PATH of this machine, or https://NAME:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = ServerAddress::parse)]
    #[arg(env = ADDRESS.0, default_value = ADDRESS.1)]
    pub http: ServerAddress,
    /// How long an answer may take.
    #[arg(skip = TIMEOUT)]
    pub patience: Duration,
}

/// A server, as a client names it.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    Plain(Address),
    /// The name that its certificate shows, or its address; and the port.
    Tls(Authority, u16),
}

impl ServerAddress {
    /// Where clients ask, if nothing else is said.
    pub fn usual() -> Result<ServerAddress, String> {
        let named = std::env::var(ADDRESS.0);
        ServerAddress::parse(named.as_deref().unwrap_or(ADDRESS.1))
    }

    pub fn parse(written: &str) -> Result<ServerAddress, String> {
        let Some(rest) = written.strip_prefix("https://") else {
            return Address::parse(written).map(ServerAddress::Plain);
        };
        let authority: Option<Authority> = rest.trim_end_matches('/').parse().ok();
        let authority = authority.filter(|authority| !authority.as_str().contains('@'));
        fn port(authority: &Authority) -> Option<u16> {
            authority.port_u16()
        }
        let found = authority
            .and_then(|authority| port(&authority).map(|port| ServerAddress::Tls(authority, port)));
        found.ok_or_else(|| "write https://NAME:PORT".to_owned())
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAddress::Plain(address) => address.fmt(f),
            ServerAddress::Tls(authority, _) => write!(f, "https://{authority}"),
        }
    }
}

/// An id may become part of a path.
fn is_id(word: &str) -> bool {
    uuid::Uuid::try_parse(word).is_ok()
}

impl Server {
    pub fn new(http: ServerAddress) -> Server {
        let patience = TIMEOUT;
        Server { http, patience }
    }

    /// The id of the call that runs, or of the session, whose id is this word or begins with it.
    pub fn call_id(&self, word: &str) -> anyhow::Result<String> {
        if is_id(word) {
            return Ok(word.to_owned());
        }
        let answer = self.ask(Method::GET, "/v1/calls", None, "calls")?;
        let all = ["calls", "sessions"].map(|member| answer[member].as_array());
        let all = all.into_iter().flatten().flatten();
        let ids = all
            .filter(|one| one["phase"] != "ended")
            .filter_map(|one| one["id"].as_str());
        let mut fit = ids.filter(|id| is_id(id) && id.starts_with(word));
        let why = match (fit.next(), fit.next()) {
            (Some(id), None) => return Ok(id.to_owned()),
            (Some(_), Some(_)) => "the ids of several calls begin so: write more of it",
            (None, _) => "the id of no call that runs begins so: `toolhost ps` shows them",
        };
        Err(Refusal::new(Exit::Caller, why).into())
    }

    /// Sends one request. The answer must have this member. An error of the server becomes the
    /// error of this process.
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        member: &str,
    ) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let runtime = process::runtime()?;
        let asked = async {
            let answer = tokio::time::timeout(self.patience, self.send(method, path, body)).await;
            answer.unwrap_or_else(|_| Err("it does not answer".to_owned()))
        };
        let (status, body) = runtime.block_on(asked).map_err(|why| {
            let words = format!(
                "the server at {}: {why} (is `serve --http` running there? `--http ADDRESS` names \
                 another place)",
                self.http
            );
            Refusal::new(Exit::Host, text::printable(&words))
        })?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if (200..300).contains(&status) {
            let words = format!("what answers at {} is not a toolhost server", self.http);
            return answer
                .get(member)
                .map(|_| answer.clone())
                .ok_or_else(|| Refusal::new(Exit::Host, words).into());
        }
        let told = answer["error"]["message"]
            .as_str()
            .unwrap_or("no reason was given");
        let exit = if status == 404 {
            Exit::Caller
        } else {
            Exit::Host
        };
        Err(Refusal::new(
            exit,
            format!(
                "the server at {} refused ({status}): {}",
                self.http,
                text::printable(told)
            ),
        )
        .into())
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Result<(u16, Bytes), String> {
        fn words(why: io::Error) -> String {
            why.to_string()
        }
        match &self.http {
            ServerAddress::Plain(Address::Tcp(address)) => {
                if !address.ip().to_canonical().is_loopback() {
                    return Err(
                        "others could read what is sent to another machine: use https://NAME:PORT"
                            .to_owned(),
                    );
                }
                let stream = TcpStream::connect(address).await.map_err(words)?;
                check_trusted(holder(&stream).await.map_err(words)?)?;
                exchange(stream, &address.to_string(), method, path, body).await
            }
            ServerAddress::Plain(Address::Unix(socket)) => {
                let stream = UnixStream::connect(socket).await.map_err(words)?;
                check_trusted(unix_peer(&stream).map_err(words)?)?;
                exchange(stream, "localhost", method, path, body).await
            }
            ServerAddress::Tls(authority, port) => {
                let name = authority
                    .host()
                    .trim_start_matches('[')
                    .trim_end_matches(']');
                let stream = TcpStream::connect((name, *port)).await.map_err(words)?;
                let stream = tls::connect(&tls::machine_roots(), name, stream)
                    .await
                    .map_err(words)?;
                exchange(stream, authority.as_str(), method, path, body).await
            }
        }
    }
}

/// One request to `host`, and its answer.
async fn exchange<S>(
    stream: S,
    host: &str,
    method: Method,
    path: &str,
    body: String,
) -> Result<(u16, Bytes), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host);
    // From a variable, because other users of this machine can read command lines but not
    // variables.
    if let Ok(token) = std::env::var(TOKEN) {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| e.to_string())?;
    let answer = sender
        .send_request(request)
        .await
        .map_err(|e| e.to_string())?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await
        .map_err(|e| e.to_string())?;
    Ok((status, body.to_bytes()))
}

/// The user id of the server's end of a loopback connection. Waits until the server has accepted
/// it.
async fn holder(stream: &TcpStream) -> io::Result<u32> {
    let diag = SocketDiag::default();
    let theirs = stream.peer_addr()?;
    let ours = stream.local_addr()?;
    loop {
        if let Some(uid) = diag.owner(theirs, ours)? {
            return Ok(uid);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn check_trusted(uid: u32) -> Result<(), String> {
    if files::is_trusted(uid) {
        Ok(())
    } else {
        Err(format!("another user (uid {uid}) listens there"))
    }
}
