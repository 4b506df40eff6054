//! The bytes of one manifest file → `Manifest`, or every problem of the file at once.

use super::reader::Reader;
use super::{Code, Handler, Manifest, Problem, blocks, descriptor, lint, published, schema};
use crate::base::{json, text};
use crate::quantity::Limit;
use serde_json::Value;
use std::collections::BTreeMap;

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
    if let Some(fault) = written("toolId").and_then(blocks::id_fault) {
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
    let handler = blocks::handler(reader, top);
    let parameters = compile(reader, top, "parameters");
    let output = compile(reader, top, "output");
    let mut asks = blocks::asks(reader, top);
    if let Some(Handler::Document(document)) = &handler {
        asks.read = Some(document.reads());
    }
    if let Some(Handler::ToolService(_)) = &handler {
        descriptor::asks_nothing(reader, top);
        asks.read = Some(Vec::new());
    }
    let execution = blocks::execution(reader, top);
    let requires = blocks::requires(reader, top);
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
        metadata: blocks::metadata(top),
        requires,
        examples: blocks::examples(top),
        tags: blocks::texts(top, "/tags").into_iter().map(|(_, tag)| tag.to_owned()).collect(),
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
