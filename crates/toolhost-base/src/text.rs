//! Text from outside, made fit for a terminal, a log line or a protocol frame: what is not plainly
//! visible becomes an escape.

use std::fmt::{self, Display, Write as _};
use std::io;
use std::path::Path;

/// The text of a file: UTF-8 without the byte order mark with which editors of Windows save it.
pub fn decode(bytes: &[u8]) -> Result<&str, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16: save it as UTF-8".to_owned(),
        _ => format!("not UTF-8 (at byte {})", error.valid_up_to()),
    })
}

/// One line: line breaks are escaped too.
pub fn printable(text: &str) -> String {
    escape(text, false)
}

/// Several lines: `\n` stays, everything else is as in `printable`.
pub fn printable_block(text: &str) -> String {
    escape(text, true)
}

/// Whether a text has this name, and not only as a part of a longer one.
pub fn names(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    !name.is_empty()
        && text.match_indices(name).any(|(at, _)| {
            // A full stop that ends a sentence does not belong to it.
            let after = &text[at + name.len()..];
            let after = after.strip_prefix('.').unwrap_or(after).chars().next();
            let before = text[..at].chars().next_back();
            !before.into_iter().chain(after).any(is_part)
        })
}

/// Whether a name stands in a string of a script: a path, the end of one, or the host of a URL. A word
/// of its code alone does not name a place.
pub fn is_in_string(script: &str, name: &str) -> bool {
    const QUOTES: [char; 3] = ['\'', '"', '`'];
    !name.is_empty()
        && script.match_indices(name).any(|(at, _)| {
            let before = script[..at].chars().next_back();
            let after = script[at + name.len()..].chars().next();
            let begins = before.is_some_and(|c| QUOTES.contains(&c) || c == '/');
            let ends = after.is_some_and(|c| QUOTES.contains(&c) || "/:?#".contains(c));
            begins && ends
        })
}

/// A path as one line.
pub fn path(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Quotes a word for a shell, if it needs quotes.
pub fn quote(word: &str) -> String {
    let plain = word
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"/._-+:@%=".contains(&b));
    if plain {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Has every command in a text, which begins as `` `toolhost VERB ``, begin with `program`, which has
/// the settings of this process.
pub fn with_settings(lines: &str, program: &str) -> String {
    let mut parts = lines.split("`toolhost ");
    let first = parts.next().unwrap_or_default().to_owned();
    // One that has settings keeps them.
    let parts = parts.map(|rest| match rest.starts_with("--") {
        true => format!("`toolhost {rest}"),
        false => format!("`{program} {rest}"),
    });
    parts.fold(first, |all, part| all + &part)
}

/// True where `printable` would change nothing.
pub fn is_printable(text: &str) -> bool {
    !text.chars().any(is_hidden)
}

fn escape(text: &str, keep_newlines: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' if keep_newlines => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_hidden(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Characters that move the cursor, break lines, or are drawn as nothing.
fn is_hidden(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() // C0, DEL, C1: terminal commands start here
        || !c.is_ascii()
            && (is_default_ignorable(c)
                // separators, a blank, annotations
                || matches!(code, 0x2028 | 0x2029 | 0x2800 | 0xfff9..=0xfffb)
                || matches!(code, 0xfdd0..=0xfdef) // noncharacters
                || code & 0xfffe == 0xfffe) // noncharacters at the end of each plane
}

/// Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt), which includes ranges that
/// are still unassigned.
fn is_default_ignorable(c: char) -> bool {
    matches!(u32::from(c),
        0xad | 0x34f | 0x61c | 0x115f | 0x1160 | 0x17b4 | 0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfff8 | 0x1bca0..=0x1bca3
        | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}

/// The fields of a JSON object and one more, whose value is JSON text.
pub fn with_field(head: &serde_json::Value, name: &str, json: &str) -> String {
    let head = self::json(head, false);
    format!(
        "{},\"{name}\":{json}}}",
        head.strip_suffix('}').unwrap_or_default()
    )
}

/// JSON for a terminal or a frame: what `printable` would escape is written as `\uXXXX`, so the
/// value is the same.
pub fn json(value: &serde_json::Value, indented: bool) -> String {
    escaped_json(&if indented {
        format!("{value:#}")
    } else {
        value.to_string()
    })
}

/// JSON text with every hidden character written as an escape: the same value, and nothing in it
/// that a terminal or a protocol reader could obey.
pub fn escaped_json(json: &str) -> String {
    Visible(json).to_string()
}

/// As `escaped_json`, for anything whose `Display` is JSON text: escaped while it is written.
pub struct Visible<D>(pub D);

impl<D: Display> Display for Visible<D> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(out), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, json: &str) -> fmt::Result {
        write_escaped(json, |piece| self.0.write_str(piece))
    }
}

/// As `Visible`, but a formatter for serde_json's serializer.
pub struct VisibleJson;

impl serde_json::ser::Formatter for VisibleJson {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write_escaped(fragment, |piece| to.write_all(piece.as_bytes()))
    }

    fn write_raw_fragment<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write_escaped(fragment, |piece| to.write_all(piece.as_bytes()))
    }
}

