//! Reports as MCP results: structured content with its text twin, or an error a model can act on.
//!
//! rmcp's own result holds what is short. The content of a success stays text, because as a tree it
//! could take thirty times as much memory: it is put into the message while that is sent.

use crate::base::json::{self, Indented};
use crate::base::text;
use crate::executor::{CallDeadline, Inlined, Part, ToolAnswer};
use crate::fault::Fault;
use crate::manifest::Manifest;
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::{Report, Slot, output};
use crate::transport::answers::{self, Parts, visible};
use crate::transport::export;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Longest text that is indented, bytes: what is nested deeply can grow a hundredfold.
const MAX_INDENTED_BYTES: usize = 256 * 1024;
/// Most memory of a result that a task keeps as a tree, bytes.
const MAX_TASK_RESULT_BYTES: usize = 8 * 1024 * 1024;
/// Where the content of a result is inserted. No text in a message can hold this: in texts, quotes
/// are escaped.
const PLACE: &[u8] = br#""content":[]"#;

/// The content of a success as it is sent: `"content": [...], "structuredContent": {...}`.
pub struct ResultContent {
    pub parts: Parts,
    /// The call counts as one that runs until this is sent, and its answer is charged until then.
    pub slot: Mutex<Option<Arc<Slot>>>,
}

impl ResultContent {
    /// This message with the content in it. `None`: the message is not the result.
    pub fn put_into(&self, message: &[u8]) -> Option<Parts> {
        let at = message
            .windows(PLACE.len())
            .position(|part| part == PLACE)?;
        let before = message[..at].to_vec();
        let after = message[at + PLACE.len()..].to_vec();
        Some([vec![before.into()], self.parts.clone(), vec![after.into()]].concat())
    }
}

/// The result of a report.
pub async fn result(report: Report) -> (CallToolResult, Option<ResultContent>) {
    let mut meta = MetaObject::new();
    meta.insert("dev.toolhost/callId".into(), json!(report.id));
    meta.insert("dev.toolhost/usage".into(), json!(report.observed.usage));
    if !report.notes.is_empty() {
        meta.insert("dev.toolhost/notes".into(), json!(report.notes));
    }
    let (mut result, content) = if report.outcome.is_success() {
        content(report).await
    } else {
        (failure(&report), None)
    };
    result.meta = Some(meta);
    (result, content)
}

async fn content(report: Report) -> (CallToolResult, Option<ResultContent>) {
    let id = report.id.clone();
    let tool = report.tool.clone();
    let slot = report.delivery.slot.clone();
    let parts = match parts_of(report).await {
        Ok(parts) if answers::is_too_large(&parts) => Err(answers::too_large(answers::TOOL_ANSWER)),
        other => other,
    };
    match parts {
        Ok(parts) => (
            CallToolResult::success(Vec::new()),
            Some(ResultContent {
                parts,
                slot: slot.into(),
            }),
        ),
        Err(fault) => (failure(&Report::of_fault(id, &tool, fault)), None),
    }
}

/// A result with its content in it, which a task keeps as a tree.
pub async fn whole(report: Report) -> CallToolResult {
    let deadline = report
        .outcome
        .answer()
        .and_then(ToolAnswer::deadline)
        .cloned();
    let (mut result, content) = self::result(report).await;
    let Some(content) = content else {
        return result;
    };
    let bytes = content.parts.iter().map(Part::bytes).sum::<usize>();
    let deadline = deadline.unwrap_or_else(|| CallDeadline::usual("", None));
    match deadline
        .run(bytes > LARGE_TEXT_BYTES, move || {
            let all = [vec![part("{")], content.parts, vec![part("}")]].concat();
            let document: Vec<u8> = all.into_iter().flat_map(Part::pieces).flatten().collect();
            let tree = json::compact(&document)
                .ok()
                .and_then(|text| text.tree(MAX_TASK_RESULT_BYTES).ok());
            tree.and_then(|tree| serde_json::from_value::<CallToolResult>(tree).ok())
        })
        .await
        .ok()
        .flatten()
    {
        Some(filled) => {
            (result.content, result.structured_content) =
                (filled.content, filled.structured_content)
        }
        None => {
            let words = "Error: ResourceLimitError. Message: This tool ran, but its answer is too \
                         large for a task. Ask it for less, or call it without a task.";
            (result.content, result.is_error) = (vec![ContentBlock::text(words)], Some(true));
        }
    }
    result
}

