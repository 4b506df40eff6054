//! What a JSON Schema refuses in a value, in the words of its reader: each fault with its place and what to write
//! instead.
//!
//! Manifests and policies are both read by the schema that is published for them. No message repeats a value: it may be
//! a secret.

use crate::base::json::escape_segment;
use crate::base::{suggest, text};
use jsonschema::error::{TypeKind, ValidationError, ValidationErrorKind as Kind};
use serde_json::Value;

/// Most unknown names that are reported of one table or object.
const MAX_NAMES: usize = 100;

/// One place at which a value breaks its schema.
#[derive(Debug)]
pub struct Violation {
    /// JSON pointer.
    pub pointer: String,
    /// The fault is the name of the member, and not its value.
    pub is_name: bool,
    /// Only that something is wrong there is known: a reader of the text may say it exactly.
    pub is_rough: bool,
    pub message: String,
}

/// What a language of files calls its values.
pub struct Words {
    null: &'static str,
    object: &'static str,
    assign: &'static str,
    /// Values of a document beyond which its faults are not explained one by one.
    pub most_explained: usize,
    /// Whoever reads a text says better than its schema what is wrong with it.
    pub defers: bool,
}

/// TOML has no null: dates and numbers without end become one.
pub const TOML: Words = Words {
    null: "a date or a number without end",
    object: "a table",
    assign: " =",
    most_explained: usize::MAX,
    defers: false,
};
pub const JSON: Words = Words { null: "null", object: "an object", assign: ":", most_explained: 20_000, defers: true };

/// What one error says, in words.
pub fn explain(error: &ValidationError<'_>, schema: &Value, words: &Words) -> Vec<Violation> {
    let at = error.instance_path().as_str();
    let key = at.rsplit('/').next().unwrap_or_default();
    let (key, entry) = match key.parse::<usize>() {
        Ok(_) => (at.rsplit('/').nth(1).unwrap_or_default(), true),
        Err(_) => (key, false),
    };
    let rule = rule(schema, error.schema_path().as_str());
    let about = |rule: &Value| match rule["description"].as_str().filter(|about| !about.is_empty()) {
        Some(about) => format!(": {about}"),
        None => String::new(),
    };
    let (is_rough, message) = match error.kind() {
        Kind::AdditionalProperties { unexpected } => {
            let known: Vec<&str> =
                rule["properties"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
            let unknown = |word: &String| {
                let (shown, near) = (text::printable(&text::head(word, 80)), did_you_mean(word, &known));
                let message = format!("unknown key `{shown}`{near}; known here: {}", known.join(", "));
                Violation { pointer: format!("{at}/{}", escape_segment(word)), is_name: true, is_rough: false, message }
            };
            return unexpected.iter().take(MAX_NAMES).map(unknown).collect();
        }
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            (false, format!("`{name}` is missing{}", about(&rule["properties"][name])))
        }
        Kind::Type { kind } => (false, wrong_type(kind, key, entry, rule, error.instance(), words)),
        Kind::Enum { options } => {
            let words: Vec<&str> = options.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            (false, one_of(key, &words, error.instance()))
        }
        Kind::Constant { expected_value } => {
            (false, one_of(key, &expected_value.as_str().into_iter().collect::<Vec<_>>(), error.instance()))
        }
        Kind::Minimum { limit } => (false, format!("`{key}` is too small; the least is {limit}{}", about(rule))),
        Kind::Maximum { limit } => (false, format!("`{key}` is too large; the most is {limit}{}", about(rule))),
        Kind::MinItems { .. } => (false, format!("`{key}` is empty{}", about(rule))),
        Kind::MaxItems { limit } => (false, format!("more than {limit} entries")),
        Kind::MaxLength { limit } => (true, format!("`{key}` is longer than {limit} characters")),
        Kind::Pattern { pattern } if pattern == r"\S" => (false, format!("`{key}` is blank{}", about(rule))),
        _ => (true, format!("`{key}` is not written as it must be{}", about(rule))),
    };
    vec![Violation { pointer: at.to_owned(), is_name: false, is_rough, message }]
}

/// The part of the schema that holds the keyword which is broken, or the nearest around it that says something.
fn rule<'s>(schema: &'s Value, path: &str) -> &'s Value {
    let mut path = path;
    while let Some((around, _)) = path.rsplit_once('/') {
        path = around;
        if let Some(rule) = schema.pointer(path)
            && (rule["description"].is_string() || rule["properties"].is_object())
        {
            return rule;
        }
    }
    schema
}

fn one_of(key: &str, words: &[&str], written: &Value) -> String {
    let listed: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let near = did_you_mean(written.as_str().unwrap_or_default(), words);
    format!("`{key}` must be {}{near}", listed.join(" or "))
}

fn wrong_type(kind: &TypeKind, key: &str, entry: bool, rule: &Value, written: &Value, words: &Words) -> String {
    let is = match written {
        Value::Null => words.null,
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a float",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => words.object,
    };
    let wanted = match kind {
        TypeKind::Multiple(_) => "a text, a number, true or false".to_owned(),
        TypeKind::Single(kind) => match kind.to_string().as_str() {
            "object" if entry && rule["required"].is_array() => {
                let keys = rule["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let keys: Vec<String> = keys.map(|key| format!("{key}{} \"…\"", words.assign)).collect();
                return format!("each entry of `{key}` is written {{ {} }}", keys.join(", "));
            }
            "object" => words.object.to_owned(),
            "array" => "a list in [ ]".to_owned(),
            "string" => "text in quotes".to_owned(),
            "boolean" => "true or false".to_owned(),
            "integer" => "a whole number".to_owned(),
            other => format!("a {other}"),
        },
    };
    let whose = if entry { format!("each entry of `{key}`") } else { format!("`{key}`") };
    format!("{whose} must be {wanted}, not {is}")
}

/// `; did you mean …?` for the nearest known word, or nothing.
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    let near = suggest::nearest(word, known.iter().copied());
    near.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}
