//! Calls in the background: a receipt at once (`"mode": "async"`, `Prefer: respond-async`), and the
//! result later, read once its memory is charged. Also lists a caller's calls: `/v1/calls`.

use super::reply::{self, Events, KEEP_ALIVE, Recipient, Refusal, Response};
use super::request::{self, KnownRequest, Start};
use crate::base::semaphore::Permit;
use crate::base::text;
use crate::executor::CallDeadline;
use crate::fault::{Fault, Kind};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::background::EndReport;
use crate::service::{CallRequest, Caller, Phase, Report, stop_orders};
use crate::transport::action;
use axum::extract::Path;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Longest wait for the end of a call, seconds.
const MAX_WAIT_SECONDS: u64 = 60;
/// Most observations of one answer.
const MAX_OBSERVATIONS: usize = 8;
/// How often a stream checks a call before it ends: about ten minutes in all.
const MAX_CHECKS: u32 = 40;

/// What a `Prefer` header asks for (RFC 7240): a receipt, and how long to wait for an end. Others
/// are ignored, as the RFC says.
fn preference(headers: &HeaderMap) -> (bool, Option<Duration>) {
    let lines = headers
        .get_all(PREFER)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let words: Vec<&str> = lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .collect();
    let receipt = words
        .iter()
        .any(|word| word.eq_ignore_ascii_case("respond-async"));
    let wait = words
        .iter()
        .filter_map(|word| word.split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case("wait"));
    let seconds = wait.and_then(|(_, seconds)| seconds.parse::<u64>().ok());
    (
        receipt,
        seconds.map(|seconds| Duration::from_secs(seconds.min(MAX_WAIT_SECONDS))),
    )
}

/// Whether a call runs in the background: as its body says, else its header, else its tool's
/// manifest.
pub fn is_detached(known: &KnownRequest, request: &CallRequest, by_body: Option<bool>) -> bool {
    let background = &known.server.background;
    by_body.unwrap_or_else(|| preference(&known.headers).0 || background.is_asked_by(request))
}

/// Submits a call, and answers with its receipt. A refusal is recorded, and has its own status.
pub async fn begin(
    start: Start,
    request: CallRequest,
    callback: Option<String>,
    recipient: &Recipient,
) -> Response {
    let Start {
        known: KnownRequest { server, .. },
        begun,
    } = start;
    let report = callback.map_or(EndReport::OnRequest, EndReport::Callback);
    match server.background.begin(request, report).await {
        Ok(receipt) => {
            let mut response = reply::json(StatusCode::ACCEPTED, &json!(receipt));
            let headers = response.headers_mut();
            if let Ok(place) = HeaderValue::from_str(&format!("/v1/calls/{}", receipt.call.id)) {
                headers.insert(header::LOCATION, place);
            }
            headers.insert(APPLIED, HeaderValue::from_static("respond-async"));
            response
        }
        Err(report) => reply::report(report, None, recipient, begun).await,
    }
}

/// `GET /v1/calls`: the caller's open and recently ended calls, and all background calls that are
/// retained, and its sessions. An operator also gets the processes that wait for calls.
pub async fn list(known: KnownRequest) -> Response {
    let server = &known.server;
    let who = known.acting();
    let receipts = server.background.receipts(&who);
    let ids: HashSet<&str> = receipts
        .iter()
        .map(|receipt| receipt.call.id.as_str())
        .collect();
    let others = server
        .service
        .calls
        .of(&who)
        .into_iter()
        .filter(|call| !ids.contains(call.id.as_str()));
    let mut all: Vec<Value> = others.map(|call| json!(call)).collect();
    all.extend(receipts.iter().map(|receipt| json!(receipt)));
    // Ids of calls sort by time.
    all.sort_by(|a, b| {
        (a["phase"] != "ended", a["id"].as_str()).cmp(&(b["phase"] != "ended", b["id"].as_str()))
    });
    let service = &server.service;
    let mut state = json!({ "calls": all, "ready": [], "cold": {} });
    state["sessions"] = json!(service.sessions.of(&who));
    if who.operator {
        state["ready"] = json!(service.ready.list());
        state["cold"] = json!(service.ready.cold());
    }
    reply::json(StatusCode::OK, &state)
}

/// `GET /v1/calls/{call}`: the state of a call; of an ended background call also the result.
pub async fn one(known: KnownRequest, Path(id): Path<String>) -> Result<Response, Refusal> {
    let server = &known.server;
    let who = known.acting();
    let background = &server.background;
    let receipt = match (background.receipt(&who, &id), preference(&known.headers).1) {
        (Some(_), _) if request::wants_events(&known.headers) => {
            return Ok(reply::events(move |to| follow(to, known, id)));
        }
        (Some(_), Some(time)) => tokio::select! {
            receipt = background.waited(&who, &id, time) => receipt,
            () = server.stop.cancelled() => background.receipt(&who, &id),
        },
        (receipt, _) => receipt,
    };
    match receipt {
        Some(receipt) if receipt.ended.is_none() => {
            return Ok(reply::json(StatusCode::OK, &json!(receipt)));
        }
        Some(receipt) => {
            let room = room(&known, &who, &id).await;
            // The waits may have been long, so check again who this is.
            let who = known.acting_now()?;
            if let Some(result) = background
                .result(&who, &id)
                .await
                .map_err(|fault| known.refusal(fault))?
            {
                let text = text::with_field(&json!(receipt), "result", &result) + "\n";
                return Ok(reply::document(vec![text.into_bytes().into()], room));
            }
        }
        None => {}
    }
    match server.service.calls.state(&who, &id) {
        Some(state) => Ok(reply::json(StatusCode::OK, &json!(state))),
        None => {
            background
                .ready()
                .await
                .map_err(|fault| known.refusal(fault))?;
            Err(no_such_call("You have no such call."))
        }
    }
}

