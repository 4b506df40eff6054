//! Manifests as MCP tools that the strictest client and model API takes. The service also checks what is left out here.

use crate::base::text;
use crate::manifest::Manifest;
use crate::service::Effects;
use crate::transport::schemas;
use rmcp::model::{MetaObject, Tool, ToolAnnotations};
use serde_json::json;
use std::sync::Arc;

/// `effects`: what it may touch here, where that is known.
pub fn tool(manifest: &Manifest, name: &str, effects: Option<Effects>) -> Tool {
    let mut tool = Tool::new(name.to_owned(), schemas::description(manifest), Arc::new(schemas::input(manifest)))
        .with_title(text::printable(&manifest.display_name))
        .with_meta(meta(manifest));
    if let Some(schema) = schemas::output(manifest) {
        tool = tool.with_raw_output_schema(Arc::new(schema));
    }
    if let Some(effects) = effects {
        tool = tool.with_annotations(annotations(effects));
    }
    tool
}

/// Hints that follow from what policy leaves of the tool's asks: it cannot do more than that.
fn annotations(effects: Effects) -> ToolAnnotations {
    let reads_only = !effects.writes && !effects.hosts;
    let hints = ToolAnnotations::new().read_only(reads_only).open_world(effects.hosts);
    if reads_only { hints.destructive(false) } else { hints }
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
