//! What is told of a call beside its report: to the run log while it runs, and to the person who asked for more.
//!
//! For: the road. In: lines of the tool's log, its input, its answer. Out: the same, secrets hidden. Never: kept where
//! nobody asked for it.

use super::super::runlog;
use super::super::verbose::Verbose;
use super::CallRecord;
use crate::base::json::Text;
use crate::executor::Ending;
use crate::fault::Fault;
use serde_json::Value;

impl CallRecord {
    /// A line that the tool wrote: told to the run log as well.
    pub fn heard(&mut self, line: &str) -> String {
        let line = self.log(line);
        let tool = self.tool.as_ref().map_or("", |tool| &tool.manifest.id);
        runlog::line(&self.id, || self.trace(), tool, &line);
        line
    }

    /// Lines of a script that came faster than they could be taken: its outcome has them.
    pub(super) fn not_heard(&self, lost: u64) {
        if lost > 0 {
            let tool = self.tool.as_ref().map_or("", |tool| &tool.manifest.id);
            let words = format!("toolhost: {lost} more lines came too fast for this log: the outcome has them");
            runlog::line(&self.id, || self.trace(), tool, &words);
        }
    }

    /// The executor gets this input.
    pub fn sends(&mut self, input: &Value) {
        if self.verbose.is_some() {
            let text = self.json_hidden(&input.to_string());
            self.verbose.iter_mut().for_each(|verbose| verbose.stdin.clone_from(&text));
        }
    }

    /// What the tool wrote to standard output: its answer, or the end of what it printed instead.
    pub(super) fn wrote_out(&mut self, ending: &Ending, printed: &[String]) {
        if self.verbose.is_none() {
            return;
        }
        let text = match ending {
            Ending::Answered(answer) => self.json_hidden(answer.as_str()),
            Ending::BadOutput { head, .. } => self.arguments.mask.text(head),
            _ => printed.join("\n"),
        };
        self.verbose.iter_mut().for_each(|verbose| verbose.stdout.clone_from(&text));
    }

    /// What is told beside the report, where that was asked for.
    pub(super) fn told_beside(&mut self, result: &Result<Text, Fault>) -> Option<Box<Verbose>> {
        let mut verbose = *self.verbose.take()?;
        // What runs in this process has no standard output.
        if let (Ok(answer), true) = (result, verbose.stdout.is_empty()) {
            verbose.stdout = self.json_hidden(answer.as_str());
        }
        verbose.command = self.arguments.mask.text(&self.command());
        verbose.stderr = self.seen.logs.join("\n");
        verbose.timing = Verbose::timed(self.stages.parts());
        Some(Box::new(verbose.decent()))
    }

    fn json_hidden(&self, text: &str) -> String {
        self.masked(text).unwrap_or_else(|| text.to_owned())
    }
}
