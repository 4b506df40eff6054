//! Reports as MCP results: structured content with its text twin, or an error a model can act on.
//!
//! For: `tools/call`. In: a report. Out: a `CallToolResult`, complete in both eras. Never: a host path.

use super::tools;
use crate::executor::Artifact;
use crate::manifest::text;
use crate::service::{Report, format};
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Value, json};

pub fn result(report: &Report) -> CallToolResult {
    let mut result = match &report.error {
        None => success(report),
        Some(_) => failure(report),
    };
    let mut meta = MetaObject::new();
    meta.insert("dev.toolhost/callId".into(), json!(report.id));
    meta.insert("dev.toolhost/usage".into(), json!(report.usage));
    if !report.notes.is_empty() {
        meta.insert("dev.toolhost/notes".into(), json!(report.notes));
    }
    result.meta = Some(meta);
    result
}

/// With an output schema the text is the compact JSON of the structured content (B-023); without one a
/// string stays as it is (B-024) and anything else is indented (B-025). Objects are structured either way.
fn success(report: &Report) -> CallToolResult {
    let answer = report.answer();
    let schema = report.manifest.as_ref().is_some_and(|manifest| manifest.output.is_some());
    let wraps = report.manifest.as_ref().is_some_and(|manifest| tools::wraps(manifest)) && !report.speaks_envelope;
    let structured = if wraps { json!({"result": answer}) } else { answer };
    let text = format::visible_json(&format::content(&structured, schema), &structured);
    let mut content = vec![ContentBlock::text(text)];
    let missing: Vec<_> = report.artifacts.iter().filter(|artifact| !artifact.published).collect();
    if !missing.is_empty() {
        // The answer may well speak of these files as if they were there.
        let line = |artifact: &&Artifact| {
            format!("{}: {}", artifact.path, artifact.dropped_because.as_deref().unwrap_or("it was dropped"))
        };
        let lines: Vec<String> = missing.iter().map(line).collect();
        content.push(ContentBlock::text(text::printable_block(&format!("Not published:\n{}", lines.join("\n")))));
    }
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(structured).filter(Value::is_object);
    result
}

/// The words come first: some clients show a model nothing but the first block.
fn failure(report: &Report) -> CallToolResult {
    let mut words = report.observation();
    if let Some(fault) = &report.error {
        if let Some(advice) = format::advice(fault) {
            words.push_str("\nWhat to do: ");
            words.push_str(advice);
        }
        words.push_str(&format!("\nCall ID: {}", report.id));
    }
    let mut content = vec![ContentBlock::text(words)];
    let mut structured = None;
    if report.speaks_envelope {
        let envelope = report.envelope();
        content.push(ContentBlock::text(format::visible_json(&envelope.to_string(), &envelope)));
        structured = Some(envelope);
    }
    let mut result = CallToolResult::error(content);
    result.structured_content = structured;
    result
}
