//! The board: samples in, a compact table and the gates met or missed out.
//!
//! Every ratio is between two series of one interleaved run. A gate is a ratio, but for two that
//! are times: killing 50 children and loading 10,000 manifests. Never: measures anything itself.

use std::time::Duration;

/// The times of one thing.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    times: Vec<Duration>,
}

impl Series {
    pub fn new(name: impl Into<String>) -> Series {
        Series {
            name: name.into(),
            times: Vec::new(),
        }
    }

    pub fn push(&mut self, time: Duration) {
        self.times.push(time);
    }

    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Nearest rank; 0 = the least.
    pub fn percent(&self, percent: usize) -> Duration {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or_default()
    }

    pub fn p50(&self) -> f64 {
        self.percent(50).as_secs_f64()
    }
}

/// What a number must hold to.
#[derive(Clone, Copy, Debug)]
pub enum Gate {
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Gate {
    fn met(self, value: f64) -> Option<bool> {
        match self {
            Gate::None => None,
            Gate::AtMost(most) => Some(value <= most),
            Gate::AtLeast(least) => Some(value >= least),
        }
    }

    fn text(self) -> String {
        match self {
            Gate::None => String::new(),
            Gate::AtMost(most) => format!("≤ {most}"),
            Gate::AtLeast(least) => format!("≥ {least}"),
        }
    }
}

/// Prints as it goes, and counts.
#[derive(Debug, Default)]
pub struct Board {
    met: usize,
    missed: Vec<String>,
    skipped: Vec<String>,
    section: String,
}

const NAME: usize = 40;

impl Board {
    pub fn section(&mut self, title: &str) {
        self.section = title.to_owned();
        let head = ["min", "p50", "p99", "ratio"]
            .map(|word| format!("{word:>9}"))
            .concat();
        println!("\n{}{head}  gate", pad(title, NAME + 2));
    }

    /// A series alone: what others are compared with.
    pub fn base(&mut self, series: &Series) {
        println!("{}", self.row(series, None, Gate::None));
    }

    /// A series beside its base: the ratio of their p50, and its gate.
    pub fn beside(&mut self, series: &Series, base: &Series, gate: Gate) {
        let ratio = series.p50() / base.p50().max(f64::MIN_POSITIVE);
        println!("{}", self.row(series, Some(ratio), gate));
    }

    /// A series with a ratio that was found otherwise.
    pub fn with_ratio(&mut self, series: &Series, ratio: f64, gate: Gate) {
        println!("{}", self.row(series, Some(ratio), gate));
    }

    /// A number that is not a time, in the ratio's column.
    pub fn number(&mut self, name: &str, value: f64, gate: Gate) {
        let verdict = self.judge(name, value, gate);
        println!("  {}{value:>36.2}  {verdict}", pad(name, NAME));
    }

    /// What this machine or build cannot measure.
    pub fn skip(&mut self, what: &str, why: &str) {
        println!("  {} not measured: {why}", pad(what, NAME));
        self.skipped.push(format!("{what} ({why})"));
    }

    pub fn note(&self, text: &str) {
        println!("  {text}");
    }

    fn row(&mut self, series: &Series, ratio: Option<f64>, gate: Gate) -> String {
        let times = [0, 50, 99]
            .map(|p| format!("{:>9}", shown(series.percent(p))))
            .concat();
        let text = ratio.map_or_else(String::new, |r| {
            if r < 0.1 {
                format!("{r:.4}")
            } else {
                format!("{r:.2}")
            }
        });
        let verdict = ratio.map_or_else(String::new, |r| self.judge(&series.name, r, gate));
        format!("  {}{times}{text:>9}  {verdict}", pad(&series.name, NAME))
            .trim_end()
            .to_owned()
    }

    fn judge(&mut self, name: &str, value: f64, gate: Gate) -> String {
        match gate.met(value) {
            None => String::new(),
            Some(true) => {
                self.met += 1;
                format!("{} met", gate.text())
            }
            Some(false) => {
                self.missed.push(format!(
                    "{}: {name}: {value:.3}, the gate is {}",
                    self.section,
                    gate.text()
                ));
                format!("{} MISSED", gate.text())
            }
        }
    }

    /// The end of the table. True when no gate was missed.
    pub fn finish(&self) -> bool {
        println!();
        for skipped in &self.skipped {
            println!("not measured: {skipped}");
        }
        for missed in &self.missed {
            println!("missed: {missed}");
        }
        println!("{} gates met, {} missed", self.met, self.missed.len());
        self.missed.is_empty()
    }
}

fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

/// Three figures and a unit.
pub fn shown(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    match us {
        ..9.95 => format!("{us:.1} µs"),
        ..999.5 => format!("{us:.0} µs"),
        ..9_995.0 => format!("{:.2} ms", us / 1e3),
        ..99_950.0 => format!("{:.1} ms", us / 1e3),
        ..999_500.0 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}
