//! `/v1/approvals`: the calls that wait for a person, for operators to look at and to answer.

use super::extract::Operator;
use super::reply::{self, Response, malformed};
use super::{Face, body};
use crate::base::json::Object;
use crate::fault::{Fault, Kind};
use crate::service::{Approver, Caller};
use axum::body::Body;
use axum::extract::Path;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    approve: bool,
}

/// Who can be asked about a call of this caller. Where everybody is one user of this machine, who asks cannot be told
/// from who answers.
pub fn of(face: &Face, caller: &Caller) -> Approver {
    Approver::Operators { but: (!face.callers.is_own()).then(|| caller.user.clone()) }
}

/// `GET /v1/approvals`.
pub async fn list(Operator { face, .. }: Operator) -> Response {
    reply::value(StatusCode::OK, &json!({ "approvals": face.service.approvals() }))
}

/// `POST /v1/approvals/{call}`.
pub async fn answer(
    Operator { face, caller }: Operator,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let received = match body::read(&face, &caller, &headers, body, ("", |_| false)).await {
        Ok(received) => received,
        Err(body::Unread { status, fault }) => return reply::refusal(status, fault),
    };
    let read = |text: &str| serde_json::from_str::<Object<Answer>>(text).map(|Object(answer)| answer);
    let Ok(Answer { approve }) = body::apart(&face, &caller, received.text, read).await else {
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
