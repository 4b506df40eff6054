//! Tools, prompts and resources that a caller is offered. Prompts and resources are read by a call
//! like any other.

use crate::base::json::Text;
use crate::base::text;
use crate::fault::Kind;
use crate::manifest::{Document, Manifest};
use crate::registry;
use crate::service::artifacts::{ListedArtifact, OpenArtifact};
use crate::service::{CallResult, Caller, Effects, Lists, Report, Service, output};
use crate::transport::export;
use crate::transport::names::Names;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    CacheScope, ErrorData, GetPromptResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, MetaObject, PaginatedRequestParams, Prompt,
    PromptArgument, ReadResourceResult, Resource, Tool, ToolAnnotations,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tools on one page of a list.
const PAGE: usize = 200;

/// The tools of one snapshot that one caller is offered.
pub struct ToolList {
    pub names: Names,
    /// Sorted by name.
    pub tools: Vec<Tool>,
    pub documents: Documents,
}

/// The tools by which others are found and called.
const LAZY: [&str; 2] = ["core:call-tool", "core:search-tools"];

/// What lists say of tools.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListStyle {
    /// Short descriptions, and no schemas of outputs.
    pub is_lean: bool,
    /// Only the tools by which all others are found and called.
    pub is_lazy: bool,
}

impl ListStyle {
    fn shows(self, manifest: &Manifest) -> bool {
        if self.is_lazy {
            LAZY.contains(&manifest.id.as_str())
        } else {
            manifest.is_listed
        }
    }
}

/// The lists of all callers.
#[derive(Default)]
pub struct ToolLists {
    pub style: ListStyle,
    lists: Lists<ToolList>,
}

impl ToolLists {
    pub fn new(style: ListStyle) -> ToolLists {
        ToolLists {
            style,
            lists: Lists::default(),
        }
    }

    /// The list of a caller.
    pub fn find(&self, service: &Service, caller: &Caller) -> Arc<ToolList> {
        let make = || ToolList::new(service, caller, self.style);
        self.lists.find(&service.catalog, caller, make)
    }
}

impl ToolList {
    fn new(service: &Service, caller: &Caller, style: ListStyle) -> ToolList {
        let snapshot = service.catalog.registry.snapshot();
        let mut listed: Vec<Arc<registry::Tool>> = service
            .tools(caller)
            .unwrap_or_default()
            .into_iter()
            // If no version is chosen (all are pre-releases), the id keeps its name, and a call
            // says why.
            .filter(|tool| {
                snapshot
                    .find(&tool.manifest.id)
                    .map_or(true, |chosen| chosen.reference() == tool.reference())
            })
            .collect();
        listed.sort_by(|a, b| a.manifest.id.cmp(&b.manifest.id));
        listed.dedup_by(|a, b| a.manifest.id == b.manifest.id);
        let names = Names::new(listed.iter().map(|tool| tool.manifest.named()));
        for Manifest { id, .. } in listed
            .iter()
            .map(|tool| &*tool.manifest)
            .filter(|tool| names.name(&tool.id).is_none())
        {
            tracing::warn!(target: "toolhost::mcp", id, "another tool has the same name; neither \
                is offered");
        }
        let mut tools: Vec<Tool> = listed
            .iter()
            // Tools that are left out keep their names: a call says why it is refused, and a hidden
            // tool runs.
            .filter(|tool| style.shows(&tool.manifest) && snapshot.find(&tool.manifest.id).is_ok())
            .filter(|tool| {
                service.catalog.can_call(caller, tool) && tool.manifest.document().is_none()
            })
            .filter_map(|tool| {
                Some(describe(
                    &tool.manifest,
                    &names.name(&tool.manifest.id)?,
                    service.catalog.effects(tool),
                    style,
                ))
            })
            .collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let shown = listed
            .iter()
            .filter(|tool| tool.manifest.is_listed && service.catalog.can_call(caller, tool));
        let documents = Documents::new(shown, &names);
        ToolList {
            names,
            tools,
            documents,
        }
    }

    /// The tool of exactly this name.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Replaces ids by the names that models know, in the texts of a failure.
    pub fn rename(&self, report: &mut Report) {
        if let CallResult::Unaskable(_, fault) | CallResult::Failed(fault) = &mut report.outcome {
            *fault = output::for_model(fault);
            fault.message = self.names.in_text(&fault.message);
            report.tool = self
                .names
                .name(&report.tool)
                .unwrap_or_else(|| std::mem::take(&mut report.tool));
        }
    }

