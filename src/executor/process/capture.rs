//! The three pipes of a call, fed and read without waiting for each other, and kept within the limits.

use super::launcher::nonblocking;
use crate::executor::output::{Log, Output, OutputReader};
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
    pub output: Output,
    /// The kept lines of stderr.
    pub logs: Vec<String>,
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

/// Runs until all three are closed. `over` is told when stdout passed its limit, or brought a line that cannot be read.
/// A part of a stream that finds no room is waited for, and the tool, whose pipe is full then, waits with it.
pub async fn run(
    pipes: Pipes,
    input: &[u8],
    mut stdout: OutputReader<'_>,
    mut log: Log<'_>,
    over: &Notify,
) -> Captured {
    let Pipes { input: mut to, output: mut from, log: mut log_from } = pipes;
    let feed = async move {
        // A tool need not read its input: EPIPE is no fault.
        let _ = to.write_all(input).await;
    };
    let read = async {
        let mut buffer = vec![0u8; 64 * 1024];
        let mut told = false;
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if stdout.push(&buffer[..length]).await && !std::mem::replace(&mut told, true) {
                over.notify_one();
            }
        }
        stdout.close().await;
        stdout.finish()
    };
    let read_log = async {
        let mut buffer = vec![0u8; 16 * 1024];
        while let Ok(length @ 1..) = log_from.read(&mut buffer).await {
            log.push(&buffer[..length]);
        }
    };
    // The feeder may hang for ever on a tool that neither reads nor closes its input; the readers end with the tool.
    let output = tokio::select! {
        biased;
        (output, ()) = async { tokio::join!(read, read_log) } => output,
        output = async { feed.await; std::future::pending().await } => output,
    };
    Captured { output, logs: log.finish() }
}
