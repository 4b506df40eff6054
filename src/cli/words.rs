//! Words on standard output and standard error.
//!
//! For: every verb. In: text that may come from anywhere. Out: the same, with nothing a terminal would
//! obey. Never: a panic because the other end of a pipe is gone; an answer lost in silence.

use crate::base::json::Indented;
use crate::base::text;
use crate::executor::Progress;
use crate::sandbox;
use crate::service::runlog;
use nix::errno::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest object on one line of a report, bytes.
const WIDE: usize = 100;

/// Something could not be written to standard output.
static LOST: AtomicBool = AtomicBool::new(false);

/// Lines for the person, on standard error; those of a server go with its log.
pub fn complain(lines: &str) {
    tell("INFO", lines);
}

/// The same of what went wrong.
pub fn fail(lines: &str) {
    tell("ERROR", lines);
}

/// Somebody at a terminal is told what is waited for: else the verb seems to hang.
pub fn waits_for(what: &str) {
    if io::stdin().is_terminal() {
        complain(&format!("toolhost: waiting for {what} on standard input (Ctrl-D ends it)"));
    }
}

fn tell(level: &str, lines: &str) {
    let lines = text::printable_block(lines);
    if !runlog::say(level, &lines) {
        let _ = writeln!(io::stderr().lock(), "{lines}");
    }
}

/// Lines on standard output.
pub fn say(lines: &str) {
    stream(|out| writeln!(out, "{lines}"));
}

/// A reader that closes the pipe early (`… | head`) has what it wanted; any other failed write loses an answer.
fn noted(written: io::Result<()>) {
    let written = if sandbox::output_was_closed() { Err(Errno::EBADF.into()) } else { written };
    let Err(why) = written else { return };
    if why.kind() != io::ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) {
        complain(&format!("toolhost: standard output cannot be written: {why}"));
    }
}

/// Whether something was lost, which makes a success a failure of this host.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// A whole report on standard output.
pub fn show(text: &[u8]) {
    stream(|out| out.write_all(text));
}

/// The same in pieces, for a report that is too large to be held at once.
pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    let mut out = Plain(io::BufWriter::new(io::stdout().lock()));
    noted(write(&mut out).and_then(|()| out.flush()));
}

/// Escapes whatever a terminal would obey; text that is escaped already stays as it is. Each piece must hold whole
/// characters.
struct Plain<W: Write>(W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.0.write_all(text::printable_block(&String::from_utf8_lossy(piece)).as_bytes())?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A report of ours as indented JSON on standard output.
pub fn show_json(value: &Value) {
    say(&text::json(value, true));
}

/// A line of a report: a name, and what is said of it.
pub fn line(out: &mut String, name: &str, words: &str) {
    out.push_str(&format!("  {name:<11}  {}\n", text::printable(words)));
}

/// A line for each field; several for a list, and for an object that would be wide.
pub fn fields(object: &Value, out: &mut String) {
    for (name, value) in object.as_object().into_iter().flatten() {
        let parts: Vec<String> = match value {
            Value::Array(items) => items.iter().map(flat).collect(),
            Value::Object(fields) if flat(value).len() > WIDE => fields.iter().map(pair).collect(),
            other => vec![flat(other)],
        };
        for (at, part) in parts.iter().enumerate() {
            line(out, if at == 0 { name } else { "" }, part);
        }
    }
}

/// `wallMs 38, cpuMs 29`; a text as it is, null as `none`.
fn flat(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => fields.iter().map(pair).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn pair((name, value): (&String, &Value)) -> String {
    format!("{name} {}", flat(value))
}

/// One JSON value on standard output: compact for a program, indented for a person.
pub fn say_json(value: &impl Serialize) {
    let terminal = io::stdout().is_terminal();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let json = serde_json::to_string(value).unwrap_or_else(|e| json!({"error": e.to_string()}).to_string());
    let written = match terminal {
        true => writeln!(out, "{}", text::Visible(Indented(&json))),
        false => writeln!(out, "{}", text::Visible(&json)),
    };
    noted(written.and_then(|()| out.flush()));
}

/// A word of a shell command.
pub fn quoted(word: &str) -> String {
    let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+:@%=".contains(&b));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// How far a tool is: `3 of 10: the message`.
pub fn progress(told: &Progress) -> String {
    let total = told.total.map(|total| format!(" of {total}")).unwrap_or_default();
    let message = told.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{}{total}{message}", told.progress)
}
