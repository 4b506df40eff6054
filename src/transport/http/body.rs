//! Bodies of requests. The principal is charged for what has arrived, before it is parsed, and both
//! are limited in time.

use super::gate::single;
use super::reply::{Refusal, malformed};
use super::request::KnownRequest;
use crate::base::json::Object;
use crate::base::semaphore::{Claim, Permit};
use crate::base::{json, lock, messages};
use crate::fault::{Fault, Kind};
use crate::quantity::MAX_FILES;
use crate::service::artifacts::check_name;
use crate::service::{BroughtFile, Charged, FULL_OF_FILES, RateCharge};
use axum::body::{Body, HttpBody};
use futures_util::{StreamExt, ready, stream};
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

/// Largest body, bytes.
const MAX_BODY_BYTES: u64 = 8 * 1024 * 1024;
/// A longer body is parsed on another thread. Over MCP it counts as a call, because only a call can
/// be so long.
pub const SMALL: usize = 16 * 1024;
/// A longer body is not read if its tool does not exist for the caller.
const LONG: usize = 64 * 1024;
/// How long a body may take to arrive.
const TIME: Duration = Duration::from_secs(30);

/// The part of a form that holds what would else be the whole body.
const REQUEST_PART: &str = "request";
/// Largest form with files, bytes.
const MAX_FORM_BYTES: u64 = 256 * 1024 * 1024;
/// How long a form may take to arrive.
const FORM_TIME: Duration = Duration::from_secs(120);

/// A body that was read, and its quota until it is dropped.
pub struct Received {
    pub text: String,
    pub files: Vec<BroughtFile>,
    pub charged: Charged,
}

/// Charges the principal for a call, if `is_call` says so of the length, then reads the body.
/// `tool`: the tool in the path. If it does not exist for the caller, a long body is not read.
pub async fn read(
    known: &KnownRequest,
    tool: &str,
    body: Body,
    is_call: impl FnOnce(usize) -> bool,
) -> Result<Received, Refusal> {
    let read = read_bytes(known, tool, body, "application/json", is_call).await?;
    let Ok(text) = String::from_utf8(read.bytes) else {
        return Err(Refusal::malformed("The body is not UTF-8."));
    };
    Ok(Received {
        text,
        files: Vec::new(),
        charged: read.charged,
    })
}

/// The bytes of a body, and their quota until it is dropped.
pub struct ReceivedBytes {
    pub bytes: Vec<u8>,
    pub charged: Charged,
}

/// As `read`, of a body of this media type.
pub async fn read_bytes(
    known: &KnownRequest,
    tool: &str,
    body: Body,
    media_type: &str,
    is_call: impl FnOnce(usize) -> bool,
) -> Result<ReceivedBytes, Refusal> {
    let KnownRequest {
        server,
        caller,
        headers,
        ..
    } = known;
    fn refuse(status: StatusCode, words: &str) -> Result<ReceivedBytes, Refusal> {
        Err(Refusal::new(status, malformed(words)))
    }
    // With a known length, no two programs can differ on where a request ends.
    let Some(length) = body.size_hint().exact() else {
        return refuse(
            StatusCode::LENGTH_REQUIRED,
            "Send the body with a Content-Length, not in chunks.",
        );
    };
    // A web page of another site can send other types without a preflight request.
    let kind = single(headers, &header::CONTENT_TYPE)
        .and_then(|kind| kind.split(';').next())
        .unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case(media_type) {
        let words = format!("Send it with Content-Type: {media_type}.");
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, &words);
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Send the body without a Content-Encoding.",
        );
    }
    let Some(length) = usize::try_from(length)
        .ok()
        .filter(|_| length <= MAX_BODY_BYTES)
    else {
        let words = format!("The body is too long: at most {MAX_BODY_BYTES} bytes are read.");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, &words);
    };
    let mut rate = RateCharge::Due;
    if is_call(length) {
        server.service.catalog.charge(
            &server.service.limiter,
            caller,
            Some(tool).filter(|tool| length > LONG && !tool.is_empty()),
        )?;
        rate = RateCharge::Paid;
    }
    let bodies = &server.service.limiter.bodies;
    let claim = bodies.claim_unless_alone(&caller.user, server.callers.is_own());
    let mut charge = bodies.none();
    let mut unread = PendingRequest {
        known,
        tool,
        counts: true,
    };
    let whole = tokio::time::timeout(TIME, collect(body, &claim, &mut charge)).await;
    unread.counts = false;
    let Ok(whole) = whole else {
        return refuse(
            StatusCode::REQUEST_TIMEOUT,
            "The body did not come in time.",
        );
    };
    let bytes = whole?;
    known.connection.seat.set_whole(true);
    let charged = Charged {
        rate,
        body: Some(Arc::new(charge)),
        files: None,
    };
    Ok(ReceivedBytes { bytes, charged })
}