/// The result of a failure. Its words come first: some clients show a model only the first block.
fn failure(report: &Report) -> CallToolResult {
    let mut words = report.observation();
    if let Some(fault) = report.outcome.fault() {
        if let Some(advice) = output::advice(fault) {
            words.push_str("\nWhat to do: ");
            words.push_str(advice);
        }
        words.push_str(&format!("\nCall ID: {}", report.id));
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(words)]);
    result.structured_content = report
        .delivery
        .speaks_envelope
        .then(|| json!(report.envelope()));
    result
}

fn part(text: &str) -> Part {
    text.as_bytes().to_vec().into()
}

/// The members `content` and `structuredContent` of the answer of a call that succeeded.
async fn parts_of(mut report: Report) -> Result<Parts, Fault> {
    let manifest = report.delivery.manifest.take();
    let has_schema = manifest
        .as_ref()
        .is_some_and(|manifest| manifest.output.is_some());
    let wraps = manifest
        .as_ref()
        .is_some_and(|manifest| export::wraps_output(manifest))
        && !report.delivery.speaks_envelope;
    let mut answer = report
        .take_answer()
        .unwrap_or_else(|| ToolAnswer::from(&Value::Null));
    // Blocks that the tool made, and what it answered beside them.
    let (blocks, beside) =
        answer
            .content
            .take()
            .map_or((None, Some(0..answer.bytes())), |(blocks, beside)| {
                (
                    Some(answer.part_of(blocks.start + 1..blocks.end - 1))
                        .filter(|blocks| blocks.bytes() > 0),
                    beside,
                )
            });
    let has_blocks = blocks.is_some();
    let data = beside
        .clone()
        .map_or_else(|| part("null"), |place| answer.part_of(place));
    let json = if report.delivery.speaks_envelope {
        let mut around = Vec::new();
        let _ = visible(&report.envelope(), &mut around);
        data.put_into(&around)
    } else {
        vec![data]
    };
    let is_object = json[0].starts_with(b"{");
    let is_string = json[0].starts_with(b"\"");
    let mut content: Vec<Parts> = blocks.into_iter().map(|blocks| vec![blocks]).collect();
    // The text form of the structured part follows the tool's own blocks; an envelope comes first,
    // so that whoever reads one text reads ours.
    let is_enveloped = report.delivery.speaks_envelope;
    if !has_blocks || beside.is_some() || is_enveloped {
        let bytes = json.iter().map(Part::bytes).sum::<usize>();
        let indented = match beside
            .clone()
            .filter(|_| !has_schema && !is_string && !is_enveloped)
        {
            Some(place) if bytes <= MAX_INDENTED_BYTES => {
                answer
                    .read(false, move |text| indented(&text.as_str()[place]))
                    .await?
            }
            _ => None,
        };
        let twin = match indented {
            Some(text) => block(vec![text]),
            None if is_string && !has_schema => block(json.clone()),
            None => block(
                [
                    vec![part("\"")],
                    json.iter().cloned().map(Part::quoted).collect(),
                    vec![part("\"")],
                ]
                .concat(),
            ),
        };
        let place = if is_enveloped { 0 } else { content.len() };
        content.insert(place, twin);
    }
    content.extend(dropped(&report));
    content.extend(left(&report));
    let mut all = vec![part("\"content\":[")];
    all.extend(content.join(&part(",")));
    all.push(part("]"));
    if wraps || is_object {
        all.push(part(",\"structuredContent\":"));
        // An envelope has the files already.
        let files = match beside.filter(|_| !is_enveloped) {
            Some(place) => files_beside(&report, &answer, place, manifest, wraps).await?,
            None => None,
        };
        all.extend(structured(json, wraps, files));
    }
    Ok(all)
}

