//! A policy file as text, as a value and as places. The published JSON Schema says which values are accepted; what it
//! cannot say (two entries that contradict each other, a text with a grammar of its own) the reader of a table adds.

use crate::base::text;
use crate::manifest::shape::{self, Violation};
use crate::manifest::{Code, Problem, Severity};
use jsonschema::ErrorIterator;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Most problems that are reported about one file.
pub(super) const MAX_PROBLEMS: usize = 100;
const MAX_COLUMN: usize = 10_000;
/// Most entries that are read of a list that has too many.
const LONGEST_FAULTY: usize = 1000;

/// 1-based line and column of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FileProblem {
    pub path: PathBuf,
    #[serde(flatten)]
    pub problem: Problem,
}

impl FileProblem {
    pub fn new(
        file: &Path,
        severity: Severity,
        code: Code,
        pointer: impl Into<String>,
        At { line, column }: At,
        message: impl Into<String>,
    ) -> FileProblem {
        let (pointer, message) = (pointer.into(), message.into());
        FileProblem { path: file.to_path_buf(), problem: Problem { severity, code, pointer, line, column, message } }
    }
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", text::path(&self.path))?;
        if self.problem.line > 0 {
            write!(f, ":{}:{}", self.problem.line, self.problem.column)?;
        }
        let pointer = if self.problem.pointer.is_empty() { "" } else { ": " };
        let words = format!("{}{pointer}{}", self.problem.pointer, self.problem.message);
        write!(f, ": {}", text::printable(&words))
    }
}

/// What one kind of file may say: the schema as it is published, and the same compiled.
pub(super) struct Schema {
    pub published: fn() -> &'static Value,
    pub errors: for<'v> fn(&'v Value) -> ErrorIterator<'v>,
}

pub(super) struct Document<'t> {
    text: &'t str,
    /// Where each line starts, so that a long file is not counted through for every value.
    lines: Vec<usize>,
    table: DeTable<'t>,
    pub value: Value,
    problems: Vec<Problem>,
}

impl<'t> Document<'t> {
    /// Parses the text and holds it against the schema. The first fault of the syntax is an
    /// error: what the parser finds behind it is a guess.
    pub fn parse(text: &'t str, schema: &Schema) -> Result<Document<'t>, Vec<Problem>> {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        let (table, errors) = DeTable::parse_recoverable(text);
        let table = table.into_inner();
        let mut document = Document { text, lines, table, value: Value::Null, problems: Vec::new() };
        let first = |error: &&toml::de::Error| error.span().map_or(usize::MAX, |span| span.start);
        if let Some(error) = errors.iter().min_by_key(first) {
            let at = error.span().map(|span| document.place(span.start)).unwrap_or_default();
            let message = text::printable(error.message());
            let key = error.span().filter(|_| message == "duplicate key").and_then(|span| text.get(span));
            let key = key.map_or_else(String::new, |key| format!(" `{}`", text::printable(key)));
            document.add(Code::Syntax, "", at, format!("not TOML: {message}{key}"));
        }
        if !errors.is_empty() {
            return Err(document.finish());
        }
        document.value = table_value(&document.table);
        let errors = (schema.errors)(&document.value).take(MAX_PROBLEMS);
        for Violation { pointer, is_name, message, .. } in shape::violations(errors, (schema.published)(), &shape::TOML)
        {
            let spans = document.find(&pointer);
            let at = document.place(if is_name { spans.0.start } else { spans.1.start });
            document.add(Code::Schema, &pointer, at, message);
        }
        Ok(document)
    }

    /// Where the value at a pointer starts, or the nearest around it that is written.
    pub fn at(&self, pointer: &str) -> At {
        self.place(self.find(pointer).1.start)
    }

    fn find(&self, pointer: &str) -> (Range<usize>, Range<usize>) {
        let mut found = (0..0, 0..0);
        let (mut table, mut value) = (Some(&self.table), None);
        for segment in pointer.split('/').skip(1) {
            let name = segment.replace("~1", "/").replace("~0", "~");
            let member = table.and_then(|table| table.get_key_value(name.as_str()));
            let item = value.and_then(DeValue::as_array).and_then(|list| list.get(name.parse::<usize>().ok()?));
            let next = match (member, item) {
                (Some((key, next)), _) => {
                    found = (key.span(), next.span());
                    next
                }
                (None, Some(next)) => {
                    found = (next.span(), next.span());
                    next
                }
                (None, None) => break,
            };
            (table, value) = (next.get_ref().as_table(), Some(next.get_ref()));
        }
        found
    }

    fn place(&self, offset: usize) -> At {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        // A line may be the whole file: past MAX_COLUMN bytes the column is left 0 and not counted for every value.
        let before = Some(start..offset).filter(|range| range.len() <= MAX_COLUMN);
        let column = before.and_then(|range| self.text.get(range)).map_or(0, |text| text.chars().count() + 1);
        At { line, column }
    }

    /// A fault of a value, unless one is known already.
    pub fn fault(&mut self, pointer: &str, message: impl Into<String>) {
        if !self.is_faulty(pointer) {
            self.add(Code::Schema, pointer, self.at(pointer), message);
        }
    }

    pub fn conflict(&mut self, pointer: &str, message: impl Into<String>) {
        self.add(Code::Conflict, pointer, self.at(pointer), message);
    }

    fn add(&mut self, code: Code, pointer: &str, At { line, column }: At, message: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            let (pointer, message) = (pointer.to_owned(), message.into());
            self.problems.push(Problem { severity: Severity::Error, code, pointer, line, column, message });
        }
    }

    /// The value at a pointer; `None` where it is not written, or is wrong.
    pub fn get<T: DeserializeOwned>(&mut self, pointer: &str) -> Option<T> {
        let value = self.value.pointer(pointer)?;
        let read = T::deserialize(value).ok();
        if read.is_none() {
            self.fault(pointer, "this cannot be read here; `toolhost schema` says what can");
        }
        read
    }

    /// The entries of a list that can be read, with their pointers.
    pub fn list<T: DeserializeOwned>(&mut self, pointer: &str) -> Vec<(String, T)> {
        // A list that is too long is a fault already.
        let most =
            if self.problems.iter().any(|problem| problem.pointer == pointer) { LONGEST_FAULTY } else { usize::MAX };
        let count = self.value.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len);
        let each = (0..count.min(most)).map(|index| format!("{pointer}/{index}"));
        each.filter_map(|pointer| self.get(&pointer).map(|entry| (pointer, entry))).collect()
    }

    /// A text in a grammar of its own; what is wrong with it is a fault at its place.
    pub fn parsed<T>(&mut self, pointer: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|message| self.fault(pointer, message)).ok()
    }

    pub fn is_faulty(&self, pointer: &str) -> bool {
        self.problems.iter().any(|problem| is_below(&problem.pointer, pointer))
    }

    pub fn finish(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        self.problems
    }
}

fn is_below(pointer: &str, around: &str) -> bool {
    pointer.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn table_value(table: &DeTable<'_>) -> Value {
    Value::Object(table.iter().map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect())
}

/// JSON has no dates and no numbers without end: the schema refuses `null` everywhere.
fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            // Beyond every bound of a schema.
            Err(_) => (if number.as_str().starts_with('-') { f64::MIN } else { f64::MAX }).into(),
        },
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Datetime(_) => Value::Null,
        DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => table_value(table),
    }
}
