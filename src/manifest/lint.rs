//! What loads and is yet a mistake: words of a JSON Schema that check nothing, parameters that a model reads badly.
//!
//! A keyword that resembles none is no mistake: a schema may carry more than it checks.

use super::reader::{Reader, below};
use super::{Code, Manifest, arguments};
use crate::base::{suggest, text};
use crate::quantity::LONG_CHECK_STEPS;
use serde_json::{Map, Value};

#[rustfmt::skip]
const KEYWORDS: [&str; 60] = [
    "$schema", "$id", "id", "$ref", "$defs", "definitions", "$anchor", "$comment", "$dynamicRef", "$dynamicAnchor",
    "$recursiveRef", "$recursiveAnchor", "$vocabulary", "type", "enum", "const", "properties", "patternProperties",
    "additionalProperties", "unevaluatedProperties", "propertyNames", "required", "dependencies", "dependentRequired",
    "dependentSchemas", "minProperties", "maxProperties", "items", "prefixItems", "additionalItems", "unevaluatedItems",
    "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength", "pattern",
    "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "allOf", "anyOf", "oneOf", "not",
    "if", "then", "else", "title", "description", "default", "examples", "readOnly", "writeOnly", "deprecated",
];
/// Keywords for OpenAPI and for content, so like ours that they would be taken for misspelt ones.
const OTHERS: [&str; 4] = ["example", "contentEncoding", "contentMediaType", "contentSchema"];

#[rustfmt::skip]
const FORMATS: [&str; 19] = [
    "date", "date-time", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "json-pointer", "relative-json-pointer", "regex",
];

/// The keywords of one schema.
pub(super) fn keywords(map: &Map<String, Value>, pointer: &str, found: &mut Vec<(String, String)>) {
    for key in map.keys() {
        if KEYWORDS.contains(&key.as_str()) || OTHERS.contains(&key.as_str()) || key.starts_with("x-") {
            continue;
        }
        if let Some(near) = suggest::nearest(key, KEYWORDS) {
            let shown = text::head(key, 60);
            found.push((
                below(pointer, key),
                format!("'{shown}' is no word of JSON Schema and holds nothing: did you mean '{near}'?"),
            ));
        }
    }
    let Some(format) = map.get("format").and_then(Value::as_str).filter(|format| !FORMATS.contains(format)) else {
        return;
    };
    let mend = match suggest::nearest(format, FORMATS) {
        Some(near) => format!("did you mean '{near}'?"),
        None => "any text passes; a 'pattern' would be checked".to_owned(),
    };
    found
        .push((below(pointer, "format"), format!("'{}' is no format that is checked: {mend}", text::head(format, 60))));
}

/// Warns of parameters that load, but that a model reads badly or most model APIs refuse.
pub(super) fn parameters(reader: &mut Reader<'_>, manifest: &Manifest) {
    let Some(parameters) = &manifest.parameters else { return };
    for keyword in ["oneOf", "anyOf", "allOf", "not", "enum"] {
        if parameters.raw.get(keyword).is_some() {
            let message =
                format!("most model APIs refuse '{keyword}' at the top of parameters: move it into a property");
            reader.warn(Code::Schema, &format!("/parameters/{keyword}"), message);
        }
    }
    for (name, property) in parameters.raw.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let described = property.get("description").and_then(Value::as_str).is_some_and(|d| !d.trim().is_empty());
        if !described && !property.get("$ref").is_some_and(Value::is_string) {
            let pointer = below("/parameters/properties", name);
            let message = format!(
                "the parameter '{}' has no description: a model cannot know what to put there",
                text::head(name, 80)
            );
            reader.warn(Code::Schema, &pointer, message);
        }
    }
    for (index, name) in parameters.raw.get("required").and_then(Value::as_array).into_iter().flatten().enumerate() {
        if let Some(message) = name.as_str().and_then(|name| arguments::undeclared(&parameters.raw, name)) {
            reader.warn(Code::Schema, &format!("/parameters/required/{index}"), message);
        }
    }
    let mut steps = 0;
    for (index, example) in manifest.examples.iter().enumerate() {
        steps += parameters.steps(&example.input);
        let message = if steps > LONG_CHECK_STEPS {
            "the examples are too large: this one was not held to the parameters".to_owned()
        } else if let Err(fault) = arguments::check(manifest, example.input.clone(), false) {
            format!("the example does not fit the parameters: {}", fault.message)
        } else {
            continue;
        };
        reader.warn(Code::Schema, &format!("/examples/{index}/input"), message);
    }
}
