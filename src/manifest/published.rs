//! The JSON Schema of a manifest, for editors and for `schema manifest`.
//!
//! For: cli, docs. In: nothing. Out: one JSON Schema (2020-12) with every default.
//! Never: knows a field the reader does not, or the other way round (a test compares them).

use super::blocks::limit_names;
use super::environment::{FORBIDDEN, FORBIDDEN_PREFIXES};
use super::{Language, handler};
use crate::quantity::{Limit, MIN_TIMEOUT_MS};
use serde_json::{Map, Value, json};

/// The schema. `additionalProperties: false` stands exactly where the reader refuses unknown keys.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolhost manifest (*.tool.json)",
        "description": "What a tool says of itself, and what it asks for. Comments and trailing commas are read.",
        "type": "object",
        "required": ["toolId", "displayName", "description", "version", "handler"],
        "properties": {
            "$schema": { "type": "string", "description": "For editors; not read." },
            "toolId": {
                "type": "string", "maxLength": 128,
                "pattern": "^[A-Za-z0-9]([A-Za-z0-9.-]|_[A-Za-z0-9.-])*_?:[A-Za-z0-9]([A-Za-z0-9.-]|_[A-Za-z0-9.-])*_?$",
                "description": "namespace:tool-name. 'core' is kept for the tools compiled into toolhost."
            },
            "displayName": { "type": "string", "minLength": 1, "description": "The name a person sees." },
            "description": { "type": "string", "minLength": 1, "description": "For the model: what it does, when to use it, what goes in and out." },
            "version": {
                "type": "string", "maxLength": 128,
                "pattern": "^(0|[1-9]\\d*)\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)(-[0-9A-Za-z.-]+)?(\\+[0-9A-Za-z.-]+)?$",
                "description": "Semantic version: three numbers."
            },
            "handler": handler(),
            "parameters": {
                "type": "object", "required": ["type"], "properties": { "type": { "const": "object" } },
                "description": "JSON Schema of the arguments. Absent: any object is accepted. Names that 'properties' does not list are refused, unless the schema sets additionalProperties itself."
            },
            "output": { "type": "object", "description": "JSON Schema of a successful result. Absent: any JSON value." },
            "securityContext": security_context(),
            "execution": execution(),
            "limits": limits(),
            "presentation": {
                "type": "object",
                "properties": {
                    "final": { "type": "boolean", "default": false, "description": "The result goes to the user as it is; the model adds nothing. Not built yet: ignored with a note." },
                    "hidden": { "type": "boolean", "default": false, "description": "Not offered to models; callable by exact id." }
                }
            },
            "metadata": {
                "type": "object",
                "properties": {
                    "category": { "type": "string" },
                    "author": { "type": "string" },
                    "permissions": { "type": "array", "items": { "type": "string" }, "default": [], "description": "Labels, shown as not enforced." }
                }
            },
            "requires": {
                "type": "object", "default": {}, "additionalProperties": { "type": "string" },
                "description": "Other tools this one needs: toolId to version range (^1.2)."
            },
            "examples": {
                "type": "array", "default": [],
                "items": {
                    "type": "object", "required": ["input"],
                    "properties": {
                        "description": { "type": "string", "default": "" },
                        "input": { "type": "object", "description": "Arguments that fit 'parameters'." },
                        "expectedOutput": { "description": "Compared by `toolhost test`: every member named here must come out the same." }
                    }
                }
            },
            "tags": { "type": "array", "items": { "type": "string" }, "default": [] }
        }
    })
}

fn handler() -> Value {
    let words: Vec<_> = Language::ALL.into_iter().map(Language::name).chain(["py", "node", "js"]).collect();
    let language = json!({ "enum": words, "description": "The runtime. wasm: a .wasm or .wat file." });
    let script = fields(
        handler::SCRIPT_FIELDS,
        &[
            ("type", json!({ "const": "external-script" })),
            (
                "scriptPath",
                json!({ "type": "string", "minLength": 1, "description": "Relative to a script base folder (user_scripts, tool-defs); where nothing lies there, to this file's own folder." }),
            ),
            ("language", language.clone()),
            (
                "entryPoint",
                json!({ "type": "string", "pattern": "^[A-Za-z_$][A-Za-z0-9_$.-]*$", "maxLength": 128, "description": "A function: called with the arguments, its return value is the output. Absent: the script reads JSON on stdin and prints one JSON value." }),
            ),
        ],
    );
    let method = fields(
        handler::METHOD_FIELDS,
        &[
            ("type", json!({ "const": "service-method" })),
            ("serviceName", json!({ "type": "string", "minLength": 1 })),
            ("methodName", json!({ "type": "string", "minLength": 1 })),
            ("language", language),
            (
                "parameterMap",
                json!({ "type": "object", "default": {}, "additionalProperties": { "type": "string", "minLength": 1 }, "description": "Input name to the method's name for it." }),
            ),
        ],
    );
    json!({
        "type": "object", "required": ["type"],
        "description": "How the tool is run.",
        "oneOf": [
            { "required": ["type", "scriptPath", "language"], "properties": script, "additionalProperties": false },
            { "required": ["type", "serviceName", "methodName"], "properties": method, "additionalProperties": false },
            { "properties": { "type": { "enum": ["tool-service", "definition-only"] } }, "description": "Known, not built yet: the tool is listed as unavailable." },
            { "properties": { "type": { "type": "string", "pattern": "^x-[a-z0-9-]+$" } }, "description": "An executor of the embedding program." }
        ]
    })
}

