//! Output: lines on standard output and standard error, and the one renderer from a report to text.
//!
//! Control characters are escaped. If an answer cannot be written, the process fails.

use super::settings::Flags;
use super::terminal;
use crate::base::json::Indented;
use crate::base::text;
pub use crate::base::text::quote;
use crate::executor::Progress;
use crate::executor::{Part, ToolAnswer};
use crate::sandbox;
use crate::service::runlog;
use jiff::{SignedDuration, Timestamp};
use nix::errno::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest object, and longest line of words, in a report, bytes.
const MAX_LINE_BYTES: usize = 100;
/// Widest column of a table that no terminal shows, characters.
const MAX_COLUMN_CHARS: usize = 56;
/// A terminal's table is made no narrower than columns of this, characters.
const MIN_COLUMN_CHARS: usize = 6;
/// Columns that are whole also where a table does not fit: people copy what is in them.
const WHOLE_COLUMNS: [&str; 2] = ["call", "id"];
/// Columns that are cut after all others.
const LATE_COLUMNS: [&str; 2] = ["time", "outcome"];

/// A write to standard output has failed.
static LOST: AtomicBool = AtomicBool::new(false);

/// The flags of this process that name its settings.
static SETTINGS: OnceLock<Vec<String>> = OnceLock::new();

/// Keeps the settings that flags name, for the commands that are printed. Their paths are absolute,
/// so that the commands work from any folder.
pub fn keep_settings(flags: &Flags) {
    let one = |path: &Option<PathBuf>| path.iter().cloned().collect::<Vec<_>>();
    let all = [
        ("root", one(&flags.root)),
        ("tools", flags.tools.clone()),
        ("scripts", flags.scripts.clone()),
        ("skills", flags.skills.clone()),
        ("policies", one(&flags.policies)),
        ("config", one(&flags.config)),
        ("audit-log", one(&flags.audit_log)),
    ];
    let mut words = Vec::new();
    for (name, paths) in all {
        for path in paths {
            let path = std::path::absolute(&path).unwrap_or(path);
            words.extend([format!("--{name}"), path.to_string_lossy().into_owned()]);
        }
    }
    let _ = SETTINGS.set(words);
}

/// The flags that name settings of this process.
pub fn settings() -> &'static [String] {
    SETTINGS.get().map_or(&[], Vec::as_slice)
}

/// How a command of this program begins, with the settings of this process. `root`: as `--root`, where
/// no flag names one.
pub fn program(root: Option<&Path>) -> String {
    let named = settings().iter().any(|word| word == "--root");
    let root = root.filter(|_| !named).map(|root| root.to_string_lossy());
    let root = root.map(|root| ["--root".to_owned(), root.into_owned()]);
    let words = root.iter().flatten().chain(settings());
    words.fold("toolhost".to_owned(), |all, word| {
        all + " " + &quote(&text::printable(word))
    })
}

/// The same for a host, which serves one root.
pub fn program_at(root: &Path) -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    PROGRAM.get_or_init(|| program(Some(&root)))
}

/// A command of this program, with the settings of this process.
pub fn command(words: &str) -> String {
    format!("{} {words}", program(None))
}

/// Gives every command in a text the settings of this process.
pub fn with_settings(lines: &str) -> String {
    text::with_settings(lines, &program(None))
}

/// Writes lines for the person to standard error; a server writes them to its run log.
pub fn note(lines: &str) {
    tell("INFO", lines);
}

/// The lines of two texts between those with which both begin and end.
pub struct ChangedLines {
    /// The number of the first.
    pub first: usize,
    /// Those that are gone, each with `-` before it, and those that are new, with `+`.
    pub lines: Vec<String>,
}

pub fn changed_lines(before: &str, after: &str) -> ChangedLines {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let alike = old.iter().zip(&new);
    let alike = alike.take_while(|(old, new)| old == new).count();
    let rest = old.iter().rev().zip(new.iter().rev());
    let least = old.len().min(new.len()) - alike;
    let below = rest.take(least).take_while(|(old, new)| old == new).count();
    let removed = old[alike..old.len() - below].iter();
    let added = new[alike..new.len() - below].iter();
    let removed = removed.map(|line| format!("- {}", text::printable(line)));
    let added = added.map(|line| format!("+ {}", text::printable(line)));
    ChangedLines {
        first: alike + 1,
        lines: removed.chain(added).collect(),
    }
}

