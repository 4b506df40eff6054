//! `POST /v1/actions`: the call that a model wrote into its text.

use super::body::{self, BodyError};
use super::calls::{self, run_while_served};
use super::extract::Start;
use super::reply::{self, AnswerBody, Response, malformed};
use crate::base::json::Object;
use crate::service::{self, Arguments, CallRequest, Report, Reservation};
use crate::transport::action::{self, Answer};
use crate::transport::answers;
use axum::body::Body;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionBody {
    /// What the model wrote.
    text: String,
    /// On whose behalf.
    user: Option<String>,
}

pub async fn act(start: Start, body: Body) -> Response {
    match read(&start, body).await {
        Ok(action) => acted(start, action).await,
        Err(unread) => start.refuse("", unread).await,
    }
}

/// A body that was read: the model's text, and the call that it may lead to.
struct Action {
    reading: action::Reading,
    from: CallRequest,
    kept: Reservation,
}

async fn read(start: &Start, body: Body) -> Result<Action, BodyError> {
    let received = start.read("", body).await?;
    let read =
        |body: &str| serde_json::from_str(body).map(|Object(ActionBody { text, user })| (action::read(&text), user));
    let (reading, user) = body::apart(start.face(), start.caller(), received.text, read).await.map_err(|_| {
        malformed("The body is {\"text\": what the model wrote}, with \"user\" where it is on somebody's behalf.")
    })?;
    let from = CallRequest {
        idempotency_key: calls::key(&start.headers)?,
        label: service::label(user)?,
        counted: received.counted,
        ..start.request(String::new(), Arguments::default())
    };
    Ok(Action { reading, from, kept: received.kept })
}

async fn acted(start: Start, Action { reading, from, kept }: Action) -> Response {
    let reply::Reader { payer, operator, .. } = start.reader(None);
    let face = start.face();
    let label = from.label.clone();
    let acted = run_while_served(face, action::act(&face.service, &[], from, reading)).await;
    drop(kept);
    let Some(mut answer) = acted else { return reply::stopping() };
    let outcome = answer.outcome.take();
    let kept = (start.begun, outcome.as_ref().and_then(|report| report.turn.clone()));
    let answer = Arc::new(answer);
    let write = move |outcome: Option<&Report>, to: &mut dyn Write| {
        let Answer { lead, dialect, observation, warnings, .. } = &*answer;
        let outcome = outcome.map(|report| report.shown(operator, label.as_deref()));
        answers::visible(&ActionAnswer { lead, dialect, observation, warnings, outcome }, to)?;
        to.write_all(b"\n")
    };
    let held = match outcome {
        Some(report) => {
            AnswerBody::new(answers::of_report(payer, report, move |report, to| write(Some(report), to)), kept)
        }
        None => AnswerBody::new(async move { payer.build(0, move |to| write(None, to)).await }, kept),
    };
    let mut response = Response::new(Body::new(held));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer as its caller may see it.
#[derive(Serialize)]
struct ActionAnswer<'a, O> {
    lead: &'a str,
    dialect: &'a Option<action::Dialect>,
    observation: &'a Option<String>,
    warnings: &'a [String],
    outcome: Option<O>,
}
