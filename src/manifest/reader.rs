//! One file while it is read: what its JSON Schema refuses, what else is wrong with it, and where. Manifests (JSON) and
//! policies (TOML) are read by the same rules.

use super::shape::{self, Violation, Words};
use crate::base::json::{Document, escape_segment};
use crate::base::problem::{At, Code, Problem, Severity};
use crate::base::text;
use jsonschema::ErrorIterator;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Most problems that are reported about one file: finding a place costs one walk over the text.
pub const MAX_PROBLEMS: usize = 100;
/// Most entries that are read of a list that has too many.
const LONGEST_FAULTY: usize = 1000;

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
    /// What the schema says, and the reader of a text may say exactly.
    rough: Vec<Violation>,
}

impl<'d> Reader<'d> {
    pub fn new(value: &'d Value, places: &'d dyn Places, words: &'static Words) -> Reader<'d> {
        Reader { value, places, words, problems: Vec::new(), rough: Vec::new() }
    }

    pub fn from_json(document: &'d Document<'d>) -> Reader<'d> {
        Reader { problems: document.notes.clone(), ..Reader::new(&document.value, document, &shape::JSON) }
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
        let found = errors(value).take(MAX_PROBLEMS).flat_map(|error| shape::explain(&error, schema, self.words));
        for found in found.collect::<Vec<_>>() {
            let found = Violation { pointer: format!("{pointer}{}", found.pointer), ..found };
            if found.is_rough && self.words.defers {
                self.rough.push(found);
            } else if found.is_name {
                let code = if found.pointer.starts_with("/securityContext") { Code::Security } else { Code::Schema };
                self.add(Severity::Error, code, &found.pointer, true, &found.message);
            } else {
                self.error(Code::Schema, &found.pointer, found.message);
            }
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
            let message = "this cannot be read here; `toolhost schema` says what can".to_owned();
            self.rough.push(Violation { pointer: pointer.to_owned(), is_name: false, is_rough: true, message });
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
        for Violation { pointer, message, .. } in std::mem::take(&mut self.rough) {
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
