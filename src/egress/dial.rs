//! From a granted name to a connected socket, on the host's side: only granted names are resolved,
//! and only addresses that were checked are connected to.
//!
//! A name is resolved once for each connection, without a search list; a name that is not granted
//! never is. Refused are addresses that are not globally reachable and those that the kernel treats
//! as local, broadcast, multicast or anycast, unless the granting entry lists their range. An IPv4
//! address inside an IPv6 one is judged as IPv4. An operator's proxy resolves names itself and is
//! trusted to do so.

use super::protocol::RefusalReason;
use super::{resolver, tls};
use crate::base::address;
use crate::base::netlink::Netlink;
use crate::base::semaphore::{self, FairSemaphore};
use crate::manifest::host::{self, Host};
use crate::policy::{CallbackUrl, HeaderRule, HostGrant};
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longest attempt to reach one address.
const CONNECT: Duration = Duration::from_secs(5);
/// Most dials at one time: in all, of one principal, and of one tool for that principal.
const MAX_DIALS: usize = 256;
const MAX_DIALS_PER_PRINCIPAL: usize = 96;
const MAX_DIALS_PER_TOOL: usize = 32;
static DIALS: LazyLock<Arc<FairSemaphore>> =
    LazyLock::new(|| FairSemaphore::new(MAX_DIALS, MAX_DIALS_PER_PRINCIPAL));
/// Buffer of a socket to a host, bytes; the kernel doubles it (socket(7)).
const BUFFER: u32 = 256 * 1024;
/// Most addresses of one name that are tried.
const ADDRESSES: usize = 4;
/// Longest answer of the operator's proxy to CONNECT, bytes.
const PROXY_HEAD: usize = 8 * 1024;

/// What one lease may reach, and how.
#[derive(Clone, Debug)]
pub struct Dialler {
    /// The principal and the tool, against which its dials count.
    pub payer: [String; 2],
    pub grants: Vec<HostGrant>,
    /// The headers that the relay adds to requests. It may reach their hosts at the port of the
    /// rule.
    pub headers: Vec<(String, HeaderRule)>,
    /// `host:port` of the operator's proxy, which then resolves names and connects (RFC 9110,
    /// section 9.3.6).
    pub proxy: Option<String>,
}

impl Dialler {
    /// A socket connected to this host.
    pub async fn dial(&self, host: &Host, port: u16) -> Result<TcpStream, RefusalReason> {
        let canonical = match host {
            Host::Name(name) => host::canonical_name(name).as_ref() == Some(name),
            Host::Address(_) => true,
            Host::Any | Host::Below(_) => false,
        };
        let granted = self.granted(host, port);
        if granted.is_empty() || !canonical {
            return Err(RefusalReason::NotGranted);
        }
        let [who, tool] = &self.payer;
        let keys = [
            (who.clone(), MAX_DIALS_PER_PRINCIPAL),
            (format!("{who}\0{tool}"), MAX_DIALS_PER_TOOL),
        ];
        let _place = DIALS.enter_as(semaphore::claim(MAX_DIALS, keys), 1).await;
        if let (Some(proxy), Host::Name(name)) = (&self.proxy, host) {
            return through(proxy, &format!("{name}:{port}")).await;
        }
        let addresses = match host {
            Host::Name(name) => resolver::resolve(name)
                .await
                .map_err(|why| RefusalReason::Unresolved { why })?,
            Host::Address(address) => vec![*address],
            Host::Any | Host::Below(_) => Vec::new(),
        };
        let mut checked = Vec::new();
        let mut refused = BTreeSet::new();
        for address in addresses.iter().map(IpAddr::to_canonical) {
            match forbidden(address, &granted) {
                None => checked.push(address),
                Some(why) => _ = refused.insert(format!("{address} is {why}")),
            }
        }
        if checked.is_empty() {
            let refused: Vec<String> = refused.into_iter().take(ADDRESSES).collect();
            // No range is proposed for a public address of this machine.
            fn special(address: &IpAddr) -> Option<String> {
                address::special(*address).map(|_| format!("\"{}\"", IpNet::from(*address)))
            }
            let ranges: Vec<String> = addresses
                .iter()
                .map(IpAddr::to_canonical)
                .filter_map(|a| special(&a))
                .take(ADDRESSES)
                .collect();
            let fix = if ranges.is_empty() {
                String::new()
            } else {
                format!(
                    "; to allow it: ranges = [{}] in its entry ([network] hosts, [indexes], or a \
                     caller's callbacks)",
                    ranges.join(", ")
                )
            };
            return Err(RefusalReason::Address {
                why: format!("{}{fix}", refused.join("; ")),
            });
        }
        if let Some(proxy) = &self.proxy {
            let at = SocketAddr::new(checked[0], port);
            return through(proxy, &at.to_string()).await;
        }
        connect(
            checked
                .into_iter()
                .map(|address| SocketAddr::new(address, port)),
        )
        .await
    }

