//! `/mcp`: the MCP server, behind the same gate and the same quotas as everything else here.

use super::body;
use super::reply::{self, Response};
use super::request::{KnownRequest, Start};
use crate::transport::mcp::Message;
use axum::body::Body;
use axum::extract::Request;
use http::Method;

/// Another protocol than the rest, with its own documents.
pub const PATH: &str = "/mcp";

pub async fn mcp(start: Start, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        let KnownRequest { server, caller, .. } = start.known;
        return server.mcp.other(caller, parts).await.map(Body::new);
    }
    let received = match body::read(&start.known, "", body, |length| length > body::SMALL).await {
        Ok(received) => received,
        Err(refusal) => return start.refuse("", refusal).await,
    };
    let Start { known, begun } = start;
    let message = body::parse(&known, received.text, |text| Message::read(text.as_bytes())).await;
    let (recorded, approver) = (message.is_refused(), known.approver());
    let mut answer = known.server.mcp.post((known.caller, approver, received.counted), parts, message, begun).await;
    drop(received.charge);
    if recorded {
        answer.extensions_mut().insert(reply::Recorded);
    }
    answer.map(Body::new)
}
