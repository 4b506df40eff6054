//! Reads one file, and collects its problems (of its JSON Schema and others) with their places.
//! Manifests (JSON) and policies (TOML) are read by the same rules. No message repeats a value: it
//! may be a secret.

use super::schema::must;
use crate::base::json::{Document, escape_segment};
use crate::base::problem::{At, Code, Problem, Severity};
use crate::base::{suggest, text};
use crate::schemas::FileSchema;
use jsonschema::error::{ValidationError, ValidationErrorKind as Kind};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Most problems that are reported about one file: finding a place costs one walk over the text.
pub const MAX_PROBLEMS: usize = 100;
/// Of a list that has a problem itself, only this many entries are read.
const MAX_FAULTY_ENTRIES: usize = 1000;

/// Most unknown names that are reported of one table or object.
const MAX_NAMES: usize = 100;

/// How the faults of a file format (JSON or TOML) are explained.
pub struct Format {
    /// A document with more values than this gets one general error.
    most_explained: usize,
    /// A schema's error about a text is reported only if the parser of that text reports none.
    prefers_parser_errors: bool,
}

pub const TOML: Format = Format {
    most_explained: usize::MAX,
    prefers_parser_errors: false,
};
const JSON: Format = Format {
    most_explained: 20_000,
    prefers_parser_errors: true,
};

/// Finds lines and columns in a text.
pub trait SourceMap {
    /// Where the value at a pointer starts, or the name in front of it.
    fn at(&self, pointer: &str, is_name: bool) -> At;
}

impl SourceMap for Document<'_> {
    fn at(&self, pointer: &str, is_name: bool) -> At {
        let (line, column) = if is_name {
            self.place_of_key(pointer)
        } else {
            self.place(pointer)
        };
        At { line, column }
    }
}

pub struct Reader<'d> {
    pub value: &'d Value,
    source_map: &'d dyn SourceMap,
    format: &'static Format,
    problems: Vec<Problem>,
    /// Pointers and messages of errors that are reported only if no exact one is found.
    fallback_errors: Vec<(String, String)>,
}

