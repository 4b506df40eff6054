//! What the newest records of the log say of each tool: calls, failures and times.

use super::log::Log;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// The calls of one tool.
#[derive(Clone, Debug, Default)]
pub struct ToolUsage {
    calls: u64,
    /// How many calls ended with each type of error. Messages may be about others' data.
    errors: BTreeMap<String, u64>,
    /// When the newest call began.
    last: String,
    /// What each call took that ran, milliseconds.
    times: Vec<u64>,
}

/// By the ids of tools.
pub type UsageByTool = HashMap<String, ToolUsage>;

/// Who called what, as far as the log was read.
#[derive(Debug, Default)]
pub struct Usage {
    callers: HashMap<String, UsageByTool>,
    /// What was not looked at, and why.
    pub not_looked_at: Vec<String>,
}

/// What is read of a record. A call whose tool was not found has no version.
#[derive(Deserialize)]
struct Line {
    time: String,
    user: String,
    tool: String,
    #[serde(rename = "version")]
    _version: String,
    decision: String,
    outcome: String,
    usage: Spent,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spent {
    wall_ms: u64,
}

impl Log {
    /// The usage of all tools. The work is bounded: older records do not count.
    pub fn usage(&self) -> Result<Usage, String> {
        let mut found = Usage::default();
        let unread = self.newest_lines(|text| {
            // Lines that are not calls, and damaged ones, do not count.
            if let Ok(line) = serde_json::from_str::<Line>(text) {
                found.take(line);
            }
        })?;
        found.not_looked_at = unread;
        Ok(found)
    }
}

impl Usage {
    /// `line`: of an older call than those before.
    fn take(&mut self, line: Line) {
        let tools = self.callers.entry(line.user).or_default();
        let tool = tools.entry(line.tool).or_default();
        tool.calls += 1;
        if tool.last.is_empty() {
            tool.last = line.time;
        }
        if line.outcome != "success" {
            *tool.errors.entry(line.outcome).or_default() += 1;
        }
        if line.decision == "allowed" {
            tool.times.push(line.usage.wall_ms);
        }
    }

    /// The calls of one caller alone.
    pub fn of_caller(&self, caller: &str) -> UsageByTool {
        self.callers.get(caller).cloned().unwrap_or_default()
    }

    /// The calls of all.
    pub fn of_all(&self) -> UsageByTool {
        let mut all = UsageByTool::new();
        for (id, one) in self.callers.values().flatten() {
            let tool = all.entry(id.clone()).or_default();
            tool.calls += one.calls;
            tool.times.extend(&one.times);
            if one.last > tool.last {
                tool.last.clone_from(&one.last);
            }
            for (error, count) in &one.errors {
                *tool.errors.entry(error.clone()).or_default() += count;
            }
        }
        all
    }
}

impl ToolUsage {
    fn failures(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Which part of the calls succeeds, from 0 to 1. Few calls say little: without any it is a half.
    pub fn reliability(&self) -> f64 {
        (self.calls - self.failures() + 1) as f64 / (self.calls + 2) as f64
    }

    /// `p50Ms`: of the calls that ran. The most frequent errors come first.
    pub fn describe(&self) -> Value {
        let mut times = self.times.clone();
        times.sort_unstable();
        let mut errors: Vec<_> = self.errors.iter().collect();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let errors = errors
            .iter()
            .map(|(error, count)| json!({"type": error, "calls": count}));
        json!({
            "calls": self.calls,
            "failures": self.failures(),
            "p50Ms": times.get(times.len().saturating_sub(1) / 2),
            "last": Some(&self.last).filter(|last| !last.is_empty()),
            "errors": errors.collect::<Vec<_>>(),
        })
    }
}
