//! Tools that the client of a call runs (`definition-only`): this host says with what, and runs
//! nothing.

use super::reader::Reader;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The one parameter of a tool that takes a text.
pub const INPUT: &str = "input_data";

/// What the client is handed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ClientTool {
    /// Arguments, as the manifest's `parameters` describe them.
    #[default]
    Function,
    /// One text.
    Custom { format: TextFormat },
    /// One program with its arguments.
    LocalShell,
    /// Lines for a shell.
    Shell,
    /// A search for tools, which only a request brings. Its arguments are like those of a function.
    ToolSearch,
}

/// The form of a text. Models are shown it, and can be held to it; the text is not checked
/// here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum TextFormat {
    #[default]
    Text,
    Grammar {
        syntax: Syntax,
        definition: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Syntax {
    Lark,
    Regex,
}

impl ClientTool {
    /// Reads the handler. A kind other than a function has parameters of its own.
    pub(super) fn read(reader: &mut Reader<'_>, top: &Value) -> Option<ClientTool> {
        let handler = &top["handler"];
        let format = reader.get::<TextFormat>("/handler/format");
        let tool = match handler["kind"].as_str().unwrap_or("function") {
            "function" => ClientTool::Function,
            "custom" => ClientTool::Custom {
                format: format.unwrap_or_default(),
            },
            "local_shell" => ClientTool::LocalShell,
            _ => ClientTool::Shell,
        };
        if tool != ClientTool::Function {
            let message = "a tool of this kind has parameters of its own: leave this out";
            reader.refuse_fields(&["parameters"], message);
        }
        let message = "nothing of this tool runs in this host: leave this out";
        let fields = ["output", "securityContext", "limits", "execution"];
        reader.refuse_fields(&fields, message);
        Some(tool)
    }

    /// The schema of the arguments. `None`: the manifest's own. Models write a shell's arguments
    /// in more ways than the schema that they are shown.
    pub fn parameters(&self) -> Option<Value> {
        let mut schema = self.shown_parameters()?;
        let properties = &mut schema["properties"];
        match self {
            ClientTool::Function | ClientTool::ToolSearch => {}
            ClientTool::Custom { .. } => properties[INPUT] = json!({"type": "string"}),
            ClientTool::LocalShell | ClientTool::Shell => {
                for list in ["command", "commands"] {
                    if !properties[list].is_null() {
                        properties[list]["type"] = json!(["array", "string"]);
                    }
                }
                properties["timeout_ms"] = json!({});
            }
        }
        Some(schema)
    }

    /// The schema of the arguments as models are shown it.
    pub fn shown_parameters(&self) -> Option<Value> {
        match self {
            ClientTool::Function | ClientTool::ToolSearch => None,
            ClientTool::Custom { format } => {
                let mut input = json!({"type": "string", "description": "The input, as one text."});
                if let TextFormat::Grammar {
                    syntax: Syntax::Regex,
                    definition,
                } = format
                {
                    input["pattern"] = json!(definition);
                }
                Some(object(json!({ (INPUT): input }), INPUT))
            }
            ClientTool::LocalShell => {
                let properties = json!({
                    "command": texts("The program and its arguments."),
                    "env": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}, "description": "Environment variables."},
                    "timeout_ms": {"type": "integer", "description": "Time limit, milliseconds."},
                    "user": {"type": "string", "description": "The user to run it as."},
                    "working_directory": {"type": "string", "description": "The folder to run it in."},
                });
                Some(object(properties, "command"))
            }
            ClientTool::Shell => {
                let properties = json!({
                    "commands": texts("Lines for the shell."),
                    "timeout_ms": {"type": "integer", "description": "Time limit, milliseconds."},
                    "max_output_length": {"type": "integer", "description": "Most characters of output."},
                });
                Some(object(properties, "commands"))
            }
        }
    }

    /// What the description says to a model that is not shown the format itself.
    pub fn described_format(&self) -> Option<String> {
        match self {
            ClientTool::Custom {
                format:
                    TextFormat::Grammar {
                        syntax: Syntax::Lark,
                        definition,
                    },
            } => Some(format!("The input fits this Lark grammar:\n{definition}")),
            _ => None,
        }
    }

    /// The checked arguments in the form that clients take: one command is a list, and a time that
    /// is not a number is left out.
    pub fn in_form(&self, mut arguments: Map<String, Value>) -> Map<String, Value> {
        let list = match self {
            ClientTool::Function | ClientTool::Custom { .. } | ClientTool::ToolSearch => {
                return arguments;
            }
            ClientTool::LocalShell => "command",
            ClientTool::Shell => "commands",
        };
        if let Some(one @ Value::String(_)) = arguments.get_mut(list) {
            *one = json!([one.take()]);
        }
        arguments.retain(|name, value| name != "timeout_ms" || value.is_u64());
        arguments
    }
}

/// A schema of one object.
fn object(properties: Value, required: &str) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": [required],
        "additionalProperties": false,
    })
}

/// A schema of a list of texts.
fn texts(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "description": description})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_what_models_write() {
        let given = json!({"command": "ls", "timeout_ms": "soon", "env": {}});
        let Value::Object(given) = given else {
            panic!("not an object")
        };
        let form = ClientTool::LocalShell.in_form(given);
        assert_eq!(Value::Object(form), json!({"command": ["ls"], "env": {}}));
    }

    #[test]
    fn a_format_is_written_as_model_apis_write_it() {
        let tool = ClientTool::Custom {
            format: TextFormat::Grammar {
                syntax: Syntax::Lark,
                definition: "start: \"a\"".to_owned(),
            },
        };
        let written = json!({"kind": "custom", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}});
        assert_eq!(json!(tool), written);
        assert_eq!(
            serde_json::from_value::<ClientTool>(written).ok(),
            Some(tool)
        );
    }
}
