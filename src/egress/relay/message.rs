//! Requests and answers over HTTP/1: whether a request is for one host alone, and which headers end
//! with a connection.

use super::stream::{quoted, target};
use crate::egress::protocol::RefusalReason;
use crate::manifest::host::{self, Host, HostPattern};
use hyper::body::Body;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri, Version};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Methods whose requests may have a body. A host may overlook the body of any other and take it
/// for a request.
const METHODS_WITH_BODIES: [&str; 6] = ["POST", "PUT", "PATCH", "PROPFIND", "REPORT", "QUERY"];
/// Headers about one connection, which end with it (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "upgrade",
    "http2-settings",
];
/// Headers that stay whatever `Connection` says.
const OF_THE_MESSAGE: [HeaderName; 3] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// Why the relay answers a request itself.
#[derive(Debug)]
pub struct RequestError {
    pub status: StatusCode,
    pub why: String,
    pub refusal: RefusalReason,
    /// The other host that the request is for.
    pub other: Option<Host>,
}

pub fn reject(status: StatusCode, why: impl Into<String>) -> RequestError {
    let why = why.into();
    RequestError {
        status,
        refusal: RefusalReason::Content { why: why.clone() },
        why,
        other: None,
    }
}

/// A request that the rule of a secret does not allow.
pub fn not_by_rule(why: String) -> RequestError {
    RequestError {
        refusal: RefusalReason::Secret { why: why.clone() },
        ..reject(StatusCode::FORBIDDEN, why)
    }
}

/// Which of these names of a host a request is for; true: it asks to switch to WebSocket.
pub fn destination<'a, B: Body>(
    request: &Request<B>,
    hosts: &'a [Host],
) -> Result<(&'a Host, bool), RequestError> {
    let headers = request.headers();
    fn bad(why: &str) -> Result<(&'static Host, bool), RequestError> {
        Err(reject(StatusCode::BAD_REQUEST, why))
    }
    if [Method::CONNECT, Method::TRACE].contains(request.method()) {
        return Err(reject(
            StatusCode::FORBIDDEN,
            format!("{} is refused", request.method()),
        ));
    }
    let mut named = headers.get_all(header::HOST).iter();
    let (Some(named), None) = (named.next(), named.next()) else {
        return bad("a request needs exactly one Host header");
    };
    let host = named_host(named.as_bytes(), "the Host header", hosts)?;
    let uri = request.uri();
    match (uri.scheme_str(), uri.authority()) {
        (None, None) => {}
        (Some("http"), Some(authority)) => {
            named_host(
                authority.as_str().as_bytes(),
                "the request line",
                std::slice::from_ref(host),
            )?;
        }
        _ => return bad("the request line is neither a path nor a URL of http"),
    }
    let codings: Vec<_> = headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    if codings.len() > 1
        || !codings
            .iter()
            .all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return bad("the only supported Transfer-Encoding is chunked");
    }
    if !request.body().is_end_stream() && !METHODS_WITH_BODIES.contains(&request.method().as_str())
    {
        let method = quoted(request.method().as_str().as_bytes());
        return bad(&format!(
            "{method} with a body is refused: only {} may have one",
            METHODS_WITH_BODIES.join(", ")
        ));
    }
    let switch = is_websocket(headers) && request.version() == Version::HTTP_11;
    if switch && request.method() != Method::GET {
        return bad("a switch to WebSocket must be a GET request");
    }
    Ok((host, switch))
}

/// Which of these hosts the authority is, with no port or port 80.
fn named_host<'a>(
    authority: &[u8],
    place: &str,
    hosts: &'a [Host],
) -> Result<&'a Host, RequestError> {
    let other = std::str::from_utf8(authority).ok().and_then(host_of);
    if let Some(host) = hosts.iter().find(|host| other.as_ref() == Some(*host)) {
        return Ok(host);
    }
    let why = format!(
        "{place} names {}, and the connection is to {}",
        quoted(authority),
        target(&hosts[0], 80)
    );
    Err(RequestError {
        other,
        ..reject(StatusCode::MISDIRECTED_REQUEST, why)
    })
}

fn host_of(authority: &str) -> Option<Host> {
    let bare = authority.strip_suffix(":80").unwrap_or(authority);
    let address = match bare.strip_prefix('[') {
        Some(inside) => {
            Some(IpAddr::V6(inside.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?).to_canonical())
        }
        None => bare.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    address
        .map(Host::Address)
        .or_else(|| host::canonical_name(bare).map(Host::Name))
}

pub fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    let first = protocols
        .next()
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    first
        && protocols.next().is_none()
        && in_connection(headers).any(|name| name == header::UPGRADE)
}

/// The headers that `Connection` names.
pub fn in_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','));
    values.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Removes the headers that end with a connection.
pub fn end_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = in_connection(headers)
        .filter(|name| !OF_THE_MESSAGE.contains(name))
        .collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
    HOP_BY_HOP
        .iter()
        .for_each(|name| drop(headers.remove(*name)));
}

/// The value of the header `Host` for this host.
pub fn canonical(host: &Host) -> HeaderValue {
    let pattern = HostPattern {
        host: host.clone(),
        port: None,
    };
    HeaderValue::try_from(pattern.to_string()).unwrap_or(HeaderValue::from_static(""))
}

/// The request as it goes to the host: with a path, and without headers about the tool's own
/// connection.
pub fn rewrite<B>(request: &mut Request<B>, switch: bool, host: HeaderValue) {
    *request.uri_mut() = request
        .uri()
        .path_and_query()
        .cloned()
        .map_or_else(Uri::default, Uri::from);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    end_connection(headers);
    headers.insert(header::HOST, host);
    if switch {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
}
