//! The run log: one tracing record per call and one per line of a tool's log, on standard error.
//!
//! Nothing of other crates is logged: their debug lines would show arguments unmasked. A server
//! queues its lines for a writer thread. The queue is bounded, and no logger waits for a pipe
//! without a reader.

use super::call_ended::CallEnded;
use crate::base::{millis, text};
use crate::fault::{Fault, Kind};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Longest part of one field, bytes: enough to see what happened, never a flood.
const CUT: usize = 2048;

/// Most bytes that wait; further lines are lost.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;

static LINES: OnceLock<Sender<Vec<u8>>> = OnceLock::new();
/// Bytes that wait or are being written.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static JSON: AtomicBool = AtomicBool::new(false);

/// Writes the record of a call that is over, if its level is enabled.
pub(super) fn call(ended: &CallEnded) {
    let CallEnded { report, line, .. } = ended;
    let fault = report.outcome.fault();
    let person = |words: fn(&Fault) -> &Option<String>| {
        fault.and_then(|fault| words(fault).as_deref()).map(shown)
    };
    macro_rules! write_at {
        ($level:ident) => {
            if tracing::enabled!(target: "toolhost::call", Level::$level) {
                let stdout = report.outcome.answer().map_or(ended.bad_output.as_str(), |answer| answer.head(usize::MAX));
                let result = fault.map(|fault| format!("{}: {}", fault.kind, fault.message));
                tracing::event!(
                    target: "toolhost::call",
                    Level::$level,
                    call = shown(&line.call),
                    parent = line.parent,
                    trace = line.trace,
                    user = shown(&ended.caller),
                    label = shown(line.label.as_deref().unwrap_or_default()),
                    tool = shown(&ended.tool),
                    parameters = text::printable(&line.arguments),
                    executor = shown(&ended.executor),
                    command = shown(&ended.command),
                    dependencies = shown(&ended.dependencies),
                    stdout = shown(stdout),
                    stderr = shown(&report.logs.join("\n")),
                    duration_ms = millis(ended.took),
                    result = shown(result.as_deref().unwrap_or("success")),
                    details = person(|fault| &fault.details).unwrap_or_default(),
                    person = person(|fault| &fault.person).unwrap_or_default(),
                    notes = shown(&line.notes.join("; ")),
                )
            }
        };
    }
    match fault.map_or(Level::INFO, level) {
        Level::ERROR => write_at!(ERROR),
        Level::WARN => write_at!(WARN),
        _ => write_at!(INFO),
    }
}

/// Faults that the operator must repair have higher levels than mistakes of callers and tools.
fn level(fault: &Fault) -> Level {
    match fault.kind {
        Kind::SecurityError => Level::ERROR,
        Kind::AuthorizationError => Level::WARN,
        _ if fault.by_caller => Level::INFO,
        Kind::InternalError => Level::ERROR,
        Kind::CapabilityError | Kind::DependencyError | Kind::ServiceError => Level::WARN,
        _ => Level::INFO,
    }
}

/// Writes a line of a tool's log, which is masked and printable, if its level is enabled. The line
/// is a field, in quotes: in a message, which has none, it could imitate other fields.
pub fn line(call: &str, trace: impl Fn() -> Option<String>, tool: &str, line: &str) {
    tracing::debug!(target: "toolhost::log", call, trace = trace(), tool, line = text::cut(line, CUT));
}

/// Cuts, then escapes: a field is one line, whatever a tool printed. A text is written in quotes,
/// so that it cannot imitate other fields.
fn shown(words: &str) -> String {
    text::printable(&text::cut(words, CUT))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub level: LevelFilter,
    pub json: bool,
    pub colour: bool,
}

/// Starts the log on standard error. A second start is ignored: embedding programs have their own.
/// `queued`: lines go through a writer thread, and are lost if it cannot write them.
pub fn init(style: Style, queued: bool) {
    if queued {
        begin_queue(style.json);
    }
    let filter = EnvFilter::new(format!("off,toolhost={}", style.level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| -> Box<dyn io::Write> {
            if is_queued() {
                Box::new(Queue)
            } else {
                Box::new(io::stderr())
            }
        })
        .with_ansi(style.colour)
        .log_internal_errors(false);
    let _ = if style.json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.try_init()
    };
}

/// Starts the writer thread. If that fails, each thread writes its own lines. `json`: the lines of
/// `say` are JSON, too.
fn begin_queue(json: bool) {
    JSON.store(json, Ordering::Relaxed);
    // A duplicate of the descriptor: other users of the shared handle would wait for its lock.
    let Ok(to) = io::stderr().as_fd().try_clone_to_owned() else {
        return;
    };
    let (lines, waiting) = channel();
    let thread = std::thread::Builder::new()
        .name("run log".to_owned())
        .spawn(move || write(&waiting, to.into()));
    if thread.is_ok() {
        let _ = LINES.set(lines);
    }
}

fn is_queued() -> bool {
    LINES.get().is_some()
}

/// Lines that were lost since this process started.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Queues a line. `level`: used only where lines are JSON. False: the queue does not exist.
pub fn say(level: &str, line: &str) -> bool {
    if !is_queued() {
        return false;
    }
    let line = if JSON.load(Ordering::Relaxed) {
        let time = jiff::Timestamp::now().to_string();
        json!({"timestamp": time, "level": level, "target": "toolhost", "message": line})
            .to_string()
    } else {
        line.to_owned()
    };
    Queue.write_all(format!("{line}\n").as_bytes()).is_ok()
}

/// Waits until all is written, at most this long: for a process that is about to exit.
pub fn settle(longest: Duration) {
    let until = Instant::now() + longest;
    while WAITING.load(Ordering::Acquire) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn write(lines: &Receiver<Vec<u8>>, mut to: File) {
    let mut told = 0;
    while let Ok(line) = lines.recv() {
        let written = to.write_all(&line).is_ok();
        if !written {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        WAITING.fetch_sub(line.len(), Ordering::Release);
        let lost = lost();
        // Without a reader the count cannot be reported either.
        if written && lost > told && WAITING.load(Ordering::Acquire) < QUEUE_BYTES / 2 {
            tracing::warn!(target: "toolhost::runlog", lost, "lines of this log were lost: its \
                reader was too slow");
            told = lost;
        }
    }
}

/// A writer that queues what is written at once as one line.
struct Queue;

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = WAITING.fetch_add(line.len(), Ordering::AcqRel);
        let sent = waiting + line.len() <= QUEUE_BYTES
            && LINES
                .get()
                .is_some_and(|lines| lines.send(line.to_vec()).is_ok());
        if !sent {
            WAITING.fetch_sub(line.len(), Ordering::AcqRel);
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