/// `DELETE /v1/calls/{call}`, of a call or of a session.
pub async fn cancel(known: KnownRequest, Path(id): Path<String>) -> Result<Response, Refusal> {
    let server = &known.server;
    let who = known.acting();
    let service = &server.service;
    let of_another = stop_orders::of_another(&server.background, &who, &id);
    if server.background.cancel(&who, &id)
        || service.calls.cancel(&who, &id)
        || service.sessions.end(&who, &id)
    {
        stop_orders::record(service, &who, "cancelled", of_another);
        Ok(reply::json(
            StatusCode::ACCEPTED,
            &json!({ "id": id, "cancelled": true }),
        ))
    } else {
        Err(no_such_call("You have no such open call."))
    }
}

/// `POST /v1/calls/{call}/interrupt`, of a session.
pub async fn interrupt(known: KnownRequest, Path(id): Path<String>) -> Result<Response, Refusal> {
    let (service, who) = (&known.server.service, known.acting());
    let of_another = stop_orders::of_another(&known.server.background, &who, &id);
    if service.sessions.interrupt(&who, &id) {
        stop_orders::record(service, &who, "interrupted", of_another);
        let done = json!({ "id": id, "interrupted": true });
        return Ok(reply::json(StatusCode::ACCEPTED, &done));
    }
    Err(no_such_call("You have no such session."))
}

/// `/v1/observations`: what the caller's actions in the background ended with. `POST` takes them:
/// none of them is given again.
pub async fn observations(known: KnownRequest, method: Method) -> Result<Response, Refusal> {
    let background = &known.server.background;
    let refusal = |fault| known.refusal(fault);
    background.ready().await.map_err(refusal)?;
    let who = known.acting();
    let mut ended = background.unobserved(&who);
    let more = ended.len().saturating_sub(MAX_OBSERVATIONS);
    ended.truncate(MAX_OBSERVATIONS);
    let mut all = Vec::new();
    for receipt in &ended {
        let call = &receipt.call;
        let _room = room(&known, &who, &call.id).await;
        let outcome = match background.result(&who, &call.id).await {
            Ok(Some(outcome)) => outcome,
            // Its result was removed meanwhile.
            Ok(None) => continue,
            Err(fault) => {
                json!(Report::of_fault(call.id.clone(), &call.tool, fault).for_reader(false, None))
                    .to_string()
            }
        };
        let is_long = outcome.len() > LARGE_TEXT_BYTES;
        let observation = CallDeadline::usual(&who.user, None)
            .run(is_long, move || action::ended(&outcome))
            .await;
        let observation = observation.map_err(refusal)?;
        all.push(json!({"id": call.id, "caller": call.caller, "observation": observation}));
    }
    // A token may have been withdrawn while this waited.
    known.acting_now()?;
    if method == Method::POST {
        let taken = background.observed(&ended).await.map_err(refusal)?;
        all.retain(|it| taken.iter().any(|id| it["id"] == **id));
    }
    let answer = json!({"observations": all, "more": more});
    Ok(reply::json(StatusCode::OK, &answer))
}

pub fn no_such_call(words: &str) -> Refusal {
    Fault::new(Kind::ToolNotFoundError, words).into()
}

/// Memory for a result, taken before the result is read.
async fn room(known: &KnownRequest, who: &Caller, id: &str) -> Permit {
    known
        .server
        .service
        .limiter
        .answer(&who.user, known.server.background.size(id))
        .await
}

/// A call as a stream: `state` as it is and whenever it changes, then one `end`. The stream ends
/// after a bounded time.
async fn follow(to: Events, known: KnownRequest, id: String) {
    let background = &known.server.background;
    let mut shown = None;
    for _ in 0..MAX_CHECKS {
        // The present state is sent at once.
        let quiet = shown.map_or(Duration::ZERO, |_| KEEP_ALIVE);
        let Ok(who) = known.acting_now() else { return };
        let receipt = tokio::select! {
            receipt = background.waited(&who, &id, quiet) => receipt,
            () = known.server.stop.cancelled() => None,
        };
        let Some(receipt) = receipt else { return };
        if receipt.call.phase == Phase::Ended {
            let room = room(&known, &who, &id).await;
            let Ok(who) = known.acting_now() else { return };
            let result = background.result(&who, &id).await.ok().flatten();
            let (name, json) = result.map_or(("resultLeftOut", "true".to_owned()), |json| {
                ("result", json)
            });
            let text = format!(
                "event: end\ndata: {}\n\n",
                text::with_field(&json!(receipt), name, &json)
            );
            return to.send_parts(vec![text.into_bytes().into()], room).await;
        }
        if shown.replace(receipt.call.phase) != Some(receipt.call.phase) {
            to.send("state", &json!(receipt)).await;
        }
    }
}
