//! The JSON reader of this program: strict, bounded, with places.
//!
//! serde_json judges the grammar and makes the tree. It lets the last of two equal keys win, rounds long numbers and
//! forgets places: a walk over the tokens finds these. Comments are overwritten with spaces, so that there is one grammar.

use super::problem::{Code, Problem, Severity};
use crate::quantity::MAX_JSON_DEPTH;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::borrow::Cow;

mod object;
mod text;
mod walk;

pub use object::Object;
use text::tree;
pub use text::{Indented, Text, TooMuch, weight};
use walk::{Tokens, Walk, is_comment};
pub use walk::{escape_segment, member};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// RFC 8259.
    Strict,
    /// The same with `//` and `/* */` comments and trailing commas, each kind noted once.
    Commented,
}

/// One parsed document. Key order is kept.
#[derive(Clone, Debug)]
pub struct Document<'a> {
    pub value: Value,
    /// Comments and trailing commas, one note for each kind.
    pub notes: Vec<Problem>,
    text: &'a str,
}

impl Document<'_> {
    /// Line and column (1-based, in characters) where the value at `pointer` starts; (0, 0) if there is none.
    /// Looked up only on demand: reading a good file costs nothing for places.
    pub fn place(&self, pointer: &str) -> (usize, usize) {
        walk::find(self.text, pointer).map_or((0, 0), |(value, _)| line_and_column(self.text, value))
    }

    /// The same for the member name in front of the value.
    pub fn place_of_key(&self, pointer: &str) -> (usize, usize) {
        walk::find(self.text, pointer).map_or((0, 0), |(_, key)| line_and_column(self.text, key))
    }
}

/// Parses exactly one document.
pub fn parse(bytes: &[u8], dialect: Dialect) -> Result<Document<'_>, Problem> {
    let text = decode(bytes)?;
    let (plain, notes) = match dialect {
        Dialect::Strict => (Cow::Borrowed(text), Vec::new()),
        Dialect::Commented => without_comments(text),
    };
    check(text, &plain, |_| {})?;
    Ok(Document { value: tree(&plain), notes, text })
}

/// Exactly one strict document as compact text. No tree of it is made: that can be forty times as large.
pub fn compact(bytes: &[u8]) -> Result<Text, Problem> {
    let text = decode(bytes)?;
    let mut copy = String::with_capacity(text.len());
    check(text, text, |part| copy.push_str(part))?;
    Text::from_checked(copy).ok_or_else(|| problem(text, 0, String::new(), "this is not one JSON value"))
}

/// UTF-8 without its byte order mark.
fn decode(bytes: &[u8]) -> Result<&str, Problem> {
    let encoding =
        |text, at, message: &str| Problem { code: Code::Encoding, ..problem(text, at, String::new(), message) };
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(encoding("", 0, "the file is UTF-16: save it as UTF-8"));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let good = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        encoding(good, good.len(), &format!("byte {} is not UTF-8: save the file as UTF-8", error.valid_up_to()))
    })
}

