//! The bytes of one manifest file → `Manifest`, or every problem of the file at once.
//!
//! The published JSON Schema says which values are accepted. This file checks the rest: texts with
//! their own grammar, and values that exclude each other. A request that is not understood refuses
//! the manifest.

use super::client::ClientTool;
use super::command_line::CommandLine;
use super::host::{self, HostPattern};
use super::pattern::{self, Pattern, PatternShape};
use super::reader::{Reader, below};
use super::schema::Schema;
use super::selector::Selector;
use super::types::{
    Alias, Execution, Handler, Language, Manifest, ManifestResult, McpServer, RequestedAccess,
    ScriptReference, extension_kind, id_fault, version_range,
};
use super::{arguments, descriptor, document, environment};
use crate::base::problem::{Code, Problem};
use crate::base::{json, suggest, text};
use crate::quantity::{LONG_CHECK_STEPS, Limit, MAX_ENV_BYTES, MAX_HOSTS, MAX_PORTS};
use crate::schemas::MANIFEST;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The answer of such a tool would reach neither a person nor the model.
pub const FINAL_AND_HIDDEN: &str = "a tool that is `final` answers to the person, from whom \
    `hidden` keeps its output: leave one of them out (an alias has both from its tool, unless it \
    says `false`)";
/// Most patterns in one list.
const MAX_PATTERNS: usize = 256;

/// Reads one manifest. Problems returned with it are warnings and notes.
pub fn read(bytes: &[u8]) -> ManifestResult {
    let document = json::parse(bytes, json::Dialect::Commented).map_err(|problem| vec![problem])?;
    if let Some(read) = descriptor::tool_file(&document, bytes) {
        return read;
    }
    let mut reader = Reader::from_json(&document);
    if !(MANIFEST.is_valid)(&document.value) {
        reader.check_schema(&MANIFEST, &document.value, "");
        reader.refuse_unless_faulty();
    }
    let manifest = manifest(&mut reader, &document.value, bytes);
    if let Some(manifest) = &manifest {
        lint(&mut reader, manifest);
    }
    reader.finish(manifest)
}

/// Reads every field first, to report all problems at once; only then does a missing field return
/// `None`.
fn manifest(reader: &mut Reader<'_>, top: &Value, bytes: &[u8]) -> Option<Manifest> {
    let id: Option<String> = reader.get("/toolId");
    if let Some(fault) = id.as_deref().and_then(id_fault) {
        reader.error(Code::Schema, "/toolId", fault);
    }
    let version: Option<String> = reader.get("/version");
    let version = version.and_then(|written| reader.parsed("/version", strict_version(&written)));
    for pointer in ["/displayName", "/description"] {
        reader.warn_of_invisible(pointer);
    }
    for block in ["", "/execution", "/presentation", "/metadata"] {
        warn_of_unknown_names(reader, top, block);
    }
    let handler = handler(reader, top);
    let parameters = match &handler {
        Some(Handler::Client(tool)) if *tool != ClientTool::Function => {
            tool.parameters().and_then(|own| Schema::compile(&own).ok())
        }
        _ => compile(reader, top, "parameters"),
    };
    let output = compile(reader, top, "output");
    let mut requested = requests(reader, top);
    match &handler {
        Some(Handler::Document(document)) => requested.read = Some(document.reads()),
        Some(Handler::ToolService(_)) => {
            descriptor::refuse_requests(reader, top);
            requested.read = Some(Vec::new());
        }
        Some(Handler::Client(_) | Handler::Alias(_)) => requested.read = Some(Vec::new()),
        _ => {}
    }
    let mut execution = execution(reader, top);
    let has_line = match &handler {
        Some(Handler::Script(script)) => {
            script.language != Language::Wasm && script.entry_point.is_none()
        }
        handler => handler.is_none(),
    };
    execution.command_line = CommandLine::read(reader, has_line, parameters.as_ref());
    if !has_line {
        let message = "only a script in Python, Node.js or Bun without `entryPoint` answers by an exit \
                       status: leave this out";
        reader.refuse_fields(&["execution/answers"], message);
    }
    let presentation = &top["presentation"];
    let is_final = presentation["final"] == true;
    let hidden = presentation["hidden"] == true;
    if is_final && hidden {
        reader.error(Code::Schema, "/presentation/hidden", FINAL_AND_HIDDEN);
    }
    let requires = requires(reader, top);
    let calls = calls(reader, handler.as_ref());
    let limits = limits(reader, top);
    let metadata = reader.get("/metadata");
    let examples = reader.get("/examples");
    let tags = reader.get("/tags");
    Some(Manifest {
        id: id?,
        display_name: reader.get("/displayName")?,
        description: reader.get("/description")?,
        version: version?,
        handler: handler?,
        parameters,
        output,
        requested,
        execution,
        limits,
        idempotent: top["idempotent"] == true,
        is_final,
        hidden,
        // Of a server only its tools are offered.
        is_listed: presentation["listed"] != false && top["handler"]["type"] != "mcp",
        model_name: reader.get("/presentation/modelName"),
        schema_as_written: presentation["schemaAsWritten"] == true,
        metadata: metadata.unwrap_or_default(),
        requires,
        calls,
        approval: reader.get("/approval/sha256"),
        examples: examples.unwrap_or_default(),
        tags: tags.unwrap_or_default(),
        raw: top.clone(),
        digest: crate::base::sha256_hex(bytes),
    })
}

