//! Published: the JSON Schema of a manifest: the one table of its fields.
//!
//! For: the reader, which judges manifests by it; editors, through `schema manifest`. In: nothing.
//! Out: one JSON Schema (2020-12) with every default. Never: stricter in its patterns than the reader.

use super::Language;
use super::environment::{FORBIDDEN, FORBIDDEN_PREFIXES};
use crate::quantity::{Limit, MAX_HOSTS, MIN_TIMEOUT_MS};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// What the schemas of a tool are called in ours; `schema` judges what they hold.
pub(super) const TOOLS_OWN: &str = "JSON Schema";
const ID: &str = "^[A-Za-z0-9]([A-Za-z0-9.-]|_[A-Za-z0-9.-])*_?:[A-Za-z0-9]([A-Za-z0-9.-]|_[A-Za-z0-9.-])*_?$";
/// What no file pattern may hold: `..`, a wildcard before the last part or beside `**`, `~ ! [ ] { } \`, a URL.
const NO_PATTERN: &str = r"(^|/)\.\.(/|$)|[*?][^/]*/|[^/]\*\*|\*\*[^/]|^[~!]|[\[\]{}\\\u0000-\u001f\u007f]|^file:|://";
/// `name`, `*.name`, `*`, an address; each with an optional port.
pub const HOST: &str = r"^((\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?(:[1-9][0-9]{0,4})?|\*(:[1-9][0-9]{0,4})?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*|\[[0-9A-Fa-f:.]+\](:[1-9][0-9]{0,4})?)$";
/// Comparators between commas: `^1.2`, `>=1, <2`, `*`.
const RANGE: &str = r"^ *([~^=]|[<>]=?)? *[0-9*xX]+(\.[0-9*xX]+){0,2}([-+][0-9A-Za-z.+-]+)?( *, *([~^=]|[<>]=?)? *[0-9*xX]+(\.[0-9*xX]+){0,2}([-+][0-9A-Za-z.+-]+)?)* *$";

/// `additionalProperties: false` stands where an unknown name could be a misspelt restriction.
pub static SCHEMA: LazyLock<Value> = LazyLock::new(schema);

fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolhost manifest (*.tool.json)",
        "description": "What a tool says of itself, and what it asks for. Comments and trailing commas are read.",
        "type": "object",
        "required": ["toolId", "displayName", "description", "version", "handler"],
        "properties": {
            "$schema": { "description": "For editors; not read." },
            "toolId": {
                "type": "string", "maxLength": 128,
                "pattern": ID,
                "description": "namespace:tool-name. 'core' is kept for the tools compiled into toolhost."
            },
            "displayName": { "type": "string", "pattern": "\\S", "description": "The name a person sees." },
            "description": { "type": "string", "pattern": "\\S", "description": "For the model: what it does, when to use it, what goes in and out." },
            "version": {
                "type": "string", "maxLength": 128,
                "pattern": "^(0|[1-9]\\d*)\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)(-[0-9A-Za-z.-]+)?(\\+[0-9A-Za-z.-]+)?$",
                "description": "Semantic version: three numbers."
            },
            "handler": handler(),
            "parameters": {
                "title": TOOLS_OWN, "type": "object", "required": ["type"], "properties": { "type": { "const": "object" } },
                "description": "JSON Schema of the arguments. Absent: any object is accepted. Names that 'properties' does not list are refused, unless the schema sets additionalProperties itself."
            },
            "output": { "title": TOOLS_OWN, "type": "object", "description": "JSON Schema of a successful result. Absent: any JSON value." },
            "securityContext": security_context(),
            "execution": execution(),
            "limits": limits(),
            "presentation": {
                "type": "object",
                "properties": {
                    "final": { "type": "boolean", "default": false, "description": "The result goes to the user as it is; the model adds nothing. Not built yet: ignored with a note." },
                    "hidden": { "type": "boolean", "default": false, "description": "Not offered to models; callable by exact id." },
                    "modelName": { "type": "string", "maxLength": 64, "pattern": "^[A-Za-z]([A-Za-z0-9-]|_[A-Za-z0-9-])*_?$", "description": "The name by which models know the tool. Absent: namespace__name. Two tools of one modelName are both not offered." },
                    "schemaAsWritten": { "type": "boolean", "default": false, "description": "Models get the parameters as written, with oneOf, anyOf, allOf, not or enum at the root. Several model APIs refuse a whole list of tools for one of these." }
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
                "type": "object", "default": {}, "propertyNames": { "maxLength": 128, "pattern": ID },
                "additionalProperties": { "type": "string", "pattern": RANGE },
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
            "idempotent": { "type": "boolean", "default": false, "description": "A second call with the same arguments changes nothing more, here or elsewhere. Decides nothing by itself: an operator may let such a call run again after its host was lost." },
            "tags": { "type": "array", "items": { "type": "string" }, "default": [] }
        }
    })
}

