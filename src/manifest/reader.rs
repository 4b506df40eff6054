//! One file while it is read: what its JSON Schema refuses, what else is wrong with it, and where. Manifests (JSON) and
//! policies (TOML) are read by the same rules. No message repeats a value: it may be a secret.

use crate::base::json::{Document, escape_segment};
use crate::base::problem::{At, Code, Problem, Severity};
use crate::base::{suggest, text};
use jsonschema::ErrorIterator;
use jsonschema::error::{TypeKind, ValidationError, ValidationErrorKind as Kind};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Most problems that are reported about one file: finding a place costs one walk over the text.
pub const MAX_PROBLEMS: usize = 100;
/// Of a list that has too many entries, only this many are read and checked.
const LONGEST_FAULTY: usize = 1000;

/// Most unknown names that are reported of one table or object.
const MAX_NAMES: usize = 100;

/// The words of a file format (JSON or TOML) for its kinds of values, in messages.
pub struct Words {
    null: &'static str,
    object: &'static str,
    assign: &'static str,
    /// Values of a document beyond which its faults are not explained one by one.
    most_explained: usize,
    /// Whoever reads a text says better than its schema what is wrong with it.
    defers: bool,
}

/// TOML has no null: dates and numbers without end become one.
pub const TOML: Words = Words {
    null: "a date or a number without end",
    object: "a table",
    assign: " =",
    most_explained: usize::MAX,
    defers: false,
};
const JSON: Words = Words { null: "null", object: "an object", assign: ":", most_explained: 20_000, defers: true };

/// The text that a value was read from.
pub trait Places {
    /// Where the value at a pointer starts, or the name in front of it.
    fn at(&self, pointer: &str, is_name: bool) -> At;
}

impl Places for Document<'_> {
    fn at(&self, pointer: &str, is_name: bool) -> At {
        let (line, column) = if is_name { self.place_of_key(pointer) } else { self.place(pointer) };
        At { line, column }
    }
}

pub struct Reader<'d> {
    pub value: &'d Value,
    places: &'d dyn Places,
    words: &'static Words,
    problems: Vec<Problem>,
    /// Pointers and messages of what the schema says, and the reader of a text may say exactly.
    rough: Vec<(String, String)>,
}

impl<'d> Reader<'d> {
    pub fn new(value: &'d Value, places: &'d dyn Places, words: &'static Words) -> Reader<'d> {
        Reader { value, places, words, problems: Vec::new(), rough: Vec::new() }
    }

    pub fn from_json(document: &'d Document<'d>) -> Reader<'d> {
        Reader { problems: document.notes.clone(), ..Reader::new(&document.value, document, &JSON) }
    }

    /// Takes over what a schema says of the value at `pointer`. `errors` collects all of them, however many.
    pub fn hold_to<'v>(
        &mut self,
        (schema, errors): (&Value, fn(&'v Value) -> ErrorIterator<'v>),
        value: &'v Value,
        pointer: &str,
    ) {
        if !has_at_most(value, &mut { self.words.most_explained }) {
            let message = "this is too large for what its schema says of it: `toolhost schema manifest` prints it";
            return self.error(Code::Schema, pointer, message);
        }
        for error in errors(value).take(MAX_PROBLEMS) {
            self.explain(&error, schema, pointer);
        }
    }

