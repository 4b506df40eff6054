//! Words on standard output and standard error.
//!
//! For: every verb. In: text that may come from anywhere. Out: the same, with nothing a terminal would
//! obey. Never: a panic because the other end of a pipe is gone.

use crate::manifest::json::Indented;
use crate::manifest::text;
use serde::Serialize;
use serde_json::json;
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
pub fn say_json(value: &impl Serialize) {
    let terminal = io::stdout().is_terminal();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let json = serde_json::to_string(value).unwrap_or_else(|e| json!({"error": e.to_string()}).to_string());
    let _ = match terminal {
        true => writeln!(out, "{}", text::Visible(Indented(&json))),
        false => writeln!(out, "{}", text::Visible(&json)),
    };
    let _ = out.flush();
}
