//! Reports as MCP results: structured content with its text twin, or an error a model can act on.
//!
//! rmcp's own result holds what is short. The content of a success stays text, because as a tree it could take thirty
//! times as much memory: it is put into the message while that is sent.

use crate::base::json::{self, Indented};
use crate::base::semaphore::Permit;
use crate::base::text::{self, Visible};
use crate::service::output::{self, OutputKind};
use crate::service::{Report, Slot};
use crate::transport::answers::{self, Payer, visible};
use crate::transport::export;
use bytes::Bytes;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde::{Serialize, Serializer};
use serde_json::json;
use serde_json::value::RawValue;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Longest text that is indented, bytes: what is nested deeply can grow a hundredfold.
const MAX_INDENTED_BYTES: usize = 256 * 1024;
/// Most memory of a result that a task keeps as a tree, bytes.
const MAX_TASK_RESULT_BYTES: usize = 8 * 1024 * 1024;
/// Where the content of a result is inserted. No text in a message can hold this: in texts, quotes are escaped.
const PLACE: &[u8] = br#""content":[]"#;

/// The content of a success as it is sent: `"content": [...], "structuredContent": {...}`.
pub struct ResultContent {
    pub text: Bytes,
    /// The call counts as one that runs until this is sent.
    pub slot: Mutex<Option<Arc<Slot>>>,
    _room: Permit,
}

impl ResultContent {
    /// The parts of this message before and after the content. `None`: the message is not the result.
    pub fn split<'m>(&self, message: &'m [u8]) -> Option<(&'m [u8], &'m [u8])> {
        let at = message.windows(PLACE.len()).position(|part| part == PLACE)?;
        Some((&message[..at], &message[at + PLACE.len()..]))
    }
}

/// The result of a report. Waits for the memory that its content takes.
pub async fn result(report: Report, payer: &Payer) -> (CallToolResult, Option<ResultContent>) {
    let mut meta = MetaObject::new();
    meta.insert("dev.toolhost/callId".into(), json!(report.id));
    meta.insert("dev.toolhost/usage".into(), json!(report.usage));
    if !report.notes.is_empty() {
        meta.insert("dev.toolhost/notes".into(), json!(report.notes));
    }
    let (mut result, content) = match report.error {
        None => content(report, payer).await,
        Some(_) => (failure(&report), None),
    };
    result.meta = Some(meta);
    (result, content)
}

async fn content(report: Report, payer: &Payer) -> (CallToolResult, Option<ResultContent>) {
    let (id, tool, slot) = (report.id.clone(), report.tool.clone(), report.slot.clone());
    let answer = Success::new(report);
    let length = answer.json.get().len() + answer.blocks.as_ref().map_or(0, |blocks| blocks.get().len());
    match payer.build(length, move |to| answer.write(to)).await {
        Some((text, room)) => {
            let content = ResultContent { text: text.into(), slot: slot.into(), _room: room };
            (CallToolResult::success(Vec::new()), Some(content))
        }
        None => (failure(&Report::of_fault(id, &tool, answers::too_large(answers::TOOL_ANSWER))), None),
    }
}

/// A result with its content in it, which a task keeps as a tree.
pub async fn whole(report: Report, payer: &Payer) -> CallToolResult {
    let (mut result, content) = self::result(report, payer).await;
    let Some(content) = content else { return result };
    let document = [b"{", &*content.text, b"}"].concat();
    let tree = json::compact(&document).ok().and_then(|text| text.tree(MAX_TASK_RESULT_BYTES).ok());
    match tree.and_then(|tree| serde_json::from_value::<CallToolResult>(tree).ok()) {
        Some(filled) => (result.content, result.structured_content) = (filled.content, filled.structured_content),
        None => {
            let words = "Error: ResourceLimitError. Message: This tool ran, but its answer is too large for a \
                         task. Ask it for less, or call it without a task.";
            (result.content, result.is_error) = (vec![ContentBlock::text(words)], Some(true));
        }
    }
    result
}