fn handler() -> Value {
    let words: Vec<_> = Language::ALL.into_iter().map(Language::name).chain(["py", "node", "js"]).collect();
    let language = json!({ "enum": words, "description": "The runtime. wasm: a .wasm or .wat file." });
    let script = json!({
        "type": { "const": "external-script" },
        "scriptPath": { "type": "string", "pattern": "\\S", "description": "Relative to a script base folder (user_scripts, tool-defs); where nothing lies there, to this file's own folder." },
        "language": language,
        "entryPoint": { "type": "string", "pattern": "^[A-Za-z_$][A-Za-z0-9_$.-]*$", "maxLength": 128, "description": "A function: called with the arguments, its return value is the output. Absent: the script reads JSON on stdin and prints one JSON value." }
    });
    let method = json!({
        "type": { "const": "service-method" },
        "serviceName": { "type": "string", "pattern": "\\S" },
        "methodName": { "type": "string", "pattern": "\\S" },
        "language": language,
        "parameterMap": { "type": "object", "default": {}, "additionalProperties": { "type": "string", "minLength": 1 }, "description": "Input name to the method's name for it." }
    });
    let service = json!({
        "type": { "const": "tool-service" },
        "service": { "type": "string", "pattern": "\\S", "description": "The id of the service, as its descriptor (*.tool-service.json) has it." },
        "config": { "type": "object", "default": {}, "description": "Sent with every call: the values of the service's config-params." }
    });
    json!({
        "type": "object", "required": ["type"], "properties": { "type": { "type": "string" } },
        "description": "How the tool is run.",
        "oneOf": [
            {
                "required": ["type", "scriptPath", "language"], "properties": script, "additionalProperties": false,
                "allOf": Language::ALL.map(file_of_language),
            },
            { "required": ["type", "serviceName", "methodName"], "properties": method, "additionalProperties": false },
            { "required": ["type", "messages"], "properties": prompt(), "additionalProperties": false, "description": "In a file *.prompt.json." },
            { "required": ["type", "uri"], "properties": resource(), "additionalProperties": false, "description": "In a file *.resource.json: `text` or `file`." },
            { "required": ["type", "service"], "properties": service, "additionalProperties": false, "description": "A service behind a broker does the work." },
            { "properties": { "type": { "const": "definition-only" } }, "description": "Known, not built yet: the tool is listed as unavailable." },
            { "properties": { "type": { "type": "string", "maxLength": 64, "pattern": "^x-[a-z0-9-]+$" } }, "description": "An executor of the embedding program." }
        ]
    })
}

fn prompt() -> Value {
    let content = json!({ "oneOf": [{ "type": "string" }, { "type": "object", "required": ["type"], "properties": { "type": { "enum": ["text", "image", "audio", "resource", "resource_link"] } } }] });
    let message = json!({
        "type": "object", "required": ["role", "content"], "additionalProperties": false,
        "properties": { "role": { "enum": ["user", "assistant"] }, "content": content }
    });
    json!({
        "type": { "const": "prompt" },
        "messages": { "type": "array", "minItems": 1, "items": message, "description": "MCP messages; a text alone is a block of text. {{name}} stands for an argument (parameters describes them), {{key.field}} for a field of a form of `ask`." },
        "ask": { "type": "object", "additionalProperties": { "type": "object", "required": ["method"] }, "description": "What the client is asked first: by keys, each {method, params}. Needs the capability ask:… ." }
    })
}

