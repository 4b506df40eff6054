//! Search: which of the tools that a caller is offered fit a question (`core:search-tools`).

mod embeddings;
mod index;
pub mod named_call;
mod sample;
pub mod static_model;

use super::audit::{Log, Usage, UsageByTool};
use super::catalog::Catalog;
use super::lists::Lists;
use super::request::Caller;
use crate::base::{lock, text};
use crate::executor::{self, Ending, Executor, Outcome};
use crate::registry::Tool;
pub use embeddings::{Embedder, EmbeddingServer, EmbeddingSettings};
pub use index::{Hit, SearchIndex};
pub use sample::input as sample;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How many tools an answer has unless the question says otherwise, and at most.
pub const USUAL_HITS: usize = 5;
pub const MAX_HITS: usize = 50;

/// For how long what was read of the log counts.
const MAX_USAGE_AGE: Duration = Duration::from_secs(300);

/// The indexes of the tools that callers are offered.
pub struct Search {
    catalog: Arc<Catalog>,
    indexes: Lists<SearchIndex>,
    log: Log,
    usage: Mutex<Option<KnownUsage>>,
    embedder: OnceLock<Embedder>,
}

/// What a search found.
#[derive(Default)]
pub struct Found {
    pub hits: Vec<Hit>,
    /// That words had to do without vectors.
    pub note: Option<&'static str>,
}

impl Found {
    /// By vectors where there are embeddings, else by words. May block.
    /// `principal`: who pays.
    pub fn of(
        index: &SearchIndex,
        embedder: Option<&Embedder>,
        principal: &str,
        question: &str,
        limit: usize,
        used: &UsageByTool,
        can_take: impl Fn(&Tool) -> bool,
    ) -> Found {
        if question.trim().is_empty() {
            return Found::default();
        }
        let cosines = embedder.map(|it| it.cosines(principal, index.tools(), question));
        let failed = matches!(cosines, Some(None));
        let cosines = cosines.flatten();
        Found {
            hits: index.find(question, limit, used, cosines, can_take),
            note: failed.then_some("Embeddings failed for this question: these hits are by words."),
        }
    }

    /// These tools as JSON, with the note.
    pub fn with_note(&self, tools: Vec<Value>) -> Value {
        match self.note {
            Some(note) => json!({ "tools": tools, "note": note }),
            None => json!({ "tools": tools }),
        }
    }
}

/// What the log says, and when it was read.
struct KnownUsage {
    usage: Usage,
    read: Instant,
}

impl Search {
    pub(super) fn new(catalog: Arc<Catalog>, log: Log) -> Search {
        Search {
            catalog,
            indexes: Lists::default(),
            log,
            usage: Mutex::default(),
            embedder: OnceLock::new(),
        }
    }

    /// Has embeddings order the hits.
    pub fn embed_by(&self, embedder: Embedder) {
        let _ = self.embedder.set(embedder);
    }

    /// The calls of one caller, of no others: what they call is theirs.
    fn used_by(&self, caller: &Caller, tools: &[Arc<Tool>]) -> UsageByTool {
        let mut known = lock(&self.usage);
        let now = Instant::now();
        let fresh = known.take_if(|known| known.read + MAX_USAGE_AGE > now);
        let fresh = fresh.unwrap_or_else(|| KnownUsage {
            // Without it equal hits are in the order of their ids.
            usage: self.log.usage().unwrap_or_default(),
            read: now,
        });
        known.insert(fresh).usage.of(tools, Some(&caller.user))
    }

    /// The tools that fit a question best. May block, and takes long where the index is to be made.
    /// `can_take`: whether who asked can use a tool.
    pub fn find(
        &self,
        caller: &Caller,
        question: &str,
        limit: usize,
        can_take: impl Fn(&Tool) -> bool,
    ) -> Found {
        let make = || SearchIndex::new(self.catalog.offered(caller));
        let index = self.indexes.find(&self.catalog, caller, make);
        let used = self.used_by(caller, index.tools());
        let embedder = self.embedder.get();
        let user = &caller.user;
        Found::of(&index, embedder, user, question, limit, &used, can_take)
    }
}

impl Hit {
    /// The tool as a model needs it to make a call.
    pub fn describe(&self) -> Value {
        let manifest = &self.tool.manifest;
        json!({
            "toolId": manifest.id,
            "description": text::printable_block(&manifest.description),
            "score": self.score,
            "alike": self.alike,
            "parameters": manifest.parameters.as_ref().map(|schema| &schema.raw),
            "example": sample::input(manifest),
        })
    }
}

/// Bytes of an answer beside its tools.
const MAX_FRAME_BYTES: u64 = 192;

/// The first of the tools, as many as fit in an answer of this length.
fn fitting(hits: &[Hit], bytes: u64) -> Vec<Value> {
    let mut room = bytes.saturating_sub(MAX_FRAME_BYTES);
    let mut tools = Vec::new();
    for tool in hits.iter().map(Hit::describe) {
        let Some(left) = room.checked_sub(tool.to_string().len() as u64 + 1) else {
            break;
        };
        room = left;
        tools.push(tool);
    }
    tools
}

/// The tool `core:search-tools`.
pub(super) struct SearchTool(pub Arc<Search>);

impl Executor for SearchTool {
    fn run<'a>(
        &'a self,
        context: &'a executor::Context,
        call: executor::Call,
        _: &'a executor::ToolSender,
    ) -> executor::Running<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let caller = Caller::named(&context.user);
            let question = call.input["query"].as_str().unwrap_or_default().to_owned();
            let limit = call.input["limit"].as_u64().unwrap_or(USUAL_HITS as u64);
            let search = self.0.clone();
            let answer = move || {
                // A tool cannot hand out what its client runs.
                let can_take = |tool: &Tool| tool.manifest.client_tool().is_none();
                let found = search.find(&caller, &question, limit as usize, can_take);
                Ending::answer(&found.with_note(fitting(&found.hits, call.output_bytes)))
            };
            let ending = context.deadline.run(true, answer).await?;
            let lasted = crate::base::millis(started.elapsed());
            Ok(Outcome::new(ending, lasted))
        })
    }
}
