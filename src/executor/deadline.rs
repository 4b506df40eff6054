//! Runs work that may take long on threads of its own, within the time limit of its call. Long work
//! gets at most half of the cores.
//!
//! The time of a call counts from the last decision (after the last wait), and includes preparing.
//! If a launcher, worker, compiler or slot is not ready in time, the call is a `TimeoutError` that
//! may be tried again. (`toolhost call` first waits for its compiler, and says so, because the
//! compiler would end with the process.) Not included: publishing staged files of a call that
//! succeeded, bounded by `scratchBytes`; storing what it left, bounded by `artifactBytes`; counting
//! the files in live write trees (for WASI tools at most a second more). Code of a session that
//! goes on 2 s after it was interrupted is killed with its session, whatever it did to its pipes.
//!
//! A call that meets a file system that does not answer ends at its limit. The kernel cannot always
//! kill a process that waits there: it, its launcher and its id are released when the file system
//! answers or is unmounted.

use super::pauses::Pauses;
use crate::base::semaphore::FairSemaphore;
use crate::fault::{Fault, Kind};
use crate::quantity::Limit;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// How many threads wait for the files of one tool: a file system that does not answer blocks that
/// many, and no more.
static FILES: LazyLock<Arc<FairSemaphore>> = LazyLock::new(|| FairSemaphore::new(usize::MAX, 4));

/// Half of the cores; the other half is left to quick calls. Principals take turns.
static SEMAPHORE: LazyLock<Arc<FairSemaphore>> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    FairSemaphore::new((cores / 2).max(1), usize::MAX)
});

#[derive(Clone, Debug)]
pub struct CallDeadline {
    pub began: Instant,
    pub limit: Duration,
    pub principal: Arc<str>,
    pub pauses: Arc<Pauses>,
}

impl CallDeadline {
    /// The deadline while the limit of a call is not known yet.
    pub fn usual(principal: &str, asked_ms: Option<u64>) -> CallDeadline {
        let usual = Limit::TimeoutMs.built_in_default();
        let limit = Duration::from_millis(asked_ms.unwrap_or(usual).min(usual));
        CallDeadline {
            began: Instant::now(),
            limit,
            principal: principal.into(),
            pauses: Arc::default(),
        }
    }

    /// The time of the call so far, without that in which it stood still.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.pauses.lasted())
    }

    /// What is left of the time of the call.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.elapsed())
    }

    /// Does the work, on another thread if it is `long`. The time limit ends only the wait: long
    /// work goes on.
    pub async fn run<T: Send + 'static>(
        &self,
        long: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        if long {
            self.run_apart(&SEMAPHORE, &self.principal, work).await
        } else {
            Ok(work())
        }
    }

    /// Does work that opens files of a tool, which can lie on a file system that does not answer.
    pub async fn run_on_files<T: Send + 'static>(
        &self,
        tool: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        self.run_apart(&FILES, tool, work).await
    }

    /// Does the work on another thread, of which each key of the semaphore has some. The time limit
    /// ends only the wait.
    pub async fn run_apart<T: Send + 'static>(
        &self,
        semaphore: &Arc<FairSemaphore>,
        key: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(self.left(), semaphore.run(key, work)).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => {
                    Err(Fault::new(Kind::InternalError, "This host is shutting down.").retryable())
                }
            },
            Err(_) => {
                let limit_ms = self.limit.as_millis();
                let late = Fault::new(Kind::TimeoutError, "Script execution timed out.");
                Err(late.details(format!("The limit timeoutMs was {limit_ms} ms.")))
            }
        }
    }
}