/// An object with this answer: itself, or (`wraps`) its one member. `files`: also the files that the
/// call left.
fn structured(json: Parts, wraps: bool, files: Option<String>) -> Parts {
    let (begin, rest) = match (wraps, files) {
        (false, None) => return json,
        (true, None) => ("{\"result\":".to_owned(), json),
        (true, Some(files)) => (format!("{{\"artifacts\":{files},\"result\":"), json),
        (false, Some(files)) => {
            let comma = if json[0].starts_with(b"{}") { "" } else { "," };
            let begin = format!("{{\"artifacts\":{files}{comma}");
            let mut rest = json;
            rest[0] = rest[0].without_first();
            (begin, rest)
        }
    };
    let end = wraps.then(|| part("}"));
    std::iter::once(part(&begin))
        .chain(rest)
        .chain(end)
        .collect()
}

/// The files that the call left, as JSON, if they may stand beside the members of this answer: it
/// has none of that name, and its schema takes one.
async fn files_beside(
    report: &Report,
    answer: &ToolAnswer,
    place: Range<usize>,
    manifest: Option<Arc<Manifest>>,
    wraps: bool,
) -> Result<Option<String>, Fault> {
    let files = report.listed_artifacts();
    if files.is_empty() {
        return Ok(None);
    }
    let (files, shown) = (json!(files), text::json(&json!(files), false));
    if wraps {
        return Ok(Some(shown));
    }
    if answer.small().is_none() {
        return Ok(None);
    }
    let takes = answer.read(true, move |text| {
        let schema = manifest.as_ref().and_then(|it| it.output.as_ref());
        let Ok(Value::Object(mut all)) = serde_json::from_str(&text.as_str()[place]) else {
            return false;
        };
        let is_new = all.insert("artifacts".to_owned(), files).is_none();
        let all = Value::Object(all);
        is_new && schema.is_none_or(|schema| schema.flaws(&all).is_empty())
    });
    Ok(takes.await?.then_some(shown))
}

/// What of the files of a call is not where the answer may say that it is. `None`: all of them are.
fn dropped(report: &Report) -> Option<Parts> {
    let artifacts = report.observed.artifacts.iter();
    let lines = artifacts
        .filter(|artifact| !artifact.published)
        .map(|artifact| {
            let why = artifact.dropped_because.as_deref();
            format!("{}: {}", artifact.path, why.unwrap_or("it was dropped"))
        });
    let lines: Vec<String> = lines.collect();
    let words = text::printable_block(&format!("Not published:\n{}", lines.join("\n")));
    (!lines.is_empty()).then(|| block(vec![part(&text::json(&json!(words), false))]))
}

/// Blocks of what the call left: its pictures, links to all files, and their names and sizes.
fn left(report: &Report) -> Vec<Parts> {
    let stored = report.delivery.pictures.iter().filter_map(|picture| {
        let data = STANDARD.encode(picture.content.read()?);
        let media_type = &picture.file.media_type;
        Some(json!({ "type": "image", "data": data, "mimeType": media_type }))
    });
    let links = report.stored().map(|(file, bytes)| {
        json!({ "type": "resource_link", "uri": file.uri(), "name": file.name,
            "mimeType": file.media_type, "size": bytes })
    });
    let artifacts = report.observed.artifacts.iter();
    let inlined = artifacts.filter_map(|artifact| {
        let Inlined { media_type, b64 } = artifact.inlined.as_ref()?;
        Some(json!({ "type": "image", "data": b64, "mimeType": media_type }))
    });
    let words = report.left_files();
    let words = words.map(|words| json!({ "type": "text", "text": words }));
    let blocks = words.into_iter().chain(stored).chain(inlined).chain(links);
    blocks
        .map(|block| vec![part(&text::json(&block, false))])
        .collect()
}

/// One block of text, of a JSON string.
fn block(string: Parts) -> Parts {
    [
        vec![part("{\"type\":\"text\",\"text\":")],
        string,
        vec![part("}")],
    ]
    .concat()
}

/// A JSON string of this JSON, indented. `None`: it would be very long.
fn indented(json: &str) -> Option<Part> {
    let indented = Indented(json);
    let is_short = !indented.is_longer_than(MAX_INDENTED_BYTES);
    is_short.then(|| part(&text::json(&json!(indented.to_string()), false)))
}
