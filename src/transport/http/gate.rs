//! What is checked before any handler: Host, Origin, site, path and query, then who calls. Web
//! pages of other origins, and requests to another name than this server's (DNS rebinding), are
//! refused; no header of CORS is sent.

use super::callers::CallerError;
use super::jwt;
use super::page;
use super::reply::{self, Refusal, Response};
use super::server::{Connection, Server, ServerNames};
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::service::Caller;
use axum::extract::State;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Paths that are answered without a token: they say nothing of this host.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];
/// Parameters that a query may have.
const PARAMETERS: [&str; 13] = [
    "after",
    "as",
    "caller",
    "failed",
    "format",
    "limit",
    "namespace",
    "order",
    "query",
    "refused",
    "starting_after",
    "stream",
    "tool",
];
const NO_TOKEN: &str = "This server needs a token: Authorization: Bearer TOKEN (commands of \
    toolhost take it from TOOLHOST_TOKEN).";
const BAD_TOKEN: &str = "The token (Authorization header, or TOOLHOST_TOKEN for commands of \
                         toolhost) was not accepted: is it complete, and still in the server's \
                         list?";

/// Who sent this request. `None`: its path is open to all.
pub fn admit<B>(
    server: &Server,
    connection: &Connection,
    request: &Request<B>,
) -> Result<Option<Caller>, Refusal> {
    fn refuse(status: StatusCode, words: &str) -> Refusal {
        Refusal::new(status, Fault::new(Kind::AuthorizationError, words))
    }
    let warn = |reason, words: &str| {
        server
            .warnings
            .warn(&connection.peer, reason, &format!("refused: {words}"))
    };
    let host = host(request).map_err(Refusal::malformed)?;
    if !is_ours(&server.names, &host, request.headers(), connection) {
        warn("Host", &format!("Host {}", text::printable(host.as_str())));
        let words = "The Host header names another server. The operator lists further names in \
            [http] hosts. (A browser opens this server by its address, as 127.0.0.1: `localhost` \
            may lead to another program, too.)";
        return Err(refuse(StatusCode::FORBIDDEN, words));
    }
    if !takes_origin(&server.names, request.headers(), &host, connection) {
        warn("Origin", "Origin");
        let words =
            "Web pages of this Origin may not call. The operator lists them in [http] origins.";
        return Err(refuse(StatusCode::FORBIDDEN, words));
    }
    if is_of_other_page(request.headers()) && !request.headers().contains_key(header::AUTHORIZATION)
    {
        warn("Sec-Fetch-Site", "Sec-Fetch-Site");
        let words = "Web pages of other sites and ports may not call without a token.";
        return Err(refuse(StatusCode::FORBIDDEN, words));
    }
    check_target(request.uri()).map_err(Refusal::malformed)?;
    let path = request.uri().path();
    let is_page = server.page && page::is_part(path);
    if is_page || OPEN.contains(&path) || jwt::is_metadata(path) {
        return Ok(None);
    }
    server
        .callers
        .identify(request.headers())
        .map(Some)
        .map_err(|error| {
            let words = match error {
                CallerError::Absent => NO_TOKEN,
                CallerError::Refused(why) => {
                    warn("token", &text::printable(&why));
                    BAD_TOKEN
                }
            };
            refuse(StatusCode::UNAUTHORIZED, words)
        })
}

/// The header `WWW-Authenticate`, with the address of the metadata if another server issues the
/// tokens.
pub fn challenge(server: &Server) -> HeaderValue {
    let named = server.callers.metadata().and_then(|metadata| {
        let words = format!(
            "Bearer realm=\"toolhost\", resource_metadata=\"{}\"",
            metadata.address
        );
        HeaderValue::from_str(&words).ok()
    });
    named.unwrap_or(HeaderValue::from_static("Bearer realm=\"toolhost\""))
}

