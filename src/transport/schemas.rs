//! Schemas of a tool as the strictest clients and model APIs take them. Rules that are left out here are checked by the call
//! pipeline all the same.

use crate::base::text;
use crate::manifest::Manifest;
use serde_json::{Map, Value, json};

/// Keywords that model APIs refuse at the root of an input schema, with the whole list of tools.
const REFUSED_AT_ROOT: [&str; 5] = ["oneOf", "anyOf", "allOf", "not", "enum"];

pub fn description(manifest: &Manifest) -> String {
    text::printable_block(&manifest.description)
}

/// The parameters with a plain object root. A tool that declares none is shown as open, because the pipeline
/// takes any object then; one that takes no arguments says so with `additionalProperties: false`.
pub fn input(manifest: &Manifest) -> Map<String, Value> {
    let written = manifest.parameters.as_ref().and_then(|schema| schema.raw.as_object()).cloned();
    let mut schema = written.unwrap_or_default();
    schema.retain(|key, _| manifest.schema_as_written || !REFUSED_AT_ROOT.contains(&key.as_str()));
    schema.insert("type".into(), json!("object"));
    // Model APIs refuse an object schema without this keyword.
    schema.entry("properties").or_insert_with(|| json!({}));
    schema
}

/// Whether answers of this tool travel inside `{"result": …}`: old clients take objects only.
pub fn wraps(manifest: &Manifest) -> bool {
    manifest.output.as_ref().is_some_and(|schema| !is_object_schema(&schema.raw))
}

fn is_object_schema(schema: &Value) -> bool {
    schema["type"] == "object"
}

pub fn output(manifest: &Manifest) -> Option<Map<String, Value>> {
    let schema = &manifest.output.as_ref()?.raw;
    if is_object_schema(schema) {
        return schema.as_object().cloned();
    }
    wrapped(schema)
}

/// `{"result": schema}`. Definitions move to the new root, where references look for them; a schema
/// that refers to anything else of itself is not advertised, because the reference would dangle.
fn wrapped(schema: &Value) -> Option<Map<String, Value>> {
    let mut inner = schema.clone();
    let mut root = Map::new();
    if let Value::Object(fields) = &mut inner {
        if fields.contains_key("$id") || fields.contains_key("$anchor") {
            return None;
        }
        for key in ["$schema", "$defs", "definitions"] {
            if let Some(part) = fields.remove(key) {
                root.insert(key.into(), part);
            }
        }
    }
    if !references_hold(&inner) || !root.values().all(references_hold) {
        return None;
    }
    root.insert("type".into(), json!("object"));
    root.insert("properties".into(), json!({"result": inner}));
    root.insert("required".into(), json!(["result"]));
    Some(root)
}

fn references_hold(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(target)) => {
                target.starts_with("#/$defs/") || target.starts_with("#/definitions/")
            }
            _ => references_hold(value),
        }),
        Value::Array(items) => items.iter().all(references_hold),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_schema_keeps_its_references() {
        let schema = json!({"type": "array", "items": {"$ref": "#/$defs/row"}, "$defs": {"row": {"type": "string"}}});
        let root = Value::Object(wrapped(&schema).unwrap());
        assert_eq!(root["properties"]["result"]["items"]["$ref"], "#/$defs/row");
        assert_eq!(root["$defs"]["row"]["type"], "string");
        assert!(wrapped(&json!({"type": "array", "items": {"$ref": "#"}})).is_none());
    }
}
