//! One TCP connection, which is reset when it is dropped before it was shut down, and the meter of
//! a call's bytes.

use crate::base::{mask, text};
use crate::manifest::host::{Host, HostPattern};
use crate::quantity::Limit;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Buffer of each direction where bytes are copied, bytes.
pub const BUFFER: usize = 64 * 1024;
/// Most of a tool's text in a message, bytes.
const QUOTED: usize = 80;

/// A tool's text for a message: printable and short.
pub fn quoted(bytes: &[u8]) -> String {
    text::printable(&mask::head(&String::from_utf8_lossy(bytes), QUOTED))
}

/// `name:port`, `address:port`.
pub fn target(host: &Host, port: u16) -> String {
    HostPattern {
        host: host.clone(),
        port: Some(port),
    }
    .to_string()
}

/// The bytes that a call sent to hosts and got from them, and the limit that it exceeded.
#[derive(Debug)]
pub struct TrafficMeter {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    sent_limit: u64,
    received_limit: u64,
    exceeded: OnceLock<Limit>,
    changed: Notify,
}

impl TrafficMeter {
    pub fn new(sent_limit: u64, received_limit: u64) -> TrafficMeter {
        let (sent, received, exceeded, changed) = Default::default();
        TrafficMeter {
            sent,
            received,
            sent_limit,
            received_limit,
            exceeded,
            changed,
        }
    }

    pub fn exceed(&self, limit: Limit) {
        if self.exceeded.set(limit).is_ok() {
            self.changed.notify_one();
        }
    }

    pub fn exceeded(&self) -> Option<Limit> {
        self.exceeded.get().copied()
    }

    /// Returns once, when a limit is exceeded.
    pub async fn limit_exceeded(&self) {
        self.changed.notified().await;
    }
}

/// A connection whose bytes are counted.
pub struct MeteredStream {
    socket: TcpStream,
    /// Set for the connection to a host.
    meter: Option<Arc<TrafficMeter>>,
}

/// Sets whether closing this socket resets the connection and drops what was not sent yet
/// (SO_LINGER 0, socket(7)).
pub fn reset_on_close(socket: &impl AsFd, reset: bool) -> io::Result<()> {
    setsockopt(
        socket,
        sockopt::Linger,
        &linger {
            l_onoff: i32::from(reset),
            l_linger: 0,
        },
    )?;
    Ok(())
}

impl MeteredStream {
    pub fn new(socket: TcpStream, meter: Option<Arc<TrafficMeter>>) -> io::Result<MeteredStream> {
        reset_on_close(&socket, true)?;
        Ok(MeteredStream { socket, meter })
    }

    /// Waits for data from the other end. True: it closed its half instead.
    pub async fn ended(&self) -> bool {
        !matches!(self.socket.peek(&mut [0]).await, Ok(1..))
    }

    /// The address that the other end connected to.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip().to_canonical())
    }
}

fn limit_exceeded() -> io::Error {
    io::ErrorKind::QuotaExceeded.into()
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let bytes = (buffer.filled().len() - before) as u64;
        if let Some(meter) = &self.meter
            && meter.received.fetch_add(bytes, Relaxed) + bytes > meter.received_limit
        {
            meter.exceed(Limit::ReceivedBytes);
            buffer.set_filled(before);
            return Poll::Ready(Err(limit_exceeded()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let left = self.meter.as_ref().map_or(u64::MAX, |meter| {
            meter.sent_limit.saturating_sub(meter.sent.load(Relaxed))
        });
        let most = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if most == 0 && !bytes.is_empty() {
            self.meter
                .iter()
                .for_each(|meter| meter.exceed(Limit::SentBytes));
            return Poll::Ready(Err(limit_exceeded()));
        }
        let sent = ready!(Pin::new(&mut self.socket).poll_write(cx, &bytes[..most]))?;
        self.meter
            .iter()
            .for_each(|meter| _ = meter.sent.fetch_add(sent as u64, Relaxed));
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
