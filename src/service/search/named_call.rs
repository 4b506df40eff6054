//! `core:call-tool`: a call of the tool that its arguments name, for MCP clients that are shown no
//! list; and `core:run-skill-script`: a call of the tool that stands for the skill. Both are only
//! another way to write that call: rights, limits and records are those of the tool.

use crate::base::json;
use crate::executor::CallDeadline;
use crate::manifest::skill::{NAMESPACE, RUN_SCRIPT};
use crate::quantity::LARGE_TEXT_BYTES;
use crate::service::arguments::Arguments;
use crate::service::catalog::Catalog;
use crate::service::request::CallRequest;
use serde_json::Value;

const CALL_TOOL: &str = "core:call-tool";

struct NamedCall {
    tool: String,
    arguments: Arguments,
}

/// The call that is meant, before anybody looks at its tool. One that names no tool, or comes by a
/// name that the operator disabled, stays as it is, and is refused for that.
pub async fn unwrap(request: &mut CallRequest, catalog: &Catalog) {
    unwrap_as(CALL_TOOL, read, request, catalog).await;
}

/// The same for a script of a skill.
pub async fn unwrap_skill(request: &mut CallRequest, catalog: &Catalog) {
    unwrap_as(RUN_SCRIPT, read_skill, request, catalog).await;
}

/// What a call means, or its arguments as they were.
type Read = fn(Arguments) -> Result<NamedCall, Arguments>;

async fn unwrap_as(id: &str, read: Read, request: &mut CallRequest, catalog: &Catalog) {
    let is_stopped = || !matches!(catalog.stops.now(), Ok(all) if all.of(id).next().is_none());
    if request.tool.split('@').next() != Some(id) || is_stopped() {
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

/// The other arguments are those of the skill's tool, too.
fn read_skill(arguments: Arguments) -> Result<NamedCall, Arguments> {
    let skill = match &arguments {
        Arguments::Value(value) | Arguments::Inputs { texts: value, .. } => {
            value["skill"].as_str().map(str::to_owned)
        }
        Arguments::Text(text) => {
            json::member(text, "/skill").and_then(|name| serde_json::from_str(name).ok())
        }
        Arguments::Strings(pairs) => pairs.get("skill").cloned(),
    };
    match skill {
        Some(skill) => Ok(NamedCall {
            // A name has no version in it, and no tool has this one.
            tool: format!("{NAMESPACE}:{}", skill.replace('@', "?")),
            arguments,
        }),
        None => Err(arguments),
    }
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
