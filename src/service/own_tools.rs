//! Tools that a request brings, in the forms of model APIs. Its client runs them, and none of them
//! has the name of a tool of this host.

use super::client_call::ClientRuns;
use crate::base::text;
use crate::executor::CallDeadline;
use crate::fault::{Fault, Kind};
use crate::manifest::{self, ClientTool, Handler, schema::Schema};
use crate::quantity::MAX_REGEX_BYTES;
use crate::registry::Tool;
use serde_json::{Value, json};
use std::sync::Arc;

/// Most tools of one request.
const MAX_TOOLS: usize = 128;
/// Longest name that model APIs take.
const MAX_NAME_CHARS: usize = 64;

/// The tools of one request.
#[derive(Clone, Debug, Default)]
pub struct OwnTools(Vec<Arc<Tool>>);

impl OwnTools {
    /// Reads `tools` of a request. `is_taken`: whether a tool of this host has the name.
    pub fn read(definitions: &[Value], is_taken: impl Fn(&str) -> bool) -> Result<OwnTools, Fault> {
        if definitions.len() > MAX_TOOLS {
            let message = format!("tools: a request brings at most {MAX_TOOLS} tools.");
            return Err(Fault::new(Kind::ParameterValidationError, message));
        }
        let mut own = OwnTools::default();
        // One bound for all: while their turn waits, all of them are kept.
        let mut pattern_bytes = 0;
        for (at, definition) in definitions.iter().enumerate() {
            let refuse = |why: String| {
                let message = format!("tools[{at}]{why}");
                Fault::new(Kind::ParameterValidationError, message)
            };
            let tool = read(definition).map_err(refuse)?;
            let name = &tool.manifest.id;
            if is_taken(name) {
                let why = format!(".name: a tool of this host has the name '{name}'.");
                return Err(refuse(why));
            }
            if own.find(name).is_some() {
                return Err(refuse(format!(".name: '{name}' is there twice.")));
            }
            pattern_bytes += tool
                .manifest
                .parameters
                .as_ref()
                .map_or(0, Schema::pattern_bytes);
            if pattern_bytes > MAX_REGEX_BYTES {
                let most = MAX_REGEX_BYTES >> 10;
                let why = format!(
                    ".parameters: the patterns of all tools of a request take more than {most} KiB."
                );
                return Err(refuse(why));
            }
            own.0.push(Arc::new(tool));
        }
        Ok(own)
    }

    /// As `read`, on another thread: schemas can take long.
    pub async fn read_for(
        principal: &str,
        definitions: Vec<Value>,
        is_taken: impl Fn(&str) -> bool + Send + 'static,
    ) -> Result<OwnTools, Fault> {
        if definitions.is_empty() {
            return Ok(OwnTools::default());
        }
        let deadline = CallDeadline::usual(principal, None);
        deadline
            .run(true, move || OwnTools::read(&definitions, is_taken))
            .await?
    }

    /// The name of the tool of a definition.
    pub fn name_of(definition: &Value) -> &str {
        match unnested(definition) {
            (kind @ ("local_shell" | "shell" | "tool_search"), _) => kind,
            (_, own) => own["name"].as_str().unwrap_or_default(),
        }
    }

    pub fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        self.0.iter().find(|tool| tool.manifest.id == name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.0.iter()
    }

    /// Who runs a call. `name`: as the model wrote it.
    pub fn runs(&self, name: &str) -> ClientRuns {
        match self.find(name) {
            Some(tool) => ClientRuns::Own(tool.clone()),
            None => ClientRuns::Registered {
                name: name.to_owned(),
            },
        }
    }
}

/// The type of a definition, and the value with its members: Chat Completions write them one level
/// deeper, below the name of the type.
fn unnested(definition: &Value) -> (&str, &Value) {
    let kind = definition["type"].as_str().unwrap_or_default();
    (kind, definition.get(kind).unwrap_or(definition))
}

