//! Metadata of a protected resource (RFC 9728): who issues the tokens that this server takes.

use super::Face;
use super::reply::{self, Response};
use axum::extract::State;
use http::{StatusCode, Uri};
use serde_json::{Value, json};
use std::sync::Weak;

/// For the server, and for a path of it.
pub const PATHS: [&str; 2] = [ROOT, "/.well-known/oauth-protected-resource/{*path}"];
const ROOT: &str = "/.well-known/oauth-protected-resource";

/// What is said of a server whose tokens are for `audience`, and where; `None`: its audience is no address.
#[derive(Debug)]
pub struct Metadata {
    document: Value,
    pub address: String,
}

impl Metadata {
    pub fn of(issuer: &str, audience: &str) -> Option<Metadata> {
        let uri: Uri = audience.parse().ok()?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
        let path = uri.path().trim_end_matches('/');
        let address = format!("{scheme}://{}{ROOT}{path}", uri.authority()?);
        let document = json!({
            "resource": audience,
            "authorization_servers": [issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "toolhost",
        });
        Some(Metadata { document, address })
    }
}

/// Whether a path leads here: it is answered without a token.
pub fn is(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub async fn metadata(State(face): State<Weak<Face>>) -> Response {
    let Some(face) = face.upgrade() else { return reply::stopping() };
    match face.callers.metadata() {
        Some(metadata) => reply::value(StatusCode::OK, &metadata.document),
        None => reply::refusal(StatusCode::NOT_FOUND, reply::malformed("This server takes no tokens of others.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_audiences() {
        let of = |audience| Metadata::of("https://login.example", audience).map(|metadata| metadata.address);
        assert_eq!(
            of("https://t.example/mcp").as_deref(),
            Some("https://t.example/.well-known/oauth-protected-resource/mcp")
        );
        assert_eq!(of("https://t.example").as_deref(), Some("https://t.example/.well-known/oauth-protected-resource"));
        assert_eq!(of("toolhost"), None);
        assert!(is("/.well-known/oauth-protected-resource/mcp") && !is("/.well-known/oauth-protected-resources"));
    }
}
