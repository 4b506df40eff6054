//! JSON: the reader of this program: strict, bounded, with places.
//!
//! For: manifests (`Commented`), arguments and script output (`Strict`). In: bytes.
//! Out: one `Document`, or one compact `Text`, or the one `Problem` that made it unreadable.
//! Never: recursion, a silent repair, a duplicate key, an integer that would change its value.
//!
//! serde_json is not used to parse: it lets the last of two equal keys win, and it forgets places.

use super::{Code, Problem, Severity};
use crate::quantity::MAX_JSON_DEPTH;
use serde_json::{Map, Value};

mod place;
mod scalars;
mod text;

pub use text::{Indented, Text, TooMuch, weight};

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
        place::value(self.text, pointer).map_or((0, 0), |at| line_and_column(self.text, at))
    }

    /// The same for the member name in front of the value.
    pub fn place_of_key(&self, pointer: &str) -> (usize, usize) {
        place::key(self.text, pointer).map_or((0, 0), |at| line_and_column(self.text, at))
    }
}

/// Parses exactly one document.
pub fn parse(bytes: &[u8], dialect: Dialect) -> Result<Document<'_>, Problem> {
    let text = decode(bytes)?;
    let mut parser = Parser::new(text, dialect);
    let value = parser.document()?;
    let notes = parser.notes();
    Ok(Document { value, notes, text })
}

/// Exactly one strict document as compact text. No tree of it is made: that can be forty times as large (P17).
pub fn compact(bytes: &[u8]) -> Result<Text, Problem> {
    let text = decode(bytes)?;
    let mut parser = Parser::copying(text);
    parser.document()?;
    Text::from_checked(parser.copied()).ok_or_else(|| parser.fail(0, "this is not one JSON value"))
}

/// The first byte of the value that `text` starts with, and the text after that value: for messages about a text that
/// is not one document.
pub fn leading(text: &str) -> Option<(u8, &str)> {
    let mut parser = Parser::copying(text);
    parser.one().ok()?;
    let rest = text.get(parser.at..)?;
    Some((parser.copied().bytes().next()?, rest))
}

/// The text of the value at `pointer`, also where the document has faults elsewhere.
pub fn member<'t>(text: &'t str, pointer: &str) -> Option<&'t str> {
    place::whole(text, pointer)
}

/// UTF-8 without its byte order mark.
fn decode(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(encoding(1, 1, "the file is UTF-16: save it as UTF-8".to_owned()));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let good = std::str::from_utf8(good).unwrap_or_default();
        let (line, column) = line_and_column(good, good.len());
        encoding(line, column, format!("byte {} is not UTF-8: save the file as UTF-8", good.len()))
    })
}

fn encoding(line: usize, column: usize, message: String) -> Problem {
    Problem { severity: Severity::Error, code: Code::Encoding, pointer: String::new(), line, column, message }
}

/// 1-based line and column of a byte offset.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before.get(start..).unwrap_or_default().chars().count() + 1)
}

/// Names that serde_json uses for values of other kinds (raw text, long numbers).
const PRIVATE: &str = "$serde_json::private::";
/// Of two equal names one reader takes the first and another the last, which can get around a check.
const TWICE: &str = "this member name stands twice in one object: keep one";

/// A whole number that is not negative. 100.0 is one too, as in JSON Schema, but only up to 2^53: larger reals do not
/// tell neighbouring integers apart.
pub fn whole(value: &Value) -> Option<u64> {
    let written_as_real = |number: &f64| (0.0..=9_007_199_254_740_992.0).contains(number) && number.fract() == 0.0;
    value.as_u64().or_else(|| value.as_f64().filter(written_as_real).map(|number| number as u64))
}

/// `/` and `~` as a JSON pointer writes them.
pub fn escape_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

/// A container that is still open.
enum Frame {
    /// Its items, and how many there were.
    Array(Vec<Value>, usize),
    /// The member name in hand, between `"name":` and its value.
    Object(Map<String, Value>, Option<String>, text::Names),
}

