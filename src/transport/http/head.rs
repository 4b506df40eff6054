//! The bytes of a connection on their way to hyper, which reads a line feed alone as the end of a
//! line. A program before this server may read it in another way, so such a head is made unreadable
//! here, and hyper answers 400.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

const BUFFER_BYTES: usize = 8 * 1024;
const END_OF_HEAD: u32 = u32::from_be_bytes(*b"\r\n\r\n");

pub struct StrictHeads<S> {
    stream: S,
    buffer: Box<[u8]>,
    /// What hyper has not received yet.
    unread: Range<usize>,
    /// What is still to come of the body of the request that hyper has received, bytes.
    body: Arc<AtomicU64>,
    /// The last four bytes of the head that is being read.
    last: u32,
}

impl<S> StrictHeads<S> {
    /// `body` is set when a head was received, before more is read.
    pub fn new(stream: S, body: Arc<AtomicU64>) -> StrictHeads<S> {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        StrictHeads {
            stream,
            buffer,
            unread: 0..0,
            body,
            last: 0,
        }
    }
}

/// Spoils lines that end with a line feed alone. Returns the length of what belongs to this head.
fn check_lines(bytes: &mut [u8], last: &mut u32) -> usize {
    for (at, byte) in bytes.iter_mut().enumerate() {
        if *byte == b'\n' && *last & 0xff != u32::from(b'\r') {
            *byte = 0;
        }
        *last = *last << 8 | u32::from(*byte);
        if *last == END_OF_HEAD {
            return at + 1;
        }
    }
    bytes.len()
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictHeads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let StrictHeads {
            stream,
            buffer,
            unread,
            body,
            last,
        } = &mut *self;
        if unread.start == unread.end {
            let mut room = ReadBuf::new(buffer);
            ready!(Pin::new(stream).poll_read(cx, &mut room))?;
            *unread = 0..room.filled().len();
        }
        let next = &mut buffer[unread.start..unread.end.min(unread.start + to.remaining())];
        let left = body.load(Ordering::Relaxed);
        let taken = match usize::try_from(left).unwrap_or(usize::MAX).min(next.len()) {
            0 => check_lines(next, last),
            some => some,
        };
        body.store(left.saturating_sub(taken as u64), Ordering::Relaxed);
        to.put_slice(&next[..taken]);
        unread.start += taken;
        Poll::Ready(Ok(()))
    }
}
