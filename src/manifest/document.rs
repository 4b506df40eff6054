//! Prompts and resources: documents that are shown and not run (`*.prompt.json`,
//! `*.resource.json`).
//!
//! A document reads no file outside of its own folder, and a URI template matches an address in one
//! way only.

use super::pattern::{self, Pattern, PatternShape};
use super::reader::Reader;
use crate::base::problem::Code;
use serde_json::{Map, Value};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// Messages with `{{name}}` in place of arguments. `ask`: requests that the client answers
    /// first.
    Prompt {
        messages: Vec<Value>,
        ask: Map<String, Value>,
    },
    /// `variables`: the names in braces in the URI, in order.
    Resource {
        uri: String,
        variables: Vec<String>,
        mime: Option<String>,
        body: Body,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// With `{{name}}` in place of variables.
    Text(String),
    /// Below the document's own folder.
    File(PathBuf),
}

impl Document {
    /// The file name ending of such documents.
    pub fn ending(&self) -> &'static str {
        match self {
            Document::Prompt { .. } => ".prompt.json",
            Document::Resource { .. } => ".resource.json",
        }
    }

    /// The file that it shows, below its own folder.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Document::Resource {
                body: Body::File(path),
                ..
            } => Some(path),
            _ => None,
        }
    }

    /// The requested file.
    pub(super) fn reads(&self) -> Vec<Pattern> {
        let file = self.file().map(|path| Pattern {
            text: path.to_string_lossy().into_owned(),
            from_base: false,
            shape: PatternShape::File { path: path.clone() },
        });
        file.into_iter().collect()
    }
}

pub(super) fn read(reader: &mut Reader<'_>, top: &Value) -> Option<Document> {
    let handler = &top["handler"];
    if !top["securityContext"]["fileAccess"].is_null() {
        let message = "a document reads its own `file` and nothing else: remove this";
        reader.error(Code::Security, "/securityContext/fileAccess", message);
    }
    if handler["type"] == "prompt" {
        let messages = handler["messages"]
            .as_array()?
            .iter()
            .map(message)
            .collect();
        return Some(Document::Prompt {
            messages,
            ask: handler["ask"].as_object().cloned().unwrap_or_default(),
        });
    }
    let uri = handler["uri"].as_str()?.to_owned();
    let variables = variables(&uri).unwrap_or_else(|why| {
        reader.error(Code::Schema, "/handler/uri", why);
        Vec::new()
    });
    for name in variables
        .iter()
        .filter(|name| top["parameters"]["properties"].get(name.as_str()).is_none())
    {
        let message = format!(
            "parameters has no '{name}', which is a variable of the uri: describe it there"
        );
        reader.error(Code::Schema, "/handler/uri", message);
    }
    let body = match (handler["text"].as_str(), handler["file"].as_str()) {
        (Some(text), None) => Body::Text(text.to_owned()),
        (None, Some(file)) => match pattern::parse(file).map(|pattern| pattern.shape) {
            Ok(PatternShape::File { path }) if path.is_relative() && variables.is_empty() => {
                Body::File(path)
            }
            _ => {
                let message =
                    "must be one file below this folder, and `uri` must have no variables";
                reader.error(Code::Security, "/handler/file", message);
                return None;
            }
        },
        _ => {
            reader.error(
                Code::Schema,
                "/handler",
                "a resource must have either `text` or `file`",
            );
            return None;
        }
    };
    Some(Document::Resource {
        uri,
        variables,
        mime: handler["mimeType"].as_str().map(str::to_owned),
        body,
    })
}

/// The message, with a string `content` turned into a text block.
fn message(message: &Value) -> Value {
    let mut message = message.clone();
    if let Value::String(text) = &message["content"] {
        message["content"] = serde_json::json!({"type": "text", "text": text});
    }
    message
}

/// The names in braces, each alone between two slashes, so that a URI matches in one way only.
fn variables(uri: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in uri.split('/') {
        if let Some(name) = part
            .strip_prefix('{')
            .and_then(|part| part.strip_suffix('}'))
        {
            let plain =
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !plain || names.iter().any(|other| other == name) {
                return Err(format!(
                    "'{{{name}}}' must be one plain name, and occur once"
                ));
            }
            names.push(name.to_owned());
        } else if part.contains(['{', '}']) {
            return Err(
                "a variable must be alone between two slashes: test://items/{id}/data".to_owned(),
            );
        }
    }
    Ok(names)
}
