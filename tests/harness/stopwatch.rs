//! How long something took, on a machine that others may use.

use std::fs;
use std::time::{Duration, Instant};

/// Counts the time in which every process of the machine that could run did. On an idle machine that
/// is all of it: there, as in `.ci/full`, a bound is strict.
pub struct Stopwatch {
    began: Instant,
    waited: Duration,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch {
            began: Instant::now(),
            waited: waited(),
        }
    }

    pub fn elapsed(&self) -> Duration {
        let waited = waited() - self.waited;
        self.began.elapsed().saturating_sub(waited)
    }
}

/// How long some process has waited for a processor: `total` of /proc/pressure/cpu, in µs (Linux,
/// accounting/psi.rst). A kernel without it lets nothing be subtracted.
fn waited() -> Duration {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = text
        .lines()
        .next()
        .and_then(|some| some.split_once("total="));
    Duration::from_micros(total.map_or(0, |(_, total)| total.parse().unwrap()))
}
