//! File: the bytes of one manifest file → `Manifest`, or every problem of the file at once.
//!
//! For: the registry. In: bytes. Out: a manifest with its warnings, or problems with pointer, line, column.
//! Never: touches the file system; takes a misspelt or wrongly typed restriction for a missing one.

use super::reader::{Object, Reader, Unknown, below};
use super::{Code, Manifest, Problem, Severity, asks, blocks, handler, json, lint, schema, text};
use crate::quantity::MAX_REGEX_WEIGHT;
use serde_json::Value;

/// Every field the reader knows at the top. `published` and its test keep the JSON Schema equal to it.
pub(super) const FIELDS: &[&str] = &[
    "$schema",
    "toolId",
    "displayName",
    "description",
    "version",
    "handler",
    "parameters",
    "output",
    "securityContext",
    "examples",
    "tags",
    "execution",
    "limits",
    "presentation",
    "metadata",
    "requires",
];

/// Longest toolId, bytes.
const MAX_ID: usize = 128;

/// Reads one manifest. The problems beside a manifest are warnings and notes.
pub fn read(bytes: &[u8]) -> Result<(Manifest, Vec<Problem>), Vec<Problem>> {
    let document = json::parse(bytes, json::Dialect::Commented).map_err(|problem| vec![problem])?;
    let mut reader = Reader::new(&document);
    let manifest = manifest(&mut reader, &document.value, bytes);
    let mut problems = reader.problems;
    match manifest {
        Some(manifest) if problems.iter().all(|p| p.severity != Severity::Error) => Ok((manifest, problems)),
        _ => {
            problems.sort_by_key(|p| (std::cmp::Reverse(p.severity), p.line, p.column));
            Err(problems)
        }
    }
}

fn manifest<'d>(reader: &mut Reader<'d>, value: &'d Value, bytes: &[u8]) -> Option<Manifest> {
    let top = reader.object(value, "")?;
    reader.unknown_keys(top, "", FIELDS, Unknown::Kept, Code::Schema);
    // Every line runs, so that all problems are told at once; only then does a missing part end it (`?`).
    let id = reader.required_text(top, "", "toolId").and_then(|id| tool_id(reader, id));
    let display_name = reader.required_text(top, "", "displayName");
    let description = reader.required_text(top, "", "description");
    let version = reader.required_text(top, "", "version").and_then(|version| strict_version(reader, version));
    let handler = handler::read(reader, top);
    let mut room = MAX_REGEX_WEIGHT;
    let parameters = compile(reader, top, "parameters", &mut room);
    let output = compile(reader, top, "output", &mut room);
    let asks = asks::read(reader, top);
    let execution = blocks::execution(reader, top);
    let limits = blocks::limits(reader, top);
    let (is_final, hidden) = blocks::presentation(reader, top);
    let metadata = blocks::metadata(reader, top);
    let requires = blocks::requires(reader, top, id.as_deref());
    let tags = reader.strings(top, "", "tags").unwrap_or_default();
    let examples = blocks::examples(reader, top);
    for (field, said) in [("displayName", display_name), ("description", description)] {
        visible(reader, field, said.unwrap_or_default());
    }
    let manifest = Manifest {
        id: id?,
        display_name: display_name?.to_owned(),
        description: description?.to_owned(),
        version: version?,
        handler: handler?,
        parameters,
        output,
        asks,
        execution,
        limits,
        is_final,
        hidden,
        metadata,
        requires,
        examples,
        tags: tags.into_iter().map(|(_, tag)| tag.to_owned()).collect(),
        raw: value.clone(),
        digest: super::sha256_hex(bytes),
    };
    lint_parameters(reader, &manifest);
    Some(manifest)
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

fn tool_id(reader: &mut Reader<'_>, id: &str) -> Option<String> {
    match id_fault(id) {
        None => Some(id.to_owned()),
        Some(fault) => {
            reader.error(Code::Schema, "/toolId", fault);
            None
        }
    }
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
fn compile<'d>(reader: &mut Reader<'d>, top: &'d Object, key: &str, room: &mut usize) -> Option<schema::Schema> {
    let raw = top.get(key)?;
    let pointer = below("", key);
    if !raw.is_object() {
        reader.wrong_type(&pointer, "a JSON Schema (an object)", raw);
        return None;
    }
    if key == "parameters" && raw.get("type") != Some(&Value::String("object".to_owned())) {
        let at = if raw.get("type").is_some() { "/parameters/type" } else { "/parameters" };
        reader.error(Code::Schema, at, "arguments are always one object: write \"type\": \"object\"");
    }
    match schema::Schema::compile_within(raw, room) {
        Ok(schema) => {
            for (at, message) in lint::schema(raw) {
                reader.warn(Code::Schema, &format!("{pointer}{at}"), message);
            }
            Some(schema)
        }
        Err(faults) => {
            for fault in faults {
                reader.error(fault.code, &format!("{pointer}{}", fault.pointer), fault.message);
            }
            None
        }
    }
}

/// Warns of parameters that load, but that a model reads badly or most model APIs refuse.
fn lint_parameters(reader: &mut Reader<'_>, manifest: &Manifest) {
    let Some(parameters) = &manifest.parameters else { return };
    for keyword in ["oneOf", "anyOf", "allOf", "not", "enum"] {
        if parameters.raw.get(keyword).is_some() {
            let message =
                format!("most model APIs refuse '{keyword}' at the top of parameters: move it into a property");
            reader.warn(Code::Schema, &format!("/parameters/{keyword}"), message);
        }
    }
    for (name, property) in parameters.raw.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let described = property.get("description").and_then(Value::as_str).is_some_and(|d| !d.trim().is_empty());
        if !described && !property.get("$ref").is_some_and(Value::is_string) {
            let pointer = below("/parameters/properties", name);
            let message = format!(
                "the parameter '{}' has no description: a model cannot know what to put there",
                text::head(name, 80)
            );
            reader.warn(Code::Schema, &pointer, message);
        }
    }
    for (index, name) in parameters.raw.get("required").and_then(Value::as_array).into_iter().flatten().enumerate() {
        if let Some(message) = name.as_str().and_then(|name| super::arguments::undeclared(&parameters.raw, name)) {
            reader.warn(Code::Schema, &format!("/parameters/required/{index}"), message);
        }
    }
    for (index, example) in manifest.examples.iter().enumerate() {
        if let Err(fault) = super::arguments::check(manifest, example.input.clone(), false) {
            let message = format!("the example does not fit the parameters: {}", fault.message);
            reader.warn(Code::Schema, &format!("/examples/{index}/input"), message);
        }
    }
}

/// Warns of invisible text: a model reads it and the operator does not see it.
fn visible(reader: &mut Reader<'_>, field: &str, said: &str) {
    let plain: String = said.chars().filter(|c| !matches!(c, '\n' | '\r' | '\t')).collect();
    if !text::is_printable(&plain) {
        let message =
            format!("'{field}' holds control or invisible characters: {}", text::head(&text::printable(said), 200));
        reader.warn(Code::Security, &below("", field), message);
    }
}
