//! One outcome as an item of a response, and as what the model reads.

use super::call::ToolCall;
use super::ended::{Ended, Media};
use crate::manifest::ClientTool;
use crate::service::ClientCall;
use serde_json::{Value, json};

/// What a call is shown as.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A named tool that ran here.
    Call,
    /// Code that a model wrote.
    Code(String),
    /// The text of a final tool.
    Message,
    Image,
    /// A search for these texts.
    Search(Vec<String>),
}

impl Kind {
    /// The beginning of the ids of such items.
    fn prefix(&self) -> &'static str {
        match self {
            Kind::Call => "mcp",
            Kind::Code(_) => "ci",
            Kind::Message => "msg",
            Kind::Image => "ig",
            Kind::Search(_) => "fs",
        }
    }

    /// The id of the item of a call: unique, stable, and the call can be found by it.
    pub fn item_id(&self, call: &ToolCall) -> String {
        id_of(self.prefix(), call)
    }
}

/// The item of a call. `ended`: `None` while it runs.
pub fn item(call: &ToolCall, kind: &Kind, ended: Option<&Ended>) -> Value {
    let id = kind.item_id(call);
    let status = match ended {
        None => "in_progress",
        Some(ended) if ended.is_success => "completed",
        Some(_) if *kind == Kind::Message => "incomplete",
        Some(_) => "failed",
    };
    let mut item = match kind {
        Kind::Call => json!({"type": "mcp_call", "id": id, "server_label": "toolhost",
            "name": call.tool, "arguments": ended.map_or("", |_| &call.arguments),
            "output": null, "error": null, "approval_request_id": null}),
        Kind::Code(code) => json!({"type": "code_interpreter_call", "id": id,
            "container_id": call.id, "code": ended.map_or("", |_| code),
            "outputs": ended.map(code_outputs)}),
        // A message has its text already.
        Kind::Message => json!({"type": "message", "id": id, "role": "assistant", "content": []}),
        Kind::Image => json!({"type": "image_generation_call", "id": id, "result": null}),
        Kind::Search(queries) => json!({"type": "file_search_call", "id": id, "queries": queries,
            "results": null}),
    };
    item["status"] = json!(status);
    if let Some(ended) = ended {
        fill(&mut item, kind, ended);
        // Where the form has no place for the call itself, so that it can come back.
        if matches!(kind, Kind::Code(_) | Kind::Image | Kind::Search(_)) {
            item["tool_call"] = json!({"name": call.name, "arguments": call.arguments,
                "output": ended.text()});
        }
    }
    pass_on(call, &mut item);
    item
}

/// The item of a call that the client runs, which it is handed. `is_done`: it is whole.
pub fn client_item(call: &ToolCall, client: &ClientCall, is_done: bool) -> Value {
    let (kind, prefix) = match &client.what {
        ClientTool::Function => ("function_call", "fc"),
        ClientTool::Custom { .. } => ("custom_tool_call", "ctc"),
        ClientTool::LocalShell => ("local_shell_call", "lsh"),
        ClientTool::Shell => ("shell_call", "sh"),
        ClientTool::ToolSearch => ("tool_search_call", "tsc"),
    };
    let status = if is_done { "completed" } else { "in_progress" };
    let mut item = json!({"type": kind, "id": id_of(prefix, call), "call_id": call.call_id,
        "status": status});
    let whole = client_text(client).filter(|_| is_done).unwrap_or_default();
    match &client.what {
        ClientTool::Function => {
            item["name"] = json!(client.name);
            item["arguments"] = json!(whole);
        }
        ClientTool::Custom { .. } => {
            item["name"] = json!(client.name);
            item["input"] = json!(whole);
        }
        ClientTool::LocalShell => {
            item["action"] = json!({"type": "exec", "env": {}});
        }
        ClientTool::Shell => item["action"] = json!({}),
        ClientTool::ToolSearch => {
            item["execution"] = json!("client");
            item["arguments"] = json!(client.arguments);
        }
    }
    if let Some(action) = item.get_mut("action").and_then(Value::as_object_mut) {
        action.extend(client.arguments.clone());
        // The form has no name, but the model knows a tool of this host by one.
        if !client.name.is_empty() && client.name != kind.trim_end_matches("_call") {
            item["name"] = json!(client.name);
        }
    }
    pass_on(call, &mut item);
    item
}

/// Adds what came with the call and is nothing of this host's.
fn pass_on(call: &ToolCall, item: &mut Value) {
    if let Some(members) = item.as_object_mut() {
        for (name, value) in &call.passed_on {
            members.entry(name).or_insert_with(|| value.clone());
        }
    }
}

