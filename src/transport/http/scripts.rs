//! `PUT /v1/scripts/{path}`: scripts that operators upload.

use super::body;
use super::reply::{self, Refusal, Response};
use super::request::{Operator, not_operator};
use crate::fault::{Fault, Kind};
use crate::service::upload::upload;
use axum::body::Body;
use axum::extract::Path;
use http::StatusCode;
use serde_json::json;

const MEDIA_TYPE: &str = "application/octet-stream";

pub async fn put(
    Operator(known): Operator,
    Path(path): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let Some(base) = known.server.uploads.clone() else {
        let words = "This host has no folder of scripts (--scripts).";
        return Err(Fault::new(Kind::CapabilityError, words).into());
    };
    let received = body::read_bytes(&known, "", body, MEDIA_TYPE, |_| true).await?;
    // The body may have taken long to arrive.
    let operator = known.acting_now()?;
    if !operator.operator {
        return Err(not_operator());
    }
    let service = known.server.service.clone();
    let written = move || upload(&service, &base, &operator.user, &path, &received.bytes);
    let uploaded = tokio::task::spawn_blocking(written).await;
    let uploaded = uploaded.map_err(|_| {
        let words = "The host failed while it wrote this script.";
        Fault::new(Kind::InternalError, words)
    })?;
    let uploaded = uploaded.map_err(|fault| known.refusal(fault))?;
    Ok(reply::json(StatusCode::CREATED, &json!(uploaded)))
}