/// As `read`, or a form (multipart/form-data) with the same body in its part `request`, and files.
pub async fn read_with_files(
    known: &KnownRequest,
    tool: &str,
    body: Body,
) -> Result<Received, Refusal> {
    let boundary = single(&known.headers, &header::CONTENT_TYPE)
        .and_then(|kind| multer::parse_boundary(kind).ok());
    let Some(boundary) = boundary else {
        return read(known, tool, body, |_| true).await;
    };
    if known.headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Refusal::malformed(
            "Send the body without a Content-Encoding.",
        ));
    }
    let length = body.size_hint().exact();
    if length.is_none_or(|length| length > MAX_FORM_BYTES) {
        let words = format!("Send the form with a Content-Length of at most {MAX_FORM_BYTES}.");
        let fault = malformed(words);
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, fault));
    }
    let KnownRequest { server, caller, .. } = known;
    let service = &server.service;
    let tool_of_path = Some(tool).filter(|tool| !tool.is_empty());
    service
        .catalog
        .charge(&service.limiter, caller, tool_of_path)?;
    let mut unread = PendingRequest {
        known,
        tool,
        counts: true,
    };
    let form = tokio::time::timeout(FORM_TIME, read_form(known, body, boundary)).await;
    unread.counts = false;
    let form = form.unwrap_or_else(|_| {
        let late = malformed("The body did not come in time.");
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, late))
    })?;
    known.connection.seat.set_whole(true);
    Ok(form)
}

/// Reads the parts of a form as they come. Files go to memory files, and are charged for what has
/// arrived.
async fn read_form(
    known: &KnownRequest,
    body: Body,
    boundary: String,
) -> Result<Received, Refusal> {
    fn unreadable(charge: &FormCharge, error: multer::Error) -> Refusal {
        charge.full().unwrap_or_else(|| {
            let fault = malformed("The body is not a form with files.");
            Refusal::unreadable(fault.details(error.to_string()))
        })
    }
    let min_bytes = known.server.service.limiter.min_file_bytes;
    let files = &known.server.service.limiter.files;
    let claim = files.claim_unless_alone(&known.caller.user, known.server.callers.is_own());
    let charge = Arc::new(FormCharge::new(claim, files.none()));
    let counted = charge.clone();
    let mut pieces = body.into_data_stream();
    let mut is_next = true;
    // The parser would take all that is ready before it looks at any of it.
    let stream = stream::poll_fn(move |context| {
        if !std::mem::replace(&mut is_next, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = ready!(pieces.poll_next_unpin(context));
        is_next = false;
        Poll::Ready(piece.map(|piece| {
            let piece = piece.map_err(io::Error::other)?;
            counted.arrived(piece.len()).map(|()| piece)
        }))
    });
    let mut received = Received {
        text: String::new(),
        files: Vec::new(),
        charged: RateCharge::Paid.into(),
    };
    let mut form = multer::Multipart::new(stream, boundary);
    while let Some(mut part) = form
        .next_field()
        .await
        .map_err(|error| unreadable(&charge, error))?
    {
        charge.content(0);
        let name = part.name().unwrap_or_default().to_owned();
        // Clients that send it as a file give it a name.
        let is_request = name == REQUEST_PART && received.text.is_empty();
        let file_name = part.file_name().filter(|_| !is_request).map(str::to_owned);
        if let Some(name) = &file_name {
            check_name(name)?;
        } else if !is_request {
            let words = "A form has one part named request, with what would else be the body, and \
                files.";
            return Err(Refusal::malformed(words));
        }
        if received.files.len() as u64 >= MAX_FILES {
            return Err(Refusal::malformed(format!(
                "Send at most {MAX_FILES} files."
            )));
        }
        // A descriptor is charged, too.
        let charged = charge.arrived(min_bytes);
        charged.map_err(|error| charge.full().unwrap_or_else(|| no_memory(error)))?;
        charge.content(min_bytes);
        let mut content = File::from(messages::memory_file(&[]).map_err(no_memory)?);
        let mut bytes = 0;
        while let Some(piece) = part
            .chunk()
            .await
            .map_err(|error| unreadable(&charge, error))?
        {
            bytes += piece.len() as u64;
            charge.content(piece.len());
            content.write_all(&piece).map_err(no_memory)?;
        }
        match file_name {
            Some(file_name) => {
                let file = BroughtFile::from_file(&name, file_name, content, bytes);
                received.files.push(file);
            }
            None if bytes > MAX_BODY_BYTES => {
                return Err(Refusal::malformed("The part request is too long."));
            }
            None => {
                content.rewind().map_err(no_memory)?;
                content
                    .read_to_string(&mut received.text)
                    .map_err(|_| Refusal::malformed("The part request is not UTF-8."))?;
            }
        }
    }
    let permit = std::mem::replace(&mut *lock(&charge.permit), files.none());
    received.charged.files = Some(Arc::new(permit));
    Ok(received)
}

/// Most bytes that the parser of a form searches in vain: it looks at all that it holds again for
/// each piece that comes.
const MAX_SEARCHED: usize = 64 << 20;

/// What a form takes, charged as it arrives.
struct FormCharge {
    claim: Claim,
    permit: Mutex<Permit>,
    arrived: AtomicUsize,
    content: AtomicUsize,
    /// Bytes that were searched since the parser found something.
    searched: AtomicUsize,
    is_full: AtomicBool,
}

impl FormCharge {
    fn new(claim: Claim, permit: Permit) -> FormCharge {
        FormCharge {
            claim,
            permit: Mutex::new(permit),
            arrived: AtomicUsize::new(0),
            content: AtomicUsize::new(0),
            searched: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
        }
    }

    fn arrived(&self, bytes: usize) -> io::Result<()> {
        let arrived = self.arrived.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let held = arrived.saturating_sub(self.content.load(Ordering::Relaxed));
        if self.searched.fetch_add(held, Ordering::Relaxed) + held > MAX_SEARCHED {
            return Err(io::Error::other("the heads of its parts are too long"));
        }
        let size = arrived.div_ceil(1024);
        let charged = lock(&self.permit).charge(&self.claim, size).is_ok();
        self.is_full.fetch_or(!charged, Ordering::Relaxed);
        charged
            .then_some(())
            .ok_or_else(|| io::Error::other(FULL_OF_FILES))
    }

    /// The refusal of a form whose files had no room.
    fn full(&self) -> Option<Refusal> {
        let fault = Fault::new(Kind::RateLimitError, FULL_OF_FILES).retryable();
        let is_full = self.is_full.load(Ordering::Relaxed);
        is_full.then(|| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, fault))
    }

    /// The parser found something: a part, or so many bytes of its content.
    fn content(&self, bytes: usize) {
        self.searched.store(0, Ordering::Relaxed);
        self.content.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn no_memory(error: io::Error) -> Refusal {
    let fault = Fault::new(Kind::InternalError, "The host has no room for the files.");
    fault.person(error.to_string()).retryable().into()
}

/// Reads a body, and charges for what has arrived beyond a small one. The number of connections
/// bounds small ones.
async fn collect(mut body: Body, claim: &Claim, charge: &mut Permit) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Refusal::malformed("The body ended before its Content-Length."))?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if bytes.len() > SMALL && charge.charge(claim, bytes.len().div_ceil(1024)).is_err() {
            let fault = Fault::new(
                Kind::RateLimitError,
                "Too many large requests are being read.",
            )
            .retryable();
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, fault));
        }
    }
    Ok(bytes)
}

