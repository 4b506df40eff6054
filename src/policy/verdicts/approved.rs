//! Whether a tool is what a person approved.

use crate::base::files::Stamps;
use crate::base::text::printable;
use crate::fault::{Fault, Kind};
use crate::policy::grammar::ApprovedCode;
use std::sync::Arc;

/// Who approved a tool without a record.
pub const PINNED: &str = "by its manifest";

/// What an approval does not cover where one is required.
pub const SOURCE_TEXT: &str =
    "core:run-code runs any source text: policy allows it, and no approval covers it.";

/// That a tool runs only as it was approved.
#[derive(Clone, Debug)]
pub struct Approval {
    /// Who says so, in words.
    pub required_by: String,
    pub state: ApprovalState,
    /// What is another thing than at the approval, and was not part of it.
    pub note: Option<String>,
    /// Of the code that was looked at. `None`: the tool has none, or it cannot be looked at.
    pub stamps: Option<Arc<Stamps>>,
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
    /// A script that a builtin tool runs is of no approved tool, with what to do.
    OfScript(String),
}

impl ApprovalState {
    pub fn name(&self) -> &'static str {
        match self {
            ApprovalState::Approved { .. } => "approved",
            ApprovalState::Missing => "not approved",
            ApprovalState::Changed { .. } => "changed since approval",
            ApprovalState::Unfit(_) => "cannot be approved as it is",
            ApprovalState::OfScript(_) => "of no approved tool",
        }
    }

    /// The record, or the reason, in words.
    pub fn words(&self) -> String {
        match self {
            ApprovalState::Approved { record, .. } => record.clone(),
            ApprovalState::Missing => "it has no approval".to_owned(),
            ApprovalState::Changed { record, parts } => {
                format!("{} changed; approved {record}", parts.join(", "))
            }
            ApprovalState::Unfit(why) | ApprovalState::OfScript(why) => why.clone(),
        }
    }
}

impl Approval {
    pub fn is_by_policy(&self) -> bool {
        self.required_by != PINNED
    }

    /// Whether the code is as it was when it was looked at.
    pub fn is_current(&self) -> bool {
        self.stamps.as_ref().is_none_or(|it| it.are_unchanged())
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
            ApprovalState::OfScript(_) => "this script is of no tool that is approved",
        };
        let message = format!("{message}, so it was not started; ask the operator");
        Some(Fault::new(Kind::SecurityError, message).person(self.sentence(tool)))
    }

    /// What is wrong, and how to go on.
    pub fn sentence(&self, tool: &str) -> String {
        let tool = printable(tool);
        let id = tool.split('@').next().unwrap_or_default();
        let words = self.state.words();
        let (is, fix) = match &self.state {
            ApprovalState::OfScript(_) => return words,
            ApprovalState::Changed { record, .. } if record == PINNED => (
                "has changed since approval",
                format!(
                    "`toolhost approve {id}` shows what it is; if you agree, write the digest that it \
                    prints as `approval.sha256` of the manifest."
                ),
            ),
            ApprovalState::Changed { .. } => (
                "has changed since approval",
                format!(
                    "`toolhost approve {id}` shows what changed; with --why TEXT it records that you agree."
                ),
            ),
            ApprovalState::Unfit(_) => (
                "cannot be approved as it is",
                format!("After that, `toolhost approve {id}` shows what it is."),
            ),
            _ => (
                "is not approved",
                format!(
                    "`toolhost approve {id}` shows what it is; with --why TEXT it records that you agree."
                ),
            ),
        };
        let by = if self.is_by_policy() {
            format!("{} requires approval", self.required_by)
        } else {
            "its manifest names what is approved".to_owned()
        };
        format!("{tool} {is} ({by}): {words}.\n{fix}")
    }
}
