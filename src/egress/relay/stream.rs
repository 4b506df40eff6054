//! One TCP connection, which is reset when it is dropped before it was shut down, and whose bytes are counted.

use super::call::Call;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Buffer of each direction where bytes are copied, bytes.
pub const BUFFER: usize = 64 * 1024;

pub struct Stream {
    socket: TcpStream,
    /// The call that an upstream's bytes are counted for.
    counted: Option<Arc<Call>>,
}

/// Whether closing this socket resets the connection and drops what was not sent yet (SO_LINGER 0, socket(7)).
pub fn reset_on_close(socket: &impl AsFd, reset: bool) -> io::Result<()> {
    setsockopt(socket, sockopt::Linger, &linger { l_onoff: i32::from(reset), l_linger: 0 })?;
    Ok(())
}

impl Stream {
    /// The tool's end of a connection.
    pub fn of_tool(socket: TcpStream) -> io::Result<Stream> {
        Stream::new(socket, None)
    }

    pub fn of_upstream(socket: TcpStream, call: Arc<Call>) -> io::Result<Stream> {
        Stream::new(socket, Some(call))
    }

    fn new(socket: TcpStream, counted: Option<Arc<Call>>) -> io::Result<Stream> {
        reset_on_close(&socket, true)?;
        Ok(Stream { socket, counted })
    }

    /// Returns when the other end closed its half; never where it sent more.
    pub async fn closed(&self) {
        if !self.ended().await {
            std::future::pending().await
        }
    }

    /// Waits for more from the other end; whether there is none.
    pub async fn ended(&self) -> bool {
        !matches!(self.socket.peek(&mut [0]).await, Ok(1..))
    }

    /// The address that the other end connected to.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip().to_canonical())
    }
}

fn limit_passed() -> io::Error {
    io::ErrorKind::QuotaExceeded.into()
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let bytes = buffer.filled().len() - before;
        match &self.counted {
            Some(call) if !call.received(bytes) => {
                buffer.set_filled(before);
                Poll::Ready(Err(limit_passed()))
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let most = self.counted.as_ref().map_or(bytes.len(), |call| call.may_send(bytes.len()));
        if most == 0 && !bytes.is_empty() {
            return Poll::Ready(Err(limit_passed()));
        }
        let sent = ready!(Pin::new(&mut self.socket).poll_write(cx, &bytes[..most]))?;
        self.counted.iter().for_each(|call| call.sent(sent));
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// What was sent before still arrives, so the end of the connection is not a reset any more.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        Poll::Ready(reset_on_close(&self.socket, false))
    }
}
