//! A parsed policy file: its value, and the line and column of each part of it.

use crate::base::text;
use crate::manifest::reader::SourceMap;
use crate::manifest::{At, Code, Problem, Severity};
use serde_json::Value;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

const MAX_COLUMN: usize = 10_000;

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
        let pointer = pointer.into();
        let message = message.into();
        FileProblem {
            path: file.to_path_buf(),
            problem: Problem {
                severity,
                code,
                pointer,
                line,
                column,
                message,
            },
        }
    }
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", text::path(&self.path))?;
        if self.problem.line > 0 {
            write!(f, ":{}:{}", self.problem.line, self.problem.column)?;
        }
        let pointer = if self.problem.pointer.is_empty() {
            ""
        } else {
            ": "
        };
        let words = format!("{}{pointer}{}", self.problem.pointer, self.problem.message);
        write!(f, ": {}", text::printable(&words))
    }
}

/// A parsed TOML file that knows the line of each value.
pub struct TomlDocument<'t> {
    text: &'t str,
    /// Where each line starts, so that a long file is not counted through for every value.
    lines: Vec<usize>,
    table: DeTable<'t>,
    pub value: Value,
}

impl<'t> TomlDocument<'t> {
    /// Reports only the first syntax error: what the parser finds after it is a guess.
    pub fn parse(text: &'t str) -> Result<TomlDocument<'t>, Vec<Problem>> {
        let lines = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(i, _)| i + 1))
            .collect();
        let (table, errors) = DeTable::parse_recoverable(text);
        let table = table.into_inner();
        let mut document = TomlDocument {
            text,
            lines,
            value: Value::Null,
            table,
        };
        let Some(error) = errors.iter().min_by_key(|error: &&toml::de::Error| {
            error.span().map_or(usize::MAX, |span| span.start)
        }) else {
            document.value = table_value(&document.table);
            return Ok(document);
        };
        let At { line, column } = error
            .span()
            .map(|span| document.place(span.start))
            .unwrap_or_default();
        let message = text::printable(error.message());
        let key = error
            .span()
            .filter(|_| message == "duplicate key")
            .and_then(|span| text.get(span));
        let key = key.map_or_else(String::new, |key| format!(" `{}`", text::printable(key)));
        let message = format!("not TOML: {message}{key}");
        Err(vec![Problem {
            line,
            column,
            ..Problem::new(Severity::Error, Code::Syntax, "", message)
        }])
    }

    fn place(&self, offset: usize) -> At {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        // A line may be the whole file: past MAX_COLUMN bytes the column is left 0 and not counted
        // for every value.
        let before = Some(start..offset).filter(|range| range.len() <= MAX_COLUMN);
        let column = before
            .and_then(|range| self.text.get(range))
            .map_or(0, |text| text.chars().count() + 1);
        At { line, column }
    }
}

impl SourceMap for TomlDocument<'_> {
    /// For a value that the file does not have: the position of the nearest value around it.
    fn at(&self, pointer: &str, is_name: bool) -> At {
        let mut found = (0..0, 0..0);
        let mut table = Some(&self.table);
        let mut value = None;
        for segment in pointer.split('/').skip(1) {
            let name = segment.replace("~1", "/").replace("~0", "~");
            let member = table.and_then(|table| table.get_key_value(name.as_str()));
            let item = value
                .and_then(DeValue::as_array)
                .and_then(|list| list.get(name.parse::<usize>().ok()?));
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
        self.place(if is_name {
            found.0.start
        } else {
            found.1.start
        })
    }
}

fn table_value(table: &DeTable<'_>) -> Value {
    Value::Object(
        table
            .iter()
            .map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref())))
            .collect(),
    )
}

/// Converts to JSON. Dates, infinities and NaN become `null`, which the schema refuses everywhere.
fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            // An integer beyond i64 becomes a number beyond every bound of a schema.
            Err(_) => (if number.as_str().starts_with('-') {
                f64::MIN
            } else {
                f64::MAX
            })
            .into(),
        },
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .map_or(Value::Null, Value::from),
        DeValue::Datetime(_) => Value::Null,
        DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => table_value(table),
    }
}

/// One entry of a policy: the most that it grants, and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry<G> {
    pub grant: G,
    pub at: At,
}

/// How verdicts name a policy.
#[derive(Clone, Copy)]
pub struct Origin<'p> {
    pub name: &'p str,
    pub file: &'p Path,
}

impl Origin<'_> {
    /// Where an entry of the policy is written: `file:line`, or the policy's name if it has no
    /// file.
    pub fn place(self, at: At) -> String {
        match text::path(self.file) {
            file if file.is_empty() => self.name.to_owned(),
            file if at.line == 0 => file,
            file => format!("{file}:{}", at.line),
        }
    }

    pub fn called(self) -> String {
        match text::path(self.file) {
            file if file.is_empty() => format!("`{}`", self.name),
            file => format!("`{}` ({file})", self.name),
        }
    }
}
