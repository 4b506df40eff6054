//! `callers.policy.toml` as a JSON Schema, for editors.
//!
//! For: `schema callers`, docs. In: nothing. Out: JSON. Never: a key that `read.rs` does not read.

use super::{Breaker, LONGEST_NAME, MOST_CALLS, callbacks};
use crate::quantity::MAX_RANGES;
use serde_json::{Value, json};

/// JSON Schema (2020-12) of the file, read as TOML.
pub fn schema() -> Value {
    let Breaker { failures, wait } = Breaker::default();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolhost callers (callers.policy.toml)",
        "description": "Who may call which tools. Where this file is, a caller that no entry names may call nothing.",
        "type": "object", "additionalProperties": false, "required": ["caller"],
        "properties": {
            "caller": { "type": "array", "minItems": 1, "items": caller() },
            "limit": {
                "type": "array", "default": [],
                "description": "Limits of each tool that is named, all callers together; the narrowest entry counts.",
                "items": {
                    "type": "object", "additionalProperties": false, "required": ["tools", "why"],
                    "anyOf": [{ "required": ["calls_per_minute"] }, { "required": ["at_once"] }],
                    "properties": {
                        "tools": { "type": "array", "minItems": 1, "items": selector() },
                        "why": said("Why these tools are limited."),
                        "calls_per_minute": count("Calls in a minute."),
                        "at_once": count("Calls that run at once; others wait."),
                    },
                },
            },
            "breaker": {
                "type": "object", "additionalProperties": false, "required": ["why"],
                "description": "A tool that fails so often in a row for one caller is not called for that one for a while.",
                "properties": {
                    "why": said("Why these numbers."),
                    "failures": { "type": "integer", "minimum": 1, "maximum": MOST_CALLS, "default": failures },
                    "wait_seconds": { "type": "integer", "minimum": 1, "maximum": MOST_CALLS, "default": wait.as_secs() },
                },
            },
        },
    })
}

fn caller() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "why"],
        "dependentRequired": { "callbacks": ["callback_secret"], "callback_secret": ["callbacks"] },
        "properties": {
            "name": name("As the caller authenticates (a login, the name of a token, uid:1000), or * for everybody whom no other entry names."),
            "why": said("Why this caller may call."),
            "tools": { "type": "array", "default": [], "items": selector(), "description": "Exact ids, ns:* or *. The others are not there for this caller." },
            "parameters": { "type": "array", "default": [], "items": parameter(), "description": "What parameters may be; of several rules for one parameter of a tool one must hold, and a parameter with a rule must be given." },
            "calls_per_minute": count("Calls in a minute, of all tools together; left out: no limit."),
            "at_once": count("Calls that run at once; others wait."),
            "role": { "const": "operator", "description": "Sees audits, metrics and the calls of others." },
            "callbacks": { "type": "array", "default": [], "maxItems": callbacks::MOST, "items": callback(), "description": "Where this caller may have the ends of its calls in the background told." },
            "callback_secret": { "type": "string", "pattern": "^(file|env|command):", "description": "What those messages are signed with: file:PATH, env:NAME or command:/PROGRAM WORDS." },
            "act_as": { "type": "array", "default": [], "items": name("A caller's name, or *."), "description": "Whose names this caller may bring with a request and be taken for. Others are labels." },
        },
    })
}

fn callback() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["url", "why"],
        "properties": {
            "url": { "type": "string", "maxLength": callbacks::LONGEST, "pattern": "^https?://[^/?#@\\s]+(/[^?#%;\\\\\\s]*)?$", "description": "https://host[:port]/path, and everything below that path; http:// where messages may cross the network in the clear." },
            "ranges": { "type": "array", "default": [], "maxItems": MAX_RANGES, "items": { "type": "string" }, "description": "Addresses that are not public and that its host may have." },
            "why": said("Why this caller is told there."),
        },
    })
}

fn parameter() -> Value {
    let one = |keys: &[&str]| json!({ "required": keys });
    json!({
        "type": "object", "additionalProperties": false, "required": ["tool", "name", "why"],
        "oneOf": [
            one(&["values"]), one(&["prefix"]), one(&["under"]),
            { "anyOf": [one(&["min"]), one(&["max"])] },
        ],
        "properties": {
            "tool": selector(),
            "name": { "type": "string", "pattern": "\\S", "description": "As the tool's manifest names it." },
            "why": said("Why this value is allowed."),
            "values": { "type": "array", "minItems": 1, "items": { "type": ["string", "number", "boolean"] }, "description": "Exactly one of these." },
            "prefix": { "type": "string", "description": "A text that begins so." },
            "under": { "type": "string", "description": "A path below this folder, without `..`, `.` and empty parts." },
            "min": { "type": "number" }, "max": { "type": "number" },
        },
    })
}

fn name(description: &str) -> Value {
    json!({ "type": "string", "pattern": "^(\\*|[^*\\s]+)$", "maxLength": LONGEST_NAME, "description": description })
}

fn selector() -> Value {
    json!({ "type": "string", "pattern": "^(\\*|[^*\\s]+|[^*:\\s]+:\\*)$" })
}

fn said(description: &str) -> Value {
    json!({ "type": "string", "pattern": "\\S", "description": description })
}

fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": MOST_CALLS, "description": description })
}
