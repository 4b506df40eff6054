//! Answers that are more than data: content for the client (`$content`), or questions to it (`$ask`). Media must begin as
//! their type does; a tool asks only what policy lets it ask.

use crate::fault::{Fault, Kind};
use crate::policy::Ask;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Most blocks of one answer.
const BLOCKS: usize = 200;
/// Most questions at once, and their longest text with the state, bytes: it comes back sealed, beside the answers, in a
/// message that is bounded too.
const QUESTIONS: usize = 16;
const LONGEST: usize = 32 * 1024;
/// What media of these types begin with.
const BEGINNINGS: [(&str, &[u8]); 6] = [
    ("image/png", b"\x89PNG"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF8"),
    ("image/webp", b"RIFF"),
    ("audio/wav", b"RIFF"),
    ("audio/ogg", b"OggS"),
];

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

/// The client at the other end of a call, as far as it can be asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Client {
    pub can: Vec<Ask>,
    /// What it answered, by the tool's keys.
    pub answers: Map<String, Value>,
    pub state: Value,
}

impl Client {
    /// The member `$client` of the input of a tool that may ask.
    pub fn told(&self) -> Value {
        let can: Vec<&str> = self.can.iter().map(|ask| ask.word()).collect();
        json!({"can": can, "answers": self.answers, "state": self.state})
    }
}

/// What an answer is.
pub enum Shape<'a> {
    Plain,
    Content(Content<'a>),
    Asks(Questions),
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "some members are only held to their types")]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Block {
    /// Words.
    Text { text: String, annotations: Option<Annotations> },
    #[serde(rename_all = "camelCase")]
    Image { data: String, mime_type: String, annotations: Option<Annotations> },
    #[serde(rename_all = "camelCase")]
    Audio { data: String, mime_type: String, annotations: Option<Annotations> },
    #[serde(rename_all = "camelCase")]
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
    Resource { resource: Embedded, annotations: Option<Annotations> },
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

/// What an answer is. An answer of a shape that has a fault is refused.
pub fn of(answer: &str) -> Result<Shape<'_>, Fault> {
    let has = |name: &str| answer.starts_with('{') && crate::base::json::member(answer, name).is_some();
    if answer.contains("\"$content\"") && has("/$content") {
        let content: Content = serde_json::from_str(answer).map_err(|e| wrong("$content", &e.to_string()))?;
        check(content.blocks.get()).map_err(|why| wrong("$content", &why))?;
        return Ok(Shape::Content(content));
    }
    if answer.contains("\"$ask\"") && has("/$ask") {
        if answer.len() > LONGEST {
            return Err(wrong("$ask", &format!("it is longer than {LONGEST} bytes")));
        }
        let questions: Questions = serde_json::from_str(answer).map_err(|e| wrong("$ask", &e.to_string()))?;
        questions.asks().map_err(|why| wrong("$ask", &why))?;
        return Ok(Shape::Asks(questions));
    }
    Ok(Shape::Plain)
}

/// Content for a reader of text: the number of bytes in place of each picture, sound and file.
pub fn without_media(mut answer: Value) -> Value {
    for block in answer["$content"].as_array_mut().into_iter().flatten() {
        let holder = if block["type"] == "resource" { &mut block["resource"] } else { block };
        let Value::Object(holder) = holder else { continue };
        if let Some(data) = holder.remove("data").or_else(|| holder.remove("blob")) {
            let bytes = data.as_str().and_then(|data| decoded(data).ok()).map_or(0, |data| data.len());
            holder.insert("bytes".to_owned(), json!(bytes));
        }
    }
    answer
}

fn wrong(shape: &str, why: &str) -> Fault {
    Fault::new(Kind::OutputValidationError, format!("The tool's answer is not the `{shape}` that it is written as."))
        .details(format!("{why}."))
}

impl Questions {
    /// What is asked for, each once.
    pub fn asks(&self) -> Result<Vec<Ask>, String> {
        if self.requests.is_empty() || self.requests.len() > QUESTIONS {
            return Err(format!("it holds 1 to {QUESTIONS} questions"));
        }
        let mut asks = Vec::new();
        for (key, request) in &self.requests {
            let ask = request["method"].as_str().and_then(Ask::of_method);
            let ask = ask.ok_or_else(|| {
                let methods = Ask::ALL.map(Ask::method).join(", ");
                format!("the method of '{}' is none of {methods}", crate::base::text::printable(key))
            })?;
            if ask == Ask::Elicitation && request["params"]["mode"].as_str().is_some_and(|mode| mode != "form") {
                return Err("a question to a person is a form: no tool sends people to a URL".to_owned());
            }
            if !asks.contains(&ask) {
                asks.push(ask);
            }
        }
        Ok(asks)
    }
}

fn check(blocks: &str) -> Result<(), String> {
    let blocks: Vec<&RawValue> = serde_json::from_str(blocks).map_err(|_| "it is a list of blocks".to_owned())?;
    if blocks.len() > BLOCKS {
        return Err(format!("it holds at most {BLOCKS} blocks"));
    }
    for (at, block) in blocks.iter().enumerate() {
        let read: Result<Block, _> = serde_json::from_str(block.get());
        read.map_err(|e| e.to_string()).and_then(sound).map_err(|why| format!("block {}: {why}", at + 1))?;
    }
    Ok(())
}

