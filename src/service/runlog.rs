//! The run log: one tracing record per call, and one per line of a tool's log, for the person who runs this host.
//!
//! For: the record of a call; `init` for the command line. In: a summary, a line, secrets already hidden.
//! Out: one line on standard error. Never: standard output (MCP lives there), a raw control
//! character, or what other crates log (their debug lines would show arguments unmasked); a server that waits for whoever
//! reads its standard error, or does not.

mod queue;

pub use queue::{lost, say, settle};

use crate::base::text;
use std::io;
use tracing_subscriber::EnvFilter;

/// Longest part of one field, bytes: enough to see what happened, never a flood.
const CUT: usize = 2048;

/// How bad it was: decides the level of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// It went well, or the tool or its caller failed.
    Fine,
    /// The operator may have to mend something: a policy refused, this machine lacks something.
    Odd,
    /// This host failed.
    Grave,
}

#[derive(Clone, Debug)]
pub struct Summary {
    pub call: String,
    /// The trace that it is part of.
    pub trace: Option<String>,
    pub user: String,
    /// On whose behalf the request said it came.
    pub label: String,
    pub tool: String,
    pub parameters: String,
    /// Which executors were chosen.
    pub executor: String,
    pub command: String,
    pub stdout: String,
    pub stderr: String,
    pub duration_ms: u64,
    pub result: String,
    /// What the failure says beside its message: for the caller, and for the person alone (path and mend).
    pub details: String,
    pub person: String,
    /// Where the call got less than was asked.
    pub notes: String,
}

/// Writes the record, if anybody listens at its level.
pub fn record(grade: Grade, summary: impl Fn() -> Summary) {
    macro_rules! write_at {
        ($level:ident) => {
            if tracing::enabled!(target: "toolhost::call", tracing::Level::$level) {
                let summary = summary();
                tracing::event!(
                    target: "toolhost::call",
                    tracing::Level::$level,
                    call = shown(&summary.call),
                    trace = summary.trace,
                    user = shown(&summary.user),
                    label = shown(&summary.label),
                    tool = shown(&summary.tool),
                    parameters = shown(&summary.parameters),
                    executor = shown(&summary.executor),
                    command = shown(&summary.command),
                    dependencies = "none installed",
                    stdout = shown(&summary.stdout),
                    stderr = shown(&summary.stderr),
                    duration_ms = summary.duration_ms,
                    result = shown(&summary.result),
                    details = shown(&summary.details),
                    person = shown(&summary.person),
                    notes = shown(&summary.notes),
                )
            }
        };
    }
    match grade {
        Grade::Fine => write_at!(INFO),
        Grade::Odd => write_at!(WARN),
        Grade::Grave => write_at!(ERROR),
    }
}

/// Writes a line of a tool's log, secrets hidden and printable, if anybody listens to them. As a field: a message has no
/// quotes, and so could show fields of its own.
pub fn line(call: &str, trace: impl Fn() -> Option<String>, tool: &str, line: &str) {
    tracing::debug!(target: "toolhost::log", call, trace = trace(), tool, line = text::cut(line, CUT));
}

/// Cut first, then escaped: a field is one line, whatever a tool printed. As a text it is written in quotes, so that none
/// shows another field.
fn shown(words: &str) -> String {
    text::printable(&text::cut(words, CUT))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub level: Level,
    pub json: bool,
    pub colour: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }

    pub fn named(name: &str) -> Option<Level> {
        [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace]
            .into_iter()
            .find(|level| level.name() == name)
    }
}

/// Starts the log on standard error. A second start is ignored: embedding programs bring their own. `queued`: lines wait
/// for a thread of their own, and are lost where that cannot write them.
pub fn init(style: Style, queued: bool) {
    if queued {
        queue::begin(style.json);
    }
    let filter = EnvFilter::new(format!("off,toolhost={}", style.level.name()));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| -> Box<dyn io::Write> {
            if queue::is_on() { Box::new(queue::Line) } else { Box::new(io::stderr()) }
        })
        .with_ansi(style.colour)
        .log_internal_errors(false);
    let _ = if style.json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
}
