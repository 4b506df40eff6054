//! Reader: takes fields out of a parsed manifest and notes every fault with its place.
//!
//! For: `file` and its blocks. In: a document. Out: typed fields; all problems, collected.
//! Never: stops at the first fault; replaces a wrong type by a default without a problem.

use super::json::{self, Document};
use super::{Code, Problem, Severity, misplaced, suggest, text};
use serde_json::{Map, Value};

/// Most problems told about one file: finding a place costs one walk over the text.
const MAX_PROBLEMS: usize = 100;

const LEAVE_OUT: &str = " (leave the field out to get the default)";

/// Looks a place up; called only for a problem that is kept.
type Place = fn(&Document<'_>, &str) -> (usize, usize);

pub(super) type Object = Map<String, Value>;

/// What an unknown key in an object means.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unknown {
    /// The manifest is refused: a misspelt restriction would restrict nothing.
    Refused,
    /// Kept; a warning only where a known name is near.
    Kept,
    /// Kept, and always told, because it looks as if it did something.
    Told,
}

pub(super) struct Reader<'d> {
    document: &'d Document<'d>,
    pub(super) problems: Vec<Problem>,
}

impl<'d> Reader<'d> {
    pub(super) fn new(document: &'d Document<'d>) -> Reader<'d> {
        Reader { document, problems: document.notes.clone() }
    }

    pub(super) fn error(&mut self, code: Code, pointer: &str, message: impl Into<String>) {
        self.add(Severity::Error, code, pointer, |d, at| d.place(at), message.into());
    }

    pub(super) fn note(&mut self, code: Code, pointer: &str, message: impl Into<String>) {
        self.add(Severity::Note, code, pointer, |d, at| d.place(at), message.into());
    }

    pub(super) fn warn(&mut self, code: Code, pointer: &str, message: impl Into<String>) {
        self.add(Severity::Warning, code, pointer, |d, at| d.place(at), message.into());
    }

    fn add(&mut self, severity: Severity, code: Code, pointer: &str, place: Place, message: String) {
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

    pub(super) fn object(&mut self, value: &'d Value, pointer: &str) -> Option<&'d Object> {
        if let Value::Object(map) = value {
            return Some(map);
        }
        self.wrong_type(pointer, "an object", value);
        None
    }

    /// An optional member that is an object.
    pub(super) fn member(&mut self, map: &'d Object, pointer: &str, key: &str) -> Option<&'d Object> {
        let value = map.get(key)?;
        self.object(value, &below(pointer, key))
    }

    pub(super) fn text(&mut self, map: &'d Object, pointer: &str, key: &str) -> Option<&'d str> {
        match map.get(key)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong_type(&below(pointer, key), "a string", other);
                None
            }
        }
    }

    /// A text that must be there and not be blank.
    pub(super) fn required_text(&mut self, map: &'d Object, pointer: &str, key: &str) -> Option<&'d str> {
        if !map.contains_key(key) {
            // The misspelt field has a problem of its own, but a reader may be shown only this one.
            let near = suggest::nearest(key, map.keys().map(String::as_str));
            let near = near.map_or_else(String::new, |near| format!(": is '{}' it, misspelt?", text::head(near, 80)));
            self.error(Code::Schema, pointer, format!("the required field '{key}' is missing{near}"));
            return None;
        }
        if map.get(key).is_some_and(Value::is_null) {
            let message = format!("'{key}' is null, and it is required: write a text in quotes");
            self.error(Code::Schema, &below(pointer, key), message);
            return None;
        }
        let text = self.text(map, pointer, key)?;
        if text.trim().is_empty() {
            self.error(Code::Schema, &below(pointer, key), format!("'{key}' is empty: it must say something"));
            return None;
        }
        Some(text)
    }

    pub(super) fn flag(&mut self, map: &'d Object, pointer: &str, key: &str) -> Option<bool> {
        match map.get(key)? {
            Value::Bool(flag) => Some(*flag),
            other => {
                self.wrong_type(&below(pointer, key), "true or false", other);
                None
            }
        }
    }

    /// A whole number that is not negative.
    pub(super) fn whole(&mut self, map: &'d Object, pointer: &str, key: &str) -> Option<u64> {
        let value = map.get(key)?;
        let number = json::whole(value);
        if number.is_none() {
            let unit = match key {
                _ if key.ends_with("Bytes") => " of bytes",
                _ if key.ends_with("Ms") => " of milliseconds",
                _ => "",
            };
            let got = match value {
                Value::Number(number) => number.to_string(),
                Value::String(written) => format!("the text \"{}\"", text::head(written, 40)),
                other => kind(other).to_owned(),
            };
            let mend = if value.is_null() { LEAVE_OUT } else { "" };
            let message = format!("must be a whole number{unit}, not {got}{mend}");
            self.error(Code::Schema, &below(pointer, key), message);
        }
        number
    }

    /// A list of strings. `None` when absent or when the list itself has the wrong type.
    pub(super) fn strings(&mut self, map: &'d Object, pointer: &str, key: &str) -> Option<Vec<(String, &'d str)>> {
        let value = map.get(key)?;
        let pointer = below(pointer, key);
        let Value::Array(items) = value else {
            self.wrong_type(&pointer, "a list of strings", value);
            return None;
        };
        let mut found = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            match item {
                Value::String(text) => found.push((pointer, text.as_str())),
                other => self.wrong_type(&pointer, "a string", other),
            }
        }
        Some(found)
    }

    pub(super) fn wrong_type(&mut self, pointer: &str, wanted: &str, got: &Value) {
        let of_list = pointer.rsplit('/').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
        let mend = match got.is_null() {
            true if of_list => " (take it out of the list)",
            true => LEAVE_OUT,
            false => "",
        };
        self.error(Code::Schema, pointer, format!("must be {wanted}, not {}{mend}", kind(got)));
    }

    pub(super) fn unknown_keys(&mut self, map: &'d Object, pointer: &str, known: &[&str], rule: Unknown, code: Code) {
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            let near = suggest::nearest(key, known.iter().copied());
            // Below the top level, blocks such as `metadata` may have any members of their own.
            let elsewhere = misplaced::mend(key, pointer).filter(|_| rule != Unknown::Kept || pointer.is_empty());
            let extension = key.starts_with("x-") || key.starts_with('$');
            let nobodys = near.is_none() && elsewhere.is_none();
            if rule != Unknown::Refused && (extension || (rule == Unknown::Kept && nobodys)) {
                continue;
            }
            let shown = text::head(key, 80);
            let (severity, what) = match (rule, &elsewhere) {
                (Unknown::Refused, _) => (Severity::Error, "is not known"),
                (Unknown::Kept | Unknown::Told, Some(_)) => (Severity::Warning, "does nothing here"),
                (Unknown::Kept | Unknown::Told, None) => (Severity::Warning, "is not known and does nothing"),
            };
            let mend = match (elsewhere, near) {
                (Some(elsewhere), _) => elsewhere,
                (None, Some(near)) => format!("did you mean '{near}'?"),
                (None, None) => format!("known here: {}", known.join(", ")),
            };
            self.add(
                severity,
                code,
                &below(pointer, key),
                |d, at| d.place_of_key(at),
                format!("'{shown}' {what}: {mend}"),
            );
        }
    }
}

/// The pointer of a member.
pub(super) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", json::escape_segment(key))
}

/// A value's type, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
