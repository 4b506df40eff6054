//! The JSON reader of this program: strict, bounded, with line and column of each fault.
//!
//! serde_json lets the last of two equal keys win, rounds long numbers and keeps no positions. So a
//! text is first read here, token by token, and only an accepted text becomes a tree of serde_json.

use super::problem::{Code, Problem, Severity};
use crate::quantity::MAX_JSON_DEPTH;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// RFC 8259.
    Strict,
    /// RFC 8259 with `//` and `/* */` comments and trailing commas, each kind noted once.
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
    /// Line and column (1-based, in characters) where the value at `pointer` starts; (0, 0) if
    /// there is none. Looked up only on demand: reading a good file costs nothing for places.
    pub fn place(&self, pointer: &str) -> (usize, usize) {
        self.places([pointer].into_iter()).pop().unwrap_or_default()
    }

    /// As `place`, for many pointers at the cost of one.
    pub fn places<'p>(&self, pointers: impl Iterator<Item = &'p str>) -> Vec<(usize, usize)> {
        let mut found: Vec<_> = find_all(self.text, pointers)
            .into_iter()
            .enumerate()
            .collect();
        found.sort_by_key(|(_, offsets)| offsets.map(|offsets| offsets.value));
        let mut places = vec![(0, 0); found.len()];
        let mut line = 1;
        let mut column = 1;
        let mut at = 0;
        for (number, offsets) in found {
            let Some(Offsets { value, .. }) = offsets else {
                continue;
            };
            let (lines, last) = line_and_column(&self.text[at..], value - at);
            (line, column, at) = (
                line + lines - 1,
                if lines > 1 { last } else { column + last - 1 },
                value,
            );
            places[number] = (line, column);
        }
        places
    }

    /// As `place`, for the member name in front of the value.
    pub fn place_of_key(&self, pointer: &str) -> (usize, usize) {
        find(self.text, pointer).map_or((0, 0), |found| line_and_column(self.text, found.name))
    }
}

/// Parses exactly one document.
pub fn parse(bytes: &[u8], dialect: Dialect) -> Result<Document<'_>, Problem> {
    let text = decode(bytes)?;
    let (compact, [comment, comma]) = Parser::read(text, dialect)?;
    let kinds = [
        (
            comment,
            "comments are not JSON; toolhost reads them, other programs may not (the first one \
            here)",
        ),
        (
            comma,
            "commas before a closing bracket are not JSON; toolhost reads them (the first one \
            here)",
        ),
    ];
    let notes = kinds.into_iter().filter_map(|(at, what)| {
        Some(Problem {
            severity: Severity::Note,
            ..problem(text, at?, String::new(), what)
        })
    });
    Ok(Document {
        value: tree(&compact),
        notes: notes.collect(),
        text,
    })
}

/// Exactly one strict document as compact text. No tree of it is made: that can be forty times as
/// large.
pub fn compact(bytes: &[u8]) -> Result<Text, Problem> {
    let text = decode(bytes)?;
    let (compact, _) = Parser::read(text, Dialect::Strict)?;
    let raw = RawValue::from_string(compact);
    raw.map(Text)
        .map_err(|_| problem(text, 0, String::new(), "this is not one JSON value"))
}

/// UTF-8 without its byte order mark.
fn decode(bytes: &[u8]) -> Result<&str, Problem> {
    fn encoding(text: &str, at: usize, message: &str) -> Problem {
        Problem {
            code: Code::Encoding,
            ..problem(text, at, String::new(), message)
        }
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(encoding("", 0, "the file is UTF-16: save it as UTF-8"));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let good = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        encoding(
            good,
            good.len(),
            &format!(
                "byte {} is not UTF-8: save the file as UTF-8",
                error.valid_up_to()
            ),
        )
    })
}

/// Names that serde_json uses for values of other kinds (raw text, long numbers).
const PRIVATE: &str = "$serde_json::private::";

/// Reads one document, token by token, and copies it in compact form.
struct Parser<'t> {
    tokens: Tokens<'t>,
    /// The current token, empty at the end of the text, and where it begins.
    part: &'t str,
    at: usize,
    dialect: Dialect,
    /// Where the reader is, as segments of a JSON pointer.
    path: Vec<Cow<'t, str>>,
    compact: String,
    hasher: RandomState,
    /// Offsets of the first comment and of the first trailing comma.
    lenient: [Option<usize>; 2],
}

