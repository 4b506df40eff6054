//! Typed stubs of the tools that code may call, for whoever writes or checks that code. The shims in
//! `runtimes` make functions of these names.

use crate::base::text::head;
use crate::manifest::{Language, Manifest};
use crate::registry::Tool;
use crate::{policy, runtimes};
use serde_json::Value;
use std::sync::Arc;

/// Longest description of a tool, characters.
const DESCRIPTION: usize = 300;

/// One function for each tool. A name that two tools would share is nobody's.
pub fn stubs(language: Language, tools: &[Arc<Tool>]) -> String {
    let names: Vec<String> = tools.iter().map(|tool| name(&tool.manifest.id)).collect();
    let own = tools.iter().zip(&names);
    let own = own.filter(|(_, name)| names.iter().filter(|it| it == name).count() == 1);
    let functions = own.map(|(tool, name)| function(language, name, &tool.manifest));
    let start = match language {
        Language::Python => "from typing import Any\n\n",
        _ => "",
    };
    start.to_owned() + &functions.collect::<Vec<_>>().join("\n")
}

/// Whether source text that may call no tool still runs like one that may: to await at its top, or
/// to read why it may not. (A ready process allows the first.)
pub(super) fn wants_shim(confinement: &policy::Confinement) -> bool {
    let shape = &confinement.shape;
    let text = confinement.per_call.source.as_deref().unwrap_or_default();
    let awaits = shape.ready.is_none() && text.contains("await");
    let has_shim = runtimes::calls_shim(shape.runtime.language).is_some();
    has_shim && (awaits || text.contains("toolhost"))
}

/// Whether code knows the function of this tool by that name: by its id, or by the name that models
/// know.
pub(super) fn is_function_of(id: &str, function: &str) -> bool {
    [name(id), name(&id.replacen(':', "__", 1))].contains(&function.to_owned())
}

fn name(id: &str) -> String {
    let name = id.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("_{name}")
    } else {
        name
    }
}

fn function(language: Language, name: &str, manifest: &Manifest) -> String {
    let schema = manifest.parameters.as_ref().map(|schema| &schema.raw);
    let properties = schema.and_then(|schema| schema["properties"].as_object());
    let is_required = |name: &str| {
        let required = schema.and_then(|schema| schema["required"].as_array());
        required.is_some_and(|required| required.iter().any(|it| it == name))
    };
    let is_python = language == Language::Python;
    let parameters = properties.into_iter().flatten();
    let parameters: Vec<String> = parameters
        .filter(|(name, _)| is_identifier(name))
        .map(|(name, schema)| match (is_python, is_required(name)) {
            (true, true) => format!("{name}: {}", type_of(schema, 0)),
            (true, false) => format!("{name}: {} = ...", type_of(schema, 0)),
            (false, true) => format!("{name}: {}", type_of(schema, 1)),
            (false, false) => format!("{name}?: {}", type_of(schema, 1)),
        })
        .collect();
    let about = head(&manifest.description, DESCRIPTION);
    let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
    if is_python {
        let star = if parameters.is_empty() { "" } else { "*, " };
        let parameters = parameters.join(", ");
        let about = about.replace(['"', '\\'], "'");
        format!("async def {name}({star}{parameters}) -> Any:\n    \"\"\"{about}\"\"\"\n")
    } else {
        let parameters = parameters.join("; ");
        let about = about.replace("*/", "* /");
        format!(
            "/** {about} */\ndeclare function {name}(given: {{ {parameters} }}): Promise<any>;\n"
        )
    }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The type of a value in Python, or in TypeScript.
fn type_of(schema: &Value, column: usize) -> &'static str {
    let types = match schema["type"].as_str() {
        Some("string") => ["str", "string"],
        Some("integer") => ["int", "number"],
        Some("number") => ["float", "number"],
        Some("boolean") => ["bool", "boolean"],
        Some("array") => ["list", "any[]"],
        Some("object") => ["dict", "object"],
        _ => ["Any", "any"],
    };
    types[column]
}
