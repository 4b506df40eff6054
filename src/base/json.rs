//! The JSON reader of this program: strict, bounded, with places.
//!
//! serde_json judges the grammar and makes the tree. It lets the last of two equal keys win, rounds long numbers and
//! forgets places: a walk over the tokens finds these. Comments are overwritten with spaces, so that there is one
//! grammar.

use super::problem::{Code, Problem, Severity};
use crate::quantity::MAX_JSON_DEPTH;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

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
        find(self.text, pointer).map_or((0, 0), |(value, _)| line_and_column(self.text, value))
    }

    /// The same for the member name in front of the value.
    pub fn place_of_key(&self, pointer: &str) -> (usize, usize) {
        find(self.text, pointer).map_or((0, 0), |(_, key)| line_and_column(self.text, key))
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
    for (at, part) in Tokens::new(text) {
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
    let mut walk = Walk::new(good);
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

/// A compact JSON text: one value, no white space between its parts, no raw control character, no name twice.
#[derive(Clone, Debug)]
pub struct Text(Box<RawValue>);

/// The tree would take more memory than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

impl Text {
    fn from_checked(compact: String) -> Option<Text> {
        RawValue::from_string(compact).ok().map(Text)
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Its characters, if it is a string.
    pub fn string(&self) -> Option<String> {
        self.as_str().starts_with('"').then(|| serde_json::from_str(self.as_str()).ok()).flatten()
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
    /// Whether it has more than so many bytes.
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
        let (mut depth, mut tokens) = (0usize, Tokens::new(self.0).map(|(_, part)| part).peekable());
        while let Some(part) = tokens.next() {
            match part {
                // An empty object or list.
                "{" | "[" if matches!(tokens.peek(), Some(&("}" | "]"))) => {
                    out.write_str(part)?;
                    out.write_str(tokens.next().unwrap_or_default())?;
                }
                "{" | "[" => {
                    depth += 1;
                    out.write_str(part)?;
                    line(out, depth)?;
                }
                "}" | "]" => {
                    depth = depth.saturating_sub(1);
                    line(out, depth)?;
                    out.write_str(part)?;
                }
                "," => {
                    out.write_str(part)?;
                    line(out, depth)?;
                }
                ":" => out.write_str(": ")?,
                _ => out.write_str(part)?,
            }
        }
        Ok(())
    }
}

fn line(out: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
    out.write_char('\n')?;
    write!(out, "{:1$}", "", depth * 2)
}

/// About how many bytes a tree of this text takes: every comma and every opening bracket stands for a value.
pub fn weight(json: &str) -> usize {
    const VALUE: usize = size_of::<Value>();
    /// Bytes of a member besides its value: its name, its place in the table, and the free room of the table.
    const MEMBER: usize = 160;
    let bytes = Tokens::new(json).map(|(_, part)| match part {
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

/// A value that is read from an object alone. A derived reader takes a list of the members' values, too.
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

/// Each token with its offset: strings, brackets, commas, colons, comments, and whatever stands between these.
#[derive(Clone)]
struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Tokens<'t> {
    fn new(text: &'t str) -> Tokens<'t> {
        Tokens { text, at: 0 }
    }
}

impl<'t> Iterator for Tokens<'t> {
    type Item = (usize, &'t str);

    /// Ends at a string that is not closed, too.
    fn next(&mut self) -> Option<(usize, &'t str)> {
        const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
        let rest = self.text[self.at..].trim_start_matches(SPACE);
        let at = self.text.len() - rest.len();
        let length = match rest.as_bytes() {
            [] => return None,
            [b'"', ..] => string_length(rest)?,
            [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => rest[2..].find("*/").map_or(1, |end| end + 4),
            [b'{' | b'}' | b'[' | b']' | b',' | b':' | b'/', ..] => 1,
            _ => {
                let ends = |c: char| SPACE.contains(&c) || "{}[],:/\"".contains(c);
                rest.find(ends).unwrap_or(rest.len())
            }
        };
        self.at = at + length;
        Some((at, &rest[..length]))
    }
}

/// The bytes of the string that a text starts with, quotes and all.
fn string_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// A `/` of no comment is a token of one byte.
fn is_comment(part: &str) -> bool {
    part.starts_with('/') && part.len() > 1
}

/// A container that is still open.
struct Level<'t> {
    is_list: bool,
    /// Right after the bracket or a comma: the next token is an item or a name.
    fresh: bool,
    /// Which item of a list is next or in hand.
    index: usize,
    /// The name of the member in hand, and hashes of all names so far: keeping names takes more memory than the text.
    name: Cow<'t, str>,
    names: HashSet<u64>,
}

struct Walk<'t> {
    tokens: Tokens<'t>,
    levels: Vec<Level<'t>>,
    hasher: RandomState,
}

struct Token<'t> {
    pub at: usize,
    pub part: &'t str,
    pub is_name: bool,
    /// It is a value or the bracket that opens one.
    pub is_value: bool,
}

impl<'t> Walk<'t> {
    fn new(text: &'t str) -> Walk<'t> {
        Walk { tokens: Tokens::new(text), levels: Vec::new(), hasher: RandomState::new() }
    }

    /// The next token that is no comment; none after one that opens a level too many.
    fn step(&mut self) -> Option<Token<'t>> {
        if self.is_too_deep() {
            return None;
        }
        let (at, part) = self.tokens.find(|(_, part)| !is_comment(part))?;
        let mut token = Token { at, part, is_name: false, is_value: false };
        let level = self.levels.last_mut();
        match (part, level) {
            ("}" | "]", _) => drop(self.levels.pop()),
            (":", _) | (",", None) => {}
            (",", Some(level)) => {
                level.fresh = true;
                level.index += 1;
            }
            (name, Some(level)) if !level.is_list && level.fresh => {
                token.is_name = true;
                level.fresh = false;
                level.name = characters(name);
            }
            (value, level) => {
                token.is_value = true;
                if let Some(level) = level {
                    level.fresh = false;
                }
                if matches!(value, "{" | "[") {
                    let (is_list, name, names) = (value == "[", Cow::Borrowed(""), HashSet::new());
                    self.levels.push(Level { is_list, fresh: true, index: 0, name, names });
                }
            }
        }
        Some(token)
    }

    fn is_too_deep(&self) -> bool {
        self.levels.len() > MAX_JSON_DEPTH
    }

    /// The name of the innermost member.
    fn name(&self) -> &str {
        self.levels.last().map_or("", |level| &level.name)
    }

    /// Whether the name that was just met stands in the same object before; asked once for each name.
    fn is_repeated(&mut self) -> bool {
        let level = self.levels.last_mut();
        level.is_some_and(|level| !level.names.insert(self.hasher.hash_one(&level.name)))
    }

    /// Where the walk is, as a JSON pointer.
    fn pointer(&self) -> String {
        let segment = |level: &Level<'_>| match (level.is_list, level.fresh) {
            (true, _) => format!("/{}", level.index),
            (false, false) => format!("/{}", escape_segment(&level.name)),
            (false, true) => String::new(),
        };
        self.levels.iter().map(segment).collect()
    }
}

/// The characters of a string; none where half of a surrogate pair stands alone.
fn characters(part: &str) -> Cow<'_, str> {
    match part.contains('\\') {
        true => Cow::Owned(serde_json::from_str(part).unwrap_or_default()),
        false => Cow::Borrowed(part.trim_matches('"')),
    }
}

/// The offsets of the value at `pointer` and of its name; of the value twice where it has none.
fn find(text: &str, pointer: &str) -> Option<(usize, usize)> {
    let wanted: Vec<String> =
        pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
    let leads = |(level, wanted): (&Level<'_>, &String)| match level.is_list {
        true => wanted.parse() == Ok(level.index),
        false => level.name == *wanted,
    };
    let mut walk = Walk::new(text);
    let mut name = None;
    while let Some(token) = walk.step() {
        let opened = usize::from(token.is_value && matches!(token.part, "{" | "["));
        let above = &walk.levels[..walk.levels.len() - opened];
        if token.is_value && above.len() == wanted.len() && above.iter().zip(&wanted).all(leads) {
            return Some((token.at, name.unwrap_or(token.at)));
        }
        name = if token.is_name || token.part == ":" { name.or(Some(token.at)) } else { None };
    }
    None
}

/// The text of the value at `pointer`, also where the document has faults elsewhere.
pub fn member<'t>(text: &'t str, pointer: &str) -> Option<&'t str> {
    let (start, _) = find(text, pointer)?;
    let mut depth = 0usize;
    for (at, part) in (Tokens { text, at: start }) {
        match part {
            "{" | "[" => depth += 1,
            "}" | "]" => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return text.get(start..at + part.len());
        }
    }
    None
}

/// `/` and `~` as a JSON pointer writes them.
pub fn escape_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests;
