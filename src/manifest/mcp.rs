//! MCP servers: scripts that speak the Model Context Protocol on stdin and stdout, and their tools.

use super::listed::ListedTool;
pub use super::listed::{LIST_ENDING, MAX_LISTED, cut, digest, list_text};
use super::reader::Reader;
use super::schema::Schema;
use super::types::{Handler, Manifest, McpServer, McpTool, ScriptReference, id_fault};
use crate::base::json::{self, Dialect};
use crate::base::problem::{Code, Problem};
use crate::base::{sha256_hex, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes that the patterns of a server's whole list take compiled.
const MAX_PATTERN_BYTES: usize = 4 << 20;
/// How much of a tool's name is shown where it is not offered.
const MAX_NAME_CHARS: usize = 80;

impl McpServer {
    pub(super) fn read(reader: &mut Reader<'_>, script: ScriptReference) -> McpServer {
        let of_tools = ["parameters", "output", "examples", "idempotent"];
        let message = "the list of the server's tools says this of each: leave it out";
        reader.refuse_fields(&of_tools, message);
        let of_scripts = [
            "execution/stderr",
            "execution/input",
            "execution/output",
            "execution/answers",
            "execution/context",
            "execution/ready",
            "presentation/modelName",
        ];
        reader.refuse_fields(&of_scripts, "a server does not have this: leave it out");
        let id = reader.get::<Value>("/toolId").unwrap_or_default();
        let own_name = id.as_str().and_then(|id| id.split_once(':'));
        McpServer {
            own_name: own_name.map_or("", |(_, name)| name).to_owned(),
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
        let mut pattern_bytes = 0;
        for (index, entry) in entries.iter().enumerate() {
            let name = entry["name"].as_str().unwrap_or_default();
            let read = if times.get(&name.to_ascii_lowercase()) > Some(&1) {
                Err("two tools of this list have this name".to_owned())
            } else if name.eq_ignore_ascii_case(&self.own_name) {
                Err("the server itself has this name".to_owned())
            } else if let Some(fault) = id_fault(&format!("{namespace}:{name}")) {
                Err(fault)
            } else if pattern_bytes > MAX_PATTERN_BYTES {
                let most = MAX_PATTERN_BYTES >> 20;
                Err(format!(
                    "the patterns of this list take more than {most} MiB"
                ))
            } else {
                ListedTool::read(entry)
            };
            let pointer = format!("/tools/{index}");
            let shown = text::printable(&text::head(name, MAX_NAME_CHARS));
            match read {
                Ok(tool) => {
                    if let Some(why) = &tool.unchecked {
                        let message = format!(
                            "what the tool '{shown}' answers is not checked against its \
                             outputSchema: {why}"
                        );
                        reader.note(&pointer, &message);
                    }
                    let schemas = [Some(&tool.parameters), tool.output.as_ref()];
                    let schemas = schemas.into_iter().flatten();
                    pattern_bytes += schemas.map(Schema::pattern_bytes).sum::<usize>();
                    listed.insert(name.to_owned(), tool);
                }
                Err(why) => {
                    reader.warn(
                        &pointer,
                        format!("the tool '{shown}' is not offered: {why}"),
                    );
                }
            }
        }
        self.listed = Some(Arc::new(listed));
        reader.problems()
    }
}

/// The tool of a server: all that its list says of it, and for the rest what the server's manifest
/// says.
pub fn derived(name: &str, listed: &ListedTool, server: &Arc<Manifest>) -> Manifest {
    let id = format!("{}:{name}", server.namespace());
    let title = listed.title.as_deref().filter(|it| !it.trim().is_empty());
    let description = match listed.description.trim() {
        "" => format!("The tool {name} of {}.", server.display_name),
        said => said.to_owned(),
    };
    let handler = json!({ "type": "mcp", "server": server.id, "tool": name });
    let display_name = title.unwrap_or(name).to_owned();
    Manifest {
        raw: json!({
            "toolId": id, "displayName": display_name, "description": description,
            "version": server.version, "handler": handler, "parameters": listed.parameters.raw,
            "output": listed.output.as_ref().map(|schema| &schema.raw),
            "annotations": listed.annotations,
        }),
        id,
        display_name,
        description,
        handler: Handler::McpTool(McpTool {
            name: name.to_owned(),
            server: server.clone(),
        }),
        parameters: Some(listed.parameters.clone()),
        output: listed.output.clone(),
        is_listed: server.raw["presentation"]["listed"] != false,
        digest: sha256_hex(format!("{}{}", server.digest, listed.digest).as_bytes()),
        ..Manifest::clone(server)
    }
}
