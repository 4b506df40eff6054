//! Actions: the call that a model wrote into its text.
//!
//! For: `POST /v1/actions`. In: a caller, `{text, user}`. Out: the text before the action, the observation for the model,
//! the outcome. Never: a call that outlives its client or the server.

use super::calls::{self, run_while_served};
use super::reply::{self, Held, Response, malformed};
use super::{OfFace, approvals, body, tools};
use crate::base::json::Object;
use crate::service::{self, Arguments, CallRequest, Caller, TraceContext};
use crate::transport::action::{self, Answer};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// What the model wrote.
    text: String,
    /// On whose behalf.
    user: Option<String>,
}

pub async fn act(
    State(face): OfFace,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(face) = face.upgrade() else { return reply::stopping() };
    let Some(begun) = face.begin() else { return reply::stopping() };
    let (text, places) = match body::read(&face, &caller, &headers, body).await {
        Ok(read) => read,
        Err(refusal) => return *refusal,
    };
    let read = |body: &str| serde_json::from_str(body).map(|Object(Asked { text, user })| (action::read(&text), user));
    let Ok((reading, user)) = body::apart(&face, &caller, text, read).await else {
        let words = "The body is {\"text\": what the model wrote}, with \"user\" where it is on somebody's behalf.";
        return reply::refusal(StatusCode::BAD_REQUEST, malformed(words));
    };
    let idempotency_key = match calls::key(&headers) {
        Ok(key) => key,
        Err(refusal) => return *refusal,
    };
    let label = match service::label(user) {
        Ok(label) => label,
        Err(fault) => return reply::refusal(StatusCode::BAD_REQUEST, fault),
    };
    let operator = tools::is_operator(&face, &caller);
    let from = CallRequest {
        id: Some(service::new_id()),
        idempotency_key,
        label,
        approver: approvals::of(&face, &caller),
        trace: TraceContext::of_headers(&headers),
        ..CallRequest::new(caller, "", Arguments::Text(String::new()))
    };
    let label = from.label.clone();
    let acted = run_while_served(&face, action::answer(&face.service, &[], from, reading)).await;
    drop(places);
    let Some(answer) = acted else { return reply::stopping() };
    let turn = answer.outcome.as_ref().and_then(|report| report.turn.clone());
    let large = answer.outcome.as_ref().is_some_and(|report| report.is_large());
    let held = Held::made(String::new(), "\n", (begun, turn), large, move |to| {
        let Answer { lead, dialect, observation, warnings, outcome } = &answer;
        let outcome = outcome.as_ref().map(|report| report.shown(operator, label.as_deref()));
        reply::visible(&Shown { lead, dialect, observation, warnings, outcome }, to)
    });
    let mut response = Response::new(Body::new(held));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer as its caller may see it.
#[derive(Serialize)]
struct Shown<'a, O> {
    lead: &'a str,
    dialect: &'a Option<action::Dialect>,
    observation: &'a Option<String>,
    warnings: &'a [String],
    outcome: Option<O>,
}
