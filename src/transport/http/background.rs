//! Calls in the background: a receipt at once, and its result later.
//!
//! For: `POST …/calls` with `"mode": "async"` or `Prefer: respond-async`, `/v1/calls`. In: a request; a caller who asks.
//! Out: receipts, and the results that `service::background` keeps. Never: a result that takes memory without a place.

use super::calls::{self, Begun};
use super::reply::{self, Response};
use super::{Face, body};
use crate::fault::{Fault, Kind};
use crate::service::{CallRequest, Caller, Sink};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Longest wait for the end of a call, seconds.
const LONGEST: u64 = 60;

/// What a `Prefer` header asks for (RFC 7240): a receipt, and how long to wait for an end. Others are passed over, as
/// it says there.
pub fn preference(headers: &HeaderMap) -> (bool, Option<Duration>) {
    let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
    let words: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).collect();
    let receipt = words.iter().any(|word| word.eq_ignore_ascii_case("respond-async"));
    let seconds =
        words.iter().find_map(|word| word.split_once('=').filter(|(name, _)| name.eq_ignore_ascii_case("wait")));
    let seconds = seconds.and_then(|(_, seconds)| seconds.parse::<u64>().ok());
    (receipt, seconds.map(|seconds| Duration::from_secs(seconds.min(LONGEST))))
}

/// Whether a call runs in the background: as its body says, else its header, else its tool's manifest.
pub fn wanted(face: &Face, request: &CallRequest, said: Option<bool>, headers: &HeaderMap) -> bool {
    let by_tool =
        || face.service.find(&request.caller, &request.tool).is_ok_and(|tool| tool.manifest.execution.asynchronous);
    said.unwrap_or_else(|| preference(headers).0 || by_tool())
}

/// A call whose end its client waits for: a URL that would never hear of it is refused, not passed over.
pub fn told_to_nobody(request: CallRequest) -> CallRequest {
    let words = "A callback hears of the end of a call in the background: say \"mode\": \"async\" beside it.";
    let CallRequest { caller, tool, label, counted, .. } = request;
    CallRequest { label, counted, ..CallRequest::refused(caller, &tool, reply::malformed(words)) }
}

/// The receipt of a call. A refusal leaves its record like any other, and has its own status.
pub async fn begin(
    face: Arc<Face>,
    request: CallRequest,
    callback: Option<String>,
    seen_by: &reply::Reader,
    begun: Begun,
) -> Response {
    let (id, label) = (request.id.clone(), request.label.clone());
    let (caller, tool) = (request.caller.clone(), request.tool.clone());
    match face.background.submit(request, callback, begun.clone()).await {
        Ok(receipt) => {
            let mut response = reply::value(StatusCode::ACCEPTED, &json!(receipt));
            let headers = response.headers_mut();
            // An id of ours is plain.
            if let Ok(place) = HeaderValue::from_str(&format!("/v1/calls/{}", receipt.call.id)) {
                headers.insert(header::LOCATION, place);
            }
            headers.insert(APPLIED, HeaderValue::from_static("respond-async"));
            response
        }
        Err(fault) => {
            let request = CallRequest { id, label, counted: true, ..CallRequest::refused(caller, &tool, fault) };
            let report = calls::run(face, request, Sink::none()).await;
            reply::report(report, seen_by, begun)
        }
    }
}

/// A call in the background, with its result once it ended. `None`: it is none.
pub async fn told(face: &Face, who: &Caller, id: &str, headers: &HeaderMap) -> Option<Response> {
    let receipt = match preference(headers) {
        (_, Some(time)) => tokio::select! {
            receipt = face.background.waited(who, id, time) => receipt,
            () = face.stop.cancelled() => face.background.receipt(who, id),
        },
        _ => face.background.receipt(who, id),
    }?;
    if receipt.ended.is_none() {
        return Some(reply::value(StatusCode::OK, &json!(receipt)));
    }
    // Its place is taken before it is read.
    let places: Option<Vec<_>> =
        (0..body::units(face.background.size(id))).map(|_| face.bodies.try_enter(&who.user)).collect();
    let Some(places) = places else {
        let fault = Fault::new(Kind::RateLimitError, "Too many large results are being read.").retryable();
        return Some(reply::refusal(StatusCode::SERVICE_UNAVAILABLE, fault));
    };
    Some(match face.background.result(who, id).await {
        Ok(Some(text)) => reply::with_text(&json!(receipt), "result", &text, places),
        // Forgotten meanwhile.
        Ok(None) => return None,
        Err(fault) => reply::fault(fault, who.operator),
    })
}

/// The calls of a caller that are open, and those that ended lately; of those in the background all that are kept.
pub fn calls(face: &Face, who: &Caller) -> Vec<Value> {
    let receipts = face.background.receipts(who);
    let known: HashSet<String> = receipts.iter().map(|receipt| receipt.call.id.clone()).collect();
    let others = face.service.calls(who).into_iter().filter(|call| !known.contains(&call.id));
    let mut all: Vec<Value> = receipts.iter().map(|receipt| json!(receipt)).collect();
    all.extend(others.map(|call| json!(call)));
    // The ids of calls are in the order of time.
    all.sort_by(|a, b| (a["phase"] != "ended", a["id"].as_str()).cmp(&(b["phase"] != "ended", b["id"].as_str())));
    all
}
