//! Bodies: read and parsed once their principal was charged for them, and never for long; and what one says of a call.

use super::Face;
use super::gate::once;
use super::reply::{self, malformed};
use crate::base::{json, text};
use crate::fault::{Fault, Kind};
use crate::service::{self, Arguments, CallRequest, Caller, Report, Reservation, Resource, arguments};
use axum::body::Body;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use std::time::Duration;

/// Largest body, bytes.
const LARGEST: usize = 8 * 1024 * 1024;
/// A longer body is parsed on a thread apart; over MCP it counts as a call, which alone can be so long.
pub const SMALL: usize = 16 * 1024;
/// A body above this is not read for a tool that is not there.
const LONG: usize = 64 * 1024;
/// A body is whole in this time.
const TIME: Duration = Duration::from_secs(30);
/// Most memory for what stands beside the arguments, bytes.
const BESIDE: usize = 64 * 1024;
/// What a body holds that is not the arguments themselves.
const MEMBERS: [&str; 5] = ["user", "config", "arguments", "mode", "callback"];

/// How much of `Resource::Bodies` this many bytes take.
pub fn kib(length: usize) -> usize {
    length.div_ceil(1024)
}

/// A body that was read, and its quota until it is dropped.
pub struct Received {
    pub text: String,
    pub kept: Reservation,
    /// `CallRequest::counted`: the request was counted against its principal.
    pub counted: usize,
}

/// Why a body was not read, or cannot be understood.
pub struct BodyError {
    pub status: StatusCode,
    pub fault: Fault,
}

impl BodyError {
    pub fn new(status: StatusCode, words: &str) -> BodyError {
        BodyError { status, fault: malformed(words) }
    }
}

/// A body that does not say what it is for.
impl From<Fault> for BodyError {
    fn from(fault: Fault) -> BodyError {
        BodyError { status: StatusCode::BAD_REQUEST, fault }
    }
}

/// Reads a body once its principal was charged for it: for its bytes, and where it `is_call`, by its length, for a call.
/// `tool`: where a path names it, a long body for one that is not there is not read.
pub async fn read(
    face: &Face,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    (tool, is_call): (&str, impl FnOnce(usize) -> bool),
) -> Result<Received, BodyError> {
    let refuse = BodyError::new;
    // A length that is known beforehand leaves no two readings of where a request ends.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(refuse(StatusCode::LENGTH_REQUIRED, "Send the body with a Content-Length, not in chunks."));
    }
    let length = match headers.contains_key(header::CONTENT_LENGTH) {
        false => Some(0),
        true => once(headers, &header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok()),
    };
    let Some(length) = length else { return Err(refuse(StatusCode::BAD_REQUEST, "The Content-Length is no number.")) };
    let kind = once(headers, &header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // A web page of another site can send other types without asking.
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Send JSON, with Content-Type: application/json."));
    }
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Send the body without a Content-Encoding."));
    }
    if length > LARGEST {
        let words = format!("The body is too long: at most {LARGEST} bytes are read.");
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, &words));
    }
    let counted = usize::from(is_call(length));
    if counted > 0 {
        let full = |fault: Fault| BodyError { status: reply::status_of(&fault, None), fault };
        let tool = Some(tool).filter(|tool| length > LONG && !tool.is_empty());
        face.service.arrives(caller, tool).map_err(full)?;
    }
    let Some(kept) = face.service.limiter().take(Resource::Bodies, &caller.user, kib(length)) else {
        let fault = Fault::new(Kind::RateLimitError, "Too many large requests are being read.").retryable();
        return Err(BodyError { status: StatusCode::SERVICE_UNAVAILABLE, fault });
    };
    let mut unread = Unfinished { face, caller, tool, counts: true };
    let whole = tokio::time::timeout(TIME, body.collect()).await;
    unread.counts = false;
    match whole {
        Ok(Ok(whole)) => match String::from_utf8(whole.to_bytes().into()) {
            Ok(text) => Ok(Received { text, kept, counted }),
            Err(_) => Err(refuse(StatusCode::BAD_REQUEST, "The body is not UTF-8.")),
        },
        Ok(Err(_)) => Err(refuse(StatusCode::BAD_REQUEST, "The body ended before its Content-Length.")),
        Err(_) => Err(refuse(StatusCode::REQUEST_TIMEOUT, "The body did not come in time.")),
    }
}