impl<'t> Parser<'t> {
    fn read(text: &'t str, dialect: Dialect) -> Result<(String, [Option<usize>; 2]), Problem> {
        let tokens = Tokens { text, at: 0 };
        let path = Vec::new();
        let hasher = RandomState::new();
        let compact = String::with_capacity(text.len());
        let mut reader = Parser {
            tokens,
            part: "",
            at: 0,
            dialect,
            path,
            compact,
            hasher,
            lenient: [None; 2],
        };
        reader.advance()?;
        reader.value()?;
        match reader.part {
            "" => Ok((reader.compact, reader.lenient)),
            _ => reader.fault("text after the end: exactly one JSON value is allowed"),
        }
    }

    /// Goes on to the next token.
    fn advance(&mut self) -> Result<(), Problem> {
        loop {
            (self.at, self.part) = self.tokens.next().unwrap_or((self.tokens.text.len(), ""));
            if !is_comment(self.part) {
                return Ok(());
            }
            let is_whole =
                self.part.starts_with("//") || self.part.len() > 3 && self.part.ends_with("*/");
            if self.dialect == Dialect::Strict || !is_whole {
                return self.fault(
                    "a JSON value is needed here; comments (// or closed /* */) are for files only",
                );
            }
            self.lenient[0].get_or_insert(self.at);
        }
    }

    /// Copies the current token and goes on.
    fn copy(&mut self) -> Result<(), Problem> {
        self.compact.push_str(self.part);
        self.advance()
    }

    fn value(&mut self) -> Result<(), Problem> {
        match self.part {
            "{" => self.container("}"),
            "[" => self.container("]"),
            "true" | "false" | "null" => self.copy(),
            part if part.starts_with('"') => self.string().map(drop),
            "NaN" | "Infinity" | "-Infinity" => {
                self.fault("a JSON value is needed here, and NaN and Infinity are none: write null")
            }
            part if serde_json::from_str::<IgnoredAny>(part).is_err() => {
                self.fault("a JSON value is needed here")
            }
            number if !fits(number) => {
                self.fault("this number does not fit in 64 bits: send it as a string")
            }
            _ => self.copy(),
        }
    }

    fn container(&mut self, close: &str) -> Result<(), Problem> {
        if self.path.len() >= MAX_JSON_DEPTH {
            return self.fault(format!("nested deeper than {MAX_JSON_DEPTH} levels"));
        }
        self.copy()?;
        let mut names = HashSet::new();
        let mut index = 0usize;
        while self.part != close {
            match close {
                "}" => self.member_name(&mut names)?,
                _ => self.path.push(index.to_string().into()),
            }
            self.value()?;
            self.path.pop();
            index += 1;
            let comma = self.at;
            if self.part == "," {
                self.advance()?;
                if self.part != close {
                    self.compact.push(',');
                } else if self.dialect == Dialect::Commented {
                    self.lenient[1].get_or_insert(comma);
                } else {
                    self.at = comma;
                    return self.fault("a comma before the closing bracket: remove it");
                }
            } else if self.part != close {
                return self.fault("a comma or a closing bracket is needed here");
            }
        }
        self.copy()
    }

    fn member_name(&mut self, names: &mut HashSet<u64>) -> Result<(), Problem> {
        let at = self.at;
        if !self.part.starts_with('"') {
            return self.fault("a member name in double quotes is needed here");
        }
        let name = self.string()?;
        let after = self.at;
        let is_private = name.starts_with(PRIVATE);
        // Only hashes are kept: the names would take more memory than the text.
        let is_new = names.insert(self.hasher.hash_one(&name));
        self.path.push(name);
        self.at = at;
        match (is_new, is_private, self.part) {
            // Of two equal names one reader takes the first and another the last, which can get
            // around a check.
            (false, ..) => self.fault("this member name occurs twice in one object: keep one"),
            (_, true, _) => self.fault("this member name is reserved"),
            (.., ":") => self.copy(),
            _ => {
                self.at = after;
                self.fault("a ':' is needed after the member name")
            }
        }
    }

