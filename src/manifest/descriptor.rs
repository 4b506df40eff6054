//! Descriptors of tool services and their tools, as TrustGraph's configuration writes them.
//!
//! The host's configuration says over which broker a service is called; policy decides whether it
//! may be called.

use super::reader::{Reader, below};
use super::schema::Schema;
use super::types::{
    self, Execution, Handler, Manifest, ServiceDescriptor, ServiceReference, id_fault,
};
use crate::base::json::{self, Document};
use crate::base::problem::{Code, Problem};
use crate::base::text;
use crate::schemas::{SERVICE, SERVICE_TOOL};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The members of a tool's descriptor that are not values for its service.
const OWN: [&str; 5] = ["type", "name", "description", "service", "arguments"];
/// Members by which TrustGraph chooses the tools of an agent. This host does not read them.
const FILTERS: [&str; 3] = ["group", "state", "applicable-states"];
/// The prefixes of the keys under which TrustGraph keeps services and tools.
pub const SERVICE_KEY: &str = "tool-service/";
const TOOL_KEY: &str = "tool/";
const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "array", "object", "null",
];

#[derive(Debug, Default)]
pub struct Descriptors {
    pub services: Vec<ServiceDescriptor>,
    pub tools: Vec<Manifest>,
}

/// Reads a `*.tool-service.json`: one service, or services and tools by their keys
/// (`tool-service/ID`, `tool/NAME`).
pub fn read(bytes: &[u8]) -> Result<(Descriptors, Vec<Problem>), Vec<Problem>> {
    let document = json::parse(bytes, json::Dialect::Commented).map_err(|problem| vec![problem])?;
    let mut reader = Reader::from_json(&document);
    let mut found = Descriptors::default();
    match document.value.as_object().filter(|entries| {
        entries
            .keys()
            .any(|key: &String| key.starts_with(SERVICE_KEY) || key.starts_with(TOOL_KEY))
    }) {
        None => found
            .services
            .extend(service(&mut reader, &document.value, "", None)),
        Some(entries) => {
            for (key, value) in entries {
                let at = below("", key);
                if let Some(id) = key.strip_prefix(SERVICE_KEY) {
                    found
                        .services
                        .extend(service(&mut reader, value, &at, Some(id)));
                } else if key.starts_with(TOOL_KEY) {
                    found.tools.extend(tool(&mut reader, value, &at, bytes));
                } else {
                    reader.error(
                        Code::Schema,
                        &at,
                        "not a key of a descriptor: write tool-service/ID or tool/NAME",
                    );
                }
            }
        }
    }
    reader.finish(Some(found))
}

