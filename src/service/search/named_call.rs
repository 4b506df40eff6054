//! `core:call-tool`: a call of the tool that its arguments name, for MCP clients that are shown no
//! list. It is only another way to write that call: rights, limits and records are those of the tool.

use crate::base::json;
use crate::executor::CallDeadline;
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::arguments::Arguments;
use crate::service::request::CallRequest;
use serde_json::Value;

const CALL_TOOL: &str = "core:call-tool";

struct NamedCall {
    tool: String,
    arguments: Arguments,
}

/// The call that is meant, before anybody looks at its tool. One that names no tool stays as it is,
/// and is refused for that.
pub async fn unwrap(request: &mut CallRequest) {
    if request.tool.split('@').next() != Some(CALL_TOOL) {
        return;
    }
    let arguments = std::mem::take(&mut request.arguments);
    let is_long = matches!(&arguments, Arguments::Text(text) if text.len() > LARGE_TEXT_BYTES);
    let deadline = CallDeadline::usual(&request.caller.user, request.timeout_ms);
    match deadline.run(is_long, move || read(arguments)).await {
        Ok(Ok(NamedCall { tool, arguments })) => {
            request.tool = match tool.contains(':') {
                true => tool,
                // As models know tools.
                false => tool.replacen("__", ":", 1),
            };
            request.arguments = arguments;
        }
        Ok(Err(unnamed)) => request.arguments = unnamed,
        Err(fault) => request.refused = Some(fault),
    }
}

/// The arguments as they were, if they name no tool.
fn read(arguments: Arguments) -> Result<NamedCall, Arguments> {
    let named = match &arguments {
        Arguments::Text(text) => from_text(text),
        Arguments::Value(value) => from_value(value),
        Arguments::Strings(_) | Arguments::Inputs { .. } => None,
    };
    named.ok_or(arguments)
}

/// Models write the arguments as an object, or as its JSON text.
fn from_value(value: &Value) -> Option<NamedCall> {
    Some(NamedCall {
        tool: value["tool"].as_str()?.to_owned(),
        arguments: match value.get("arguments")? {
            Value::String(text) => Arguments::Text(text.clone()),
            given => Arguments::Value(given.clone()),
        },
    })
}

fn from_text(text: &str) -> Option<NamedCall> {
    let tool = json::member(text, "/tool")?;
    let arguments = json::member(text, "/arguments")?;
    let unquoted = serde_json::from_str::<String>(arguments);
    Some(NamedCall {
        tool: serde_json::from_str(tool).ok()?,
        arguments: Arguments::Text(unquoted.unwrap_or_else(|_| arguments.to_owned())),
    })
}
