//! Items of a request as messages of Chat Completions, the one API that every compatible server
//! speaks. No URL is fetched, and none is handed on: whoever fetched it would do so from here.

use super::chat::ModelCall;
use crate::base::text;
use crate::fault::{Fault, Kind};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fmt;
use uuid::Uuid;

/// What the model reads of a tool that said nothing.
const NO_OUTPUT: &str = "(the tool gave no output)";
/// What it reads of a call whose item has no result.
const CUT_OFF: &str = "(the call was cut off: it may have run, and its result is not known)";
/// What stands in the text of an output for a picture or a file.
const FOLLOWS: &str = "[it follows in the next message]";
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

/// One item of a request, read by the form of its type.
enum Item<'a> {
    Message(Value),
    Call(PastCall<'a>),
    Output(PastOutput<'a>),
    Silent,
}

/// A call in a list of items, as its model wrote it.
struct PastCall<'a> {
    /// The type of its item.
    kind: &'a str,
    call: ModelCall,
    /// `None`: an item of its own has it.
    result: Option<Said>,
}

/// The output of a call that the client ran.
struct PastOutput<'a> {
    kind: &'a str,
    call_id: String,
    said: Said,
}

/// What a call ended with.
struct Said {
    text: String,
    /// Pictures and files, as parts of a message.
    media: Vec<Value>,
}

impl From<String> for Said {
    fn from(text: String) -> Said {
        Said {
            text,
            media: Vec::new(),
        }
    }
}

/// Calls that stand beside each other, and what those of the client were answered.
#[derive(Default)]
struct PastTurn<'a> {
    calls: Vec<PastCall<'a>>,
    /// Those that have no output yet: the place of each by its id.
    open: HashMap<String, usize>,
    /// The ids of all calls of the client until now, also in earlier turns.
    known: HashSet<String>,
}

fn refuse(member: &str, why: impl fmt::Display) -> Fault {
    Fault::new(Kind::ParameterValidationError, format!("{member}: {why}"))
}

impl<'a> PastTurn<'a> {
    fn add(&mut self, call: PastCall<'a>) -> Result<(), Fault> {
        if call.result.is_none() {
            let id = &call.call.id;
            if !self.known.insert(id.clone()) {
                let why = format!("Two calls have the call_id {id}: each needs its own.");
                return Err(refuse("input", why));
            }
            self.open.insert(id.clone(), self.calls.len());
        }
        self.calls.push(call);
        Ok(())
    }

    fn answer(&mut self, at: &str, output: PastOutput) -> Result<(), Fault> {
        let id = &output.call_id;
        let place = self.open.remove(id);
        let Some(call) = place.and_then(|place| self.calls.get_mut(place)) else {
            let why = if self.known.contains(id) {
                format!("The call {id} has an output already.")
            } else {
                format!(
                    "No tool call found for function call output with call_id {id}. An output \
                     comes after its call."
                )
            };
            return Err(refuse(&format!("{at}.call_id"), why));
        };
        if output.kind.strip_suffix("_output") != Some(call.kind) {
            let why = format!("The output of the call {id} is a {}_output.", call.kind);
            return Err(refuse(&format!("{at}.type"), why));
        }
        call.result = Some(output.said);
        Ok(())
    }
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
        let mut turn = PastTurn::default();
        for (at, item) in items.iter().enumerate() {
            let at = format!("input[{at}]");
            match Item::read(&at, item, &name_of)? {
                Item::Call(call) => turn.add(call)?,
                Item::Output(output) => turn.answer(&at, output)?,
                Item::Silent => {}
                Item::Message(message) => {
                    conversation.close(&mut turn)?;
                    conversation.push(message);
                }
            }
        }
        conversation.close(&mut turn)?;
        Ok(conversation)
    }

    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    fn push(&mut self, message: Value) {
        self.messages.push(message);
    }

    /// Adds the calls as one turn of the model, and what each ended with. Only texts can stand in a
    /// message of a tool: pictures and files follow in one of the user.
    fn close(&mut self, turn: &mut PastTurn) -> Result<(), Fault> {
        if let Some((id, _)) = turn.open.iter().min_by_key(|(_, place)| **place) {
            let why = format!(
                "No tool output found for function call {id}. It comes after the calls, before \
                 any message."
            );
            return Err(refuse("input", why));
        }
        let (mut made, mut media) = (Vec::new(), Vec::new());
        for PastCall { call, result, .. } in turn.calls.drain(..) {
            let Some(said) = result else { continue };
            if !said.media.is_empty() {
                let words = format!("From the output of the call {}:", call.id);
                media.push(json!({"type": "text", "text": words}));
                media.extend(said.media);
            }
            made.push((call, said.text));
        }
        if !made.is_empty() {
            self.add_calls("", &made);
        }
        if !media.is_empty() {
            self.push(json!({"role": "user", "content": media}));
        }
        Ok(())
    }

    /// Adds a turn of the model that asked for calls, each with what it reads of it.
    pub fn add_calls(&mut self, text: &str, calls: &[(ModelCall, String)]) {
        let asked = calls.iter().map(|(call, _)| {
            // Some servers read them as JSON.
            let arguments = Some(call.arguments.as_str()).filter(|text| !text.is_empty());
            json!({"id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": arguments.unwrap_or("{}")}})
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
    let mut outputs = HashMap::new();
    for (at, item) in input.iter().enumerate() {
        if let Item::Output(output) = Item::read(&format!("input[{at}]"), item, &str::to_owned)? {
            outputs.insert(output.call_id, output.said.text);
        }
    }
    let calls = before.iter().filter_map(|item| {
        // The id of an item ends with that of its call.
        let (_, id) = item["id"].as_str()?.rsplit_once('_')?;
        let id = Uuid::try_parse(id).ok()?;
        let Item::Call(PastCall { call, .. }) = Item::read("", item, &str::to_owned).ok()? else {
            return None;
        };
        Some(SubmittedOutput {
            call: id.to_string(),
            output: outputs.remove(&call.id)?,
            tool: call.name,
        })
    });
    Ok(calls.collect())
}

/// An object of a request. Its errors name the member.
struct Members<'a> {
    at: String,
    object: &'a Value,
}

