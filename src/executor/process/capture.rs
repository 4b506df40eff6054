//! Capture: the three pipes of a call, fed and read without waiting for each other, and kept within the limits.

use super::launcher::nonblocking;
use crate::executor::log::Log;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Notify;

/// The host's ends.
pub struct Pipes {
    pub input: Sender,
    pub output: Receiver,
    pub log: Receiver,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Captured {
    pub output: Vec<u8>,
    /// All bytes that came, also those that were not kept.
    pub output_bytes: u64,
    /// The kept lines of stderr.
    pub logs: Vec<String>,
    /// stdout passed its limit.
    pub flooded: bool,
}

/// Three pipes: our ends, and the tool's as stdin, stdout, stderr.
pub fn pipes() -> io::Result<(Pipes, [OwnedFd; 3])> {
    let make = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from);
    let ((their_in, our_in), (our_out, their_out), (our_log, their_log)) = (make()?, make()?, make()?);
    for ours in [&our_in, &our_out, &our_log] {
        nonblocking(ours)?;
    }
    let pipes = Pipes {
        input: Sender::from_owned_fd(our_in)?,
        output: Receiver::from_owned_fd(our_out)?,
        log: Receiver::from_owned_fd(our_log)?,
    };
    Ok((pipes, [their_in, their_out, their_log]))
}

/// Runs until all three are closed. `over` is told when stdout passed its limit.
pub async fn run(pipes: Pipes, input: &[u8], most_output: u64, mut log: Log<'_>, over: &Notify) -> Captured {
    let Pipes { input: mut to, output: mut from, log: mut log_from } = pipes;
    let feed = async move {
        // A tool need not read its input: EPIPE is no fault.
        let _ = to.write_all(input).await;
    };
    let mut captured = Captured::default();
    let (output, total, flooded) = (&mut captured.output, &mut captured.output_bytes, &mut captured.flooded);
    let read = async {
        let mut buffer = vec![0u8; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            *total += length as u64;
            let room = usize::try_from(most_output).unwrap_or(usize::MAX).saturating_sub(output.len());
            output.extend_from_slice(&buffer[..length.min(room)]);
            if length > room && !*flooded {
                *flooded = true;
                over.notify_one();
            }
        }
    };
    let read_log = async {
        let mut buffer = vec![0u8; 16 * 1024];
        while let Ok(length @ 1..) = log_from.read(&mut buffer).await {
            log.push(&buffer[..length]);
        }
    };
    // The feeder may hang for ever on a tool that neither reads nor closes its input; the readers end with the tool.
    tokio::select! {
        biased;
        _ = async { tokio::join!(read, read_log) } => {}
        () = async { feed.await; std::future::pending().await } => {}
    }
    captured.logs = log.finish();
    captured
}