/// The text of the item that is sent in pieces.
pub fn client_text(client: &ClientCall) -> Option<String> {
    match &client.what {
        ClientTool::Function => Some(Value::from(client.arguments.clone()).to_string()),
        ClientTool::Custom { .. } => Some(client.input().to_owned()),
        ClientTool::LocalShell | ClientTool::Shell | ClientTool::ToolSearch => None,
    }
}

fn id_of(prefix: &str, call: &ToolCall) -> String {
    let plain: String = call.id.chars().filter(|c| *c != '-').collect();
    format!("{prefix}_{plain}")
}

/// Adds what a call ended with.
fn fill(item: &mut Value, kind: &Kind, ended: &Ended) {
    if !ended.is_success && matches!(kind, Kind::Call | Kind::Image | Kind::Search(_)) {
        let mut error = json!({"type": "mcp_tool_execution_error"});
        match kind {
            Kind::Image => error["message"] = json!(ended.text()),
            _ => error["content"] = json!([{"type": "text", "text": ended.text()}]),
        }
        item["error"] = error;
        return;
    }
    match kind {
        Kind::Call => item["output"] = json!(ended.text()),
        Kind::Search(_) => item["results"] = Value::Array(search_results(ended)),
        // Inline where nothing is stored, else where it is found here.
        Kind::Image => match (ended.stored_pictures.first(), first_image(ended)) {
            (Some(path), _) => item["url"] = json!(path),
            (None, image) => item["result"] = json!(image),
        },
        Kind::Code(_) | Kind::Message => {}
    }
}

fn first_image(ended: &Ended) -> Option<&str> {
    ended.media.iter().find_map(|media| match media {
        Media::Image { data, .. } => Some(data.as_str()),
        _ => None,
    })
}

fn code_outputs(ended: &Ended) -> Vec<Value> {
    let media = ended.media.iter().map(|media| match media {
        Media::Image { media_type, data } => {
            json!({"type": "image", "url": data_url(media_type, data)})
        }
        Media::Text(text) => json!({"type": "logs", "logs": text}),
        file @ Media::File { .. } => json!({"type": "logs", "logs": file.in_words()}),
    });
    let stored = ended.stored_pictures.iter();
    media
        .chain(stored.map(|path| json!({"type": "image", "url": path})))
        .collect()
}

fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}

/// The results of a search: the objects with a `text` in the answer, a list or its member
/// `results`.
fn search_results(ended: &Ended) -> Vec<Value> {
    let answer = ended.value().unwrap_or_default();
    let list = answer.get("results").unwrap_or(&answer).as_array();
    let found = list.into_iter().flatten().filter_map(|one| {
        let text = one["text"].as_str()?;
        let word = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        let attributes = one["attributes"].as_object().cloned().unwrap_or_default();
        Some(
            json!({"file_id": word("file_id"), "filename": word("filename"),
            "score": one["score"].as_f64().unwrap_or_default(), "text": text,
            "attributes": attributes}),
        )
    });
    found.collect()
}

/// What the model reads of a call, in the form that fits its own; the output is a text, or a list
/// where there are media. Of the calls of a shell only those that were refused have one from here.
pub fn function_output(call: &ToolCall, ended: &Ended) -> Value {
    let is_text = ended
        .media
        .iter()
        .all(|media| matches!(media, Media::Text(_)));
    let output = if is_text {
        json!(ended.text())
    } else {
        ended.media.iter().map(input_part).collect()
    };
    let id = &call.call_id;
    let mut item = match call.form {
        ClientTool::Function | ClientTool::ToolSearch => {
            json!({"type": "function_call_output", "call_id": id, "output": output})
        }
        ClientTool::Custom { .. } => {
            json!({"type": "custom_tool_call_output", "call_id": id, "output": output})
        }
        ClientTool::LocalShell => {
            json!({"type": "local_shell_call_output", "id": id, "output": output})
        }
        ClientTool::Shell => {
            let refused = json!({"stdout": "", "stderr": ended.text(), "outcome": {"type": "exit", "exit_code": 1}});
            json!({"type": "shell_call_output", "call_id": id, "output": [refused]})
        }
    };
    if let Some(caller) = call.passed_on.get("caller") {
        item["caller"] = caller.clone();
    }
    item
}

fn input_part(media: &Media) -> Value {
    match media {
        Media::Text(text) => json!({"type": "input_text", "text": text}),
        Media::Image { media_type, data } => {
            json!({"type": "input_image", "image_url": data_url(media_type, data),
                "detail": "auto"})
        }
        Media::File {
            name,
            media_type,
            data,
        } => json!({"type": "input_file", "filename": name,
            "file_data": data_url(media_type, data)}),
    }
}
