//! MCP servers: scripts that speak the Model Context Protocol on stdin and stdout, and the lists of
//! their tools (`NAME.mcp-tools.json`). A list is what a server said of itself, so all of it is
//! hostile.

use super::reader::Reader;
use super::schema::Schema;
use super::types::{Handler, Manifest, ScriptReference, id_fault};
use crate::base::json::{self, Dialect};
use crate::base::problem::{Code, Problem};
use crate::base::{sha256_hex, text};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// A server, as its manifest describes it.
#[derive(Clone, Debug)]
pub struct McpServer {
    pub script: ScriptReference,
    /// Literal texts that follow the script on its command line.
    pub args: Vec<String>,
    /// The tools of its list, by their names. `None`: no list lies beside the manifest.
    pub listed: Option<Arc<BTreeMap<String, ListedTool>>>,
}

/// One tool of a server, derived from the server's manifest and its list.
#[derive(Clone, Debug)]
pub struct McpTool {
    /// Its name at the server, and in its list.
    pub name: String,
    pub server: Arc<Manifest>,
}

/// What a list says of one tool, checked and masked.
#[derive(Clone, Debug)]
pub struct ListedTool {
    /// Of all that the server says of it (`cut`, `digest`).
    pub digest: String,
    title: Option<String>,
    description: String,
    parameters: Schema,
    output: Option<Schema>,
    /// Claims of the author, as `readOnlyHint`.
    annotations: Value,
}

impl McpServer {
    pub(super) fn read(reader: &mut Reader<'_>, script: ScriptReference) -> McpServer {
        let of_tools = ["parameters", "output", "examples", "idempotent"];
        let message = "the list of the server's tools says this of each: leave it out";
        reader.refuse_fields(&of_tools, message);
        let of_scripts = [
            "execution/stderr",
            "execution/output",
            "execution/context",
            "execution/ready",
            "presentation/modelName",
        ];
        reader.refuse_fields(&of_scripts, "a server does not have this: leave it out");
        McpServer {
            script,
            args: reader.get("/handler/args").unwrap_or_default(),
            listed: None,
        }
    }

    /// Takes the text of its list. `namespace`: of its id, which its tools share.
    pub fn take_list(&mut self, bytes: &[u8], namespace: &str) -> Vec<Problem> {
        let document = match json::parse(bytes, Dialect::Strict) {
            Ok(document) => document,
            Err(problem) => return vec![problem],
        };
        let mut reader = Reader::from_json(&document);
        let Some(entries) = document.value["tools"].as_array() else {
            let message = "not a list of tools: `toolhost mcp refresh ID` writes it";
            reader.error(Code::Schema, "", message);
            return reader.problems();
        };
        if entries.len() > MAX_LISTED {
            let message = format!("more than {MAX_LISTED} tools: the rest is not offered");
            reader.warn("/tools", message);
        }
        let entries = &entries[..entries.len().min(MAX_LISTED)];
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for name in entries.iter().filter_map(|entry| entry["name"].as_str()) {
            *times.entry(name.to_ascii_lowercase()).or_default() += 1;
        }
        let mut listed = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let name = entry["name"].as_str().unwrap_or_default();
            let read = if times.get(&name.to_ascii_lowercase()) > Some(&1) {
                Err("two tools of this list have this name".to_owned())
            } else if let Some(fault) = id_fault(&format!("{namespace}:{name}")) {
                Err(fault)
            } else {
                ListedTool::read(entry)
            };
            match read {
                Ok(tool) => drop(listed.insert(name.to_owned(), tool)),
                Err(why) => {
                    let message = format!("this tool is not offered: {why}");
                    reader.warn(&format!("/tools/{index}"), message);
                }
            }
        }
        self.listed = Some(Arc::new(listed));
        reader.problems()
    }
}

impl ListedTool {
    fn read(entry: &Value) -> Result<ListedTool, String> {
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
        Ok(ListedTool {
            digest,
            title: title.map(str::to_owned),
            description: description.to_owned(),
            parameters,
            output: entry.get("outputSchema").map(schema).transpose()?,
            annotations: entry["annotations"].clone(),
        })
    }

    /// The tool: all that it says itself, and for the rest what the server's manifest says.
    pub fn of_server(&self, name: &str, server: &Arc<Manifest>) -> Manifest {
        let id = format!("{}:{name}", server.namespace());
        let title = self.title.as_deref().filter(|it| !it.trim().is_empty());
        let description = match self.description.trim() {
            "" => format!("The tool {name} of {}.", server.display_name),
            said => said.to_owned(),
        };
        let handler = json!({ "type": "mcp", "server": server.id, "tool": name });
        let display_name = title.unwrap_or(name).to_owned();
        Manifest {
            raw: json!({
                "toolId": id, "displayName": display_name, "description": description,
                "version": server.version, "handler": handler, "parameters": self.parameters.raw,
                "output": self.output.as_ref().map(|schema| &schema.raw),
                "annotations": self.annotations,
            }),
            id,
            display_name,
            description,
            handler: Handler::McpTool(McpTool {
                name: name.to_owned(),
                server: server.clone(),
            }),
            parameters: Some(self.parameters.clone()),
            output: self.output.clone(),
            is_listed: server.raw["presentation"]["listed"] != false,
            digest: sha256_hex(format!("{}{}", server.digest, self.digest).as_bytes()),
            ..Manifest::clone(server)
        }
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