    /// Copies a string, in one spelling, and returns its characters.
    fn string(&mut self) -> Result<Cow<'t, str>, Problem> {
        let part = self.part;
        let inside = part
            .get(1..part.len() - 1)
            .filter(|_| self.tokens.at <= self.tokens.text.len());
        let Some(inside) = inside else {
            return self.fault("this string is not closed");
        };
        if inside.bytes().any(|byte| byte < b' ') {
            return self.fault("a raw control character in a string: escape it (\\n, \\t, …)");
        }
        if !inside.contains('\\') {
            self.copy()?;
            return Ok(Cow::Borrowed(inside));
        }
        let Ok(characters) = serde_json::from_str::<String>(part) else {
            return self.fault(
                "this string holds an escape that JSON does not have, or half of a surrogate pair",
            );
        };
        self.compact
            .push_str(&Value::from(characters.as_str()).to_string());
        self.advance()?;
        Ok(Cow::Owned(characters))
    }

    /// A fault at the current token.
    fn fault<T>(&self, message: impl Into<String>) -> Result<T, Problem> {
        let pointer = self
            .path
            .iter()
            .map(|segment| format!("/{}", escape_segment(segment)))
            .collect();
        Err(problem(self.tokens.text, self.at, pointer, message))
    }
}

/// Whether a number keeps its value: whole ones in 64 bits, reals as far as reals do.
fn fits(number: &str) -> bool {
    if number.contains(['.', 'e', 'E']) {
        number.parse::<f64>().is_ok_and(f64::is_finite)
    } else {
        number.parse::<u64>().is_ok() || number.parse::<i64>().is_ok()
    }
}

fn problem(text: &str, at: usize, pointer: String, message: impl Into<String>) -> Problem {
    let (line, column) = line_and_column(text, at);
    Problem {
        severity: Severity::Error,
        code: Code::Syntax,
        pointer,
        line,
        column,
        message: message.into(),
    }
}

/// 1-based line and column of a byte offset.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        line,
        before.get(start..).unwrap_or_default().chars().count() + 1,
    )
}

/// A whole number that is not negative. 100.0 is one too, as in JSON Schema, but only up to 2^53:
/// larger reals do not tell neighbouring integers apart.
pub fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        value
            .as_f64()
            .filter(|number: &f64| {
                (0.0..=9_007_199_254_740_992.0).contains(number) && number.fract() == 0.0
            })
            .map(|number| number as u64)
    })
}

/// A compact JSON text: one value, no white space between its parts, no raw control character, no
/// name twice.
#[derive(Clone, Debug)]
pub struct Text(Box<RawValue>);

/// The tree would take more memory than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

impl Text {
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// A text that is one compact document.
    pub fn checked(text: &str) -> Option<Text> {
        RawValue::from_string(text.to_owned()).ok().map(Text)
    }

    /// Of a value whose raw parts are compact texts.
    pub fn of(value: &impl Serialize) -> serde_json::Result<Text> {
        serde_json::value::to_raw_value(value).map(Text)
    }

    /// Its characters, if it is a string.
    pub fn string(&self) -> Option<String> {
        self.as_str()
            .starts_with('"')
            .then(|| serde_json::from_str(self.as_str()).ok())
            .flatten()
    }

    /// As a tree of at most about `room` bytes.
    pub fn tree(&self, room: usize) -> Result<Value, TooMuch> {
        if weight(self.as_str()) > room {
            return Err(TooMuch);
        }
        Ok(self.value())
    }

    /// As a tree, however large.
    pub fn value(&self) -> Value {
        tree(self.as_str())
    }
}

impl From<&Value> for Text {
    fn from(value: &Value) -> Text {
        Text(serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }
}

impl From<Text> for Box<RawValue> {
    fn from(text: Text) -> Box<RawValue> {
        text.0
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_str() == other.as_str()
    }
}

impl PartialEq<Value> for Text {
    fn eq(&self, other: &Value) -> bool {
        self.value() == *other
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// A compact JSON text, written with two spaces for each level.
#[derive(Clone, Copy, Debug)]
pub struct Indented<'a>(pub &'a str);

impl Indented<'_> {
    /// Whether the indented text has more than `most` bytes.
    pub fn is_longer_than(self, most: usize) -> bool {
        struct Room(usize);
        impl fmt::Write for Room {
            fn write_str(&mut self, part: &str) -> fmt::Result {
                self.0 = self.0.checked_sub(part.len()).ok_or(fmt::Error)?;
                Ok(())
            }
        }
        write!(Room(most), "{self}").is_err()
    }
}

impl fmt::Display for Indented<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut depth = 0usize;
        let mut previous = "";
        for (_, part) in tokens(self.0) {
            let closes = matches!(part, "}" | "]");
            depth = depth.saturating_sub(usize::from(closes));
            // Nothing stands between the brackets of an empty object or list.
            if previous == "," || closes != matches!(previous, "{" | "[") {
                write!(out, "\n{:1$}", "", depth * 2)?;
            }
            out.write_str(part)?;
            if part == ":" {
                out.write_char(' ')?;
            }
            depth += usize::from(matches!(part, "{" | "["));
            previous = part;
        }
        Ok(())
    }
}

