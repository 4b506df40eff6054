//! Text: one JSON value as text: the answer of a tool, as long as nobody needs its parts.
//!
//! For: answers. In: text that the strict reader let through. Out: the same value, compact; indented where a person or
//! a model reads it; a tree where its parts are looked at. Never: a tree larger than `tree` was given room for.

use super::{Dialect, Parser};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};

/// A compact JSON text: one value, no white space between its parts, no raw control character, no name twice.
#[derive(Clone, Debug)]
pub struct Text(Box<RawValue>);

/// The tree would take more memory than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

impl Text {
    pub(super) fn from_checked(compact: String) -> Option<Text> {
        RawValue::from_string(compact).ok().map(Text)
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    pub fn len(&self) -> usize {
        self.as_str().len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
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
        // The text was checked before, so it parses again.
        Parser::new(self.as_str(), Dialect::Strict).document().unwrap_or_default()
    }

    /// With line breaks and two spaces for each level.
    pub fn indented(&self) -> Indented<'_> {
        Indented(self.as_str())
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
        let (mut depth, mut rest) = (0usize, self.0);
        while let Some(c) = rest.bytes().next() {
            let length = match c {
                b'"' => string_length(rest),
                // An empty object or list.
                b'{' | b'[' if rest[1..].starts_with(['}', ']']) => 2,
                b'{' | b'[' | b'}' | b']' | b',' | b':' => 1,
                _ => rest.find(['{', '[', '}', ']', ',', ':', '"']).unwrap_or(rest.len()),
            };
            let (part, after) = rest.split_at(length);
            rest = after;
            match part {
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

/// The bytes of the string that a text starts with, quotes and all.
pub(super) fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// About how many bytes a tree of this text takes: every comma and every opening bracket stands for a value.
pub fn weight(json: &str) -> usize {
    const VALUE: usize = size_of::<Value>();
    /// Bytes of a member besides its value: its name, its place in the table, and the free room of the table.
    const MEMBER: usize = 160;
    let (mut rest, mut values, mut members, mut objects) = (json, 1usize, 0usize, 0usize);
    while let Some(c) = rest.bytes().next() {
        let length = if c == b'"' { string_length(rest) } else { 1 };
        match c {
            b',' | b'[' | b'{' => {
                values += 1;
                objects += usize::from(c == b'{');
            }
            b':' => members += 1,
            _ => {}
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    json.len() + values * VALUE + members * MEMBER + objects * MEMBER
}

/// A string as JSON writes it.
pub(super) fn quote(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|c| write_escaped(c, out));
    out.push('"');
}

/// One character of a string, escaped only where JSON requires it.
pub(super) fn write_escaped(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// The member names of one object, told apart without keeping them: 16 bytes each.
#[derive(Default)]
pub(super) struct Names {
    /// A hash of the name with a random key, and the offset of the name.
    seen: Vec<(u64, usize)>,
    hasher: RandomState,
}

impl Names {
    pub(super) fn add(&mut self, name: &str, at: usize) {
        self.seen.push((self.hasher.hash_one(name), at));
    }

    /// The offset of the first name that repeats an earlier one.
    pub(super) fn twice(mut self) -> Option<usize> {
        self.seen.sort_unstable();
        self.seen.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).min()
    }
}
