//! `PUT /v1/scripts/{path}`: scripts that operators upload.

use super::body;
use super::reply::{self, Refusal, Response};
use super::request::{Operator, not_operator};
use crate::service::upload::upload;
use axum::body::Body;
use axum::extract::Path;
use http::StatusCode;

const MEDIA_TYPE: &str = "application/octet-stream";

pub async fn put(
    Operator(known): Operator,
    Path(path): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let received = body::read_bytes(&known, "", body, MEDIA_TYPE, |_| true).await?;
    // The body may have taken long to arrive.
    let operator = known.acting_now()?;
    if !operator.operator {
        return Err(not_operator());
    }
    let server = known.server.clone();
    let write = move || {
        let base = &server.uploads;
        upload(
            &server.service,
            base,
            &operator.user,
            &path,
            &received.bytes,
        )
    };
    let written = tokio::task::spawn_blocking(write).await;
    let written = written.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()));
    let written = written.map_err(|fault| known.refusal(fault))?;
    Ok(reply::json(StatusCode::CREATED, &written))
}
