//! Published: the policy language as a JSON Schema, for editors.
//!
//! For: `schema policy`, docs. In: nothing. Out: JSON. Never: a key that `file.rs` does not read.

use super::file::MAX_LIMIT;
use super::package_table::{MOST_DAYS, MOST_DENIED};
use super::{secrets, services};
use crate::manifest::published::{HOST, any_case, forbidden_names};
use crate::quantity::{Limit, MAX_HOSTS, MAX_RANGES};
use serde_json::{Map, Value, json};

pub(super) const SELECTOR_HELP: &str = "`tools` takes exact ids, \"ns:*\", or \"*\"";

/// An exact file or `dir/**`: non-empty parts without a pattern.
const PATH: &str = r"^(\*\*|(\./|/)?[^/*?\[\]{}]+(/[^/*?\[\]{}]+)*(/\*\*)?)$";
const FOLDER: &str = r"^(\./|/)?[^/*?\[\]{}]+(/[^/*?\[\]{}]+)*/*$";
/// What no path may hold: `..` or `.` as a part, a leading `~`, a control character.
const NO_PATH: &str = r"(^|/)\.\.(/|$)|/\.(/|$)|^\.$|^~|[\u0000-\u001f\u007f]";
/// What no rule grants: `self` needs none, and a tool has kernel trees of its own.
const NO_GRANT: &str = r"^self$|^/(proc|sys|dev)(/|$)";

/// Where a secret lies, and what no such path holds.
const SOURCE: &str = r"^(file:(\./|/)?[^/*?\[\]{}]+(/[^/*?\[\]{}]+)*|file:(\./|/)?([^/*?\[\]{}]+/)*[^/*?\[\]{}]*\{caller\}[^/*?\[\]{}]*|env:[!-<>-~]+|command:\s*/[^\s*?\[\]{}]+(\s.*)?)$";
const NO_SOURCE: &str = r"^(env|command):.*\{caller\}|^file:/[^/]*\{caller\}|^file:~|^file:(.*/)?\.\.(/|$)|^file:.*/\.(/|$)|^file:\.$|^command:\s*\S*/\.\.?(/|\s|$)|^command:\s*\S*//|^command:\s*\S+/(\s|$)|[\u0000-\u001f\u007f]";
/// A wildcard or an address, which no secret goes to.
const NO_NAME: &str = r"^\*|^\[|^[0-9.]+(:[0-9]+)?$|:.*:";
/// ASCII with one `{}`; a path or the start of some.
const VALUE: &str = r"^(?! )(?!.*\{\}.*\{\})[ -~]*\{\}([ -~]*[!-~])?$";
const REQUESTS: &str = r#"^(?!.*//)(?!.*/\.\.?(/|$))(/[!-"$&-)+->@-\[\]-~]*|(/[!-"$&-)+->@-\[\]-~]*)?/\*\*)$"#;

/// JSON Schema (2020-12) of a policy file, read as TOML.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolhost policy (*.policy.toml)",
        "description": "A tool asks; a policy allows at most; a call gets the overlap. What is not written is not allowed. In host.policy.toml, which caps every tool, `tools` is left out and `folders`, `mode`, `runtimes` and `secrets` are refused.",
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "why"],
        // A policy that names tools is no cap.
        "if": { "required": ["tools"], "properties": { "tools": { "not": { "const": ["*"] } } } },
        "then": { "properties": { "capabilities": { "properties": { "grant": { "items": {
            "properties": { "name": { "not": { "pattern": "^secret:" } } },
        } } } } } },
        "properties": {
            "name": { "type": "string", "pattern": "\\S", "maxLength": 100, "description": "Short, and used once." },
            "why": said("What the policy is for."),
            "tools": {
                "type": "array", "minItems": 1, "uniqueItems": true,
                "items": { "type": "string", "pattern": "^(\\*|[^*\\s]+|[^*:\\s]+:\\*)$" },
                "description": "Exact id, ns:* or *. The narrowest policy that names a tool governs it; two of the same width refuse to start.",
            },
            "folders": {
                "type": "array", "minItems": 1, "items": { "type": "string", "pattern": FOLDER, "not": { "pattern": NO_PATH } },
                "description": "Where the manifests of those tools must lie; relative to the root. Left out: anywhere.",
            },
            "mode": {
                "enum": ["reject", "narrow"], "default": "reject",
                "description": "A tool that asks for more is refused, or runs with less and that is said.",
            },
            "stderr": {
                "enum": ["log", "error"], "default": "log",
                "description": "`error`: any text on stderr fails the call.",
            },
            "require": {
                "type": "array", "items": { "enum": ["cgroup"] }, "default": [],
                "description": "`cgroup`: refuse where memory, CPU and processes cannot be counted exactly.",
            },
            "observe": {
                "type": "boolean", "default": false,
                "description": "Keep which files and system calls the tool was refused. Each such call costs some 40 µs; a call also starts a process more.",
            },
            "confirm": said("Why a person is asked before each call. In host.policy.toml: before every call of this host."),
            "confirm_by_client": said("Why that person may be one whom the MCP client that calls asks. Only beside `confirm`; where several policies have a person asked, all must say it."),
            "files": table(json!({ "read": rules("Files that may be read."), "write": rules("Files that may be written, and read.") })),
            "limits": table(limits()),
            "runtimes": table(json!({ "python": runtime(), "nodejs": runtime(), "bun": runtime() })),
            "network": table(json!({ "hosts": hosts() })),
            "secrets": table(json!({ "grant": secrets() })),
            "packages": packages(),
            "services": table(json!({ "call": services() })),
            "capabilities": table(json!({ "grant": capabilities() })),
        },
    })
}

