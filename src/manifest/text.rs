//! Outside text made safe to print: control, ANSI, bidi and tag characters are escaped.

/// One line, escaped.
pub fn printable(text: &str) -> String {
    escape(text, false)
}

/// As `printable`, but line breaks stay.
pub fn printable_block(text: &str) -> String {
    escape(text, true)
}

fn escape(text: &str, keep_lines: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if (keep_lines && c == '\n') || !hidden(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}
