//! Prompts and resources, filled in by this process.
//!
//! A resource opens only the one file that it names, beneath its own folder, if policy allows.
//!
//! No link is followed there, and no tool can write the definition of a resource.

use super::{Call, Context, Ending, Executor, Outcome, Running, ToolAnswer, ToolSender};
use crate::base::json::Text;
use crate::fault::{Fault, Kind};
use crate::manifest::{Body, Document, Handler};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::registry;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Largest file of a resource, bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Whether a media type is JSON, whatever its case and parameters (RFC 9110, 8.3.1).
fn is_json(mime: &str) -> bool {
    mime.split(';')
        .next()
        .is_some_and(|kind| kind.trim_end().to_ascii_lowercase().ends_with("json"))
}

/// The executor of prompts and resources.
#[derive(Debug, Default)]
pub struct Documents;

impl Executor for Documents {
    fn run<'a>(&'a self, context: &'a Context, call: Call, _events: &'a ToolSender) -> Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let Handler::Document(document) = &call.manifest.handler else {
                return Err(Fault::new(
                    Kind::InternalError,
                    "This tool is not a document.",
                ));
            };
            let answer = match document {
                Document::Prompt { messages, ask } => prompt(messages, ask, &call.input),
                Document::Resource {
                    uri, mime, body, ..
                } => {
                    let uri = fill(uri, "{", "}", &call.input, false);
                    let mut resource = json!({"uri": uri});
                    if let Some(mime) = mime {
                        resource["mimeType"] = json!(mime);
                    }
                    let quoted = mime.as_deref().is_some_and(is_json);
                    match body {
                        Body::Text(text) => {
                            resource["text"] = json!(fill(text, "{{", "}}", &call.input, quoted))
                        }
                        Body::File(path) => {
                            let folder = call.site.folder.clone();
                            let path = path.clone();
                            let read = tokio::task::spawn_blocking(move || {
                                registry::read_beneath(&folder, &path, MAX_FILE_BYTES)
                            });
                            fn unread(why: String) -> Fault {
                                Fault::new(
                                    Kind::ServiceError,
                                    "The resource's file cannot be read.",
                                )
                                .person(why)
                            }
                            let bytes = read
                                .await
                                .map_err(|e| unread(e.to_string()))?
                                .map_err(unread)?;
                            let is_long = bytes.len() > LARGE_TEXT_BYTES;
                            let read = context
                                .deadline
                                .run(is_long, move || resource_of_file(resource, bytes));
                            let answer = ToolAnswer::new(read.await?, &context.deadline);
                            return Ok(Outcome::new(
                                Ending::Answered(answer),
                                crate::base::millis(started.elapsed()),
                            ));
                        }
                    }
                    content_of(&resource)
                }
            };
            Ok(Outcome::new(
                Ending::answer(&answer),
                crate::base::millis(started.elapsed()),
            ))
        })
    }
}

fn resource_of_file(mut resource: Value, bytes: Vec<u8>) -> Text {
    match String::from_utf8(bytes) {
        Ok(text) => resource["text"] = json!(text),
        Err(other) => resource["blob"] = json!(STANDARD.encode(other.as_bytes())),
    }
    Text::from(&content_of(&resource))
}

fn content_of(resource: &Value) -> Value {
    json!({"$content": [{"type": "resource", "resource": resource}]})
}

/// The messages of a prompt, or its questions as long as one has no answer.
fn prompt(messages: &[Value], ask: &Map<String, Value>, input: &Value) -> Value {
    if !ask.is_empty()
        && !ask
            .keys()
            .all(|key: &String| input["$client"]["answers"].get(key).is_some())
    {
        return json!({"$ask": ask});
    }
    let messages: Vec<Value> = messages
        .iter()
        .map(|message| fill_all(message, input))
        .collect();
    json!({ "messages": messages })
}

/// Fills in every text of a value.
fn fill_all(value: &Value, input: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text, "{{", "}}", input, false)),
        Value::Array(items) => items.iter().map(|item| fill_all(item, input)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, part)| (key.clone(), fill_all(part, input)))
            .collect(),
        other => other.clone(),
    }
}

/// Replaces the names in a text: `{{name}}` by an argument, `{{key.field}}` by a field of an
/// accepted form. Names in values are kept. `quoted`: escapes values as in a JSON string.
fn fill(text: &str, open: &str, close: &str, input: &Value, quoted: bool) -> String {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let Some((name, later)) = after.split_once(close) else {
            break;
        };
        let value = match name.trim().split_once('.') {
            Some((key, field)) => &input["$client"]["answers"][key]["content"][field],
            None => &input[name.trim()],
        };
        let value = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        whole += before;
        if quoted {
            let string = json!(value).to_string();
            whole += &string[1..string.len() - 1];
        } else {
            whole += &value
        }
        rest = later;
    }
    whole + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_where_their_names_stood_and_are_not_read_again() {
        let input = json!({"a": "{{b}}", "b": "\"x", "n": 3});
        assert_eq!(
            fill("{{a}} {{ n }} {{c}}.", "{{", "}}", &input, false),
            "{{b}} 3 ."
        );
        assert_eq!(
            fill("{\"b\":\"{{b}}\"}", "{{", "}}", &input, true),
            "{\"b\":\"\\\"x\"}"
        );
        assert_eq!(fill("open {{a", "{{", "}}", &input, false), "open {{a");
        assert!(
            ["application/json", "a/b+JSON ;charset=utf-8"]
                .into_iter()
                .all(is_json)
                && !is_json("text/json5")
        );
    }
}
