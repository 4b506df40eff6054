//! Judges the shape of a manifest by the JSON Schema that is published for it, and collects every fault with its place.

use super::published::{SCHEMA, TOOLS_OWN};
use super::schema::{noun, type_of};
use super::{Code, Problem, Severity};
use crate::base::json::{self, Document, escape_segment};
use crate::base::{suggest, text};
use serde_json::{Map, Value};

/// Most problems told about one file: finding a place costs one walk over the text.
const MAX_PROBLEMS: usize = 100;
/// The names that other formats use for fields of ours.
const CALLED: [(&str, &str); 7] = [
    ("inputSchema", "parameters"),
    ("input_schema", "parameters"),
    ("outputSchema", "output"),
    ("output_schema", "output"),
    ("dependencies", "requires"),
    ("timeout_ms", "timeoutMs"),
    ("entrypoint", "entryPoint"),
];

pub(super) struct Reader<'d> {
    document: &'d Document<'d>,
    pub(super) problems: Vec<Problem>,
}

impl<'d> Reader<'d> {
    pub(super) fn new(document: &'d Document<'d>) -> Reader<'d> {
        Reader { document, problems: document.notes.clone() }
    }

    pub(super) fn error(&mut self, code: Code, pointer: &str, message: impl Into<String>) {
        self.add(Severity::Error, code, pointer, Document::place, message.into());
    }

    pub(super) fn note(&mut self, code: Code, pointer: &str, message: impl Into<String>) {
        self.add(Severity::Note, code, pointer, Document::place, message.into());
    }

    pub(super) fn warn(&mut self, code: Code, pointer: &str, message: impl Into<String>) {
        self.add(Severity::Warning, code, pointer, Document::place, message.into());
    }

    /// `place` is looked up only for a problem that is kept.
    fn add(
        &mut self,
        severity: Severity,
        code: Code,
        pointer: &str,
        place: fn(&Document<'d>, &str) -> (usize, usize),
        message: String,
    ) {
        // The first error always finds room: without it a bad manifest would pass.
        let full = self.problems.len() >= MAX_PROBLEMS;
        if full && (severity != Severity::Error || self.refused()) {
            return;
        }
        let (line, column) = place(self.document, pointer);
        let message = text::printable(&message);
        self.problems.push(Problem { severity, code, pointer: pointer.to_owned(), line, column, message });
    }

    /// Whether an error was found, which refuses the manifest.
    pub(super) fn refused(&self) -> bool {
        self.problems.iter().any(|p| p.severity == Severity::Error)
    }

    /// Judges a value by its part of the schema: types, names, floors and listed words. The rest is for `file`.
    pub(super) fn shape(&mut self, schema: &Value, value: &Value, pointer: &str) {
        if !schema.is_object() || !self.has_type(schema, value, pointer) || schema["title"] == TOOLS_OWN {
            return;
        }
        match value {
            Value::Object(map) => self.members(schema, map, pointer),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.shape(&schema["items"], item, &format!("{pointer}/{index}"));
                }
            }
            Value::String(written) => {
                let known: Vec<&str> =
                    schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                if !known.is_empty() && !known.contains(&written.as_str()) {
                    let near = suggest::hint(written, known.iter().copied());
                    let message = format!("'{}' is not one of {}{near}", text::head(written, 40), known.join(", "));
                    self.error(Code::Schema, pointer, message);
                }
            }
            _ => {
                let least = schema["minimum"].as_u64().unwrap_or_default();
                if json::whole(value).is_some_and(|number| number < least) {
                    self.error(Code::Schema, pointer, format!("must be at least {least}{}", unit(pointer)));
                }
            }
        }
    }

    fn has_type(&mut self, schema: &Value, value: &Value, pointer: &str) -> bool {
        let kind = schema["type"].as_str().or(schema["enum"].as_array().map(|_| "string"));
        let fits = match kind {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => json::whole(value).is_some(),
            _ => true,
        };
        if !fits {
            let of_list = pointer.rsplit('/').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
            let mend = match value.is_null() {
                true if of_list => " (take it out of the list)",
                true => " (leave the field out to get the default)",
                false => "",
            };
            let wanted = wanted(schema, pointer);
            let got = match value {
                Value::Number(number) if kind == Some("integer") => number.to_string(),
                Value::String(written) if kind == Some("integer") => {
                    format!("the text \"{}\"", text::head(written, 40))
                }
                other => noun(type_of(other)),
            };
            self.error(Code::Schema, pointer, format!("must be {wanted}, not {got}{mend}"));
        }
        fits
    }

    fn members(&mut self, schema: &Value, map: &Map<String, Value>, pointer: &str) {
        let names = |list: &'static str| schema[list].as_array().into_iter().flatten().filter_map(Value::as_str);
        for name in names("required") {
            let message = match map.get(name) {
                None => {
                    // The misspelt field has a problem of its own, but a reader may be shown only this one.
                    let near = suggest::nearest(name, map.keys().map(String::as_str));
                    let near =
                        near.map_or_else(String::new, |near| format!(": is '{}' it, misspelt?", text::head(near, 80)));
                    self.error(Code::Schema, pointer, format!("the required field '{name}' is missing{near}"));
                    continue;
                }
                Some(Value::Null) => {
                    let wanted = wanted(&schema["properties"][name], "");
                    format!("'{name}' is null, and it is required: write {wanted}")
                }
                Some(Value::String(written)) if written.trim().is_empty() => {
                    format!("'{name}' is empty: it must say something")
                }
                Some(_) => continue,
            };
            self.error(Code::Schema, &below(pointer, name), message);
        }
        let required: Vec<&str> = names("required").collect();
        for (name, value) in map {
            let rule = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            if !(value.is_null() && required.contains(&name.as_str())) {
                self.shape(rule, value, &below(pointer, name));
            }
        }
        match schema["oneOf"].as_array() {
            Some(forms) => {
                // Which of the forms, its `type` says; `file` tells of an unknown one.
                let named = |form: &&Value| {
                    let rule = &form["properties"]["type"];
                    let listed = rule["enum"].as_array().into_iter().flatten();
                    listed.chain(rule.get("const")).any(|kind| Some(kind) == map.get("type"))
                };
                forms.iter().find(named).into_iter().for_each(|form| self.members(form, map, pointer));
            }
            None => self.unknown_names(schema, map, pointer),
        }
    }

    /// An unknown name refuses the manifest where the schema says so: a misspelt restriction would restrict nothing.
    /// Elsewhere it is kept, and told where a known name is near, or in `execution`, where it looks as if it did something.
    fn unknown_names(&mut self, schema: &Value, map: &Map<String, Value>, pointer: &str) {
        let Some(known) = schema["properties"].as_object() else { return };
        let refused = schema["additionalProperties"] == false;
        let (told, known) = (pointer == "/execution", known.keys().map(String::as_str).collect::<Vec<_>>());
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            let near = suggest::nearest(key, known.iter().copied());
            // Below the top level, blocks such as `metadata` may have any members of their own.
            let asked = refused || told || pointer.is_empty();
            let elsewhere = if asked { mend(key, pointer) } else { None };
            let extension = key.starts_with("x-") || key.starts_with('$');
            let nobodys = near.is_none() && elsewhere.is_none();
            if !refused && (extension || (!told && nobodys)) {
                continue;
            }
            let (severity, what) = match (refused, &elsewhere) {
                (true, _) => (Severity::Error, "is not known"),
                (false, Some(_)) => (Severity::Warning, "does nothing here"),
                (false, None) => (Severity::Warning, "is not known and does nothing"),
            };
            let mend = match (elsewhere, near) {
                (Some(elsewhere), _) => elsewhere,
                (None, Some(near)) => format!("did you mean '{near}'?"),
                (None, None) => format!("known here: {}", known.join(", ")),
            };
            let code = if pointer.starts_with("/securityContext") { Code::Security } else { Code::Schema };
            let message = format!("'{}' {what}: {mend}", text::head(key, 80));
            self.add(severity, code, &below(pointer, key), Document::place_of_key, message);
        }
    }
}