/// About how many bytes a tree of this text takes: every comma and every opening bracket stands for
/// a value.
pub fn weight(json: &str) -> usize {
    const VALUE: usize = size_of::<Value>();
    /// Bytes of a member besides its value: its name, its place in the table, and the free room of
    /// the table.
    const MEMBER: usize = 160;
    let bytes = tokens(json).map(|(_, part)| match part {
        "," | "[" => VALUE,
        "{" => VALUE + MEMBER,
        ":" => MEMBER,
        _ => 0,
    });
    json.len() + VALUE + bytes.sum::<usize>()
}

/// The tree of a text that was checked, which bounds its depth.
fn tree(checked: &str) -> Value {
    let mut reader = serde_json::Deserializer::from_str(checked);
    reader.disable_recursion_limit();
    Value::deserialize(&mut reader).unwrap_or_default()
}

/// A value that is read from an object alone. A derived reader takes a list of the members' values,
/// too.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object<T>, D::Error> {
        from.deserialize_map(Members(PhantomData))
    }
}

struct Members<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
    type Value = Object<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Object)
    }
}

/// Each token with its offset: strings, brackets, commas, colons, comments, and whatever stands
/// between these. A string or comment that is not closed goes to the end of the text.
struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Iterator for Tokens<'t> {
    type Item = (usize, &'t str);

    fn next(&mut self) -> Option<(usize, &'t str)> {
        const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
        let rest = self.text.get(self.at..)?.trim_start_matches(SPACE);
        let at = self.text.len() - rest.len();
        let length = match rest.as_bytes() {
            [] => return None,
            // Beyond the end: the string is not closed.
            [b'"', ..] => string_length(rest).unwrap_or(rest.len() + 1),
            [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => rest[2..].find("*/").map_or(rest.len(), |end| end + 4),
            [b'{' | b'}' | b'[' | b']' | b',' | b':' | b'/', ..] => 1,
            _ => rest
                .find(|c: char| SPACE.contains(&c) || "{}[],:/\"".contains(c))
                .unwrap_or(rest.len()),
        };
        self.at = at + length;
        Some((at, rest.get(..length).unwrap_or(rest)))
    }
}

/// The bytes of the string that a text starts with, quotes and all.
fn string_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map(|at| at + 2)
}

/// A single `/` is a token of one byte.
fn is_comment(part: &str) -> bool {
    part.starts_with('/') && part.len() > 1
}

/// The tokens of a text without its comments.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = (usize, &str)> {
    Tokens { text, at: 0 }.filter(|(_, part)| !is_comment(part))
}

/// Where a value of a text begins, and its name; the value twice where it has none.
#[derive(Clone, Copy)]
struct Offsets {
    value: usize,
    name: usize,
}

/// A pointer whose value is looked for: its number, and the segments below the value that is being
/// read.
struct Wanted<'p> {
    number: usize,
    below: std::iter::Skip<std::str::Split<'p, char>>,
}

/// Looks for the values of many pointers in one pass over a text. Only the names on the way are
/// read, so they are found also where the document has faults elsewhere.
struct Search<'t, T: Iterator<Item = (usize, &'t str)>> {
    tokens: std::iter::Peekable<T>,
    found: Vec<Option<Offsets>>,
    missing: usize,
}

fn find_all<'p>(text: &str, pointers: impl Iterator<Item = &'p str>) -> Vec<Option<Offsets>> {
    let wanted = pointers.enumerate().map(|(number, pointer)| Wanted {
        number,
        below: pointer.split('/').skip(1),
    });
    let wanted: Vec<Wanted<'_>> = wanted.collect();
    let missing = wanted.len();
    let mut search = Search {
        tokens: tokens(text).peekable(),
        found: vec![None; missing],
        missing,
    };
    search.value(None, wanted);
    search.found
}

