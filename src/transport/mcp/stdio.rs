//! MCP over standard input and output, until the client leaves. A call does not outlive its client.

use super::face::Face;
use super::{Client, Mcp, frames};
use rmcp::ServiceExt;
use rmcp::service::QuitReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// How long we wait for the protocol to end after a signal.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a client that closed its end may read nothing of its answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often we look whether the client is still there.
const LOOK: Duration = Duration::from_millis(250);

/// Which of its ends the client has closed, as far as that can be told without reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct HungUp {
    pub input: bool,
    pub output: bool,
}

/// Serves until the client closes its end or `stop` is cancelled. Calls that still run are killed. `hung_up` is asked
/// now and then, since reading meets the end of the input only after everything before it.
pub async fn serve<R, W>(
    mcp: Arc<Mcp>,
    client: Client,
    input: R,
    output: W,
    stop: CancellationToken,
    hung_up: impl Fn() -> HungUp + Send + 'static,
) -> Result<(), String>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let closing = stop.child_token();
    let frames = frames::Frames::new(&mcp, client, input, output, closing.clone());
    let written = frames.written();
    let _ends = closing.clone().drop_guard();
    tokio::spawn(watch(hung_up, frames.standing(), written.clone(), closing.clone()));
    let face = Face::new(mcp, &closing);
    let running = tokio::select! {
        started = face.serve(frames) => match started {
            Ok(running) => running,
            // A client that closes before it said anything has not met an error.
            Err(_) if closing.is_cancelled() => return Ok(()),
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        },
        // `stop` cancels this too. A client that leaves during the handshake has asked for nothing yet.
        () = closing.cancelled() => return Ok(()),
    };
    let rmcp_stops = running.cancellation_token();
    let mut ended = std::pin::pin!(running.waiting());
    let ended = tokio::select! {
        ended = &mut ended => ended,
        () = stop.cancelled() => {
            // The calls see `closing` and are dropped, which kills them; the answers are not waited for.
            rmcp_stops.cancel();
            tokio::time::timeout(FAREWELL, ended).await.unwrap_or(Ok(QuitReason::Cancelled))
        }
        () = closing.cancelled() => loop {
            // The client closed its end. Answers are written as long as it reads them.
            let before = written.load(Ordering::Relaxed);
            match tokio::time::timeout(PATIENCE, &mut ended).await {
                Ok(ended) => break ended,
                Err(_) if written.load(Ordering::Relaxed) == before => {
                    return Err("the client left an answer unread".to_owned());
                }
                Err(_) => {}
            }
        },
    };
    ended.map(|_| ()).map_err(|error| error.to_string())
}

/// Ends the connection where reading does not meet its end: nobody can be answered, or the client's input is closed
/// and nothing is read or written any more.
async fn watch(
    hung_up: impl Fn() -> HungUp,
    standing: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    closing: CancellationToken,
) {
    let mut before = usize::MAX;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = closing.cancelled() => return,
        }
        let HungUp { input, output } = hung_up();
        let now = written.load(Ordering::Relaxed);
        // A client that closed its input and still reads answers has all of its requests taken in first.
        let still = standing.load(Ordering::Relaxed) && now == before;
        if output || (input && still) {
            tokio::time::sleep(if output { Duration::ZERO } else { frames::GRACE }).await;
            return closing.cancel();
        }
        before = now;
    }
}