/// The text with spaces for comments and trailing commas, every other byte at its old place; and a note for each kind.
fn without_comments(text: &str) -> (Cow<'_, str>, Vec<Problem>) {
    let (mut comments, mut commas) = (Vec::new(), Vec::new());
    // The last token, and the comma that is it, unless nothing stands before that comma.
    let (mut last, mut comma) = ("", None);
    for (at, part) in Tokens::of(text) {
        if is_comment(part) {
            comments.push(at..at + part.len());
            continue;
        }
        commas.extend(comma.filter(|_| matches!(part, "}" | "]")));
        comma = (part == "," && !matches!(last, "" | "{" | "[" | ",")).then_some(at..at + 1);
        last = part;
    }
    let kinds = [
        (&comments, "comments are not JSON; toolhost reads them, other programs may not"),
        (&commas, "commas before a closing bracket are not JSON; toolhost reads them"),
    ];
    let notes = kinds.into_iter().filter_map(|(found, what)| {
        let message = format!("{what} ({} in this file, the first one here)", found.len());
        let at = found.first()?.start;
        Some(Problem { severity: Severity::Note, ..problem(text, at, String::new(), message) })
    });
    let notes = notes.collect();
    let mut plain = text.as_bytes().to_vec();
    for place in comments.into_iter().chain(commas) {
        // Line breaks stay: places are counted by them.
        plain[place].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    (Cow::Owned(String::from_utf8(plain).unwrap_or_default()), notes)
}

/// Names that serde_json uses for values of other kinds (raw text, long numbers).
const PRIVATE: &str = "$serde_json::private::";
const TAKEN: &str = "this member name is taken: serde_json would read its value as something else";
/// Of two equal names one reader takes the first and another the last, which can get around a check.
const TWICE: &str = "this member name stands twice in one object: keep one";

/// Checks that a text is one document; `put` gets its tokens, each string in one spelling. `plain` is `text` without
/// comments.
fn check(text: &str, plain: &str, mut put: impl FnMut(&str)) -> Result<(), Problem> {
    let bad = grammar(plain);
    let good = bad.as_ref().map_or(plain, |(at, _)| &plain[..*at]);
    let mut walk = Walk::of(good);
    while let Some(token) = walk.step() {
        let part = token.part;
        // The last token before a fault may be a piece of one.
        if bad.is_some() && token.at + part.len() == good.len() {
            break;
        }
        let escaped = part.starts_with('"') && part.contains('\\');
        let characters = escaped.then(|| serde_json::from_str::<String>(part));
        let name = token.is_name.then(|| walk.name());
        let fault = if walk.is_too_deep() {
            Some(format!("nested deeper than {MAX_JSON_DEPTH} levels"))
        } else if let Some(Err(_)) = characters {
            Some("half of a surrogate pair stands alone in this string".to_owned())
        } else if name.is_some_and(|name| name.starts_with(PRIVATE)) {
            Some(TAKEN.to_owned())
        } else if token.is_name && walk.is_repeated() {
            Some(TWICE.to_owned())
        } else if part.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && !fits(part) {
            Some("this number does not fit in 64 bits: send it as a string".to_owned())
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(problem(text, token.at, walk.pointer(), fault));
        }
        match characters {
            Some(Ok(characters)) => put(&Value::String(characters).to_string()),
            _ => put(part),
        }
    }
    match bad {
        Some((at, message)) => Err(problem(text, at, walk.pointer(), message)),
        None => Ok(()),
    }
}

/// Whether a number keeps its value: whole ones in 64 bits, reals as far as reals do.
fn fits(number: &str) -> bool {
    match number.contains(['.', 'e', 'E']) {
        true => number.parse::<f64>().is_ok_and(f64::is_finite),
        false => number.parse::<u64>().is_ok() || number.parse::<i64>().is_ok(),
    }
}

/// What serde_json says, and what to do about it.
const MENDS: [(&str, &str); 10] = [
    ("EOF while parsing a string", "this string is not closed"),
    ("EOF", "the text ends before the value is whole: a bracket, a quote or a value is missing"),
    ("trailing comma", "a comma before the closing bracket: take it away"),
    ("trailing characters", "more than one value, or text after the end: exactly one JSON value is allowed"),
    ("key must be a string", "a member name in double quotes is needed here"),
    ("expected `:`", "a ':' is needed after the member name"),
    ("expected `,` or", "a comma or a closing bracket is needed here"),
    ("control character", "a raw control character in a string: escape it (\\n, \\t, …)"),
    ("invalid escape", "this escape does not exist in JSON"),
    ("expected", "a JSON value is needed here"),
];

/// The offset of the first byte that does not fit the grammar of JSON, and the fault.
fn grammar(text: &str) -> Option<(usize, String)> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let error = IgnoredAny::deserialize(&mut reader).and_then(|_| reader.end()).err()?;
    if text.trim().is_empty() {
        return Some((text.len(), "there is nothing here: one JSON value is needed".to_owned()));
    }
    let above: usize = text.split_inclusive('\n').take(error.line() - 1).map(str::len).sum();
    let at = if error.is_eof() { text.len() } else { (above + error.column()).saturating_sub(1) };
    let at = text.floor_char_boundary(at);
    let start = text[..at].trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '-').len();
    let word = text[start..].split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
    if ["NaN", "nan", "Infinity", "-Infinity", "infinity", "inf"].contains(&word) {
        return Some((start, format!("{word} is not JSON: use null or a string")));
    }
    let said = error.to_string();
    let message = match text.as_bytes().get(at) {
        Some(b'/') => "a JSON value is needed here: comments stand in files only, as // or closed /* */",
        Some(b'\'') => "JSON strings stand in double quotes",
        _ => MENDS.iter().find(|(error, _)| said.starts_with(error)).map_or(said.as_str(), |(_, mend)| mend),
    };
    Some((at, message.to_owned()))
}

fn problem(text: &str, at: usize, pointer: String, message: impl Into<String>) -> Problem {
    let (line, column) = line_and_column(text, at);
    Problem { severity: Severity::Error, code: Code::Syntax, pointer, line, column, message: message.into() }
}

/// 1-based line and column of a byte offset.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before.get(start..).unwrap_or_default().chars().count() + 1)
}

/// A whole number that is not negative. 100.0 is one too, as in JSON Schema, but only up to 2^53: larger reals do not
/// tell neighbouring integers apart.
pub fn whole(value: &Value) -> Option<u64> {
    let written_as_real = |number: &f64| (0.0..=9_007_199_254_740_992.0).contains(number) && number.fract() == 0.0;
    value.as_u64().or_else(|| value.as_f64().filter(written_as_real).map(|number| number as u64))
}

#[cfg(test)]
mod tests;