fn find(text: &str, pointer: &str) -> Option<Offsets> {
    find_all(text, std::iter::once(pointer)).pop()?
}

impl<'t, T: Iterator<Item = (usize, &'t str)>> Search<'t, T> {
    /// Reads one value. `None`: the text ends or has a fault here, or everything is found.
    fn value(&mut self, name: Option<usize>, wanted: Vec<Wanted<'_>>) -> Option<()> {
        let (value, part) = *self.tokens.peek()?;
        let mut inside: HashMap<String, Vec<Wanted<'_>>> = HashMap::new();
        for mut it in wanted {
            if let Some(segment) = it.below.next() {
                inside
                    .entry(segment.replace("~1", "/").replace("~0", "~"))
                    .or_default()
                    .push(it);
            } else {
                self.found[it.number] = Some(Offsets {
                    value,
                    name: name.unwrap_or(value),
                });
                self.missing -= 1;
            }
        }
        if self.missing == 0 {
            return None;
        }
        if inside.is_empty() || !matches!(part, "{" | "[") {
            return skip(&mut self.tokens).map(drop);
        }
        self.tokens.next();
        self.members(part == "[", inside)
    }

    /// Reads the members of an object or a list up to its end.
    fn members(
        &mut self,
        is_list: bool,
        mut inside: HashMap<String, Vec<Wanted<'_>>>,
    ) -> Option<()> {
        for index in 0usize.. {
            if matches!(self.tokens.peek()?.1, "}" | "]") {
                self.tokens.next();
                break;
            }
            let (name, at) = if is_list {
                (index.to_string(), None)
            } else {
                self.name()?
            };
            self.value(at, inside.remove(&name).unwrap_or_default())?;
            if self.tokens.peek()?.1 == "," {
                self.tokens.next();
            }
        }
        Some(())
    }

    fn name(&mut self) -> Option<(String, Option<usize>)> {
        let (at, part) = self.tokens.next()?;
        (self.tokens.next()?.1 == ":").then_some(())?;
        let name = if part.contains('\\') {
            serde_json::from_str(part).ok()?
        } else {
            part.trim_matches('"').to_owned()
        };
        Some((name, Some(at)))
    }
}

/// Goes past one value; returns where its last token begins, and that token.
fn skip<'t>(tokens: &mut impl Iterator<Item = (usize, &'t str)>) -> Option<(usize, &'t str)> {
    let mut depth = 0usize;
    loop {
        let token = tokens.next()?;
        match token.1 {
            "{" | "[" => depth += 1,
            "}" | "]" => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(token);
        }
    }
}

/// The text of the value at `pointer`, also where the document has faults elsewhere.
pub fn member<'t>(text: &'t str, pointer: &str) -> Option<&'t str> {
    let start = find(text, pointer)?.value;
    let (last, part) = skip(&mut tokens(text.get(start..)?))?;
    text.get(start..start + last + part.len())
}

/// A step from a value to one that it holds.
enum Step<'t> {
    /// Empty before the first name, and between two members.
    Member(&'t str),
    Item(usize),
}

/// The member of a checked text that ends before this offset or goes on there, as `calls[0].name`.
/// Empty at the top.
pub fn member_at(json: &str, offset: usize) -> String {
    let mut path = Vec::new();
    let mut previous = "";
    for (_, part) in tokens(json).take_while(|(at, _)| *at < offset) {
        match (part, path.last_mut()) {
            ("{", _) => path.push(Step::Member("")),
            ("[", _) => path.push(Step::Item(0)),
            ("}" | "]", _) => drop(path.pop()),
            (",", Some(Step::Item(at))) => *at += 1,
            (",", Some(Step::Member(name))) => *name = "",
            (":", Some(Step::Member(name))) => *name = previous.trim_matches('"'),
            _ => {}
        }
        previous = part;
    }
    let mut member = String::new();
    for step in path {
        match step {
            Step::Member("") => {}
            Step::Member(name) if member.is_empty() => member.push_str(name),
            Step::Member(name) => member.extend([".", name]),
            Step::Item(at) => member.push_str(&format!("[{at}]")),
        }
    }
    member
}

