//! The text of a script without what its strings and comments say.
//!
//! For: `new --script`. In: a script. Out: the same text, as long and with the same lines, blank inside of quotes and
//! comments. Never: a parser: a regular expression that holds a quote hides the rest of its line.

use crate::manifest::Language;

/// What ends a part that is no code.
enum Until {
    /// One of these quotes: it may stand for itself after a backslash, and where it may not hold lines the line ends it.
    Quote(&'static str),
    EndOfLine,
    Comment,
}

pub fn code(source: &str, language: Language) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let Some((opening, until)) = opens(rest, language) else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        let (hidden, closing) = ends(&rest[opening..], &until);
        let is_quote = matches!(until, Until::Quote(_));
        let keep = |part: &str, out: &mut String| if is_quote { out.push_str(part) } else { blank(part, out) };
        keep(&rest[..opening], &mut out);
        blank(&rest[opening..opening + hidden], &mut out);
        keep(&rest[opening + hidden..opening + hidden + closing], &mut out);
        rest = &rest[opening + hidden + closing..];
    }
    out
}

/// Does a string or comment begin here? The bytes of its opening, and what ends it.
fn opens(text: &str, language: Language) -> Option<(usize, Until)> {
    let python = language == Language::Python;
    let quotes: &[&'static str] = if python { &["\"\"\"", "'''", "\"", "'"] } else { &["\"", "'", "`"] };
    if let Some(quote) = quotes.iter().find(|quote| text.starts_with(**quote)) {
        return Some((quote.len(), Until::Quote(quote)));
    }
    match python {
        true if text.starts_with('#') => Some((1, Until::EndOfLine)),
        false if text.starts_with("//") => Some((2, Until::EndOfLine)),
        false if text.starts_with("/*") => Some((2, Until::Comment)),
        _ => None,
    }
}

/// The bytes up to the end, and those of the end itself.
fn ends(text: &str, until: &Until) -> (usize, usize) {
    let quote = match until {
        Until::EndOfLine => return (text.find('\n').unwrap_or(text.len()), 0),
        Until::Comment => return text.find("*/").map_or((text.len(), 0), |at| (at, 2)),
        Until::Quote(quote) => *quote,
    };
    let lines = quote.len() > 1 || quote == "`";
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' if !lines => return (at, 0),
            _ if text[at..].starts_with(quote) => return (at, quote.len()),
            _ => {}
        }
    }
    (text.len(), 0)
}

fn blank(text: &str, out: &mut String) {
    text.chars().for_each(|c| if c == '\n' { out.push(c) } else { (0..c.len_utf8()).for_each(|_| out.push(' ')) });
}
