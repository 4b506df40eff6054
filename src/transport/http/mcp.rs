//! `/mcp`: the MCP server, behind the same gate as everything else here.
//!
//! For: agents. In: a caller, a request. Out: what `transport::mcp` answers. Never: another way to be a caller; a body that
//! has no place.

use super::reply::{self, Response};
use super::{OfFace, approvals, body};
use crate::service::Caller;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use http::Method;

/// Another protocol than the rest, told by its own documents.
pub const PATH: &str = "/mcp";

pub async fn mcp(State(face): OfFace, Extension(caller): Extension<Caller>, request: Request) -> Response {
    let Some(face) = face.upgrade() else { return reply::stopping() };
    // Until it is dropped the server waits with its end.
    let Some(begun) = face.begin() else { return reply::stopping() };
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return face.mcp.other(caller, parts).await.map(Body::new);
    }
    let (text, places) = match body::read(&face, &caller, &parts.headers, body).await {
        Ok(read) => read,
        Err(refusal) => return *refusal,
    };
    let approver = approvals::of(&face, &caller);
    let answer = face.mcp.post((caller, approver), parts, &text, begun).await;
    drop(places);
    answer.map(Body::new)
}