/// `/` and `~` as a JSON pointer writes them.
pub fn escape_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strict(text: &str) -> Result<Value, String> {
        parse(text.as_bytes(), Dialect::Strict)
            .map(|d| d.value)
            .map_err(|p| p.message)
    }

    #[test]
    fn what_strict_json_refuses() {
        let deep = "[".repeat(MAX_JSON_DEPTH + 1) + &"]".repeat(MAX_JSON_DEPTH + 1);
        let endless = "[".repeat(1 << 20);
        #[rustfmt::skip]
    let refused = [
        "", " ", "{", "[", "[1", "[1,", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "[1,]", "{\"a\":1,}", "[,1]",
        "{,}", "1 2", "{} {}", "nul", "truefalse", "NaN", "Infinity", "-Infinity", "[NaN]", "-", "01", "-01", "1.",
        ".5", "1e", "1e+", "+1", "0x10", "1e999", "18446744073709551616", "-9223372036854775809", "\"", "\"a",
        "\"\u{1}\"", "\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\udc00\"",
        "\"\\ud800\\u0041\"", "\"\\ud800x\"", "'a'", "{a:1}", "// c\n1", "/* c */1", "1 // c", "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "[1 2]", "]", "}", "\u{feff}\u{feff}1", &deep,
        &endless,
    ];
        for text in refused {
            let problem = parse(text.as_bytes(), Dialect::Strict).expect_err(text);
            assert_eq!(compact(text.as_bytes()).expect_err("the same"), problem);
        }
    }

    #[test]
    fn what_it_takes() {
        #[rustfmt::skip]
    let taken = [
        "null", " true\r\n", "0", "-0", "-0.0", "1e2", "1.5E-3", "18446744073709551615", "-9223372036854775808",
        "9007199254740993", "\"\\ud83d\\ude42 \\u00e9 \\/ \\b\\f\\n\\r\\t\\\"\\\\\"", "{}", "[]",
        "{\"b\":1,\"a\":[{},[],null]}", "\"\u{2028}\"",
    ];
        for text in taken {
            let ours = strict(text).expect(text);
            let theirs: Value = serde_json::from_str(text).expect(text);
            assert_eq!(ours.to_string(), theirs.to_string(), "{text}");
            assert_eq!(compact(text.as_bytes()).expect(text), theirs);
        }
        let spelled =
            compact(br#" { "\u00e9\u0022\u0007" : [ 1e9 , -0, 1.50 ,"\/\t" ] } "#).unwrap();
        assert_eq!(
            spelled.as_str(),
            r#"{"é\"\u0007":[1e9,-0,1.50,"/\t"]}"#,
            "a number stays as it was written"
        );
        assert_eq!(
            strict("\u{feff}1"),
            Ok(Value::from(1)),
            "a byte order mark is stripped"
        );
        let deep = "[".repeat(MAX_JSON_DEPTH) + &"]".repeat(MAX_JSON_DEPTH);
        assert!(strict(&deep).is_ok());
        assert_eq!(compact(deep.as_bytes()).unwrap().as_str(), deep);
    }

    #[test]
    fn a_tree_is_only_made_where_there_is_room_for_it() {
        let text = compact(format!("[{}{{\"a\": {{}}}}]", "1, ".repeat(1000)).as_bytes()).unwrap();
        assert_eq!(text.tree(1000 * size_of::<Value>()), Err(TooMuch));
        assert!(text.tree(1100 * size_of::<Value>()).is_ok());
        assert!(
            compact(format!("\"{}\"", "[,".repeat(1000)).as_bytes())
                .unwrap()
                .tree(3000)
                .is_ok(),
            "one string"
        );
    }

    #[test]
    fn comments_are_noted_once() {
        let text = b"// a\n{\n  \"a\": \"//no\", /* b */\n  \"b\": [1, 2,],\n}\n// end";
        let document = parse(text, Dialect::Commented).expect("commented JSON");
        assert_eq!(document.value.to_string(), r#"{"a":"//no","b":[1,2]}"#);
        let notes: Vec<_> = document.notes.iter().map(|n| (n.line, n.column)).collect();
        assert_eq!(notes, [(1, 1), (4, 13)]);
        for open in ["/*", "/* *", "/", "1 /"] {
            assert!(
                parse(open.as_bytes(), Dialect::Commented).is_err(),
                "{open}"
            );
        }
    }

    #[test]
    fn places() {
        let text = "\u{feff}{\n  \"ü\": {\"a/b\": [1, {\"x~\": true}]},\n\t\"z\": \"s\"\n}";
        let document = parse(text.as_bytes(), Dialect::Strict).expect("JSON");
        #[rustfmt::skip]
    let cases = [
        ("", (1, 1)), ("/ü", (2, 8)), ("/ü/a~1b", (2, 16)), ("/ü/a~1b/1", (2, 20)), ("/ü/a~1b/1/x~0", (2, 27)),
        ("/z", (3, 7)), ("/no", (0, 0)), ("/ü/a~1b/2", (0, 0)), ("/z/0", (0, 0)),
    ];
        for (pointer, place) in cases {
            assert_eq!(document.place(pointer), place, "{pointer}");
        }
        assert_eq!(document.place_of_key("/z"), (3, 2));
        for (bytes, code, pointer, place) in [
            (
                &b"{\n \"a\": {\"b\": 1,\n  \"b\": 2}}"[..],
                Code::Syntax,
                "/a/b",
                (3, 3),
            ),
            (b"{\n \"a\xff\"}", Code::Encoding, "", (2, 4)),
            (b"\xff\xfe{\0}\0", Code::Encoding, "", (1, 1)),
        ] {
            let bad = parse(bytes, Dialect::Strict).expect_err("bad");
            assert_eq!(
                (bad.code, bad.pointer.as_str(), (bad.line, bad.column)),
                (code, pointer, place)
            );
        }
        // Of a text with faults elsewhere, too: arguments are read apart from their message.
        let twice = r#"{"a": {"b": 1, "b": NaN}, "c": {"d": 1, "d": [2]} x"#;
        assert_eq!(
            (member(twice, "/c"), member(twice, "/c/d")),
            (Some(r#"{"d": 1, "d": [2]}"#), Some("1"))
        );
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Every pointer into a value, with the part that it leads to.
    fn pointers(value: &Value) -> Vec<(String, &Value)> {
        let mut found = Vec::new();
        let mut open = vec![(String::new(), value)];
        while let Some((pointer, value)) = open.pop() {
            match value {
                Value::Array(items) => open.extend(
                    items
                        .iter()
                        .enumerate()
                        .map(|(i, v)| (format!("{pointer}/{i}"), v)),
                ),
                Value::Object(map) => open.extend(
                    map.iter()
                        .map(|(k, v)| (format!("{pointer}/{}", escape_segment(k)), v)),
                ),
                _ => {}
            }
            found.push((pointer, value));
        }
        found
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_writes(value in any_value()) {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("text")] {
                let document = parse(text.as_bytes(), Dialect::Strict).expect("own text");
                prop_assert_eq!(document.value.to_string(), value.to_string());
                let copied = compact(text.as_bytes()).expect("own text");
                prop_assert_eq!(copied.as_str(), value.to_string());
                let pretty = serde_json::to_string_pretty(&value).expect("text");
                prop_assert_eq!(Indented(copied.as_str()).to_string(), pretty);
                for (pointer, there) in pointers(&value) {
                    let at = find(&text, &pointer).expect("every value has a place").value;
                    let mut rest = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
                    prop_assert_eq!(rest.next().expect("a value").expect("JSON").to_string(), there.to_string());
                }
            }
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for dialect in [Dialect::Strict, Dialect::Commented] {
                if let Ok(document) = parse(&bytes, dialect) {
                    document.place("/a/0");
                }
                let _ = compact(&bytes);
            }
        }

        /// Text that is nearly JSON reaches more cases than noise does; serde_json takes whatever
        /// strict mode takes.
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}",:0-9aeEnulltrfs\-+.\\u /*\n]{0,24}"#) {
            let _ = parse(text.as_bytes(), Dialect::Commented);
            let whole = parse(text.as_bytes(), Dialect::Strict).map(|document| document.value);
            prop_assert_eq!(whole, compact(text.as_bytes()).map(|copied| copied.value()));
            if let Ok(document) = parse(text.as_bytes(), Dialect::Strict) {
                let theirs = serde_json::from_str::<Value>(&text);
                prop_assert_eq!(theirs.expect("serde_json agrees").to_string(), document.value.to_string());
            }
        }
    }
}
