//! Tools as programs and models see them: schemas that the strictest clients take, the shapes of
//! model APIs, and text for a prompt. Nothing shows a path of this host, or a raw control
//! character. Rules that are left out of a schema are checked by the call pipeline all the same.

use super::names::Names;
use crate::base::text;
use crate::manifest::{ClientTool, Example, Language, Manifest};
use crate::registry::Tool;
use crate::service::search::{Found, Hit};
use crate::service::tool_stubs::stubs;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The form in which tools are shown: the shape of a model API, or a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    OpenAi,
    OpenAiResponses,
    Anthropic,
    Gemini,
    Prompt,
    /// Typed functions, as code that calls tools has them.
    Stubs(Language),
}

impl Format {
    pub fn parse(name: &str) -> Result<Format, String> {
        match name {
            "openai" => Ok(Format::OpenAi),
            "openai-responses" => Ok(Format::OpenAiResponses),
            "anthropic" => Ok(Format::Anthropic),
            "gemini" => Ok(Format::Gemini),
            "prompt" => Ok(Format::Prompt),
            "python-stubs" => Ok(Format::Stubs(Language::Python)),
            "typescript-stubs" => Ok(Format::Stubs(Language::Nodejs)),
            _ => Err(
                "the formats are openai, openai-responses, anthropic, gemini, prompt, python-stubs \
                and typescript-stubs"
                    .to_owned(),
            ),
        }
    }

    /// Whether it is one text, and not JSON.
    pub fn is_text(self) -> bool {
        matches!(self, Format::Prompt | Format::Stubs(_))
    }
}

/// These tools as a model API takes them in its `tools`. `names`: of all tools that are offered, so
/// that a tool has the same name alone and in a list. A tool whose name is taken is left out. A
/// prompt is one text, and so are stubs.
pub fn tools(tools: &[Arc<Tool>], names: &Names, format: Format) -> Value {
    if format == Format::Prompt {
        let texts: Vec<String> = tools.iter().map(|tool| prompt(tool)).collect();
        return Value::String(texts.join("\n"));
    }
    if let Format::Stubs(language) = format {
        // Code cannot call what its client runs.
        let mut called = tools.to_vec();
        called.retain(|tool| tool.manifest.client_tool().is_none());
        return Value::String(stubs(language, &called));
    }
    let entries = tools
        .iter()
        .filter_map(|tool| Some(entry(tool, &names.name(&tool.manifest.id)?, format)));
    let entries: Vec<Value> = entries.collect();
    match format {
        Format::Gemini => json!([{ "functionDeclarations": entries }]),
        _ => Value::Array(entries),
    }
}

/// These definitions as clients take them that load each only once it was found by a search.
pub fn deferred(definitions: Value) -> Value {
    let Value::Array(mut all) = definitions else {
        return definitions;
    };
    for definition in &mut all {
        definition["defer_loading"] = json!(true);
    }
    Value::Array(all)
}

/// How many bytes the definition of a tool has that a model reads.
pub fn definition_bytes(tool: &Tool) -> usize {
    entry(tool, &tool.manifest.id, Format::OpenAi)
        .to_string()
        .len()
}

/// The tools that a search found: as clients of a model API load them, else with scores and
/// examples.
pub fn found(hits: &Found, names: &Names, format: Option<Format>) -> Value {
    let found: Vec<Arc<Tool>> = hits.hits.iter().map(|hit| hit.tool.clone()).collect();
    match format {
        None => hits.with_note(hits.hits.iter().map(Hit::describe).collect()),
        Some(Format::Anthropic) => {
            let named = found
                .iter()
                .filter_map(|tool| names.name(&tool.manifest.id));
            named
                .map(|name| json!({"type": "tool_reference", "tool_name": name}))
                .collect()
        }
        Some(format @ Format::OpenAiResponses) => {
            json!({"type": "tool_search_output", "tools": tools(&found, names, format)})
        }
        Some(format) => tools(&found, names, format),
    }
}

/// The names of these tools.
pub fn names<'t>(tools: impl IntoIterator<Item = &'t Arc<Tool>>) -> Names {
    Names::new(tools.into_iter().map(|tool| tool.manifest.named()))
}

