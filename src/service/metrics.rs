//! Metrics in Prometheus text: how the calls of each tool ended, what they took and were refused,
//! what this host holds now. Calls of tools that do not exist count under one name.

use super::call_ended::CallEnded;
use super::{Caller, Phase, Service, runlog};
use crate::base::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Upper bounds of the times that are counted apart, milliseconds.
const BOUNDS: [u64; 9] = [10, 25, 50, 100, 250, 1000, 5000, 30_000, 300_000];
/// Label of all calls whose tool does not exist.
const NONE: &str = "none";

#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<BTreeMap<String, ToolMetrics>>);

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
pub(super) struct Meter {
    metrics: Arc<Metrics>,
    tool: String,
}

impl Meter {
    pub fn count(self, ended: &CallEnded) {
        let CallEnded { report, took, .. } = ended;
        let mut tools = lock(&self.metrics.0);
        let tool = tools.entry(self.tool).or_default();
        *tool.outcomes.entry(report.outcome.word()).or_default() += 1;
        (tool.calls, tool.took) = (tool.calls + 1, tool.took + *took);
        let within = BOUNDS.iter().zip(&mut tool.within);
        within
            .filter(|(bound, _)| *took <= Duration::from_millis(**bound))
            .for_each(|(_, count)| *count += 1);
        tool.cpu += Duration::from_millis(report.usage.cpu_ms.unwrap_or_default());
        tool.peak = tool
            .peak
            .max(report.usage.peak_memory_bytes.unwrap_or_default());
        for denial in &report.denials.observed {
            *tool.denials.entry(denial.operation.clone()).or_default() += 1;
        }
    }
}

impl Service {
    /// `asked`: `id` or `id@range`.
    pub(super) fn meter(&self, asked: &str) -> Meter {
        let id = asked.split('@').next().unwrap_or_default();
        let known = !self.registry().snapshot().versions(id).is_empty();
        Meter {
            metrics: self.metrics.clone(),
            tool: if known { id } else { NONE }.to_owned(),
        }
    }

    /// All metrics, as Prometheus reads them.
    pub fn metrics(&self) -> Exposition {
        let mut text = Exposition::default();
        self.of_now(&mut text);
        self.of_calls(&mut text);
        text
    }

    fn of_now(&self, text: &mut Exposition) {
        let open = self.calls(&Caller::operator(""));
        let of = |phase: Phase| open.iter().filter(|call| call.phase == phase).count();
        text.gauge(
            "toolhost_calls_running",
            "Calls whose tool runs.",
            of(Phase::Running),
        );
        text.gauge(
            "toolhost_calls_waiting",
            "Calls that wait for a slot, or are being prepared.",
            of(Phase::Waiting),
        );
        text.gauge(
            "toolhost_calls_queued",
            "Calls that wait for a slot.",
            self.limiter.running.waiting(),
        );
        text.gauge(
            "toolhost_approvals_waiting",
            "Calls that wait for a person.",
            self.confirmations().len(),
        );
        let states = self.breakers.states(None);
        text.head(
            "toolhost_breakers",
            "Circuit breakers with failures, of one caller or of all, by state.",
            "gauge",
        );
        for state in ["closed", "open", "half-open"] {
            let many = states
                .iter()
                .filter(|breaker| breaker.state == state)
                .count();
            text.sample("toolhost_breakers", &[("state", state)], many as f64);
        }
        let executors = &self.components.executors;
        for executor in [&executors.process, &executors.wasm].into_iter().flatten() {
            for gauge in executor.gauges() {
                text.gauge(gauge.name, gauge.what, gauge.value);
            }
        }
        let (under_way, built, failed) = self.packages.builds();
        text.gauge(
            "toolhost_package_builds_running",
            "Builds of packages under way, or waiting.",
            under_way,
        );
        text.head(
            "toolhost_package_builds_total",
            "Builds of packages that ended.",
            "counter",
        );
        for (outcome, many) in [("success", built), ("failure", failed)] {
            text.sample(
                "toolhost_package_builds_total",
                &[("outcome", outcome)],
                many as f64,
            );
        }
        let lost = "Spans of calls that did not reach the collector.";
        text.counter("toolhost_trace_spans_lost_total", lost, self.traces.lost());
        text.counter(
            "toolhost_log_lines_lost_total",
            "Lines of the run log that were lost because its reader was too slow.",
            runlog::lost(),
        );
    }

    fn of_calls(&self, text: &mut Exposition) {
        let tools = lock(&self.metrics.0);
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

/// Metrics in the text format of Prometheus (exposition format 0.0.4).
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Writes the HELP and TYPE lines of a metric.
    pub fn head(&mut self, name: &str, what: &str, kind: &str) {
        let _ = writeln!(self.0, "# HELP {name} {what}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text
                .replace('\\', r"\\")
                .replace('"', "\\\"")
                .replace('\n', r"\n");
            let _ = write!(
                self.0,
                "{}{label}=\"{text}\"",
                if at == 0 { "{" } else { "," }
            );
        }
        let _ = writeln!(
            self.0,
            "{} {value}",
            if labels.is_empty() { "" } else { "}" }
        );
    }

    pub fn gauge(&mut self, name: &str, what: &str, value: usize) {
        self.head(name, what, "gauge");
        self.sample(name, &[], value as f64);
    }

    pub fn counter(&mut self, name: &str, what: &str, value: u64) {
        self.head(name, what, "counter");
        self.sample(name, &[], value as f64);
    }

    pub fn whole(self) -> String {
        self.0
    }
}