/// A request that is not read yet: where its client leaves now, that has a record, too.
struct Unfinished<'f> {
    face: &'f Face,
    caller: &'f Caller,
    tool: &'f str,
    counts: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.counts {
            let left = malformed("The client left before its request was read.");
            // An answer would reach no client any more.
            let _ = self.face.service.refuses(self.caller, self.tool, left);
        }
    }
}

/// Parses a body on a thread apart, so that it keeps waiting only others of the same principal, and those by turns.
pub async fn apart<T: Send + 'static>(
    face: &Face,
    caller: &Caller,
    body: String,
    parse: impl FnOnce(&str) -> T + Send + 'static,
) -> T {
    if body.len() <= SMALL {
        return parse(&body);
    }
    let mut unread = Unfinished { face, caller, tool: "", counts: true };
    let reader = face.service.limiter().reader(&caller.user).await;
    // The work keeps its reader until it is over, also where its client is gone.
    let work = tokio::task::spawn_blocking(move || (parse(&body), reader).0).await;
    unread.counts = false;
    work.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

/// What a body asks for.
#[derive(Debug)]
pub struct CallBody {
    pub request: CallRequest,
    /// In the background; `None`: it does not say.
    pub detached: Option<bool>,
    /// Who is told of the end.
    pub callback: Option<String>,
    /// The member for which a body that holds `arguments` was taken as the arguments.
    pub stray: Option<String>,
}

/// What a body asks for: `{user, config, arguments, mode, callback}`, of which `arguments` must be there, or the
/// arguments alone.
pub fn call(request: CallRequest, body: &str) -> Result<CallBody, Fault> {
    let mut asked = CallBody { request, detached: None, callback: None, stray: None };
    if body.trim().is_empty() {
        return Ok(asked);
    }
    let document = document(body)?;
    let text = document.as_str();
    if !text.starts_with('{') {
        return Err(malformed("The body must be a JSON object."));
    }
    let (arguments, beside) = match parted(text) {
        Ok(parts) => parts,
        Err(stray) => {
            asked.request.arguments = Arguments::Text(text.to_owned());
            return Ok(CallBody { stray, ..asked });
        }
    };
    let arguments = match serde_json::from_str::<String>(arguments) {
        Ok(text) => text,
        Err(_) => arguments.to_owned(),
    };
    let config = match beside.get("config") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(config)) => config.clone(),
        Some(Value::String(text)) => arguments::config(text)?,
        Some(_) => return Err(malformed("config must be an object, or its JSON text.")),
    };
    let id = |reference: &str| reference.split('@').next().map(str::to_owned);
    match config.get("tool") {
        None => {}
        Some(Value::String(other)) if id(other.as_str()) == id(&asked.request.tool) => {}
        Some(_) => return Err(malformed("The config names another tool than the path.")),
    }
    asked.request.label = service::label(text_of(&beside, "user")?)?;
    asked.detached = match text_of(&beside, "mode")?.as_deref() {
        None => None,
        Some("async") => Some(true),
        Some("sync") => Some(false),
        Some(_) => return Err(malformed("mode must be \"sync\" or \"async\".")),
    };
    asked.callback = text_of(&beside, "callback")?;
    asked.request.timeout_ms = arguments::timeout_ms(&config)?;
    asked.request.arguments = Arguments::Text(arguments);
    Ok(asked)
}

/// A body without white space, read strictly.
pub fn document(body: &str) -> Result<json::Text, Fault> {
    json::compact(body.as_bytes()).map_err(|problem| {
        let place = format!("Line {}, column {}: {}", problem.line, problem.column, problem.message);
        malformed("The body is not one JSON document.").details(place)
    })
}