/// One tool in the shape of one model API. `strict` is off: it would refuse values that the tool's
/// own schema takes.
fn entry(tool: &Tool, name: &str, format: Format) -> Value {
    let manifest = &tool.manifest;
    let description = description(manifest);
    let input = input_schema(manifest);
    let output = manifest.output.as_ref().map(|schema| &schema.raw);
    fn with(mut entry: Value, key: &str, value: Option<Value>) -> Value {
        if let Some(value) = value {
            entry[key] = value;
        }
        entry
    }
    match format {
        Format::OpenAi => {
            let function = json!({"name": name, "description": description, "parameters": input, "strict": false});
            json!({"type": "function", "function": function})
        }
        Format::OpenAiResponses => {
            let function = json!({"type": "function", "name": name, "description": description, "parameters": input, "strict": false});
            match manifest.client_tool() {
                Some(ClientTool::Custom { format }) => {
                    let description = text::printable_block(&manifest.description);
                    json!({"type": "custom", "name": name, "description": description, "format": format})
                }
                Some(ClientTool::LocalShell) => json!({"type": "local_shell"}),
                Some(ClientTool::Shell) => {
                    json!({"type": "shell", "environment": {"type": "local"}})
                }
                Some(ClientTool::Function | ClientTool::ToolSearch) | None => function,
            }
        }
        Format::Anthropic => {
            let entry = json!({"name": name, "description": description, "input_schema": input});
            let examples: Vec<&Value> = fitting(manifest).map(|example| &example.input).collect();
            with(
                entry,
                "input_examples",
                (!examples.is_empty()).then(|| json!(examples)),
            )
        }
        Format::Gemini | Format::Prompt | Format::Stubs(_) => {
            let entry =
                json!({"name": name, "description": description, "parametersJsonSchema": input});
            with(entry, "responseJsonSchema", output.cloned())
        }
    }
}

/// The examples whose input fits the parameters: a model learns from them, and APIs refuse the
/// whole list if one is bad.
fn fitting(manifest: &Manifest) -> impl Iterator<Item = &Example> {
    manifest.examples.iter().filter(|example| {
        let schema = manifest.parameters.as_ref();
        let fits = schema.is_none_or(|schema| {
            !schema.takes_long(&example.input) && schema.flaws(&example.input).is_empty()
        });
        example.input.is_object() && fits
    })
}