/// Where `key`, which is not known at `pointer`, belongs, or what it is called here; `None` where it is unknown everywhere.
fn mend(key: &str, pointer: &str) -> Option<String> {
    let called = CALLED.iter().find(|(other, _)| *other == key).map(|(_, ours)| *ours);
    let name = called.unwrap_or(key);
    let renamed = called.map(|ours| format!("it is called '{ours}' here"));
    match (home(&SCHEMA, "", name), renamed) {
        (Some(home), None) if home == "/execution" && pointer == "/limits" => {
            Some(format!("it stands in the other block: did you mean 'execution.{name}'?"))
        }
        (Some(home), renamed) if home != pointer => {
            let renamed = renamed.map_or_else(String::new, |renamed| format!("{renamed}, and "));
            Some(format!("{renamed}it belongs in {}", if home.is_empty() { "the top level" } else { &home }))
        }
        (_, renamed) => renamed,
    }
}

/// The first block of the schema that has a field of this name.
fn home(schema: &Value, at: &str, name: &str) -> Option<String> {
    let fields = schema["properties"].as_object();
    if fields.is_some_and(|fields| fields.contains_key(name)) {
        return Some(at.to_owned());
    }
    let forms = schema["oneOf"].as_array().into_iter().flatten().map(|form| (at.to_owned(), form));
    let blocks = fields.into_iter().flatten().map(|(field, block)| (below(at, field), block));
    blocks.chain(forms).find_map(|(at, block)| home(block, &at, name))
}

/// The noun for what a part of the schema wants.
fn wanted(schema: &Value, pointer: &str) -> String {
    let noun = match schema["type"].as_str() {
        Some("object") if schema["title"] == TOOLS_OWN => "a JSON Schema (an object)",
        Some("object") => "an object",
        Some("array") if schema["items"]["type"] == "string" => "a list of strings",
        Some("array") => "a list",
        Some("boolean") => "true or false",
        Some("integer") => "a whole number",
        _ => "a string",
    };
    match schema["type"] == "integer" {
        true => format!("{noun}{}", unit(pointer).replacen(' ', " of ", 1)),
        false => noun.to_owned(),
    }
}

/// What the number at a place counts, by its name.
fn unit(pointer: &str) -> &'static str {
    match pointer {
        _ if pointer.ends_with("Bytes") => " bytes",
        _ if pointer.ends_with("Ms") => " milliseconds",
        _ => "",
    }
}

/// The pointer of a member.
pub(super) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", escape_segment(key))
}