    pub fn page(
        &self,
        request: Option<PaginatedRequestParams>,
    ) -> Result<ListToolsResult, ErrorData> {
        let start = match last_shown(request)? {
            None => 0,
            Some(last) => self.tools.partition_point(|tool| *tool.name <= *last),
        };
        let page: Vec<Tool> = self.tools.iter().skip(start).take(PAGE).cloned().collect();
        let more = start + page.len() < self.tools.len();
        let next = page
            .last()
            .filter(|_| more)
            .map(|tool| cursor_for(&tool.name));
        let mut result = ListToolsResult::with_all_items(page)
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private);
        result.next_cursor = next;
        Ok(result)
    }
}

/// The last of what a client was shown of a list, as its cursor says. `None`: it begins.
fn last_shown(request: Option<PaginatedRequestParams>) -> Result<Option<String>, ErrorData> {
    let cursor = request
        .and_then(|request| request.cursor)
        .filter(|cursor| !cursor.is_empty());
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    cursor_name(&cursor)
        .map(Some)
        .ok_or_else(|| ErrorData::invalid_params("This cursor was not given by this server.", None))
}

/// A cursor names the last tool of a page, so that a list that changes meanwhile skips and repeats
/// nothing.
fn cursor_for(name: &str) -> String {
    let check: String = crate::base::sha256_hex(format!("cursor {name}").as_bytes())
        .chars()
        .take(8)
        .collect();
    format!("{name}.{check}")
}

fn cursor_name(cursor: &str) -> Option<String> {
    let (name, _) = cursor.rsplit_once('.')?;
    (cursor_for(name) == cursor).then(|| name.to_owned())
}

/// A manifest as a tool that the strictest client and model API takes. The service also checks what
/// is left out here. `effects`: what it may touch here, where that is known.
fn describe(manifest: &Manifest, name: &str, effects: Option<Effects>, style: ListStyle) -> Tool {
    let whole = export::description(manifest);
    let mut tool = Tool::new(
        name.to_owned(),
        if style.is_lean {
            export::short(&whole)
        } else {
            whole
        },
        Arc::new(export::input_schema(manifest)),
    )
    .with_title(text::printable(&manifest.display_name))
    .with_meta(meta(manifest));
    // The answer to a call that runs in the background is its receipt.
    if let Some(schema) = export::output_schema(manifest)
        .filter(|_| !style.is_lean && !manifest.execution.asynchronous)
    {
        tool = tool.with_raw_output_schema(Arc::new(schema));
    }
    if let Some(effects) = effects {
        tool = tool.with_annotations(annotations(effects));
    }
    tool
}

/// Hints that follow from what policy allows the tool: it cannot do more than that.
fn annotations(effects: Effects) -> ToolAnnotations {
    let reads_only = !effects.writes && !effects.hosts;
    let hints = ToolAnnotations::new()
        .read_only(reads_only)
        .open_world(effects.hosts);
    if reads_only {
        hints.destructive(false)
    } else {
        hints
    }
}

fn meta(manifest: &Manifest) -> MetaObject {
    let mut meta = MetaObject::new();
    meta.insert("dev.toolhost/toolId".into(), json!(manifest.id));
    meta.insert(
        "dev.toolhost/version".into(),
        json!(manifest.version.to_string()),
    );
    meta.insert("dev.toolhost/digest".into(), json!(manifest.digest));
    if !manifest.tags.is_empty() {
        meta.insert("dev.toolhost/tags".into(), json!(manifest.tags));
        // Claude Code finds tools by it that it has not loaded.
        let hint = text::printable(&manifest.tags.join(" "));
        meta.insert("anthropic/searchHint".into(), json!(hint));
    }
    meta
}

/// Prompts and resources, in the order of names.
#[derive(Default)]
pub struct Documents {
    prompts: BTreeMap<String, Prompt>,
    /// By address; a template's holds its variables in braces.
    resources: BTreeMap<String, Arc<Manifest>>,
}

