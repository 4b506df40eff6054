//! Reports as MCP results: structured content with its text twin, or an error a model can act on.
//!
//! For: `tools/call`. In: a report. Out: a `CallToolResult` for all protocol versions; the content of a success goes
//! beside it as an `Answer`, because rmcp would hold it as a tree. Never: a host path.

use crate::base::json::{self, Indented};
use crate::base::text::{self, Visible};
use crate::executor::Artifact;
use crate::service::shapes::{self, Shape};
use crate::service::{self, Report, format};
use crate::transport::schemas;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::fmt::{self, Display};
use std::sync::Arc;

/// Longest text that is indented, bytes: what is nested deeply can grow a hundredfold.
const LONGEST_INDENTED: usize = 256 * 1024;
/// Most memory that each half of a result takes which is kept: the content, and what is structured in it.
const LARGEST_KEPT: usize = 4 * 1024 * 1024;

pub fn result(report: Report) -> (CallToolResult, Option<Answer>) {
    let mut meta = MetaObject::new();
    meta.insert("dev.toolhost/callId".into(), json!(report.id));
    meta.insert("dev.toolhost/usage".into(), json!(report.usage));
    if !report.notes.is_empty() {
        meta.insert("dev.toolhost/notes".into(), json!(report.notes));
    }
    let (mut result, answer) = match report.error {
        None => (CallToolResult::success(Vec::new()), Some(Answer::of(report))),
        Some(_) => (failure(&report), None),
    };
    result.meta = Some(meta);
    (result, answer)
}

/// A result with its content in it, where nobody waits to be sent it in pieces: it is kept as trees, and so bounded.
pub fn whole(report: Report) -> CallToolResult {
    let (mut result, answer) = self::result(report);
    let Some(answer) = answer else { return result };
    let tree = |text: &str| json::compact(text.as_bytes()).ok()?.tree(LARGEST_KEPT).ok();
    let content = raw(&answer);
    match tree(content.get()).zip(tree(answer.json.get())) {
        Some((content, structured)) => {
            result.content = serde_json::from_value(content).unwrap_or_default();
            result.structured_content = Some(structured).filter(Value::is_object);
        }
        None => {
            let words = "Error: ResourceLimitError. Message: This tool ran, and what it answered is too large for a task. \
                         Ask it for less, or call it without a task.";
            result.content = vec![ContentBlock::text(words)];
            result.is_error = Some(true);
        }
    }
    result
}

/// The result of a failure. Its words come first: some clients show a model only the first block.
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
        let envelope = json!(report.envelope());
        content.push(ContentBlock::text(text::json(&envelope, false)));
        structured = Some(envelope);
    }
    let mut result = CallToolResult::error(content);
    result.structured_content = structured;
    result
}

/// The content of a success.
pub struct Answer {
    /// Blocks that the tool made, a list.
    blocks: Option<Box<RawValue>>,
    /// The structured content; sent as such only if it is an object.
    json: Box<RawValue>,
    /// The tool has an output schema.
    schema: bool,
    /// The files that were not published: the answer may speak of them as if they were there.
    missing: Option<String>,
    /// The call counts as one that runs until this is written.
    pub turn: Option<Arc<service::Turn>>,
}

impl Answer {
    fn of(report: Report) -> Answer {
        let manifest = report.manifest.as_ref();
        let missing: Vec<_> = report.artifacts.iter().filter(|artifact| !artifact.published).collect();
        let line = |artifact: &&Artifact| {
            format!("{}: {}", artifact.path, artifact.dropped_because.as_deref().unwrap_or("it was dropped"))
        };
        let lines: Vec<String> = missing.iter().map(line).collect();
        let missing =
            (!lines.is_empty()).then(|| text::printable_block(&format!("Not published:\n{}", lines.join("\n"))));
        let schema = manifest.is_some_and(|manifest| manifest.output.is_some());
        let wraps = manifest.is_some_and(|manifest| schemas::wraps(manifest));
        let mut blocks = None;
        let json = if report.speaks_envelope {
            raw(&report.envelope())
        } else {
            let output = report.output_data.map_or_else(|| RawValue::NULL.to_owned(), Box::from);
            match shapes::of(output.get()) {
                Ok(Shape::Content(content)) => {
                    blocks = Some(content.blocks.to_owned());
                    let structured = content.structured.map_or_else(|| RawValue::NULL.to_owned(), ToOwned::to_owned);
                    if wraps { raw(&Wrapped { result: &structured }) } else { structured }
                }
                _ if wraps => raw(&Wrapped { result: &output }),
                _ => output,
            }
        };
        Answer { blocks, json, schema, missing, turn: report.turn }
    }

    /// Bytes in memory.
    pub fn len(&self) -> usize {
        self.json.get().len() + self.blocks.as_ref().map_or(0, |blocks| blocks.get().len())
    }

    /// Whether to write it in pieces.
    pub fn is_large(&self) -> bool {
        self.len() > crate::quantity::LARGE_TEXT_BYTES
    }
}

#[derive(Serialize)]
struct Wrapped<T> {
    result: T,
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The answer as text: with an output schema the compact JSON of the structured content. Without one a string stays
/// as it is, and anything else is indented unless that makes it very long.
struct Twin<'a>(&'a Answer);

impl Display for Twin<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { json, schema, .. } = self.0;
        let json = json.get();
        if !schema && let Ok(plain) = serde_json::from_str::<String>(json) {
            return out.write_str(&plain);
        }
        let indented = Indented(json);
        match *schema || indented.is_longer_than(LONGEST_INDENTED) {
            true => write!(out, "{}", Visible(json)),
            false => write!(out, "{}", Visible(indented)),
        }
    }
}

/// One block of text.
#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct Block<T: Display> {
    #[serde(serialize_with = "shown")]
    text: T,
}

fn shown<S: Serializer>(text: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(text)
}

impl Serialize for Answer {
    /// Its content blocks.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut blocks = to.serialize_seq(None)?;
        if let Some(made) = &self.blocks {
            let made: Vec<&RawValue> = serde_json::from_str(made.get()).map_err(serde::ser::Error::custom)?;
            made.iter().try_for_each(|block| blocks.serialize_element(block))?;
        }
        // The text of what is structured follows the tool's own words.
        if self.blocks.is_none() || self.json.get() != "null" {
            blocks.serialize_element(&Block { text: Twin(self) })?;
        }
        if let Some(missing) = &self.missing {
            blocks.serialize_element(&Block { text: missing })?;
        }
        blocks.end()
    }
}

/// A response without its content, and the content.
pub struct Whole {
    pub message: Map<String, Value>,
    pub answer: Arc<Answer>,
}

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(None)?;
        for (name, field) in &self.message {
            match (name.as_str(), field) {
                ("result", Value::Object(result)) => fields.serialize_entry(name, &Filled(result, &self.answer))?,
                _ => fields.serialize_entry(name, field)?,
            }
        }
        fields.end()
    }
}

struct Filled<'a>(&'a Map<String, Value>, &'a Answer);

impl Serialize for Filled<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Filled(result, answer) = self;
        let mut fields = to.serialize_map(None)?;
        for (name, field) in result.iter().filter(|(name, _)| *name != "content") {
            fields.serialize_entry(name, field)?;
        }
        fields.serialize_entry("content", answer)?;
        if answer.json.get().starts_with('{') {
            fields.serialize_entry("structuredContent", &answer.json)?;
        }
        fields.end()
    }
}
