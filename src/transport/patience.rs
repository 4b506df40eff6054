//! A stream that ends the connection of a slow reader.
//!
//! Writes fail if the other end took too little for too long. The time in which there is nothing to
//! write does not count.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A reader that delays writes must take at least `ENOUGH` bytes, or all there is, in this time.
const WINDOW: Duration = Duration::from_secs(30);
const ENOUGH: usize = 64 * 1024;

pub struct WriteTimeout<S> {
    stream: S,
    window: Duration,
    /// Set since a write had to wait: its timer, and the bytes that were taken meanwhile.
    pending_write: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> WriteTimeout<S> {
    pub fn new(stream: S) -> WriteTimeout<S> {
        WriteTimeout {
            stream,
            window: WINDOW,
            pending_write: None,
        }
    }

    fn wait<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let window = self.window;
        let (clock, _) = self
            .pending_write
            .get_or_insert_with(|| (Box::pin(tokio::time::sleep(window)), 0));
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match (&written, &mut self.pending_write) {
            (Poll::Pending, _) => self.wait(cx),
            (Poll::Ready(Ok(more)), Some((_, taken))) => {
                *taken += more;
                if *taken >= ENOUGH {
                    self.pending_write = None;
                }
                written
            }
            _ => written,
        }
    }

    /// The caller flushes once it has written all it has.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_pending() {
            return self.wait(cx);
        }
        self.pending_write = None;
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        if shut.is_pending() {
            self.wait(cx)
        } else {
            shut
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A megabyte for a reader that takes so many bytes each time.
    async fn written(at_once: usize) -> io::Result<()> {
        let (near, mut far) = tokio::io::duplex(at_once);
        let reader = tokio::spawn(async move {
            let mut some = vec![0; at_once];
            while far.read(&mut some).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut near = WriteTimeout {
            window: Duration::from_millis(500),
            ..WriteTimeout::new(near)
        };
        let written = near.write_all(&vec![0; 1024 * 1024]).await;
        reader.abort();
        written
    }

    #[tokio::test]
    async fn a_reader_that_drips_is_dropped_and_one_that_reads_is_not() {
        assert_eq!(
            written(1024).await.unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        written(32 * 1024).await.unwrap();
    }
}
