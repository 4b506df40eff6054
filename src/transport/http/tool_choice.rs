//! `tool_choice` of a request for a response: which of the offered tools its model may or must call.

use super::reply::Refusal;
use super::responses::RUN_CODE;
use crate::base::text;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most tools that a list of a request names, or that its searches found.
pub const MAX_NAMES: usize = 1024;

const FORMS: &str = "tool_choice: must be none, auto, required, or one of {\"type\": \"function\" or \
    \"custom\", \"name\": …}, {\"type\": \"mcp\", \"server_label\": \"toolhost\", \"name\": …}, \
    {\"type\": \"code_interpreter\", \"local_shell\" or \"shell\"} and {\"type\": \
    \"allowed_tools\", \"mode\": \"auto\" or \"required\", \"tools\": […]}.";

/// A choice that was read. Tools have the names by which the model is offered them.
pub enum ToolChoice {
    Any(Mode),
    Tool(String),
    Allowed { mode: Mode, names: Vec<String> },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Mode(Mode),
    Tool(Chosen),
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    None,
    Auto,
    Required,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Chosen {
    Function { name: String },
    Custom { name: String },
    Mcp { server_label: Host, name: String },
    CodeInterpreter {},
    LocalShell {},
    Shell {},
    AllowedTools { mode: Mode, tools: Vec<Chosen> },
}

/// The one server of tools.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Host {
    Toolhost,
}

impl Chosen {
    /// The name or the id of its tool.
    fn tool(&self) -> &str {
        match self {
            Chosen::Function { name } | Chosen::Custom { name } => name,
            Chosen::Mcp {
                server_label: Host::Toolhost,
                name,
            } => name,
            Chosen::CodeInterpreter {} => RUN_CODE,
            Chosen::LocalShell {} => "local_shell",
            Chosen::Shell {} => "shell",
            Chosen::AllowedTools { .. } => "allowed_tools",
        }
    }
}

impl ToolChoice {
    /// `name_of`: the name by which the model is offered the tool with this name or id.
    pub fn read(
        written: Option<&Value>,
        name_of: impl Fn(&str) -> Option<String>,
    ) -> Result<ToolChoice, Refusal> {
        let name = |chosen: &Chosen| {
            name_of(chosen.tool()).ok_or_else(|| {
                let tool = text::printable(&text::head(chosen.tool(), 80));
                let words = format!("tool_choice: the model is offered no tool '{tool}'.");
                Refusal::malformed(words)
            })
        };
        let written = written.map_or(Ok(Written::Mode(Mode::Auto)), Written::deserialize);
        Ok(match written.map_err(|_| Refusal::malformed(FORMS))? {
            Written::Mode(mode) => ToolChoice::Any(mode),
            Written::Tool(Chosen::AllowedTools { tools, .. }) if tools.len() > MAX_NAMES => {
                let words = format!("tool_choice: it has more than {MAX_NAMES} tools.");
                return Err(Refusal::malformed(words));
            }
            Written::Tool(Chosen::AllowedTools { mode, tools }) => {
                let names = tools.iter().map(name).collect::<Result<_, _>>()?;
                ToolChoice::Allowed { mode, names }
            }
            Written::Tool(chosen) => ToolChoice::Tool(name(&chosen)?),
        })
    }

    /// Whether the model is offered a tool at all.
    pub fn allows(&self, tool: &str) -> bool {
        match self {
            ToolChoice::Allowed { names, .. } => names.iter().any(|name| name == tool),
            ToolChoice::Any(_) | ToolChoice::Tool(_) => true,
        }
    }

    /// For one turn, as Chat Completions write it.
    pub fn in_chat(&self) -> Value {
        match self {
            ToolChoice::Any(mode) | ToolChoice::Allowed { mode, .. } => json!(mode),
            ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
        }
    }

    /// As a response shows it.
    pub fn shown(&self) -> Value {
        let function = |name: &String| json!({"type": "function", "name": name});
        match self {
            ToolChoice::Any(mode) => json!(mode),
            ToolChoice::Tool(name) => function(name),
            ToolChoice::Allowed { mode, names } => {
                let tools: Vec<Value> = names.iter().map(function).collect();
                json!({"type": "allowed_tools", "mode": mode, "tools": tools})
            }
        }
    }
}
