//! Descriptors of tool services and their tools, as TrustGraph's configuration writes them.
//!
//! Over which broker a service is called, the host's configuration says; whether it may be called, policy.

use super::bounds::TYPES;
use super::reader::{Reader, below};
use super::{Code, Manifest, Problem, Severity, file};
use crate::base::json::{self, Document};
use crate::base::{suggest, text};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Longest name of a queue, bytes; the most queues of one service, and the most parameters.
const LONGEST: usize = 256;
const MOST_QUEUES: usize = 16;
const MOST: usize = 64;
/// What a tool's descriptor says beside the values for its service.
const OWN: [&str; 5] = ["type", "name", "description", "service", "arguments"];
/// By these TrustGraph chooses which tools an agent has.
const FILTERS: [&str; 3] = ["group", "state", "applicable-states"];
/// The beginnings of the keys under which TrustGraph keeps both.
pub const SERVICE_KEY: &str = "tool-service/";
const TOOL_KEY: &str = "tool/";

/// A service behind a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    pub id: String,
    /// Several: each leads to another instance.
    pub requests: Vec<String>,
    pub response: String,
    /// The values that its tools may set, and whether they must.
    pub params: Vec<(String, bool)>,
    /// SHA-256 of its text, hex.
    pub digest: String,
    /// JSON pointer of it in its file.
    pub at: String,
}

/// What a tool says of the service that does its work.
#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    pub service: String,
    /// Sent with every call.
    pub config: Map<String, Value>,
    /// The service judges the arguments: whatever a call brings is passed on.
    pub untyped: bool,
    /// JSON pointers in the file: of the service's id, and of the object that holds the values.
    pub at: (String, String),
    /// The descriptor, once the registry found it.
    pub found: Option<std::sync::Arc<ServiceDescriptor>>,
}

impl Remote {
    /// The values that are sent: those that the service declares.
    pub fn sent(&self) -> Map<String, Value> {
        let declared = |name: &String| {
            self.found.as_ref().is_some_and(|service| service.params.iter().any(|(param, _)| param == name))
        };
        let mut sent = self.config.clone();
        sent.retain(|name, _| declared(name));
        sent
    }
}

/// A manifest with what is remarked, or what is wrong.
pub(super) type FileRead = Result<(Manifest, Vec<Problem>), Vec<Problem>>;

#[derive(Debug, Default)]
pub struct Descriptors {
    pub services: Vec<ServiceDescriptor>,
    pub tools: Vec<Manifest>,
}

/// The schemas of both: `service` and `tool`. The members of a tool that its schema does not name are values for the
/// service, of which its descriptor tells.
static SCHEMAS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("descriptor.schema.json")).expect("the schema is JSON"));

/// Reads a `*.tool-service.json`: one service, or services and tools by their keys (`tool-service/ID`, `tool/NAME`).
pub fn read(bytes: &[u8]) -> Result<(Descriptors, Vec<Problem>), Vec<Problem>> {
    let document = json::parse(bytes, json::Dialect::Commented).map_err(|problem| vec![problem])?;
    let mut reader = Reader::new(&document);
    let mut found = Descriptors::default();
    let keyed = |key: &String| key.starts_with(SERVICE_KEY) || key.starts_with(TOOL_KEY);
    match document.value.as_object().filter(|entries| entries.keys().any(keyed)) {
        None => found.services.extend(service(&mut reader, &document.value, "", None)),
        Some(entries) => {
            for (key, value) in entries {
                let at = below("", key);
                if let Some(id) = key.strip_prefix(SERVICE_KEY) {
                    found.services.extend(service(&mut reader, value, &at, Some(id)));
                } else if key.starts_with(TOOL_KEY) {
                    found.tools.extend(tool(&mut reader, &document, value, &at, bytes));
                } else {
                    let message = format!(
                        "'{}' is no key of a descriptor: write tool-service/ID or tool/NAME",
                        text::head(key, 80)
                    );
                    reader.error(Code::Schema, &at, message);
                }
            }
        }
    }
    ended(reader, found)
}

