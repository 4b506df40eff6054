//! Metrics: how the calls of each tool ended, and how long they took.
//!
//! For: operators. In: each call, when it begins and how it ends. Out: Prometheus text. Never: a name that a caller made
//! up: what is no tool counts as one, whatever it was called.

use super::{Caller, Phase, Service};
use crate::base::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Upper bounds of the times that are told apart, milliseconds.
const BOUNDS: [u64; 9] = [10, 25, 50, 100, 250, 1000, 5000, 30_000, 300_000];
/// The tool of calls that name none.
const NONE: &str = "none";

#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<BTreeMap<String, Tool>>);

/// The calls of one tool.
#[derive(Debug, Default)]
struct Tool {
    outcomes: BTreeMap<String, u64>,
    within: [u64; BOUNDS.len()],
    calls: u64,
    took: Duration,
}

/// One call. Dropped without an outcome, it was cancelled.
pub(super) struct Measured<'s> {
    service: &'s Service,
    tool: String,
    began: Instant,
    pub outcome: String,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let mut tools = lock(&self.service.metrics.0);
        let tool = tools.entry(std::mem::take(&mut self.tool)).or_default();
        *tool.outcomes.entry(std::mem::take(&mut self.outcome)).or_default() += 1;
        (tool.calls, tool.took) = (tool.calls + 1, tool.took + took);
        let within = BOUNDS.iter().zip(&mut tool.within);
        within.filter(|(bound, _)| took <= Duration::from_millis(**bound)).for_each(|(_, count)| *count += 1);
    }
}

impl Service {
    /// `asked`: `id` or `id@range`.
    pub(super) fn measured(&self, asked: &str) -> Measured<'_> {
        let id = asked.split('@').next().unwrap_or_default();
        let known = !self.registry().snapshot().versions(id).is_empty();
        let outcome = crate::fault::Kind::CancelledError.to_string();
        Measured { service: self, tool: if known { id } else { NONE }.to_owned(), began: Instant::now(), outcome }
    }

    /// All of them, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let open = self.calls(&Caller::operator(""));
        let running = open.iter().filter(|call| call.phase == Phase::Running).count();
        let waiting = open.iter().filter(|call| call.phase == Phase::Waiting).count();
        let mut out = String::new();
        let mut gauge = |name: &str, what: &str, value: usize| {
            let _ = writeln!(out, "# HELP {name} {what}\n# TYPE {name} gauge\n{name} {value}");
        };
        gauge("toolhost_calls_running", "Calls whose tool runs.", running);
        gauge("toolhost_calls_waiting", "Calls that wait for a turn, or are being prepared.", waiting);
        let tools = lock(&self.metrics.0);
        out.push_str(
            "# HELP toolhost_calls_total Calls that ended, by tool and outcome.\n# TYPE toolhost_calls_total counter\n",
        );
        for (id, tool) in tools.iter() {
            for (outcome, count) in &tool.outcomes {
                let _ = writeln!(out, "toolhost_calls_total{{tool=\"{id}\",outcome=\"{outcome}\"}} {count}");
            }
        }
        let name = "toolhost_call_duration_seconds";
        let _ = writeln!(out, "# HELP {name} Time from a call's coming to its end.\n# TYPE {name} histogram");
        for (id, tool) in tools.iter() {
            for (bound, count) in BOUNDS.iter().zip(tool.within) {
                let seconds = Duration::from_millis(*bound).as_secs_f64();
                let _ = writeln!(out, "{name}_bucket{{tool=\"{id}\",le=\"{seconds}\"}} {count}");
            }
            let _ = writeln!(out, "{name}_bucket{{tool=\"{id}\",le=\"+Inf\"}} {}", tool.calls);
            let _ = writeln!(out, "{name}_sum{{tool=\"{id}\"}} {}", tool.took.as_secs_f64());
            let _ = writeln!(out, "{name}_count{{tool=\"{id}\"}} {}", tool.calls);
        }
        out
    }
}