/// Properties in the order of the reader's own table. A field without a description here is a gap the test finds.
fn fields(known: &[&str], described: &[(&str, Value)]) -> Value {
    let pick = |name: &&str| {
        described.iter().find(|(field, _)| field == name).map(|(field, value)| ((*field).to_owned(), value.clone()))
    };
    Value::Object(known.iter().filter_map(pick).collect::<Map<_, _>>())
}

fn security_context() -> Value {
    let patterns = json!({ "type": "array", "maxItems": 256, "items": { "type": "string", "minLength": 1 } });
    let mut read = patterns.clone();
    read["description"] = json!(
        "self, ./* or dir/** (a folder and all below it), a/b.txt, data/*.csv; relative to the script's folder, or absolute. Absent: the script's own folder. A list replaces that default."
    );
    let mut write = patterns;
    write["description"] =
        json!("As allowRead. out/** is written live; out/*.csv is staged: published after success, only what matches.");
    write["default"] = json!([]);
    json!({
        "type": "object", "additionalProperties": false,
        "description": "What the tool asks for. A request, never a grant: the operator's policy decides.",
        "properties": {
            "fileAccess": { "type": "object", "additionalProperties": false, "properties": { "allowRead": read, "allowWrite": write } },
            "networkAccess": {
                "type": "object", "additionalProperties": false,
                "properties": { "allowHosts": {
                    "type": "array", "items": { "type": "string", "minLength": 1 }, "default": [],
                    "description": "name, *.name, IPv4, IPv6, each with an optional :port. Not built yet: a tool that lists one is unavailable."
                } }
            },
            "requiredCapabilities": {
                "type": "array", "items": { "type": "string", "minLength": 1 }, "default": [],
                "description": "subprocess; env:NAME (a variable of the host, where its config offers it and a policy grants it); gpu, long-running, files:input, secret:NAME are not built yet. What this host cannot give makes the tool unavailable."
            }
        }
    })
}

fn execution() -> Value {
    let forbidden =
        format!("Literal variables. Refused: {}, {}*.", FORBIDDEN.join(", "), FORBIDDEN_PREFIXES.join("*, "));
    json!({
        "type": "object",
        "properties": {
            "timeoutMs": { "type": "integer", "minimum": MIN_TIMEOUT_MS, "default": Limit::TimeoutMs.house_default() },
            "stderr": { "enum": ["log", "error"], "default": "log", "description": "error: any text on stderr fails the call." },
            "mode": { "enum": ["sync", "async"], "default": "sync", "description": "async is not built yet: the tool is listed as unavailable." },
            "env": { "type": "object", "default": {}, "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" }, "additionalProperties": { "type": "string" }, "description": forbidden },
            "warm": { "type": "boolean", "default": false, "description": "Not built yet: ignored with a warning." }
        }
    })
}

fn limits() -> Value {
    let each = limit_names().map(|limit| {
        let rule = json!({ "type": "integer", "minimum": limit.floor(), "default": limit.house_default() });
        (limit.name().to_owned(), rule)
    });
    json!({
        "type": "object", "additionalProperties": false,
        "description": "Limits of one call as a whole. Asking for more than the policy allows is clamped, and said.",
        "properties": Value::Object(each.collect::<Map<_, _>>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{asks, blocks, file};

    fn keys(schema: &Value, pointer: &str) -> Vec<String> {
        let found = schema.pointer(pointer).and_then(Value::as_object);
        let mut keys: Vec<_> = found.map(|map| map.keys().cloned().collect()).unwrap_or_default();
        keys.sort();
        keys
    }

    #[test]
    fn it_lists_exactly_what_the_reader_knows() {
        let schema = schema();
        let limits: Vec<_> = limit_names().map(Limit::name).collect();
        let tables: [(&str, &[&str]); 11] = [
            ("/properties", file::FIELDS),
            ("/properties/handler/oneOf/0/properties", handler::SCRIPT_FIELDS),
            ("/properties/handler/oneOf/1/properties", handler::METHOD_FIELDS),
            ("/properties/securityContext/properties", asks::FIELDS),
            ("/properties/securityContext/properties/fileAccess/properties", asks::FILE_FIELDS),
            ("/properties/securityContext/properties/networkAccess/properties", asks::NETWORK_FIELDS),
            ("/properties/execution/properties", blocks::EXECUTION_FIELDS),
            ("/properties/limits/properties", &limits),
            ("/properties/presentation/properties", blocks::PRESENTATION_FIELDS),
            ("/properties/metadata/properties", blocks::METADATA_FIELDS),
            ("/properties/examples/items/properties", blocks::EXAMPLE_FIELDS),
        ];
        for (pointer, known) in tables {
            let mut known: Vec<_> = known.iter().map(|k| (*k).to_owned()).collect();
            known.sort();
            assert_eq!(keys(&schema, pointer), known, "{pointer}");
        }
    }
}
