//! Verbose: what was run, with what, and how long each stage took.
//!
//! For: the person who tries a tool (`call --verbose`, `test --verbose`). In: the record of a call. Out: texts with their
//! secrets hidden, each cut. Never: made where it was not asked for; sent over a network.

use super::stages::Stage;
use crate::base::text::{cut, printable, printable_block};
use serde::Serialize;
use std::time::Duration;

/// Longest text, bytes.
const CUT: usize = 16 * 1024;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verbose {
    /// The interpreter, its words and the script; of a method of this process its name.
    pub command: String,
    /// As the tool got it.
    pub stdin: String,
    /// The answer, or the end of what was printed instead of one.
    pub stdout: String,
    /// The log.
    pub stderr: String,
    /// What the call could touch, as audit shows it.
    pub grants: Vec<String>,
    /// How long each stage took, milliseconds.
    pub timing: Vec<(&'static str, f64)>,
}

impl Verbose {
    pub(super) fn timed(stages: impl Iterator<Item = (Stage, Duration, Duration)>) -> Vec<(&'static str, f64)> {
        let mut timing: Vec<(&'static str, f64)> = Vec::new();
        for (stage, _, took) in stages {
            let ms = (took.as_secs_f64() * 1e5).round() / 100.0;
            match timing.iter_mut().find(|(name, _)| *name == stage.name()) {
                Some((_, all)) => *all += ms,
                None => timing.push((stage.name(), ms)),
            }
        }
        timing
    }

    /// Cut, and nothing in it that a terminal would obey.
    pub(super) fn decent(self) -> Verbose {
        let decent = |text: String| printable_block(&cut(&text, CUT));
        Verbose {
            command: printable(&cut(&self.command, CUT)),
            stdin: decent(self.stdin),
            stdout: decent(self.stdout),
            stderr: decent(self.stderr),
            ..self
        }
    }
}
