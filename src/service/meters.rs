//! How the calls of each tool ended, and what they took and were refused. Calls of tools that do
//! not exist count under one name.

use super::call_ended::CallEnded;
use super::catalog::Catalog;
use super::exposition::Exposition;
use crate::base::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Upper bounds of the times that are counted apart, milliseconds.
const BOUNDS: [u64; 9] = [10, 25, 50, 100, 250, 1000, 5000, 30_000, 300_000];
/// Label of all calls whose tool does not exist.
const NONE: &str = "none";

#[derive(Debug, Default)]
pub struct Meters(Mutex<BTreeMap<String, ToolMetrics>>);

/// The calls of one tool.
#[derive(Debug, Default)]
struct ToolMetrics {
    outcomes: BTreeMap<String, u64>,
    within: [u64; BOUNDS.len()],
    calls: u64,
    took: Duration,
    cpu: Duration,
    /// The most memory that one call had, bytes.
    peak: u64,
    /// By operation.
    denials: BTreeMap<String, u64>,
}

/// Counts one call.
pub struct Meter {
    meters: Arc<Meters>,
    tool: String,
}

impl Meter {
    pub(super) fn count(self, ended: &CallEnded) {
        let CallEnded { report, took, .. } = ended;
        let mut tools = lock(&self.meters.0);
        let tool = tools.entry(self.tool).or_default();
        *tool.outcomes.entry(report.outcome.word()).or_default() += 1;
        (tool.calls, tool.took) = (tool.calls + 1, tool.took + *took);
        let within = BOUNDS.iter().zip(&mut tool.within);
        within
            .filter(|(bound, _)| *took <= Duration::from_millis(**bound))
            .for_each(|(_, count)| *count += 1);
        tool.cpu += Duration::from_millis(report.observed.usage.cpu_ms.unwrap_or_default());
        tool.peak = tool
            .peak
            .max(report.observed.usage.peak_memory_bytes.unwrap_or_default());
        for denial in &report.observed.denials.observed {
            *tool.denials.entry(denial.operation.clone()).or_default() += 1;
        }
    }
}

impl Meters {
    /// `asked`: `id` or `id@range`.
    pub(super) fn of(self: &Arc<Self>, asked: &str, catalog: &Catalog) -> Meter {
        let id = asked.split('@').next().unwrap_or_default();
        let known = !catalog.registry.snapshot().versions(id).is_empty();
        Meter {
            meters: self.clone(),
            tool: if known { id } else { NONE }.to_owned(),
        }
    }

    pub fn write(&self, text: &mut Exposition) {
        let tools = lock(&self.0);
        let name = "toolhost_calls_total";
        text.head(name, "Calls that ended, by tool and outcome.", "counter");
        for (id, tool) in tools.iter() {
            tool.outcomes.iter().for_each(|(it, count)| {
                text.sample(name, &[("tool", id), ("outcome", it)], *count as f64)
            });
        }
        let name = "toolhost_denials_total";
        text.head(
            name,
            "Denials of calls by their sandbox, by tool and operation.",
            "counter",
        );
        for (id, tool) in tools.iter() {
            tool.denials.iter().for_each(|(it, count)| {
                text.sample(name, &[("tool", id), ("operation", it)], *count as f64)
            });
        }
        let name = "toolhost_call_cpu_seconds_total";
        text.head(name, "CPU time of the processes of calls.", "counter");
        tools
            .iter()
            .for_each(|(id, tool)| text.sample(name, &[("tool", id)], tool.cpu.as_secs_f64()));
        let name = "toolhost_call_memory_peak_bytes";
        text.head(
            name,
            "The most memory that one call had since this host started.",
            "gauge",
        );
        tools
            .iter()
            .for_each(|(id, tool)| text.sample(name, &[("tool", id)], tool.peak as f64));
        let name = "toolhost_call_duration_seconds";
        text.head(name, "Time from a call's arrival to its end.", "histogram");
        for (id, tool) in tools.iter() {
            let bounds = BOUNDS
                .iter()
                .map(|bound| Duration::from_millis(*bound).as_secs_f64().to_string());
            let buckets = bounds
                .zip(tool.within)
                .chain([("+Inf".to_owned(), tool.calls)]);
            buckets.for_each(|(le, count)| {
                text.sample(
                    &format!("{name}_bucket"),
                    &[("tool", id), ("le", &le)],
                    count as f64,
                );
            });
            text.sample(
                &format!("{name}_sum"),
                &[("tool", id)],
                tool.took.as_secs_f64(),
            );
            text.sample(&format!("{name}_count"), &[("tool", id)], tool.calls as f64);
        }
    }
}
