//! Worker: our own binary, behind the walls, serving one tool and one shape, one call at a time.
//!
//! For: the front door, which enters it when it is executed under the role `wasm-worker`.
//! In: orders on descriptor 0, compiled code on an inherited descriptor. Out: reports on descriptor 1.
//! Never: compiles, opens anything the host did not name, or goes on after an order that it did not expect.

use super::frame::{self, End, Init, Most, Order, Report};
use super::guest::Loaded;
use super::{cache, engine, trusted_code};
use crate::quantity::Limit;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::Duration;

/// Longest call, whatever the host says: u64 milliseconds could pass the end of the clock.
const LONGEST_CALL: Duration = Duration::from_secs(7 * 24 * 3600);

/// The whole life of a worker.
pub fn run() -> ExitCode {
    // Not through `io::stdout`, whose line buffer splits a frame at its last line break.
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
        Err(report) => return say(to, &report, &[]),
    };
    say(to, &Report::Ready, &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let input_bytes = init.limit(Limit::InputBytes);
    let most = Most { header: frame::MAX_HEADER_BYTES, payload: input_bytes };
    while let Some((order, input)) = frame::read(from, most)? {
        let Order::Call { id, timeout_ms, env } = order else { return Err(io::Error::other("init came twice")) };
        let done = loaded
            .call(&runtime, &init, &env, input, Duration::from_millis(timeout_ms).min(LONGEST_CALL))
            .map_err(|e| io::Error::other(format!("{e:#}")))?;
        let again = done.clean && matches!(done.end, End::Exit { .. } | End::Returned | End::Raised);
        let report = Report::Answer {
            id,
            end: done.end,
            output: done.output.len() as u64,
            cpu_ms: done.cpu_ms,
            peak_memory: done.peak_memory,
            clean: done.clean,
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

fn load(init: &Init) -> Result<Loaded, Report> {
    let engine = engine::running().map_err(|e| Report::Unable { message: frame::short(&format!("{e:#}")) })?;
    load_with(&engine, init).map_err(|message| Report::Refused { message: frame::short(&message) })
}

fn load_with(engine: &wasmtime::Engine, init: &Init) -> Result<Loaded, String> {
    let file =
        trusted_code::inherited(init.code_descriptor).map_err(|e| format!("no compiled code was handed over: {e}"))?;
    let length = init.code_bytes.min(cache::MAX_CODE_BYTES);
    let mut compiled = vec![0; usize::try_from(length).map_err(|_| "the compiled code is too large")?];
    file.read_exact_at(&mut compiled, init.code_offset).map_err(|e| format!("the compiled code is cut short: {e}"))?;
    drop(file);
    let component = trusted_code::load(engine, &compiled).map_err(|e| format!("the compiled code is stale: {e:#}"))?;
    drop(compiled);
    Loaded::new(&component, init)
}
