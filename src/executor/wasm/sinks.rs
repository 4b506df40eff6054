//! Where a guest's stdout and stderr go: to the host, in frames. Neither reaches a descriptor of the worker.

use super::frame::{MAX_LOG_PIECE, Report, ToHost};
use crate::base::lock;
use crate::executor::output::MARK;
use bytes::Bytes;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// What a guest may hand over in one write.
const CHUNK: usize = (MAX_LOG_PIECE / 2) as usize;

/// One output of a guest. Clones are the same output.
#[derive(Clone)]
pub struct Sink(Arc<Mutex<SinkState>>);

struct SinkState {
    to: ToHost,
    /// Sent with each line break, so that a line is seen while the guest runs. Else only the lines of a stream are
    /// sent, and whatever lines follow them.
    is_log: bool,
    pending: Vec<u8>,
    sent: u64,
    max_bytes: u64,
    is_over: bool,
}

impl Sink {
    pub fn log(to: &ToHost) -> Sink {
        Sink::new(to, true, u64::MAX)
    }

    /// The answer. More than `max_bytes` end the call.
    pub fn answer(to: &ToHost, max_bytes: u64) -> Sink {
        Sink::new(to, false, max_bytes)
    }

    fn new(to: &ToHost, is_log: bool, max_bytes: u64) -> Sink {
        let (to, pending) = (to.clone(), Vec::new());
        Sink(Arc::new(Mutex::new(SinkState { to, is_log, pending, sent: 0, max_bytes, is_over: false })))
    }

    /// Takes bytes. An error ends the call.
    pub fn take(&self, bytes: &[u8]) -> io::Result<()> {
        let own = &mut *lock(&self.0);
        own.is_over |= own.sent + (own.pending.len() + bytes.len()) as u64 > own.max_bytes;
        if own.is_over {
            return Err(io::Error::other("the output limit is reached"));
        }
        own.pending.extend_from_slice(bytes);
        let has_line = bytes.contains(&b'\n');
        let is_stream = own.sent > 0 || own.pending.starts_with(MARK);
        let length = match own.is_log {
            true if has_line || own.pending.len() >= CHUNK => own.pending.len(),
            false if has_line && is_stream => {
                own.pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
            }
            _ => 0,
        };
        own.send(length)
    }

    /// Sends what has no line break yet, too.
    pub fn flush(&self) -> io::Result<()> {
        let own = &mut *lock(&self.0);
        own.send(own.pending.len())
    }

    /// What was not sent, and whether the limit was passed.
    pub fn finish(&self) -> (Vec<u8>, bool) {
        let own = &mut *lock(&self.0);
        (std::mem::take(&mut own.pending), own.is_over)
    }
}

impl SinkState {
    fn send(&mut self, length: usize) -> io::Result<()> {
        let report = if self.is_log { Report::Log } else { Report::Output };
        self.pending[..length].chunks(CHUNK).try_for_each(|piece| self.to.send(&report, piece))?;
        self.pending.drain(..length);
        self.sent += length as u64;
        Ok(())
    }
}

impl IsTerminal for Sink {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Sink {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        unimplemented!("only WASI 0.3 asks for this, and its functions are not linked")
    }
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Sink {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Sink {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes).map_err(|e| StreamError::trap(&e.to_string()))
    }
    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }
    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}
