//! The bytes of one manifest file → `Manifest`, or every problem of the file at once: what its fields mean, and the
//! faults in it that no schema can tell.
//!
//! `Reader::shape` judges the document before: here a value of a wrong type may count as a missing one. A request that
//! is not understood refuses the manifest.

use super::host::{self, HostPattern};
use super::reader::{Reader, below};
use super::{
    Asks, Code, Example, Execution, Handler, Language, Manifest, Metadata, Pattern, PatternShape, Problem, StderrRule,
    TaskUse, descriptor, document, environment, lint, pattern, published, schema,
};
use crate::base::{json, suggest, text};
use crate::quantity::{Limit, MAX_ENV_BYTES, MAX_HOSTS, MAX_PORTS};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Reads one manifest. The problems beside a manifest are warnings and notes.
pub fn read(bytes: &[u8]) -> Result<(Manifest, Vec<Problem>), Vec<Problem>> {
    let document = json::parse(bytes, json::Dialect::Commented).map_err(|problem| vec![problem])?;
    if let Some(read) = descriptor::tool_file(&document, bytes) {
        return read;
    }
    let mut reader = Reader::new(&document);
    reader.shape(&published::SCHEMA, &document.value, "");
    let manifest = manifest(&mut reader, &document.value, bytes);
    if let Some(manifest) = &manifest {
        lint::parameters(&mut reader, manifest);
    }
    match manifest {
        Some(manifest) if !reader.refused() => Ok((manifest, reader.problems)),
        _ => {
            let mut problems = reader.problems;
            problems.sort_by_key(|p| (std::cmp::Reverse(p.severity), p.line, p.column));
            Err(problems)
        }
    }
}

/// Every line runs, so that all problems are told at once; only then does a missing part end it (`?`).
fn manifest(reader: &mut Reader<'_>, top: &Value, bytes: &[u8]) -> Option<Manifest> {
    let written = |field: &str| top[field].as_str().filter(|said| !said.trim().is_empty());
    if let Some(fault) = written("toolId").and_then(id_fault) {
        reader.error(Code::Schema, "/toolId", fault);
    }
    let version = written("version").and_then(|version| strict_version(reader, version));
    for field in ["displayName", "description"] {
        visible(reader, field, written(field).unwrap_or_default());
    }
    let is_final = top["presentation"]["final"] == true;
    if is_final {
        let message = "not built yet: no face shows a result to the user by itself, so it is ignored";
        reader.note(Code::Schema, "/presentation/final", message);
    }
    let handler = handler(reader, top);
    let parameters = compile(reader, top, "parameters");
    let output = compile(reader, top, "output");
    let mut asks = asks(reader, top);
    if let Some(Handler::Document(document)) = &handler {
        asks.read = Some(document.reads());
    }
    if let Some(Handler::ToolService(_)) = &handler {
        descriptor::asks_nothing(reader, top);
        asks.read = Some(Vec::new());
    }
    let execution = execution(reader, top);
    let requires = requires(reader, top);
    let limits = limits(reader, top);
    Some(Manifest {
        id: written("toolId")?.to_owned(),
        display_name: written("displayName")?.to_owned(),
        description: written("description")?.to_owned(),
        version: version?,
        handler: handler?,
        parameters,
        output,
        asks,
        execution,
        limits,
        idempotent: top["idempotent"] == true,
        is_final,
        hidden: top["presentation"]["hidden"] == true,
        model_name: top["presentation"]["modelName"].as_str().map(str::to_owned),
        schema_as_written: top["presentation"]["schemaAsWritten"] == true,
        metadata: metadata(top),
        requires,
        examples: examples(top),
        tags: texts(top, "/tags").into_iter().map(|(_, tag)| tag.to_owned()).collect(),
        raw: top.clone(),
        digest: crate::base::sha256_hex(bytes),
    })
}

/// The limits that are written, each at most what has an effect.
fn limits(reader: &mut Reader<'_>, top: &Value) -> BTreeMap<Limit, u64> {
    let written =
        published::limit_names().filter_map(|limit| Some((limit, json::whole(&top["limits"][limit.name()])?)));
    let clamped = written.map(|(limit, value)| {
        if value > limit.most() {
            let message = format!("clamped to {}, the largest response: write at most that", limit.most());
            reader.warn(Code::Schema, &format!("/limits/{}", limit.name()), message);
        }
        (limit, value.min(limit.most()))
    });
    clamped.collect()
}

