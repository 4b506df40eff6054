//! Handler: the block that says how a tool is run.
//!
//! For: `file`. In: the manifest's object. Out: a `Handler`. Never: lets an unknown handler field pass (P20).

use super::reader::{Object, Reader, Unknown};
use super::{Code, Handler, Language, suggest, text};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) const SCRIPT_FIELDS: &[&str] = &["type", "scriptPath", "language", "entryPoint"];
pub(super) const METHOD_FIELDS: &[&str] = &["type", "serviceName", "methodName", "language", "parameterMap"];
pub(super) const TYPES: &[&str] = &["external-script", "service-method", "tool-service", "definition-only"];

pub(super) fn read<'d>(reader: &mut Reader<'d>, top: &'d Object) -> Option<Handler> {
    if !top.contains_key("handler") {
        reader.error(Code::Schema, "", "the required field 'handler' is missing: it says how the tool is run");
        return None;
    }
    if top.get("handler").is_some_and(Value::is_null) {
        reader.error(Code::Schema, "/handler", "'handler' is null, and it is required: it says how the tool is run");
        return None;
    }
    let map = reader.member(top, "", "handler")?;
    match reader.required_text(map, "/handler", "type")? {
        "external-script" => script(reader, map),
        "service-method" => method(reader, map),
        "tool-service" => Some(Handler::ToolService),
        "definition-only" => Some(Handler::DefinitionOnly),
        kind if extension_kind(kind) => Some(Handler::Extension { kind: kind.to_owned() }),
        other => {
            let shown = text::head(other, 80);
            let near = suggest::hint(other, TYPES.iter().copied());
            let known = TYPES.join(", ");
            let message = format!(
                "'{shown}' is not a handler type{near}; known: {known}; an embedding program's own start with x-"
            );
            reader.error(Code::Schema, "/handler/type", message);
            None
        }
    }
}

/// `x-` and a name: a type that an embedding program registered an executor for.
pub fn extension_kind(kind: &str) -> bool {
    kind.len() <= 64
        && kind.strip_prefix("x-").is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

fn script<'d>(reader: &mut Reader<'d>, map: &'d Object) -> Option<Handler> {
    reader.unknown_keys(map, "/handler", SCRIPT_FIELDS, Unknown::Refused, Code::Schema);
    let script_path = reader.required_text(map, "/handler", "scriptPath");
    let word = reader.required_text(map, "/handler", "language");
    let language = word.and_then(|word| language(reader, word));
    let entry_point = reader.text(map, "/handler", "entryPoint");
    if entry_point.is_some_and(|name| !function_name(name)) {
        let message =
            "must be the name of one function: letters, digits, '_', '$', '-' and '.', not starting with a digit";
        reader.error(Code::Schema, "/handler/entryPoint", message);
    }
    let (script_path, language) = (script_path?, language?);
    if !language.fits_file_name(script_path) {
        let (pointer, message) = match Language::of_file_name(script_path).first() {
            Some(of_file) => (
                "/handler/language",
                format!(
                    "the language is {} but the file name says {}: one of them is wrong",
                    language.name(),
                    of_file.name()
                ),
            ),
            None => (
                "/handler/scriptPath",
                format!("the name of a {} script ends in {}: name the file so", language.name(), language.endings()),
            ),
        };
        reader.error(Code::Schema, pointer, message);
    }
    let entry_point = entry_point.map(str::to_owned);
    Some(Handler::Script { script_path: script_path.to_owned(), language, entry_point })
}

fn method<'d>(reader: &mut Reader<'d>, map: &'d Object) -> Option<Handler> {
    reader.unknown_keys(map, "/handler", METHOD_FIELDS, Unknown::Refused, Code::Schema);
    let service = reader.required_text(map, "/handler", "serviceName");
    let method = reader.required_text(map, "/handler", "methodName");
    let language = reader.text(map, "/handler", "language").and_then(|word| language(reader, word));
    let mut parameter_map = BTreeMap::new();
    let mut targets = std::collections::BTreeSet::new();
    for (from, to) in reader.member(map, "/handler", "parameterMap").into_iter().flatten() {
        let pointer = super::reader::below("/handler/parameterMap", from);
        match to {
            Value::String(to) if !to.is_empty() => {
                if !targets.insert(to) {
                    reader.error(Code::Schema, &pointer, "two inputs get the same new name: only one could arrive");
                }
                parameter_map.insert(from.clone(), to.clone());
            }
            other => reader.wrong_type(&pointer, "the method's name for this input (a string)", other),
        }
    }
    Some(Handler::ServiceMethod { service: service?.to_owned(), method: method?.to_owned(), language, parameter_map })
}

fn language(reader: &mut Reader<'_>, word: &str) -> Option<Language> {
    let language = Language::from_word(word);
    if language.is_none() {
        let known: Vec<_> = Language::ALL.into_iter().map(Language::name).collect();
        let near = suggest::hint(word, known.iter().copied());
        let message = format!("'{}' is not a language{near}; known: {}", text::head(word, 40), known.join(", "));
        reader.error(Code::Schema, "/handler/language", message);
    }
    language
}

fn function_name(name: &str) -> bool {
    name.len() <= 128
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '$')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'-' | b'.'))
}
