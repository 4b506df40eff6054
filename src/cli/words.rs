//! Words on standard output and standard error.
//!
//! For: every verb. In: text that may come from anywhere. Out: the same, with nothing a terminal would
//! obey. Never: a panic because the other end of a pipe is gone.

use crate::manifest::text;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};

/// Lines for the person, on standard error.
pub fn complain(lines: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text::printable_block(lines));
}

/// Lines on standard output.
pub fn say(lines: &str) {
    let _ = writeln!(io::stdout().lock(), "{}", text::printable_block(lines));
}

/// Text that its maker has already escaped, as it is.
pub fn show(text: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text);
    let _ = out.flush();
}

/// One JSON value on standard output: compact for a program, indented for a person.
pub fn say_json(value: &Value) {
    let mut out = io::stdout().lock();
    let json = if io::stdout().is_terminal() {
        serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
    } else {
        value.to_string()
    };
    let _ = writeln!(out, "{}", text::escaped_json(&json));
    let _ = out.flush();
}