fn strict_version(reader: &mut Reader<'_>, written: &str) -> Option<semver::Version> {
    // The semver crate takes texts of any length; versions are kept short.
    let version = semver::Version::parse(written).map_err(|error| error.to_string());
    match version {
        Ok(version) if written.len() <= 128 => Some(version),
        wrong => {
            let why = wrong.err().map_or_else(String::new, |why| format!(" ({why})"));
            let shown = text::head(written, 40);
            let message = format!("'{shown}' is not a semantic version{why}: write three numbers, for example 1.0.0");
            reader.error(Code::Schema, "/version", message);
            None
        }
    }
}

/// Compiles the schema under `key`; the pointers of its problems lead into it.
fn compile(reader: &mut Reader<'_>, top: &Value, key: &str) -> Option<schema::Schema> {
    let raw = top.get(key).filter(|raw| raw.is_object())?;
    if key == "parameters" && raw["type"] != "object" {
        let at = if raw.get("type").is_some() { "/parameters/type" } else { "/parameters" };
        reader.error(Code::Schema, at, "arguments are always one object: write \"type\": \"object\"");
    }
    match schema::Schema::compile(raw) {
        Ok(schema) => {
            for (at, message) in schema.remarks() {
                reader.warn(Code::Schema, &format!("/{key}{at}"), message);
            }
            Some(schema)
        }
        Err(faults) => {
            for fault in faults {
                reader.error(fault.code, &format!("/{key}{}", fault.pointer), fault.message);
            }
            None
        }
    }
}

/// Warns of invisible text: a model reads it and the operator does not see it.
fn visible(reader: &mut Reader<'_>, field: &str, said: &str) {
    let plain: String = said.chars().filter(|c| !matches!(c, '\n' | '\r' | '\t')).collect();
    if !text::is_printable(&plain) {
        let message =
            format!("'{field}' holds control or invisible characters: {}", text::head(&text::printable(said), 200));
        reader.warn(Code::Security, &format!("/{field}"), message);
    }
}

/// Most patterns in one list.
const MAX_PATTERNS: usize = 256;
/// Longest toolId, bytes.
const MAX_ID: usize = 128;

/// The texts of a list, with their pointers.
fn texts<'d>(top: &'d Value, pointer: &str) -> Vec<(String, &'d str)> {
    let items = top.pointer(pointer).and_then(Value::as_array).into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| Some((format!("{pointer}/{index}"), item.as_str()?))).collect()
}

/// The members of an object that are texts: pointer, name, text.
fn named<'d>(top: &'d Value, pointer: &str) -> Vec<(String, &'d str, &'d str)> {
    let members = top.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    members.filter_map(|(name, value)| Some((below(pointer, name), name.as_str(), value.as_str()?))).collect()
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Why this is no toolId (`namespace:tool-name`). `__` is kept free for the names of other protocols (`ns__tool`).
pub fn id_fault(id: &str) -> Option<String> {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && !part.contains("__")
    };
    let good = id.len() <= MAX_ID && id.split_once(':').is_some_and(|(namespace, name)| part(namespace) && part(name));
    (!good).then(|| {
        format!(
            "'{}' is not a toolId: write namespace:tool-name, for example custom:my-tool (ASCII letters, digits, \
             '.', '-', single '_'; at most {MAX_ID} characters)",
            text::printable(&text::head(id, 80))
        )
    })
}

