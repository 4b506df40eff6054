//! Queue: the lines of a server's log, on their way to standard error.
//!
//! For: `runlog`, and what else a server says there. In: whole lines. Out: the same, written by one thread; how many were lost.
//! Never: makes whoever logs wait: a pipe that nobody reads holds up that thread alone.

use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Most bytes that wait; further lines are lost.
const ROOM: usize = 4 * 1024 * 1024;

static LINES: OnceLock<Sender<Vec<u8>>> = OnceLock::new();
/// Bytes that wait or are being written.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static JSON: AtomicBool = AtomicBool::new(false);

/// Starts the thread. Where there can be none, lines are written by whoever logs them. `json`: what else is said becomes
/// lines of JSON, too.
pub fn begin(json: bool) {
    JSON.store(json, Ordering::Relaxed);
    // Not through the handle that others share: they would wait for its lock.
    let Ok(to) = io::stderr().as_fd().try_clone_to_owned() else { return };
    let (lines, waiting) = channel();
    let thread = std::thread::Builder::new().name("run log".to_owned()).spawn(move || write(&waiting, to.into()));
    if thread.is_ok() {
        let _ = LINES.set(lines);
    }
}

pub fn is_on() -> bool {
    LINES.get().is_some()
}

/// Lines that were lost since this process started.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Has this written, with a line break; `level`: how grave it is, where lines are JSON. False: there is no queue.
pub fn say(level: &str, line: &str) -> bool {
    if !is_on() {
        return false;
    }
    let line = match JSON.load(Ordering::Relaxed) {
        true => {
            let time = jiff::Timestamp::now().to_string();
            json!({"timestamp": time, "level": level, "target": "toolhost", "message": line}).to_string()
        }
        false => line.to_owned(),
    };
    Line.write_all(format!("{line}\n").as_bytes()).is_ok()
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
        // Where nobody is left to read there is nobody to tell.
        if written && lost > told && WAITING.load(Ordering::Acquire) < ROOM / 2 {
            tracing::warn!(target: "toolhost::runlog", lost, "lines of this log were lost: nobody read them in time");
            told = lost;
        }
    }
}

/// Takes one line, whole.
pub struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = WAITING.fetch_add(line.len(), Ordering::AcqRel);
        let sent = waiting + line.len() <= ROOM && LINES.get().is_some_and(|lines| lines.send(line.to_vec()).is_ok());
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
