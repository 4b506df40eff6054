//! The page for operators at `/`: three files of this binary. They need no token and say nothing of
//! this host; what the page shows it requests as its reader, with the token that the reader enters.

use super::reply::Response;
use super::server::Server;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::header;
use std::sync::Arc;

/// Scripts and styles of this server alone, no text as a script, no other site; pictures also from
/// blobs that the page made of an answer. No other page may show this one.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

struct PageFile {
    path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

static FILES: [PageFile; 3] = [
    PageFile {
        path: "/",
        media_type: "text/html; charset=utf-8",
        text: include_str!("page/index.html"),
    },
    PageFile {
        path: "/page.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("page/page.css"),
    },
    PageFile {
        path: "/page.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("page/page.js"),
    },
];

/// Whether this is a file of the page.
pub fn is_part(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

pub fn routes(router: Router<Arc<Server>>) -> Router<Arc<Server>> {
    FILES.iter().fold(router, |router, file| {
        router.route(file.path, get(async || response(file)))
    })
}

fn response(file: &PageFile) -> Response {
    let response = http::Response::builder()
        .header(header::CONTENT_TYPE, file.media_type)
        .header(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)
        .header(header::REFERRER_POLICY, "no-referrer")
        .header("cross-origin-opener-policy", "same-origin")
        .body(Body::from(file.text));
    response.unwrap_or_default()
}
