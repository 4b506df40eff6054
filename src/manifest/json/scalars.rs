//! Scalars: the words, numbers and strings of a JSON document.
//!
//! For: the parser. In: its position. Out: the value there, or its fault.
//! Never: changes an integer, lets half of a surrogate pair through.

use super::super::Problem;
use super::{Parser, text};
use serde_json::{Number, Value};

impl Parser<'_> {
    pub(super) fn word(&mut self) -> Result<Value, Problem> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let word = rest.get(..end).unwrap_or_default();
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "NaN" | "Infinity" | "nan" | "inf" | "infinity" => {
                return Err(self.fail(self.at, &format!("{word} is not JSON: use null or a string")));
            }
            "" if rest.is_empty() => return Err(self.fail(self.at, "the text ends where a value is needed")),
            "" if rest.starts_with('\'') => return Err(self.fail(self.at, "JSON strings stand in double quotes")),
            _ => return Err(self.fail(self.at, "a JSON value is needed here")),
        };
        self.at += end;
        self.write(word);
        Ok(value)
    }

    pub(super) fn number(&mut self) -> Result<Number, Problem> {
        let start = self.at;
        let negative = self.peek() == Some(b'-');
        self.at += usize::from(negative);
        let first = self.peek();
        let whole = self.digits();
        if whole == 0 {
            let infinite = self.text.get(self.at..).is_some_and(|rest| rest.starts_with("Infinity"));
            let why =
                if infinite { "-Infinity is not JSON: use null or a string" } else { "a digit is needed after '-'" };
            return Err(self.fail(start, why));
        }
        if whole > 1 && first == Some(b'0') {
            return Err(self.fail(start, "a number must not start with 0"));
        }
        let mut real = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            real = true;
            if self.digits() == 0 {
                return Err(self.fail(self.at, "a digit is needed after the decimal point"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            real = true;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            if self.digits() == 0 {
                return Err(self.fail(self.at, "a digit is needed in the exponent"));
            }
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        let number = if real || text == "-0" {
            text.parse::<f64>().ok().and_then(Number::from_f64)
        } else if negative {
            text.parse::<i64>().ok().map(Number::from)
        } else {
            text.parse::<u64>().ok().map(Number::from)
        };
        let number =
            number.ok_or_else(|| self.fail(start, "this number does not fit in 64 bits: send it as a string"))?;
        self.write(text);
        Ok(number)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    /// A string that is a value: written to the copy if there is one (then the result is empty), else returned.
    pub(super) fn string_value(&mut self) -> Result<String, Problem> {
        let Some(mut copy) = self.copy.take() else { return self.string() };
        copy.push('"');
        self.string_into(&mut copy, text::write_escaped)?;
        copy.push('"');
        self.copy = Some(copy);
        Ok(String::new())
    }

    pub(super) fn string(&mut self) -> Result<String, Problem> {
        let mut out = String::new();
        self.string_into(&mut out, |c, out| out.push(c))?;
        Ok(out)
    }

    /// A string; `at` is on its opening quote. `put` writes each character that was an escape.
    fn string_into(&mut self, out: &mut String, put: fn(char, &mut String)) -> Result<(), Problem> {
        let open = self.at;
        self.at += 1;
        loop {
            let start = self.at;
            while self.peek().is_some_and(|b| b >= 0x20 && b != b'"' && b != b'\\') {
                self.at += 1;
            }
            out.push_str(self.text.get(start..self.at).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => put(self.escape()?, out),
                Some(_) => {
                    return Err(self.fail(self.at, "a raw control character in a string: escape it (\\n, \\t, …)"));
                }
                None => return Err(self.fail(open, "this string is not closed")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Problem> {
        let start = self.at;
        let letter = self.bytes.get(start + 1).copied();
        self.at += 2;
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let high = self.hex(start)?;
                let mut code = high;
                if (0xd800..0xdc00).contains(&high) && self.bytes.get(self.at..self.at + 2) == Some(b"\\u") {
                    self.at += 2;
                    let low = self.hex(start)?;
                    // Outside the low half this stays a lone surrogate, which `from_u32` refuses.
                    code = if (0xdc00..0xe000).contains(&low) {
                        0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
                    } else {
                        high
                    };
                }
                char::from_u32(code).ok_or_else(|| self.fail(start, "half of a surrogate pair stands alone"))?
            }
            _ => return Err(self.fail(start, "this escape does not exist in JSON")),
        })
    }

    fn hex(&mut self, start: usize) -> Result<u32, Problem> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
        self.at += 4;
        code.ok_or_else(|| self.fail(start, "\\u needs four hexadecimal digits"))
    }
}