fn sound(block: Block) -> Result<(), String> {
    match block {
        Block::Text { .. } => Ok(()),
        Block::Image { data, mime_type, .. } => media("image/", &mime_type, &data),
        Block::Audio { data, mime_type, .. } => media("audio/", &mime_type, &data),
        Block::ResourceLink { uri, mime_type, .. } => {
            address(&uri)?;
            mime_type.map_or(Ok(()), |mime| named(&mime))
        }
        Block::Resource { resource: Embedded { uri, mime_type, text, blob }, .. } => {
            address(&uri)?;
            mime_type.as_deref().map_or(Ok(()), named)?;
            match (text, blob) {
                (Some(_), None) => Ok(()),
                (None, Some(blob)) => decoded(&blob).map(drop),
                _ => Err("a resource has text or blob, one of them".to_owned()),
            }
        }
    }
}

fn media(kind: &str, mime: &str, data: &str) -> Result<(), String> {
    named(mime)?;
    let mime = mime.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !mime.starts_with(kind) {
        return Err(format!("its mimeType does not start with {kind}"));
    }
    // It can hold scripts and links.
    if mime.starts_with("image/svg") {
        return Err("an SVG is a file: send it as a resource".to_owned());
    }
    let bytes = decoded(data)?;
    let beginning = BEGINNINGS.iter().find(|(known, _)| *known == mime);
    match beginning.is_none_or(|(_, beginning)| bytes.starts_with(beginning)) {
        true => Ok(()),
        false => Err(format!("its data is no {mime}")),
    }
}

fn decoded(data: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(data).map_err(|e| format!("its data is not base64: {e}"))
}

/// `type/subtype`, and nothing that could be read as more.
fn named(mime: &str) -> Result<(), String> {
    let token =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b));
    let (bare, more) = mime.split_once(';').unwrap_or((mime, ""));
    let plain = more.bytes().all(|b| b.is_ascii_alphanumeric() || b" =-_.+;".contains(&b));
    match bare.split_once('/').is_some_and(|(kind, of)| token(kind) && token(of)) && plain && mime.len() <= 200 {
        true => Ok(()),
        false => Err("its mimeType is no media type (type/subtype)".to_owned()),
    }
}

fn address(uri: &str) -> Result<(), String> {
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme).unwrap_or_default();
    let good = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        && crate::base::text::is_printable(uri)
        && !["javascript", "data", "vbscript", "file"].contains(&scheme.to_ascii_lowercase().as_str());
    if good { Ok(()) } else { Err("its uri is no address of a resource".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(answer: &Value) -> String {
        match of(&answer.to_string()) {
            Ok(Shape::Plain) => "plain".into(),
            Ok(Shape::Content(_)) => "content".into(),
            Ok(Shape::Asks(_)) => "asks".into(),
            Err(fault) => fault.details.unwrap_or_default(),
        }
    }

    #[test]
    fn content_is_what_it_says() {
        let png = STANDARD.encode(b"\x89PNG\r\n");
        let block = |block: Value| why(&json!({ "$content": [block] }));
        assert_eq!(block(json!({"type": "text", "text": "x"})), "content");
        assert_eq!(block(json!({"type": "image", "data": png, "mimeType": "image/png"})), "content");
        assert_eq!(block(json!({"type": "resource", "resource": {"uri": "test://x", "text": "x"}})), "content");
        let shown = |block: Value| without_media(json!({ "$content": [block] }))["$content"][0].take();
        let picture = json!({"type": "image", "mimeType": "image/png", "bytes": 6});
        assert_eq!(shown(json!({"type": "image", "data": png, "mimeType": "image/png"})), picture);
        let file = json!({"type": "resource", "resource": {"uri": "test://x", "bytes": 6}});
        assert_eq!(shown(json!({"type": "resource", "resource": {"uri": "test://x", "blob": png}})), file);
        for (bad, words) in [
            (json!({"type": "image", "data": png, "mimeType": "image/jpeg"}), "its data is no image/jpeg"),
            (json!({"type": "image", "data": png, "mimeType": "png"}), "no media type"),
            (json!({"type": "image", "data": "@", "mimeType": "image/png"}), "not base64"),
            (json!({"type": "audio", "data": png, "mimeType": "image/png"}), "start with audio/"),
            (json!({"type": "resource", "resource": {"uri": "test://x"}}), "text or blob"),
            (json!({"type": "resource_link", "uri": "javascript:alert(1)", "name": "x"}), "no address"),
            (json!({"type": "text", "text": "x", "_meta": {}}), "unknown field"),
            (json!({"type": "text", "text": "x", "annotations": {"x": 1}}), "unknown field"),
            (json!({"type": "image", "data": png, "mimeType": "image/SVG+xml"}), "an SVG is a file"),
            (json!({"type": "resource_link", "uri": "FILE:///etc/passwd", "name": "x"}), "no address"),
            (json!({"type": "video", "data": png}), "unknown variant"),
        ] {
            let why = block(bad.clone());
            assert!(why.contains(words) && why.starts_with("block 1"), "{bad}: {why}");
        }
        assert!(why(&json!({"$content": [], "sum": 3})).contains("unknown field"));
        assert_eq!(why(&json!({"text": "about \"$content\""})), "plain");
        assert_eq!(why(&json!({"x": {"$content": []}})), "plain");
    }

    #[test]
    fn questions_are_forms_samples_or_roots() {
        let asks = |method: &str, params: Value| why(&json!({"$ask": {"q": {"method": method, "params": params}}}));
        assert_eq!(asks("elicitation/create", json!({"message": "?"})), "asks");
        assert_eq!(asks("sampling/createMessage", json!({})), "asks");
        assert!(asks("tools/call", json!({})).contains("is none of"));
        assert!(asks("elicitation/create", json!({"mode": "url"})).contains("is a form"));
        assert!(why(&json!({ "$ask": {} })).contains("1 to 16"));
    }
}