impl Documents {
    pub fn new<'t>(
        tools: impl Iterator<Item = &'t Arc<registry::Tool>>,
        names: &Names,
    ) -> Documents {
        let mut documents = Documents::default();
        let mut shared = Vec::new();
        for manifest in tools.map(|tool| &tool.manifest) {
            match manifest.document() {
                Some(Document::Prompt { .. }) => {
                    if let Some(name) = names.name(&manifest.id) {
                        documents
                            .prompts
                            .insert(name.clone(), describe_prompt(manifest, name));
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
            tracing::warn!(target: "toolhost::mcp", uri, "two resources share this address; \
                neither is offered");
        }
        documents.resources.retain(|uri, _| !shared.contains(uri));
        documents
    }

    pub fn has_prompt(&self, name: &str) -> bool {
        self.prompts.contains_key(name)
    }

    pub fn prompts(&self) -> ListPromptsResult {
        let prompts = self.prompts.values().cloned().collect();
        ListPromptsResult::with_all_items(prompts)
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private)
    }

    fn kinds(&self, templates: bool) -> impl Iterator<Item = (&String, &Arc<Manifest>)> {
        self.resources
            .iter()
            .filter(move |(_, manifest)| match manifest.document() {
                Some(Document::Resource { variables, .. }) => variables.is_empty() != templates,
                _ => false,
            })
    }

    fn listed<T: DeserializeOwned>(&self, templates: bool, address: &str) -> Vec<T> {
        self.kinds(templates).filter_map(|(uri, manifest): (&String, &Arc<Manifest>)| {
            let name = text::printable(&manifest.display_name);
 let words = text::printable_block(&manifest.description);
            let listed = json!({"name": name, "title": name, "description": words, "mimeType": mime(manifest), address: uri});
            serde_json::from_value(listed).ok()
        }).collect()
    }

    /// Resources of tools, then the artifacts of the caller, the newest first. Only these can be so
    /// many that they need pages.
    pub fn resources(
        &self,
        artifacts: Vec<ListedArtifact>,
        request: Option<PaginatedRequestParams>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let last = last_shown(request)?;
        let mut resources = match &last {
            None => self.listed(false, "uri"),
            Some(_) => Vec::new(),
        };
        // Ids are in the order of time.
        let mut left = artifacts
            .iter()
            .skip_while(|one| last.as_ref().is_some_and(|last| one.file.id >= *last));
        let page: Vec<&ListedArtifact> = left.by_ref().take(PAGE).collect();
        let more = left.next().and(page.last());
        let next = more.map(|one| cursor_for(&one.file.id));
        resources.extend(page.into_iter().filter_map(describe_artifact));
        let mut result = ListResourcesResult::with_all_items(resources)
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private);
        result.next_cursor = next;
        Ok(result)
    }

    pub fn templates(&self) -> ListResourceTemplatesResult {
        let templates = self.listed(true, "uriTemplate");
        ListResourceTemplatesResult::with_all_items(templates)
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private)
    }

    /// The resource at an address: its id, and the values of its variables.
    pub fn resource(&self, uri: &str) -> Option<(&str, Value)> {
        if let Some(manifest) = self.resources.get(uri).filter(|_| !uri.contains('{')) {
            return Some((&manifest.id, json!({})));
        }
        self.kinds(true).find_map(|(template, manifest)| {
            Some((manifest.id.as_str(), match_template(template, uri)?))
        })
    }
}

fn describe_artifact(artifact: &ListedArtifact) -> Option<Resource> {
    let ListedArtifact { file, bytes } = artifact;
    let listed = json!({ "uri": file.uri(), "name": file.name, "mimeType": file.media_type,
        "size": bytes });
    serde_json::from_value(listed).ok()
}