/// A request that is not read yet. If its client leaves now, dropping this writes the record.
struct PendingRequest<'k> {
    known: &'k KnownRequest,
    tool: &'k str,
    counts: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if self.counts {
            let left = malformed("The client left before its request was read.");
            // No client is there to read an answer.
            let _ = self
                .known
                .server
                .service
                .refusals
                .record(&self.known.caller, self.tool, left);
        }
    }
}

/// Parses a long body on another thread, by fair turns of the principals.
pub async fn parse<T: Send + 'static>(
    known: &KnownRequest,
    body: String,
    parse: impl FnOnce(&str) -> T + Send + 'static,
) -> T {
    if body.len() <= SMALL {
        return parse(&body);
    }
    let mut unread = PendingRequest {
        known,
        tool: "",
        counts: true,
    };
    let readers = &known.server.service.limiter.readers;
    let parsed = readers.run(&known.caller.user, move || parse(&body)).await;
    unread.counts = false;
    parsed.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

/// The body as one strict JSON document, without white space.
pub fn document(body: &str) -> Result<json::Text, Refusal> {
    json::compact(body.as_bytes()).map_err(|problem| {
        let place = format!(
            "Line {}, column {}: {}",
            problem.line, problem.column, problem.message
        );
        Refusal::unreadable(malformed("The body is not one JSON document.").details(place))
    })
}

/// A body of this shape. The error names the member that has another one.
pub fn typed<T: DeserializeOwned>(body: &str, shape: &str) -> Result<T, Refusal> {
    let document = document(body)?;
    let read = serde_json::from_str::<Object<T>>(document.as_str());
    read.map(|Object(read)| read).map_err(|error| {
        let said = error.to_string();
        // It is a place in the text without its white space, which nobody wrote.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let said = said.strip_suffix(&place).unwrap_or(&said);
        let details = match &*json::member_at(document.as_str(), error.column()) {
            "" => said.to_owned(),
            member => format!("{member}: {said}"),
        };
        Refusal::unreadable(malformed(shape).details(details))
    })
}

/// A member that is null is as one that is left out.
pub fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
