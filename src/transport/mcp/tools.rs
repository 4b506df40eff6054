//! Manifests as MCP tools: what a model and its client see of a tool.
//!
//! For: `tools/list`. In: a manifest and its name. Out: a `Tool` that the strictest client and model API takes.
//! Never: a rule that the road does not check. (The road also checks the rules that are left out here.)

use crate::base::text;
use crate::manifest::{Handler, Manifest};
use rmcp::model::{JsonObject, MetaObject, Tool, ToolAnnotations};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Keywords that model APIs refuse at the root of an input schema, with the whole list of tools.
const REFUSED_AT_ROOT: [&str; 5] = ["oneOf", "anyOf", "allOf", "not", "enum"];

pub fn tool(manifest: &Manifest, name: &str) -> Tool {
    let mut tool = Tool::new(name.to_owned(), description(manifest), Arc::new(input_schema(manifest)))
        .with_title(text::printable(&manifest.display_name))
        .with_meta(meta(manifest));
    if let Some(schema) = output_schema(manifest) {
        tool = tool.with_raw_output_schema(Arc::new(schema));
    }
    if let Some(annotations) = annotations(manifest) {
        tool = tool.with_annotations(annotations);
    }
    tool
}

fn description(manifest: &Manifest) -> String {
    text::printable_block(&manifest.description)
}

/// The parameters with a plain object root. A tool that declares none is shown as open, because the road
/// takes any object then; one that takes no arguments says so with `additionalProperties: false`.
fn input_schema(manifest: &Manifest) -> JsonObject {
    let written = manifest.parameters.as_ref().and_then(|schema| schema.raw.as_object()).cloned();
    let mut schema = written.unwrap_or_default();
    schema.retain(|key, _| !REFUSED_AT_ROOT.contains(&key.as_str()));
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

fn output_schema(manifest: &Manifest) -> Option<JsonObject> {
    let schema = &manifest.output.as_ref()?.raw;
    if is_object_schema(schema) {
        return schema.as_object().cloned();
    }
    wrapped(schema)
}

/// `{"result": schema}`. Definitions move to the new root, where references look for them; a schema
/// that refers to anything else of itself is not advertised, because the reference would dangle.
fn wrapped(schema: &Value) -> Option<JsonObject> {
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

/// Hints that follow from what the tool asks for: it cannot do more than that.
fn annotations(manifest: &Manifest) -> Option<ToolAnnotations> {
    match &manifest.handler {
        Handler::Script { .. } => {}
        Handler::ServiceMethod { service, .. } if service == crate::executor::method::SCRIPT_SERVICE => {}
        // Nothing confines an in-process service, so its manifest does not tell what it does.
        _ => return None,
    }
    let reads_only = manifest.asks.write.is_empty() && manifest.asks.hosts.is_empty();
    let hints = ToolAnnotations::new().read_only(reads_only).open_world(!manifest.asks.hosts.is_empty());
    Some(if reads_only { hints.destructive(false) } else { hints })
}

fn meta(manifest: &Manifest) -> MetaObject {
    let mut meta = MetaObject::new();
    meta.insert("dev.toolhost/toolId".into(), json!(manifest.id));
    meta.insert("dev.toolhost/version".into(), json!(manifest.version.to_string()));
    meta.insert("dev.toolhost/digest".into(), json!(manifest.digest));
    if !manifest.tags.is_empty() {
        meta.insert("dev.toolhost/tags".into(), json!(manifest.tags));
    }
    meta
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