/// `x-` and a name: a type that an embedding program registered an executor for.
pub fn extension_kind(kind: &str) -> bool {
    kind.len() <= 64
        && kind.strip_prefix("x-").is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

fn handler(reader: &mut Reader<'_>, top: &Value) -> Option<Handler> {
    let handler = &top["handler"];
    let language = handler["language"].as_str().and_then(Language::from_word);
    match handler["type"].as_str().filter(|kind| !kind.trim().is_empty())? {
        "external-script" => script(reader, handler, language),
        "service-method" => {
            let parameter_map = parameter_map(reader, top);
            let (service, method) = (text_of(&handler["serviceName"])?, text_of(&handler["methodName"])?);
            Some(Handler::ServiceMethod { service, method, language, parameter_map })
        }
        "tool-service" => descriptor::handler(reader, top).map(|remote| Handler::ToolService(Box::new(remote))),
        "definition-only" => Some(Handler::DefinitionOnly),
        "prompt" | "resource" => document::read(reader, top).map(Handler::Document),
        kind if extension_kind(kind) => Some(Handler::Extension { kind: kind.to_owned() }),
        other => {
            let known = ["external-script", "service-method", "prompt", "resource", "tool-service", "definition-only"];
            let message = format!(
                "'{}' is not a handler type{}; known: {}; an embedding program's own start with x-",
                text::head(other, 80),
                suggest::hint(other, known),
                known.join(", ")
            );
            reader.error(Code::Schema, "/handler/type", message);
            None
        }
    }
}

fn script(reader: &mut Reader<'_>, handler: &Value, language: Option<Language>) -> Option<Handler> {
    let entry_point = text_of(&handler["entryPoint"]);
    if entry_point.as_ref().is_some_and(|name| !function_name(name)) {
        let message =
            "must be the name of one function: letters, digits, '_', '$', '-' and '.', not starting with a digit";
        reader.error(Code::Schema, "/handler/entryPoint", message);
    }
    let script_path = text_of(&handler["scriptPath"]).filter(|path| !path.trim().is_empty())?;
    let language = language?;
    if !language.fits_file_name(&script_path) {
        let name = language.name();
        match Language::of_file_name(&script_path).first() {
            Some(of_file) => {
                let of_file = of_file.name();
                let message = format!("the language is {name} but the file name says {of_file}: one of them is wrong");
                reader.error(Code::Schema, "/handler/language", message);
            }
            None => {
                let message = format!("the name of a {name} script ends in {}: name the file so", language.endings());
                reader.error(Code::Schema, "/handler/scriptPath", message);
            }
        }
    }
    Some(Handler::Script { script_path, language, entry_point })
}

fn function_name(name: &str) -> bool {
    name.len() <= 128
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '$')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'-' | b'.'))
}

fn parameter_map(reader: &mut Reader<'_>, top: &Value) -> BTreeMap<String, String> {
    let (mut map, mut targets) = (BTreeMap::new(), BTreeSet::new());
    for (pointer, from, to) in named(top, "/handler/parameterMap") {
        if to.is_empty() {
            reader.error(Code::Schema, &pointer, "is empty: write the method's name for this input");
        } else if !targets.insert(to) {
            reader.error(Code::Schema, &pointer, "two inputs get the same new name: only one could arrive");
        }
        map.insert(from.to_owned(), to.to_owned());
    }
    map
}

fn asks(reader: &mut Reader<'_>, top: &Value) -> Asks {
    let read = patterns(reader, top, "/securityContext/fileAccess/allowRead");
    let write = patterns(reader, top, "/securityContext/fileAccess/allowWrite");
    let never = |pattern: &Pattern| pattern.from_base || pattern.shape == PatternShape::SelfScript;
    for (pointer, _) in write.iter().flatten().filter(|(_, pattern)| never(pattern)) {
        let message =
            "a script never writes its own file, nor what tools share by `base:`: name a folder for its results";
        reader.error(Code::Security, pointer, message);
    }
    let plain = |found: Vec<(String, Pattern)>| found.into_iter().map(|(_, pattern)| pattern).collect::<Vec<_>>();
    let mut asks = Asks { read: read.map(plain), write: write.map(plain).unwrap_or_default(), ..Asks::default() };
    asks.hosts = hosts(reader, top);
    for (pointer, word) in texts(top, "/securityContext/requiredCapabilities") {
        if word.trim().is_empty() {
            reader.error(Code::Security, &pointer, "an empty capability asks for nothing: take it away");
        }
        asks.capabilities.push(word.to_owned());
    }
    asks
}

