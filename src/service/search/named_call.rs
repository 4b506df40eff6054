//! `core:call-tool`: a call of the tool that its arguments name, for clients that are shown no list.
//! It is only another way to write that call: rights, limits and records are those of the tool.

use crate::base::json;
use crate::service::arguments::Arguments;
use crate::service::request::CallRequest;
use serde_json::Value;

const CALL_TOOL: &str = "core:call-tool";

/// The call that is meant. One that names no tool stays as it is, and is refused for that.
pub fn unwrap(request: &mut CallRequest) {
    if request.tool.split('@').next() != Some(CALL_TOOL) {
        return;
    }
    let named = match &request.arguments {
        Arguments::Value(value) => from_value(value),
        Arguments::Text(text) => from_text(text),
        Arguments::Strings(_) | Arguments::Inputs { .. } => None,
    };
    if let Some(NamedCall { tool, arguments }) = named {
        request.tool = match tool.contains(':') {
            true => tool,
            // As models know tools.
            false => tool.replacen("__", ":", 1),
        };
        request.arguments = arguments;
    }
}

struct NamedCall {
    tool: String,
    arguments: Arguments,
}

fn from_value(value: &Value) -> Option<NamedCall> {
    Some(NamedCall {
        tool: value["tool"].as_str()?.to_owned(),
        arguments: Arguments::Value(value.get("arguments")?.clone()),
    })
}

/// The arguments stay text: they are parsed at the cost of the call.
fn from_text(text: &str) -> Option<NamedCall> {
    let tool = json::member(text, "/tool")?;
    Some(NamedCall {
        tool: serde_json::from_str(tool).ok()?,
        arguments: Arguments::Text(json::member(text, "/arguments")?.to_owned()),
    })
}
