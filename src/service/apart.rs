//! Work that may take long: apart from the threads that serve all calls, and within the clock of its own.
//!
//! For: the road. In: work, whether it is long, when the call ends. Out: what it gave, or a `TimeoutError`.
//! Never: makes short work pay; lets long work of many calls take every core.

use super::format;
use crate::executor::Ending;
use crate::fault::{Fault, Kind};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Half of the cores; the other half stays with the calls that are quick.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new((cores / 2).max(1)))
});

/// When a call is over, and the limit that says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub began: Instant,
    pub limit: Duration,
}

impl Until {
    /// Does the work. Where the clock ends first nobody waits for it any longer; it ends by its own bound.
    pub async fn run<T: Send + 'static>(
        self,
        long: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        if !long {
            return Ok(work());
        }
        let apart = async {
            let place = PLACES.clone().acquire_owned().await;
            // Its place is taken until it is over, also where nobody waits.
            tokio::task::spawn_blocking(move || (work(), place).0).await
        };
        match tokio::time::timeout(self.limit.saturating_sub(self.began.elapsed()), apart).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Fault::new(Kind::InternalError, "This host is shutting down.").retryable()),
            },
            Err(_) => {
                let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
                Err(format::judge(Ending::TimedOut { limit_ms }, &[], &[]).err().unwrap_or_else(format::cancelled))
            }
        }
    }
}