fn hosts(reader: &mut Reader<'_>, top: &Value) -> Vec<HostPattern> {
    let list = "/securityContext/networkAccess/allowHosts";
    let written = texts(top, list);
    if written.len() > MAX_HOSTS {
        let message = format!("more than {MAX_HOSTS} hosts: name what they have in common (*.example.com)");
        reader.error(Code::Security, list, message);
    }
    let mut found = Vec::new();
    for (pointer, written) in written.into_iter().take(MAX_HOSTS) {
        match host::pattern(written) {
            Ok(host) => found.push(host),
            // Not `Security`: the text is no host name at all.
            Err(why) => reader.error(Code::Schema, &pointer, why),
        }
    }
    let ports: BTreeSet<u16> = found.iter().flat_map(HostPattern::ports).collect();
    if ports.len() > MAX_PORTS {
        let message = format!("names {} ports, and a call has at most {MAX_PORTS}: name fewer", ports.len());
        reader.error(Code::Security, list, message);
    }
    found
}

/// `None` where the list is not there.
fn patterns(reader: &mut Reader<'_>, top: &Value, pointer: &str) -> Option<Vec<(String, Pattern)>> {
    top.pointer(pointer)?;
    let written = texts(top, pointer);
    if written.len() > MAX_PATTERNS {
        let message = format!("more than {MAX_PATTERNS} patterns: name folders instead of files");
        reader.error(Code::Security, pointer, message);
    }
    let mut found = Vec::new();
    for (pointer, text) in written.into_iter().take(MAX_PATTERNS) {
        match pattern::parse(text) {
            Ok(pattern) => found.push((pointer, pattern)),
            Err(why) => reader.error(Code::Security, &pointer, why),
        }
    }
    Some(found)
}

fn execution(reader: &mut Reader<'_>, top: &Value) -> Execution {
    let block = &top["execution"];
    if block["warm"] == true {
        let message = "warm starts are not built yet: every call starts cold, which is only slower";
        reader.warn(Code::Schema, "/execution/warm", message);
    }
    let (mut env, mut size) = (BTreeMap::new(), 0);
    for (pointer, name, value) in named(top, "/execution/env") {
        size += name.len() + value.len() + 2;
        if let Some(why) = environment::refused(name, value) {
            reader.error(Code::Security, &pointer, why);
        }
        env.insert(name.to_owned(), value.to_owned());
    }
    if size > MAX_ENV_BYTES {
        let message =
            format!("more than {MAX_ENV_BYTES} bytes of environment: put large data into a file beside the script");
        reader.error(Code::Schema, "/execution/env", message);
    }
    Execution {
        timeout_ms: json::whole(&block["timeoutMs"]),
        stderr: if block["stderr"] == "error" { StderrRule::Error } else { StderrRule::Log },
        text_output: block["output"] == "text",
        asynchronous: block["mode"] == "async",
        task: match block["task"].as_str() {
            Some("optional") => Some(TaskUse::Optional),
            Some("required") => Some(TaskUse::Required),
            _ => None,
        },
        env,
    }
}

fn metadata(top: &Value) -> Metadata {
    let block = &top["metadata"];
    let permissions = texts(top, "/metadata/permissions").into_iter().map(|(_, label)| label.to_owned()).collect();
    Metadata { category: text_of(&block["category"]), author: text_of(&block["author"]), permissions }
}

fn requires(reader: &mut Reader<'_>, top: &Value) -> BTreeMap<String, semver::VersionReq> {
    let mut requires = BTreeMap::new();
    for (pointer, id, range) in named(top, "/requires") {
        if let Some(fault) = id_fault(id) {
            reader.error(Code::Schema, &pointer, fault);
        } else if top["toolId"] == id {
            reader.error(Code::Dependency, &pointer, "a tool cannot require itself");
        }
        match super::version_range(range) {
            Ok(range) => drop(requires.insert(id.to_owned(), range)),
            Err(why) => {
                let shown = text::head(range, 40);
                let message = format!("'{shown}' is not a version range ({why}): write for example ^1.2");
                reader.error(Code::Schema, &pointer, message);
            }
        }
    }
    requires
}

fn examples(top: &Value) -> Vec<Example> {
    let items = top["examples"].as_array().into_iter().flatten().filter_map(Value::as_object);
    let example = |item: &Map<String, Value>| Example {
        description: item.get("description").and_then(text_of).unwrap_or_default(),
        input: item.get("input").cloned().unwrap_or_default(),
        expected_output: item.get("expectedOutput").cloned(),
    };
    items.map(example).collect()
}
