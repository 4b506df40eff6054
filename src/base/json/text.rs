//! One JSON value as compact text: the answer of a tool, as long as nobody needs its parts. A tree is made of it only where
//! there is room for one.

use super::walk::Tokens;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt::{self, Write};

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
        let (mut depth, mut tokens) = (0usize, Tokens::of(self.0).map(|(_, part)| part).peekable());
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
    let bytes = Tokens::of(json).map(|(_, part)| match part {
        "," | "[" => VALUE,
        "{" => VALUE + MEMBER,
        ":" => MEMBER,
        _ => 0,
    });
    json.len() + VALUE + bytes.sum::<usize>()
}

/// The tree of a text that was checked, which bounds its depth.
pub(super) fn tree(checked: &str) -> Value {
    let mut reader = serde_json::Deserializer::from_str(checked);
    reader.disable_recursion_limit();
    Value::deserialize(&mut reader).unwrap_or_default()
}
