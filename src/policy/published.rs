//! Published: the policy language as a JSON Schema for editors, and as a commented file with every key.
//!
//! For: `schema policy`, docs. In: nothing. Out: JSON, TOML. Never: a key that `file.rs` does not read.

use super::file::MAX_LIMIT;
use crate::manifest::published::forbidden_names;
use crate::quantity::Limit;
use serde_json::{Map, Value, json};

pub(super) const SELECTOR_HELP: &str = "`tools` takes exact ids, \"ns:*\", or \"*\"";

/// An exact file or `dir/**`: non-empty parts without a pattern.
const PATH: &str = r"^(\*\*|(\./|/)?[^/*?\[\]{}]+(/[^/*?\[\]{}]+)*(/\*\*)?)$";
const FOLDER: &str = r"^(\./|/)?[^/*?\[\]{}]+(/[^/*?\[\]{}]+)*/*$";
/// What no path may hold: `..` or `.` as a part, a leading `~`, a control character.
const NO_PATH: &str = r"(^|/)\.\.(/|$)|/\.(/|$)|^\.$|^~|[\u0000-\u001f\u007f]";
/// What no rule grants: `self` needs none, and a tool has kernel trees of its own.
const NO_GRANT: &str = r"^self$|^/(proc|sys|dev)(/|$)";

/// The built-in default, as a policy file.
pub const DEFAULT_POLICY: &str = r#"name  = "default"
why   = "A tool reads its own folder, has scratch, and nothing else."
tools = ["*"]

[files]
read = [{ path = "./**", why = "its own folder" }]
"#;

/// JSON Schema (2020-12) of a policy file, read as TOML.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolhost policy (*.policy.toml)",
        "description": "A tool asks; a policy allows at most; a call gets the overlap. What is not written is not allowed. In host.policy.toml, which caps every tool, `tools` is left out and `folders`, `mode` and `runtimes` are refused.",
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "why"],
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
            "files": table(json!({ "read": rules("Files that may be read."), "write": rules("Files that may be written, and read.") })),
            "limits": table(limits()),
            "runtimes": table(json!({ "python": runtime(), "nodejs": runtime(), "bun": runtime() })),
            "capabilities": table(json!({ "grant": {
                "type": "array",
                "items": {
                    "type": "object", "additionalProperties": false, "required": ["name", "why"],
                    "properties": {
                        "name": {
                            "type": "string", "pattern": "^(subprocess|env:[A-Za-z_][A-Za-z0-9_]*)$",
                            "not": { "pattern": forbidden_names().replacen('^', "^env:", 1) },
                        },
                        "why": said("Why it is granted."),
                    },
                },
            } })),
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
            "default": limit.house_default(), "description": meaning(limit),
        });
        (limit.policy_name().to_string(), about)
    };
    Value::Object(Limit::ALL.into_iter().map(one).collect::<Map<_, _>>())
}

fn meaning(limit: Limit) -> &'static str {
    match limit {
        Limit::TimeoutMs => "wall time of a call, milliseconds",
        Limit::CpuMs => "CPU time of all its processes, milliseconds",
        Limit::MemoryBytes => "memory of all its processes, bytes",
        Limit::Processes => "processes and threads at one time",
        Limit::OpenFiles => "open files of one process",
        Limit::ScratchBytes => "/tmp and private copies, bytes",
        Limit::FileBytes => "largest file it may write, bytes",
        Limit::WrittenBytes => "what a call adds to folders that it may write live, bytes on disk",
        Limit::WrittenFiles => "files and folders that a call adds there",
        Limit::InputBytes => "arguments as JSON, bytes",
        Limit::OutputBytes => "what it answers on stdout, bytes",
        Limit::LogBytes => "what is kept of stderr, bytes",
    }
}

/// A policy file with every key at its default. It loads as it is, and allows what the default does.
pub fn annotated() -> String {
    let mut out = String::from(
        r#"# A policy: what the operator allows at most. A tool asks; a policy allows at most; a call gets the overlap.
# What is not written is not allowed; there is no word for unlimited; an unknown key refuses to start.
# Save it in the policies folder as NAME.policy.toml. `host.policy.toml` caps every tool.

name  = "default"                 # short, used once
why   = "A tool reads its own folder, has scratch, and nothing else."
tools = ["*"]                     # exact ids, "ns:*", or "*"; the narrowest policy governs
# folders = ["tool-defs/reports"] # where those tools must lie, from the root; left out: anywhere
mode    = "reject"                # or "narrow": run with less, and say so
stderr  = "log"                   # or "error": any text on stderr fails the call
require = []                      # or ["cgroup"]: refuse where limits cannot be counted exactly

[files]                           # `path`: an exact file or dir/**; relative = below the tool's own folder
read  = [{ path = "./**", why = "its own folder" }]
write = []                        # [{ path = "./out/**", why = "…" }]; writing implies reading

[limits]                          # the most a call gets; a manifest may ask for less
"#,
    );
    for limit in Limit::ALL {
        let setting = format!("{:<13} = {}", limit.policy_name(), grouped(limit.house_default()));
        out.push_str(&format!("{setting:<33} # {}, at least {}\n", meaning(limit), grouped(limit.floor())));
    }
    out.push_str(
        r#"
[runtimes]                        # left out: the interpreters found on PATH
# python = { path = "/opt/venv/bin/python", why = "…" }   # also: nodejs, bun

[capabilities]                    # of requiredCapabilities; `subprocess` needs no grant
grant = []                        # [{ name = "env:NAME", why = "…" }]: a variable of the host that its config offers
"#,
    );
    out
}

/// `1_073_741_824`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('_');
        }
        out.push(c);
    }
    out
}