/// One tool as text for a prompt: what a model needs to choose it and to call it.
fn prompt(tool: &Tool) -> String {
    let manifest = &tool.manifest;
    fn json(value: &Value) -> String {
        text::json(value, false)
    }
    let description = description(manifest);
    let mut lines = vec![format!(
        "{} ({})",
        manifest.id,
        text::printable(&manifest.display_name)
    )];
    lines.extend(description.lines().map(|line| format!("  {line}")));
    lines.push(format!(
        "  Parameters, as JSON Schema: {}",
        json(&Value::Object(input_schema(manifest)))
    ));
    if let Some(output) = &manifest.output {
        lines.push(format!("  Answer, as JSON Schema: {}", json(&output.raw)));
    }
    for example in fitting(manifest) {
        let answer = example
            .expected_output
            .as_ref()
            .map(|answer| format!(" -> {}", json(answer)));
        let words = text::printable(&example.description);
        let answer = answer.unwrap_or_default();
        lines.push(format!(
            "  Example ({words}): {}{answer}",
            json(&example.input)
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Everything about a tool that its callers may read.
pub fn describe(tool: &Tool) -> Value {
    let manifest = &tool.manifest;
    let examples = manifest.examples.iter().map(
        |Example {
             description,
             input,
             expected_output,
             ..
         }| {
            json!({"description": description, "input": input, "expectedOutput": expected_output})
        },
    );
    json!({
        "toolId": manifest.id,
        "version": manifest.version.to_string(),
        "displayName": manifest.display_name,
        "description": manifest.description,
        "source": tool.source,
        "parameters": manifest.parameters.as_ref().map(|schema| &schema.raw),
        "output": manifest.output.as_ref().map(|schema| &schema.raw),
        "examples": examples.collect::<Vec<_>>(),
        "tags": manifest.tags,
        "metadata": {
            "category": manifest.metadata.category,
            "author": manifest.metadata.author,
            "permissions": manifest.metadata.permissions,
        },
        "client": manifest.client_tool(),
        "final": manifest.is_final,
        "hidden": manifest.hidden,
        "listed": manifest.is_listed,
    })
}

/// Most characters of a description in a lean list.
const SHORT_CHARS: usize = 300;

/// The beginning of a description, cut after a sentence.
pub fn short(description: &str) -> String {
    let Some((cut, _)) = description.char_indices().nth(SHORT_CHARS) else {
        return description.to_owned();
    };
    let head = &description[..cut];
    let is_end = |at: &usize| head[..*at].ends_with(['.', '!', '?', '\n', '\u{3002}']);
    let spaces = head.char_indices().filter(|(_, c)| c.is_whitespace());
    let ends = spaces.map(|(at, _)| at).filter(is_end);
    let wide = head.rfind('\u{3002}').map(|at| at + '\u{3002}'.len_utf8());
    match ends.chain(wide).max() {
        Some(end) => head[..end].trim_end().to_owned(),
        None => format!("{head}\u{2026}"),
    }
}

/// Keywords that model APIs refuse at the root of an input schema, with the whole list of tools.
const REFUSED_AT_ROOT: [&str; 5] = ["oneOf", "anyOf", "allOf", "not", "enum"];

pub fn description(manifest: &Manifest) -> String {
    let format = manifest
        .client_tool()
        .and_then(ClientTool::described_format);
    let written = &manifest.description;
    let whole = format.map(|format| format!("{written}\n\n{format}"));
    text::printable_block(whole.as_ref().unwrap_or(written))
}

/// The parameters with a plain object root. A tool that declares none is shown as open, because the
/// pipeline takes any object then; one that takes no arguments says so with `additionalProperties:
/// false`.
pub fn input_schema(manifest: &Manifest) -> Map<String, Value> {
    let shown = manifest
        .client_tool()
        .and_then(ClientTool::shown_parameters);
    let written = manifest.parameters.as_ref().map(|schema| &schema.raw);
    let written = shown.as_ref().or(written).and_then(Value::as_object);
    let mut schema = written.cloned().unwrap_or_default();
    schema.retain(|key, _| manifest.schema_as_written || !REFUSED_AT_ROOT.contains(&key.as_str()));
    schema.insert("type".into(), json!("object"));
    // Model APIs refuse an object schema without this keyword.
    schema.entry("properties").or_insert_with(|| json!({}));
    schema
}

/// Whether answers of this tool travel inside `{"result": …}`: old clients take objects only.
pub fn wraps_output(manifest: &Manifest) -> bool {
    manifest
        .output
        .as_ref()
        .is_some_and(|schema| !is_object_schema(&schema.raw))
}

fn is_object_schema(schema: &Value) -> bool {
    schema["type"] == "object"
}

pub fn output_schema(manifest: &Manifest) -> Option<Map<String, Value>> {
    let schema = &manifest.output.as_ref()?.raw;
    if is_object_schema(schema) {
        return schema.as_object().cloned();
    }
    wrap_schema(schema)
}

/// `{"result": schema}`. Definitions move to the new root, where references look for them; a schema
/// that refers to anything else of itself is not advertised, because the reference would dangle.
fn wrap_schema(schema: &Value) -> Option<Map<String, Value>> {
    let mut inner = schema.clone();
    let mut root = Map::new();
    if let Value::Object(fields) = &mut inner {
        if fields.contains_key("$id") || fields.contains_key("$anchor") {
            return None;
        }
        for key in ["$schema", "$defs", "definitions"] {
            if let Some(part) = fields.remove(key) {
                root.insert(key.into(), part);
            }
        }
    }
    if !references_hold(&inner) || !root.values().all(references_hold) {
        return None;
    }
    root.insert("type".into(), json!("object"));
    root.insert("properties".into(), json!({"result": inner}));
    root.insert("required".into(), json!(["result"]));
    Some(root)
}

fn references_hold(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .all(|(key, value)| match (key.as_str(), value) {
                ("$ref" | "$dynamicRef", Value::String(target)) => {
                    target.starts_with("#/$defs/") || target.starts_with("#/definitions/")
                }
                _ => references_hold(value),
            }),
        Value::Array(items) => items.iter().all(references_hold),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_schema_keeps_its_references() {
        let schema = json!({"type": "array", "items": {"$ref": "#/$defs/row"}, "$defs": {"row": {"type": "string"}}});
        let root = Value::Object(wrap_schema(&schema).unwrap());
        assert_eq!(root["properties"]["result"]["items"]["$ref"], "#/$defs/row");
        assert_eq!(root["$defs"]["row"]["type"], "string");
        assert!(wrap_schema(&json!({"type": "array", "items": {"$ref": "#"}})).is_none());
    }
}
