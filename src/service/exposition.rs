//! Metrics in the text format of Prometheus.

use std::fmt::Write;

/// Exposition format 0.0.4.
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