impl<'a> Members<'a> {
    fn of(at: String, object: &'a Value) -> Result<Members<'a>, Fault> {
        match object {
            Value::Object(_) => Ok(Members { at, object }),
            _ => Err(refuse(&at, "must be an object")),
        }
    }

    fn wrong(&self, name: &str, why: impl fmt::Display) -> Fault {
        refuse(&format!("{}.{name}", self.at), why)
    }

    /// A member that is there and not null.
    fn given(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<&'a str, Fault> {
        let text = self.given(name).and_then(Value::as_str);
        text.ok_or_else(|| self.wrong(name, "must be a text"))
    }

    /// An id or a name.
    fn word(&self, name: &str) -> Result<String, Fault> {
        match self.text(name)? {
            "" => Err(self.wrong(name, "must not be empty")),
            word => Ok(word.to_owned()),
        }
    }

    fn object(&self, name: &str) -> Result<Members<'a>, Fault> {
        let value = self.object.get(name).unwrap_or(&Value::Null);
        Members::of(format!("{}.{name}", self.at), value)
    }

    /// A text, or a list of parts, as the content of a message.
    fn content(&self, name: &str) -> Result<Value, Fault> {
        match self.given(name) {
            Some(text @ Value::String(_)) => Ok(text.clone()),
            Some(Value::Array(parts)) => {
                let parts = parts.iter().enumerate().map(|(at, part)| {
                    content_part(&Members::of(format!("{}.{name}[{at}]", self.at), part)?)
                });
                parts.collect()
            }
            _ => Err(self.wrong(name, "must be a text or a list of parts")),
        }
    }
}

impl<'a> Item<'a> {
    fn read(
        at: &str,
        item: &'a Value,
        name_of: &impl Fn(&str) -> String,
    ) -> Result<Item<'a>, Fault> {
        let item = Members::of(at.to_owned(), item)?;
        let kind = match item.given("type") {
            None => "message",
            Some(_) => item.text("type")?,
        };
        Ok(match kind {
            "message" => Item::Message(message(&item)?),
            "function_call" | "custom_tool_call" | "local_shell_call" | "shell_call" => {
                Item::Call(client_call(kind, &item)?)
            }
            "mcp_call" => Item::Call(host_call(kind, &item, name_of)?),
            "code_interpreter_call" | "image_generation_call" | "file_search_call" => {
                Item::Call(shown_call(kind, &item)?)
            }
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "shell_call_output" => Item::Output(output(kind, &item)?),
            kind if PASSED_OVER.contains(&kind) => Item::Silent,
            other => {
                let other = text::printable(&text::head(other, 80));
                let why = format!("'{other}' is not an item that can be used here");
                return Err(item.wrong("type", why));
            }
        })
    }
}

/// A call that the client runs.
fn client_call<'a>(kind: &'a str, item: &Members) -> Result<PastCall<'a>, Fault> {
    let (name, arguments) = match kind {
        "function_call" => (item.word("name")?, item.text("arguments")?.to_owned()),
        "custom_tool_call" => {
            let input = json!({"input_data": item.text("input")?});
            (item.word("name")?, input.to_string())
        }
        shell => {
            let mut action = item.object("action")?.object.clone();
            if let Some(action) = action.as_object_mut() {
                action.remove("type");
            }
            let name = match item.given("name") {
                Some(_) => item.word("name")?,
                None => shell.trim_end_matches("_call").to_owned(),
            };
            (name, action.to_string())
        }
    };
    let id = item.word("call_id")?;
    Ok(PastCall {
        kind,
        call: ModelCall {
            id,
            name,
            arguments,
        },
        result: None,
    })
}

