//! `/v1/calls`, `/v1/approvals`, `/v1/status`, `/metrics`: a caller's own calls; for operators those of all, what waits for
//! their approval, the state of the host, metrics.

use super::extract::{Operator, RequestCaller};
use super::reply::{self, Response, malformed};
use super::{Face, background, body};
use crate::base::json::Object;
use crate::fault::{Fault, Kind};
use crate::registry::Filter;
use crate::service::{Approver, Caller, Phase};
use axum::body::Body;
use axum::extract::Path;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;

/// `GET /v1/calls`.
pub async fn calls(RequestCaller { face, caller }: RequestCaller) -> Response {
    let who = face.service.who(&caller, None);
    reply::value(StatusCode::OK, &json!({ "calls": background::calls(&face, &who) }))
}

/// `GET /v1/calls/{call}`.
pub async fn call(
    RequestCaller { face, caller }: RequestCaller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let who = face.service.who(&caller, None);
    if let Some(told) = background::told(&face, &who, &id, &headers).await {
        return told;
    }
    match face.service.call_state(&who, &id) {
        Some(state) => reply::value(StatusCode::OK, &json!(state)),
        None => missing(&face, &who).await,
    }
}

/// What is not there, unless nobody knows now what is.
async fn missing(face: &Face, who: &Caller) -> Response {
    match face.background.ready().await {
        Ok(()) => no_such_call("There is no such call of yours."),
        Err(fault) => reply::fault(fault, who.operator),
    }
}

/// `DELETE /v1/calls/{call}`.
pub async fn cancel(RequestCaller { face, caller }: RequestCaller, Path(id): Path<String>) -> Response {
    let who = face.service.who(&caller, None);
    match face.background.cancel(&who, &id) || face.service.cancel(&who, &id) {
        true => reply::value(StatusCode::ACCEPTED, &json!({ "id": id, "cancelled": true })),
        false => no_such_call("There is no such open call of yours."),
    }
}

fn no_such_call(words: &str) -> Response {
    reply::refusal(StatusCode::NOT_FOUND, Fault::new(Kind::ToolNotFoundError, words))
}

/// `GET /v1/status`, for operators.
pub async fn status(Operator { face, caller }: Operator) -> Response {
    let service = &face.service;
    let everybody = Caller::operator(caller.user);
    let open = service.calls(&everybody);
    let count = |phase: Phase| open.iter().filter(|call| call.phase == phase).count();
    let snapshot = service.registry().snapshot();
    let tools = snapshot.list(&Filter::default());
    let sources: std::collections::BTreeMap<_, _> = snapshot.sources.iter().cloned().collect();
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": service.ready().is_ok(),
        "draining": face.stop.is_cancelled(),
        "running": count(Phase::Running),
        "waiting": count(Phase::Waiting),
        "approvals": service.approvals().len(),
        "breakers": service.breakers(&everybody),
        "tools": tools.len(),
        "sources": sources,
        "skippedFiles": snapshot.skipped(),
        "stale": snapshot.warnings.iter().cloned().chain(service.stale_rules()).collect::<Vec<_>>(),
        "background": face.background.kept(),
        "brokers": face.brokers.status(),
        "toolServices": service.tool_services(),
        "announced": face.announced.told(),
    });
    reply::value(StatusCode::OK, &status)
}

/// `GET /metrics`, for operators.
pub async fn metrics(Operator { face, .. }: Operator) -> Response {
    let (mut text, kept) = (face.service.metrics(), face.background.kept());
    text.gauge("toolhost_background_calls_open", "Calls in the background that did not end.", kept.open);
    text.gauge("toolhost_background_calls_kept", "Calls in the background whose results are kept.", kept.ended);
    text.gauge("toolhost_callbacks_owed", "Ends of calls whose callers are still to be told.", kept.untold);
    reply::text(text.whole())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    approve: bool,
}

/// Who can be asked about a call of this caller. Where everybody is one user of this machine, who asks cannot be told
/// from who answers.
pub fn approver(face: &Face, caller: &Caller) -> Approver {
    Approver::Operators { but: (!face.callers.is_own()).then(|| caller.user.clone()) }
}

/// `GET /v1/approvals`.
pub async fn approvals(Operator { face, .. }: Operator) -> Response {
    reply::value(StatusCode::OK, &json!({ "approvals": face.service.approvals() }))
}

/// `POST /v1/approvals/{call}`.
pub async fn approve(
    Operator { face, caller }: Operator,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let received = match body::read(&face, &caller, &headers, body, ("", |_| false)).await {
        Ok(received) => received,
        Err(body::BodyError { status, fault }) => return reply::refusal(status, fault),
    };
    let read = |text: &str| serde_json::from_str::<Object<Approval>>(text).map(|Object(answer)| answer);
    let Ok(Approval { approve }) = body::apart(&face, &caller, received.text, read).await else {
        return reply::refusal(
            StatusCode::BAD_REQUEST,
            malformed("The body is {\"approve\": true} or {\"approve\": false}."),
        );
    };
    match face.service.approve(&caller, &call, approve) {
        Some(Ok(())) => reply::value(StatusCode::OK, &json!({ "call": call, "approved": approve })),
        Some(Err(fault)) => reply::fault(fault, true),
        None => {
            let words = "No such call waits for an answer.";
            reply::refusal(StatusCode::NOT_FOUND, Fault::new(Kind::ToolNotFoundError, words))
        }
    }
}
