//! The deadlines of one call: preparing included, it ends within its limit and a second.

use crate::fault::{Fault, Kind};
use crate::quantity::OVERDUE;
use std::future::Future;
use std::time::{Duration, Instant};

/// What preparing may take without shortening the tool's own time.
const SPARE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    came: Instant,
    limit: Duration,
}

impl Clock {
    pub fn new(came: Instant, limit_ms: u64) -> Clock {
        Clock { came, limit: Duration::from_millis(limit_ms) }
    }

    /// The tool's own time, if it starts now: its limit, unless preparing took what there was to spare.
    pub fn left(&self) -> Duration {
        self.limit.min(self.until(SPARE))
    }

    /// When the host gives up on the call.
    pub fn overdue(&self) -> Duration {
        self.until(OVERDUE)
    }

    fn until(&self, beyond: Duration) -> Duration {
        self.limit.saturating_add(beyond).saturating_sub(self.came.elapsed())
    }

    /// One step of preparing. If it is not done in time, the step is dropped and the caller reads `under_way`.
    pub async fn prepare<T, E: From<Fault>>(
        &self,
        under_way: &str,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if self.until(SPARE).is_zero() {
            let message = "the time of the call was over before the tool could be started";
            return Err(Fault::new(Kind::TimeoutError, message).into());
        }
        let late = || Fault::new(Kind::TimeoutError, format!("{under_way}; try again")).retryable().into();
        tokio::time::timeout(self.until(SPARE), step).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_preparing_is_taken_from_the_tools_time() {
        let ago = |ms| Instant::now().checked_sub(Duration::from_millis(ms)).expect("up for longer");
        let left = |ms| Clock::new(ago(ms), 2000).left().as_millis();
        assert_eq!(left(0), 2000);
        assert_eq!(left(300), 2000);
        assert!((1..=1000).contains(&left(1500)), "{}", left(1500));
        assert_eq!(left(3000), 0);
        assert_eq!(Clock::new(Instant::now(), u64::MAX).left(), Duration::from_millis(u64::MAX));
    }
}
