//! What was run, with what, and how long each stage took: for the person who tries a tool (`call --verbose`). Secrets are
//! hidden, texts are cut; it is made only where it was asked for.

use super::call_ended::CallEnded;
use crate::base::text::{cut, printable, printable_block};
use serde::Serialize;

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
    /// Completed with how the call ended; cut, and nothing in it that a terminal would obey.
    pub(super) fn of_call(self, ended: &CallEnded) -> Verbose {
        let block = |text: &str| printable_block(&cut(text, CUT));
        // What runs in this process has no standard output.
        let answer = ended.report.output_data.as_ref().filter(|_| self.stdout.is_empty());
        let mut timing: Vec<(&'static str, f64)> = Vec::new();
        for (stage, _, took) in &ended.stages {
            let ms = (took.as_secs_f64() * 1e5).round() / 100.0;
            match timing.iter_mut().find(|(name, _)| *name == stage.name()) {
                Some((_, all)) => *all += ms,
                None => timing.push((stage.name(), ms)),
            }
        }
        Verbose {
            command: printable(&cut(&ended.command, CUT)),
            stdin: block(&self.stdin),
            stdout: block(answer.map_or(&self.stdout, |answer| answer.as_str())),
            stderr: block(&ended.report.logs.join("\n")),
            grants: self.grants,
            timing,
        }
    }
}
