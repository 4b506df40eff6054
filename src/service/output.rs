//! How a call ended, in words and as an answer: one mapping from how a tool ended to an error,
//! without a catch-all; answers that are more than data (`$content`, `$ask`); and the texts that an
//! agent reads, without a path of this host.

use crate::base::mask::Mask;
use crate::base::text::{self, is_printable, printable};
use crate::executor::output::STDERR_FAILURE;
use crate::executor::{Artifact, ContentPlaces, Ending, ToolAnswer};
use crate::fault::{Fault, Kind, Origin};
use crate::quantity::{Limit, MAX_OBSERVATION_BYTES};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// How much of stderr a failure shows, bytes.
const TAIL: usize = 2048;
const BLOCKS: usize = 200;
/// Most questions at once, and the longest text of questions and state, bytes. The state comes back
/// sealed, beside the answers, in a message that is bounded too.
/// The one question that a tool may ask (MCP, "Elicitation").
pub const ASK_METHOD: &str = "elicitation/create";
/// Most files in a report: published, and not published.
const PUBLISHED: usize = 1000;
const DROPPED: usize = 50;
const MAX_QUESTIONS: usize = 16;
const MAX_QUESTION_BYTES: usize = 32 * 1024;
/// The first bytes of media of these types.
const BEGINNINGS: [(&str, &[u8]); 6] = [
    ("image/png", b"\x89PNG"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF8"),
    ("image/webp", b"RIFF"),
    ("audio/wav", b"RIFF"),
    ("audio/ogg", b"OggS"),
];

/// What the ending means: the output, or the error. `printed`: the end of stdout. The record of the
/// call masks and escapes the fault's words.
pub fn answer_of(ending: Ending, logs: &[String], printed: &[String]) -> Result<ToolAnswer, Fault> {
    fn script(message: String) -> Fault {
        Fault::new(Kind::ScriptError, message)
    }
    Err(match ending {
        Ending::Answered(answer) => return Ok(answer),
        Ending::Exited { code } => {
            let silent = "It wrote nothing to stderr: let it print there why it fails.";
            with_logs(
                script(format!("Script exited with code {code}.")),
                logs,
                printed,
                silent,
            )
        }
        Ending::Signalled { signal } => {
            let name = Signal::try_from(signal)
                .map_or_else(|_| String::new(), |known| format!("{} ", known.as_str()));
            with_logs(
                script(format!("Script was killed by signal {name}({signal}).")),
                logs,
                printed,
                cause(signal),
            )
        }
        Ending::TimedOut { limit_ms } => {
            let fault = Fault::new(Kind::TimeoutError, "Script execution timed out.");
            with_logs(
                fault.details(format!("The limit timeoutMs was {limit_ms} ms.")),
                logs,
                printed,
                "",
            )
        }
        Ending::OverLimit { limit, allowed } => over_limit(limit, allowed),
        Ending::BadOutput { reason, head } => {
            // For an empty answer the reason says everything.
            let details =
                (!head.is_empty()).then(|| format!("InvalidOutput: it began with: {head}"));
            with_logs(
                Fault {
                    details,
                    ..script(reason)
                },
                logs,
                &[],
                "",
            )
        }
        Ending::Raised { message } if message == STDERR_FAILURE => {
            script(format!("{message}: {}", tail(logs)))
        }
        Ending::Raised { message } | Ending::Trapped { message } => {
            with_logs(script(message), logs, &[], "")
        }
        Ending::Cancelled => cancelled(),
        Ending::Envelope { told, output } => return open(&told, output),
    })
}

/// Cuts the files of a call: a tool can write as many as it likes. Those that failed, which fail the
/// call, come first and are cut last. Returns what was left out.
pub fn few_files(files: &mut Vec<Artifact>) -> Vec<String> {
    let (mut published, mut dropped): (Vec<_>, Vec<_>) = std::mem::take(files)
        .into_iter()
        .partition(|file| file.published);
    dropped.sort_by_key(|file| file.failed.is_none());
    let mut left_out = Vec::new();
    for (files, most, what) in [
        (&mut published, PUBLISHED, "were"),
        (&mut dropped, DROPPED, "were not"),
    ] {
        if files.len() > most {
            left_out.push(format!(
                "{} more files {what} published",
                files.len() - most
            ));
            files.truncate(most);
        }
    }
    *files = [published, dropped].concat();
    left_out
}

/// A line for each file that was not published.
pub fn missing_files(files: &[Artifact]) -> Vec<String> {
    let missing = files.iter().filter(|file| !file.published);
    let lines = missing.map(|file| {
        let why = file.dropped_because.as_deref();
        let why = why.unwrap_or("it was dropped");
        format!("not published: {}: {why}", file.path)
    });
    lines.collect()
}

/// The error of a call that was cancelled, whoever noticed it first.
pub fn cancelled() -> Fault {
    Fault::new(Kind::CancelledError, "The call was cancelled.").retryable()
}

/// The same, by whom it was cancelled, where that is none of its `owners`.
pub fn cancelled_by(who: &str, owners: [&str; 2]) -> Fault {
    if owners.contains(&who) {
        return cancelled();
    }
    let message = format!("{} cancelled the call.", printable(who));
    Fault {
        origin: Origin::Host,
        ..Fault::new(Kind::CancelledError, message).retryable()
    }
}

/// The error of a call that its host ended because it stops.
pub fn stopped() -> Fault {
    let fault = Fault::new(Kind::CancelledError, "The server was stopped.").retryable();
    Fault {
        origin: Origin::Host,
        ..fault
    }
}

/// Changes the fault of a cancelled call of which something ran.
pub fn cancelled_midway(fault: Fault) -> Fault {
    let message = format!(
        "{} It ran already; how far it came is not known.",
        fault.message
    );
    Fault {
        message,
        retryable: false,
        retry_after_ms: None,
        ..fault
    }
}

/// The error of a limit that was reached, naming it and its value.
pub fn over_limit(limit: Limit, allowed: u64) -> Fault {
    let amount = match limit {
        Limit::TimeoutMs => return Fault::new(Kind::TimeoutError, "Script execution timed out."),
        Limit::CpuMs => format!("{allowed} ms"),
        Limit::Processes => format!("{allowed} processes and threads"),
        Limit::OpenFiles => format!("{allowed} open files"),
        Limit::WrittenFiles => format!("{allowed} new files and folders"),
        Limit::ArtifactFiles => format!("{allowed} files"),
        Limit::NestedCalls => format!("{allowed} calls of other tools"),
        Limit::Connections => format!("{allowed} connections at one time"),
        Limit::MemoryBytes
        | Limit::ScratchBytes
        | Limit::FileBytes
        | Limit::WrittenBytes
        | Limit::InputBytes
        | Limit::OutputBytes
        | Limit::LogBytes
        | Limit::ArtifactBytes
        | Limit::SentBytes
        | Limit::ReceivedBytes => format!("{allowed} bytes"),
    };
    let name = limit.name();
    if limit == Limit::InputBytes {
        // The caller can fix this, so it is a caller's error with the exit code of one.
        let message = format!("The input is over the limit {name} ({amount}): send less at once.");
        return Fault::new(Kind::ParameterValidationError, message);
    }
    let message = format!("Script exceeded the limit {name} ({amount}).");
    Fault::new(Kind::ResourceLimitError, message)
}

/// The outcome of an envelope: its output, or its error under its own type.
fn open(envelope: &Value, output: Option<ToolAnswer>) -> Result<ToolAnswer, Fault> {
    if envelope["success"] == true {
        return Ok(output.unwrap_or_else(|| ToolAnswer::from(&Value::Null)));
    }
    let error = &envelope["error"];
    let words = |key: &str| error[key].as_str().map(str::to_owned);
    // A type that is not on the closed list is the method's own, and counts as ServiceError.
    let kind = serde_json::from_value(error["type"].clone()).unwrap_or(Kind::ServiceError);
    let fault = Fault::new(
        kind,
        words("message").unwrap_or_else(|| "The service reported a failure.".into()),
    );
    // An envelope has no `retryable`: only a cancelled call counts as retryable.
    Err(Fault {
        details: words("details"),
        retryable: kind == Kind::CancelledError,
        ..fault
    })
}

fn cause(signal: i32) -> &'static str {
    match Signal::try_from(signal) {
        Ok(
            Signal::SIGSEGV
            | Signal::SIGBUS
            | Signal::SIGILL
            | Signal::SIGFPE
            | Signal::SIGABRT
            | Signal::SIGTRAP,
        ) => "It crashed in native code (an extension module, or the interpreter).",
        Ok(Signal::SIGKILL | Signal::SIGTERM) => {
            "It killed itself, or was killed from outside, for example because the machine ran out \
            of memory."
        }
        _ => "",
    }
}

