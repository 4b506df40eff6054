//! Source: reads TOML and collects all complaints, each with line, column and key path.
//!
//! For: `policy/file.rs`. In: the text of one policy. Out: values with their places, and `Problem`s.
//! Never: guesses a value that was not written, or lets an unknown key pass.

use crate::base::{suggest, text};
use crate::manifest::{Code, Problem, Severity};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most problems told about one file.
const MAX_PROBLEMS: usize = 100;
const MAX_COLUMN: usize = 10_000;

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

#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub value: T,
    pub at: At,
}

pub(super) struct Reader<'t> {
    text: &'t str,
    /// Where each line starts, so that a long file is not counted through for every value.
    lines: Vec<usize>,
    pub problems: Vec<Problem>,
}

/// One table and the key path that leads to it.
pub(super) struct Table<'a, 't> {
    pub pointer: String,
    pub at: At,
    pub entries: &'a DeTable<'t>,
}

impl<'a, 't> Table<'a, 't> {
    pub fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'t>>> {
        self.entries.iter().find(|(k, _)| k.get_ref() == key).map(|(_, v)| v)
    }
    pub fn pointer_to(&self, key: &str) -> String {
        format!("{}/{}", self.pointer, key.replace('~', "~0").replace('/', "~1"))
    }
}

impl<'t> Reader<'t> {
    pub fn new(text: &'t str) -> Reader<'t> {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Reader { text, lines, problems: Vec::new() }
    }

    pub fn at(&self, offset: usize) -> At {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        // A line may be the whole file: past MAX_COLUMN bytes the column is left 0 and not counted for every value.
        let before = Some(start..offset).filter(|range| range.len() <= MAX_COLUMN);
        let column = before.and_then(|range| self.text.get(range)).map_or(0, |text| text.chars().count() + 1);
        At { line, column }
    }

    pub fn complain(&mut self, code: Code, pointer: impl Into<String>, at: At, message: impl Into<String>) {
        if self.problems.len() >= MAX_PROBLEMS {
            return;
        }
        self.problems.push(Problem {
            severity: Severity::Error,
            code,
            pointer: pointer.into(),
            line: at.line,
            column: at.column,
            message: message.into(),
        });
    }

    pub fn schema(&mut self, pointer: impl Into<String>, at: At, message: impl Into<String>) {
        self.complain(Code::Schema, pointer, at, message);
    }

    /// Complains of every key that is not in `known`, with the nearest known word.
    pub fn only(&mut self, table: &Table<'_, '_>, known: &[&str]) {
        for (key, _) in table.entries {
            let word = key.get_ref().as_ref();
            if known.contains(&word) {
                continue;
            }
            let at = self.at(key.span().start);
            let shown = text::printable(word);
            let mend = did_you_mean(word, known);
            self.schema(
                table.pointer_to(word),
                at,
                format!("unknown key `{shown}`{mend}; known here: {}", known.join(", ")),
            );
        }
    }

    pub fn table<'a, 'v>(&mut self, of: &Table<'a, 'v>, key: &str) -> Option<Table<'a, 'v>> {
        let value = of.get(key)?;
        let (pointer, at) = (of.pointer_to(key), self.at(value.span().start));
        match value.get_ref().as_table() {
            Some(entries) => Some(Table { pointer, at, entries }),
            None => {
                let is = value.get_ref().type_str();
                self.schema(pointer, at, format!("`{key}` must be a table, not {}", article(is)));
                None
            }
        }
    }

    pub fn text(&mut self, of: &Table<'_, '_>, key: &str) -> Option<Placed<String>> {
        let value = of.get(key)?;
        self.text_of(value, of.pointer_to(key), key)
    }

    fn text_of(&mut self, value: &Spanned<DeValue<'_>>, pointer: String, key: &str) -> Option<Placed<String>> {
        let at = self.at(value.span().start);
        match value.get_ref().as_str() {
            Some(text) => Some(Placed { value: text.to_string(), at }),
            None => {
                let is = value.get_ref().type_str();
                self.schema(pointer, at, format!("`{key}` must be text in quotes, not {}", article(is)));
                None
            }
        }
    }

    /// True if the second of two words is written; an absent key means the first.
    pub fn choice(&mut self, of: &Table<'_, '_>, key: &str, words: [&str; 2]) -> bool {
        let Some(word) = self.text(of, key) else { return false };
        if !words.contains(&word.value.as_str()) {
            let mend = did_you_mean(&word.value, &words);
            let message = format!("`{key}` is \"{}\" or \"{}\"{mend}", words[0], words[1]);
            self.schema(of.pointer_to(key), word.at, message);
        }
        word.value == words[1]
    }

    /// A text that must be there and not be blank.
    pub fn said(&mut self, of: &Table<'_, '_>, key: &str, mend: &str) -> Option<Placed<String>> {
        if of.get(key).is_none() {
            self.schema(&of.pointer, of.at, format!("`{key}` is missing: {mend}"));
            return None;
        }
        let text = self.text(of, key)?;
        if text.value.trim().is_empty() {
            self.schema(of.pointer_to(key), text.at, format!("`{key}` is blank: {mend}"));
            return None;
        }
        Some(text)
    }

    /// The one key of a grant, and the reason for it; `mends`: what to do where one of them is missing.
    pub fn reasoned(&mut self, of: &Table<'_, '_>, key: &str, mends: [&str; 2]) -> Option<(Placed<String>, String)> {
        self.reasoned_with(of, key, &[], mends)
    }

    /// The same, of a grant that may have more keys.
    pub fn reasoned_with(
        &mut self,
        of: &Table<'_, '_>,
        key: &str,
        more: &[&str],
        mends: [&str; 2],
    ) -> Option<(Placed<String>, String)> {
        self.only(of, &[&[key], more, &["why"]].concat());
        let named = self.said(of, key, mends[0]);
        let why = self.said(of, "why", mends[1]);
        Some((named?, why?.value))
    }

    pub fn items<'a, 'v>(&mut self, of: &Table<'a, 'v>, key: &str) -> Vec<(String, &'a Spanned<DeValue<'v>>)> {
        let Some(value) = of.get(key) else { return Vec::new() };
        let pointer = of.pointer_to(key);
        match value.get_ref().as_array() {
            Some(items) => items.iter().enumerate().map(|(i, v)| (format!("{pointer}/{i}"), v)).collect(),
            None => {
                let (at, is) = (self.at(value.span().start), value.get_ref().type_str());
                self.schema(pointer, at, format!("`{key}` must be a list in [ ], not {}", article(is)));
                Vec::new()
            }
        }
    }

    pub fn texts(&mut self, of: &Table<'_, '_>, key: &str) -> Vec<(String, Placed<String>)> {
        let items = self.items(of, key);
        items.into_iter().filter_map(|(p, v)| self.text_of(v, p.clone(), key).map(|t| (p, t))).collect()
    }

    pub fn tables<'a, 'v>(&mut self, of: &Table<'a, 'v>, key: &str, shape: &str) -> Vec<Table<'a, 'v>> {
        let mut found = Vec::new();
        for (pointer, value) in self.items(of, key) {
            let at = self.at(value.span().start);
            match value.get_ref().as_table() {
                Some(entries) => found.push(Table { pointer, at, entries }),
                None => self.schema(pointer, at, format!("each entry of `{key}` is written {shape}")),
            }
        }
        found
    }

    /// True or false, false where it is not written; `None` where it was complained of.
    pub fn flag(&mut self, of: &Table<'_, '_>, key: &str) -> Option<bool> {
        let Some(value) = of.get(key) else { return Some(false) };
        let (at, is) = (self.at(value.span().start), value.get_ref().type_str());
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.schema(of.pointer_to(key), at, format!("`{key}` must be true or false, not {}", article(is)));
        }
        flag
    }