    /// Reports one error of a schema. `around`: where the value lies that was held to it.
    fn explain(&mut self, error: &ValidationError<'_>, schema: &Value, around: &str) {
        let at = format!("{around}{}", error.instance_path().as_str());
        let key = at.rsplit('/').next().unwrap_or_default();
        let (key, entry) = match key.parse::<usize>() {
            Ok(_) => (at.rsplit('/').nth(1).unwrap_or_default(), true),
            Err(_) => (key, false),
        };
        let rule = rule(schema, error.schema_path().as_str());
        if let Kind::AdditionalProperties { unexpected } = error.kind() {
            return self.unknown_names(&at, unexpected, rule);
        }
        let about = |rule: &Value| match rule["description"].as_str().filter(|about| !about.is_empty()) {
            Some(about) => format!(": {about}"),
            None => String::new(),
        };
        let (is_rough, message) = match error.kind() {
            Kind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                (false, format!("`{name}` is missing{}", about(&rule["properties"][name])))
            }
            Kind::Type { kind } => (false, wrong_type(kind, key, entry, rule, error.instance(), self.words)),
            Kind::Enum { options: listed } | Kind::Constant { expected_value: listed } => {
                let listed: &Value = listed;
                let listed = listed.as_array().map_or(std::slice::from_ref(listed), Vec::as_slice);
                let words: Vec<&str> = listed.iter().filter_map(Value::as_str).collect();
                (false, one_of(key, &words, error.instance()))
            }
            Kind::Minimum { limit } => (false, format!("`{key}` is too small; the least is {limit}{}", about(rule))),
            Kind::Maximum { limit } => (false, format!("`{key}` is too large; the most is {limit}{}", about(rule))),
            Kind::MinItems { .. } => (false, format!("`{key}` is empty{}", about(rule))),
            Kind::MaxItems { limit } => (false, format!("more than {limit} entries")),
            Kind::MaxLength { limit } => (true, format!("`{key}` is longer than {limit} characters")),
            Kind::Pattern { pattern } if pattern == r"\S" => (false, format!("`{key}` is blank{}", about(rule))),
            _ => (true, format!("`{key}` is not written as it must be{}", about(rule))),
        };
        match is_rough && self.words.defers {
            true => self.rough.push((at, message)),
            false => self.error(Code::Schema, &at, message),
        }
    }

    fn unknown_names(&mut self, at: &str, names: &[String], rule: &Value) {
        let known: Vec<&str> = rule["properties"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
        for name in names.iter().take(MAX_NAMES) {
            let (pointer, near) = (below(at, name), did_you_mean(name, &known));
            let code = if pointer.starts_with("/securityContext") { Code::Security } else { Code::Schema };
            let message = format!("unknown key `{}`{near}; known here: {}", text::head(name, 80), known.join(", "));
            self.add(Severity::Error, code, &pointer, true, &message);
        }
    }

    /// For a value that its schema refused: that it is refused never depends on how well this is explained.
    pub fn refuse_unless_faulty(&mut self) {
        if self.rough.is_empty() && !self.is_faulty("") {
            self.error(Code::Schema, "", "this does not fit the schema that `toolhost schema manifest` prints");
        }
    }

    /// The value at a pointer; `None` where it is not written, or is wrong.
    pub fn get<T: DeserializeOwned>(&mut self, pointer: &str) -> Option<T> {
        let value = self.value.pointer(pointer)?;
        let read = T::deserialize(value).ok();
        if read.is_none() {
            let message =
                "this value cannot be read here; `toolhost schema manifest` (or `policy`, `callers`) prints what can"
                    .to_owned();
            self.rough.push((pointer.to_owned(), message));
        }
        read
    }

    /// The texts of a list or the members of an object that are texts: pointer, name, text. At most `most` are read.
    pub fn texts(&self, pointer: &str, most: usize) -> Vec<(String, &'d str, &'d str)> {
        match self.value.pointer(pointer) {
            Some(Value::Array(items)) => {
                let texts = items.iter().take(most).enumerate();
                texts.filter_map(|(at, item)| Some((format!("{pointer}/{at}"), "", item.as_str()?))).collect()
            }
            Some(Value::Object(members)) => {
                let texts = members.iter().take(most);
                texts.filter_map(|(name, value)| Some((below(pointer, name), name.as_str(), value.as_str()?))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The entries of a list that can be read, with their pointers.
    pub fn list<T: DeserializeOwned>(&mut self, pointer: &str) -> Vec<(String, T)> {
        // A list that is too long is a fault already.
        let is_faulty = self.problems.iter().any(|problem| problem.pointer == pointer);
        let count = self.value.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len);
        let each = 0..count.min(if is_faulty { LONGEST_FAULTY } else { usize::MAX });
        let each = each.map(|index| format!("{pointer}/{index}"));
        each.filter_map(|pointer| self.get(&pointer).map(|entry| (pointer, entry))).collect()
    }

    /// A text in a grammar of its own; what is wrong with it is a fault at its place.
    pub fn parsed<T>(&mut self, pointer: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|message| self.fault(pointer, message)).ok()
    }

    /// Where the value at a pointer starts.
    pub fn at(&self, pointer: &str) -> At {
        self.places.at(pointer, false)
    }

    /// An error of a value, unless one is known already.
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

    pub fn note(&mut self, pointer: &str, message: &str) {
        self.add(Severity::Note, Code::Schema, pointer, false, message);
    }

    pub fn warn(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.add(Severity::Warning, Code::Schema, pointer, false, message.as_ref());
    }

    pub fn warn_of_name(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.add(Severity::Warning, Code::Schema, pointer, true, message.as_ref());
    }

    /// Warns of invisible text: a model reads it and the operator does not see it.
    pub fn warn_of_invisible(&mut self, pointer: &str) {
        let written = self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let plain: String = written.chars().filter(|c| !matches!(c, '\n' | '\r' | '\t')).collect();
        if !text::is_printable(&plain) {
            let message =
                format!("this holds control or invisible characters: {}", text::head(&text::printable(written), 200));
            self.add(Severity::Warning, Code::Security, pointer, false, &message);
        }
    }

    /// The place is looked up only for a problem that is kept. `is_name`: it is that of the name.
    fn add(&mut self, severity: Severity, code: Code, pointer: &str, is_name: bool, message: &str) {
        // The first error always finds room: without it a bad manifest would pass.
        if self.problems.len() >= MAX_PROBLEMS && (severity != Severity::Error || self.is_faulty("")) {
            return;
        }
        let At { line, column } = self.places.at(pointer, is_name);
        let (pointer, message) = (pointer.to_owned(), text::printable(message));
        self.problems.push(Problem { severity, code, pointer, line, column, message });
    }

    /// Whether an error was found at or below a pointer.
    pub fn is_faulty(&self, pointer: &str) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error && problem.is_below(pointer))
    }

    /// All problems, the worst first.
    pub fn problems(mut self) -> Vec<Problem> {
        for (pointer, message) in std::mem::take(&mut self.rough) {
            self.fault(&pointer, message);
        }
        self.problems.sort_by_key(|problem| (std::cmp::Reverse(problem.severity), problem.line, problem.column));
        self.problems
    }

    /// What was read, where no error was found, with the other problems.
    pub fn finish<T>(self, read: Option<T>) -> Result<(T, Vec<Problem>), Vec<Problem>> {
        let problems = self.problems();
        match read.filter(|_| problems.first().is_none_or(|worst| worst.severity < Severity::Error)) {
            Some(read) => Ok((read, problems)),
            None => Err(problems),
        }
    }
}

