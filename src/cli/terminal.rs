//! What a terminal shows and a file does not: colours of status words, tables of its width, and a line
//! of progress that the next one replaces. None of it reaches a pipe.

use crate::base::text;
use crate::sandbox;
use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor::{self, Cyan, Green, Red, Yellow};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// Words that say how something is. So does the type of an error.
const STATUS_WORDS: [(AnsiColor, &[&str]); 4] = [
    (
        Green,
        &[
            "ok",
            "success",
            "requires_action",
            "PASS",
            "active",
            "granted",
            "held",
        ],
    ),
    (Cyan, &["note", "running"]),
    (
        Yellow,
        &[
            "warning",
            "skip",
            "unavailable",
            "sampled",
            "clamped",
            "notJudged",
        ],
    ),
    (Red, &["FAIL", "error", "refused", "escaped", "notTried"]),
];

/// Columns of a terminal that does not say.
const USUAL_COLUMNS: usize = 80;

/// What was written last to the terminal.
static LAST: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
const PROGRESS: u8 = 1;
const OTHER: u8 = 2;

/// Columns of the terminal that standard output is.
pub fn columns() -> Option<usize> {
    sandbox::terminal_columns(io::stdout().as_fd())
}

/// Whether standard output shows colours: it is a terminal, and its user wants them (`NO_COLOR`).
pub fn has_colors() -> bool {
    let out = io::stdout();
    out.is_terminal() && AutoStream::choice(&out) != ColorChoice::Never
}

/// Colours the status words of a line that is masked already. They begin the line or a cell of a
/// table, or follow a colon.
pub fn colored(line: &str) -> String {
    let mut out = String::new();
    let mut at = 0;
    for piece in line.split_inclusive(' ') {
        let before = &line[..at];
        let begins =
            before.trim_start().is_empty() || before.ends_with("  ") || before.ends_with(": ");
        let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (word, rest) = piece.split_at(end.unwrap_or(piece.len()));
        match color(word).filter(|_| begins) {
            Some(color) => {
                let style = color.on_default();
                out.push_str(&format!("{style}{word}{style:#}{rest}"));
            }
            None => out.push_str(piece),
        }
        at += piece.len();
    }
    out
}

fn color(word: &str) -> Option<AnsiColor> {
    let found = STATUS_WORDS.iter().find(|(_, words)| words.contains(&word));
    let is_error = word.len() > "Error".len() && word.ends_with("Error");
    found.map(|(color, _)| *color).or(is_error.then_some(Red))
}

/// Shows on a terminal what is going on, in the place of what was shown before. Returns whether it is
/// one.
pub fn progress(line: &str) -> bool {
    let err = io::stderr();
    let is_terminal = err.is_terminal();
    if is_terminal {
        let columns = sandbox::terminal_columns(err.as_fd()).unwrap_or(USUAL_COLUMNS);
        let line = text::head(&text::printable(line), columns.saturating_sub(2));
        LAST.store(PROGRESS, Ordering::Relaxed);
        let _ = write!(err.lock(), "\r\x1b[K{line}\r");
    }
    is_terminal
}

/// From here on, `still` may show that something goes on.
pub fn begin() {
    LAST.store(NOTHING, Ordering::Relaxed);
}

/// The same, unless something else was written meanwhile: a person may be asked there.
pub fn still(line: &str) {
    if LAST.load(Ordering::Relaxed) != OTHER {
        progress(line);
    }
}

/// Removes the line of progress, before anything else is written.
pub fn end_progress() {
    if LAST.swap(OTHER, Ordering::Relaxed) == PROGRESS {
        let _ = write!(io::stderr().lock(), "\r\x1b[K");
    }
}