/// Says which step of some begins that may take long: on a terminal in one line, which the next replaces.
pub fn step(line: &str) {
    if !terminal::progress(line) {
        note(line);
    }
}

/// The same as `note` for an error.
pub fn fail(lines: &str) {
    tell("ERROR", lines);
}

/// Tells a person at a terminal what the verb waits for. Otherwise the verb would seem to hang.
pub fn waits_for(what: &str) {
    if io::stdin().is_terminal() {
        note(&format!(
            "toolhost: waiting for {what} on standard input (Ctrl-D ends it)"
        ));
    }
}

fn tell(level: &str, lines: &str) {
    let lines = text::printable_block(&with_settings(lines));
    terminal::end_progress();
    if !runlog::say(level, &lines) {
        let _ = writeln!(io::stderr().lock(), "{lines}");
    }
}

/// Lines on standard output.
pub fn say(lines: &str) {
    stream(|out| writeln!(out, "{lines}"));
}

/// A reader that closes the pipe early (`… | head`) has what it wanted; any other failed write
/// loses an answer.
fn note_write_failure(written: io::Result<()>) {
    let written = if sandbox::output_was_closed() {
        Err(Errno::EBADF.into())
    } else {
        written
    };
    let Err(why) = written else { return };
    if why.kind() != io::ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) {
        note(&format!(
            "toolhost: standard output cannot be written: {why}"
        ));
    }
}

/// Whether output was lost. Then a success becomes a failure of this host.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// A whole report on standard output.
pub fn show(text: &[u8]) {
    stream(|out| out.write_all(text));
}

/// The same in pieces, for a report that is too large to be held at once.
pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    terminal::end_progress();
    let mut out = Plain {
        out: io::BufWriter::new(io::stdout().lock()),
        has_colors: terminal::has_colors(),
    };
    note_write_failure(write(&mut out).and_then(|()| out.flush()));
}

/// Escapes whatever a terminal would obey; text that is escaped already stays as it is. Then it
/// colours status words, where there are colours. Each piece must hold whole characters.
struct Plain<W: Write> {
    out: W,
    has_colors: bool,
}

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let plain = text::printable_block(&String::from_utf8_lossy(piece));
        if self.has_colors {
            for line in plain.split_inclusive('\n') {
                self.out.write_all(terminal::colored(line).as_bytes())?;
            }
        } else {
            self.out.write_all(plain.as_bytes())?;
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A report on standard output: indented JSON for a program, else its text.
pub fn answer(report: &Value, json: bool, text: impl FnOnce() -> String) {
    say(if json {
        text::json(report, true)
    } else {
        with_settings(&text())
    }
    .trim_end());
}

/// Writes a file whole or not at all. `replaces`: the file may exist already, and keeps its owner
/// and rights.
pub fn write_file(path: &Path, text: &str, replaces: bool) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // Only its owner may write a policy, or a lock beside one.
    let mut file = tempfile::Builder::new()
        .prefix(".toolhost-")
        .tempfile_in(folder)?;
    let mut mode = 0o644;
    if let Some(old) = path.metadata().ok().filter(|_| replaces) {
        std::os::unix::fs::fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
        mode = old.mode();
    }
    file.as_file()
        .set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    let written = if replaces {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    written.map(drop).map_err(|e| e.error)
}

/// A line of a report: a name and its text.
pub fn line(out: &mut String, name: &str, words: &str) {
    out.push_str(&format!("  {name:<11}  {}\n", text::printable(words)));
}

/// How a member of a report that is a list of objects is shown: its name, the columns, and what
/// stands below each row.
pub type Table = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// A report as text: a line for each field, several for a list, and a table for each list that
/// `tables` names.
pub fn render(report: &Value, tables: &[Table]) -> String {
    let mut out = String::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        let shown = tables.iter().find(|(member, ..)| member == name);
        match (shown, value.as_array()) {
            (Some(_), Some(rows)) if rows.is_empty() => {}
            (Some((_, columns, below)), Some(rows)) => {
                let gap = if out.is_empty() || out.ends_with("\n\n") {
                    ""
                } else {
                    "\n"
                };
                out.push_str(&format!(
                    "{gap}{}\n{}\n",
                    title(name),
                    table(rows, columns, below)
                ));
            }
            _ => field(name, value, &mut out),
        }
    }
    out
}

