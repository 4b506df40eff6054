//! `/mcp`: the MCP server, behind the same gate and the same quotas as everything else here.

use super::reply::{self, Response};
use super::{OfFace, approvals, body};
use crate::service::Caller;
use crate::transport::mcp::Message;
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
    let received = match body::read(&face, &caller, &parts.headers, body, ("", |length| length > body::SMALL)).await {
        Ok(received) => received,
        Err(unread) => return body::refuse(face, caller, "", unread, begun).await,
    };
    let approver = approvals::of(&face, &caller);
    let message = body::apart(&face, &caller, received.text, |text| Message::read(text.as_bytes())).await;
    let recorded = message.is_refused();
    let mut answer = face.mcp.post((caller, approver, received.counted), parts, message, begun).await;
    drop(received.kept);
    if recorded {
        answer.extensions_mut().insert(reply::Recorded);
    }
    answer.map(Body::new)
}