/// Keeps unknown names. Warns of one that resembles a known name or belongs elsewhere, and of each
/// in `execution`, where a name looks effective.
fn warn_of_unknown_names(reader: &mut Reader<'_>, top: &Value, block: &str) {
    let schema = if block.is_empty() {
        &*MANIFEST.json
    } else {
        &MANIFEST.json["properties"][&block[1..]]
    };
    let known: Vec<&str> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    for name in top
        .pointer(block)
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|map| map.keys())
    {
        if known.contains(&name.as_str()) || name.starts_with("x-") || name.starts_with('$') {
            continue;
        }
        let fix = match (
            suggest::nearest(name, known.iter().copied()),
            block_of_field(&MANIFEST.json, "", name),
        ) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some(owner)) if block.is_empty() => format!("it belongs in {owner}"),
            (None, _) if block == "/execution" => format!("known here: {}", known.join(", ")),
            _ => continue,
        };
        reader.warn_of_name(
            &below(block, name),
            format!("`{}` does nothing here: {fix}", text::head(name, 80)),
        );
    }
}

/// The first block of the schema that has a field of this name.
fn block_of_field(schema: &Value, at: &str, name: &str) -> Option<String> {
    let fields = schema["properties"].as_object();
    if fields.is_some_and(|fields| fields.contains_key(name)) {
        return Some(at.to_owned());
    }
    let forms = schema["allOf"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|form| (at.to_owned(), &form["then"]));
    let blocks = fields
        .into_iter()
        .flatten()
        .map(|(field, block)| (below(at, field), block));
    blocks
        .chain(forms)
        .find_map(|(at, block)| block_of_field(block, &at, name))
}

/// The limits of the manifest, each clamped to the largest value that has an effect.
fn limits(reader: &mut Reader<'_>, top: &Value) -> BTreeMap<Limit, u64> {
    let mut limits = BTreeMap::new();
    for limit in Limit::ALL {
        let pointer = format!("/limits/{}", limit.name());
        let Some(value) = whole(reader, top, &pointer) else {
            continue;
        };
        if value > limit.most() {
            let message = format!(
                "clamped to {}, the largest response: write at most that",
                limit.most()
            );
            reader.warn(&pointer, message);
        }
        limits.insert(limit, value.min(limit.most()));
    }
    limits
}

/// A whole number that fits in 64 bits. To JSON Schema large reals (1e300) are whole numbers, too.
fn whole(reader: &mut Reader<'_>, top: &Value, pointer: &str) -> Option<u64> {
    let written = top.pointer(pointer)?;
    let read = json::whole(written)
        .ok_or_else(|| "must be a whole number that fits in 64 bits".to_owned());
    reader.parsed(pointer, read)
}

fn strict_version(written: &str) -> Result<semver::Version, String> {
    semver::Version::parse(written).map_err(|why| {
        let shown = text::head(written, 40);
        format!(
            "'{shown}' is not a semantic version ({why}): write three numbers, for example 1.0.0"
        )
    })
}

/// Compiles the schema under `key`; the pointers of its problems lead into it.
fn compile(reader: &mut Reader<'_>, top: &Value, key: &str) -> Option<Schema> {
    let raw = top.get(key).filter(|raw| raw.is_object())?;
    Schema::compile(raw)
        .map_err(|fault: Problem| {
            reader.error(
                fault.code,
                &format!("/{key}{}", fault.pointer),
                fault.message,
            )
        })
        .ok()
}

