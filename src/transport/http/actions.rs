//! Actions: the call that a model wrote into its text.
//!
//! For: `POST /v1/actions`. In: a caller, `{text, user}`. Out: the text before the action, the observation for the model,
//! the outcome. Never: a call that outlives its client or the server.

use super::calls::{self, run_while_served};
use super::reply::{self, Held, Response, malformed};
use super::{OfFace, approvals, body, tools};
use crate::base::json::Object;
use crate::service::{self, Arguments, CallRequest, Caller, Report, TraceContext};
use crate::transport::action::{self, Answer};
use crate::transport::answers;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;

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
    let received = match body::read(&face, &caller, &headers, body, ("", |_| true)).await {
        Ok(received) => received,
        Err(unread) => return body::refuse(face, caller, "", unread, begun).await,
    };
    let read = |body: &str| serde_json::from_str(body).map(|Object(Asked { text, user })| (action::read(&text), user));
    let read = body::apart(&face, &caller, received.text, read).await.map_err(|_| {
        malformed("The body is {\"text\": what the model wrote}, with \"user\" where it is on somebody's behalf.")
    });
    let read = read.and_then(|(reading, user)| Ok((reading, calls::key(&headers)?, service::label(user)?)));
    let (reading, idempotency_key, label) = match read {
        Ok(read) => read,
        Err(fault) => return body::refuse(face, caller, "", body::Unread::bad(fault), begun).await,
    };
    let operator = tools::is_operator(&face, &caller);
    let payer = face.payer(&caller);
    let from = CallRequest {
        id: Some(service::new_id()),
        idempotency_key,
        label,
        counted: received.counted,
        approver: approvals::of(&face, &caller),
        trace: TraceContext::of_headers(&headers),
        ..CallRequest::new(caller, "", Arguments::Text(String::new()))
    };
    let label = from.label.clone();
    let acted = run_while_served(&face, action::answer(&face.service, &[], from, reading)).await;
    drop(received.kept);
    let Some(mut answer) = acted else { return reply::stopping() };
    let outcome = answer.outcome.take();
    let kept = (begun, outcome.as_ref().and_then(|report| report.turn.clone()));
    let answer = Arc::new(answer);
    let write = move |outcome: Option<&Report>, to: &mut dyn Write| {
        let Answer { lead, dialect, observation, warnings, .. } = &*answer;
        let outcome = outcome.map(|report| report.shown(operator, label.as_deref()));
        answers::visible(&Shown { lead, dialect, observation, warnings, outcome }, to)?;
        to.write_all(b"\n")
    };
    let held = match outcome {
        Some(report) => Held::new(answers::of_report(payer, report, move |report, to| write(Some(report), to)), kept),
        None => Held::new(async move { payer.build(0, move |to| write(None, to)).await }, kept),
    };
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
