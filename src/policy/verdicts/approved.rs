//! Whether a tool is what a person approved.

use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::policy::grammar::ApprovedCode;
use std::sync::Arc;

/// Who approved a tool without a record.
pub const PINNED: &str = "by its manifest";

/// That a tool runs only as it was approved.
#[derive(Clone, Debug)]
pub struct Approval {
    /// Who says so, in words.
    pub required_by: String,
    pub state: ApprovalState,
    /// What is another thing than at the approval, and was not part of it.
    pub note: Option<String>,
}

#[derive(Clone, Debug)]
pub enum ApprovalState {
    /// `code`: the copy that runs. `None`: the tool has no code of its own.
    Approved {
        record: String,
        code: Option<Arc<ApprovedCode>>,
    },
    Missing,
    /// Its parts that changed since they were approved.
    Changed {
        record: String,
        parts: Vec<&'static str>,
    },
    /// It cannot be looked at or copied, in words.
    Unfit(String),
}

impl ApprovalState {
    pub fn name(&self) -> &'static str {
        match self {
            ApprovalState::Approved { .. } => "approved",
            ApprovalState::Missing => "not approved",
            ApprovalState::Changed { .. } => "changed since approval",
            ApprovalState::Unfit(_) => "cannot be approved as it is",
        }
    }

    /// The record, or the reason, in words.
    pub fn words(&self) -> String {
        match self {
            ApprovalState::Approved { record, .. } => record.clone(),
            ApprovalState::Missing => "nobody approved it".to_owned(),
            ApprovalState::Changed { record, parts } => {
                format!("{} changed; approved {record}", parts.join(", "))
            }
            ApprovalState::Unfit(why) => why.clone(),
        }
    }
}

impl Approval {
    pub fn is_by_policy(&self) -> bool {
        self.required_by != PINNED
    }

    pub fn is_met(&self) -> bool {
        matches!(self.state, ApprovalState::Approved { .. })
    }

    pub fn code(&self) -> Option<&Arc<ApprovedCode>> {
        match &self.state {
            ApprovalState::Approved { code, .. } => code.as_ref(),
            _ => None,
        }
    }

    /// The fault of every call. `None`: the tool is as it was approved.
    pub fn fault(&self, tool: &str) -> Option<Fault> {
        let message = match &self.state {
            ApprovalState::Approved { .. } => return None,
            ApprovalState::Missing => "this tool is not approved on this host",
            ApprovalState::Changed { .. } => "this tool has changed since approval",
            ApprovalState::Unfit(_) => "this tool cannot be run as it was approved",
        };
        let tool = printable(tool);
        let id = tool.split('@').next().unwrap_or_default();
        let state = self.state.name();
        let words = self.state.words();
        let person = format!(
            "{tool} is {state} ({} requires approval): {words}\n`toolhost approve {id}` shows what it \
             is and what changed; with --why TEXT it records that you agree.",
            self.required_by
        );
        let message = format!("{message}, so it was not started; ask the operator");
        Some(Fault::new(Kind::SecurityError, message).person(person))
    }
}
