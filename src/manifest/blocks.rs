//! Blocks: the smaller ones: `execution`, `limits`, `presentation`, `metadata`, `requires`, `examples`.
//!
//! For: `file`. In: the manifest's object. Out: their typed forms. Never: lets a number below its floor pass.

use super::reader::{Object, Reader, Unknown, below};
use super::{Code, Example, Execution, Metadata, StderrRule, environment, file, suggest, text};
use crate::quantity::{Limit, MAX_ENV_BYTES, MIN_TIMEOUT_MS};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) const EXECUTION_FIELDS: &[&str] = &["timeoutMs", "stderr", "mode", "env", "warm"];
pub(super) const PRESENTATION_FIELDS: &[&str] = &["final", "hidden"];
pub(super) const METADATA_FIELDS: &[&str] = &["category", "author", "permissions"];
pub(super) const EXAMPLE_FIELDS: &[&str] = &["description", "input", "expectedOutput"];

pub(super) fn execution<'d>(reader: &mut Reader<'d>, top: &'d Object) -> Execution {
    let mut execution = Execution::default();
    let at = "/execution";
    let Some(map) = reader.member(top, "", "execution") else { return execution };
    reader.unknown_keys(map, at, EXECUTION_FIELDS, Unknown::Told, Code::Schema);
    execution.timeout_ms = reader.whole(map, at, "timeoutMs");
    if execution.timeout_ms.is_some_and(|ms| ms < MIN_TIMEOUT_MS) {
        reader.error(Code::Schema, "/execution/timeoutMs", format!("must be at least {MIN_TIMEOUT_MS} (milliseconds)"));
    }
    match reader.text(map, at, "stderr") {
        None | Some("log") => {}
        Some("error") => execution.stderr = StderrRule::Error,
        Some(other) => one_of(reader, "/execution/stderr", other, &["log", "error"]),
    }
    match reader.text(map, at, "mode") {
        None | Some("sync") => {}
        Some("async") => execution.asynchronous = true,
        Some(other) => one_of(reader, "/execution/mode", other, &["sync", "async"]),
    }
    execution.warm = reader.flag(map, at, "warm").unwrap_or_default();
    if execution.warm {
        reader.warn(
            Code::Schema,
            "/execution/warm",
            "warm starts are not built yet: every call starts cold, which is only slower",
        );
    }
    execution.env = variables(reader, map);
    execution
}

fn one_of(reader: &mut Reader<'_>, pointer: &str, written: &str, known: &[&str]) {
    let near = suggest::hint(written, known.iter().copied());
    let message = format!("'{}' is not one of {}{near}", text::head(written, 40), known.join(", "));
    reader.error(Code::Schema, pointer, message);
}

fn variables<'d>(reader: &mut Reader<'d>, execution: &'d Object) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let mut size = 0;
    for (name, value) in reader.member(execution, "/execution", "env").into_iter().flatten() {
        let pointer = below("/execution/env", name);
        let Value::String(value) = value else {
            reader.wrong_type(&pointer, "a string", value);
            continue;
        };
        size += name.len() + value.len() + 2;
        if let Some(why) = environment::refused(name, value) {
            reader.error(Code::Security, &pointer, why);
        }
        env.insert(name.clone(), value.clone());
    }
    if size > MAX_ENV_BYTES {
        let message =
            format!("more than {MAX_ENV_BYTES} bytes of environment: put large data into a file beside the script");
        reader.error(Code::Schema, "/execution/env", message);
    }
    env
}

pub(super) fn limits<'d>(reader: &mut Reader<'d>, top: &'d Object) -> BTreeMap<Limit, u64> {
    let mut limits = BTreeMap::new();
    let Some(map) = reader.member(top, "", "limits") else { return limits };
    let known: Vec<_> = limit_names().map(Limit::name).collect();
    if map.contains_key(Limit::TimeoutMs.name()) {
        reader.error(
            Code::Schema,
            "/limits/timeoutMs",
            "the time limit stands in the other block: did you mean 'execution.timeoutMs'?",
        );
    }
    let mut listed = known.clone();
    listed.push(Limit::TimeoutMs.name());
    reader.unknown_keys(map, "/limits", &listed, Unknown::Refused, Code::Schema);
    for limit in limit_names() {
        let Some(number) = reader.whole(map, "/limits", limit.name()) else { continue };
        if number < limit.floor() {
            let message = format!("must be at least {}: with less no tool starts", limit.floor());
            reader.error(Code::Schema, &below("/limits", limit.name()), message);
        }
        limits.insert(limit, number);
    }
    limits
}