impl<'d> Reader<'d> {
    pub fn new(
        value: &'d Value,
        source_map: &'d dyn SourceMap,
        format: &'static Format,
    ) -> Reader<'d> {
        Reader {
            value,
            source_map,
            format,
            problems: Vec::new(),
            fallback_errors: Vec::new(),
        }
    }

    pub fn from_json(document: &'d Document<'d>) -> Reader<'d> {
        Reader {
            problems: document.notes.clone(),
            ..Reader::new(&document.value, document, &JSON)
        }
    }

    /// Reports the errors that a schema finds in the value at `pointer`. It builds all of them at
    /// once.
    pub fn check_schema(&mut self, schema: &FileSchema, value: &Value, pointer: &str) {
        if !has_at_most(value, &mut { self.format.most_explained }) {
            let message = "this breaks its schema (`toolhost schema manifest`), and is too large \
                to say where";
            return self.error(Code::Schema, pointer, message);
        }
        for error in (schema.errors)(value).take(MAX_PROBLEMS) {
            self.explain(&error, &schema.json, pointer);
        }
    }

    /// Reports one error of a schema. `around`: the pointer of the value that was checked.
    fn explain(&mut self, error: &ValidationError<'_>, schema: &Value, around: &str) {
        let at = format!("{around}{}", error.instance_path().as_str());
        // An entry of a list has the name of the list.
        let key = at
            .rsplit('/')
            .find(|key| key.parse::<usize>().is_err())
            .unwrap_or_default();
        let rule = rule(schema, error.schema_path().as_str());
        if let Kind::AdditionalProperties { unexpected } = error.kind() {
            return self.unknown_names(&at, unexpected, rule);
        }
        fn about(rule: &Value) -> String {
            match rule["description"]
                .as_str()
                .filter(|about| !about.is_empty())
            {
                Some(about) => format!(": {about}"),
                None => String::new(),
            }
        }
        let (is_fallback, message) = match error.kind() {
            Kind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                (
                    false,
                    format!("`{name}` is missing{}", about(&rule["properties"][name])),
                )
            }
            Kind::MinItems { .. } => (false, format!("`{key}` is empty{}", about(rule))),
            Kind::MaxItems { limit } => (false, format!("more than {limit} entries")),
            Kind::Pattern { pattern } if pattern == r"\S" => {
                (false, format!("`{key}` is blank{}", about(rule)))
            }
            Kind::Enum { options } => {
                let known: Vec<&str> = options
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                let near = did_you_mean(error.instance().as_str().unwrap_or_default(), &known);
                (false, format!("`{key}` {}{near}", must(error)))
            }
            Kind::Type { .. } if rule["required"].is_array() => {
                let members = rule["required"].as_array().into_iter().flatten();
                let members: Vec<String> = members
                    .filter_map(Value::as_str)
                    .map(|name| format!("`{name}`"))
                    .collect();
                let members = members.join(" and ");
                (false, format!("`{key}` {} with {members}", must(error)))
            }
            Kind::Type { .. }
            | Kind::Constant { .. }
            | Kind::Minimum { .. }
            | Kind::Maximum { .. } => (false, format!("`{key}` {}{}", must(error), about(rule))),
            Kind::MaxLength { .. } => (true, format!("`{key}` {}", must(error))),
            _ => (true, format!("`{key}` has the wrong form{}", about(rule))),
        };
        if is_fallback && self.format.prefers_parser_errors {
            self.fallback_errors.push((at, message))
        } else {
            self.error(Code::Schema, &at, message)
        }
    }

    fn unknown_names(&mut self, at: &str, names: &[String], rule: &Value) {
        let known: Vec<&str> = rule["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, _)| k.as_str())
            .collect();
        for name in names.iter().take(MAX_NAMES) {
            let pointer = below(at, name);
            let near = did_you_mean(name, &known);
            let code = if pointer.starts_with("/securityContext") {
                Code::Security
            } else {
                Code::Schema
            };
            let message = format!(
                "unknown key `{}`{near}; known here: {}",
                text::head(name, 80),
                known.join(", ")
            );
            self.add(Severity::Error, code, &pointer, true, &message);
        }
    }

    /// For a value that its schema refused: adds a general error, if no other error was reported.
    pub fn refuse_unless_faulty(&mut self) {
        if self.fallback_errors.is_empty() && !self.is_faulty("") {
            self.error(
                Code::Schema,
                "",
                "this does not fit the schema that `toolhost schema manifest` prints",
            );
        }
    }

    /// The value at a pointer; `None` if it is absent or invalid.
    pub fn get<T: DeserializeOwned>(&mut self, pointer: &str) -> Option<T> {
        let value = self.value.pointer(pointer)?;
        let read = T::deserialize(value).ok();
        if read.is_none() {
            let message =
                "this value is not valid here; `toolhost schema manifest` (or `policy`, `callers`) \
                shows what is"
                    .to_owned();
            self.fallback_errors.push((pointer.to_owned(), message));
        }
        read
    }

    /// The texts of a list or the members of an object that are texts: pointer, name, text. At most
    /// `most` are read.
    pub fn texts(&self, pointer: &str, most: usize) -> Vec<(String, &'d str, &'d str)> {
        match self.value.pointer(pointer) {
            Some(Value::Array(items)) => {
                let texts = items.iter().take(most).enumerate();
                texts
                    .filter_map(|(at, item)| Some((format!("{pointer}/{at}"), "", item.as_str()?)))
                    .collect()
            }
            Some(Value::Object(members)) => {
                let texts = members.iter().take(most);
                texts
                    .filter_map(|(name, value)| {
                        Some((below(pointer, name), name.as_str(), value.as_str()?))
                    })
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The entries of a list that can be read, with their pointers.
    pub fn list<T: DeserializeOwned>(&mut self, pointer: &str) -> Vec<(String, T)> {
        // The list has a problem already.
        let is_faulty = self
            .problems
            .iter()
            .any(|problem| problem.pointer == pointer);
        let count = self
            .value
            .pointer(pointer)
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let each = 0..count.min(if is_faulty {
            MAX_FAULTY_ENTRIES
        } else {
            usize::MAX
        });
        let each = each.map(|index| format!("{pointer}/{index}"));
        each.filter_map(|pointer| self.get(&pointer).map(|entry| (pointer, entry)))
            .collect()
    }

    /// The value that a parser read from a text; its error becomes a fault at `pointer`.
    pub fn parsed<T>(&mut self, pointer: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|message| self.fault(pointer, message)).ok()
    }

    /// Where the value at a pointer starts.
    pub fn at(&self, pointer: &str) -> At {
        self.source_map.at(pointer, false)
    }

    /// Adds an error, unless the value has one already.
    pub fn fault(&mut self, pointer: &str, message: impl AsRef<str>) {
        if !self.is_faulty(pointer) {
            self.error(Code::Schema, pointer, message);
        }
    }

    pub fn conflict(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.error(Code::Conflict, pointer, message);
    }

    pub fn error(&mut self, code: Code, pointer: &str, message: impl AsRef<str>) {
        self.add(Severity::Error, code, pointer, false, message.as_ref());
    }

    /// Refuses each of these fields (`output`, `execution/ready`) that says anything.
    pub fn refuse_fields(&mut self, fields: &[&str], message: &str) {
        for field in fields {
            let pointer = format!("/{field}");
            let written = self.value.pointer(&pointer);
            let says = |value: &Value| value.as_object().is_none_or(|block| !block.is_empty());
            if written.is_some_and(says) {
                self.error(Code::Schema, &pointer, message);
            }
        }
    }

    pub fn note(&mut self, pointer: &str, message: &str) {
        self.add(Severity::Note, Code::Schema, pointer, false, message);
    }

    pub fn warn(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.add(
            Severity::Warning,
            Code::Schema,
            pointer,
            false,
            message.as_ref(),
        );
    }

    pub fn warn_of_name(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.add(
            Severity::Warning,
            Code::Schema,
            pointer,
            true,
            message.as_ref(),
        );
    }

    /// Warns of invisible text: a model reads it and the operator does not see it.
    pub fn warn_of_invisible(&mut self, pointer: &str) {
        let written = self
            .value
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default();
        let plain: String = written
            .chars()
            .filter(|c| !matches!(c, '\n' | '\r' | '\t'))
            .collect();
        if !text::is_printable(&plain) {
            let message = format!(
                "this holds control or invisible characters: {}",
                text::head(&text::printable(written), 200)
            );
            self.add(Severity::Warning, Code::Security, pointer, false, &message);
        }
    }

    /// The place is looked up only for a problem that is kept. `is_name`: the place of the member's
    /// name.
    fn add(&mut self, severity: Severity, code: Code, pointer: &str, is_name: bool, message: &str) {
        // The first error always finds room: without it a bad manifest would pass.
        if self.problems.len() >= MAX_PROBLEMS
            && (severity != Severity::Error || self.is_faulty(""))
        {
            return;
        }
        let At { line, column } = self.source_map.at(pointer, is_name);
        let pointer = pointer.to_owned();
        let message = text::printable(message);
        self.problems.push(Problem {
            severity,
            code,
            pointer,
            line,
            column,
            message,
        });
    }

    /// Whether an error was found at or below a pointer.
    pub fn is_faulty(&self, pointer: &str) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error && problem.is_below(pointer))
    }

    /// All problems, the worst first.
    pub fn problems(mut self) -> Vec<Problem> {
        for (pointer, message) in std::mem::take(&mut self.fallback_errors) {
            self.fault(&pointer, message);
        }
        self.problems.sort_by_key(|problem| {
            (
                std::cmp::Reverse(problem.severity),
                problem.line,
                problem.column,
            )
        });
        self.problems
    }

    /// The result with its warnings and notes, or, if there is an error, all problems.
    pub fn finish<T>(self, read: Option<T>) -> Result<(T, Vec<Problem>), Vec<Problem>> {
        let problems = self.problems();
        match read.filter(|_| {
            problems
                .first()
                .is_none_or(|worst| worst.severity < Severity::Error)
        }) {
            Some(read) => Ok((read, problems)),
            None => Err(problems),
        }
    }
}

/// The pointer of a member.
pub(super) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", escape_segment(key))
}

/// Whether a value holds at most `left` values.
fn has_at_most(value: &Value, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else {
        return false;
    };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| has_at_most(item, left)),
        Value::Object(fields) => fields.values().all(|field| has_at_most(field, left)),
        _ => true,
    }
}

/// The nearest schema around the keyword at `path` that has a description or properties.
fn rule<'s>(schema: &'s Value, path: &str) -> &'s Value {
    let mut path = path;
    while let Some((around, _)) = path.rsplit_once('/') {
        path = around;
        if let Some(rule) = schema.pointer(path)
            && (rule["description"].is_string() || rule["properties"].is_object())
        {
            return rule;
        }
    }
    schema
}

/// `; did you mean …?` for the nearest known word, or nothing.
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    let near = suggest::nearest(word, known.iter().copied());
    near.map(|word| format!("; did you mean `{word}`?"))
        .unwrap_or_default()
}
