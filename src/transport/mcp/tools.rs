//! Manifests as MCP tools: what a model and its client see of a tool.
//!
//! For: `tools/list`. In: a manifest and its name. Out: a `Tool` that the strictest client and model API takes.
//! Never: a rule that the road does not check. (The road also checks the rules that are left out here.)

use crate::base::text;
use crate::manifest::{Handler, Manifest};
use crate::transport::schemas;
use rmcp::model::{MetaObject, Tool, ToolAnnotations};
use serde_json::json;
use std::sync::Arc;

pub fn tool(manifest: &Manifest, name: &str) -> Tool {
    let mut tool = Tool::new(name.to_owned(), schemas::description(manifest), Arc::new(schemas::input(manifest)))
        .with_title(text::printable(&manifest.display_name))
        .with_meta(meta(manifest));
    if let Some(schema) = schemas::output(manifest) {
        tool = tool.with_raw_output_schema(Arc::new(schema));
    }
    if let Some(annotations) = annotations(manifest) {
        tool = tool.with_annotations(annotations);
    }
    tool
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
