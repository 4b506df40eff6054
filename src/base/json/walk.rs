//! The tokens of a JSON text, good or not, and where in the document each of them stands. No value is built, nothing recurses.

use crate::quantity::MAX_JSON_DEPTH;
use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Each token with its offset: strings, brackets, commas, colons, comments, and whatever stands between these.
#[derive(Clone)]
pub(super) struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Tokens<'t> {
    pub(super) fn of(text: &'t str) -> Tokens<'t> {
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
pub(super) fn is_comment(part: &str) -> bool {
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

pub(super) struct Walk<'t> {
    tokens: Tokens<'t>,
    levels: Vec<Level<'t>>,
    hasher: RandomState,
}

pub(super) struct Token<'t> {
    pub at: usize,
    pub part: &'t str,
    pub is_name: bool,
    /// It is a value or the bracket that opens one.
    pub is_value: bool,
}

impl<'t> Walk<'t> {
    pub(super) fn of(text: &'t str) -> Walk<'t> {
        Walk { tokens: Tokens::of(text), levels: Vec::new(), hasher: RandomState::new() }
    }

    /// The next token that is no comment; none after one that opens a level too many.
    pub(super) fn step(&mut self) -> Option<Token<'t>> {
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

    pub(super) fn is_too_deep(&self) -> bool {
        self.levels.len() > MAX_JSON_DEPTH
    }

    /// The name of the innermost member.
    pub(super) fn name(&self) -> &str {
        self.levels.last().map_or("", |level| &level.name)
    }

    /// Whether the name that was just met stands in the same object before; asked once for each name.
    pub(super) fn is_repeated(&mut self) -> bool {
        let level = self.levels.last_mut();
        level.is_some_and(|level| !level.names.insert(self.hasher.hash_one(&level.name)))
    }

    /// Where the walk is, as a JSON pointer.
    pub(super) fn pointer(&self) -> String {
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
pub(super) fn find(text: &str, pointer: &str) -> Option<(usize, usize)> {
    let wanted: Vec<String> =
        pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
    let leads = |(level, wanted): (&Level<'_>, &String)| match level.is_list {
        true => wanted.parse() == Ok(level.index),
        false => level.name == *wanted,
    };
    let mut walk = Walk::of(text);
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
