//! `POST /v1/actions`: the call that a model wrote into its text.

use super::body;
use super::reply::{self, Refusal, Response};
use super::request::{self, Start};
use crate::base::json::Object;
use crate::service::{self, Arguments, CallRequest, Report, Reservation};
use crate::transport::action::{self, Answer};
use crate::transport::answers;
use axum::body::Body;
use axum::response::IntoResponse;
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
        Ok(action) => run(start, action).await,
        Err(refusal) => start.refuse("", refusal).await,
    }
}

/// A body that was read: the model's text, and the call that it may lead to.
struct Action {
    reading: action::Reading,
    request: CallRequest,
    charge: Reservation,
}

async fn read(start: &Start, body: Body) -> Result<Action, Refusal> {
    let received = body::read(&start.known, "", body, |_| true).await?;
    let read =
        |body: &str| serde_json::from_str(body).map(|Object(ActionBody { text, user })| (action::read(&text), user));
    let (reading, user) = body::parse(&start.known, received.text, read).await.map_err(|_| {
        let words = "The body is {\"text\": what the model wrote}, with \"user\" where it is on somebody's behalf.";
        Refusal::malformed(words)
    })?;
    let request = CallRequest {
        idempotency_key: request::idempotency_key(&start.known.headers).map_err(Refusal::unreadable)?,
        label: service::label(user).map_err(Refusal::unreadable)?,
        counted: received.counted,
        ..start.request(String::new(), Arguments::default())
    };
    Ok(Action { reading, request, charge: received.charge })
}

async fn run(start: Start, Action { reading, request, charge }: Action) -> Response {
    let reader = start.reader(request.label.clone());
    let server = &start.known.server;
    let answer = request::run_while_served(server, action::act(&server.service, &[], request, reading)).await;
    drop(charge);
    let Some(mut answer) = answer else { return Refusal::stopping().into_response() };
    let outcome = answer.outcome.take();
    let kept = (start.begun, outcome.as_ref().and_then(|report| report.turn.clone()));
    let (payer, operator, label, answer) = (reader.payer, reader.operator, reader.label, Arc::new(answer));
    let write = move |outcome: Option<&Report>, to: &mut dyn Write| {
        let Answer { lead, dialect, observation, warnings, .. } = &*answer;
        let outcome = outcome.map(|report| report.shown(operator, label.as_deref()));
        answers::visible(&ActionAnswer { lead, dialect, observation, warnings, outcome }, to)?;
        to.write_all(b"\n")
    };
    let built = match outcome {
        Some(report) => answers::of_report(payer, report, move |report, to| write(Some(report), to)).await,
        None => payer.build(0, move |to| write(None, to)).await,
    };
    reply::document(built, kept)
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
