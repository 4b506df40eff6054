//! `/mcp`: the MCP server, behind the same gate and the same quotas as everything else here.

use super::extract::{RequestCaller, Start};
use super::reply::{self, Response};
use super::{body, running};
use crate::transport::mcp::Message;
use axum::body::Body;
use axum::extract::Request;
use http::Method;

/// Another protocol than the rest, told by its own documents.
pub const PATH: &str = "/mcp";

pub async fn mcp(start: Start, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        let RequestCaller { face, caller } = start.known;
        return face.mcp.other(caller, parts).await.map(Body::new);
    }
    let is_call = |length| length > body::SMALL;
    let received = match body::read(start.face(), start.caller(), &start.headers, body, ("", is_call)).await {
        Ok(received) => received,
        Err(unread) => return start.refuse("", unread).await,
    };
    let Start { known: RequestCaller { face, caller }, begun, .. } = start;
    let approver = running::approver(&face, &caller);
    let message = body::apart(&face, &caller, received.text, |text| Message::read(text.as_bytes())).await;
    let recorded = message.is_refused();
    let mut answer = face.mcp.post((caller, approver, received.counted), parts, message, begun).await;
    drop(received.kept);
    if recorded {
        answer.extensions_mut().insert(reply::Recorded);
    }
    answer.map(Body::new)
}