/// The result of a failure. Its words come first: some clients show a model only the first block.
fn failure(report: &Report) -> CallToolResult {
    let mut words = report.observation();
    if let Some(fault) = &report.error {
        if let Some(advice) = output::advice(fault) {
            words.push_str("\nWhat to do: ");
            words.push_str(advice);
        }
        words.push_str(&format!("\nCall ID: {}", report.id));
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(words)]);
    result.structured_content = report.speaks_envelope.then(|| json!(report.envelope()));
    result
}

/// The answer of a call that succeeded.
struct Success {
    /// Blocks that the tool made, a list.
    blocks: Option<Box<RawValue>>,
    /// What the tool answered beside them.
    json: Box<RawValue>,
    /// The answer is wrapped in an object: older clients accept only objects as structured content.
    wraps: bool,
    has_schema: bool,
    /// The files that were not published: the answer may name them as if they were there.
    unpublished: Option<String>,
}

impl Success {
    fn new(report: Report) -> Success {
        let manifest = report.manifest.as_ref();
        let dropped = report.artifacts.iter().filter(|artifact| !artifact.published);
        let dropped = dropped.map(|artifact| {
            format!("\n{}: {}", artifact.path, artifact.dropped_because.as_deref().unwrap_or("it was dropped"))
        });
        let dropped: String = dropped.collect();
        let unpublished = (!dropped.is_empty()).then(|| text::printable_block(&format!("Not published:{dropped}")));
        let has_schema = manifest.is_some_and(|manifest| manifest.output.is_some());
        let wraps = manifest.is_some_and(|manifest| export::wraps_output(manifest)) && !report.speaks_envelope;
        let (mut blocks, null) = (None, || RawValue::NULL.to_owned());
        let json = if report.speaks_envelope {
            serde_json::value::to_raw_value(&report.envelope()).unwrap_or_else(|_| null())
        } else {
            let output = report.output_data.map_or_else(null, Box::from);
            match OutputKind::read(output.get()) {
                Ok(OutputKind::Content(content)) => {
                    blocks = Some(content.blocks.to_owned());
                    content.structured.map_or_else(null, ToOwned::to_owned)
                }
                _ => output,
            }
        };
        Success { blocks, json, wraps, has_schema, unpublished }
    }

    fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(b"\"content\":[")?;
        let mut separator = "";
        let made = self.blocks.as_ref().map(|made| made.get().trim_start_matches('[').trim_end_matches(']').trim());
        if let Some(made) = made.filter(|made| !made.is_empty()) {
            write!(to, "{}", Visible(made))?;
            separator = ",";
        }
        // The text form of the structured part follows the tool's own blocks.
        let has_twin = self.blocks.is_none() || self.json.get() != "null";
        let twin: Option<&dyn Display> = if has_twin { Some(self) } else { None };
        let unpublished = self.unpublished.as_ref().map(|text| text as &dyn Display);
        for text in twin.into_iter().chain(unpublished) {
            to.write_all(separator.as_bytes())?;
            visible(&TextBlock { text }, to)?;
            separator = ",";
        }
        let json = Visible(self.json.get());
        match self.wraps {
            true => write!(to, "],\"structuredContent\":{{\"result\":{json}}}"),
            false if self.json.get().starts_with('{') => write!(to, "],\"structuredContent\":{json}"),
            false => to.write_all(b"]"),
        }
    }
}

/// The answer as text: with an output schema its compact JSON. Without one a string stays
/// as it is, and anything else is indented unless that makes it very long.
impl Display for Success {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = self.json.get();
        if !self.has_schema
            && let Ok(plain) = serde_json::from_str::<String>(json)
        {
            return out.write_str(&plain);
        }
        let indented = Indented(json);
        match self.has_schema || indented.is_longer_than(MAX_INDENTED_BYTES) {
            true => write!(out, "{}", Visible(json)),
            false => write!(out, "{}", Visible(indented)),
        }
    }
}

/// One block of text.
#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct TextBlock<'a> {
    #[serde(serialize_with = "collect")]
    text: &'a dyn Display,
}

fn collect<S: Serializer>(text: &&dyn Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(text)
}
