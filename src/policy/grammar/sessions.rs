//! `sessions`: interpreters that go on between the calls of one caller.

use super::document::PolicyEntry;
use super::grantable::Grantable;
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};

/// The line that allows sessions, for whoever lacks it.
pub const LINE: &str = r#"sessions = { max = 4, idle_ms = 600_000, why = "…" }"#;

/// How many sessions a caller may have, and how long one waits for its next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionGrant {
    /// Of one caller at one time.
    #[serde(default = "four")]
    pub max: usize,
    #[serde(default = "ten_minutes", alias = "idle_ms")]
    pub idle_ms: u64,
    #[serde(default)]
    pub rule: String,
    pub why: String,
}

fn four() -> usize {
    4
}

fn ten_minutes() -> u64 {
    600_000
}

impl Grantable for SessionGrant {
    fn kind(&self) -> &'static str {
        "sessions"
    }
    fn text(&self) -> String {
        let SessionGrant { max, idle_ms, .. } = self;
        format!(
            "{max} sessions of each caller, whose earlier code can disturb its later code; each \
            ends after {idle_ms} ms without a call"
        )
    }
    fn covers(&self, other: &SessionGrant) -> bool {
        self.max >= other.max && self.idle_ms >= other.idle_ms
    }
    fn is_near(&self, _: &SessionGrant) -> bool {
        true
    }
}

pub fn read(document: &mut Reader<'_>) -> Option<PolicyEntry<SessionGrant>> {
    Some(PolicyEntry {
        grant: document.get("/sessions")?,
        at: document.at("/sessions"),
    })
}