pub(crate) struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    dialect: Dialect,
    stack: Vec<Frame>,
    /// The text read so far, without white space; where this is written, the values themselves are not kept.
    copy: Option<String>,
    /// How many there were, and the offset of the first.
    comments: (usize, usize),
    trailing_commas: (usize, usize),
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, dialect: Dialect) -> Parser<'a> {
        Parser::starting_at(text, 0, dialect)
    }

    fn starting_at(text: &'a str, at: usize, dialect: Dialect) -> Parser<'a> {
        let none = (0, 0);
        let (bytes, stack, copy) = (text.as_bytes(), Vec::new(), None);
        Parser { text, bytes, at, dialect, stack, copy, comments: none, trailing_commas: none }
    }

    /// A strict parser that copies text instead of keeping values.
    fn copying(text: &'a str) -> Parser<'a> {
        // The copy is never longer than the text.
        Parser { copy: Some(String::with_capacity(text.len())), ..Parser::new(text, Dialect::Strict) }
    }

    fn copied(&mut self) -> String {
        self.copy.take().unwrap_or_default()
    }

    fn write(&mut self, text: &str) {
        if let Some(copy) = &mut self.copy {
            copy.push_str(text);
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn document(&mut self) -> Result<Value, Problem> {
        let value = self.one()?;
        self.space()?;
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.fail(self.at, "text after the end: exactly one JSON value is allowed")),
        }
    }

    /// One value; the text after it is not looked at.
    fn one(&mut self) -> Result<Value, Problem> {
        self.space()?;
        if self.peek().is_none() {
            return Err(self.fail(self.at, "there is nothing here: one JSON value is needed"));
        }
        loop {
            let Some(mut value) = self.value_or_open()? else { continue };
            loop {
                if self.stack.is_empty() {
                    return Ok(value);
                }
                match self.attach(value)? {
                    Some(closed) => value = closed,
                    None => break,
                }
            }
        }
    }

    /// A whole scalar or empty container, or `None` after a container was opened.
    fn value_or_open(&mut self) -> Result<Option<Value>, Problem> {
        self.space()?;
        let value = match self.peek() {
            Some(open @ (b'{' | b'[')) => {
                if self.stack.len() >= MAX_JSON_DEPTH {
                    return Err(self.fail(self.at, &format!("nested deeper than {MAX_JSON_DEPTH} levels")));
                }
                self.at += 1;
                self.space()?;
                match (open, self.peek()) {
                    (b'{', Some(b'}')) => {
                        self.write("{}");
                        Value::Object(Map::new())
                    }
                    (b'[', Some(b']')) => {
                        self.write("[]");
                        Value::Array(Vec::new())
                    }
                    (b'{', _) => {
                        self.write("{");
                        self.stack.push(Frame::Object(Map::new(), None, text::Names::default()));
                        self.key()?;
                        return Ok(None);
                    }
                    _ => {
                        self.write("[");
                        self.stack.push(Frame::Array(Vec::new(), 0));
                        return Ok(None);
                    }
                }
            }
            Some(b'"') => return Ok(Some(Value::String(self.string_value()?))),
            Some(b'-' | b'0'..=b'9') => return Ok(Some(Value::Number(self.number()?))),
            _ => return self.word().map(Some),
        };
        self.at += 1;
        Ok(Some(value))
    }

    /// Puts a value into the innermost open container; gives the container when that closes it.
    fn attach(&mut self, value: Value) -> Result<Option<Value>, Problem> {
        let end = match self.stack.last_mut() {
            Some(Frame::Array(items, count)) => {
                *count += 1;
                if self.copy.is_none() {
                    items.push(value);
                }
                b']'
            }
            Some(Frame::Object(map, name, _)) => {
                let name = name.take().unwrap_or_default();
                if self.copy.is_none() {
                    map.insert(name, value);
                }
                b'}'
            }
            None => return Ok(Some(value)),
        };
        self.space()?;
        match self.peek() {
            Some(b',') => {
                let comma = self.at;
                self.at += 1;
                self.space()?;
                if self.peek() != Some(end) {
                    self.write(",");
                    if end == b'}' {
                        self.key()?;
                    }
                    return Ok(None);
                }
                if self.dialect == Dialect::Strict {
                    return Err(self.fail(comma, "a comma before the closing bracket: take it away"));
                }
                count(&mut self.trailing_commas, comma);
            }
            Some(byte) if byte == end => {}
            Some(_) => return Err(self.fail(self.at, &format!("a comma or '{}' is needed here", end as char))),
            None => return Err(self.fail(self.at, &format!("the text ends before the closing '{}'", end as char))),
        }
        self.at += 1;
        self.write(if end == b'}' { "}" } else { "]" });
        Ok(match self.stack.pop() {
            Some(Frame::Array(items, _)) => Some(Value::Array(items)),
            Some(Frame::Object(map, _, names)) => match names.twice() {
                None => Some(Value::Object(map)),
                Some(at) => {
                    let name = Parser::starting_at(self.text, at, self.dialect).string().ok();
                    self.stack.push(Frame::Object(map, name, text::Names::default()));
                    return Err(self.fail(at, TWICE));
                }
            },
            None => None,
        })
    }

    /// `"name":`, put into the innermost object.
    fn key(&mut self) -> Result<(), Problem> {
        let start = self.at;
        match self.peek() {
            Some(b'"') => {}
            None => return Err(self.fail(start, "the text ends before the closing '}'")),
            Some(_) => return Err(self.fail(start, "a member name in double quotes is needed here")),
        }
        let key = self.string()?;
        if key.starts_with(PRIVATE) {
            return Err(
                self.fail(start, "this member name is taken: serde_json would read its value as something else")
            );
        }
        if let Some(copy) = &mut self.copy {
            text::quote(&key, copy);
            copy.push(':');
        }
        let mut twice = false;
        if let Some(Frame::Object(map, name, names)) = self.stack.last_mut() {
            twice = map.contains_key(&key);
            if self.copy.is_some() {
                names.add(&key, start);
            }
            *name = Some(key);
        }
        if twice {
            return Err(self.fail(start, TWICE));
        }
        self.space()?;
        if self.peek() != Some(b':') {
            return Err(self.fail(self.at, "a ':' is needed after the member name"));
        }
        self.at += 1;
        Ok(())
    }

    /// White space and, where the dialect has them, comments.
    fn space(&mut self) -> Result<(), Problem> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                Some(b'/') => self.comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn comment(&mut self) -> Result<(), Problem> {
        let start = self.at;
        if self.dialect == Dialect::Strict {
            return Err(self.fail(start, "a JSON value is needed here (comments are not JSON)"));
        }
        let rest = self.text.get(start..).unwrap_or_default();
        let length = match rest.as_bytes().get(1) {
            Some(b'/') => rest.find('\n').unwrap_or(rest.len()),
            Some(b'*') => match rest.get(2..).and_then(|body| body.find("*/")) {
                Some(end) => end + 4,
                None => return Err(self.fail(start, "this comment is not closed")),
            },
            _ => return Err(self.fail(start, "a '/' stands alone: comments start with // or /*")),
        };
        count(&mut self.comments, start);
        self.at += length;
        Ok(())
    }

    fn notes(&self) -> Vec<Problem> {
        let kinds = [
            (self.comments, "comments are not JSON; toolhost reads them, other programs may not"),
            (self.trailing_commas, "commas before a closing bracket are not JSON; toolhost reads them"),
        ];
        let found = kinds.into_iter().filter(|((number, _), _)| *number > 0);
        found
            .map(|((number, first), what)| {
                let (line, column) = line_and_column(self.text, first);
                let message = format!("{what} ({number} in this file, the first one here)");
                let code = Code::Syntax;
                Problem { severity: Severity::Note, code, pointer: String::new(), line, column, message }
            })
            .collect()
    }

    fn fail(&self, offset: usize, message: &str) -> Problem {
        let (line, column) = line_and_column(self.text, offset);
        let message = message.to_owned();
        Problem { severity: Severity::Error, code: Code::Syntax, pointer: self.pointer(), line, column, message }
    }

    /// Where the parser is, as a JSON pointer.
    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for frame in &self.stack {
            match frame {
                Frame::Array(_, count) => pointer.push_str(&format!("/{count}")),
                Frame::Object(_, Some(name), _) => pointer.push_str(&format!("/{}", escape_segment(name))),
                Frame::Object(_, None, _) => {}
            }
        }
        pointer
    }
}

fn count(what: &mut (usize, usize), offset: usize) {
    if what.0 == 0 {
        what.1 = offset;
    }
    what.0 += 1;
}

#[cfg(test)]
mod tests;