/// The fault of a service that a process was for this call. `logs`: what that process said; `None`:
/// there was none. Its last words are cut only once their secrets are hidden: beside a cut, more is
/// hidden.
pub(super) fn of_service(fault: Fault, logs: Option<&[String]>, mask: &Mask) -> Fault {
    let Some(logs) = logs.filter(|_| fault.kind == Kind::ServiceError) else {
        return fault;
    };
    let details = fault.details.as_deref().map(|it| mask.text(it));
    let details = details.map(|it| text::cut(&it, TAIL));
    with_logs(Fault { details, ..fault }, logs, &[], "")
}

/// Adds the tail of stderr, which explains most failures, and that of `printed`; `silent` where
/// nothing else is known.
fn with_logs(mut fault: Fault, logs: &[String], printed: &[String], silent: &str) -> Fault {
    // A line of our own shim is the message already.
    let own = format!("toolhost: {}", fault.message);
    let logs: Vec<String> = logs.iter().filter(|line| **line != own).cloned().collect();
    let stderr = tail(&logs);
    let stdout = tail(printed);
    let alone = fault.details.is_none() && stdout.is_empty();
    let parts = [
        fault.details.take().unwrap_or_default(),
        if alone || stderr.is_empty() {
            stderr.clone()
        } else {
            format!("stderr: {stderr}")
        },
        if stdout.is_empty() {
            stdout
        } else {
            format!("stdout: {stdout}")
        },
        if alone && stderr.is_empty() {
            silent.to_owned()
        } else {
            String::new()
        },
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    fault.details = Some(parts.join("\n")).filter(|details| !details.is_empty());
    fault
}

fn tail(logs: &[String]) -> String {
    let mut lines = Vec::new();
    let mut room = TAIL;
    for line in logs.iter().rev() {
        if line.len() > room {
            if lines.is_empty() {
                let start = line.ceil_char_boundary(line.len() - room + '…'.len_utf8());
                lines.push(format!("…{}", &line[start..]));
            }
            break;
        }
        room = room.saturating_sub(line.len() + 1);
        lines.push(line.clone());
    }
    lines.reverse();
    lines.join("\n").trim().to_owned()
}

/// The observation of a success: `Tool <id> executed successfully. Output: <json>`. Media are
/// replaced by their size. A text that is longer than an observation may be is cut.
pub fn succeeded(tool: &str, output: &str, content: Option<&ContentPlaces>) -> String {
    let begin = format!("Tool {tool} executed successfully. Output: ");
    let Some(places) = content else {
        return cut_observation(begin, &[output]);
    };
    let blocks = blocks(output, places)
        .map(|Block { mut json, media }| {
            if let Some(media) = media {
                holder(&mut json)["bytes"] = json!(media.len());
            }
            json.to_string()
        })
        .collect::<Vec<_>>()
        .join(",");
    let structured = places
        .1
        .clone()
        .map(|place| format!(",\"structured\":{}", &output[place]));
    cut_observation(
        begin + "{\"$content\":[",
        &[&blocks, "]", &structured.unwrap_or_default(), "}"],
    )
}

/// The sentence of a call that was begun, and whose result comes later. `call`: its id.
pub fn accepted(tool: &str, call: &str) -> String {
    format!(
        "Tool {tool} was started in the background, as call {call}. Its result comes later: until \
         then core:task-status says how far it is."
    )
}

/// A sentence, cut where it is too long.
pub fn cut_observation(mut sentence: String, more: &[&str]) -> String {
    let all = sentence.len() + more.iter().map(|part| part.len()).sum::<usize>();
    for part in more {
        let room = MAX_OBSERVATION_BYTES.saturating_sub(sentence.len());
        sentence.push_str(&part[..part.floor_char_boundary(room)]);
    }
    sentence.truncate(sentence.floor_char_boundary(MAX_OBSERVATION_BYTES));
    let cut = all - sentence.len();
    if cut > 0 {
        format!("{sentence}…[cut {cut} bytes]")
    } else {
        sentence
    }
}

/// A fault as a model reads it: a line for each flaw, without the lines that are for programs.
pub fn for_model(fault: &Fault) -> Fault {
    let message = if fault.flaws.is_empty() {
        fault.message.clone()
    } else {
        fault.flaws.join("\n")
    };
    let lines = fault.details.iter().flat_map(|details| details.lines());
    let details = lines
        .filter(|line| !line.starts_with("pointer '"))
        .collect::<Vec<_>>()
        .join("\n");
    Fault {
        message,
        details: Some(details).filter(|details| !details.is_empty()),
        ..fault.clone()
    }
}

/// The observation of a failure. A message that ends in a full stop is not given a second one.
pub fn failed(tool: &str, fault: &Fault) -> String {
    let message = fault.message.strip_suffix('.').unwrap_or(&fault.message);
    let end = if message.ends_with('?') { "" } else { "." };
    let details = fault
        .details
        .as_deref()
        .filter(|details| !details.is_empty());
    let details = details
        .map(|details| format!(" Details: {details}"))
        .unwrap_or_default();
    format!(
        "Tool {tool} failed. Error type: {}. Message: {message}{end}{details}",
        fault.kind
    )
}

/// The `response` text of the tool-service contract: a string untouched, else compact JSON.
pub fn response(output: &str) -> String {
    serde_json::from_str(output).unwrap_or_else(|_| output.to_owned())
}

/// What the caller can do about a failure, for a reader that is a model.
pub fn advice(fault: &Fault) -> Option<&'static str> {
    Some(match fault.kind {
        Kind::CancelledError => return None,
        _ if fault.retryable => {
            "Wait a little, then make the same call again. If it fails again, tell the operator, \
            naming the call ID."
        }
        // A list may be the whole one, or of two tools by which others are found and called.
        Kind::ToolNotFoundError => {
            "List the tools, or search for one if the list has a tool for that, and use one of \
            those names."
        }
        Kind::ParameterValidationError | Kind::ActionParseError => {
            "Correct the arguments and call again."
        }
        Kind::VersionMismatchError => "Name a version that exists, or name no version.",
        Kind::ScriptError if fault.by_caller => {
            "The code failed: correct it as the details say and call again. The code has the files \
             of its call in ./input, and no other files or network."
        }
        Kind::SecurityError if fault.by_caller => "Correct the arguments and call again.",
        Kind::SecurityError | Kind::AuthorizationError => {
            "Do not retry: the operator's policy does not allow this. Ask the operator, naming the \
            call ID."
        }
        Kind::CapabilityError | Kind::DependencyError => {
            "Do not retry: this host lacks what the tool needs. Ask the operator, naming the call \
            ID."
        }
        Kind::TimeoutError => "Give it less to do, or a larger time limit if the tool takes one.",
        Kind::ResourceLimitError => "Give it less to do in one call.",
        Kind::ScriptError | Kind::OutputValidationError => {
            "The tool itself failed: if the details do not show a wrong argument, do not repeat \
             the same call. If they speak of a file that it cannot open, ask the operator, naming \
             the call ID."
        }
        Kind::RateLimitError | Kind::CircuitOpenError => {
            "Do not retry: calls of this tool are held back. Ask the operator, naming the call ID."
        }
        Kind::ServiceError | Kind::InternalError => {
            "Report it to the operator, naming the call ID."
        }
    })
}

