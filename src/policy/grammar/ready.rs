//! `[ready]`: processes that are started before the calls that they serve.

use super::document::PolicyEntry;
use super::grantable::Grantable;
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};

/// What a policy allows to be started ahead of calls, and as much of it as a tool gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadyGrant {
    /// Most processes that wait at one time.
    #[serde(default = "one")]
    pub processes: usize,
    /// Modules that a shim loads while it waits.
    #[serde(default)]
    pub imports: Vec<String>,
    /// How long a process waits for its call.
    #[serde(default = "ten_minutes", alias = "idle_ms")]
    pub idle_ms: u64,
    #[serde(default)]
    pub rule: String,
    pub why: String,
}

fn one() -> usize {
    1
}

fn ten_minutes() -> u64 {
    600_000
}

impl Grantable for ReadyGrant {
    fn kind(&self) -> &'static str {
        "ready"
    }
    fn text(&self) -> String {
        let imports = if self.imports.is_empty() {
            String::new()
        } else {
            format!(" with {} loaded", self.imports.join(", "))
        };
        let ReadyGrant {
            processes, idle_ms, ..
        } = self;
        format!("{processes} started before their calls{imports}, each for at most {idle_ms} ms")
    }
    fn covers(&self, other: &ReadyGrant) -> bool {
        self.processes >= other.processes
            && self.idle_ms >= other.idle_ms
            && other.imports.iter().all(|name| self.imports.contains(name))
    }
    fn is_near(&self, _: &ReadyGrant) -> bool {
        true
    }
}

pub fn read(document: &mut Reader<'_>) -> Option<PolicyEntry<ReadyGrant>> {
    Some(PolicyEntry {
        grant: document.get("/ready")?,
        at: document.at("/ready"),
    })
}
