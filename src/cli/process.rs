//! This process: the threads it runs on, and the signals that end it.

use super::refusal::{Exit, Refusal};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long the runtime's threads may take to end.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// The runtime for one client, or one call: single-threaded, so that no answer waits for a thread to
/// wake.
pub fn single_threaded_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    built.map_err(|e| {
        Refusal::new(Exit::Host, format!("the async runtime cannot be made: {e}")).into()
    })
}

/// Calls that code makes are polled inside the call that makes them, four deep: as much as the main
/// thread usually has.
const STACK_BYTES: usize = 8 << 20;

pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    // tokio panics if no thread can be made.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let built = std::panic::catch_unwind(|| {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(STACK_BYTES)
            .build()
    });
    std::panic::set_hook(hook);
    let built = built.unwrap_or_else(|_| {
        Err(std::io::Error::other(
            "this user has too many threads: raise `ulimit -u`",
        ))
    });
    built.map_err(|e| Refusal::new(Exit::Host, format!("no threads can be started: {e}")).into())
}

/// Waits for INT, TERM or HUP; the exit code says which.
pub async fn wait_for_stop() -> ExitCode {
    tokio::select! {
        code = wait_for_termination() => code,
        () = wait_for_signal(SignalKind::hangup()) => ExitCode::from(129),
    }
}

/// Does the work until it ends or a signal stops it. `Err`: the exit code for the signal.
pub async fn unless_stopped<T>(work: impl Future<Output = T>) -> Result<T, ExitCode> {
    tokio::select! {
        done = work => Ok(done),
        signal = wait_for_stop() => Err(signal),
    }
}

/// Reads input in a thread of its own: a read may never end, and signals must still be handled.
pub async fn apart<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, input) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .spawn(move || sender.send(read()).map_err(drop))
        .map_err(|e| {
            Refusal::new(
                Exit::Host,
                format!("no thread to read the input: {e}; raise `ulimit -u`"),
            )
        })?;
    input.await?
}

/// Waits for INT or TERM; the exit code says which.
pub async fn wait_for_termination() -> ExitCode {
    tokio::select! {
        () = wait_for_signal(SignalKind::interrupt()) => ExitCode::from(130),
        () = wait_for_signal(SignalKind::terminate()) => ExitCode::from(143),
    }
}

async fn wait_for_signal(kind: SignalKind) {
    match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}
