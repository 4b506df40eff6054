//! Sinks: where a guest's stdout and stderr end.
//!
//! For: the guest. In: what it writes. Out: at most the bytes that are allowed. Never: blocks, or
//! reaches a descriptor of the worker.

use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// What a guest may hand over in one write.
const CHUNK: usize = 64 * 1024;

/// Something that takes bytes until it must refuse.
pub trait Sink: Send + 'static {
    /// `false` ends the call.
    fn take(&mut self, bytes: &[u8]) -> bool;
}

/// The answer: all of it, or the call is over its limit.
pub struct Whole {
    pub bytes: Vec<u8>,
    pub over: bool,
    cap: usize,
}

impl Whole {
    pub fn new(cap: usize) -> Whole {
        Whole { bytes: Vec::new(), over: false, cap }
    }
}

impl Sink for Whole {
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.over = self.over || bytes.len() > self.cap.saturating_sub(self.bytes.len());
        if !self.over {
            self.bytes.extend_from_slice(bytes);
        }
        !self.over
    }
}

/// The log: its beginning and its end; a flood loses only its middle.
pub struct Ends {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    lost: u64,
    half: usize,
}

impl Ends {
    pub fn new(cap: usize) -> Ends {
        Ends { head: Vec::new(), tail: VecDeque::new(), lost: 0, half: cap / 2 }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.lost > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes cut …]\n", self.lost).as_bytes());
        }
        bytes.extend(self.tail);
        bytes
    }
}

impl Sink for Ends {
    fn take(&mut self, bytes: &[u8]) -> bool {
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let skip = rest.len().saturating_sub(self.half);
        self.tail.extend(rest.iter().skip(skip));
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.lost += (skip + over) as u64;
        true
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

impl<S: Sink> Shared<S> {
    fn put(&self, bytes: &[u8]) -> Result<(), &'static str> {
        if self.lock().take(bytes) { Ok(()) } else { Err("the output limit is reached") }
    }
}

impl<S: Sink> IsTerminal for Shared<S> {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl<S: Sink> StdoutStream for Shared<S> {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
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
        self.put(&bytes).map_err(StreamError::trap)
    }
    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }
    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}

impl<S: Sink> AsyncWrite for Shared<S> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.put(bytes).map(|()| bytes.len()).map_err(io::Error::other))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooded_log_keeps_both_ends() {
        let mut log = Ends::new(8);
        for _ in 0..100 {
            log.take(b"abcdefg");
        }
        log.take(b"the end");
        let text = String::from_utf8(log.into_bytes()).expect("text");
        assert_eq!(text, "abcd\n[… 699 bytes cut …]\n end");
    }

    #[test]
    fn an_answer_is_whole_or_over() {
        let mut out = Whole::new(4);
        assert!(out.take(b"1234"));
        assert!(!out.take(b"5"));
        assert!(out.over);
        assert_eq!(out.bytes, b"1234");
    }
}