/// Reads a `*.tool.json` as the descriptor of a tool; `None`: it is a manifest.
pub(super) fn tool_file(document: &Document<'_>, bytes: &[u8]) -> Option<types::ManifestResult> {
    let top = document
        .value
        .as_object()
        .filter(|top| !top.contains_key("handler") && !top.contains_key("toolId"))?;
    let mut reader = Reader::from_json(document);
    // TrustGraph keeps it under its key: { "tool/NAME": … }.
    let keyed = top
        .iter()
        .next()
        .filter(|(key, _)| top.len() == 1 && key.starts_with(TOOL_KEY));
    // No manifest has a `service`, or a `type` and a `name`, at the top: such a file is a
    // descriptor, also where its type is missing, misspelt or TrustGraph's own.
    let is_typed = top.get("type").is_some_and(Value::is_string);
    let is_tool = top.contains_key("service") || top.get("type") == Some(&json!("tool-service"));
    if keyed.is_some() || is_tool || (is_typed && top.contains_key("name")) {
        let (value, at) = keyed.map_or((&document.value, String::new()), |(key, value)| {
            (value, below("", key))
        });
        let found = tool(&mut reader, value, &at, bytes);
        return Some(reader.finish(found));
    }
    if top.contains_key("request-queue") || top.keys().any(|key| key.starts_with(SERVICE_KEY)) {
        reader.error(
            Code::Schema,
            "",
            "this describes a tool service: name the file *.tool-service.json",
        );
        return Some(reader.finish(None));
    }
    None
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Each is `{name, required}`, or a name alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Param {
    Name(String),
    Full {
        name: String,
        #[serde(default)]
        required: bool,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct WrittenService {
    id: String,
    request_queue: OneOrMany,
    response_queue: String,
    #[serde(default)]
    config_params: Vec<Param>,
}

fn service(
    reader: &mut Reader<'_>,
    value: &Value,
    at: &str,
    key: Option<&str>,
) -> Option<ServiceDescriptor> {
    if value["type"] == "tool-service" && value.get("service").is_some() {
        reader.error(
            Code::Schema,
            at,
            "this describes a tool: name the file *.tool.json",
        );
        return None;
    }
    if !(SERVICE.is_valid)(value) {
        reader.check_schema(&SERVICE, value, at);
    }
    let WrittenService {
        id,
        request_queue,
        response_queue,
        config_params,
    } = reader.get(at)?;
    if let Some(fault) = id_fault(&format!("{id}:tool")) {
        let message = format!("the tools of a service are known here as ID:NAME, and {fault}");
        reader.error(Code::Schema, &below(at, "id"), message);
    }
    if let Some(key) = key.filter(|key| *key != id) {
        let message = format!(
            "its key is '{}', but this is '{}': write one",
            text::head(key, 80),
            text::head(&id, 80)
        );
        reader.error(Code::Schema, &below(at, "id"), message);
    }
    let requests = match request_queue {
        OneOrMany::One(queue) => vec![queue],
        OneOrMany::Many(queues) => queues,
    };
    let queues: BTreeSet<&String> = requests.iter().chain([&response_queue]).collect();
    if queues.len() <= requests.len() {
        let message = "two of the queues are the same: name each queue once";
        reader.error(Code::Schema, &below(at, "response-queue"), message);
    }
    let params = config_params.into_iter().map(|param| match param {
        Param::Name(name) => (name, false),
        Param::Full { name, required } => (name, required),
    });
    let params: Vec<(String, bool)> = params.collect();
    if params
        .iter()
        .map(|(name, _)| name)
        .collect::<BTreeSet<_>>()
        .len()
        < params.len()
    {
        reader.error(
            Code::Schema,
            &below(at, "config-params"),
            "a parameter is listed twice: keep one",
        );
    }
    let digest = crate::base::sha256_hex(value.to_string().as_bytes());
    Some(ServiceDescriptor {
        id,
        requests,
        response: response_queue,
        params,
        digest,
        pointer: at.to_owned(),
    })
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    description: String,
    #[serde(default = "yes")]
    required: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct WrittenTool {
    name: String,
    description: String,
    service: String,
    #[serde(default)]
    arguments: Vec<Argument>,
    #[serde(flatten)]
    config: Map<String, Value>,
}

/// A tool's descriptor as the manifest that it stands for.
fn tool(reader: &mut Reader<'_>, value: &Value, at: &str, bytes: &[u8]) -> Option<Manifest> {
    if !(SERVICE_TOOL.is_valid)(value) {
        reader.check_schema(&SERVICE_TOOL, value, at);
    }
    for filter in FILTERS
        .iter()
        .filter(|filter| value.get(**filter).is_some())
    {
        reader.note(
            &below(at, filter),
            "this chooses tools in TrustGraph; this host does not read it",
        );
    }
    let WrittenTool {
        name,
        description,
        service,
        arguments,
        mut config,
    } = reader.get(at)?;
    let id = format!("{service}:{name}");
    if let Some(fault) =
        id_fault(&id).filter(|_| !name.trim().is_empty() && !service.trim().is_empty())
    {
        reader.error(
            Code::Schema,
            &below(at, "name"),
            format!("the tool is known here as SERVICE:NAME, and {fault}"),
        );
    }
    reader.warn_of_invisible(&below(at, "description"));
    config.retain(|key, _| !OWN.contains(&key.as_str()) && !FILTERS.contains(&key.as_str()));
    let parameters = parameters(reader, &arguments, &below(at, "arguments"));
    let compiled = Schema::compile(&parameters)
        .map_err(|fault: Problem| reader.error(fault.code, &below(at, "arguments"), fault.message))
        .ok()?;
    let model_name = is_model_name(&name).then(|| name.clone());
    let mut raw = json!({
        "toolId": id, "displayName": name, "description": description, "version": "1.0.0",
        "handler": { "type": "tool-service", "service": service, "config": config }, "parameters": parameters,
    });
    if let Some(name) = &model_name {
        raw["presentation"] = json!({ "modelName": name });
    }
    let pointers = (below(at, "service"), at.to_owned());
    let remote = ServiceReference {
        service,
        config,
        untyped: true,
        pointers,
        descriptor: None,
    };
    Some(Manifest {
        id,
        display_name: name,
        description,
        version: semver::Version::new(1, 0, 0),
        handler: Handler::ToolService(Box::new(remote)),
        parameters: Some(compiled),
        output: None,
        requested: types::RequestedAccess {
            read: Some(Vec::new()),
            ..types::RequestedAccess::default()
        },
        execution: Execution::default(),
        limits: BTreeMap::new(),
        idempotent: false,
        is_final: false,
        hidden: false,
        is_listed: true,
        model_name,
        schema_as_written: false,
        metadata: types::Metadata::default(),
        requires: BTreeMap::new(),
        calls: Vec::new(),
        approval: None,
        examples: Vec::new(),
        tags: Vec::new(),
        raw,
        digest: crate::base::sha256_hex(bytes),
    })
}

/// The arguments as a schema that models are shown. A type that JSON Schema does not have is left
/// out of it.
fn parameters(reader: &mut Reader<'_>, arguments: &[Argument], at: &str) -> Value {
    let mut properties = Map::new();
    let mut required = BTreeSet::new();
    for (index, argument) in arguments.iter().enumerate() {
        let mut property = json!({ "description": argument.description });
        if TYPES.contains(&argument.kind.as_str()) {
            property["type"] = json!(argument.kind);
        } else if !argument.kind.trim().is_empty() {
            let message = format!(
                "not a type of JSON Schema, so models see none; the types are {}",
                TYPES.join(", ")
            );
            reader.warn(&format!("{at}/{index}/type"), message);
        }
        if properties.insert(argument.name.clone(), property).is_some() {
            reader.error(
                Code::Schema,
                &format!("{at}/{index}/name"),
                "this name is listed twice: keep one",
            );
        }
        if argument.required {
            required.insert(&argument.name);
        }
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Whether a name has the form of a `modelName`.
fn is_model_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        && !name.contains("__")
}

/// The handler of a manifest whose type is `tool-service`.
pub(super) fn handler(reader: &mut Reader<'_>, top: &Value) -> Option<ServiceReference> {
    let handler = &top["handler"];
    let config = handler["config"].as_object().cloned().unwrap_or_default();
    if let Some(key) = config.keys().find(|key| key.trim().is_empty()) {
        reader.error(
            Code::Schema,
            &below("/handler/config", key),
            "a value for the service has no name",
        );
    }
    let service = handler["service"].as_str()?.to_owned();
    let pointers = ("/handler/service".to_owned(), "/handler/config".to_owned());
    Some(ServiceReference {
        service,
        config,
        untyped: false,
        pointers,
        descriptor: None,
    })
}

/// A service runs elsewhere: this host could not confine it to what a manifest requests.
pub(super) fn refuse_requests(reader: &mut Reader<'_>, top: &Value) {
    for block in ["securityContext", "limits", "execution"] {
        let written = top[block].as_object().into_iter().flatten();
        // These are enforced by this host itself.
        for (key, _) in written.filter(|(key, _)| {
            !["timeoutMs", "outputBytes", "task", "mode"].contains(&key.as_str())
        }) {
            let message =
                "the tool is a service elsewhere, which this host does not confine: remove this";
            reader.error(Code::Security, &below(&format!("/{block}"), key), message);
        }
    }
}
