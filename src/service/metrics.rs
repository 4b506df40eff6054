//! Metrics in Prometheus text: how the calls of each tool ended, what they took and were refused,
//! and what this host holds now.

use super::calls::Phase;
use super::entry::Service;
use super::exposition::Exposition;
use super::request::Caller;
use super::runlog;

/// All metrics, as Prometheus reads them.
pub fn text(service: &Service) -> Exposition {
    let mut text = Exposition::default();
    of_now(service, &mut text);
    service.meters.write(&mut text);
    text
}

fn of_now(service: &Service, text: &mut Exposition) {
    let open = service.calls.of(&Caller::operator(""));
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
        service.limiter.running.waiting(),
    );
    text.gauge(
        "toolhost_approvals_waiting",
        "Calls that wait for a person.",
        service.confirmations.list().len(),
    );
    let states = service.breakers.states(None);
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
    for gauge in service.catalog.gauges() {
        text.gauge(gauge.name, gauge.what, gauge.value);
    }
    let (under_way, built, failed) = service.packages.builds();
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
    text.counter(
        "toolhost_trace_spans_lost_total",
        lost,
        service.traces.lost(),
    );
    text.counter(
        "toolhost_log_lines_lost_total",
        "Lines of the run log that were lost because its reader was too slow.",
        runlog::lost(),
    );
}