fn handler(reader: &mut Reader<'_>, top: &Value) -> Option<Handler> {
    let handler = &top["handler"];
    let text = |field: &str| handler[field].as_str().map(str::to_owned);
    let language = handler["language"].as_str().and_then(Language::from_word);
    match handler["type"].as_str()? {
        kind @ ("external-script" | "mcp") => {
            let script = ScriptReference {
                path: text("scriptPath")?,
                language: language?,
                entry_point: text("entryPoint"),
            };
            Some(if kind == "mcp" {
                Handler::McpServer(McpServer::read(reader, script))
            } else {
                Handler::Script(script)
            })
        }
        "service-method" => {
            let mut parameter_map = BTreeMap::new();
            let mut targets = BTreeSet::new();
            for (pointer, from, to) in reader.texts("/handler/parameterMap", usize::MAX) {
                if !targets.insert(to) {
                    reader.error(
                        Code::Schema,
                        &pointer,
                        "two inputs get the same new name: only one could arrive",
                    );
                }
                parameter_map.insert(from.to_owned(), to.to_owned());
            }
            let service = text("serviceName")?;
            let method = text("methodName")?;
            Some(Handler::ServiceMethod {
                service,
                method,
                language,
                parameter_map,
            })
        }
        "tool-service" => {
            descriptor::handler(reader, top).map(|remote| Handler::ToolService(Box::new(remote)))
        }
        "definition-only" => ClientTool::read(reader, top).map(Handler::Client),
        "alias" => Some(Handler::Alias(alias(reader)?)),
        "prompt" | "resource" => document::read(reader, top).map(Handler::Document),
        kind => extension_kind(kind).then(|| Handler::Extension {
            kind: kind.to_owned(),
        }),
    }
}

/// What an alias does not say itself is what its tool says.
fn alias(reader: &mut Reader<'_>) -> Option<Alias> {
    let of_tool = [
        "parameters",
        "output",
        "securityContext",
        "limits",
        "execution",
        "calls",
        "idempotent",
    ];
    reader.refuse_fields(&of_tool, "an alias has what its tool has: leave this out");
    let tool: String = reader.get("/handler/tool")?;
    if let Some((_, range)) = tool.split_once('@') {
        let read = version_range(range).map_err(|why| {
            let shown = text::head(range, 40);
            format!("'{shown}' is not a version range ({why}): write for example @^1.2")
        });
        reader.parsed("/handler/tool", read);
    }
    let arguments = reader.get("/handler/arguments").unwrap_or_default();
    Some(Alias { tool, arguments })
}

fn requests(reader: &mut Reader<'_>, top: &Value) -> RequestedAccess {
    let read = patterns(reader, "/securityContext/fileAccess/allowRead");
    let write = patterns(reader, "/securityContext/fileAccess/allowWrite");
    let is_server = top["handler"]["type"] == "mcp";
    for (pointer, pattern) in &write {
        if is_server && !matches!(pattern.shape, PatternShape::Tree { .. }) {
            let message = "an MCP server goes on between its calls, so single files are never \
                published: name the folder for them (`data/**`)";
            reader.error(Code::Security, pointer, message);
        }
        if pattern.from_base || pattern.shape == PatternShape::SelfScript {
            let message = "a script cannot write its own file, or what tools share by `base:`: \
                name a folder for its results";
            reader.error(Code::Security, pointer, message);
        }
    }
    fn plain(found: Vec<(String, Pattern)>) -> Vec<Pattern> {
        found
            .into_iter()
            .map(|(_, pattern)| pattern)
            .collect::<Vec<_>>()
    }
    let capabilities = reader
        .get("/securityContext/requiredCapabilities")
        .unwrap_or_default();
    let is_listed = top["securityContext"]["fileAccess"]
        .get("allowRead")
        .is_some();
    RequestedAccess {
        read: is_listed.then(|| plain(read)),
        write: plain(write),
        hosts: hosts(reader),
        capabilities,
    }
}

fn patterns(reader: &mut Reader<'_>, pointer: &str) -> Vec<(String, Pattern)> {
    let written = reader.texts(pointer, MAX_PATTERNS).into_iter();
    written
        .filter_map(|(at, _, text): (String, _, _)| match pattern::parse(text) {
            Ok(pattern) => Some((at, pattern)),
            Err(why) => {
                reader.error(Code::Security, &at, why);
                None
            }
        })
        .collect()
}

fn hosts(reader: &mut Reader<'_>) -> Vec<HostPattern> {
    let list = "/securityContext/networkAccess/allowHosts";
    let written = reader.texts(list, MAX_HOSTS).into_iter();
    let found: Vec<_> = written
        .filter_map(|(at, _, text)| reader.parsed(&at, host::parse_pattern(text)))
        .collect();
    let ports: BTreeSet<u16> = found.iter().flat_map(HostPattern::ports).collect();
    if ports.len() > MAX_PORTS {
        let message = format!(
            "names {} ports, and a call has at most {MAX_PORTS}: name fewer",
            ports.len()
        );
        reader.error(Code::Security, list, message);
    }
    found
}

