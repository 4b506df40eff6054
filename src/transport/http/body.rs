//! Bodies of requests. The principal is charged for what has arrived, before it is parsed, and both
//! are limited in time.

use super::gate::single;
use super::reply::{Refusal, malformed};
use super::request::KnownRequest;
use crate::base::json;
use crate::base::semaphore::{Claim, Permit};
use crate::fault::{Fault, Kind};
use crate::service::{Charged, RateCharge};
use axum::body::{Body, HttpBody};
use http::{StatusCode, header};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;

/// Largest body, bytes.
const MAX_BODY_BYTES: u64 = 8 * 1024 * 1024;
/// A longer body is parsed on another thread. Over MCP it counts as a call, because only a call can
/// be so long.
pub const SMALL: usize = 16 * 1024;
/// A longer body is not read if its tool does not exist for the caller.
const LONG: usize = 64 * 1024;
/// How long a body may take to arrive.
const TIME: Duration = Duration::from_secs(30);

/// A body that was read, and its quota until it is dropped.
pub struct Received {
    pub text: String,
    pub charged: Charged,
}

/// Charges the principal for a call, if `is_call` says so of the length, then reads the body.
/// `tool`: the tool in the path. If it does not exist for the caller, a long body is not read.
pub async fn read(
    known: &KnownRequest,
    tool: &str,
    body: Body,
    is_call: impl FnOnce(usize) -> bool,
) -> Result<Received, Refusal> {
    let KnownRequest {
        server,
        caller,
        headers,
        ..
    } = known;
    fn refuse(status: StatusCode, words: &str) -> Result<Received, Refusal> {
        Err(Refusal::new(status, malformed(words)))
    }
    // With a known length, no two programs can differ on where a request ends.
    let Some(length) = body.size_hint().exact() else {
        return refuse(
            StatusCode::LENGTH_REQUIRED,
            "Send the body with a Content-Length, not in chunks.",
        );
    };
    // A web page of another site can send other types without a preflight request.
    let kind = single(headers, &header::CONTENT_TYPE)
        .and_then(|kind| kind.split(';').next())
        .unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Send JSON, with Content-Type: application/json.",
        );
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Send the body without a Content-Encoding.",
        );
    }
    let Some(length) = usize::try_from(length)
        .ok()
        .filter(|_| length <= MAX_BODY_BYTES)
    else {
        let words = format!("The body is too long: at most {MAX_BODY_BYTES} bytes are read.");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, &words);
    };
    let mut rate = RateCharge::Due;
    if is_call(length) {
        server.service.catalog.charge(
            &server.service.limiter,
            caller,
            Some(tool).filter(|tool| length > LONG && !tool.is_empty()),
        )?;
        rate = RateCharge::Paid;
    }
    let bodies = &server.service.limiter.bodies;
    let claim = bodies.claim_unless_alone(&caller.user, server.callers.is_own());
    let mut charge = bodies.none();
    let mut unread = PendingRequest {
        known,
        tool,
        counts: true,
    };
    let whole = tokio::time::timeout(TIME, collect(body, &claim, &mut charge)).await;
    unread.counts = false;
    let Ok(whole) = whole else {
        return refuse(
            StatusCode::REQUEST_TIMEOUT,
            "The body did not come in time.",
        );
    };
    let Ok(text) = String::from_utf8(whole?) else {
        return refuse(StatusCode::BAD_REQUEST, "The body is not UTF-8.");
    };
    known.connection.seat.set_whole(true);
    let charged = Charged {
        rate,
        body: Some(Arc::new(charge)),
    };
    Ok(Received { text, charged })
}

/// Reads a body, and charges for what has arrived beyond a small one. The number of connections
/// bounds small ones.
async fn collect(mut body: Body, claim: &Claim, charge: &mut Permit) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Refusal::malformed("The body ended before its Content-Length."))?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if bytes.len() > SMALL && charge.charge(claim, bytes.len().div_ceil(1024)).is_err() {
            let fault = Fault::new(
                Kind::RateLimitError,
                "Too many large requests are being read.",
            )
            .retryable();
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, fault));
        }
    }
    Ok(bytes)
}

/// A request that is not read yet. If its client leaves now, dropping this writes the record.
struct PendingRequest<'k> {
    known: &'k KnownRequest,
    tool: &'k str,
    counts: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if self.counts {
            let left = malformed("The client left before its request was read.");
            // No client is there to read an answer.
            let _ = self
                .known
                .server
                .service
                .refusals
                .record(&self.known.caller, self.tool, left);
        }
    }
}

/// Parses a long body on another thread, by fair turns of the principals.
pub async fn parse<T: Send + 'static>(
    known: &KnownRequest,
    body: String,
    parse: impl FnOnce(&str) -> T + Send + 'static,
) -> T {
    if body.len() <= SMALL {
        return parse(&body);
    }
    let mut unread = PendingRequest {
        known,
        tool: "",
        counts: true,
    };
    let reader = known
        .server
        .service
        .limiter
        .readers
        .enter(&known.caller.user)
        .await;
    // The work keeps its reader until it is over, also where its client is gone.
    let work = tokio::task::spawn_blocking(move || (parse(&body), reader).0).await;
    unread.counts = false;
    work.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

/// The body as one strict JSON document, without white space.
pub fn document(body: &str) -> Result<json::Text, Refusal> {
    json::compact(body.as_bytes()).map_err(|problem| {
        let place = format!(
            "Line {}, column {}: {}",
            problem.line, problem.column, problem.message
        );
        Refusal::unreadable(malformed("The body is not one JSON document.").details(place))
    })
}
