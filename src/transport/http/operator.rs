//! For operators: `/v1/approvals`, `/v1/status`, `/metrics`.

use super::background::no_such_call;
use super::body;
use super::reply::{self, Refusal, Response};
use super::request::{KnownRequest, Operator};
use crate::base::json::Object;
use crate::registry::Filter;
use crate::service::{Caller, Phase};
use axum::body::Body;
use axum::extract::Path;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

/// `GET /v1/status`.
pub async fn status(Operator(KnownRequest { server, caller, .. }): Operator) -> Response {
    let service = &server.service;
    let everybody = Caller::operator(caller.user);
    let open = service.calls(&everybody);
    let count = |phase: Phase| open.iter().filter(|call| call.phase == phase).count();
    let snapshot = service.registry().snapshot();
    let sources: BTreeMap<_, _> = snapshot.sources.iter().cloned().collect();
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": service.ready().is_ok(),
        "draining": server.stop.is_cancelled(),
        "running": count(Phase::Running),
        "waiting": count(Phase::Waiting),
        "approvals": service.approvals().len(),
        "breakers": service.breakers(&everybody),
        "tools": snapshot.list(&Filter::default()).len(),
        "sources": sources,
        "skippedFiles": snapshot.skipped(),
        "stale": snapshot.warnings.iter().cloned().chain(service.stale_rules()).collect::<Vec<_>>(),
        "background": server.background.kept(),
        "brokers": server.brokers.status(),
        "toolServices": service.tool_services(),
        "announced": server.announced.told(),
    });
    reply::json(StatusCode::OK, &status)
}

/// `GET /metrics`.
pub async fn metrics(Operator(KnownRequest { server, .. }): Operator) -> Response {
    let (mut text, kept) = (server.service.metrics(), server.background.kept());
    text.gauge("toolhost_background_calls_open", "Calls in the background that did not end.", kept.open);
    text.gauge("toolhost_background_calls_kept", "Calls in the background whose results are kept.", kept.ended);
    text.gauge("toolhost_callbacks_owed", "Ends of calls whose callers are still to be told.", kept.untold);
    reply::plain_text(text.whole())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    approve: bool,
}

/// `GET /v1/approvals`.
pub async fn approvals(Operator(KnownRequest { server, .. }): Operator) -> Response {
    reply::json(StatusCode::OK, &json!({ "approvals": server.service.approvals() }))
}

/// `POST /v1/approvals/{call}`.
pub async fn approve(Operator(known): Operator, Path(call): Path<String>, body: Body) -> Result<Response, Refusal> {
    let received = body::read(&known, "", body, |_| false).await?;
    let read = |text: &str| serde_json::from_str::<Object<Approval>>(text).map(|Object(answer)| answer);
    let Approval { approve } = body::parse(&known, received.text, read)
        .await
        .map_err(|_| Refusal::malformed("The body is {\"approve\": true} or {\"approve\": false}."))?;
    match known.server.service.approve(&known.caller, &call, approve) {
        Some(Ok(())) => Ok(reply::json(StatusCode::OK, &json!({ "call": call, "approved": approve }))),
        Some(Err(fault)) => Err(known.refusal(fault)),
        None => Err(no_such_call("No such call waits for an answer.")),
    }
}
