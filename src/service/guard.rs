//! The guard: how many calls run at once, and how many may wait for their turn (P28).
//!
//! For: the road. In: nothing. Out: a turn, or a retryable `RateLimitError`. Never: an unbounded queue.

use crate::fault;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that run at once unless the settings say otherwise.
pub const RUNNING: usize = 64;
/// Calls that may wait behind them.
pub const WAITING: usize = 1024;

#[derive(Debug)]
pub struct Guard {
    running: Arc<Semaphore>,
    admitted: Arc<Semaphore>,
}

/// Held while a call runs; dropping it lets the next one in.
#[derive(Debug)]
pub struct Turn {
    _running: OwnedSemaphorePermit,
    _admitted: OwnedSemaphorePermit,
}

impl Guard {
    pub fn new(running: usize, waiting: usize) -> Guard {
        let running = running.clamp(1, Semaphore::MAX_PERMITS / 4);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 4);
        Guard { running: Arc::new(Semaphore::new(running)), admitted: Arc::new(Semaphore::new(running + waiting)) }
    }

    /// Waits for a turn, in order; refuses at once where too many wait already.
    pub async fn enter(&self) -> Result<Turn, fault::Fault> {
        let admitted = self.admitted.clone().try_acquire_owned().map_err(|_| {
            fault::Fault::new(fault::Kind::RateLimitError, "Too many calls are waiting in this host.").retryable()
        })?;
        let running =
            self.running.clone().acquire_owned().await.map_err(|_| {
                fault::Fault::new(fault::Kind::InternalError, "This host is shutting down.").retryable()
            })?;
        Ok(Turn { _running: running, _admitted: admitted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn one_runs_one_waits_the_third_is_refused() {
        let guard = Arc::new(Guard::new(1, 1));
        let first = guard.enter().await.unwrap();
        let waiting = tokio::spawn({
            let guard = guard.clone();
            async move { guard.enter().await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let third = guard.enter().await.expect_err("no room");
        assert!(third.kind == fault::Kind::RateLimitError && third.retryable);
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
    }
}