/// A call that ran here.
fn host_call<'a>(
    kind: &'a str,
    item: &Members,
    name_of: &impl Fn(&str) -> String,
) -> Result<PastCall<'a>, Fault> {
    let said = match (item.given("output"), item.given("error")) {
        (Some(_), _) => item.text("output")?.to_owned(),
        (None, Some(error)) => error_text(error),
        (None, None) => CUT_OFF.to_owned(),
    };
    Ok(PastCall {
        kind,
        call: ModelCall {
            id: item.word("id")?,
            name: name_of(item.text("name")?),
            arguments: item.text("arguments")?.to_owned(),
        },
        result: Some(said.into()),
    })
}

/// The texts of an error, or all of it where it has another form.
fn error_text(error: &Value) -> String {
    let parts = error["content"].as_array().into_iter().flatten();
    let texts: Option<Vec<&str>> = parts.map(|part| part["text"].as_str()).collect();
    match (error, texts) {
        (Value::String(text), _) => text.clone(),
        (_, Some(texts)) if !texts.is_empty() => texts.join("\n"),
        (other, _) => other.to_string(),
    }
}

/// A call that ran here and is shown as something else. One that was cut off has nothing of it.
fn shown_call<'a>(kind: &'a str, item: &Members) -> Result<PastCall<'a>, Fault> {
    let id = item.word("id")?;
    let is_cut_off = item.object["status"] == "incomplete" && item.given("tool_call").is_none();
    let (name, arguments, said) = if is_cut_off {
        let name = kind.trim_end_matches("_call").to_owned();
        (name, String::new(), CUT_OFF)
    } else {
        let made = item.object("tool_call")?;
        let arguments = made.text("arguments")?.to_owned();
        (made.word("name")?, arguments, made.text("output")?)
    };
    Ok(PastCall {
        kind,
        call: ModelCall {
            id,
            name,
            arguments,
        },
        result: Some(said.to_owned().into()),
    })
}

fn output<'a>(kind: &'a str, item: &Members) -> Result<PastOutput<'a>, Fault> {
    let id = match kind {
        // This item has the id of the call as its own.
        "local_shell_call_output" if item.given("call_id").is_none() => "id",
        _ => "call_id",
    };
    let said = match (kind, item.given("output")) {
        // What each command printed and how it ended.
        ("shell_call_output", Some(list @ Value::Array(_))) => list.to_string().into(),
        _ => said(item.content("output")?),
    };
    Ok(PastOutput {
        kind,
        call_id: item.word(id)?,
        said,
    })
}

/// A content as the output of a tool.
fn said(content: Value) -> Said {
    let Value::Array(parts) = content else {
        return content.as_str().unwrap_or_default().to_owned().into();
    };
    let texts = parts
        .iter()
        .map(|part| part["text"].as_str().unwrap_or(FOLLOWS));
    Said {
        text: texts.collect::<Vec<_>>().join("\n"),
        media: parts
            .into_iter()
            .filter(|part| part["type"] != "text")
            .collect(),
    }
}

fn message(item: &Members) -> Result<Value, Fault> {
    let role = match item.object["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        Some("developer") => "system",
        _ => {
            let why = "must be user, assistant, system or developer";
            return Err(item.wrong("role", why));
        }
    };
    let content = match item.content("content")? {
        Value::Array(parts) => one_text(parts),
        text => text,
    };
    Ok(json!({"role": role, "content": content}))
}

/// Texts alone are one text: not every server takes a list.
fn one_text(parts: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    match texts {
        Some(texts) => json!(texts.join("\n")),
        None => Value::Array(parts),
    }
}

fn content_part(part: &Members) -> Result<Value, Fault> {
    let data = |name: &str| {
        let url = part.object[name].as_str();
        let url = url.filter(|url| url.starts_with("data:"));
        let why = "send the data itself, as data:…;base64,…: no URL and no id is fetched";
        url.ok_or_else(|| part.wrong(name, why))
    };
    match part.object["type"].as_str() {
        Some("input_text" | "output_text" | "text") => {
            Ok(json!({"type": "text", "text": part.text("text")?}))
        }
        Some("refusal") => Ok(json!({"type": "text", "text": part.text("refusal")?})),
        Some("input_image") => {
            Ok(json!({"type": "image_url", "image_url": {"url": data("image_url")?}}))
        }
        Some("input_file") => {
            let name = match part.given("filename") {
                None => None,
                Some(_) => Some(part.text("filename")?),
            };
            let data = data("file_data")?;
            Ok(json!({"type": "file", "file": {"filename": name, "file_data": data}}))
        }
        _ => {
            let why = "must be input_text, input_image, input_file, output_text or refusal";
            Err(part.wrong("type", why))
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
