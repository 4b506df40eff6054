//! The entries of `[calls]`: the tools that code of a tool may call.

use super::document::PolicyEntry;
use super::grantable::Grantable;
use crate::manifest::Selector;
use crate::manifest::reader::Reader;
use serde::{Deserialize, Serialize};

/// Tools that the code of a tool may call, each by the whole pipeline, for the same caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallGrant {
    pub tool: Selector,
    /// Every policy has the exact id. Without that, the grant is for tools that have no effect
    /// outside their own call alone.
    #[serde(default)]
    pub by_name: bool,
    #[serde(default)]
    pub rule: String,
    pub why: String,
}

impl CallGrant {
    /// What both grant. The reasons are those of `entry`, unless this grant has its own.
    pub fn intersection(&self, entry: &CallGrant) -> Option<CallGrant> {
        if !self.tool.meets(&entry.tool) {
            return None;
        }
        let reasons = if self.rule.is_empty() { entry } else { self };
        Some(CallGrant {
            tool: self.tool.clone().max(entry.tool.clone()),
            by_name: self.by_name && entry.by_name,
            ..reasons.clone()
        })
    }

    /// Whether the grant is for this tool. `has_effects`: whatever the tool does outside its call.
    pub fn allows(&self, id: &str, has_effects: bool) -> bool {
        self.tool.matches(id) && (self.by_name || !has_effects)
    }
}

impl Grantable for CallGrant {
    fn kind(&self) -> &'static str {
        "call"
    }
    fn text(&self) -> String {
        let tool = self.tool.text();
        if self.by_name {
            format!("{tool} from its code")
        } else {
            format!("{tool} from its code, where that writes and reaches nothing")
        }
    }
    fn covers(&self, other: &CallGrant) -> bool {
        let all = self.tool == other.tool
            || matches!(&other.tool, Selector::Exact(id) if self.tool.matches(id))
            || self.tool == Selector::Any;
        all && (self.by_name || !other.by_name)
    }
    fn is_near(&self, other: &CallGrant) -> bool {
        self.tool.meets(&other.tool)
    }
}

/// An entry as it is written.
#[derive(Deserialize)]
struct Written {
    tool: Selector,
    why: String,
}

/// `name`: of the policy.
pub fn read(document: &mut Reader<'_>, name: &str) -> Vec<PolicyEntry<CallGrant>> {
    let entries = document.list::<Written>("/calls/allow").into_iter();
    entries
        .map(|(pointer, Written { tool, why })| PolicyEntry {
            grant: CallGrant {
                by_name: matches!(tool, Selector::Exact(_)),
                rule: format!("{name}: {}", tool.text()),
                tool,
                why,
            },
            at: document.at(&pointer),
        })
        .collect()
}