    /// The grants that reach this host at this port. Grants for port 80 also reach the port at
    /// which a header is added.
    fn granted(&self, host: &Host, port: u16) -> Vec<&HostGrant> {
        let by_header = self.headers.iter().any(|(_, rule)| {
            rule.port == port && matches!(host, Host::Name(name) if *name == rule.host)
        });
        self.grants
            .iter()
            .filter(|grant: &&HostGrant| {
                grant.reaches(host, port) || (by_header && grant.reaches(host, 80))
            })
            .collect()
    }
}

/// Why an address is refused; `None`: it is public and no route leads to this machine, or a grant
/// lists its range.
fn forbidden(address: IpAddr, granted: &[&HostGrant]) -> Option<&'static str> {
    let listed = granted
        .iter()
        .flat_map(|grant| &grant.ranges)
        .any(|range| range.contains(&address));
    let inner = address::inner_v4(address).map(IpAddr::V4);
    if listed {
        None
    } else {
        address::special(address).or_else(|| {
            [Some(address), inner]
                .into_iter()
                .flatten()
                .find_map(route_refusal)
        })
    }
}

/// The first of these addresses that answers. One without a route is not tried: this machine may
/// lack IPv4 or IPv6.
async fn connect(
    addresses: impl IntoIterator<Item = SocketAddr>,
) -> Result<TcpStream, RefusalReason> {
    let mut last = "this machine has no route to its addresses".to_owned();
    for at in addresses
        .into_iter()
        .filter(|at| !is_unrouted(route_kind(at.ip())))
        .take(ADDRESSES)
    {
        match timeout(CONNECT, socket(at)).await {
            Ok(Ok(stream)) => return ready(stream),
            Ok(Err(e)) => last = format!("{at}: {e}"),
            Err(_) => last = format!("{at}: no answer in {} s", CONNECT.as_secs()),
        }
    }
    Err(RefusalReason::Unreached { why: last })
}

/// Bounds this socket's buffers, too: the memory of a relay is calculated with them.
async fn socket(at: SocketAddr) -> io::Result<TcpStream> {
    let socket = if at.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_recv_buffer_size(BUFFER)?;
    socket.set_send_buffer_size(BUFFER)?;
    socket.connect(at).await
}

fn ready(stream: TcpStream) -> Result<TcpStream, RefusalReason> {
    stream
        .set_nodelay(true)
        .map_err(|e| RefusalReason::Unreached { why: e.to_string() })?;
    Ok(stream)
}

/// A tunnel to `target` through the operator's proxy.
async fn through(proxy: &str, target: &str) -> Result<TcpStream, RefusalReason> {
    let tunnel = async {
        let connected = connect(tokio::net::lookup_host(proxy).await?).await;
        let mut stream = connected
            .map_err(|refused| io::Error::other(refused.detail().unwrap_or_default().to_owned()))?;
        stream
            .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
            .await?;
        let mut head = Vec::new();
        // One byte at a time: what follows the head belongs to the tunnel.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= PROXY_HEAD {
                return Err(io::Error::other("its answer is too long"));
            }
            head.push(stream.read_u8().await?);
        }
        let status = head.split(|b| *b == b' ').nth(1).unwrap_or_default();
        if status.len() == 3 && status[0] == b'2' {
            return Ok(stream);
        }
        let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
        Err(io::Error::other(format!(
            "it answered: {}",
            String::from_utf8_lossy(line)
        )))
    };
    match timeout(2 * CONNECT, tunnel).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(e)) => Err(RefusalReason::Unreached {
            why: format!("the proxy {proxy}: {e}"),
        }),
        Err(_) => Err(RefusalReason::Unreached {
            why: format!("the proxy {proxy}: no answer"),
        }),
    }
}