/// Rows under their headings: a column is `member` or `member=heading`. On a terminal, cells are cut
/// so that each row fits; elsewhere one longer than `MAX_COLUMN_CHARS` pushes the rest of its row to
/// the right.
pub fn table(rows: &[Value], columns: &[&str], below: &[&str]) -> String {
    let columns = columns
        .iter()
        .map(|column| column.split_once('=').unwrap_or((*column, *column)));
    let columns: Vec<(&str, String)> = columns
        .map(|(name, heading)| (name, title(heading).to_uppercase()))
        .collect();
    let room = terminal::columns();
    let heads = columns.iter().map(|(_, heading)| heading.clone()).collect();
    let cells = |row: &Value| {
        columns
            .iter()
            .map(|(name, _)| text::printable(&named(name, &row[*name])))
            .collect()
    };
    let cells: Vec<Vec<String>> = std::iter::once(heads)
        .chain(rows.iter().map(cells))
        .collect();
    let width = |column: usize| {
        cells
            .iter()
            .map(|row| row[column].chars().count())
            .filter(|wide| room.is_some() || *wide <= MAX_COLUMN_CHARS)
            .max()
            .unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns.len()).map(width).collect();
    if let Some(room) = room {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        fit(&mut widths, &names, room);
    }
    let mut out = String::new();
    for (at, row) in cells.iter().enumerate() {
        let line: String = row
            .iter()
            .zip(&widths)
            .map(
                |(cell, width)| match cell.chars().count() > *width && room.is_some() {
                    true => format!("  {}", text::head(cell, width - 1)),
                    false => format!("  {cell:width$}"),
                },
            )
            .collect();
        out.push_str(&format!("{}\n", line.trim_end()));
        let row = at.checked_sub(1).map_or(&Value::Null, |at| &rows[at]);
        for name in below.iter().filter(|name| !is_empty(&row[**name])) {
            let lines = row[*name]
                .as_array()
                .map_or(std::slice::from_ref(&row[*name]), Vec::as_slice);
            lines.iter().for_each(|line| {
                out.push_str(&format!(
                    "      {}: {}\n",
                    title(name),
                    text::printable(&flat(line))
                ));
            });
        }
    }
    out
}

/// Makes the widest columns narrower until a row fits, each with the gap before it.
fn fit(widths: &mut [usize], names: &[&str], room: usize) {
    while widths.iter().sum::<usize>() + 2 * widths.len() > room {
        let cells = widths.iter_mut().zip(names);
        let widest = cells
            .filter(|(width, name)| **width > MIN_COLUMN_CHARS && !WHOLE_COLUMNS.contains(name))
            .max_by_key(|(width, name)| (!LATE_COLUMNS.contains(name), **width));
        match widest {
            Some((width, _)) => *width -= 1,
            None => break,
        }
    }
}

/// A field of a report; several lines for a list, and for an object that would be wide.
pub fn field(name: &str, value: &Value, out: &mut String) {
    let parts: Vec<String> = match value {
        Value::Array(items)
            if items
                .iter()
                .all(|item: &Value| item.as_str().is_some_and(|text| !text.contains(' '))) =>
        {
            fill(items.iter().map(flat))
        }
        Value::Array(items) => items.iter().map(flat).collect(),
        Value::Object(fields) if flat(value).len() > MAX_LINE_BYTES => fields
            .iter()
            .filter_map(|(name, value)| pair(name, value))
            .collect(),
        other => vec![flat(other)],
    };
    for (at, part) in parts.iter().enumerate() {
        line(
            out,
            &if at == 0 { title(name) } else { String::new() },
            part,
        );
    }
}

