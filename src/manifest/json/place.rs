//! Place: the offset in a text that a JSON pointer leads to. Walks the text again, as far as it is without faults.
//!
//! For: `Document::place`. In: text and pointer. Out: a byte offset. Never: builds values, recurses.

use super::text::string_length;
use super::{Dialect, Parser};

/// Offset at which the value starts.
pub(super) fn value(text: &str, pointer: &str) -> Option<usize> {
    walk(text, pointer).map(|(value, _)| value)
}

/// Offset of the member name; of the value where it has none (in an array, at the top).
pub(super) fn key(text: &str, pointer: &str) -> Option<usize> {
    walk(text, pointer).map(|(value, key)| key.unwrap_or(value))
}

/// The whole value.
pub(super) fn whole<'t>(text: &'t str, pointer: &str) -> Option<&'t str> {
    let start = value(text, pointer)?;
    let mut cursor = Parser::starting_at(text, start, Dialect::Commented);
    skip(&mut cursor)?;
    text.get(start..cursor.at)
}

fn walk(text: &str, pointer: &str) -> Option<(usize, Option<usize>)> {
    let mut cursor = Parser::starting_at(text, 0, Dialect::Commented);
    cursor.space().ok()?;
    let mut key = None;
    if pointer.is_empty() {
        return Some((cursor.at, key));
    }
    for segment in pointer.strip_prefix('/')?.split('/') {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        key = match cursor.peek()? {
            b'{' => Some(member(&mut cursor, &segment)?),
            b'[' => {
                item(&mut cursor, segment.parse().ok()?)?;
                None
            }
            _ => return None,
        };
    }
    Some((cursor.at, key))
}

/// Moves to the value of one member; gives the offset of its name.
fn member(cursor: &mut Parser<'_>, wanted: &str) -> Option<usize> {
    cursor.at += 1;
    loop {
        cursor.space().ok()?;
        let start = cursor.at;
        if cursor.peek()? != b'"' {
            return None;
        }
        let name = cursor.string().ok()?;
        cursor.space().ok()?;
        cursor.at += 1;
        cursor.space().ok()?;
        if name == wanted {
            return Some(start);
        }
        skip(cursor)?;
        comma(cursor)?;
    }
}

/// Moves to one item of an array.
fn item(cursor: &mut Parser<'_>, wanted: usize) -> Option<()> {
    cursor.at += 1;
    cursor.space().ok()?;
    for _ in 0..wanted {
        skip(cursor)?;
        comma(cursor)?;
    }
    (cursor.peek()? != b']').then_some(())
}

fn comma(cursor: &mut Parser<'_>) -> Option<()> {
    cursor.space().ok()?;
    if cursor.peek()? != b',' {
        return None;
    }
    cursor.at += 1;
    cursor.space().ok()
}

/// Moves behind one whole value.
fn skip(cursor: &mut Parser<'_>) -> Option<()> {
    let mut depth = 0usize;
    loop {
        cursor.space().ok()?;
        match cursor.peek()? {
            b'"' => cursor.at += string_length(cursor.text.get(cursor.at..)?),
            b'{' | b'[' => {
                cursor.at += 1;
                depth += 1;
                continue;
            }
            b'}' | b']' => {
                cursor.at += 1;
                depth = depth.checked_sub(1)?;
            }
            b',' | b':' => {
                cursor.at += 1;
                continue;
            }
            _ => {
                let start = cursor.at;
                while cursor.peek().is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) {
                    cursor.at += 1;
                }
                if cursor.at == start {
                    return None;
                }
            }
        }
        if depth == 0 {
            return Some(());
        }
    }
}
