//! The tools that a caller can call here: one version of each id, by name, in pages.

use super::documents::Documents;
use crate::base::{lock, text};
use crate::manifest::Manifest;
use crate::registry::{self, Snapshot};
use crate::service::{Caller, Effects, Report, Service, format};
use crate::transport::names::Names;
use crate::transport::schemas;
use rmcp::model::{CacheScope, ErrorData, ListToolsResult, MetaObject, PaginatedRequestParams, Tool, ToolAnnotations};
use serde_json::json;
use std::sync::{Arc, Mutex};

/// Tools on one page of a list.
const PAGE: usize = 200;
/// Callers whose lists are kept.
const KEPT: usize = 64;

/// What is offered of one snapshot.
pub struct ToolList {
    snapshot: Arc<Snapshot>,
    caller: Caller,
    pub names: Names,
    /// By name.
    pub tools: Vec<Tool>,
    pub documents: Documents,
}

/// The lists of this moment, one for each caller that asked.
#[derive(Default)]
pub struct Lists(Mutex<Vec<Arc<ToolList>>>);

impl Lists {
    /// Worked out once per caller and snapshot.
    pub fn find(&self, service: &Service, caller: Caller) -> Arc<ToolList> {
        let snapshot = service.registry().snapshot();
        let mut kept = lock(&self.0);
        kept.retain(|offered| Arc::ptr_eq(&offered.snapshot, &snapshot));
        if let Some(offered) = kept.iter().find(|offered| offered.caller == caller) {
            return offered.clone();
        }
        if kept.len() == KEPT {
            kept.remove(0);
        }
        let offered = Arc::new(ToolList::new(service, snapshot, caller));
        kept.push(offered.clone());
        offered
    }
}

impl ToolList {
    fn new(service: &Service, snapshot: Arc<Snapshot>, caller: Caller) -> ToolList {
        let mut listed: Vec<Arc<registry::Tool>> = service
            .tools(&caller)
            .unwrap_or_default()
            .into_iter()
            // Where no version is chosen (all are pre-releases) the id keeps its name, and a call is told why.
            .filter(|tool| {
                snapshot.find(&tool.manifest.id).map_or(true, |chosen| chosen.reference() == tool.reference())
            })
            .collect();
        listed.sort_by(|a, b| a.manifest.id.cmp(&b.manifest.id));
        listed.dedup_by(|a, b| a.manifest.id == b.manifest.id);
        let names = Names::of(listed.iter().map(|tool| tool.manifest.named()));
        let mut tools: Vec<Tool> = listed
            .iter()
            // The others keep their names all the same: a call is told why it is refused, and a hidden tool runs.
            .filter(|tool| !tool.manifest.hidden && snapshot.find(&tool.manifest.id).is_ok())
            .filter(|tool| service.can_call(&caller, tool) && tool.manifest.document().is_none())
            .filter_map(|tool| Some(describe(&tool.manifest, &names.name(&tool.manifest.id)?, service.effects(tool))))
            .collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let shown = listed.iter().filter(|tool| !tool.manifest.hidden && service.can_call(&caller, tool));
        let documents = Documents::new(shown, &names);
        ToolList { snapshot, caller, names, tools, documents }
    }

    /// The tool of exactly this name.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Puts the names that models know in place of ids in what a model reads of a failure.
    pub fn rename(&self, report: &mut Report) {
        if let Some(fault) = &mut report.error {
            *fault = format::for_model(fault);
            fault.message = self.names.in_text(&fault.message);
            report.tool = self.names.name(&report.tool).unwrap_or_else(|| std::mem::take(&mut report.tool));
        }
    }

    pub fn page(&self, request: Option<PaginatedRequestParams>) -> Result<ListToolsResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor).filter(|cursor| !cursor.is_empty());
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let last = cursor_name(&cursor)
                    .ok_or_else(|| ErrorData::invalid_params("This cursor was not given by this server.", None))?;
                self.tools.partition_point(|tool| *tool.name <= *last)
            }
        };
        let page: Vec<Tool> = self.tools.iter().skip(start).take(PAGE).cloned().collect();
        let more = start + page.len() < self.tools.len();
        let next = page.last().filter(|_| more).map(|tool| cursor_for(&tool.name));
        let mut result = ListToolsResult::with_all_items(page).with_ttl_ms(0).with_cache_scope(CacheScope::Private);
        result.next_cursor = next;
        Ok(result)
    }
}

/// A cursor names the last tool of a page, so that a list that changes meanwhile skips and repeats nothing.
fn cursor_for(name: &str) -> String {
    let check: String = crate::base::sha256_hex(format!("cursor {name}").as_bytes()).chars().take(8).collect();
    format!("{name}.{check}")
}

fn cursor_name(cursor: &str) -> Option<String> {
    let (name, _) = cursor.rsplit_once('.')?;
    (cursor_for(name) == cursor).then(|| name.to_owned())
}

/// A manifest as a tool that the strictest client and model API takes. The service also checks what is left out here.
/// `effects`: what it may touch here, where that is known.
fn describe(manifest: &Manifest, name: &str, effects: Option<Effects>) -> Tool {
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