/// Whether a value is empty.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// What people read in place of the JSON names of members, which programs rely on.
const TITLES: [(&str, &str); 4] = [
    ("asks", "requests"),
    ("tried", "attempts"),
    ("madeUp", "generated"),
    ("passedOver", "not used"),
];

/// `enforcedBy` as `enforced by`.
fn title(name: &str) -> String {
    let name = TITLES
        .iter()
        .find(|(member, _)| *member == name)
        .map_or(name, |(_, title)| title);
    let spaced = name.chars().flat_map(|c| {
        [
            c.is_ascii_uppercase().then_some(' '),
            Some(c.to_ascii_lowercase()),
        ]
    });
    spaced.flatten().collect()
}

/// Words on as few lines as hold them.
fn fill(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines
            .last_mut()
            .filter(|line| line.len() + word.len() < MAX_LINE_BYTES)
        {
            Some(line) => line.push_str(&format!(" {word}")),
            None => lines.push(word),
        }
    }
    lines
}

fn named(name: &str, value: &Value) -> String {
    // How a cgroup counts is said elsewhere.
    if name == "state" && value == "cgroup" {
        return "active".to_owned();
    }
    flat(value)
}

/// A value on one line: `layer ms 38, cpu ms 29`. A string as it is, null as `none`, `{"ok": …}` as
/// its `is` or `why`.
pub fn flat(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Object(fields) if fields.contains_key("ok") => flat(
            fields
                .get("is")
                .or_else(|| fields.get("why"))
                .unwrap_or(&Value::Null),
        ),
        Value::Object(fields) => fields
            .iter()
            .filter_map(|(name, value)| pair(name, value))
            .collect::<Vec<_>>()
            .join(", "),
        other => other.to_string(),
    }
}

fn pair(name: &str, value: &Value) -> Option<String> {
    (!is_empty(value)).then(|| format!("{} {}", title(name), named(name, value)))
}

/// One JSON value on standard output: compact for a program, indented for a person, who reads a
/// text as text.
pub fn say_json(value: &impl Serialize) {
    say_with_answer(value, None);
}

/// As `say_json`, with the answer in the place of its mark.
pub fn say_with_answer(value: &impl Serialize, answer: Option<&ToolAnswer>) {
    let terminal = io::stdout().is_terminal();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let json = serde_json::to_string(value)
        .unwrap_or_else(|e| json!({"error": e.to_string()}).to_string());
    let json = answer.map_or(json.clone(), |answer| {
        let parts = answer
            .put_into(json.as_bytes())
            .into_iter()
            .flat_map(Part::pieces);
        String::from_utf8_lossy(&parts.flatten().collect::<Vec<u8>>()).into_owned()
    });
    let text = serde_json::from_str::<String>(&json).ok();
    let written = if let Some(text) = text.filter(|_| terminal) {
        writeln!(out, "{}", text::printable_block(&text))
    } else if terminal {
        writeln!(out, "{}", text::Visible(Indented(&json)))
    } else {
        writeln!(out, "{}", text::Visible(&json))
    };
    note_write_failure(written.and_then(|()| out.flush()));
}

/// How long ago a time was, as people read it: `2m 3s ago`.
pub fn age(time: &str) -> Option<String> {
    let time = time.parse::<Timestamp>().ok()?;
    let seconds = Timestamp::now().duration_since(time).as_secs();
    Some(format!("{:#} ago", SignedDuration::from_secs(seconds)))
}

/// An amount of bytes: `10 KB`.
pub fn size(bytes: u64) -> String {
    let amount = bytes as f64;
    match bytes {
        0..1000 => format!("{bytes} bytes"),
        1000..1_000_000 => format!("{:.0} KB", amount / 1e3),
        _ => format!("{:.1} MB", amount / 1e6),
    }
}

/// The progress of a tool as text: `3 of 10: the message`.
pub fn progress(told: &Progress) -> String {
    let total = told
        .total
        .map(|total| format!(" of {total}"))
        .unwrap_or_default();
    let message = told
        .message
        .as_ref()
        .map(|message| format!(": {message}"))
        .unwrap_or_default();
    format!("{}{total}{message}", told.progress)
}