fn execution(reader: &mut Reader<'_>, top: &Value) -> Execution {
    let block = &top["execution"];
    let mut env = BTreeMap::new();
    let mut size = 0;
    for (pointer, name, value) in reader.texts("/execution/env", usize::MAX) {
        size += name.len() + value.len() + 2;
        if let Some(why) = environment::refusal_reason(name, value) {
            reader.error(Code::Security, &pointer, why);
        }
        env.insert(name.to_owned(), value.to_owned());
    }
    if size > MAX_ENV_BYTES {
        let message = format!(
            "more than {MAX_ENV_BYTES} bytes of environment: put large data into a file beside the \
            script"
        );
        reader.error(Code::Schema, "/execution/env", message);
    }
    Execution {
        timeout_ms: whole(reader, top, "/execution/timeoutMs"),
        stderr: reader.get("/execution/stderr").unwrap_or_default(),
        command_line: None,
        // What prints no JSON for a terminal prints text.
        text_output: block["output"] == "text"
            || block["input"] == "argv" && block["output"] != "json",
        answers: reader.get("/execution/answers").unwrap_or_default(),
        context: block["context"] == true,
        asynchronous: block["mode"] == "async",
        task: reader.get("/execution/task"),
        ready: block["ready"] == true,
        env,
    }
}

fn requires(reader: &mut Reader<'_>, top: &Value) -> BTreeMap<String, semver::VersionReq> {
    let mut requires = BTreeMap::new();
    for (pointer, id, range) in reader.texts("/requires", usize::MAX) {
        if let Some(fault) = id_fault(id) {
            reader.error(Code::Schema, &pointer, fault);
        } else if top["toolId"] == id {
            reader.error(Code::Dependency, &pointer, "a tool cannot require itself");
        }
        let shown = text::head(range, 40);
        let read = version_range(range).map_err(|why| {
            format!("'{shown}' is not a version range ({why}): write for example ^1.2")
        });
        if let Some(range) = reader.parsed(&pointer, read) {
            requires.insert(id.to_owned(), range);
        }
    }
    requires
}

/// The tools that its code calls. Only Python and Node have a way to.
fn calls(reader: &mut Reader<'_>, handler: Option<&Handler>) -> Vec<Selector> {
    let calls: Vec<Selector> = reader.get("/calls").unwrap_or_default();
    let can_call = matches!(
        handler,
        Some(Handler::Script(ScriptReference {
            language: Language::Python | Language::Nodejs,
            ..
        })) | None
    );
    if !calls.is_empty() && !can_call {
        let message = "only the code of scripts in Python and Node.js can call tools: leave it out";
        reader.error(Code::Schema, "/calls", message);
    }
    calls
}

/// Warns of parameters that load, but that a model reads badly or most model APIs refuse.
fn lint(reader: &mut Reader<'_>, manifest: &Manifest) {
    let Some(parameters) = &manifest.parameters else {
        return;
    };
    for keyword in ["oneOf", "anyOf", "allOf", "not", "enum"] {
        if parameters.raw.get(keyword).is_some() {
            let message = format!(
                "most model APIs refuse '{keyword}' at the top of parameters: move it into a \
                property"
            );
            reader.warn(&format!("/parameters/{keyword}"), message);
        }
    }
    for (name, property) in parameters
        .raw
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let is_described = property
            .get("description")
            .and_then(Value::as_str)
            .is_some_and(|d| !d.trim().is_empty());
        if !is_described && !property.get("$ref").is_some_and(Value::is_string) {
            let message = format!(
                "the parameter '{}' has no description: a model cannot know what to put there",
                text::head(name, 80)
            );
            reader.warn(&below("/parameters/properties", name), message);
        }
    }
    let required = parameters
        .raw
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate();
    for (index, name) in required.filter_map(|(index, name)| Some((index, name.as_str()?))) {
        if !arguments::declares(&parameters.raw, name)
            && parameters.raw.get("patternProperties").is_none()
        {
            let message = format!(
                "'{}' is required, but properties does not declare it",
                text::head(name, 80)
            );
            reader.warn(&format!("/parameters/required/{index}"), message);
        }
    }
    let mut steps = 0;
    for (index, example) in manifest.examples.iter().enumerate() {
        steps += parameters.steps(&example.input);
        let message = if steps > LONG_CHECK_STEPS {
            "the examples are too large: this one was not checked against the parameters".to_owned()
        } else if let Err(fault) = arguments::check(manifest, example.input.clone(), false) {
            format!("the example does not fit the parameters: {}", fault.message)
        } else {
            continue;
        };
        reader.warn(&format!("/examples/{index}/input"), message);
    }
}