/// Blocks of content, and the part that the tool's schema describes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content<'a> {
    #[serde(rename = "$content", borrow)]
    pub blocks: &'a RawValue,
    #[serde(borrow)]
    pub structured: Option<&'a RawValue>,
}

/// What a tool asks of its client before it can answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Questions {
    /// By the tool's own keys, each `{method, params}`.
    #[serde(rename = "$ask")]
    pub requests: Map<String, Value>,
    /// What the tool wants back beside the answers.
    #[serde(rename = "$state", default)]
    pub state: Value,
}

/// The client of a call: what it can be asked, and what it answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AskableClient {
    /// Whether it can show a form.
    pub is_askable: bool,
    /// What it answered, by the tool's keys.
    pub answers: Map<String, Value>,
    pub state: Value,
}

/// What the output of a tool is: a plain value, blocks of content, or questions to the client.
pub enum OutputKind<'a> {
    Plain,
    Content(Content<'a>),
    Asks(Questions),
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "some members are only held to their types")]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum BlockShape {
    Text {
        text: String,
        annotations: Option<Annotations>,
    },
    Image {
        data: String,
        mime_type: String,
        annotations: Option<Annotations>,
    },
    Audio {
        data: String,
        mime_type: String,
        annotations: Option<Annotations>,
    },
    ResourceLink {
        uri: String,
        name: String,
        title: Option<String>,
        description: Option<String>,
        mime_type: Option<String>,
        size: Option<u64>,
        annotations: Option<Annotations>,
    },
    /// A file itself.
    Resource {
        resource: Embedded,
        annotations: Option<Annotations>,
    },
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "these members are only held to their types")]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Annotations {
    audience: Option<Vec<String>>,
    priority: Option<f64>,
    last_modified: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Embedded {
    uri: String,
    mime_type: Option<String>,
    text: Option<String>,
    blob: Option<String>,
}

impl AskableClient {
    /// The member `$client` of the input of a tool that may ask.
    pub fn to_json(&self) -> Value {
        let can: &[&str] = if self.is_askable {
            &["elicitation"]
        } else {
            &[]
        };
        json!({"can": can, "answers": self.answers, "state": self.state})
    }
}

impl<'a> OutputKind<'a> {
    /// Where its blocks stand in the answer that it was read from.
    pub fn places(&self, answer: &str) -> Option<ContentPlaces> {
        let OutputKind::Content(content) = self else {
            return None;
        };
        let place = |part: &RawValue| {
            let start = part.get().as_ptr() as usize - answer.as_ptr() as usize;
            start..start + part.get().len()
        };
        Some((place(content.blocks), content.structured.map(place)))
    }

    /// Determines what an answer is. Malformed `$content` or `$ask` is refused.
    pub fn read(answer: &'a str, may_ask: bool) -> Result<OutputKind<'a>, Fault> {
        fn has(name: &str, answer: &str) -> bool {
            let pointer = format!("/{name}");
            answer.starts_with('{')
                && answer.contains(name)
                && crate::base::json::member(answer, &pointer).is_some()
        }
        fn wrong(shape: &str, why: String) -> Fault {
            let message = format!("The tool's answer is not a valid `{shape}`.");
            Fault::new(Kind::OutputValidationError, message).details(format!("{why}."))
        }
        if has("$content", answer) {
            let content: Content =
                serde_json::from_str(answer).map_err(|e| wrong("$content", e.to_string()))?;
            check(content.blocks.get()).map_err(|why| wrong("$content", why))?;
            return Ok(OutputKind::Content(content));
        }
        if may_ask && has("$ask", answer) {
            if answer.len() > MAX_QUESTION_BYTES {
                return Err(wrong(
                    "$ask",
                    format!("it is longer than {MAX_QUESTION_BYTES} bytes"),
                ));
            }
            let questions: Questions =
                serde_json::from_str(answer).map_err(|e| wrong("$ask", e.to_string()))?;
            questions.check().map_err(|why| wrong("$ask", why))?;
            return Ok(OutputKind::Asks(questions));
        }
        Ok(OutputKind::Plain)
    }
}

/// A block of content, for a reader that is not a program.
pub struct Block {
    /// Without its media.
    pub json: Value,
    /// The bytes of a picture, a sound or a file.
    pub media: Option<Vec<u8>>,
}

/// The blocks of an answer of content.
pub fn blocks(answer: &str, places: &ContentPlaces) -> impl Iterator<Item = Block> {
    let blocks: Vec<&RawValue> =
        serde_json::from_str(&answer[places.0.clone()]).unwrap_or_default();
    blocks.into_iter().map(|block| {
        let mut json = serde_json::from_str(block.get()).unwrap_or_default();
        let holder = holder(&mut json).as_object_mut();
        let data =
            holder.and_then(|holder| holder.remove("data").or_else(|| holder.remove("blob")));
        let media = data.and_then(|data| decode_base64(data.as_str()?).ok());
        Block { json, media }
    })
}

/// The object of a block that has its media type and its media.
pub fn holder(block: &mut Value) -> &mut Value {
    if block["type"] == "resource" {
        &mut block["resource"]
    } else {
        block
    }
}

impl Questions {
    fn check(&self) -> Result<(), String> {
        if self.requests.is_empty() || self.requests.len() > MAX_QUESTIONS {
            return Err(format!("it must hold 1 to {MAX_QUESTIONS} questions"));
        }
        for (key, request) in &self.requests {
            if request["method"] != ASK_METHOD {
                let key = printable(key);
                return Err(format!("the method of '{key}' must be {ASK_METHOD}"));
            }
            let mode = request["params"]["mode"].as_str();
            if mode.is_some_and(|mode| mode != "form") {
                return Err(
                    "a question to a person must be a form: no tool may send people to a URL"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

fn check(blocks: &str) -> Result<(), String> {
    let blocks: Vec<&RawValue> =
        serde_json::from_str(blocks).map_err(|_| "it must be a list of blocks".to_owned())?;
    if blocks.len() > BLOCKS {
        return Err(format!("it must hold at most {BLOCKS} blocks"));
    }
    for (at, block) in blocks.iter().enumerate() {
        let read = serde_json::from_str(block.get()).map_err(|e| e.to_string());
        read.and_then(check_block)
            .map_err(|why| format!("block {}: {why}", at + 1))?;
    }
    Ok(())
}

fn check_block(block: BlockShape) -> Result<(), String> {
    match block {
        BlockShape::Text { .. } => Ok(()),
        BlockShape::Image {
            data, mime_type, ..
        } => check_media("image/", &mime_type, &data),
        BlockShape::Audio {
            data, mime_type, ..
        } => check_media("audio/", &mime_type, &data),
        BlockShape::ResourceLink { uri, mime_type, .. } => check_link(&uri, mime_type.as_deref()),
        BlockShape::Resource {
            resource:
                Embedded {
                    uri,
                    mime_type,
                    text,
                    blob,
                },
            ..
        } => {
            check_link(&uri, mime_type.as_deref())?;
            match (text, blob) {
                (Some(_), None) => Ok(()),
                (None, Some(blob)) => decode_base64(&blob).map(drop),
                _ => Err("a resource must have either text or blob".to_owned()),
            }
        }
    }
}

fn check_media(kind: &str, mime: &str, data: &str) -> Result<(), String> {
    check_mime(mime)?;
    let mime = mime
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if !mime.starts_with(kind) {
        return Err(format!("its mimeType does not start with {kind}"));
    }
    // SVG can hold scripts and links.
    if mime.starts_with("image/svg") {
        return Err("an SVG is a file: send it as a resource".to_owned());
    }
    let bytes = decode_base64(data)?;
    let beginning = BEGINNINGS.iter().find(|(known, _)| *known == mime);
    if beginning.is_none_or(|(_, beginning)| bytes.starts_with(beginning)) {
        Ok(())
    } else {
        Err(format!("its data is not {mime}"))
    }
}

fn decode_base64(data: &str) -> Result<Vec<u8>, String> {
    STANDARD
        .decode(data)
        .map_err(|e| format!("its data is not base64: {e}"))
}

/// Accepts `type/subtype`, with plain parameters only.
fn check_mime(mime: &str) -> Result<(), String> {
    fn token(part: &str) -> bool {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    }
    let (bare, more) = mime.split_once(';').unwrap_or((mime, ""));
    let plain = more
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b" =-_.+;".contains(&b));
    if bare
        .split_once('/')
        .is_some_and(|(kind, of)| token(kind) && token(of))
        && plain
        && mime.len() <= 200
    {
        Ok(())
    } else {
        Err("its mimeType is not a media type (type/subtype)".to_owned())
    }
}

fn check_link(uri: &str, mime: Option<&str>) -> Result<(), String> {
    let scheme = uri
        .split_once(':')
        .map(|(scheme, _)| scheme)
        .unwrap_or_default();
    let good = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        && is_printable(uri)
        && !["javascript", "data", "vbscript", "file"]
            .contains(&scheme.to_ascii_lowercase().as_str());
    if good {
        mime.map_or(Ok(()), check_mime)
    } else {
        Err("its uri is not the address of a resource".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_its_error() {
        let fault = |ending, logs: &[&str], printed: &[&str]| {
            let lines = |lines: &[&str]| {
                lines
                    .iter()
                    .map(|line| (*line).to_owned())
                    .collect::<Vec<_>>()
            };
            answer_of(ending, &lines(logs), &lines(printed)).expect_err("a failure")
        };
        let exit = || Ending::Exited { code: 3 };
        let failed = fault(exit(), &["Traceback", "ZeroDivisionError"], &[]);
        assert_eq!(
            (failed.kind, failed.message.as_str()),
            (Kind::ScriptError, "Script exited with code 3.")
        );
        assert_eq!(
            failed.details.as_deref(),
            Some("Traceback\nZeroDivisionError")
        );
        assert_eq!(
            fault(exit(), &["why"], &["usage"]).details.as_deref(),
            Some("stderr: why\nstdout: usage")
        );
        let late = fault(Ending::TimedOut { limit_ms: 100 }, &["step 3"], &[]);
        assert_eq!(
            (late.kind, late.message.as_str()),
            (Kind::TimeoutError, "Script execution timed out.")
        );
        assert_eq!(
            late.details.as_deref(),
            Some("The limit timeoutMs was 100 ms.\nstderr: step 3")
        );
        let over = fault(
            Ending::OverLimit {
                limit: Limit::MemoryBytes,
                allowed: 9,
            },
            &[],
            &[],
        );
        assert!(
            over.kind == Kind::ResourceLimitError
                && over.message.contains("limit memoryBytes (9 bytes)")
        );
        let raised = fault(
            Ending::Raised {
                message: "it is nan".into(),
            },
            &["debug", "toolhost: it is nan"],
            &[],
        );
        assert_eq!(
            (raised.message.as_str(), raised.details.as_deref()),
            ("it is nan", Some("debug")),
            "said once"
        );
        let long = "ö".repeat(4000);
        let details = fault(exit(), &["first", &long], &[]).details.unwrap();
        assert!(
            details.len() <= TAIL && details.chars().skip(1).all(|c| c == 'ö'),
            "bounded, whole characters"
        );
        let envelope = |kind: &str| {
            let told =
                json!({"success": false, "error": {"type": kind, "message": "m", "details": "d"}});
            fault(Ending::Envelope { told, output: None }, &[], &[])
        };
        let kinds = ["DependencyError", "Odd", "CancelledError"]
            .map(|kind| (envelope(kind).kind, envelope(kind).retryable));
        let wanted = [
            (Kind::DependencyError, false),
            (Kind::ServiceError, false),
            (Kind::CancelledError, true),
        ];
        assert_eq!(kinds, wanted);
    }

    #[test]
    fn advice_and_the_word_retryable_agree() {
        for kind in Kind::ALL {
            let again = |fault: Fault| {
                advice(&fault)
                    .unwrap_or_default()
                    .contains("same call again")
            };
            let both = (
                again(Fault::new(kind, "m")),
                again(Fault::new(kind, "m").retryable()),
            );
            assert_eq!(both, (false, kind != Kind::CancelledError), "{kind}");
        }
    }

    #[test]
    fn content_is_what_it_says_and_questions_are_forms() {
        let why = |answer: &Value| match OutputKind::read(&answer.to_string(), true) {
            Ok(OutputKind::Plain) => "plain".into(),
            Ok(OutputKind::Content(_)) => "content".into(),
            Ok(OutputKind::Asks(_)) => "asks".into(),
            Err(fault) => fault.details.unwrap_or_default(),
        };
        let png = STANDARD.encode(b"\x89PNG\r\n");
        let image =
            |data: &str, mime: &str| json!({"type": "image", "data": data, "mimeType": mime});
        let link = |uri: &str| json!({"type": "resource_link", "uri": uri, "name": "x"});
        let file = |file: Value| json!({"type": "resource", "resource": file});
        for (block, words) in [
            (json!({"type": "text", "text": "x"}), "content"),
            (image(&png, "image/png"), "content"),
            (file(json!({"uri": "test://x", "text": "x"})), "content"),
            (image(&png, "image/jpeg"), "its data is not image/jpeg"),
            (image(&png, "png"), "not a media type"),
            (image("@", "image/png"), "not base64"),
            (image(&png, "image/SVG+xml"), "an SVG is a file"),
            (
                json!({"type": "audio", "data": png, "mimeType": "image/png"}),
                "start with audio/",
            ),
            (file(json!({"uri": "test://x"})), "text or blob"),
            (link("javascript:alert(1)"), "not the address"),
            (link("FILE:///etc/passwd"), "not the address"),
            (
                json!({"type": "text", "text": "x", "_meta": {}}),
                "unknown field",
            ),
            (
                json!({"type": "text", "text": "x", "annotations": {"x": 1}}),
                "unknown field",
            ),
            (json!({"type": "video", "data": png}), "unknown variant"),
        ] {
            assert!(
                why(&json!({"$content": [block]})).contains(words),
                "{block}: {}",
                why(&json!({"$content": [block]}))
            );
        }
        let answer = json!([image(&png, "image/png")]).to_string();
        let all = 0..answer.len();
        let shown = blocks(&answer, &(all, None)).next().expect("a block");
        assert_eq!(
            shown.json,
            json!({"type": "image", "mimeType": "image/png"})
        );
        assert_eq!(shown.media.map(|media| media.len()), Some(6));
        assert!(why(&json!({"$content": [], "sum": 3})).contains("unknown field"));
        assert_eq!(
            [
                json!({"text": "about $content"}),
                json!({"x": {"$content": []}})
            ]
            .map(|at| why(&at)),
            ["plain"; 2]
        );
        let asks = |method: &str, params: Value| {
            why(&json!({"$ask": {"q": {"method": method, "params": params}}}))
        };
        assert_eq!(asks("elicitation/create", json!({"message": "?"})), "asks");
        assert!(asks("tools/call", json!({})).contains("must be elicitation/create"));
        assert!(asks("elicitation/create", json!({"mode": "url"})).contains("must be a form"));
        assert!(why(&json!({ "$ask": {} })).contains("1 to 16"));
    }
}
