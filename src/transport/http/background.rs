//! Calls in the background: a receipt at once (`"mode": "async"`, `Prefer: respond-async`), and the result later, read once
//! its memory is charged.

use super::Face;
use super::calls::{self, Begun};
use super::reply::{self, Response};
use super::stream::{COMMENT, QUIET, event, streamed};
use crate::fault::Fault;
use crate::service::background::Receipt;
use crate::service::{CallRequest, Caller, Phase, Reservation, Sink};
use axum::body::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Longest wait for the end of a call, seconds.
const LONGEST: u64 = 60;
/// How often a stream looks at its call while that tells nothing new: ten minutes.
const FOLLOWED: u32 = 40;

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
    let by_tool = || {
        let who = face.service.who(&request.caller, request.label.as_deref());
        face.service.find(&who, &request.tool).is_ok_and(|tool| tool.manifest.execution.asynchronous)
    };
    said.unwrap_or_else(|| preference(headers).0 || by_tool())
}

/// The client of a call that ends with its answer is told by that alone.
pub fn nobody_told() -> Fault {
    reply::malformed("A callback is told of calls in the background: add \"mode\": \"async\", or leave it out.")
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
            let request = CallRequest { id, label, counted: usize::MAX, ..CallRequest::refused(caller, &tool, fault) };
            let report = calls::run(face, request, Sink::none()).await;
            reply::report(report, seen_by, begun)
        }
    }
}

/// A call in the background, with its result once it ended. `None`: it is none.
pub async fn told(face: &Arc<Face>, who: &Caller, id: &str, headers: &HeaderMap) -> Option<Response> {
    if calls::wants_events(headers) {
        return follow(face.clone(), who.clone(), id.to_owned());
    }
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
    let room = room(face, who, id).await;
    Some(match face.background.result(who, id).await {
        Ok(Some(text)) => reply::with_text(&json!(receipt), "result", &text, room),
        // Forgotten meanwhile.
        Ok(None) => return None,
        Err(fault) => reply::fault(fault, who.operator),
    })
}

/// Taken before a result is read.
async fn room(face: &Face, who: &Caller, id: &str) -> Reservation {
    face.service.limiter().answer(&who.user, face.background.size(id)).await
}

/// The same call as a stream: `state` as it is and whenever it is another, then one `end`. It goes on for a bounded time.
fn follow(face: Arc<Face>, who: Caller, id: String) -> Option<Response> {
    face.background.receipt(&who, &id)?;
    let following = Following { face, who, id, shown: None, left: FOLLOWED, over: None };
    Some(streamed(stream::unfold(following, Following::next)))
}

/// A call whose end somebody waits for.
struct Following {
    face: Arc<Face>,
    who: Caller,
    id: String,
    /// Its phase as it was told last.
    shown: Option<Phase>,
    /// How often it is still looked at.
    left: u32,
    /// The end was sent: the room that it takes until it is read.
    over: Option<Reservation>,
}

impl Following {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Following)> {
        if self.over.is_some() {
            return None;
        }
        // How it is now is told at once.
        let quiet = self.shown.map_or(Duration::ZERO, |_| QUIET);
        let receipt = tokio::select! {
            receipt = self.face.background.waited(&self.who, &self.id, quiet) => receipt,
            () = self.face.stop.cancelled() => None,
        }?;
        self.left = self.left.checked_sub(1)?;
        let phase = receipt.call.phase;
        let told = match self.shown.replace(phase) {
            _ if phase == Phase::Ended => self.end(&receipt).await,
            shown if shown != Some(phase) => event("state", &json!(receipt)),
            _ => COMMENT.into(),
        };
        Some((Ok(told.into()), self))
    }

    /// The receipt with the result, where it is still there.
    async fn end(&mut self, receipt: &Receipt) -> Vec<u8> {
        self.over = Some(room(&self.face, &self.who, &self.id).await);
        let result = self.face.background.result(&self.who, &self.id).await.ok().flatten();
        let (name, text) = result.map_or(("resultLeftOut", "true".to_owned()), |text| ("result", text));
        reply::joined(&json!(receipt), name, &text, ("event: end\ndata: ", "\n\n")).into_bytes()
    }
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
