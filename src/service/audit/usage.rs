//! What the newest records of the log say of each tool: calls, failures and times.

use super::super::call_ended::manifest;
use super::log::Log;
use crate::registry::Tool;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The calls of one tool.
#[derive(Clone, Debug, Default)]
pub struct ToolUsage {
    calls: u64,
    /// How many calls ended with each type of error. Messages may be about others' data.
    errors: BTreeMap<String, u64>,
    /// When the newest call began.
    last: Option<String>,
    /// What each call took that ran, milliseconds.
    times: Vec<u64>,
}

/// By the ids of tools.
pub type UsageByTool = HashMap<String, ToolUsage>;

/// The calls of tools that were found, as far as the log was read, the newest first.
#[derive(Debug, Default)]
pub struct Usage {
    calls: Vec<UsedCall>,
    /// What was not looked at, and why.
    pub not_looked_at: Vec<String>,
}

/// What is read of a record. A call whose tool was not found has no version.
#[derive(Debug, Deserialize)]
struct UsedCall {
    time: String,
    user: String,
    tool: String,
    /// `None`: it is compiled in.
    manifest: Option<String>,
    #[serde(rename = "version")]
    _version: String,
    decision: String,
    outcome: String,
    usage: Spent,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spent {
    wall_ms: u64,
}

impl Log {
    /// The usage of all tools. The work is bounded: older records do not count.
    pub fn usage(&self) -> Result<Usage, String> {
        let mut calls = Vec::new();
        // Lines that are not calls, and damaged ones, do not count.
        let not_looked_at =
            self.newest_lines(|text| calls.extend(serde_json::from_str::<UsedCall>(text)))?;
        Ok(Usage {
            calls,
            not_looked_at,
        })
    }
}

impl Usage {
    /// The calls of these tools, by one caller alone (`None`: by all). The log is one for all roots of
    /// a user: tools of others have the same names.
    pub fn of(&self, known: &[Arc<Tool>], caller: Option<&str>) -> UsageByTool {
        let mut tools = UsageByTool::new();
        let known = known.iter();
        let known: HashSet<(&str, Option<String>)> = known
            .map(|tool| (tool.manifest.id.as_str(), manifest(&tool.site)))
            .collect();
        let own = |call: &&UsedCall| {
            caller.is_none_or(|caller| caller == call.user)
                && known.contains(&(call.tool.as_str(), call.manifest.clone()))
        };
        for call in self.calls.iter().filter(own) {
            let tool = tools.entry(call.tool.clone()).or_default();
            tool.calls += 1;
            if tool.last.is_none() {
                tool.last = Some(call.time.clone());
            }
            if call.outcome != "success" {
                *tool.errors.entry(call.outcome.clone()).or_default() += 1;
            }
            if call.decision == "allowed" {
                tool.times.push(call.usage.wall_ms);
            }
        }
        tools
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
    pub fn describe(&self) -> Map<String, Value> {
        let mut times = self.times.clone();
        times.sort_unstable();
        let mut errors: Vec<_> = self.errors.iter().collect();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let errors = errors
            .iter()
            .map(|(error, count)| json!({"type": error, "calls": count}));
        let fields = [
            ("calls", json!(self.calls)),
            ("failures", json!(self.failures())),
            ("p50Ms", json!(times.get(times.len().saturating_sub(1) / 2))),
            ("last", json!(self.last)),
            ("errors", errors.collect()),
        ];
        fields
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect()
    }
}
