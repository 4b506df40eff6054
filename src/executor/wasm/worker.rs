//! The worker: our own binary, behind the walls, serving one tool and one shape, one call at a time.
//!
//! For: the front door, which enters it when it is executed under the role `wasm-worker`.
//! In: orders on descriptor 0, compiled code on an inherited descriptor. Out: reports on descriptor 1.
//! Never: compiles, opens anything the host did not name, or goes on after it lost the thread.

use super::frame::{self, End, Init, Most, Order, Report};
use super::guest::Loaded;
use super::{cache, engine, trusted_code};
use crate::quantity::Limit;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::fs::{File, FileTimes, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// No call is longer, whatever the host says: clocks do not reach to the end of u64.
const LONGEST_CALL: Duration = Duration::from_secs(7 * 24 * 3600);

/// The whole life of a worker.
pub fn run() -> ExitCode {
    // Not through `io::stdout`, which writes what follows the last line break by itself.
    let ends = (io::stdin().as_fd().try_clone_to_owned(), io::stdout().as_fd().try_clone_to_owned());
    let served = match ends {
        (Ok(from), Ok(to)) => serve(&mut BufReader::new(File::from(from)), &mut File::from(to)),
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wasm worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let first = Most { header: frame::MAX_HEADER_BYTES, payload: 0 };
    let Some((Order::Init(init), _)) = frame::read(from, first)? else {
        return Err(io::Error::other("the first order was not init"));
    };
    let loaded = match load(&init) {
        Ok(loaded) => loaded,
        Err(message) => return say(to, &Report::Refused { message: frame::short(&message) }, &[]),
    };
    say(to, &Report::Ready, &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let input_bytes = init.limit(Limit::InputBytes);
    let most = Most { header: frame::MAX_HEADER_BYTES, payload: input_bytes };
    while let Some((order, input)) = frame::read(from, most)? {
        let Order::Call { id, timeout_ms } = order else { return Err(io::Error::other("init came twice")) };
        let before = if loaded.reaches_files() { Some(Fresh::make(&init.scratch)?) } else { None };
        let done = loaded
            .call(&runtime, &init, input, Duration::from_millis(timeout_ms).min(LONGEST_CALL))
            .map_err(|e| io::Error::other(format!("{e:#}")))?;
        let clean = before.is_none_or(|fresh| fresh.is_still(&init.scratch));
        let again = clean && matches!(done.end, End::Exit { .. } | End::Returned | End::Raised);
        let report = Report::Answer {
            id,
            end: done.end,
            output: done.output.len() as u64,
            cpu_ms: done.cpu_ms,
            peak_memory: done.peak_memory,
            clean,
        };
        say(to, &report, &[&done.output, &done.log])?;
        if !again {
            return Ok(());
        }
    }
    Ok(())
}

fn say(to: &mut impl Write, report: &Report, payload: &[&[u8]]) -> io::Result<()> {
    to.write_all(&frame::encode(report, payload)?)
}

fn load(init: &Init) -> Result<Loaded, String> {
    let file =
        trusted_code::inherited(init.code_descriptor).map_err(|e| format!("no compiled code was handed over: {e}"))?;
    let engine = engine::running().map_err(|e| format!("the engine does not start: {e:#}"))?;
    let length = init.code_bytes.min(cache::MAX_CODE_BYTES);
    let mut compiled = vec![0; usize::try_from(length).map_err(|_| "the compiled code is too large")?];
    file.read_exact_at(&mut compiled, init.code_offset).map_err(|e| format!("the compiled code is cut short: {e}"))?;
    drop(file);
    let component = trusted_code::load(&engine, &compiled).map_err(|e| format!("the compiled code is stale: {e:#}"))?;
    drop(compiled);
    Loaded::new(&component, init.entry_point.as_deref())
}

/// Scratch as every call finds it: empty, its times those of this call, and no number that tells of the call before.
struct Fresh {
    /// The number of a file that was made just before the call.
    inode: Option<u64>,
}

impl Fresh {
    fn make(scratch: &Path) -> io::Result<Fresh> {
        // A guest may set these to anything. (Nobody can set when they were set, which is now.)
        let now = SystemTime::now();
        let folder = File::open(scratch)?;
        folder.set_times(FileTimes::new().set_accessed(now).set_modified(now))?;
        // A tmpfs counts the files it makes, and their numbers show it. Other file systems are not ours alone, and
        // only tests without walls have one here.
        let counts = fstatfs(&folder).map_err(io::Error::from)?.filesystem_type() == TMPFS_MAGIC;
        Ok(Fresh { inode: if counts { Some(next_inode(scratch)?) } else { None } })
    }

    /// Whether nothing is left that a next call could read. In doubt: no.
    fn is_still(&self, scratch: &Path) -> bool {
        let empty = std::fs::read_dir(scratch).is_ok_and(|mut entries| entries.next().is_none());
        let none_made = self.inode.is_none_or(|before| next_inode(scratch).is_ok_and(|now| now == before + 1));
        empty && none_made
    }
}

/// The number of a file that has no name and is gone at once.
fn next_inode(scratch: &Path) -> io::Result<u64> {
    let nameless = OpenOptions::new().write(true).mode(0o600).custom_flags(nix::libc::O_TMPFILE).open(scratch)?;
    Ok(nameless.metadata()?.ino())
}