/// Length of `rtmsg`, and where the type of the route stands in it, bytes.
const ROUTE: usize = 12;
const ROUTE_KIND: usize = 7;

/// Why packets to this address would not go to one other host. `None`: they would, or no route
/// exists.
fn route_refusal(address: IpAddr) -> Option<&'static str> {
    match route_kind(address) {
        Ok(libc::RTN_LOCAL) => Some("an address of this machine"),
        Ok(libc::RTN_BROADCAST) => Some("a broadcast address"),
        Ok(libc::RTN_MULTICAST) => Some("a multicast address"),
        Ok(libc::RTN_ANYCAST) => Some("an anycast address of this network"),
        kind if kind.is_ok() || is_unrouted(kind) => None,
        _ => Some("an address whose route is not known"),
    }
}

fn is_unrouted(kind: Result<u8, Errno>) -> bool {
    matches!(kind, Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH))
}

/// The type of the route.
fn route_kind(address: IpAddr) -> Result<u8, Errno> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    // Family and length of the destination; the kernel determines the rest.
    let mut body = [0; ROUTE];
    (body[0], body[1]) = (family as u8, bytes.len() as u8 * 8);
    let answer = Netlink::open(SockProtocol::NetlinkRoute)?.ask(
        libc::RTM_GETROUTE,
        0,
        &body,
        &[(libc::RTA_DST, &bytes)],
    )?;
    answer.get(ROUTE_KIND).copied().ok_or(Errno::EBADMSG)
}

/// Longest head of an answer, bytes.
const HEAD: usize = 16 * 1024;

/// Why a message has no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum PostError {
    /// Refused before anything was sent.
    Refused(RefusalReason),
    /// Reached, and no answer came.
    Broken(String),
}

impl From<RefusalReason> for PostError {
    fn from(refusal: RefusalReason) -> PostError {
        PostError::Refused(refusal)
    }
}

/// The answer to a message. Its connection ends with it.
pub struct Posted {
    pub answer: Response<Incoming>,
    _connection: tokio::task::JoinSet<hyper::Result<()>>,
}

