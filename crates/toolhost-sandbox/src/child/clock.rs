//! The clock of a call.

use std::time::{Duration, Instant};

/// When a program must have ended.
#[derive(Clone, Copy)]
pub enum Clock {
    /// It serves calls, which have their own time.
    Endless,
    /// It waits for its call, with which its time begins.
    Waits,
    Until(Instant),
}

impl Clock {
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Clock::Until(deadline) => Some(deadline),
            Clock::Endless | Clock::Waits => None,
        }
    }

    /// This clock, after it stood still so long.
    pub fn later(self, by: Duration) -> Clock {
        match self {
            Clock::Until(deadline) => Clock::Until(deadline + by),
            Clock::Endless | Clock::Waits => self,
        }
    }
}