    /// A whole number; the complaint says what is wrong with anything else.
    pub fn number(&mut self, of: &Table<'_, '_>, key: &str) -> Option<Placed<i128>> {
        let value = of.get(key)?;
        let (pointer, at) = (of.pointer_to(key), self.at(value.span().start));
        let Some(integer) = value.get_ref().as_integer() else {
            let is = value.get_ref().type_str();
            self.schema(
                pointer,
                at,
                format!("`{key}` must be a whole number, not {}; there is no word for unlimited", article(is)),
            );
            return None;
        };
        match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(value) => Some(Placed { value, at }),
            Err(_) => {
                self.schema(pointer, at, format!("`{key}` is too large a number"));
                None
            }
        }
    }

    /// Parses the text; syntax faults (at most 20) are complained of with their places.
    pub fn parse(&mut self) -> Option<Spanned<DeTable<'t>>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Some(table);
        }
        // The parser reads all that follows an unclosed bracket as its content: those errors only follow from it.
        if errors.iter().any(|error| error.message().starts_with("unclosed"))
            && let Some((offset, bracket)) = unclosed(self.text)
        {
            let message = format!("not TOML: this `{bracket}` is never closed");
            self.complain(Code::Syntax, "", self.at(offset), message);
            return None;
        }
        for error in errors.iter().take(20) {
            let at = error.span().map(|s| self.at(s.start)).unwrap_or_default();
            let message = text::printable(error.message());
            let key = error.span().filter(|_| message == "duplicate key").and_then(|span| self.text.get(span));
            let key = key.map_or_else(String::new, |key| format!(" `{}`", text::printable(key)));
            self.complain(Code::Syntax, "", at, format!("not TOML: {message}{key}"));
        }
        self.problems.sort_by_key(|p| (p.line, p.column));
        None
    }
}

/// The last bracket that is still open at the end, outside of strings and comments.
fn unclosed(text: &str) -> Option<(usize, char)> {
    let (mut open, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let at = text.len() - rest.len();
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote));
        rest = match (c, quote) {
            ('#', _) => rest.split_once('\n').map_or("", |(_, after)| after),
            (_, Some(quote)) => after_string(&rest[quote.len()..], quote),
            ('[' | '{', _) => {
                open.push((at, c));
                &rest[1..]
            }
            (']' | '}', _) => {
                open.pop();
                &rest[1..]
            }
            _ => &rest[c.len_utf8()..],
        };
    }
    open.pop()
}

/// The text after a string that `quote` began; a string of one line ends at the line break, closed or not.
fn after_string<'t>(text: &'t str, quote: &str) -> &'t str {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote.starts_with('"') => escaped = true,
            '\n' if quote.len() == 1 => return &text[at..],
            _ if text[at..].starts_with(quote) => return &text[at + quote.len()..],
            _ => {}
        }
    }
    ""
}

fn article(kind: &str) -> String {
    let an = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if an { "an" } else { "a" })
}

/// `; did you mean …?` for the nearest known word, or nothing.
pub(super) fn did_you_mean(word: &str, known: &[&str]) -> String {
    let near = suggest::alike(word, known.iter().copied(), 0.75);
    near.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}
