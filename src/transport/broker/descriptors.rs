//! The descriptors of a service and of a tool, as TrustGraph's configuration takes them (`toolhost trustgraph export`).

use crate::base::text;
use crate::broker::Topic;
use crate::manifest::Manifest;
use crate::transport::schemas;
use serde_json::{Value, json};

/// Each is put under a key into the configuration of a workspace.
pub struct Descriptors {
    pub service_key: String,
    pub service: Value,
    pub tool_key: String,
    pub tool: Value,
}

/// `service`: the key of the service. The tool's own id goes into the fixed `config` of each message, so that a service with
/// several tools knows which is meant.
pub fn of(manifest: &Manifest, service: &str, request: &Topic, response: &Topic) -> Descriptors {
    let schema = schemas::input(manifest);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    let arguments = properties.into_iter().flatten().map(|(name, property)| {
        // TrustGraph knows one word for the type, and shows it to the model.
        let kind = property["type"].as_str().unwrap_or("string");
        let described = text::printable_block(property["description"].as_str().unwrap_or_default());
        let mut argument = json!({ "name": name, "type": kind, "description": described });
        // TrustGraph passes this over; hosts of ours read it.
        if !required.contains(&name.as_str()) {
            argument["required"] = json!(false);
        }
        argument
    });
    let name: String = manifest.model_name.clone().unwrap_or_else(|| manifest.id.replace(':', "-"));
    Descriptors {
        service_key: service.to_owned(),
        service: json!({
            "id": service,
            "request-queue": request.to_string(),
            "response-queue": response.to_string(),
            // TrustGraph sends no other values than these.
            "config-params": [{ "name": "tool", "required": true }, { "name": "timeoutMs", "required": false }],
        }),
        tool_key: name.clone(),
        tool: json!({
            "type": "tool-service",
            "name": name,
            "description": schemas::description(manifest),
            "service": service,
            "tool": manifest.id,
            "arguments": arguments.collect::<Vec<_>>(),
        }),
    }
}
