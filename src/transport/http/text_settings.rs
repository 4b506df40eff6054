//! `text` of a request for a response: the form that the answer of its model is to have.

use super::body;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// `text`: how the model answers.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    #[serde(default, deserialize_with = "body::or_default")]
    pub format: AnswerFormat,
    // Not every server takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    verbosity: Option<Value>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerFormat {
    #[default]
    Text,
    JsonObject,
    JsonSchema(AnswerSchema),
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerSchema {
    name: String,
    schema: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl AnswerFormat {
    /// As Chat Completions write it. `None`: it is what they do anyway.
    pub fn in_chat(&self) -> Option<Value> {
        match self {
            AnswerFormat::Text => None,
            AnswerFormat::JsonObject => Some(json!({"type": "json_object"})),
            AnswerFormat::JsonSchema(schema) => {
                Some(json!({"type": "json_schema", "json_schema": schema}))
            }
        }
    }
}