fn text_of(beside: &Map<String, Value>, name: &str) -> Result<Option<String>, Fault> {
    match beside.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(malformed(&format!("{name} must be a string."))),
    }
}

/// The arguments of `{user, config, arguments, …}`, and what stands beside them. `Err`: the document is the arguments, and
/// where it holds `arguments`, the member because of which.
fn parted(text: &str) -> Result<(&str, Map<String, Value>), Option<String>> {
    let arguments = json::member(text, "/arguments").ok_or(None)?;
    let at = arguments.as_ptr() as usize - text.as_ptr() as usize;
    let (before, after) = (text.get(..at).ok_or(None)?, text.get(at + arguments.len()..).ok_or(None)?);
    if before.len() + after.len() > BESIDE {
        return Err(None);
    }
    let rest = json::compact(format!("{before}null{after}").as_bytes()).map_err(|_| None)?;
    let Ok(Value::Object(beside)) = rest.tree(BESIDE) else { return Err(None) };
    match beside.keys().find(|name| !MEMBERS.contains(&name.as_str())) {
        Some(stray) => Err(Some(stray.clone())),
        None => Ok((arguments, beside)),
    }
}

/// A report of arguments that do not fit, with what they were taken from: whoever wrote `arguments` may not mean the body.
pub fn explained(mut report: Report, stray: Option<&str>) -> Report {
    let fault = report.error.as_mut().filter(|fault| fault.kind == Kind::ParameterValidationError);
    if let (Some(fault), Some(stray)) = (fault, stray) {
        let members = MEMBERS.join(", ");
        let words = format!(
            "The whole body was taken as the arguments, since it holds '{}' beside 'arguments'; other members are {members}.",
            text::printable(&text::head(stray, 80))
        );
        let details = fault.details.take().map_or(words.clone(), |details| format!("{details}\n{words}"));
        fault.details = Some(details);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Result<(Option<String>, Option<u64>, String), String> {
        let from = CallRequest::new(Caller::named("alice"), "t:x", Arguments::default());
        let call = call(from, body).map_err(|fault| fault.message)?.request;
        let Arguments::Text(text) = call.arguments else { panic!("not text") };
        Ok((call.label, call.timeout_ms, text))
    }

    #[test]
    fn both_forms_are_read_and_no_other() {
        let plain = |text: &str| Ok((None, None, text.to_owned()));
        assert_eq!(of(""), plain(""));
        assert_eq!(of("{\"n\": 1}"), plain("{\"n\":1}"));
        assert_eq!(of("{\"user\": \"bob\"}"), plain("{\"user\":\"bob\"}"), "a parameter of that name");
        assert_eq!(of("{\"arguments\": 1, \"n\": 2}"), plain("{\"arguments\":1,\"n\":2}"));
        let whole = "{\"user\":\"bob\",\"config\":{\"tool\":\"t:x@1\",\"timeoutMs\":5},\"arguments\":{\"n\":1}}";
        let bob = Ok((Some("bob".to_owned()), Some(5), "{\"n\":1}".to_owned()));
        assert_eq!(of(whole), bob);
        let texts = "{\"user\":\"bob\",\"config\":\"{\\\"timeoutMs\\\":5}\",\"arguments\":\"{\\\"n\\\":1}\"}";
        assert_eq!(of(texts), bob);
        for (bad, wanted) in [
            ("[1]", "must be a JSON object"),
            ("{\"n\":1,\"n\":2}", "not one JSON document"),
            ("{\"n\":1} {}", "not one JSON document"),
            ("{\"arguments\":{},\"config\":{\"tool\":\"other:x\"}}", "another tool"),
            ("{\"arguments\":{},\"config\":{\"timeoutMs\":-1}}", "timeoutMs"),
            ("{\"arguments\":{},\"user\":1}", "user must be a string"),
            ("{\"arguments\":{},\"mode\":\"fast\"}", "mode must be"),
            ("{\"arguments\":{},\"callback\":[]}", "callback must be a string"),
        ] {
            let why = of(bad).unwrap_err();
            assert!(why.contains(wanted), "{bad}: {why}");
        }
    }
}