fn resource() -> Value {
    json!({
        "type": { "const": "resource" },
        "uri": { "type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$", "description": "With /{name}/ it is a template: parameters describes its names." },
        "mimeType": { "type": "string", "pattern": "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(;.*)?$" },
        "text": { "type": "string", "description": "The content; {{name}} stands for a name of the uri." },
        "file": { "type": "string", "pattern": "\\S", "description": "One file below this one's folder, which policy lets it read." }
    })
}

/// Requires a script's file name to have an ending of the manifest's language.
fn file_of_language(language: Language) -> Value {
    const ENDINGS: [&str; 11] = ["py", "js", "mjs", "cjs", "ts", "mts", "cts", "tsx", "jsx", "wasm", "wat"];
    let words: Vec<_> = ["python", "py", "nodejs", "node", "js", "bun", "wasm"]
        .into_iter()
        .filter(|w| Language::from_word(w) == Some(language))
        .collect();
    let own = ENDINGS.into_iter().filter(|end| language.fits_file_name(&format!("a.{end}")));
    let own: Vec<_> = own.map(any_case).collect();
    json!({
        "if": { "properties": { "language": { "enum": words } } },
        "then": { "properties": { "scriptPath": { "pattern": format!("\\.({})$", own.join("|")) } } }
    })
}

fn security_context() -> Value {
    let patterns = |refused: &str| {
        let item = json!({ "type": "string", "minLength": 1, "maxLength": 4096, "not": { "pattern": refused } });
        json!({ "type": "array", "maxItems": 256, "items": item })
    };
    let mut read = patterns(NO_PATTERN);
    read["description"] = json!(
        "self, ./* or dir/** (a folder and all below it), a/b.txt, data/*.csv; relative to the script's folder, or absolute. Absent: the script's own folder. A list replaces that default."
    );
    let mut write = patterns(&format!("{NO_PATTERN}|^self$"));
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
                    "type": "array", "items": { "type": "string", "maxLength": 300, "pattern": HOST }, "default": [], "maxItems": MAX_HOSTS,
                    "description": "Hosts to reach: name, *.name (one or more labels before it, not the name itself), * (every name), IPv4, IPv6, each with an optional :port. Without one: 80 and 443."
                } }
            },
            "requiredCapabilities": {
                "type": "array", "items": { "type": "string", "pattern": "\\S" }, "default": [],
                "description": "subprocess; env:NAME (a variable of the host, where its config offers it and a policy grants it); secret:NAME (what a policy's [secrets] lists: a variable, or a header that toolhost adds to requests); gpu, long-running, files:input are not built yet. What this host cannot give makes the tool unavailable."
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
            "mode": { "enum": ["sync", "async"], "default": "sync", "description": "async: over HTTP a call is answered with a receipt, unless it says otherwise (docs/BACKGROUND.md). Other faces wait for the end." },
            "task": { "enum": ["optional", "required"], "description": "MCP clients that know tasks ask after a call of this tool instead of waiting for it; required: others are refused. Absent: never." },
            "env": { "type": "object", "default": {}, "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": { "pattern": forbidden_names() } }, "additionalProperties": { "type": "string", "not": { "pattern": "\\u0000" } }, "description": forbidden },
            "warm": { "type": "boolean", "default": false, "description": "Not built yet: ignored with a warning." }
        }
    })
}

/// Matches a word in upper and lower case: regular expressions of editors have no flag for that.
pub fn any_case(word: &str) -> String {
    let letter = |c: char| match c.is_ascii_alphabetic() {
        true => format!("[{}{}]", c.to_ascii_uppercase(), c.to_ascii_lowercase()),
        false => c.to_string(),
    };
    word.chars().map(letter).collect()
}

/// The names that nobody may set.
pub fn forbidden_names() -> String {
    let whole = FORBIDDEN.iter().map(|name| format!("{}$", any_case(name)));
    let parts: Vec<String> = whole.chain(FORBIDDEN_PREFIXES.iter().map(|prefix| any_case(prefix))).collect();
    format!("^({})", parts.join("|"))
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

/// The limits of the `limits` block; the time limit is `execution.timeoutMs`.
pub(super) fn limit_names() -> impl Iterator<Item = Limit> {
    Limit::ALL.into_iter().filter(|limit| *limit != Limit::TimeoutMs)
}