/// One definition as a tool, whose id is its name. `Err` begins with the member.
fn read(definition: &Value) -> Result<Tool, String> {
    let (kind, own) = unnested(definition);
    let name = match kind {
        "function" | "custom" | "local_shell" | "shell" => OwnTools::name_of(definition),
        "tool_search" if own["execution"] == "client" => OwnTools::name_of(definition),
        _ => {
            let kind = text::printable(&text::head(kind, 80));
            return Err(format!(
                ".type: '{kind}' is none of function, custom, local_shell and shell, which clients \
                 run, and no such tool is offered here."
            ));
        }
    };
    let mut bytes = name.bytes();
    let is_plain = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !is_plain {
        return Err(format!(
            ".name: must be 1 to {MAX_NAME_CHARS} of A-Za-z0-9_-."
        ));
    }
    let environment = &own["environment"];
    if kind == "shell" && !environment.is_null() && *environment != json!({"type": "local"}) {
        let why = ".environment: the client runs its shell, and no container is here: leave it out, \
                   or send {\"type\": \"local\"}.";
        return Err(why.to_owned());
    }
    let is_search = kind == "tool_search";
    let kind = if is_search { "function" } else { kind };
    let mut handler = json!({"type": "definition-only", "kind": kind});
    let mut document = json!({
        // A name alone is not the id of a manifest.
        "toolId": "request:tool",
        "displayName": name,
        "description": own["description"].as_str().filter(|it| !it.trim().is_empty()).unwrap_or(name),
        "version": "1.0.0",
    });
    if kind == "custom" && !own["format"].is_null() {
        let (kind, format) = unnested(&own["format"]);
        handler["format"] = format.clone();
        if format.is_object() {
            handler["format"]["type"] = json!(kind);
        }
    }
    if kind == "function" && !own["parameters"].is_null() {
        document["parameters"] = own["parameters"].clone();
        if let Some(schema) = document["parameters"].as_object_mut() {
            schema.entry("type").or_insert_with(|| json!("object"));
        }
    }
    document["handler"] = handler;
    let (mut manifest, _) =
        manifest::read(document.to_string().as_bytes()).map_err(|problems| {
            let problem = problems.iter().max_by_key(|problem| problem.severity);
            problem.map_or_else(String::new, |problem| {
                let at = problem.pointer.replacen("/handler", "", 1);
                format!(
                    "{}: {}.",
                    at.replacen('/', ".", 1),
                    text::printable(&problem.message)
                )
            })
        })?;
    if is_search {
        manifest.handler = Handler::Client(ClientTool::ToolSearch);
    }
    manifest.id = name.to_owned();
    manifest.model_name = Some(name.to_owned());
    Ok(Tool::of_request(manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(definition: Value) -> String {
        let read = OwnTools::read(&[definition], |name| name == "ns__taken");
        read.err().map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn definitions_of_model_apis_are_read_and_keep_their_names() {
        let definitions = [
            json!({"type": "function", "name": "weather", "strict": true,
                   "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}),
            json!({"type": "function", "function": {"name": "older", "parameters": null}}),
            json!({"type": "custom", "name": "sql", "format":
                   {"type": "grammar", "syntax": "regex", "definition": "(?=look)ahead"}}),
            json!({"type": "custom", "custom": {"name": "chat", "format": {"type": "grammar",
                   "grammar": {"syntax": "lark", "definition": "start: \"a\""}}}}),
            json!({"type": "local_shell"}),
            json!({"type": "shell", "environment": {"type": "local"}}),
        ];
        let own = OwnTools::read(&definitions, |_| false).expect("read");
        let names: Vec<&str> = own.iter().map(|tool| tool.manifest.id.as_str()).collect();
        assert_eq!(
            names,
            ["weather", "older", "sql", "chat", "local_shell", "shell"]
        );
        assert!(matches!(own.runs("sql"), ClientRuns::Own(_)));
        assert!(matches!(own.runs("x"), ClientRuns::Registered { .. }));
    }

    #[test]
    fn a_bad_definition_names_its_member() {
        for (definition, wanted) in [
            (json!({"type": "web_search"}), "tools[0].type: 'web_search'"),
            (
                json!({"type": "function", "name": "a:b"}),
                "tools[0].name: must be",
            ),
            (
                json!({"type": "function", "name": "ns__taken"}),
                "tools[0].name: a tool of this host",
            ),
            (
                json!({"type": "function", "name": "f", "parameters": {"type": "list"}}),
                "tools[0].parameters",
            ),
            (
                json!({"type": "custom", "name": "c", "format": {"type": "grammar"}}),
                "tools[0].format",
            ),
            (
                json!({"type": "shell", "environment": {"type": "container_auto"}}),
                "tools[0].environment: the client runs its shell",
            ),
        ] {
            let why = refused(definition);
            assert!(why.starts_with(wanted), "{why}");
        }
        let twice = json!({"type": "local_shell"});
        let read = OwnTools::read(&[twice.clone(), twice], |_| false);
        assert!(read.is_err_and(|fault| fault.message.contains("twice")));
    }
}