/// Passes a JSON text on in pieces, hidden characters as escapes.
fn write_escaped<E>(json: &str, mut put: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let mut plain = 0;
    // Outside of strings the only hidden character of JSON is the line break.
    for (at, c) in json
        .char_indices()
        .filter(|(_, c)| *c != '\n' && is_hidden(*c))
    {
        put(&json[plain..at])?;
        let mut units = [0u16; 2];
        for unit in c.encode_utf16(&mut units) {
            put(&format!("\\u{unit:04x}"))?;
        }
        plain = at + c.len_utf8();
    }
    put(&json[plain..])
}

/// The first `most` characters, with `…` where something was cut.
pub fn head(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The first `most` bytes, and the number of all bytes if something was cut.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!(
        "{}… ({} bytes)",
        &text[..text.floor_char_boundary(most)],
        text.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let cases = [
            ("plain ünïcode 漢字 🙂", "plain ünïcode 漢字 🙂"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\nb\rc\td", "a\\nb\\rc\\td"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            (
                "a\u{202e}b\u{2066}c\u{200f}d\u{61c}",
                "a\\u{202e}b\\u{2066}c\\u{200f}d\\u{61c}",
            ),
            ("hi\u{e0041}\u{e007f}", "hi\\u{e0041}\\u{e007f}"),
            (
                "\u{2028}\u{2029}\u{200b}\u{feff}",
                "\\u{2028}\\u{2029}\\u{200b}\\u{feff}",
            ),
            ("\u{fdd0}\u{ffff}\u{1fffe}", "\\u{fdd0}\\u{ffff}\\u{1fffe}"),
        ];
        for (raw, shown) in cases {
            assert_eq!(printable(raw), shown);
            assert_eq!(is_printable(raw), raw == shown, "{raw:?}");
        }
        assert_eq!(printable_block("a\n\u{1b}b"), "a\n\\u{1b}b");
    }

    #[test]
    fn what_is_drawn_as_nothing_is_what_unicode_says() {
        let property = serde_json::json!({"pattern": "^\\p{Default_Ignorable_Code_Point}$"});
        let property = jsonschema::validator_for(&property).expect("a pattern");
        for c in (0..0x20000)
            .chain(0xdff00..0xe1100)
            .filter_map(char::from_u32)
            .filter(|c| !c.is_control())
        {
            let ignorable = property.is_valid(&serde_json::json!(c.to_string()));
            assert_eq!(is_default_ignorable(c), ignorable, "{:x}", u32::from(c));
        }
    }

    #[test]
    fn json_means_the_same() {
        let value =
            serde_json::json!({ "k\u{202e}": ["\u{9b}\u{e0041}\u{7f}", "ok ü🙂", "line\nbreak"] });
        for indented in [false, true] {
            let text = json(&value, indented);
            assert!(is_printable(&text.replace('\n', "")), "{text}");
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&text).ok(),
                Some(value.clone())
            );
        }
    }
}
