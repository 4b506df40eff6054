//! The lists of the tools of MCP servers (`NAME.mcp-tools.json`). A list is what a server said of
//! itself, so all of it is hostile.

use super::schema::Schema;
use crate::base::{sha256_hex, text};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The ending of a list's file name, in place of the manifest's `.tool.json`.
pub const LIST_ENDING: &str = ".mcp-tools.json";
/// Most tools of one list.
pub const MAX_LISTED: usize = 512;
/// Longest title and description, bytes.
const MAX_TITLE_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
/// What a list keeps of a tool.
const MEMBERS: [&str; 6] = [
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
];

/// SHA-256 over the canonical JSON (RFC 8785) of a value.
pub fn digest(value: &impl Serialize) -> String {
    let text = serde_json_canonicalizer::to_vec(value).expect("plain data is JSON");
    sha256_hex(&text)
}

/// What a list says of one tool, checked and masked.
#[derive(Clone, Debug)]
pub struct ListedTool {
    /// Of all that the server says of it (`cut`, `digest`).
    pub digest: String,
    pub(super) title: Option<String>,
    pub(super) description: String,
    pub(super) parameters: Schema,
    pub(super) output: Option<Schema>,
    /// Why its answers are not checked, although it has a schema of them.
    pub(super) unchecked: Option<String>,
    /// Claims of the author, as `readOnlyHint`.
    pub(super) annotations: Value,
}

impl ListedTool {
    pub(super) fn read(entry: &Value) -> Result<ListedTool, String> {
        let entry = cut(entry);
        let digest = digest(&entry);
        let entry = masked(&entry)?;
        let title = entry["title"].as_str();
        let title = title.or(entry["annotations"]["title"].as_str());
        let description = entry["description"].as_str().unwrap_or_default();
        if title.is_some_and(|title| title.len() > MAX_TITLE_BYTES)
            || description.len() > MAX_DESCRIPTION_BYTES
        {
            return Err(format!(
                "its title is longer than {MAX_TITLE_BYTES} bytes, or its description than \
                 {MAX_DESCRIPTION_BYTES}"
            ));
        }
        let empty = json!({ "type": "object" });
        let parameters = schema(entry.get("inputSchema").unwrap_or(&empty))?;
        // A tool can be called without a schema of its answers, but not without one of its arguments.
        let output = entry.get("outputSchema").map(schema).transpose();
        let (output, unchecked) = output.map_or_else(|why| (None, Some(why)), |it| (it, None));
        Ok(ListedTool {
            digest,
            title: title.map(str::to_owned),
            description: description.to_owned(),
            parameters,
            output,
            unchecked,
            annotations: entry["annotations"].clone(),
        })
    }
}

/// What a list keeps of what `tools/list` says of one tool.
pub fn cut(entry: &Value) -> Value {
    let kept = MEMBERS.iter().filter_map(|member| {
        let value = entry.get(member).filter(|value| !value.is_null())?;
        Some(((*member).to_owned(), value.clone()))
    });
    Value::Object(kept.collect())
}

/// The text of a list with these tools, in the order of their names.
pub fn list_text(tools: &[Value]) -> String {
    let mut tools: Vec<Value> = tools.iter().map(cut).collect();
    tools.sort_by_cached_key(|tool| tool["name"].to_string());
    let list = json!({ "tools": tools });
    serde_json::to_string_pretty(&list).unwrap_or_default() + "\n"
}

fn schema(raw: &Value) -> Result<Schema, String> {
    if !raw.is_object() {
        return Err("its schema is not an object".to_owned());
    }
    Schema::compile(raw)
        .map_err(|problem| format!("its schema at {}: {}", problem.pointer, problem.message))
}

/// The value, in whose texts every character that a person does not see is written as an escape.
fn masked(value: &Value) -> Result<Value, String> {
    Ok(match value {
        Value::String(said) => json!(text::printable_block(said)),
        Value::Array(items) => items.iter().map(masked).collect::<Result<_, _>>()?,
        Value::Object(members) => {
            let mut all = Map::new();
            for (name, value) in members {
                if !text::is_printable(name) {
                    return Err("a name in it holds control or invisible characters".to_owned());
                }
                all.insert(name.clone(), masked(value)?);
            }
            Value::Object(all)
        }
        plain => plain.clone(),
    })
}
