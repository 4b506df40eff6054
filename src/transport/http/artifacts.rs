//! Artifacts: only to their owner, and always to be saved, never to be shown as a page.

use super::reply::{self, Refusal, Response, malformed};
use super::request::KnownRequest;
use super::tools;
use crate::base::semaphore::Permit;
use crate::base::store::Content;
use crate::policy;
use crate::service::artifacts::OpenArtifact;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use futures_util::stream;
use http::{HeaderValue, StatusCode, Uri, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use std::io;
use std::os::unix::fs::FileExt;

/// How much is read and sent at a time, bytes.
const PIECE_BYTES: usize = 256 * 1024;
/// Most artifacts of a list, and most bytes of one in it: a name is printable and short.
const MAX_LISTED: usize = 500;
const LISTED_BYTES: usize = 1024;

/// `GET /v1/artifacts`: the newest of this caller, or of the one that `as` names.
pub async fn list(known: KnownRequest, uri: Uri) -> Result<Response, Refusal> {
    let owner = tools::acting(&known, &uri)?.user;
    let service = known.server.service.clone();
    let caller = known.caller.clone();
    let _reserved = service
        .limiter
        .try_answer(&caller.user, MAX_LISTED * LISTED_BYTES)?;
    let (readers, user) = (service.limiter.readers.clone(), caller.user.clone());
    let listed = readers.run(&user, move || {
        let mut all = service.artifacts_of(&caller, Some(&owner));
        all.truncate(MAX_LISTED);
        all
    });
    let listed = listed.await.unwrap_or_default();
    Ok(reply::json(StatusCode::OK, &json!({ "artifacts": listed })))
}

/// `GET /v1/artifacts/{id}`. `as`: the caller that the artifact belongs to.
pub async fn one(
    known: KnownRequest,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let service = known.server.service.clone();
    let caller = known.caller.clone();
    let owner = tools::acting(&known, &uri)?.user;
    let reserved = service.limiter.try_answer(&caller.user, PIECE_BYTES)?;
    let (readers, user) = (service.limiter.readers.clone(), caller.user.clone());
    // The whole content is compared with its digest.
    let open = readers.run(&user, move || service.artifact(&caller, Some(&owner), &id));
    let open = open.await.ok().flatten();
    let OpenArtifact { file, content } = open.ok_or_else(|| {
        Refusal::new(
            StatusCode::NOT_FOUND,
            malformed("You have no such artifact."),
        )
    })?;
    let name = name_to_save(&file.name);
    let encoded = utf8_percent_encode(&name, NON_ALPHANUMERIC);
    let length = content.bytes;
    let mut response = Response::new(Body::from_stream(pieces(content, reserved)));
    for (header, value) in [
        (header::CONTENT_TYPE, file.media_type),
        (header::CONTENT_LENGTH, length.to_string()),
        (
            header::CONTENT_DISPOSITION,
            format!(
                "attachment; filename=\"{}\"; filename*=UTF-8''{encoded}",
                plain_name(&name)
            ),
        ),
        (
            header::CONTENT_SECURITY_POLICY,
            "sandbox; default-src 'none'".to_owned(),
        ),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(header, value);
        }
    }
    Ok(response)
}

/// The name under which a client saves a file: none that other programs obey.
fn name_to_save(name: &str) -> String {
    if name.starts_with('.') || policy::is_definition(name) || policy::leads_modules(name) {
        format!("_{}", name.trim_start_matches('.'))
    } else {
        name.to_owned()
    }
}

/// The same for clients that read only ASCII.
fn plain_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.replace(|c| !is_plain(c), "_")
}

/// What an artifact holds, piece by piece. `reserved`: the memory of one, until the last is sent.
fn pieces(
    content: Content,
    reserved: Permit,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    stream::try_unfold((content, reserved, 0), async |(content, reserved, sent)| {
        if sent >= content.bytes {
            return Ok(None);
        }
        let (file, at) = (content.file.clone(), content.offset + sent);
        let length =
            usize::try_from(content.bytes - sent).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; length];
            file.read_exact_at(&mut piece, at).map(|()| piece)
        });
        let piece = read.await.map_err(io::Error::other)??;
        let sent = sent + piece.len() as u64;
        Ok(Some((piece.into(), (content, reserved, sent))))
    })
}