/// Refuses a path that is not text, and a query with an unknown or repeated parameter.
fn check_target(uri: &Uri) -> Result<(), &'static str> {
    fn is_text(part: &str) -> bool {
        percent_decode_str(part).decode_utf8().is_ok()
    }
    if !is_text(uri.path()) {
        return Err("The path is not UTF-8.");
    }
    let mut seen = BTreeSet::new();
    for part in uri.query().into_iter().flat_map(|query| query.split('&')) {
        let known = part
            .split_once('=')
            .filter(|(name, _)| PARAMETERS.contains(name));
        // The part is not shown: it may be a secret in the wrong place.
        let (name, value) = known.ok_or(
            "The query holds an unknown parameter. Tokens go into the Authorization header alone.",
        )?;
        if !is_text(value) {
            return Err("The query is not UTF-8.");
        }
        if !seen.insert(name) {
            return Err("The query holds a parameter twice.");
        }
    }
    Ok(())
}

/// The one host that the request names, even where its target is a URL.
fn host<B>(request: &Request<B>) -> Result<Authority, &'static str> {
    let named = single(request.headers(), &header::HOST)
        .ok_or("The request must have exactly one Host header.")?;
    let named: Option<Authority> = named
        .parse()
        .ok()
        .filter(|named: &Authority| !named.as_str().contains('@'));
    let named = named.ok_or("The Host header does not name a host.")?;
    match request.uri().authority() {
        Some(other) if *other != named => Err("The request names two hosts."),
        _ => Ok(named),
    }
}

/// The value of a header that occurs exactly once.
pub fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// A parameter of the query, which was checked to be text and to occur once.
pub fn parameter<'u>(uri: &'u Uri, name: &str) -> Option<std::borrow::Cow<'u, str>> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let found = pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name);
    found.map(|(_, value)| percent_decode_str(value).decode_utf8_lossy())
}

/// Whether the Host header names this server. Anybody can make a name for this address; so only the
/// address that was connected to, and the operator's names, count. `localhost` is two addresses and
/// one origin, and we listen at one of them: a page that another user serves at the other would be
/// our own. So it counts from programs alone.
fn is_ours(
    names: &ServerNames,
    host: &Authority,
    headers: &HeaderMap,
    connection: &Connection,
) -> bool {
    let name = host.host();
    let literal = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
        .ok();
    let literal = literal.map(|ip| ip.to_canonical());
    let local = connection.ours.is_none_or(|ours| ours.is_loopback());
    let is_named = connection.tls || !is_from_a_page(headers);
    let is_localhost = name.eq_ignore_ascii_case("localhost") && is_named;
    local && (is_localhost || literal.is_some_and(|ip| ip.is_loopback()))
        || literal.is_some() && literal == connection.ours
        || names.hosts.iter().any(|known: &String| {
            known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host.as_str())
        })
}

/// Whether a browser sent this (Fetch Metadata Request Headers; Referer, as older ones send it).
fn is_from_a_page(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        [header::ORIGIN, header::REFERER].contains(name) || name.as_str().starts_with("sec-fetch-")
    })
}

/// Whether another page than ours had a browser send this. An Origin was looked at already; a page at
/// another port, which may be another user's, sends GETs without one.
fn is_of_other_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    let has_origin = headers.contains_key(header::ORIGIN);
    sites.any(|site| site == "cross-site" || site == "same-site" && !has_origin)
}

/// No web page of another site can send a method that changes something without an Origin.
fn takes_origin(
    names: &ServerNames,
    headers: &HeaderMap,
    host: &Authority,
    connection: &Connection,
) -> bool {
    if !headers.contains_key(header::ORIGIN) {
        return true;
    }
    let Some(origin) = single(headers, &header::ORIGIN) else {
        return false;
    };
    let scheme = if connection.tls { "https" } else { "http" };
    let own = format!("{scheme}://{host}");
    origin.eq_ignore_ascii_case(&own)
        || names
            .origins
            .iter()
            .any(|known| known.eq_ignore_ascii_case(origin))
}

/// `/.well-known/oauth-protected-resource`: who issues the tokens that this server takes.
pub async fn metadata(State(server): State<Arc<Server>>) -> Result<Response, Refusal> {
    let metadata = server.callers.metadata().ok_or_else(|| {
        Refusal::new(
            StatusCode::NOT_FOUND,
            reply::malformed("This server takes no tokens of other issuers."),
        )
    })?;
    Ok(reply::json(StatusCode::OK, &metadata.document))
}