/// The values of a template's variables in an address, each a whole part of it.
fn match_template(template: &str, uri: &str) -> Option<Value> {
    let mut parts = uri.split('/');
    let mut values = Map::new();
    for wanted in template.split('/') {
        let part = parts.next()?;
        match wanted
            .strip_prefix('{')
            .and_then(|wanted| wanted.strip_suffix('}'))
        {
            Some(name) => {
                let value = percent_encoding::percent_decode_str(part)
                    .decode_utf8()
                    .ok()
                    .filter(|v| !v.is_empty())?;
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

fn describe_prompt(manifest: &Manifest, name: String) -> Prompt {
    let schema = manifest.parameters.as_ref().map(|schema| &schema.raw);
    let fields = schema.and_then(|schema| schema["properties"].as_object());
    fn required(name: &str, schema: &Option<&Value>) -> bool {
        let names = schema.and_then(|schema| schema["required"].as_array());
        names.is_some_and(|names| names.iter().any(|other| other == name))
    }
    let arguments = fields.into_iter().flatten().map(|(name, field)| {
        let mut argument =
            PromptArgument::new(text::printable(name)).with_required(required(name, &schema));
        argument.description = field["description"].as_str().map(text::printable_block);
        argument
    });
    let arguments: Vec<PromptArgument> = arguments.collect();
    let arguments = (!arguments.is_empty()).then_some(arguments);
    let mut prompt = Prompt::new(
        name,
        Some(text::printable_block(&manifest.description)),
        arguments,
    );
    prompt.title = Some(text::printable(&manifest.display_name));
    prompt
}

/// The error for an address at which this caller has no resource.
pub fn missing(uri: &str) -> ErrorData {
    ErrorData::resource_not_found("This resource does not exist.", Some(json!({ "uri": uri })))
}

/// The error of a call that failed.
pub fn failed(report: &Report) -> ErrorData {
    match report.outcome.fault().map(|fault| fault.kind) {
        Some(Kind::ParameterValidationError | Kind::ToolNotFoundError) => {
            ErrorData::invalid_params(report.observation(), None)
        }
        _ => ErrorData::internal_error(report.observation(), None),
    }
}

/// A prompt from the output of its call.
pub async fn prompt(report: Report) -> Result<GetPromptResult, ErrorData> {
    let mut prompt = match report.outcome.answer() {
        Some(answer) => answer.read(false, Text::value).await.map_err(|_| {
            ErrorData::internal_error("This prompt could not be read in time.", None)
        })?,
        None => Value::Null,
    };
    if let Some(manifest) = &report.delivery.manifest {
        prompt["description"] = json!(text::printable_block(&manifest.description));
    }
    prompt["resultType"] = json!("complete");
    serde_json::from_value(prompt)
        .map_err(|e| ErrorData::internal_error(format!("This prompt cannot be read: {e}"), None))
}

/// The content of a resource, from the output of its call.
pub async fn content(report: &Report) -> Result<ReadResourceResult, ErrorData> {
    fn failed(why: String) -> ErrorData {
        ErrorData::internal_error(format!("This resource cannot be read: {why}"), None)
    }
    let answer = report
        .outcome
        .answer()
        .and_then(|answer| Some((answer, answer.content.clone()?.0)));
    let Some((answer, blocks)) = answer else {
        return Err(failed("it has no content".into()));
    };
    answer
        .read(false, move |text: &Text| -> Result<ReadResourceResult, serde_json::Error> {
        let blocks: Vec<Value> = serde_json::from_str(&text.as_str()[blocks])?;
        let contents: Vec<Value> = blocks
            .into_iter()
            .map(|mut block| block["resource"].take())
            .collect();
        let result = json!({"contents": contents, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
        serde_json::from_value(result)
    })
        .await
        .map_err(|late| failed(late.message))?
        .map_err(|e| failed(e.to_string()))
}

/// Most bytes of an artifact that is read as a resource; HTTP serves larger ones.
const MAX_ARTIFACT_BYTES: u64 = 8 * 1024 * 1024;

/// The content of an artifact of this caller.
pub fn artifact(uri: &str, open: Option<OpenArtifact>) -> Result<ReadResourceResult, ErrorData> {
    let OpenArtifact { file, content } = open.ok_or_else(|| missing(uri))?;
    if content.bytes > MAX_ARTIFACT_BYTES {
        let words = format!("More than {MAX_ARTIFACT_BYTES} bytes are not read by MCP.");
        return Err(ErrorData::invalid_params(words, None));
    }
    let bytes = content.read().ok_or_else(|| missing(uri))?;
    contents(uri, Some(&file.media_type), bytes)
}

/// The content of a file that this host read.
pub fn contents(
    uri: &str,
    media_type: Option<&str>,
    bytes: Vec<u8>,
) -> Result<ReadResourceResult, ErrorData> {
    let mut resource = json!({ "uri": uri, "mimeType": media_type });
    match String::from_utf8(bytes) {
        Ok(text) => resource["text"] = text.into(),
        Err(bytes) => resource["blob"] = STANDARD.encode(bytes.as_bytes()).into(),
    }
    let result = json!({ "contents": [resource], "resultType": "complete", "ttlMs": 0,
        "cacheScope": "private" });
    serde_json::from_value(result)
        .map_err(|e| ErrorData::internal_error(format!("This file cannot be read: {e}"), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_fits_its_template_whole() {
        let of = |uri: &str| match_template("test://items/{id}/data", uri);
        assert_eq!(of("test://items/12/data"), Some(json!({"id": "12"})));
        assert_eq!(of("test://items/a%20b/data"), Some(json!({"id": "a b"})));
        for other in [
            "test://items//data",
            "test://items/1/2/data",
            "test://items/1/data/x",
            "test://items/1",
            "x",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