/// The pointer of a member.
pub(super) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", escape_segment(key))
}

/// Whether a value has at most so many values in it.
fn has_at_most(value: &Value, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| has_at_most(item, left)),
        Value::Object(fields) => fields.values().all(|field| has_at_most(field, left)),
        _ => true,
    }
}

/// The part of the schema that holds the keyword which is broken, or the nearest around it that says something.
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

fn one_of(key: &str, words: &[&str], written: &Value) -> String {
    let listed: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let near = did_you_mean(written.as_str().unwrap_or_default(), words);
    format!("`{key}` must be {}{near}", listed.join(" or "))
}

fn wrong_type(kind: &TypeKind, key: &str, entry: bool, rule: &Value, written: &Value, words: &Words) -> String {
    let is = match written {
        Value::Null => words.null,
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a float",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => words.object,
    };
    let wanted = match kind {
        TypeKind::Multiple(_) => "a text, a number, true or false".to_owned(),
        TypeKind::Single(kind) => match kind.to_string().as_str() {
            "object" if entry && rule["required"].is_array() => {
                let keys = rule["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let keys: Vec<String> = keys.map(|key| format!("{key}{} \"…\"", words.assign)).collect();
                return format!("each entry of `{key}` is written {{ {} }}", keys.join(", "));
            }
            "object" => words.object.to_owned(),
            "array" => "a list in [ ]".to_owned(),
            "string" => "text in quotes".to_owned(),
            "boolean" => "true or false".to_owned(),
            "integer" => "a whole number".to_owned(),
            other => format!("a {other}"),
        },
    };
    let whose = if entry { format!("each entry of `{key}`") } else { format!("`{key}`") };
    format!("{whose} must be {wanted}, not {is}")
}

/// `; did you mean …?` for the nearest known word, or nothing.
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    let near = suggest::nearest(word, known.iter().copied());
    near.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}