fn capabilities() -> Value {
    json!({
        "type": "array",
        "items": {
            "type": "object", "additionalProperties": false, "required": ["name", "why"],
            "properties": {
                "name": {
                    "type": "string", "pattern": "^(subprocess|(env|secret):[A-Za-z_][A-Za-z0-9_]*)$",
                    "not": { "pattern": forbidden_names().replacen('^', "^(env|secret):", 1) },
                    "description": "secret:NAME only in host.policy.toml, which so lets policies grant that secret.",
                },
                "why": said("Why it is granted."),
            },
        },
    })
}

fn said(description: &str) -> Value {
    json!({ "type": "string", "pattern": "\\S", "description": description })
}

fn table(properties: Value) -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

fn rules(description: &str) -> Value {
    json!({
        "type": "array", "default": [], "description": description,
        "items": {
            "type": "object", "additionalProperties": false, "required": ["path", "why"],
            "properties": {
                "path": { "type": "string", "pattern": PATH, "not": { "pattern": format!("{NO_PATH}|{NO_GRANT}") }, "description": "An exact file or dir/**; relative = below the tool's own folder." },
                "why": said("Why it is granted; blank refuses to load."),
            },
        },
    })
}

fn hosts() -> Value {
    json!({
        "type": "array", "default": [], "maxItems": MAX_HOSTS,
        "description": "Hosts that may be reached, through toolhost: their names are resolved, and their addresses checked, outside of the tool.",
        "items": {
            "type": "object", "additionalProperties": false, "required": ["host", "why"],
            "properties": {
                "host": { "type": "string", "maxLength": 300, "pattern": HOST, "description": "name, *.name (one or more labels before it), * (every name) or an address, each with an optional :port. Without one: 80 and 443." },
                "ranges": {
                    "type": "array", "default": [], "maxItems": MAX_RANGES, "items": { "type": "string", "pattern": "^[0-9A-Fa-f:.]+/[0-9]{1,3}$" },
                    "description": "Addresses that are not public (10.1.0.0/16) and that hosts of this entry may have all the same. In host.policy.toml: the most of them.",
                },
                "why": said("Why it is reached."),
            },
        },
    })
}

