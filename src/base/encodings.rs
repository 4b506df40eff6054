//! Encodings: how a secret stands in base64, in a URL, in JSON and in HTML, so that it is found there too.
//!
//! For: the masks of records and of the relay. In: a text. Out: its other forms. Never: a form that could hold less than the text.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Not encoded in a URL (RFC 3986, section 2.3), and the same where a path is encoded as a whole.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &UNRESERVED.remove(b'/');

/// The forms of a text, each once.
pub fn of(text: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for set in [NON_ALPHANUMERIC, UNRESERVED, PATH] {
        let encoded = utf8_percent_encode(text, set).to_string();
        forms.extend([encoded.replace("%20", "+"), lower_case(&encoded), encoded]);
    }
    for before in 0..3 {
        forms.extend([base64(&STANDARD_NO_PAD, text, before), base64(&URL_SAFE_NO_PAD, text, before)]);
    }
    let escaped = |write: fn(u32) -> String| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { write(c.into()) }).collect()
    };
    // JSON as some write it; HTML by numbers, and by names where there are any.
    forms.push(escaped(|c| format!("\\u{c:04x}")));
    forms.push(escaped(|c| format!("\\u{c:04X}")));
    forms.push(escaped(|c| format!("&#{c};")));
    forms.push(escaped(|c| format!("&#x{c:x};")));
    forms.push(escaped(|c| format!("&#x{c:X};")));
    let named = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    forms.push(
        text.chars()
            .map(|c| named.iter().find(|(other, _)| *other == c).map_or(c.to_string(), |(_, name)| (*name).to_owned()))
            .collect(),
    );
    forms.push(text.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e").replace('+', "\\u002B"));
    forms.sort_unstable();
    forms.dedup();
    forms.retain(|form| form != text);
    forms
}

/// The digits of `%2F` in lower case.
fn lower_case(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let (digits, rest) = part.split_at(2);
        format!("{all}%{}{rest}", digits.to_ascii_lowercase())
    })
}

/// The characters of base64 that this text alone decides, with so many bytes before it in the last group of three.
fn base64(engine: &impl Engine, text: &str, before: usize) -> String {
    let mut bytes = vec![0; before];
    bytes.extend(text.as_bytes());
    let first = (before * 8).div_ceil(6);
    let last = bytes.len() * 8 / 6;
    engine.encode(bytes).get(first..last).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn a_secret_is_found_wherever_it_stands_in_base64() {
        let secret = "s3cret/with space+";
        let forms = of(secret);
        for before in 0..7 {
            for after in 0..4 {
                let text = format!("{}{secret}{}", "a".repeat(before), "z".repeat(after));
                let encoded = STANDARD.encode(&text);
                assert!(forms.iter().any(|form| encoded.contains(form.as_str())), "{text}");
            }
        }
        for encoded in
            ["s3cret%2Fwith%20space%2B", "s3cret%2fwith%20space%2b", "s3cret/with%20space%2B", "s3cret%2Fwith+space%2B"]
        {
            assert!(forms.iter().any(|form| form == encoded), "{encoded}: {forms:?}");
        }
    }
}