/// Reads a `*.tool.json` as the descriptor of a tool; `None`: it is none.
pub(super) fn tool_file(document: &Document<'_>, bytes: &[u8]) -> Option<FileRead> {
    let top = document.value.as_object().filter(|top| !top.contains_key("handler") && !top.contains_key("toolId"))?;
    let mut reader = Reader::new(document);
    // No manifest has a service, or a type and a name, of its own: it is a descriptor, also where its type is missing,
    // misspelt or TrustGraph's own.
    let kind = top.get("type").and_then(Value::as_str);
    // TrustGraph keeps it under its key: { "tool/NAME": … }.
    let keyed = top.iter().next().filter(|(key, _)| top.len() == 1 && key.starts_with(TOOL_KEY));
    let own =
        kind == Some("tool-service") || top.contains_key("service") || (kind.is_some() && top.contains_key("name"));
    if keyed.is_some() || own {
        let (value, at) = keyed.map_or((&document.value, String::new()), |(key, value)| (value, below("", key)));
        let found = tool(&mut reader, document, value, &at, bytes);
        return Some(match (ended(reader, ()), found) {
            (Ok(((), problems)), Some(found)) => Ok((found, problems)),
            (Ok(((), problems)), None) | (Err(problems), _) => Err(problems),
        });
    }
    if top.contains_key("request-queue") || top.keys().any(|key| key.starts_with(SERVICE_KEY)) {
        let message = "this describes a tool service: name the file *.tool-service.json";
        reader.error(Code::Schema, "", message);
        return Some(Err(reader.problems));
    }
    None
}

fn ended<T>(reader: Reader<'_>, found: T) -> Result<(T, Vec<Problem>), Vec<Problem>> {
    let refused = reader.refused();
    let mut problems = reader.problems;
    problems.sort_by_key(|p| (std::cmp::Reverse(p.severity), p.line, p.column));
    if refused { Err(problems) } else { Ok((found, problems)) }
}

fn service(reader: &mut Reader<'_>, value: &Value, at: &str, key: Option<&str>) -> Option<ServiceDescriptor> {
    if value["type"] == "tool-service" && value.get("service").is_some() {
        reader.error(Code::Schema, at, "this describes a tool: name the file *.tool.json");
        return None;
    }
    reader.shape(&SCHEMAS["service"], value, at);
    let id = value["id"].as_str().filter(|id| !id.trim().is_empty());
    if let Some(fault) = id.and_then(|id| file::id_fault(&format!("{id}:tool"))) {
        let message = format!("the tools of a service are known here as ID:NAME, and {fault}");
        reader.error(Code::Schema, &below(at, "id"), message);
    }
    if let (Some(id), Some(key)) = (id, key.filter(|key| Some(*key) != id)) {
        let message = format!("its key says '{}', and this '{}': write one", text::head(key, 80), text::head(id, 80));
        reader.error(Code::Schema, &below(at, "id"), message);
    }
    let requests = match &value["request-queue"] {
        Value::Array(queues) if queues.is_empty() || queues.len() > MOST_QUEUES => {
            let message = format!("names {} queues: name one for each instance, at most {MOST_QUEUES}", queues.len());
            reader.error(Code::Schema, &below(at, "request-queue"), message);
            Vec::new()
        }
        Value::Array(queues) => queues.iter().enumerate().map(|(i, q)| (format!("request-queue/{i}"), q)).collect(),
        Value::Null => Vec::new(),
        one => vec![("request-queue".to_owned(), one)],
    };
    let mut named: Vec<String> = Vec::new();
    for (place, value) in requests.into_iter().chain([("response-queue".to_owned(), &value["response-queue"])]) {
        let written = queue(reader, value, &format!("{at}/{place}"));
        if written.as_ref().is_some_and(|queue| named.contains(queue)) {
            reader.error(Code::Schema, &format!("{at}/{place}"), "this queue is named twice");
        }
        named.extend(written);
    }
    let params = params(reader, &value["config-params"], &below(at, "config-params"));
    let response = named.pop()?;
    let digest = crate::base::sha256_hex(value.to_string().as_bytes());
    Some(ServiceDescriptor { id: id?.to_owned(), requests: named, response, params, digest, at: at.to_owned() })
}