fn secrets() -> Value {
    let framing = format!("^({})$", secrets::FRAMING.map(any_case).join("|"));
    json!({
        "type": "array", "default": [], "maxItems": secrets::MOST,
        "description": "Secrets that tools may use, read anew for each call and shown nowhere.",
        "items": {
            "type": "object", "additionalProperties": false, "required": ["name", "from", "why"],
            "properties": {
                "name": {
                    "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": { "pattern": forbidden_names() },
                    "description": "What a manifest asks for as secret:NAME; without a header, also the tool's variable.",
                },
                "from": {
                    "type": "string", "pattern": SOURCE, "not": { "pattern": NO_SOURCE },
                    "description": "file:PATH (from this policy's folder; of mode 600; {caller} in its name: a file for each caller), env:NAME (of the host) or command:/PROGRAM WORDS (no shell).",
                },
                "why": said("Why it is granted."),
                "header": {
                    "type": "object", "additionalProperties": false, "required": ["host", "name"],
                    "description": "Added by toolhost to the requests for http://HOST; the tool never has the secret.",
                    "properties": {
                        "host": { "type": "string", "maxLength": 300, "pattern": HOST, "not": { "pattern": NO_NAME }, "description": "One exact name, with an optional :port at which it speaks TLS (443)." },
                        "name": { "type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,1000}$", "not": { "pattern": framing } },
                        "value": { "type": "string", "default": "{}", "maxLength": secrets::LONGEST, "pattern": VALUE, "description": "ASCII with one {}, where the secret stands." },
                        "methods": words("^(?!(TRACE|CONNECT)$)[A-Z]+$", "Left out: all but TRACE and CONNECT."),
                        "paths": words(REQUESTS, "/exact or /below/**. Left out: all."),
                    },
                },
            },
        },
    })
}

fn services() -> Value {
    let queue = json!({ "type": "string", "pattern": "\\S" });
    json!({
        "type": "array", "default": [], "maxItems": services::MOST,
        "description": "Tool services elsewhere that tools may call; the host's configuration says over which broker.",
        "items": {
            "type": "object", "additionalProperties": false, "required": ["service", "request", "response", "why"],
            "properties": {
                "service": { "type": "string", "pattern": "\\S", "description": "The id of its descriptor." },
                "request": { "type": "array", "minItems": 1, "items": queue, "description": "Queues that requests may go to, as the descriptor has them." },
                "response": { "type": "string", "pattern": "\\S", "description": "The queue that answers come from." },
                "user": { "type": "boolean", "default": false, "description": "The caller's name is sent, too." },
                "why": said("Why it is called."),
            },
        },
    })
}

fn packages() -> Value {
    let entry = |whose: &str| {
        json!({
            "type": "object", "additionalProperties": false, "required": ["index", "why"],
            "description": format!("Packages of {whose}, installed inside the walls for a script whose files require them."),
            "properties": {
                "index": {
                    "type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$",
                    "description": "An index of the host's configuration ([indexes.NAME]), or \"default\".",
                },
                "lock": {
                    "enum": ["required", "relaxed"], "default": "required",
                    "description": "`relaxed`: what the first call resolves is kept.",
                },
                "builds": {
                    "type": "boolean", "default": false,
                    "description": "Build steps and lifecycle scripts of packages may run, inside the walls and without network.",
                },
                "why": said("Why packages may be installed."),
            },
        })
    };
    table(json!({
        "python": entry("Python"),
        "node": entry("Node and Bun"),
        "deny": {
            "type": "array", "default": [], "maxItems": MOST_DENIED, "description": "What is never installed.",
            "items": {
                "type": "object", "additionalProperties": false, "required": ["name", "why"],
                "properties": {
                    "name": { "type": "string", "maxLength": 214, "pattern": "^(@[A-Za-z0-9][A-Za-z0-9._~-]*/)?[A-Za-z0-9][A-Za-z0-9._~-]*$" },
                    "versions": { "type": "string", "description": "A range, as the ecosystem writes it. Left out: every version." },
                    "why": said("Why it is never installed."),
                },
            },
        },
        "min_age_days": {
            "type": "integer", "minimum": 1, "maximum": MOST_DAYS,
            "description": "A version must have been published so many days ago; where that is not known, it is refused.",
        },
    }))
}

fn words(pattern: &str, description: &str) -> Value {
    json!({
        "type": "array", "minItems": 1, "maxItems": secrets::MOST, "items": { "type": "string", "pattern": pattern },
        "description": description,
    })
}

fn runtime() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["path", "why"],
        "properties": { "path": { "type": "string", "pattern": "^/[^/]" }, "why": said("Why this interpreter.") },
    })
}

fn limits() -> Value {
    let one = |limit: Limit| {
        let about = json!({
            "type": "integer", "minimum": limit.floor(), "maximum": MAX_LIMIT,
            "default": limit.house_default(), "description": limit.meaning(),
        });
        (limit.policy_name().to_string(), about)
    };
    Value::Object(Limit::ALL.into_iter().map(one).collect::<Map<_, _>>())
}
