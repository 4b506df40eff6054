//! The call whose code makes another one: what that may be, and in whose slot it runs.

use super::redaction::Redaction;
use crate::executor::{Asking, Pauses};
use crate::fault::{Fault, Kind};
use crate::policy::{CallGrant, Decision};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// How many calls of one tool a person agrees to at once.
pub(super) const AGREED_CALLS: u64 = 20;

/// Most calls between a call and the one whose code leads to it, both included.
pub(super) const MAX_DEPTH: usize = 4;

#[derive(Clone)]
pub struct Parent {
    /// The id of its call.
    pub call: String,
    /// What its code may call: the grants, and the tools that were offered to it.
    pub grants: Arc<[CallGrant]>,
    pub offered: Arc<[String]>,
    /// The tools that it runs, and those before it, whose slots are in use until it ends.
    pub tools: Vec<String>,
    /// How many calls led to it.
    pub depth: usize,
    /// The one place in its slot: it does nothing while its code waits.
    pub seat: Arc<Semaphore>,
    /// The fault of a call that its code may not make.
    pub refuse: Arc<dyn Fn(&str) -> Fault + Send + Sync>,
    /// Hides its secrets, which its code can pass on.
    pub(super) redaction: Arc<Redaction>,
    /// Its code, as the question to a person names it.
    pub code: AskingCode,
    /// Those of it and of the calls before it.
    pub pauses: Vec<Arc<Pauses>>,
    /// What a person said about calls of its code, by the digest of what is decided about them. One
    /// question at a time.
    pub(super) agreements: Arc<tokio::sync::Mutex<BTreeMap<String, Agreement>>>,
}

/// The code of a call, as the question to a person names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskingCode {
    /// The tool that runs it.
    pub tool: String,
    /// SHA-256 of its text.
    pub digest: String,
    /// How many calls of the tool a yes is for, this one included.
    pub calls: u64,
}

/// A person's answer, which holds for several calls of one tool by one program.
pub(super) enum Agreement {
    Agreed { by: String, left: u64 },
    Refused(Fault),
}

impl fmt::Debug for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parent {}", self.call)
    }
}

impl Parent {
    /// Refuses what its code may not call, before anything is looked up.
    pub fn accepts(&self, tool: &str) -> Result<(), Fault> {
        let id = tool.split('@').next().unwrap_or_default();
        if self.depth >= MAX_DEPTH {
            let message = format!("Calls from code lead to at most {MAX_DEPTH} calls in a row.");
            return Err(Fault::new(Kind::ResourceLimitError, message));
        }
        if self.offered.iter().any(|offered| offered == id) {
            Ok(())
        } else {
            Err((self.refuse)(id))
        }
    }

    /// Refuses a call whose effects need an entry of their own.
    pub fn accepts_decided(&self, id: &str, decision: &Decision) -> Result<(), Fault> {
        let has_effects = decision.has_effects();
        if !self
            .grants
            .iter()
            .any(|grant| grant.allows(id, has_effects))
        {
            return Err((self.refuse)(id));
        }
        Ok(())
    }

    /// It and the calls before it stand still until this is dropped.
    pub(super) fn stand_still(&self) -> Vec<Asking> {
        self.pauses.iter().map(Pauses::ask).collect()
    }
}

/// The fault of code that calls a tool without a grant. It is the same for a tool that does not
/// exist.
pub(super) fn not_allowed(id: &str) -> Fault {
    let message = format!("Code may not call {id} here.");
    Fault::new(Kind::SecurityError, message)
}
