//! Sinks: where a guest's stdout and stderr end.
//!
//! For: the guest. In: what it writes. Out: the output, at most as long as is allowed, of a stream line by line; the
//! log, sent on line by line.
//! Never: reaches a descriptor of the worker.

use super::frame::{self, MAX_LOG_PIECE, Report};
use crate::executor::stdout::MARK;
use bytes::Bytes;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// What a guest may hand over in one write.
const CHUNK: usize = (MAX_LOG_PIECE / 2) as usize;

/// Something that takes bytes until it must refuse. An error ends the call.
pub trait Sink: Send + 'static {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()>;
}

type ToHost = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

/// The answer: all of it, or the call is over its limit.
pub struct Whole {
    pub bytes: Vec<u8>,
    pub over: bool,
    cap: u64,
    /// Bytes that were sent on.
    sent: u64,
    /// Takes lines of a stream as they come.
    lines: Option<ToHost>,
}

impl Whole {
    pub fn new(cap: u64) -> Whole {
        Whole { bytes: Vec::new(), over: false, cap, sent: 0, lines: None }
    }

    /// The same, which hands on the lines of a stream, if it is one, and whatever lines come behind them.
    pub fn sending(cap: u64, lines: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Whole {
        Whole { lines: Some(Box::new(lines)), ..Whole::new(cap) }
    }
}

impl Sink for Whole {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.over = self.over || self.sent + (self.bytes.len() + bytes.len()) as u64 > self.cap;
        if self.over {
            return Err(io::Error::other("the output limit is reached"));
        }
        self.bytes.extend_from_slice(bytes);
        let streams = self.sent > 0 || self.bytes.starts_with(MARK);
        if let (Some(lines), true, true) = (&mut self.lines, streams, bytes.contains(&b'\n'))
            && let Some(last) = self.bytes.iter().rposition(|byte| *byte == b'\n')
        {
            self.bytes[..=last].chunks(CHUNK).try_for_each(lines)?;
            self.sent += last as u64 + 1;
            self.bytes.drain(..=last);
        }
        Ok(())
    }
}

/// The log: sent to the host with each line break, so that a line is seen while the guest runs.
pub struct Lines<W> {
    to: W,
    pending: Vec<u8>,
}

impl<W: Write> Lines<W> {
    pub fn new(to: W) -> Lines<W> {
        Lines { to, pending: Vec::new() }
    }

    /// Sends something else at once.
    pub fn tell(&mut self, report: &Report) -> io::Result<()> {
        self.to.write_all(&frame::encode(report, &[])?)
    }

    /// Sends a piece of the output at once.
    pub fn output(&mut self, piece: &[u8]) -> io::Result<()> {
        self.to.write_all(&frame::encode(&Report::Output, piece)?)
    }

    /// Sends what has no line break yet, too.
    pub fn send(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.to.write_all(&frame::encode(&Report::Log, &self.pending)?)?;
            self.pending.clear();
        }
        Ok(())
    }
}

impl<W: Write + Send + 'static> Sink for Lines<W> {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(CHUNK).try_for_each(|piece| {
            self.pending.extend_from_slice(piece);
            if piece.contains(&b'\n') || self.pending.len() >= CHUNK { self.send() } else { Ok(()) }
        })
    }
}

/// One sink, shared between the streams of a guest and the worker.
pub struct Shared<S>(Arc<Mutex<S>>);

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<S> Shared<S> {
    pub fn new(sink: S) -> Shared<S> {
        Shared(Arc::new(Mutex::new(sink)))
    }
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Sink> IsTerminal for Shared<S> {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl<S: Sink> StdoutStream for Shared<S> {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        unimplemented!("only WASI 0.3 asks for this, and its functions are not linked")
    }
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl<S: Sink> Pollable for Shared<S> {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl<S: Sink> OutputStream for Shared<S> {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.lock().take(&bytes).map_err(|e| StreamError::trap(&e.to_string()))
    }
    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }
    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_over() {
        let mut out = Whole::new(4);
        assert!(out.take(b"1234").is_ok());
        assert!(out.take(b"5").is_err());
        assert!(out.over);
        assert_eq!(out.bytes, b"1234");
    }

    #[test]
    fn lines_of_a_stream_are_handed_on_and_nothing_else_is() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let to = sent.clone();
        let mut out = Whole::sending(90, move |piece| {
            to.lock().unwrap().push(String::from_utf8_lossy(piece).into_owned());
            Ok(())
        });
        for piece in ["@toolhost {\"chunk\"", ": 1}\n@toolhost {", "\"chunk\": 2}\n", "{\n}"] {
            out.take(piece.as_bytes()).unwrap();
        }
        assert_eq!(*sent.lock().unwrap(), ["@toolhost {\"chunk\": 1}\n", "@toolhost {\"chunk\": 2}\n", "{\n"]);
        assert_eq!(out.bytes, b"}");
        assert!(out.take(&[b'x'; 60]).is_err() && out.over, "all bytes count");
        let mut plain = Whole::sending(90, |_| panic!("this is no stream"));
        plain.take(b"{\n\n}\n@toolhost {}\n").unwrap();
    }

    #[test]
    fn log_goes_out_with_each_line_and_in_bounded_pieces() {
        let most = frame::Most { head: 100, payload: MAX_LOG_PIECE };
        let mut log = Lines::new(Vec::new());
        let mut written = |bytes: &[u8]| -> Vec<Vec<u8>> {
            log.take(bytes).expect("taken");
            let sent = std::mem::take(&mut log.to);
            let mut from = sent.as_slice();
            std::iter::from_fn(|| frame::read::<Report>(&mut from, most).expect("a frame"))
                .map(|(_, log)| log)
                .collect()
        };
        assert!(written(b"half a ").is_empty());
        assert_eq!(written(b"line\nmore"), [b"half a line\nmore"]);
        assert_eq!(written(&[b'x'; 5 * CHUNK]).iter().map(Vec::len).sum::<usize>(), 5 * CHUNK);
    }
}
