//! One file while it is read: what its JSON Schema refuses, what else is wrong with it, and where.

use super::shape::{self, Violation};
use crate::base::json::{Document, escape_segment};
use crate::base::problem::{Code, Problem, Severity};
use crate::base::text;
use jsonschema::ErrorIterator;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Values of a document beyond which its faults are not explained one by one.
const MAX_EXPLAINED_VALUES: usize = 20_000;

/// Most problems that are reported about one file: finding a place costs one walk over the text.
const MAX_PROBLEMS: usize = 100;

pub(super) struct Reader<'d> {
    document: &'d Document<'d>,
    problems: Vec<Problem>,
    /// What the schema says, and the reader of a text may say exactly.
    rough: Vec<Violation>,
}

impl<'d> Reader<'d> {
    pub fn new(document: &'d Document<'d>) -> Reader<'d> {
        Reader { document, problems: document.notes.clone(), rough: Vec::new() }
    }

    /// Takes over what a schema says of the value at `pointer`. `errors` collects all of them, however many.
    pub fn hold_to<'v>(
        &mut self,
        (schema, errors): (&Value, fn(&'v Value) -> ErrorIterator<'v>),
        value: &'v Value,
        pointer: &str,
    ) {
        if !has_at_most(value, &mut { MAX_EXPLAINED_VALUES }) {
            let message = "this is too large for what its schema says of it: `toolhost schema manifest` prints it";
            return self.error(Code::Schema, pointer, message);
        }
        let errors = errors(value);
        for found in shape::violations(errors.take(MAX_PROBLEMS), schema, &shape::JSON) {
            let found = Violation { pointer: format!("{pointer}{}", found.pointer), ..found };
            if found.is_rough {
                self.rough.push(found);
            } else if found.is_name {
                let code = if found.pointer.starts_with("/securityContext") { Code::Security } else { Code::Schema };
                self.add(Severity::Error, code, &found.pointer, Document::place_of_key, &found.message);
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
        let value = self.document.value.pointer(pointer)?;
        let read = T::deserialize(value).ok();
        if read.is_none() {
            let message = "this cannot be read here; `toolhost schema manifest` says what can".to_owned();
            self.rough.push(Violation { pointer: pointer.to_owned(), is_name: false, is_rough: true, message });
        }
        read
    }

    /// The texts of a list or the members of an object that are texts: pointer, name, text. At most `most` are read.
    pub fn texts(&self, pointer: &str, most: usize) -> Vec<(String, &'d str, &'d str)> {
        match self.document.value.pointer(pointer) {
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

    /// A text in a grammar of its own; what is wrong with it is an error at its place.
    pub fn parsed<T>(&mut self, code: Code, pointer: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|message| self.error(code, pointer, message)).ok()
    }

    pub fn error(&mut self, code: Code, pointer: &str, message: impl AsRef<str>) {
        self.add(Severity::Error, code, pointer, Document::place, message.as_ref());
    }

    pub fn note(&mut self, pointer: &str, message: &str) {
        self.add(Severity::Note, Code::Schema, pointer, Document::place, message);
    }

    pub fn warn(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.add(Severity::Warning, Code::Schema, pointer, Document::place, message.as_ref());
    }

    pub fn warn_of_name(&mut self, pointer: &str, message: impl AsRef<str>) {
        self.add(Severity::Warning, Code::Schema, pointer, Document::place_of_key, message.as_ref());
    }

    /// Warns of invisible text: a model reads it and the operator does not see it.
    pub fn warn_of_invisible(&mut self, pointer: &str) {
        let written = self.document.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let plain: String = written.chars().filter(|c| !matches!(c, '\n' | '\r' | '\t')).collect();
        if !text::is_printable(&plain) {
            let message =
                format!("this holds control or invisible characters: {}", text::head(&text::printable(written), 200));
            self.add(Severity::Warning, Code::Security, pointer, Document::place, &message);
        }
    }

    /// `place` is looked up only for a problem that is kept.
    fn add(
        &mut self,
        severity: Severity,
        code: Code,
        pointer: &str,
        place: fn(&Document<'d>, &str) -> (usize, usize),
        message: &str,
    ) {
        // The first error always finds room: without it a bad manifest would pass.
        if self.problems.len() >= MAX_PROBLEMS && (severity != Severity::Error || self.is_faulty("")) {
            return;
        }
        let (line, column) = place(self.document, pointer);
        let (pointer, message) = (pointer.to_owned(), text::printable(message));
        self.problems.push(Problem { severity, code, pointer, line, column, message });
    }

    /// Whether an error was found at or below a pointer.
    pub fn is_faulty(&self, pointer: &str) -> bool {
        let is_below =
            |other: &str| other.strip_prefix(pointer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.problems.iter().any(|problem| problem.severity == Severity::Error && is_below(&problem.pointer))
    }

    /// What was read, where no error was found; all problems, the worst first.
    pub fn finish<T>(mut self, read: Option<T>) -> Result<(T, Vec<Problem>), Vec<Problem>> {
        for Violation { pointer, message, .. } in std::mem::take(&mut self.rough) {
            if !self.is_faulty(&pointer) {
                self.error(Code::Schema, &pointer, message);
            }
        }
        let is_faulty = self.is_faulty("");
        let mut problems = self.problems;
        problems.sort_by_key(|problem| (std::cmp::Reverse(problem.severity), problem.line, problem.column));
        match read {
            Some(read) if !is_faulty => Ok((read, problems)),
            _ => Err(problems),
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