fn queue(reader: &mut Reader<'_>, value: &Value, at: &str) -> Option<String> {
    let good = |name: &&str| !name.is_empty() && name.len() <= LONGEST && name.bytes().all(|b| b.is_ascii_graphic());
    match value {
        Value::Null => None,
        // Told by the schema, but for those of a list.
        Value::String(name) if name.trim().is_empty() && at.ends_with("-queue") => None,
        _ => {
            let name = value.as_str().filter(good);
            if name.is_none() {
                let message = "must be the name of a topic in full, as its broker knows it (request:tg:joke, \
                               non-persistent://tg/request/joke)";
                reader.error(Code::Schema, at, message);
            }
            name.map(str::to_owned)
        }
    }
}

/// Each is `{name, required}`, or a name alone.
fn params(reader: &mut Reader<'_>, value: &Value, at: &str) -> Vec<(String, bool)> {
    let written = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if written.len() > MOST {
        reader.error(Code::Schema, at, format!("more than {MOST} parameters"));
    }
    let mut found: Vec<(String, bool)> = Vec::new();
    for (index, param) in written.iter().take(MOST).enumerate() {
        let at = format!("{at}/{index}");
        let (name, required) = match param {
            Value::String(name) => (Some(name.as_str()), &Value::Null),
            Value::Object(_) => (param["name"].as_str(), &param["required"]),
            _ => {
                reader.error(Code::Schema, &at, "must be {\"name\": …, \"required\": true or false}, or a name");
                continue;
            }
        };
        if !matches!(required, Value::Null | Value::Bool(_)) {
            reader.error(Code::Schema, &below(&at, "required"), "must be true or false");
        }
        match name.filter(|name| !name.trim().is_empty()) {
            None => reader.error(Code::Schema, &at, "the required field 'name' is missing"),
            Some(name) if OWN.contains(&name) => {
                let message =
                    format!("'{name}' is a field of every tool's descriptor: no parameter can have this name");
                reader.error(Code::Schema, &at, message);
            }
            Some(name) if found.iter().any(|(other, _)| other == name) => {
                reader.error(Code::Schema, &at, format!("'{}' is named twice", text::head(name, 80)));
            }
            Some(name) => found.push((name.to_owned(), required == true)),
        }
    }
    found
}

/// A tool's descriptor as the manifest that it stands for.
fn tool(reader: &mut Reader<'_>, document: &Document<'_>, value: &Value, at: &str, bytes: &[u8]) -> Option<Manifest> {
    let before = reader.problems.len();
    reader.shape(&SCHEMAS["tool"], value, at);
    if value.get("type").is_some_and(|kind| kind.is_string() && kind != "tool-service") {
        reader.error(
            Code::Schema,
            &below(at, "type"),
            "must be \"tool-service\": no other kind of tool is reached over a broker",
        );
    }
    let parameters = parameters(reader, &value["arguments"], &below(at, "arguments"));
    for filter in FILTERS.iter().filter(|filter| value.get(**filter).is_some()) {
        let message = format!("'{filter}' chooses tools in TrustGraph; this host does not read it");
        reader.note(Code::Schema, &below(at, filter), message);
    }
    let name = value["name"].as_str()?;
    let service = value["service"].as_str()?;
    let id = format!("{service}:{name}");
    if let Some(fault) = file::id_fault(&id).filter(|_| !name.trim().is_empty() && !service.trim().is_empty()) {
        reader.error(Code::Schema, &below(at, "name"), format!("the tool is known here as SERVICE:NAME, and {fault}"));
    }
    if reader.problems[before..].iter().any(|problem| problem.severity == Severity::Error) {
        return None;
    }
    let own = |key: &str| OWN.contains(&key) || FILTERS.contains(&key);
    let mut config = value.as_object()?.clone();
    config.retain(|key, _| !own(key));
    let mut manifest = json!({
        "toolId": id, "displayName": name, "description": value["description"], "version": "1.0.0",
        "handler": { "type": "tool-service", "service": service, "config": config }, "parameters": parameters,
    });
    if is_model_name(name) {
        manifest["presentation"] = json!({ "modelName": name });
    }
    match file::read(manifest.to_string().as_bytes()) {
        Ok((mut manifest, problems)) => {
            relocate(reader, document, at, problems);
            if let super::Handler::ToolService(remote) = &mut manifest.handler {
                remote.untyped = true;
                remote.at = (below(at, "service"), at.to_owned());
            }
            manifest.digest = crate::base::sha256_hex(bytes);
            Some(manifest)
        }
        Err(problems) => {
            relocate(reader, document, at, problems);
            None
        }
    }
}