/// Sends one message on a connection of its own, and follows no redirect.
pub async fn post(
    dialler: &Dialler,
    url: &CallbackUrl,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Posted, PostError> {
    // Root certificates may have changed, and take long to read.
    let trust = if url.https {
        tokio::task::spawn_blocking(tls::machine_roots)
            .await
            .map(Some)
    } else {
        Ok(None)
    };
    let trust = trust.map_err(|e| PostError::Broken(e.to_string()))?;
    let stream = dialler.dial(&url.host, url.port).await?;
    let Some(trust) = trust else {
        return sent(stream, url, headers, body).await;
    };
    let stream = tls::connect(&trust, &url.name(), stream)
        .await
        .map_err(|e| RefusalReason::Tls { why: e.to_string() })?;
    sent(stream, url, headers, body).await
}

async fn sent<S>(
    stream: S,
    url: &CallbackUrl,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Posted, PostError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    fn broken(e: hyper::Error) -> PostError {
        PostError::Broken(e.to_string())
    }
    let mut client = http1::Builder::new();
    let (mut sender, connection) = client
        .max_buf_size(HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let mut connecting = tokio::task::JoinSet::new();
    connecting.spawn(connection);
    let query = url
        .query
        .as_ref()
        .map_or_else(String::new, |query| format!("?{query}"));
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{}{query}", url.path));
    let mut request = request
        .header(header::HOST, url.authority())
        .body(Full::new(body))
        .map_err(|e| PostError::Broken(e.to_string()))?;
    request.headers_mut().extend(headers);
    Ok(Posted {
        answer: sender.send_request(request).await.map_err(broken)?,
        _connection: connecting,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::host::parse_pattern;

    fn grant(written: &str, ranges: &[&str]) -> HostGrant {
        let ranges = ranges
            .iter()
            .map(|range| range.parse().expect("a range"))
            .collect();
        let pattern = parse_pattern(written).expect("a pattern");
        HostGrant {
            pattern,
            ranges,
            asked: String::new(),
            rule: String::new(),
            why: String::new(),
        }
    }

    #[tokio::test]
    async fn a_header_opens_its_port_of_its_host_where_port_80_is_granted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let rule = serde_json::json!({
            "host": "localhost", "port": port, "name": "a", "value": "{}", "methods": [], "paths": [],
        });
        let rule: HeaderRule = serde_json::from_value(rule).expect("a rule");
        let headers = vec![("KEY".to_owned(), rule)];
        let dialler = |granted: &str, ranges: &[&str]| Dialler {
            payer: Default::default(),
            grants: vec![grant(granted, ranges)],
            headers: headers.clone(),
            proxy: None,
        };
        let (localhost, all) = (Host::Name("localhost".into()), ["127.0.0.0/8", "::1/128"]);
        assert!(
            dialler("localhost:80", &all)
                .dial(&localhost, port)
                .await
                .is_ok()
        );
        assert!(
            dialler("localhost", &all)
                .dial(&localhost, port)
                .await
                .is_ok()
        );
        let bare = dialler("localhost", &[]).dial(&localhost, port).await.err();
        assert!(
            matches!(bare, Some(RefusalReason::Address { .. })),
            "{bare:?}"
        );
        let refused = Some(RefusalReason::NotGranted);
        assert_eq!(
            dialler("localhost:443", &all)
                .dial(&localhost, port)
                .await
                .err(),
            refused
        );
        assert_eq!(
            dialler("localhost:80", &all)
                .dial(&localhost, port ^ 1)
                .await
                .err(),
            refused
        );
        let (other, address) = (
            Host::Name("a.localhost".into()),
            Host::Address([127, 0, 0, 1].into()),
        );
        assert_eq!(
            dialler("*:80", &all).dial(&other, port).await.err(),
            refused
        );
        assert_eq!(
            dialler("127.0.0.1:80", &all)
                .dial(&address, port)
                .await
                .err(),
            refused
        );
    }

    /// Answers one CONNECT with this, and gives what it was asked.
    async fn proxy(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a listener");
        let at = listener.local_addr().expect("an address").to_string();
        let asked = tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(peer.read_u8().await.expect("a byte"));
            }
            peer.write_all(answer.as_bytes()).await.expect("sent");
            String::from_utf8(head).expect("text")
        });
        (at, asked)
    }

    #[tokio::test]
    async fn a_proxy_is_asked_for_granted_names_alone_and_its_tunnel_is_whole() {
        let (at, asked) = proxy("HTTP/1.1 200 Connection established\r\nX: y\r\n\r\nhello").await;
        let dialler = |at: String| Dialler {
            payer: Default::default(),
            grants: vec![grant("a.test", &[])],
            headers: Vec::new(),
            proxy: Some(at),
        };
        let name = |name: &str| Host::Name(name.to_owned());
        assert_eq!(
            dialler(at.clone()).dial(&name("b.test"), 443).await.err(),
            Some(RefusalReason::NotGranted)
        );
        let mut tunnel = dialler(at)
            .dial(&name("a.test"), 443)
            .await
            .expect("a tunnel");
        let mut said = String::new();
        tunnel.read_to_string(&mut said).await.expect("text");
        assert_eq!(
            (said.as_str(), asked.await.expect("asked").lines().next()),
            ("hello", Some("CONNECT a.test:443 HTTP/1.1"))
        );
        let (at, _) = proxy("HTTP/1.1 403 Forbidden\r\n\r\n").await;
        let refused = dialler(at).dial(&name("a.test"), 443).await.err();
        assert!(
            matches!(&refused, Some(RefusalReason::Unreached { why }) if why.contains("403 \
                Forbidden")),
            "{refused:?}"
        );
    }
}
