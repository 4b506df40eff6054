//! The worker process (role `wasm-worker`): one tool, one shape, one call at a time, behind the walls.
//!
//! Orders come on descriptor 0, compiled code on an inherited descriptor, reports leave on descriptor 1. An unexpected
//! order ends it.

use super::call::Loaded;
use super::frame::{self, FrameLimits, Init, Order, Report};
use super::{cache, engine, trusted_code};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The whole life of a worker.
pub fn serve() -> io::Result<()> {
    // Not through `io::stdout`, whose line buffer splits a frame at its last line break.
    let from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let to = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    answer(&mut BufReader::new(from), Arc::new(to))
}

fn answer(from: &mut impl BufRead, mut to: Arc<File>) -> io::Result<()> {
    let Some((Order::Init(init), _)) = frame::read(from, FrameLimits::from_host(0))? else {
        return Err(io::Error::other("the first order was not init"));
    };
    let loaded = match load(init) {
        Ok(loaded) => loaded,
        Err(report) => return to.write_all(&frame::encode(&report, &[])?),
    };
    to.write_all(&frame::encode(&Report::Ready, &[])?)?;
    while let Some((order, input)) = frame::read(from, FrameLimits::from_host(loaded.input_bytes()))? {
        let Order::Call { id, timeout_ms, env } = order else { return Err(io::Error::other("init came twice")) };
        let (answer, output) = loaded
            .call(id, &env, input, Duration::from_millis(timeout_ms), Arc::clone(&to))
            .map_err(|e| io::Error::other(format!("{e:#}")))?;
        let again = answer.is_fit();
        to.write_all(&frame::encode(&Report::Answer(answer), &output)?)?;
        if !again {
            return Ok(());
        }
    }
    Ok(())
}

fn load(init: Init) -> Result<Loaded, Report> {
    let engine = engine::running().map_err(|e| Report::Unable { message: frame::short(&format!("{e:#}")) })?;
    load_with(&engine, init).map_err(|message| Report::Refused { message: frame::short(&message) })
}

fn load_with(engine: &wasmtime::Engine, init: Init) -> Result<Loaded, String> {
    let compiled = trusted_code::read(&init.code, cache::MAX_CODE_BYTES)
        .map_err(|e| format!("the compiled code cannot be read: {e}"))?;
    let component = trusted_code::load(engine, &compiled).map_err(|e| format!("the compiled code is stale: {e:#}"))?;
    drop(compiled);
    Loaded::new(&component, init)
}