/// Adds the problems of a manifest, each at the place of the descriptor that it was made of.
fn relocate(reader: &mut Reader<'_>, document: &Document<'_>, at: &str, problems: Vec<Problem>) {
    for problem in problems {
        let part = match problem.pointer.split('/').nth(1) {
            Some("parameters") => "arguments",
            Some("description") => "description",
            Some("handler") => "service",
            _ => "name",
        };
        let pointer = below(at, part);
        let (line, column) = document.place(&pointer);
        reader.problems.push(Problem { pointer, line, column, ..problem });
    }
}

/// The arguments as a schema that models are shown. A type that JSON Schema does not have is left out of it.
fn parameters(reader: &mut Reader<'_>, arguments: &Value, at: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), BTreeSet::new());
    for (index, argument) in arguments.as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}/{index}");
        let (Some(name), Some(kind)) = (argument["name"].as_str(), argument["type"].as_str()) else { continue };
        let mut property = json!({ "description": argument["description"] });
        if TYPES.contains(&kind) {
            property["type"] = json!(kind);
        } else if !kind.trim().is_empty() {
            let near =
                suggest::nearest(kind, TYPES).map_or_else(String::new, |near| format!(" (did you mean '{near}'?)"));
            let message =
                format!("'{}' is no type of JSON Schema{near}: models are told of none", text::head(kind, 40));
            reader.warn(Code::Schema, &below(&at, "type"), message);
        }
        if properties.insert(name.to_owned(), property).is_some() {
            reader.error(Code::Schema, &below(&at, "name"), format!("'{}' is named twice", text::head(name, 80)));
        }
        if argument["required"] != false {
            required.insert(name.to_owned());
        }
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

/// As `modelName` has to be.
fn is_model_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        && !name.contains("__")
}

/// The handler of a manifest whose type is `tool-service`.
pub(super) fn handler(reader: &mut Reader<'_>, top: &Value) -> Option<Remote> {
    let handler = &top["handler"];
    let config = handler["config"].as_object().cloned().unwrap_or_default();
    if let Some(key) = config.keys().find(|key| key.trim().is_empty()) {
        reader.error(Code::Schema, &below("/handler/config", key), "a value for the service has no name");
    }
    let service = handler["service"].as_str().filter(|service| !service.trim().is_empty())?.to_owned();
    let at = ("/handler/service".to_owned(), "/handler/config".to_owned());
    Some(Remote { service, config, untyped: false, at, found: None })
}

/// A service runs elsewhere: nothing here could hold it to what a manifest asks for.
pub(super) fn asks_nothing(reader: &mut Reader<'_>, top: &Value) {
    for block in ["securityContext", "limits", "execution"] {
        let said = top[block].as_object().into_iter().flatten();
        // The time that a call has is this host's own.
        for (key, _) in said.filter(|(key, _)| !["timeoutMs", "outputBytes", "task", "mode"].contains(&key.as_str())) {
            let message = "the tool is a service elsewhere, which this host does not confine: take it away";
            reader.error(Code::Security, &format!("/{block}/{}", json::escape_segment(key)), message);
        }
    }
}