/// The limits of the `limits` block; the time limit is `execution.timeoutMs`.
pub(super) fn limit_names() -> impl Iterator<Item = Limit> {
    Limit::ALL.into_iter().filter(|limit| *limit != Limit::TimeoutMs)
}

/// (final, hidden)
pub(super) fn presentation<'d>(reader: &mut Reader<'d>, top: &'d Object) -> (bool, bool) {
    let at = "/presentation";
    let Some(map) = reader.member(top, "", "presentation") else { return (false, false) };
    reader.unknown_keys(map, at, PRESENTATION_FIELDS, Unknown::Kept, Code::Schema);
    let is_final = reader.flag(map, at, "final").unwrap_or_default();
    if is_final {
        let message = "not built yet: no face shows a result to the user by itself, so it is ignored";
        reader.note(Code::Schema, "/presentation/final", message);
    }
    (is_final, reader.flag(map, at, "hidden").unwrap_or_default())
}

pub(super) fn metadata<'d>(reader: &mut Reader<'d>, top: &'d Object) -> Metadata {
    let at = "/metadata";
    let Some(map) = reader.member(top, "", "metadata") else { return Metadata::default() };
    reader.unknown_keys(map, at, METADATA_FIELDS, Unknown::Kept, Code::Schema);
    let permissions = reader.strings(map, at, "permissions").unwrap_or_default();
    Metadata {
        category: reader.text(map, at, "category").map(str::to_owned),
        author: reader.text(map, at, "author").map(str::to_owned),
        permissions: permissions.into_iter().map(|(_, label)| label.to_owned()).collect(),
    }
}

pub(super) fn requires<'d>(
    reader: &mut Reader<'d>,
    top: &'d Object,
    own_id: Option<&str>,
) -> BTreeMap<String, semver::VersionReq> {
    let mut requires = BTreeMap::new();
    for (id, range) in reader.member(top, "", "requires").into_iter().flatten() {
        let pointer = below("/requires", id);
        if let Some(fault) = file::id_fault(id) {
            reader.error(Code::Schema, &pointer, fault);
        } else if own_id == Some(id) {
            reader.error(Code::Dependency, &pointer, "a tool cannot require itself");
        }
        match range {
            Value::String(range) => match super::version_range(range) {
                Ok(range) => {
                    requires.insert(id.clone(), range);
                }
                Err(why) => {
                    let shown = text::head(range, 40);
                    reader.error(
                        Code::Schema,
                        &pointer,
                        format!("'{shown}' is not a version range ({why}): write for example ^1.2"),
                    );
                }
            },
            other => reader.wrong_type(&pointer, "a version range (a string such as ^1.2)", other),
        }
    }
    requires
}

pub(super) fn examples<'d>(reader: &mut Reader<'d>, top: &'d Object) -> Vec<Example> {
    let items = match top.get("examples") {
        None => return Vec::new(),
        Some(Value::Array(items)) => items,
        Some(other) => {
            reader.wrong_type("/examples", "a list of examples", other);
            return Vec::new();
        }
    };
    let mut examples = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let at = format!("/examples/{index}");
        let Some(map) = reader.object(item, &at) else { continue };
        reader.unknown_keys(map, &at, EXAMPLE_FIELDS, Unknown::Kept, Code::Schema);
        let description = reader.text(map, &at, "description").unwrap_or_default().to_owned();
        match map.get("input") {
            Some(input @ Value::Object(_)) => {
                let expected_output = map.get("expectedOutput").cloned();
                examples.push(Example { description, input: input.clone(), expected_output });
            }
            Some(other) => reader.wrong_type(&below(&at, "input"), "an object: the arguments of the call", other),
            None => reader.error(Code::Schema, &at, "the required field 'input' is missing: the arguments of the call"),
        }
    }
    examples
}
