//! Prompts and resources: their lists, and their content from the output of a call like any other.

use crate::base::text;
use crate::manifest::{Document, Manifest};
use crate::registry::Tool;
use crate::service::Report;
use crate::service::shapes::{self, Shape};
use crate::transport::names::Names;
use rmcp::model::{
    CacheScope, ErrorData, GetPromptResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    Prompt, PromptArgument, ReadResourceResult,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is listed, in the order of names.
#[derive(Default)]
pub struct Documents {
    prompts: BTreeMap<String, Prompt>,
    /// By address; a template's holds its variables in braces.
    resources: BTreeMap<String, Arc<Manifest>>,
}

impl Documents {
    pub fn new<'t>(tools: impl Iterator<Item = &'t Arc<Tool>>, names: &Names) -> Documents {
        let mut documents = Documents::default();
        let mut shared = Vec::new();
        for manifest in tools.map(|tool| &tool.manifest) {
            match manifest.document() {
                Some(Document::Prompt { .. }) => {
                    if let Some(name) = names.name(&manifest.id) {
                        documents.prompts.insert(name.clone(), describe(manifest, name));
                    }
                }
                Some(Document::Resource { uri, .. }) => {
                    let other = documents.resources.insert(uri.clone(), manifest.clone());
                    shared.extend(other.map(|_| uri.clone()));
                }
                None => {}
            }
        }
        for uri in &shared {
            tracing::warn!(target: "toolhost::mcp", uri, "two resources share this address; neither is offered");
        }
        documents.resources.retain(|uri, _| !shared.contains(uri));
        documents
    }

    pub fn has_prompt(&self, name: &str) -> bool {
        self.prompts.contains_key(name)
    }

    pub fn prompts(&self) -> ListPromptsResult {
        let prompts = self.prompts.values().cloned().collect();
        ListPromptsResult::with_all_items(prompts).with_ttl_ms(0).with_cache_scope(CacheScope::Private)
    }

    fn kinds(&self, templates: bool) -> impl Iterator<Item = (&String, &Arc<Manifest>)> {
        let is = move |manifest: &Manifest| matches!(manifest.document(), Some(Document::Resource { variables, .. }) if variables.is_empty() != templates);
        self.resources.iter().filter(move |(_, manifest)| is(manifest))
    }

    fn listed<T: DeserializeOwned>(&self, templates: bool, address: &str) -> Vec<T> {
        let of = |(uri, manifest): (&String, &Arc<Manifest>)| {
            let (name, words) = (text::printable(&manifest.display_name), text::printable_block(&manifest.description));
            let listed =
                json!({"name": name, "title": name, "description": words, "mimeType": mime(manifest), address: uri});
            serde_json::from_value(listed).ok()
        };
        self.kinds(templates).filter_map(of).collect()
    }

    pub fn resources(&self) -> ListResourcesResult {
        let resources = self.listed(false, "uri");
        ListResourcesResult::with_all_items(resources).with_ttl_ms(0).with_cache_scope(CacheScope::Private)
    }

    pub fn templates(&self) -> ListResourceTemplatesResult {
        let templates = self.listed(true, "uriTemplate");
        ListResourceTemplatesResult::with_all_items(templates).with_ttl_ms(0).with_cache_scope(CacheScope::Private)
    }

    /// The resource at an address: its id, and the values of its variables.
    pub fn resource(&self, uri: &str) -> Option<(&str, Value)> {
        if let Some(manifest) = self.resources.get(uri).filter(|_| !uri.contains('{')) {
            return Some((&manifest.id, json!({})));
        }
        self.kinds(true).find_map(|(template, manifest)| Some((manifest.id.as_str(), fitted(template, uri)?)))
    }
}

/// The values of a template's variables in an address, each a whole part of it.
fn fitted(template: &str, uri: &str) -> Option<Value> {
    let (mut parts, mut values) = (uri.split('/'), Map::new());
    for wanted in template.split('/') {
        let part = parts.next()?;
        match wanted.strip_prefix('{').and_then(|wanted| wanted.strip_suffix('}')) {
            Some(name) => {
                let value = percent_encoding::percent_decode_str(part).decode_utf8().ok().filter(|v| !v.is_empty())?;
                values.insert(name.to_owned(), json!(value));
            }
            None if wanted != part => return None,
            None => {}
        }
    }
    parts.next().is_none().then_some(Value::Object(values))
}

fn mime(manifest: &Manifest) -> Option<String> {
    match manifest.document() {
        Some(Document::Resource { mime, .. }) => mime.clone(),
        _ => None,
    }
}

fn describe(manifest: &Manifest, name: String) -> Prompt {
    let schema = manifest.parameters.as_ref().map(|schema| &schema.raw);
    let fields = schema.and_then(|schema| schema["properties"].as_object());
    let required = |name: &str| {
        let names = schema.and_then(|schema| schema["required"].as_array());
        names.is_some_and(|names| names.iter().any(|other| other == name))
    };
    let arguments = fields.into_iter().flatten().map(|(name, field)| {
        let mut argument = PromptArgument::new(text::printable(name)).with_required(required(name));
        argument.description = field["description"].as_str().map(text::printable_block);
        argument
    });
    let arguments: Vec<PromptArgument> = arguments.collect();
    let arguments = (!arguments.is_empty()).then_some(arguments);
    let mut prompt = Prompt::new(name, Some(text::printable_block(&manifest.description)), arguments);
    prompt.title = Some(text::printable(&manifest.display_name));
    prompt
}

/// The error for an address at which nothing is for this caller.
pub fn missing(uri: &str) -> ErrorData {
    ErrorData::resource_not_found("There is no such resource.", Some(json!({ "uri": uri })))
}

/// The words of a call that failed.
pub fn failed(report: &Report) -> ErrorData {
    let missing = report.error.as_ref().is_some_and(|fault| fault.kind == crate::fault::Kind::InternalError);
    match missing {
        true => ErrorData::internal_error(report.observation(), None),
        false => ErrorData::invalid_params(report.observation(), None),
    }
}

/// A prompt from the output of its call.
pub fn prompt(report: &Report) -> Result<GetPromptResult, ErrorData> {
    let mut prompt = report.output().unwrap_or_default();
    if let Some(manifest) = &report.manifest {
        prompt["description"] = json!(text::printable_block(&manifest.description));
    }
    prompt["resultType"] = json!("complete");
    serde_json::from_value(prompt)
        .map_err(|e| ErrorData::internal_error(format!("This prompt cannot be read: {e}"), None))
}

/// The content of a resource as its call told it.
pub fn content(report: &Report) -> Result<ReadResourceResult, ErrorData> {
    let failed = |why: String| ErrorData::internal_error(format!("This resource cannot be read: {why}"), None);
    let output = report.output_data.as_ref().map(|output| output.as_str()).unwrap_or_default();
    let Ok(Shape::Content(content)) = shapes::of(output) else { return Err(failed("it has no content".into())) };
    let blocks: Vec<Value> = serde_json::from_str(content.blocks.get()).map_err(|e| failed(e.to_string()))?;
    let contents: Vec<Value> = blocks.into_iter().map(|mut block| block["resource"].take()).collect();
    let result = json!({"contents": contents, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
    serde_json::from_value(result).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_fits_its_template_whole() {
        let of = |uri: &str| fitted("test://items/{id}/data", uri);
        assert_eq!(of("test://items/12/data"), Some(json!({"id": "12"})));
        assert_eq!(of("test://items/a%20b/data"), Some(json!({"id": "a b"})));
        for other in ["test://items//data", "test://items/1/2/data", "test://items/1/data/x", "test://items/1", "x"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
