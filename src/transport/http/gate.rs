//! The gate: what is looked at before any handler. Web pages of other origins, and requests sent to another name than this
//! server's (DNS rebinding), are refused; no header of CORS is sent.

use super::Face;
use super::callers::CallerError;
use super::connection::Connection;
use super::metadata;
use super::reply::{self, Refused};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::service::Caller;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What is answered without a token: it tells nothing of this host.
pub const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];
/// Parameters that a query may have.
const PARAMETERS: [&str; 3] = ["as", "format", "namespace"];

/// The names under which this server is known, beside its address.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub hosts: Vec<String>,
    /// Origins of web pages that may call, `https://name[:port]`.
    pub origins: Vec<String>,
}

/// Who sent this request. `None`: nobody needs to be known for it.
pub fn admitted<B>(face: &Face, connection: &Connection, request: &Request<B>) -> Result<Option<Caller>, Refused> {
    let refuse = |status, words: &str| Err(reply::refused(status, Fault::new(Kind::AuthorizationError, words)));
    let host = match host(request) {
        Ok(host) => host,
        Err(words) => return Err(reply::refused(StatusCode::BAD_REQUEST, reply::malformed(words))),
    };
    if !face.names.is_ours(&host, connection) {
        let words = "The Host header names another server. The operator lists further names in [http] hosts.";
        face.warnings.once(&connection.peer, "Host", &format!("refused: Host {}", text::printable(host.as_str())));
        return refuse(StatusCode::FORBIDDEN, words);
    }
    if !face.names.takes_origin(request.headers(), &host, connection) {
        face.warnings.once(&connection.peer, "Origin", "refused: Origin");
        return refuse(
            StatusCode::FORBIDDEN,
            "Web pages of this Origin may not call. The operator lists them in [http] origins.",
        );
    }
    if let Err(words) = readable(request.uri()) {
        return Err(reply::refused(StatusCode::BAD_REQUEST, reply::malformed(words)));
    }
    let path = request.uri().path();
    if OPEN.contains(&path) || metadata::is(path) {
        return Ok(None);
    }
    face.callers.of(request.headers()).map(Some).map_err(|unknown| {
        let words = match unknown {
            CallerError::Absent => "This server needs a token: Authorization: Bearer TOKEN (commands of toolhost take it from TOOLHOST_TOKEN).",
            CallerError::Refused(why) => {
                face.warnings.once(&connection.peer, "token", &format!("refused: {}", text::printable(&why)));
                "The token (Authorization header, or TOOLHOST_TOKEN for commands of toolhost) was not accepted: is it whole, and still in the server's list?"
            }
        };
        let mut refusal = reply::refused(StatusCode::UNAUTHORIZED, Fault::new(Kind::AuthorizationError, words));
        refusal.0.headers_mut().insert(header::WWW_AUTHENTICATE, challenge(face));
        refusal
    })
}

/// How to get in; where others issue the tokens, where that is said.
fn challenge(face: &Face) -> HeaderValue {
    let plain = HeaderValue::from_static("Bearer realm=\"toolhost\"");
    let named = |address: &str| format!("Bearer realm=\"toolhost\", resource_metadata=\"{address}\"");
    let metadata = face.callers.metadata().and_then(|metadata| HeaderValue::from_str(&named(&metadata.address)).ok());
    metadata.unwrap_or(plain)
}

/// Refuses a path that is no text, and a query that would be read in part.
fn readable(uri: &Uri) -> Result<(), &'static str> {
    let is_text = |part: &str| percent_decode_str(part).decode_utf8().is_ok();
    if !is_text(uri.path()) {
        return Err("The path is no UTF-8.");
    }
    let mut seen = BTreeSet::new();
    for part in uri.query().into_iter().flat_map(|query| query.split('&')) {
        // Not shown: it may be a secret in the wrong place.
        let known = part.split_once('=').filter(|(name, value)| PARAMETERS.contains(name) && is_text(value));
        let Some((name, _)) = known else {
            return Err(
                "The query holds a parameter that is not known here. Tokens go into the Authorization header alone.",
            );
        };
        if !seen.insert(name) {
            return Err("The query holds a parameter twice.");
        }
    }
    Ok(())
}

/// The one host that the request names, also where its target is a whole URL.
fn host<B>(request: &Request<B>) -> Result<Authority, &'static str> {
    let named = once(request.headers(), &header::HOST).ok_or("The request must have exactly one Host header.")?;
    let named: Authority = named.parse().map_err(|_| "The Host header names no host.")?;
    if named.as_str().contains('@') {
        return Err("The Host header names no host.");
    }
    match request.uri().authority() {
        Some(other) if *other != named => Err("The request names two hosts."),
        _ => Ok(named),
    }
}

/// The value of a header that stands exactly once.
pub fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

impl Names {
    /// A name in a Host header can be anybody's; the address that was connected to, or a name that the operator gave,
    /// cannot.
    fn is_ours(&self, host: &Authority, connection: &Connection) -> bool {
        let name = host.host();
        let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        let local = connection.ours.is_none_or(|ours| ours.is_loopback());
        let loopback =
            name.eq_ignore_ascii_case("localhost") || literal.is_some_and(|ip| ip.to_canonical().is_loopback());
        local && loopback
            || literal.is_some_and(|ip| Some(ip.to_canonical()) == connection.ours)
            || self
                .hosts
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host.as_str()))
    }

    /// Without an Origin no web page of another site asked with a method that changes anything.
    fn takes_origin(&self, headers: &HeaderMap, host: &Authority, connection: &Connection) -> bool {
        if !headers.contains_key(header::ORIGIN) {
            return true;
        }
        let Some(origin) = once(headers, &header::ORIGIN) else { return false };
        let scheme = if connection.tls { "https" } else { "http" };
        let own = format!("{scheme}://{host}");
        origin.eq_ignore_ascii_case(&own) || self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }
}
