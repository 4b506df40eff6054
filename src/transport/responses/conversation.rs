//! Items of a request as messages of Chat Completions, the one API that every compatible server
//! speaks. No URL is fetched, and none is handed on: whoever fetched it would do so from here.

use super::chat::ModelCall;
use crate::fault::{Fault, Kind};
use serde_json::{Value, json};
use std::collections::HashMap;
use uuid::Uuid;

/// What the model reads of a tool that said nothing.
const NO_OUTPUT: &str = "(the tool gave no output)";
/// Items that say nothing to the model.
const PASSED_OVER: [&str; 8] = [
    "reasoning",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "program",
    "program_output",
    "tool_search_call",
    "tool_search_output",
];

/// What was said until now.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Value>,
}

/// A call in a list of items, as its model wrote it.
struct PastCall {
    id: String,
    name: String,
    arguments: String,
    /// Where the item has it.
    output: Option<String>,
}

fn refuse(member: &str, why: impl std::fmt::Display) -> Fault {
    Fault::new(Kind::ParameterValidationError, format!("{member}: {why}"))
}

impl Conversation {
    /// `name_of`: the name by which the model knows a tool of this host.
    pub fn read(
        instructions: Option<&str>,
        items: &[Value],
        name_of: impl Fn(&str) -> String,
    ) -> Result<Conversation, Fault> {
        let mut conversation = Conversation::default();
        if let Some(text) = instructions {
            conversation.push(json!({"role": "system", "content": text}));
        }
        let mut outputs = outputs(items)?;
        let mut calls = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let member = format!("input[{at}]");
            match call(item, &name_of) {
                Some(call) => calls.push(call),
                None if is_output(item) || is_passed_over(item) => {}
                None => {
                    conversation.close_calls(&mut calls, &mut outputs)?;
                    conversation.push(message(&member, item)?);
                }
            }
        }
        conversation.close_calls(&mut calls, &mut outputs)?;
        match outputs.keys().min() {
            Some(id) => Err(refuse(
                "input",
                format!("No tool call found for function call output with call_id {id}."),
            )),
            None => Ok(conversation),
        }
    }

    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    fn push(&mut self, message: Value) {
        self.messages.push(message);
    }

    /// Adds calls that stand beside each other as one turn of the model, and what each ended with.
    fn close_calls(
        &mut self,
        calls: &mut Vec<PastCall>,
        outputs: &mut HashMap<String, String>,
    ) -> Result<(), Fault> {
        let mut made = Vec::new();
        for call in calls.drain(..) {
            let output = match call.output {
                Some(output) => output,
                None => outputs.remove(&call.id).ok_or_else(|| {
                    let words = format!("No tool output found for function call {}.", call.id);
                    refuse("input", words)
                })?,
            };
            let (id, name, arguments) = (call.id, call.name, call.arguments);
            made.push((
                ModelCall {
                    id,
                    name,
                    arguments,
                },
                output,
            ));
        }
        if !made.is_empty() {
            self.add_calls("", &made);
        }
        Ok(())
    }

    /// Adds a turn of the model that asked for calls, each with what it reads of it.
    pub fn add_calls(&mut self, text: &str, calls: &[(ModelCall, String)]) {
        let asked = calls.iter().map(|(call, _)| {
            json!({"id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}})
        });
        let asked: Value = asked.collect();
        match self.messages.last_mut() {
            // Some servers refuse two messages of the model in a row.
            Some(last)
                if text.is_empty()
                    && last["role"] == "assistant"
                    && last.get("tool_calls").is_none() =>
            {
                last["tool_calls"] = asked;
            }
            _ => {
                let content = Some(text).filter(|text| !text.is_empty());
                self.push(json!({"role": "assistant", "content": content, "tool_calls": asked}));
            }
        }
        for (call, output) in calls {
            let output = if output.trim().is_empty() {
                NO_OUTPUT
            } else {
                output
            };
            self.push(json!({"role": "tool", "tool_call_id": call.id, "content": output}));
        }
    }
}

fn kind(item: &Value) -> &str {
    item["type"].as_str().unwrap_or("message")
}

fn is_output(item: &Value) -> bool {
    kind(item).ends_with("_call_output")
}

fn is_passed_over(item: &Value) -> bool {
    PASSED_OVER.contains(&kind(item))
}

/// The output of a call that a client ran.
pub struct SubmittedOutput {
    /// The id of the call here.
    pub call: String,
    /// As the model knows it.
    pub tool: String,
    pub output: String,
}

/// The outputs in a request of calls in what it continues.
pub fn submitted(before: &[Value], input: &[Value]) -> Result<Vec<SubmittedOutput>, Fault> {
    let mut outputs = outputs(input)?;
    let calls = before.iter().filter_map(|item| {
        // The id of an item ends with that of its call.
        let (_, id) = item["id"].as_str()?.rsplit_once('_')?;
        let id = Uuid::try_parse(id).ok()?;
        let call = call(item, str::to_owned)?;
        Some(SubmittedOutput {
            call: id.to_string(),
            output: outputs.remove(&call.id)?,
            tool: call.name,
        })
    });
    Ok(calls.collect())
}

/// The outputs of calls that the client ran, by the ids of the calls.
fn outputs(items: &[Value]) -> Result<HashMap<String, String>, Fault> {
    let mut found = HashMap::new();
    for (at, item) in items.iter().enumerate().filter(|(_, item)| is_output(item)) {
        // The item of a local shell has the id of the call as its own.
        let id = item["call_id"].as_str().or(item["id"].as_str());
        let id = id.ok_or_else(|| refuse(&format!("input[{at}].call_id"), "must be a text"))?;
        let text = output_text(&item["output"]);
        if found.insert(id.to_owned(), text).is_some() {
            let why = "this call has an output already";
            return Err(refuse(&format!("input[{at}].call_id"), why));
        }
    }
    Ok(found)
}

/// An output as text: only texts can stand in a message of a tool.
fn output_text(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(|part| part["type"].is_string()) => {
            let texts = parts.iter().map(|part| {
                let kind = part["type"].as_str().unwrap_or_default();
                let text = part["text"].as_str().map(str::to_owned);
                text.unwrap_or_else(|| format!("[{kind}]"))
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// The call that an item is.
fn call(item: &Value, name_of: impl Fn(&str) -> String) -> Option<PastCall> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_client = |name: &str, arguments: String| PastCall {
        id: word(&item["call_id"]),
        name: name.to_owned(),
        arguments,
        output: None,
    };
    let mut action = item["action"].clone();
    if let Some(action) = action.as_object_mut() {
        action.remove("type");
    }
    Some(match kind(item) {
        "function_call" => of_client(&word(&item["name"]), word(&item["arguments"])),
        "custom_tool_call" => {
            let input = json!({"input_data": item["input"]});
            of_client(&word(&item["name"]), input.to_string())
        }
        "local_shell_call" => of_client("local_shell", action.to_string()),
        "shell_call" => of_client("shell", action.to_string()),
        "mcp_call" => PastCall {
            id: word(&item["id"]),
            name: name_of(&word(&item["name"])),
            arguments: word(&item["arguments"]),
            output: Some(match &item["output"] {
                Value::String(text) => text.clone(),
                _ => output_text(&item["error"]["content"]),
            }),
        },
        // Of a call that is shown as something else.
        _ => {
            let made = item.get("tool_call")?;
            PastCall {
                id: word(&item["id"]),
                name: word(&made["name"]),
                arguments: word(&made["arguments"]),
                output: Some(word(&made["output"])),
            }
        }
    })
}

fn message(member: &str, item: &Value) -> Result<Value, Fault> {
    if kind(item) != "message" {
        let kind = crate::base::text::printable(&crate::base::text::head(kind(item), 80));
        let why = format!("'{kind}' is not an item that can be used here");
        return Err(refuse(&format!("{member}.type"), why));
    }
    let role = match item["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        Some("developer") => "system",
        _ => {
            let why = "must be user, assistant, system or developer";
            return Err(refuse(&format!("{member}.role"), why));
        }
    };
    let content = match &item["content"] {
        Value::String(text) => json!(text),
        Value::Array(parts) => {
            let parts = parts
                .iter()
                .enumerate()
                .map(|(at, part)| content_part(&format!("{member}.content[{at}]"), part));
            let parts = parts.collect::<Result<Vec<Value>, Fault>>()?;
            content(parts)
        }
        _ => {
            let why = "must be a text or a list of parts";
            return Err(refuse(&format!("{member}.content"), why));
        }
    };
    Ok(json!({"role": role, "content": content}))
}

/// Texts alone are one text: not every server takes a list.
fn content(parts: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    match texts {
        Some(texts) => json!(texts.join("\n")),
        None => Value::Array(parts),
    }
}

fn content_part(member: &str, part: &Value) -> Result<Value, Fault> {
    let data = |name: &str| {
        let url = part[name].as_str().filter(|url| url.starts_with("data:"));
        let why = "send the data itself, as data:…;base64,…: no URL and no id is fetched";
        url.ok_or_else(|| refuse(&format!("{member}.{name}"), why))
    };
    let text = |name: &str| {
        let text = part[name].as_str();
        text.ok_or_else(|| refuse(&format!("{member}.{name}"), "must be a text"))
    };
    match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => {
            Ok(json!({"type": "text", "text": text("text")?}))
        }
        Some("refusal") => Ok(json!({"type": "text", "text": text("refusal")?})),
        Some("input_image") => {
            Ok(json!({"type": "image_url", "image_url": {"url": data("image_url")?}}))
        }
        Some("input_file") => {
            let name = match part.get("filename") {
                None | Some(Value::Null) => None,
                Some(_) => Some(text("filename")?),
            };
            let data = data("file_data")?;
            Ok(json!({"type": "file", "file": {"filename": name, "file_data": data}}))
        }
        _ => {
            let why = "must be input_text, input_image, input_file, output_text or refusal";
            Err(refuse(&format!("{member}.type"), why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value) -> Result<Vec<Value>, String> {
        let name_of = |id: &str| id.replace(':', "__");
        Conversation::read(None, input.as_array().expect("items"), name_of)
            .map(|read| read.messages)
            .map_err(|fault| fault.message)
    }

    #[test]
    fn items_become_messages_and_calls_stand_with_their_outputs() {
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let output =
            |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "1"});
        let asked = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let answered = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "1"});
        let said = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]});
        let all = json!([{"role": "user", "content": "go"}, said, call("a"), call("b"), {"type": "reasoning", "id": "r"},
            output("b"), output("a")]);
        assert_eq!(
            read(all),
            Ok(vec![
                json!({"role": "user", "content": "go"}),
                json!({"role": "assistant", "content": "hm", "tool_calls": [asked("a"), asked("b")]}),
                answered("a"),
                answered("b"),
            ])
        );
        let ran = json!({"type": "mcp_call", "id": "mcp_1", "name": "t:x", "arguments": "{}", "output": ""});
        let messages = read(json!([ran])).expect("read");
        assert_eq!(
            (
                &messages[0]["tool_calls"][0]["function"]["name"],
                &messages[1]["content"]
            ),
            (&json!("t__x"), &json!(NO_OUTPUT))
        );
        for (input, why) in [
            (
                json!([call("a")]),
                "No tool output found for function call a.",
            ),
            (
                json!([output("a")]),
                "No tool call found for function call output with call_id a.",
            ),
            (
                json!([call("a"), output("a"), output("a")]),
                "input[2].call_id",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_image", "image_url": "http://h/x"}]}]),
                "input[0].content[0].image_url: send the data itself",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_file", "file_url": "http://h/x"}]}]),
                "input[0].content[0].file_data",
            ),
            (
                json!([{"type": "item_reference", "id": "x"}]),
                "input[0].type: 'item_reference'",
            ),
            (json!([{"role": "tool", "content": "x"}]), "input[0].role"),
            (
                json!([{"role": "user", "content": [{"type": "refusal", "refusal": {"type": "image_url"}}]}]),
                "input[0].content[0].refusal: must be a text",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_file", "filename": {}, "file_data": "data:,"}]}]),
                "input[0].content[0].filename: must be a text",
            ),
        ] {
            let said = read(input).expect_err(why);
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
